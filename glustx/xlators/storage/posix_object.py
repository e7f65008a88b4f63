"""What storage/posix remembers of an object, an open directory and an open file, and the values that are on disk."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Union

from glustx.inode import Inode
from glustx.values import Iatt, gfid_ino, gfid_text
from glustx.xdata import EMPTY, Xdata

if TYPE_CHECKING:
    from glustx.runtime import Lock

GFID_KEY = b"trusted.gfid"
VOLUME_ID_KEY = b"trusted.glusterfs.volume-id"
GFID2PATH = b"trusted.gfid2path."
PGFID = b"trusted.pgfid."
# Where trusted.* lives when the brick cannot have it (option xattr-namespace user).
USER_PREFIX = b"user.glustx."
NAMESPACE_KEY = b"user.glustx.xattr-namespace"

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MDATA = struct.Struct(">BQqQqQqQ")  # version, flags, then ctime, mtime, atime

At = Union[int, str, bytes]


class Obj:
    """What is remembered of one object of the brick.

    Attributes:
        path: its handle (for a directory the symlink that tells where it is).
        xpath: where its xattrs are, for objects that are not directories.
        ctime: st_ctime_ns for which the rest holds.
        times: what trusted.glusterfs.mdata says, (ctime, mtime, atime) as seconds and nanoseconds, None without it.
        xattrs: value by key, None for one that is known to be absent.
        iatt: attributes as last sent; None when they have to be made anew.
        plan, reply, reply_fds, weight: the last answer about xattrs and the request that it answers.
        fds: descriptors that clients hold; gone: the last name was removed meanwhile.
    """

    __slots__ = (
        "ctime",
        "fds",
        "gfid",
        "gone",
        "iatt",
        "ino",
        "is_dir",
        "lock",
        "path",
        "plan",
        "reply",
        "reply_fds",
        "st_ino",
        "times",
        "weight",
        "xattrs",
        "xpath",
    )

    def __init__(self, gfid: bytes, path: str, xpath: At, is_dir: bool) -> None:
        self.gfid = gfid
        self.ino = gfid_ino(gfid)
        self.path = path
        self.xpath = xpath
        self.is_dir = is_dir
        self.ctime = -1
        self.times: tuple[int, int, int, int, int, int] | None = None
        self.xattrs: dict[bytes, bytes | None] = {}
        self.iatt: Iatt | None = None
        self.plan: Any = None
        self.reply: Xdata = EMPTY
        self.reply_fds = 0
        self.weight = 0
        self.fds = 0
        self.gone = False
        self.st_ino = 0
        self.lock: Lock | None = None


class Dir:
    """An open directory and what is remembered of it; the descriptor is closed with the object."""

    __slots__ = ("fd", "obj")

    def __init__(self, fd: int, obj: Obj) -> None:
        self.fd = fd
        self.obj = obj

    def __del__(self) -> None:
        os.close(self.fd)


class OpenFile:
    """A descriptor that an fd of the graph (or a request without one) uses; closed when the last user has let go.

    Attributes:
        sync: writes must be durable when they return; append: they go to the end of the file.
        warm: reads that came from the page cache in a row; cold: reads to send to a worker without asking.
    """

    __slots__ = ("append", "cold", "fd", "inode", "listing", "obj", "sync", "warm")

    def __init__(self, fd: int, obj: Obj, inode: Inode | None, flags: int = 0) -> None:
        self.fd = fd
        self.obj = obj
        self.inode = inode
        self.sync = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self.append = bool(flags & os.O_APPEND)
        self.warm = 0
        self.cold = 0
        self.listing: Any = None

    def __del__(self) -> None:
        os.close(self.fd)


def parse_mdata(raw: bytes | None) -> tuple[int, int, int, int, int, int] | None:
    """Return the times in a trusted.glusterfs.mdata value: ctime, mtime, atime, each as seconds and nanoseconds."""
    if raw is None or len(raw) != 57 or raw[0] != 1:
        return None
    _, _, cs, cn, ms, mn, as_, an = _MDATA.unpack(raw)
    return cs, cn, ms, mn, as_, an


def pack_mdata(times: tuple[int, int, int, int, int, int]) -> bytes:
    """Return the trusted.glusterfs.mdata value of times (ctime, mtime, atime as seconds and nanoseconds)."""
    return _MDATA.pack(1, 0, *times)


def dir_link(pargfid: bytes, name: bytes) -> bytes:
    """Return what the handle of directory `name` in `pargfid` points to."""
    parent = gfid_text(pargfid)
    return f"../../{parent[:2]}/{parent[2:4]}/{parent}/".encode() + name
