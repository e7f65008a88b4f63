"""performance/io-threads: limits, priorities, who never queues, cancellation, live limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx import fops
from glustx.errors import FopError
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.runtime import Waiter, turn
from glustx.values import ROOT_GFID, Caller, Loc
from glustx.xlators.performance.io_threads import IoThreads
from tests.fakes import ALL_FOPS, Call, Storage, sample_reply, sample_request, stack

LOC = Loc(gfid=ROOT_GFID)
HIGH, NORMAL, LOW = fops.Stat, fops.Setattr, fops.Read


class Queueing:
    """io-threads over a storage whose fops end when told to: `gates` in order of arrival."""

    def __init__(self, **options: int) -> None:
        texts = {key.replace("_", "-"): str(number) for key, number in options.items()}
        self.graph: Graph = stack(Storage, (IoThreads, texts))
        self.storage: Any = self.graph.xlators["fake"]
        self.threads: Any = self.graph.xlators["io-threads"]
        self.gates: list[Waiter[Any]] = []
        self.storage.answer = self._gate

    def _gate(self, req: Any) -> Waiter[Any]:
        waiter: Waiter[Any] = Waiter()
        self.gates.append(waiter)
        return waiter

    def send(self, cls: type[fops.Fop], pid: int = 1) -> Call:
        return Call(self.graph.top(sample_request(cls, caller=Caller(pid=pid))))

    def end(self, index: int = 0) -> None:
        self.gates.pop(index).set(None)

    @property
    def seen(self) -> list[str]:
        return [req.name for req in self.storage.seen]

    def figures(self) -> dict[str, int]:
        return {key: value for key, value in self.threads.statedump().items() if value}


def test_a_class_has_its_limit_and_its_order() -> None:
    brick = Queueing(low_prio_threads=2)
    calls = [brick.send(LOW) for _ in range(5)]
    assert len(brick.gates) == 2
    assert brick.figures() == {"low.under-way": 2, "low.waiting": 3}
    order = [req.caller.pid for req in brick.storage.seen]
    assert order == [1, 1]
    while brick.gates:
        brick.end()
    assert all(call.done for call in calls)
    assert brick.figures() == {}


def test_what_waits_goes_by_priority_then_by_arrival() -> None:
    brick = Queueing(thread_count=1)
    brick.send(LOW)
    for cls in (fops.Read, fops.Setattr, fops.Write, fops.Unlink):
        brick.send(cls)
    brick.send(fops.Mkdir, pid=-6)
    while brick.gates:
        brick.end()
    assert brick.seen == ["read", "setattr", "unlink", "read", "write", "mkdir"]


def test_high_has_places_beside_the_total() -> None:
    brick = Queueing(thread_count=2, high_prio_threads=1)
    for _ in range(4):
        brick.send(LOW)
    lookup = brick.send(fops.Lookup)
    assert brick.seen == ["read", "read", "lookup"]
    brick.send(HIGH)
    assert brick.figures() == {"low.under-way": 2, "low.waiting": 2, "high.under-way": 1, "high.waiting": 1}
    brick.end(2)
    assert lookup.done
    assert brick.seen[-1] == "stat"


def test_internal_clients_have_the_least_class() -> None:
    brick = Queueing()
    brick.send(LOW, pid=-6)
    brick.send(HIGH, pid=-3)
    brick.send(HIGH, pid=-4)  # a mount without root squashing is no internal client
    assert brick.figures() == {"least.under-way": 1, "least.waiting": 1, "high.under-way": 1}
    off = Queueing(enable_least_priority=0)
    off.send(LOW, pid=-6)
    off.send(LOW, pid=-6)
    assert off.figures() == {"low.under-way": 2}


NEVER = [cls for cls in ALL_FOPS if cls.effects & (fops.LOCKS | fops.INTERNAL)] + [
    fops.Flush,
    fops.Release,
    fops.Releasedir,
]


def test_locks_flush_and_release_never_queue() -> None:
    brick = Queueing(thread_count=1, high_prio_threads=1)
    brick.send(LOW)
    brick.send(HIGH)
    for cls in NEVER:
        brick.send(cls)
    assert brick.seen[2:] == [cls.name for cls in NEVER]
    for cls in ALL_FOPS:
        if cls not in NEVER:
            assert not brick.send(cls).done
    assert len(brick.storage.seen) == 2 + len(NEVER)


def test_a_fop_holds_its_place_until_it_ends_however() -> None:
    brick = Queueing(low_prio_threads=1)
    first, second, third = brick.send(LOW), brick.send(LOW), brick.send(LOW)
    brick.gates.pop(0).fail(FopError(5))
    assert first.errno == 5
    second.cancel()
    assert second.cancelled
    assert not third.done
    brick.gates[-1].set(None)
    assert third.done
    assert brick.figures() == {}


def test_fops_that_never_wait_pass_and_leave_nothing() -> None:
    brick = Queueing(thread_count=1)
    brick.storage.answer = lambda req: sample_reply(type(req))
    for cls in ALL_FOPS:
        assert isinstance(brick.send(cls).result(), cls.reply)
    assert brick.figures() == {}


@pytest.mark.parametrize("order", ["waiting", "cancel first", "place first"])
def test_called_off_while_queued(order: str) -> None:
    brick = Queueing(low_prio_threads=1)
    brick.send(LOW)
    second, third = brick.send(LOW), brick.send(LOW)

    def race() -> None:
        if order == "cancel first":
            second.cancel()
        if order != "waiting":
            brick.end()
        if order != "cancel first":
            second.cancel()

    turn(race)
    if order == "waiting":
        brick.end()
    assert second.cancelled
    assert brick.figures() == {"low.under-way": 1}
    brick.end(-1)
    assert third.done
    assert brick.figures() == {}


def test_limits_change_under_load() -> None:
    brick = Queueing(low_prio_threads=1)
    for _ in range(6):
        brick.send(LOW)
    old = brick.threads.options
    brick.threads.options = IoThreads.Options(low_prio_threads=4)
    brick.threads.options_changed(old)
    assert brick.figures() == {"low.under-way": 4, "low.waiting": 2}
    brick.threads.options = IoThreads.Options(low_prio_threads=1)
    brick.threads.options_changed(old)
    brick.end()
    brick.end()
    brick.end()
    assert brick.figures() == {"low.under-way": 1, "low.waiting": 2}
    brick.end()
    assert brick.figures() == {"low.under-way": 1, "low.waiting": 1}


def test_without_storage_below_everything_passes() -> None:
    class Remote(Storage):
        type_name = "protocol/fake"

    graph = stack(Remote, (IoThreads, {"thread-count": "1"}))
    assert graph.root.table == graph.xlators["fake"].table


@given(
    st.lists(
        st.tuples(st.sampled_from(["send", "end", "cancel"]), st.integers(0, 9), st.sampled_from([1, 1, -6])),
        min_size=10,
        max_size=60,
    )
)
def test_places_are_neither_lost_nor_given_twice(program: list[tuple[str, int, int]]) -> None:
    brick = Queueing(thread_count=3, high_prio_threads=2, normal_prio_threads=2, low_prio_threads=2)
    calls: list[Call] = []
    for what, number, pid in program:
        if what == "send":
            calls.append(brick.send((HIGH, NORMAL, LOW)[number % 3], pid))
        elif what == "end" and brick.gates:
            brick.end(number % len(brick.gates))
        elif what == "cancel" and calls:
            calls[number % len(calls)].cancel()
        state = brick.threads.statedump()
        under_way = {name: state[f"{name}.under-way"] for name in ("high", "normal", "low", "least")}
        waiting = {name: state[f"{name}.waiting"] for name in under_way}
        assert under_way["high"] <= 2 and under_way["normal"] <= 2 and under_way["low"] <= 2 and under_way["least"] <= 1
        bulk = under_way["normal"] + under_way["low"] + under_way["least"]
        assert bulk <= 3
        for name, limit in (("normal", 2), ("low", 2), ("least", 1)):
            assert not waiting[name] or under_way[name] == limit or bulk == 3, "a free place, and somebody waits"
        assert not waiting["high"] or under_way["high"] == 2
        assert sum(under_way.values()) + sum(waiting.values()) == sum(not call.done for call in calls)
    for call in calls:
        call.cancel()
    assert brick.figures() == {}


def test_an_fd_of_a_queued_write_is_untouched() -> None:
    brick = Queueing(low_prio_threads=1)
    brick.send(LOW)
    fd = Fd(ROOT_GFID, 2)
    Call(brick.graph.top(fops.Write(fd, 0, memoryview(b"abc"))))
    assert len(brick.storage.seen) == 1
    brick.end()
    assert brick.storage.seen[1].fd is fd
    assert bytes(brick.storage.seen[1].data) == b"abc"
