"""Names of storage/memory: lookup, all that makes, moves and removes entries, directories, opening."""

from __future__ import annotations

import errno
import stat as _stat

from glustx import fops
from glustx import xdata as xd
from glustx.errors import FopError
from glustx.fops import (
    CreateReply,
    DirEntry,
    Done,
    EntryReply,
    LookupReply,
    PrePost,
    ReaddirReply,
    ReadlinkReply,
    RenameReply,
)
from glustx.inode import O_ACCMODE, Fd
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    STAMP_CTIME,
    ZERO_IATT,
    Caller,
    Iatt,
    Loc,
    gfid_ino,
)
from glustx.xdata import EMPTY, Xdata
from glustx.xlators.storage.memory_nodes import STAMP_ALL, Node
from glustx.xlators.storage.memory_pages import PAGE
from glustx.xlators.storage.memory_store import (
    O_EXCL,
    O_TRUNC,
    XATTR_SPACES,
    Store,
    as_stored,
    put_xattrs,
    settable,
)

_TARGET_MAX = 4095
# Encoded bytes of a directory entry besides its name: the list mark, ino, off, length, type, the length once more; and
# with attributes.
_ENTRY_SIZE = 32
_ENTRYP_SIZE = _ENTRY_SIZE + 148


class Names(Store):
    """Fops on names, directories and fds."""

    async def lookup(self, req: fops.Lookup) -> LookupReply:
        """Find by name, or by gfid alone; `.` is the directory itself, as is `..` at the root."""
        loc = req.loc
        if loc.pargfid == NULL_GFID or not loc.name:
            if loc.gfid == NULL_GFID:
                raise FopError(errno.EINVAL, "lookup without a gfid or a name")
            node = self._nodes.get(loc.gfid)
            if node is None:
                raise FopError(errno.ENOENT, f"{loc}: unknown gfid")
            return LookupReply(xdata=self._wanted(node, req.xdata), stat=node.iatt(), postparent=ZERO_IATT)
        parent = self._parent(loc)
        if loc.name == b"." or (loc.name == b".." and parent.gfid == ROOT_GFID):
            node = parent
        else:
            _, node = self._named(loc)
        return LookupReply(xdata=self._wanted(node, req.xdata), stat=node.iatt(), postparent=parent.iatt())

    def _make(self, req: fops.Fop, loc: Loc, mode: int, xattrs: dict[bytes, bytes] | None = None) -> tuple[Node, Iatt]:
        """Make a node under a free name and return it with the parent as it was before."""
        parent = self._parent(loc)
        if self._find(parent, loc) is not None:
            raise FopError(errno.EEXIST, f"{loc}: the name is taken")
        gfid = req.xdata.gfid_req
        if gfid is None or gfid == NULL_GFID:
            raise FopError(errno.EINVAL, f"{loc}: no gfid-req")
        if gfid in self._nodes:
            raise FopError(errno.EEXIST, f"{loc}: the gfid of gfid-req is taken")
        if len(self._nodes) >= self.options.capacity // PAGE:
            raise FopError(errno.ENOSPC, f"{loc}: {self.name} holds {len(self._nodes)} inodes")
        pre = parent.iatt()
        caller: Caller = req.caller
        gid = caller.gid
        if parent.mode & _stat.S_ISGID:
            gid = parent.gid
            if _stat.S_ISDIR(mode):
                mode |= _stat.S_ISGID
        node = Node(gfid, mode, caller.uid, gid)
        node.stamp(req, STAMP_ALL)
        given = {key: as_stored(value) for key, value in req.xdata.typed() if key.startswith(XATTR_SPACES)}
        put_xattrs(node, {**given, **(xattrs or {})})
        self._nodes[gfid] = node
        parent.add(loc.name, node)
        parent.stamp_parent(req)
        return node, pre

    def _entry(self, node: Node, loc: Loc, pre: Iatt) -> EntryReply:
        return EntryReply(stat=node.iatt(), preparent=pre, postparent=self._nodes[loc.pargfid].iatt())

    async def mknod(self, req: fops.Mknod) -> EntryReply:
        """Make a file, fifo, socket or device node."""
        kind = _stat.S_IFMT(req.mode) or _stat.S_IFREG
        if kind in (_stat.S_IFDIR, _stat.S_IFLNK):
            raise FopError(errno.EPERM, f"{req.loc}: mknod makes neither directories nor symbolic links")
        node, pre = self._make(req, req.loc, kind | (req.mode & 0o7777 & ~req.umask))
        node.rdev = req.rdev if kind in (_stat.S_IFBLK, _stat.S_IFCHR) else 0
        return self._entry(node, req.loc, pre)

    async def mkdir(self, req: fops.Mkdir) -> EntryReply:
        """Make a directory."""
        node, pre = self._make(req, req.loc, _stat.S_IFDIR | (req.mode & 0o7777 & ~req.umask))
        return self._entry(node, req.loc, pre)

    async def symlink(self, req: fops.Symlink) -> EntryReply:
        """Make a symbolic link."""
        if not req.linkname:
            raise FopError(errno.ENOENT, f"{req.loc}: an empty target")
        if len(req.linkname) > _TARGET_MAX:
            raise FopError(errno.ENAMETOOLONG, f"{req.loc}: a target of {len(req.linkname)} bytes")
        node, pre = self._make(req, req.loc, _stat.S_IFLNK | 0o777)
        node.target = req.linkname
        return self._entry(node, req.loc, pre)

    async def create(self, req: fops.Create) -> CreateReply:
        """Make a file and open it, or open the one that is there."""
        loc = req.loc
        parent = self._parent(loc)
        node = self._find(parent, loc)
        if node is None:
            node, pre = self._make(req, loc, _stat.S_IFREG | (req.mode & 0o7777 & ~req.umask))
        elif req.flags & O_EXCL:
            raise FopError(errno.EEXIST, f"{loc}: the name is taken")
        else:
            pre = parent.iatt()
            self._openable(node, loc, req.flags)
            if req.flags & O_TRUNC:
                self._truncate(node, 0, req)
        self._hold(req.fd, node, req.flags)
        echo = Xdata({xd.GFID_REQ: xd.gfuuid(req.xdata.gfid_req)}) if req.xdata.gfid_req else EMPTY
        return CreateReply(xdata=echo, stat=node.iatt(), preparent=pre, postparent=parent.iatt())

    async def put(self, req: fops.Put) -> EntryReply:
        """Make a file with its content and xattrs."""
        size = len(req.data)
        self._range(req.offset, size)
        pairs = settable(req.xattrs)
        if (self._used - (-size // PAGE) + 1) * PAGE > self.options.capacity:
            raise FopError(errno.ENOSPC, f"{req.loc}: {size} bytes do not fit into {self.name}")
        node, pre = self._make(req, req.loc, _stat.S_IFREG | (req.mode & 0o7777 & ~req.umask), pairs)
        node.pages.write(req.offset, req.data)
        self._resize(node, 0)
        return self._entry(node, req.loc, pre)

    async def link(self, req: fops.Link) -> EntryReply:
        """Give an inode another name."""
        node = self._node(req.oldloc)
        if node.is_dir():
            raise FopError(errno.EPERM, f"{req.oldloc}: a directory has one name")
        parent = self._parent(req.newloc)
        if self._find(parent, req.newloc) is not None:
            raise FopError(errno.EEXIST, f"{req.newloc}: the name is taken")
        pre = parent.iatt()
        parent.add(req.newloc.name, node)
        node.nlink += 1
        node.stamp(req, STAMP_CTIME)
        parent.stamp_parent(req)
        return EntryReply(stat=node.iatt(), preparent=pre, postparent=parent.iatt())

    def _drop_name(self, req: fops.Fop, parent: Node, name: bytes, node: Node) -> None:
        parent.remove(name, node)
        node.nlink = 0 if node.is_dir() else node.nlink - 1
        node.stamp(req, STAMP_CTIME)
        parent.stamp_parent(req)
        if not node.nlink:
            del self._nodes[node.gfid]
            self._forget(node)

    async def unlink(self, req: fops.Unlink) -> PrePost:
        """Remove a name; the inode lives on while an fd holds it."""
        parent, node = self._named(req.loc)
        if node.is_dir():
            raise FopError(errno.EISDIR, f"{req.loc}: a directory")
        pre = parent.iatt()
        answer = EMPTY
        if xd.GET_LINK_COUNT in req.xdata:
            answer = Xdata({xd.GET_LINK_COUNT: xd.uint(node.nlink)})
        self._drop_name(req, parent, req.loc.name, node)
        return PrePost(xdata=answer, pre=pre, post=parent.iatt())

    async def rmdir(self, req: fops.Rmdir) -> PrePost:
        """Remove an empty directory; with `xflags` 1 also one that is not empty."""
        parent, node = self._named(req.loc)
        if node.entries is None:
            raise FopError(errno.ENOTDIR, f"{req.loc}: not a directory")
        if node.entries and not req.xflags & 1:
            raise FopError(errno.ENOTEMPTY, f"{req.loc}: {len(node.entries)} names are in it")
        pre = parent.iatt()
        self._empty(req, node)
        self._drop_name(req, parent, req.loc.name, node)
        return PrePost(pre=pre, post=parent.iatt())

    def _empty(self, req: fops.Fop, top: Node) -> None:
        stack = [top]
        while stack:
            folder = stack[-1]
            assert folder.entries is not None
            deeper = False
            for name, (gfid, _) in list(folder.entries.items()):
                node = self._nodes[gfid]
                if node.entries:
                    stack.append(node)
                    deeper = True
                    break
                self._drop_name(req, folder, name, node)
            if not deeper:
                stack.pop()

    async def rename(self, req: fops.Rename) -> RenameReply:
        """Move a name, replacing what the new one held."""
        oldparent, node = self._named(req.oldloc)
        newparent = self._parent(req.newloc)
        victim = self._find(newparent, req.newloc)
        preold, prenew = oldparent.iatt(), newparent.iatt()
        if node.is_dir():
            above = newparent
            while above is not above.parent:
                if above is node:
                    raise FopError(errno.EINVAL, f"{req.newloc}: inside of the directory that is to move")
                above = above.parent
        if victim is not node:
            if victim is not None:
                if victim.entries is not None:
                    if not node.is_dir():
                        raise FopError(errno.EISDIR, f"{req.newloc}: a directory is in the way")
                    if victim.entries:
                        raise FopError(errno.ENOTEMPTY, f"{req.newloc}: {len(victim.entries)} names are in it")
                elif node.is_dir():
                    raise FopError(errno.ENOTDIR, f"{req.newloc}: a file is in a directory's way")
                self._drop_name(req, newparent, req.newloc.name, victim)
            oldparent.remove(req.oldloc.name, node)
            newparent.add(req.newloc.name, node)
            node.stamp(req, STAMP_CTIME)
            oldparent.stamp_parent(req)
            newparent.stamp_parent(req)
        return RenameReply(
            stat=node.iatt(),
            preoldparent=preold,
            postoldparent=oldparent.iatt(),
            prenewparent=prenew,
            postnewparent=newparent.iatt(),
        )

    async def readlink(self, req: fops.Readlink) -> ReadlinkReply:
        """Return a symbolic link's target, cut to `size` bytes."""
        node = self._node(req.loc)
        if not node.target:
            raise FopError(errno.EINVAL, f"{req.loc}: not a symbolic link")
        return ReadlinkReply(stat=node.iatt(), path=node.target[: req.size])

    # -- directories -------------------------------------------------------------------------------------------------

    async def opendir(self, req: fops.Opendir) -> Done:
        """Open a directory."""
        node = self._node(req.loc)
        if not node.is_dir():
            raise FopError(errno.ENOTDIR, f"{req.loc}: not a directory")
        self._hold(req.fd, node, 0)
        return Done()

    async def readdir(self, req: fops.Readdir) -> ReaddirReply:
        """Return names behind a cookie."""
        entries: list[DirEntry] = []
        left = req.size
        for name, gfid, off in self._folder(req.fd).listing(req.offset):
            left -= _ENTRY_SIZE + len(name) + (-len(name) % 4)
            if left < 0 and entries:
                return ReaddirReply(entries=tuple(entries))
            kind = _stat.S_IFMT(self._nodes[gfid].mode) >> 12 if gfid in self._nodes else 4
            entries.append(DirEntry(ino=gfid_ino(gfid), off=off, type=kind, name=name, gfid=gfid))
        return ReaddirReply(entries=tuple(entries), eof=True)

    async def readdirp(self, req: fops.Readdirp) -> ReaddirReply:
        """Return names behind a cookie with attributes and the xattrs that xdata asks for."""
        entries: list[DirEntry] = []
        left = req.size
        folder = self._folder(req.fd)
        for name, gfid, off in folder.listing(req.offset):
            node = self._nodes.get(gfid, folder)
            xattrs = self._wanted(node, req.xdata) if name not in (b".", b"..") else EMPTY
            left -= _ENTRYP_SIZE + len(name) + (-len(name) % 4) + len(xattrs.raw)
            if left < 0 and entries:
                return ReaddirReply(entries=tuple(entries))
            stat = node.iatt()
            entries.append(
                DirEntry(
                    ino=stat.ino,
                    off=off,
                    type=_stat.S_IFMT(node.mode) >> 12,
                    name=name,
                    stat=stat,
                    xattrs=xattrs,
                    gfid=gfid,
                )
            )
        return ReaddirReply(entries=tuple(entries), eof=True)

    def _folder(self, fd: Fd) -> Node:
        node = self._opened(fd)
        if not node.is_dir():
            raise FopError(errno.ENOTDIR, f"{fd} is not a directory")
        return node

    async def fsyncdir(self, req: fops.Fsyncdir) -> Done:
        """Memory has nothing to make durable; the fd is checked."""
        self._folder(req.fd)
        return Done()

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self, req: fops.Open) -> Done:
        """Open a regular file."""
        node = self._node(req.loc)
        self._openable(node, req.loc, req.flags)
        if req.flags & O_TRUNC and req.flags & O_ACCMODE:
            self._truncate(node, 0, req)
        self._hold(req.fd, node, req.flags)
        return Done()

    async def release(self, req: fops.Release) -> Done:
        """Give an fd back."""
        held = self._slot.pop(req.fd)
        if held is not None:
            held.node.fds -= 1
            self._forget(held.node)
        return Done()

    async def releasedir(self, req: fops.Releasedir) -> Done:
        """Give a directory fd back."""
        held = self._slot.pop(req.fd)
        if held is not None:
            held.node.fds -= 1
        return Done()

    async def flush(self, req: fops.Flush) -> Done:
        """Nothing is buffered; the fd is checked."""
        self._opened(req.fd)
        return Done()

    async def fsync(self, req: fops.Fsync) -> PrePost:
        """Memory has nothing to make durable; the attributes are true."""
        stat = self._opened(req.fd).iatt()
        return PrePost(pre=stat, post=stat)
