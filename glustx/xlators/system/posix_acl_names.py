"""Names under system/posix-acl: making them, moving and removing them, obeying sticky directories."""

from __future__ import annotations

import errno
import os
import stat as st
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import O_ACCMODE
from glustx.values import Loc
from glustx.xlators.system.posix_acl_forms import READ, SEARCH, WRITE
from glustx.xlators.system.posix_acl_judge import ASK, Guard, Judging, words

O_FMODE_EXEC = 0o40  # stock's flag of an OPEN that is to execute the file
_UMASK, _MODE = b"umask", b"mode"


class Names(Judging):
    """Fops on names."""

    # -- making names --------------------------------------------------------------------------------------------------

    async def create(self, req: fops.Create) -> fops.CreateReply:
        """Make a file with write and search permission on the parent; one that is there must also permit its opening,
        which stock's brick does not ask."""
        loc = req.loc
        if not self._free(req.caller):
            await self._need(req, loc.pargfid, WRITE | SEARCH)
            if not req.flags & os.O_EXCL:
                there = await self._named(loc)
                if there is not None and not there.permits(req.caller, opening(req.flags)):
                    raise self._refusal(req, errno.EACCES, f"{words(opening(req.flags))} permission on what is there")
        reply: fops.CreateReply = await self._made(_meant(req))
        return reply

    async def mknod(self, req: fops.Mknod) -> fops.EntryReply:
        """Make a node with write and search permission on the parent; EPERM for a device, which only root makes."""
        if st.S_IFMT(req.mode) in (st.S_IFCHR, st.S_IFBLK) and not self._free(req.caller):
            raise self._refusal(req, errno.EPERM, "the right to make device nodes")
        reply: fops.EntryReply = await self._make(_meant(req))
        return reply

    async def mkdir(self, req: fops.Mkdir) -> fops.EntryReply:
        """Make a directory with write and search permission on the parent."""
        reply: fops.EntryReply = await self._make(_meant(req))
        return reply

    async def symlink(self, req: fops.Symlink) -> fops.EntryReply:
        """Make a link with write and search permission on the parent."""
        reply: fops.EntryReply = await self._make(req)
        return reply

    async def put(self, req: fops.Put) -> fops.EntryReply:
        """Make a whole file with write and search permission on the parent."""
        reply: fops.EntryReply = await self._make(_meant(req))
        return reply

    async def icreate(self, req: fops.Icreate) -> fops.AttrReply:
        """Make an inode without name: there is no directory to ask."""
        reply: fops.AttrReply = await self._made(req)
        return reply

    async def _make(self, req: fops.Mknod | fops.Mkdir | fops.Symlink | fops.Put) -> Any:
        if not self._free(req.caller):
            await self._need(req, req.loc.pargfid, WRITE | SEARCH)
        return await self._made(req)

    async def _made(self, req: Fop) -> Any:
        """Wind a creation; whatever was known of an earlier inode with its gfid is void."""
        reply = await self.child(req)
        self._forget(reply.stat.gfid)
        return reply

    async def _named(self, loc: Loc) -> Guard | None:
        """Return what guards the inode of a name, None when there is none."""
        changes = self._changes
        try:
            reply = await self.child(fops.Lookup(Loc(pargfid=loc.pargfid, name=loc.name), xdata=ASK))
        except FopError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return self._keep(reply, changes)

    # -- moving and removing them --------------------------------------------------------------------------------------

    async def _sticky(self, req: Fop, parent: Guard, inode: Guard | None) -> None:
        """Refuse (EACCES, as stock) to touch another's name in a directory with the sticky bit."""
        if not parent.mode & st.S_ISVTX or inode is None or req.caller.uid in (parent.uid, inode.uid):
            return
        if not self._free(req.caller):
            raise self._refusal(req, errno.EACCES, "ownership of a name in a sticky directory")

    async def _leaves(self, req: Fop, loc: Loc) -> None:
        """Refuse a caller that may not take a name out of its directory."""
        parent = await self._need(req, loc.pargfid, WRITE | SEARCH)
        if parent.mode & st.S_ISVTX:
            await self._sticky(req, parent, await self._named(loc))

    async def unlink(self, req: fops.Unlink) -> fops.PrePost:
        """Remove a name with write and search permission on the directory, obeying its sticky bit."""
        await self._leaves(req, req.loc)
        reply: fops.PrePost = await self.child(req)
        return reply

    async def rmdir(self, req: fops.Rmdir) -> fops.PrePost:
        """As `unlink`; EACCES for the removal of a whole tree (`xflags` 1), whose owners nobody has asked."""
        if req.xflags and not self._free(req.caller):
            raise self._refusal(req, errno.EACCES, "the right to remove whole trees")
        await self._leaves(req, req.loc)
        reply: fops.PrePost = await self.child(req)
        return reply

    async def rename(self, req: fops.Rename) -> fops.RenameReply:
        """Move a name with write and search permission on both directories, obeying their sticky bits."""
        await self._leaves(req, req.oldloc)
        await self._leaves(req, req.newloc)
        reply: fops.RenameReply = await self.child(req)
        return reply

    async def link(self, req: fops.Link) -> fops.EntryReply:
        """Give a name with write and search permission on the directory; in a sticky one only to one's own."""
        parent = await self._need(req, req.newloc.pargfid, WRITE | SEARCH)
        await self._sticky(req, parent, await self._guard(req.oldloc.gfid))
        reply: fops.EntryReply = await self.child(req)
        return reply


def opening(flags: int) -> int:
    """Return the permissions that it takes to open with `flags`."""
    want = {os.O_RDONLY: SEARCH if flags & O_FMODE_EXEC else READ, os.O_WRONLY: WRITE}.get(flags & O_ACCMODE)
    want = READ | WRITE if want is None else want
    return want | WRITE if flags & (os.O_TRUNC | os.O_APPEND) else want


def _meant(req: Any) -> Any:
    """Return a creation with the mode and umask that its client's kernel was given: a mount with ACLs sends them in
    xdata, because the umask counts only where no default ACL does."""
    if _UMASK not in req.xdata:
        return req
    mode = st.S_IFMT(req.mode) | req.xdata.number(_MODE, req.mode) & 0o7777
    return msgspec.structs.replace(req, mode=mode, umask=req.xdata.number(_UMASK) & 0o777)
