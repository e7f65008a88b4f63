"""Attributes of storage/memory: stat, xattrs and their arithmetic."""

from __future__ import annotations

import errno
import stat as _stat
import struct
from collections.abc import Iterable

from glustx import fops
from glustx import xdata as xd
from glustx.errors import FopError
from glustx.fops import (
    AttrReply,
    Done,
    PrePost,
    StatfsReply,
    XattropReply,
    XattrReply,
)
from glustx.values import (
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
    XATTROP_ADD_ARRAY,
    XATTROP_ADD_ARRAY64,
    XATTROP_ADD_ARRAY64_WITH_DEFAULT,
    XATTROP_ADD_ARRAY_WITH_DEFAULT,
    XATTROP_GET_AND_SET,
    Iatt,
    Statvfs,
)
from glustx.xdata import EMPTY, NO_PAIRS, Xdata
from glustx.xlators.storage.memory_nodes import Node
from glustx.xlators.storage.memory_pages import PAGE
from glustx.xlators.storage.memory_store import (
    GFID_KEY,
    HIDDEN,
    NAME_MAX,
    Store,
    as_stored,
    check_key,
    drop_xattr,
    put_xattrs,
    settable,
)

_WORDS = {
    XATTROP_ADD_ARRAY: ("i", 4),
    XATTROP_ADD_ARRAY64: ("q", 8),
    XATTROP_ADD_ARRAY_WITH_DEFAULT: ("i", 4),
    XATTROP_ADD_ARRAY64_WITH_DEFAULT: ("q", 8),
}


