"""New names of storage/posix: CREATE, MKNOD, MKDIR, SYMLINK, LINK, and the xattrs that tell an object's names.

A new object is complete before it can be found by gfid: it is made, gets its owner, mode, gfid, gfid2path and mdata
xattrs, then its handle. Whatever fails takes the object away again, and so does the start after a kill in between
(`posix_recover`), unless the handle is there.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress

from glustx import fops
from glustx.errors import FopError
from glustx.fops import CreateReply, EntryReply, Fop
from glustx.inode import O_ACCMODE
from glustx.values import NULL_GFID, Iatt, gfid_text
from glustx.xdata import GFID_REQ, MDATA_KEY, PREOP_CHECK_FAILED, PREOP_PARENT_KEY, STR, Xdata, gfuuid
from glustx.xlators.storage.posix_attr import NS, STAMP_BIRTH, STAMP_NAME
from glustx.xlators.storage.posix_entry import gfid2path
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_intent import Intent, Journal, Place
from glustx.xlators.storage.posix_lookup import Plan, PosixLookup
from glustx.xlators.storage.posix_object import (
    DIR_FLAGS,
    GFID2PATH,
    GFID_KEY,
    PGFID,
    USER_PREFIX,
    VOLUME_ID_KEY,
    At,
    Dir,
    Obj,
    dir_link,
    pack_mdata,
    parse_mdata,
)

_ACL_DEFAULT = b"system.posix_acl_default"
_SETTABLE = (b"trusted.", b"user.", b"security.", b"system.posix_acl_")


class PosixNames(PosixLookup):
    """The fops that make names."""

    # For files and for directories: the mode bits that a new one may have, and those that it always has.
    modes: tuple[tuple[int, int], tuple[int, int]] = ((0o177777, 0), (0o177777, 0))

    # -- CREATE ----------------------------------------------------------------------------------------------------

    async def create(self, req: fops.Create) -> CreateReply:
        """CREATE: make a regular file and open it, or open the one that is there unless O_EXCL is set.

        Raises FopError: EINVAL without `gfid-req`, EEXIST, EISDIR, ESTALE for an unknown parent.
        """
        loc = req.loc
        try:
            gfid = self._gfid_req(req)
            parent = self.parent_of(req, loc)
            pre = self.parent_seen(parent)
            flags = self.open_flags(req.flags)
            made = True
            mode, acl = self._mode(parent, req.mode, req.umask)
            with self.making(req, parent, loc.name, gfid):
                try:
                    fd = os.open(
                        loc.name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & 0o7777, dir_fd=parent.fd
                    )
                except FileExistsError:
                    if req.flags & os.O_EXCL:
                        raise
                    made = False
                else:
                    try:
                        obj, st = self._complete(req, parent, loc.name, fd, gfid, mode & 0o7777, acl, pre)
                    except BaseException:
                        self._undo(loc.name, parent)
                        os.close(fd)
                        raise
                    post = self.parent_changed(req, parent)
                    stat_ = self.settle(obj, st)
            if not made:
                obj, stat_, fd = self._open_existing(req, parent, flags)
                post = self.parent_seen(parent)
        except OSError as error:
            raise self._in_parent(req, error) from error
        f = self.held(fd, obj, req.flags)
        obj = f.obj
        obj.fds += 1
        req.fd.slots[self._fds] = f
        req.fd.gfid = obj.gfid
        # Stock echoes the gfid that was asked for; mostly nothing else was.
        echo = req.xdata if len(req.xdata) == 1 else Xdata({GFID_REQ: gfuuid(gfid)})
        return CreateReply(xdata=echo, stat=stat_, preparent=pre, postparent=post)

    def _open_existing(self, req: fops.Create, parent: Dir, flags: int) -> tuple[Obj, Iatt, int]:
        name = req.loc.name
        st = os.lstat(name, dir_fd=parent.fd)
        obj, st = self.named(parent, name, st, req.xdata.gfid_req)
        if not stat.S_ISREG(st.st_mode):
            raise OSError(errno.EISDIR if obj.is_dir else errno.EEXIST, "not a regular file")
        fd = os.open(name, flags | (req.flags & os.O_TRUNC) | os.O_NOFOLLOW, dir_fd=parent.fd)
        try:
            now = os.fstat(fd)
            if now.st_ino != st.st_ino:
                raise OSError(errno.ESTALE, "another file has taken this name")
            return obj, self.seen(obj, now, fd), fd
        except BaseException:
            os.close(fd)
            raise

    @staticmethod
    def open_flags(flags: int) -> int:
        """Return the flags to open with. Appending is done here (with O_APPEND the kernel would also move what is
        written to a position, as by ZEROFILL); what is O_DIRECT has a descriptor of its own for that."""
        return flags & (O_ACCMODE | os.O_SYNC | os.O_DSYNC | os.O_NOATIME) | os.O_CLOEXEC

    # -- MKNOD, MKDIR, SYMLINK -------------------------------------------------------------------------------------

    async def mknod(self, req: fops.Mknod) -> EntryReply:
        """MKNOD: make an empty file, fifo, socket or device node."""
        try:
            gfid = self._gfid_req(req)
            parent = self.parent_of(req, req.loc)
            kind = stat.S_IFMT(req.mode) or stat.S_IFREG
            if kind in (stat.S_IFDIR, stat.S_IFLNK):
                raise OSError(errno.EINVAL, "mknod does not make directories or links")
            pre = self.parent_seen(parent)
            mode, acl = self._mode(parent, req.mode, req.umask)
            with self.making(req, parent, req.loc.name, gfid):
                os.mknod(req.loc.name, kind | (mode & 0o7777), req.rdev, dir_fd=parent.fd)
                return self._named_reply(req, parent, gfid, mode & 0o7777, acl, pre)
        except OSError as error:
            raise self._in_parent(req, error) from error

    async def symlink(self, req: fops.Symlink) -> EntryReply:
        """SYMLINK."""
        try:
            gfid = self._gfid_req(req)
            parent = self.parent_of(req, req.loc)
            if not req.linkname:
                raise OSError(errno.EINVAL, "a link to nothing")
            pre = self.parent_seen(parent)
            with self.making(req, parent, req.loc.name, gfid):
                os.symlink(req.linkname, req.loc.name, dir_fd=parent.fd)
                return self._named_reply(req, parent, gfid, None, False, pre)
        except ValueError as error:
            raise self.failed(req, OSError(errno.EINVAL, "NUL in a path")) from error
        except OSError as error:
            raise self._in_parent(req, error) from error

    def _named_reply(
        self, req: fops.Mknod | fops.Symlink, parent: Dir, gfid: bytes, mode: int | None, acl: bool, pre: Iatt
    ) -> EntryReply:
        name = req.loc.name
        try:
            st = os.lstat(name, dir_fd=parent.fd)
            at = self.at_name(parent, name, st)
            if at == self.sidecar(st.st_ino):
                self.make_sidecar(at)
            obj, st = self._complete(req, parent, name, at, gfid, mode, acl, pre)
        except BaseException:
            self._undo(name, parent)
            raise
        post = self.parent_changed(req, parent)
        return EntryReply(stat=self.settle(obj, st), preparent=pre, postparent=post)

    async def mkdir(self, req: fops.Mkdir) -> EntryReply:
        """MKDIR; with `glusterfs.preop.parent.key` only while the parent's xattr is as the client believes (EIO)."""
        name = req.loc.name
        try:
            gfid = self._gfid_req(req)
            parent = self.parent_of(req, req.loc)
            pre = self.parent_seen(parent)
            mode, acl = self._mode(parent, req.mode, req.umask, True)
            inherit = stat.S_ISGID if pre.mode & stat.S_ISGID else 0
            with self.making(req, parent, name, gfid):
                os.mkdir(name, mode & 0o7777, dir_fd=parent.fd)
                try:
                    fd = os.open(name, DIR_FLAGS, dir_fd=parent.fd)
                    try:
                        obj, st = self._complete(req, parent, name, fd, gfid, mode & 0o7777 | inherit, acl, pre, True)
                    except BaseException:
                        os.close(fd)
                        raise
                except BaseException:
                    self._undo(name, parent, is_dir=True)
                    raise
                self._keep_dir(Dir(fd, obj))
                post = self.parent_changed(req, parent)
            return EntryReply(stat=self.settle(obj, st), preparent=pre, postparent=post)
        except OSError as error:
            raise self._in_parent(req, error) from error

    # -- what every new object gets --------------------------------------------------------------------------------

    def making(self, req: Fop, parent: Dir, name: bytes, gfid: bytes) -> Journal:
        """Note that an object is about to be made."""
        places = (Place(parent.obj.gfid, name, gfid),)
        return self.journal.note(Intent(req.name, time.time_ns(), req.ctime, req.stamp, places, made=gfid))

    def _gfid_req(self, req: Fop) -> bytes:
        """Return the gfid for a new object, if there may be one."""
        self.check_space(req)
        gfid = req.xdata.gfid_req
        if gfid is None or len(gfid) != 16 or gfid == NULL_GFID:
            raise OSError(errno.EINVAL, "the request names no gfid (gfid-req)")
        return gfid

    def _mode(self, parent: Dir, mode: int, umask: int, is_dir: bool = False) -> tuple[int, bool]:
        """Return the mode to make an object with, and whether a default ACL of the parent has the last word on it."""
        known = parent.obj.xattrs
        if _ACL_DEFAULT not in known:
            known[_ACL_DEFAULT] = self.xget(parent.fd, _ACL_DEFAULT)
        acl = known[_ACL_DEFAULT] is not None
        kept, forced = self.modes[is_dir]
        return (mode if acl else mode & ~umask) & kept | forced, acl

    def _complete(
        self,
        req: Fop,
        parent: Dir,
        name: bytes,
        at: At,
        gfid: bytes,
        mode: int | None,
        acl: bool,
        pre: Iatt,
        is_dir: bool = False,
    ) -> tuple[Obj, os.stat_result]:
        """Give a new object its owner, mode, xattrs and handle; return its record and stat.

        Args:
            at: an open descriptor, or where its xattrs are.
            mode: permission bits that it must end up with; None for a symlink.
            acl: leave the mode to the default ACL.
            pre: the parent.
        """
        place: At = at if isinstance(at, int) else b"/proc/self/fd/%d/%s" % (parent.fd, name)
        template = req.xdata.template
        plan: Plan | None = template.plan
        if plan is None:
            plan = template.plan = Plan(req.xdata)
        extra = self._gifts(req, parent) if plan.gifts else []
        uid = req.caller.uid
        gid = pre.gid if pre.mode & stat.S_ISGID else req.caller.gid
        if uid != self.uid or gid != (pre.gid if pre.mode & stat.S_ISGID else self.gid):
            self.give(place, uid, gid)
        self.xset(at, GFID_KEY, gfid)
        xattrs: dict[bytes, bytes | None] = {}
        if not is_dir:
            if self.options.gfid2path:
                self.xset(at, *gfid2path(parent.obj.gfid, name))
            if self.options.update_link_count_parent:
                self.xset(at, PGFID + gfid_text(parent.obj.gfid).encode(), b"\0\0\0\1")
        times = None
        if self.options.ctime:
            when, flags = self.when(req, STAMP_BIRTH)
            # Distribute makes a missing directory with the times that it has on other bricks.
            times = next((parse_mdata(value) for key, value in extra if key == MDATA_KEY), None)
            if times is None and flags & 7:
                s, n = divmod(when, NS)
                times = (s, n, s, n, s, n)
            if times is not None:
                raw = pack_mdata(times)
                self.xset(at, MDATA_KEY, raw)
                xattrs[MDATA_KEY] = raw
        for key, value in extra:
            if key == MDATA_KEY:
                continue
            self.xset(at, key, value)
            if not key.startswith(b"system."):  # the kernel may store another form
                xattrs[key] = value
        if mode is not None and not acl:
            st = os.fstat(at) if isinstance(at, int) else os.lstat(name, dir_fd=parent.fd)
            if stat.S_IMODE(st.st_mode) != mode:
                # The process's umask or the change of owner has taken bits away.
                os.chmod(place, mode)
        # From here on it is there for good.
        if is_dir:
            self.link_dir_handle(gfid, dir_link(parent.obj.gfid, name))
        else:
            self.make_handle(gfid, name, parent.fd)
        st = os.fstat(at) if isinstance(at, int) else os.lstat(name, dir_fd=parent.fd)
        obj = self.remember(gfid, st)
        obj.xattrs = xattrs
        obj.whole = True
        obj.times = times
        obj.ctime = st.st_ctime_ns
        return obj, st

    def _gifts(self, req: Fop, parent: Dir) -> list[tuple[bytes, bytes]]:
        """Return the xattrs that xdata asks for on a new object, after the check of the parent that it may ask for."""
        found: list[tuple[bytes, bytes]] = []
        checked = b""
        xdata = req.xdata
        if PREOP_PARENT_KEY in xdata:
            checked = bytes(xdata[PREOP_PARENT_KEY]).rstrip(b"\0")
            if xdata.get(checked) != self.xget(parent.fd, checked):
                raise PreopFailed(errno.EIO, f"the parent's {checked.decode('utf-8', 'replace')} has changed")
        for key, (kind, value) in xdata.typed():
            if key == checked or not key.startswith(_SETTABLE) or not isinstance(value, bytes):
                continue
            if key == MDATA_KEY and parse_mdata(value) is None:
                continue
            if key in (GFID_KEY, VOLUME_ID_KEY) or key.startswith((GFID2PATH, USER_PREFIX)):
                continue
            found.append((key, value + b"\0" if kind == STR else value))
        return found

    def _undo(self, name: bytes, parent: Dir, is_dir: bool = False) -> None:
        """Take a half-made object away; its handle is the last thing that can fail, so there is none."""
        try:
            if is_dir:
                os.rmdir(name, dir_fd=parent.fd)
                return
            st = os.lstat(name, dir_fd=parent.fd)
            os.unlink(name, dir_fd=parent.fd)
            if self.mapped and not stat.S_ISREG(st.st_mode):
                os.unlink(self.sidecar(st.st_ino))
        except OSError as error:
            log.error("%s: cannot remove half-made %r: %s", self.name, name, error.strerror)

    def _in_parent(self, req: Fop, error: OSError) -> FopError:
        """Say why a name was not made; the parent itself may be what is missing."""
        if isinstance(error, PreopFailed):
            failure = self.failed(req, error)
            failure.xdata = Xdata({PREOP_CHECK_FAILED: 1})
            return failure
        if error.errno == errno.ENOENT:
            error = OSError(errno.ESTALE, "the parent is gone")
        return self.failed(req, error)

    # -- LINK ------------------------------------------------------------------------------------------------------

    async def link(self, req: fops.Link) -> EntryReply:
        """LINK: give a file another name."""
        new = req.newloc
        try:
            parent = self.parent_of(req, new)
            obj, st = self.find(req.oldloc.gfid)
            if obj.is_dir:
                raise OSError(errno.EPERM, "directories have one name")
            most = self.options.max_hardlinks
            if most and st.st_nlink > most:
                raise OSError(errno.EMLINK, f"the file has {most} names (option max-hardlinks)")
            pre = self.parent_seen(parent)
            stat_, post = self.add_link(req, obj, st, parent, new.name)
            return EntryReply(stat=stat_, preparent=pre, postparent=post)
        except OSError as error:
            raise self._in_parent(req, error) from error

    def add_link(self, req: Fop, obj: Obj, st: os.stat_result, parent: Dir, name: bytes) -> tuple[Iatt, Iatt]:
        """Give a file one more name; return its iatt and the parent's."""
        places = (Place(parent.obj.gfid, name, obj.gfid),)
        with self.journal.note(Intent(req.name, time.time_ns(), req.ctime, req.stamp, places, gfid=obj.gfid)):
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=parent.fd)  # it may be one of this file's, whose record must stay
                raise OSError(errno.EEXIST, "the name is taken")
            self.name_added(obj, parent, name)
            try:
                os.link(obj.path, name, dst_dir_fd=parent.fd, follow_symlinks=False)
            except BaseException:
                self.name_removed(obj, parent, name)
                raise
            self.touch(req, obj, st, STAMP_NAME)
            return self.settle(obj, os.lstat(obj.path)), self.parent_changed(req, parent)

    def touch(self, req: Fop, obj: Obj, st: os.stat_result, default: int) -> None:
        """Stamp an object (not its parent) as the request says."""
        if self.options.ctime:
            when, flags = self.when(req, default)
            if flags & 7:
                self.stamp(obj, self.at(obj), when, flags & 7, st)


class PreopFailed(OSError):
    """The parent is not as the client believes; travels as EIO with a key in xdata."""
