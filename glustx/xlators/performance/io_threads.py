"""performance/io-threads: how many fops may be under way in a brick at a time, and who goes first when some must wait.

Fops are sorted into stock's priority classes, each with a limit; what exceeds it waits in the class's queue, and a
place that becomes free goes to the highest class that waits. Here a fop is a coroutine and the threads are the
process's `Workers`, so a place is taken by a fop that waits for the storage below, not by a thread; one that never
waits passes at the price of counting it in and out. Fops of class high have places of their own beside `thread-count`:
a burst of bulk writes cannot hold up a LOOKUP.

Locks, FLUSH and RELEASE never queue here: a fop that holds a place may be waiting for just them; one that says so with
FOP_WAITS gives its place back meanwhile. Where no storage is
below (in a client's stack) nothing blocks a thread, so everything passes through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from glustx import fops
from glustx.fops import Fop
from glustx.graph import Graph
from glustx.options import OptionSet, option
from glustx.runtime import Waiter, turn
from glustx.xlator import Event, Xlator, handles

# Stock's mount with root squashing off: a person's fops, though its pid is negative.
PID_NO_ROOT_SQUASH = -4


class Total:
    """What several classes share: places taken, and how many there are."""

    __slots__ = ("limit", "running")

    def __init__(self) -> None:
        self.limit = 0
        self.running = 0


class Lane:
    """One priority class: places taken, how many there are, and who waits for one."""

    __slots__ = ("limit", "name", "running", "total", "waiting")

    def __init__(self, name: str, total: Total) -> None:
        self.name = name
        self.limit = 0
        self.running = 0
        self.total = total
        self.waiting: deque[Waiter[None]] = deque()


class IoThreads(Xlator):
    """Priority classes and limits for fops that reach storage."""

    class Options(OptionSet):
        """Options of performance/io-threads."""

        thread_count: int = option(16, "Fops of all classes but high that may be under way.", low=1, high=64, live=True)
        high_prio_threads: int = option(
            16, "Fops under way of class high: lookup, stat, open, readdir.", low=1, high=64, live=True
        )
        normal_prio_threads: int = option(
            16, "Fops under way of class normal: those that change names and attributes.", low=1, high=64, live=True
        )
        low_prio_threads: int = option(
            16, "Fops under way of class low: those that carry or change data.", low=1, high=64, live=True
        )
        least_prio_threads: int = option(
            1, "Fops under way of internal clients such as self-heal (negative pid).", low=1, high=64, live=True
        )
        enable_least_priority: bool = option(
            True, "Whether fops of internal clients have a class of their own.", live=True
        )
        accepted = ("idle-time", "watchdog-secs", "cleanup-disconnected-reqs", "pass-through")

    def wire(self, graph: Graph) -> None:
        """Resolve the fops: those that may queue to a closure over their class."""
        self._own, self._bulk = Total(), Total()
        self._own.limit = 1 << 30
        self._high = Lane("high", self._own)
        self._normal = Lane("normal", self._bulk)
        self._low = Lane("low", self._bulk)
        self._least = Lane("least", self._bulk)
        self._lanes = (self._high, self._normal, self._low, self._least)  # by priority number
        self._queued = 0
        self._set_limits()
        super().wire(graph)
        below = self.subvolumes[0].table
        blocks = _reaches_storage(self)
        for cls, method in self.table.items():
            if method == self.limited:
                self.table[cls] = self._admit(self._lanes[cls.priority], below[cls]) if blocks else below[cls]
            elif method == self.unlimited:
                self.table[cls] = below[cls]

    @handles(fops.ALL_EFFECTS & ~fops.LOCKS & ~fops.INTERNAL)
    async def limited(self, req: Fop) -> Any:
        """Wait for a place in the fop's class; `wire` puts a closure over class and child in the table."""
        return await self._admit(self._lanes[req.priority], self.subvolumes[0].table[type(req)])(req)

    async def unlimited(self, req: Fop) -> Any:
        """Pass on at once."""
        return await self.child(req)

    flush = release = releasedir = unlimited

    def _admit(
        self, lane: Lane, down: Callable[[Any], Coroutine[Any, Any, Any]]
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        async def limited(req: Fop) -> Any:
            here = lane if req.caller.pid >= 0 else self._internal(lane, req.caller.pid)
            total = here.total
            # Nobody waits where there is room: `_admit_next` gives every place away as it becomes free.
            if here.running >= here.limit or total.running >= total.limit:
                await self._wait(here)
            else:
                here.running += 1
                total.running += 1
            try:
                return await down(req)
            finally:
                here.running -= 1
                total.running -= 1
                if self._queued:
                    self._admit_next()

        return limited

    def _internal(self, lane: Lane, pid: int) -> Lane:
        return self._least if self.options.enable_least_priority and pid != PID_NO_ROOT_SQUASH else lane

    async def _wait(self, lane: Lane) -> None:
        waiter: Waiter[None] = Waiter()
        lane.waiting.append(waiter)
        self._queued += 1
        try:
            await waiter
        except BaseException:
            if waiter.done:  # given a place in the moment of being called off
                lane.running -= 1
                lane.total.running -= 1
                self._admit_next()
            else:
                lane.waiting.remove(waiter)
                self._queued -= 1
            raise

    def _admit_next(self) -> None:
        for lane in self._lanes:
            total = lane.total
            while lane.waiting and lane.running < lane.limit and total.running < total.limit:
                lane.running += 1
                total.running += 1
                self._queued -= 1
                lane.waiting.popleft().set(None)

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Give the place of a fop away that waits for other clients; when it goes on there may be one too many."""
        if event not in (Event.FOP_WAITS, Event.FOP_GOES_ON):
            super().notify(event, source, data)
            return
        table = self.table
        if table[type(data)] == self.subvolumes[0].table[type(data)]:  # it holds none
            return
        lane = self._lanes[data.priority]
        lane = lane if data.caller.pid >= 0 else self._internal(lane, data.caller.pid)
        change = -1 if event is Event.FOP_WAITS else 1
        lane.running += change
        lane.total.running += change
        if self._queued:
            self._admit_next()

    def _set_limits(self) -> None:
        options = self.options
        self._bulk.limit = options.thread_count
        self._high.limit = options.high_prio_threads
        self._normal.limit = options.normal_prio_threads
        self._low.limit = options.low_prio_threads
        self._least.limit = options.least_prio_threads

    def options_changed(self, old: Any) -> None:
        """Follow new limits: more places are given away at once, fewer are reached as fops end."""
        self._set_limits()
        turn(self._admit_next)

    def statedump(self) -> dict[str, Any]:
        """Show each class's fops under way and waiting."""
        state: dict[str, Any] = {}
        for lane in self._lanes:
            state[f"{lane.name}.under-way"] = lane.running
            state[f"{lane.name}.waiting"] = len(lane.waiting)
        return state


def _reaches_storage(xlator: Xlator) -> bool:
    return any(child.type_name.startswith("storage/") or _reaches_storage(child) for child in xlator.subvolumes)
