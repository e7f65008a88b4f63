"""OPENs that were answered before they were sent: when they go out, who waits for them, what becomes of them."""

from __future__ import annotations

import errno
import logging
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopCancelled, FopError
from glustx.fops import CHANGES_NAMES, Fop
from glustx.graph import Graph
from glustx.inode import Fd, PerFd
from glustx.runtime import Tasks, TimedOut, Waiter, wait_for
from glustx.values import NULL_GFID
from glustx.xlator import Wind, Xlator

log = logging.getLogger("glustx.performance.open-behind")

# The brick is away, or slow: the next fop that needs the fd tries again.
_PASSING = (errno.ENOTCONN, errno.ETIMEDOUT)


class Deferred:
    """An OPEN that has been answered and not sent, and the fops that wait for it.

    Attributes:
        request: the OPEN.
        sent: True while it is under way.
        opened: True once it has succeeded.
        error: why it failed for good.
        waiting: fops in the order of their arrival.
        waking: how many of them have been woken and have not run yet; until they have, the next ones queue behind.
        release: the RELEASE that came while it was under way.
    """

    __slots__ = ("error", "opened", "release", "request", "sent", "waiting", "waking")

    def __init__(self, request: fops.Open) -> None:
        self.request = request
        self.sent = False
        self.opened = False
        self.error: FopError | None = None
        self.waiting: list[Waiter[None]] = []
        self.waking = 0
        self.release: fops.Release | None = None


class Deferrals:
    """All deferred OPENs of a graph.

    Args:
        name: of the translator, for messages.
        child: where OPENs go.

    Attributes:
        slot: where an fd has its own as long as it is not open.
    """

    def __init__(self, name: str, graph: Graph, child: Xlator) -> None:
        self.slot: PerFd[Deferred] = PerFd()
        self.tasks = Tasks(log)
        self._name = name
        self._reactor = graph.reactor
        self._child = Wind(child)
        self._by_gfid: dict[bytes, list[Deferred]] = {}
        self._put_off = self._sent_late = 0

    def put_off(self, req: fops.Open, lazy: bool) -> None:
        """Keep an OPEN, which has been answered; send it at once unless `lazy`."""
        self._put_off += 1
        # A fop that waits for it has a deadline of its own.
        deferred = Deferred(msgspec.structs.replace(req, deadline=None))
        self.slot.set(req.fd, deferred)
        self._by_gfid.setdefault(req.fd.gfid, []).append(deferred)
        if not lazy:
            self._send(deferred)

    def give_back(self, deferred: Deferred, req: fops.Release) -> None:
        """Forget an OPEN, or when it is under way send the RELEASE as soon as it has been answered."""
        if deferred.sent or deferred.opened:
            deferred.release = msgspec.structs.replace(req, deadline=None)
        else:
            self._forget(deferred)

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, deferred: Deferred) -> None:
        """Send the OPEN beside its callers: it goes on when they are called off."""
        deferred.sent = True
        self._sent_late += 1
        self.tasks.start(self._sending(deferred))

    async def _sending(self, deferred: Deferred) -> None:
        passing: FopError | None = None
        try:
            await self._child(deferred.request)
        except FopError as error:
            if error.errno in _PASSING:
                passing = error
            else:
                deferred.error = error
        except FopCancelled:
            passing = FopError(errno.ENOTCONN, f"{self._name}: the graph is taken down")
            raise
        except Exception as fault:
            deferred.error = FopError(errno.EIO, f"{self._name}: {fault}")
            raise
        else:
            deferred.opened = True
        finally:
            deferred.sent = False
            if deferred.opened or deferred.error is not None:
                self._settle(deferred)
            self._wake(deferred, passing)

    def _settle(self, deferred: Deferred) -> None:
        gfid = deferred.request.fd.gfid
        others = self._by_gfid.get(gfid)
        if others is not None and deferred in others:
            others.remove(deferred)
            if not others:
                del self._by_gfid[gfid]

    def _forget(self, deferred: Deferred) -> None:
        self._settle(deferred)
        self.slot.pop(deferred.request.fd)

    def _wake(self, deferred: Deferred, passing: FopError | None = None) -> None:
        """Let those that wait go on, in order; when none is left the fd is as any other."""
        waiting, deferred.waiting = deferred.waiting, []
        deferred.waking += len(waiting)
        for waiter in waiting:
            if passing is not None:
                waiter.fail(FopError(passing.errno, passing.text))
            else:
                waiter.set(None)
        if deferred.waking or deferred.sent:
            return
        if deferred.opened:
            self.slot.pop(deferred.request.fd)
            release = deferred.release
            if release is not None:
                # Not in this step: the fop that runs in it goes first.
                self._reactor.post(lambda: self.tasks.start(self._child(release)))
        elif deferred.release is not None:
            self._forget(deferred)

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def opened(self, fd: Fd, req: Fop) -> None:
        """Return when an fd is open on the brick; FopError when it cannot be."""
        deferred = self.slot.get(fd)
        if deferred is None:
            return
        await self.settled(deferred, req)
        if deferred.error is not None:
            raise FopError(deferred.error.errno, f"{req.name} needs the file open: {deferred.error.text}")

    async def settled(self, deferred: Deferred, req: Fop) -> None:
        """Send an OPEN unless it is under way, and return when it has succeeded or failed for good.

        Raises FopError when it has not been answered, or not before the deadline of `req`.
        """
        if deferred.error is not None:
            return
        waiter: Waiter[None] = Waiter()
        deferred.waiting.append(waiter)
        if not (deferred.sent or deferred.opened):
            self._send(deferred)
        try:
            if req.deadline is None:
                await waiter
            else:
                await wait_for(self._reactor, waiter, max(0.0, req.deadline - self._reactor.time()))
        except TimedOut:
            raise FopError(errno.ETIMEDOUT, f"{req.name} waited too long for the file to be opened") from None
        finally:
            if waiter in deferred.waiting:
                deferred.waiting.remove(waiter)
            else:
                deferred.waking -= 1
                if not (deferred.waking or deferred.sent):
                    self._wake(deferred)

    async def before(self, req: Fop) -> None:
        """Wait for the OPENs of the inodes that a fop addresses; for all when it names one that is not known."""
        if not self._by_gfid:
            return
        waiting: list[Deferred] = []
        for loc in req.targets():
            if loc.gfid == NULL_GFID and req.effects & CHANGES_NAMES:
                waiting = [deferred for some in self._by_gfid.values() for deferred in some]
                break
            waiting += self._by_gfid.get(loc.gfid, ())
        for deferred in waiting:
            if not deferred.sent:
                self._send(deferred)
        for deferred in waiting:
            if deferred.sent or deferred.waking:
                try:
                    await self.settled(deferred, req)
                except FopError as error:
                    log.debug("%s: %s goes on without an OPEN: %s", self._name, req.name, error)

    def figures(self) -> dict[str, Any]:
        """Return how many OPENs were put off, were sent after all, and are neither sent nor given back yet."""
        return {
            "put-off": self._put_off,
            "sent-late": self._sent_late,
            "not-open-yet": sum(len(some) for some in self._by_gfid.values()),
        }
