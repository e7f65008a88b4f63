"""features/utime: the client decides what time it is, so that all copies of a file get the same times.

Each request is sent with the moment it was made and with flags for the times it changes; the bricks stamp these. A
request that carries a moment already (from a translator or an edge that knows better) stays as it is. Source: flags as
stock's features/utime was seen to send them in AUTH_GLUSTERFS v3 credentials.
"""

from __future__ import annotations

import time

import msgspec

from glustx import fops
from glustx.fops import Fop, Reply
from glustx.graph import Graph
from glustx.options import OptionSet, option
from glustx.values import (
    SET_GID,
    SET_MODE,
    SET_UID,
    STAMP_ATIME,
    STAMP_CTIME,
    STAMP_MTIME,
    STAMP_PARENT_CTIME,
    STAMP_PARENT_MTIME,
)
from glustx.xlator import Xlator, handles

_PARENT = STAMP_PARENT_CTIME | STAMP_PARENT_MTIME
_NEW = STAMP_CTIME | STAMP_MTIME | STAMP_ATIME | _PARENT
_NAME = STAMP_CTIME | _PARENT
_DATA = STAMP_CTIME | STAMP_MTIME
_SPACE = STAMP_MTIME | STAMP_ATIME

_FLAGS: dict[type[Fop], int] = {
    fops.Create: _NEW,
    fops.Mkdir: _NEW,
    fops.Mknod: _NEW,
    fops.Symlink: _NEW,
    fops.Put: _NEW,
    fops.Icreate: _NEW,
    fops.Namelink: _NAME,
    fops.Link: _NAME,
    fops.Unlink: _NAME,
    fops.Rmdir: _NAME,
    fops.Rename: _NAME,
    fops.Write: _DATA,
    fops.Truncate: _DATA,
    fops.Ftruncate: _DATA,
    fops.Discard: _DATA,
    fops.CopyFileRange: _DATA,
    fops.Fallocate: _SPACE,
    fops.Zerofill: _SPACE,
    fops.Setxattr: STAMP_CTIME,
    fops.Fsetxattr: STAMP_CTIME,
    fops.Removexattr: STAMP_CTIME,
    fops.Fremovexattr: STAMP_CTIME,
}
_ATIME = frozenset({fops.Read, fops.Opendir})


class Utime(Xlator):
    """Sends the time of each request and which times it changes."""

    class Options(OptionSet):
        """Options of features/utime."""

        noatime: bool = option(True, "Leave access times alone when a file or directory is read.", live=True)

    def wire(self, graph: Graph) -> None:
        """Resolve the fops; LOOKUP carries no time and goes straight through, as in stock."""
        super().wire(graph)
        self.table[fops.Lookup] = self.subvolumes[0].table[fops.Lookup]

    @handles(fops.ALL_EFFECTS & ~fops.LOCKS & ~fops.INTERNAL)
    async def stamped(self, req: Fop) -> Reply:
        """Send the fop with the time and with the flags of its class."""
        if not req.ctime:
            cls = type(req)
            flags = _FLAGS.get(cls, 0)
            if cls in _ATIME and not self.options.noatime:
                flags = STAMP_ATIME
            req = msgspec.structs.replace(req, ctime=time.time_ns(), stamp=flags)
        reply: Reply = await self.child(req)
        return reply

    async def lookup(self, req: fops.Lookup) -> fops.LookupReply:
        """Pass on without a time."""
        reply: fops.LookupReply = await self.child(req)
        return reply

    async def setattr(self, req: fops.Setattr) -> fops.PrePost:
        """A new owner or mode changes the ctime; new times are their own business."""
        return await self._setattr(req)

    async def fsetattr(self, req: fops.Fsetattr) -> fops.PrePost:
        """As `setattr`."""
        return await self._setattr(req)

    async def _setattr(self, req: fops.Setattr | fops.Fsetattr) -> fops.PrePost:
        if not req.ctime:
            flags = STAMP_CTIME if req.valid & (SET_MODE | SET_UID | SET_GID) else 0
            req = msgspec.structs.replace(req, ctime=time.time_ns(), stamp=flags)
        reply: fops.PrePost = await self.child(req)
        return reply
