"""What is copied from and to: a volume, or this machine's own files under the same names."""

from __future__ import annotations

import errno
import os
from typing import Any, Protocol

import msgspec


class Stat(Protocol):
    """Attributes of a file, as `os.stat_result` names them."""

    @property
    def st_mode(self) -> int:
        """Type and permissions."""

    @property
    def st_nlink(self) -> int:
        """Number of names."""

    @property
    def st_uid(self) -> int:
        """Owner."""

    @property
    def st_gid(self) -> int:
        """Group."""

    @property
    def st_size(self) -> int:
        """Bytes."""

    @property
    def st_blocks(self) -> int:
        """Units of 512 bytes."""

    @property
    def st_atime_ns(self) -> int:
        """Access time in nanoseconds."""

    @property
    def st_mtime_ns(self) -> int:
        """Modification time in nanoseconds."""


class File(Protocol):
    """The part of gfapi's blocking file that is used here; safe for several threads at a time."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read."""

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write."""

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""

    def seek_data(self, offset: int) -> int:
        """Find data."""

    def seek_hole(self, offset: int) -> int:
        """Find a hole."""

    def stat(self) -> Stat:
        """Attributes."""

    def chmod(self, mode: int) -> None:
        """Set the permissions."""

    def chown(self, uid: int, gid: int) -> None:
        """Set owner and group."""

    def utime(self, times: tuple[float, float] | None = ..., *, ns: tuple[int, int] | None = ...) -> None:
        """Set the times."""

    def fsync(self, *, data_only: bool = False) -> None:
        """Make durable."""

    def close(self) -> None:
        """Close."""


class Side(Protocol):
    """The part of gfapi's blocking volume that is used here. Paths are text, bytes that are no UTF-8 as surrogates."""

    def open(self, path: str, how: int | str = ..., mode: int = ...) -> Any:
        """Open a file."""

    def using(self, *, umask: int | None = ...) -> Any:
        """The same with another umask, where that can be."""

    def scandir(self, path: str = "/") -> Any:
        """Entries of a directory, with attributes."""

    def stat(self, path: str, *, follow_symlinks: bool = True) -> Stat:
        """Attributes."""

    def lstat(self, path: str) -> Stat:
        """Attributes, of the link itself when it is one."""

    def lexists(self, path: str) -> bool:
        """Tell whether a path names something."""

    def isdir(self, path: str) -> bool:
        """Tell whether a path leads to a directory."""

    def realpath(self, path: str) -> str:
        """The path without symbolic links."""

    def readlink(self, path: str) -> str:
        """What a symbolic link says."""

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        """Make a directory."""

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link."""

    def chmod(self, path: str, mode: int) -> None:
        """Set the permissions."""

    def chown(self, path: str, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Set owner and group."""

    def utime(
        self,
        path: str,
        times: tuple[float, float] | None = ...,
        *,
        ns: tuple[int, int] | None = ...,
        follow_symlinks: bool = True,
    ) -> None:
        """Set the times."""

    def link(self, src: Any, dst: str) -> None:
        """Give a file another name."""

    def rename(self, src: str, dst: str) -> None:
        """Move a name."""

    def unlink(self, path: str) -> None:
        """Remove a name of a file."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""


class LocalFile:
    """An open file of this machine with the methods of gfapi's."""

    def __init__(self, path: str, flags: int, mode: int) -> None:
        self._fd = os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode)

    def pread(self, size: int, offset: int) -> bytes:
        """Read; fewer bytes only at the end of the file."""
        parts: list[bytes] = []
        while size > 0 and (data := os.pread(self._fd, size, offset)):
            parts.append(data)
            size -= len(data)
            offset += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write; return how many bytes were written."""
        return os.pwrite(self._fd, data, offset)

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        os.ftruncate(self._fd, size or 0)
        return size or 0

    def seek_data(self, offset: int) -> int:
        """Return where data begins at or behind `offset`."""
        return self._seek(offset, "SEEK_DATA")

    def seek_hole(self, offset: int) -> int:
        """Return where a hole begins at or behind `offset`."""
        return self._seek(offset, "SEEK_HOLE")

    def _seek(self, offset: int, what: str) -> int:
        whence = getattr(os, what, None)
        if whence is None:
            raise OSError(errno.EOPNOTSUPP, f"no {what} on this platform")
        return os.lseek(self._fd, offset, whence)

    def stat(self) -> Stat:
        """Return the attributes."""
        return os.fstat(self._fd)

    def chmod(self, mode: int) -> None:
        """Set the permissions."""
        os.chmod(self._fd, mode)

    def chown(self, uid: int, gid: int) -> None:
        """Set owner and group."""
        os.chown(self._fd, uid, gid)

    def utime(self, times: tuple[float, float] | None = None, *, ns: tuple[int, int] | None = None) -> None:
        """Set the times."""
        if ns is None:
            os.utime(self._fd, times)
        else:
            os.utime(self._fd, ns=ns)

    def fsync(self, *, data_only: bool = False) -> None:
        """Make durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Local:
    """This machine's files under the names of gfapi's volume."""

    def open(self, path: str, how: int | str = os.O_RDONLY, mode: int = 0o666) -> LocalFile:
        """Open a file; `how` is `os.O_*` flags."""
        assert isinstance(how, int)
        return LocalFile(path, how, mode)

    def using(self, *, umask: int | None = None) -> Local:
        """The same: the umask is the process's."""
        return self

    scandir = staticmethod(os.scandir)
    stat = staticmethod(os.stat)
    lstat = staticmethod(os.lstat)
    lexists = staticmethod(os.path.lexists)
    isdir = staticmethod(os.path.isdir)
    realpath = staticmethod(os.path.realpath)
    readlink = staticmethod(os.readlink)
    mkdir = staticmethod(os.mkdir)
    symlink = staticmethod(os.symlink)
    chmod = staticmethod(os.chmod)
    chown = staticmethod(os.chown)
    utime = staticmethod(os.utime)
    link = staticmethod(os.link)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)


class Place(msgspec.Struct, frozen=True):
    """A path on a side, and what messages put around it (`gluster://host/volume`; nothing for local files)."""

    side: Any
    path: str
    base: str = ""
    suffix: str = ""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.base + self.path + self.suffix

    @property
    def local(self) -> bool:
        """Tell whether it is on this machine."""
        return isinstance(self.side, Local)

    def child(self, name: str) -> Place:
        """The place of a name in this directory."""
        joined = self.path + name if self.path.endswith("/") else f"{self.path}/{name}"
        return msgspec.structs.replace(self, path=joined)

    def at(self, path: str) -> Place:
        """Another place on the same side."""
        return msgspec.structs.replace(self, path=path)

    @property
    def leaf(self) -> str:
        """The last name of the path; empty when it ends in none (the root, `.`, `..`)."""
        name = os.path.basename(self.path.rstrip("/"))
        return "" if name in (".", "..") else name


def same_volume(one: Place, other: Place) -> bool:
    """Tell whether two places are of one mounted volume."""
    return not one.local and one.side is other.side
