"""quick-read and open-behind over the wire: what crosses it, what two clients see of each other, what a brick that
goes away leaves behind."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.gfapi import Source, Volume
from glustx.gfapi.active import Active
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.values import F_SETLK, F_WRLCK, NULL_GFID, ROOT_GFID, SET_MODE, Caller, Flock, Iatt, Loc, new_gfid
from glustx.volgen import client_volfile
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from tests.conformance.served import BRICK, served, server_volfile
from tests.conformance.test_caches import CACHES
from tests.conformance.test_wire import MEMORY
from tests.fakes import Call
from tests.t3_wire.world import CLIENT, Gate, World

STACK = CLIENT + CACHES


class Mount:
    """A client of a world's brick with both translators."""

    def __init__(self, world: World, **options: str) -> None:
        self.world = world
        texts = {"options": "", "below": "client", "open_behind": "", "quick_read": "", **options}
        self.graph = Graph.load(STACK.format(**texts), Surroundings(world.reactor, world.network))
        world.reactor.wait(self.graph.start())
        world.clients.append(self.graph)
        self.client: Any = self.graph.xlators["client"]
        self.calls: list[str] = []
        send = self.client.send

        def spy(req: Fop) -> Any:
            self.calls.append(req.name)
            return send(req)

        self.client.send = spy

    def __call__(self, req: Fop) -> Any:
        reply = self.world.do(self.graph, req)
        self.world.reactor.run()
        return reply

    def begin(self, req: Fop) -> Call:
        return self.world.begin(self.graph, req)

    def sent(self) -> list[str]:
        """What has crossed the wire since the last call."""
        calls, self.calls[:] = list(self.calls), []
        return calls

    def look(self, name: bytes) -> Iatt:
        stat: Iatt = self(fops.Lookup(Loc(pargfid=ROOT_GFID, name=name))).stat
        return stat

    def open(self, name: bytes, flags: int = 0, caller: Caller | None = None) -> Fd:
        who = caller or Caller()
        gfid = self(fops.Lookup(Loc(pargfid=ROOT_GFID, name=name), caller=who)).stat.gfid
        fd = Fd(gfid, flags)
        self(fops.Open(Loc(gfid=gfid, pargfid=ROOT_GFID, name=name), fd, flags, caller=who))
        return fd

    def create(self, name: bytes, content: bytes = b"", flags: int = 0o102) -> Fd:
        fd = Fd(NULL_GFID, 2)
        gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
        self(fops.Create(Loc(pargfid=ROOT_GFID, name=name), fd, flags, 0o644, xdata=gfid))
        if content:
            self(fops.Write(fd, 0, content))
        return fd

    def read(self, fd: Fd) -> bytes:
        return bytes(self(fops.Read(fd, 0, 1 << 16)).data)

    def content(self, name: bytes) -> bytes:
        """LOOKUP, OPEN, READ, RELEASE."""
        fd = self.open(name)
        try:
            return self.read(fd)
        finally:
            self(fops.Release(fd))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.stop()


# -- what crosses the wire -------------------------------------------------------------------------------------------


def test_open_read_close_of_a_small_file_is_one_call() -> None:
    data = bytes(range(256)) * 16
    with served(server_volfile(MEMORY, "locks")) as brick:
        text = client_volfile("test", [(brick.address.host, brick.address.port, BRICK)])
        with Volume(Source(volume="test", text=text, origin="<client>")) as vol:
            client: Any = vol.graph.xlators["test-client-0"]
            sent: list[str] = []
            send = client.send
            client.send = lambda req: sent.append(req.name) or send(req)
            with vol.create("/small") as file:
                file.write(data)
            with vol.create("/large") as file:
                file.write(data * 32)
            vol.stat("/")  # what nobody waited for is over: one connection keeps its order
            sent.clear()
            for _ in range(3):
                with vol.open("/small") as file:
                    assert file.read() == data
                    assert file.pread(100, 4000) == data[4000:4100]
                assert sent == ["lookup"]
                sent.clear()
            with vol.open("/large") as file:
                assert file.pread(4096, 0) == data
            # The RELEASE follows when somebody has time for it.
            assert [name for name in sent if name != "release"] == ["lookup", "open", "read"]
            vol.stat("/")
            sent.clear()
            with vol.open("/small", "r+b") as file:
                file.pwrite(b"xyz", 0)
                assert file.pread(5, 0) == b"xyz" + data[3:5]
            assert [name for name in sent if name != "release"] == ["lookup", "open", "write", "read", "flush"]
            vol.stat("/")
            sent.clear()
            for path, error in (("/none", FileNotFoundError), ("/", IsADirectoryError)):
                with pytest.raises(error):
                    vol.open(path)
            assert [name for name in sent if name != "release"] == ["lookup", "lookup"]


