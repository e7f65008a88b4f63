"""The file behind a logical unit, as SCSI commands want it: ranges of bytes, done by fops on the graph below."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from glustx.errors import FopError
from glustx.fops import (
    CopyFileRange,
    Discard,
    Fallocate,
    Fgetxattr,
    Finodelk,
    Fremovexattr,
    Fsetxattr,
    Fstat,
    Fsync,
    Getxattr,
    Lookup,
    Open,
    Rchecksum,
    Read,
    Release,
    Seek,
    Statfs,
    Write,
    Zerofill,
)
from glustx.inode import Fd
from glustx.runtime import Waiter, shield, spawn
from glustx.scsi.brick import limits_of, over_network
from glustx.scsi.task import Piece
from glustx.values import (
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    ROOT_GFID,
    ROOT_LOC,
    SEEK_DATA,
    SEEK_HOLE,
    Caller,
    Flock,
    Iatt,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xlator import Wind

log = logging.getLogger("glustx.scsi")

O_RDONLY, O_RDWR = 0, 2
_ENODATA, _ENXIO = 61, 6
_COPY_MAX = 1 << 30  # COPY_FILE_RANGE's size has 32 bits
NEVER = 1 << 63
_DOMAIN = b"glustx.scsi"
_VOLUME_ID = b"trusted.glusterfs.volume-id"


class Usage(msgspec.Struct, frozen=True):
    """Space in bytes: what the file takes, and what its volume has in all, free, and (quota or brick) still to give."""

    used: int
    pool_size: int
    pool_free: int


class Backing:
    """An open file of a volume.

    Every method raises FopError; a range beyond the end of the file is the caller's mistake. Made by `Backing.open`.

    Attributes:
        gfid: of the file, which identifies it within its volume.
        size: bytes; `refresh` renews it.
        limits: of the graph below (see `Xlator.limits`).
        path, volume: for messages.
        remote: whether the data goes over a network.
        volume_id: 16 bytes that are the volume's wherever it is reached from; its name where it has none.
        written: True while there may be writes that `flush` has not made durable.
        fresh: bytes that were written or allocated; it only grows.
        notice, grown: once `fresh` is past `notice`, that is set back to NEVER and `grown` called.
    """

    def __init__(self, child: Wind, fd: Fd, stat: Iatt, caller: Caller, path: str, volume: str) -> None:
        self.child = child
        self.fd = fd
        self.gfid = stat.gfid
        self.size = stat.size
        self.blksize = stat.blksize
        self.blocks = stat.blocks
        self.caller = caller
        self.path = path
        self.volume = volume
        self.volume_id = volume.encode("utf-8", "surrogateescape")
        self.written = False
        self.limits: dict[str, Any] = child.xlator.limits()
        self.fresh = 0
        self.notice = NEVER
        self.grown: Callable[[], None] | None = None
        self._loc = Loc(gfid=stat.gfid)
        self._failed: FopError | None = None
        self.remote = over_network(child.xlator)
        self._locks = True
        self._flushes: list[Waiter[None]] = []
        self._flushing = False

    @classmethod
    async def open(
        cls, child: Wind, path: str, volume: str = "", *, readonly: bool = False, client: str = ""
    ) -> Backing:
        """Open a file by its path from the volume's root; symbolic links are refused (ELOOP), directories too (EISDIR).

        Args:
            child: the graph that holds it.
            path: `/folder/file`.
            volume: for messages.
            readonly: open without the right to write.
            client: whose fds and locks these are, as `Caller.client`.
        """
        caller = Caller(client=client, lk_owner=b"glustx-scsi")
        parent: bytes = ROOT_GFID
        stat: Iatt | None = None
        for name in path.encode("utf-8", "surrogateescape").split(b"/"):
            if name in (b"", b"."):
                continue
            if name == b"..":
                raise FopError(errno.EINVAL, f"{path}: .. has no place in it")
            if stat is not None and not stat.is_dir():
                raise FopError(errno.ENOTDIR, path)
            loc = Loc(pargfid=parent, name=name, path=path.encode("utf-8", "surrogateescape"))
            try:
                stat = (await child(Lookup(loc=loc, caller=caller))).stat
            except FopError as error:
                if error.errno != _ENODATA:
                    raise
                # It has no gfid: it was put there behind the brick's back.
                gfid_req = Xdata({GFID_REQ: gfuuid(new_gfid())})
                stat = (await child(Lookup(loc=loc, xdata=gfid_req, caller=caller))).stat
            parent = stat.gfid
        if stat is None or stat.is_dir():
            raise FopError(errno.EISDIR, path)
        if stat.is_lnk():
            raise FopError(errno.ELOOP, f"{path} is a symbolic link")
        flags = O_RDONLY if readonly else O_RDWR
        fd = Fd(stat.gfid, flags, client=client)
        await child(Open(loc=Loc(gfid=stat.gfid), fd=fd, flags=flags, caller=caller))
        backing = cls(child, fd, stat, caller, path, volume)
        try:
            reply = await child(Getxattr(ROOT_LOC, _VOLUME_ID, caller=caller))
        except FopError:
            pass  # a volume in memory has none
        else:
            backing.volume_id = reply.xattrs.get(_VOLUME_ID, backing.volume_id)
        backing.limits = await limits_of(child, backing._loc, caller)
        return backing

    async def close(self) -> None:
        """Give the fd back."""
        await self.child(Release(fd=self.fd, caller=self.caller))

    async def refresh(self) -> Iatt:
        """Read the file's attributes anew and return them."""
        stat: Iatt = (await self.child(Fstat(fd=self.fd, caller=self.caller))).stat
        self.size, self.blocks = stat.size, stat.blocks
        return stat

    async def read(self, offset: int, size: int) -> Piece:
        """Return exactly `size` bytes; what lies beyond the end of a file that has shrunk reads as zeroes."""
        data: Piece = (await self.child(Read(self.fd, offset, size, caller=self.caller))).data
        if len(data) < size:
            return await self._rest(offset, size, data)
        return data

    async def _rest(self, offset: int, size: int, data: Piece) -> Piece:
        parts = [data]
        got = len(data)
        while got < size:
            more = (await self.child(Read(self.fd, offset + got, size - got, caller=self.caller))).data
            if not len(more):
                parts.append(bytes(size - got))
                break
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    async def write(self, offset: int, data: Piece, durable: bool = False) -> None:
        """Write all of `data`; with `durable` it is on stable storage afterwards."""
        size = len(data)
        self.written = True
        self.fresh += size
        done = (await self.child(Write(self.fd, offset, data, caller=self.caller))).count
        while done < size:
            rest = memoryview(data)[done:]
            count = (await self.child(Write(self.fd, offset + done, rest, caller=self.caller))).count
            if not count:
                raise FopError(errno.EIO, f"{self.path}: a write of {len(rest)} bytes wrote nothing")
            done += count
        self.written = True  # again, since a flush that has ended meanwhile may have missed it
        if self.fresh > self.notice:
            self._grow()
        if durable:
            await self.flush()

    def _grow(self) -> None:
        if self.fresh > self.notice:
            self.notice = NEVER
            if self.grown is not None:
                self.grown()

    async def zero(self, offset: int, size: int, durable: bool = False) -> None:
        """Make a range read as zeroes, keeping it allocated where the brick can (ZEROFILL)."""
        self.written = True
        self.fresh += size
        await self.child(Zerofill(self.fd, offset, size, caller=self.caller))
        self.written = True
        self._grow()
        if durable:
            await self.flush()

    async def discard(self, offset: int, size: int) -> None:
        """Give the space of a range back; it reads as zeroes (DISCARD)."""
        self.written = True
        await self.child(Discard(self.fd, offset, size, caller=self.caller))
        self.written = True

    async def allocate(self, offset: int, size: int) -> None:
        """Take the space of a range; what it holds stays (FALLOCATE)."""
        self.fresh += size
        await self.child(Fallocate(self.fd, offset, size, 1, caller=self.caller))

    async def flush(self) -> None:
        """Make all that was written durable. After a failure every further flush fails as well: what the brick could
        not write is lost, and a later success would hide it.

        One FSYNC is under way at a time, and serves all who came before it began.
        """
        if self._failed is not None:
            raise self._failed
        waiter: Waiter[None] = Waiter()
        self._flushes.append(waiter)
        if not self._flushing:
            self._flushing = True
            spawn(self._flush())
        await waiter

    async def _flush(self) -> None:
        try:
            while self._flushes:
                waiters, self._flushes = self._flushes, []
                try:
                    await self._fsync()
                except BaseException as error:
                    for waiter in waiters:
                        waiter.fail(error)
                else:
                    for waiter in waiters:
                        waiter.set(None)
        finally:
            self._flushing = False

    async def _fsync(self) -> None:
        if self._failed is not None:
            raise self._failed
        self.written = False
        try:
            await self.child(Fsync(self.fd, 1, caller=self.caller))
        except FopError as error:
            self.written = True
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                self._failed = error
            raise

    async def checksum(self, offset: int, size: int) -> tuple[int, bytes]:
        """Return the weak and the strong checksum of a range, made where the data is (RCHECKSUM)."""
        reply = await self.child(Rchecksum(self.fd, offset, size, caller=self.caller))
        return reply.weak, reply.strong

    async def seek(self, offset: int, what: int) -> int | None:
        """Return where the next data (SEEK_DATA) or hole (SEEK_HOLE) at or behind `offset` begins; None for no more."""
        try:
            found: int = (await self.child(Seek(self.fd, offset, what, caller=self.caller))).offset
        except FopError as error:
            if error.errno == _ENXIO:
                return None
            raise
        return found

    async def extent(self, offset: int, end: int) -> tuple[int, bool]:
        """Return (where the extent that holds `offset` ends, at most `end`; whether it holds data).

        Where the graph cannot tell (EINVAL, EOPNOTSUPP) all is data.
        """
        try:
            data = await self.seek(offset, SEEK_DATA)
            if data is None or data >= end:
                return end, False
            if data > offset:
                return data, False
            hole = await self.seek(offset, SEEK_HOLE)
        except FopError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return end, True
            raise
        return min(hole if hole is not None else end, end), True

    async def copy_from(self, source: Backing, source_offset: int, offset: int, size: int) -> None:
        """Copy a range of another file of the same volume on the brick (COPY_FILE_RANGE); EXDEV for another volume."""
        if source.child.xlator is not self.child.xlator:
            raise FopError(errno.EXDEV, f"{source.volume}:{source.path} and {self.volume}:{self.path}")
        self.written = True
        self.fresh += size
        done = 0
        while done < size:
            count = min(size - done, _COPY_MAX)
            request = CopyFileRange(source.fd, self.fd, source_offset + done, offset + done, count, caller=self.caller)
            copied = (await self.child(request)).count
            if not copied:
                raise FopError(errno.EIO, f"{self.path}: a copy of {count} bytes copied nothing")
            done += copied
        self.written = True
        self._grow()

    async def usage(self) -> Usage:
        """Return how much space the file takes and what is left."""
        stat = await self.refresh()
        figures = (await self.child(Statfs(loc=self._loc, caller=self.caller))).statfs
        unit = figures.frsize or figures.bsize
        return Usage(stat.blocks * 512, figures.blocks * unit, figures.bavail * unit)

    async def get_record(self, key: str) -> bytes | None:
        """Return an xattr of the file, None when there is none."""
        name = key.encode()
        try:
            reply = await self.child(Fgetxattr(self.fd, name, caller=self.caller))
        except FopError as error:
            if error.errno == _ENODATA:
                return None
            raise
        value: bytes = reply.xattrs[name]
        return value

    async def set_record(self, key: str, value: bytes | None) -> None:
        """Keep an xattr (None removes it); it is durable afterwards."""
        if value is None:
            try:
                await self.child(Fremovexattr(self.fd, key.encode(), caller=self.caller))
            except FopError as error:
                if error.errno != _ENODATA:
                    raise
        else:
            await self.child(Fsetxattr(self.fd, Xdata({key.encode(): value}), caller=self.caller))
        await self.child(Fsync(self.fd, 0, caller=self.caller))

    @asynccontextmanager
    async def locked(self, offset: int, size: int) -> AsyncIterator[None]:
        """Hold a range against all other gateways (inodelk); size 0 reaches to the end."""
        flock = Flock(F_WRLCK, start=offset, len=size, lk_owner=self.caller.lk_owner)
        await self.child(Finodelk(self.fd, _DOMAIN, F_SETLKW, F_WRLCK, flock, caller=self.caller))
        try:
            yield
        finally:
            await shield(self._unlock(flock))

    async def _unlock(self, flock: Flock) -> None:
        free = msgspec.structs.replace(flock, type=F_UNLCK)
        try:
            await self.child(Finodelk(self.fd, _DOMAIN, F_SETLKW, F_UNLCK, free, caller=self.caller))
        except FopError as error:
            # What was done under it is done, and a lock that cannot be given back has gone with its connection.
            log.warning("%s:%s: a lock could not be given back: %s", self.volume, self.path, error)

    @asynccontextmanager
    async def alone(self, offset: int, size: int) -> AsyncIterator[None]:
        """`locked` where the graph knows locks; where it does not, no other gateway reaches the file."""
        async with AsyncExitStack() as held:
            if self._locks:
                try:
                    await held.enter_async_context(self.locked(offset, size))
                except FopError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                        raise
                    self._locks = False
            yield
