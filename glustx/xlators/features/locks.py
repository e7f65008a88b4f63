"""features/locks: the locks of a brick - posix byte-range locks of applications, inodelks and entrylks of translators.

It sits right above storage, so that all clients meet in it. A lock belongs to (client, lk_owner of the credential): the
lk_owner inside a flock is not looked at, as in stock. Posix locks split and merge as fcntl(2) says and go on FLUSH or
RELEASE; inodelks and entrylks live in named domains and queue in order of arrival; all of a client's go with it.
Where locking is mandatory, fops that read or change data wait for the posix locks of others, or fail with EAGAIN on an
fd that is O_NONBLOCK, without an fd, and at an OPEN that empties the file, as in stock.

A fop that takes a lock waits on a Waiter. When it is called off, its lock is withdrawn, also when it was granted in the
very moment. The state is kept in `LockTable`, whose methods never wait: each is atomic.
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
from glustx.lock_ranges import LAST, Owner, PosixLock, conflict, span
from glustx.options import OptionSet, Seconds, option
from glustx.runtime import turn
from glustx.upcall import EntrylkContention, InodelkContention
from glustx.values import (
    ENTRYLK_LOCK,
    ENTRYLK_LOCK_NB,
    ENTRYLK_UNLOCK,
    ENTRYLK_WRLCK,
    F_GETLK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    NULL_GFID,
    ActiveLock,
    Caller,
    Flock,
    Loc,
    gfid_text,
)
from glustx.xdata import Xdata
from glustx.xlator import Event, Xlator, handles
from glustx.xlators.features import locks_mandatory as m
from glustx.xlators.features.locks_queue import EntryHold, Hold, InodeHold
from glustx.xlators.features.locks_table import LockTable, describe, owned_by, set_through

_DOM_PREFIX = b"glusterfs.inodelk-dom-prefix:"
_ASKED = frozenset(
    {
        xdata.INODELK_COUNT,
        xdata.ENTRYLK_COUNT,
        xdata.POSIXLK_COUNT,
        xdata.PARENT_ENTRYLK,
        xdata.INODELK_DOM_COUNT,
        xdata.MULTI_DOM_LK_COUNT,
    }
)


class Locks(Xlator):
    """Posix locks, inodelks and entrylks, and their counts where a request's xdata asks for them."""

    class Options(OptionSet):
        """Options of features/locks."""

        mandatory_locking: str = option(
            "off",
            "Whose data fops wait for the posix locks of others: those on files that are setgid without group execute"
            " (file), all (forced), or those on ranges under locks that were taken as mandatory (optimal).",
            choices=(m.OFF, m.FILE, m.FORCED, m.OPTIMAL),
            live=True,
        )
        notify_contention: bool = option(
            True, "Tell the holder of an inodelk or entrylk when another one waits for it.", live=True
        )
        notify_contention_delay: Seconds = option(
            Seconds(5), "Least time between two such messages about one lock.", low=0, high=60, live=True
        )
        client_lock_limit: int = option(
            65536, "Locks one client may hold and wait for; above it ENOLCK. 0 means no limit.", low=0, live=True
        )
        inode_lock_limit: int = option(
            4096,
            "The same for the locks of one client on one inode: each lock is compared with those that are there.",
            low=0,
            live=True,
        )
        accepted = ("trace", "revocation-*", "monkey-unlocking", "enforce-mandatory-lock")

    def wire(self, graph: Graph) -> None:
        """Resolve the fops; those that only count locks step aside for requests that do not ask."""
        super().wire(graph)
        self.locks = LockTable(graph.inodes, self._contended)
        self.options_changed(None)
        below = self.subvolumes[0].table
        for cls, method in self.table.items():
            if method == self.counted:
                self.table[cls] = _when_asked(below[cls], method)
        for cls in self.table:
            if m.obeys(cls) or cls in (fops.Open, fops.Create):
                self.table[cls] = self._when_mandatory(self.table[cls])

    def options_changed(self, old: Any) -> None:
        """Follow new limits; locks above them stay."""
        self.locks.client_limit = self.options.client_lock_limit
        self.locks.inode_limit = self.options.inode_lock_limit
        self._mode = self.options.mandatory_locking
        if old is not None:
            turn(self.locks.look_again)

    # -- inodelk, entrylk ------------------------------------------------------------------------------------------

    async def inodelk(self, req: fops.Inodelk) -> fops.Done:
        """Take or give back an inodelk."""
        return await self._inodelk(req, _gfid(req, req.loc))

    async def finodelk(self, req: fops.Finodelk) -> fops.Done:
        """Take or give back an inodelk on an open file."""
        return await self._inodelk(req, req.fd.gfid)

    async def _inodelk(self, req: fops.Inodelk | fops.Finodelk, gfid: bytes) -> fops.Done:
        if req.cmd not in (F_SETLK, F_SETLKW):
            raise FopError(errno.EOPNOTSUPP, f"{req.name} on {gfid_text(gfid)}: command {req.cmd} does not exist")
        first, last = _span(req, req.flock, gfid)
        hold = InodeHold(_owner(req.caller), req.type == F_WRLCK, req.flock, first, last)
        if req.type == F_UNLCK:
            return self._give_back(req, gfid, req.domain, hold)
        return await self._take(req, gfid, req.domain, hold, wait=req.cmd == F_SETLKW)

    async def entrylk(self, req: fops.Entrylk) -> fops.Done:
        """Take or give back an entrylk."""
        return await self._entrylk(req, _gfid(req, req.loc))

    async def fentrylk(self, req: fops.Fentrylk) -> fops.Done:
        """Take or give back an entrylk on an open directory."""
        return await self._entrylk(req, req.fd.gfid)

    async def _entrylk(self, req: fops.Entrylk | fops.Fentrylk, gfid: bytes) -> fops.Done:
        hold = EntryHold(_owner(req.caller), req.type == ENTRYLK_WRLCK, req.caller.pid, req.basename)
        if req.cmd == ENTRYLK_UNLOCK:
            return self._give_back(req, gfid, req.domain, hold)
        if req.cmd not in (ENTRYLK_LOCK, ENTRYLK_LOCK_NB):
            raise FopError(errno.EINVAL, f"{req.name} on {gfid_text(gfid)}: command {req.cmd} does not exist")
        return await self._take(req, gfid, req.domain, hold, wait=req.cmd == ENTRYLK_LOCK)

    async def _take(self, req: Fop, gfid: bytes, domain: bytes, hold: Hold, *, wait: bool) -> fops.Done:
        waiter = self.locks.acquire(gfid, domain, hold, wait=wait)
        if waiter is not None:
            try:
                await waiter
            except BaseException:
                self.locks.withdraw(gfid, domain, hold)
                raise
        return fops.Done()

    def _give_back(self, req: Fop, gfid: bytes, domain: bytes, hold: Hold) -> fops.Done:
        if not self.locks.give_back(gfid, domain, hold):
            raise FopError(errno.EINVAL, f"{req.name} on {gfid_text(gfid)}: the caller holds no such lock")
        return fops.Done()

    def _contended(self, gfid: bytes, domain: bytes, holds: list[Hold]) -> None:
        if not self.options.notify_contention:
            return
        now = self.graph.reactor.time()
        for hold in holds:
            if hold.told is not None and now - hold.told < self.options.notify_contention_delay:
                continue
            hold.told = now
            client = hold.owner[0]
            if isinstance(hold, InodeHold):
                self.tell_parents(Event.UPCALL, InodelkContention(client, gfid, hold.flock, hold.pid, domain))
            elif isinstance(hold, EntryHold):
                message = EntrylkContention(client, gfid, int(hold.exclusive), hold.pid, hold.name, domain)
                self.tell_parents(Event.UPCALL, message)

    # -- posix locks -----------------------------------------------------------------------------------------------

    async def lk(self, req: fops.Lk) -> fops.LkReply:
        """Test, take or give back a posix lock."""
        gfid = req.fd.gfid
        if req.cmd not in (F_GETLK, F_SETLK, F_SETLKW):
            raise FopError(errno.EINVAL, f"lk on {gfid_text(gfid)}: command {req.cmd} does not exist")
        first, last = _span(req, req.flock, gfid)
        pid, mandatory = req.flock.pid or req.caller.pid, m.is_mandatory(req.xdata)
        lock = PosixLock(_owner(req.caller), req.type, first, last, pid, req.fd, mandatory)
        if req.cmd == F_GETLK:
            state = self.locks.find(gfid)
            other = conflict(state.posix, lock) if state else None
            flock = other.flock() if other else msgspec.structs.replace(req.flock, type=F_UNLCK)
            return fops.LkReply(flock=flock)
        waiting = self.locks.set_posix(gfid, lock, wait=req.cmd == F_SETLKW)
        if waiting is not None:
            try:
                await waiting.waiter
            except BaseException:
                self.locks.withdraw_posix(gfid, waiting)
                raise
        return fops.LkReply(flock=msgspec.structs.replace(req.flock, type=req.type))

    async def flush(self, req: fops.Flush) -> fops.Done:
        """An application closed the file: its posix locks go, as close(2) has it."""
        if len(self.locks):
            self.locks.drop_posix(req.fd.gfid, owned_by(_owner(req.caller)))
        reply: fops.Done = await self.child(req)
        return reply

    async def release(self, req: fops.Release) -> fops.Done:
        """The fd is gone, and with it the posix locks last set through it."""
        if len(self.locks):
            self.locks.drop_posix(req.fd.gfid, set_through(req.fd))
        reply: fops.Done = await self.child(req)
        return reply

    async def getactivelk(self, req: fops.Getactivelk) -> fops.ActiveLksReply:
        """List the posix locks that are held, for migration."""
        state = self.locks.find(_gfid(req, req.loc))
        held = state.posix if state else []
        return fops.ActiveLksReply(
            locks=tuple(ActiveLock(lock.flock(), lock.owner[0], int(lock.mandatory)) for lock in held)
        )

    async def setactivelk(self, req: fops.Setactivelk) -> fops.Done:
        """Put the posix locks of a migrated inode in place, all or none."""
        gfid = _gfid(req, req.loc)
        state = self.locks.find(gfid)
        wanted = []
        for active in req.locks:
            first, last = _span(req, active.flock, gfid)
            owner = (active.client, active.flock.lk_owner)
            mandatory = bool(active.flags & m.MANDATORY)
            wanted.append(PosixLock(owner, active.flock.type, first, last, active.flock.pid, None, mandatory))
        for index, lock in enumerate(wanted):
            if conflict((*(state.posix if state else ()), *wanted[:index]), lock):
                raise FopError(errno.EAGAIN, f"setactivelk on {gfid_text(gfid)}: a lock conflicts with one held")
        for lock in wanted:
            self.locks.set_posix(gfid, lock, wait=False)
        return fops.Done()

    # -- mandatory locks -------------------------------------------------------------------------------------------

    def _when_mandatory(
        self, down: Callable[[Any], Coroutine[Any, Any, Any]]
    ) -> Callable[[Any], Coroutine[Any, Any, Any]]:
        # Without locks, or where they are advisory, a fop costs one plain call more.
        def pick(req: Any) -> Coroutine[Any, Any, Any]:
            if self._mode != m.OFF and len(self.locks) and req.caller.pid >= 0:
                return self._obedient(req, down)
            return down(req)

        return pick

    async def _obedient(self, req: Any, down: Callable[[Any], Coroutine[Any, Any, Any]]) -> Reply:
        client = req.caller.client
        while (touch := await self._forbidden(req)) is not None:
            if not touch.may_wait:
                raise FopError(errno.EAGAIN, f"{req.name} on {gfid_text(touch.gfid)}: somebody else holds a lock there")
            waiter = self.locks.wait_for_change(touch.gfid, client)
            self.tell_parents(Event.FOP_WAITS, req)
            try:
                await waiter
            finally:
                self.locks.waited(touch.gfid, client, waiter)
                self.tell_parents(Event.FOP_GOES_ON, req)
        reply: Reply = await down(req)
        return reply

    async def _forbidden(self, req: Any) -> m.Touch | None:
        """Return what a lock forbids the fop to touch, None when it may go on; nothing waits after the last look."""
        owner, touches = _owner(req.caller), []
        for touch in await self._emptied(req) if isinstance(req, (fops.Open, fops.Create)) else m.touches(req):
            if not self._forbids(touch, owner):
                continue
            if self._mode == m.FILE or touch.appends:
                try:
                    stat = (await self.child(req.also(fops.Stat, Loc(gfid=touch.gfid)))).stat
                except FopError:
                    continue  # the fop itself will say why
                if self._mode == m.FILE and not m.marked(stat.mode):
                    continue
                if touch.appends:
                    touch = touch._replace(first=stat.size)
            touches.append(touch)
        return next((touch for touch in touches if self._forbids(touch, owner)), None)

    def _forbids(self, touch: m.Touch, owner: Owner) -> bool:
        state = self.locks.find(touch.gfid)
        if state is None or self._mode == m.OFF:
            return False
        return any(m.forbids(lock, touch, owner, self._mode) for lock in state.posix)

    async def _emptied(self, req: fops.Open | fops.Create) -> list[m.Touch]:
        loc = m.empties(req)
        if loc is None:
            return []
        gfid = loc.gfid
        if gfid == NULL_GFID:
            try:
                gfid = (await self.child(req.also(fops.Lookup, loc))).stat.gfid
            except FopError:
                return []
        return [m.Touch(gfid, 0, LAST, True, False, whole=True)]

    # -- counts ----------------------------------------------------------------------------------------------------

    @handles(fops.ALL_EFFECTS & ~fops.LOCKS & ~fops.INTERNAL)
    async def counted(self, req: Fop) -> Reply:
        """Add the counts of held locks that the request's xdata asks for."""
        reply: Reply = await self.child(req)
        subject = req.subject()
        gfid = subject.gfid if subject is not None else NULL_GFID
        stat = getattr(reply, "stat", None)
        if gfid == NULL_GFID and stat is not None:
            gfid = stat.gfid
        name = subject if isinstance(subject, Loc) else None
        changes: dict[str, Any] = {"xdata": reply.xdata.plus(self._counts(req.xdata, gfid, name))}
        if isinstance(reply, fops.ReaddirReply):
            changes["entries"] = tuple(self._counted_entry(req.xdata, gfid, entry) for entry in reply.entries)
        return msgspec.structs.replace(reply, **changes)

    def _counted_entry(self, asked: Xdata, pargfid: bytes, entry: fops.DirEntry) -> fops.DirEntry:
        if entry.stat is None:
            return entry
        counts = self._counts(asked, entry.stat.gfid, Loc(pargfid=pargfid, name=entry.name))
        return msgspec.structs.replace(entry, xattrs=entry.xattrs.plus(counts))

    def _counts(self, asked: Xdata, gfid: bytes, loc: Loc | None = None) -> dict[bytes, object]:
        state = self.locks.find(gfid)
        counts: dict[bytes, object] = {}
        if xdata.INODELK_DOM_COUNT in asked:
            domain = asked.text(xdata.INODELK_DOM_COUNT).encode("utf-8", "surrogateescape")
            counts[xdata.INODELK_COUNT] = state.held(InodeHold, domain) if state else 0
        if xdata.INODELK_COUNT in asked:
            counts[xdata.INODELK_COUNT] = state.held(InodeHold) if state else 0
        if xdata.ENTRYLK_COUNT in asked:
            counts[xdata.ENTRYLK_COUNT] = state.held(EntryHold) if state else 0
        if xdata.POSIXLK_COUNT in asked:
            counts[xdata.POSIXLK_COUNT] = len(state.posix) if state else 0
        if xdata.MULTI_DOM_LK_COUNT in asked:
            for key in asked:
                if key.startswith(_DOM_PREFIX):
                    counts[key] = state.held(InodeHold, key[len(_DOM_PREFIX) :]) if state else 0
        if xdata.PARENT_ENTRYLK in asked and loc is not None and loc.name:
            parent = self.locks.find(loc.pargfid)
            counts[xdata.PARENT_ENTRYLK] = int(parent is not None and parent.holds_name(loc.name))
        return counts

    # -- events, state ---------------------------------------------------------------------------------------------

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Drop the locks of a client that is gone."""
        if event is Event.CLIENT_GONE:
            turn(self.locks.client_gone, data)
        super().notify(event, source, data)

    def statedump(self) -> dict[str, Any]:
        """List the locks by inode, and how many each client has."""
        state: dict[str, Any] = {"inodes-with-locks": len(self.locks)}
        for client, count in self.locks.clients().items():
            state[f"client({client}).locks"] = count
        for gfid, locks in self.locks:
            for name, text in describe(locks):
                state[f"inode({gfid_text(gfid)}).{name}"] = text
        return state


def _when_asked(
    below: Callable[[Fop], Coroutine[Any, Any, Any]], counted: Callable[[Fop], Coroutine[Any, Any, Any]]
) -> Callable[[Fop], Coroutine[Any, Any, Any]]:
    # A plain function, not a coroutine: a request that does not ask gets the child's own coroutine.
    def pick(req: Fop) -> Coroutine[Any, Any, Any]:
        asked = req.xdata
        return counted(req) if asked is not xdata.EMPTY and asked.names_any(_ASKED) else below(req)

    return pick


def _owner(caller: Caller) -> Owner:
    return caller.client, caller.lk_owner


def _gfid(req: Fop, loc: Loc) -> bytes:
    if loc.gfid == NULL_GFID:
        raise FopError(errno.EINVAL, f"{req.name} on {loc}: the gfid is missing")
    return loc.gfid


def _span(req: Any, flock: Flock, gfid: bytes) -> tuple[int, int]:
    kind = getattr(req, "type", flock.type)
    if kind not in (F_RDLCK, F_WRLCK, F_UNLCK):
        raise FopError(errno.EINVAL, f"{req.name} on {gfid_text(gfid)}: lock type {kind} does not exist")
    try:
        return span(flock.start, flock.len)
    except ValueError as error:
        raise FopError(errno.EINVAL, f"{req.name} on {gfid_text(gfid)}: {error}") from None
