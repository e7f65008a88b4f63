"""features/worm: write once, read many, for a whole volume or file by file.

On a `worm` volume files can be made, written through the fd that made them, and never changed again. With
`worm-file-level` a file can be written until it is committed: when its write bits are taken away, or when it has been
left alone for `auto-commit-period` and somebody tries to change it. From then on it is retained until its access time,
`default-retention-period` later; when that has passed it still cannot be changed, only removed
(`worm-files-deletable`).

The state is in stock's xattrs: trusted.start_time (when the file was made), trusted.worm_file (its first fd is closed),
trusted.reten_state (flags/retention period/auto-commit period). Unlike stock it goes by effects, so that what reaches a
file through fd -2, or by ZEROFILL or COPY_FILE_RANGE, is a change as well, and clients may not write these xattrs.
"""

from __future__ import annotations

import errno
import stat as st
import time
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, WRITES_DATA, Fop
from glustx.inode import Fd, PerFd
from glustx.options import OptionSet, Seconds, option
from glustx.values import SET_ATIME, SET_ATIME_NOW, SET_MODE, Iatt, Loc
from glustx.xdata import STR, Typed, Xdata, uint
from glustx.xlator import Xlator, handles
from glustx.xlators.features.read_only import idle, refuse, writes

START_TIME = b"trusted.start_time"
WORM_FILE = b"trusted.worm_file"
RETEN_STATE = b"trusted.reten_state"
_OURS = frozenset((START_TIME, WORM_FILE, RETEN_STATE))

# What makes a name or an inode that was not there: writing once.
_MAKES = (fops.Mknod, fops.Mkdir, fops.Symlink, fops.Put, fops.Icreate, fops.Namelink)
_WRITE_BITS = 0o222
_RELAX, _ENTERPRISE = 0, 1


class State(msgspec.Struct, frozen=True):
    """The retention state of a committed file; periods in seconds. `legal_hold` is kept and has no effect, as in
    stock."""

    worm: bool
    retain: bool
    legal_hold: bool
    mode: int
    retention: int
    auto_commit: int

    def text(self) -> str:
        """Return the state as stock stores it."""
        flags = self.worm | self.retain << 1 | self.legal_hold << 2 | self.mode << 3
        return f"{flags}/{self.retention}/{self.auto_commit}"

    @classmethod
    def parse(cls, raw: bytes) -> State:
        """Return the state of a stored text; ValueError for anything else."""
        flags, retention, auto_commit = (int(part) for part in raw.rstrip(b"\0").split(b"/"))
        return cls(bool(flags & 1), bool(flags & 2), bool(flags & 4), flags >> 3 & 1, retention, auto_commit)


