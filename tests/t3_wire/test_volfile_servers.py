"""A session and the servers of its volfile, on a clock that the tests move: which server is asked, what a changed
volfile does to files that are open, and what keeps a volume from being mounted."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError, MountError
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source
from glustx.gfapi.volume import VolumeCore
from glustx.rpc import callbacks, dict_v1
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.rpc.connection import RpcConnection
from glustx.rpc.getspec import HESITATION, LONGEST_PAUSE, WATCH
from glustx.rpc.message import Call
from glustx.values import Caller
from tests import fakes
from tests.t3_wire.world import Gate, World

ONE, TWO, THREE = (Address(f"192.0.2.{n}", 24007) for n in (1, 2, 3))
CLIENT = """
volume client
  type protocol/client
  option remote-port 49152
  option remote-subvolume {brick}
  option ping-timeout {ping}
end-volume
volume dht
  type cluster/distribute
  subvolumes client
end-volume
{more}
"""
AHEAD = "volume ahead\n type performance/read-ahead\n subvolumes dht\nend-volume\n"
TRACED = "volume top\n type debug/io-stats\n subvolumes dht\nend-volume\n"


def volfile(brick: str = "/brick", ping: int = 10, more: str = "") -> str:
    return CLIENT.format(brick=brick, ping=ping, more=more)


class Manager:
    """A management daemon: GETSPEC, FETCHSPEC and DUMP. `silent` makes it answer nothing."""

    def __init__(self, world: World, address: Address, text: str | None, **told: str) -> None:
        self.world = world
        self.address = address
        self.text = text
        self.told = dict_v1.pack_all(dict(told))
        self.silent = False
        self.asked: list[p.GetspecRequest] = []
        self.connections: list[RpcConnection] = []
        self.listen()

    def listen(self) -> None:
        self.world.network.listen(self.address, self._connection)

    def _connection(self) -> RpcConnection:
        programs = {(p.HANDSHAKE.number, p.HANDSHAKE.version): self._call, (p.DUMP.number, p.DUMP.version): self._dump}
        self.connections.append(RpcConnection(programs))
        return self.connections[-1]

    def _call(self, connection: RpcConnection, call: Call, body: bytes) -> bytes | None:
        assert call.proc == p.HNDSK_GETSPEC
        self.asked.append(p.GetspecRequest.decode(body))
        if self.silent:
            return None
        if self.text is None:
            return p.GetspecReply.failed(errno.ENOENT).encode()
        return p.GetspecReply.found(self.text, self.told).encode()

    def _dump(self, connection: RpcConnection, call: Call, body: bytes) -> bytes | None:
        return None if self.silent else p.DumpReply(programs=(p.HANDSHAKE,)).encode()

    @property
    def open(self) -> list[RpcConnection]:
        return [connection for connection in self.connections if connection.channel is not None]

    def set(self, text: str) -> None:
        """Change the volfile and tell everybody."""
        self.text = text
        for connection in self.open:
            connection.notify(callbacks.encode_callback(1, p.CBK_FETCHSPEC))
        self.world.reactor.run()

    def die(self) -> None:
        self.world.network.listeners.pop(self.address, None)
        for connection in self.open:
            assert connection.channel is not None
            connection.channel.abort("killed")
        self.world.reactor.run()


class Mounter:
    """Sessions of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sessions: list[Session] = []

    def __call__(self, *addresses: Address, timeout: float = 30.0) -> Session:
        source = Source.served(addresses, "vm")
        session = Session(source, self.world.reactor, self.world.network, timeout=timeout)
        self.sessions.append(session)
        self.world.reactor.wait(session.mount())
        return session

    def begin(self, *addresses: Address, timeout: float = 30.0) -> tuple[Session, fakes.Call]:
        """Start to mount and let all happen that can happen by itself."""
        session = Session(Source.served(addresses, "vm"), self.world.reactor, self.world.network, timeout=timeout)
        self.sessions.append(session)
        call = fakes.Call(session.mount())
        self.world.reactor.run()
        return session, call


@pytest.fixture
def mount(world: World) -> Iterator[Mounter]:
    mounter = Mounter(world)
    yield mounter
    for session in mounter.sessions:
        world.reactor.wait(session.unmount())
    world.pass_time(0.5)


def core(session: Session) -> VolumeCore:
    return VolumeCore(session, Caller(pid=7))


# -- which server is asked ---------------------------------------------------------------------------------------------


