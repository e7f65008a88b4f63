"""protocol/client over protocol/server over storage/memory, on an in-memory network and a clock that the tests move:
the handshake, fds, clients that go away in mid-fop, coming back, time-outs, cancelled fops, back-pressure."""

from __future__ import annotations

import errno
import itertools
import struct
from collections.abc import Callable
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError, OptionError
from glustx.fops import Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.rpc import dict_v1, message
from glustx.rpc.codec_special import FOP400
from glustx.rpc.connection import SEND_HIGH
from glustx.runtime import ManualReactor, Waiter
from glustx.upcall import InodelkContention
from glustx.values import F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK, ROOT_GFID, ROOT_LOC, Caller, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xlator import Event
from glustx.xlators.protocol.server_auth import authorise
from glustx.xlators.protocol.server_session import PAYLOAD_HIGH
from tests.fakes import Call
from tests.t3_wire.world import (
    ADDRESS,
    CLIENT,
    LOCK,
    SERVER,
    VOLUME_ID,
    Gate,
    World,
    dial,
    fails,
    inodelk,
    link,
    remote,
    setvolume,
)

# -- SETVOLUME ---------------------------------------------------------------------------------------------------------


@pytest.mark.logs("SETVOLUME refused")
@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"process_uuid": None}, errno.EINVAL, "UUID not specified"),
        ({"fops_version": None}, errno.EINVAL, "fops-version is not 1298437"),
        ({"fops_version": "330"}, errno.EINVAL, "fops-version is not 1298437"),
        ({"remote_subvolume": None}, errno.ENOENT, "no brick '' here, but /brick"),
        ({"remote_subvolume": "/other"}, errno.ENOENT, "no brick '/other' here, but /brick"),
        ({"volume_id": VOLUME_ID.replace("5", "6")}, errno.EINVAL, "Volume-ID different"),
        ({"subdir_mount": "/sub"}, errno.ENOENT, "mounts of a subdirectory are not offered"),
        ({"username": "mallory", "password": "guess"}, errno.EACCES, "Authentication failed"),
        ({"username": "alice", "password": "guess"}, errno.EACCES, "Authentication failed"),
        ({"username": "alice"}, errno.EACCES, "Authentication failed"),
    ],
)
def test_setvolume_refusals(
    make: Callable[..., World], changes: dict[str, str | None], code: int, sentence: str
) -> None:
    options = f"option volume-id {VOLUME_ID}\n"
    if "username" in changes:
        options += "option auth.login./brick.allow alice\noption auth.login.alice.password s3cret\n"
        options += "option strict-auth-accept on\n"
    world = make(options)
    connection = dial(world)
    ret, number, why, _ = setvolume(world, connection, **changes)
    assert (ret, number) == (-1, code) and sentence in why
    # A refused client may try again on the same connection, and still has no fops.
    assert world.protocol.clients == {}
    if "username" not in changes:
        ret, _, why, pairs = setvolume(world, connection, volume_id=VOLUME_ID.upper())
        assert (ret, why) == (0, "Success")
        assert dict_v1.text(pairs, b"volume-id") == VOLUME_ID and dict_v1.text(pairs, b"child_up") == "1"
    else:
        assert setvolume(world, connection, username="alice", password="s3cret")[0] == 0
    connection.hang_up()
    world.reactor.run()


@pytest.mark.logs("SETVOLUME refused: SETVOLUME came on this connection before")
def test_setvolume_comes_once(world: World) -> None:
    connection = dial(world)
    assert setvolume(world, connection)[0] == 0
    ret, code, why, _ = setvolume(world, connection, process_uuid="two")
    assert (ret, code) == (-1, errno.EINVAL) and "before" in why
    assert list(world.protocol.clients) == ["one"]
    connection.hang_up()
    world.reactor.run()
    assert world.gone == ["one"] and world.protocol.clients == {}


