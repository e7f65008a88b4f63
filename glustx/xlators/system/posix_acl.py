"""system/posix-acl: who may do what on the brick, by mode bits and POSIX ACLs.

The brick works as root, so nobody else asks. What a fop needs follows from its effects: to change data it takes write
permission, to return data read permission, to change names write and search permission on the directories. An open fd
was judged when it was opened, as POSIX has it; an anonymous one (fd -2) is judged at every use. Root (also by option
super-uid) and internal clients, whose pid is negative, may do everything.

What an inode grants is read once and kept with it until a fop changes attributes or xattrs; a LOOKUP reads it anew, so
that what was done to the brick behind our back is seen. New objects inherit ACLs, and a chmod moves the mask, by the
brick's own file system.
"""

from __future__ import annotations

import errno
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, READS, WRITES_DATA, Fop
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.options import OptionSet, option
from glustx.values import Loc
from glustx.xdata import CONTENT, STR, Typed
from glustx.xlator import Method, Xlator, handles
from glustx.xlators.system.posix_acl_attrs import TEXTS, Attributes, text_of
from glustx.xlators.system.posix_acl_forms import READ, SEARCH, WRITE
from glustx.xlators.system.posix_acl_judge import ASK
from glustx.xlators.system.posix_acl_names import Names, opening

# What anybody may ask who knows the gfid.
_ANYBODY = (fops.Stat, fops.Fstat, fops.Statfs, fops.Readlink, fops.Getactivelk)
# Those that concern root as well: they change what is kept of an inode, or speak of ACLs as text.
_EVERYBODY = (fops.Create, fops.Mkdir, fops.Mknod, fops.Symlink, fops.Put, fops.Icreate, fops.Getxattr, fops.Fgetxattr)


