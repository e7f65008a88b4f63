"""What the topic files of storage/memory share: the inodes, how a request's loc or fd leads to one, and space."""

from __future__ import annotations

import errno
import fnmatch
from typing import Any

from glustx import fops
from glustx import xdata as xd
from glustx.errors import FopError
from glustx.fops import (
    PrePost,
)
from glustx.inode import O_ACCMODE, Fd, PerFd
from glustx.values import (
    NULL_GFID,
    Loc,
)
from glustx.xdata import EMPTY, Xdata
from glustx.xlators.storage.memory_nodes import STAMP_CHANGE, Node
from glustx.xlators.storage.memory_pages import PAGE

OFF_MAX = (1 << 63) - 1
NAME_MAX = 255
READ_MAX = 128 << 20  # in one reply
O_WRONLY, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY = 1, 0o200, 0o1000, 0o2000, 0o200000
GFID_KEY = b"trusted.gfid"
HIDDEN = (GFID_KEY, b"trusted.glusterfs.volume-id")
XATTR_SPACES = (b"user.", b"trusted.", b"security.", b"system.")
_XATTR_NAME_MAX = 255
_XATTR_VALUE_MAX = 65536
# Of one inode: as long a list of names as Linux has (XATTR_LIST_MAX), and what all values may take.
_XATTR_NAMES_MAX = 65536
_XATTR_VALUES_MAX = 1 << 20


class Held:
    """What an fd holds: the node lives on through it when its last name is gone."""

    __slots__ = ("flags", "node")

    def __init__(self, node: Node, flags: int) -> None:
        self.node = node
        self.flags = flags


class Store:
    """State and helpers of Memory; the classes of the topic files build on it."""

    name: str
    options: Any
    _nodes: dict[bytes, Node]
    _used: int
    _slot: PerFd[Held]

    def _node(self, loc: Loc) -> Node:
        if loc.gfid == NULL_GFID:
            raise FopError(errno.EINVAL, f"{loc}: no gfid")
        node = self._nodes.get(loc.gfid)
        if node is None:
            raise FopError(errno.ESTALE, f"{loc}: unknown gfid")
        return node

    def _parent(self, loc: Loc) -> Node:
        if loc.pargfid == NULL_GFID:
            raise FopError(errno.EINVAL, f"{loc}: no parent gfid")
        parent = self._nodes.get(loc.pargfid)
        if parent is None:
            raise FopError(errno.ESTALE, f"{loc}: unknown parent gfid")
        if parent.entries is None:
            raise FopError(errno.ENOTDIR, f"{loc}: the parent is not a directory")
        return parent

    def _find(self, parent: Node, loc: Loc) -> Node | None:
        """Return the node under the loc's name, or None; EINVAL or ENAMETOOLONG for what is no name."""
        name = loc.name
        if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
            raise FopError(errno.EINVAL, f"{loc}: not a name")
        if len(name) > NAME_MAX:
            raise FopError(errno.ENAMETOOLONG, f"{loc}: {len(name)} bytes of name")
        assert parent.entries is not None
        entry = parent.entries.get(name)
        return self._nodes[entry[0]] if entry else None

    def _named(self, loc: Loc) -> tuple[Node, Node]:
        """Return parent and node of a name that must exist."""
        parent = self._parent(loc)
        node = self._find(parent, loc)
        if node is None:
            raise FopError(errno.ENOENT, f"{loc}: no such name")
        return parent, node

    def _opened(self, fd: Fd, *, write: bool = False, read: bool = False) -> Node:
        """Return the node of an fd that may be used so; EBADF otherwise."""
        held = self._slot.get(fd)
        if held is None:
            if not fd.anonymous:
                raise FopError(errno.EBADF, f"{fd} is not open")
            return self._node(Loc(gfid=fd.gfid))
        mode = held.flags & O_ACCMODE
        if (write and mode == 0) or (read and mode == O_WRONLY):
            raise FopError(errno.EBADF, f"{fd} was not opened for this")
        return held.node

    def _file(self, fd: Fd, *, write: bool = False, read: bool = False) -> Node:
        node = self._opened(fd, write=write, read=read)
        if not node.is_reg():
            raise FopError(errno.EISDIR if node.is_dir() else errno.EINVAL, f"{fd} is not a regular file")
        return node

    def _room(self, node: Node, offset: int, size: int) -> None:
        """Account for the pages of a range; ENOSPC when they do not fit, and then nothing has changed."""
        needed = node.pages.needed(offset, size)
        if needed and (self._used + needed) * PAGE > self.options.capacity:
            raise FopError(errno.ENOSPC, f"{needed} pages do not fit into {self.name}")

    def _forget(self, node: Node) -> None:
        if not node.nlink and not node.fds:
            self._used -= node.pages.allocated.total

    def _resize(self, node: Node, before: int) -> None:
        self._used += node.pages.allocated.total - before

    def _openable(self, node: Node, loc: Loc, flags: int) -> None:
        if node.is_dir():
            raise FopError(errno.EISDIR, f"{loc}: a directory")
        if node.target:
            raise FopError(errno.ELOOP, f"{loc}: a symbolic link")
        if flags & O_DIRECTORY:
            raise FopError(errno.ENOTDIR, f"{loc}: not a directory")
        if not node.is_reg():
            raise FopError(errno.ENXIO, f"{loc}: not a regular file")

    def _hold(self, fd: Fd, node: Node, flags: int) -> None:
        fd.gfid = node.gfid
        node.fds += 1
        self._slot.set(fd, Held(node, flags))

    def _range(self, offset: int, size: int) -> None:
        if offset > OFF_MAX or size > OFF_MAX:
            raise FopError(errno.EINVAL, f"range of {size} bytes at {offset}")
        if offset + size > self.options.max_file_size:
            raise FopError(errno.EFBIG, f"{size} bytes at {offset} exceed {self.options.max_file_size}")

    def _truncate(self, node: Node, size: int, req: fops.Fop) -> PrePost:
        if not node.is_reg():
            raise FopError(errno.EISDIR if node.is_dir() else errno.EINVAL, f"{req.name} of what is not a file")
        self._range(size, 0)
        pre = node.iatt()
        before = node.pages.allocated.total
        node.pages.truncate(size)
        self._resize(node, before)
        node.stamp(req, STAMP_CHANGE)
        return PrePost(pre=pre, post=node.iatt())

    def _xattr(self, node: Node, key: bytes) -> bytes | None:
        return node.mdata() if key == xd.MDATA_KEY else node.xattrs.get(key)

    def _wanted(self, node: Node, asked: Xdata) -> Xdata:
        """Answer the keys of a request's xdata: xattrs by name or pattern, and what is computed."""
        if not asked:
            return EMPTY
        found: dict[bytes, object] = {}
        for key in asked:
            if key == xd.CONTENT:
                if node.is_reg() and node.pages.size <= asked.number(key):
                    found[key] = node.pages.read(0, node.pages.size)
            elif key == xd.LIST_XATTR:
                found.update((k, v) for k, v in node.xattrs.items() if k not in HIDDEN)
            elif key in (xd.OPEN_FD_COUNT, xd.OPEN_ACTIVE_FD_COUNT):
                found[key] = xd.uint(node.fds)
            elif key == xd.GET_SIZE:
                if node.is_reg():
                    found[key] = xd.uint(node.pages.size)
            elif b"*" in key or b"?" in key or b"[" in key:
                found.update((k, v) for k, v in node.xattrs.items() if _matches(k, key))
            else:
                value = self._xattr(node, key)
                if value is not None:
                    found[key] = value
        return Xdata(found) if found else EMPTY


