"""Reservations of a unit (SPC-5 5.14): RESERVE and RELEASE, and persistent ones, which are kept with the file.

What several gateways on one volume can rely on: a gateway judges commands by a state that it has read at most LEASE
seconds ago. An action that takes a right away from anybody (RESERVE, PREEMPT, REGISTER AND MOVE, ...) answers GOOD only
when the record is on stable storage and, where another gateway has the unit open, LEASE seconds have passed since: from
then on no gateway lets a command pass that the action forbids. A PREEMPT AND ABORT has also waited until the tasks that
it aborted here are over; another gateway aborts its own when it reads the record, which may leave one fop under way.
RESERVE and RELEASE (not persistent) are known to their own gateway only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from glustx.errors import FopError, GraphError
from glustx.runtime import Lock, TimerHandle, drive, sleep
from glustx.scsi.commands import Access, Command, command
from glustx.scsi.pr_state import Event, News, Port, State
from glustx.scsi.pr_store import KEY, CorruptRecord, Store
from glustx.scsi.sense import (
    COMMANDS_CLEARED,
    INTERNAL_FAILURE,
    REGISTRATIONS_PREEMPTED,
    RESERVATIONS_PREEMPTED,
    RESERVATIONS_RELEASED,
    CheckCondition,
)
from glustx.scsi.task import CONFLICT, DONE, ORDERED, Nexus, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

LEASE = 0.5  # seconds
_SLACK = 1.1  # for clocks of different speed
_NEWS = {
    News.RESERVATIONS_PREEMPTED: RESERVATIONS_PREEMPTED,
    News.RESERVATIONS_RELEASED: RESERVATIONS_RELEASED,
    News.REGISTRATIONS_PREEMPTED: REGISTRATIONS_PREEMPTED,
}
_START_STOP, _PREVENT = 0x1B, 0x1E
# INQUIRY, REPORT LUNS, REQUEST SENSE, LOG SENSE, READ CAPACITY(10) pass a RESERVE of somebody else (SPC-2 5.5.1).
_PASS_RESERVE = frozenset((0x12, 0xA0, 0x03, 0x4D, 0x25))


def port_of(nexus: Nexus) -> Port:
    """Return what an I_T nexus is called in the record."""
    return Port(nexus.initiator.lower(), nexus.target.name, nexus.relative_port)


class Reservations:
    """Who has reserved one unit.

    Args:
        unit: whose they are.

    Attributes:
        held: whether there is any reservation; without one no command is looked at.
        valid_until: reactor time until which `held` and `state` count; `refresh` renews them.
        holder: nexus that holds RESERVE.
        state: persistent reservations as they were read or written last.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.held = False
        self.valid_until = math.inf
        self.holder: Nexus | None = None
        self.state = State()
        self.store = Store(unit.backing)
        self._changing = Lock()
        self._reading = Lock()
        self._poll: TimerHandle | None = None
        self._corrupt = False
        self._stopped = False

    async def load(self) -> None:
        """Read what is kept with the file; GraphError for a record that cannot be read.

        Where no other gateway has the unit open this is a power on: PRGENERATION begins anew, and registrations made
        without APTPL are gone.
        """
        store = self.store
        try:
            async with store.locked():
                state = await store.read()
                if await store.alone():
                    kept = state.copy()
                    kept.generation, kept.events = 0, []
                    if not kept.persists:
                        kept.registrations, kept.kind, kept.holder = [], 0, None
                    if kept != state:
                        kept.serial += 1
                        await store.write(kept)
                    state = kept
                await store.arrive()
        except CorruptRecord as error:
            raise GraphError(
                f"{self.unit!r}: {error} is in xattr {KEY}; whoever had reserved the unit would lose it, so it is not"
                " opened (remove the xattr to give all reservations up)"
            ) from None
        except FopError as error:
            raise GraphError(f"{self.unit!r}: its reservations cannot be read: {error}") from error
        self._install(state)
        self._renew(self.unit.reactor.time())

    async def stop(self) -> None:
        """Give back what says that this gateway has the unit open."""
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        self._stopped = True
        self.valid_until = math.inf
        try:
            await self.store.leave()
        except FopError as error:
            log.warning("%r: %s", self.unit, error)

    # -- the record --------------------------------------------------------------------------------------------------

    async def refresh(self, force: bool = False) -> None:
        """Read the record anew if it is time to; with `force` in any case, so that `state` is no older than the call.

        Raises FopError when the storage is away, and CheckCondition for a record that cannot be read: nobody gets past
        reservations that are not known.
        """
        async with self._reading:
            now = self.unit.reactor.time()
            if now < self.valid_until and not force:
                return
            await self.store.arrive()
            state = await self._read()
            if state.serial != self.state.serial:
                self._follow(state)
            self._renew(now)

    async def _read(self) -> State:
        try:
            state = await self.store.read()
        except CorruptRecord as error:
            if not self._corrupt:
                log.error("%r: %s is in xattr %s; commands are refused", self.unit, error, KEY)
            self._corrupt = True
            self.valid_until = -math.inf
            raise CheckCondition(INTERNAL_FAILURE, str(error)) from None
        self._corrupt = False
        return state

    async def current(self) -> State:
        """Return the state as it is in the record now."""
        if self.store.shared:
            await self.refresh(force=True)
        return self.state

    def _renew(self, read_at: float) -> None:
        if not self.store.shared:
            self.valid_until = math.inf
            return
        self.valid_until = read_at + LEASE
        if self.state.registrations:
            self._look_later()

    def _look_later(self) -> None:
        # Another gateway's news reach nexuses that send nothing, and tasks that it aborts end.
        if self._poll is None:
            self._poll = self.unit.reactor.call_later(LEASE, self._look)

    def _look(self) -> None:
        self._poll = None

        def looked(_: object, error: BaseException | None) -> None:
            if isinstance(error, (FopError, CheckCondition)):
                # Commands say so to initiators, and a brick that is away is told of elsewhere.
                log.debug("%r: %s", self.unit, error)
                if not self._stopped:
                    self._look_later()
            elif error is not None:
                log.error("%r: %s", self.unit, error, exc_info=error)

        if not self._stopped:
            drive(self.refresh(), looked)

    def _install(self, state: State) -> None:
        self.state = state
        self.held = bool(state.kind) or self.holder is not None

    def _follow(self, state: State) -> None:
        """Take a state that another gateway has made, and tell our nexuses what came with it."""
        before = self.state
        self._install(state)
        unseen = [event for event in state.events if event.serial > before.serial]
        for event in unseen:
            self._tell(event)
        if state.serial - before.serial > len({event.serial for event in unseen}):
            # Some actions bring no news, others are forgotten: who has lost a registration hears of it in any case.
            for nexus in self.unit.nexuses:
                port = port_of(nexus)
                told = any(port.digest in event.ports for event in unseen)
                if before.find(port) is not None and state.find(port) is None and not told:
                    nexus.raise_attention(self.unit, RESERVATIONS_PREEMPTED)

    def _tell(self, event: Event) -> None:
        if event.news == News.RESERVATIONS_RELEASED and self.unit.modes.quiet_release:
            return
        told = set(event.ports)
        for nexus in list(self.unit.nexuses):
            port = port_of(nexus)
            if port.digest not in told and Port(port.initiator, port.target, 0).digest not in told:
                continue
            if event.news != News.ABORTED:
                nexus.raise_attention(self.unit, _NEWS[News(event.news)])
            elif nexus.target.abort_tasks(nexus, self.unit):
                nexus.raise_attention(self.unit, COMMANDS_CLEARED)

    async def change(self, action: Callable[[State], bool], *, restricts: bool, drains: bool = False) -> None:
        """Do an action on the record, and tell others.

        Args:
            action: changes a state in place and returns whether it did.
            restricts: whether it can take a right away from anybody.
            drains: whether it waits for the end of the tasks that it aborts.

        Raises what the action raises; nothing has changed then.
        """
        async with self._changing, self.store.locked():
            state = (await self.current()).copy()
            before = state.serial
            if not action(state):
                return
            try:
                await self.store.write(state)
            except FopError:
                self.valid_until = -math.inf  # it may have been written
                raise
            written = self.unit.reactor.time()
            waits = restricts and not await self.store.alone()
            self._install(state)
            for event in state.events:
                if event.serial > before:
                    self._tell(event)
        if drains:
            await self._drained()
        if waits:
            rest = written + LEASE * _SLACK - self.unit.reactor.time()
            if rest > 0:
                await sleep(self.unit.reactor, rest)

    async def _drained(self) -> None:
        """Wait until every command that has begun is over."""
        order = self.unit.order
        hold = order.enter(0, self.unit.blocks, True, ORDERED)
        try:
            if hold.waiter is not None:
                await hold.waiter
        finally:
            order.leave(hold)

    # -- judging -----------------------------------------------------------------------------------------------------

    def refuses(self, nexus: Nexus, command: Command, cdb: bytes) -> bool:
        """Tell whether a command meets somebody else's reservation."""
        access = command.access
        if self.holder is not None and self.holder is not nexus:
            return access is not Access.RESERVE and not _passes_reserve(cdb)
        if access is Access.ANY or access is Access.PERSISTENT or access is Access.RESERVE or not self.state.kind:
            return False
        if (cdb[0] == _START_STOP and cdb[4] & 0xF1 == 0x01) or (cdb[0] == _PREVENT and not cdb[4] & 3):
            return False
        return not self.state.allows(port_of(nexus), writes=access is Access.WRITE)

    def permits(self, nexus: Nexus, *, writes: bool) -> bool:
        """Tell whether a nexus may read or write the medium by a command on another unit (third-party copy)."""
        if self.holder is not None and self.holder is not nexus:
            return False
        return self.state.allows(port_of(nexus), writes=writes)

    # -- RESERVE and RELEASE -----------------------------------------------------------------------------------------

    def nexus_lost(self, nexus: Nexus) -> None:
        """A nexus is gone: drop what it held by RESERVE; persistent reservations stay."""
        if self.holder is nexus:
            self.reset()

    def reset(self) -> None:
        """The unit was reset: drop RESERVE; persistent reservations stay."""
        self.holder = None
        self.held = bool(self.state.kind)

    def reserve(self, nexus: Nexus) -> Result:
        """Answer RESERVE."""
        if self.state.registrations:
            return self._instead(nexus)
        if self.holder is not None and self.holder is not nexus:
            return CONFLICT
        if nexus.alive:
            self.holder = nexus
            self.held = True
        return DONE

    def release(self, nexus: Nexus) -> Result:
        """Answer RELEASE; one of a nexus that holds nothing does nothing."""
        if self.state.registrations:
            return self._instead(nexus)
        if self.holder is nexus:
            self.reset()
        return DONE

    def _instead(self, nexus: Nexus) -> Result:
        # CRH (SPC-5 5.14.3): who could do as a holder does gets GOOD, and nothing is reserved.
        port = port_of(nexus)
        registered = self.state.find(port) is not None
        return DONE if registered and self.state.allows(port, writes=True) else CONFLICT