def test_what_is_asked(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    (question,) = manager.asked
    assert (question.flags, question.key) == (p.SERVERS_LIST, "vm")
    assert question.xdata == {b"min-op-version": b"1\0", b"max-op-version": b"100000\0"}
    assert len(manager.open) == 1 and str(session) == "volume vm at 192.0.2.1"
    world.reactor.wait(session.unmount())
    world.reactor.run()
    assert manager.open == []


def test_a_server_that_is_away_costs_nothing(world: World, mount: Mounter) -> None:
    Manager(world, TWO, volfile())
    session = mount(ONE, TWO)
    assert world.reactor.time() == 0.0 and session.host == TWO.host


def test_a_server_that_keeps_silent_costs_a_moment(world: World, mount: Mounter) -> None:
    quiet, quick = Manager(world, ONE, volfile()), Manager(world, TWO, volfile())
    quiet.silent = True
    session, call = mount.begin(ONE, TWO)
    assert not call.done and quick.asked == []
    world.reactor.advance(HESITATION)
    world.reactor.run()
    assert call.done and call.error is None and session.host == TWO.host
    assert quiet.open == [] and len(quick.open) == 1


def test_the_first_that_answers_counts_though_it_hesitated(world: World, mount: Mounter) -> None:
    quiet, other = Manager(world, ONE, volfile()), Manager(world, TWO, volfile())
    quiet.silent = other.silent = True
    session, call = mount.begin(ONE, TWO)
    world.reactor.advance(HESITATION)
    world.reactor.run()
    assert not call.done and len(other.asked) == 1
    other.die()
    assert not call.done
    (connection,) = quiet.open
    connection.reply(2, p.GetspecReply.found(volfile()).encode())
    world.reactor.run()
    assert call.done and call.error is None and session.host == ONE.host


def test_one_that_does_not_know_the_volume_is_passed_over(world: World, mount: Mounter) -> None:
    Manager(world, ONE, None)
    Manager(world, THREE, volfile())
    assert mount(ONE, TWO, THREE).host == THREE.host


def test_nobody_answers(world: World, mount: Mounter) -> None:
    with pytest.raises(MountError) as caught:
        mount(ONE, TWO)
    assert caught.value.errno == errno.ENOTCONN
    assert caught.value.strerror == (
        "cannot mount volume vm (ENOTCONN): no volume server answers "
        "(192.0.2.1:24007: Connection refused; 192.0.2.2:24007: Connection refused)"
    )


def test_nobody_knows_the_volume(world: World, mount: Mounter) -> None:
    Manager(world, ONE, None)
    with pytest.raises(MountError, match=r"ENOENT\): volume server 192.0.2.1:24007: no such volume") as caught:
        mount(ONE)
    assert caught.value.errno == errno.ENOENT and not isinstance(caught.value, FileNotFoundError)


def test_a_server_that_never_answers(world: World, mount: Mounter) -> None:
    Manager(world, ONE, volfile()).silent = True
    _, call = mount.begin(ONE)
    world.pass_time(10)
    assert isinstance(call.error, MountError) and "192.0.2.1:24007: no answer in 10 s" in str(call.error)
    _, call = mount.begin(ONE, timeout=2)
    world.pass_time(2)
    assert isinstance(call.error, MountError) and "192.0.2.1:24007: no answer in 2 s" in str(call.error)


# -- bricks that do not want us, or are not there ----------------------------------------------------------------------


LOGIN = "option auth.login./brick.allow joe\n option auth.login.joe.password right"


@pytest.mark.logs("SETVOLUME refused")
@pytest.mark.parametrize(
    ("options", "brick", "user", "code", "said"),
    [
        ("option auth.addr./brick.reject *", "/brick", "", errno.EACCES, "Authentication failed"),
        ("", "/other", "", errno.ENOENT, "no brick '/other' here"),
        (LOGIN, "/brick", "option username joe\n option password wrong", errno.EACCES, "Authentication failed"),
    ],
    ids=["address", "name", "password"],
)
def test_a_brick_that_refuses(
    make: Callable[..., World], options: str, brick: str, user: str, code: int, said: str
) -> None:
    world = make(options)
    Manager(world, ONE, volfile(brick).replace("option remote-port", f"{user}\n option remote-port"))
    with pytest.raises(MountError) as caught:
        Mounter(world)(ONE)
    assert caught.value.errno == code
    assert f"127.0.0.1:49152 brick {brick}: the brick refuses this client: {said}" in caught.value.strerror
    assert "wrong" not in str(caught.value) and world.reactor.time() == 0.0


def test_a_user_with_the_right_password(make: Callable[..., World]) -> None:
    world = make(LOGIN)
    user = "option username joe\n option password right"
    Manager(world, ONE, volfile().replace("option remote-port", f"{user}\n option remote-port"))
    mounter = Mounter(world)
    session = mounter(ONE)
    assert session.mounted
    assert "right" not in session.graph.statedump()
    world.reactor.wait(session.unmount())


def test_a_brick_that_is_not_there(world: World, mount: Mounter) -> None:
    world.protocol.listener.close()
    Manager(world, ONE, volfile())
    with pytest.raises(MountError, match="brick /brick: Connection refused") as caught:
        mount(ONE)
    assert caught.value.errno == errno.ENOTCONN and world.reactor.time() == 0.0
    world.network.listen(Address("127.0.0.1", 49152), world.protocol.make_receiver)


def deaf() -> RpcConnection:
    """The brick's end of a connection on which nothing is answered."""
    connection = RpcConnection({})
    connection._record = lambda *_: None  # type: ignore[method-assign]
    return connection


def test_a_brick_that_never_answers(world: World, mount: Mounter) -> None:
    world.network.listeners.clear()
    world.network.listen(Address("127.0.0.1", 49152), deaf)
    Manager(world, ONE, volfile())
    session, call = mount.begin(ONE, timeout=3)
    world.pass_time(3)
    assert isinstance(call.error, MountError) and call.error.errno == errno.ENOTCONN
    assert call.error.strerror.endswith("127.0.0.1 brick /brick: no answer in 3 s") and not session.mounted


def test_a_mount_that_is_called_off(world: World, mount: Mounter) -> None:
    world.network.listeners.clear()
    world.network.listen(Address("127.0.0.1", 49152), deaf)
    manager = Manager(world, ONE, volfile())
    session, call = mount.begin(ONE)
    call.cancel()
    world.reactor.run()
    assert call.cancelled and not session.mounted and manager.open == []
    assert not any(channel.is_open for channel in world.network.channels)


@pytest.mark.logs("SETVOLUME refused")
def test_a_brick_that_refuses_only_at_the_second_attempt(world: World, mount: Mounter) -> None:
    """While nobody answers there is hope; a refusal ends it at once."""
    world.network.listeners.clear()
    world.network.listen(Address("127.0.0.1", 49152), deaf)
    Manager(world, ONE, volfile("/other"))
    _, call = mount.begin(ONE)
    world.pass_time(10)
    assert not call.done
    world.network.listeners.clear()
    world.network.listen(Address("127.0.0.1", 49152), world.protocol.make_receiver)
    world.pass_time(1)
    assert isinstance(call.error, MountError) and "no brick '/other' here" in str(call.error)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("volume r\n type cluster/replicate\n subvolumes dht\nend-volume", "type cluster/replicate is refused"),
        ("volume x\n type performance/magic\n subvolumes dht\nend-volume", "unknown translator type performance/magic"),
        ("volume x\n type protocol/client\n option remote-subvolume /b\n option subdir-mount /d\n"
         "end-volume\nvolume y\n type features/snapview-client\n subvolumes dht x\nend-volume", "subdir-mount"),
    ],
)  # fmt: skip
def test_a_volfile_that_cannot_be_run(world: World, mount: Mounter, more: str, said: str) -> None:
    Manager(world, ONE, volfile(more=more))
    with pytest.raises(MountError, match=said) as caught:
        mount(ONE)
    assert caught.value.errno == errno.EOPNOTSUPP


