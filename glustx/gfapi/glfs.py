"""libgfapi's names over the blocking face, for code that is ported from C: `glfs_open`, `glfs_zerofill` and so on.

The names, and the order of what they take, are libgfapi's; buffers to fill and `flags` that nothing reads are left out.
Where C returns -1 and sets errno, these raise OSError. A `glfs_fd_t` is a File, an open directory a Dir. As in C, no
umask is taken from modes, and `glfs_setfsuid` and its kind hold for the thread that calls them, on all volumes.
"""

from __future__ import annotations

import errno
import inspect
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from glustx.gfapi.attrs import Buffer
from glustx.gfapi.entries import Dir
from glustx.gfapi.file import FileCore
from glustx.gfapi.namei import PathLike, to_text
from glustx.gfapi.results import Dirent, LockInfo, StatResult
from glustx.gfapi.source import Source
from glustx.gfapi.sync import File, Volume
from glustx.gfapi.twins import api
from glustx.gfapi.url import DEFAULT_PORT
from glustx.gfapi.volume import VolumeCore
from glustx.rpc.channel import Address
from glustx.values import F_UNLCK, F_WRLCK, LEASE_RW

P = ParamSpec("P")
R = TypeVar("R")

_TRANSPORTS = ("tcp", "unix")
_who = threading.local()


class Glfs:
    """A `glfs_t`: what was said of a volume before `glfs_init`, and the mounted volume after it."""

    def __init__(self, volname: str) -> None:
        self.volname = volname
        self.servers: list[Address] = []
        self.volfile = ""
        self.log: tuple[str | None, int] = ("/dev/null", 7)
        self._volume: Volume | None = None

    @property
    def volume(self) -> Volume:
        """The mounted volume, for the user of this thread; RuntimeError before `glfs_init` and after `glfs_fini`."""
        if self._volume is None:
            raise RuntimeError(f"volume {self.volname}: glfs_init comes first")
        who: dict[str, Any] = _who.__dict__
        return self._volume.using(**who) if who else self._volume

    @property
    def mounted(self) -> bool:
        """True between `glfs_init` and `glfs_fini`."""
        return self._volume is not None

    def mount(self) -> None:
        """Mount what was described."""
        if self._volume is not None:
            return
        if self.volfile:
            source = Source.of(self.volfile, self.volname)
        elif self.servers:
            source = Source.served(tuple(self.servers), self.volname)
        else:
            raise ValueError(f"volume {self.volname}: neither glfs_set_volfile_server nor glfs_set_volfile was called")
        self._volume = Volume(source, log_file=self.log[0], log_level=self.log[1], umask=0)

    def unmount(self) -> None:
        """Take it down."""
        volume, self._volume = self._volume, None
        if volume is not None:
            volume.close()


def glfs_new(volname: str) -> Glfs:
    """Begin to describe a volume."""
    return Glfs(volname)


def glfs_set_volfile_server(fs: Glfs, transport: str, host: str, port: int = 0) -> None:
    """Add a server to ask for the volfile; `transport` is tcp or unix, where `host` is the socket's path.

    Raises:
        ValueError: another transport.
    """
    if (transport or "tcp") not in _TRANSPORTS:
        raise ValueError(f"transport {transport!r} is not one of {', '.join(_TRANSPORTS)}")
    fs.servers.append(Address(path=host) if transport == "unix" else Address(host, port or DEFAULT_PORT))


def glfs_set_volfile(fs: Glfs, volfile: str) -> None:
    """Take the graph from a file instead of a server."""
    fs.volfile = volfile


def glfs_unset_volfile_server(fs: Glfs, transport: str, host: str, port: int = 0) -> None:
    """Take a server away again; ValueError when it was not set."""
    address = Address(path=host) if transport == "unix" else Address(host, port or DEFAULT_PORT)
    if address not in fs.servers:
        raise ValueError(f"volume {fs.volname}: {address} is none of its servers")
    fs.servers.remove(address)


def glfs_set_logging(fs: Glfs, logfile: str | None, loglevel: int) -> None:
    """Log to a file while the volume is mounted; `loglevel` 4 errors, 5 warnings, 7 what happens, 9 everything."""
    fs.log = (logfile, loglevel)
    if fs.mounted:
        fs.volume.set_logging(logfile, loglevel)


def glfs_init(fs: Glfs) -> None:
    """Mount the volume; OSError when it does not answer."""
    fs.mount()


def glfs_fini(fs: Glfs) -> None:
    """Take the volume down, at once."""
    fs.unmount()


def glfs_setfsuid(uid: int) -> None:
    """Ask as user `uid`, without supplementary groups, in this thread."""
    _who.__dict__["uid"] = uid


def glfs_setfsgid(gid: int) -> None:
    """Ask with the group `gid` in this thread."""
    _who.__dict__["gid"] = gid


def glfs_setfsgroups(groups: Sequence[int]) -> None:
    """Ask with these supplementary groups in this thread."""
    _who.__dict__["groups"] = tuple(groups)


