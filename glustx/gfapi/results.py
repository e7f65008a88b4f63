"""What calls of gfapi return: attributes that look like `os.stat_result` and `os.statvfs_result`, locks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from glustx.values import F_WRLCK, Flock, Iatt, Statvfs, gfid_text, st_rdev


@runtime_checkable
class HasGfid(Protocol):
    """Whatever knows its inode: an open file, a stat result."""

    @property
    def gfid(self) -> str:
        """The gfid as text."""


class StatResult:
    """Attributes of a file with the names of `os.stat_result`, and its gfid.

    Indexing and iterating give the ten classic fields, so that `stat.ST_SIZE` and friends work.
    """

    __slots__ = ("iatt",)

    def __init__(self, iatt: Iatt) -> None:
        self.iatt = iatt

    @property
    def st_mode(self) -> int:
        """Type and permission bits."""
        return self.iatt.mode

    @property
    def st_ino(self) -> int:
        """Inode number: the gfid's low 8 bytes."""
        return self.iatt.ino

    @property
    def st_dev(self) -> int:
        """Device number, as the brick says."""
        return self.iatt.dev

    @property
    def st_nlink(self) -> int:
        """Number of names."""
        return self.iatt.nlink

    @property
    def st_uid(self) -> int:
        """User id of the owner."""
        return self.iatt.uid

    @property
    def st_gid(self) -> int:
        """Group id of the owner."""
        return self.iatt.gid

    @property
    def st_size(self) -> int:
        """Size in bytes."""
        return self.iatt.size

    @property
    def st_blocks(self) -> int:
        """Space taken, in units of 512 bytes."""
        return self.iatt.blocks

    @property
    def st_blksize(self) -> int:
        """Preferred size of a transfer."""
        return self.iatt.blksize

    @property
    def st_rdev(self) -> int:
        """Device number of a device node."""
        return st_rdev(self.iatt.rdev)

    @property
    def st_atime_ns(self) -> int:
        """Access time in nanoseconds."""
        return self.iatt.atime_ns

    @property
    def st_mtime_ns(self) -> int:
        """Modification time in nanoseconds."""
        return self.iatt.mtime_ns

    @property
    def st_ctime_ns(self) -> int:
        """Change time in nanoseconds."""
        return self.iatt.ctime_ns

    @property
    def st_atimensec(self) -> int:
        """Nanoseconds of the access time beyond the whole second."""
        return self.iatt.atime_nsec

    @property
    def st_mtimensec(self) -> int:
        """Nanoseconds of the modification time beyond the whole second."""
        return self.iatt.mtime_nsec

    @property
    def st_ctimensec(self) -> int:
        """Nanoseconds of the change time beyond the whole second."""
        return self.iatt.ctime_nsec

    @property
    def st_atime(self) -> float:
        """Access time in seconds."""
        return self.iatt.atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        """Modification time in seconds."""
        return self.iatt.mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Change time in seconds."""
        return self.iatt.ctime_ns / 1e9

    @property
    def gfid(self) -> str:
        """The file's gfid as text."""
        return gfid_text(self.iatt.gfid)

    def _classic(self) -> tuple[int, ...]:
        i = self.iatt
        return (i.mode, i.ino, i.dev, i.nlink, i.uid, i.gid, i.size, i.atime, i.mtime, i.ctime)

    def __getitem__(self, index: int) -> int:
        return self._classic()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._classic())

    def __len__(self) -> int:
        return 10

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatResult) and self.iatt == other.iatt

    def __hash__(self) -> int:
        return hash(self.iatt)

    def __repr__(self) -> str:
        return (
            f"StatResult(st_mode={self.st_mode:#o}, st_size={self.st_size}, st_nlink={self.st_nlink}, "
            f"st_uid={self.st_uid}, st_gid={self.st_gid}, st_blocks={self.st_blocks}, "
            f"st_mtime_ns={self.st_mtime_ns}, gfid={self.gfid!r})"
        )


class StatvfsResult:
    """Figures of a volume with the names of `os.statvfs_result`; sizes are in units of `f_frsize` bytes."""

    __slots__ = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize",
                 "f_fsid", "f_namemax")  # fmt: skip

    def __init__(self, figures: Statvfs) -> None:
        self.f_bsize = figures.bsize
        self.f_frsize = figures.frsize
        self.f_blocks = figures.blocks
        self.f_bfree = figures.bfree
        self.f_bavail = figures.bavail
        self.f_files = figures.files
        self.f_ffree = figures.ffree
        self.f_favail = figures.favail
        self.f_fsid = figures.fsid
        self.f_flag = figures.flag
        self.f_namemax = figures.namemax

    @property
    def free(self) -> int:
        """Bytes that a normal user may still fill."""
        return self.f_bavail * self.f_frsize

    @property
    def total(self) -> int:
        """Bytes of the whole volume."""
        return self.f_blocks * self.f_frsize

    def __repr__(self) -> str:
        return f"StatvfsResult({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


class Dirent:
    """An entry as `Dir` yields it, with the fields of the C structure.

    Attributes:
        d_ino: inode number.
        d_off: where reading goes on behind the entry; a cookie of the brick's.
        d_type: one byte, of the DT_* numbers.
        d_name: the name.
    """

    __slots__ = ("d_ino", "d_name", "d_off", "d_type")

    def __init__(self, ino: int, off: int, kind: int, name: bytes) -> None:
        self.d_ino = ino
        self.d_off = off
        self.d_type = bytes((kind,))
        self.d_name = name

    @property
    def d_reclen(self) -> int:
        """Room for a name in C; slicing with it gives the whole name."""
        return 256

    def __repr__(self) -> str:
        return f"<Dirent {self.d_name!r}>"


class LockInfo:
    """The lock that stands in the way of another one.

    Attributes:
        exclusive: True for a write lock.
        start, length: the range; length 0 reaches to the end of the file.
        pid: process of its holder, as told by the brick.
    """

    __slots__ = ("exclusive", "length", "pid", "start")

    def __init__(self, flock: Flock) -> None:
        self.exclusive = flock.type == F_WRLCK
        self.start = flock.start
        self.length = flock.len
        self.pid = flock.pid

    def __repr__(self) -> str:
        kind = "exclusive" if self.exclusive else "shared"
        return f"LockInfo({kind}, start={self.start}, length={self.length}, pid={self.pid})"
