"""Mandatory locks of features/locks: who waits for whom in each mode, by which fops, what O_NONBLOCK makes of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.fops import FOPS, Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, turn
from glustx.values import (
    F_RDLCK,
    F_SETLK,
    F_UNLCK,
    F_WRLCK,
    ROOT_GFID,
    ActiveLock,
    Caller,
    Flock,
    Loc,
    new_gfid,
)
from glustx.xdata import AS_MANDATORY, EMPTY, GFID_REQ, Xdata, gfuuid
from glustx.xlator import Event
from glustx.xlators.features.locks_mandatory import obeys
from glustx.xlators.features.locks_table import WAITING_LIMIT
from tests.fakes import Call, sample_request

O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_NONBLOCK = 2, 0o100, 0o1000, 0o2000, 0o4000
ANN, BOB = Caller(client="ann", lk_owner=b"ann"), Caller(client="bob", lk_owner=b"bob")


def volfile(mode: str) -> str:
    return f"""
volume store
  type storage/memory
end-volume
volume locks
  type features/locks
  option mandatory-locking {mode}
  subvolumes store
end-volume
volume io-threads
  type performance/io-threads
  option thread-count 1
  subvolumes locks
end-volume
"""


class World:
    """A brick with mandatory locking, and a file f of ten bytes."""

    def __init__(self, mode: str, file_mode: int = 0o644) -> None:
        self.reactor = ManualReactor()
        self.graph = Graph.load(volfile(mode), Surroundings(self.reactor))
        self.reactor.wait(self.graph.start())
        fresh = Xdata({GFID_REQ: gfuuid(new_gfid())})
        loc = Loc(pargfid=ROOT_GFID, name=b"f")
        self.gfid: bytes = self.do(fops.Mknod(loc, 0o100000 | file_mode, xdata=fresh)).stat.gfid
        self.do(fops.Write(self.fd(), 0, b"0123456789"))

    def fd(self, flags: int = O_RDWR) -> Fd:
        return Fd(self.gfid, flags, anonymous=True)

    def begin(self, req: Fop) -> Call:
        return Call(self.graph.top(req))

    def do(self, req: Fop) -> Any:
        return self.begin(req).result()

    def lock(self, who: Caller, kind: int, start: int = 0, size: int = 0, mandatory: bool = True) -> None:
        asked = AS_MANDATORY if mandatory else EMPTY
        self.do(fops.Lk(self.fd(), F_SETLK, kind, Flock(kind, 0, start, size), caller=who, xdata=asked))

    def read(self, who: Caller, offset: int, size: int, flags: int = O_RDWR) -> Call:
        return self.begin(fops.Read(self.fd(flags), offset, size, caller=who))

    def write(self, who: Caller, offset: int, size: int, flags: int = O_RDWR) -> Call:
        return self.begin(fops.Write(self.fd(flags), offset, bytes(size), caller=who))

    def stop(self) -> None:
        self.reactor.wait(self.graph.stop())


@pytest.fixture
def w(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(getattr(request, "param", "forced"))
    yield world
    for who in (ANN, BOB):
        world.lock(who, F_UNLCK)
    assert set(world.graph.xlators["io-threads"].statedump().values()) == {0}
    assert len(world.graph.xlators["locks"].locks) == 0  # type: ignore[attr-defined]
    world.stop()


@pytest.mark.parametrize(
    ("kind", "offset", "size", "reads", "writes"),
    [
        (F_WRLCK, 2, 3, False, False),
        (F_WRLCK, 0, 2, True, True),
        (F_WRLCK, 5, 5, True, True),
        (F_WRLCK, 4, 1, False, False),
        (F_RDLCK, 2, 3, True, False),
        (F_WRLCK, 3, 0, True, True),
    ],
)
def test_ranges(w: World, kind: int, offset: int, size: int, reads: bool, writes: bool) -> None:
    w.lock(ANN, kind, 2, 3)
    assert w.read(ANN, offset, size).errno == w.write(ANN, offset, size).errno == 0
    read, write = w.read(BOB, offset, size), w.write(BOB, offset, size)
    assert (read.done, write.done) == (reads, writes)
    w.lock(ANN, F_UNLCK)
    assert read.errno == write.errno == 0


def test_a_fop_waits_for_the_last_lock_in_its_way(w: World) -> None:
    w.lock(ANN, F_WRLCK, 0, 2)
    w.lock(ANN, F_WRLCK, 6, 2)
    write = w.write(BOB, 0, 10)
    w.lock(ANN, F_UNLCK, 0, 2)
    assert not write.done
    w.lock(ANN, F_RDLCK, 6, 2)  # weaker, and a write is still in its way
    assert not write.done and w.read(BOB, 6, 2).errno == 0
    w.lock(ANN, F_UNLCK)
    assert write.errno == 0


def test_locks_that_go_with_their_client(w: World) -> None:
    w.lock(ANN, F_WRLCK)
    write = w.write(BOB, 0, 1)
    turn(lambda: w.graph.root.notify(Event.CLIENT_GONE, None, "ann"))
    assert write.errno == 0


def test_o_nonblock_and_no_fd_do_not_wait(w: World) -> None:
    w.lock(ANN, F_WRLCK)
    assert w.write(BOB, 0, 1, O_RDWR | O_NONBLOCK).errno == errno.EAGAIN
    assert w.read(BOB, 0, 1, O_RDWR | O_NONBLOCK).errno == errno.EAGAIN
    assert w.begin(fops.Truncate(Loc(gfid=w.gfid), 0, caller=BOB)).errno == errno.EAGAIN
    assert w.begin(fops.Truncate(Loc(gfid=w.gfid), 10, caller=ANN)).errno == 0


def test_truncate_is_a_write_from_there_on(w: World) -> None:
    w.lock(ANN, F_WRLCK, 5, 1)
    assert w.begin(fops.Truncate(Loc(gfid=w.gfid), 6, caller=BOB)).errno == 0
    assert w.begin(fops.Truncate(Loc(gfid=w.gfid), 5, caller=BOB)).errno == errno.EAGAIN


def test_open_and_create_that_empty_the_file(w: World) -> None:
    w.lock(ANN, F_RDLCK, 100, 1)
    loc, by_name = Loc(gfid=w.gfid), Loc(pargfid=ROOT_GFID, name=b"f")
    fresh = Xdata({GFID_REQ: gfuuid(new_gfid())})
    for who in (ANN, BOB):
        assert w.begin(fops.Open(loc, w.fd(), O_RDWR | O_TRUNC, caller=who)).errno == errno.EAGAIN
        create = fops.Create(by_name, w.fd(), O_RDWR | O_CREAT | O_TRUNC, 0o644, caller=who, xdata=fresh)
        assert w.begin(create).errno == errno.EAGAIN
    assert w.begin(fops.Open(loc, w.fd(), O_RDWR, caller=BOB)).errno == 0
    other = fops.Create(Loc(pargfid=ROOT_GFID, name=b"g"), Fd(b"", 2), O_RDWR | O_CREAT | O_TRUNC, 0o644, xdata=fresh)
    assert w.begin(other).errno == 0
    assert bytes(w.read(BOB, 0, 99).result().data) == b"0123456789"


def test_an_append_is_a_write_at_the_end(w: World) -> None:
    w.lock(ANN, F_WRLCK, 0, 10)
    assert w.write(BOB, 0, 1, O_RDWR | O_APPEND | O_NONBLOCK).errno == 0
    w.lock(ANN, F_WRLCK, 0, 0)
    assert w.write(BOB, 0, 1, O_RDWR | O_APPEND | O_NONBLOCK).errno == errno.EAGAIN


@pytest.mark.parametrize("cls", [cls for cls in FOPS.values() if obeys(cls)], ids=lambda cls: cls.name)
def test_every_fop_on_data(w: World, cls: type[Fop]) -> None:
    """By its effects: also those that stock forgets, and those that are declared later."""
    w.lock(ANN, F_WRLCK)
    fd = w.fd(O_RDWR | O_NONBLOCK)
    fields: dict[str, Any] = {name: fd for name in ("fd", "fd_in", "fd_out") if name in cls.__struct_fields__}
    if "loc" in cls.__struct_fields__:
        fields["loc"] = Loc(gfid=w.gfid)
    if "size" in cls.__struct_fields__:
        fields["size"] = 1
    assert w.begin(sample_request(cls, **fields, caller=BOB)).errno == errno.EAGAIN
    assert w.begin(sample_request(cls, **fields, caller=ANN)).errno in (0, errno.EINVAL)
    assert w.begin(sample_request(cls, **fields, caller=Caller(pid=-6))).errno in (0, errno.EINVAL)


def test_all_fops_on_ranges_are_among_them() -> None:
    names = {cls.name for cls in FOPS.values() if obeys(cls)}
    stock = {"read", "write", "truncate", "ftruncate", "discard", "zerofill"}
    assert names == stock | {"fallocate", "copy_file_range", "rchecksum"}


@pytest.mark.parametrize("w", ["optimal"], indirect=True)
def test_optimal_obeys_locks_taken_as_mandatory(w: World) -> None:
    w.lock(ANN, F_WRLCK, mandatory=False)
    assert w.write(BOB, 0, 1).errno == 0
    assert w.begin(fops.Open(Loc(gfid=w.gfid), w.fd(), O_RDWR | O_TRUNC, caller=BOB)).errno == 0
    w.lock(ANN, F_WRLCK, mandatory=True)
    write = w.write(BOB, 0, 1)
    assert not write.done
    assert w.begin(fops.Open(Loc(gfid=w.gfid), w.fd(), O_RDWR | O_TRUNC, caller=BOB)).errno == errno.EAGAIN
    w.lock(ANN, F_WRLCK, mandatory=False)
    assert write.errno == 0


@pytest.mark.parametrize("w", ["optimal"], indirect=True)
def test_a_mandatory_lock_migrates_as_one(w: World) -> None:
    w.lock(ANN, F_WRLCK, 3, 4)
    found = w.do(fops.Getactivelk(Loc(gfid=w.gfid))).locks
    assert [lock.flags for lock in found] == [1]
    w.lock(ANN, F_UNLCK)
    w.do(fops.Setactivelk(Loc(gfid=w.gfid), (ActiveLock(found[0].flock, "ann", 1),)))
    assert w.write(BOB, 3, 1, O_RDWR | O_NONBLOCK).errno == errno.EAGAIN


@pytest.mark.parametrize(("bits", "obeyed"), [(0o644, False), (0o2644, True), (0o2654, False), (0o2744, True)])
def test_file_goes_by_the_mode(bits: int, obeyed: bool) -> None:
    w = World("file", bits)
    w.lock(ANN, F_WRLCK, mandatory=False)
    assert w.write(BOB, 0, 1, O_RDWR | O_NONBLOCK).errno == (errno.EAGAIN if obeyed else 0)
    w.stop()


@pytest.mark.parametrize("w", ["off"], indirect=True)
def test_off_and_on_again(w: World) -> None:
    w.lock(ANN, F_WRLCK)
    assert w.write(BOB, 0, 1).errno == 0
    turn(lambda: w.graph.reconfigure(volfile("forced")))
    write = w.write(BOB, 0, 1)
    assert not write.done
    turn(lambda: w.graph.reconfigure(volfile("off")))
    assert write.errno == 0


def test_a_fop_that_is_called_off_leaves_nothing(w: World) -> None:
    w.lock(ANN, F_WRLCK)
    write = w.write(BOB, 0, 1)
    write.cancel()
    assert write.cancelled


def test_those_that_wait_hold_up_nobody(w: World) -> None:
    """They give their place in io-threads back, and are not so many that their client is not read from."""
    w.lock(ANN, F_WRLCK)
    calls = [w.write(BOB, 0, 1) for _ in range(WAITING_LIMIT)]
    assert w.write(BOB, 0, 1).errno == errno.EAGAIN
    assert w.write(ANN, 0, 1).errno == 0
    w.lock(ANN, F_UNLCK)
    assert {call.errno for call in calls} == {0}