def _fs(method: api[VolumeCore, P, R]) -> Callable[Concatenate[Glfs, P], R]:
    name = cast(Any, method).__name__

    def call(fs: Glfs, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, getattr(fs.volume, name)(*args, **kwargs))

    signature = inspect.signature(cast(Any, method))
    own, *others = signature.parameters.values()
    cast(Any, call).__signature__ = signature.replace(parameters=[own.replace(name="fs"), *others])
    call.__doc__ = method.__doc__
    return call


def _fd(method: api[FileCore, P, R]) -> Callable[Concatenate[File, P], R]:
    return cast("Callable[Concatenate[File, P], R]", method)


# -- volumes ---------------------------------------------------------------------------------------------------------

glfs_stat = _fs(Volume.stat)
glfs_lstat = _fs(Volume.lstat)
glfs_statvfs = _fs(Volume.statvfs)
glfs_truncate = _fs(Volume.truncate)
glfs_mkdir = _fs(Volume.mkdir)
glfs_mknod = _fs(Volume.mknod)
glfs_rmdir = _fs(Volume.rmdir)
glfs_unlink = _fs(Volume.unlink)
glfs_rename = _fs(Volume.rename)
glfs_link = _fs(Volume.link)
glfs_symlink = _fs(Volume.symlink)
glfs_chdir = _fs(Volume.chdir)
glfs_chmod = _fs(Volume.chmod)
glfs_chown = _fs(Volume.chown)
glfs_setxattr = _fs(Volume.setxattr)
glfs_removexattr = _fs(Volume.removexattr)
glfs_listxattr = _fs(Volume.listxattr)


def glfs_readlink(fs: Glfs, path: PathLike) -> str | bytes:
    """Return what a symbolic link says, as bytes for a path of bytes."""
    return fs.volume.readlink(path)


def glfs_realpath(fs: Glfs, path: PathLike) -> str | bytes:
    """Return the path without symbolic links and dots, as bytes for a path of bytes."""
    return fs.volume.realpath(path)


def glfs_getcwd(fs: Glfs) -> str:
    """Return the directory that paths without a leading slash start from."""
    return fs.volume.getcwd()


def glfs_fchdir(fs: Glfs, fd: Dir) -> None:
    """Let paths that do not begin with a slash start from an open directory."""
    fs.volume.chdir(fd.path)


def glfs_getxattr(fs: Glfs, path: PathLike, name: str | bytes) -> bytes:
    """Return the value of an extended attribute; OSError ENODATA when there is none."""
    return fs.volume.getxattr(path, _raw(name))


def glfs_lgetxattr(fs: Glfs, path: PathLike, name: str | bytes) -> bytes:
    """Return the value of an extended attribute of a symbolic link itself."""
    return fs.volume.getxattr(path, _raw(name), follow_symlinks=False)


def glfs_lsetxattr(fs: Glfs, path: PathLike, name: str | bytes, value: Buffer, flags: int = 0) -> None:
    """Set an extended attribute of a symbolic link itself."""
    fs.volume.setxattr(path, name, value, flags, follow_symlinks=False)


def glfs_lremovexattr(fs: Glfs, path: PathLike, name: str | bytes) -> None:
    """Remove an extended attribute of a symbolic link itself."""
    fs.volume.removexattr(path, name, follow_symlinks=False)


def glfs_llistxattr(fs: Glfs, path: PathLike) -> list[str]:
    """Return the names of the extended attributes of a symbolic link itself."""
    return fs.volume.listxattr(path, follow_symlinks=False)


def _raw(name: str | bytes) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


