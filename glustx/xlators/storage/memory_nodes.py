"""Inodes of storage/memory: attributes, times, xattrs, directory entries with cookies that stay valid."""

from __future__ import annotations

import stat as _stat
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count

from glustx.fops import Fop
from glustx.values import (
    IATT_ALL,
    STAMP_ATIME,
    STAMP_CTIME,
    STAMP_MTIME,
    Iatt,
    gfid_ino,
    ia_rdev,
)
from glustx.xlators.storage.memory_pages import PAGE, Pages

STAMP_ALL = STAMP_CTIME | STAMP_MTIME | STAMP_ATIME
STAMP_CHANGE = STAMP_CTIME | STAMP_MTIME
# The parent's bits stand three above the node's own.
_PARENT_SHIFT = 3
_MDATA = struct.Struct(">BQ6Q")
_FIRST_COOKIE = 3  # 1 and 2 stand behind "." and ".."


class Node:
    """One inode.

    Attributes:
        entries: name to (gfid, cookie) of a directory, in the order of the cookies; None for all else.
        parent: the directory's own parent.
        pages: content of a regular file.
        fds: how many fds hold it open.
    """

    __slots__ = (
        "atime_ns",
        "btime_ns",
        "cookies",
        "ctime_ns",
        "entries",
        "fds",
        "gfid",
        "gid",
        "mode",
        "mtime_ns",
        "nlink",
        "pages",
        "parent",
        "rdev",
        "target",
        "uid",
        "xattr_sizes",
        "xattrs",
    )

    def __init__(self, gfid: bytes, mode: int, uid: int = 0, gid: int = 0) -> None:
        self.gfid = gfid
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.rdev = 0
        self.nlink = 1
        self.target = b""
        self.xattrs: dict[bytes, bytes] = {}
        self.xattr_sizes = (0, 0)  # bytes of their names, each with a NUL, and of their values
        self.pages = Pages()
        self.parent: Node = self
        self.entries: dict[bytes, tuple[bytes, int]] | None = None
        self.cookies = count(_FIRST_COOKIE)
        self.fds = 0
        self.atime_ns = self.mtime_ns = self.ctime_ns = self.btime_ns = 0
        if _stat.S_ISDIR(mode):
            self.entries = {}
            self.nlink = 2

    def is_dir(self) -> bool:
        """Tell whether it is a directory."""
        return self.entries is not None

    def is_reg(self) -> bool:
        """Tell whether it is a regular file."""
        return _stat.S_ISREG(self.mode)

    def iatt(self) -> Iatt:
        """Return the attributes of this moment."""
        if self.entries is not None:
            size, blocks = PAGE, 8
        elif self.target:
            size, blocks = len(self.target), 0
        else:
            size, blocks = self.pages.size, self.pages.allocated.total * (PAGE // 512)
        atime, atime_nsec = divmod(self.atime_ns, 1_000_000_000)
        mtime, mtime_nsec = divmod(self.mtime_ns, 1_000_000_000)
        ctime, ctime_nsec = divmod(self.ctime_ns, 1_000_000_000)
        return Iatt(
            gfid=self.gfid,
            flags=IATT_ALL,
            ino=gfid_ino(self.gfid),
            dev=1,
            rdev=ia_rdev(self.rdev),
            size=size,
            blocks=blocks,
            atime=atime,
            mtime=mtime,
            ctime=ctime,
            atime_nsec=atime_nsec,
            mtime_nsec=mtime_nsec,
            ctime_nsec=ctime_nsec,
            nlink=self.nlink,
            uid=self.uid,
            gid=self.gid,
            blksize=PAGE,
            mode=self.mode,
        )

    def stamp(self, req: Fop, default: int) -> None:
        """Set the times that the request's `stamp` names to its `ctime`, never backwards; without a `ctime` those of
        `default` to the clock."""
        if req.ctime:
            self.touch(req.stamp, req.ctime)
        else:
            self.touch(default, time.time_ns())

    def stamp_parent(self, req: Fop) -> None:
        """Stamp a directory whose entries the request has changed."""
        if req.ctime:
            self.touch(req.stamp >> _PARENT_SHIFT, req.ctime)
        else:
            self.touch(STAMP_CHANGE, time.time_ns())

    def touch(self, which: int, now: int) -> None:
        """Set the times that `which` names to `now` (ns), never backwards."""
        if which & STAMP_CTIME and now > self.ctime_ns:
            self.ctime_ns = now
        if which & STAMP_MTIME and now > self.mtime_ns:
            self.mtime_ns = now
        if which & STAMP_ATIME and now > self.atime_ns:
            self.atime_ns = now

    def mdata(self) -> bytes:
        """Return the times in the form of trusted.glusterfs.mdata: version 1, flags, then (s, ns) of ctime, mtime and
        atime."""
        times = (self.ctime_ns, self.mtime_ns, self.atime_ns)
        return _MDATA.pack(1, 0, *[part for time_ns in times for part in divmod(time_ns, 1_000_000_000)])

    # -- directories -----------------------------------------------------------------------------------------------

    def add(self, name: bytes, node: Node) -> None:
        """Enter `node` under `name`, which must be free."""
        assert self.entries is not None
        self.entries[name] = (node.gfid, next(self.cookies))
        if node.is_dir():
            node.parent = self
            self.nlink += 1

    def remove(self, name: bytes, node: Node) -> None:
        """Take `node` out of the directory."""
        assert self.entries is not None
        del self.entries[name]
        if node.is_dir():
            self.nlink -= 1

    def listing(self, cookie: int) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (name, gfid, cookie) of what stands behind `cookie`, `.` and `..` first."""
        assert self.entries is not None
        if cookie < 1:
            yield b".", self.gfid, 1
        if cookie < 2:
            yield b"..", self.parent.gfid, 2
        items = list(self.entries.items())
        start = 0 if cookie < _FIRST_COOKIE else bisect_right(items, cookie, key=lambda item: item[1][1])
        for name, (gfid, own) in items[start:]:
            yield name, gfid, own
