"""Open files of storage/posix: OPEN, READ, WRITE, FLUSH, FSYNC, RELEASE and STATFS.

A system call that the page cache answers runs on the reactor's thread, since handing it to a worker would cost more
than the call. What can really block goes to a worker: fsync, O_SYNC writes, large writes (and for a while all of them,
once one was throttled), reads that miss the cache, and what goes around it (`posix_direct`). How a file's reads fare is
learned per descriptor: RWF_NOWAIT asks while it is not known, hits make it "warm" (plain pread, timed), a miss sends
the next reads to a worker without asking, because asking starts the disk's read as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from glustx import fops
from glustx.fops import Done, Fop, PrePost, ReadReply, StatfsReply, WriteReply
from glustx.inode import Fd
from glustx.runtime import Lock, shield
from glustx.values import Iatt, Statvfs
from glustx.xdata import (
    EMPTY,
    OPEN_ACTIVE_FD_COUNT,
    OPEN_FD_COUNT,
    WRITE_IS_APPEND,
    WRITE_UPDATE_ATOMIC,
    Xdata,
    uint,
)
from glustx.xlators.storage.posix_attr import STAMP_DATA
from glustx.xlators.storage.posix_direct import read_direct, write_direct
from glustx.xlators.storage.posix_names import PosixNames
from glustx.xlators.storage.posix_object import (
    Obj,
    OpenFile,
)
from glustx.xlators.storage.posix_reserve import reserved_blocks

T = TypeVar("T")

INLINE_WRITE = 1 << 20
# An inline write that took longer (ns) met the kernel's throttling of dirty pages: the next ones go to a worker.
_SLOW_WRITE = 5_000_000
_SLOW_RUN = 64
READ_MAX = 128 << 20
_WARM = 4
_COLD_RUN = 64
# A read from the page cache takes less: so many ns plus one for every two bytes.
_SLOW_READ = 50_000
_ALONE = 8
_PROBE_EVERY = 16
_SYNC = os.O_SYNC | os.O_DSYNC
_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
# Freeing more than this takes milliseconds, more so when it is dirty.
INLINE_FREE = 4 << 20


class PosixData(PosixNames):
    """The fops on open files that are called often."""

    def _init_data(self) -> None:
        self._nowait = bool(_RWF_NOWAIT)
        self._reads_out = 0
        self._alone = 0
        self._inline_reads = 0
        self._inline_write = INLINE_WRITE
        self._slow_writes = 0

    async def work(self, function: Callable[..., T], *args: Any) -> T:
        """Run a system call on a worker; its arguments stay alive until it ends, even when the fop is cancelled."""
        result: T = await self.graph.workers.submit(self.graph.reactor, function, *args)
        return result

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, req: fops.Open) -> Done:
        """OPEN a regular file.

        Raises FopError: EISDIR, ELOOP for a symlink, EINVAL for a special file.
        """
        try:
            obj, st = self.find(req.loc.gfid)
            if not stat.S_ISREG(st.st_mode):
                kinds = {stat.S_IFDIR: errno.EISDIR, stat.S_IFLNK: errno.ELOOP}
                raise OSError(kinds.get(stat.S_IFMT(st.st_mode), errno.EINVAL), "not a regular file")
            flags = self.open_flags(req.flags) | os.O_NOFOLLOW
            if req.flags & os.O_TRUNC:
                flags |= os.O_TRUNC
            number = os.open(obj.path, flags)
        except OSError as error:
            raise self.failed(req, error) from error
        self.bind(req.fd, self.held(number, obj, req.flags))
        if req.flags & os.O_TRUNC and st.st_size:
            self.touch(req, obj, st, STAMP_DATA)
            self.settle(obj, os.fstat(number))
        return Done()

    def bind(self, fd: Fd, f: OpenFile) -> None:
        """Put a descriptor behind an fd of the graph and count it."""
        f.obj.fds += 1
        fd.slots[self._fds] = f
        fd.gfid = f.obj.gfid

    async def release(self, req: fops.Release) -> Done:
        """RELEASE: the last fd of a file without names takes its data along."""
        f = self._fds.pop(req.fd)
        if f is None or f.inode is None:
            return Done()
        obj = f.obj
        obj.fds -= 1
        obj.plan = None
        self.graph.inodes.drop(f.inode)
        if obj.gone and not obj.fds:
            try:
                big = os.fstat(f.fd).st_blocks * 512 > INLINE_FREE
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(obj.path)
                self.forget(obj)
                if big:
                    await self.work(_let_go, [f])
            except OSError as error:
                raise self.failed(req, error) from error
        return Done()

    async def flush(self, req: fops.Flush) -> Done:
        """FLUSH: nothing is held back here; the fd must be open."""
        try:
            self.opened(req.fd)
        except OSError as error:
            raise self.failed(req, error) from error
        return Done()

    async def fsync(self, req: fops.Fsync) -> PrePost:
        """FSYNC, on a worker."""
        try:
            f = self.opened(req.fd)
            pre = self.seen(f.obj, os.fstat(f.fd), f.fd)
            await self.work(_sync, f, bool(req.datasync))
            return PrePost(pre=pre, post=self.seen(f.obj, os.fstat(f.fd), f.fd))
        except OSError as error:
            raise self.failed(req, error) from error

    # -- READ ------------------------------------------------------------------------------------------------------

    async def read(self, req: fops.Read) -> ReadReply:
        """READ; `eof` tells that nothing follows the bytes. One read returns at most 128 MiB."""
        size = req.size
        offset = req.offset
        try:
            f: OpenFile = req.fd.slots.get(self._fds) or self.opened(req.fd)
            fd = f.fd
            if size > 1 << 20:
                size = max(0, min(size, os.fstat(fd).st_size - offset, READ_MAX))
            if f.warm >= _WARM:
                began = perf_counter_ns()
                data = os.pread(fd, size, offset)
                if perf_counter_ns() - began > _SLOW_READ + size // 2:
                    f.warm = 0
            else:
                data = await self._read_in_doubt(f, size, offset)
            st = os.fstat(fd)
            obj = f.obj
            stat_ = obj.iatt
            if stat_ is None or st.st_ctime_ns != obj.ctime or stat_.size != st.st_size or stat_.blocks != st.st_blocks:
                stat_ = self.seen(obj, st, fd)
        except (OSError, OverflowError) as error:
            raise self.failed(req, error) from error
        return ReadReply(data=data, stat=stat_, eof=offset + len(data) >= st.st_size)

    async def _read_in_doubt(self, f: OpenFile, size: int, offset: int) -> bytes:
        """Read from a file of which it is not known whether its data is in the page cache."""
        if f.direct >= 0:
            return await self.work(read_direct, f, size, offset)
        if not self._nowait:
            return os.pread(f.fd, size, offset)
        if f.cold:
            f.cold -= 1
        else:
            buffer = bytearray(size)
            try:
                count = os.preadv(f.fd, [buffer], offset, _RWF_NOWAIT)
            except BlockingIOError:
                count = -1
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._nowait = False  # tmpfs
                return os.pread(f.fd, size, offset)
            if count == size or (count >= 0 and offset + count >= os.fstat(f.fd).st_size):
                f.warm += 1
                return bytes(memoryview(buffer)[:count])
            f.cold = _COLD_RUN
        if self._alone >= _ALONE and not self._reads_out:
            # Nobody else has been reading: waiting here costs less than two hand-overs. Now and then look again.
            self._inline_reads += 1
            if self._inline_reads % _PROBE_EVERY:
                return os.pread(f.fd, size, offset)
        self._reads_out += 1
        self._alone = 0 if self._reads_out > 1 else self._alone + 1
        try:
            return await self.work(_pread, f, size, offset)
        finally:
            self._reads_out -= 1

    # -- WRITE -----------------------------------------------------------------------------------------------------

    async def write(self, req: fops.Write) -> WriteReply:
        """WRITE at a position, or at the end on an fd with O_APPEND. A full disk may cut it short, then `count` tells
        how far it got.

        Raises FopError: EBADF for an fd that is open for reading, ENOSPC and EDQUOT when nothing could be written.
        """
        data = req.data
        size = len(data)
        try:
            f: OpenFile = req.fd.slots.get(self._fds) or self.opened(req.fd)
            if size > self._inline_write or f.slow or req.flags & _SYNC or req.xdata is not EMPTY:
                return await shield(self._write_slowly(req, f))
            fd = f.fd
            obj = f.obj
            st = os.fstat(fd)
            pre = obj.iatt
            if pre is None or st.st_ctime_ns != obj.ctime or pre.size != st.st_size or pre.blocks != st.st_blocks:
                pre = self.seen(obj, st, fd)
            if self.low_on_space:
                self.check_range(req, fd, req.offset, size)
            began = perf_counter_ns()
            count = os.pwrite(fd, data, req.offset)
            if count < size:
                count += _pwrite_rest(fd, data, req.offset, count)
            if perf_counter_ns() - began > _SLOW_WRITE:
                self._inline_write, self._slow_writes = 0, _SLOW_RUN
            post = self._written(req, obj, fd, st)
        except (OSError, OverflowError) as error:
            raise self.failed(req, error) from error
        return WriteReply(count=count, pre=pre, post=post)

    def _written(self, req: Fop, obj: Obj, fd: int, st: os.stat_result) -> Iatt:
        """Stamp a file whose data has changed and return its iatt."""
        if self.options.ctime:
            when, flags = (req.ctime, req.stamp & 7) if req.ctime else self.when(req, STAMP_DATA)
            if flags:
                self.stamp(obj, fd, when, flags, st)
        after = os.fstat(fd)
        obj.ctime = after.st_ctime_ns
        obj.plan = None
        return self.iatt(obj, after)

    async def _write_slowly(self, req: fops.Write, f: OpenFile) -> WriteReply:
        """A write that waits for the disk, or whose xdata wants to know more; it always runs to its end."""
        obj = f.obj
        xdata = req.xdata
        alone = f.append or WRITE_UPDATE_ATOMIC in xdata or WRITE_IS_APPEND in xdata
        if alone:
            lock = obj.lock = obj.lock or Lock()
            await lock.acquire()
        try:
            st = os.fstat(f.fd)
            pre = self.seen(obj, st, f.fd)
            offset = st.st_size if f.append else req.offset
            self.check_range(req, f.fd, offset, len(req.data))
            sync = bool(req.flags & _SYNC) and not f.sync
            if sync or f.sync or f.direct >= 0 or len(req.data) > self._inline_write:
                if self._slow_writes:
                    self._slow_writes -= 1
                    if not self._slow_writes:
                        self._inline_write = INLINE_WRITE
                count = await self.work(_pwrite_all, f, req.data, offset, sync)
            else:
                count = _pwrite_all(f, req.data, offset, False)
            post = self._written(req, obj, f.fd, st)
        finally:
            if alone:
                lock.release()
        answers: dict[bytes, object] = {}
        if WRITE_IS_APPEND in xdata:
            answers[WRITE_IS_APPEND] = uint(int(offset == st.st_size))
        for key in (OPEN_FD_COUNT, OPEN_ACTIVE_FD_COUNT):
            if key in xdata:
                answers[key] = uint(obj.fds)
        return WriteReply(count=count, pre=pre, post=post, xdata=Xdata(answers) if answers else EMPTY)

    # -- STATFS ----------------------------------------------------------------------------------------------------

    async def statfs(self, req: fops.Statfs) -> StatfsReply:
        """STATFS of the brick, without its reserve; bricks that share a file system each report their part (option
        shared-brick-count)."""
        try:
            if req.loc.gfid != self._root.obj.gfid:
                self.find(req.loc.gfid)
            figures = os.statvfs(self._root.fd)
        except OSError as error:
            raise self.failed(req, error) from error
        share = max(1, self.options.shared_brick_count)
        free = max(0, figures.f_bfree - reserved_blocks(figures, self.reserve))
        return StatfsReply(
            statfs=Statvfs(
                figures.f_bsize,
                figures.f_frsize,
                figures.f_blocks // share,
                free // share,
                min(figures.f_bavail, free) // share,
                figures.f_files // share,
                figures.f_ffree // share,
                figures.f_favail // share,
                figures.f_fsid & 0xFFFFFFFFFFFFFFFF,
                figures.f_flag,
                figures.f_namemax,
            )
        )


def _pread(f: OpenFile, size: int, offset: int) -> bytes:
    return os.pread(f.fd, size, offset)


def _pwrite_all(f: OpenFile, data: Any, offset: int, sync: bool) -> int:
    count = os.pwrite(f.fd, data, offset) if f.direct < 0 else write_direct(f, data, offset)
    if count < len(data):
        count += _pwrite_rest(f.fd, data, offset, count)
    if sync:
        os.fsync(f.fd)
    return count


def _pwrite_rest(fd: int, data: Any, offset: int, done: int) -> int:
    """Go on with a write that was cut short; return what more was written before it failed again."""
    view = memoryview(data)
    start = done
    while done < len(view):
        try:
            count = os.pwrite(fd, view[done:], offset + done)
        except OSError:
            break
        if not count:
            break
        done += count
    return done - start


def _sync(f: OpenFile, datasync: bool) -> None:
    if datasync:
        os.fdatasync(f.fd)
    else:
        os.fsync(f.fd)


def _let_go(holder: list[OpenFile]) -> None:
    """Drop the last reference to a descriptor here, where freeing its blocks may take its time."""
    holder.clear()