def as_stored(pair: xd.Typed) -> bytes:
    """Return what a typed value looks like on disk: numbers as decimal text."""
    value = pair.value
    if isinstance(value, (int, float)):
        return str(value).encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise FopError(errno.EINVAL, f"a value of type {pair.type} is no xattr's")
    return bytes(value)


def check_key(key: bytes) -> None:
    """Raise ERANGE or EOPNOTSUPP for what no file system takes as the name of an xattr."""
    if not key or len(key) > _XATTR_NAME_MAX:
        raise FopError(errno.ERANGE, f"xattr name of {len(key)} bytes")
    if not key.startswith(XATTR_SPACES):
        raise FopError(errno.EOPNOTSUPP, f"xattr {key!r} is in no name space")


def put_xattrs(node: Node, pairs: dict[bytes, bytes]) -> None:
    """Keep xattrs with an inode, all or (ENOSPC) none."""
    names, values = node.xattr_sizes
    for key, value in pairs.items():
        before = node.xattrs.get(key)
        names += len(key) + 1 if before is None else 0
        values += len(value) - len(before or b"")
    if names > _XATTR_NAMES_MAX or values > _XATTR_VALUES_MAX:
        raise FopError(errno.ENOSPC, f"{len(pairs)} xattrs more than {len(node.xattrs)} are too many for one inode")
    node.xattrs.update(pairs)
    node.xattr_sizes = names, values


def drop_xattr(node: Node, key: bytes) -> None:
    """Forget an xattr, if the inode has it."""
    value = node.xattrs.pop(key, None)
    if value is not None:
        names, values = node.xattr_sizes
        node.xattr_sizes = names - len(key) - 1, values - len(value)


def settable(xattrs: Xdata) -> dict[bytes, bytes]:
    """Return the pairs of a SETXATTR that are stored; ERANGE or E2BIG for what no file system takes."""
    pairs: dict[bytes, bytes] = {}
    for key, typed in xattrs.typed():
        if key in (GFID_KEY, xd.SET_CTIME_MDATA):
            continue
        check_key(key)
        value = as_stored(typed)
        if len(value) > _XATTR_VALUE_MAX:
            raise FopError(errno.E2BIG, f"xattr {key!r} of {len(value)} bytes")
        pairs[key] = value
    return pairs


def _matches(key: bytes, pattern: bytes) -> bool:
    return key not in HIDDEN and fnmatch.fnmatchcase(key.decode("latin-1"), pattern.decode("latin-1"))
