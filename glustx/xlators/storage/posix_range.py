"""Ranges of files in storage/posix: TRUNCATE, FALLOCATE, DISCARD, ZEROFILL, SEEK, COPY_FILE_RANGE and RCHECKSUM.

What the kernel does by moving extents runs on the reactor's thread while the range is small; what frees or writes much
goes to a worker. A fop that changes a file runs to its end once begun, even when its caller has gone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Generator
from typing import Any

from glustx import fops
from glustx.fops import CopyReply, Fop, PrePost, RchecksumReply, SeekReply
from glustx.runtime import shield
from glustx.values import SEEK_DATA, SEEK_HOLE, STAMP_CTIME
from glustx.xdata import BUF_HAS_ZEROES, CHECK_ZERO_FILLED, EMPTY, FIPS_RCHECKSUM, Xdata, uint
from glustx.xlators.storage import posix_zero
from glustx.xlators.storage.posix_attr import STAMP_DATA
from glustx.xlators.storage.posix_data import INLINE_FREE
from glustx.xlators.storage.posix_object import (
    OpenFile,
)
from glustx.xlators.storage.posix_xattr import PosixXattr

_OFF_MAX = (1 << 63) - 1
_INLINE_COPY = 128 << 10
# Ranges without data up to here take some 0.1 ms.
_INLINE_RANGE = 64 << 20
_CHUNK = 1 << 20


class PosixRange(PosixXattr):
    """The fops on byte ranges."""

    # -- TRUNCATE --------------------------------------------------------------------------------------------------

    async def truncate(self, req: fops.Truncate) -> PrePost:
        """TRUNCATE; EISDIR for a directory, EINVAL for what has no size."""
        try:
            obj, st = self.find(req.loc.gfid)
            if not stat.S_ISREG(st.st_mode):
                raise OSError(errno.EISDIR if obj.is_dir else errno.EINVAL, "not a regular file")
            number = os.open(obj.path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            return await self._cut(req, OpenFile(number, obj, None), req.offset)
        except OSError as error:
            raise self.failed(req, error) from error

    async def ftruncate(self, req: fops.Ftruncate) -> PrePost:
        """FTRUNCATE."""
        try:
            return await self._cut(req, self.opened(req.fd), req.offset)
        except OSError as error:
            raise self.failed(req, error) from error

    async def _cut(self, req: Fop, f: OpenFile, size: int) -> PrePost:
        if size > _OFF_MAX:
            raise OSError(errno.EINVAL, "negative size")
        st = os.fstat(f.fd)
        self.check_space(req, size > st.st_size)
        heavy = size < st.st_size and st.st_blocks * 512 > INLINE_FREE
        return await self._change(req, f, STAMP_DATA, heavy, os.ftruncate, f.fd, size)

    # -- space -----------------------------------------------------------------------------------------------------

    async def fallocate(self, req: fops.Fallocate) -> PrePost:
        """FALLOCATE; EOPNOTSUPP for a `keep_size` other than 0 or 1, with the file unchanged."""
        try:
            if req.keep_size not in (0, 1):
                raise OSError(errno.EOPNOTSUPP, "FALLOCATE knows keep_size 0 and 1")
            f, heavy = self._range(req)
            self.look_at_space()
            self.check_range(req, f.fd, req.offset, req.size)
            keep = bool(req.keep_size)
            stamp = STAMP_CTIME if keep else STAMP_DATA
            return await self._change(req, f, stamp, heavy, posix_zero.fallocate, f.fd, req.offset, req.size, keep)
        except OSError as error:
            raise self.failed(req, error) from error

    async def discard(self, req: fops.Discard) -> PrePost:
        """DISCARD: punch a hole; the size stays."""
        try:
            f, heavy = self._range(req, over_data=True)
            return await self._change(req, f, STAMP_DATA, heavy, posix_zero.discard, f.fd, req.offset, req.size)
        except OSError as error:
            raise self.failed(req, error) from error

    async def zerofill(self, req: fops.Zerofill) -> PrePost:
        """ZEROFILL: the range reads as zeroes with its blocks allocated, and the file grows to hold it.

        Raises FopError: EINVAL for size 0 or a negative number, EFBIG past what the file system holds, ENOSPC with size
        and free space as before, EBADF for an fd that is not open for writing.
        """
        try:
            f, heavy = self._range(req, over_data=True)
            self.look_at_space()
            self.check_range(req, f.fd, req.offset, req.size)
            if self.zero_method == "writes":
                return await self._zero_by_writes(req, f)
            return await self._change(req, f, STAMP_DATA, heavy, self._zero, f, req.offset, req.size)
        except OSError as error:
            raise self.failed(req, error) from error

    def _zero(self, f: OpenFile, offset: int, size: int) -> None:
        posix_zero.zerofill(f.fd, offset, size, method=self.zero_method, sync=f.sync)

    async def _zero_by_writes(self, req: fops.Zerofill, f: OpenFile) -> PrePost:
        """Zero step by step on a worker; a caller that goes away in between has it undone."""
        st = os.fstat(f.fd)
        pre = self.seen(f.obj, st, f.fd)
        steps = posix_zero.zerofill_steps(f.fd, req.offset, req.size, method=self.zero_method, sync=f.sync)
        try:
            while await shield(self.work(_step, steps, f)):
                pass
        except BaseException:
            await shield(self.work(steps.close))
            raise
        return PrePost(pre=pre, post=self._written(req, f.obj, f.fd, st))

    def _range(
        self, req: fops.Fallocate | fops.Discard | fops.Zerofill, over_data: bool = False
    ) -> tuple[OpenFile, bool]:
        """Return the descriptor and whether the range is one for a worker, after refusing what is no range.

        With `over_data`, data in the range makes it one: the kernel writes it out before it takes it away.
        """
        f = self.opened(req.fd)
        if req.size == 0 or req.size > _OFF_MAX or req.offset > _OFF_MAX:
            raise OSError(errno.EINVAL, "not a range")
        heavy = req.size > _INLINE_RANGE or f.sync
        if over_data and not heavy:
            st = os.fstat(f.fd)
            # Eight of 512 bytes may hold xattrs.
            heavy = req.offset < st.st_size and st.st_blocks > 8
        return f, heavy

    async def _change(
        self, req: Fop, f: OpenFile, default: int, heavy: bool, call: Callable[..., Any], *args: Any
    ) -> PrePost:
        """Do `call(*args)` to a file, on a worker when it is heavy, and return its attributes around it."""
        if heavy:
            return await shield(self._change_away(req, f, default, call, *args))
        st = os.fstat(f.fd)
        pre = self.seen(f.obj, st, f.fd)
        call(*args)
        return PrePost(pre=pre, post=self._changed(req, f, default, st))

    async def _change_away(self, req: Fop, f: OpenFile, default: int, call: Callable[..., Any], *args: Any) -> PrePost:
        st = os.fstat(f.fd)
        pre = self.seen(f.obj, st, f.fd)
        await self.work(_hold, f, call, *args)
        return PrePost(pre=pre, post=self._changed(req, f, default, st))

    def _changed(self, req: Fop, f: OpenFile, default: int, st: os.stat_result) -> Any:
        if self.options.ctime:
            when, flags = self.when(req, default)
            if flags & 7:
                self.stamp(f.obj, f.fd, when, flags & 7, st)
        return self.settle(f.obj, os.fstat(f.fd))

    # -- SEEK and COPY_FILE_RANGE ----------------------------------------------------------------------------------

    async def seek(self, req: fops.Seek) -> SeekReply:
        """SEEK to data or a hole; ENXIO at and past the end of the file (or when no data follows)."""
        try:
            whence = {SEEK_DATA: os.SEEK_DATA, SEEK_HOLE: os.SEEK_HOLE}.get(req.what)
            if whence is None or req.offset > _OFF_MAX:
                raise OSError(errno.EINVAL, "SEEK knows data (0) and hole (1)")
            return SeekReply(offset=os.lseek(self.opened(req.fd).fd, req.offset, whence))
        except OSError as error:
            raise self.failed(req, error) from error

    async def copy_file_range(self, req: fops.CopyFileRange) -> CopyReply:
        """COPY_FILE_RANGE within the brick, sharing blocks where the file system can; `count` may fall short of
        `size`."""
        try:
            if req.flags or req.offset_in > _OFF_MAX or req.offset_out > _OFF_MAX:
                raise OSError(errno.EINVAL, "not a range, or unknown flags")
            return await shield(self._copy(req, self.opened(req.fd_in), self.opened(req.fd_out)))
        except OSError as error:
            raise self.failed(req, error) from error

    async def _copy(self, req: fops.CopyFileRange, source: OpenFile, target: OpenFile) -> CopyReply:
        st = os.fstat(target.fd)
        self.check_range(req, target.fd, req.offset_out, req.size)
        pre = self.seen(target.obj, st, target.fd)
        args = (source, target, req.size, req.offset_in, req.offset_out)
        count = _copy(*args) if req.size <= _INLINE_COPY else await self.work(_copy, *args)
        post = self._changed(req, target, STAMP_DATA, st)
        origin = self.seen(source.obj, os.fstat(source.fd), source.fd)
        return CopyReply(count=count, stat=origin, pre=pre, post=post)

    # -- RCHECKSUM -------------------------------------------------------------------------------------------------

    async def rchecksum(self, req: fops.Rchecksum) -> RchecksumReply:
        """RCHECKSUM: Adler-32 seeded with 0, and SHA-256 (option fips-mode-rchecksum) or MD5."""
        try:
            if req.offset > _OFF_MAX:
                raise OSError(errno.EINVAL, "negative offset")
            f = self.opened(req.fd)
            fips = self.options.fips_mode_rchecksum
            weak, strong, zero = await self.work(checksums, f, req.offset, req.size, fips)
        except OSError as error:
            raise self.failed(req, error) from error
        answers: dict[bytes, object] = {}
        if fips:
            answers[FIPS_RCHECKSUM] = 1
        if CHECK_ZERO_FILLED in req.xdata and zero:
            answers[BUF_HAS_ZEROES] = uint(1)
        return RchecksumReply(
            flags=1 if fips else 0, weak=weak, strong=strong, xdata=Xdata(answers) if answers else EMPTY
        )


def checksums(f: OpenFile, offset: int, size: int, fips: bool) -> tuple[int, bytes, bool]:
    """Return (weak, strong, all zero) of what a file holds in a range, read a piece at a time."""
    weak = 0
    strong = hashlib.sha256() if fips else hashlib.md5(usedforsecurity=False)
    zero = True
    while size:
        data = os.pread(f.fd, min(size, _CHUNK), offset)
        if not data:
            break
        weak = zlib.adler32(data, weak)
        strong.update(data)
        zero = zero and not data.strip(b"\0")
        offset += len(data)
        size -= len(data)
    return weak, strong.digest(), zero


def _copy(source: OpenFile, target: OpenFile, size: int, offset_in: int, offset_out: int) -> int:
    return os.copy_file_range(source.fd, target.fd, size, offset_in, offset_out)


def _hold(f: OpenFile, call: Callable[..., Any], *args: Any) -> None:
    """Call with a descriptor that stays open meanwhile."""
    call(*args)


def _step(steps: Generator[int, None, None], f: OpenFile) -> bool:
    """Do one step; False when there are no more."""
    return next(steps, None) is not None
