"""Files made in other steps than CREATE and WRITE: PUT in one, ICREATE and NAMELINK in two."""

from __future__ import annotations

import errno
import os
import stat

from glustx import fops
from glustx.fops import AttrReply, EntryReply, PrePost
from glustx.values import NULL_GFID, STAMP_CTIME, STAMP_MTIME
from glustx.xdata import MDATA_KEY
from glustx.xlators.storage.posix_attr import NS, STAMP_BIRTH, STAMP_NAME
from glustx.xlators.storage.posix_data import INLINE_WRITE, _pwrite_all
from glustx.xlators.storage.posix_object import (
    GFID_KEY,
    OpenFile,
    pack_mdata,
)
from glustx.xlators.storage.posix_unlink import PosixUnlink


class PosixWhole(PosixUnlink):
    """PUT, ICREATE and NAMELINK."""

    async def put(self, req: fops.Put) -> EntryReply:
        """PUT: a new file with its content and xattrs; EEXIST when the name is taken. A failure leaves nothing."""
        name = req.loc.name
        try:
            gfid = self._gfid_req(req)
            parent = self.parent_of(req, req.loc)
            pre = self.parent_seen(parent)
            mode, acl = self._mode(parent, req.mode, req.umask)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, mode & 0o7777, dir_fd=parent.fd)
            try:
                obj, _ = self._complete(req, parent, name, fd, gfid, mode & 0o7777, acl, pre)
            except BaseException:
                self._undo(name, parent)
                os.close(fd)
                raise
            f = OpenFile(fd, obj, None, req.flags)
            try:
                if len(req.data) > INLINE_WRITE:
                    count = await self.work(_pwrite_all, f, req.data, req.offset, f.sync)
                else:
                    count = _pwrite_all(f, req.data, req.offset, f.sync)
                if count < len(req.data):
                    raise OSError(errno.ENOSPC, "no space for the whole content")
                self._set(req, req.xattrs, os.XATTR_CREATE, obj, os.fstat(fd), fd)
            except BaseException:
                with self.last_name_goes(obj, os.fstat(fd), parent, name) as waste:
                    self._undo(name, parent)
                if waste is not None:
                    os.unlink(waste)
                raise
            post = self.parent_changed(req, parent)
            return EntryReply(stat=self.settle(obj, os.fstat(fd)), preparent=pre, postparent=post)
        except (OSError, OverflowError) as error:
            raise self.failed(req, error) from error

    async def icreate(self, req: fops.Icreate) -> AttrReply:
        """ICREATE: a regular file that has no name yet, reachable by its gfid alone until NAMELINK."""
        gfid = req.loc.gfid
        try:
            if gfid == NULL_GFID or len(gfid) != 16:
                raise OSError(errno.EINVAL, "null gfid")
            if stat.S_IFMT(req.mode) not in (0, stat.S_IFREG):
                raise OSError(errno.EOPNOTSUPP, "ICREATE makes regular files")
            path = self.handle_place(gfid)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if (req.caller.uid, req.caller.gid) != (self.uid, self.gid):
                    self.give(fd, req.caller.uid, req.caller.gid)
                self.xset(fd, GFID_KEY, gfid)
                when, flags = self.when(req, STAMP_BIRTH)
                if self.options.ctime and flags & (STAMP_CTIME | STAMP_MTIME):
                    s, n = divmod(when, NS)
                    self.xset(fd, MDATA_KEY, pack_mdata((s, n, s, n, s, n)))
                os.fchmod(fd, req.mode & 0o7777)
                st = os.fstat(fd)
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(fd)
            obj = self.remember(gfid, st)
            self.refresh(obj, st, obj.xpath)
            return AttrReply(stat=self.iatt(obj, st))
        except OSError as error:
            raise self.failed(req, error) from error

    async def namelink(self, req: fops.Namelink) -> PrePost:
        """NAMELINK: give a file made by ICREATE its name."""
        name = req.loc.name
        try:
            obj, st = self.find(self._gfid_req(req))
            if not stat.S_ISREG(st.st_mode):
                raise OSError(errno.EPERM, "not a file made by ICREATE")
            parent = self.parent_of(req, req.loc)
            pre = self.parent_seen(parent)
            self.name_added(obj, parent, name)
            try:
                os.link(obj.path, name, dst_dir_fd=parent.fd, follow_symlinks=False)
            except BaseException:
                self.name_removed(obj, parent, name)
                raise
            self.touch(req, obj, st, STAMP_NAME)
            self.settle(obj, os.lstat(obj.path))
            return PrePost(pre=pre, post=self.parent_changed(req, parent))
        except OSError as error:
            raise self._in_parent(req, error) from error
