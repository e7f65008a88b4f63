"""The order of commands on one logical unit: overlapping extents one after the other where one of them writes, and
what ORDERED and HEAD OF QUEUE mean (SAM-5 8)."""

from __future__ import annotations

from collections import deque

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

    def blocks(self, later: Hold) -> bool:
        """Tell whether `later`, which came after this one, must wait for it."""
        if self.attribute == ORDERED or later.attribute == ORDERED:
            return later.attribute != HEAD_OF_QUEUE or self._overlaps(later)
        return self._overlaps(later)

    def _overlaps(self, other: Hold) -> bool:
        return (self.writes or other.writes) and self.first < other.end and other.first < self.end


class Order:
    """Who runs and who waits, in the order of arrival.

    Args:
        restricted: keep overlapping commands in order; without it only ORDERED waits.

    `enter` and `leave` hold no await between looking and changing, so they are atomic.
    """

    __slots__ = ("_running", "_waiting", "restricted")

    def __init__(self, restricted: bool = True) -> None:
        self.restricted = restricted
        self._running: set[Hold] = set()
        self._waiting: deque[Hold] = deque()

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    def enter(self, first: int, end: int, writes: bool, attribute: int) -> Hold:
        """Take a place. Its `waiter` is None when the command may run at once, else it is set when it may."""
        hold = Hold(first, end, writes if self.restricted else False, attribute)
        if (self._running or self._waiting) and self._must_wait(hold):
            hold.waiter = Waiter()
            self._waiting.append(hold)
        else:
            self._running.add(hold)
        return hold

    def leave(self, hold: Hold) -> None:
        """Give a place back, whether it ever ran or not, and let go those who waited for it."""
        if hold in self._running:
            self._running.discard(hold)
        else:
            self._waiting.remove(hold)
        if self._waiting:
            self._let_go()

    def shrink(self, hold: Hold, first: int) -> None:
        """Let go those who waited for the blocks of `hold` below `first`, which it has done."""
        hold.first = first
        if self._waiting:
            self._let_go()

    def _let_go(self) -> None:
        still: deque[Hold] = deque()
        waiting, self._waiting = self._waiting, still
        for each in waiting:
            if self._must_wait(each):
                still.append(each)
            else:
                self._running.add(each)
                if each.waiter is not None:
                    each.waiter.set(None)

    def _must_wait(self, hold: Hold) -> bool:
        """Tell whether a hold must wait for one that runs, or for one in the queue, where it is not yet."""
        for each in self._running:
            if each.blocks(hold):
                return True
        # HEAD OF QUEUE passes all that has not begun.
        if hold.attribute != HEAD_OF_QUEUE:
            for each in self._waiting:
                if each.blocks(hold):
                    return True
        return False
