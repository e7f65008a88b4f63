"""Data of storage/memory: bytes, sizes, space, holes, checksums."""

from __future__ import annotations

import errno
import hashlib
import zlib

from glustx import fops
from glustx import xdata as xd
from glustx.errors import FopError
from glustx.fops import (
    CopyReply,
    PrePost,
    RchecksumReply,
    ReadReply,
    SeekReply,
    WriteReply,
)
from glustx.inode import O_ACCMODE
from glustx.values import (
    SEEK_DATA,
    SEEK_HOLE,
)
from glustx.xdata import EMPTY, Xdata
from glustx.xlators.storage.memory_nodes import STAMP_CHANGE, Node
from glustx.xlators.storage.memory_pages import PAGE
from glustx.xlators.storage.memory_store import (
    O_APPEND,
    OFF_MAX,
    READ_MAX,
    Store,
)


class Data(Store):
    """Fops on the bytes of files."""

    async def read(self, req: fops.Read) -> ReadReply:
        """Read bytes; reads do not move the access time, like a brick mounted noatime."""
        node = self._file(req.fd, read=True)
        if req.offset > OFF_MAX:
            raise FopError(errno.EINVAL, f"read of {req.size} bytes at {req.offset}")
        data = node.pages.read(req.offset, min(req.size, READ_MAX))
        return ReadReply(data=data, stat=node.iatt(), eof=req.offset + len(data) >= node.pages.size)

    async def write(self, req: fops.Write) -> WriteReply:
        """Write bytes; an O_APPEND fd writes at the end of the file, wherever the request says."""
        node = self._file(req.fd, write=True)
        held = self._slot.get(req.fd)
        pre = node.iatt()
        offset, size = req.offset, len(req.data)
        appends = offset == node.pages.size
        if held is not None and held.flags & O_APPEND:
            offset = node.pages.size
        self._range(offset, size)
        self._room(node, offset, size)
        before = node.pages.allocated.total
        node.pages.write(offset, req.data)
        self._resize(node, before)
        if size:
            node.stamp(req, STAMP_CHANGE)
        answer = EMPTY
        if req.xdata:
            more: dict[bytes, object] = {}
            if xd.WRITE_IS_APPEND in req.xdata:
                more[xd.WRITE_IS_APPEND] = xd.uint(int(appends))
            if xd.OPEN_FD_COUNT in req.xdata:
                more[xd.OPEN_FD_COUNT] = xd.uint(node.fds)
            if xd.OPEN_ACTIVE_FD_COUNT in req.xdata:
                more[xd.OPEN_ACTIVE_FD_COUNT] = xd.uint(node.fds)
            answer = Xdata(more)
        return WriteReply(xdata=answer, count=size, pre=pre, post=node.iatt())

    async def truncate(self, req: fops.Truncate) -> PrePost:
        """Set a file's size."""
        return self._truncate(self._node(req.loc), req.offset, req)

    async def ftruncate(self, req: fops.Ftruncate) -> PrePost:
        """Set an open file's size; EINVAL when it is not open for writing, as ftruncate(2) says."""
        node = self._opened(req.fd)
        held = self._slot.get(req.fd)
        if held is not None and not held.flags & O_ACCMODE:
            raise FopError(errno.EINVAL, f"{req.fd} was not opened for writing")
        return self._truncate(node, req.offset, req)

    def _changed(self, req: fops.RangeFop, *, grows: bool) -> Node:
        node = self._file(req.fd, write=True)
        if not req.size:
            raise FopError(errno.EINVAL, f"{req.name} of no bytes")
        self._range(req.offset, req.size)
        if grows:
            self._room(node, req.offset, req.size)
        return node

    async def fallocate(self, req: fops.Fallocate) -> PrePost:
        """Allocate space for a range."""
        if req.keep_size not in (0, 1):
            raise FopError(errno.EOPNOTSUPP, f"fallocate with flags {req.keep_size:#x}")
        node = self._changed(req, grows=True)
        pre = node.iatt()
        before = node.pages.allocated.total
        node.pages.allocate(req.offset, req.size)
        self._resize(node, before)
        if not req.keep_size:
            node.pages.size = max(node.pages.size, req.offset + req.size)
        node.stamp(req, STAMP_CHANGE)
        return PrePost(pre=pre, post=node.iatt())

    async def discard(self, req: fops.Discard) -> PrePost:
        """Give the space of a range back."""
        node = self._changed(req, grows=False)
        pre = node.iatt()
        before = node.pages.allocated.total
        node.pages.punch(req.offset, req.size)
        self._resize(node, before)
        node.stamp(req, STAMP_CHANGE)
        return PrePost(pre=pre, post=node.iatt())

    async def zerofill(self, req: fops.Zerofill) -> PrePost:
        """Make a range read as zeroes; it stays allocated, and the file grows to hold it."""
        node = self._changed(req, grows=True)
        pre = node.iatt()
        before = node.pages.allocated.total
        node.pages.clear(req.offset, req.size)
        node.pages.allocate(req.offset, req.size)
        node.pages.size = max(node.pages.size, req.offset + req.size)
        self._resize(node, before)
        node.stamp(req, STAMP_CHANGE)
        return PrePost(pre=pre, post=node.iatt())

    async def seek(self, req: fops.Seek) -> SeekReply:
        """Find data or a hole; allocated pages without bytes are holes."""
        pages = self._file(req.fd).pages
        if req.what not in (SEEK_DATA, SEEK_HOLE):
            raise FopError(errno.EINVAL, f"seek for {req.what}")
        found = None
        if req.offset < pages.size:
            found = pages.next_data(req.offset) if req.what == SEEK_DATA else pages.next_hole(req.offset)
        if found is None:
            raise FopError(errno.ENXIO, f"nothing of that kind behind {req.offset}")
        return SeekReply(offset=found)

    async def copy_file_range(self, req: fops.CopyFileRange) -> CopyReply:
        """Copy bytes from one open file to another."""
        source = self._file(req.fd_in, read=True)
        target = self._file(req.fd_out, write=True)
        if req.flags or req.offset_in > OFF_MAX:
            raise FopError(errno.EINVAL, f"copy_file_range with flags {req.flags:#x} from {req.offset_in}")
        self._range(req.offset_out, req.size)
        size = max(0, min(req.size, source.pages.size - req.offset_in))
        if source is target and abs(req.offset_in - req.offset_out) < size:
            raise FopError(errno.EINVAL, "copy_file_range of ranges that overlap")
        self._room(target, req.offset_out, size)
        pre = target.iatt()
        before = target.pages.allocated.total
        done = 0
        while done < size:
            data = source.pages.read(req.offset_in + done, min(size - done, 256 * PAGE))
            target.pages.write(req.offset_out + done, data)
            done += len(data)
        self._resize(target, before)
        if size:
            target.stamp(req, STAMP_CHANGE)
        return CopyReply(count=size, stat=source.iatt(), pre=pre, post=target.iatt())

    async def rchecksum(self, req: fops.Rchecksum) -> RchecksumReply:
        """Return Adler-32 and SHA-256 of a range."""
        node = self._file(req.fd, read=True)
        if req.offset > OFF_MAX or req.size > READ_MAX:
            raise FopError(errno.EINVAL, f"rchecksum of {req.size} bytes at {req.offset}")
        data = node.pages.read(req.offset, req.size)
        answer: dict[bytes, object] = {xd.FIPS_RCHECKSUM: 1}
        if xd.CHECK_ZERO_FILLED in req.xdata and not any(data):
            answer[xd.BUF_HAS_ZEROES] = xd.uint(1)
        strong = hashlib.sha256(data).digest()
        return RchecksumReply(xdata=Xdata(answer), flags=1, weak=zlib.adler32(data, 0), strong=strong)
