"""A brick that zeroes by writing stays answerable: pings and other clients' fops while several long ZEROFILLs run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.rpc import programs as p
from glustx.rpc.getspec import own_credential
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.values import ROOT_GFID, ROOT_LOC, Loc, new_gfid
from glustx.volgen import brick_volfile
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from tests.kit import Process, affordable

GLUSTX = (sys.executable, "-m", "glustx")
CLIENTS = 4
LIMIT = 1.0

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a brick of stock's layout needs root")


@pytest.fixture
def brick(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A served brick whose only way to zero is writing."""
    folder = tmp_path / "brick"
    folder.mkdir()
    text = brick_volfile("slow", str(folder), 0, options={"storage/posix": {"zero-method": "writes"}})
    volfile = tmp_path / "slow.vol"
    volfile.write_text(text)
    command = [
        *GLUSTX,
        "serve",
        volfile,
        "--volume",
        "slow",
        "--port",
        "0",
        "--state-dir",
        tmp_path / "state",
        "--json",
    ]
    with Process(command) as process:
        yield process.wait_line(json.loads)["bricks"][0]


async def connect(brick: dict[str, Any], loop: asyncio.AbstractEventLoop, network: AsyncioNetwork) -> Graph:
    text = (
        "volume client\n type protocol/client\n"
        f" option remote-port {brick['port']}\n option remote-subvolume {brick['name']}\nend-volume\n"
    )
    graph = Graph.load(text, Surroundings(AsyncioReactor(loop), network))
    await drive_in_loop(graph.start(), loop)
    return graph


async def worst_of(probe: Callable[[], Any], until: asyncio.Future[Any]) -> list[float]:
    """Call `probe` again and again until the future is done; return how long each call took."""
    took: list[float] = []
    while not until.done():
        began = time.monotonic()
        await probe()
        took.append(time.monotonic() - began)
    return took


async def scenario(brick: dict[str, Any], size: int) -> tuple[list[float], list[float]]:
    loop = asyncio.get_running_loop()
    network = AsyncioNetwork(loop)
    graphs = [await connect(brick, loop, network) for _ in range(CLIENTS + 1)]
    *workers, watcher = graphs

    async def fill(graph: Graph, name: bytes) -> None:
        fd = Fd(b"", os.O_RDWR)
        gift = Xdata({GFID_REQ: gfuuid(new_gfid())})
        made = fops.Create(Loc(pargfid=ROOT_GFID, name=name), fd, os.O_RDWR | os.O_CREAT, 0o600, xdata=gift)
        await drive_in_loop(graph.top(made), loop)
        reply = await drive_in_loop(graph.top(fops.Zerofill(fd, 0, size)), loop)
        assert reply.post.size == size
        assert reply.post.blocks * 512 >= size

    connection = watcher.root.link.connection  # type: ignore[attr-defined]
    program = p.DUMP

    async def ping() -> None:
        asked: asyncio.Future[None] = loop.create_future()

        def answered(view: Any, pos: int, end: int, error: Exception | None) -> None:
            if error is not None:
                asked.set_exception(error)
            else:
                asked.set_result(None)

        connection.call(program.number, program.version, p.DUMP_PING, own_credential(), b"", answered)
        await asked

    async def stat() -> None:
        await drive_in_loop(watcher.top(fops.Stat(ROOT_LOC)), loop)

    filling = asyncio.gather(*(fill(graph, b"z%d" % number) for number, graph in enumerate(workers)))
    pings, stats = await asyncio.gather(worst_of(ping, filling), worst_of(stat, filling))
    await filling
    for graph in graphs:
        await drive_in_loop(graph.stop(), loop)
    await network.close()
    return pings, stats


@pytest.mark.parametrize("size", [128 << 20, pytest.param(1 << 30, marks=pytest.mark.long)])
def test_pings_are_answered_while_four_zerofills_write(brick: dict[str, Any], tmp_path: Path, size: int) -> None:
    size = affordable(tmp_path, CLIENTS * size) // CLIENTS
    pings, stats = asyncio.run(scenario(brick, size))
    print(
        f"{CLIENTS} x {size >> 20} MiB: {len(pings)} pings, worst {max(pings):.3f} s; "
        f"{len(stats)} stats, worst {max(stats):.3f} s"
    )
    assert len(pings) > 3
    assert max(pings) < LIMIT
    assert max(stats) < LIMIT
