"""Inode and fd objects: where translators keep what they know about a file between fops.

An `Inode` lives while an fd or a lock holds it, or while the table's recently-used half remembers it; an `Fd` lives
while its opener holds it. A translator claims a slot in every inode or fd with `PerInode` or `PerFd` and sees only its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

O_ACCMODE = 0o3
ANONYMOUS_FD = -2


class Inode:
    """One inode of a graph, known by its gfid; `holds` counts what keeps it from being forgotten."""

    __slots__ = ("gfid", "holds", "slots")

    def __init__(self, gfid: bytes) -> None:
        self.gfid = gfid
        self.holds = 0
        self.slots: dict[object, Any] = {}


class Fd:
    """One open file or directory. The edge makes it and passes it down with OPEN, OPENDIR or CREATE; each translator
    keeps its own part in a slot (an OS descriptor, a number on a remote brick).

    Args:
        gfid: the inode; CREATE fills it in when the storage has answered.
        flags: Linux open flags of the opener. Below a translator that changes those of the OPEN (shard and O_APPEND)
            the OPEN's are what counts: who opens again later keeps them in its own slot.
        anonymous: True for the wire's fd -2, which is opened on demand by whoever needs a descriptor.
        directory: True when opened by OPENDIR.
    """

    __slots__ = ("__weakref__", "anonymous", "client", "directory", "flags", "gfid", "slots")

    def __init__(
        self, gfid: bytes, flags: int, *, anonymous: bool = False, directory: bool = False, client: str = ""
    ) -> None:
        self.gfid = gfid
        self.flags = flags
        self.anonymous = anonymous
        self.directory = directory
        self.client = client
        self.slots: dict[object, Any] = {}

    def __repr__(self) -> str:
        kind = "anonymous fd" if self.anonymous else "fd"
        return f"<{kind} of {self.gfid.hex()} flags {self.flags:#o}>"


class InodeTable:
    """All inodes a graph knows, by gfid.

    Two generations stand in for a least-recently-used list: a hit in the old one moves the inode to the young one, and
    when the young one is full it becomes the old one. Held inodes always survive.

    Args:
        limit: inodes to remember without a hold.
    """

    def __init__(self, limit: int = 65536) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[bytes, Inode] = {}
        self._old: dict[bytes, Inode] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def limit(self) -> int:
        """How many inodes are remembered without a hold."""
        return 2 * self._half

    def __iter__(self) -> Iterator[Inode]:
        yield from list(self._young.values())
        yield from list(self._old.values())

    def get(self, gfid: bytes) -> Inode:
        """Return the inode of `gfid`, making it when it is not known."""
        inode = self._young.get(gfid)
        if inode is not None:
            return inode
        inode = self._old.pop(gfid, None) or Inode(gfid)
        self._young[gfid] = inode
        if len(self._young) > self._half:
            held: dict[bytes, Inode] = {}
            for old_gfid, old in self._old.items():
                if old.holds:
                    held[old_gfid] = old
                elif old.slots:
                    _forgotten(old)
            held.update(self._young)
            self._old, self._young = held, {}
        return inode

    def find(self, gfid: bytes) -> Inode | None:
        """Return the inode of `gfid` when it is known."""
        return self._young.get(gfid) or self._old.get(gfid)

    def hold(self, gfid: bytes) -> Inode:
        """Return the inode and keep it until `drop`."""
        inode = self.get(gfid)
        inode.holds += 1
        return inode

    def drop(self, inode: Inode) -> None:
        """Give back one `hold`."""
        if inode.holds <= 0:
            raise AssertionError(f"inode {inode.gfid.hex()} dropped more often than held")
        inode.holds -= 1

    def forget(self, gfid: bytes) -> None:
        """Forget an inode that is gone, unless it is held."""
        inode = self.find(gfid)
        if inode is not None and not inode.holds:
            self._young.pop(gfid, None)
            self._old.pop(gfid, None)
            _forgotten(inode)

    @contextmanager
    def held(self, gfid: bytes) -> Iterator[Inode]:
        """Hold the inode within a `with`: what hangs on it (a lock, a count) is the same one until its end."""
        inode = self.hold(gfid)
        try:
            yield inode
        finally:
            self.drop(inode)


def _forgotten(inode: Inode) -> None:
    for slot, value in inode.slots.items():
        forgotten = getattr(slot, "forgotten", None)
        if forgotten is not None:
            forgotten(value)
    inode.slots = {}


class _Slot(Generic[T]):
    """A translator's own slot in objects that carry a `slots` dict; the slot's key is this object."""

    def get(self, owner: Inode | Fd) -> T | None:
        """Return what is kept on `owner`, or None."""
        value: T | None = owner.slots.get(self)
        return value

    def set(self, owner: Inode | Fd, value: T) -> None:
        """Keep `value` on `owner`."""
        owner.slots[self] = value

    def pop(self, owner: Inode | Fd) -> T | None:
        """Take away and return what is kept on `owner`."""
        value: T | None = owner.slots.pop(self, None)
        return value


class PerInode(_Slot[T]):
    """A slot in every inode.

    Args:
        forgotten: called with what is kept when the table forgets the inode, to give back what it took. It must not
            use the table.
    """

    def __init__(self, forgotten: Callable[[T], None] | None = None) -> None:
        self.forgotten = forgotten


class PerFd(_Slot[T]):
    """A slot in every fd."""
