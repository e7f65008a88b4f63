"""The nouns that fops carry: gfid, iatt, loc, caller, flock, directory entry.

All are frozen and untracked by the garbage collector (`gc=False`): they are made by the thousand per second, and
nothing they point to may point back at them. Sizes are bytes, times are seconds plus nanoseconds as on the wire.
"""

from __future__ import annotations

import stat as _stat
import uuid
from typing import NewType

import msgspec

Gfid = NewType("Gfid", bytes)

NULL_GFID = Gfid(bytes(16))
ROOT_GFID = Gfid(bytes(15) + b"\x01")

# iatt.flags: which fields hold a value (stock posix fills all but the birth time).
IATT_TYPE, IATT_MODE, IATT_NLINK, IATT_UID, IATT_GID = 0x1, 0x2, 0x4, 0x8, 0x10
IATT_ATIME, IATT_MTIME, IATT_CTIME, IATT_INO, IATT_SIZE, IATT_BLOCKS = 0x20, 0x40, 0x80, 0x100, 0x200, 0x400
IATT_BTIME, IATT_GFID = 0x800, 0x1000
IATT_ALL = 0x17FF

# SETATTR's `valid`: which fields of the iatt to set.
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_CTIME = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40
SET_ATIME_NOW, SET_MTIME_NOW = 0x80, 0x100

# AUTH_GLUSTERFS v3 flags: which times the brick stamps with the credential's ctime.
STAMP_CTIME, STAMP_MTIME, STAMP_ATIME, STAMP_PARENT_CTIME, STAMP_PARENT_MTIME, STAMP_PARENT_ATIME = 1, 2, 4, 8, 16, 32

F_GETLK, F_SETLK, F_SETLKW = 0, 1, 2
F_RDLCK, F_WRLCK, F_UNLCK = 0, 1, 2
LEASE_GET, LEASE_SET, LEASE_UNLOCK = 1, 2, 3
LEASE_RD, LEASE_RW = 1, 2
ENTRYLK_LOCK, ENTRYLK_UNLOCK, ENTRYLK_LOCK_NB = 0, 1, 2
ENTRYLK_RDLCK, ENTRYLK_WRLCK = 0, 1
SEEK_DATA, SEEK_HOLE = 0, 1
XATTROP_ADD_ARRAY, XATTROP_ADD_ARRAY64, XATTROP_OR, XATTROP_AND, XATTROP_GET_AND_SET = 0, 1, 2, 3, 4
XATTROP_ADD_ARRAY_WITH_DEFAULT, XATTROP_ADD_ARRAY64_WITH_DEFAULT = 5, 6


class Iatt(msgspec.Struct, frozen=True, gc=False):
    """Attributes of an inode, field by field in the order of the wire's `gfx_iattx`.

    `blocks` counts 512-byte units; `mode` is a POSIX st_mode with its type bits; `ino` is the gfid's low 8 bytes;
    `rdev` is major << 32 | minor (see `ia_rdev`).
    """

    gfid: bytes = NULL_GFID
    flags: int = 0
    ino: int = 0
    dev: int = 0
    rdev: int = 0
    size: int = 0
    blocks: int = 0
    attributes: int = 0
    attributes_mask: int = 0
    atime: int = 0
    mtime: int = 0
    ctime: int = 0
    btime: int = 0
    atime_nsec: int = 0
    mtime_nsec: int = 0
    ctime_nsec: int = 0
    btime_nsec: int = 0
    nlink: int = 0
    uid: int = 0
    gid: int = 0
    blksize: int = 0
    mode: int = 0

    def is_dir(self) -> bool:
        """Tell whether the inode is a directory."""
        return _stat.S_ISDIR(self.mode)

    def is_reg(self) -> bool:
        """Tell whether the inode is a regular file."""
        return _stat.S_ISREG(self.mode)

    def is_lnk(self) -> bool:
        """Tell whether the inode is a symbolic link."""
        return _stat.S_ISLNK(self.mode)

    @property
    def atime_ns(self) -> int:
        """Access time in nanoseconds since the epoch."""
        return self.atime * 1_000_000_000 + self.atime_nsec

    @property
    def mtime_ns(self) -> int:
        """Modification time in nanoseconds since the epoch."""
        return self.mtime * 1_000_000_000 + self.mtime_nsec

    @property
    def ctime_ns(self) -> int:
        """Change time in nanoseconds since the epoch."""
        return self.ctime * 1_000_000_000 + self.ctime_nsec