def glfs_access(fs: Glfs, path: PathLike, mode: int) -> None:
    """Check that `path` exists and that the brick lets the caller do `mode` (os.R_OK, W_OK, X_OK) to it."""
    fs.volume.stat(path)
    if not fs.volume.access(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def glfs_utimens(fs: Glfs, path: PathLike, times: tuple[int, int]) -> None:
    """Set access and modification time, in nanoseconds."""
    fs.volume.utime(path, ns=times)


def glfs_lutimens(fs: Glfs, path: PathLike, times: tuple[int, int]) -> None:
    """Set access and modification time of a symbolic link, in nanoseconds."""
    fs.volume.utime(path, ns=times, follow_symlinks=False)


def glfs_lchown(fs: Glfs, path: PathLike, uid: int, gid: int) -> None:
    """Set owner and group of a symbolic link."""
    fs.volume.chown(path, uid, gid, follow_symlinks=False)


def glfs_open(fs: Glfs, path: PathLike, flags: int) -> File:
    """Open a file."""
    return fs.volume.open(path, flags & ~os.O_CREAT)


def glfs_creat(fs: Glfs, path: PathLike, flags: int, mode: int) -> File:
    """Open a file, making it when it is not there."""
    return fs.volume.open(path, flags | os.O_CREAT, mode)


def glfs_opendir(fs: Glfs, path: PathLike) -> Dir:
    """Open a directory."""
    return fs.volume.opendir(path, readdirplus=True)


def glfs_readdir(fd: Dir) -> Dirent | None:
    """Return the next entry, `.` and `..` included, None at the end."""
    found = next(fd, None)
    return None if found is None else found[0]


def glfs_readdirplus(fd: Dir) -> tuple[Dirent, StatResult] | None:
    """Return the next entry and its attributes, None at the end."""
    return next(fd, None)


def glfs_closedir(fd: Dir) -> None:
    """Close a directory."""
    fd.close()


# -- files -----------------------------------------------------------------------------------------------------------

glfs_pread = _fd(File.pread)
glfs_pwrite = _fd(File.pwrite)
glfs_fstat = _fd(File.stat)
glfs_fsync = _fd(File.fsync)
glfs_zerofill = _fd(File.zerofill)
glfs_discard = _fd(File.discard)
glfs_fchmod = _fd(File.chmod)
glfs_fchown = _fd(File.chown)
glfs_fsetxattr = _fd(File.setxattr)
glfs_fremovexattr = _fd(File.removexattr)
glfs_flistxattr = _fd(File.listxattr)


def glfs_close(fd: File) -> None:
    """Close a file."""
    fd.close()


def glfs_read(fd: File, count: int) -> bytes:
    """Read at the position."""
    return fd.read(count)


def glfs_write(fd: File, data: Buffer) -> int:
    """Write at the position."""
    return fd.write(data)


def glfs_lseek(fd: File, offset: int, whence: int) -> int:
    """Move the position."""
    return fd.seek(offset, whence)


def glfs_ftruncate(fd: File, length: int) -> None:
    """Set the size."""
    fd.truncate(length)


def glfs_fdatasync(fd: File) -> None:
    """Make the data durable."""
    fd.fsync(data_only=True)


def glfs_dup(fd: File) -> File:
    """Return another handle on an open file, with a position of its own."""
    return fd.dup()


def glfs_fgetxattr(fd: File, name: str | bytes) -> bytes:
    """Return the value of an extended attribute; OSError ENODATA when there is none."""
    return fd.getxattr(_raw(name))


def glfs_fallocate(fd: File, keep_size: int, offset: int, length: int) -> None:
    """Allocate a range; the size stays when `keep_size` is not 0."""
    fd.allocate(offset, length, keep_size=bool(keep_size))


def glfs_posix_lock(fd: File, kind: int, start: int, length: int, wait: bool) -> None:
    """Lock a range of bytes, or unlock it: `kind` is fcntl's F_RDLCK (0), F_WRLCK (1) or F_UNLCK (2).

    Raises:
        BlockingIOError: it is locked by another one, and `wait` is false.
    """
    if kind == F_UNLCK:
        fd.unlock(start, length)
    else:
        fd.lock(exclusive=kind == F_WRLCK, blocking=wait, start=start, length=length)


def glfs_file_lock(fd: File, kind: int, start: int, length: int, wait: bool, mandatory: bool) -> None:
    """As glfs_posix_lock; a `mandatory` lock (GLFS_LK_MANDATORY) also keeps others from what it covers, where the
    volume has mandatory locking "optimal"."""
    if kind == F_UNLCK:
        fd.unlock(start, length)
    else:
        fd.lock(exclusive=kind == F_WRLCK, blocking=wait, start=start, length=length, mandatory=mandatory)


def glfs_test_lock(fd: File, kind: int, start: int, length: int) -> LockInfo | None:
    """Return the lock that stands in the way of one, or None: glfs_posix_lock with F_GETLK."""
    return fd.test_lock(exclusive=kind == F_WRLCK, start=start, length=length)


def glfs_lease(fd: File, kind: int, lease_id: bytes, recalled: Callable[[], object] | None) -> None:
    """Take a lease, or give it back: `kind` is GLFS_RD_LEASE (1), GLFS_RW_LEASE (2), or 0 to give it back.

    `recalled` is called when it must be given back; it may not use the volume.
    """
    if kind:
        fd.lease(exclusive=kind == LEASE_RW, lease_id=lease_id, recalled=recalled)
    else:
        fd.unlease()


def glfs_futimens(fd: File, times: tuple[int, int]) -> None:
    """Set access and modification time, in nanoseconds."""
    fd.utime(ns=times)


def glfs_copy_file_range(fd_in: File, offset_in: int, fd_out: File, offset_out: int, count: int) -> int:
    """Copy a range on the brick; return how many bytes were copied."""
    return fd_in.copy_file_range(fd_out, count, offset_in, offset_out)


def glfs_fd_path(fd: File) -> str:
    """Return the path a file was opened by."""
    return to_text(fd.name) if isinstance(fd.name, bytes) else fd.name


def glfs_get_volumeid(fs: Glfs) -> bytes:
    """Return the volume's id (16 bytes), which its bricks keep on their root."""
    return fs.volume.get_volume_id().bytes
