"""debug/io-stats: counts, errors, bytes, latency, intervals, options that change under load."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.runtime import Waiter, run_now
from glustx.values import ROOT_GFID, Iatt, Loc
from glustx.xlators.debug import io_stats
from glustx.xlators.debug.io_stats import IoStats
from glustx.xlators.debug.io_stats_counts import FOLD_AT
from tests.fakes import ALL_FOPS, Call, Storage, sample_reply, sample_request, stack

LOC = Loc(gfid=ROOT_GFID)


class Clock:
    """Nanoseconds that move by `step` with every look."""

    def __init__(self) -> None:
        self.now = 0
        self.step = 1000

    def __call__(self) -> int:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(io_stats.time, "perf_counter_ns", clock)
    return clock


def graph_of(**options: str) -> tuple[Graph, Any, Any]:
    graph = stack(Storage, (IoStats, {key.replace("_", "-"): text for key, text in options.items()}))
    run_now(graph.start())
    return graph, graph.xlators["io-stats"], graph.xlators["fake"]


def test_every_fop_is_counted_and_timed(clock: Clock) -> None:
    graph, stats, _ = graph_of()
    for cls in ALL_FOPS:
        assert isinstance(Call(graph.top(sample_request(cls))).result(), cls.reply)
    rows = stats.profile(peek=True)["cumulative"]["fops"]
    assert set(rows) == {cls.name for cls in ALL_FOPS}
    assert {(row["count"], row["errors"], row["avg"], row["min"], row["max"]) for row in rows.values()} == {
        (1, 0, 1.0, 1.0, 1.0)
    }
    assert sum(row["percent"] for row in rows.values()) == pytest.approx(100, abs=1)


def test_latency_figures_and_histogram(clock: Clock) -> None:
    graph, stats, _ = graph_of()
    for step in (1_000, 3_000, 2_000_000):
        clock.step = step
        Call(graph.top(fops.Stat(LOC))).result()
    row = stats.profile(peek=True)["cumulative"]["fops"]["stat"]
    assert (row["count"], row["avg"], row["min"], row["max"]) == (3, 668.0, 1.0, 2000.0)
    # Each key is the least latency of its bucket, in microseconds: a power of two of nanoseconds.
    assert row["histogram"] == {0.512: 1, 2.048: 1, 1048.576: 1}


def test_latency_covers_the_wait(clock: Clock) -> None:
    graph, stats, storage = graph_of()
    gate: Waiter[Any] = Waiter()
    storage.answer = lambda req: gate
    call = Call(graph.top(fops.Stat(LOC)))
    clock.now += 5_000_000
    gate.set(sample_reply(fops.Stat))
    call.result()
    assert stats.profile(peek=True)["cumulative"]["fops"]["stat"]["max"] == 5001.0


def test_errors_and_cancellations_are_counted() -> None:
    graph, stats, storage = graph_of()

    def answer(req: Any) -> Any:
        if isinstance(req, fops.Read):
            return Waiter()
        raise FopError(2)

    storage.answer = answer
    assert Call(graph.top(fops.Stat(LOC))).errno == 2
    read = Call(graph.top(fops.Read(Fd(ROOT_GFID, 0), 0, 10)))
    read.cancel()
    assert read.cancelled
    rows = stats.profile()["cumulative"]["fops"]
    assert {name: (row["count"], row["errors"]) for name, row in rows.items()} == {"stat": (1, 1), "read": (1, 1)}


def test_bytes_and_block_sizes() -> None:
    graph, stats, storage = graph_of()
    fd = Fd(ROOT_GFID, 2)

    def answer(req: Any) -> Any:
        if isinstance(req, fops.Read):
            return fops.ReadReply(data=b"x" * (req.size - 1), stat=Iatt(), eof=True)
        return fops.WriteReply(count=len(req.data), pre=Iatt(), post=Iatt())

    storage.answer = answer
    for size in (4097, 4097, 2):
        Call(graph.top(fops.Read(fd, 0, size))).result()
    Call(graph.top(fops.Write(fd, 0, b"y" * 5000))).result()
    Call(graph.top(fops.Write(fd, 0, b""))).result()
    figures = stats.profile()["cumulative"]
    assert (figures["read"], figures["written"]) == (4096 + 4096 + 1, 5000)
    assert figures["blocks"] == {
        0: {"reads": 0, "writes": 1},
        1: {"reads": 1, "writes": 0},
        4096: {"reads": 2, "writes": 1},
    }


def test_intervals_and_reset(clock: Clock) -> None:
    graph, stats, _ = graph_of()
    Call(graph.top(fops.Stat(LOC))).result()
    graph.reactor.advance(10)  # type: ignore[attr-defined]
    first = stats.profile()
    assert (first["interval"]["number"], first["interval"]["duration"]) == (0, 10)
    assert first["interval"]["fops"] == first["cumulative"]["fops"]
    clock.step = 9_000
    Call(graph.top(fops.Stat(LOC))).result()
    graph.reactor.advance(5)  # type: ignore[attr-defined]
    peeked, second = stats.profile(peek=True), stats.profile()
    assert peeked == second
    assert (second["interval"]["number"], second["interval"]["duration"]) == (1, 5)
    assert second["interval"]["fops"]["stat"]["count"] == 1
    assert second["interval"]["fops"]["stat"]["min"] == 9.0
    cumulative = second["cumulative"]
    assert (cumulative["duration"], cumulative["fops"]["stat"]["count"]) == (15, 2)
    assert (cumulative["fops"]["stat"]["min"], cumulative["fops"]["stat"]["max"]) == (1.0, 9.0)
    assert stats.profile()["interval"]["fops"] == {}
    stats.reset()
    empty = stats.profile()
    assert empty["cumulative"]["fops"] == {}
    assert (empty["cumulative"]["duration"], empty["interval"]["number"]) == (0, 0)


def test_folding_loses_nothing(clock: Clock) -> None:
    graph, stats, _ = graph_of()
    fd = Fd(ROOT_GFID, 2)
    for number in range(2 * FOLD_AT + 10):
        clock.step = 1000 + number
        graph.top(fops.Flush(fd)).close()  # never begun, so not counted
        Call(graph.top(fops.Flush(fd))).result()
    row = stats.profile()["cumulative"]["fops"]["flush"]
    assert row["count"] == 2 * FOLD_AT + 10
    assert (row["min"], row["max"]) == (1.0, round((1000 + number) / 1000, 2))
    assert sum(row["histogram"].values()) == row["count"]


def test_counting_without_a_clock() -> None:
    graph, stats, storage = graph_of(latency_measurement="off")
    Call(graph.top(fops.Stat(LOC))).result()
    Call(graph.top(fops.Read(Fd(ROOT_GFID, 0), 0, 10))).result()
    storage.answer = lambda req: Waiter()
    Call(graph.top(fops.Write(Fd(ROOT_GFID, 0), 0, b"abc"))).cancel()
    Call(graph.top(fops.Stat(LOC))).cancel()
    assert stats.profile()["cumulative"]["fops"] == {
        "stat": {"count": 2, "errors": 1},
        "read": {"count": 1, "errors": 0},
        "write": {"count": 1, "errors": 1},
    }


def test_nothing_is_counted_when_both_are_off_and_again_when_on() -> None:
    graph, stats, _ = graph_of(latency_measurement="off", count_fop_hits="off")
    Call(graph.top(fops.Stat(LOC))).result()
    assert stats.profile()["cumulative"]["fops"] == {}
    old, stats.options = stats.options, IoStats.Options(latency_measurement=True)
    stats.options_changed(old)
    Call(graph.top(fops.Stat(LOC))).result()
    assert stats.profile()["cumulative"]["fops"]["stat"]["count"] == 1


def test_dump_fd_stats(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glustx.io-stats")
    graph, stats, storage = graph_of(dump_fd_stats="on")
    fd, unused = Fd(ROOT_GFID, 2), Fd(ROOT_GFID, 2)

    def answer(req: Any) -> Any:
        if isinstance(req, fops.Write):
            return fops.WriteReply(count=len(req.data), pre=Iatt(), post=Iatt())
        return sample_reply(type(req))

    storage.answer = answer
    Call(graph.top(fops.Write(fd, 0, b"abc"))).result()
    Call(graph.top(fops.Read(fd, 0, 10))).result()
    graph.reactor.advance(2)  # type: ignore[attr-defined]
    Call(graph.top(fops.Release(unused))).result()
    Call(graph.top(fops.Release(fd))).result()
    assert [record.getMessage() for record in caplog.records if record.name == "glustx.io-stats"] == [
        f"io-stats: {fd} was in use for 2.000 s: 1 reads of 0 bytes, 1 writes of 3 bytes"
    ]
    assert stats.profile()["cumulative"]["fops"]["release"]["count"] == 2


def test_log_level_lasts_as_long_as_the_graph() -> None:
    logger = logging.getLogger("glustx")
    before = logger.level
    graph, stats, _ = graph_of(log_level="ERROR")
    assert logger.level == logging.ERROR
    old, stats.options = stats.options, IoStats.Options(log_level="DEBUG")
    stats.options_changed(old)
    assert logger.level == logging.DEBUG
    run_now(graph.stop())
    assert logger.level == before


def test_statedump(clock: Clock) -> None:
    graph, _, _ = graph_of()
    Call(graph.top(fops.Stat(LOC))).result()
    dump = graph.statedump()
    assert "fop.stat.count=1\nfop.stat.errors=0\nfop.stat.latency=avg:1.0,min:1.0,max:1.0\n" in dump
    assert "option.latency-measurement=True" in dump
