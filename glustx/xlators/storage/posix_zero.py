"""ZEROFILL, FALLOCATE and DISCARD of storage/posix, as plain functions over an open file that raise only OSError.

A bare FALLOC_FL_ZERO_RANGE is not safe when space runs out: ext4 leaves the file grown and the disk taken, xfs frees
old blocks before it looks for new ones. So a call goes in this order: find the holes of the range, allocate them
without touching the size, zero what held data, set the size last. When a step fails, what was a hole becomes a hole
again and the size is what it was.

What a failed call promises (ENOSPC, EDQUOT, EIO, or a caller that stopped half way): size and free space are as before
and bytes outside the range are untouched. Bytes inside it are untouched as well when the holes found no space, which is
how a full disk fails; they may read as zeroes when the failure came later: a copy-on-write file system that found no
space to replace old data, a stop between two steps, another process that took space which was free a moment ago.
Everything is positional: no file offset is read or moved, so threads may work on one fd at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
from collections.abc import Generator

import msgspec

from glustx import linux
from glustx.linux import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE
from glustx.xlators.storage.posix_claim import UNSUPPORTED, Claim, check_range

METHODS = ("zero-range", "punch", "writes")
STEP = 128 << 20

_FULL = (errno.ENOSPC, errno.EDQUOT)
_USUAL_METHOD = {"ext4": "zero-range", "xfs": "zero-range", "btrfs": "zero-range", "tmpfs": "punch"}
_SHARING = ("xfs", "btrfs")
_FICLONERANGE = 0x4020940D


class ZeroSupport(msgspec.Struct, frozen=True, gc=False):
    """How a brick's file system zeroes: method (one of METHODS), fstype as in mountinfo, block_size in bytes; and
    whether two files can share blocks (FICLONERANGE)."""

    method: str
    fstype: str
    block_size: int
    reflink: bool = False


def probe(folder: int | str | bytes | os.PathLike[str]) -> ZeroSupport:
    """Find the best method of a file system by trying it on a nameless file, which is gone afterwards.

    Args:
        folder: a folder on it, as a path or an open directory fd.

    Raises:
        OSError: the folder cannot be opened or refuses the file. On a full or read-only file system, where nothing can
            be tried, the answer is what its type usually has.
    """
    if isinstance(folder, int):
        dir_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    else:
        dir_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fstype, block = _fstype(dir_fd), os.fstatvfs(dir_fd).f_frsize
        try:
            fd = _nameless_file(dir_fd)
        except OSError as error:
            if error.errno not in (*_FULL, errno.EROFS):
                raise
            return ZeroSupport(_USUAL_METHOD.get(fstype, "writes"), fstype, block, fstype in _SHARING)
        try:
            return ZeroSupport(_best_method(fd, block), fstype, block, _shares(fd, block, fstype))
        finally:
            os.close(fd)
    finally:
        os.close(dir_fd)


def zerofill(fd: int, offset: int, size: int, *, method: str, sync: bool) -> None:
    """Make [offset, offset + size) read as zeroes, with its blocks allocated; the file grows when the range passes EOF.

    See `zerofill_steps` for arguments, errors and promises; this runs all its steps.
    """
    for _ in zerofill_steps(fd, offset, size, method=method, sync=sync):
        pass


def zerofill_steps(
    fd: int, offset: int, size: int, *, method: str, sync: bool, step: int = STEP
) -> Generator[int, None, None]:
    """`zerofill` in steps, for a caller that wants to do other work between them.

    Methods "zero-range" and "punch" have no step in between; "writes" yields the bytes done so far whenever `step` more
    (rounded up to whole writes of 1 MiB) are done. The undo covers the whole call: an error in a later step, or closing
    the iterator, gives back what all steps allocated (data that a step has overwritten stays zero).

    Method "writes" where the file system has no fallocate, as ext3, fills holes and the growth before it overwrites
    data, so that a full disk is met while the data is whole; a range with more holes than there is free space is
    refused before anything is written. Holes inside the old size become holes again where the file system can punch, as
    ext3 can since the ext4 driver serves it. Elsewhere only the growth is given back, and they stay filled with zeroes.

    Args:
        fd: a regular file open for writing; O_APPEND, O_DIRECT and O_SYNC are fine.
        offset: first byte.
        size: bytes.
        method: one of METHODS, as `probe` found it.
        sync: the range and the size are on disk before the last step ends; always so when fd has O_DSYNC or O_SYNC.

    Raises:
        OSError: EINVAL for size 0 or a negative number; EFBIG past 2^63-1 or what the file system can hold; EBADF when
            fd is not open for writing; ENOSPC and EDQUOT with the promise of the module; EOPNOTSUPP, and nothing is
            changed, when this file cannot do `method` (such as a block-mapped file on ext4: take "writes").
        ValueError: `method` is none of METHODS.
    """
    if method not in METHODS:
        raise ValueError(f"zerofill method {method!r} is none of {', '.join(METHODS)}")
    return _zerofill(Claim(fd, offset, size), method, sync, step)


def _zerofill(claim: Claim, method: str, sync: bool, step: int) -> Generator[int, None, None]:
    with claim:
        if method == "writes":
            yield from claim.write(step)
        else:
            claim.reserve()
            claim.clear(method)
            claim.grow()
        if sync or claim.flags & os.O_DSYNC:
            os.fdatasync(claim.fd)


def fallocate(fd: int, offset: int, size: int, keep_size: bool) -> None:
    """Allocate the blocks of [offset, offset + size); what was a hole reads as zeroes.

    Args:
        keep_size: leave the size alone when the range passes EOF; otherwise the file grows.

    Raises:
        OSError: as `zerofill_steps`; EOPNOTSUPP where the file system has no fallocate. After ENOSPC the size and the
            free space are as before.
    """
    with Claim(fd, offset, size) as claim:
        claim.reserve()
        if not keep_size:
            claim.grow()


def discard(fd: int, offset: int, size: int) -> None:
    """Punch a hole: [offset, offset + size) reads as zeroes and its whole blocks are free; the size stays.

    Raises:
        OSError: EINVAL for size 0 or a negative number, EFBIG past what the file system can hold, EBADF, EOPNOTSUPP.
    """
    check_range(offset, size)
    linux.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size)


def _fstype(fd: int) -> str:
    """The type of the file system that `fd` is on, as mountinfo names it: statfs cannot tell ext3 from ext4."""
    with open(f"/proc/self/fdinfo/{fd}") as lines:
        mount_id = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            if line.split(maxsplit=1)[0] == mount_id:
                return line.partition(" - ")[2].split()[0]
    return "unknown"


def _nameless_file(dir_fd: int) -> int:
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    name = f".glustx-probe-{secrets.token_hex(8)}"
    fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    os.unlink(name, dir_fd=dir_fd)
    return fd


def _best_method(fd: int, block: int) -> str:
    if _can(fd, 0, block):
        for method, mode in (("zero-range", FALLOC_FL_ZERO_RANGE), ("punch", FALLOC_FL_PUNCH_HOLE)):
            if _can(fd, mode, block) and _zeroes(fd, mode, block):
                return method
    return "writes"


def _shares(fd: int, block: int, fstype: str) -> bool:
    """Whether a block can be shared between two places; what its type usually says when it is too full to see."""
    try:
        os.pwrite(fd, b"\xa5" * block, 0)
        fcntl.ioctl(fd, _FICLONERANGE, struct.pack("qQQQ", fd, 0, block, 4 * block))
    except OSError as error:
        return error.errno in _FULL and fstype in _SHARING
    return True


def _can(fd: int, mode: int, block: int) -> bool:
    try:
        linux.fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, 0, block)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        if error.errno not in _FULL:  # full, but it was willing
            raise
    return True


def _zeroes(fd: int, mode: int, block: int) -> bool:
    """Whether `mode` zeroes its range and no more; True when the file system is too full to see."""
    pattern = b"\xa5" * block
    try:
        if os.pwrite(fd, pattern * 3, 0) < 3 * block:
            return True
        linux.fallocate(fd, mode | FALLOC_FL_KEEP_SIZE, block, block)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        return True
    return os.pread(fd, 3 * block, 0) == pattern + bytes(block) + pattern
