"""performance/open-behind: OPEN is answered at once and sent when the first fop needs it, or never.

With quick-read above, a small file is opened, read and closed by one LOOKUP. An OPEN is put off only right after a
LOOKUP of this client that says it will succeed: the file is there, is a regular one, and its mode bits let the caller
in (root anyway; where there is an ACL, the owner alone). So open() still fails where it would have failed. What nobody
can foresee (a brick that is read-only, another client that removes the file) comes with the first fop that needs the
file open, as with stock's.

The fops of an fd wait for its one OPEN that is under way and go on in their order. An OPEN that failed is what each of
them reports; one that was not answered is tried again by the next. A fop that removes a name or changes attributes
first sends the OPENs that it could break. FLUSH and RELEASE of an fd that was never opened stay here. Source: options
and which fops go by an anonymous fd as in stock's translator; stock puts off the first OPEN of an inode only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Coroutine
from typing import Any

import msgspec

from glustx import fops
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, Fop, Reply
from glustx.graph import Graph
from glustx.inode import O_ACCMODE, Fd
from glustx.options import OptionSet, option
from glustx.values import Caller
from glustx.xdata import Xdata
from glustx.xlator import Method, Xlator, handles
from glustx.xlators.performance.open_behind_deferred import Deferrals

O_WRONLY = 1
_NOW = 0o1000 | 0o300 | 0o200000  # O_TRUNC, O_CREAT, O_EXCL, O_DIRECTORY: what OPEN does or checks by itself
_KNOWN_MAX = 2048
_BELIEVED = 1.0  # seconds for which a LOOKUP vouches for an OPEN
_WANTS = (4, 2, 6, 6)  # permission bits by access mode
_ACL = b"system.posix_acl_access"
_ASK_ACL = Xdata({_ACL: 0})
_PLAIN_ACL = 28  # bytes of an ACL that says no more than mode bits do


Known = tuple[int, int, int, bool, float, int]
"""Mode, uid and gid of a file, whether it may have an ACL, when the LOOKUP was sent, how many names had gone."""


class OpenBehind(Xlator):
    """Answers OPEN at once and sends it when it is needed."""

    class Options(OptionSet):
        """When the OPEN is sent."""

        lazy_open: bool = option(
            True, "Send OPEN when a fop needs it; off sends it right behind its answer.", live=True
        )
        use_anonymous_fd: bool = option(
            False,
            "FSTAT and SEEK (and READ, see read-after-open) of an fd not opened yet use the brick's own.",
            live=True,
        )
        read_after_open: bool = option(True, "READ sends OPEN first even where use-anonymous-fd is on.", live=True)
        pass_through: bool = option(False, "Put off nothing.", live=True)
        accepted = ("open-behind",)

    # -- which fops concern it ---------------------------------------------------------------------------------------

    def wire(self, graph: Graph) -> None:
        """Resolve the fops: those on an fd look for its slot, and pass without a coroutine when there is none."""
        self._deferrals = Deferrals(self.name, graph, self.subvolumes[0])
        self._slot = self._deferrals.slot
        # What LOOKUPs have told: two generations, since it is worth nothing a second later anyway.
        self._known: dict[bytes, Known] = {}
        self._known_before: dict[bytes, Known] = {}
        self._changes = 0  # attribute changes: a LOOKUP under way may tell what was before
        self._removals = 0  # removed names: whatever was looked up before may be gone
        super().wire(graph)
        below = self.subvolumes[0].table
        for cls, method in self.table.items():
            if method in (self.needed, self.passed):
                fds = fds_of(cls)
                self.table[cls] = self._gate(fds, below[cls]) if fds and method == self.needed else below[cls]
        self.table[fops.Read] = self._gate(("fd",), below[fops.Read], self.read)
        self.table[fops.Fstat] = self._gate(("fd",), below[fops.Fstat], self.fstat)
        self.table[fops.Seek] = self._gate(("fd",), below[fops.Seek], self.seek)

    def _gate(self, fds: tuple[str, ...], down: Method, mine: Method | None = None) -> Method:
        slot = self._slot
        behind = mine or functools.partial(self._behind, fds, down)
        if fds != ("fd",):

            def gate_all(req: Any) -> Coroutine[Any, Any, Any]:
                return behind(req) if any(slot in getattr(req, name).slots for name in fds) else down(req)

            return gate_all

        def gate(req: Any) -> Coroutine[Any, Any, Any]:
            return behind(req) if slot in req.fd.slots else down(req)

        return gate

    async def _behind(self, fds: tuple[str, ...], down: Method, req: Any) -> Reply:
        for name in fds:
            fd: Fd = getattr(req, name)
            await self._deferrals.opened(fd, req)
        reply: Reply = await down(req)
        return reply

    @handles(fops.ALL_EFFECTS & ~fops.INTERNAL)
    async def needed(self, req: Fop) -> Reply:
        """Send the OPENs of the fop's fds first; `wire` puts what looks for them alone into the table."""
        return await self._behind(fds_of(type(req)), self.subvolumes[0].table[type(req)], req)

    async def passed(self, req: Fop) -> Reply:
        """Pass on: a directory's fd, or a name that is added."""
        reply: Reply = await self.child(req)
        return reply

    opendir = releasedir = readdir = readdirp = fsyncdir = fentrylk = passed
    mknod = mkdir = symlink = link = create = put = icreate = namelink = passed

    # -- opening -----------------------------------------------------------------------------------------------------

    async def lookup(self, req: fops.Lookup) -> fops.LookupReply:
        """Remember what lets a caller open the file."""
        asks = req.caller.uid and _ACL not in req.xdata
        if asks:
            req = msgspec.structs.replace(req, xdata=req.xdata.asking(_ASK_ACL))
        changes, removals, sent = self._changes, self._removals, self.graph.reactor.time()
        reply: fops.LookupReply = await self.child(req)
        stat = reply.stat
        if stat.is_reg() and changes == self._changes and removals == self._removals:
            acl = not req.caller.uid  # nobody has asked
            if _ACL in reply.xdata:
                raw = reply.xdata[_ACL]
                acl = not isinstance(raw, bytes) or len(raw) > _PLAIN_ACL
            if len(self._known) >= _KNOWN_MAX:
                self._known_before, self._known = self._known, {}
            self._known[stat.gfid] = (stat.mode, stat.uid, stat.gid, acl, sent, removals)
        if asks and _ACL in reply.xdata:
            reply = msgspec.structs.replace(reply, xdata=reply.xdata.without(_ACL))
        return reply

    async def open(self, req: fops.Open) -> Reply:
        """Answer at once where the OPEN is sure to succeed."""
        if self.options.pass_through or req.flags & _NOW or not self._vouched(req):
            done: Reply = await self.child(req)
            return done
        self._deferrals.put_off(req, self.options.lazy_open)
        return fops.Done()

    def _vouched(self, req: fops.Open) -> bool:
        gfid = req.loc.gfid
        known = self._known.get(gfid) or self._known_before.get(gfid)
        if known is None or req.fd.gfid != gfid:
            return False
        mode, uid, gid, acl, sent, removals = known
        if removals != self._removals or self.graph.reactor.time() - sent > _BELIEVED:
            return False
        return lets(mode, uid, gid, acl, req.caller, _WANTS[req.flags & O_ACCMODE])

    # -- fops of an fd that may do without ---------------------------------------------------------------------------

    async def read(self, req: fops.Read) -> fops.ReadReply:
        """Read by an anonymous fd where that is wanted."""
        reply: fops.ReadReply = await self._reading(req, self.options.read_after_open)
        return reply

    async def fstat(self, req: fops.Fstat) -> fops.AttrReply:
        """As `read`."""
        reply: fops.AttrReply = await self._reading(req, False)
        return reply

    async def seek(self, req: fops.Seek) -> fops.SeekReply:
        """As `read`."""
        reply: fops.SeekReply = await self._reading(req, False)
        return reply

    async def _reading(self, req: Any, wants_open: bool) -> Any:
        fd: Fd = req.fd
        deferred = self._slot.get(fd)
        if deferred is not None:
            if (
                self.options.use_anonymous_fd
                and not wants_open
                and not (deferred.sent or deferred.opened or deferred.error)
                and fd.flags & O_ACCMODE != O_WRONLY
            ):
                req = msgspec.structs.replace(req, fd=Fd(fd.gfid, fd.flags, anonymous=True, client=fd.client))
            else:
                await self._deferrals.opened(fd, req)
        return await self.child(req)

    # -- the end of an fd --------------------------------------------------------------------------------------------

    async def flush(self, req: fops.Flush) -> Reply:
        """An fd that was never opened has nothing to flush."""
        deferred = self._slot.get(req.fd)
        if deferred is not None:
            if not (deferred.sent or deferred.opened):
                return fops.Done()
            await self._deferrals.settled(deferred, req)
            if deferred.error is not None:
                return fops.Done()
        done: Reply = await self.child(req)
        return done

    async def release(self, req: fops.Release) -> Reply:
        """Forget an OPEN that was not sent; one that is under way is followed by the RELEASE, nobody waits for it."""
        deferred = self._slot.get(req.fd)
        if deferred is None:
            done: Reply = await self.child(req)
            return done
        self._deferrals.give_back(deferred, req)
        return fops.Done()

    # -- fops that could break an OPEN -------------------------------------------------------------------------------

    @handles(CHANGES_ATTRS | CHANGES_NAMES)
    async def changed(self, req: Fop) -> Reply:
        """Send the OPENs first that would find something else afterwards; forget what LOOKUPs have vouched for."""
        await self._deferrals.before(req)
        fds = fds_of(type(req))
        self._forget_known(req)
        try:
            return await self._behind(fds, self.subvolumes[0].table[type(req)], req)
        finally:
            self._forget_known(req)

    def _forget_known(self, req: Fop) -> None:
        if req.effects & CHANGES_NAMES:
            self._removals += 1
            return
        self._changes += 1
        for loc in req.targets():
            self._known.pop(loc.gfid, None)
            self._known_before.pop(loc.gfid, None)

    async def lease(self, req: fops.Lease) -> fops.LeaseReply:
        """Send the OPENs first: afterwards they would wait for the very lease that this client holds."""
        await self._deferrals.before(req)
        reply: fops.LeaseReply = await self.child(req)
        return reply

    # -- life --------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Call off the OPENs that are under way."""
        await self._deferrals.tasks.stop()

    def statedump(self) -> dict[str, Any]:
        """Show how many OPENs wait to be needed, and what became of the others."""
        return self._deferrals.figures()


def lets(mode: int, uid: int, gid: int, acl: bool, caller: Caller, want: int) -> bool:
    """Tell whether it is sure that a caller has `want` (4 read, 2 write) on a file.

    Args:
        mode, uid, gid: of the file.
        acl: whether it has an ACL, or may have one: then only its owner's bits say all.
    """
    if not caller.uid:
        return True
    if caller.uid == uid:
        return not want & ~(mode >> 6)
    if acl:
        return False
    return not want & ~(mode >> 3 if gid == caller.gid or gid in caller.groups else mode)


@functools.lru_cache(None)
def fds_of(cls: type[Fop]) -> tuple[str, ...]:
    """Return the names of a fop's fields that are fds."""
    # As text: to evaluate the hints of all fops takes longer than to mount a volume.
    hints = {name: hint for base in cls.__mro__ for name, hint in inspect.get_annotations(base).items()}
    return tuple(name for name in cls.__struct_fields__ if hints[name] in (Fd, "Fd"))
