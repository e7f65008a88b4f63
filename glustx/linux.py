"""Linux system calls that the standard library lacks, and the only ctypes in glustx.

fallocate with its modes, FIEMAP, renameat2, openat2, syncfs, the f_type of fstatfs and mallinfo2. libc is bound on
first use, so the module imports on every platform; where a call does not exist it raises `OSError(ENOSYS)`. Every
failure is an `OSError` with errno, and the GIL is released while the kernel works.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

StrOrBytesPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

AT_FDCWD = -100

FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
FALLOC_FL_COLLAPSE_RANGE = 0x08
FALLOC_FL_ZERO_RANGE = 0x10
FALLOC_FL_INSERT_RANGE = 0x20

FIEMAP_FLAG_SYNC = 0x0001
FIEMAP_EXTENT_LAST = 0x0001
FIEMAP_EXTENT_UNKNOWN = 0x0002
FIEMAP_EXTENT_DELALLOC = 0x0004
FIEMAP_EXTENT_ENCODED = 0x0008
FIEMAP_EXTENT_NOT_ALIGNED = 0x0100
FIEMAP_EXTENT_DATA_INLINE = 0x0200
FIEMAP_EXTENT_DATA_TAIL = 0x0400
FIEMAP_EXTENT_UNWRITTEN = 0x0800
FIEMAP_EXTENT_MERGED = 0x1000
FIEMAP_EXTENT_SHARED = 0x2000

EXT_MAGIC = 0xEF53  # ext2, ext3 and ext4
XFS_MAGIC = 0x58465342
BTRFS_MAGIC = 0x9123683E
TMPFS_MAGIC = 0x01021994

RENAME_NOREPLACE = 0x1
RENAME_EXCHANGE = 0x2
RENAME_WHITEOUT = 0x4

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10
RESOLVE_CACHED = 0x20

_FS_IOC_FIEMAP = 0xC020660B
_FIEMAP = struct.Struct("=QQLLLL")  # start, length, flags, mapped_extents, extent_count, reserved
_FIEMAP_EXTENT = struct.Struct("=QQQ16xL12x")  # logical, physical, length, flags
_FIEMAP_EXTENTS_PER_CALL = 512  # 28 KiB

_SYS_RENAMEAT2 = {
    "x86_64": 316,
    "aarch64": 276,
    "riscv64": 276,
    "loongarch64": 276,
    "ppc64": 357,
    "ppc64le": 357,
    "s390x": 347,
}
_SYS_OPENAT2 = dict.fromkeys(_SYS_RENAMEAT2, 437)
# f_type is a long whose upper half is 0, but an unsigned int on s390x.
_F_TYPE_AT = 4 if sys.byteorder == "big" and sys.maxsize > 2**32 and platform.machine() != "s390x" else 0
_OFF_MAX = 2**63 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_OPEN_HOW = struct.Struct("=QQQ")  # flags, mode, resolve


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


class Extent(NamedTuple):
    """One extent of a file as FIEMAP reports it: byte offsets, byte length, FIEMAP_EXTENT_* flags."""

    logical: int
    physical: int
    length: int
    flags: int

    @property
    def end(self) -> int:
        """The byte offset in the file just past this extent."""
        return self.logical + self.length


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """fallocate(2): allocate, punch or zero a byte range of an open file.

    Args:
        fd: a regular file open for writing.
        mode: 0, or FALLOC_FL_* flags.
        offset: first byte.
        length: bytes.

    Raises:
        OSError: what the kernel answered (EOPNOTSUPP: this file system lacks the mode); EINVAL for a negative number,
            EFBIG for a range that ends past 2^63-1, without a call.
    """
    if offset < 0 or length < 0:
        raise _error(errno.EINVAL)
    if offset + length > _OFF_MAX:
        raise _error(errno.EFBIG)
    _call(_libc().fallocate, fd, mode, offset, length)


def fiemap(fd: int, offset: int, length: int, *, flags: int = 0) -> Iterator[Extent]:
    """The extents of an open file that touch [offset, offset + length), in order; what no extent covers is a hole.

    One ioctl fetches a page of extents, so memory stays bounded however fragmented the file is. Data that is still in
    the page cache appears as FIEMAP_EXTENT_DELALLOC (or not at all, on a file system that does not track it) unless
    `flags` has FIEMAP_FLAG_SYNC. The first and last extent are not cut to the range.

    Raises:
        OSError: EOPNOTSUPP or ENOTTY where the file system has no FIEMAP, EFBIG when offset is past what it can hold.
    """
    ioctl = _libc().ioctl
    end = min(offset + length, _OFF_MAX)
    # fcntl.ioctl keeps the GIL for buffers over 1 KiB, and FIEMAP may wait for writeback.
    buffer = ctypes.create_string_buffer(_FIEMAP.size + _FIEMAP_EXTENTS_PER_CALL * _FIEMAP_EXTENT.size)
    while offset < end:
        _FIEMAP.pack_into(buffer, 0, offset, end - offset, flags, 0, _FIEMAP_EXTENTS_PER_CALL, 0)
        _call(ioctl, fd, _FS_IOC_FIEMAP, ctypes.addressof(buffer))
        mapped = _FIEMAP.unpack_from(buffer)[3]
        if not mapped:
            return
        page = memoryview(buffer)[_FIEMAP.size : _FIEMAP.size + mapped * _FIEMAP_EXTENT.size]
        extent = None
        for extent in map(Extent._make, _FIEMAP_EXTENT.iter_unpack(page)):
            yield extent
        assert extent is not None
        if extent.flags & FIEMAP_EXTENT_LAST or extent.end <= offset:
            return
        offset = extent.end


def renameat2(
    src_dir_fd: int | None, src: StrOrBytesPath, dst_dir_fd: int | None, dst: StrOrBytesPath, flags: int
) -> None:
    """renameat2(2): rename with RENAME_NOREPLACE or RENAME_EXCHANGE.

    Args:
        src_dir_fd: directory that `src` is relative to; None for the working directory. Likewise `dst_dir_fd`.
        flags: RENAME_*; 0 is rename(2).

    Raises:
        OSError: what the kernel answered, with both paths; EINVAL where the file system lacks a flag.
    """
    number = _syscall_number(_SYS_RENAMEAT2)
    old, new = os.fsencode(src), os.fsencode(dst)
    old_dir, new_dir = (AT_FDCWD if fd is None else fd for fd in (src_dir_fd, dst_dir_fd))
    _call(_libc().syscall, number, old_dir, _path(old), new_dir, _path(new), flags, paths=(src, dst))


def openat2(dir_fd: int | None, path: StrOrBytesPath, flags: int, mode: int = 0, *, resolve: int = 0) -> int:
    """openat2(2): open with limits on where the path may lead; the new fd (always close-on-exec).

    Args:
        dir_fd: directory that `path` is relative to; None for the working directory.
        flags: O_* flags; unknown ones are EINVAL here, unlike open(2).
        mode: permission bits, only with O_CREAT or O_TMPFILE.
        resolve: RESOLVE_* flags; RESOLVE_BENEATH answers EXDEV to a path that would leave `dir_fd`.

    Raises:
        OSError: what the kernel answered, with the path; ENOSYS before Linux 5.6, EAGAIN when a rename raced with `..`.
    """
    number = _syscall_number(_SYS_OPENAT2)
    how = ctypes.create_string_buffer(_OPEN_HOW.pack(flags | os.O_CLOEXEC, mode, resolve), _OPEN_HOW.size)
    name = _path(os.fsencode(path))
    at = AT_FDCWD if dir_fd is None else dir_fd
    return _call(_libc().syscall, number, at, name, how, _OPEN_HOW.size, paths=(path,))


def syncfs(fd: int) -> None:
    """syncfs(2): write out everything of the file system that `fd` is on."""
    _call(_libc().syncfs, fd)


def fs_magic(fd: int) -> int:
    """The f_type of fstatfs(2) of the file system that `fd` is on: one of the *_MAGIC numbers of linux/magic.h."""
    buffer = ctypes.create_string_buffer(256)  # struct statfs has 120 bytes at most
    _call(_libc().fstatfs, fd, buffer)
    return int(ctypes.c_uint32.from_buffer(buffer, _F_TYPE_AT).value)


def keep_freed_memory(largest: int = 64 << 20, kept: int = 256 << 20) -> None:
    """Have malloc keep blocks of up to `largest` bytes in its heap, and `kept` bytes of it when they are freed.

    A daemon that reads and writes by the megabyte otherwise gets fresh pages from the kernel for each block, and
    zeroing those costs more than the copy into them. Does nothing where malloc is not glibc's.
    """
    try:
        mallopt = _libc().mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, largest)
    mallopt(_M_TRIM_THRESHOLD, kept)


def heap_figures() -> dict[str, int]:
    """Return what malloc says of its heap (mallinfo(3)): bytes and counts by glibc's names; empty elsewhere."""
    try:
        mallinfo = _libc().mallinfo2
    except (AttributeError, OSError):
        return {}
    mallinfo.restype = _Mallinfo
    figures = mallinfo()
    return {field[0]: int(getattr(figures, field[0])) for field in _Mallinfo._fields_}


