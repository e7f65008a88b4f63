"""What protocol/client holds on its brick: a brick forgets the locks of a connection that ends, so somebody must know
which of them to take again and which to report as lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import msgspec

from glustx.fops import Entrylk, Fentrylk, Finodelk, Inodelk, Lk
from glustx.inode import Fd
from glustx.lock_ranges import LAST, PosixLock, put, span
from glustx.values import F_SETLK, F_UNLCK
from glustx.xdata import LOCK_MODE

Internal = Union[Inodelk, Finodelk, Entrylk, Fentrylk]
Key = tuple[str, bytes, bytes, bytes, bytes, int, int]
"""An inodelk or entrylk: its kind, gfid, domain, lk_owner, name, start and length."""


def _set(req: Lk, kind: int, first: int, last: int) -> Lk:
    length = 0 if last == LAST else last - first + 1
    flock = msgspec.structs.replace(req.flock, type=kind, start=first, len=length)
    return msgspec.structs.replace(req, deadline=None, cmd=F_SETLK, type=kind, flock=flock)


def _key(req: Internal) -> Key:
    gfid = req.fd.gfid if isinstance(req, (Finodelk, Fentrylk)) else req.loc.gfid
    owner = req.caller.lk_owner
    if isinstance(req, (Inodelk, Finodelk)):
        return ("inodelk", gfid, req.domain, owner, b"", req.flock.start, req.flock.len)
    return ("entrylk", gfid, req.domain, owner, req.basename, 0, 0)


class LockBook:
    """The locks of one client.

    Posix locks outlive a connection in here, until they have been taken again or are given up with `drop`. Inodelks and
    entrylks guard steps that other clients may have seen half done by then: they are lost with the connection, and
    giving one of them back later says so.
    """

    def __init__(self) -> None:
        self._posix: dict[bytes, list[PosixLock]] = {}
        self._internal: dict[Key, int] = {}
        self._lost: dict[Key, int] = {}

    # -- posix locks ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[bytes, PosixLock]]:
        return iter([(gfid, lock) for gfid, held in self._posix.items() for lock in held])

    def set(self, req: Lk) -> None:
        """A range was taken or given back."""
        gfid = req.fd.gfid
        first, last = span(req.flock.start, req.flock.len)
        pid = req.flock.pid or req.caller.pid
        mandatory = bool(req.xdata.number(LOCK_MODE))
        new = PosixLock(("", req.caller.lk_owner), req.type, first, last, pid, req.fd, mandatory)
        if req.type != F_UNLCK or gfid in self._posix:
            self._keep(gfid, put(self._posix.get(gfid, []), new))

    def as_it_is(self, req: Lk) -> list[Lk]:
        """Return the requests that put the range of `req` back to what its owner holds of it now."""
        first, last = span(req.flock.start, req.flock.len)
        found = []
        for lock in sorted(self.of_owner(req.fd.gfid, req.caller.lk_owner), key=lambda lock: lock.first):
            if lock.last < first or lock.first > last:
                continue
            if lock.first > first:
                found.append((F_UNLCK, first, lock.first - 1))
            found.append((lock.type, max(first, lock.first), min(last, lock.last)))
            first = lock.last + 1
        if first <= last:
            found.append((F_UNLCK, first, last))
        return [_set(req, *piece) for piece in found]

    def of_owner(self, gfid: bytes, lk_owner: bytes) -> list[PosixLock]:
        """Return what one lk_owner holds of a file."""
        return [lock for lock in self._posix.get(gfid, ()) if lock.owner[1] == lk_owner]

    def through(self, fd: Fd) -> list[PosixLock]:
        """Return what was last set through `fd`."""
        return [lock for lock in self._posix.get(fd.gfid, ()) if lock.fd is fd]

    def drop(self, gfid: bytes, locks: list[PosixLock]) -> None:
        """Forget some of a file's locks."""
        held = self._posix.get(gfid)
        if held and locks:
            self._keep(gfid, [lock for lock in held if lock not in locks])

    def _keep(self, gfid: bytes, held: list[PosixLock]) -> None:
        if held:
            self._posix[gfid] = held
        else:
            self._posix.pop(gfid, None)

    # -- inodelks and entrylks --------------------------------------------------------------------------------------

    def took(self, req: Internal, *, lost: bool) -> None:
        """One was granted; `lost` when the connection that it was granted on is gone already."""
        where = self._lost if lost else self._internal
        key = _key(req)
        where[key] = where.get(key, 0) + 1

    def gave(self, req: Internal) -> None:
        """One was given back."""
        _less(self._internal, _key(req))

    def was_lost(self, req: Internal) -> bool:
        """Tell, once, whether what shall be given back was lost with its connection."""
        key = _key(req)
        return key not in self._internal and _less(self._lost, key)

    def connection_lost(self) -> tuple[int, int]:
        """The brick has dropped everything; return how many inodelks and how many entrylks are lost."""
        self._lost, self._internal = self._internal, {}
        inodelks = sum(count for key, count in self._lost.items() if key[0] == "inodelk")
        return inodelks, sum(self._lost.values()) - inodelks

    def counts(self) -> dict[str, Any]:
        """How many locks are held, for statedumps."""
        return {
            "posix_locks": sum(map(len, self._posix.values())),
            "internal_locks": sum(self._internal.values()),
            "internal_locks_lost": sum(self._lost.values()),
        }


def _less(counts: dict[Key, int], key: Key) -> bool:
    count = counts.get(key, 0)
    if count > 1:
        counts[key] = count - 1
    elif count:
        del counts[key]
    return count > 0
