"""The queue of one lock domain of an inode: inodelks on byte ranges, or entrylks on names. Pure; no fop is known here.

These locks are stock's internal ones: they nest (one owner may hold the same range twice and gives it back twice), they
never split or merge, and a newcomer waits behind whoever waits already, so that a stream of readers cannot starve a
writer; only an owner that holds a lock here may overtake, or it would wait for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glustx.lock_ranges import Owner
from glustx.runtime import Waiter
from glustx.values import Flock


class Hold:
    """A lock, held or waited for.

    `told` is when its holder was last told of contention (the reactor's seconds), None when never.
    """

    __slots__ = ("exclusive", "owner", "pid", "told", "waiter")

    def __init__(self, owner: Owner, exclusive: bool, pid: int) -> None:
        self.owner = owner
        self.exclusive = exclusive
        self.pid = pid
        self.waiter: Waiter[None] | None = None
        self.told: float | None = None

    def overlaps(self, other: Any) -> bool:
        """Tell whether both are about the same thing, in part at least."""
        raise NotImplementedError

    def same(self, other: Any) -> bool:
        """Tell whether `other` gives back this lock."""
        raise NotImplementedError

    def conflicts(self, other: Hold) -> bool:
        """Tell whether both cannot be held at a time."""
        return (self.exclusive or other.exclusive) and self.overlaps(other) and self.owner != other.owner


class InodeHold(Hold):
    """An inodelk on bytes `first` to `last`; `flock` is the request, for the contention notice."""

    __slots__ = ("first", "flock", "last")

    def __init__(self, owner: Owner, exclusive: bool, flock: Flock, first: int, last: int) -> None:
        super().__init__(owner, exclusive, flock.pid)
        self.flock = flock
        self.first = first
        self.last = last

    def overlaps(self, other: Any) -> bool:
        """Compare the ranges."""
        return bool(self.first <= other.last and self.last >= other.first)

    def same(self, other: Any) -> bool:
        """Owner and range decide, the type does not."""
        return bool(self.owner == other.owner and self.first == other.first and self.last == other.last)


class EntryHold(Hold):
    """An entrylk on `name`, or on all names of the directory when it is empty."""

    __slots__ = ("name",)

    def __init__(self, owner: Owner, exclusive: bool, pid: int, name: bytes) -> None:
        super().__init__(owner, exclusive, pid)
        self.name = name

    def overlaps(self, other: Any) -> bool:
        """Compare the names."""
        return not self.name or not other.name or self.name == other.name

    def same(self, other: Any) -> bool:
        """Owner and name decide."""
        return bool(self.owner == other.owner and self.name == other.name)


class LockQueue:
    """Who holds and who waits, in order of arrival."""

    __slots__ = ("held", "waiting")

    def __init__(self) -> None:
        self.held: list[Hold] = []
        self.waiting: list[Hold] = []

    def __bool__(self) -> bool:
        return bool(self.held or self.waiting)

    def blockers(self, wanted: Hold) -> list[Hold]:
        """Return the held locks that `wanted` conflicts with."""
        return [hold for hold in self.held if hold.conflicts(wanted)]

    def contended(self, holds: Iterable[Hold]) -> list[Hold]:
        """Return those of `holds` that somebody here waits for."""
        return [hold for hold in holds if _any_conflict(self.waiting, hold)]

    def must_wait(self, wanted: Hold) -> bool:
        """Tell whether `wanted`, newly arrived, cannot be granted at once."""
        return _any_conflict(self.held, wanted) or self._overtakes(self.waiting, wanted)

    def _overtakes(self, ahead: Iterable[Hold], wanted: Hold) -> bool:
        return _any_conflict(ahead, wanted) and not any(hold.owner == wanted.owner for hold in self.held)

    def release(self, given: Hold) -> Hold | None:
        """Take the lock that `given` gives back out of the held ones; None when there is none."""
        for index, hold in enumerate(self.held):
            if hold.same(given):
                return self.held.pop(index)
        return None

    def remove(self, hold: Hold) -> bool:
        """Take this very lock out, held or waiting; False when it is not here (any more)."""
        for holds in (self.held, self.waiting):
            if hold in holds:
                holds.remove(hold)
                return True
        return False

    def advance(self) -> list[Hold]:
        """Grant, in order of arrival, what may be granted now; return what was. Call it after every removal."""
        if not self.waiting:
            return []
        granted: list[Hold] = []
        still: list[Hold] = []
        for hold in self.waiting:
            if _any_conflict(self.held, hold) or self._overtakes(still, hold):
                still.append(hold)
            else:
                self.held.append(hold)
                granted.append(hold)
        self.waiting = still
        return granted


def _any_conflict(holds: Iterable[Hold], wanted: Hold) -> bool:
    for hold in holds:  # noqa: SIM110 - a generator would cost more than what it checks
        if hold.conflicts(wanted):
            return True
    return False
