"""The graph that a session's fops go to, and the change from one graph to the next while files are open.

A change has an order: hold new fops back, let those under way end, empty what the old graph has not written yet, open
every fd on the new graph and take its posix locks there, then let the fops go on. A program sees a pause.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop, Reply
from glustx.graph import Graph
from glustx.inode import Fd, Inode
from glustx.lock_ranges import PosixLock, put, span
from glustx.runtime import Reactor, TimedOut, Waiter, fan_out, wait_for
from glustx.values import F_SETLK, F_SETLKW, F_UNLCK, Caller, Loc
from glustx.xdata import AS_MANDATORY, EMPTY, LOCK_MODE
from glustx.xlator import Method, Wind

log = logging.getLogger("glustx.gfapi")

PAUSE_SECONDS = 2.0  # how long new fops are held back for those under way
DRAIN_SECONDS = 60.0  # how long the old graph is kept for the rest of them
_SIDE_BY_SIDE = 64
_DONE = 0o1300  # O_CREAT, O_EXCL and O_TRUNC have done their work


class Opened:
    """What is needed to open an fd again: its loc and flags, and the locks that were taken through it."""

    __slots__ = ("flags", "inode", "loc", "locks")

    def __init__(self, loc: Loc, flags: int, inode: Inode) -> None:
        self.loc = loc
        self.flags = flags
        self.inode = inode
        self.locks: list[PosixLock] = []


class Use:
    """One graph in use, and how many fops are under way in it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.under_way = 0
        self.idle: Waiter[None] | None = None

    async def drain(self, reactor: Reactor, seconds: float) -> None:
        """Wait until nothing is under way, at most for `seconds`."""
        if self.under_way:
            self.idle = Waiter()
            try:
                await wait_for(reactor, self.idle, seconds)
            except TimedOut:
                log.info("%d fops are still under way in the graph that is being replaced", self.under_way)
            finally:
                self.idle = None


