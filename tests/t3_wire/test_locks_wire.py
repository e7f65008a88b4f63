"""Locks of two clients that meet on one brick, over TCP on loopback: owners, waiting, contention, clients that go."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.upcall import EntrylkContention, InodelkContention
from glustx.values import (
    ENTRYLK_LOCK,
    ENTRYLK_WRLCK,
    F_GETLK,
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
    new_gfid,
)
from glustx.xdata import GFID_REQ, INODELK_COUNT, Xdata
from glustx.xlator import Event

BRICK = """
volume store
    type storage/memory
end-volume
volume locks
    type features/locks
    subvolumes store
end-volume
volume /brick
    type performance/io-threads
    subvolumes locks
end-volume
volume server
    type protocol/server
    option auth.addr./brick.allow *
    subvolumes /brick
end-volume
"""
CLIENT = """
volume client
    type protocol/client
    option remote-host 127.0.0.1
    option remote-port {port}
    option remote-subvolume /brick
end-volume
"""


class Wire:
    """A brick and its clients in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.network = AsyncioNetwork(loop)
        self.graphs: list[Graph] = []
        self.upcalls: dict[Graph, asyncio.Queue[Any]] = {}

    async def graph(self, text: str) -> Graph:
        graph = Graph.load(text, Surroundings(AsyncioReactor(self.loop), self.network))
        upcalls = self.upcalls[graph] = asyncio.Queue()
        graph.listeners.append(lambda event, data: upcalls.put_nowait(data) if event is Event.UPCALL else None)
        await self.run(graph.start())
        self.graphs.append(graph)
        return graph

    async def run(self, co: Any) -> Any:
        return await asyncio.wait_for(drive_in_loop(co, self.loop), 60)

    def begin(self, graph: Graph, req: fops.Fop) -> asyncio.Task[Any]:
        return self.loop.create_task(self.run(graph.top(req)))

    async def file(self, graph: Graph) -> Fd:
        fd = Fd(ROOT_GFID, 2)
        gfid = new_gfid()
        loc = Loc(pargfid=ROOT_GFID, name=b"file", path=b"/file")
        xdata = Xdata({GFID_REQ: gfid})
        reply = await self.run(graph.top(fops.Create(loc, fd, 0o102, 0o644, xdata=xdata)))
        fd.gfid = reply.stat.gfid
        return fd

    async def close(self) -> None:
        for graph in reversed(self.graphs):
            await self.run(graph.stop())
        await self.network.close()


def over_the_wire(body: Callable[[Wire, Graph, Graph, Any], Awaitable[None]]) -> None:
    async def main() -> None:
        wire = Wire(asyncio.get_running_loop())
        try:
            brick = await wire.graph(BRICK)
            text = CLIENT.format(port=brick.xlators["server"].listener.address.port)  # type: ignore[attr-defined]
            await body(wire, await wire.graph(text), await wire.graph(text), brick.xlators["locks"])
        finally:
            await wire.close()

    asyncio.run(main())


def lk(fd: Fd, owner: bytes, kind: int, start: int, length: int, cmd: int = F_SETLK) -> fops.Lk:
    flock = Flock(kind, 0, start, length, 9, b"not looked at")
    return fops.Lk(fd, cmd, kind, flock, caller=Caller(pid=9, lk_owner=owner))


def inodelk(gfid: bytes, owner: bytes, cmd: int, kind: int = F_WRLCK) -> fops.Inodelk:
    flock = Flock(kind, 0, 0, 0, 9)
    return fops.Inodelk(Loc(gfid=gfid), b"vol-replicate-0", cmd, kind, flock, caller=Caller(pid=9, lk_owner=owner))


async def settled(locks: Any, waiting: int) -> None:
    """Wait until the brick holds this many requests that wait."""

    async def poll() -> None:
        while waiting != sum(  # noqa: ASYNC110 - the brick runs in this loop and tells nobody
            len(state.posix_waiting) + sum(len(queue.waiting) for queue in state.queues.values())
            for _, state in locks.locks
        ):
            await asyncio.sleep(0)

    await asyncio.wait_for(poll(), 60)


