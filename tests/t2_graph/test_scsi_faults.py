"""Bricks that are full, broken, away or unable, and commands that take long: what an initiator hears of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.runtime import Waiter
from glustx.scsi.target import Answer, Function
from glustx.scsi.task import GOOD
from glustx.values import Iatt
from tests.scsi_kit import Faulty, Rig, cdb_10, cdb_16
from tests.t2_graph.test_scsi_blocks import unmap, unmap_list
from tests.t2_graph.test_scsi_verify import compare_and_write

BS = 512
MIB = 1 << 20

WRITES = [
    (bytes([0x0A, 0, 0, 0, 1, 0]), BS),
    (cdb_10(0x2A, 0, 1), BS),
    (cdb_16(0x8A, 0, 1, 0x08), BS),
    (cdb_10(0x2E, 0, 1), BS),
    (cdb_10(0x41, 0, 1), BS),
    (cdb_16(0x8B, 0, 1), BS),
]


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(size=4 * MIB)
    yield rig
    rig.close()


@pytest.fixture
def brick(rig: Rig) -> Faulty:
    rig.good(cdb_10(0x2A, 0, 64), b"k" * 64 * BS)
    rig.good(cdb_10(0x35, 0, 0))
    return Faulty(rig)


def triple(rig: Rig, cdb: bytes, data: Any = b"") -> tuple[int, int, int]:
    sense = rig.sense(cdb, data)
    return sense.key, sense.asc, sense.ascq


@pytest.mark.logs("failed")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_brick_refuses_writes_until_there_is_space(rig: Rig, brick: Faulty, code: int) -> None:
    brick.errors[fops.Write] = brick.errors[fops.Zerofill] = code
    for cdb, size in [*WRITES, (compare_and_write(0, 1), 2 * BS)]:
        assert triple(rig, cdb, b"k" * size) == (7, 0x27, 0x07)
    assert triple(rig, cdb_10(0x41, 0, 1), bytes(BS)) == (7, 0x27, 0x07)
    assert rig.good(cdb_10(0x28, 0, 64)) == b"k" * 64 * BS
    data = unmap_list((8, 8))
    rig.good(unmap(data), data)
    brick.errors.clear()
    for cdb, size in WRITES:
        rig.good(cdb, b"n" * size)
    assert rig.good(cdb_10(0x28, 0, 1)) == b"n" * BS


@pytest.mark.logs("failed")
def test_a_write_that_stops_half_way_is_not_good(rig: Rig, brick: Faulty) -> None:
    async def half(req: fops.Write) -> fops.WriteReply:
        if len(req.data) <= 4 * BS:
            raise FopError(errno.ENOSPC, "full")
        return fops.WriteReply(count=len(req.data) - 4 * BS, pre=Iatt(), post=Iatt())

    whole = brick.child

    async def child(req: fops.Fop) -> Any:
        return await (half(req) if isinstance(req, fops.Write) else whole(req))

    brick.child = child  # type: ignore[assignment]
    assert triple(rig, cdb_10(0x2A, 0, 8), b"n" * 8 * BS) == (7, 0x27, 0x07)


@pytest.mark.logs("failed")
@pytest.mark.parametrize(
    ("code", "reading", "writing"),
    [
        (errno.EROFS, (4, 0x44, 0), (7, 0x27, 0x01)),
        (errno.ENOTCONN, (2, 0x04, 0x01), (2, 0x04, 0x01)),
        (errno.ETIMEDOUT, (2, 0x04, 0x01), (2, 0x04, 0x01)),
        (errno.EINVAL, (4, 0x44, 0), (4, 0x44, 0)),
    ],
)
def test_every_trouble_of_a_brick_has_its_sense(
    rig: Rig, brick: Faulty, code: int, reading: tuple[int, int, int], writing: tuple[int, int, int]
) -> None:
    brick.errors[fops.Write] = brick.errors[fops.Read] = code
    assert triple(rig, cdb_10(0x28, 0, 1)) == reading
    assert triple(rig, cdb_10(0x2F, 0, 1)) == reading
    for cdb, size in WRITES[:5]:
        assert triple(rig, cdb, b"n" * size) == writing


@pytest.mark.logs("failed")
@pytest.mark.parametrize("bad", [0, 5, 36, 63])
def test_a_bad_block_is_named(rig: Rig, brick: Faulty, bad: int) -> None:
    def broken(req: fops.Read) -> int:
        return errno.EIO if req.offset <= bad * BS < req.offset + req.size else 0

    brick.errors[fops.Read] = broken
    brick.errors[fops.Write] = errno.EIO
    for cdb, data in (
        (cdb_10(0x28, 0, 64), b""),
        (cdb_10(0x2F, 0, 64), b""),
        (cdb_10(0x2F, 0, 64, 0x02), b"k" * 64 * BS),
        (cdb_16(0x8F, 0, 0x1000), b""),
        (compare_and_write(0, 64), b"k" * 128 * BS),
    ):
        sense = rig.sense(cdb, data)
        assert (sense.key, sense.asc, sense.ascq, sense.information) == (3, 0x11, 0, bad)
    sense = rig.sense(cdb_10(0x2A, bad, 2), b"n" * 2 * BS)
    assert (sense.key, sense.asc, sense.ascq, sense.information) == (3, 0x0C, 0, bad)
    assert rig.unit.exceptions.failing


@pytest.mark.logs("failed")
@pytest.mark.parametrize("immed", [0, 2])
def test_a_flush_that_failed_fails_for_ever(rig: Rig, brick: Faulty, immed: int) -> None:
    rig.good(cdb_10(0x2A, 0, 1), b"n" * BS)
    brick.errors[fops.Fsync] = errno.EIO
    if immed:
        rig.good(cdb_10(0x35, 0, 0, immed))
        rig.reactor.run()
    else:
        assert triple(rig, cdb_10(0x35, 0, 0)) == (3, 0x0C, 0)
    brick.errors.clear()
    assert triple(rig, cdb_10(0x35, 0, 0)) == (3, 0x0C, 0)
    assert triple(rig, cdb_16(0x8A, 0, 1, 0x08), b"n" * BS) == (3, 0x0C, 0)
    assert rig.good(cdb_10(0x28, 0, 1)) == b"n" * BS
    rig.unit.backing._failed = None  # so that the gateway can stop without a word


@pytest.mark.logs("failed")
def test_a_flush_that_found_nobody_is_done_later(rig: Rig, brick: Faulty) -> None:
    rig.good(cdb_10(0x2A, 0, 1), b"n" * BS)
    brick.errors[fops.Fsync] = errno.ENOTCONN
    assert triple(rig, cdb_10(0x35, 0, 0)) == (2, 0x04, 0x01)
    assert rig.unit.backing.written
    brick.errors.clear()
    rig.good(cdb_10(0x35, 0, 0))
    assert not rig.unit.backing.written


def test_flushes_at_the_same_time_are_one(rig: Rig, brick: Faulty) -> None:
    gate: Waiter[None] = Waiter()
    brick.gates[fops.Fsync] = gate
    pending = [rig.begin(cdb_10(0x2A, lba, 1, 0x08), b"n" * BS)[1] for lba in range(16)]
    assert not any(each.done for each in pending)
    gate.set(None)
    assert all(rig.wait(each).status == GOOD for each in pending)
    assert brick.counts[fops.Fsync] == 2


def test_a_write_during_a_flush_is_flushed_by_the_next(rig: Rig, brick: Faulty) -> None:
    gate: Waiter[None] = Waiter()
    brick.gates[fops.Write] = gate
    _, write = rig.begin(cdb_10(0x2A, 0, 1), b"n" * BS)
    rig.good(cdb_10(0x35, 0, 0))
    gate.set(None)
    rig.wait(write)
    assert rig.unit.backing.written


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_brick_without_offloads_gets_zeroes_written(rig: Rig, brick: Faulty, code: int) -> None:
    brick.errors = {fops.Zerofill: code, fops.Discard: code, fops.Seek: errno.EOPNOTSUPP, fops.Rchecksum: code}
    rig.unit.backing.remote = True
    rig.good(cdb_10(0x41, 3, 21), bytes(BS))
    data = unmap_list((30, 3))
    rig.good(unmap(data), data)
    wanted = bytearray(b"k" * 64 * BS)
    wanted[3 * BS : 24 * BS] = bytes(21 * BS)
    wanted[30 * BS : 33 * BS] = bytes(3 * BS)
    assert rig.good(cdb_10(0x28, 0, 64)) == wanted
    rig.good(cdb_10(0x2F, 0, 64, 0x02), wanted)
    rig.good(cdb_16(0x8F, 0, 0x1800))
    status = rig.good(bytes([0x9E, 0x12]) + bytes(8) + (24).to_bytes(4, "big") + b"\0\0")
    assert status[8:] == bytes(8) + rig.unit.blocks.to_bytes(4, "big") + bytes(4)


def test_a_long_write_same_lets_others_in_and_ends_when_it_is_aborted() -> None:
    rig = Rig(size=256 * MIB)
    try:
        brick = Faulty(rig)
        task, pending = rig.begin(cdb_16(0x93, 2048, 0), b"p" * BS)
        assert brick.counts[fops.Write] == 1  # a piece, and then whoever has come meanwhile
        answers: list[Answer] = []
        rig.reactor.post(lambda: rig.begin(cdb_10(0x28, 0, 8)))
        rig.reactor.post(lambda: answers.append(rig.target.manage(rig.nexus, Function.ABORT_TASK, 0, task.tag)))
        rig.reactor.run()
        assert answers == [Answer.COMPLETE]
        assert brick.counts[fops.Write] <= 3
        assert len(rig.ended) == 2 and rig.ended[1] is pending and pending.result is None
        assert len(rig.unit.order) == 0
    finally:
        rig.close()


def test_an_unmap_keeps_its_place_and_gives_it_back_as_it_goes() -> None:
    rig = Rig(size=1 << 30, unmap_max_lba=1 << 21)
    try:
        brick = Faulty(rig)
        last = rig.unit.blocks - 8
        rig.good(cdb_10(0x2A, last, 8), b"o" * 8 * BS)
        gate: Waiter[None] = Waiter()
        brick.gates[fops.Discard] = gate
        data = unmap_list((0, rig.unit.blocks))
        _, whole = rig.begin(unmap(data), data)
        _, write = rig.begin(cdb_10(0x2A, last, 8), b"n" * 8 * BS)
        _, read = rig.begin(cdb_10(0x28, 0, 8))
        assert not (whole.done or write.done or read.done)
        gate.set(None)
        assert rig.wait(read).status == rig.wait(write).status == rig.wait(whole).status == GOOD
        assert rig.ended[1:] == [read, write, whole] or rig.ended[1:] == [read, whole, write]
        assert brick.counts[fops.Discard] == 16
        assert rig.good(cdb_10(0x28, last, 8)) == b"n" * 8 * BS
        assert len(rig.unit.order) == 0
    finally:
        rig.close()