class Active:
    """The graph in use and what is open on it.

    Attributes:
        top: winds into the graph in use, whichever it is; it may be kept.
        graph: that graph.
    """

    def __init__(self, graph: Graph, reactor: Reactor) -> None:
        self._reactor = reactor
        self._opened: weakref.WeakKeyDictionary[Fd, Opened] = weakref.WeakKeyDictionary()
        self._held: list[Waiter[None]] = []
        self._changing = False
        self._use = Use(graph)
        self.top = Wind(graph.root)
        self.top.table = self._table(self._use)

    @property
    def graph(self) -> Graph:
        """The graph in use."""
        return self._use.graph

    @property
    def open_fds(self) -> int:
        """How many fds are open."""
        return len(self._opened)

    # -- the way in -------------------------------------------------------------------------------------------------

    def _table(self, use: Use) -> dict[type[Fop], Method]:
        below = use.graph.root.table
        table = {cls: _counted(use, method) for cls, method in below.items()}
        for opens in (fops.Open, fops.Opendir, fops.Create):
            table[opens] = self._opening(use, below[opens])
        for releases in (fops.Release, fops.Releasedir):
            table[releases] = self._releasing(table[releases])
        table[fops.Lk] = self._locking(use, below[fops.Lk], table[fops.Lk])
        return table

    def _opening(self, use: Use, method: Method) -> Method:
        counted = _counted(use, method)

        async def opening(req: Any) -> Reply:
            reply: Reply = await counted(req)
            fd: Fd = req.fd
            loc = Loc(gfid=fd.gfid, path=req.loc.path)
            self._opened[fd] = Opened(loc, fd.flags & ~_DONE, self.graph.inodes.hold(fd.gfid))
            if use is not self._use:  # it was replaced meanwhile
                await self._carry(fd, use.graph, self._use.graph)
            return reply

        return opening

    def _releasing(self, counted: Method) -> Method:
        async def releasing(req: Any) -> Reply:
            opened = self._opened.pop(req.fd, None)
            if opened is not None:
                self.graph.inodes.drop(opened.inode)
            reply: Reply = await counted(req)
            return reply

        return releasing

    def _locking(self, use: Use, method: Method, counted: Method) -> Method:
        async def locking(req: Any) -> Reply:
            # One that waits for a lock is not waited for. When its graph ends before it was granted, or it is granted
            # while another graph is being taken into use, it waits for it once more in that one.
            waits = req.cmd == F_SETLKW
            try:
                reply: Reply = await (method if waits else counted)(req)
            except FopError:
                if not waits or use is self._use:
                    raise
                reply = await self.top(req)
                return reply
            if waits and (self._changing or use is not self._use):
                await method(msgspec.structs.replace(req, cmd=F_SETLK, type=F_UNLCK))
                reply = await self.top(req)
                return reply
            opened = self._opened.get(req.fd)
            if opened is not None and req.cmd in (F_SETLK, F_SETLKW):
                first, last = span(req.flock.start, req.flock.len)
                owner = ("", req.caller.lk_owner)
                mandatory = bool(req.xdata.number(LOCK_MODE))
                lock = PosixLock(owner, req.type, first, last, req.caller.pid, None, mandatory)
                opened.locks = put(opened.locks, lock)
            return reply

        return locking

    async def _wait_here(self, req: Fop) -> Reply:
        """Hold a fop back until the next graph is in use."""
        gate: Waiter[None] = Waiter()
        self._held.append(gate)
        await gate
        reply: Reply = await self.top(req)
        return reply

    # -- the change -------------------------------------------------------------------------------------------------

    async def change(self, graph: Graph) -> Callable[[], Coroutine[Any, Any, None]]:
        """Take `graph`, which is up, into use.

        What cannot be opened or locked there answers EBADFD from then on. Returns what ends the old graph once the
        fops still under way in it have come to their end.
        """
        old = self._use
        self._changing = True
        self.top.table = dict.fromkeys(self.top.table, self._wait_here)
        try:
            await old.drain(self._reactor, PAUSE_SECONDS)
            fds = list(self._opened)
            for outcome in await fan_out((self._carry(fd, old.graph, graph) for fd in fds), limit=_SIDE_BY_SIDE):
                outcome.get()
            # From here to the end nothing waits: no fop sees one half of the change.
            self._use = Use(graph)
        finally:
            self._changing = False
            self.top.table = self._table(self._use)
            self.top.xlator = self._use.graph.root
            held, self._held = self._held, []
            for gate in held:
                gate.set(None)

        async def end() -> None:
            try:
                await old.drain(self._reactor, DRAIN_SECONDS)
                await fan_out((_quietly(old.graph.top(_release(fd))) for fd in fds), limit=_SIDE_BY_SIDE)
            finally:
                await old.graph.stop()

        return end

    async def _carry(self, fd: Fd, old: Graph, new: Graph) -> None:
        """Open an fd on the new graph with what it has: nothing unwritten, its locks."""
        opened = self._opened.get(fd)
        if opened is None:
            return
        own = Caller(pid=os.getpid())
        try:
            if not fd.directory:
                # An lk_owner that holds nothing: FLUSH gives its owner's locks back.
                await old.top(fops.Flush(fd, caller=Caller(pid=own.pid, lk_owner=os.urandom(8))))
            again: Any = fops.Opendir(opened.loc, fd, caller=own)
            if not fd.directory:
                again = fops.Open(opened.loc, fd, opened.flags, caller=own)
            await new.top(again)
            opened.inode = new.inodes.hold(fd.gfid)
            await self._lock_again(fd, opened, old, new)
        except FopError as error:
            log.warning("%s: an open file is lost in the change of graphs: %s", fd.gfid.hex(), error)
            opened.locks = []
            await _quietly(new.top(_release(fd)))

    async def _lock_again(self, fd: Fd, opened: Opened, old: Graph, new: Graph) -> None:
        for lock in opened.locks:
            flock = lock.flock()
            caller = Caller(pid=lock.pid, lk_owner=lock.owner[1])
            # On the brick the two graphs are two clients, and a client that waits may come in between: then it is lost.
            await old.top(fops.Lk(fd, F_SETLK, F_UNLCK, msgspec.structs.replace(flock, type=F_UNLCK), caller=caller))
            asked = AS_MANDATORY if lock.mandatory else EMPTY
            await new.top(fops.Lk(fd, F_SETLK, lock.type, flock, caller=caller, xdata=asked))


def _release(fd: Fd) -> Fop:
    own = Caller(pid=os.getpid())
    return fops.Releasedir(fd, caller=own) if fd.directory else fops.Release(fd, caller=own)


async def _quietly(co: Coroutine[Any, Any, Any]) -> None:
    try:
        await co
    except FopError as error:
        log.debug("giving back: %s", error)


def _counted(use: Use, method: Method) -> Method:
    async def counted(req: Any) -> Any:
        use.under_way += 1
        try:
            return await method(req)
        finally:
            use.under_way -= 1
            if not use.under_way and use.idle is not None:
                use.idle.set(None)

    return counted
