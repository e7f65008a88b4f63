"""features/leases: who is granted a lease, what recalls one, who waits and goes on, what a client leaves that goes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.fops import CHANGES_NAMES, FOPS, MAY_GROW, WRITES_DATA, Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, turn
from glustx.upcall import LeaseRecall
from glustx.values import (
    F_GETLK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    LEASE_GET,
    LEASE_RD,
    LEASE_RW,
    LEASE_SET,
    LEASE_UNLOCK,
    ROOT_GFID,
    ROOT_LOC,
    SET_MODE,
    Caller,
    Flock,
    Iatt,
    LeaseInfo,
    Loc,
    new_gfid,
)
from glustx.xdata import CONTENT, GFID_REQ, INTERNAL_FOP, LEASE_ID, Xdata, gfuuid, uint
from glustx.xlator import Event
from glustx.xlators.features.leases import Leases
from glustx.xlators.features.leases_table import WAITING_LIMIT
from tests.fakes import Call, Storage, sample_request, stack

VOLFILE = """
volume store
  type storage/memory
end-volume
volume locks
  type features/locks
  subvolumes store
end-volume
volume leases
  type features/leases
  option leases on
  option lease-lock-recall-timeout 20
  subvolumes locks
end-volume
volume io-threads
  type performance/io-threads
  option thread-count 1
  subvolumes leases
