"""An open file as coroutines: positional and sequential I/O, space, holes, locks, attributes by fd."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from glustx.errors import FopError
from glustx.fops import (
    CopyFileRange,
    Discard,
    Fallocate,
    Fgetxattr,
    Flush,
    Fop,
    Fremovexattr,
    Fsetattr,
    Fsetxattr,
    Fstat,
    Fsync,
    Ftruncate,
    Lk,
    Read,
    Release,
    Seek,
    Write,
    Zerofill,
)
from glustx.gfapi import leases
from glustx.gfapi.attrs import (
    Buffer,
    fitting,
    list_names,
    mode_change,
    owner_change,
    time_change,
    xattr_flags,
    xattr_name,
    xattr_value,
)
from glustx.gfapi.flags import O_APPEND
from glustx.gfapi.results import LockInfo, StatResult
from glustx.gfapi.session import Session
from glustx.inode import O_ACCMODE, Fd
from glustx.runtime import Lock, fan_out
from glustx.values import (
    F_GETLK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    SEEK_DATA,
    SEEK_HOLE,
    Caller,
    Flock,
    Loc,
)
from glustx.xdata import AS_MANDATORY, EMPTY, Xdata

CHUNK = 1 << 20
WINDOW = 4
_OFF_MAX = (1 << 63) - 1
_PUNCH_HOLE, _ZERO_RANGE = 0x3, 0x10
_LINE = 4096


class Holders:
    """How many handles share one fd: it is released with the last of them."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


async def _refuse(request: Fop) -> NoReturn:
    raise FopError(errno.EBADF, "I/O operation on closed file")