def test_posix_locks_of_two_clients() -> None:
    async def body(wire: Wire, one: Graph, two: Graph, locks: Any) -> None:
        fd = await wire.file(one)
        there = Fd(fd.gfid, 2)
        await wire.run(two.top(fops.Open(Loc(gfid=fd.gfid), there, 2)))
        await wire.run(one.top(lk(fd, b"owner-1", F_WRLCK, 5, 10)))
        found = await wire.run(two.top(lk(there, b"owner-1", F_RDLCK, 0, 0, F_GETLK)))
        assert found.flock == Flock(F_WRLCK, 0, 5, 10, 9, b"owner-1")
        with pytest.raises(FopError) as caught:
            await wire.run(two.top(lk(there, b"owner-1", F_RDLCK, 14, 1)))
        assert caught.value.errno == errno.EAGAIN
        waiting = wire.begin(two, lk(there, b"owner-1", F_WRLCK, 0, 0, F_SETLKW))
        await settled(locks, 1)
        assert not waiting.done()
        await wire.run(one.top(lk(fd, b"owner-1", F_UNLCK, 0, 0)))
        assert (await waiting).flock.type == F_WRLCK
        await wire.run(two.top(fops.Flush(there, caller=Caller(lk_owner=b"owner-1"))))
        await wire.run(one.top(lk(fd, b"owner-1", F_WRLCK, 0, 0)))

    over_the_wire(body)


def test_contention_reaches_the_holder_and_nobody_else() -> None:
    async def body(wire: Wire, one: Graph, two: Graph, locks: Any) -> None:
        gfid = (await wire.file(one)).gfid
        await wire.run(one.top(inodelk(gfid, b"\1" * 8, F_SETLK)))
        waiting = wire.begin(two, inodelk(gfid, b"\2" * 8, F_SETLKW))
        told = await asyncio.wait_for(wire.upcalls[one].get(), 60)
        assert told == InodelkContention("", gfid, told.flock, 9, b"vol-replicate-0")
        assert (told.flock.type, told.flock.start, told.flock.len) == (F_WRLCK, 0, 0)
        counted = await wire.run(two.top(fops.Stat(Loc(gfid=gfid), xdata=Xdata({INODELK_COUNT: 0}))))
        assert counted.xdata[INODELK_COUNT] == 1
        await wire.run(one.top(inodelk(gfid, b"\1" * 8, F_SETLK, F_UNLCK)))
        assert isinstance(await waiting, fops.Done)
        entry = fops.Entrylk(ROOT_LOC, b"d", ENTRYLK_LOCK, ENTRYLK_WRLCK, b"file", caller=Caller(pid=9, lk_owner=b"a"))
        await wire.run(two.top(entry))
        other = wire.begin(one, fops.Entrylk(ROOT_LOC, b"d", ENTRYLK_LOCK, ENTRYLK_WRLCK, caller=Caller(lk_owner=b"b")))
        told = await asyncio.wait_for(wire.upcalls[two].get(), 60)
        assert told == EntrylkContention("", ROOT_GFID, ENTRYLK_WRLCK, 9, b"file", b"d")
        assert wire.upcalls[one].empty()
        other.cancel()

    over_the_wire(body)


def test_the_locks_of_a_client_go_with_it() -> None:
    async def body(wire: Wire, one: Graph, two: Graph, locks: Any) -> None:
        fd = await wire.file(one)
        await wire.run(one.top(inodelk(fd.gfid, b"\1" * 8, F_SETLK)))
        await wire.run(one.top(lk(fd, b"owner-1", F_WRLCK, 0, 0)))
        waiting = wire.begin(two, inodelk(fd.gfid, b"\2" * 8, F_SETLKW))
        mine = wire.begin(one, inodelk(fd.gfid, b"\3" * 8, F_SETLKW))
        await settled(locks, 2)
        wire.graphs.remove(one)
        await wire.run(one.stop())
        assert isinstance(await waiting, fops.Done)
        with pytest.raises(FopError):
            await mine
        there = Fd(fd.gfid, 2)
        await wire.run(two.top(fops.Open(Loc(gfid=fd.gfid), there, 2)))
        await wire.run(two.top(lk(there, b"owner-2", F_WRLCK, 0, 0)))
        assert len(locks.locks.clients()) == 1

    over_the_wire(body)


def test_many_that_wait_do_not_keep_the_unlock_out() -> None:
    async def body(wire: Wire, one: Graph, two: Graph, locks: Any) -> None:
        gfid = (await wire.file(one)).gfid
        await wire.run(one.top(inodelk(gfid, b"holder", F_SETLK)))
        waiting = [wire.begin(one, inodelk(gfid, b"waiter %d" % number, F_SETLKW)) for number in range(200)]
        await settled(locks, 200)
        await wire.run(one.top(inodelk(gfid, b"holder", F_SETLK, F_UNLCK)))
        for number, task in enumerate(waiting):
            await task
            await wire.run(one.top(inodelk(gfid, b"waiter %d" % number, F_SETLK, F_UNLCK)))
        assert len(locks.locks) == 0

    over_the_wire(body)