@pytest.mark.logs("more such warnings")
@pytest.mark.logs("client .* is no longer let in")
@pytest.mark.logs("SETVOLUME refused: Authentication failed")
def test_auth_options_change_under_a_client(make: Callable[..., World]) -> None:
    """One that they no longer let in is gone at once, and comes back when they do; others are not disturbed."""
    allowed = "option auth.login./brick.allow alice\noption auth.login.alice.password s3cret\noption {more}\n"
    text = allowed.format(more="auth.addr./brick.allow *")
    world = make(text)
    stranger, alice = world.client(), world.client("option username alice\noption password s3cret")
    kept = world.create(alice, b"kept")
    assert world.do(stranger, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
    changes = world.server.reconfigure(SERVER.format(options=allowed.format(more="auth.addr./brick.allow 10.0.0.1")))
    assert changes == ["server: auth.* has changed"]
    world.reactor.run()
    assert len(world.protocol.clients) == 1
    world.pass_time(5)
    with pytest.raises(FopError, match="Authentication failed"):
        world.do(stranger, fops.Stat(ROOT_LOC))
    assert world.do(alice, fops.Fstat(kept)).stat.size == 0
    world.server.reconfigure(SERVER.format(options=text))
    world.pass_time(10)
    assert world.do(stranger, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID


@pytest.mark.logs("the brick's root does not answer")
def test_a_brick_whose_root_does_not_answer(world: World) -> None:
    async def broken(req: Fop) -> Any:
        raise FopError(errno.EIO, "the disk is gone")

    world.server.xlators["/brick"].table[fops.Lookup] = broken
    connection = dial(world)
    ret, code, why, _ = setvolume(world, connection)
    assert (ret, code) == (-1, errno.EIO) and "the disk is gone" in why
    connection.hang_up()
    world.reactor.run()


@pytest.mark.logs("no brick '/nowhere' here")
def test_the_client_says_why_it_is_not_up(world: World) -> None:
    graph = world.client("option remote-subvolume /nowhere")
    text = fails(world, graph, fops.Stat(ROOT_LOC), errno.ENOTCONN)
    assert "127.0.0.1:49152 brick /nowhere" in text and "no brick '/nowhere' here, but /brick" in text
    assert graph.heard[-1][0] is Event.CHILD_DOWN  # type: ignore[attr-defined]


def test_nobody_listens(make: Callable[..., World]) -> None:
    world = make()
    world.protocol.listener.close()
    graph = world.client()
    assert "refused" in fails(world, graph, fops.Stat(ROOT_LOC), errno.ENOTCONN).lower()
    # Once somebody does, the client finds it by itself.
    world.network.listen(ADDRESS, world.protocol.make_receiver)
    world.pass_time(1)
    assert world.do(graph, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID


ALLOW_ALL = {"auth.addr.b.allow": "*"}


@pytest.mark.parametrize(
    ("options", "address", "user", "password", "accepted"),
    [
        ({}, "10.0.0.1:700", "", "", False),
        (ALLOW_ALL, "10.0.0.1:700", "", "", True),
        (ALLOW_ALL, "[fe80::1]:700", "", "", True),
        ({"auth.ip.b.allow": "*"}, "10.0.0.1:700", "", "", True),
        ({"auth.addr.other.allow": "*"}, "10.0.0.1:700", "", "", False),
        ({"auth.addr.b.allow": "10.0.0.*, 192.168.0.0/16"}, "192.168.4.5:1", "", "", True),
        ({"auth.addr.b.allow": "10.0.0.* 192.168.0.0/16"}, "192.168.4.5:1", "", "", True),
        ({"auth.addr.b.allow": "10.0.0.*,192.168.0.0/16"}, "10.0.1.5:1", "", "", False),
        ({"auth.addr.b.allow": "fd00::/8"}, "[fd00::17]:1", "", "", True),
        ({"auth.addr.b.allow": "fd00::/8"}, "[fe80::17]:1", "", "", False),
        ({"auth.addr.b.allow": "10.0.0.1"}, "[::ffff:10.0.0.1]:1", "", "", True),
        ({**ALLOW_ALL, "auth.addr.b.reject": "10.0.0.1"}, "[::ffff:10.0.0.1]:1", "", "", False),
        ({**ALLOW_ALL, "auth.addr.b.reject": "10.0.0.1"}, "10.0.0.1:1", "", "", False),
        ({**ALLOW_ALL, "auth.ip.b.reject": "10.0.0.1"}, "10.0.0.1:1", "", "", False),
        ({**ALLOW_ALL, "auth.addr.b.reject": "10.0.0.1"}, "10.0.0.12:1", "", "", True),
        # In front of a pattern, ! takes every address that the pattern does not.
        ({"auth.addr.b.allow": "!10.0.0.1"}, "10.0.0.2:1", "", "", True),
        ({"auth.addr.b.allow": "!10.0.0.1"}, "10.0.0.1:1", "", "", False),
        ({**ALLOW_ALL, "auth.addr.b.reject": "!192.168.*"}, "10.0.0.1:1", "", "", False),
        ({**ALLOW_ALL, "auth.addr.b.reject": "!192.168.*"}, "192.168.0.1:1", "", "", True),
        ({"auth.addr.b.allow": "10.*"}, "unix:/run/x", "", "", True),
        ({"auth.login.b.allow": "a,b", "auth.login.b.password": "p"}, "10.0.0.1:1", "b", "p", True),
        ({"auth.login.b.allow": "a,b", "auth.login.b.password": "p"}, "10.0.0.1:1", "b", "q", False),
        ({"auth.login.b.allow": "a,b", "auth.login.b.password": "p"}, "10.0.0.1:1", "c", "p", False),
        ({**ALLOW_ALL, "auth.login.b.allow": "a", "auth.login.a.password": "p"}, "10.0.0.1:1", "a", "q", False),
        ({**ALLOW_ALL, "auth.login.b.allow": "a", "auth.login.a.password": "p"}, "10.0.0.1:1", "z", "q", True),
        ({**ALLOW_ALL, "auth.login.b.allow": "a"}, "10.0.0.1:1", "a", "", False),
    ],
)
def test_auth(options: dict[str, str], address: str, user: str, password: str, accepted: bool) -> None:
    assert authorise("b", address, user, password, options, False) is accepted


def test_auth_of_ports_and_strict_logins() -> None:
    assert authorise("b", "10.0.0.1:1023", "", "", ALLOW_ALL, False, insecure=False)
    assert not authorise("b", "10.0.0.1:1024", "", "", ALLOW_ALL, False, insecure=False)
    assert not authorise("b", "10.0.0.1:1", "", "", ALLOW_ALL, True)
    login = {"auth.login.b.allow": "a", "auth.login.a.password": "p"}
    assert authorise("b", "10.0.0.1:5000", "a", "p", login, True, insecure=False)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("option transport-type unix", "listen-path"),
        ("option auth.addr./brick.reject 10.0.0.1,evil.example", "evil.example"),
    ],
)
def test_what_a_user_would_rely_on_is_refused(text: str, key: str) -> None:
    with pytest.raises(OptionError, match=key):
        Graph.load(SERVER.format(options=text), Surroundings(ManualReactor()))


@pytest.mark.parametrize("text", ["option subdir-mount /a", "option transport-type unix"])
def test_clients_refuse_as_well(text: str) -> None:
    with pytest.raises(OptionError):
        Graph.load(CLIENT.format(options=text), Surroundings(ManualReactor()))


@pytest.mark.logs("Authentication failed")
def test_logging_in(make: Callable[..., World]) -> None:
    world = make("option auth.login./brick.allow alice\noption auth.login.alice.password s3cret")
    graph = world.client("option username alice\noption password s3cret")
    assert world.do(graph, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
    other = world.client("option username alice\noption password wrong")
    assert "Authentication failed" in fails(world, other, fops.Stat(ROOT_LOC), errno.ENOTCONN)
    for dump in (graph.statedump(), world.server.statedump()):
        assert "s3cret" not in dump


# -- fds ---------------------------------------------------------------------------------------------------------------


def test_fds_take_the_lowest_free_number(world: World) -> None:
    graph = world.client()
    fds = [world.create(graph, b"f%d" % n) for n in range(4)]
    assert [remote(graph, fd) for fd in fds] == [0, 1, 2, 3]
    for fd in (fds[2], fds[0]):
        world.do(graph, fops.Release(fd))
    directory = Fd(ROOT_GFID, 0, directory=True)
    world.do(graph, fops.Opendir(ROOT_LOC, directory))
    again = Fd(fds[1].gfid, 0)
    world.do(graph, fops.Open(Loc(gfid=fds[1].gfid), again, 0))
    last = world.create(graph, b"last")
    assert [remote(graph, fd) for fd in (directory, again, last)] == [0, 2, 4]
    # Another connection has its own numbers.
    other = world.client()
    assert remote(other, world.create(other, b"other")) == 0
    fails(world, graph, fops.Fstat(fds[0]), errno.EBADFD)
    world.do(graph, fops.Releasedir(directory))
    assert len(world.session().fds) == 4


def test_numbers_that_are_not_open(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f", b"data")
    remote_fd = graph.root.remote_fd  # type: ignore[attr-defined]
    for number in (1, -1, 1 << 40, -(1 << 63)):
        remote_fd.get(fd).number = number
        fails(world, graph, fops.Read(fd, 0, 4), errno.EBADF)
        fails(world, graph, fops.Write(fd, 0, b"x"), errno.EBADF)
    remote_fd.get(fd).number = 0
    assert world.do(graph, fops.Read(fd, 0, 10)).data == b"data"
    assert world.do(graph, fops.Read(Fd(fd.gfid, 2, anonymous=True), 1, 2)).data == b"at"


def test_one_connection_holds_so_many_fds(make: Callable[..., World]) -> None:
    world = make("option fds-per-client 2")
    graph = world.client()
    fds = [world.create(graph, b"f%d" % n) for n in range(2)]
    extra = Fd(fds[0].gfid, 0)
    fails(world, graph, fops.Open(Loc(gfid=fds[0].gfid), extra, 0), errno.EMFILE)
    nodes = world.server.xlators["store"]._nodes  # type: ignore[attr-defined]
    assert nodes[fds[0].gfid].fds == 1
    world.do(graph, fops.Release(fds[1]))
    world.do(graph, fops.Open(Loc(gfid=fds[0].gfid), extra, 0))
    assert remote(graph, extra) == 1


# -- clients that go away ----------------------------------------------------------------------------------------------


def test_a_client_vanishes_in_mid_fop(world: World) -> None:
    gate = Gate(world.server, fops.Write, fops.Open)
    nodes = world.server.xlators["store"]._nodes  # type: ignore[attr-defined]
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"never"))
    opening = world.begin(graph, fops.Open(Loc(gfid=fd.gfid), Fd(fd.gfid, 0), 0))
    assert len(gate.held) == 2 and nodes[fd.gfid].fds == 1 and world.server.winding == 2
    (name,) = world.protocol.clients
    order: list[str] = []
    locks = world.server.xlators["/brick"]
    heard = locks.notify
    locks.notify = lambda *args: (order.append(f"gone after {len(gate.cancelled)}"), heard(*args))[1]  # type: ignore

    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    assert write.errno == opening.errno == errno.ENOTCONN
    assert [type(req) for req in gate.cancelled] == [fops.Write, fops.Open] and gate.passed == []
    assert nodes[fd.gfid].fds == 0 and nodes[fd.gfid].pages.size == 0
    assert world.gone == [name] and order == ["gone after 2"]
    assert world.protocol.sessions == set() and world.server.winding == 0


def test_an_fd_outlives_the_fop_that_uses_it(world: World) -> None:
    """A fop that undoes something when it is cancelled still has its fd."""
    table = world.server.xlators["/brick"].table
    below = table[fops.Write]
    undone: list[bytes] = []
    never: Waiter[None] = Waiter()
    slow: Waiter[None] = Waiter()

    async def write(req: Any) -> Any:
        reply = await below(req)
        try:
            await never
        finally:
            await slow
            await table[fops.Ftruncate](fops.Ftruncate(req.fd, 0))
            undone.append(req.fd.gfid)
        return reply

    table[fops.Write] = write
    graph = world.client()
    fd = world.create(graph, b"f")
    world.begin(graph, fops.Write(fd, 0, b"undone"))
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    assert len(world.protocol.sessions) == 1 and world.gone == [] and undone == []
    slow.set(None)
    world.reactor.run()
    assert undone == [fd.gfid] and len(world.gone) == 1
    nodes = world.server.xlators["store"]._nodes  # type: ignore[attr-defined]
    assert nodes[fd.gfid].fds == 0 and nodes[fd.gfid].pages.size == 0


def test_a_client_with_two_connections_is_gone_with_the_second(world: World) -> None:
    first, second = dial(world), dial(world)
    assert setvolume(world, first)[0] == setvolume(world, second)[0] == 0
    assert [len(sessions) for sessions in world.protocol.clients.values()] == [2]
    first.hang_up()
    world.reactor.run()
    assert world.gone == []
    second.hang_up()
    world.reactor.run()
    assert world.gone == ["one"]


def test_the_server_stops_with_fops_under_way(make: Callable[..., World]) -> None:
    world = make()
    gate = Gate(world.server, fops.Write)
    nodes = world.server.xlators["store"]._nodes  # type: ignore[attr-defined]
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"never"))
    stopped: list[int] = []
    store = world.server.xlators["store"]
    stop = store.stop

    async def watched() -> None:
        stopped.append(nodes[fd.gfid].fds)
        await stop()

    store.stop = watched  # type: ignore[method-assign]
    world.reactor.wait(world.server.stop())
    assert stopped == [0] and len(gate.cancelled) == 1  # the brick stops when its fds have been given back
    world.reactor.run()
    assert write.errno == errno.ENOTCONN