class Worm(Xlator):
    """Answers EROFS to changes of what has been written."""

    class Options(OptionSet):
        """Options of features/worm."""

        worm: bool = option(False, "Nothing on the volume can be changed once it is written.", live=True)
        worm_file_level: bool = option(False, "Files are committed one by one.", live=True)
        default_retention_period: Seconds = option(
            Seconds(120), "How long a committed file is retained.", low=0, live=True
        )
        auto_commit_period: Seconds = option(
            Seconds(180), "How long a file is left alone before it counts as committed.", low=0, live=True
        )
        retention_mode: str = option(
            "relax",
            "Whether the retention of a file can be shortened (relax) or only be extended (enterprise).",
            choices=("relax", "enterprise"),
            live=True,
        )
        worm_files_deletable: bool = option(True, "Files whose retention has passed can be removed.", live=True)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self._making: PerFd[bool] = PerFd()

    # -- changes ---------------------------------------------------------------------------------------------------

    @handles(WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES)
    async def changed(self, req: Fop) -> Any:
        """Let a change through unless it meets something that was written before."""
        if req.caller.pid >= 0 and not isinstance(req, _MAKES):
            effects = req.effects_now()
            if self.options.worm:
                await self._on_worm_volume(req, effects)
            elif self.options.worm_file_level:
                await self._on_file_level(req, effects)
        return await self.child(req)

    async def _on_worm_volume(self, req: Fop, effects: int) -> None:
        # Attributes can be set (a copy that keeps its mode does), xattrs can be added, none be taken away.
        if effects & CHANGES_ATTRS and not isinstance(
            req, (fops.Removexattr, fops.Fremovexattr, fops.Xattrop, fops.Fxattrop)
        ):
            return
        subject = req.subject()
        if isinstance(subject, Fd) and effects & (WRITES_DATA | MAY_GROW) and self._making.get(subject):
            return
        if not idle(req):
            await refuse(self, req, "the volume is write once")

    async def _on_file_level(self, req: Fop, effects: int) -> None:
        if effects & CHANGES_ATTRS:
            keys = req.xattrs if hasattr(req, "xattrs") else (getattr(req, "key", b""), *req.xdata)
            if not _OURS.isdisjoint(keys):
                await refuse(self, req, "the retention state is the brick's own")
            return
        if isinstance(req, fops.Rename):
            places = [await self._named(loc) for loc in (req.oldloc, req.newloc)]
        elif isinstance(req, fops.Unlink):
            places = [await self._named(req.loc)]
        elif isinstance(req, fops.Rmdir):
            places = []
        else:
            subject = req.subject()
            places = [subject.gfid] if subject is not None else []
        for gfid in places:
            if gfid is not None and await self._committed(gfid, isinstance(req, fops.Unlink)):
                await refuse(self, req, "the file is write once")

    async def open(self, req: fops.Open) -> fops.Done:
        """Refuse an fd that is good for writing on a worm volume."""
        if self.options.worm and req.caller.pid >= 0 and writes(req.flags):
            await refuse(self, req, "the volume is write once")
        elif self.options.worm_file_level and req.caller.pid >= 0 and req.effects_now() & WRITES_DATA:
            await self._on_file_level(req, WRITES_DATA)
        done: fops.Done = await self.child(req)
        return done

    async def create(self, req: fops.Create) -> fops.CreateReply:
        """Note when a file was made, and that this fd may write it. One that is there is opened, or refused, as by
        OPEN."""
        watched = self.options.worm or self.options.worm_file_level
        if watched and req.caller.pid >= 0 and writes(req.flags):
            gfid = await self._named(req.loc)
            if gfid is not None and (self.options.worm or await self._committed(gfid)):
                await refuse(self, req, "what is there is write once")
        reply: fops.CreateReply = await self.child(req)
        if watched and reply.stat.gfid == req.xdata.gfid_req:
            self._making.set(req.fd, True)
            if self.options.worm_file_level:
                await self._store(reply.stat.gfid, {START_TIME: uint(int(time.time()))})
        return reply

    async def release(self, req: fops.Release) -> fops.Done:
        """The fd that made a file is given back: from now on the file is watched."""
        if self._making.pop(req.fd) and self.options.worm_file_level:
            try:
                await self._store(req.fd.gfid, {WORM_FILE: 1})
                await self._committed(req.fd.gfid)
            except FopError as error:
                if error.errno not in (errno.ESTALE, errno.ENOENT):  # it may have been removed meanwhile
                    await self.child(req)
                    raise
        done: fops.Done = await self.child(req)
        return done

    # -- attributes ------------------------------------------------------------------------------------------------

    async def setattr(self, req: fops.Setattr) -> fops.PrePost:
        """Commit a file whose write bits are taken away; a new access time of a retained one is the end of its
        retention."""
        return await self._setattr(req, req.loc.gfid)

    async def fsetattr(self, req: fops.Fsetattr) -> fops.PrePost:
        """As `setattr`."""
        return await self._setattr(req, req.fd.gfid)

    async def _setattr(self, req: Any, gfid: bytes) -> fops.PrePost:
        touched = self.options.worm_file_level and req.valid & (SET_MODE | SET_ATIME | SET_ATIME_NOW)
        if touched and await self._xattr(gfid, WORM_FILE) is not None:
            if not req.valid & SET_MODE:
                await self._retain_until(req, gfid)
            elif not req.stat.mode & _WRITE_BITS and await self._state(gfid) is None:
                await self._commit(gfid)
        reply: fops.PrePost = await self.child(req)
        return reply

    async def _retain_until(self, req: Any, gfid: bytes) -> None:
        state = await self._state(gfid)
        if state is None or not state.retain:
            return
        old = await self._stat(gfid)
        until = int(time.time()) if req.valid & SET_ATIME_NOW else req.stat.atime
        least = old.atime if state.mode == _ENTERPRISE else old.mtime
        if until < least:
            await refuse(self, req, f"the file is retained, its access time cannot go below {least}")
        retention = max(0, state.retention + until - old.atime)
        await self._store_state(gfid, msgspec.structs.replace(state, retention=retention))

    # -- the state of a file ---------------------------------------------------------------------------------------

    async def _committed(self, gfid: bytes, removal: bool = False) -> bool:
        """Tell whether a file may no longer be changed (or removed), after moving its state on to what it is now."""
        if await self._xattr(gfid, WORM_FILE) is None:
            return False
        try:
            started = int((await self._xattr(gfid, START_TIME) or b"").rstrip(b"\0"))
            state = await self._state(gfid)
        except ValueError:
            return True  # somebody has damaged it
        stat = await self._stat(gfid)
        now = int(time.time())
        if state is None:
            if now - max(started, stat.mtime) < self.options.auto_commit_period:
                return False
            await self._commit(gfid)
            return True
        if state.retain and now >= stat.atime:
            await self._set_atime(gfid, max(0, stat.atime - state.retention))
            state = msgspec.structs.replace(state, retain=False, retention=0, auto_commit=0)
            await self._store_state(gfid, state)
        return not (removal and state.worm and not state.retain and self.options.worm_files_deletable)

    async def _commit(self, gfid: bytes) -> None:
        retention = int(self.options.default_retention_period)
        mode = _ENTERPRISE if self.options.retention_mode == "enterprise" else _RELAX
        await self._set_atime(gfid, int(time.time()) + retention)
        commit = int(self.options.auto_commit_period)
        await self._store_state(gfid, State(True, True, False, mode, retention, commit))

    async def _named(self, loc: Loc) -> bytes | None:
        """Return the gfid of a file's name, None when there is none or it is a directory's."""
        try:
            reply = await self.child(fops.Lookup(Loc(pargfid=loc.pargfid, name=loc.name)))
        except FopError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise
        gfid: bytes = reply.stat.gfid
        return None if st.S_ISDIR(reply.stat.mode) else gfid

    async def _state(self, gfid: bytes) -> State | None:
        raw = await self._xattr(gfid, RETEN_STATE)
        return None if raw is None else State.parse(raw)

    async def _stat(self, gfid: bytes) -> Iatt:
        stat: Iatt = (await self.child(fops.Stat(Loc(gfid=gfid)))).stat
        return stat

    async def _xattr(self, gfid: bytes, key: bytes) -> bytes | None:
        try:
            value: bytes = (await self.child(fops.Getxattr(Loc(gfid=gfid), key=key))).xattrs[key]
        except FopError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
        return value

    async def _store_state(self, gfid: bytes, state: State) -> None:
        await self._store(gfid, {RETEN_STATE: Typed(STR, state.text().encode())})

    async def _store(self, gfid: bytes, xattrs: dict[bytes, object]) -> None:
        await self.child(fops.Setxattr(Loc(gfid=gfid), xattrs=Xdata(xattrs)))

    async def _set_atime(self, gfid: bytes, seconds: int) -> None:
        await self.child(fops.Setattr(Loc(gfid=gfid), stat=Iatt(atime=seconds), valid=SET_ATIME))
