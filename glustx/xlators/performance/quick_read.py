"""performance/quick-read: small files come with their LOOKUP, and READ is answered from what came.

A LOOKUP asks for the content of a regular file of up to `max-file-size`. It is believed for `cache-timeout` seconds
from the moment the LOOKUP was sent; a later LOOKUP, READDIRP, STAT or READ that shows the same size, mtime and ctime
renews it, one that shows others drops it. Every fop of this graph that changes data, attributes or names of the inode
drops it twice, when it is sent and when it has ended, and what a LOOKUP brings that was sent before either moment is
not kept. Beyond `cache-size` what was not read for longest goes first, low priorities before high ones.

Reads with O_DIRECT or O_SYNC, of an fd that is open for writing only, and of an anonymous fd by anybody but root go to
the brick. Source: options, and that READDIRP asks for no content, as in stock's translator; stock compares mtime alone
(or ctime alone: `ctime-invalidation`), and keeps content through changes of attributes.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError, OptionError
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, WRITES_DATA, Fop, Reply
from glustx.graph import Graph
from glustx.inode import O_ACCMODE
from glustx.options import OptionSet, Seconds, Size, option
from glustx.rpc.callbacks import CacheInvalidation
from glustx.values import NULL_GFID, Iatt, Loc, gfid_from_text
from glustx.xdata import CONTENT, Xdata, uint
from glustx.xlator import Event, Method, Xlator, handles
from glustx.xlators.performance.quick_read_store import Store, priorities

O_WRONLY = 1
_DIRECT = 0o40000 | 0o4010000  # O_DIRECT, O_SYNC and O_DSYNC
_CHANGES = WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES
_DROPS_MAX = 1024


class QuickRead(Xlator):
    """Answers READ of small files from what their LOOKUP brought."""

    class Options(OptionSet):
        """What is kept, and for how long."""

        priority: str = option(
            "",
            "Which files go last when space is short: `pattern:number` by comma, as in `*.conf:2,/tmp/*:0`.",
            live=True,
        )
        cache_size: Size = option(128 << 20, "Memory for contents.", low=0, live=True)
        cache_timeout: Seconds = option(1, "Seconds for which a content is believed.", low=0, live=True)
        max_file_size: Size = option(64 << 10, "Largest file to keep; 0 keeps none.", low=0, high=1024000, live=True)
        cache_invalidation: bool = option(
            False,
            "Drop what a brick says another client has changed.",
            key="quick-read-cache-invalidation",
            live=True,
        )
        accepted = ("quick-read", "ctime-invalidation")

    # -- which fops concern it ---------------------------------------------------------------------------------------

    def wire(self, graph: Graph) -> None:
        """Resolve the fops: those that only look pass without a coroutine as long as nothing is kept."""
        self._store = Store()
        self._kept = self._store.files
        self._epoch = 0
        self._tick = 0  # counts drops, so that a LOOKUP's reply can be told from one sent after a change
        self._drops: dict[bytes, int] = {}  # those since the oldest LOOKUP that is under way
        self._floor = 0  # replies of LOOKUPs older than this are not kept
        self._looking = 0
        self._hits = self._misses = 0
        self._follow()
        super().wire(graph)
        below = self.subvolumes[0].table
        for cls, method in self.table.items():
            down = below[cls]
            if method == self.changed:
                on_fd = "fd" in cls.__struct_fields__ and not cls.effects & CHANGES_NAMES
                self.table[cls] = self._changing_fd(down) if on_fd else self._changing(down)
            elif method == self.passed:
                self.table[cls] = down
        for cls, look in ((fops.Stat, self.stat), (fops.Fstat, self.fstat), (fops.Readdirp, self.readdirp)):
            self.table[cls] = self._looking_at(below[cls], look)
        self.table[fops.Read] = self._reading(below[fops.Read])

    def _changing_fd(self, down: Method) -> Method:
        kept = self._kept

        async def changing(req: Any) -> Reply:
            gfid = req.fd.gfid
            if self._looking or gfid in kept:
                self._drop(gfid)
            try:
                reply: Reply = await down(req)
                return reply
            finally:
                if self._looking or gfid in kept:
                    self._drop(gfid)

        return changing

    def _changing(self, down: Method) -> Method:
        async def changing(req: Fop) -> Reply:
            self._drop_targets(req)
            try:
                reply: Reply = await down(req)
            finally:
                self._drop_targets(req)
            stat = getattr(reply, "stat", None)  # CREATE and PUT know the inode only now
            if stat is not None:
                self._drop(stat.gfid)
            return reply

        return changing

    def _looking_at(self, down: Method, look: Method) -> Method:
        kept = self._kept

        def looking(req: Any) -> Coroutine[Any, Any, Any]:
            return look(req) if kept else down(req)

        return looking

    def _reading(self, down: Method) -> Method:
        find = self._kept.get

        def reading(req: Any) -> Coroutine[Any, Any, Any]:
            return down(req) if find(req.fd.gfid) is None else self.read(req)

        return reading

    # -- LOOKUP ------------------------------------------------------------------------------------------------------

    async def lookup(self, req: fops.Lookup) -> fops.LookupReply:
        """Ask for the content, unless it is kept: then the reply tells whether it is still true."""
        loc = req.loc
        gfid = loc.gfid if loc.gfid != NULL_GFID else self._store.named(loc) or NULL_GFID
        asks = self._ask is not None and gfid not in self._kept and CONTENT not in req.xdata
        if asks and self._ask is not None:
            req = msgspec.structs.replace(req, xdata=req.xdata.asking(self._ask))
        at, epoch, born = self.graph.reactor.time(), self._epoch, self._tick
        self._looking += 1
        try:
            reply: fops.LookupReply = await self.child(req)
        except FopError:
            self._drop(gfid)
            raise
        finally:
            fresh = born >= self._floor
            self._looking -= 1
            if not self._looking:
                drops, self._drops = self._drops, {}
            else:
                drops = self._drops
        stat = reply.stat
        if gfid != stat.gfid and gfid in self._kept:
            self._drop(gfid)  # the name leads to something else now
        if not stat.is_reg():
            return reply
        data: Any = b"" if asks and not stat.size else None
        if CONTENT in reply.xdata:
            data = reply.xdata[CONTENT]
        if not isinstance(data, bytes):
            self._saw(stat, at, epoch)
        elif fresh and drops.get(stat.gfid, 0) <= born and len(data) == stat.size <= self.options.max_file_size:
            self._store.put(loc, data, stat, at, epoch)
        if asks and CONTENT in reply.xdata:
            reply = msgspec.structs.replace(reply, xdata=reply.xdata.without(CONTENT))
        return reply

    # -- what is kept, and what is not any more ----------------------------------------------------------------------

    def _drop(self, gfid: bytes) -> None:
        """Forget a content, and what LOOKUPs that are under way will bring of it."""
        self._store.remove(gfid)
        if self._looking:
            self._tick += 1
            self._drops[gfid] = self._tick
            if len(self._drops) > _DROPS_MAX:
                self._drops = {}
                self._floor = self._tick

    def _drop_targets(self, req: Fop) -> None:
        for loc in req.targets():
            if loc.gfid != NULL_GFID:
                self._drop(loc.gfid)
            elif loc.name:
                self._drop_name(loc)

    def _drop_name(self, loc: Loc) -> None:
        """Drop what a name leads to. Which inode that is may not be known: then it may be any with other names."""
        gfid = self._store.named(loc)
        if gfid is not None:
            self._drop(gfid)
        elif self._looking:
            self._tick += 1
            self._drops = {}
            self._floor = self._tick
        for loose in list(self._store.loose):
            self._drop(loose)

    def _saw(self, stat: Iatt, at: float, epoch: int) -> None:
        """Compare what is kept with attributes of a reply whose request was sent at `at`."""
        kept = self._kept.get(stat.gfid)
        if kept is None:
            return
        if kept.is_of(stat):
            kept.stat = stat
            kept.at = max(kept.at, at)
            kept.epoch = max(kept.epoch, epoch)
        else:
            self._drop(stat.gfid)

    # -- fops that look ----------------------------------------------------------------------------------------------

    async def read(self, req: fops.Read) -> fops.ReadReply:
        """Answer from the content of the file while it is believed."""
        fd, now = req.fd, self.graph.reactor.time()
        kept = self._kept.get(fd.gfid)
        if (
            kept is None
            or now - kept.at >= self.options.cache_timeout
            or kept.epoch != self._epoch
            or (fd.flags | req.flags) & _DIRECT
            or req.xdata
            or fd.flags & O_ACCMODE == O_WRONLY
            or (fd.anonymous and req.caller.uid)
        ):
            self._misses += 1
            epoch = self._epoch
            reply: fops.ReadReply = await self.child(req)
            self._saw(reply.stat, now, epoch)
            return reply
        self._hits += 1
        self._store.use(fd.gfid, kept)
        end = req.offset + req.size
        return fops.ReadReply(data=kept.data[req.offset : end], stat=kept.stat, eof=end >= len(kept.data))

    async def stat(self, req: fops.Stat) -> fops.AttrReply:
        """Compare what is kept with what comes."""
        return await self._stat(req)

    async def fstat(self, req: fops.Fstat) -> fops.AttrReply:
        """As `stat`."""
        return await self._stat(req)

    async def _stat(self, req: Fop) -> fops.AttrReply:
        at, epoch = self.graph.reactor.time(), self._epoch
        reply: fops.AttrReply = await self.child(req)
        self._saw(reply.stat, at, epoch)
        return reply

    async def readdirp(self, req: fops.Readdirp) -> fops.ReaddirReply:
        """Compare what is kept with what comes, entry by entry."""
        at, epoch = self.graph.reactor.time(), self._epoch
        reply: fops.ReaddirReply = await self.child(req)
        for entry in reply.entries:
            if entry.stat is not None and entry.stat.gfid in self._kept:
                self._saw(entry.stat, at, epoch)
        return reply

    # -- fops that change --------------------------------------------------------------------------------------------

    @handles(_CHANGES)
    async def changed(self, req: Fop) -> Reply:
        """Drop before and after; `wire` puts a closure over the child in the table."""
        reply: Reply = await self._changing(self.subvolumes[0].table[type(req)])(req)
        return reply

    async def open(self, req: fops.Open) -> Reply:
        """Only O_TRUNC changes anything."""
        if req.effects_now() & WRITES_DATA:
            return await self.changed(req)
        done: Reply = await self.child(req)
        return done

    async def passed(self, req: Fop) -> Reply:
        """Pass on: what is made new has not been kept."""
        reply: Reply = await self.child(req)
        return reply

    mknod = mkdir = symlink = icreate = passed

    # -- options, events, figures ------------------------------------------------------------------------------------

    def check_options(self, options: Any) -> None:
        """Refuse priorities that cannot be read."""
        try:
            priorities(options.priority)
        except ValueError as error:
            raise OptionError(self.name, "priority", str(error)) from None

    def options_changed(self, old: Any) -> None:
        """Follow other limits at once; priorities for what is kept from now on."""
        self._follow()
        for gfid in [g for g, kept in self._kept.items() if len(kept.data) > self.options.max_file_size]:
            self._store.remove(gfid)
        self._store.shrink()

    def _follow(self) -> None:
        self._store.limit = self.options.cache_size
        self._store.patterns = priorities(self.options.priority)
        size = self.options.max_file_size
        self._ask = Xdata({CONTENT: uint(size)}) if size and self.options.cache_size else None

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Believe nothing from before the brick had gone; drop what it says another client has changed."""
        if event is Event.CHILD_DOWN:
            self._epoch += 1
        elif event is Event.UPCALL and self.options.cache_invalidation and isinstance(data, CacheInvalidation):
            try:
                self._drop(gfid_from_text(data.gfid))
            except ValueError:
                self._epoch += 1
        super().notify(event, source, data)

    def statedump(self) -> dict[str, Any]:
        """Show how much is kept and how often it was of use."""
        return {
            "files-cached": len(self._kept),
            "cache-used": self._store.used,
            "cache-hit": self._hits,
            "cache-miss": self._misses,
        }
