"""The blocks of a byte range of a file, allocated so that a failure can give back exactly what was a hole before.

No file system undoes a failed allocation the same way: ext4 keeps the blocks it found and may have grown the file, xfs
does so beyond its largest extent, btrfs and tmpfs clean up. `Claim` remembers the holes of the range, allocates them
without touching the size, and makes them holes again when what follows fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from array import array
from collections.abc import Iterable, Iterator

from glustx import linux
from glustx.linux import FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE

UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)

_log = logging.getLogger("glustx.storage.posix")
_OFF_MAX = 2**63 - 1
_ZEROES = memoryview(bytes(1 << 20))
# Their maps show data that is only in the page cache yet; on others a hole may hide some.
_TRUE_MAPS = (linux.EXT_MAGIC, linux.XFS_MAGIC, linux.BTRFS_MAGIC, linux.TMPFS_MAGIC)
_MANY_HOLES = 1024
_SCANT = 1 << 20


class Claim:
    """The blocks of one range: which were holes, what has been allocated since, and the way back.

    As a context manager it gives back on every exception, also one that closes the generator it is used in. What stays
    is at most a block of the file system's own: a leaf of ext4's extent tree, the part of a btrfs extent that was
    rewritten elsewhere. Where there is no FIEMAP (tmpfs), blocks that were preallocated cannot be told from holes, and
    are given back as well once all of the range had been allocated.
    """

    def __init__(self, fd: int, offset: int, size: int) -> None:
        check_range(offset, size)
        self.fd, self.offset, self.end = fd, offset, offset + size
        self.flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if self.flags & os.O_ACCMODE == os.O_RDONLY or self.flags & os.O_PATH:
            raise _error(errno.EBADF)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _error(errno.ENODEV)
        self.old_size, self.old_blocks = status.st_size, status.st_blocks
        self.grown = status.st_size  # the size that this claim gave the file
        vfs = os.fstatvfs(fd)
        self.block, self.free = vfs.f_frsize, vfs.f_bfree * vfs.f_frsize if vfs.f_blocks else _OFF_MAX
        self.magic = linux.fs_magic(fd)
        self.holes = array("q")  # start, end, start, end ...: 16 bytes for each hole of the range
        self.gap_end = 0  # up to where the gap between EOF and offset had blocks
        self.exact = True  # the holes have no blocks; False: they are what SEEK_HOLE says, so some may be preallocated
        self._map()
        # Bounds of what was allocated here. The first and the last block, where the range shares them, come last.
        self.low = min(_up(offset, self.block), self.end)
        self.high = max(self.end - self.end % self.block, self.low)
        self.began = False  # something may have been allocated
        self.filled = False  # all holes have been, or are being written to

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        try:
            self.give_back()
        except OSError as undo:
            _log.error("fd %d: giving back [%d, %d) failed: %s", self.fd, self.offset, self.end, undo)

    def _map(self) -> None:
        at = self.offset
        try:
            start = min(at, self.old_size)
            for extent in linux.fiemap(self.fd, start, self.end - start):
                if extent.logical < self.offset:
                    self.gap_end = min(extent.end, self.offset)
                if extent.logical > at:
                    self.holes.extend((at, min(extent.logical, self.end)))
                at = max(at, extent.end)
            if self.end > self.old_size:
                # EFBIG for what no file can hold, before ENOSPC and before anything is begun.
                next(linux.fiemap(self.fd, self.end - 1, 1), None)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self.exact = False
            at = self._map_by_seek()
        if at < self.end:
            self.holes.extend((at, self.end))

    def _map_by_seek(self) -> int:
        at = self.offset
        try:
            while at < self.end:
                data = self._seek(at, os.SEEK_DATA)
                if data > at:
                    self.holes.extend((at, min(data, self.end)))
                at = data if data >= self.end else self._seek(data, os.SEEK_HOLE)
        except (PermissionError, FileNotFoundError):  # a file this user cannot read; no /proc
            self.magic = 0  # so that all of it counts as data too
        return at

    def _seek(self, at: int, whence: int) -> int:
        """SEEK_DATA or SEEK_HOLE without moving the offset of fd; the far end where nothing is found."""
        reader = _reopen(self.fd, os.O_RDONLY)
        try:
            return os.lseek(reader, at, whence)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return _OFF_MAX
        finally:
            os.close(reader)

    def reserve(self) -> None:
        """Allocate the holes; EOPNOTSUPP where that takes writing."""
        if self.holes:
            # Only ext2/3/4 counts exactly and takes all it can get before it fails. xfs, btrfs and tmpfs refuse by
            # themselves, and xfs and btrfs can win back space that statvfs does not count.
            if self.magic == linux.EXT_MAGIC:
                self._refuse_hopeless()
            if not self.exact:
                self.low, self.high = self.offset, self.end  # one call, which undoes itself
            self._allocate(self.low, self.high)
            if self.holes[0] == self.offset < self.low:
                self._allocate(self.offset, self.low)
                self.low = self.offset
            if self.holes[-1] == self.end > self.high:
                self._allocate(self.high, self.end)
                self.high = self.end
        self.filled = True

    def _allocate(self, start: int, end: int) -> None:
        if start < end:
            self.began = True
            linux.fallocate(self.fd, FALLOC_FL_KEEP_SIZE, start, end - start)

    def _refuse_hopeless(self) -> None:
        """ENOSPC at once for what cannot fit, where trying would take everybody's space until the undo."""
        if sum(self.holes[1::2]) - sum(self.holes[::2]) > self.free:
            raise _error(errno.ENOSPC)

    def data(self) -> list[tuple[int, int]]:
        """The parts of the range that may hold data."""
        if self.magic not in _TRUE_MAPS or len(self.holes) > 2 * _MANY_HOLES:
            return [(self.offset, self.end)]
        bounds = (self.offset, *self.holes, self.end)
        return [pair for pair in _pairs(bounds) if pair[0] < pair[1]]

    def clear(self, method: str) -> None:
        """Zero what held data, by ZERO_RANGE or, for method "punch", by a hole that is allocated again."""
        for start, end in self.data():
            piece = end - start
            if method == "punch" or self.magic == linux.XFS_MAGIC:
                # The old blocks go before new ones come, and are lost to whoever is quicker. Twice as much free space
                # makes that unlikely; where there is next to none, writing is the safe way.
                vfs = os.fstatvfs(self.fd)
                piece = min(piece, vfs.f_bavail * vfs.f_frsize // 2 // _SCANT * _SCANT)
            if not piece:
                self._overwrite(start, end)
                continue
            for at in range(start, end, piece):
                self._clear(method, at, min(at + piece, end))

    def _clear(self, method: str, start: int, end: int) -> None:
        if method == "punch":
            linux.fallocate(self.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)
            self._allocate(start, end)
            return
        try:
            linux.fallocate(self.fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, start, end - start)
        except OSError as error:
            if error.errno != errno.ENOSPC or self.magic != linux.EXT_MAGIC:
                raise
            self._overwrite(start, end)  # it lacked a block for its extent tree; the data has its blocks

    def grow(self) -> None:
        """Let the file end at the end of the range, unless it ends later."""
        if self.end > self.old_size:
            # Not ftruncate, which would shrink a file that somebody has made longer in the meantime.
            self.began = True
            try:
                linux.fallocate(self.fd, 0, self.end - 1, 1)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # xfs sets space aside for every allocation, also for one of blocks that are there.
                self._overwrite(self.end - 1, self.end)
            self.grown = self.end

    def write(self, step: int) -> Iterator[int]:
        """Write zeroes over the range, growing the file with them; yields the bytes done after every `step`."""
        try:
            self.reserve()
            parts = [(self.offset, self.end)]
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._refuse_hopeless()
            self.began = self.filled = True
            self.low, self.high = self.offset, self.end
            parts = [*_pairs(self.holes), *self.data()]
        done = told = 0
        for wrote in self._write_zeroes(parts):
            done += wrote
            if done - told >= step:
                told = done
                yield done

    def _overwrite(self, start: int, end: int) -> None:
        for _ in self._write_zeroes([(start, end)]):
            pass

    def _write_zeroes(self, parts: list[tuple[int, int]]) -> Iterator[int]:
        """Yields the bytes of each write."""
        # pwrite on an O_APPEND fd appends, O_DIRECT wants aligned memory, O_SYNC waits for the disk at every write.
        reopen = self.flags & (os.O_APPEND | os.O_DIRECT | os.O_DSYNC)
        fd = _reopen(self.fd, os.O_WRONLY) if reopen else self.fd
        try:
            for at, end in parts:
                while at < end:
                    wrote = os.pwrite(fd, _ZEROES[: min(end - at, len(_ZEROES) - at % len(_ZEROES))], at)
                    if not wrote:
                        raise _error(errno.ENOSPC)
                    at += wrote
                    self.grown = max(self.grown, at)
                    yield wrote
        finally:
            if reopen:
                os.close(fd)

    def give_back(self) -> None:
        """Make holes again of what was one, and cut off the growth.

        A file that others have made longer since stays as long, and blocks that others allocated stay. One gap is left:
        a write that makes the file longer between fstat and ftruncate loses it, as Linux cannot compare and truncate.
        """
        if not self.began:
            return
        size = os.fstat(self.fd).st_size
        if size == self.grown > self.old_size:
            self._cut(max(self.old_size, self._others_end()))
        taken = self._taken()
        self._release(taken)
        if self.magic == linux.EXT_MAGIC and taken and os.fstat(self.fd).st_blocks > self.old_blocks:
            # ext4 moves extents that have become few enough back into the inode only when one more is added.
            start = taken[0][0]
            with contextlib.suppress(OSError):
                self._allocate(start, start + self.block)
            self._release([(start, start + self.block)])

    def _release(self, taken: list[tuple[int, int]]) -> None:
        for start, end in taken:
            try:
                linux.fallocate(self.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start)
            except OSError as error:
                if error.errno in UNSUPPORTED:
                    return
                raise
        # ext4 punches nothing past EOF.
        size = os.fstat(self.fd).st_size
        if any(end > size and self._has_blocks(max(start, size), end) for start, end in taken):
            self._cut(size)

    def _taken(self) -> list[tuple[int, int]]:
        """What was a hole and was allocated here, with the whole first and last block where nobody else wrote."""
        if not self.exact and not self.filled:
            return []  # the kernel undoes a fallocate that fails
        low, high, block = self.low, self.high, self.block
        if low == self.offset and self._reads_zero(low - low % block, low):
            low -= low % block
        if high == self.end and self._reads_zero(high, _up(high, block)):
            high = _up(high, block)
        pairs = _pairs(self.holes)
        outward = ((low if s == self.offset else s, high if e == self.end else e) for s, e in pairs)
        inside = ((max(start, low), min(end, high)) for start, end in outward)
        return [pair for pair in inside if pair[0] < pair[1]]

    def _reads_zero(self, start: int, end: int) -> bool:
        if start == end:
            return True
        try:
            reader = _reopen(self.fd, os.O_RDONLY)
        except OSError:
            return False  # the careful answer
        try:
            return not any(os.pread(reader, end - start, start))
        finally:
            os.close(reader)

    def _has_blocks(self, start: int, end: int) -> bool:
        return self.exact and next(linux.fiemap(self.fd, start, end - start), None) is not None

    def _others_end(self) -> int:
        """Where others have put blocks between the old EOF and the range since it was mapped; 0: nowhere."""
        start, end = _up(self.old_size, self.block), self.offset - self.offset % self.block
        if self.old_size >= self.offset:
            return 0
        if not self._reads_zero(max(self.old_size, end), self.offset):
            return self.offset
        ends = [0 if self._reads_zero(self.old_size, min(start, self.offset)) else start]
        if start < end and self.exact:
            # Data over unwritten extents is told from mere preallocation only once it is on disk.
            for extent in linux.fiemap(self.fd, start, end - start, flags=linux.FIEMAP_FLAG_SYNC):
                if extent.end > self.gap_end or not extent.flags & linux.FIEMAP_EXTENT_UNWRITTEN:
                    ends.append(min(extent.end, end))
        elif start < end and self._seek(start, os.SEEK_DATA) < end:
            ends.append(end)
        return max(ends)

    def _cut(self, size: int) -> None:
        """Truncate to `size`, then allocate again what others, or this file before, had past it."""
        kept: list[tuple[int, int]] = []
        if self.exact:
            past = _up(size, self.block)
            taken = self._taken()
            for extent in linux.fiemap(self.fd, past, _OFF_MAX - past):
                kept += _without(max(extent.logical, past), extent.end, taken)
        os.ftruncate(self.fd, size)
        for start, end in kept:
            self._allocate(start, end)


def check_range(offset: int, size: int) -> None:
    if offset < 0 or size <= 0:
        raise _error(errno.EINVAL)
    if offset + size > _OFF_MAX:
        raise _error(errno.EFBIG)


def _pairs(flat: Iterable[int]) -> Iterator[tuple[int, int]]:
    each = iter(flat)
    return zip(each, each, strict=True)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _up(offset: int, block: int) -> int:
    return min(-(-offset // block) * block, _OFF_MAX)


def _reopen(fd: int, flags: int) -> int:
    """A new open file for the file behind `fd`, which need not have a name any more."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def _without(start: int, end: int, taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """[start, end) less the ranges of `taken`, which are in order."""
    for low, high in taken:
        if high <= start:
            continue
        if low >= end:
            break
        if start < low:
            yield start, low
        start = high
    if start < end:
        yield start, end