class PosixAcl(Names, Attributes, Xlator):
    """Lets a caller do what mode bits and ACLs grant; EACCES or EPERM otherwise, as stock answers."""

    class Options(OptionSet):
        """Options of system/posix-acl."""

        super_uid: int = option(0, "A user besides 0 who may do everything.", low=0, high=0xFFFFFFFF, live=True)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self._init_guards()
        self._fds: dict[type[Fop], tuple[str, ...]] = {}

    def wire(self, graph: Graph) -> None:
        """Resolve the fops; what root does, or what is done with an open fd, goes straight through."""
        super().wire(graph)
        below = self.subvolumes[0].table
        for cls, mine in list(self.table.items()):
            how = type(self).how(cls.name)
            self._fds[cls] = tuple(name for name in ("fd", "fd_in", "fd_out") if name in cls.__struct_fields__)
            if how == "pass" or cls in _ANYBODY:
                self.table[cls] = below[cls]
            elif cls is fops.Lookup:
                self.table[cls] = _lookup_gate(mine, below[cls])
            elif not cls.effects & CHANGES_ATTRS and cls not in _EVERYBODY:
                judged = how == "by effect" and self._fds[cls] == ("fd",) and not cls.effects & CHANGES_NAMES
                self.table[cls] = self._fd_gate(cls, mine, below[cls]) if judged else _gate(mine, below[cls])

    def _fd_gate(self, cls: type[Fop], mine: Method, passed: Method) -> Method:
        want = WRITE if cls.effects & (WRITES_DATA | MAY_GROW) else READ
        granted = self.granted

        def gate(req: Any) -> Coroutine[Any, Any, Any]:
            caller, fd = req.caller, req.fd
            if not caller.uid or caller.pid < 0 or not fd.anonymous or granted(fd.gfid, caller, want):
                return passed(req)
            return mine(req)

        return gate

    @handles(READS | WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES)
    async def judged(self, req: Fop) -> Any:
        """Judge a fop by its effects: names need their directories, the inode that changes write permission, another
        one read permission. Attributes are also for the owner to change."""
        cls = type(req)
        free = self._free(req.caller)
        if not free:
            await self._judge(req, cls.effects)
        if not cls.effects & CHANGES_ATTRS:
            return await self.child(req)
        try:
            return await self.child(req)
        finally:
            self._forget(*(loc.gfid for loc in req.targets()))

    async def _judge(self, req: Fop, effects: int) -> None:
        if effects & CHANGES_NAMES:
            for loc in req.names():
                await self._need(req, loc.pargfid, WRITE | SEARCH)
            return
        changes = effects & (WRITES_DATA | MAY_GROW | CHANGES_ATTRS)
        subject = req.subject()
        places: Iterable[Loc | Fd] = [getattr(req, name) for name in self._fds[type(req)]] or req.targets()
        for place in places:
            if isinstance(place, Fd) and not place.anonymous:
                continue
            want = WRITE if changes and place is subject else READ
            if effects & CHANGES_ATTRS and (await self._guard(place.gfid)).uid == req.caller.uid:
                continue
            await self._need(req, place.gfid, want)

    # -- finding and opening -------------------------------------------------------------------------------------------

    async def lookup(self, req: fops.Lookup) -> fops.LookupReply:
        """Look up with search permission on the parent, and learn what guards the inode; by gfid alone for anybody. The
        content that quick-read asks for is for those who may read."""
        loc, caller = req.loc, req.caller
        if loc.name and not self.granted(loc.pargfid, caller, SEARCH) and not self._free(caller):
            await self._need(req, loc.pargfid, SEARCH)
        changes = self._changes
        reply: fops.LookupReply = await self.child(msgspec.structs.replace(req, xdata=req.xdata.asking(ASK)))
        guard = self._keep(reply, changes)
        if CONTENT in reply.xdata and not guard.permits(caller, READ) and not self._free(caller):
            reply = msgspec.structs.replace(reply, xdata=reply.xdata.without(CONTENT))
        if not req.xdata.names_any(TEXTS):
            return reply
        texts = {key: Typed(STR, text) for key in TEXTS & set(req.xdata) if (text := text_of(guard, key)) is not None}
        return msgspec.structs.replace(reply, xdata=reply.xdata.plus(texts)) if texts else reply

    async def readdirp(self, req: fops.Readdirp) -> fops.ReaddirReply:
        """List a directory, without the content of its files: each would have to be judged."""
        if req.fd.anonymous:
            await self._need(req, req.fd.gfid, READ)
        if CONTENT in req.xdata and not self._free(req.caller):
            req = msgspec.structs.replace(req, xdata=req.xdata.without(CONTENT))
        reply: fops.ReaddirReply = await self.child(req)
        return reply

    async def open(self, req: fops.Open) -> fops.Done:
        """Open with the permissions that the flags ask for."""
        await self._need(req, req.loc.gfid, opening(req.flags))
        done: fops.Done = await self.child(req)
        return done

    async def opendir(self, req: fops.Opendir) -> fops.Done:
        """Open a directory with read permission."""
        await self._need(req, req.loc.gfid, READ)
        done: fops.Done = await self.child(req)
        return done

    async def access(self, req: fops.Access) -> fops.Done:
        """Answer from mode bits and ACL; EINVAL for bits other than R, W and X."""
        if req.mask & ~7:
            raise FopError(errno.EINVAL, f"access {req.loc}: mask {req.mask:#o}")
        await self._need(req, req.loc.gfid, req.mask)
        return fops.Done()

    def statedump(self) -> dict[str, Any]:
        """Return how many inodes' permissions are kept."""
        return {"guarded_inodes": sum(self._guards.get(inode) is not None for inode in self.graph.inodes)}


def _gate(mine: Method, passed: Method) -> Method:
    def gate(req: Any) -> Coroutine[Any, Any, Any]:
        caller = req.caller
        return passed(req) if not caller.uid or caller.pid < 0 else mine(req)

    return gate


def _lookup_gate(mine: Method, passed: Method) -> Method:
    def gate(req: Any) -> Coroutine[Any, Any, Any]:
        caller = req.caller
        plain = (not caller.uid or caller.pid < 0) and not req.xdata.names_any(TEXTS)
        return passed(req) if plain else mine(req)

    return gate
