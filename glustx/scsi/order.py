"""The order of commands on one logical unit: overlapping extents one after the other where one of them writes, and
what ORDERED and HEAD OF QUEUE mean (SAM-5 8)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from glustx.runtime import Waiter
from glustx.scsi.task import HEAD_OF_QUEUE, ORDERED


class Hold:
    """The place of one command: blocks [first, end) and whether it changes them."""

    __slots__ = ("attribute", "end", "first", "waiter", "writes")

    def __init__(self, first: int, end: int, writes: bool, attribute: int) -> None:
        self.first = first
        self.end = end
        self.writes = writes
        self.attribute = attribute
        self.waiter: Waiter[None] | None = None


class Order:
    """Who runs and who waits, in the order of arrival.

    Args:
        restricted: keep all overlapping commands in order; without it only those that write, so that what reads and
            writes in one command stays whole.

    Attributes:
        written: called with the blocks [first, end) of all that comes to change some, before it does.

    `enter`, `leave` and `shrink` hold no await between looking and changing, so they are atomic.
    """

    __slots__ = ("_ordered", "_running", "_waiting", "_writing", "restricted", "written")

    def __init__(self, restricted: bool = True) -> None:
        self.restricted = restricted
        self._running: set[Hold] = set()
        self._waiting: deque[Hold] = deque()
        self._writing = 0  # of those that run
        self._ordered = 0  # of all
        self.written: Callable[[int, int], None] | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def enter(self, first: int, end: int, writes: bool, attribute: int) -> Hold:
        """Take a place. Its `waiter` is None when the command may run at once, else it is set when it may."""
        hold = Hold(first, end, writes, attribute)
        if writes and self.written is not None:
            self.written(first, end)
        if attribute == ORDERED:
            self._ordered += 1
        # Most commands meet no one who writes, and need not look at anybody.
        if (self._writing or writes or self._ordered or self._waiting) and self._must_wait(hold):
            hold.waiter = Waiter()
            self._waiting.append(hold)
        else:
            self._run(hold)
        return hold

    def leave(self, hold: Hold) -> None:
        """Give a place back, whether it ever ran or not, and let go those who waited for it."""
        if hold.attribute == ORDERED:
            self._ordered -= 1
        if hold in self._running:
            self._running.discard(hold)
            if hold.writes:
                self._writing -= 1
        else:
            self._waiting.remove(hold)
        if self._waiting:
            self._let_go()

    def shrink(self, hold: Hold, first: int) -> None:
        """Let go those who waited for the blocks of `hold` below `first`, which it has done."""
        hold.first = first
        if self._waiting:
            self._let_go()

    def _run(self, hold: Hold) -> None:
        self._running.add(hold)
        if hold.writes:
            self._writing += 1

    def _let_go(self) -> None:
        still: deque[Hold] = deque()
        waiting, self._waiting = self._waiting, still
        for each in waiting:
            if self._must_wait(each):
                still.append(each)
            else:
                self._run(each)
                if each.waiter is not None:
                    each.waiter.set(None)

    def _must_wait(self, hold: Hold) -> bool:
        """Tell whether a hold must wait for one that runs, or for one in the queue, where it is not yet."""
        if self._ordered and hold.attribute != HEAD_OF_QUEUE:
            ordered = hold.attribute == ORDERED
            if ordered and (self._running or self._waiting):
                return True
            if any(each.attribute == ORDERED for each in self._running):
                return True
            if any(each.attribute == ORDERED for each in self._waiting):
                return True
        if self._overlaps(hold, self._running):
            return True
        # HEAD OF QUEUE passes all that has not begun.
        return bool(self._waiting) and hold.attribute != HEAD_OF_QUEUE and self._overlaps(hold, self._waiting)

    def _overlaps(self, hold: Hold, others: set[Hold] | deque[Hold]) -> bool:
        first, end, writes = hold.first, hold.end, hold.writes
        if not self.restricted:
            if not writes:
                return False
            writes = False
        for each in others:  # noqa: SIM110 - a generator would cost as much as all else here
            if first < each.end and each.first < end and (writes or each.writes):
                return True
        return False
