"""The states of protocol/client's link, on an in-memory network and a clock that the tests move: connections that end
at every step, bricks that fall silent, and what becomes of fds and locks."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from glustx import fops
from glustx.fops import Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.mgmt.server import VolumeServer
from glustx.mgmt.volumes import Volumes
from glustx.rpc.channel import Address
from glustx.upcall import LocksLost
from glustx.values import (
    ENTRYLK_LOCK,
    ENTRYLK_UNLOCK,
    ENTRYLK_WRLCK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    ROOT_GFID,
    ROOT_LOC,
    Caller,
    Flock,
    Loc,
)
from glustx.xlator import Event
from glustx.xlators.protocol.client_link import Unanswered
from tests.fakes import Call
from tests.t3_wire.world import CLIENT, Gate, World, fails, inodelk, link, remote

OWNER = b"owner-1"


def lk(fd: Fd, kind: int, start: int, length: int, *, cmd: int = F_SETLK, owner: bytes = OWNER) -> fops.Lk:
    flock = Flock(kind, 0, start, length, 7, owner)
    return fops.Lk(fd, cmd, kind, flock, caller=Caller(pid=7, lk_owner=owner))


def pull(world: World, graph: Graph) -> None:
    """Cut the client's connection, and let both ends hear of it."""
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()


def held(world: World, gfid: bytes) -> list[tuple[int, int, int]]:
    """The posix locks on the brick: type, first and last byte."""
    state = world.server.xlators["/brick"].locks.find(gfid)  # type: ignore[attr-defined]
    return sorted((lock.type, lock.first, lock.last) for lock in state.posix) if state else []


def opened(world: World, graph: Graph, fd: Fd) -> Fd:
    """One more fd of the same file."""
    other = Fd(fd.gfid, 2)
    world.do(graph, fops.Open(Loc(gfid=fd.gfid), other, 2))
    return other


def told(graph: Graph) -> list[LocksLost]:
    heard: list[tuple[Event, Any]] = graph.heard  # type: ignore[attr-defined]
    return [data for event, data in heard if event is Event.UPCALL and isinstance(data, LocksLost)]


class Dials:
    """Meddles with the connections that are dialled from now on, oldest first; later ones are left alone."""

    def __init__(self, world: World, *meddlers: Callable[[Any], None]) -> None:
        self.count = 0
        dial = world.network._dial

        def watched(address: Any, receiver: Any) -> None:
            dial(address, receiver)
            if self.count < len(meddlers):
                meddlers[self.count](world.network.channels[-1])
            self.count += 1

        world.network._dial = watched  # type: ignore[method-assign]


def cut_at(reply: int, unless: Callable[[], bool] = lambda: False) -> Callable[[Any], None]:
    """Cut a connection in place of the brick's reply of that number."""

    def meddle(near: Any) -> None:
        far, write, seen = near.other, near.other.write, [0]

        def counted(pieces: Any) -> None:
            seen[0] += 1
            if seen[0] == reply and not unless():
                far.abort("pulled")
            else:
                write(pieces)

        far.write = counted

    return meddle


# -- connections that end ----------------------------------------------------------------------------------------------


