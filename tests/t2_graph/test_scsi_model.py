"""Random commands against a model in plain bytes, and random places in the order of commands against its rules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx.scsi.order import Hold, Order
from glustx.scsi.sense import MISCOMPARE
from glustx.scsi.task import HEAD_OF_QUEUE, ORDERED, SIMPLE
from tests.scsi_kit import MEMORY, Rig, cdb_10, cdb_12, cdb_16
from tests.t2_graph.test_scsi_blocks import unmap, unmap_list
from tests.t2_graph.test_scsi_verify import compare_and_write

BS = 512
BLOCKS = 96

KINDS = ["write", "same", "zero", "unmap same", "unmap", "or", "compare", "wrong compare", "verify", "read"]
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, BLOCKS - 1), st.integers(1, 40), st.integers(0, 255))


def check_steps(rig: Rig, steps: list[tuple[str, int, int, int]]) -> None:
    rig.good(cdb_10(0x41, 0, 0), bytes(BS))
    model = bytearray(BLOCKS * BS)
    for kind, lba, wanted, value in steps:
        count = min(wanted, BLOCKS - lba)
        at, end = lba * BS, (lba + count) * BS
        old = bytes(model[at:end])
        data = bytes((value + index * 13) & 0xFF for index in range(count * BS))
        if kind == "write":
            rig.good(cdb_12(0xAA, lba, count), data)
            model[at:end] = data
        elif kind == "same":
            rig.good(cdb_16(0x93, lba, count), data[:BS])
            model[at:end] = data[:BS] * count
        elif kind == "zero":
            rig.good(cdb_10(0x41, lba, count), bytes(BS))
            model[at:end] = bytes(count * BS)
        elif kind == "unmap same":
            rig.good(cdb_16(0x93, lba, count, 0x09))
            model[at:end] = bytes(count * BS)
        elif kind == "unmap":
            parameters = unmap_list((lba, count), (value % BLOCKS, 1))
            rig.good(unmap(parameters), parameters)
            model[at:end] = bytes(count * BS)
            model[value % BLOCKS * BS : (value % BLOCKS + 1) * BS] = bytes(BS)
        elif kind == "or":
            rig.good(cdb_16(0x8B, lba, count), data)
            model[at:end] = bytes(one | other for one, other in zip(old, data, strict=True))
        elif kind == "compare":
            rig.good(compare_and_write(lba, count), old + data)
            model[at:end] = data
        elif kind == "wrong compare":
            where = value * 7 % len(old)
            wrong = old[:where] + bytes([old[where] ^ 0x40]) + old[where + 1 :]
            sense = rig.sense(compare_and_write(lba, count), wrong + data)
            assert (sense.key, sense.information) == (MISCOMPARE, where)
        elif kind == "verify":
            rig.good(cdb_10(0x2F, lba, count, 0x02), old)
        else:
            assert rig.good(cdb_10(0x28, lba, count)) == old
    assert rig.good(cdb_10(0x28, 0, BLOCKS)) == model
    assert len(rig.unit.order) == 0


@pytest.fixture(scope="module", params=["memory", "posix"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder: Path = tmp_path_factory.mktemp("brick")
    posix = f"volume m\n type storage/posix\n option directory {folder}\nend-volume\n"
    rig = Rig(MEMORY if request.param == "memory" else posix, size=BLOCKS * BS)
    yield rig
    rig.close()


@given(st.lists(STEP, min_size=1, max_size=12))
@settings(max_examples=12, deadline=None)
def test_random_commands_leave_what_plain_bytes_would(rig: Rig, steps: list[tuple[str, int, int, int]]) -> None:
    check_steps(rig, steps)


PLACE = st.tuples(
    st.integers(0, 8),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([SIMPLE, SIMPLE, SIMPLE, ORDERED, HEAD_OF_QUEUE]),
)


@given(st.lists(PLACE, min_size=1, max_size=10), st.lists(st.integers(0, 9), min_size=10, max_size=10), st.booleans())
@settings(max_examples=40, deadline=None)
def test_overlapping_commands_run_one_after_the_other(
    places: list[tuple[int, int, bool, int]], leavers: list[int], restricted: bool
) -> None:
    order = Order(restricted)
    arrived: list[Hold] = []
    left: list[Hold] = []

    def runs(hold: Hold) -> bool:
        return hold.waiter is None or hold.waiter.done

    def conflict(one: Hold, other: Hold) -> bool:
        writes = one.writes or other.writes if restricted else one.writes and other.writes
        return writes and one.first < other.end and other.first < one.end

    def check() -> None:
        here = [hold for hold in arrived if hold not in left]
        running = [hold for hold in here if runs(hold)]
        for index, one in enumerate(running):
            for other in running[index + 1 :]:
                assert not conflict(one, other)
        for hold in here:
            if hold.attribute == ORDERED and runs(hold):
                later = arrived[: arrived.index(hold)]
                assert all(each in left or each.attribute == HEAD_OF_QUEUE for each in later)
        assert running or not here  # nobody waits for nobody

    for (first, size, writes, attribute), leaver in zip(places, leavers, strict=False):
        arrived.append(order.enter(first, first + size, writes, attribute))
        check()
        here = [hold for hold in arrived if hold not in left and runs(hold)]
        if here and leaver % 2:
            hold = here[leaver % len(here)]
            if hold.end - hold.first > 1:
                order.shrink(hold, hold.first + 1)
                check()
            order.leave(hold)
            left.append(hold)
            check()
    while len(left) < len(arrived):
        hold = next(hold for hold in arrived if hold not in left and runs(hold))
        order.leave(hold)
        left.append(hold)
        check()
    assert len(order) == 0


def test_overlapping_writes_end_in_the_order_of_their_arrival() -> None:
    order = Order()
    holds = [order.enter(5, 9, True, SIMPLE) for _ in range(5)]
    for one, other in pairwise(holds):
        assert other.waiter is not None and not other.waiter.done
        order.leave(one)
        assert other.waiter.done


def test_a_command_at_the_head_of_the_queue_passes_those_that_wait() -> None:
    order = Order()
    first = order.enter(0, 8, True, SIMPLE)
    waits = order.enter(0, 16, True, SIMPLE)
    head = order.enter(8, 16, True, HEAD_OF_QUEUE)
    assert head.waiter is None
    order.leave(first)
    assert waits.waiter is not None and not waits.waiter.done
    order.leave(head)
    assert waits.waiter.done
