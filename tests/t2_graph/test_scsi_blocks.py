"""READ, WRITE, SYNCHRONIZE CACHE, WRITE SAME, UNMAP and GET LBA STATUS on a brick in this process."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from glustx.scsi.task import GOOD
from tests.scsi_kit import Rig, cdb_10, cdb_12, cdb_16

BS = 512


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def unmap_list(*ranges: tuple[int, int]) -> bytes:
    body = b"".join(struct.pack(">QIxxxx", lba, count) for lba, count in ranges)
    return struct.pack(">HHxxxx", 6 + len(body), len(body)) + body


def unmap(data: bytes, length: int | None = None) -> bytes:
    return b"\x42" + bytes(6) + (len(data) if length is None else length).to_bytes(2, "big") + b"\0"


def test_every_length_of_read_and_write_moves_the_same_blocks(rig: Rig) -> None:
    for at, (write, read) in enumerate(
        (
            (bytes([0x0A, 0, 0, 3, 2, 0]), bytes([0x08, 0, 0, 3, 2, 0])),
            (cdb_10(0x2A, 3, 2), cdb_10(0x28, 3, 2)),
            (cdb_12(0xAA, 3, 2), cdb_12(0xA8, 3, 2)),
            (cdb_16(0x8A, 3, 2), cdb_16(0x88, 3, 2)),
        )
    ):
        data = bytes([at + 1]) * 2 * BS
        rig.good(write, data)
        assert rig.good(read) == data
        assert rig.good(cdb_10(0x28, 2, 4)) == bytes(BS) + data + bytes(BS)


def test_zero_blocks_are_256_in_six_bytes_and_none_elsewhere(rig: Rig) -> None:
    rig.good(bytes([0x0A, 0, 0, 0, 0, 0]), b"x" * 256 * BS)
    assert rig.good(bytes([0x08, 0, 0, 0, 0, 0])) == b"x" * 256 * BS
    for cdb in (cdb_10(0x28, 5, 0), cdb_12(0xA8, 5, 0), cdb_16(0x88, 5, 0), cdb_10(0x2A, 5, 0), cdb_16(0x8A, 5, 0)):
        assert rig.good(cdb) == b""


@pytest.mark.parametrize(
    "cdb",
    [
        cdb_10(0x28, 2048, 0),
        cdb_10(0x28, 2047, 2),
        cdb_10(0x2A, 0xFFFFFFFF, 0),
        cdb_16(0x88, 1 << 63, 1),
        cdb_16(0x8A, (1 << 64) - 1, 1),
        cdb_16(0x93, (1 << 64) - 1, 2),
        cdb_10(0x35, 2049, 0),
        cdb_16(0x91, 0, 2049),
        cdb_10(0x34, 2049, 0),
        bytes([0x9E, 0x12]) + (2049).to_bytes(8, "big") + (24).to_bytes(4, "big") + b"\0\0",
    ],
)
def test_blocks_beyond_the_end_are_refused(rig: Rig, cdb: bytes) -> None:
    sense = rig.sense(cdb)
    assert (sense.key, sense.asc, sense.ascq) == (5, 0x21, 0)


@pytest.mark.parametrize("opcode", [0x28, 0x2A, 0x41])
@pytest.mark.parametrize("protect", range(1, 8))
def test_protection_information_is_refused(rig: Rig, opcode: int, protect: int) -> None:
    sense = rig.sense(cdb_10(opcode, 0, 1, protect << 5), bytes(BS))
    assert (sense.key, sense.asc) == (5, 0x24)


def test_more_blocks_than_the_limit_are_refused_and_not_asked_for() -> None:
    rig = Rig(size=64 << 20)
    try:
        most = rig.unit.limits.max_transfer
        assert len(rig.good(cdb_12(0xA8, 0, most))) == most * BS
        for cdb in (cdb_12(0xA8, 0, most + 1), cdb_12(0xAA, 0, most + 1)):
            sense = rig.sense(cdb)
            assert (sense.key, sense.asc) == (5, 0x24)
        assert rig.target.data_out_length(rig.nexus, 0, cdb_12(0xAA, 0, most + 1)) == 0
        assert rig.target.data_out_length(rig.nexus, 0, cdb_12(0xAA, 0, most)) == most * BS
    finally:
        rig.close()


def test_a_write_of_less_than_its_blocks_writes_what_came(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 4), b"o" * 4 * BS)
    rig.good(cdb_10(0x2A, 0, 4), b"n" * (2 * BS + 100))
    assert rig.good(cdb_10(0x28, 0, 4)) == b"n" * (2 * BS + 100) + b"o" * (2 * BS - 100)
    rig.good(cdb_10(0x2A, 0, 1), b"")
    rig.good(cdb_10(0x2A, 0, 1), b"m" * 200)
    assert rig.good(cdb_10(0x28, 0, 1)) == b"m" * 200 + b"n" * (BS - 200)


def test_write_same_repeats_its_block(rig: Rig) -> None:
    block = bytes(range(256)) * 2
    rig.good(cdb_10(0x41, 1, 5), block)
    assert rig.good(cdb_10(0x28, 0, 7)) == bytes(BS) + block * 5 + bytes(BS)
    rig.good(cdb_16(0x93, 2000, 0), block)
    assert rig.good(cdb_10(0x28, 1999, 49)) == bytes(BS) + block * 48


@pytest.mark.parametrize("flags", [0x00, 0x08, 0x09, 0x01])
def test_write_same_of_zeroes_reads_zero_and_leaves_the_neighbours(rig: Rig, flags: int) -> None:
    rig.good(cdb_10(0x2A, 0, 64), b"a" * 64 * BS)
    rig.good(cdb_16(0x93, 3, 21, flags), b"" if flags & 1 else bytes(BS))
    assert rig.good(cdb_10(0x28, 0, 64)) == b"a" * 3 * BS + bytes(21 * BS) + b"a" * 40 * BS


def test_write_same_with_unmap_of_other_data_writes_it(rig: Rig) -> None:
    rig.good(cdb_16(0x93, 8, 8, 0x08), b"p" * BS)
    assert rig.good(cdb_10(0x28, 8, 8)) == b"p" * 8 * BS


@pytest.mark.parametrize("size", [0, BS // 2, 2 * BS])
def test_write_same_wants_exactly_one_block(rig: Rig, size: int) -> None:
    sense = rig.sense(cdb_10(0x41, 0, 1), bytes(size))
    assert sense.key == 5


@pytest.mark.parametrize("flags", [0x10, 0x18, 0x02, 0x04, 0x06])
def test_write_same_refuses_anchors_and_what_is_obsolete(rig: Rig, flags: int) -> None:
    sense = rig.sense(cdb_16(0x93, 0, 1, flags), bytes(BS))
    assert (sense.key, sense.asc) == (5, 0x24)


def test_write_same_keeps_to_its_limit() -> None:
    rig = Rig(size=1 << 41)
    try:
        most = rig.unit.limits.max_write_same
        rig.good(cdb_16(0x93, 0, most), bytes(BS))
        for cdb in (cdb_16(0x93, 0, most + 1), cdb_16(0x93, 0, 0), cdb_10(0x41, 0, 0)):
            sense = rig.sense(cdb, bytes(BS))
            assert (sense.key, sense.asc) == (5, 0x24)
    finally:
        rig.close()


def test_unmapped_blocks_read_zero_and_the_others_stay(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 64), b"a" * 64 * BS)
    data = unmap_list((0, 1), (8, 8), (30, 3), (31, 1))
    rig.good(unmap(data), data)
    expected = bytearray(b"a" * 64 * BS)
    for lba, count in ((0, 1), (8, 8), (30, 3)):
        expected[lba * BS : (lba + count) * BS] = bytes(count * BS)
    assert rig.good(cdb_10(0x28, 0, 64)) == expected
    assert len(rig.unit.order) == 0


def test_an_unmap_that_is_wrong_anywhere_does_nothing(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 64), b"a" * 64 * BS)
    limits = rig.unit.limits
    for ranges, asc in (
        (((0, 8), (2048, 1)), 0x21),
        (((0, 8), (2049, 0)), 0x21),
        (((0, 8), ((1 << 64) - 1, 2)), 0x21),
        (((0, 1),) * (limits.unmap_descriptors + 1), 0x26),
    ):
        data = unmap_list(*ranges)
        sense = rig.sense(unmap(data), data)
        assert (sense.key, sense.asc) == (5, asc)
    data = unmap_list((0, 8))
    sense = rig.sense(unmap(data, 7), data)
    assert (sense.key, sense.asc) == (5, 0x1A)
    assert rig.good(cdb_10(0x28, 0, 64)) == b"a" * 64 * BS


def test_an_unmap_of_nothing_is_good(rig: Rig) -> None:
    rig.good(unmap(b""))
    for ranges in ((), ((0, 0),), ((2048, 0),)):
        data = unmap_list(*ranges)
        rig.good(unmap(data), data)
    data = unmap_list((0, 8))
    rig.good(cdb_10(0x2A, 0, 8), b"a" * 8 * BS)
    rig.good(unmap(data, 23), data[:23])  # a descriptor cut short is none
    assert rig.good(cdb_10(0x28, 0, 8)) == b"a" * 8 * BS


def test_the_status_of_blocks_follows_the_holes(rig: Rig) -> None:
    def status(lba: int, most: int = 10, report: int = 0) -> list[tuple[int, int, int]]:
        cdb = bytes([0x9E, 0x12]) + lba.to_bytes(8, "big") + (8 + 16 * most).to_bytes(4, "big") + bytes([report, 0])
        data = rig.good(cdb)
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        return [struct.unpack_from(">QIB", data, at) for at in range(8, len(data), 16)]

    step = 1 << rig.unit.limits.physical_exponent
    assert status(0) == [(0, 2048, 1)]
    rig.good(cdb_10(0x2A, 2 * step, 1), b"a" * BS)
    rig.good(cdb_10(0x2A, 4 * step, 3 * step), b"a" * 3 * step * BS)
    whole = [
        (0, 2 * step, 1),
        (2 * step, step, 0),
        (3 * step, step, 1),
        (4 * step, 3 * step, 0),
        (7 * step, 2048 - 7 * step, 1),
    ]
    assert status(0) == whole
    assert status(0, 2) == whole[:2]
    assert status(2 * step + 1)[0] == (2 * step + 1, step - 1, 0)
    assert status(1)[0] == (1, 2 * step - 1, 1)
    assert status(2047) == [(2047, 1, 1)]
    assert status(0, report=2) == whole[1::2]
    assert status(0, report=3) == status(0, report=1) == whole[::2]
    assert status(0, report=4) == []


def test_flushes_and_prefetches_end_good(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 1), b"a" * BS)
    assert rig.unit.backing.written
    rig.good(cdb_10(0x35, 0, 0))
    assert not rig.unit.backing.written
    rig.good(cdb_10(0x2A, 0, 1, 0x08), b"b" * BS)
    assert not rig.unit.backing.written
    rig.good(cdb_10(0x2A, 0, 1), b"a" * BS)
    rig.good(cdb_16(0x91, 0, 0, 0x02))
    rig.reactor.run()
    assert not rig.unit.backing.written
    for cdb in (cdb_10(0x34, 0, 0), cdb_16(0x90, 0, 2048, 0x02)):
        assert rig.run(cdb).status == GOOD


def test_without_a_write_cache_every_write_is_durable() -> None:
    rig = Rig(writecache=False)
    try:
        for cdb, data in (
            (cdb_10(0x2A, 0, 1), b"a" * BS),
            (cdb_10(0x41, 0, 1), b"a" * BS),
            (cdb_10(0x41, 0, 1), bytes(BS)),
            (bytes([0x0A, 0, 0, 0, 1, 0]), b"a" * BS),
        ):
            rig.good(cdb, data)
            assert not rig.unit.backing.written
    finally:
        rig.close()
