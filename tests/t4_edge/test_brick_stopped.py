"""A brick that is stopped (SIGSTOP) answers nothing and refuses nothing: calls end when their time is up, the volume
goes on after SIGCONT, and an idle client stays connected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import AsyncVolume, Volume
from tests.kit import PATIENCE, Stopwatch
from tests.peers import StockBrick
from tests.peers import Volume as Peer
from tests.t2_graph.gfapi_faces import Waited
from tests.t4_edge.bricks import KINDS, brick, source, url


@pytest.fixture(scope="module", params=KINDS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    with brick(request.param, tmp_path_factory.mktemp("stopped") / "brick") as served:
        yield served


@pytest.fixture(params=["blocking", "async"])
def vol(request: pytest.FixtureRequest, peer: Peer) -> Iterator[Any]:
    if request.param == "blocking":
        with Volume(source(peer)) as volume:
            yield volume
        return
    loop = asyncio.new_event_loop()
    with Waited(loop, AsyncVolume(source(peer))) as volume:
        yield volume
    loop.close()


@contextlib.contextmanager
def stopped(peer: Peer) -> Iterator[None]:
    for pid in peer.bricks:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in peer.bricks:
            os.kill(pid, signal.SIGCONT)


def link(vol: Any) -> dict[str, Any]:
    graph = vol.graph
    (client,) = (x for x in graph.xlators.values() if x.type_name == "protocol/client")
    dump: dict[str, Any] = client.statedump()
    return dump


def test_calls_end_in_time_and_the_volume_goes_on(peer: Peer, vol: Any) -> None:
    quick = vol.using(timeout=0.1)
    with vol.create("/f") as file:
        file.write(b"before")
        limited, half = file.using(timeout=0.1), file.using(timeout=0.5)
        calls: list[tuple[float, str, Callable[[], object]]] = [
            (0.5, "read", lambda: half.pread(6, 0)),
            (0.5, "lookup", lambda: vol.using(timeout=0.5).open("/f")),
            (0.1, "read", lambda: limited.pread(8 << 20, 0)),
            (0.1, "write", lambda: limited.pwrite(b"during", 6)),
            (0.1, "fsync", lambda: limited.fsync()),
            (0.1, "lk", lambda: limited.lock()),
            (0.1, "lookup", lambda: quick.stat("/f")),
            (0.1, "lookup", lambda: quick.create("/g")),
            (0.1, "", lambda: quick.listdir("/")),
        ]
        with stopped(peer):
            for limit, fop, call in calls:
                began, watch = time.monotonic(), Stopwatch()
                with pytest.raises(TimeoutError) as caught:
                    call()
                took = time.monotonic() - began
                assert limit - 0.05 < took and watch.seconds() < 1, f"{took:.2f} s"
                text = str(caught.value)
                assert f"volume {peer.volume} at {peer.host}" in text and f"{limit} s" in text, text
                assert fop in text and f" brick {peer.folder.resolve()}" in text, text
                assert caught.value.filename in ("/f", "/g", "/"), text
        # What was asked meanwhile is done; a brick's threads may do the write after a stat, which goes first.
        assert file.pread(6, 0) == b"before"
        assert link(vol)["session"] == 1
        patience = time.monotonic() + PATIENCE
        while vol.stat("/f").st_size != 12:
            assert time.monotonic() < patience, vol.stat("/f")
        # The lock that nobody waited for in the end is given back.
        with vol.open("/f", "r+b") as other:
            other.using(timeout=PATIENCE).lock()
            other.unlock()
    vol.unlink("/f")
    assert vol.listdir("/") == []
    end = time.monotonic() + PATIENCE
    while (link(vol)["waiting"], link(vol)["fds"]) != (0, 0):  # nobody waits for a RELEASE
        assert time.monotonic() < end, link(vol)
        vol.stat("/")


def test_one_thread_runs_out_of_time_and_others_wait(peer: Peer) -> None:
    """A limit is that of its call alone, whoever happens to pump the sockets."""
    with Volume(source(peer)) as vol, vol.create("/f") as file:
        file.write(b"data")
        results: list[object] = []
        patient = [threading.Thread(target=lambda: results.append(file.pread(4, 0))) for _ in range(4)]
        with stopped(peer):
            for thread in patient:
                thread.start()
            for _ in range(2):
                watch = Stopwatch()
                with pytest.raises(TimeoutError):
                    file.using(timeout=0.2).pread(4, 0)
                assert watch.seconds() < 0.7
            assert results == []
        for thread in patient:
            thread.join(PATIENCE)
        assert results == [b"data"] * 4
        vol.unlink("/f")


def test_a_task_that_is_cancelled(peer: Peer) -> None:
    async def main() -> None:
        async with AsyncVolume(source(peer)) as vol, await vol.create("/f") as file:
            with stopped(peer):
                watch = Stopwatch()
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(file.pread(1, 0), 0.2)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(vol.open("/f"), 0.2)
                assert watch.seconds() < 2
            assert await file.pread(1, 0) == b""
            await vol.unlink("/f")

    asyncio.run(main())


def test_a_brick_that_does_not_come_back_is_given_up(peer: Peer) -> None:
    """The ping time-out ends what waits without a limit, and the client finds the brick again after that."""
    quick = source(peer, ping_timeout=1, connect_timeout=0.5)
    loop = asyncio.new_event_loop()
    with Volume(quick) if isinstance(peer, StockBrick) else Waited(loop, AsyncVolume(quick)) as vol:
        file = vol.create("/f")
        with stopped(peer):
            watch = Stopwatch()
            with pytest.raises(OSError, match=r"read on .* was not answered: no answer for 1 s"):
                file.pread(1, 0)
            assert watch.seconds() < 5
        end = time.monotonic() + PATIENCE
        while True:
            try:
                assert file.pread(1, 0) == b""
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.02)
        file.close()
        vol.unlink("/f")
    loop.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_client_for_ten_minutes(kind: str, tmp_path: Path) -> None:
    """Nobody calls, on either face; the pings go on, and the connection is the first one at the end."""

    async def idle(peer: Peer, over: threading.Event) -> dict[str, Any]:
        async with AsyncVolume(url(peer)) as vol:
            await asyncio.get_running_loop().run_in_executor(None, over.wait)
            assert (await vol.stat("/")).st_ino == 1
            return link(vol)

    with brick(kind, tmp_path / "brick") as peer, Volume(url(peer)) as vol:
        over, found = threading.Event(), []
        thread = threading.Thread(target=lambda: found.append(asyncio.run(idle(peer, over))))
        thread.start()
        try:
            time.sleep(600)
        finally:
            over.set()
            thread.join(60)
        assert vol.stat("/").st_ino == 1
        for dump in (link(vol), *found):
            print(kind, dump)
            assert dump["up"] and dump["session"] == 1 and dump["pings_answered"] >= 27
        assert len(found) == 1