def test_the_client_stops_with_fops_under_way(world: World) -> None:
    Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"never"))
    world.reactor.wait(graph.stop())
    world.reactor.run()
    assert write.errno == errno.ENOTCONN
    fails(world, graph, fops.Stat(ROOT_LOC), errno.ENOTCONN)
    world.pass_time(20)
    assert world.protocol.sessions == set()


# -- coming back -------------------------------------------------------------------------------------------------------


def test_reconnection_reopens_fds(world: World) -> None:
    graph = world.client()
    first, second = world.create(graph, b"first", b"kept"), world.create(graph, b"second", b"2")
    truncating = Fd(second.gfid, 0o1002)
    world.do(graph, fops.Open(Loc(gfid=second.gfid), truncating, 0o1002))
    world.do(graph, fops.Write(truncating, 0, b"after"))
    directory = Fd(ROOT_GFID, 0, directory=True)
    world.do(graph, fops.Opendir(ROOT_LOC, directory))
    before = {fd: remote(graph, fd) for fd in (first, second, truncating, directory)}
    assert sorted(before.values()) == [0, 1, 2, 3]
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    fails(world, graph, fops.Read(first, 0, 4), errno.ENOTCONN)
    assert len(world.gone) == 1
    world.pass_time(1)
    assert link(graph).session == 2
    events = [event for event, _ in graph.heard]  # type: ignore[attr-defined]
    assert events[-2:] == [Event.CHILD_DOWN, Event.CHILD_UP]
    # O_CREAT, O_EXCL and O_TRUNC are not sent again: what was written is still there.
    assert world.do(graph, fops.Read(first, 0, 10)).data == b"kept"
    assert world.do(graph, fops.Read(truncating, 0, 10)).data == b"after"
    world.do(graph, fops.Write(first, 4, b" and more"))
    assert len(world.do(graph, fops.Readdirp(directory, 0, 4096)).entries) == 4
    assert sorted(remote(graph, fd) for fd in before) == [0, 1, 2, 3]
    for fd in (first, second, truncating):
        world.do(graph, fops.Release(fd))
    world.do(graph, fops.Releasedir(directory))
    assert len(world.session().fds) == 0