end-volume
"""
O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_NONBLOCK = 0, 1, 2, 0o100, 0o1000, 0o4000
ANN, BOB, CAT = "ann", "bob", "cat"
ID = b"an id".ljust(16, b"\0")
OTHER_ID = b"another".ljust(16, b"\0")


class World:
    """A brick with leases on a clock that the test moves, its clients, and one file `gfid` that is called f."""

    def __init__(self) -> None:
        self.reactor = ManualReactor()
        self.graph = Graph.load(VOLFILE, Surroundings(self.reactor))
        self.told: list[LeaseRecall] = []
        self.graph.listeners.append(lambda event, data: self.told.append(data) if event is Event.UPCALL else None)
        self.reactor.wait(self.graph.start())
        self.leases: Any = self.graph.xlators["leases"]
        self.gfid = self.make(b"f")

    def make(self, name: bytes) -> bytes:
        loc = Loc(pargfid=ROOT_GFID, name=name)
        gfid: bytes = self.do(fops.Mknod(loc, 0o100644, xdata=Xdata({GFID_REQ: gfuuid(new_gfid())}))).stat.gfid
        return gfid

    def begin(self, req: Fop) -> Call:
        return Call(self.graph.top(req))

    def do(self, req: Fop) -> Any:
        return self.begin(req).result()

    def lease(self, client: str, type_: int, id_: bytes = ID, cmd: int = LEASE_SET, gfid: bytes | None = None) -> Call:
        info = LeaseInfo(cmd, type_, id_)
        return self.begin(fops.Lease(Loc(gfid=gfid or self.gfid), info, caller=Caller(client=client)))

    def open(self, client: str, flags: int = O_RDWR, id_: bytes = b"") -> Fd:
        fd = Fd(self.gfid, flags, client=client)
        self.do(fops.Open(Loc(gfid=self.gfid), fd, flags, **whose(client, id_)))
        return fd

    def anonymous(self, client: str) -> Fd:
        return Fd(self.gfid, O_RDWR, anonymous=True, client=client)

    def write(self, client: str, id_: bytes = b"", fd: Fd | None = None) -> Call:
        return self.begin(fops.Write(fd or self.anonymous(client), 0, b"new", **whose(client, id_)))

    def read(self, client: str, id_: bytes = b"", fd: Fd | None = None) -> Call:
        return self.begin(fops.Read(fd or self.anonymous(client), 0, 9, **whose(client, id_)))

    def gone(self, client: str) -> None:
        turn(lambda: self.graph.root.notify(Event.CLIENT_GONE, None, client))


def whose(client: str, id_: bytes = b"") -> dict[str, Any]:
    return {"caller": Caller(client=client), "xdata": Xdata({LEASE_ID: id_} if id_ else {})}


@pytest.fixture
def w() -> Iterator[World]:
    world = World()
    yield world
    world.reactor.wait(world.graph.stop())
    assert world.leases.held.active == 0 and not world.leases.held._clients and not world.leases.held._waiting


# -- granting


def test_read_leases_are_shared_and_write_leases_are_not(w: World) -> None:
    assert w.lease(ANN, LEASE_RD).errno == w.lease(BOB, LEASE_RD).errno == 0
    assert not w.told
    assert w.lease(CAT, LEASE_RW).errno == errno.EPERM
    assert {told.client for told in w.told} == {ANN, BOB}
    assert w.told[0] == LeaseRecall(ANN, w.gfid, 0, ID)
    assert w.lease(CAT, LEASE_RD).errno == errno.EPERM  # a recall is under way
    for client in (ANN, BOB):
        assert w.lease(client, LEASE_RD, cmd=LEASE_UNLOCK).errno == 0
    assert w.lease(CAT, LEASE_RW).errno == 0
    assert w.lease(ANN, LEASE_RD).errno == errno.EPERM


def test_get_tells_the_union(w: World) -> None:
    assert w.lease(ANN, 0, cmd=LEASE_GET).result().lease.type == 0
    w.lease(ANN, LEASE_RD).result()
    w.lease(ANN, LEASE_RW).result()
    assert w.lease(BOB, 0, cmd=LEASE_GET).result().lease.type == LEASE_RD | LEASE_RW
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert w.lease(BOB, 0, cmd=LEASE_GET).result().lease.type == LEASE_RD


def test_each_grant_is_given_back_once(w: World) -> None:
    for _ in range(2):
        w.lease(ANN, LEASE_RW).result()
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert w.lease(ANN, LEASE_RD, cmd=LEASE_UNLOCK).errno == errno.EINVAL
    assert w.lease(BOB, 0, cmd=LEASE_GET).result().lease.type == LEASE_RW
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert w.lease(BOB, 0, cmd=LEASE_GET).result().lease.type == 0
    assert w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).errno == 0  # it may have been taken away meanwhile


@pytest.mark.parametrize(
    ("flags", "type_", "code"),
    [
        (O_RDONLY, LEASE_RD, 0),
        (O_RDONLY, LEASE_RW, errno.EPERM),
        (O_RDWR, LEASE_RD, errno.EPERM),
        (O_WRONLY, LEASE_RW, errno.EPERM),
    ],
)
def test_what_others_have_open_forbids_a_lease(w: World, flags: int, type_: int, code: int) -> None:
    fd = w.open(BOB, flags)
    w.open(ANN, O_RDWR)  # ann's own, without an id
    w.open(ANN, O_RDWR, ID)
    assert w.lease(ANN, type_).errno == code
    w.do(fops.Release(fd, caller=Caller(client=BOB)))
    assert w.lease(ANN, type_).errno == 0


def test_an_fd_under_another_id_of_the_same_client_forbids_it_too(w: World) -> None:
    w.open(ANN, O_RDWR, OTHER_ID)
    assert w.lease(ANN, LEASE_RW).errno == errno.EPERM


def test_fds_from_before_leases_were_turned_on_count(w: World) -> None:
    turn(lambda: w.graph.reconfigure(VOLFILE.replace("leases on", "leases off")))
    assert w.lease(ANN, LEASE_RD).errno == errno.ENOSYS
    fd = Fd(w.gfid, O_RDWR, client=BOB)
    w.do(fops.Open(Loc(gfid=w.gfid), fd, O_RDWR, **whose(BOB)))
    turn(lambda: w.graph.reconfigure(VOLFILE))
    assert w.lease(ANN, LEASE_RD).errno == errno.EPERM


def test_what_is_no_lease(w: World) -> None:
    assert w.lease(ANN, LEASE_RD, bytes(16)).errno == errno.EINVAL
    assert w.lease(ANN, 3).errno == w.lease(ANN, 0).errno == errno.EINVAL
    assert w.lease(ANN, LEASE_RD, cmd=9).errno == errno.EINVAL
    assert w.lease(ANN, LEASE_RD, gfid=ROOT_GFID).errno == errno.EINVAL
    assert w.lease(ANN, LEASE_RD, gfid=b"\7" * 16).errno in (errno.ESTALE, errno.ENOENT)
    internal = fops.Lease(Loc(gfid=w.gfid), LeaseInfo(LEASE_SET, LEASE_RD, ID), caller=Caller(pid=-3))
    assert w.begin(internal).errno == errno.ENOSYS


def test_a_client_has_its_fill(w: World) -> None:
    turn(
        lambda: w.graph.reconfigure(
            VOLFILE.replace("timeout 20", "timeout 20\n  option client-lease-limit 2"),
        )
    )
    other = w.make(b"other")
    w.lease(ANN, LEASE_RD).result()
    w.lease(ANN, LEASE_RD).result()  # the same lease once more takes nothing
    w.lease(ANN, LEASE_RD, OTHER_ID).result()
    assert w.lease(ANN, LEASE_RD, gfid=other).errno == errno.ENOLCK
    assert w.lease(BOB, LEASE_RD, gfid=other).errno == 0


# -- conflicts


def test_a_write_waits_for_read_leases_and_a_read_does_not(w: World) -> None:
    w.lease(ANN, LEASE_RD).result()
    assert w.read(BOB).errno == 0 and not w.told
    write = w.write(BOB)
    assert not write.done and w.told == [LeaseRecall(ANN, w.gfid, 0, ID)]
    assert w.lease(CAT, LEASE_RD).errno == errno.EPERM  # bob comes first
    w.lease(ANN, LEASE_RD, cmd=LEASE_UNLOCK).result()
    assert write.errno == 0
    assert bytes(w.read(CAT).result().data) == b"new"


def test_a_read_waits_for_a_write_lease(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    assert w.write(ANN, ID).errno == w.read(ANN, ID).errno == 0
    read, same_client = w.read(BOB), w.read(ANN, OTHER_ID)
    assert not read.done and not same_client.done and len(w.told) == 1
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert read.errno == same_client.errno == 0


def test_the_holder_goes_on_while_others_wait(w: World) -> None:
    """They give their place in io-threads back: there is one."""
    w.lease(ANN, LEASE_RW).result()
    writes = [w.write(BOB) for _ in range(3)]
    assert w.write(ANN, ID).errno == 0
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert [write.errno for write in writes] == [0, 0, 0]
    dump = w.graph.xlators["io-threads"].statedump()
    assert set(dump.values()) == {0}


def test_only_the_leases_that_conflict_are_recalled(w: World) -> None:
    w.lease(ANN, LEASE_RD).result()
    w.lease(BOB, LEASE_RD).result()
    write = w.write(BOB, ID)
    assert [told.client for told in w.told] == [ANN] and not write.done
    w.lease(ANN, LEASE_RD, cmd=LEASE_UNLOCK).result()
    assert write.errno == 0
    assert w.lease(CAT, 0, cmd=LEASE_GET).result().lease.type == LEASE_RD


def test_the_same_id_of_another_client_is_another_lease(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    assert not w.write(BOB, ID).done
    w.gone(ANN)


def test_o_nonblock_fails_at_once_and_recalls_all_the_same(w: World) -> None:
    fd = Fd(w.gfid, O_RDWR | O_NONBLOCK, client=BOB)
    w.lease(ANN, LEASE_RW).result()
    assert w.begin(fops.Open(Loc(gfid=w.gfid), fd, fd.flags, **whose(BOB))).errno == errno.EAGAIN
    assert len(w.told) == 1
    assert w.write(BOB, fd=fd).errno == errno.EAGAIN
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert w.lease(ANN, LEASE_RW).errno == 0  # the refused OPEN left nothing behind
    w.gone(ANN)


@pytest.mark.parametrize(("flags", "waits"), [(O_RDONLY, False), (O_RDWR, True), (O_RDONLY | O_TRUNC, True)])
def test_open(w: World, flags: int, waits: bool) -> None:
    w.lease(ANN, LEASE_RD).result()
    fd = Fd(w.gfid, flags, client=BOB)
    call = w.begin(fops.Open(Loc(gfid=w.gfid), fd, flags, **whose(BOB)))
    assert call.done is not waits
    w.lease(ANN, LEASE_RD, cmd=LEASE_UNLOCK).result()
    assert call.errno == 0


@pytest.mark.parametrize(
    "name",
    ["unlink", "rename over it", "rename", "link", "create", "put", "truncate", "setattr", "copy from", "copy to"],
)
def test_by_whatever_way_a_file_is_changed(w: World, name: str) -> None:
    f, other = Loc(pargfid=ROOT_GFID, name=b"f"), Loc(pargfid=ROOT_GFID, name=b"other")
    by_gfid, fresh = Loc(gfid=w.gfid), Xdata({GFID_REQ: gfuuid(new_gfid())})
    away = Fd(w.make(b"other"), O_RDWR, anonymous=True, client=BOB)
    bob = {"caller": Caller(client=BOB)}
    requests: dict[str, Fop] = {
        "unlink": fops.Unlink(f, **bob),
        "rename": fops.Rename(f, Loc(pargfid=ROOT_GFID, name=b"g"), **bob),
        "rename over it": fops.Rename(other, f, **bob),
        "link": fops.Link(by_gfid, Loc(pargfid=ROOT_GFID, name=b"g"), **bob),
        "create": fops.Create(f, Fd(b"", O_RDWR, client=BOB), O_RDWR | O_CREAT, 0o644, xdata=fresh, **bob),
        "put": fops.Put(f, 0o644, 0, 0, 0, b"data", xdata=fresh, **bob),
        "truncate": fops.Truncate(by_gfid, 0, **bob),
        "setattr": fops.Setattr(by_gfid, Iatt(mode=0o600), SET_MODE, **bob),
        "copy from": fops.CopyFileRange(w.anonymous(BOB), away, 0, 0, 9, **bob),
        "copy to": fops.CopyFileRange(away, w.anonymous(BOB), 0, 0, 9, **bob),
    }
    w.lease(ANN, LEASE_RW).result()
    call = w.begin(requests[name])
    assert not call.done and len(w.told) == 1
    assert w.lease(CAT, LEASE_RW).errno == errno.EPERM
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert call.done and call.errno in (0, errno.EEXIST)


RANGE = {"size": 1, "offset": 0}
DATA = WRITES_DATA | MAY_GROW
PASS = ("mknod", "mkdir", "symlink", "icreate", "namelink", "rmdir")


@pytest.mark.parametrize(
    "cls", [c for c in FOPS.values() if c.effects & (DATA | CHANGES_NAMES) and c.name not in PASS], ids=lambda c: c.name
)
def test_every_change_by_its_effects(cls: type[Fop]) -> None:
    """Whatever is declared as a change, also a fop that is declared later, waits for a lease on what it changes."""
    graph = stack(Storage, (Leases, {"leases": "on"}))
    gfid = b"\5" * 16
    graph.xlators["fake"].answer = lambda req: _answer(req, gfid)  # type: ignore[attr-defined]
    call = Call(graph.top(fops.Lease(Loc(gfid=gfid), LeaseInfo(LEASE_SET, LEASE_RW, ID), caller=Caller(client=ANN))))
    assert call.errno == 0
    fds = {name: Fd(gfid, O_RDWR) for name in ("fd", "fd_in", "fd_out") if name in cls.__struct_fields__}
    locs = {name: Loc(gfid, ROOT_GFID, b"n") for name in ("loc", "oldloc", "newloc") if name in cls.__struct_fields__}
    flags = {"flags": O_RDWR | O_TRUNC} if cls in (fops.Open, fops.Create) else {}
    waiting = Call(graph.top(sample_request(cls, **fds, **locs, **flags)))
    assert not waiting.done
    turn(lambda: graph.root.notify(Event.CLIENT_GONE, None, ANN))
    assert waiting.errno == 0


def _answer(req: Any, gfid: bytes) -> Any:
    from tests.fakes import sample_reply

    reply = sample_reply(type(req))
    if type(req) in (fops.Stat, fops.Lookup, fops.Create):
        import msgspec

        reply = msgspec.structs.replace(reply, stat=Iatt(gfid=gfid, mode=0o100644))
    return reply


@pytest.mark.parametrize(
    ("cmd", "kind", "lease", "code"),
    [
        (F_SETLK, F_WRLCK, LEASE_RD, errno.EAGAIN),
        (F_SETLK, F_RDLCK, LEASE_RD, 0),
        (F_SETLK, F_RDLCK, LEASE_RW, errno.EAGAIN),
        (F_SETLKW, F_RDLCK, LEASE_RW, -1),
        (F_GETLK, F_WRLCK, LEASE_RW, 0),
        (F_SETLK, F_UNLCK, LEASE_RW, 0),
    ],
)
def test_locks(w: World, cmd: int, kind: int, lease: int, code: int) -> None:
    w.lease(ANN, lease).result()
    call = w.begin(fops.Lk(w.anonymous(BOB), cmd, kind, Flock(kind), caller=Caller(client=BOB, lk_owner=b"bob")))
    assert call.errno == code
    w.gone(ANN)
    assert call.done


def test_what_does_not_conflict(w: World) -> None:
    fd = w.open(BOB)
    w.do(fops.Write(fd, 0, b"text", **whose(BOB)))
    w.do(fops.Release(fd, **whose(BOB)))
    w.lease(ANN, LEASE_RW).result()
    internal = {"caller": Caller(pid=-6, client=BOB)}
    marked = {"caller": Caller(client=BOB), "xdata": Xdata({INTERNAL_FOP: b"yes"})}
    for req in (
        fops.Write(w.anonymous(BOB), 0, b"t", **internal),
        fops.Write(w.anonymous(BOB), 0, b"t", **marked),
        fops.Stat(Loc(gfid=w.gfid), **whose(BOB)),
        fops.Getxattr(Loc(gfid=w.gfid), **whose(BOB)),
        fops.Setxattr(Loc(gfid=w.gfid), Xdata({b"user.a": b"1"}), **whose(BOB)),
        fops.Flush(w.anonymous(BOB), **whose(BOB)),
        fops.Fsync(w.anonymous(BOB), **whose(BOB)),
        fops.Readdir(Fd(ROOT_GFID, 0, directory=True), 0, 4096, **whose(BOB)),
    ):
        call = w.begin(req)
        assert call.done, req.name
    assert not w.told


def test_content_with_a_lookup_is_a_read(w: World) -> None:
    w.do(fops.Write(w.anonymous(ANN), 0, b"text", **whose(ANN)))
    w.lease(ANN, LEASE_RW).result()

    def lookup(client: str, id_: bytes = b"") -> Xdata:
        wanted = whose(client, id_)
        wanted["xdata"] = wanted["xdata"].plus({CONTENT: uint(4096)})
        found: Xdata = w.do(fops.Lookup(Loc(pargfid=ROOT_GFID, name=b"f"), **wanted)).xdata
        return found

    assert bytes(lookup(ANN, ID)[CONTENT]) == b"text"
    assert CONTENT not in lookup(BOB) and not w.told


# -- recall, waiting, ends


def test_what_is_not_given_back_is_taken_away(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    write = w.write(BOB)
    w.reactor.advance(19)
    assert not write.done
    w.reactor.advance(2)
    assert write.errno == 0
    assert w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).errno == 0
    assert w.lease(CAT, LEASE_RW).errno == 0


def test_what_is_given_back_in_time_is_not_taken_away_later(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    assert not w.write(BOB).done
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    w.lease(ANN, LEASE_RW).result()
    w.reactor.advance(60)
    assert w.lease(BOB, 0, cmd=LEASE_GET).result().lease.type == LEASE_RW


def test_leases_go_with_their_client(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    write = w.write(BOB)
    w.gone(CAT)
    assert not write.done
    w.gone(ANN)
    assert write.errno == 0 and w.leases.held.active == 0


def test_leases_go_when_they_are_turned_off(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    write = w.write(BOB)
    turn(lambda: w.graph.reconfigure(VOLFILE.replace("leases on", "leases off")))
    assert write.errno == 0 and w.leases.held.active == 0


def test_a_fop_that_is_called_off_leaves_nothing(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    write = w.write(BOB)
    write.cancel()
    assert write.cancelled
    w.lease(ANN, LEASE_RW, cmd=LEASE_UNLOCK).result()
    assert list(w.leases.held) == []
    assert set(w.graph.xlators["io-threads"].statedump().values()) == {0}


def test_one_client_keeps_few_fops_waiting(w: World) -> None:
    """The rest fail, or its connection would not be read from and its own leases never come back."""
    w.lease(ANN, LEASE_RW).result()
    calls = [w.write(BOB) for _ in range(WAITING_LIMIT)]
    assert w.write(BOB).errno == errno.EAGAIN
    other = w.write(CAT)
    assert not other.done
    w.gone(ANN)
    assert {call.errno for call in (*calls, other)} == {0}


def test_a_change_under_way_keeps_leases_away() -> None:
    from glustx.runtime import Waiter

    graph = stack(Storage, (Leases, {"leases": "on"}))
    gfid, held = b"\5" * 16, Waiter[Any]()
    store: Any = graph.xlators["fake"]
    store.answer = lambda req: held if isinstance(req, fops.Truncate) else _answer(req, gfid)
    truncate = Call(graph.top(fops.Truncate(Loc(gfid=gfid), 0, caller=Caller(client=BOB))))
    ask = fops.Lease(Loc(gfid=gfid), LeaseInfo(LEASE_SET, LEASE_RD, ID), caller=Caller(client=ANN))
    assert Call(graph.top(ask)).errno == errno.EPERM
    held.set(_answer(truncate and fops.Truncate(Loc(gfid=gfid), 0), gfid))
    assert truncate.errno == 0
    assert Call(graph.top(ask)).errno == 0


def test_off_it_is_not_in_the_way() -> None:
    graph = stack(Storage, Leases)
    store, leases = graph.xlators["fake"], graph.xlators["leases"]
    for name in ("stat", "setxattr", "mkdir", "flush", "readdirp", "statfs"):
        assert leases.table[FOPS[name]] == store.table[FOPS[name]]
    write = leases.table[fops.Write](fops.Write(Fd(ROOT_GFID, 2), 0, b""))
    assert write.__qualname__ == "Storage.recorded"
    write.close()
    assert Call(graph.top(fops.Lease(ROOT_LOC, LeaseInfo(LEASE_SET, LEASE_RD, ID)))).errno == errno.ENOSYS


def test_statedump(w: World) -> None:
    w.lease(ANN, LEASE_RW).result()
    w.write(BOB)
    text = str(w.leases.statedump())
    assert "RECALLED" in text and ID.hex() in text and "waiting" in text
    w.gone(ANN)
