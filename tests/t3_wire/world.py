"""A brick, its clients and the network between them in one process, on a clock that the tests move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.rpc import dict_v1
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.rpc.getspec import Dialled, own_credential
from glustx.rpc.memory_pair import MemoryNetwork
from glustx.runtime import ManualReactor, Waiter
from glustx.values import F_WRLCK, ROOT_GFID, ROOT_LOC, Caller, Flock, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xlator import Event
from tests.fakes import Call

VOLUME_ID = "5a1c1e0e-0b5c-4f0e-9d4c-2f3f6f4e9b11"
SERVER = """
volume store
  type storage/memory
end-volume

volume /brick
  type features/locks
  subvolumes store
end-volume

volume server
  type protocol/server
  option listen-port 49152
  option auth.addr./brick.allow *
  {options}
  subvolumes /brick
end-volume
"""
CLIENT = """
volume client
  type protocol/client
  option remote-port 49152
  option remote-subvolume /brick
  option ping-timeout 10
  {options}
end-volume
"""
ADDRESS = Address("127.0.0.1", 49152)


class Gate:
    """Holds fops of some classes in front of the brick until they are let through. Made before a client connects."""

    def __init__(self, graph: Graph, *classes: type[Fop]) -> None:
        self.held: list[tuple[Any, Waiter[None]]] = []
        self.cancelled: list[Fop] = []
        self.passed: list[Fop] = []
        table = graph.xlators["/brick"].table
        for cls in classes:
            table[cls] = self._gated(table[cls])

    def _gated(self, below: Callable[[Any], Any]) -> Callable[[Any], Any]:
        async def hold(req: Any) -> Any:
            waiter: Waiter[None] = Waiter()
            self.held.append((req, waiter))
            try:
                await waiter
            except BaseException:
                self.cancelled.append(req)
                raise
            self.passed.append(req)
            return await below(req)

        return hold

    def let(self, index: int = 0) -> None:
        """Let one through."""
        self.held.pop(index)[1].set(None)


class World:
    """A brick, its clients, and the reactor and network they share."""

    def __init__(self, options: str = "", chunk: int = 1 << 16) -> None:
        self.reactor = ManualReactor()
        self.network = MemoryNetwork(self.reactor, chunk)
        self.server = Graph.load(SERVER.format(options=options), Surroundings(self.reactor, self.network))
        self.reactor.wait(self.server.start())
        self.protocol: Any = self.server.root
        self.gone: list[str] = []
        locks = self.server.xlators["/brick"]
        heard = locks.notify

        def notify(event: Event, source: Any = None, data: Any = None) -> None:
            if event is Event.CLIENT_GONE:
                self.gone.append(data)
            heard(event, source, data)

        locks.notify = notify  # type: ignore[method-assign]
        self.clients: list[Graph] = []

    def client(self, options: str = "") -> Graph:
        """A client graph, after its first attempt to connect."""
        graph = Graph.load(CLIENT.format(options=options), Surroundings(self.reactor, self.network))
        events: list[tuple[Event, Any]] = []
        graph.listeners.append(lambda event, data: events.append((event, data)))
        graph.heard = events  # type: ignore[attr-defined]
        self.reactor.wait(graph.start())
        self.clients.append(graph)
        return graph

    def do(self, graph: Graph, req: Fop) -> Any:
        """Carry out a fop."""
        return self.reactor.wait(graph.top(req))

    def begin(self, graph: Graph, req: Fop) -> Call:
        """Start a fop and let all happen that can happen by itself."""
        call = Call(graph.top(req))
        self.reactor.run()
        return call

    def create(self, graph: Graph, name: bytes, content: bytes = b"") -> Fd:
        """Make a file and return its open fd."""
        fd = Fd(b"", 2)
        gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
        self.do(graph, fops.Create(Loc(pargfid=ROOT_GFID, name=name), fd, 0o102, 0o644, xdata=gfid))
        if content:
            self.do(graph, fops.Write(fd, 0, content))
        return fd

    def pass_time(self, seconds: float) -> None:
        """Move the clock in small steps, so that what one timer causes is over before the next strikes."""
        for _ in range(round(seconds * 2)):
            self.reactor.advance(0.5)
            self.reactor.run()

    def stop(self) -> None:
        for graph in self.clients:
            self.reactor.wait(graph.stop())
        self.reactor.run()
        self.reactor.wait(self.server.stop())
        assert self.protocol.sessions == set() and self.protocol.clients == {}
        assert not any(channel.is_open for channel in self.network.channels)
        assert self.server.winding == 0

    def session(self, index: int = 0) -> Any:
        """The server's end of a connection, the oldest first."""
        far = [channel.other for channel in self.network.channels if channel.is_open]
        return far[index].receiver


def link(graph: Graph) -> Any:
    return graph.root.link  # type: ignore[attr-defined]


def fails(world: World, graph: Graph, req: Fop, code: int) -> str:
    with pytest.raises(FopError) as caught:
        world.do(graph, req)
    assert caught.value.errno == code
    return str(caught.value)


def remote(graph: Graph, fd: Fd) -> int:
    return graph.root.remote_fd.get(fd).number  # type: ignore[attr-defined,no-any-return]


def dial(world: World) -> Dialled:
    connection = Dialled()
    world.network.dial(ADDRESS, connection)
    world.reactor.run()
    assert connection.channel is not None
    return connection


INTRODUCTION = {"process-uuid": "one", "remote-subvolume": "/brick", "fops-version": "1298437"}


def setvolume(world: World, connection: Dialled, **changes: str | None) -> tuple[int, int, str, dict[bytes, bytes]]:
    pairs = {**INTRODUCTION, **{key.replace("_", "-"): value for key, value in changes.items()}}
    body = p.SetvolumeRequest(dict_v1.pack_all({k: v for k, v in pairs.items() if v is not None})).encode()
    waiter = connection.ask(p.HANDSHAKE, p.HNDSK_SETVOLUME, body, own_credential(), p.SetvolumeReply.decode)

    async def answer() -> p.SetvolumeReply:
        return await waiter

    reply = world.reactor.wait(answer())
    return reply.op_ret, reply.op_errno, dict_v1.text(reply.pairs, b"ERROR"), reply.pairs


LOCK = Flock(type=F_WRLCK, start=0, len=0)


def inodelk(cmd: int, kind: int, owner: bytes) -> fops.Inodelk:
    flock = Flock(type=kind, start=0, len=0)
    return fops.Inodelk(ROOT_LOC, b"domain", cmd, kind, flock, caller=Caller(lk_owner=owner))