@pytest.mark.logs("could not be reopened")
def test_an_fd_that_cannot_be_reopened_is_void(world: World) -> None:
    graph, other = world.client(), world.client()
    fd, kept = world.create(graph, b"f"), world.create(graph, b"kept", b"k")
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    world.do(other, fops.Unlink(Loc(pargfid=ROOT_GFID, name=b"f")))
    world.pass_time(1)
    assert "not open" in fails(world, graph, fops.Fstat(fd), errno.EBADFD)
    assert world.do(graph, fops.Read(kept, 0, 1)).data == b"k"
    world.do(graph, fops.Release(fd))  # nothing to give back, and no harm


def test_fds_that_nobody_holds_are_not_reopened(world: World) -> None:
    graph = world.client()
    kept = world.create(graph, b"kept")
    world.create(graph, b"dropped")
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    world.pass_time(1)
    assert len(world.session().fds) == 1 and remote(graph, kept) == 0


def test_an_unanswered_fop_is_never_sent_twice(world: World) -> None:
    gate = Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"once"))
    (held,) = gate.held
    # The brick has done it, but the connection breaks before the reply is out.
    held[1].set(None)
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    assert write.errno == errno.ENOTCONN and "was not answered" in str(write.error)
    world.pass_time(5)
    assert link(graph).up and len(gate.held) == 1 and len(gate.passed) <= 1


