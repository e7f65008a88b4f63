"""Names that go or move in storage/posix: UNLINK, RMDIR and RENAME, and what is left for later.

The handle goes before the last name: a loss of power in between leaves a name without handle, which the next LOOKUP
completes; after a kill the next start does (`posix_recover`). A file that clients still have open lives on as
`.glusterfs/unlink/<gfid>`, a tree removed in one go as `.glusterfs/landfill/<gfid>`; what a crash leaves in either is
removed at start.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager

from glustx import fops
from glustx.fops import Fop, PrePost, RenameReply
from glustx.runtime import shield
from glustx.values import NULL_GFID, gfid_text, new_gfid
from glustx.xdata import EMPTY, GET_LINK_COUNT, Xdata, uint
from glustx.xlators.storage.posix_attr import STAMP_NAME
from glustx.xlators.storage.posix_data import INLINE_FREE
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_intent import Intent, Journal, Place
from glustx.xlators.storage.posix_landfill import PosixLandfill
from glustx.xlators.storage.posix_object import (
    Dir,
    Obj,
    dir_link,
)

_ONLY_LINKTO = b"unlink-only-if-dht-linkto-file"
_NOT_OPEN = b"dont-unlink-for-open-fd"
_LINKTO = b"trusted.glusterfs.dht.linkto"
_BLOCK_COUNT = b"gf_get_file_block_count"


class PosixUnlink(PosixLandfill):
    """The fops that take names away."""

    # Trees that workers are removing.
    removals = 0

    # -- UNLINK ----------------------------------------------------------------------------------------------------

    async def unlink(self, req: fops.Unlink) -> PrePost:
        """UNLINK; EISDIR for a directory. A file that is open stays readable through its fds."""
        name = req.loc.name
        try:
            parent = self.parent_of(req, req.loc)
            st = os.lstat(name, dir_fd=parent.fd)
            if stat.S_ISDIR(st.st_mode):
                raise OSError(errno.EISDIR, "a directory")
            try:
                obj, st = self.named(parent, name, st)
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.EIO):
                    raise
                return self._unlink_foreign(req, parent, name)
            pre = self.parent_seen(parent)
            answers = EMPTY
            if req.xdata is not EMPTY:
                self._unlink_checks(req, obj, st)
                answers = self._unlink_answers(req, st)
            waste: str | None = None
            with self._taking(req, parent, name, obj.gfid, st):
                if st.st_nlink > 2:
                    os.unlink(name, dir_fd=parent.fd)
                    self.name_removed(obj, parent, name)
                    self.touch(req, obj, st, STAMP_NAME)
                    self.settle(obj, os.lstat(obj.path))
                else:
                    with self.last_name_goes(obj, st, parent, name) as waste:
                        os.unlink(name, dir_fd=parent.fd)
                    if obj.gone:
                        self.touch(req, obj, st, STAMP_NAME)
                post = self.parent_changed(req, parent)
            if waste is not None:
                await shield(self.work(os.unlink, waste))
            return PrePost(pre=pre, post=post, xdata=answers)
        except OSError as error:
            raise self.failed(req, error) from error

    def _taking(self, req: Fop, parent: Dir, name: bytes, gfid: bytes, st: os.stat_result) -> Journal:
        """Note that a name is about to be taken away."""
        places = (Place(parent.obj.gfid, name),)
        intent = Intent(req.name, time.time_ns(), req.ctime, req.stamp, places, victim=gfid, ino=st.st_ino)
        return self.journal.note(intent)

    def _unlink_foreign(self, req: fops.Unlink, parent: Dir, name: bytes) -> PrePost:
        """Remove a name that the brick knows nothing of (no gfid, or a copy that carries another file's)."""
        pre = self.parent_seen(parent)
        os.unlink(name, dir_fd=parent.fd)
        return PrePost(pre=pre, post=self.parent_changed(req, parent))

    def _unlink_checks(self, req: fops.Unlink, obj: Obj, st: os.stat_result) -> None:
        xdata = req.xdata
        if xdata.number(_ONLY_LINKTO):
            link_file = stat.S_IMODE(st.st_mode) == stat.S_ISVTX and self.xget(self.at(obj), _LINKTO) is not None
            if not link_file:
                raise OSError(errno.EBUSY, "not a dht link file")
        if xdata.number(_NOT_OPEN) and obj.fds:
            raise OSError(errno.EBUSY, "the file is open")

    @staticmethod
    def _unlink_answers(req: fops.Unlink, st: os.stat_result) -> Xdata:
        answers: dict[bytes, object] = {}
        if GET_LINK_COUNT in req.xdata:
            answers[GET_LINK_COUNT] = uint(st.st_nlink - 1)
        if _BLOCK_COUNT in req.xdata:
            answers[_BLOCK_COUNT] = uint(st.st_blocks)
        return Xdata(answers) if answers else EMPTY

    @contextmanager
    def last_name_goes(self, obj: Obj, st: os.stat_result, parent: Dir, name: bytes) -> Iterator[str | None]:
        """Take the handle of a file away around the removal of its last name, putting it back when that fails.

        Yields a path that the caller removes on a worker afterwards, when freeing the blocks may take its time.
        """
        handle = obj.path
        large = st.st_blocks * 512 > INLINE_FREE
        aside = ""
        if obj.fds or large:
            aside = f"{self._handles}unlink/{gfid_text(obj.gfid)}"
            os.rename(handle, aside)
        else:
            os.unlink(handle)
        try:
            yield aside if large and not obj.fds else None
        except BaseException:
            try:
                if aside:
                    os.rename(aside, handle)
                else:
                    self.make_handle(obj.gfid, name, parent.fd)
            except OSError as error:
                log.error("%s: handle of %s is lost: %s", self.name, obj.gfid.hex(), error.strerror)
            raise
        if obj.fds:
            self._live_on(obj, aside)
        else:
            if obj.xpath != handle and isinstance(obj.xpath, str):
                os.unlink(obj.xpath)
            self.forget(obj)

    # -- RMDIR -----------------------------------------------------------------------------------------------------

    async def rmdir(self, req: fops.Rmdir) -> PrePost:
        """RMDIR; ENOTEMPTY for one that is not empty, unless `xflags` 1 asks to remove all that is in it."""
        name = req.loc.name
        try:
            parent = self.parent_of(req, req.loc)
            st = os.lstat(name, dir_fd=parent.fd)
            if not stat.S_ISDIR(st.st_mode):
                raise OSError(errno.ENOTDIR, "not a directory")
            obj: Obj | None
            try:
                obj, st = self.named(parent, name, st)
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.EIO):
                    raise
                obj = None
            pre = self.parent_seen(parent)
            waste = None
            with self._taking(req, parent, name, obj.gfid if obj is not None else NULL_GFID, st):
                if req.xflags & 1:
                    waste = f"{self._handles}landfill/{gfid_text(new_gfid())}"
                    os.rename(name, waste, src_dir_fd=parent.fd)
                else:
                    os.rmdir(name, dir_fd=parent.fd)
                if obj is not None:
                    self._dir_gone(obj)
                post = self.parent_changed(req, parent)
            if waste is not None:
                await shield(self._remove_away(waste))
            return PrePost(pre=pre, post=post)
        except OSError as error:
            raise self.failed(req, error) from error

    async def _remove_away(self, tree: str) -> None:
        self.removals += 1
        try:
            await self.work(self.remove_tree, tree)
        finally:
            self.removals -= 1

    def _dir_gone(self, obj: Obj) -> None:
        try:
            os.unlink(obj.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s: handle of %s stays: %s", self.name, obj.gfid.hex(), error.strerror)
        self.forget(obj)

    # -- RENAME ----------------------------------------------------------------------------------------------------

    async def rename(self, req: fops.Rename) -> RenameReply:
        """RENAME; what the new name held is removed as UNLINK and RMDIR do. Two names of one file: nothing happens."""
        old, new = req.oldloc.name, req.newloc.name
        try:
            source = self.parent_of(req, req.oldloc)
            target = self.parent_of(req, req.newloc)
            st = os.lstat(old, dir_fd=source.fd)
            obj, st = self.named(source, old, st)
            pre_old, pre_new = self.parent_seen(source), self.parent_seen(target)
            victim, victim_st = self._victim(target, new)
            waste = None
            post_old, post_new = pre_old, pre_new
            if victim is obj:
                stat_ = self.settle(obj, os.lstat(new, dir_fd=target.fd))
            else:
                places = (Place(source.obj.gfid, old), Place(target.obj.gfid, new, obj.gfid))
                lost, ino = (victim.gfid, victim.st_ino) if victim is not None else (NULL_GFID, 0)
                intent = Intent(
                    req.name, time.time_ns(), req.ctime, req.stamp, places, gfid=obj.gfid, victim=lost, ino=ino
                )
                with self.journal.note(intent):
                    if obj.is_dir:
                        self._rename_dir(source, old, target, new, obj, victim)
                    else:
                        waste = self._rename_file(req, source, old, target, new, obj, victim, victim_st)
                    self.touch(req, obj, st, STAMP_NAME)
                    stat_ = self.settle(obj, os.lstat(new, dir_fd=target.fd))
                    post_old = self.parent_changed(req, source)
                    post_new = self.parent_changed(req, target)
            if source.obj is target.obj:
                post_old = post_new
            if waste is not None:
                await shield(self.work(os.unlink, waste))
        except OSError as error:
            raise self.failed(req, error) from error
        return RenameReply(
            stat=stat_, preoldparent=pre_old, postoldparent=post_old, prenewparent=pre_new, postnewparent=post_new
        )

    def _victim(self, parent: Dir, name: bytes) -> tuple[Obj | None, os.stat_result | None]:
        try:
            st = os.lstat(name, dir_fd=parent.fd)
        except FileNotFoundError:
            return None, None
        try:
            return self.named(parent, name, st)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EIO):
                raise
            return None, None

    def _rename_dir(self, source: Dir, old: bytes, target: Dir, new: bytes, obj: Obj, victim: Obj | None) -> None:
        if victim is not None and not victim.is_dir:
            raise OSError(errno.ENOTDIR, "a directory cannot replace a file")
        staged = self.stage_dir_handle(obj.gfid, dir_link(target.obj.gfid, new))
        try:
            os.rename(old, new, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        except BaseException:
            os.unlink(staged)
            raise
        try:
            os.rename(staged, obj.path)
        except BaseException:
            if victim is None:
                os.rename(new, old, src_dir_fd=target.fd, dst_dir_fd=source.fd)
            raise
        if victim is not None:
            self._dir_gone(victim)

    def _rename_file(
        self,
        req: Fop,
        source: Dir,
        old: bytes,
        target: Dir,
        new: bytes,
        obj: Obj,
        victim: Obj | None,
        victim_st: os.stat_result | None,
    ) -> str | None:
        """Rename a file; return what is left of a large victim, to be removed on a worker."""
        if victim is not None and victim.is_dir:
            raise OSError(errno.EISDIR, "a file cannot replace a directory")
        waste = None
        self.name_added(obj, target, new)
        try:
            if victim is None or victim_st is None:
                os.rename(old, new, src_dir_fd=source.fd, dst_dir_fd=target.fd)
            elif victim_st.st_nlink > 2:
                os.rename(old, new, src_dir_fd=source.fd, dst_dir_fd=target.fd)
                self.name_removed(victim, target, new)
                self.touch(req, victim, victim_st, STAMP_NAME)
                self.settle(victim, os.lstat(victim.path))
            else:
                with self.last_name_goes(victim, victim_st, target, new) as waste:
                    os.rename(old, new, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        except BaseException:
            self.name_removed(obj, target, new)
            raise
        self.name_removed(obj, source, old)
        return waste