class Attrs(Store):
    """Fops on attributes."""

    async def stat(self, req: fops.Stat) -> AttrReply:
        """Return an inode's attributes."""
        node = self._node(req.loc)
        return AttrReply(xdata=self._wanted(node, req.xdata), stat=node.iatt())

    async def fstat(self, req: fops.Fstat) -> AttrReply:
        """Return an open file's attributes."""
        node = self._opened(req.fd)
        return AttrReply(xdata=self._wanted(node, req.xdata), stat=node.iatt())

    async def statfs(self, req: fops.Statfs) -> StatfsReply:
        """Return the capacity and what is left of it; an inode counts as a page among inodes."""
        self._node(req.loc)
        blocks = int(self.options.capacity) // PAGE
        free = max(0, blocks - self._used)
        nodes = len(self._nodes)
        figures = Statvfs(
            bsize=PAGE,
            frsize=PAGE,
            blocks=blocks,
            bfree=free,
            bavail=free,
            files=blocks,
            ffree=max(0, blocks - nodes),
            favail=max(0, blocks - nodes),
            namemax=NAME_MAX,
        )
        return StatfsReply(statfs=figures)

    async def access(self, req: fops.Access) -> Done:
        """Storage refuses nobody; the inode must exist."""
        self._node(req.loc)
        return Done()

    def _setattr(self, req: fops.Setattr | fops.Fsetattr, node: Node) -> PrePost:
        pre = node.iatt()
        valid, new = req.valid, req.stat
        if valid & SET_MODE and not node.target:
            node.mode = _stat.S_IFMT(node.mode) | (new.mode & 0o7777)
        if valid & SET_UID:
            node.uid = new.uid
        if valid & SET_GID:
            node.gid = new.gid
        node.stamp(req, STAMP_CTIME)
        # A value beside the bit for now counts, as in storage/posix.
        if valid & SET_ATIME and (new.atime_ns or not valid & SET_ATIME_NOW):
            node.atime_ns = new.atime_ns
        elif valid & SET_ATIME_NOW:
            node.stamp(req, STAMP_ATIME)
        if valid & SET_MTIME and (new.mtime_ns or not valid & SET_MTIME_NOW):
            node.mtime_ns = new.mtime_ns
        elif valid & SET_MTIME_NOW:
            node.stamp(req, STAMP_MTIME)
        if valid & SET_CTIME:
            node.ctime_ns = max(node.ctime_ns, new.ctime_ns)
        return PrePost(pre=pre, post=node.iatt())

    async def setattr(self, req: fops.Setattr) -> PrePost:
        """Set attributes of an inode."""
        return self._setattr(req, self._node(req.loc))

    async def fsetattr(self, req: fops.Fsetattr) -> PrePost:
        """Set attributes of an open file."""
        return self._setattr(req, self._opened(req.fd))

    def _setxattr(self, req: fops.Setxattr | fops.Fsetxattr, node: Node) -> Done:
        pairs = settable(req.xattrs)
        for key in pairs:
            if req.flags & 1 and key in node.xattrs:
                raise FopError(errno.EEXIST, f"xattr {key!r} is there already")
            if req.flags & 2 and key not in node.xattrs:
                raise FopError(errno.ENODATA, f"no xattr {key!r}")
        pre = node.iatt()
        put_xattrs(node, pairs)
        times = req.xattrs.get(xd.SET_CTIME_MDATA)
        if isinstance(times, xd.MdataTimes):
            node.atime_ns = times.atime * 1_000_000_000 + times.atime_nsec
            node.mtime_ns = times.mtime * 1_000_000_000 + times.mtime_nsec
            node.ctime_ns = times.ctime * 1_000_000_000 + times.ctime_nsec
        if pairs and req.ctime:  # stock's clients send no time with this fop
            node.stamp(req, STAMP_CTIME)
        return Done(xdata=_around(pre, node.iatt()))

    async def setxattr(self, req: fops.Setxattr) -> Done:
        """Set xattrs of an inode."""
        return self._setxattr(req, self._node(req.loc))

    async def fsetxattr(self, req: fops.Fsetxattr) -> Done:
        """Set xattrs of an open file."""
        return self._setxattr(req, self._opened(req.fd))

    def _getxattr(self, key: bytes, node: Node) -> XattrReply:
        if not key:
            found = {k: v for k, v in node.xattrs.items() if k not in HIDDEN}
            return XattrReply(size=sum(len(v) for v in found.values()), xattrs=Xdata(found) if found else NO_PAIRS)
        if key == GFID_KEY:
            return XattrReply(size=0, xattrs=EMPTY)
        value = self._xattr(node, key)
        if value is None:
            raise FopError(errno.ENODATA, f"no xattr {key!r}")
        return XattrReply(size=len(value), xattrs=Xdata({key: value}))

    async def getxattr(self, req: fops.Getxattr) -> XattrReply:
        """Return one xattr or all."""
        return self._getxattr(req.key, self._node(req.loc))

    async def fgetxattr(self, req: fops.Fgetxattr) -> XattrReply:
        """Return one xattr or all of an open file."""
        return self._getxattr(req.key, self._opened(req.fd))

    def _removexattr(self, req: fops.Removexattr | fops.Fremovexattr, node: Node) -> Done:
        # Without a key those of xdata's that are there go, as replicate's heal asks for it.
        many = not req.key and bool(req.xdata)
        keys = [key for key in req.xdata if key != xd.MDATA_KEY] if many else [req.key]
        for key in keys:
            if key in HIDDEN:
                raise FopError(errno.EPERM, f"xattr {key!r} belongs to the brick")
            if key not in node.xattrs and not many:
                raise FopError(errno.ENODATA, f"no xattr {key!r}")
        pre = node.iatt()
        for key in keys:
            drop_xattr(node, key)
        node.stamp(req, STAMP_CTIME)
        return Done(xdata=_around(pre, node.iatt()))

    async def removexattr(self, req: fops.Removexattr) -> Done:
        """Remove an xattr."""
        return self._removexattr(req, self._node(req.loc))

    async def fremovexattr(self, req: fops.Fremovexattr) -> Done:
        """Remove an xattr of an open file."""
        return self._removexattr(req, self._opened(req.fd))

    def _xattrop(self, flags: int, xattrs: Xdata, node: Node) -> XattropReply:
        changed: dict[bytes, bytes] = {}
        answer: dict[bytes, object] = {}
        for key, typed in xattrs.typed():
            check_key(key)
            operand = as_stored(typed)
            stored = node.xattrs.get(key)
            if flags == XATTROP_GET_AND_SET:
                if stored is not None and len(stored) > len(operand):
                    raise FopError(errno.ERANGE, f"xattr {key!r} is longer than its new value")
                if stored is not None:
                    answer[key] = stored
                changed[key] = operand
            else:
                answer[key] = new = _add(flags, key, stored, operand)
                if any(operand):  # nothing but zeroes to add: the value is told and left alone
                    changed[key] = new
        put_xattrs(node, changed)
        return XattropReply(xattrs=Xdata(answer))

    async def xattrop(self, req: fops.Xattrop) -> XattropReply:
        """Change xattrs by arithmetic; all or none."""
        return self._xattrop(req.flags, req.xattrs, self._node(req.loc))

    async def fxattrop(self, req: fops.Fxattrop) -> XattropReply:
        """Change xattrs of an open file by arithmetic; all or none."""
        return self._xattrop(req.flags, req.xattrs, self._opened(req.fd))


def _around(pre: Iatt, post: Iatt) -> Xdata:
    return Xdata({xd.VIRT_PRESTAT: pre, xd.VIRT_POSTSTAT: post})


def _add(flags: int, key: bytes, stored: bytes | None, operand: bytes) -> bytes:
    """Return the sum of an XATTROP: big-endian words, each wrapping around; a `..._WITH_DEFAULT` operand is the words
    to add and then the words to start from where the stored one is 0."""
    if flags not in _WORDS:
        raise FopError(errno.EINVAL, f"xattrop {flags}")
    letter, size = _WORDS[flags]
    count = len(operand) // size
    adds = struct.unpack(f">{count}{letter}", operand[: count * size])
    starts: Iterable[int] = (0,) * count
    if flags in (XATTROP_ADD_ARRAY_WITH_DEFAULT, XATTROP_ADD_ARRAY64_WITH_DEFAULT):
        count //= 2
        adds, starts = adds[:count], adds[count : 2 * count]
    length = count * size
    if stored is not None and len(stored) > length:
        raise FopError(errno.ERANGE, f"xattr {key!r} is longer than what is to be added")
    have = struct.unpack(f">{count}{letter}", (stored or b"").ljust(length, b"\0"))
    bits = size * 8
    total = [((old or start) + add) & ((1 << bits) - 1) for old, start, add in zip(have, starts, adds, strict=True)]
    return b"".join(word.to_bytes(size, "big") for word in total)
