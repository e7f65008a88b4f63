"""Files made in other steps than CREATE and WRITE: PUT in one, ICREATE and NAMELINK in two."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress

from glustx import fops
from glustx.fops import AttrReply, EntryReply, PrePost
from glustx.values import NULL_GFID, STAMP_CTIME, STAMP_MTIME, gfid_text
from glustx.xdata import MDATA_KEY
from glustx.xlators.storage.posix_attr import NS, STAMP_BIRTH
from glustx.xlators.storage.posix_data import INLINE_WRITE, _pwrite_all
from glustx.xlators.storage.posix_intent import Intent
from glustx.xlators.storage.posix_object import (
    GFID_KEY,
    Dir,
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
            with suppress(FileNotFoundError):
                os.lstat(name, dir_fd=parent.fd)
                raise OSError(errno.EEXIST, "the name is taken")
            fd, source = self._nameless(parent, gfid, mode & 0o7777)
            # Content and xattrs come before the name, so a crash leaves all or nothing.
            f = OpenFile(fd, self._root.obj, None, req.flags)
            try:
                if len(req.data) > INLINE_WRITE:
                    count = await self.work(_pwrite_all, f, req.data, req.offset, f.sync)
                else:
                    count = _pwrite_all(f, req.data, req.offset, f.sync)
                if count < len(req.data):
                    raise OSError(errno.ENOSPC, "no space for the whole content")
                for key, value in self.settable(req.xattrs):
                    self.xset(fd, key, value)
                pre = self.parent_seen(parent)
                with self.making(req, parent, name, gfid):
                    os.link(source, name, dst_dir_fd=parent.fd, follow_symlinks=True)
                    try:
                        obj, st = self._complete(req, parent, name, fd, gfid, mode & 0o7777, acl, pre)
                    except BaseException:
                        self._undo(name, parent)
                        raise
                    obj.whole = False
                    post = self.parent_changed(req, parent)
                    stat_ = self.settle(obj, st)
            finally:
                if not source.startswith("/proc"):
                    os.unlink(source)
            return EntryReply(stat=stat_, preparent=pre, postparent=post)
        except (OSError, OverflowError) as error:
            raise self.failed(req, error) from error

    def _nameless(self, parent: Dir, gfid: bytes, mode: int) -> tuple[int, str]:
        """Open a new file without a name in a directory, and tell from where it can be linked to one.

        Where the file system has no O_TMPFILE it is made aside, where the next start removes what a crash has left.
        """
        try:
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, dir_fd=parent.fd)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                raise
            aside = f"{self._handles}unlink/{gfid_text(gfid)}"
            return os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), aside
        return fd, f"/proc/self/fd/{fd}"

    async def icreate(self, req: fops.Icreate) -> AttrReply:
        """ICREATE: a regular file that has no name yet, reachable by its gfid alone until NAMELINK."""
        gfid = req.loc.gfid
        try:
            if gfid == NULL_GFID or len(gfid) != 16:
                raise OSError(errno.EINVAL, "null gfid")
            if stat.S_IFMT(req.mode) not in (0, stat.S_IFREG):
                raise OSError(errno.EOPNOTSUPP, "ICREATE makes regular files")
            path = self.handle_place(gfid)
            with self.journal.note(Intent(req.name, time.time_ns(), made=gfid)):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    if (req.caller.uid, req.caller.gid) != (self.uid, self.gid):
                        self.give(fd, req.caller.uid, req.caller.gid)
                    when, flags = self.when(req, STAMP_BIRTH)
                    if self.options.ctime and flags & (STAMP_CTIME | STAMP_MTIME):
                        s, n = divmod(when, NS)
                        self.xset(fd, MDATA_KEY, pack_mdata((s, n, s, n, s, n)))
                    os.fchmod(fd, req.mode & 0o7777)
                    self.xset(fd, GFID_KEY, gfid)  # with it the file is there for good
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
            _, post = self.add_link(req, obj, st, parent, name)
            return PrePost(pre=pre, post=post)
        except OSError as error:
            raise self._in_parent(req, error) from error
