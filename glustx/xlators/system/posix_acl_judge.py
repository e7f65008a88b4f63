"""What guards an inode, kept with it, and the refusal of callers whom it does not let through."""

from __future__ import annotations

import errno
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.graph import Graph
from glustx.inode import PerInode
from glustx.values import Caller, Iatt, Loc
from glustx.xdata import UNLINKED_LOOKUP, Xdata
from glustx.xlator import Wind
from glustx.xlators.system import posix_acl_forms as forms
from glustx.xlators.system.posix_acl_forms import ACCESS, DEFAULT, READ, SEARCH, WRITE

ASK = Xdata({ACCESS: 0, DEFAULT: 0})
_ASK_ANY = Xdata({ACCESS: 0, DEFAULT: 0, UNLINKED_LOOKUP: 1})
_BITS = {READ: "read", WRITE: "write", SEARCH: "execute or search"}


class Guard:
    """What is kept of an inode: owner, mode, ACLs, and the answers that its last caller got. `source` is the xdata that
    told it: storage gives the same one until the inode changes."""

    __slots__ = ("acl", "answers", "caller", "default", "gid", "mode", "source", "uid")

    def __init__(self, stat: Iatt, xattrs: Xdata) -> None:
        self.uid = stat.uid
        self.gid = stat.gid
        self.mode = stat.mode
        self.source = xattrs
        self.acl = _acl(xattrs.get(ACCESS))
        self.default = _acl(xattrs.get(DEFAULT))
        self.caller: Caller | None = None
        self.answers: dict[int, bool] = {}

    def permits(self, caller: Caller, want: int) -> bool:
        """Tell whether a caller has all of `want`."""
        if self.caller is not caller:
            self.caller = caller
            self.answers = {}
        answer = self.answers.get(want)
        if answer is None:
            answer = self.answers[want] = forms.permits(self.uid, self.gid, self.mode, self.acl, caller, want)
        return answer


class Judging:
    """Keeps guards of inodes and asks them."""

    child: Wind
    graph: Graph
    options: Any

    def _init_guards(self) -> None:
        self._guards: PerInode[Guard] = PerInode()
        self._changes = 0  # how often something kept may have become wrong

    def _free(self, caller: Caller) -> bool:
        return not caller.uid or caller.pid < 0 or caller.uid == self.options.super_uid

    async def _guard(self, gfid: bytes) -> Guard:
        """Return what guards an inode; FopError ESTALE when there is none."""
        inode = self.graph.inodes.find(gfid)
        guard = self._guards.get(inode) if inode is not None else None
        if guard is None:
            changes = self._changes
            try:
                reply = await self.child(fops.Lookup(Loc(gfid=gfid), xdata=_ASK_ANY))
            except FopError as error:
                code = errno.ESTALE if error.errno == errno.ENOENT else error.errno
                raise FopError(code, f"{self.graph.surroundings.host}: {error.text}") from error
            guard = self._keep(reply, changes)
        return guard

    def granted(self, gfid: bytes, caller: Caller, want: int) -> bool:
        """Tell whether a caller was granted `want` before and nothing has changed since; False may mean unknown."""
        inode = self.graph.inodes.find(gfid)
        if inode is None:
            return False
        guard: Guard | None = inode.slots.get(self._guards)
        return guard is not None and guard.caller is caller and guard.answers.get(want, False)

    def _keep(self, reply: fops.LookupReply, changes: int) -> Guard:
        """Keep what a LOOKUP tells, unless something has changed since it was sent."""
        stat = reply.stat
        inode = self.graph.inodes.get(stat.gfid)
        guard = self._guards.get(inode)
        same = guard is not None and guard.source is reply.xdata
        if guard and same and (guard.mode, guard.uid, guard.gid) == (stat.mode, stat.uid, stat.gid):
            return guard
        guard = Guard(stat, reply.xdata)
        if changes == self._changes:
            self._guards.set(inode, guard)
        return guard

    def _forget(self, *gfids: bytes) -> None:
        self._changes += 1
        for gfid in gfids:
            inode = self.graph.inodes.find(gfid)
            if inode is not None:
                self._guards.pop(inode)

    async def _need(self, req: Fop, gfid: bytes, want: int) -> Guard:
        """Refuse (EACCES) a caller that has not all of `want` on an inode."""
        guard = await self._guard(gfid)
        if not guard.permits(req.caller, want) and not self._free(req.caller):
            raise self._refusal(req, errno.EACCES, f"{words(want)} permission on {Loc(gfid=gfid)}")
        return guard

    def _refusal(self, req: Fop, code: int, lacking: str) -> FopError:
        place = next(iter(req.targets()), "")
        return FopError(
            code, f"{self.graph.surroundings.host}: {req.name} {place}: uid {req.caller.uid} lacks {lacking}"
        )


def _acl(raw: Any) -> forms.Acl:
    """Return the ACL of an xattr; none when there is none, or one that says nothing more than a mode."""
    if not isinstance(raw, bytes):
        return ()
    try:
        return forms.parse(raw)
    except ValueError:
        return ()


def words(want: int) -> str:
    return " and ".join(word for bit, word in _BITS.items() if want & bit)
