"""A logical unit: one file, its geometry and settings, and the way a command takes through them.

The checks stand in the order that initiators rely on (SAM-5 5.9, targets in the field): opcode, reserved bits, unit
attention, readiness, reservations, write protection, LBA range; then the command waits for its turn among overlapping
ones and runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.runtime import Reactor
from glustx.scsi import commands
from glustx.scsi.backing import Backing
from glustx.scsi.commands import CHANGES, KEEPS_ATTENTION, MEDIUM, TO_END, Access, Command
from glustx.scsi.config import LunConfig
from glustx.scsi.exceptions import Exceptions
from glustx.scsi.identity import Identity
from glustx.scsi.limits import BlockLimits
from glustx.scsi.logs import Logs
from glustx.scsi.modes import ModePages
from glustx.scsi.order import Order
from glustx.scsi.reservations import Reservations
from glustx.scsi.sanitize import Sanitizing
from glustx.scsi.sense import (
    INTERNAL_FAILURE,
    INVALID_OPCODE,
    LUNS_CHANGED,
    THRESHOLD_REACHED,
    WRITE_PROTECTED_HARDWARE,
    WRITE_PROTECTED_SOFTWARE,
    Attention,
    CheckCondition,
    Sense,
    from_errno,
    invalid_field,
    lba_out_of_range,
)
from glustx.scsi.statistics import Statistics
from glustx.scsi.task import CHECK_CONDITION, CONFLICT, Nexus, Result, Task
from glustx.scsi.thresholds import Thresholds

if TYPE_CHECKING:
    from glustx.scsi.gateway import Gateway

log = logging.getLogger("glustx.scsi")


class LogicalUnit:
    """One logical unit of a gateway; several targets and initiators may see it under different LUNs.

    Args:
        gateway: whose it is.
        config: what it is told to be.
        backing: its file.
        reactor: clock.

    Attributes:
        block_size, shift: of a logical block, in bytes and as a power of two.
        blocks: capacity in logical blocks.
        limits: what the Block Limits page says and commands obey.
        identity: serial number and designators.
        not_ready: why the medium cannot be used at the moment, None when it can.
        nexuses: all I_T nexuses that see the unit.
        buffer: of READ and WRITE BUFFER, empty until it is written.
        timestamp: what SET TIMESTAMP said, in ms, and when by the reactor.
        preventing: those that prevent medium removal.
    """

    def __init__(self, gateway: Gateway, config: LunConfig, backing: Backing, reactor: Reactor) -> None:
        self.gateway = gateway
        self.config = config
        self.backing = backing
        self.reactor = reactor
        self.block_size = config.block_size
        self.shift = config.block_size.bit_length() - 1
        self.blocks = (config.capacity or backing.size) >> self.shift
        self.limits = BlockLimits.of(config, backing)
        self.identity = Identity.of(config, backing)
        self.order = Order(config.reordering == "restricted")
        self.exceptions = Exceptions(self)
        self.modes = ModePages(self)
        self.reservations = Reservations(self)
        self.statistics = Statistics()
        self.logs = Logs(self)
        self.thresholds = Thresholds(self)
        self.sanitizing = Sanitizing(self)
        self.buffer = bytearray()
        self.timestamp: tuple[int, float] | None = None
        self.nexuses: set[Nexus] = set()
        self.preventing: set[Nexus] = set()
        self.not_ready: Sense | None = None
        self.injected: list[Injection] = []

    def __repr__(self) -> str:
        return f"<unit {self.backing.volume}:{self.backing.path}>"

    async def start(self) -> None:
        """Read what is kept with the file: saved mode pages, persistent reservations."""
        await self.modes.load()
        await self.reservations.load()
        self.thresholds.start()
        await self.sanitizing.load()

    async def stop(self) -> None:
        """Make what was written durable and give the file back."""
        await self.sanitizing.stop()
        await self.thresholds.stop()
        await self.reservations.stop()
        try:
            if self.backing.written:
                await self.backing.flush()
        finally:
            await self.backing.close()

    # -- nexuses -----------------------------------------------------------------------------------------------------

    def tell_all(self, attention: Attention, but: Nexus | None = None) -> None:
        """Raise a unit attention for every nexus, or every other one."""
        for nexus in self.nexuses:
            if nexus is not but:
                nexus.raise_attention(self, attention)

    def take_attention(self, nexus: Nexus) -> Attention | None:
        """Return the most important unit attention of a nexus, which counts as reported; None when there is none."""
        attention = nexus.take_attention(self)
        if attention is LUNS_CHANGED:
            for unit in set(nexus.luns.values()):  # LUICLR of VPD page 86h
                nexus.clear_attention(unit, attention)
        elif attention is not None and attention.rank == THRESHOLD_REACHED.rank:
            self.thresholds.told(nexus)
        return attention

    def removal_prevented(self) -> bool:
        """Tell whether a nexus that still is there prevents medium removal."""
        self.preventing &= self.nexuses
        return bool(self.preventing)

    def tasks(self) -> list[Task]:
        """Return the tasks of all nexuses on this unit."""
        return [task for nexus in self.nexuses for task in nexus.tasks.values() if task.unit is self]

    # -- commands ----------------------------------------------------------------------------------------------------

    async def run(self, task: Task) -> Result:
        """Run a command to its end and return how it ended; never raises but for a cancellation."""
        command = commands.find(task.cdb)
        started = self.statistics.begin()
        excepted = self.exceptions.active
        result: Result | None = None
        try:
            if command is None or (command.offered is not None and not command.offered(self)):
                raise self._unknown(task.cdb)
            if self.reactor.time() >= self.reservations.valid_until and not command.flags & KEEPS_ATTENTION:
                await self.reservations.refresh()
            result = await self._run(command, task)
            if excepted and self.exceptions.active:
                result = self.exceptions.after(result)
        except CheckCondition as error:
            result = Result(CHECK_CONDITION, sense=error.sense)
        except FopError as error:
            writing = command is not None and command.access is Access.WRITE
            result = Result(CHECK_CONDITION, sense=from_errno(error.errno, writing=writing))
            self.statistics.failed(task, error)
        except Exception:
            log.exception("%r failed on %r", task, self)
            result = Result(CHECK_CONDITION, sense=INTERNAL_FAILURE)
        finally:
            self.statistics.count(command, task, result, started)
        return result

    def _unknown(self, cdb: bytes) -> CheckCondition:
        if any(row.offered is None or row.offered(self) for row in commands.rows_of(cdb[0])):
            return invalid_field(1, 4, f"service action {cdb[1] & 0x1F:#x} of opcode {cdb[0]:#x}")
        return CheckCondition(INVALID_OPCODE, f"opcode {cdb[0]:#x}")

    async def _run(self, command: Command, task: Task) -> Result:
        cdb, nexus, flags = task.cdb, task.nexus, command.flags
        if int.from_bytes(cdb[: len(command.usage)], "big") & command.forbidden:
            commands.refuse_reserved(command, cdb)
        if self in nexus.attentions and not flags & KEEPS_ATTENTION:
            attention = self.take_attention(nexus)
            if attention is not None:
                raise CheckCondition(attention.sense)
        if self.injected:
            self._inject(command, task)
        if flags & MEDIUM and self.not_ready is not None:
            raise CheckCondition(self.not_ready)
        if self.reservations.held and self.reservations.refuses(nexus, command, cdb):
            return CONFLICT
        if flags & CHANGES:
            self.check_writable()
        if command.extent is None:
            return await command.handler(self, task)  # type: ignore[no-any-return]
        lba, count = command.extent(cdb)
        if lba + count > self.blocks or lba >= self.blocks:
            raise lba_out_of_range()
        if not count and flags & TO_END:
            count = self.blocks - lba
        hold = self.order.enter(lba, lba + count, command.access is Access.WRITE, task.attribute)
        try:
            if hold.waiter is not None:
                await hold.waiter
                if task.aborted:
                    return Result()
            return await command.handler(self, task)  # type: ignore[no-any-return]
        finally:
            self.order.leave(hold)

    def check_writable(self) -> None:
        """Raise DATA PROTECT on a write-protected unit."""
        if self.config.readonly:
            raise CheckCondition(WRITE_PROTECTED_HARDWARE)
        if self.modes.software_protected:
            raise CheckCondition(WRITE_PROTECTED_SOFTWARE)

    # -- injected errors ---------------------------------------------------------------------------------------------

    def _inject(self, command: Command, task: Task) -> None:
        for injection in self.injected:
            if injection.fits(command, task.cdb):
                if not injection.continuous:
                    self.injected.remove(injection)
                raise CheckCondition(injection.sense, f"injected into {command.name}")


class Injection:
    """An error that commands meet on request, for tests of initiators.

    Args:
        sense: what they get.
        what: names of commands, or "read", "write", "any".
        lba, blocks: only commands that touch this range; None for all.
        continuous: every time rather than once.
    """

    def __init__(
        self,
        sense: Sense,
        what: str = "any",
        lba: int | None = None,
        blocks: int = 1,
        continuous: bool = False,
    ) -> None:
        self.sense = sense
        self.what = what
        self.lba = lba
        self.blocks = blocks
        self.continuous = continuous

    def fits(self, command: Command, cdb: bytes) -> bool:
        """Tell whether a command meets this error."""
        if self.what == "read":
            meant = command.access is Access.READ and command.extent is not None
        elif self.what == "write":
            meant = command.access is Access.WRITE and command.extent is not None
        else:
            meant = self.what in ("any", command.name)
        if not meant or self.lba is None:
            return meant
        if command.extent is None:
            return False
        lba, count = command.extent(cdb)
        return bool(lba < self.lba + self.blocks and self.lba < lba + count)