def test_the_wire_is_counted_across_connections(world: World) -> None:
    graph = world.client()
    start = link(graph).statedump()
    assert (start["rpcs"], start["bytes_sent"], start["bytes_received"]) == (0, 0, 0)
    world.do(graph, fops.Stat(ROOT_LOC))
    one = link(graph).statedump()
    assert one["rpcs"] == 1 and one["bytes_sent"] > 80 and one["bytes_received"] == 4 + 24 + 8 + 12 + 148
    link(graph).connection.channel.abort("pulled")
    world.reactor.run()
    lost = link(graph).statedump()
    world.pass_time(1)
    back = link(graph).statedump()
    keys = ("rpcs", "bytes_sent", "bytes_received")
    assert [lost[key] for key in keys] == [back[key] for key in keys] == [one[key] for key in keys]
    world.do(graph, fops.Stat(ROOT_LOC))
    assert [link(graph).statedump()[key] for key in keys] == [2 * one[key] for key in keys]


def test_a_late_loss_of_an_old_connection_is_nothing(world: World) -> None:
    graph = world.client()
    old = link(graph).connection
    old.channel.abort("pulled")
    world.reactor.run()
    world.pass_time(1)
    assert link(graph).up and link(graph).connection is not old
    old.lost(ConnectionResetError("again"))
    assert link(graph).up


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_brick_that_falls_silent(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f")
    world.session().channel.pause_reading()
    write = world.begin(graph, fops.Write(fd, 0, b"lost"))
    # The ping goes out within half the time-out; from then on the brick has the whole of it.
    world.pass_time(14)
    assert link(graph).up and not write.done
    world.pass_time(2)
    assert write.errno == errno.ENOTCONN and "no answer for 10 s" in str(write.error)
    world.pass_time(2)
    assert link(graph).up and link(graph).session == 2


def test_a_slow_brick_is_not_taken_for_a_silent_one(world: World) -> None:
    gate = Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"slow"))
    world.pass_time(120)
    assert link(graph).session == 1 and not write.done
    gate.let()
    world.reactor.run()
    assert write.result().count == 4


def test_an_idle_connection_stays(world: World) -> None:
    graph = world.client()
    world.pass_time(300)
    assert link(graph).session == 1 and link(graph).up


def test_a_fop_that_is_never_answered(world: World) -> None:
    gate = Gate(world.server, fops.Write)
    graph = world.client("option frame-timeout 60")
    fd = world.create(graph, b"f")
    early = world.begin(graph, fops.Write(fd, 0, b"early"))
    world.pass_time(40)
    late = world.begin(graph, fops.Write(fd, 0, b"late"))
    world.pass_time(35)
    assert early.errno == errno.ENOTCONN and "no reply for 60 s" in str(early.error) and not late.done
    gate.let(1)
    world.reactor.run()
    assert late.result().count == 4
    gate.let(0)  # the late reply finds nobody
    world.reactor.run()
    assert link(graph).session == 1 and world.do(graph, fops.Read(fd, 0, 9)).data == b"early"


