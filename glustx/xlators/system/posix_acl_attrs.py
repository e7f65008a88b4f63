"""Attributes and xattrs under system/posix-acl, ACLs as text among them."""

from __future__ import annotations

import errno
import stat as st
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.values import (
    SET_ATIME,
    SET_ATIME_NOW,
    SET_CTIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_MTIME_NOW,
    SET_UID,
)
from glustx.xdata import STR, Typed, Xdata
from glustx.xlators.system import posix_acl_forms as forms
from glustx.xlators.system.posix_acl_forms import BINARY_OF, READ, WRITE
from glustx.xlators.system.posix_acl_judge import Guard, Judging

TEXTS = frozenset(BINARY_OF)
_ACL_KEYS = frozenset((*BINARY_OF, *BINARY_OF.values()))
_TIMES = SET_ATIME | SET_MTIME | SET_ATIME_NOW | SET_MTIME_NOW


class Attributes(Judging):
    """Fops on attributes."""

    # -- attributes ----------------------------------------------------------------------------------------------------

    async def setattr(self, req: fops.Setattr) -> fops.PrePost:
        """Set attributes: the mode and the group for the owner (EPERM), times also with write permission (EACCES)."""
        return await self._setattr(req, req.loc.gfid)

    async def fsetattr(self, req: fops.Fsetattr) -> fops.PrePost:
        """As `setattr`: an open fd gives no right to it."""
        return await self._setattr(req, req.fd.gfid)

    async def _setattr(self, req: Any, gfid: bytes) -> fops.PrePost:
        if not self._free(req.caller):
            req = self._scrutinise(req, await self._guard(gfid))
        try:
            reply: fops.PrePost = await self.child(req)
        finally:
            self._forget(gfid)
        return reply

    def _scrutinise(self, req: Any, guard: Guard) -> Any:
        caller, valid, new = req.caller, req.valid, req.stat
        mine = caller.uid == guard.uid
        if valid & (SET_MODE | SET_CTIME) and not mine:
            raise self._refusal(req, errno.EPERM, "ownership")
        if valid & _TIMES and not mine and not guard.permits(caller, WRITE):
            raise self._refusal(req, errno.EACCES, "write permission or ownership")
        if valid & SET_UID and new.uid != guard.uid:
            raise self._refusal(req, errno.EPERM, "the right to give files away")
        if valid & SET_GID and not (mine and forms.in_group(caller, new.gid)):
            raise self._refusal(req, errno.EPERM, f"ownership, or membership of group {new.gid}")
        if valid & SET_MODE and new.mode & st.S_ISGID and not forms.in_group(caller, guard.gid):
            # chmod(2): the bit is dropped without an error.
            return msgspec.structs.replace(req, stat=msgspec.structs.replace(new, mode=new.mode & ~st.S_ISGID))
        return req

    async def setxattr(self, req: fops.Setxattr) -> fops.Done:
        """Set xattrs with write permission (EACCES), ACLs as the owner (EPERM); ACLs may come as text."""
        return await self._setxattr(req, req.loc.gfid)

    async def fsetxattr(self, req: fops.Fsetxattr) -> fops.Done:
        """As `setxattr`: an open fd gives no right to it."""
        return await self._setxattr(req, req.fd.gfid)

    async def _setxattr(self, req: Any, gfid: bytes) -> fops.Done:
        await self._may_set(req, gfid, req.xattrs.names_any(_ACL_KEYS))
        texts = TEXTS & set(req.xattrs)
        packed: dict[bytes, object] = {}
        for key in texts:
            try:
                packed[BINARY_OF[key]] = forms.pack(forms.from_text(req.xattrs[key]))
            except (ValueError, AttributeError) as error:
                raise FopError(errno.EINVAL, f"{req.name} {key.decode()}: {error}") from None
        if packed:
            req = msgspec.structs.replace(req, xattrs=req.xattrs.without(*texts).plus(packed))
        try:
            done: fops.Done = await self.child(req)
        finally:
            self._forget(gfid)
        return fops.Done(xdata=done.xdata.plus(packed)) if packed else done

    async def removexattr(self, req: fops.Removexattr) -> fops.Done:
        """Remove an xattr with write permission (EACCES), an ACL as the owner (EPERM)."""
        return await self._removexattr(req, req.loc.gfid)

    async def fremovexattr(self, req: fops.Fremovexattr) -> fops.Done:
        """As `removexattr`."""
        return await self._removexattr(req, req.fd.gfid)

    async def _removexattr(self, req: Any, gfid: bytes) -> fops.Done:
        # Without a key those that xdata names go.
        await self._may_set(req, gfid, req.key in _ACL_KEYS if req.key else req.xdata.names_any(_ACL_KEYS))
        if req.key in BINARY_OF:
            req = msgspec.structs.replace(req, key=BINARY_OF[req.key])
        try:
            done: fops.Done = await self.child(req)
        finally:
            self._forget(gfid)
        return done

    async def _may_set(self, req: Fop, gfid: bytes, acl: bool) -> None:
        if self._free(req.caller):
            return
        if not acl:
            await self._need(req, gfid, WRITE)
        elif (await self._guard(gfid)).uid != req.caller.uid:
            raise self._refusal(req, errno.EPERM, "ownership, which it takes to set an ACL")

    async def getxattr(self, req: fops.Getxattr) -> fops.XattrReply:
        """Return xattrs with read permission, ACLs to anybody, also as text; ENODATA for a default ACL of a file."""
        return await self._getxattr(req, req.loc.gfid)

    async def fgetxattr(self, req: fops.Fgetxattr) -> fops.XattrReply:
        """As `getxattr`; an open fd needs no further permission."""
        return await self._getxattr(req, req.fd.gfid)

    async def _getxattr(self, req: Any, gfid: bytes) -> fops.XattrReply:
        if req.key in BINARY_OF:
            text = text_of(await self._guard(gfid), req.key)
            if text is None:
                raise FopError(errno.ENODATA, f"{req.key.decode()}: such objects have no such ACL")
            return fops.XattrReply(size=len(text) + 1, xattrs=Xdata({req.key: Typed(STR, text)}))
        if req.key not in _ACL_KEYS and not self._free(req.caller):
            fd: Fd | None = getattr(req, "fd", None)
            if fd is None or fd.anonymous:
                await self._need(req, gfid, READ)
        reply: fops.XattrReply = await self.child(req)
        return reply


def text_of(guard: Guard, key: bytes) -> bytes | None:
    """Return an inode's ACL as text, None where there can be none."""
    if st.S_ISLNK(guard.mode) or (key == forms.TEXT_DEFAULT and not st.S_ISDIR(guard.mode)):
        return None
    return forms.to_text(guard.default if key == forms.TEXT_DEFAULT else guard.acl or forms.of_mode(guard.mode))