def test_a_call_that_the_brick_never_read_is_not_done(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f", b"old")
    world.session().channel.pause_reading()
    write = world.begin(graph, fops.Write(fd, 0, b"new"))
    pull(world, graph)
    assert write.errno == errno.ENOTCONN and isinstance(write.error, Unanswered)
    assert "write on 127.0.0.1:49152 brick /brick was not answered" in str(write.error)
    world.pass_time(1)
    assert world.do(graph, fops.Read(fd, 0, 9)).data == b"old"


def test_a_call_whose_reply_is_lost_is_not_sent_again(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f")
    link(graph).connection.channel.pause_reading()
    append = world.begin(graph, fops.Write(fd, 0, b"once"))
    pull(world, graph)
    assert append.errno == errno.ENOTCONN
    world.pass_time(1)
    served = [session.served for session in world.protocol.sessions]
    assert world.do(graph, fops.Read(fd, 0, 9)).data == b"once"  # it was done, which nobody could know
    assert [session.served for session in world.protocol.sessions] == [served[0] + 1]


def test_fops_of_a_link_that_is_down_fail_at_once(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f")
    world.protocol.listener.close()
    pull(world, graph)
    for req in (fops.Stat(ROOT_LOC), fops.Write(fd, 0, b"x"), fops.Statfs(ROOT_LOC)):
        call = world.begin(graph, req)
        assert call.errno == errno.ENOTCONN and isinstance(call.error, Unanswered)
        assert f"{req.name} on 127.0.0.1:49152 brick /brick" in str(call.error)


@pytest.mark.parametrize("reply", [1, 2, 3, 4], ids=["DUMP", "SETVOLUME", "OPEN", "LK"])
def test_a_connection_that_ends_while_it_comes_up(world: World, reply: int) -> None:
    graph = world.client()
    fd = world.create(graph, b"f", b"data")
    world.do(graph, lk(fd, F_WRLCK, 0, 4))
    dials = Dials(world, cut_at(reply), cut_at(reply))
    pull(world, graph)
    world.pass_time(2)
    assert dials.count == 3 and link(graph).up
    assert world.do(graph, fops.Read(fd, 0, 9)).data == b"data"
    assert held(world, fd.gfid) == [(F_WRLCK, 0, 3)]
    assert len(world.protocol.sessions) == 1 and len(world.session().fds) == 1


def test_each_connection_has_a_name_of_its_own(world: World) -> None:
    graph = world.client()
    names = list(world.protocol.clients)
    Dials(world, cut_at(2), cut_at(2))
    pull(world, graph)
    world.pass_time(2)
    assert link(graph).up
    names += world.gone + list(world.protocol.clients)
    assert len(set(names)) == 4 and len({name.rpartition("-RECON_NO:-")[0] for name in names}) == 1
    assert sorted(name.rpartition("-")[2] for name in set(names)) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("reply", [1, 2, 3, 4], ids=["DUMP", "SETVOLUME", "OPEN", "LK"])
def test_a_brick_that_falls_silent_while_it_comes_up(world: World, reply: int) -> None:
    def hold(near: Any) -> None:
        write, seen = near.other.write, [0]

        def counted(pieces: Any) -> None:
            seen[0] += 1
            if seen[0] < reply:
                write(pieces)

        near.other.write = counted

    graph = world.client()
    fd = world.create(graph, b"f", b"data")
    world.do(graph, lk(fd, F_WRLCK, 0, 4))
    dials = Dials(world, hold)
    pull(world, graph)
    world.pass_time(9.5)
    assert dials.count == 1 and not link(graph).up
    world.pass_time(2)  # the time-out for one step is ten seconds
    assert dials.count == 2 and link(graph).up
    assert world.do(graph, fops.Read(fd, 0, 9)).data == b"data" and held(world, fd.gfid) == [(F_WRLCK, 0, 3)]


def test_it_waits_longer_from_attempt_to_attempt_and_starts_over(world: World) -> None:
    graph = world.client()
    for _ in range(2):
        begun = world.reactor.time()
        times: list[float] = []
        dials = Dials(world)
        dial = world.network._dial

        def timed(address: Any, receiver: Any, dial: Any = dial, times: Any = times, begun: float = begun) -> None:
            times.append(world.reactor.time() - begun)
            dial(address, receiver)

        world.network._dial = timed  # type: ignore[method-assign]
        world.protocol.listener.close()
        pull(world, graph)
        for _ in range(2000):
            world.reactor.advance(0.01)
            world.reactor.run()
        pauses = [round(b - a, 1) for a, b in itertools.pairwise(times)]
        assert round(times[0], 1) == 0.1 and pauses[:4] == [0.2, 0.4, 0.8, 1.6] and set(pauses[4:]) == {2.0}
        world.protocol.listener = None
        listening = world.network.listen(link(graph).brick, world.protocol.make_receiver)
        world.protocol.listener = listening._value
        world.pass_time(2.5)
        assert link(graph).up and dials.count == len(times)


def test_a_mount_that_is_called_off_while_it_waits_for_the_brick(world: World) -> None:
    Dials(world, lambda near: near.other.pause_reading())
    graph = Graph.load(CLIENT.format(options=""), Surroundings(world.reactor, world.network))
    starting = Call(graph.start())
    world.reactor.run()
    assert not starting.done
    starting.cancel()
    world.reactor.run()
    assert starting.cancelled
    world.reactor.wait(graph.stop())
    world.pass_time(15)
    assert not any(channel.is_open for channel in world.network.channels)


PORTMAP = "option remote-port 0\n  option remote-portmap 24007"


def portmap(world: World) -> dict[str, int]:
    """Serve a portmap, and return what it knows: ports by brick."""
    volumes = Volumes()
    world.network.listen(Address("127.0.0.1", 24007), VolumeServer(world.reactor, volumes).make_receiver)
    return volumes.portmap


def test_a_brick_that_comes_back_on_another_port(world: World) -> None:
    ports = portmap(world)
    graph = world.client(PORTMAP)
    text = fails(world, graph, fops.Stat(ROOT_LOC), errno.ENOTCONN)
    assert "127.0.0.1 brick /brick" in text and "127.0.0.1:24007 knows no running brick /brick" in text
    ports["/brick"] = 49152
    world.pass_time(2.5)
    fd = world.create(graph, b"f", b"data")
    assert link(graph).where == "127.0.0.1:49152 brick /brick"
    world.protocol.listener.close()
    ports["/brick"] = 49153
    world.network.listen(Address("127.0.0.1", 49153), world.protocol.make_receiver)
    pull(world, graph)
    world.pass_time(1)
    assert link(graph).where == "127.0.0.1:49153 brick /brick"
    assert world.do(graph, fops.Read(fd, 0, 9)).data == b"data"


@pytest.mark.parametrize("how", ["cut", "silent"])
def test_a_portmap_that_does_not_answer(world: World, how: str) -> None:
    ports = portmap(world)
    ports["/brick"] = 49152
    graph = world.client(PORTMAP)
    meddler = cut_at(1) if how == "cut" else lambda near: near.other.pause_reading()
    dials = Dials(world, meddler, meddler)
    pull(world, graph)
    world.pass_time(2 if how == "cut" else 22)
    assert link(graph).up and dials.count == 4
    assert sum(channel.is_open for channel in world.network.channels) == 1


# -- silence -----------------------------------------------------------------------------------------------------------


def test_a_ping_that_is_answered_late(world: World) -> None:
    graph = world.client()
    far = world.session().channel
    world.pass_time(3)
    far.pause_reading()
    world.pass_time(9)  # the first ping went out after five seconds; its answer is due after fifteen
    assert link(graph).pings == 0 and link(graph).up
    far.resume_reading()
    world.pass_time(30)
    assert link(graph).session == 1 and link(graph).pings > 2


def test_an_answer_that_comes_when_it_is_too_late(world: World) -> None:
    graph = world.client()
    near = link(graph).connection.channel
    near.other.pause_reading()
    world.pass_time(15)
    world.pass_time(1)
    assert not near.is_open and link(graph).session == 2 and link(graph).up
    near.other.resume_reading()  # nobody is there any more
    world.pass_time(20)
    assert link(graph).session == 2


def test_no_ping_timeout_waits_for_ever(world: World) -> None:
    graph = world.client("option ping-timeout 0")
    far = world.session().channel
    far.pause_reading()
    stat = world.begin(graph, fops.Stat(ROOT_LOC))
    world.pass_time(1200)
    assert link(graph).session == 1 and not stat.done and link(graph).pings == 0
    far.resume_reading()
    world.reactor.run()
    assert stat.errno == 0


def test_an_idle_client_for_ten_minutes(world: World) -> None:
    graph = world.client("option ping-timeout 42")
    world.pass_time(600)
    assert link(graph).session == 1 and link(graph).pings == 600 // 21
    assert link(graph).connection.waiting == {} and world.do(graph, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID


def test_the_frame_timeout_spares_locks(world: World) -> None:
    graph, other = world.client("option frame-timeout 60"), world.client()
    fd = world.create(graph, b"f")
    theirs = opened(world, other, fd)
    gate = Gate(world.server, fops.Fsync)
    late = world.client("option frame-timeout 60")  # a session that knows the gate
    mine = opened(world, late, fd)
    world.do(other, lk(theirs, F_WRLCK, 0, 0, owner=b"other"))
    waiting = world.begin(late, lk(mine, F_WRLCK, 0, 0, cmd=F_SETLKW))
    sync = world.begin(late, fops.Fsync(mine))
    world.pass_time(130)
    assert sync.errno == errno.ENOTCONN and "no reply for 60 s" in str(sync.error)
    assert not waiting.done
    world.do(other, lk(theirs, F_UNLCK, 0, 0, owner=b"other"))
    world.reactor.run()
    assert waiting.errno == 0
    gate.let()


def test_no_frame_timeout(world: World) -> None:
    gate = Gate(world.server, fops.Fsync)
    graph = world.client("option frame-timeout 0")
    sync = world.begin(graph, fops.Fsync(world.create(graph, b"f")))
    world.pass_time(4000)
    assert not sync.done
    gate.let()
    world.reactor.run()
    assert sync.errno == 0


def test_xids_start_over(world: World) -> None:
    gate = Gate(world.server, fops.Fsync)
    graph = world.client("option frame-timeout 60")
    fd = world.create(graph, b"f")
    link(graph).connection.last_xid = 0xFFFFFFFD
    early = world.begin(graph, fops.Fsync(fd))
    for _ in range(8):
        world.do(graph, fops.Stat(ROOT_LOC))
    world.pass_time(50)
    late = world.begin(graph, fops.Fsync(fd))
    assert link(graph).connection.last_xid < 100
    world.pass_time(40)
    assert early.errno == errno.ENOTCONN and not late.done
    gate.let(1)
    world.reactor.run()
    assert late.errno == 0
    gate.let()


def test_what_is_called_off_says_what_it_waited_for(world: World) -> None:
    Gate(world.server, fops.Fsync, fops.Open)
    graph = world.client()
    fd = world.create(graph, b"f")
    for req in (fops.Fsync(fd), fops.Open(Loc(gfid=fd.gfid), Fd(fd.gfid, 0), 0)):
        call = world.begin(graph, req)
        call.cancel()
        assert call.cancelled
        assert call.error.at == f"{req.name} on 127.0.0.1:49152 brick /brick"  # type: ignore[union-attr]


# -- fds ---------------------------------------------------------------------------------------------------------------


@pytest.mark.logs(r"the fd of .* is void: it could not be reopened: ENOENT|ESTALE")
def test_some_of_many_fds_cannot_be_reopened(world: World) -> None:
    graph, other = world.client(), world.client()
    fds = [world.create(graph, b"f%d" % n, b"%d" % n) for n in range(20)]
    pull(world, graph)
    gone = {3, 11, 19}
    for n in gone:
        world.do(other, fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"f%d" % n)))
    world.pass_time(1)
    for n, fd in enumerate(fds):
        if n in gone:
            assert "it could not be reopened" in fails(world, graph, fops.Read(fd, 0, 9), errno.EBADFD)
        else:
            assert world.do(graph, fops.Read(fd, 0, 9)).data == b"%d" % n
        world.do(graph, fops.Release(fd))
    assert all(len(session.fds) == 0 for session in world.protocol.sessions)


@pytest.mark.parametrize("when", ["down", "asked", "answered"])
def test_an_fd_that_is_released_while_the_link_comes_back(world: World, when: str) -> None:
    graph = world.client()
    kept, gone = world.create(graph, b"kept", b"k"), world.create(graph, b"gone")
    world.do(graph, lk(kept, F_WRLCK, 0, 1))
    gate = Gate(world.server, *([fops.Open] if when == "asked" else [fops.Lk]))
    pull(world, graph)
    if when == "down":
        world.do(graph, fops.Release(gone))
    world.pass_time(1)
    if when != "down":
        assert not link(graph).up and gate.held
        world.do(graph, fops.Release(gone))
    while gate.held:
        gate.let()
        world.reactor.run()
    assert link(graph).up and world.do(graph, fops.Read(kept, 0, 9)).data == b"k"
    assert len(world.session().fds) == 1
    fails(world, graph, fops.Fstat(gone), errno.EBADFD)


# -- posix locks -------------------------------------------------------------------------------------------------------


def test_locks_are_taken_again(world: World) -> None:
    graph, other = world.client(), world.client()
    fd = world.create(graph, b"f")
    second, theirs = opened(world, graph, fd), opened(world, other, fd)
    world.do(graph, lk(fd, F_WRLCK, 0, 100))
    world.do(graph, lk(fd, F_UNLCK, 40, 20))  # leaves two pieces
    world.do(graph, lk(second, F_RDLCK, 200, 0, owner=b"second"))
    before = held(world, fd.gfid)
    assert before == [(F_RDLCK, 200, (1 << 63) - 1), (F_WRLCK, 0, 39), (F_WRLCK, 60, 99)]
    for _ in range(3):
        pull(world, graph)
        assert held(world, fd.gfid) == []
        world.pass_time(1)
        assert held(world, fd.gfid) == before and link(graph).up
    fails(world, other, lk(theirs, F_WRLCK, 10, 1, owner=b"other"), errno.EAGAIN)
    fails(world, other, lk(theirs, F_WRLCK, 999, 1, owner=b"other"), errno.EAGAIN)
    world.do(other, lk(theirs, F_WRLCK, 45, 1, owner=b"other"))
    world.do(graph, lk(fd, F_UNLCK, 0, 0))
    world.do(graph, fops.Flush(second, caller=Caller(lk_owner=b"second")))
    assert held(world, fd.gfid) == [(F_WRLCK, 45, 45)]
    assert told(graph) == [] and link(graph).statedump()["posix_locks"] == 0


@pytest.mark.logs("its posix lock on bytes 10 to 19 was lost with the connection: another client has it")
def test_a_lock_that_somebody_else_has_by_then(world: World) -> None:
    graph, other = world.client(), world.client()
    fd = world.create(graph, b"f", b"data")
    plain, theirs = opened(world, graph, fd), opened(world, other, fd)
    world.do(graph, lk(fd, F_WRLCK, 10, 10))
    world.do(graph, lk(fd, F_WRLCK, 50, 10))
    pull(world, graph)
    world.do(other, lk(theirs, F_WRLCK, 15, 1, owner=b"other"))
    world.pass_time(2)
    assert link(graph).up
    # Nothing that was done under the lock goes on without it.
    for req in (fops.Write(fd, 10, b"x"), fops.Read(fd, 0, 4), lk(fd, F_UNLCK, 10, 10), fops.Flush(fd)):
        why = fails(world, graph, req, errno.EBADFD)
        assert "its posix lock on bytes 10 to 19 was lost with the connection" in why
    assert held(world, fd.gfid) == [(F_WRLCK, 15, 15)]  # what it got again before was given back
    assert world.do(graph, fops.Read(plain, 0, 4)).data == b"data"
    (lost,) = told(graph)
    assert lost.brick == link(graph).where
    assert sorted((gfid, flock.start, flock.len) for gfid, flock in lost.posix) == [
        (fd.gfid, 10, 10),
        (fd.gfid, 50, 10),
    ]
    world.do(graph, fops.Release(fd))
    assert link(graph).statedump()["fds"] == 1
    pull(world, graph)
    world.pass_time(1)
    assert len(told(graph)) == 1 and world.do(graph, fops.Read(plain, 0, 4)).data == b"data"


def test_the_brick_still_holds_it_for_the_dead_connection(world: World) -> None:
    """A lock that is in the way for a moment only is waited for."""
    graph, other = world.client(), world.client()
    fd = world.create(graph, b"f")
    theirs = opened(world, other, fd)
    world.do(graph, lk(fd, F_WRLCK, 0, 0))
    pull(world, graph)
    world.do(other, lk(theirs, F_WRLCK, 0, 0, owner=b"dead"))
    for _ in range(40):
        world.reactor.advance(0.01)
        world.reactor.run()
    assert not link(graph).up
    world.do(other, lk(theirs, F_UNLCK, 0, 0, owner=b"dead"))
    world.pass_time(1)
    assert link(graph).up and told(graph) == [] and len(held(world, fd.gfid)) == 1
    world.do(graph, fops.Write(fd, 0, b"x"))


@pytest.mark.logs("its posix locks went with the connection")
def test_strict_locks(world: World) -> None:
    graph = world.client("option strict-locks on")
    fd, free = world.create(graph, b"f"), world.create(graph, b"g")
    world.do(graph, lk(fd, F_WRLCK, 0, 0))
    world.do(graph, lk(free, F_WRLCK, 0, 0))
    world.do(graph, lk(free, F_UNLCK, 0, 0))
    pull(world, graph)
    world.pass_time(1)
    assert "strict-locks" in fails(world, graph, fops.Write(fd, 0, b"x"), errno.EBADFD)
    world.do(graph, fops.Write(free, 0, b"x"))
    assert held(world, fd.gfid) == [] and [len(lost.posix) for lost in told(graph)] == [1]


@pytest.mark.parametrize("how", ["unlock", "flush", "release"])
@pytest.mark.parametrize("when", ["down", "asked"])
def test_a_lock_that_is_given_back_while_the_link_is_down(world: World, how: str, when: str) -> None:
    graph = world.client()
    fd, kept = world.create(graph, b"f"), world.create(graph, b"kept")
    world.do(graph, lk(fd, F_WRLCK, 0, 10))
    world.do(graph, lk(kept, F_WRLCK, 0, 10))
    give_back: dict[str, Fop] = {
        "unlock": lk(fd, F_UNLCK, 0, 5),
        "flush": fops.Flush(fd, caller=Caller(lk_owner=OWNER)),
        "release": fops.Release(fd),
    }
    gate = Gate(world.server, fops.Lk)
    pull(world, graph)
    if when == "asked":
        world.pass_time(1)
        assert len(gate.held) == 2
    given = world.begin(graph, give_back[how])
    assert given.errno == (0 if how == "release" else errno.ENOTCONN)
    world.pass_time(1)
    while gate.held:
        gate.let()
        world.reactor.run()
    assert link(graph).up and held(world, kept.gfid) == [(F_WRLCK, 0, 9)]
    assert held(world, fd.gfid) == ([(F_WRLCK, 5, 9)] if how == "unlock" else [])
    assert told(graph) == []


def test_a_lock_that_was_waited_for_is_not_taken_later(world: World) -> None:
    graph, other = world.client(), world.client()
    fd = world.create(graph, b"f")
    theirs = opened(world, other, fd)
    world.do(other, lk(theirs, F_WRLCK, 0, 0, owner=b"other"))
    waiting = world.begin(graph, lk(fd, F_WRLCK, 0, 0, cmd=F_SETLKW))
    pull(world, graph)
    assert waiting.errno == errno.ENOTCONN
    world.do(other, lk(theirs, F_UNLCK, 0, 0, owner=b"other"))
    world.pass_time(1)
    assert link(graph).up and held(world, fd.gfid) == []
    world.do(graph, fops.Write(fd, 0, b"x"))


def test_an_upgrade_that_is_called_off_leaves_what_was_held(world: World) -> None:
    graph, other = world.client(), world.client()
    fd = world.create(graph, b"f")
    theirs = opened(world, other, fd)
    world.do(graph, lk(fd, F_RDLCK, 0, 10))
    world.do(graph, lk(fd, F_WRLCK, 20, 5))
    world.do(other, lk(theirs, F_RDLCK, 4, 2, owner=b"other"))
    before = held(world, fd.gfid)
    upgrade = world.begin(graph, lk(fd, F_WRLCK, 2, 100, cmd=F_SETLKW))
    upgrade.cancel()
    assert upgrade.cancelled and held(world, fd.gfid) == before
    world.do(other, lk(theirs, F_UNLCK, 4, 2, owner=b"other"))
    world.reactor.run()  # now it is granted, and undone
    assert held(world, fd.gfid) == [(F_RDLCK, 0, 9), (F_WRLCK, 20, 24)]
    assert sorted((lock.type, lock.first, lock.last) for _, lock in graph.root.book) == held(world, fd.gfid)  # type: ignore[attr-defined]


def test_ranges_that_are_none(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f")
    for start, length in ((-1, 5), (0, -5), ((1 << 63) - 2, 5)):
        for kind in (F_WRLCK, F_UNLCK):
            assert "out of range" in fails(world, graph, lk(fd, kind, start, length), errno.EINVAL)


# -- inodelks and entrylks ---------------------------------------------------------------------------------------------


def entrylk(cmd: int) -> fops.Entrylk:
    return fops.Entrylk(ROOT_LOC, b"domain", cmd, ENTRYLK_WRLCK, b"name", caller=Caller(lk_owner=OWNER))


@pytest.mark.logs("1 inodelks and 1 entrylks held on 127.0.0.1:49152 brick /brick are lost with the connection")
def test_internal_locks_are_reported_lost(world: World) -> None:
    graph, other = world.client(), world.client()
    world.do(graph, inodelk(F_SETLK, F_WRLCK, OWNER))
    world.do(graph, entrylk(ENTRYLK_LOCK))
    pull(world, graph)
    assert [(lost.inodelks, lost.entrylks, lost.posix) for lost in told(graph)] == [(1, 1, ())]
    world.pass_time(1)
    world.do(other, inodelk(F_SETLK, F_WRLCK, b"other"))  # it is free
    for req in (inodelk(F_SETLK, F_UNLCK, OWNER), entrylk(ENTRYLK_UNLOCK)):
        assert "was lost with the connection" in fails(world, graph, req, errno.ENOLCK)
        fails(world, graph, req, errno.EINVAL)  # the second time the brick is asked, which holds no such lock
    world.do(other, inodelk(F_SETLK, F_UNLCK, b"other"))
    # What is taken again is held as ever.
    world.do(graph, inodelk(F_SETLK, F_WRLCK, OWNER))
    world.do(graph, inodelk(F_SETLK, F_UNLCK, OWNER))
    assert link(graph).statedump()["internal_locks_lost"] == 0


@pytest.mark.logs("1 inodelks and 0 entrylks held on .* are lost")
def test_giving_back_on_a_connection_that_breaks_is_no_loss(world: World) -> None:
    gate = Gate(world.server, fops.Inodelk)
    graph = world.client()
    taking = world.begin(graph, inodelk(F_SETLK, F_WRLCK, OWNER))
    gate.let()
    world.reactor.run()
    assert taking.errno == 0
    giving = world.begin(graph, inodelk(F_SETLK, F_UNLCK, OWNER))
    pull(world, graph)
    assert giving.errno == errno.ENOTCONN
    world.pass_time(1)
    counts = link(graph).statedump()
    assert (counts["internal_locks"], counts["internal_locks_lost"]) == (0, 1)


# -- all of it at random -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(6))
def test_at_random(make: Callable[..., World], seeded: random.Random, round_: int) -> None:
    """Fops, cuts and time in any order: what was acknowledged is there, and both ends agree on fds and locks."""
    rng = random.Random(seeded.randrange(1 << 32) + round_)
    world = make()
    graph = world.client()
    files = [world.create(graph, b"f%d" % n) for n in range(4)]
    content = [bytearray(64) for _ in files]
    unsure: list[set[int]] = [set() for _ in files]  # offsets of writes that were not answered
    for fd in files:
        world.do(graph, fops.Write(fd, 0, bytes(64)))
    extra: list[Fd] = []
    storm = [True]
    for step in range(250):
        n = rng.randrange(len(files))
        fd = files[n]
        action = rng.choice(("write", "write", "lock", "unlock", "open", "release", "cut", "time", "cut later"))
        if action == "write":
            at, data = rng.randrange(60), rng.randbytes(4)
            call = world.begin(graph, fops.Write(fd, at, data))
            if call.errno == 0:
                content[n][at : at + 4] = data
                unsure[n].difference_update(range(at, at + 4))
            else:
                assert call.errno == errno.ENOTCONN
                unsure[n].update(range(at, at + 4))
        elif action in ("lock", "unlock"):
            kind = rng.choice((F_RDLCK, F_WRLCK)) if action == "lock" else F_UNLCK
            call = world.begin(graph, lk(fd, kind, rng.randrange(50), rng.randrange(1, 14)))
            assert call.errno in (0, errno.ENOTCONN)
        elif action == "open":
            new = Fd(fd.gfid, 2)
            if world.begin(graph, fops.Open(Loc(gfid=fd.gfid), new, 2)).errno == 0:
                extra.append(new)
        elif action == "release" and extra:
            assert world.begin(graph, fops.Release(extra.pop(rng.randrange(len(extra))))).errno == 0
        elif action == "cut" and link(graph).connection.channel is not None and rng.random() < 0.5:
            pull(world, graph)
        elif action == "cut later" and rng.random() < 0.3:
            Dials(world, cut_at(rng.randrange(1, 9), lambda: not storm[0]))
        elif action == "time":
            for _ in range(rng.randrange(1, 40)):
                world.reactor.advance(0.01)
                world.reactor.run()
        storm[0] = step % 25 < 24
        if not storm[0]:
            world.pass_time(8)
            assert link(graph).up
            for data, doubts, other in zip(content, unsure, files, strict=True):
                found = world.do(graph, fops.Read(other, 0, 100)).data
                assert len(found) == 64 and {i for i in range(64) if found[i] != data[i]} <= doubts
            known: dict[bytes, list[tuple[int, int, int]]] = {}
            for gfid, lock in graph.root.book:  # type: ignore[attr-defined]
                known.setdefault(gfid, []).append((lock.type, lock.first, lock.last))
            for other in files:
                assert held(world, other.gfid) == sorted(known.get(other.gfid, []))
            assert sorted(world.session().fds._fds) == sorted(remote(graph, other) for other in files + extra)
            assert len(world.protocol.sessions) == 1
    assert told(graph) == [] and link(graph).connection.waiting == {}