def _passes_reserve(cdb: bytes) -> bool:
    if cdb[0] in _PASS_RESERVE:
        return True
    if cdb[0] == 0x9E and cdb[1] & 0x1F == 0x10:  # READ CAPACITY(16)
        return True
    return cdb[0] == _PREVENT and not cdb[4] & 3


@command("RESERVE(6)", "16 00 00 00 00 07", Access.RESERVE)
async def reserve_6(unit: LogicalUnit, task: Task) -> Result:
    """Keep every other nexus from using the unit, until RELEASE, a reset or the loss of the nexus."""
    return unit.reservations.reserve(task.nexus)


@command("RELEASE(6)", "17 00 00 00 00 07", Access.RESERVE)
async def release_6(unit: LogicalUnit, task: Task) -> Result:
    """End the nexus's own RESERVE."""
    return unit.reservations.release(task.nexus)


@command("RESERVE(10)", "56 00 00 00 00 00 00 0000 07", Access.RESERVE)
async def reserve_10(unit: LogicalUnit, task: Task) -> Result:
    """As RESERVE(6)."""
    return unit.reservations.reserve(task.nexus)


@command("RELEASE(10)", "57 00 00 00 00 00 00 0000 07", Access.RESERVE)
async def release_10(unit: LogicalUnit, task: Task) -> Result:
    """As RELEASE(6)."""
    return unit.reservations.release(task.nexus)
