"""The arithmetic of byte-range locks: how ranges overlap, conflict, split and merge; pure. features/locks keeps what
clients hold in it, protocol/client what it holds itself.

A range is a pair (first byte, last byte), both inclusive. `LAST` stands for the end of the file however far it grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from glustx.values import F_UNLCK, F_WRLCK, Flock

Owner = tuple[str, bytes]
"""Whose lock it is: the client's session and the lk_owner of its credential."""

LAST = (1 << 63) - 1


def span(start: int, length: int) -> tuple[int, int]:
    """Return the range of a flock's `start` and `len`.

    Both may come as unsigned 64-bit numbers off the wire; they mean signed ones. `len` 0 reaches to LAST, a negative
    one lies before `start`, as fcntl(2) has it. ValueError for a range that leaves 0..LAST.
    """
    start, length = _signed(start), _signed(length)
    if length < 0:
        start, length = start + length, -length
    last = start + length - 1 if length else LAST
    if start < 0 or last > LAST:
        raise ValueError(f"lock of {length} bytes at {start} is out of range")
    return start, last


def _signed(value: int) -> int:
    return value - (1 << 64) if value > LAST else value


class PosixLock(msgspec.Struct, frozen=True):
    """A posix lock, held or wanted, on bytes `first` to `last`; `fd` is what it was last set through. Whether it is
    `mandatory` counts only where the brick has mandatory-locking `optimal`."""

    owner: Owner
    type: int
    first: int
    last: int
    pid: int = 0
    fd: Any = None
    mandatory: bool = False

    def flock(self) -> Flock:
        """The lock as it goes to a client."""
        return Flock(
            type=self.type,
            start=self.first,
            len=0 if self.last == LAST else self.last - self.first + 1,
            pid=self.pid,
            lk_owner=self.owner[1],
        )


def conflict(held: Iterable[PosixLock], wanted: PosixLock) -> PosixLock | None:
    """Return the lock with the lowest first byte that keeps `wanted` from being granted, or None."""
    found: PosixLock | None = None
    for lock in held:
        if (
            lock.first <= wanted.last
            and lock.last >= wanted.first
            and (lock.type == F_WRLCK or wanted.type == F_WRLCK)
            and lock.owner != wanted.owner
            and (found is None or lock.first < found.first)
        ):
            found = lock
    return found


def put(held: list[PosixLock], new: PosixLock) -> list[PosixLock]:
    """Return `held` after `new.owner` has set its range to `new.type` (F_UNLCK gives the range back).

    What the owner held inside the range is replaced, what reaches out of it is cut; a lock of the same type that
    touches the new one becomes one with it. Locks of other owners stay as they are.
    """
    rest: list[PosixLock] = []
    first, last = new.first, new.last
    for lock in held:
        if lock.owner != new.owner or lock.last < new.first - 1 or lock.first > new.last + 1:
            rest.append(lock)
        elif lock.type == new.type:
            first, last = min(first, lock.first), max(last, lock.last)
        else:
            if lock.first < new.first:
                rest.append(msgspec.structs.replace(lock, last=min(lock.last, new.first - 1)))
            if lock.last > new.last:
                rest.append(msgspec.structs.replace(lock, first=max(lock.first, new.last + 1)))
    if new.type != F_UNLCK:
        rest.append(msgspec.structs.replace(new, first=first, last=last))
    return rest
