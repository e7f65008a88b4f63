"""The contents that quick-read keeps: within a size, by priority and last use, found by gfid and by name."""

from __future__ import annotations

import fnmatch
from collections import OrderedDict

from glustx.values import Iatt, Loc

OVERHEAD = 512  # bytes that a file costs besides its content
_PRIORITY_MAX = 255


class Kept:
    """The content of one file and when it was known to be true.

    Attributes:
        at: when the LOOKUP that vouches for it was sent, in the reactor's seconds.
        epoch: how often the brick had gone by then.
        place: (parent's gfid, name) that it was last looked up by; None by its gfid alone.
    """

    __slots__ = ("at", "data", "epoch", "place", "priority", "stat")

    def __init__(
        self, data: bytes, stat: Iatt, at: float, epoch: int, place: tuple[bytes, bytes] | None, priority: int
    ) -> None:
        self.data = data
        self.stat = stat
        self.at = at
        self.epoch = epoch
        self.place = place
        self.priority = priority

    def is_of(self, stat: Iatt) -> bool:
        """Tell whether a file with these attributes has this content."""
        old = self.stat
        return (
            stat.mtime_nsec == old.mtime_nsec
            and stat.ctime_nsec == old.ctime_nsec
            and stat.size == old.size
            and stat.mtime == old.mtime
            and stat.ctime == old.ctime
        )


class Store:
    """Contents by gfid.

    Attributes:
        files: what is kept; never another dictionary, so that its methods may be kept.
        loose: files that may have names besides the one in `places`.
        used: bytes, overhead included.
        limit: bytes that may be used.
        patterns: what decides on priorities (see `priorities`).
    """

    def __init__(self) -> None:
        self.files: dict[bytes, Kept] = {}
        self.loose: set[bytes] = set()
        self.used = 0
        self.limit = 0
        self.patterns: list[tuple[str, int]] = []
        self._places: dict[tuple[bytes, bytes], bytes] = {}
        self._lru: dict[int, OrderedDict[bytes, None]] = {}  # by priority, what was not used for longest first

    def named(self, loc: Loc) -> bytes | None:
        """Return the gfid of the file that was looked up by a name."""
        return self._places.get((loc.pargfid, loc.name))

    def put(self, loc: Loc, data: bytes, stat: Iatt, at: float, epoch: int) -> None:
        """Keep a content that was looked up at `loc`; others make room."""
        gfid = stat.gfid
        self.remove(gfid)
        place = (loc.pargfid, loc.name) if loc.name else None
        kept = self.files[gfid] = Kept(data, stat, at, epoch, place, self._priority(loc))
        self._lru.setdefault(kept.priority, OrderedDict())[gfid] = None
        if place is not None:
            other = self._places.get(place)
            if other is not None:
                self.loose.add(other)
            self._places[place] = gfid
        if place is None or stat.nlink != 1:
            self.loose.add(gfid)
        self.used += len(data) + OVERHEAD
        self.shrink()

    def use(self, gfid: bytes, kept: Kept) -> None:
        """Count a use."""
        self._lru[kept.priority].move_to_end(gfid)

    def remove(self, gfid: bytes) -> None:
        """Forget one."""
        kept = self.files.pop(gfid, None)
        if kept is None:
            return
        del self._lru[kept.priority][gfid]
        if kept.place is not None and self._places.get(kept.place) == gfid:
            del self._places[kept.place]
        self.loose.discard(gfid)
        self.used -= len(kept.data) + OVERHEAD

    def shrink(self) -> None:
        """Forget until no more than `limit` is used."""
        for priority in sorted(self._lru):
            oldest = self._lru[priority]
            while self.used > self.limit and oldest:
                self.remove(next(iter(oldest)))
            if self.used <= self.limit:
                return

    def _priority(self, loc: Loc) -> int:
        if not self.patterns:
            return 0
        path = (loc.path or loc.name).decode("utf-8", "surrogateescape")
        return next((number for pattern, number in self.patterns if fnmatch.fnmatchcase(path, pattern)), 0)


def priorities(text: str) -> list[tuple[str, int]]:
    """Return pattern and number of a `priority` option, the last one first: of those that match a path the last counts.

    Raises ValueError for what is not `pattern:number`, by comma, with numbers from 0 to 255.
    """
    found = []
    for part in filter(None, text.split(",")):
        pattern, _, number = part.strip().rpartition(":")
        if not pattern or not number.isdecimal() or int(number) > _PRIORITY_MAX:
            raise ValueError(f"{part!r} is not pattern:number, with a number from 0 to {_PRIORITY_MAX}")
        found.append((pattern, int(number)))
    return found[::-1]