ZERO_IATT = Iatt()


class Loc(msgspec.Struct, frozen=True, gc=False):
    """Where a fop acts: an inode by `gfid`, a name by (`pargfid`, `name`), or both.

    `path` is the full path from the volume's root when the edge knows it; it never crosses the wire, but dht's first
    layout hashes it and errors show it.
    """

    gfid: bytes = NULL_GFID
    pargfid: bytes = NULL_GFID
    name: bytes = b""
    path: bytes | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return self.path.decode("utf-8", "surrogateescape")
        if self.name:
            return f"<{gfid_text(self.pargfid)}>/{self.name.decode('utf-8', 'backslashreplace')}"
        return f"<{gfid_text(self.gfid)}>"


ROOT_LOC = Loc(gfid=ROOT_GFID, path=b"/")


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who asks for a fop; memoised, so that requests of one user share one object.

    `client` names the session (SETVOLUME's process-uuid, or "" inside one process): locks and fds belong to it.
    A negative `pid` marks an internal client, as in stock.
    """

    pid: int = 0
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    lk_owner: bytes = b""
    client: str = ""


ROOT_CALLER = Caller()


class Flock(msgspec.Struct, frozen=True, gc=False):
    """A byte-range lock: `len` 0 reaches to the end of the file, however far it grows."""

    type: int
    whence: int = 0
    start: int = 0
    len: int = 0
    pid: int = 0
    lk_owner: bytes = b""


class Statvfs(msgspec.Struct, frozen=True, gc=False):
    """File system figures, as struct statvfs names them."""

    bsize: int = 0
    frsize: int = 0
    blocks: int = 0
    bfree: int = 0
    bavail: int = 0
    files: int = 0
    ffree: int = 0
    favail: int = 0
    fsid: int = 0
    flag: int = 0
    namemax: int = 0


class LeaseInfo(msgspec.Struct, frozen=True, gc=False):
    """A lease request or answer: `cmd` LEASE_GET, LEASE_SET or LEASE_UNLOCK; `type` of bits LEASE_RD, LEASE_RW."""

    cmd: int = 0
    type: int = 0
    id: bytes = bytes(16)
    flags: int = 0


class ActiveLock(msgspec.Struct, frozen=True, gc=False):
    """One posix lock with its owner's session, as GETACTIVELK lists it."""

    flock: Flock
    client: str
    flags: int = 0


def ia_rdev(dev: int) -> int:
    """Return a device number of glibc's layout, as stat and MKNOD have it, in that of an iatt: major << 32 | minor."""
    major = (dev >> 8 & 0xFFF) | (dev >> 32 & 0xFFFFF000)
    minor = (dev & 0xFF) | (dev >> 12 & 0xFFFFFF00)
    return major << 32 | minor


def st_rdev(rdev: int) -> int:
    """Return an iatt's device number in glibc's layout."""
    major, minor = rdev >> 32, rdev & 0xFFFFFFFF
    return (minor & 0xFF) | (major & 0xFFF) << 8 | (minor & 0xFFFFFF00) << 12 | (major & 0xFFFFF000) << 32


def gfid_text(gfid: bytes) -> str:
    """Return a gfid in its lower-case 8-4-4-4-12 form."""
    text = gfid.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def gfid_from_text(text: str) -> Gfid:
    """Return the gfid written as `text`; ValueError when it is not one."""
    return Gfid(uuid.UUID(text).bytes)


def new_gfid() -> Gfid:
    """Return a fresh random gfid."""
    return Gfid(uuid.uuid4().bytes)


def gfid_ino(gfid: bytes) -> int:
    """Return the inode number clients see for a gfid: its low 8 bytes (all ones for the null gfid, as stock)."""
    return int.from_bytes(gfid[8:], "big") or 0xFFFFFFFFFFFFFFFF