def test_who_may_not_open_is_told_so_at_once(world: World) -> None:
    mount = Mount(world)
    fd = mount.create(b"f", b"secret")
    mount(fops.Fsetattr(fd, Iatt(mode=0o100600), SET_MODE))
    mount(fops.Release(fd))
    assert mount.content(b"f") == b"secret"
    mount.sent()
    mount.open(b"f", caller=Caller(uid=5))
    assert mount.sent() == ["lookup", "open"], "the brick decides"


def test_a_lock_opens_the_file(world: World) -> None:
    mount = Mount(world)
    mount(fops.Release(mount.create(b"f", b"x")))
    fd = mount.open(b"f", 2)
    mount.sent()
    mount(fops.Lk(fd, F_SETLK, F_WRLCK, Flock(type=F_WRLCK), caller=Caller(lk_owner=b"me")))
    mount(fops.Fsync(fd))
    mount(fops.Flush(fd, caller=Caller(lk_owner=b"me")))
    mount(fops.Release(fd))
    assert mount.sent() == ["open", "lk", "fsync", "flush", "release"]


# -- a brick that goes away ------------------------------------------------------------------------------------------


def cut(world: World) -> None:
    for channel in list(world.network.channels):
        channel.close()
    world.reactor.run()


def test_an_open_that_is_put_off_lives_through_a_reconnection(world: World) -> None:
    mount = Mount(world, quick_read="option cache-timeout 600")
    mount(fops.Release(mount.create(b"f", b"content")))
    fd = mount.open(b"f", 2)
    assert mount.read(fd) == b"content"
    cut(world)
    with pytest.raises(FopError) as caught:
        mount.read(fd)
    assert caught.value.errno == errno.ENOTCONN, "what is kept is not believed without the brick"
    world.pass_time(10)
    mount.sent()
    assert mount.read(fd) == b"content"
    mount(fops.Write(fd, 0, b"C"))
    assert mount.read(fd) == b"Content"
    mount(fops.Release(fd))
    assert mount.sent() == ["open", "read", "write", "read", "release"]


def test_the_connection_breaks_while_the_open_is_under_way() -> None:
    world = World()
    gate = Gate(world.server, fops.Open)
    mount = Mount(world)
    mount(fops.Release(mount.create(b"f", b"content")))
    fd = mount.open(b"f", 2)
    writes = [mount.begin(fops.Write(fd, at, b"x")) for at in range(2)]
    assert len(gate.held) == 1
    cut(world)
    assert [write.errno for write in writes] == [errno.ENOTCONN] * 2
    world.pass_time(10)
    again = mount.begin(fops.Write(fd, 0, b"C"))
    gate.let(-1)
    world.reactor.run()
    assert again.errno == 0
    mount(fops.Release(fd))
    assert mount.content(b"f") == b"Content"
    while gate.held:
        gate.let()
    world.reactor.run()
    world.stop()


