"""VERIFY, WRITE AND VERIFY, COMPARE AND WRITE and ORWRITE, on a brick in this process and on one over a network."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from glustx import fops
from glustx.scsi.sense import MISCOMPARE
from glustx.scsi.task import GOOD
from tests.scsi_kit import MEMORY, Faulty, Rig, cdb_10, cdb_12, cdb_16

BS = 512


@pytest.fixture(params=["local", "remote"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(size=4 << 20)
    rig.unit.backing.remote = request.param == "remote"
    yield rig
    rig.close()


def compare_and_write(lba: int, count: int, flags: int = 0) -> bytes:
    return bytes([0x89, flags]) + lba.to_bytes(8, "big") + bytes([0, 0, 0, count, 0, 0])


def pattern(size: int, seed: int = 1) -> bytes:
    return bytes((seed + at * 7 + at // 251) & 0xFF for at in range(size))


@pytest.mark.parametrize("verify", [cdb_10(0x2F, 8, 64), cdb_12(0xAF, 8, 64), cdb_16(0x8F, 8, 64)])
def test_verify_checks_the_medium_the_data_or_one_block(rig: Rig, verify: bytes) -> None:
    data = pattern(64 * BS)
    rig.good(cdb_10(0x2A, 8, 64), data)
    compare, same = verify[:1] + b"\x02" + verify[2:], verify[:1] + b"\x06" + verify[2:]
    rig.good(verify)
    assert rig.target.data_out_length(rig.nexus, 0, verify) == 0
    rig.good(compare, data)
    for at in (0, 37, 511, 512, 64 * BS - 1):
        wrong = bytearray(data)
        wrong[at] ^= 1
        sense = rig.sense(compare, bytes(wrong))
        assert (sense.key, sense.asc, sense.ascq, sense.information) == (MISCOMPARE, 0x1D, 0, at)
    rig.good(cdb_10(0x41, 8, 64), data[:BS])
    assert rig.target.data_out_length(rig.nexus, 0, same) == BS
    rig.good(same, data[:BS])
    rig.good(cdb_10(0x2A, 70, 1), data[BS : 2 * BS])
    sense = rig.sense(same, data[:BS])
    assert sense.key == MISCOMPARE and sense.information == 62 * BS
    assert rig.sense(verify[:1] + b"\x04" + verify[2:]).asc == 0x24


def test_a_verify_of_more_than_one_piece_names_the_byte(rig: Rig) -> None:
    blocks = (3 << 20) // BS
    rig.good(cdb_16(0x93, 1, blocks), b"s" * BS)
    rig.good(cdb_16(0x8F, 0, 0x2000))
    rig.good(cdb_16(0x8F, 1, blocks, 0x06), b"s" * BS)
    rig.good(cdb_16(0x8F, 1, blocks, 0x02), b"s" * blocks * BS)
    rig.good(cdb_10(0x2A, 5000, 1), b"s" * 100 + b"t" + b"s" * 411)
    for flags, data in ((0x06, b"s" * BS), (0x02, b"s" * blocks * BS)):
        sense = rig.sense(cdb_16(0x8F, 1, blocks, flags), data)
        assert (sense.key, sense.information) == (MISCOMPARE, 4999 * BS + 100)


def test_a_verify_with_less_data_compares_what_came(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 2), b"a" * BS + b"b" * BS)
    rig.good(cdb_10(0x2F, 0, 2, 0x02), b"a" * BS)
    rig.good(cdb_10(0x2F, 0, 2, 0x02), b"")
    rig.good(cdb_10(0x2F, 0, 0, 0x02), b"")
    rig.good(cdb_10(0x2F, 0, 0, 0x06), b"")


@pytest.mark.parametrize("cdb", [cdb_10(0x2E, 4, 8), cdb_12(0xAE, 4, 8), cdb_16(0x8E, 4, 8)])
def test_write_and_verify_writes_durably(rig: Rig, cdb: bytes) -> None:
    data = pattern(8 * BS)
    rig.good(cdb, data)
    assert rig.good(cdb_10(0x28, 4, 8)) == data
    assert not rig.unit.backing.written
    other = pattern(8 * BS, 9)
    rig.good(cdb[:1] + b"\x12" + cdb[2:], other)
    assert rig.good(cdb_10(0x28, 4, 8)) == other
    for flags in (0x04, 0x06, 0x08, 0x20):
        assert rig.sense(cdb[:1] + bytes([flags]) + cdb[2:], data).asc == 0x24
    rig.good(cdb, data[:BS])
    assert rig.good(cdb_10(0x28, 4, 8)) == data[:BS] + other[BS:]


def test_compare_and_write_writes_only_what_it_expects(rig: Rig) -> None:
    old, new = b"o" * BS, b"n" * BS
    rig.good(cdb_10(0x2A, 7, 1), old)
    wrong = bytearray(old)
    wrong[37] = 0
    sense = rig.sense(compare_and_write(7, 1), bytes(wrong) + new)
    assert (sense.key, sense.asc, sense.ascq, sense.information) == (MISCOMPARE, 0x1D, 0, 37)
    assert rig.good(cdb_10(0x28, 7, 1)) == old
    rig.good(compare_and_write(7, 1, 0x18), old + new)
    assert rig.good(cdb_10(0x28, 7, 1)) == new
    assert not rig.unit.backing.written
    last = rig.unit.blocks - 1
    rig.good(compare_and_write(last, 1), bytes(BS) + new)
    assert rig.good(cdb_10(0x28, last, 1)) == new
    rig.good(compare_and_write(7, 0))
    assert rig.sense(compare_and_write(last, 2), bytes(4 * BS)).asc == 0x21


def test_compare_and_write_keeps_to_its_limit_and_its_size(rig: Rig) -> None:
    most = rig.unit.limits.max_compare
    rig.good(compare_and_write(0, most), bytes(2 * most * BS))
    if most < 255:
        assert rig.sense(compare_and_write(0, most + 1), bytes(2 * (most + 1) * BS)).asc == 0x24
    for size in (0, BS, 3 * BS, 4 * BS):
        assert rig.sense(compare_and_write(0, 1), bytes(size)).key == 5


def test_compare_and_write_beyond_its_limit_is_refused() -> None:
    rig = Rig(size=4 << 20, block_size=4096)
    try:
        rig.unit.limits = msgspec.structs.replace(rig.unit.limits, max_compare=4)
        assert rig.sense(compare_and_write(0, 5), bytes(10 * 4096)).asc == 0x24
        assert rig.target.data_out_length(rig.nexus, 0, compare_and_write(0, 5)) == 0
    finally:
        rig.close()


def test_orwrite_sets_bits(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 3, 3), b"\xa5" * 3 * BS)
    rig.good(cdb_16(0x8B, 4, 1), b"\x5a" * BS)
    assert rig.good(cdb_10(0x28, 3, 3)) == b"\xa5" * BS + b"\xff" * BS + b"\xa5" * BS
    rig.good(cdb_16(0x8B, 4, 0))
    rig.good(cdb_16(0x8B, 5, 2, 0x18), b"\x01" * 2 * BS)
    assert rig.good(cdb_10(0x28, 5, 2)) == b"\xa5" * BS + b"\x01" * BS


LOCKS = MEMORY + "volume l\n type features/locks\n subvolumes m\nend-volume\n"


@pytest.mark.parametrize("volfile", [MEMORY, LOCKS])
def test_many_sessions_increment_one_block(volfile: str) -> None:
    rig = Rig(volfile)
    try:
        sessions = [rig.login(f"iqn.2026-12.org.example:{index},i,0x{index:012x}") for index in range(8)]
        wins = 0
        for _ in range(25):
            old = rig.good(cdb_10(0x28, 9, 1))
            value = int.from_bytes(old, "big")
            new = (value + 1).to_bytes(BS, "big")
            rounds = [rig.begin(compare_and_write(9, 1), old + new, nexus=nexus)[1] for nexus in sessions]
            results = [rig.wait(pending) for pending in rounds]
            wins += sum(result.status == GOOD for result in results)
        assert wins == 25
        assert int.from_bytes(rig.good(cdb_10(0x28, 9, 1)), "big") == wins
        assert len(rig.unit.order) == 0
    finally:
        rig.close()


def test_the_data_of_a_brick_that_is_far_stays_there() -> None:
    rig = Rig(size=64 << 20)
    try:
        rig.unit.backing.remote = True
        data = pattern(8 << 20)
        rig.good(cdb_16(0x8A, 0, len(data) // BS), data)
        brick = Faulty(rig)
        rig.good(cdb_16(0x8F, 0, rig.unit.blocks))
        assert brick.counts[fops.Rchecksum] == 8 and brick.counts[fops.Seek] <= 4  # the rest is a hole
        rig.good(cdb_16(0x8F, 0, len(data) // BS, 0x02), data)
        assert brick.counts[fops.Read] == 0
        assert sum(brick.counts.values()) < 25
    finally:
        rig.close()
