"""features/leases: a client may rely on nobody else changing a file (RD lease), or on nobody else using it (RW lease),
until it is told otherwise.

A lease belongs to a client and a lease id of its choice; the client's fops bring the id in their xdata. A fop that
conflicts with somebody's lease makes the brick recall that lease, and waits until it has been given back, or taken
away after `lease-lock-recall-timeout`; where the fd is O_NONBLOCK it fails with EAGAIN at once.

What conflicts follows from effects: changes conflict with the leases of all others, reading content with RW leases.
Stock names fops one by one, and its list lacks COPY_FILE_RANGE, SEEK, PUT and the file that a RENAME replaces, and has
readers without a lease id recall RD leases, FLUSH and FSYNC recall anything; an fd that was opened without a lease id
keeps nobody there from a lease. Changes of xattrs conflict with nothing, as in stock: libgfapi sends no id with them.

The state is kept in `LeaseTable`, whose methods never wait: each is atomic.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from glustx import fops, xdata
from glustx.errors import FopError
from glustx.fops import Fop, Reply
from glustx.graph import Graph
from glustx.inode import O_ACCMODE, Fd
from glustx.options import OptionSet, Seconds, option
from glustx.runtime import turn
from glustx.upcall import LeaseRecall
from glustx.values import (
    F_GETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    LEASE_GET,
    LEASE_RD,
    LEASE_RW,
    LEASE_SET,
    LEASE_UNLOCK,
    NULL_GFID,
    Loc,
    gfid_text,
)
from glustx.xlator import Event, Xlator, handles
from glustx.xlators.features.leases_table import Held, Key, LeaseTable

O_NONBLOCK = 0o4000
NO_ID = bytes(16)


class Leases(Xlator):
    """Leases, and their recall by the fops of others."""

    class Options(OptionSet):
        """Options of features/leases."""

        leases: bool = option(False, "Whether leases are granted; turning it off drops those held.", live=True)
        recall_timeout: Seconds = option(
            Seconds(60),
            "Time that a client has to give a recalled lease back before it is taken away.",
            key="lease-lock-recall-timeout",
            low=0,
            live=True,
        )
        client_lease_limit: int = option(
            65536, "Leases that one client may hold; above it ENOLCK. 0 means no limit.", low=0, live=True
        )

    def wire(self, graph: Graph) -> None:
        """Resolve the fops; without a lease on the brick most pass at the cost of a plain function call."""
        super().wire(graph)
        self.held = LeaseTable(graph.inodes, self._recall, lambda: graph.reactor)
        self.options_changed(None)
        below = self.subvolumes[0].table
        for cls, method in self.table.items():
            if method in (self.changed, self.attributes, self.seen, self.lk, self.lookup, self.copy_file_range):
                tells = method in (self.changed, self.attributes, self.copy_file_range)
                self.table[cls] = self._when_needed(below[cls], method, tells)
        for cls in (fops.Mknod, fops.Mkdir, fops.Symlink, fops.Icreate, fops.Namelink, fops.Rmdir):
            self.table[cls] = below[cls]

    def _when_needed(self, below: Callable[[Any], Any], method: Callable[[Any], Any], tells: bool) -> Any:
        # An fd open for writing keeps leases away by itself; other changes must be known while they are under way.
        held, changed = self.held, "fd_out" if method == self.copy_file_range else "fd"

        def pick(req: Any) -> Coroutine[Any, Any, Any]:
            if held.active or (tells and self.options.leases and not _writer(getattr(req, changed, None))):
                co: Coroutine[Any, Any, Any] = method(req)
                return co
            down: Coroutine[Any, Any, Any] = below(req)
            return down

        return pick

    def options_changed(self, old: Any) -> None:
        """Follow new limits; without leases nobody waits."""
        self.held.timeout = self.options.recall_timeout
        self.held.client_limit = self.options.client_lease_limit
        if not self.options.leases:
            turn(self.held.drop_client, None)

    # -- the lease -------------------------------------------------------------------------------------------------

    async def lease(self, req: fops.Lease) -> fops.LeaseReply:
        """Tell what is held, grant a lease or take one back."""
        gfid, lease = req.loc.gfid, req.lease
        if not self.options.leases or _exempt(req):
            raise FopError(errno.ENOSYS, f"{req.loc}: leases are off")
        if lease.id == NO_ID or gfid == NULL_GFID:
            raise FopError(errno.EINVAL, f"lease on {req.loc}: the {'gfid' if lease.id != NO_ID else 'id'} is missing")
        key = (req.caller.client, lease.id)
        if lease.cmd == LEASE_UNLOCK:
            self.held.give_back(gfid, key, lease.type)
            return fops.LeaseReply(lease=lease)
        if lease.cmd not in (LEASE_GET, LEASE_SET):
            raise FopError(errno.EINVAL, f"lease on {gfid_text(gfid)}: command {lease.cmd} does not exist")
        stat = (await self.child(req.also(fops.Stat, Loc(gfid=gfid)))).stat
        if lease.cmd == LEASE_GET:
            return fops.LeaseReply(lease=msgspec.structs.replace(lease, type=self.held.type(gfid)))
        if lease.type not in (LEASE_RD, LEASE_RW) or not stat.is_reg():
            what = f"type {lease.type}" if stat.is_reg() else "not a regular file"
            raise FopError(errno.EINVAL, f"lease on {gfid_text(gfid)}: {what}")
        self.held.grant(gfid, key, lease.type)
        return fops.LeaseReply(lease=lease)

    def _recall(self, held: Held) -> None:
        client, lease_id = held.key
        self.tell_parents(Event.UPCALL, LeaseRecall(client, held.gfid, 0, lease_id))

    # -- what conflicts --------------------------------------------------------------------------------------------

    async def _pass(self, req: Fop, gfid: bytes, *, write: bool, may_wait: bool = True) -> None:
        """Return once no lease of others forbids the fop; nothing has waited since the last look then."""
        key = _key(req)
        while conflicts := self.held.conflicts(gfid, key, write=write):
            self.held.recall(conflicts)
            if not may_wait:
                raise FopError(errno.EAGAIN, f"{req.name} on {gfid_text(gfid)}: somebody else holds a lease")
            waiter = self.held.wait(gfid, key[0])
            self.tell_parents(Event.FOP_WAITS, req)
            try:
                await waiter
            finally:
                self.held.waited(gfid, key[0], waiter)
                self.tell_parents(Event.FOP_GOES_ON, req)

    @handles(fops.WRITES_DATA | fops.MAY_GROW | fops.CHANGES_NAMES)
    async def changed(self, req: Any) -> Reply:
        """Change a file, or take its name away, when nobody relies on it any more."""
        return await self._change(req)

    async def attributes(self, req: Any) -> Reply:
        """Change a file's attributes."""
        return await self._change(req)

    setattr = fsetattr = attributes

    async def _change(self, req: Any) -> Reply:
        if _exempt(req):
            reply: Reply = await self.child(req)
            return reply
        key, may_wait = _key(req), _may_wait(getattr(req, "fd", None))
        gfids = await self._subjects(req)
        for gfid in gfids:
            self.held.changing(gfid, key)
        try:
            for gfid in gfids:
                await self._pass(req, gfid, write=True, may_wait=may_wait)
            reply = await self.child(req)
            return reply
        finally:
            for gfid in gfids:
                self.held.changed(gfid, key)

    async def seen(self, req: Any) -> Reply:
        """Read content when nobody may have changed it without telling."""
        if not _exempt(req):
            await self._pass(req, req.fd.gfid, write=False, may_wait=_may_wait(req.fd))
        reply: Reply = await self.child(req)
        return reply

    read = seek = rchecksum = seen

    async def copy_file_range(self, req: fops.CopyFileRange) -> fops.CopyReply:
        """Read one file and change another."""
        if not _exempt(req):
            await self._pass(req, req.fd_in.gfid, write=False, may_wait=_may_wait(req.fd_in))
        reply = await self._change(req)
        assert isinstance(reply, fops.CopyReply)
        return reply

    async def lookup(self, req: fops.Lookup) -> fops.LookupReply:
        """Leave the content out that somebody may have changed without telling."""
        reply: fops.LookupReply = await self.child(req)
        if xdata.CONTENT not in reply.xdata or _exempt(req):
            return reply
        if self.held.conflicts(reply.stat.gfid, _key(req), write=False):
            reply = msgspec.structs.replace(reply, xdata=reply.xdata.without(xdata.CONTENT))
        return reply

    async def lk(self, req: fops.Lk) -> fops.LkReply:
        """Take a lock as one reads or writes; to test one or to give it back conflicts with nothing."""
        if req.cmd != F_GETLK and req.type != F_UNLCK and not _exempt(req):
            may_wait = req.cmd == F_SETLKW and _may_wait(req.fd)
            await self._pass(req, req.fd.gfid, write=req.type == F_WRLCK, may_wait=may_wait)
        reply: fops.LkReply = await self.child(req)
        return reply

    async def _subjects(self, req: Any) -> list[bytes]:
        """Return the files that a request changes; those that it names are looked up while there are leases."""
        if isinstance(req, fops.Rename):
            named = [req.oldloc, req.newloc]
        elif isinstance(req, (fops.Unlink, fops.Put)):
            named = [req.loc]
        else:
            subject = req.subject()
            return [subject.gfid] if subject is not None and subject.gfid != NULL_GFID else []
        return [gfid for loc in named if (gfid := await self._find(req, loc)) is not None]

    async def _find(self, req: Fop, loc: Loc) -> bytes | None:
        if not self.held.active:
            return None
        try:
            reply = await self.child(req.also(fops.Lookup, Loc(pargfid=loc.pargfid, name=loc.name)))
        except FopError:
            return None  # the fop itself will say why
        gfid: bytes = reply.stat.gfid
        return gfid

    # -- fds -------------------------------------------------------------------------------------------------------

    async def open(self, req: fops.Open) -> Reply:
        """Open a file; its fd is counted, also while leases are off, from before it is there."""
        gfid, fd = req.loc.gfid, req.fd
        self.held.opened(gfid, fd, _key(req)[1])
        try:
            if self.held.active and not _exempt(req):
                write = bool(req.flags & (O_ACCMODE | fops.O_TRUNC))
                await self._pass(req, gfid, write=write, may_wait=not req.flags & O_NONBLOCK)
            reply: Reply = await self.child(req)
        except BaseException:
            self.held.closed(gfid, fd)
            raise
        return reply

    async def create(self, req: fops.Create) -> fops.CreateReply:
        """Make a file, or open one that is there."""
        key = _key(req)
        found = None if _exempt(req) else await self._find(req, req.loc)
        if found is not None:
            await self._pass(req, found, write=True, may_wait=not req.flags & O_NONBLOCK)
        reply: fops.CreateReply = await self.child(req)
        gfid = reply.stat.gfid
        self.held.opened(gfid, req.fd, key[1])
        if self.held.active and not _exempt(req):  # granted while it was being made
            self.held.recall(self.held.conflicts(gfid, key, write=True))
        return reply

    async def release(self, req: fops.Release) -> fops.Done:
        """The fd is gone."""
        self.held.closed(req.fd.gfid, req.fd)
        reply: fops.Done = await self.child(req)
        return reply

    # -- events, state ---------------------------------------------------------------------------------------------

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Drop the leases of a client that is gone."""
        if event is Event.CLIENT_GONE:
            turn(self.held.drop_client, data)
        super().notify(event, source, data)

    async def stop(self) -> None:
        """Drop everything, so that nothing waits and no timer is left."""
        turn(self.held.drop_client, None)

    def statedump(self) -> dict[str, Any]:
        """List the leases by inode."""
        dump: dict[str, Any] = {"leases": self.held.active}
        for gfid, state in self.held:
            where = f"inode({gfid_text(gfid)})"
            for index, held in enumerate(list(state.held.values())[:100]):
                client, lease_id = held.key
                shown = "RECALLED" if held.recalled else "ACTIVE"
                counts = f"RD={held.counts[LEASE_RD]}, RW={held.counts[LEASE_RW]}"
                dump[f"{where}.lease[{index}]({shown})"] = f"{counts}, id={lease_id.hex()}, client={client}"
            if state.waiting:
                dump[f"{where}.waiting"] = len(state.waiting)
        return dump


def _key(req: Fop) -> Key:
    """Return under which lease the fop comes; a lease id is 16 bytes, what is shorter was cut at its zeroes."""
    given = req.xdata.get(xdata.LEASE_ID)
    if not isinstance(given, bytes) or given.strip(b"\0") == b"":
        return req.caller.client, b""
    return req.caller.client, given[:16].ljust(16, b"\0")


def _exempt(req: Fop) -> bool:
    # Replicate's healing and the like keep clients' data as it is.
    return req.caller.pid < 0 or xdata.INTERNAL_FOP in req.xdata


def _may_wait(fd: Fd | None) -> bool:
    return fd is None or not fd.flags & O_NONBLOCK


def _writer(fd: Fd | None) -> bool:
    return fd is not None and not fd.anonymous and bool(fd.flags & O_ACCMODE)