# -- a volfile that changes --------------------------------------------------------------------------------------------


def test_an_option_changes_in_the_running_graph(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    graph = session.graph
    manager.set(volfile())  # something else has changed
    assert len(manager.asked) == 2
    manager.set(volfile(ping=20))
    assert session.graph is graph and graph.xlators["client"].options.ping_timeout == 20
    assert len(manager.open) == 1


def test_files_stay_open_when_the_graph_is_replaced(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    volume = core(session)
    wait = world.reactor.wait
    file = wait(volume.open("/f", "w+b"))
    wait(file.pwrite(b"before", 0))
    wait(volume.mkdir("/d"))
    inside = wait(volume.open("/d/x", "wb"))
    folder = wait(volume.opendir("/"))
    gone = wait(volume.open("/gone", "w+b"))
    wait(gone.close())
    graph = session.graph
    manager.set(volfile(more=TRACED))
    assert session.graph is not graph and session.graph.root.name == "top"
    assert session.active.open_fds == 3
    assert wait(file.pread(10, 0)) == b"before"
    wait(file.pwrite(b"after!", 0))
    assert wait(file.pread(10, 0)) == b"after!"
    assert {entry.name for entry in wait(folder.batch())} == {b"f", b"d", b"gone"}
    world.pass_time(1)
    assert graph.started == []  # the old one has gone
    assert len(world.protocol.clients) == 1
    # And back again, with a file that was opened on the second graph.
    second = wait(volume.open("/g", "w+b"))
    manager.set(volfile())
    assert session.graph.root.name == "dht"
    wait(second.pwrite(b"x", 0))
    for each in (second, file):
        wait(each.close())
    assert wait(inside.stat()).st_size == 0
    assert session.active.open_fds == 2


def test_fops_under_way_end_in_their_graph_and_new_ones_wait(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    gate = Gate(world.server, fops.Write)
    session = mount(ONE)
    volume = core(session)
    wait = world.reactor.wait
    file = wait(volume.open("/f", "w+b"))
    under_way = fakes.Call(file.pwrite(b"one", 0))
    world.reactor.run()
    assert len(gate.held) == 1
    graph = session.graph
    manager.set(volfile(more=AHEAD))
    assert session.graph is graph  # it waits for the write
    later = fakes.Call(file.pread(5, 0))
    world.reactor.run()
    assert not later.done
    gate.let()
    world.reactor.run()
    assert under_way.value == 3 and session.graph is not graph
    assert later.value == b"one"


def test_a_write_that_takes_long_is_not_waited_for(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    gate = Gate(world.server, fops.Write)
    session = mount(ONE)
    volume = core(session)
    file = world.reactor.wait(volume.open("/f", "w+b"))
    under_way = fakes.Call(file.pwrite(b"one", 0))
    world.reactor.run()
    old = session.graph
    manager.set(volfile(more=AHEAD))
    world.pass_time(3)
    assert session.graph is not old and old.started
    assert world.reactor.wait(file.stat()).st_size == 0
    gate.let()
    world.reactor.run()
    assert under_way.value == 3
    world.pass_time(1)
    assert old.started == [] and len(world.protocol.clients) == 1


def test_many_graphs_leave_nothing_behind(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    wait = world.reactor.wait
    file = wait(core(session).open("/f", "w+b"))
    wait(file.lock())
    slots = len(file.fd.slots)
    for number in range(20):
        manager.set(volfile(more=(TRACED, AHEAD)[number % 2]))
        wait(file.pwrite(b"%02d" % number, 0))
        world.pass_time(1)
    assert wait(file.pread(9, 0)) == b"19"
    assert session.graph.root.name == "ahead" and session.active.open_fds == 1
    assert len(file.fd.slots) == slots and len(session.graph.inodes) <= 2
    assert len(world.protocol.clients) == 1
    assert sum(channel.is_open for channel in world.network.channels) == 2  # the manager's and the brick's
    wait(file.close())
    assert session.active.open_fds == 0 and not any(inode.holds for inode in session.graph.inodes)


def test_unmounting_in_the_middle_of_a_change(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    gate = Gate(world.server, fops.Write)
    session = mount(ONE)
    file = world.reactor.wait(core(session).open("/f", "w+b"))
    under_way = fakes.Call(file.pwrite(b"one", 0))
    world.reactor.run()
    manager.set(volfile(more=TRACED))
    held_back = fakes.Call(file.pread(1, 0))
    world.reactor.run()
    assert len(world.protocol.clients) == 2 and not held_back.done
    leaving = fakes.Call(session.unmount())
    world.pass_time(1)
    assert leaving.done and leaving.error is None
    assert under_way.errno == errno.ENOTCONN and held_back.errno in (errno.ENOTCONN, errno.EBADFD)
    assert world.protocol.clients == {} and manager.open == []
    for _ in list(gate.held):
        gate.let()


def test_locks_move_along(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    other = mount(ONE)
    session = mount(ONE)
    wait = world.reactor.wait
    mine, theirs = wait(core(session).open("/f", "w+b")), wait(core(other).open("/f", "w+b"))
    wait(mine.lock(start=0, length=10))
    wait(mine.lock(start=20, length=10))
    wait(mine.unlock(25, 5))
    manager.text = volfile(more=TRACED)
    for connection in manager.open:  # only ours is told
        if connection is manager.open[-1]:
            connection.notify(callbacks.encode_callback(1, p.CBK_FETCHSPEC))
    world.reactor.run()
    world.pass_time(1)
    assert session.graph.root.name == "top" and other.graph.root.name == "dht"
    for start, length in ((0, 10), (20, 5)):
        with pytest.raises(FopError) as caught:
            wait(theirs.lock(blocking=False, start=start, length=length))
        assert caught.value.errno == errno.EAGAIN
    wait(theirs.lock(blocking=False, start=25, length=5))
    wait(mine.unlock(0, 10))
    wait(theirs.lock(blocking=False, start=0, length=10))


@pytest.mark.logs("an open file is lost in the change of graphs")
def test_a_lock_that_another_gets_meanwhile_costs_the_fd(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    other, session = mount(ONE), mount(ONE)
    wait = world.reactor.wait
    mine, theirs = wait(core(session).open("/f", "w+b")), wait(core(other).open("/f", "w+b"))
    wait(mine.lock())
    waiting = fakes.Call(theirs.lock())
    world.reactor.run()
    assert not waiting.done
    manager.text = volfile(more=TRACED)
    manager.open[-1].notify(callbacks.encode_callback(1, p.CBK_FETCHSPEC))
    world.reactor.run()
    world.pass_time(1)
    assert waiting.done and waiting.error is None
    with pytest.raises(FopError) as caught:
        wait(mine.pwrite(b"x", 0))
    assert caught.value.errno == errno.EBADFD


def test_who_waits_for_a_lock_goes_on_waiting_in_the_new_graph(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    other, session = mount(ONE), mount(ONE)
    wait = world.reactor.wait
    mine, theirs = wait(core(session).open("/f", "w+b")), wait(core(other).open("/f", "w+b"))
    wait(theirs.lock())
    waiting = fakes.Call(mine.lock())
    world.reactor.run()
    manager.text = volfile(more=TRACED)
    manager.open[-1].notify(callbacks.encode_callback(1, p.CBK_FETCHSPEC))
    world.reactor.run()
    world.pass_time(1)
    assert session.graph.root.name == "top" and not waiting.done
    wait(theirs.unlock())
    world.reactor.run()
    assert waiting.done and waiting.error is None
    with pytest.raises(FopError):
        wait(theirs.lock(blocking=False))


@pytest.mark.logs("the new volfile is not followed")
def test_a_new_volfile_that_cannot_be_run_changes_nothing(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    graph = session.graph
    manager.set(volfile(more="volume s\n type features/shard\n subvolumes dht\nend-volume"))
    assert session.graph is graph
    manager.set("no volfile `at all`")
    assert session.graph is graph
    manager.set(volfile(more=TRACED))
    assert session.graph is not graph


@pytest.mark.logs("the new graph does not come up")
def test_a_new_graph_that_does_not_come_up_is_tried_again(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    graph = session.graph
    world.network.listeners.pop(Address("127.0.0.1", 49152))
    manager.set(volfile(more=TRACED))
    assert session.graph is graph
    world.network.listen(Address("127.0.0.1", 49152), world.protocol.make_receiver)
    world.pass_time(4)
    assert session.graph is not graph


# -- staying in touch --------------------------------------------------------------------------------------------------


def test_what_has_changed_while_the_server_was_away(world: World, mount: Mounter, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "glustx.rpc")
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    manager.die()
    world.pass_time(20)
    manager.text = volfile(ping=33)
    manager.listen()
    world.pass_time(LONGEST_PAUSE)
    assert session.graph.xlators["client"].options.ping_timeout == 33
    assert len(manager.open) == 1
    assert sum("is gone" in record.getMessage() for record in caplog.records) == 1


def test_another_server_takes_over(world: World, mount: Mounter) -> None:
    first = Manager(world, ONE, volfile(), **{"cluster.brick-vol-servers": "192.0.2.2:24007 192.0.2.1:24007 bad x:y "})
    second = Manager(world, TWO, volfile())
    session = mount(ONE)
    first.die()
    world.pass_time(1)
    assert len(second.open) == 1
    second.set(volfile(ping=12))
    assert session.graph.xlators["client"].options.ping_timeout == 12
    assert session.host == TWO.host


def test_a_server_that_falls_silent_is_left(world: World, mount: Mounter) -> None:
    first, second = Manager(world, ONE, volfile()), Manager(world, TWO, volfile())
    mount(ONE, TWO)
    world.pass_time(5 * WATCH)
    assert len(first.connections) == 1 and second.connections == []
    first.silent = True
    world.pass_time(3 * WATCH)
    assert len(second.open) == 1


def test_nothing_happens_after_the_end(world: World, mount: Mounter) -> None:
    manager = Manager(world, ONE, volfile())
    session = mount(ONE)
    manager.die()
    world.reactor.wait(session.unmount())
    manager.listen()
    world.pass_time(10)
    assert manager.open == []
