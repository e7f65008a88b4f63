"""Resolution of storage/posix: from a gfid or a (parent, name) to the object on disk, and what is remembered of it.

Directories are reached by descriptors, kept in a bounded cache and found by walking the handle symlinks up to a known
ancestor; everything else by its handle, the hard link `.glusterfs/aa/bb/<gfid>`. Symbolic links are never followed. All
helpers here raise OSError (ESTALE for a gfid that the brick does not have); the fops turn that into FopError.

What is remembered of an object (its xattrs, its attributes) holds as long as st_ctime stands still: every change that
the kernel lets anybody make moves it.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Any

from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd, PerFd, PerInode
from glustx.values import NULL_GFID, ROOT_GFID, gfid_from_text, gfid_ino, gfid_text
from glustx.xdata import MDATA_KEY
from glustx.xlators.storage.posix_direct import go_direct
from glustx.xlators.storage.posix_keys import PosixKeys
from glustx.xlators.storage.posix_object import (
    DIR_FLAGS,
    GFID_KEY,
    At,
    Dir,
    Obj,
    OpenFile,
    parse_mdata,
)

if TYPE_CHECKING:
    from glustx.graph import Graph

log = logging.getLogger("glustx.storage.posix")

_DEEPEST = 10000
_LINK = re.compile(
    rb"\.\./\.\./([0-9a-f]{2})/([0-9a-f]{2})/(\1\2[0-9a-f]{4}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([^/\0]+)"
)


class PosixHandle(PosixKeys):
    """The part of storage/posix that finds objects."""

    # What `Xlator` and `Posix.start` provide.
    name: str
    options: Any
    graph: Graph
    brick: str
    brick_dev: int
    uid: int
    gid: int
    _root: Dir

    def _init_handles(self) -> None:
        """Prepare empty caches; called before `start`."""
        self._objs: PerInode[Obj] = PerInode()
        self._fds: PerFd[OpenFile] = PerFd()
        self._dirs: dict[bytes, Dir] = {}
        self._old_dirs: dict[bytes, Dir] = {}
        self._dirs_half = 2048
        self._inos: dict[int, Obj] = {}
        self._old_inos: dict[int, Obj] = {}
        self._inos_half = 32768
        self._anonymous: dict[bytes, OpenFile] = {}
        self._fans: set[bytes] = set()
        self.uid, self.gid = os.geteuid(), os.getegid()

    # -- gfid to object --------------------------------------------------------------------------------------------

    def handle(self, gfid: bytes) -> str:
        """Return the path of a gfid's handle."""
        t = gfid.hex()
        return f"{self._handles}{t[:2]}/{t[2:4]}/{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}"

    def dir(self, gfid: bytes) -> Dir:
        """Return the open directory of a gfid.

        Raises OSError: ESTALE when the brick has no such object, EINVAL for the null gfid, ENOTDIR.
        """
        found = self._dirs.get(gfid)
        if found is not None:
            return found
        found = self._old_dirs.pop(gfid, None)
        if found is None:
            found = self._root if gfid == ROOT_GFID else self._open_dir(gfid)
        return self._keep_dir(found)

    def _keep_dir(self, found: Dir) -> Dir:
        self._dirs[found.obj.gfid] = found
        if len(self._dirs) > self._dirs_half:
            self._old_dirs, self._dirs = self._dirs, {ROOT_GFID: self._root}
        return found

    def _open_dir(self, gfid: bytes) -> Dir:
        steps: list[tuple[bytes, bytes]] = []
        here = gfid
        base: Dir | None = None
        while base is None:
            if here == NULL_GFID:
                raise OSError(errno.EINVAL, "null gfid")
            parent, name = self.dir_place(here)
            steps.append((here, name))
            if len(steps) > _DEEPEST:
                raise OSError(errno.ESTALE, "directory handles run in a circle")
            here = parent
            base = self._root if here == ROOT_GFID else self._dirs.get(here) or self._old_dirs.get(here)
        for step, name in reversed(steps):
            try:
                fd = os.open(name, DIR_FLAGS, dir_fd=base.fd)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise OSError(errno.ESTALE, "directory handle leads nowhere") from None
                raise
            base = self.adopt_dir(step, fd)
        return base

    def dir_place(self, gfid: bytes) -> tuple[bytes, bytes]:
        """Return (parent's gfid, name) of a directory, from its handle."""
        try:
            target = os.readlink(os.fsencode(self.handle(gfid)))
        except FileNotFoundError:
            raise OSError(errno.ESTALE, "no such gfid") from None
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise OSError(errno.ENOTDIR, "not a directory") from None
            raise
        match = _LINK.fullmatch(target)
        if match is None or match[4] in (b".", b".."):
            raise OSError(errno.ENOTDIR, "not a directory")
        return gfid_from_text(match[3].decode()), match[4]

    def adopt_dir(self, gfid: bytes, fd: int) -> Dir:
        """Take over a freshly opened directory after making sure that it is `gfid`; the fd is closed on failure."""
        try:
            if self.xget(fd, GFID_KEY) != gfid:
                raise OSError(errno.ESTALE, "another directory has taken this place")
            st = os.fstat(fd)
        except BaseException:
            os.close(fd)
            raise
        obj = self.remember(gfid, st)
        found = Dir(fd, obj)
        if obj.ctime != st.st_ctime_ns:
            self.refresh(obj, st, fd)
        return self._keep_dir(found)

    def drop_dir(self, gfid: bytes) -> None:
        """Forget the descriptor of a directory that is gone."""
        self._dirs.pop(gfid, None)
        self._old_dirs.pop(gfid, None)

    def find(self, gfid: bytes) -> tuple[Obj, os.stat_result]:
        """Return an object and its stat; what is remembered of it is valid then.

        Raises OSError: ESTALE for an unknown gfid, EINVAL for the null gfid.
        """
        obj: Obj | None = self.graph.inodes.get(gfid).slots.get(self._objs)
        if obj is None:
            obj = self._discover(gfid)
        if obj.is_dir:
            fd = self.dir(gfid).fd
            st = os.fstat(fd)
            if not st.st_nlink:
                self.forget(obj)
                raise OSError(errno.ESTALE, "the directory is gone")
            if st.st_ctime_ns != obj.ctime:
                self.refresh(obj, st, fd)
            return obj, st
        if obj.gone:
            raise OSError(errno.ESTALE, "the last name is gone")
        try:
            st = os.lstat(obj.path)
        except FileNotFoundError:
            self.forget(obj)
            raise OSError(errno.ESTALE, "the handle is gone") from None
        if st.st_ctime_ns != obj.ctime:
            if st.st_ino != obj.st_ino:
                # Somebody has put another object in the handle's place: it may be anything.
                if obj.fds:
                    raise OSError(errno.ESTALE, "the handle is another object's")
                self.forget(obj)
                return self.find(gfid)
            self.refresh(obj, st, obj.xpath)
        return obj, st

    def _discover(self, gfid: bytes) -> Obj:
        """Find an object that the inode table does not know."""
        if gfid == NULL_GFID:
            raise OSError(errno.EINVAL, "null gfid")
        known = self._dirs.get(gfid) or self._old_dirs.get(gfid)
        if known is not None or gfid == ROOT_GFID:
            obj = self._root.obj if known is None else known.obj
            self._objs.set(self.graph.inodes.get(gfid), obj)
            return obj
        path = self.handle(gfid)
        try:
            if gfid[:2] not in self._fans:
                if not stat.S_ISDIR(os.lstat(os.path.dirname(path)).st_mode):
                    raise OSError(errno.ESTALE, "the handle's folder is none")
                self._fans.add(gfid[:2])
            st = os.lstat(path)
        except FileNotFoundError:
            self.graph.inodes.forget(gfid)
            raise OSError(errno.ESTALE, "no such gfid") from None
        if stat.S_ISLNK(st.st_mode) and st.st_nlink == 1:
            # A link that is an object has a name besides; this one tells where a directory is.
            return self.dir(gfid).obj
        xpath: At = path
        if self.mapped and not stat.S_ISREG(st.st_mode):
            xpath = self.sidecar(st.st_ino)
        if self.xget(xpath, GFID_KEY) != gfid:
            raise OSError(errno.ESTALE, "the handle is another object's")
        return self.remember(gfid, st)

    def remember(self, gfid: bytes, st: os.stat_result) -> Obj:
        """Return what is remembered of an object that was just seen on disk, making an empty record at first."""
        inode = self.graph.inodes.get(gfid)
        obj: Obj | None = inode.slots.get(self._objs)
        if obj is None:
            obj = self._inos.get(st.st_ino) or self._old_inos.get(st.st_ino)
            if obj is None or obj.gfid != gfid:
                is_dir = stat.S_ISDIR(st.st_mode)
                path = self.handle(gfid)
                xpath: At = path
                if self.mapped and not is_dir and not stat.S_ISREG(st.st_mode):
                    xpath = self.sidecar(st.st_ino)
                obj = Obj(gfid, gfid_ino(gfid), path, xpath, is_dir)
            inode.slots[self._objs] = obj
        obj.st_ino = st.st_ino
        self._inos[st.st_ino] = obj
        if len(self._inos) > self._inos_half:
            self._old_inos, self._inos = self._inos, {}
        return obj

    def held(self, number: int, obj: Obj, flags: int = 0) -> OpenFile:
        """Return an open file whose inode, and with it the record, is kept until it is released."""
        inode = self.graph.inodes.hold(obj.gfid)
        # The table may have forgotten the inode meanwhile; an open file's record must be the one that all find.
        obj = inode.slots.setdefault(self._objs, obj)
        f = OpenFile(number, obj, inode, flags)
        if flags & os.O_DIRECT or (self.options.o_direct and not obj.is_dir):
            go_direct(f, flags)
        return f

    def refresh(self, obj: Obj, st: os.stat_result, at: At) -> None:
        """Start the record of an object afresh: its ctime is not the one that is remembered."""
        obj.xattrs.clear()
        obj.whole = False
        obj.plan = None
        obj.iatt = None
        obj.times = None
        if self.options.ctime:
            raw = self.xget(at, MDATA_KEY)
            obj.xattrs[MDATA_KEY] = raw
            obj.times = parse_mdata(raw)
        obj.ctime = st.st_ctime_ns

    def forget(self, obj: Obj) -> None:
        """Drop the record of an object that is gone."""
        if obj.is_dir:
            self.drop_dir(obj.gfid)
        self._anonymous.pop(obj.gfid, None)
        inode = self.graph.inodes.find(obj.gfid)
        if inode is not None:
            inode.slots.pop(self._objs, None)
            self.graph.inodes.forget(obj.gfid)
        for inos in (self._inos, self._old_inos):
            if inos.get(obj.st_ino) is obj:
                del inos[obj.st_ino]

    def at(self, obj: Obj) -> At:
        """Return where the xattrs of an object are; a descriptor is good until the next directory is looked for."""
        return self.dir(obj.gfid).fd if obj.is_dir else obj.xpath

    # -- fds -------------------------------------------------------------------------------------------------------

    def opened(self, fd: Fd) -> OpenFile:
        """Return the descriptor behind an fd; an anonymous one is opened on demand.

        Raises OSError: EBADF for an fd that is not open here, ESTALE for an anonymous one of an unknown inode.
        """
        mine: OpenFile | None = fd.slots.get(self._fds)
        if mine is not None:
            return mine
        if not fd.anonymous:
            raise OSError(errno.EBADF, "the fd is not open")
        kept = self._anonymous.get(fd.gfid)
        if kept is not None:
            return kept
        obj, st = self.find(fd.gfid)
        if not stat.S_ISREG(st.st_mode):
            raise OSError(errno.EISDIR if obj.is_dir else errno.EINVAL, "not a regular file")
        try:
            number = os.open(obj.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            number = os.open(obj.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if len(self._anonymous) >= 64:
            del self._anonymous[next(iter(self._anonymous))]
        kept = self._anonymous[fd.gfid] = OpenFile(number, obj, None)
        return kept

    # -- errors ----------------------------------------------------------------------------------------------------

    def failed(self, req: Fop, error: OSError | OverflowError) -> FopError:
        """Return the FopError that says on which host and brick, at what, and why a fop failed."""
        where = " to ".join(str(loc) for loc in req.targets())
        if not where:
            fd = getattr(req, "fd", None)
            where = f"<{gfid_text(fd.gfid)}>" if isinstance(fd, Fd) else "-"
        if isinstance(error, OSError):
            number = error.errno or errno.EIO
            text = error.strerror or os.strerror(number)
        else:
            number, text = errno.EINVAL, "an offset past 2^63"
        return FopError(number, f"{self.graph.surroundings.host}:{self.brick}: {req.name} {where}: {text}")
