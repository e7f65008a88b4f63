"""performance/quick-read: what is kept, for how long, what drops it, and who gets it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from glustx import fops
from glustx.errors import FopError, OptionError
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, WRITES_DATA, Fop
from glustx.inode import Fd
from glustx.rpc.callbacks import CacheInvalidation
from glustx.runtime import Waiter
from glustx.values import NULL_GFID, ROOT_GFID, ZERO_IATT, Caller, Iatt, Loc, gfid_text
from glustx.xdata import CONTENT, Xdata
from glustx.xlator import Event
from glustx.xlators.performance.quick_read import QuickRead
from glustx.xlators.performance.quick_read_store import OVERHEAD, priorities
from tests.fakes import ALL_FOPS, Call, Storage, sample_reply, sample_request, stack

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
CHANGES = [cls for cls in ALL_FOPS if cls.effects & (WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES)]
NEW = {"mknod", "mkdir", "symlink", "icreate"}


class Bench:
    """quick-read over a storage that holds files as bytes; `version` counts up what their times show."""

    def __init__(self, **options: str) -> None:
        self.graph = stack(Storage, (QuickRead, {k.replace("_", "-"): v for k, v in options.items()}))
        storage: Any = self.graph.xlators["fake"]
        self.storage = storage
        self.storage.answer = self.answer
        self.reactor: Any = self.graph.reactor
        self.files = {A: b"content of a", B: b"content of b", C: b""}
        self.names = {b"a": A, b"b": B, b"c": C}
        self.version = dict.fromkeys(self.files, 1)
        self.nlink = 1
        self.held: dict[str, Waiter[Any]] = {}

    def iatt(self, gfid: bytes) -> Iatt:
        version = self.version[gfid]
        return Iatt(
            gfid=gfid, mode=0o100644, size=len(self.files[gfid]), mtime=version, ctime=version, nlink=self.nlink
        )

    def reply(self, req: Any) -> Any:
        if req.name == "lookup":
            gfid = req.loc.gfid if req.loc.gfid != NULL_GFID else self.names.get(req.loc.name, b"")
            if gfid == ROOT_GFID:
                return fops.LookupReply(stat=Iatt(gfid=gfid, mode=0o40755), postparent=ZERO_IATT)
            if gfid not in self.files:
                raise FopError(errno.ENOENT)
            data = self.files[gfid]
            brings = CONTENT in req.xdata and len(data) <= req.xdata.number(CONTENT)
            return fops.LookupReply(
                stat=self.iatt(gfid), postparent=ZERO_IATT, xdata=Xdata({CONTENT: data} if brings else {})
            )
        if req.name == "read":
            data = self.files[req.fd.gfid][req.offset : req.offset + req.size]
            return fops.ReadReply(data=data, stat=self.iatt(req.fd.gfid))
        if req.name in ("stat", "fstat"):
            return fops.AttrReply(stat=self.iatt(req.subject().gfid))
        return sample_reply(type(req))

    def answer(self, req: Any) -> Any:
        return self.held.get(req.name) or self.reply(req)

    def change(self, gfid: bytes, data: bytes) -> None:
        """As another client does it."""
        self.files[gfid] = data
        self.version[gfid] += 1

    def start(self, req: Fop) -> Call:
        return Call(self.graph.top(req))

    def do(self, req: Fop) -> Any:
        return self.start(req).result()

    def look(self, name: bytes = b"a") -> Any:
        return self.do(fops.Lookup(Loc(pargfid=ROOT_GFID, name=name)))

    def read(self, gfid: bytes = A, offset: int = 0, size: int = 100, flags: int = 0) -> tuple[bytes, bool]:
        """What a READ brings, and whether it came from the cache."""
        before = len(self.storage.seen)
        reply = self.do(fops.Read(Fd(gfid, flags), offset, size))
        return bytes(reply.data), len(self.storage.seen) == before

    def cached(self, *gfids: bytes) -> list[bool]:
        """Whether READ of each is answered here."""
        return [self.read(gfid)[1] for gfid in gfids]

    def figures(self) -> dict[str, int]:
        state: dict[str, int] = self.graph.root.statedump()
        return state


# -- what is asked and kept ------------------------------------------------------------------------------------------


def test_a_read_is_answered_from_its_lookup() -> None:
    bench = Bench()
    assert bench.read() == (b"content of a", False)
    reply = bench.look()
    assert dict(reply.xdata) == {}, "nobody above has asked for the content"
    assert bench.storage.seen[-1].xdata[CONTENT] == 65536
    for offset, size in ((0, 100), (0, 12), (8, 4), (8, 2), (12, 5), (500, 5), (0, 0)):
        expected = b"content of a"[offset : offset + size]
        got = bench.do(fops.Read(Fd(A, 0), offset, size))
        assert (got.data, got.stat, got.eof) == (expected, bench.iatt(A), offset + size >= 12)
    assert bench.figures() == {
        "files-cached": 1,
        "cache-used": 12 + OVERHEAD,
        "cache-hit": 7,
        "cache-miss": 0,
    }


def test_an_empty_file_is_kept_whether_or_not_the_brick_says_so() -> None:
    bench = Bench()
    bench.look(b"c")
    assert bench.read(C) == (b"", True)
    bench = Bench()
    bench.storage.answer = lambda req: msgspec.structs.replace(bench.reply(req), xdata=Xdata())
    bench.look(b"c")
    assert bench.read(C) == (b"", True)
    bench.look(b"a")
    assert not bench.read(A)[1]


def test_what_is_kept_is_not_asked_for_again() -> None:
    bench = Bench()
    bench.look()
    bench.look()
    bench.do(fops.Lookup(Loc(gfid=A)))
    asked = [CONTENT in req.xdata for req in bench.storage.seen]
    assert asked == [True, False, False]


def test_who_asks_for_content_gets_it() -> None:
    bench = Bench()
    reply = bench.do(fops.Lookup(Loc(gfid=A), xdata=Xdata({CONTENT: 100})))
    assert reply.xdata[CONTENT] == b"content of a"
    assert bench.storage.seen[-1].xdata[CONTENT] == 100
    assert bench.cached(A) == [True]


@pytest.mark.parametrize(("data", "stat"), [(b"short", None), (b"content of a", Iatt(gfid=A, mode=0o40755, size=12))])
def test_what_does_not_fit_its_attributes_is_not_kept(data: bytes, stat: Iatt | None) -> None:
    bench = Bench()
    bench.storage.answer = lambda req: (
        fops.LookupReply(stat=stat or bench.iatt(A), postparent=ZERO_IATT, xdata=Xdata({CONTENT: data}))
        if req.name == "lookup"
        else bench.reply(req)
    )
    bench.look()
    assert bench.cached(A) == [False]


def test_large_files_and_no_cache_at_all() -> None:
    bench = Bench(max_file_size="12")
    bench.files[B] = b"x" * 13
    bench.look(b"a")
    bench.look(b"b")
    assert bench.cached(A, B) == [True, False]
    for options in ({"max_file_size": "0"}, {"cache_size": "0"}, {"cache_timeout": "0"}):
        bench = Bench(**options)
        bench.look()
        assert bench.cached(A) == [False]
        assert (CONTENT in bench.storage.seen[0].xdata) is ("cache_timeout" in options)


@pytest.mark.parametrize(
    ("fd", "caller", "flags", "xdata"),
    [
        (Fd(A, 0o40000), Caller(), 0, {}),
        (Fd(A, 0o4010000), Caller(), 0, {}),
        (Fd(A, 0o10002), Caller(), 0, {}),
        (Fd(A, 1), Caller(), 0, {}),
        (Fd(A, 0), Caller(), 0o40000, {}),
        (Fd(A, 2, anonymous=True), Caller(uid=5), 0, {}),
        (Fd(A, 0), Caller(), 0, {b"key": 1}),
    ],
    ids=["O_DIRECT", "O_SYNC", "O_DSYNC", "O_WRONLY", "direct read", "anonymous", "xdata"],
)
def test_reads_that_go_to_the_brick(fd: Fd, caller: Caller, flags: int, xdata: dict[bytes, int]) -> None:
    bench = Bench()
    bench.look()
    bench.do(fops.Read(fd, 0, 10, flags, caller=caller, xdata=Xdata(xdata)))
    assert bench.storage.seen[-1].name == "read"
    assert bench.cached(A) == [True]
    before = len(bench.storage.seen)
    bench.do(fops.Read(Fd(A, 2, anonymous=True), 0, 10))
    assert len(bench.storage.seen) == before


# -- for how long ----------------------------------------------------------------------------------------------------


def test_it_is_believed_from_the_moment_the_lookup_was_sent() -> None:
    bench = Bench()
    waiter = bench.held["lookup"] = Waiter()
    look = bench.start(fops.Lookup(Loc(gfid=A)))
    asked = bench.storage.seen[-1]
    bench.reactor.advance(0.7)
    waiter.set(bench.reply(asked))
    assert look.done
    bench.held.clear()
    assert bench.cached(A) == [True]
    bench.reactor.advance(0.3)
    assert bench.cached(A) == [False]
    assert bench.cached(A) == [True], "the READ has shown the same attributes"


@pytest.mark.parametrize(
    "again",
    [
        fops.Lookup(Loc(pargfid=ROOT_GFID, name=b"a")),
        fops.Lookup(Loc(gfid=A)),
        fops.Stat(Loc(gfid=A)),
        fops.Fstat(Fd(A, 0)),
        fops.Read(Fd(A, 0o40000), 0, 1),
        fops.Readdirp(Fd(ROOT_GFID, 0, directory=True), 0, 4096),
    ],
    ids=lambda req: req.name,
)
@pytest.mark.parametrize("changed", ["same", "mtime", "ctime", "size", "nsec"])
def test_attributes_that_come_by_renew_or_drop_it(again: Fop, changed: str) -> None:
    bench = Bench(cache_timeout="5")
    bench.look()
    stat = bench.iatt(A)
    if changed != "same":
        field = "mtime_nsec" if changed == "nsec" else changed
        stat = msgspec.structs.replace(stat, **{field: getattr(stat, field) + 1})
    stat = msgspec.structs.replace(stat, atime=77)

    def answer(req: Any) -> Any:
        if req.name == "lookup":
            return fops.LookupReply(stat=stat, postparent=ZERO_IATT)
        if req.name == "readdirp":
            entries = (fops.DirEntry(1, 1, 4, b"."), fops.DirEntry(2, 2, 8, b"a", stat, gfid=A))
            return fops.ReaddirReply(entries=entries)
        reply = bench.reply(req)
        return msgspec.structs.replace(reply, stat=stat) if hasattr(reply, "stat") else reply

    bench.storage.answer = answer
    bench.reactor.advance(4)
    bench.do(again)
    bench.reactor.advance(4)
    before = len(bench.storage.seen)
    reply = bench.do(fops.Read(Fd(A, 0), 0, 100))
    assert (len(bench.storage.seen) == before) is (changed == "same")
    assert reply.stat == stat


def test_what_another_client_changed_is_seen() -> None:
    bench = Bench()
    bench.look()
    bench.change(A, b"other stuff")
    assert bench.read() == (b"content of a", True)
    bench.reactor.advance(1)
    assert bench.read() == (b"other stuff", False)
    bench.look()
    bench.change(A, b"still other")
    bench.look()
    assert bench.read() == (b"still other", False), "the LOOKUP has shown that it is another"
    bench.look()
    assert bench.read() == (b"still other", True)


def test_a_name_that_leads_elsewhere_now() -> None:
    bench = Bench()
    bench.look()
    bench.names[b"a"] = B
    bench.look()
    assert bench.cached(A) == [False]
    bench.look()
    assert bench.cached(B) == [True]
    del bench.names[b"a"]
    assert bench.start(fops.Lookup(Loc(pargfid=ROOT_GFID, name=b"a"))).errno == errno.ENOENT
    assert bench.cached(B) == [False]
    bench.look(b"b")
    bench.names[b"b"] = ROOT_GFID
    bench.look(b"b")
    assert bench.cached(B) == [False]


def test_a_brick_that_was_away() -> None:
    bench = Bench(cache_timeout="600")
    bench.look()
    bench.storage.tell_parents(Event.CHILD_DOWN)
    assert bench.cached(A) == [False]
    assert bench.cached(A) == [True], "the READ has shown the same attributes since"
    waiter = bench.held["lookup"] = Waiter()
    bench.start(fops.Lookup(Loc(gfid=B)))
    bench.storage.tell_parents(Event.CHILD_DOWN)
    waiter.set(bench.reply(bench.storage.seen[-1]))
    assert bench.cached(B) == [False]


@pytest.mark.parametrize("on", [True, False])
def test_a_brick_that_tells_of_changes(on: bool) -> None:
    bench = Bench(cache_timeout="600", quick_read_cache_invalidation="on" if on else "off")
    bench.look()
    bench.look(b"b")
    bench.storage.tell_parents(Event.UPCALL, CacheInvalidation(gfid_text(A), 1, 8))
    bench.storage.tell_parents(Event.UPCALL, "something else")
    assert bench.cached(A, B) == [not on, True]
    bench.storage.tell_parents(Event.UPCALL, CacheInvalidation("no gfid", 1, 8))
    assert bench.cached(B) == [not on], "whose it is cannot be told"


# -- what this graph changes -----------------------------------------------------------------------------------------


def aimed(cls: type[Fop]) -> Any:
    """A request that changes A, which is named `a`."""
    place = Loc(gfid=A, pargfid=ROOT_GFID, name=b"a")
    fields: dict[str, Any] = {}
    for name in cls.__struct_fields__:
        if name in ("fd", "fd_in", "fd_out"):
            fields[name] = Fd(A, 2)
        elif name in ("loc", "oldloc", "newloc"):
            fields[name] = place
    if cls is fops.Open:
        fields["flags"] = 0o1001
    return sample_request(cls, **fields)


@pytest.mark.parametrize("cls", CHANGES, ids=lambda cls: cls.name)
def test_every_change_drops_it(cls: type[Fop]) -> None:
    bench = Bench(cache_timeout="600")
    bench.look()
    bench.look(b"b")
    bench.do(aimed(cls))
    assert bench.cached(A, B) == [cls.name in NEW, True]


@pytest.mark.parametrize("cls", [cls for cls in CHANGES if cls.name not in NEW], ids=lambda cls: cls.name)
@pytest.mark.parametrize("fails", [False, True])
def test_a_lookup_that_meets_a_change_keeps_nothing(cls: type[Fop], fails: bool) -> None:
    """Whichever of the two is sent first, and whichever reply comes first: what came may be what was before."""
    for first in ("change", "lookup"):
        for answered in ("change", "lookup"):
            bench = Bench(cache_timeout="600")
            changing: Waiter[Any] = Waiter()
            looking: Waiter[Any] = Waiter()
            bench.held = {cls.name: changing, "lookup": looking}
            old = fops.LookupReply(stat=bench.iatt(A), postparent=ZERO_IATT, xdata=Xdata({CONTENT: bench.files[A]}))
            reqs = [aimed(cls), fops.Lookup(Loc(gfid=A))]
            calls = [bench.start(req) for req in (reqs if first == "change" else reqs[::-1])]
            bench.change(A, b"new content.")
            ends: list[Callable[[], None]] = [
                partial(changing.fail, FopError(errno.EIO)) if fails else partial(changing.set, sample_reply(cls)),
                partial(looking.set, old),
            ]
            for end in ends if answered == "change" else ends[::-1]:
                end()
            assert all(call.done for call in calls)
            bench.held = {}
            assert bench.read() == (b"new content.", False), f"{first} first, {answered} answered first"
            bench.look()
            assert bench.read() == (b"new content.", True)


def test_a_cancelled_write_drops_it() -> None:
    bench = Bench()
    bench.held["write"] = Waiter()
    write = bench.start(fops.Write(Fd(A, 2), 0, b"x"))
    bench.look()
    write.cancel()
    assert write.cancelled
    assert bench.cached(A) == [False]


def test_an_open_without_o_trunc_changes_nothing() -> None:
    bench = Bench()
    bench.look()
    bench.do(fops.Open(Loc(gfid=A), Fd(A, 2), 2))
    assert bench.cached(A) == [True]


def test_a_create_that_opens_a_file_drops_it() -> None:
    bench = Bench()
    bench.look()
    bench.storage.answer = lambda req: (
        fops.CreateReply(stat=bench.iatt(A), preparent=ZERO_IATT, postparent=ZERO_IATT)
        if req.name == "create"
        else bench.reply(req)
    )
    bench.do(fops.Create(Loc(pargfid=ROOT_GFID, name=b"another name of it"), Fd(NULL_GFID, 2), 0o1102, 0o644))
    assert bench.cached(A) == [False]


def test_names_that_are_removed() -> None:
    def gone(req: Fop, nlink: int = 1, by_gfid: bool = False) -> list[bool]:
        bench = Bench()
        bench.nlink = nlink
        for name, gfid in ((b"a", A), (b"b", B)):
            bench.do(fops.Lookup(Loc(gfid=gfid) if by_gfid else Loc(pargfid=ROOT_GFID, name=name)))
        bench.do(req)
        return bench.cached(A, B)

    a, x = Loc(pargfid=ROOT_GFID, name=b"a"), Loc(pargfid=ROOT_GFID, name=b"x")
    assert gone(fops.Unlink(a)) == [False, True]
    assert gone(fops.Unlink(x)) == [True, True]
    assert gone(fops.Rename(x, a)) == [False, True]
    assert gone(fops.Rename(a, x)) == [False, True]
    assert gone(fops.Unlink(x), nlink=2) == [False, False], "x may be another name of either"
    assert gone(fops.Unlink(x), by_gfid=True) == [False, False], "x may be the name of either"


def test_a_removed_name_and_a_lookup_under_way() -> None:
    bench = Bench()
    waiter = bench.held["lookup"] = Waiter()
    bench.start(fops.Lookup(Loc(gfid=A)))
    asked = bench.storage.seen[-1]
    bench.do(fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"x")))
    waiter.set(bench.reply(asked))
    assert bench.cached(A) == [False]
    bench.held.clear()
    bench.look()
    assert bench.cached(A) == [True]


def test_a_name_that_two_files_had() -> None:
    bench = Bench()
    bench.look()
    bench.names[b"a"] = B
    bench.do(fops.Lookup(Loc(gfid=B, pargfid=ROOT_GFID, name=b"a")))
    assert bench.cached(A, B) == [True, True]
    bench.do(fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"a")))
    assert bench.cached(A, B) == [False, False]


def test_many_changes_while_a_lookup_is_under_way_take_no_memory() -> None:
    bench = Bench()
    waiter = bench.held["lookup"] = Waiter()
    bench.start(fops.Lookup(Loc(gfid=A)))
    for number in range(5000):
        bench.do(fops.Write(Fd(number.to_bytes(16, "big"), 2), 0, b"x"))
    root: Any = bench.graph.root
    assert len(root._drops) <= 1024
    waiter.set(bench.reply(bench.storage.seen[0]))
    assert bench.cached(A) == [False], "it may have been one of them"
    bench.held.clear()
    bench.look()
    assert bench.cached(A) == [True] and not root._drops


# -- space -----------------------------------------------------------------------------------------------------------


def many(bench: Bench, count: int, size: int, name: str = "{}", first: int = 0) -> list[bytes]:
    gfids = []
    for number in range(first, first + count):
        gfid = (100 + number).to_bytes(16, "big")
        bench.files[gfid], bench.version[gfid] = bytes([number]) * size, 1
        path = name.format(number).encode()
        bench.names[path] = gfid
        bench.do(fops.Lookup(Loc(pargfid=ROOT_GFID, name=path, path=b"/" + path)))
        gfids.append(gfid)
    return gfids


def test_what_was_not_read_for_longest_goes_first() -> None:
    room = 4 * (1000 + OVERHEAD)
    bench = Bench(cache_size=str(room))
    gfids = many(bench, 4, 1000)
    assert bench.figures()["cache-used"] == room
    assert bench.cached(gfids[0]) == [True]
    bench.look(b"a")
    assert bench.cached(*gfids, A) == [True, False, True, True, True]
    assert bench.figures()["cache-used"] <= room


def test_priorities() -> None:
    bench = Bench(cache_size=str(2 * (100 + OVERHEAD)), priority="*:1,*.keep:5,/3*:0")
    first = many(bench, 1, 100, "{}.keep")
    rest = many(bench, 3, 100, first=1)
    assert bench.cached(*first, *rest) == [True, False, True, False], "3 has the least priority, 1 went before 2"


def test_limits_change_live() -> None:
    bench = Bench()
    gfids = many(bench, 8, 1000)
    root: Any = bench.graph.root
    old, root.options = root.options, QuickRead.Options(cache_size=2 * (1000 + OVERHEAD), max_file_size=2000)
    root.options_changed(old)
    assert bench.figures()["files-cached"] == 2
    assert bench.cached(*gfids) == [False] * 6 + [True] * 2
    bench.do(fops.Lookup(Loc(gfid=gfids[0])))
    assert bench.storage.seen[-1].xdata[CONTENT] == 2000
    old, root.options = root.options, QuickRead.Options(max_file_size=999)
    root.options_changed(old)
    assert bench.figures()["files-cached"] == 0 == bench.figures()["cache-used"]


def test_priority_texts() -> None:
    assert priorities("*.jpg:1,abc*:2") == [("abc*", 2), ("*.jpg", 1)]
    assert priorities("") == [] and priorities("a:b:3,") == [("a:b", 3)]
    for text in ("x", "x:", ":1", "x:-1", "x:256", "x:y"):
        with pytest.raises(OptionError, match=r"volume quick-read, option priority: .* is not pattern:number"):
            stack(Storage, (QuickRead, {"priority": text}))


def test_forgetting_gives_everything_back() -> None:
    bench = Bench()
    for gfid in many(bench, 50, 10):
        bench.do(fops.Write(Fd(gfid, 2), 0, b"x"))
    assert bench.figures()["cache-used"] == 0
    root: Any = bench.graph.root
    assert not root._store._places and not root._store.loose


# -- what it costs ---------------------------------------------------------------------------------------------------


def test_fops_that_do_not_concern_it_cost_nothing() -> None:
    bench = Bench()
    for cls in ALL_FOPS:
        own = cls in CHANGES and cls.name not in NEW
        looks = cls.name in ("lookup", "read", "stat", "fstat", "readdirp")
        assert (bench.graph.root.table[cls] == bench.storage.table[cls]) is not (own or looks), cls.name


def test_reads_of_what_is_not_kept_cost_no_coroutine() -> None:
    bench = Bench()
    for cls in (fops.Read, fops.Stat, fops.Fstat, fops.Readdirp):
        co: Any = bench.graph.top(sample_request(cls))
        assert co.cr_code is Storage.recorded.__code__
        co.close()
