"""What storage/posix remembers of an object, an open directory and an open file, and the values that are on disk."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Union

import msgspec

from glustx.inode import Inode
from glustx.values import Iatt, gfid_text
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


class Obj(msgspec.Struct, gc=False, eq=False):
    """What is remembered of one object of the brick.

    Attributes:
        gfid, ino: the object, and the number that clients see.
        path: its handle (for a directory the symlink that tells where it is).
        xpath: where its xattrs are, for objects that are not directories.
        st_ino: the inode's number on disk.
        ctime: st_ctime_ns for which the rest holds.
        times: what trusted.glusterfs.mdata says, (ctime, mtime, atime) as seconds and nanoseconds, None without it.
        xattrs: value by key, None for one that is known to be absent.
        whole: `xattrs` has all there are, but for what the kernel may add by itself.
        iatt: attributes as last sent; None when they have to be made anew.
        plan, reply, reply_fds, weight: the last answer about xattrs and the request that it answers.
        fds: descriptors that clients hold; gone: the last name was removed meanwhile.
        lock: taken by writes that must not overlap.
    """

    gfid: bytes
    ino: int
    path: str
    xpath: At
    is_dir: bool
    st_ino: int = 0
    ctime: int = -1
    times: tuple[int, int, int, int, int, int] | None = None
    xattrs: dict[bytes, bytes | None] = {}
    whole: bool = False
    iatt: Iatt | None = None
    plan: Any = None
    reply: Xdata = EMPTY
    reply_fds: int = 0
    weight: int = 0
    fds: int = 0
    gone: bool = False
    lock: Lock | None = None


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
        direct: a second descriptor that goes around the page cache, -1 without.
        slow: writes are none of the usual, for one of these reasons.
        warm: reads that came from the page cache in a row; cold: reads to send to a worker without asking.
    """

    __slots__ = ("append", "cold", "direct", "fd", "inode", "listing", "obj", "slow", "sync", "warm")

    def __init__(self, fd: int, obj: Obj, inode: Inode | None, flags: int = 0) -> None:
        self.fd = fd
        self.obj = obj
        self.inode = inode
        self.sync = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self.append = bool(flags & os.O_APPEND)
        self.direct = -1
        self.slow = self.sync or self.append
        self.warm = 0
        self.cold = 0
        self.listing: Any = None

    def __del__(self) -> None:
        os.close(self.fd)
        if self.direct >= 0:
            os.close(self.direct)


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
