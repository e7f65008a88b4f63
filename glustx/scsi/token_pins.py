"""Snapshots behind tokens: hidden files that share the blocks of the ranges that a token stands for.

A snapshot is `/.glustx-rod/` and the token's identifier in hex, on the unit's volume; its bytes stand where they stand
in the unit's file, so whole file system blocks are shared. Its xattr `trusted.glustx.scsi-rod` holds what another
gateway would need to honour the token: 4 bytes "GXRD", 2 bytes version, 16 of the SHA-256 of what follows, and a
`Record` in MessagePack. The gateway that made it holds an inodelk on it (domain glustx.scsi-rod); a file that nobody
holds is left over, and is removed when a gateway starts.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from glustx.errors import FopError
from glustx.fops import (
    Create,
    Finodelk,
    Fsetxattr,
    Ftruncate,
    Lookup,
    Mkdir,
    Open,
    Opendir,
    Readdir,
    Release,
    Releasedir,
    Unlink,
)
from glustx.inode import Fd
from glustx.scsi.backing import Backing
from glustx.scsi.task import SIMPLE
from glustx.values import F_SETLK, F_UNLCK, F_WRLCK, NULL_GFID, ROOT_GFID, Caller, Flock, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xlator import Wind

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

FOLDER = b".glustx-rod"
KEY = b"trusted.glustx.scsi-rod"
_DOMAIN = b"glustx.scsi-rod"
_RDWR_CREAT_EXCL = 0o2 | 0o100 | 0o200
_LISTING = 1 << 16


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A token as its snapshot describes it.

    `token` is the SHA-256 of its 512 bytes, `unit` the gfid of the unit's file, `created` in seconds since 1970,
    `inactivity` in seconds, `ranges` pairs of first block and number of blocks.
    """

    token: bytes
    unit: bytes
    block_size: int
    created: int
    inactivity: int
    ranges: tuple[tuple[int, int], ...]

    def encode(self) -> bytes:
        """Return the xattr's value."""
        body = msgspec.msgpack.encode(self)
        return b"GXRD\0\x01" + hashlib.sha256(body).digest()[:16] + body


class Pin:
    """One snapshot: the open file, the name to remove it by, and the owner of the lock that says it is in use."""

    def __init__(self, backing: Backing, loc: Loc) -> None:
        self.backing = backing
        self._loc = loc
        self._owner = secrets.token_bytes(8)
        self._held = False

    async def hold(self) -> None:
        """Say that the file is in use."""
        self._held = await _lock(self.backing.child, self.backing.fd, self.backing.caller, self._owner, F_WRLCK)

    async def drop(self) -> None:
        """Remove the file; a failure is logged, since the next start of a gateway removes it as well."""
        child, fd, caller = self.backing.child, self.backing.fd, self.backing.caller
        try:
            await child(Unlink(loc=self._loc, caller=caller))
            if self._held:
                await _lock(child, fd, caller, self._owner, F_UNLCK)
            await self.backing.close()
        except FopError as error:
            log.warning("%s:%s: a snapshot could not be removed: %s", self.backing.volume, self.backing.path, error)


def can_pin(unit: LogicalUnit) -> bool:
    """Tell whether the unit's brick can share blocks between files."""
    return bool(unit.backing.limits.get("reflink"))


async def pin(unit: LogicalUnit, name: bytes, record: Record) -> Pin:
    """Make the snapshot of a token, with no write of anybody between its ranges.

    Args:
        unit: source.
        name: identifier of the token.
        record: what is written beside it; its ranges are those that are kept.

    Raises FopError; nothing is left behind then.
    """
    made = await _file(unit, name.hex().encode())
    try:
        caller = made.backing.caller
        await made.hold()
        await made.backing.child(Ftruncate(made.backing.fd, unit.backing.size, caller=caller))
        await _share(unit, made.backing, record.ranges)
        await made.backing.child(Fsetxattr(made.backing.fd, Xdata({KEY: record.encode()}), caller=caller))
    except BaseException:
        await made.drop()
        raise
    return made