def test_deadlines(world: World) -> None:
    gate = Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    write = world.begin(graph, fops.Write(fd, 0, b"late", deadline=world.reactor.time() + 3))
    world.pass_time(2.5)
    assert not write.done
    world.pass_time(1)
    assert write.errno == errno.ETIMEDOUT and "127.0.0.1:49152 brick /brick" in str(write.error)
    gate.let()
    world.reactor.run()
    past = world.begin(graph, fops.Fstat(fd, deadline=world.reactor.time() - 1))
    world.pass_time(0.5)
    assert past.done
    assert world.do(graph, fops.Fstat(fd, deadline=world.reactor.time() + 5)).stat.size == 4


# -- cancelled fops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("cls", [fops.Open, fops.Create, fops.Opendir])
def test_the_fd_of_an_abandoned_open_is_released(world: World, cls: type[Fop], how: str) -> None:
    gate = Gate(world.server, cls)
    graph = world.client()
    base = dial(world)
    assert setvolume(world, base, process_uuid="base")[0] == 0
    deadline = world.reactor.time() + 2 if how == "deadline" else None
    kept = world.create(graph, b"kept") if cls is fops.Open else None
    gfid = kept.gfid if kept is not None else ROOT_GFID
    fd = Fd(gfid, 0, directory=cls is fops.Opendir)
    if cls is fops.Create:
        name, wish = Loc(pargfid=ROOT_GFID, name=b"new"), Xdata({GFID_REQ: gfuuid(new_gfid())})
        req: Fop = fops.Create(name, fd, 0o102, 0o644, xdata=wish, deadline=deadline)
    else:
        req = cls(loc=Loc(gfid=gfid), fd=fd, deadline=deadline)
    opening = world.begin(graph, req)
    if how == "cancel":
        opening.cancel()
        world.reactor.run()
        assert opening.cancelled
    else:
        world.pass_time(3)
        assert opening.errno == errno.ETIMEDOUT
    session = next(s for s in world.protocol.sessions if s.client != "base")
    served = session.served
    gate.let()
    world.reactor.run()
    assert session.served == served + 1  # the RELEASE
    assert set(link(graph).fds) == {kept} - {None} and len(session.fds) == len(link(graph).fds)
    base.hang_up()
    world.reactor.run()


def test_an_open_cancelled_in_the_moment_of_its_reply(world: World) -> None:
    gate = Gate(world.server, fops.Open)
    graph = world.client()
    kept = world.create(graph, b"f")
    fd = Fd(kept.gfid, 0)
    opening = world.begin(graph, fops.Open(Loc(gfid=kept.gfid), fd, 0))
    gate.let()
    received = link(graph).connection.buffer_updated

    def both(nbytes: int) -> None:
        received(nbytes)  # queues the resumption of the open
        opening.cancel()

    link(graph).connection.buffer_updated = both
    world.reactor.run()
    del link(graph).connection.buffer_updated
    assert opening.cancelled
    assert set(link(graph).fds) == {kept} and len(world.session().fds) == 1


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_lock_that_comes_too_late_is_given_back(world: World, how: str) -> None:
    first, second, third = (world.client() for _ in range(3))
    world.do(first, inodelk(F_SETLK, F_WRLCK, b"one"))
    req = inodelk(F_SETLKW, F_WRLCK, b"two")
    if how == "deadline":
        req = fops.Inodelk(ROOT_LOC, b"domain", F_SETLKW, F_WRLCK, LOCK, caller=req.caller, deadline=2)
    waiting = world.begin(second, req)
    if how == "cancel":
        waiting.cancel()
        world.reactor.run()
        assert waiting.cancelled
    else:
        world.pass_time(3)
        assert waiting.errno == errno.ETIMEDOUT
    fails(world, third, inodelk(F_SETLK, F_WRLCK, b"three"), errno.EAGAIN)
    world.do(first, inodelk(F_SETLK, F_UNLCK, b"one"))
    world.reactor.run()
    world.do(third, inodelk(F_SETLK, F_WRLCK, b"three"))
    world.do(third, inodelk(F_SETLK, F_UNLCK, b"three"))