class FileCore:
    """An open file of one session. Its own lk_owner makes its locks belong to it, as OFD locks do.

    Args:
        fd: open.
        flags: Linux open flags.
        path: as the user gave it.
    """

    open = False

    def __init__(
        self,
        session: Session,
        caller: Caller,
        fd: Fd,
        flags: int,
        path: object,
        holders: Holders | None = None,
    ) -> None:
        self.session = session
        self.top: Callable[[Fop], Coroutine[Any, Any, Any]] = session.top
        self.caller = caller
        self.fd = fd
        self.flags = flags
        self.path = path
        self.pos = 0
        self._turnstile = Lock()
        self._owner: Caller | None = None
        self._lease: leases.Held | None = None
        self._inode = session.hold(fd)
        self._holders = holders or Holders()
        self._holders.count += 1
        self.open = True

    async def dup(self) -> FileCore:
        """Return another handle on the same open file, with a position and locks of its own; it starts at 0."""
        return FileCore(self.session, self.caller, self.fd, self.flags, self.path, self._holders)

    def lock_owner(self) -> Caller:
        """The caller with this file's own lk_owner."""
        if self._owner is None:
            who = self.caller
            self._owner = Caller(who.pid, who.uid, who.gid, who.groups, os.urandom(8), who.client)
        return self._owner

    # -- data --------------------------------------------------------------------------------------------------------

    async def _one(self, size: int, offset: int) -> bytes:
        reply = await self.top(Read(fd=self.fd, offset=offset, size=size, caller=self.caller))
        return bytes(reply.data)

    async def _several(self, size: int, offset: int) -> list[bytes]:
        """Read up to WINDOW chunks side by side; what comes is contiguous, and an empty list at the end of the file."""
        steps = [min(CHUNK, size - at) for at in range(0, min(size, WINDOW * CHUNK), CHUNK)]
        found: list[bytes] = []
        for index, outcome in enumerate(
            await fan_out([self._one(step, offset + index * CHUNK) for index, step in enumerate(steps)])
        ):
            data = outcome.get()
            if data:
                found.append(data)
            if len(data) < steps[index]:
                break
        return found

    async def pread(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset` without moving the position; fewer only at the end of the file."""
        _check(size, offset)
        if size <= CHUNK:
            reply = await self.top(Read(fd=self.fd, offset=offset, size=size, caller=self.caller))
            data = bytes(reply.data)
            if len(data) == size or not data or reply.eof:
                return data
            return data + await self.pread(size - len(data), offset + len(data))
        parts: list[bytes] = []
        got = 0
        while got < size and (found := await self._several(size - got, offset + got)):
            parts.extend(found)
            got += sum(map(len, found))
        return b"".join(parts)

    async def preadinto(self, buffer: Buffer, offset: int) -> int:
        """Read into `buffer` from `offset` without moving the position; return how many bytes came."""
        view = memoryview(buffer).cast("B")
        size = len(view)
        if size <= CHUNK:
            data = await self.pread(size, offset)
            view[: len(data)] = data
            return len(data)
        _check(size, offset)
        got = 0
        while got < size and (found := await self._several(size - got, offset + got)):
            for data in found:
                view[got : got + len(data)] = data
                got += len(data)
        return got

    async def pwrite(self, data: Buffer, offset: int) -> int:
        """Write `data` at `offset` without moving the position; return how many bytes were written.

        Fewer than all only when a later part failed; the next call then raises the reason.
        """
        view = memoryview(data).cast("B")
        size = len(view)
        _check(size, offset)
        done, _ = await self._write(view, offset)
        return done

    async def _write(self, view: memoryview, offset: int, flags: int = 0) -> tuple[int, int]:
        """Return how much was written and the file's size after it."""
        size, done, end = len(view), 0, 0
        while True:
            part = view[done : done + CHUNK] if size > CHUNK else view
            try:
                reply = await self.top(
                    Write(fd=self.fd, offset=offset + done, data=part, flags=flags, caller=self.caller)
                )
            except FopError:
                if done:
                    return done, end
                raise
            done += reply.count
            end = reply.post.size
            if done >= size or not reply.count:
                return done, end

    async def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes at the position and move it; all that is left when `size` is negative."""
        async with self._turnstile:
            if size < 0:
                data = await self._read_all()
            else:
                data = await self.pread(size, self.pos)
            self.pos += len(data)
            return data

    async def _read_all(self) -> bytes:
        parts: list[bytes] = []
        pos = self.pos
        while found := await self._several(WINDOW * CHUNK, pos):
            parts.extend(found)
            pos += sum(map(len, found))
        return b"".join(parts)

    async def readinto(self, buffer: Buffer) -> int:
        """Read into `buffer` at the position and move it; return how many bytes came."""
        async with self._turnstile:
            count = await self.preadinto(buffer, self.pos)
            self.pos += count
            return count

    async def write(self, data: Buffer, flags: int = 0) -> int:
        """Write `data` at the position (at the end in append mode) and move it; return how many bytes were written."""
        async with self._turnstile:
            done, end = await self._write(memoryview(data).cast("B"), self.pos, flags)
            self.pos = end if self.flags & O_APPEND else self.pos + done
            return done

    async def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position and return it.

        Args:
            whence: os.SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE; OSError ENXIO when there is no more data.
        """
        async with self._turnstile:
            if whence == os.SEEK_SET:
                new = offset
            elif whence == os.SEEK_CUR:
                new = self.pos + offset
            elif whence == os.SEEK_END:
                new = (await self._stat()).st_size + offset
            elif whence == getattr(os, "SEEK_DATA", 3):
                new = await self.seek_data(offset)
            elif whence == getattr(os, "SEEK_HOLE", 4):
                new = await self.seek_hole(offset)
            else:
                raise FopError(errno.EINVAL, f"whence {whence}")
            if not 0 <= new <= _OFF_MAX:
                raise FopError(errno.EINVAL, f"position {new}")
            self.pos = new
            return new

    async def seek_data(self, offset: int) -> int:
        """Return where data begins at or behind `offset`; OSError ENXIO when there is none."""
        return await self._seek(offset, SEEK_DATA)

    async def seek_hole(self, offset: int) -> int:
        """Return where a hole (or the end of the file) begins at or behind `offset`; OSError ENXIO past the end."""
        return await self._seek(offset, SEEK_HOLE)

    async def _seek(self, offset: int, what: int) -> int:
        if offset < 0:
            raise FopError(errno.ENXIO, f"offset {offset}")
        reply = await self.top(Seek(fd=self.fd, offset=offset, what=what, caller=self.caller))
        return int(reply.offset)

    async def readline(self, size: int = -1) -> bytes:
        """Read to the end of a line, and not more than `size` bytes when that is not negative."""
        async with self._turnstile:
            parts: list[bytes] = []
            while size:
                step = _LINE if size < 0 else min(_LINE, size)
                data = await self.pread(step, self.pos)
                line = data[: data.find(b"\n") + 1] or data
                parts.append(line)
                self.pos += len(line)
                size -= len(line) if size > 0 else 0
                if line.endswith(b"\n") or len(data) < step:
                    break
            return b"".join(parts)

    # -- size and space ----------------------------------------------------------------------------------------------

    async def truncate(self, size: int | None = None) -> int:
        """Set the file's size (to the position when `size` is None) and return it."""
        new = self.pos if size is None else size
        _check(0, new)
        await self.top(Ftruncate(fd=self.fd, offset=new, caller=self.caller))
        return new

    async def zerofill(self, offset: int, length: int) -> None:
        """Make [offset, offset + length) read as zeroes without sending them; the file grows to hold the range.

        The brick does it by the fastest way its file system has; the space is allocated. The position stays.

        Raises:
            OSError: EINVAL for an empty or negative range, EFBIG, ENOSPC (size and free space are then as before),
                EBADF when the file is not open for writing.
        """
        _check(length, offset)
        await self.top(Zerofill(fd=self.fd, offset=offset, size=length, caller=self.caller))

    async def discard(self, offset: int, length: int) -> None:
        """Give the space of [offset, offset + length) back; it reads as zeroes, the size stays."""
        _check(length, offset)
        await self.top(Discard(fd=self.fd, offset=offset, size=length, caller=self.caller))

    async def fallocate(self, mode: int, offset: int, length: int) -> None:
        """Allocate, punch or zero [offset, offset + length), as fallocate(2) does.

        Args:
            mode: 0, FALLOC_FL_KEEP_SIZE (1), KEEP_SIZE with PUNCH_HOLE (3), or ZERO_RANGE (16).

        Raises:
            OSError: EOPNOTSUPP for another mode; EINVAL, EFBIG, ENOSPC, EBADF.
        """
        if mode in (0, 1):
            await self.allocate(offset, length, keep_size=bool(mode))
        elif mode == _PUNCH_HOLE:
            await self.discard(offset, length)
        elif mode == _ZERO_RANGE:
            await self.zerofill(offset, length)
        else:
            raise FopError(errno.EOPNOTSUPP, f"fallocate mode {mode:#x}")

    async def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None:
        """Allocate space for [offset, offset + length); the file grows to hold it unless `keep_size`."""
        _check(length, offset)
        request = Fallocate(fd=self.fd, offset=offset, size=length, keep_size=int(keep_size), caller=self.caller)
        await self.top(request)

    async def copy_range(self, target: FileCore, count: int, offset: int, target_offset: int) -> int:
        """Copy `count` bytes at `offset` to `target_offset` of another open file on the brick; return how many were
        copied, fewer than asked at the end of this file."""
        _check(count, offset)
        _check(count, target_offset)
        if target.session is not self.session:
            raise FopError(errno.EXDEV, "the files are of two volumes")
        done = 0
        while done < count:
            step = min(1 << 30, count - done)
            reply = await self.top(
                CopyFileRange(
                    fd_in=self.fd,
                    fd_out=target.fd,
                    offset_in=offset + done,
                    offset_out=target_offset + done,
                    size=step,
                    caller=self.caller,
                )
            )
            if not reply.count:
                break
            done += reply.count
        return done

    async def size(self) -> int:
        """Return the size in bytes."""
        return (await self._stat()).st_size

    async def fdatasync(self) -> None:
        """Make the data durable, and of the attributes only what reading it needs."""
        await self.fsync(data_only=True)

    async def fsync(self, *, data_only: bool = False) -> None:
        """Make what was written durable; `data_only` leaves out what reading does not need."""
        await self.top(Fsync(fd=self.fd, datasync=int(data_only), caller=self.caller))

    # -- attributes --------------------------------------------------------------------------------------------------

    async def _stat(self) -> StatResult:
        return StatResult((await self.top(Fstat(fd=self.fd, caller=self.caller))).stat)

    async def stat(self) -> StatResult:
        """Return the file's attributes."""
        return await self._stat()

    async def _setattr(self, change: tuple[object, int]) -> None:
        stat, valid = change
        await self.top(Fsetattr(fd=self.fd, stat=stat, valid=valid, caller=self.caller))  # type: ignore[arg-type]

    async def chmod(self, mode: int) -> None:
        """Set the permission bits."""
        await self._setattr(mode_change(mode))

    async def chown(self, uid: int, gid: int) -> None:
        """Set owner and group; -1 leaves one as it is."""
        await self._setattr(owner_change(uid, gid))

    async def utime(self, times: tuple[float, float] | None = None, *, ns: tuple[int, int] | None = None) -> None:
        """Set access and modification time, in seconds or nanoseconds; to now without either."""
        await self._setattr(time_change(times, ns))

    async def getxattr(self, key: str | bytes, size: int = 0) -> bytes:
        """Return the value of an extended attribute."""
        raw = xattr_name(key)
        reply = await self.top(Fgetxattr(fd=self.fd, key=raw, caller=self.caller))
        if raw not in reply.xattrs:
            raise FopError(errno.ENODATA, f"no xattr {raw!r}")
        return fitting(bytes(reply.xattrs[raw]), size)

    async def setxattr(self, key: str | bytes, value: str | Buffer, flags: int = 0) -> None:
        """Set an extended attribute; `flags` 1 (os.XATTR_CREATE) or 2 (os.XATTR_REPLACE) as for a path."""
        xattrs = Xdata({xattr_name(key): xattr_value(value)})
        await self.top(Fsetxattr(fd=self.fd, xattrs=xattrs, flags=xattr_flags(flags), caller=self.caller))

    async def removexattr(self, key: str | bytes) -> None:
        """Remove an extended attribute; OSError ENODATA when there is none."""
        await self.top(Fremovexattr(fd=self.fd, key=xattr_name(key), caller=self.caller))

    async def listxattr(self, size: int = 0) -> list[str]:
        """Return the names of the extended attributes, sorted; OSError ERANGE when they take more than `size` bytes."""
        return list_names(await self.top(Fgetxattr(fd=self.fd, caller=self.caller)), size)

    # -- locks -------------------------------------------------------------------------------------------------------

    async def _lk(self, command: int, kind: int, start: int, length: int, asked: Xdata = EMPTY) -> Flock:
        _check(length, start)
        who = self.lock_owner()
        flock = Flock(type=kind, start=start, len=length, pid=who.pid, lk_owner=who.lk_owner)
        request = Lk(fd=self.fd, cmd=command, type=kind, flock=flock, caller=who, xdata=asked)
        answer: Flock = (await self.top(request)).flock
        return answer

    async def lock(
        self,
        *,
        exclusive: bool = True,
        blocking: bool = True,
        start: int = 0,
        length: int = 0,
        mandatory: bool = False,
    ) -> None:
        """Lock a range of bytes against other files, in this process and on other machines.

        Args:
            exclusive: a write lock, which needs the file open for writing; else a read lock, shared with others.
            blocking: wait for it; else OSError EAGAIN (BlockingIOError) when another one is in the way.
            start, length: the range; length 0 reaches to the end, however far the file grows.
            mandatory: what others read or write there waits as well, where the volume has mandatory locking "optimal".
        """
        self.caller = self.lock_owner()  # its locks shall not forbid its own reads and writes
        asked = AS_MANDATORY if mandatory else EMPTY
        await self._lk(F_SETLKW if blocking else F_SETLK, F_WRLCK if exclusive else F_RDLCK, start, length, asked)

    async def unlock(self, start: int = 0, length: int = 0) -> None:
        """Give a range back that was locked."""
        await self._lk(F_SETLK, F_UNLCK, start, length)

    async def test_lock(self, *, exclusive: bool = True, start: int = 0, length: int = 0) -> LockInfo | None:
        """Return the lock that stands in the way of one, or None when it would be granted."""
        found = await self._lk(F_GETLK, F_WRLCK if exclusive else F_RDLCK, start, length)
        return None if found.type == F_UNLCK else LockInfo(found)

    # -- leases ------------------------------------------------------------------------------------------------------

    async def lease(
        self, *, exclusive: bool = True, lease_id: bytes | None = None, recalled: Callable[[], object] | None = None
    ) -> None:
        """Take a lease: until it is recalled nobody else changes the file, nor, when it is `exclusive`, reads it.

        Others wait for it from the moment on that it is recalled, and for as long as the brick is patient (a minute,
        by default); then it is gone. It is also gone when the connection to the brick is. `close` gives it back.

        Args:
            exclusive: a lease to read and write; else one to read, shared with others.
            lease_id: 16 bytes that name it, of which stock's bricks take those up to the first zero, which there must
                be; by default random ones. What other open files do conflicts with it, also those of this program,
                unless they have a lease of the same id.
            recalled: called once when it has to be given back or is lost, in the midst of the volume's work: it may
                set an event or the like, and must neither wait nor use the volume.

        Raises:
            OSError: EPERM when others have a lease, or the file open, that forbids it; ENOSYS when the brick has
                leases off; EBUSY when this file holds one already.
        """
        if self._lease is not None:
            raise FopError(errno.EBUSY, "the file has a lease")
        held = await leases.take(self, exclusive, lease_id, recalled)
        self._lease = held
        self.top = leases.marking(self.session.top, held.id)

    async def unlease(self) -> None:
        """Give the lease back; without one nothing happens."""
        held, self._lease = self._lease, None
        if held is not None:
            self.top = self.session.top
            await leases.give_back(self, held, self.top)

    async def test_lease(self) -> tuple[bool, bool]:
        """Return whether anybody, this file included, holds a lease to read, and whether one to read and write."""
        return await leases.ask(self)

    # -- end ---------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the file; a second call does nothing.

        The locks and the lease of this object are free when it returns. What was written is with the brick since
        `write` returned; to have it on disk is what `fsync` is for.
        """
        if not self.open:
            return
        top, self.open, self.top = self.top, False, _refuse
        flush = Flush(fd=self.fd, caller=self._owner or self.caller)
        error: BaseException | None = None
        try:
            if self.session.mounted and self._owner is not None:
                await top(flush)
        finally:
            wants_flush = flush if self._owner is None and self.flags & O_ACCMODE else None
            if self._lease is not None and self.session.mounted:
                # Whoever wants one next finds this file not only without its lease, but not open either.
                self._holders.count -= 1
                await self._release(wants_flush, last=not self._holders.count)
            else:
                error = self._let_go(wants_flush)
        if error is not None:
            raise error

    def give_back(self) -> None:
        """Let go of the fd; nobody waits for the answer."""
        self.open = False
        self.top = _refuse
        self._let_go(None)

    def _let_go(self, flush: Flush | None) -> BaseException | None:
        self._holders.count -= 1
        if not self.session.mounted:
            return None
        return self.session.aside(self._release(flush, last=not self._holders.count))

    def __del__(self) -> None:
        # The outcome of a call that was interrupted, or cancelled, in the very moment it ended reaches nobody.
        if self.open and self.session.mounted:
            try:
                self.session.reactor.post(self.give_back)
            except RuntimeError:
                pass  # the volume or its loop is closed, and its fds with it

    async def _release(self, flush: Flush | None, last: bool) -> None:
        top = self.session.top
        held, self._lease = self._lease, None
        try:
            if flush is not None:
                # No translator of a client holds writes back, so nobody waits for it; stock's bricks may act on it.
                await (leases.marking(top, held.id) if held is not None else top)(flush)
        finally:
            try:
                if last:
                    await top(Release(fd=self.fd, caller=self.caller))
                if held is not None:
                    await leases.give_back(self, held, top)
            finally:
                self.session.graph.inodes.drop(self._inode)

    def loc(self) -> Loc:
        """The inode's loc."""
        return Loc(gfid=self.fd.gfid)

    async def send(self, request: Fop) -> object:
        """Send any fop and return its reply: for what has no method of its own."""
        return await self.top(request)


def _check(size: int, offset: int) -> None:
    if size < 0 or offset < 0:
        raise FopError(errno.EINVAL, f"range of {size} bytes at {offset}")
    if offset > _OFF_MAX or size > _OFF_MAX:
        raise FopError(errno.EFBIG, f"range of {size} bytes at {offset}")