@pytest.mark.parametrize("under_way", [False, True])
def test_another_graph_takes_over_an_open_that_was_put_off(under_way: bool) -> None:
    world = World()
    gate = Gate(world.server, fops.Open)
    old, new = Mount(world), Mount(world)
    old(fops.Release(old.create(b"f", b"content")))
    active = Active(old.graph, world.reactor)
    gfid = old.look(b"f").gfid
    old.sent()
    fd = Fd(gfid, 2)
    world.reactor.wait(active.top(fops.Open(Loc(gfid=gfid), fd, 2)))
    write = Call(active.top(fops.Write(fd, 0, b"C"))) if under_way else None
    world.reactor.run()
    assert old.sent() == (["open"] if under_way else [])
    change = Call(active.change(new.graph))
    for _ in range(4):
        world.reactor.run()
        if gate.held:
            gate.let()
    assert change.done and (write is None or write.errno == 0)
    end = change.result()
    assert old.sent() == (["write", "flush"] if under_way else [])
    assert new.sent() == ["open"], "the other graph has looked nothing up"
    world.reactor.wait(active.top(fops.Write(fd, 1, b"O")))
    assert new.sent() == ["write"]
    world.clients.remove(old.graph)
    world.reactor.wait(end())
    assert old.sent() == (["release"] if under_way else [])
    assert new.content(b"f") == (b"COntent" if under_way else b"cOntent")
    world.reactor.wait(active.top(fops.Release(fd)))
    world.stop()


# -- two clients -----------------------------------------------------------------------------------------------------


def test_another_clients_change_is_seen_at_once_by_a_new_open_and_in_time_by_an_old_one(world: World) -> None:
    one, two = Mount(world), Mount(world)
    theirs = two.create(b"f", b"first")
    fd = one.open(b"f")
    assert one.read(fd) == b"first"
    two(fops.Write(theirs, 0, b"other"))
    assert one.read(fd) == b"first", "believed for a second"
    assert one.content(b"f") == b"other"
    assert one.read(fd) == b"other"
    two(fops.Write(theirs, 0, b"third"))
    world.reactor.advance(1.0)
    assert one.read(fd) == b"third"