async def _share(unit: LogicalUnit, snapshot: Backing, ranges: Sequence[tuple[int, int]]) -> None:
    granule = max(int(unit.backing.limits.get("block_size") or 4096), unit.block_size)
    async with held(unit, ranges):
        for lba, count in ranges:
            # Whole blocks of the file system, or nothing would be shared.
            first = (lba << unit.shift) // granule * granule
            end = min(-(-((lba + count) << unit.shift) // granule) * granule, unit.backing.size)
            await snapshot.copy_from(unit.backing, first, first, end - first)


@asynccontextmanager
async def held(unit: LogicalUnit, ranges: Sequence[tuple[int, int]]) -> AsyncIterator[None]:
    """Keep commands from writing to ranges; those that do already have ended."""
    holds = [unit.order.enter(lba, lba + count, False, SIMPLE) for lba, count in ranges]
    try:
        for hold in holds:
            if hold.waiter is not None:
                await hold.waiter
        yield
    finally:
        for hold in holds:
            unit.order.leave(hold)


async def settled(unit: LogicalUnit, ranges: Sequence[tuple[int, int]]) -> None:
    """Wait for the writes to ranges that came before."""
    async with held(unit, ranges):
        pass


async def _file(unit: LogicalUnit, name: bytes) -> Pin:
    child, caller = unit.backing.child, unit.backing.caller
    folder = Loc(pargfid=ROOT_GFID, name=FOLDER, path=b"/" + FOLDER)
    try:
        parent = (await child(Lookup(loc=folder, caller=caller))).stat.gfid
    except FopError as error:
        if error.errno != errno.ENOENT:
            raise
        await child(Mkdir(loc=folder, mode=0o700, caller=caller, xdata=Xdata({GFID_REQ: gfuuid(new_gfid())})))
        parent = (await child(Lookup(loc=folder, caller=caller))).stat.gfid
    path = b"/" + FOLDER + b"/" + name
    loc = Loc(pargfid=parent, name=name, path=path)
    fd = Fd(NULL_GFID, 2, client=caller.client)
    gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
    stat = (await child(Create(loc=loc, fd=fd, flags=_RDWR_CREAT_EXCL, mode=0o600, caller=caller, xdata=gfid))).stat
    return Pin(Backing(child, fd, stat, caller, path.decode(), unit.backing.volume), loc)


async def _lock(child: Wind, fd: Fd, caller: Caller, owner: bytes, kind: int) -> bool:
    """Take or give back the lock of a snapshot; False where the graph has no locks. EAGAIN when it is taken."""
    flock = Flock(kind, start=0, len=0, lk_owner=owner)
    who = msgspec.structs.replace(caller, lk_owner=owner)
    try:
        await child(Finodelk(fd, _DOMAIN, F_SETLK, kind, flock, caller=who))
    except FopError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise
    return True


async def sweep(child: Wind, caller: Caller) -> int:
    """Remove the snapshots of a volume that no gateway holds, and return how many there were."""
    try:
        folder = (await child(Lookup(loc=Loc(pargfid=ROOT_GFID, name=FOLDER), caller=caller))).stat.gfid
    except FopError as error:
        if error.errno == errno.ENOENT:
            return 0
        raise
    names = await _names(child, folder, caller)
    return sum([await _remove(child, Loc(pargfid=folder, name=name), caller) for name in names])


async def _names(child: Wind, folder: bytes, caller: Caller) -> list[bytes]:
    fd = Fd(folder, 0, client=caller.client)
    await child(Opendir(loc=Loc(gfid=folder), fd=fd, caller=caller))
    found: list[bytes] = []
    offset = 0
    try:
        while True:
            reply = await child(Readdir(fd, offset, _LISTING, caller=caller))
            found.extend(entry.name for entry in reply.entries if entry.name not in (b".", b".."))
            if reply.eof or not reply.entries:
                return found
            offset = reply.entries[-1].off
    finally:
        await child(Releasedir(fd, caller=caller))


async def _remove(child: Wind, loc: Loc, caller: Caller) -> bool:
    try:
        gfid = (await child(Lookup(loc=loc, caller=caller))).stat.gfid
        fd = Fd(gfid, 2, client=caller.client)
        await child(Open(loc=Loc(gfid=gfid), fd=fd, flags=2, caller=caller))
    except FopError:
        return False  # somebody else was faster
    owner = secrets.token_bytes(8)
    try:
        held = await _lock(child, fd, caller, owner, F_WRLCK)
        await child(Unlink(loc=loc, caller=caller))
        if held:
            await _lock(child, fd, caller, owner, F_UNLCK)
    except FopError as error:
        if error.errno in (errno.EAGAIN, errno.ENOENT):
            return False
        raise
    finally:
        await child(Release(fd, caller=caller))
    return True
