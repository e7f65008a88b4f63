"""Attributes of storage/posix: iatts, the consistent times of trusted.glusterfs.mdata, STAT, SETATTR and ACCESS.

With `ctime` on (stock's default) the times that clients see are those in the mdata xattr, stamped with the time that
the client sent along, so that all bricks of a replica agree. They never go back, but for an explicit utimes.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from glustx import fops
from glustx.fops import Done, Fop, PrePost
from glustx.values import (
    IATT_ALL,
    SET_ATIME,
    SET_ATIME_NOW,
    SET_CTIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_MTIME_NOW,
    SET_UID,
    STAMP_ATIME,
    STAMP_CTIME,
    STAMP_MTIME,
    STAMP_PARENT_CTIME,
    STAMP_PARENT_MTIME,
    Caller,
    Iatt,
    ia_rdev,
)
from glustx.xdata import INTERNAL_FOP, MDATA_KEY
from glustx.xlators.storage.posix_entry import PosixEntry
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_intent import Intent
from glustx.xlators.storage.posix_object import (
    At,
    Dir,
    Obj,
    pack_mdata,
)
from glustx.xlators.storage.posix_reserve import allocated, reserved_blocks

STAMP_DATA = STAMP_CTIME | STAMP_MTIME
STAMP_BIRTH = STAMP_CTIME | STAMP_MTIME | STAMP_ATIME | STAMP_PARENT_CTIME | STAMP_PARENT_MTIME
STAMP_NAME = STAMP_CTIME | STAMP_PARENT_CTIME | STAMP_PARENT_MTIME
NS = 1_000_000_000


class PosixAttr(PosixEntry):
    """Iatts and times, and the fops that read or set them."""

    _times_lost = False
    low_on_space = False
    reserve: tuple[float, bool] = (0.0, True)

    def look_at_space(self) -> None:
        """See whether the reserve is reached, now."""
        self.judge_space(os.fstatvfs(self._root.fd))

    def judge_space(self, figures: os.statvfs_result) -> None:
        """See whether these figures of the file system reach the reserve."""
        free = figures.f_bavail if self.mapped else figures.f_bfree  # root may use what ext4 keeps for it
        self.low_on_space = bool(self.reserve[0]) and free <= reserved_blocks(figures, self.reserve)

    def check_space(self, req: Fop, grows: bool = True) -> None:
        """Refuse (ENOSPC) what would eat into the brick's reserve; internal clients may."""
        if grows and self.low_on_space and req.caller.pid >= 0 and INTERNAL_FOP not in req.xdata:
            raise OSError(errno.ENOSPC, f"the reserve of the brick (option reserve {self.options.reserve}) is reached")

    def check_range(self, req: Fop, fd: int, offset: int, size: int) -> None:
        """`check_space` for a change of a range: what has its blocks already may be overwritten."""
        if self.low_on_space:
            self.check_space(req, not allocated(fd, offset, size))

    # -- iatts -----------------------------------------------------------------------------------------------------

    def iatt(self, obj: Obj, st: os.stat_result) -> Iatt:
        """Return the iatt of an object from its stat, and keep it for as long as the object stays as it is."""
        mode, _, dev, nlink, uid, gid, size = st[:7]
        if not obj.is_dir and nlink:
            nlink -= 1  # the handle
        times = obj.times
        if times is not None:
            cs, cn, ms, mn, as_, an = times
        else:
            cs, cn = divmod(st.st_ctime_ns, NS)
            ms, mn = divmod(st.st_mtime_ns, NS)
            as_, an = divmod(st.st_atime_ns, NS)
        # By position, in the order of the wire: keywords cost as much again.
        made = Iatt(
            obj.gfid, IATT_ALL, obj.ino, dev, st.st_rdev and ia_rdev(st.st_rdev), size, st.st_blocks, 0, 0,
            as_, ms, cs, 0, an, mn, cn, 0, nlink, uid, gid, st.st_blksize, mode,
        )  # fmt: skip
        # Without mdata the access time moves and nothing tells.
        obj.iatt = made if times is not None else None
        return made

    def seen(self, obj: Obj, st: os.stat_result, at: At) -> Iatt:
        """Return the iatt for a stat taken just now, reading anew what is remembered when the object has changed."""
        if st.st_ctime_ns != obj.ctime:
            self.refresh(obj, st, at)
        else:
            kept = obj.iatt
            if kept is not None and kept.blocks == st.st_blocks and kept.size == st.st_size:
                return kept
        return self.iatt(obj, st)

    def settle(self, obj: Obj, st: os.stat_result) -> Iatt:
        """Return the iatt after a change of our own; what is remembered of xattrs stays valid."""
        obj.ctime = st.st_ctime_ns
        obj.plan = None
        return self.iatt(obj, st)

    def parent_seen(self, parent: Dir) -> Iatt:
        """Return a parent's iatt as it is now."""
        return self.seen(parent.obj, os.fstat(parent.fd), parent.fd)

    def parent_changed(self, req: Fop, parent: Dir) -> Iatt:
        """Stamp a parent in which a name was changed and return its iatt."""
        obj = parent.obj
        if self.options.ctime:
            when, flags = self.when(req, STAMP_NAME)
            flags = flags >> 3 & 7
            if flags:
                self.stamp(obj, parent.fd, when, flags, None if obj.times else os.fstat(parent.fd))
        return self.settle(obj, os.fstat(parent.fd))

    # -- times -----------------------------------------------------------------------------------------------------

    @staticmethod
    def when(req: Fop, default: int) -> tuple[int, int]:
        """Return the time to stamp and the flags: the client's, or now and `default` when it sent none.

        Internal clients that send none (rebalance, heal) move objects with their times, so none is stamped for them.
        """
        if req.ctime:
            return req.ctime, req.stamp
        return time.time_ns(), default if req.caller.pid >= 0 else 0

    def stamp(self, obj: Obj, at: At, when: int, flags: int, st: os.stat_result | None) -> None:
        """Move the times that `flags` (STAMP_CTIME, STAMP_MTIME, STAMP_ATIME) name on to `when`, never back.

        `st` gives the times of an object that has no mdata yet. A failure is logged and no more: what is being stamped
        has happened.
        """
        s, n = divmod(when, NS)
        times = obj.times
        if times is None:
            assert st is not None
            times = (*divmod(st.st_ctime_ns, NS), *divmod(st.st_mtime_ns, NS), *divmod(st.st_atime_ns, NS))
        cs, cn, ms, mn, as_, an = times
        if flags & 1 and (s > cs or (s == cs and n > cn)):
            cs, cn = s, n
        if flags & 2 and (s > ms or (s == ms and n > mn)):
            ms, mn = s, n
        if flags & 4 and (s > as_ or (s == as_ and n > an)):
            as_, an = s, n
        self.write_times(obj, at, (cs, cn, ms, mn, as_, an))

    def write_times(self, obj: Obj, at: At, times: tuple[int, int, int, int, int, int]) -> None:
        """Store an object's times in its mdata xattr."""
        if times == obj.times:
            return
        raw = pack_mdata(times)
        try:
            self.xset(at, MDATA_KEY, raw)
        except OSError as error:
            if not self._times_lost:
                log.warning("%s: cannot store the times of %s: %s", self.name, obj.gfid.hex(), error.strerror)
            self._times_lost = True
            return
        self._times_lost = False
        obj.times = times
        obj.xattrs[MDATA_KEY] = raw
        obj.plan = None
        obj.iatt = None

    # -- fops ------------------------------------------------------------------------------------------------------

    async def setattr(self, req: fops.Setattr) -> PrePost:
        """SETATTR: mode, owner and times; a symlink's mode is left alone, as Linux has none."""
        try:
            obj, st = self.find(req.loc.gfid)
            at: At = self.dir(obj.gfid).fd if obj.is_dir else obj.path
            return self._set_attributes(req, req.stat, req.valid, obj, st, at)
        except OSError as error:
            raise self.failed(req, error) from error

    async def fsetattr(self, req: fops.Fsetattr) -> PrePost:
        """FSETATTR."""
        try:
            f = self.opened(req.fd)
            st = os.fstat(f.fd)
            self.seen(f.obj, st, f.fd)
            return self._set_attributes(req, req.stat, req.valid, f.obj, st, f.fd)
        except OSError as error:
            raise self.failed(req, error) from error

    def _set_attributes(self, req: Fop, new: Iatt, valid: int, obj: Obj, st: os.stat_result, at: At) -> PrePost:
        pre = self.iatt(obj, st)
        times = (new.atime, new.atime_nsec, new.mtime, new.mtime_nsec, new.ctime, new.ctime_nsec)
        asked = (valid, new.mode, new.uid, new.gid, *times)
        with self.journal.note(Intent(req.name, time.time_ns(), req.ctime, req.stamp, gfid=obj.gfid, attributes=asked)):
            after = self._set_each(req, new, valid, obj, st, at)
        # The kernel may have moved bits between the mode and an ACL.
        for key in (b"system.posix_acl_access", b"system.posix_acl_default"):
            obj.xattrs.pop(key, None)
        return PrePost(pre=pre, post=self.settle(obj, after))

    def _set_each(self, req: Fop, new: Iatt, valid: int, obj: Obj, st: os.stat_result, at: At) -> os.stat_result:
        link = stat.S_ISLNK(st.st_mode)
        if valid & (SET_UID | SET_GID):
            uid = new.uid if valid & SET_UID else -1
            gid = new.gid if valid & SET_GID else -1
            self.give(at, uid, gid)
        if valid & SET_MODE and not link:
            os.chmod(at, new.mode & 0o7777)
        when, flags = self.when(req, STAMP_CTIME)
        if valid & (SET_ATIME | SET_MTIME | SET_ATIME_NOW | SET_MTIME_NOW):
            atime = _wanted(valid, SET_ATIME, SET_ATIME_NOW, new.atime_ns, when)
            mtime = _wanted(valid, SET_MTIME, SET_MTIME_NOW, new.mtime_ns, when)
            ns = (st.st_atime_ns if atime is None else atime, st.st_mtime_ns if mtime is None else mtime)
            if isinstance(at, int):
                os.utime(at, ns=ns)
            else:
                os.utime(at, ns=ns, follow_symlinks=False)
            changed = when if req.ctime or req.caller.pid >= 0 else 0
            self._set_times(obj, self.at(obj) if not isinstance(at, int) else at, changed, atime, mtime)
        if self.options.ctime and flags & 7:
            self.stamp(obj, self.at(obj) if not isinstance(at, int) else at, when, flags & 7, st)
        if valid & SET_CTIME and obj.times is not None:
            times = obj.times
            self.write_times(obj, self.at(obj), (new.ctime, new.ctime_nsec, *times[2:]))
        return os.fstat(at) if isinstance(at, int) else os.lstat(at)

    def _set_times(self, obj: Obj, at: At, when: int, atime: int | None, mtime: int | None) -> None:
        """Put explicit times (ns) into the mdata that an object has; ctime moves on to `when`."""
        if obj.times is None:
            return
        cs, cn, ms, mn, as_, an = obj.times
        cs, cn = max((cs, cn), divmod(when, NS))
        if atime is not None:
            as_, an = divmod(atime, NS)
        if mtime is not None:
            ms, mn = divmod(mtime, NS)
        self.write_times(obj, at, (cs, cn, ms, mn, as_, an))

    def give(self, at: At, uid: int, gid: int) -> None:
        """Change the owner (-1 leaves one as it is); a brick that may not, because it is a user's, lets it be."""
        try:
            if isinstance(at, int):
                os.fchown(at, uid, gid)
            else:
                os.chown(at, uid, gid, follow_symlinks=False)
        except PermissionError:
            if not self.mapped:
                raise

    async def access(self, req: fops.Access) -> Done:
        """ACCESS, from the mode bits and the caller's groups; root may do all but run what nobody may run."""
        try:
            _, st = self.find(req.loc.gfid)
        except OSError as error:
            raise self.failed(req, error) from error
        if req.mask & ~7:
            raise self.failed(req, OSError(errno.EINVAL, "mask has bits other than R, W and X"))
        if not allowed(st, req.caller, req.mask):
            raise self.failed(req, OSError(errno.EACCES, "Permission denied"))
        return Done()


def allowed(st: os.stat_result, caller: Caller, mask: int) -> bool:
    """Tell whether mode bits let a caller read (4), write (2) and execute or search (1)."""
    mode = st.st_mode
    if caller.uid == 0:
        return not mask & 1 or stat.S_ISDIR(mode) or bool(mode & 0o111)
    if caller.uid == st.st_uid:
        bits = mode >> 6
    elif caller.gid == st.st_gid or st.st_gid in caller.groups:
        bits = mode >> 3
    else:
        bits = mode
    return not mask & ~bits


def _wanted(valid: int, explicit: int, now: int, value: int, when: int) -> int | None:
    """Return the time (ns) that a SETATTR sets, None for none.

    A value beside the bit for now counts: it is the client's own now, or what distribute keeps when it heals a
    directory with all bits set.
    """
    if valid & explicit and (value or not valid & now):
        return value
    return when if valid & now else None
