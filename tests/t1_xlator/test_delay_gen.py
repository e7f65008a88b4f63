"""debug/delay-gen: which fops wait, for how long, and that nobody else does."""

from __future__ import annotations

from typing import Any

import pytest

from glustx import fops
from glustx.errors import OptionError
from glustx.graph import Graph
from glustx.runtime import run_now
from glustx.xlators.debug.delay_gen import DelayGen
from tests.fakes import Call, Storage, sample_request, stack


def slow(**options: str) -> tuple[Graph, Any]:
    graph = stack(Storage, (DelayGen, {key.replace("_", "-"): text for key, text in options.items()}))
    run_now(graph.start())
    return graph, graph.reactor


def test_a_delayed_fop_waits_and_the_others_do_not() -> None:
    graph, reactor = slow(delay_percentage="100", delay_duration="250000", enable="READV")
    read = Call(graph.top(sample_request(fops.Read)))
    assert Call(graph.top(sample_request(fops.Stat))).done
    assert not read.done
    reactor.advance(0.2)
    assert not read.done
    reactor.advance(0.1)
    assert isinstance(read.result(), fops.ReadReply)
    assert "delayed=1" in graph.statedump()


def test_a_cancelled_delay_never_reaches_the_child() -> None:
    graph, reactor = slow(delay_percentage="100")
    call = Call(graph.top(sample_request(fops.Write)))
    call.cancel()
    assert call.cancelled
    reactor.advance(1)
    assert graph.xlators["fake"].seen == []  # type: ignore[attr-defined]


def test_the_share_is_drawn_from_the_seed() -> None:
    def delayed(seed: str) -> list[bool]:
        graph, _ = slow(delay_percentage="20", seed=seed)
        return [not Call(graph.top(sample_request(fops.Stat))).done for _ in range(500)]

    assert delayed("1") == delayed("1")
    assert delayed("1") != delayed("2")
    assert 60 < sum(delayed("1")) < 140
    assert not any(not Call(slow(delay_percentage="0")[0].top(sample_request(fops.Stat))).done for _ in range(20))


def test_bad_options() -> None:
    with pytest.raises(OptionError, match="enable"):
        slow(enable="raed")
    with pytest.raises(OptionError, match="delay-duration"):
        slow(delay_duration="-1")