def _error(number: int, *paths: StrOrBytesPath) -> OSError:
    if len(paths) == 2:
        return OSError(number, os.strerror(number), paths[0], None, paths[1])
    return OSError(number, os.strerror(number), *paths)


@functools.cache
def _libc() -> Any:
    """libc with the prototypes of what is used here."""
    if not sys.platform.startswith("linux"):
        raise _error(errno.ENOSYS)
    libc: Any = ctypes.CDLL(None, use_errno=True)
    # On 32-bit glibc the plain name takes a 32-bit off_t.
    if hasattr(libc, "fallocate64"):
        libc.fallocate = libc.fallocate64
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
    libc.syncfs.argtypes = (ctypes.c_int,)
    libc.syscall.restype = ctypes.c_long
    return libc


def _syscall_number(table: dict[str, int]) -> int:
    # A 32-bit process on a 64-bit kernel has other numbers than the machine's name says.
    number = table.get(platform.machine()) if sys.maxsize > 2**32 else None
    if number is None or not sys.platform.startswith("linux"):
        raise _error(errno.ENOSYS)
    return number


def _path(name: bytes) -> ctypes.c_char_p:
    if b"\0" in name:
        raise ValueError("embedded null byte")
    return ctypes.c_char_p(name)


def _call(function: Any, *args: Any, paths: tuple[StrOrBytesPath, ...] = ()) -> int:
    """Call into libc, again after EINTR (PEP 475), and raise its errno."""
    while True:
        result: int = function(*args)
        if result != -1:
            return result
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise _error(number, *paths)