def test_the_holder_hears_of_contention(world: World) -> None:
    holder, other = world.client(), world.client()
    world.do(holder, inodelk(F_SETLK, F_WRLCK, b"one"))
    waiting = world.begin(other, inodelk(F_SETLKW, F_WRLCK, b"two"))
    told = [data for event, data in holder.heard if event is Event.UPCALL]  # type: ignore[attr-defined]
    assert [(type(data), data.gfid, data.domain) for data in told] == [(InodelkContention, ROOT_GFID, b"domain")]
    assert not any(event is Event.UPCALL for event, _ in other.heard)  # type: ignore[attr-defined]
    world.do(holder, inodelk(F_SETLK, F_UNLCK, b"one"))
    world.reactor.run()
    assert waiting.errno == 0
    # The callback was no call to be answered, and no reply to anything.
    assert link(holder).session == 1 and world.do(holder, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
    world.do(other, inodelk(F_SETLK, F_UNLCK, b"two"))


@pytest.mark.logs("1 inodelks and 0 entrylks held on .* are lost")
def test_locks_of_a_client_that_is_gone(world: World) -> None:
    first, second = world.client(), world.client()
    world.do(first, inodelk(F_SETLK, F_WRLCK, b"one"))
    waiting = world.begin(second, inodelk(F_SETLKW, F_WRLCK, b"two"))
    link(first).connection.channel.abort("pulled")
    world.reactor.run()
    assert waiting.errno == 0
    world.do(second, inodelk(F_SETLK, F_UNLCK, b"two"))


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_the_outstanding_limit(make: Callable[..., World]) -> None:
    world = make("option rpc.outstanding-rpc-limit 4")
    gate = Gate(world.server, fops.Read)
    graph = world.client()
    fd = world.create(graph, b"f", b"0123456789")
    reads = [world.begin(graph, fops.Read(fd, n, 1)) for n in range(10)]
    # One over the limit is what tells the server to stop; what has arrived behind it waits as well.
    assert len(gate.held) == 5
    assert not any(call.done for call in reads)
    while gate.held:
        assert len(gate.held) <= 5
        gate.let()
        world.reactor.run()
    assert b"".join(call.result().data for call in reads) == b"0123456789"


def test_many_fops_in_one_read_do_not_pass_the_limit(make: Callable[..., World]) -> None:
    world = make("option rpc.outstanding-rpc-limit 4")
    gate = Gate(world.server, fops.Read)
    graph = world.client()
    fd = world.create(graph, b"f", b"0123456789")
    world.session().channel.pause_reading()
    reads = [world.begin(graph, fops.Read(fd, n, 1)) for n in range(10)]
    world.session().channel.resume_reading()
    world.reactor.run()
    assert len(gate.held) == 5
    for n in range(10):
        gate.let()
        world.reactor.run()
        assert sum(call.done for call in reads) == n + 1
    assert b"".join(call.result().data for call in reads) == b"0123456789"


def test_waiting_locks_do_not_count(make: Callable[..., World]) -> None:
    world = make("option rpc.outstanding-rpc-limit 4")
    gate = Gate(world.server, fops.Read)
    graph = world.client()
    fd = world.create(graph, b"f", b"0123456789")
    world.do(graph, inodelk(F_SETLK, F_WRLCK, b"holder"))
    waiting = [world.begin(graph, inodelk(F_SETLKW, F_WRLCK, b"%03d" % n)) for n in range(100)]
    assert world.do(graph, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
    # What lets the first of them go on comes on the same connection.
    world.do(graph, inodelk(F_SETLK, F_UNLCK, b"holder"))
    for n, call in enumerate(waiting):
        world.reactor.run()
        assert call.errno == 0 and sum(other.done for other in waiting) == n + 1
        world.do(graph, inodelk(F_SETLK, F_UNLCK, b"%03d" % n))
    # Nor does their end: the limit is what it was.
    reads = [world.begin(graph, fops.Read(fd, n, 1)) for n in range(10)]
    assert len(gate.held) == 5
    while gate.held:
        gate.let()
        world.reactor.run()
    assert b"".join(call.result().data for call in reads) == b"0123456789"


@pytest.mark.parametrize("chunk", [97, 1000, 1 << 16])
def test_payloads_stay_whole_while_their_fops_wait(make: Callable[..., World], chunk: int) -> None:
    """WRITEs that wait read their payload from the receive buffer; further traffic must not run over it."""
    world = make(chunk=chunk)
    gate = Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    size = 20_000 if chunk < 1 << 16 else 300_000
    parts = [bytes([n]) * (size + n) for n in range(1, 9)]
    offsets = list(itertools.accumulate([0, *map(len, parts)]))
    writes = [world.begin(graph, fops.Write(fd, offset, part)) for offset, part in zip(offsets, parts, strict=False)]
    for _ in range(30):
        world.do(graph, fops.Lookup(ROOT_LOC, xdata=Xdata({b"user.filler": b"\xff" * 500})))
    assert [bytes(req.data) for req, _ in gate.held] == parts
    for index in (3, 0, 4, 2, 1, 2, 1, 0):
        gate.let(index)
        world.begin(graph, fops.Lookup(ROOT_LOC, xdata=Xdata({b"user.filler": b"\xfe" * 500})))
    assert [call.result().count for call in writes] == [len(part) for part in parts]
    assert world.do(graph, fops.Read(fd, 0, offsets[-1] + 1)).data == b"".join(parts)


def test_waiting_payloads_are_bounded(world: World) -> None:
    gate = Gate(world.server, fops.Write)
    graph = world.client()
    fd = world.create(graph, b"f")
    data = bytes(8 << 20)
    writes = [world.begin(graph, fops.Write(fd, n, data)) for n in range(20)]
    held = sum(len(req.data) for req, _ in gate.held)
    assert PAYLOAD_HIGH < held <= PAYLOAD_HIGH + len(data)
    while gate.held:
        gate.let()
        world.reactor.run()
    assert all(call.result().count == len(data) for call in writes)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_client_that_does_not_read_is_not_served_for_ever(world: World, at_once: bool) -> None:
    graph = world.client()
    fd = world.create(graph, b"f", bytes(1 << 20))
    near = link(graph).connection.channel
    near.pause_reading()
    if at_once:
        near.other.pause_reading()
    reads = [world.begin(graph, fops.Read(fd, 0, 1 << 20)) for _ in range(100)]
    near.other.resume_reading()
    world.reactor.run()
    assert SEND_HIGH < near.other.queued() < SEND_HIGH + (2 << 20)
    other = world.client()
    assert world.do(other, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
    near.resume_reading()
    world.reactor.run()
    assert [len(call.result().data) for call in reads] == [1 << 20] * 100


def test_both_ends_may_have_much_to_say(world: World) -> None:
    """Large writes and large reads at once: neither end waits for the other to read."""
    graph = world.client()
    fd = world.create(graph, b"f", bytes(2 << 20))
    data = b"w" * (1 << 20)
    calls = []
    for n in range(40):
        calls.append(Call(graph.top(fops.Write(fd, (2 + n) << 20, data))))
        calls.append(Call(graph.top(fops.Read(fd, 0, 2 << 20))))
    world.reactor.run()
    assert all(call.errno == 0 for call in calls)
    assert world.do(graph, fops.Read(fd, 41 << 20, 1 << 20)).data == data


# -- what a brick is asked that it must not do -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [b"a/b", b"../x", b"a\0b", b"..", b".", b"", b"/"])
def test_names_that_are_none(world: World, name: bytes) -> None:
    graph = world.client()
    world.create(graph, b"a")
    loc = Loc(pargfid=ROOT_GFID, name=name)
    gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
    fails(world, graph, fops.Mkdir(loc, 0o755, xdata=gfid), errno.EINVAL)
    fails(world, graph, fops.Create(loc, Fd(b"", 2), 2, 0o644, xdata=gfid), errno.EINVAL)
    fails(world, graph, fops.Unlink(loc), errno.EINVAL)
    fails(world, graph, fops.Rename(Loc(pargfid=ROOT_GFID, name=b"a"), loc), errno.EINVAL)


def test_listings_fit_into_what_was_asked_for(world: World) -> None:
    graph = world.client()
    for n in range(40):
        world.create(graph, b"n" * (n * 6 + 1))
    fd = Fd(ROOT_GFID, 0, directory=True)
    world.do(graph, fops.Opendir(ROOT_LOC, fd))
    for cls in (fops.Readdir, fops.Readdirp):
        for size in (600, 4096):
            seen, offset = [], 0
            while True:
                reply = world.do(graph, cls(fd, offset, size))
                record = FOP400[cls.procnum].encode_reply(1, reply, 0)[0]
                assert len(record) - 28 - 8 - 12 - 4 <= size
                seen += [entry.name for entry in reply.entries]
                if not reply.entries:
                    break
                offset = reply.entries[-1].off
            assert len(seen) == len(set(seen)) == 42


def test_values_that_do_not_fit_the_wire(world: World) -> None:
    graph = world.client()
    fd = world.create(graph, b"f")
    for req in (fops.Ftruncate(fd, -1), fops.Zerofill(fd, 1 << 64, 1), fops.Read(fd, 0, 1 << 32)):
        fails(world, graph, req, errno.EINVAL)
    owner = Caller(lk_owner=bytes(92))
    assert "lk_owner" in fails(world, graph, fops.Fstat(fd, caller=owner), errno.EINVAL)
    for cls in (fops.Icreate(ROOT_LOC, 0), fops.Namelink(ROOT_LOC)):
        fails(world, graph, cls, errno.EOPNOTSUPP)
    assert link(graph).connection.waiting == {}


@pytest.mark.logs("unreadable reply to stat")
def test_a_reply_that_cannot_be_read(world: World) -> None:
    graph = world.client()
    entry = world.session().bound[fops.Stat.procnum]
    entry.encode = lambda xid, reply, number: [struct.pack(">I", 32 | 1 << 31) + message.encode_reply(xid) + bytes(8)]
    assert "unreadable reply" in fails(world, graph, fops.Stat(ROOT_LOC), errno.EIO)
    world.pass_time(1)
    assert link(graph).session == 2 and world.do(graph, fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID


@pytest.mark.logs("stat from .* failed")
def test_a_translator_that_answers_nonsense(world: World) -> None:
    async def nonsense(req: Fop) -> Any:
        return None

    world.server.xlators["/brick"].table[fops.Stat] = nonsense
    graph = world.client()
    fails(world, graph, fops.Stat(ROOT_LOC), errno.EIO)
    assert link(graph).session == 1 and world.do(graph, fops.Statfs(ROOT_LOC)).statfs.bsize > 0
