"""Names on the brick's disk, in storage/posix: what may be one, the object behind one, its handle, and the xattrs that
tell an object's names."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

import xxhash

from glustx.values import NULL_GFID, ROOT_GFID, gfid_text
from glustx.xlators.storage.posix_handle import PosixHandle, log
from glustx.xlators.storage.posix_intent import Journal
from glustx.xlators.storage.posix_object import GFID2PATH, GFID_KEY, PGFID, At, Dir, Obj, dir_link
from glustx.xlators.storage.posix_own import own_folder

NAME_MAX = 255
_DEEPEST = 10000


def gfid2path(pargfid: bytes, name: bytes) -> tuple[bytes, bytes]:
    """Return the key and value of the xattr that records one name of a file."""
    value = gfid_text(pargfid).encode() + b"/" + name
    return GFID2PATH + xxhash.xxh64_hexdigest(value).encode(), value


class PosixEntry(PosixHandle):
    """Directory entries and handles."""

    journal: Journal

    def check_name(self, pargfid: bytes, name: bytes) -> None:
        """Refuse what cannot be the name of an entry: OSError EINVAL, ENAMETOOLONG, or EPERM for the brick's own."""
        if not name or b"/" in name or b"\0" in name or name == b"." or name == b"..":
            raise OSError(errno.EINVAL, "not a name")
        if len(name) > NAME_MAX:
            raise OSError(errno.ENAMETOOLONG, "name too long")
        if name == b".glusterfs" and pargfid == ROOT_GFID:
            raise OSError(errno.EPERM, "reserved for the brick")

    def named(
        self, parent: Dir, name: bytes, st: os.stat_result, gfid_req: bytes | None = None
    ) -> tuple[Obj, os.stat_result]:
        """Return the record and the stat of a directory entry whose stat was just taken (another one when it had to be
        completed here).

        Args:
            gfid_req: a gfid to give to an object that has none (one that was put on the brick from outside).

        Raises OSError: ENODATA for an object without gfid, EIO when its gfid belongs to another object.
        """
        obj = self._inos.get(st.st_ino)
        if obj is not None and obj.ctime == st.st_ctime_ns:
            return obj, st
        at = self.at_name(parent, name, st)
        gfid = self.xget(at, GFID_KEY)
        healed = False
        if gfid is None or len(gfid) != 16 or gfid == NULL_GFID:
            if gfid_req is None or gfid_req == NULL_GFID or len(gfid_req) != 16:
                raise OSError(errno.ENODATA, "the object has no gfid")
            gfid = gfid_req
            self._adopt_foreign(parent, name, st, at, gfid)
            healed = True
        if self._heal_handle(parent, name, st, gfid) or healed:
            st = os.lstat(name, dir_fd=parent.fd)
        obj = self.remember(gfid, st)
        self.refresh(obj, st, at if obj.is_dir else obj.xpath)
        return obj, st

    def _adopt_foreign(self, parent: Dir, name: bytes, st: os.stat_result, at: At, gfid: bytes) -> None:
        """Give a gfid to an object that was put on the brick from outside."""
        if at == self.sidecar(st.st_ino):
            self.make_sidecar(at)
        if not stat.S_ISDIR(st.st_mode) and self.options.gfid2path:
            self.xset(at, *gfid2path(parent.obj.gfid, name))
        # The gfid is last: without it the next LOOKUP begins anew, and what is missing after it is completed.
        self.xset(at, GFID_KEY, gfid, os.XATTR_CREATE)

    def _heal_handle(self, parent: Dir, name: bytes, st: os.stat_result, gfid: bytes) -> bool:
        """Make sure that the handle of a named object is there and leads to it; return whether it had to be made."""
        path = self.handle(gfid)
        if stat.S_ISDIR(st.st_mode):
            target = dir_link(parent.obj.gfid, name)
            with suppress(OSError):
                if os.readlink(os.fsencode(path)) == target:
                    return False
            try:
                self._same(os.fstat(self.dir(gfid).fd), st, gfid)
            except OSError as error:
                if error.errno == errno.EIO:
                    raise
            os.rename(self.stage_dir_handle(gfid, target), path)
            return True
        try:
            there = os.lstat(path)
        except FileNotFoundError:
            self.make_handle(gfid, name, parent.fd)
            return True
        self._same(there, st, gfid)
        return False

    @staticmethod
    def _same(there: os.stat_result, st: os.stat_result, gfid: bytes) -> None:
        if there.st_nlink and (there.st_ino, there.st_dev) != (st.st_ino, st.st_dev):
            raise OSError(errno.EIO, f"gfid {gfid_text(gfid)} belongs to two objects")

    def make_handle(self, gfid: bytes, name: bytes, dir_fd: int) -> None:
        """Link a file's handle; OSError(EEXIST) when the gfid is taken."""
        try:
            os.link(name, self.handle_place(gfid), src_dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            self._fans.discard(gfid[:2])  # somebody has tidied up
            os.link(name, self.handle_place(gfid), src_dir_fd=dir_fd, follow_symlinks=False)

    def link_dir_handle(self, gfid: bytes, target: bytes) -> None:
        """Make the symlink that tells where a directory is; OSError(EEXIST) when the gfid is taken."""
        try:
            os.symlink(target, os.fsencode(self.handle_place(gfid)))
        except FileNotFoundError:
            self._fans.discard(gfid[:2])
            os.symlink(target, os.fsencode(self.handle_place(gfid)))

    def stage_dir_handle(self, gfid: bytes, target: bytes) -> str:
        """Make the symlink for a directory's new place beside its handle; renaming it there is the last step."""
        place = self.handle_place(gfid) + ".new"
        with suppress(FileNotFoundError):
            os.unlink(place)
        os.symlink(target, os.fsencode(place))
        return place

    def handle_place(self, gfid: bytes) -> str:
        """Return the path of a handle that is about to be made, in a folder that is there."""
        path = self.handle(gfid)
        fan = gfid[:2]
        if fan not in self._fans:
            own_folder(os.path.dirname(path))
            self._fans.add(fan)
        return path

    def path_of(self, gfid: bytes) -> bytes:
        """Return a directory's path from the brick's root, such as `/a/b`."""
        parts: list[bytes] = []
        while gfid != ROOT_GFID:
            gfid, name = self.dir_place(gfid)
            parts.append(name)
            if len(parts) > _DEEPEST:
                raise OSError(errno.ESTALE, "directory handles run in a circle")
        return b"/" + b"/".join(reversed(parts))

    # -- the xattrs that tell names --------------------------------------------------------------------------------

    def name_added(self, obj: Obj, parent: Dir, name: bytes) -> None:
        """Record one more name of a file in its xattrs; undoes itself when it fails midway."""
        at = self.at(obj)
        key, value = gfid2path(parent.obj.gfid, name)
        if self.options.gfid2path:
            self.xset(at, key, value)
        if self.options.update_link_count_parent:
            try:
                self._count_links(at, parent, 1)
            except OSError:
                self.xdel(at, key)
                raise

    def name_removed(self, obj: Obj, parent: Dir, name: bytes) -> None:
        """Take one name of a file out of its xattrs; what is not there is no failure."""
        at = self.at(obj)
        try:
            if self.options.gfid2path:
                self.xdel(at, gfid2path(parent.obj.gfid, name)[0])
        except OSError as error:
            if error.errno != errno.ENODATA:
                log.warning("%s: gfid2path of %s: %s", self.name, obj.gfid.hex(), error.strerror)
        if self.options.update_link_count_parent:
            try:
                self._count_links(at, parent, -1)
            except OSError as error:
                log.warning("%s: link count of %s: %s", self.name, obj.gfid.hex(), error.strerror)

    def _count_links(self, at: At, parent: Dir, delta: int) -> None:
        """Keep trusted.pgfid.<parent>, the number of names that a file has in one directory."""
        key = PGFID + gfid_text(parent.obj.gfid).encode()
        count = int.from_bytes((self.xget(at, key) or b"")[:4], "big") + delta
        if count > 0:
            self.xset(at, key, count.to_bytes(4, "big"))
        elif self.xget(at, key) is not None:
            self.xdel(at, key)