class Model:
    """Files, what each held when, and two clients that must see it so.

    A LOOKUP, OPEN and READ show what is there. A READ through an fd that was opened before shows something that was
    there within the last second, and nothing from before the client's own last look or change.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World()
        self.mounts = [Mount(self.world), Mount(self.world)]
        self.names: dict[bytes, bytes] = {}  # name: gfid
        self.past: dict[bytes, list[tuple[int, float, bytes]]] = {}  # gfid: what it held since which step and time
        self.knows: dict[tuple[int, bytes], int] = {}  # (client, gfid): the step in which it last looked or changed
        self.fds: list[tuple[int, Fd]] = []
        self.steps = 0
        self.removed_by: dict[bytes, int] = {}

    def holds(self, gfid: bytes, data: bytes, who: int) -> None:
        self.past.setdefault(gfid, []).append((self.steps, self.world.reactor.time(), data))
        self.knows[who, gfid] = self.steps

    def allowed(self, who: int, gfid: bytes) -> set[bytes]:
        """What a READ through an old fd may bring."""
        past, known = self.past[gfid], self.knows.get((who, gfid), 0)
        old = self.world.reactor.time() - 1.0
        ended = itertools.pairwise(past)
        return {data for (_, _, data), (step, at, _) in ended if step > known and at > old} | {past[-1][2]}

    def read_new(self, who: int, name: bytes) -> None:
        assert self.mounts[who].content(name) == self.past[self.names[name]][-1][2]
        self.knows[who, self.names[name]] = self.steps

    def read_old(self, who: int, fd: Fd) -> None:
        call = self.mounts[who].begin(fops.Read(fd, 0, 1 << 16))
        if call.errno in (errno.ESTALE, errno.ENOENT):
            # Its OPEN was still put off when the other client removed the file.
            assert self.removed_by.get(fd.gfid, who) != who
        else:
            assert bytes(call.result().data) in self.allowed(who, fd.gfid), f"client {who} in step {self.steps}"

    def change(self, who: int, name: bytes) -> None:
        mount, pick = self.mounts[who], self.random.choice
        gfid = self.names[name]
        data = bytearray(self.past[gfid][-1][2])
        at, size = self.random.randrange(60), self.random.randrange(1, 60)
        kind = pick(
            ["write", "write", "truncate", "ftruncate", "zerofill", "discard", "copy", "open", "create", "mode"]
        )
        end = at + size
        grown = data + bytes(max(0, end - len(data)))
        if kind == "open":
            mount(fops.Release(mount.open(name, 0o1002)))
            return self.holds(gfid, b"", who)
        if kind == "create":
            mount(fops.Release(mount.create(name, flags=0o1102)))
            return self.holds(gfid, b"", who)
        fd = mount.open(name, 2)
        new = bytes(data)
        if kind == "write":
            piece = bytes([self.random.randrange(256)]) * size
            mount(fops.Write(fd, at, piece))
            new = bytes(grown[:at] + piece + grown[end:])
        elif kind in ("truncate", "ftruncate"):
            mount(fops.Ftruncate(fd, at) if kind == "ftruncate" else fops.Truncate(Loc(gfid=gfid), at))
            new = bytes((data + bytes(60))[:at])
        elif kind == "zerofill":
            mount(fops.Zerofill(fd=fd, offset=at, size=size))
            new = bytes(grown[:at] + bytes(size) + grown[end:])
        elif kind == "discard":
            mount(fops.Discard(fd=fd, offset=at, size=size))
            new = bytes(data[:at] + bytes(max(0, min(end, len(data)) - at)) + data[end:])
        elif kind == "copy":
            source = pick(list(self.names))
            other = self.past[self.names[source]][-1][2]
            if source != name and other:
                from_fd = mount.open(source)
                mount(fops.CopyFileRange(from_fd, fd, 0, 0, len(other)))
                mount(fops.Release(from_fd))
                new = bytes(other + data[len(other) :])
        else:
            mount(fops.Setattr(Loc(gfid=gfid), Iatt(mode=0o100600 | self.random.randrange(64)), SET_MODE))
        mount(fops.Release(fd))
        self.holds(gfid, new, who)

    def step(self) -> None:
        self.steps += 1
        who, pick = self.random.randrange(2), self.random.choice
        mount = self.mounts[who]
        if self.random.random() < 0.3:
            self.world.reactor.advance(self.random.choice([0.1, 0.3, 0.6, 1.5]))
        name = pick([b"a", b"b", b"c"])
        if name not in self.names:
            fd = mount.create(name, b"new")
            self.names[name] = fd.gfid
            self.holds(fd.gfid, b"new", who)
            self.fds.append((who, fd))
            return
        kind = pick(["new", "new", "old", "old", "old", "keep", "change", "change", "unlink", "rename"])
        if kind == "new":
            self.read_new(who, name)
        elif kind == "keep":
            self.fds.append((who, mount.open(name)))
            self.knows[who, self.names[name]] = self.steps
        elif kind == "old" and self.fds:
            self.read_old(*pick(self.fds))
        elif kind == "change":
            self.change(who, name)
        elif kind == "unlink":
            self.removed_by[self.names.pop(name)] = who
            mount(fops.Unlink(Loc(pargfid=ROOT_GFID, name=name)))
        elif kind == "rename" and (target := pick([b"a", b"b", b"c"])) != name:
            gone = self.names.pop(target, None)
            if gone is not None:
                self.removed_by[gone] = who
            mount(fops.Rename(Loc(pargfid=ROOT_GFID, name=name), Loc(pargfid=ROOT_GFID, name=target)))
            self.names[target] = self.names.pop(name)
        if len(self.fds) > 8:
            owner, fd = self.fds.pop(self.random.randrange(len(self.fds)))
            self.mounts[owner](fops.Release(fd))


@pytest.mark.parametrize("seed", range(6))
def test_two_clients_against_a_model(seed: int) -> None:
    model = Model(seed)
    for _ in range(400):
        model.step()
    for owner, fd in model.fds:
        model.mounts[owner](fops.Release(fd))
    hits = [mount.graph.root.statedump()["cache-hit"] for mount in model.mounts]
    assert all(hits), "the caches had no part in it"
    model.world.stop()
