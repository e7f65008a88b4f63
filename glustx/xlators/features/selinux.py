"""features/selinux: keeps the label of a file that clients see as security.selinux under a name of the volume's own.

The brick's own host labels its files too, so the two must not share an xattr. The name is stock's; a brick finds the
labels that stock has written, and the other way round.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from glustx import fops
from glustx.options import OptionSet, option
from glustx.xdata import Xdata
from glustx.xlator import Xlator

LABEL = b"security.selinux"
KEPT = b"trusted.glusterfs.selinux"

Get = TypeVar("Get", fops.Getxattr, fops.Fgetxattr)
Set = TypeVar("Set", fops.Setxattr, fops.Fsetxattr)


class Selinux(Xlator):
    """Renames one xattr on its way down and up."""

    class Options(OptionSet):
        """Options of features/selinux."""

        selinux: bool = option(False, "Keep the labels of clients apart from those of the brick's host.", live=True)

    async def getxattr(self, req: fops.Getxattr) -> fops.XattrReply:
        """Read the label."""
        reply: fops.XattrReply = await self.child(self._asked(req))
        return self._answered(req.key, reply)

    async def fgetxattr(self, req: fops.Fgetxattr) -> fops.XattrReply:
        """Read the label of an open file."""
        reply: fops.XattrReply = await self.child(self._asked(req))
        return self._answered(req.key, reply)

    async def setxattr(self, req: fops.Setxattr) -> fops.Done:
        """Write the label."""
        done: fops.Done = await self.child(self._written(req))
        return done

    async def fsetxattr(self, req: fops.Fsetxattr) -> fops.Done:
        """Write the label of an open file."""
        done: fops.Done = await self.child(self._written(req))
        return done

    def _asked(self, req: Get) -> Get:
        if req.key != LABEL or not self.options.selinux:
            return req
        return msgspec.structs.replace(req, key=KEPT)

    def _answered(self, key: bytes, reply: fops.XattrReply) -> fops.XattrReply:
        if key != LABEL or KEPT not in reply.xattrs:
            return reply
        return msgspec.structs.replace(reply, xattrs=_renamed(reply.xattrs, KEPT, LABEL))

    def _written(self, req: Set) -> Set:
        if LABEL not in req.xattrs or not self.options.selinux:
            return req
        return msgspec.structs.replace(req, xattrs=_renamed(req.xattrs, LABEL, KEPT))


def _renamed(xattrs: Xdata, old: bytes, new: bytes) -> Xdata:
    return Xdata({new if key == old else key: value for key, value in xattrs.items()})
