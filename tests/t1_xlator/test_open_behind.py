"""performance/open-behind: when OPEN is put off, what sends it, who waits, and what becomes of one that fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.runtime import ManualReactor, Waiter, turn
from glustx.values import LEASE_RW, LEASE_SET, ROOT_GFID, Caller, Iatt, LeaseInfo, Loc
from glustx.xdata import Xdata
from glustx.xlators.performance.open_behind import OpenBehind, fds_of, lets
from tests.fakes import ALL_FOPS, Call, Storage, sample_reply, sample_request, stack

A, B = b"a" * 16, b"b" * 16
ACL = b"system.posix_acl_access"
ON_FOLDERS = {"opendir", "releasedir", "readdir", "readdirp", "fsyncdir", "fentrylk"}
ENDS = {"open", "create", "flush", "release"}
ON_FILES = [cls for cls in ALL_FOPS if fds_of(cls) and cls.name not in ON_FOLDERS | ENDS]


class Hold:
    """Fops that wait in the storage until all are answered by `set` or `fail`."""

    def __init__(self, held: dict[str, Hold], name: str) -> None:
        self.held = held
        self.name = name
        self.waiters: list[Waiter[Any]] = []
        held[name] = self

    def park(self) -> Waiter[Any]:
        self.waiters.append(Waiter())
        return self.waiters[-1]

    def set(self, value: Any) -> None:
        self.held.pop(self.name, None)
        turn(self._each, lambda waiter: waiter.set(value))

    def fail(self, error: BaseException) -> None:
        self.held.pop(self.name, None)
        turn(self._each, lambda waiter: waiter.fail(error))

    def _each(self, wake: Callable[[Waiter[Any]], None]) -> None:
        for waiter in self.waiters:
            wake(waiter)


class Bench:
    """open-behind over a storage that answers as it is told: OPEN and others by `hold` or `fail`."""

    def __init__(self, **options: str) -> None:
        self.graph = stack(Storage, (OpenBehind, {k.replace("_", "-"): v for k, v in options.items()}))
        storage: Any = self.graph.xlators["fake"]
        self.storage = storage
        self.storage.answer = self.answer
        self.reactor: Any = self.graph.reactor
        assert isinstance(self.reactor, ManualReactor)
        self.stat = Iatt(mode=0o100644, nlink=1)
        self.xdata = Xdata()
        self.held: dict[str, Hold] = {}
        self.failing: dict[str, int] = {}
        self.arrives: Callable[[Fop], None] = lambda req: None

    def answer(self, req: Any) -> Any:
        self.arrives(req)
        if req.name in self.failing:
            raise FopError(self.failing[req.name], f"told to fail {req.name}")
        if req.name == "lookup":
            stat = msgspec.structs.replace(self.stat, gfid=req.loc.gfid)
            return fops.LookupReply(stat=stat, postparent=Iatt(), xdata=self.xdata)
        return self.held[req.name].park() if req.name in self.held else sample_reply(type(req))

    def hold(self, name: str) -> Hold:
        """Let fops of a name wait."""
        return Hold(self.held, name)

    def start(self, req: Fop) -> Call:
        return Call(self.graph.top(req))

    def do(self, req: Fop) -> Any:
        return self.start(req).result()

    def open(self, gfid: bytes = A, flags: int = 2, look: bool = True, caller: Caller | None = None) -> Fd:
        """LOOKUP and OPEN; what was sent is forgotten."""
        who = caller or Caller()
        if look:
            self.do(fops.Lookup(Loc(gfid=gfid), caller=who))
        fd = Fd(gfid, flags)
        self.seen()
        self.do(fops.Open(Loc(gfid=gfid), fd, flags, caller=who))
        return fd

    def seen(self) -> list[str]:
        """The names of the fops that arrived since the last call, in order."""
        self.reactor.run()
        names = [req.name for req in self.storage.seen]
        self.storage.seen.clear()
        return names

    def figures(self) -> dict[str, int]:
        state: dict[str, int] = self.graph.root.statedump()
        return state


# -- when it is put off ----------------------------------------------------------------------------------------------


def test_an_open_right_after_a_lookup_is_put_off_and_costs_nothing() -> None:
    bench = Bench()
    fd = bench.open()
    bench.do(fops.Flush(fd))
    bench.do(fops.Release(fd))
    assert bench.seen() == []
    assert bench.figures() == {"put-off": 1, "sent-late": 0, "not-open-yet": 0}
    assert fd.slots == {}


def test_without_a_lookup_it_is_sent() -> None:
    bench = Bench()
    bench.open(look=False)
    assert bench.seen() == ["open"]


@pytest.mark.parametrize("flags", [0o1002, 0o102, 0o302], ids=["trunc", "creat", "excl"])
def test_what_open_does_by_itself_is_sent(flags: int) -> None:
    bench = Bench()
    bench.open(flags=flags)
    assert bench.seen() == ["open"]


def test_a_lookup_vouches_for_a_second() -> None:
    bench = Bench()
    bench.do(fops.Lookup(Loc(gfid=A)))
    bench.reactor.advance(1.0)
    bench.open(look=False)
    assert bench.seen() == []
    bench.reactor.advance(0.1)
    bench.open(look=False)
    assert bench.seen() == ["open"]


@pytest.mark.parametrize(
    "change",
    [
        fops.Setattr(Loc(gfid=A), Iatt(mode=0), 1),
        fops.Setxattr(Loc(gfid=A), Xdata({ACL: b"x"})),
        fops.Fsetattr(Fd(A, 2), Iatt(mode=0), 1),
        fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"any")),
        fops.Rename(Loc(pargfid=ROOT_GFID, name=b"any"), Loc(pargfid=ROOT_GFID, name=b"other")),
    ],
    ids=lambda req: req.name,
)
def test_what_changes_an_inode_or_removes_a_name_ends_it(change: Fop) -> None:
    bench = Bench()
    bench.do(fops.Lookup(Loc(gfid=A)))
    bench.do(change)
    bench.open(look=False)
    assert bench.seen() == ["open"], "before"
    waiter: Waiter[Any] = Waiter()
    bench.storage.answer = lambda req: waiter if req.name == "lookup" else sample_reply(type(req))
    look = bench.start(fops.Lookup(Loc(gfid=A)))
    bench.do(change)
    waiter.set(fops.LookupReply(stat=Iatt(gfid=A, mode=0o100644), postparent=Iatt()))
    assert look.done
    bench.open(look=False)
    assert bench.seen() == ["open"], "while the LOOKUP was under way"


def test_a_folder_is_sent() -> None:
    bench = Bench()
    bench.stat = Iatt(mode=0o40755)
    bench.open(flags=0)
    assert bench.seen() == ["open"]


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "groups", "flags", "put_off"),
    [
        (0o100000, 0, 0, (), 2, True),
        (0o100600, 5, 9, (), 2, True),
        (0o100400, 5, 9, (), 2, False),
        (0o100400, 5, 9, (), 0, True),
        (0o100044, 5, 9, (), 0, False),
        (0o100040, 6, 7, (), 0, True),
        (0o100040, 6, 9, (8, 7), 0, True),
        (0o100004, 6, 7, (), 0, False),
        (0o100004, 6, 9, (), 0, True),
        (0o100004, 6, 9, (), 1, False),
        (0o100002, 6, 9, (), 1, True),
        (0o100006, 6, 9, (), 3, True),
    ],
)
def test_mode_bits_decide(mode: int, uid: int, gid: int, groups: tuple[int, ...], flags: int, put_off: bool) -> None:
    bench = Bench()
    bench.stat = Iatt(mode=mode, uid=5, gid=7)
    bench.open(flags=flags, caller=Caller(uid=uid, gid=gid, groups=groups))
    assert bench.seen() == ([] if put_off else ["open"])


@pytest.mark.parametrize(("uid", "put_off"), [(0, True), (5, True), (6, False)])
def test_an_acl_leaves_it_to_the_brick(uid: int, put_off: bool) -> None:
    bench = Bench()
    bench.stat, bench.xdata = Iatt(mode=0o100644, uid=5), Xdata({ACL: bytes(44), b"user.a": b"1"})
    caller = Caller(uid=uid)
    assert dict(bench.do(fops.Lookup(Loc(gfid=A), caller=caller)).xdata).keys() == (
        {b"user.a"} if uid else {b"user.a", ACL}
    )
    assert (ACL in bench.storage.seen[0].xdata) is (uid != 0)
    bench.open(flags=0, caller=caller)
    assert bench.seen() == ([] if put_off else ["open"])
    asked = bench.do(fops.Lookup(Loc(gfid=A), caller=caller, xdata=Xdata({ACL: 0}))).xdata
    assert asked[ACL] == bytes(44)


def test_who_did_not_ask_for_an_acl_knows_nothing_of_it() -> None:
    assert not lets(0o100644, 5, 0, True, Caller(uid=6), 4) and lets(0o100644, 5, 0, True, Caller(uid=5), 6)
    bench = Bench()
    bench.do(fops.Lookup(Loc(gfid=A)))
    bench.open(look=False, flags=0, caller=Caller(uid=6))
    assert bench.seen() == ["open"]


def test_what_lookups_tell_takes_little_memory() -> None:
    bench = Bench()
    for number in range(10_000):
        bench.do(fops.Lookup(Loc(gfid=number.to_bytes(16, "big"))))
    root: Any = bench.graph.root
    assert len(root._known) + len(root._known_before) <= 4096
    assert len(bench.graph.inodes) == 0
    bench.open((9_999).to_bytes(16, "big"), look=False)
    bench.open((8_000).to_bytes(16, "big"), look=False)
    assert bench.seen() == []


def test_options_send_it_at_once_or_before_the_answer() -> None:
    bench = Bench(lazy_open="off")
    opening = bench.hold("open")
    fd = bench.open()
    assert bench.seen() == ["open"]
    write = bench.start(fops.Write(fd, 0, b"x"))
    assert bench.seen() == []
    opening.set(fops.Done())
    assert write.done and bench.seen() == ["write"]
    bench = Bench(pass_through="on")
    bench.open()
    assert bench.seen() == ["open"]


# -- what sends it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ON_FILES, ids=lambda cls: cls.name)
def test_every_fop_of_the_fd_sends_it_first(cls: type[Fop]) -> None:
    bench = Bench()
    fds = {name: bench.open(gfid) for name, gfid in zip(fds_of(cls), (A, B), strict=False)}
    req = sample_request(cls, **fds)
    bench.do(req)
    assert bench.seen() == ["open"] * len(fds) + [cls.name]
    bench.do(req)
    assert bench.seen() == [cls.name]
    bench.do(fops.Release(next(iter(fds.values()))))
    assert bench.seen() == ["release"]


@pytest.mark.parametrize("cls", [cls for cls in ALL_FOPS if not fds_of(cls)], ids=lambda cls: cls.name)
def test_fops_without_an_fd(cls: type[Fop]) -> None:
    """They cost nothing, but LOOKUP, LEASE and those that change attributes or names."""
    bench = Bench()
    passes = bench.graph.root.table[cls] == bench.storage.table[cls]
    adds = cls.name in ("mknod", "mkdir", "symlink", "link", "icreate", "namelink", "put")
    own = cls in (fops.Lookup, fops.Lease)
    assert passes is (adds or not (own or cls.effects & (fops.CHANGES_ATTRS | fops.CHANGES_NAMES)))


def test_a_lease_comes_after_the_open() -> None:
    bench = Bench()
    bench.open(A)
    bench.do(fops.Lease(Loc(gfid=A), LeaseInfo(LEASE_SET, LEASE_RW, b"i" * 16)))
    assert bench.seen() == ["open", "lease"]


def test_an_open_fd_costs_no_coroutine() -> None:
    bench = Bench()
    for cls in (fops.Read, fops.Write, fops.Fstat, fops.Zerofill):
        co: Any = bench.graph.top(sample_request(cls))
        assert co.cr_code is Storage.recorded.__code__
        co.close()
    assert bench.graph.root.table[fops.Readdirp] == bench.storage.table[fops.Readdirp]


def test_anonymous_fds() -> None:
    bench = Bench(use_anonymous_fd="on")
    fd = bench.open(flags=0)
    bench.do(fops.Fstat(fd))
    bench.do(fops.Seek(fd, 0, 0))
    assert [(req.name, req.fd.anonymous, req.fd.gfid) for req in bench.storage.seen] == [
        ("fstat", True, A),
        ("seek", True, A),
    ]
    bench.seen()
    opening = bench.hold("open")
    read = bench.start(fops.Read(fd, 0, 10))
    stat = bench.start(fops.Fstat(fd))
    assert bench.seen() == ["open"]
    opening.set(fops.Done())
    assert read.done and stat.done
    assert [(req.name, req.fd) for req in bench.storage.seen] == [("read", fd), ("fstat", fd)]

    bench = Bench(use_anonymous_fd="on", read_after_open="off")
    bench.do(fops.Read(bench.open(flags=0), 0, 10))
    assert bench.storage.seen[0].fd.anonymous
    bench.do(fops.Read(bench.open(flags=1), 0, 10))
    assert bench.seen() == ["open", "read"]


@pytest.mark.parametrize(
    ("change", "opens"),
    [
        (fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"f")), [A, B]),
        (fops.Unlink(Loc(gfid=A, pargfid=ROOT_GFID, name=b"f")), [A]),
        (fops.Rename(Loc(gfid=A, pargfid=ROOT_GFID, name=b"f"), Loc(pargfid=ROOT_GFID, name=b"g")), [A, B]),
        (fops.Rename(Loc(gfid=A, name=b"f"), Loc(gfid=B, name=b"g")), [A, B]),
        (fops.Setattr(Loc(gfid=B), Iatt(), 1), [B]),
        (fops.Fsetattr(Fd(B, 2), Iatt(), 1), [B]),
        (fops.Removexattr(Loc(gfid=B), ACL), [B]),
        (fops.Setattr(Loc(gfid=ROOT_GFID), Iatt(), 1), []),
        (fops.Mkdir(Loc(pargfid=ROOT_GFID, name=b"d"), 0o755), []),
        (fops.Link(Loc(gfid=A), Loc(pargfid=ROOT_GFID, name=b"d")), []),
        (fops.Truncate(Loc(gfid=A), 0), []),
    ],
)
def test_what_could_break_it_sends_it_first(change: Fop, opens: list[bytes]) -> None:
    bench = Bench()
    bench.open(A)
    bench.open(B)
    opening = bench.hold("open")
    call = bench.start(change)
    sent = list(bench.storage.seen)
    assert [req.loc.gfid for req in sent if req.name == "open"] == opens
    assert len(sent) == (len(opens) or 1) and call.done is (not opens)
    bench.seen()
    opening.set(fops.Done())
    assert call.errno == 0
    assert bench.seen() == ([change.name] if opens else [])


def test_a_failed_open_does_not_fail_the_unlink() -> None:
    bench = Bench()
    fd = bench.open()
    bench.failing["open"] = errno.EACCES
    bench.do(fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"f")))
    assert bench.seen() == ["open", "unlink"]
    assert bench.start(fops.Write(fd, 0, b"x")).errno == errno.EACCES
    bench.failing["open"] = errno.ENOTCONN
    fd = bench.open(B)
    bench.do(fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"f")))
    assert bench.seen() == ["open", "unlink"]


# -- who waits for it ------------------------------------------------------------------------------------------------


def test_fops_wait_for_the_one_open_and_keep_their_order() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    later: list[Call] = []

    def arrives(req: Fop) -> None:
        if isinstance(req, fops.Write) and req.offset < 2:  # from inside: the others are woken, but have not run
            later.append(bench.start(fops.Write(fd, req.offset + 10, b"x")))

    bench.arrives = arrives
    calls = [bench.start(fops.Write(fd, at, b"x")) for at in range(4)]
    assert bench.seen() == ["open"]
    opening.set(fops.Done())
    assert [req.offset for req in bench.storage.seen] == [0, 1, 2, 3, 10, 11]
    assert all(call.errno == 0 for call in calls + later)
    assert fd.slots == {}


def test_a_failed_open_is_what_each_of_them_reports() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    calls = [bench.start(fops.Write(fd, at, b"x")) for at in range(3)]
    flush = bench.start(fops.Flush(fd))
    opening.fail(FopError(errno.EROFS, "read-only brick"))
    assert [call.errno for call in calls] == [errno.EROFS] * 3
    assert "write needs the file open: read-only brick" in str(calls[0].error)
    assert calls[0].error is not calls[1].error
    assert flush.errno == 0
    assert bench.start(fops.Read(fd, 0, 1)).errno == errno.EROFS
    bench.do(fops.Flush(fd))
    bench.do(fops.Release(fd))
    assert bench.seen() == ["open"]
    assert fd.slots == {} and bench.figures()["not-open-yet"] == 0


@pytest.mark.parametrize("code", [errno.ENOTCONN, errno.ETIMEDOUT])
def test_an_open_that_was_not_answered_is_tried_again(code: int) -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    calls = [bench.start(fops.Write(fd, at, b"x")) for at in range(2)]
    opening.fail(FopError(code, "gone"))
    assert [call.errno for call in calls] == [code] * 2
    bench.failing["open"] = code
    assert bench.start(fops.Write(fd, 0, b"x")).errno == code
    bench.failing.clear()
    bench.seen()
    bench.do(fops.Write(fd, 0, b"x"))
    assert bench.seen() == ["open", "write"]


def test_who_tries_again_while_others_are_being_told() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    again: list[Call] = []

    async def write() -> None:
        try:
            await bench.graph.top(fops.Write(fd, 0, b"x"))
        except FopError:
            again.append(bench.start(fops.Write(fd, 1, b"x")))
            raise

    calls = [Call(write()), Call(write())]
    opening.held["open"] = second = Hold({}, "open")
    for waiter in opening.waiters:
        waiter.fail(FopError(errno.ENOTCONN, "gone"))
    assert [call.errno for call in calls] == [errno.ENOTCONN] * 2
    assert [call.errno for call in again] == [-1, -1]
    assert bench.seen() == ["open", "open"]
    opening.held.clear()
    second.set(fops.Done())
    assert [call.errno for call in again] == [0, 0]
    assert bench.seen() == ["write", "write"]


def test_a_fop_that_is_called_off_leaves_the_open_to_the_others() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    first, second = (bench.start(fops.Write(fd, at, b"x")) for at in range(2))
    first.cancel()
    assert first.cancelled and not second.done
    opening.set(fops.Done())
    assert second.errno == 0
    assert bench.seen() == ["open", "write"]


def test_all_are_called_off() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    call = bench.start(fops.Write(fd, 0, b"x"))
    call.cancel()
    assert call.cancelled
    opening.set(fops.Done())
    assert fd.slots == {}
    bench.do(fops.Write(fd, 0, b"x"))
    bench.do(fops.Release(fd))
    assert bench.seen() == ["open", "write", "release"]


def test_a_deadline() -> None:
    bench = Bench()
    bench.do(fops.Lookup(Loc(gfid=A)))
    fd = Fd(A, 2)
    bench.do(fops.Open(Loc(gfid=A), fd, 2, deadline=0.5))
    opening = bench.hold("open")
    call = bench.start(fops.Write(fd, 0, b"x", deadline=3.0))
    bench.reactor.advance(2.9)
    assert not call.done
    bench.reactor.advance(0.2)
    assert call.errno == errno.ETIMEDOUT
    opening.set(fops.Done())
    assert next(req for req in bench.storage.seen if req.name == "open").deadline is None
    bench.do(fops.Write(fd, 0, b"x"))
    assert bench.seen() == ["lookup", "open", "write"]


# -- the end ---------------------------------------------------------------------------------------------------------


def test_release_while_it_is_under_way() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    write = bench.start(fops.Write(fd, 0, b"x"))
    bench.do(fops.Release(fd))
    assert bench.seen() == ["open"]
    opening.set(fops.Done())
    assert write.errno == 0
    assert bench.seen() == ["write", "release"]
    assert fd.slots == {}


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOTCONN])
@pytest.mark.parametrize("waits", [True, False])
def test_release_of_one_that_then_fails(code: int, waits: bool) -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    write = bench.start(fops.Write(fd, 0, b"x"))
    if not waits:
        write.cancel()
    bench.do(fops.Release(fd))
    opening.fail(FopError(code, "gone"))
    assert write.errno == code if waits else write.cancelled
    assert bench.seen() == ["open"]
    assert fd.slots == {} and bench.figures()["not-open-yet"] == 0


def test_flush_waits_for_one_that_is_under_way() -> None:
    bench = Bench()
    fd = bench.open()
    opening = bench.hold("open")
    bench.start(fops.Write(fd, 0, b"x"))
    flush = bench.start(fops.Flush(fd))
    assert not flush.done
    opening.set(fops.Done())
    assert flush.done and bench.seen() == ["open", "write", "flush"]


def test_the_graph_ends_while_it_is_under_way() -> None:
    bench = Bench()
    fd = bench.open()
    bench.hold("open")
    write = bench.start(fops.Write(fd, 0, b"x"))
    bench.reactor.wait(bench.graph.root.stop())
    assert write.errno == errno.ENOTCONN
