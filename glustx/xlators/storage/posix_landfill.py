"""What has no name any more in storage/posix: unlinked files that are still open, trees that were removed in one go.

They live on in `.glusterfs/unlink` and `.glusterfs/landfill`; what a crash leaves in either is removed at start.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from glustx.values import gfid_text, new_gfid
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_object import DIR_FLAGS, Obj
from glustx.xlators.storage.posix_range import PosixRange


class PosixLandfill(PosixRange):
    """The part of storage/posix that removes what has no name."""

    def _live_on(self, obj: Obj, aside: str) -> None:
        """Mark a file that has no name any more and is still open."""
        obj.gone = True
        if obj.xpath == obj.path:
            obj.xpath = aside
        obj.path = aside
        obj.iatt = None
        for inos in (self._inos, self._old_inos):
            if inos.get(obj.st_ino) is obj:
                del inos[obj.st_ino]

    def remove_tree(self, path: str) -> None:
        """Remove a tree that has no name in the volume any more, with the handles of what is in it. For a worker.

        Directories inside are first moved beside it, so that any depth takes one descriptor and no recursion.
        """
        todo = [path]
        while todo:
            here = todo[-1]
            fd = os.open(here, DIR_FLAGS)
            try:
                for name in os.listdir(fd):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode):
                        self._remove_dir_handle(fd, name)
                        inner = f"{self._handles}landfill/{gfid_text(new_gfid())}"
                        os.rename(name, inner, src_dir_fd=fd)
                        todo.append(inner)
                    else:
                        self._remove_leaf(fd, name)
            finally:
                os.close(fd)
            try:
                os.rmdir(here)
            except OSError as error:
                # A client that knew the directory has put something into it meanwhile.
                if error.errno != errno.ENOTEMPTY:
                    raise
                continue
            todo.remove(here)

    def _gfid_at(self, fd: int, name: str) -> tuple[bytes | None, os.stat_result]:
        st = os.lstat(name, dir_fd=fd)
        at: str | bytes = b"/proc/self/fd/%d/%s" % (fd, os.fsencode(name))
        if self.mapped and not (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)):
            at = self.sidecar(st.st_ino)
        return self.xget(at, b"trusted.gfid"), st

    def _remove_leaf(self, fd: int, name: str) -> None:
        gfid, st = self._gfid_at(fd, name)
        orphaned = False
        if gfid is not None and len(gfid) == 16 and st.st_nlink <= 2:
            handle = self.handle(gfid)
            with suppress(FileNotFoundError):
                if os.lstat(handle).st_ino == st.st_ino:
                    # Somebody may have it open: then its data goes with the last fd. The name goes after the handle,
                    # or nobody would find that one after a crash.
                    os.rename(handle, f"{self._handles}unlink/{gfid_text(gfid)}")
                    orphaned = True
        if self.mapped and not stat.S_ISREG(st.st_mode) and st.st_nlink <= 2:
            with suppress(FileNotFoundError):
                os.unlink(self.sidecar(st.st_ino))
        os.unlink(name, dir_fd=fd)
        if gfid is not None and orphaned:
            owner = gfid
            self.graph.reactor.post(lambda: self._orphaned(owner))

    def _orphaned(self, gfid: bytes) -> None:
        """On the reactor's thread: a file lost its last name to the removal of a tree."""
        aside = f"{self._handles}unlink/{gfid_text(gfid)}"
        inode = self.graph.inodes.find(gfid)
        obj = self._objs.get(inode) if inode is not None else None
        if obj is not None and obj.fds:
            self._live_on(obj, aside)
            return
        if obj is not None:
            self.forget(obj)
        try:
            os.unlink(aside)
        except OSError as error:
            log.warning("%s: %s stays until the next start: %s", self.name, aside, error.strerror)

    def _remove_dir_handle(self, fd: int, name: str) -> None:
        gfid, _ = self._gfid_at(fd, name)
        if gfid is not None and len(gfid) == 16:
            try:
                os.unlink(self.handle(gfid))
            except OSError:
                pass

    def collect_leftovers(self) -> list[str]:
        """At start: return what nobody can have open any more, unlinked files and half-removed trees."""
        landfill = f"{self._handles}landfill/"
        if os.listdir(f"{self._handles}unlink"):
            os.rename(f"{self._handles}unlink", landfill + gfid_text(new_gfid()))
            os.mkdir(f"{self._handles}unlink", 0o700)
        return [landfill + name for name in os.listdir(landfill)]

    def clear_leftovers(self, paths: list[str]) -> None:
        """Remove leftovers; for a worker, since it may take long."""
        for path in paths:
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    self.remove_tree(path)
                else:
                    os.unlink(path)
