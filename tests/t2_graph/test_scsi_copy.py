"""EXTENDED COPY and RECEIVE COPY RESULTS: what is copied, what is refused before anything moves, what is told of it."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from glustx.errors import FopError
from glustx.fops import Create, Ftruncate, Release
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, turn
from glustx.scsi import copy_engine
from glustx.scsi.config import LunConfig, TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.task import CONFLICT, GOOD, Nexus, Result
from glustx.scsi.unit import LogicalUnit
from glustx.values import NULL_GFID, ROOT_GFID, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from tests.scsi_kit import NAME, Rig, cdb_10

MEMORY = "volume m\n type storage/memory\nend-volume\n"
BS = 512
SIZE = 1 << 20
THIS = 0xFFFF


class Volumes(Rig):
    """A gateway over two volumes: LUNs 0 and 1 on files of the first, LUN 2 on the second, LUN 3 with 4096-byte blocks;
    LUN 9 of another target belongs to somebody else."""

    def __init__(self, **options: Any) -> None:
        self.reactor = ManualReactor()
        self.graphs = {}
        for name in ("m", "n"):
            graph = Graph.load(MEMORY, Surroundings(self.reactor))
            self.reactor.wait(graph.start())
            self.graphs[name] = graph
            for file in (b"a", b"b", b"c", b"d"):
                self.file(graph, file)
        self.graph = self.graphs["m"]
        luns = {
            0: LunConfig(path="/a", volume="m", **options),
            1: LunConfig(path="/b", volume="m", **options),
            2: LunConfig(path="/a", volume="n", **options),
            3: LunConfig(path="/c", volume="m", block_size=4096, **options),
        }
        self.config = TargetConfig(name=NAME, luns=luns)
        self.secret = TargetConfig(name=NAME + "-other", luns={9: LunConfig(path="/d", volume="m", **options)})
        self.gateway = Gateway({name: graph.top for name, graph in self.graphs.items()}, self.reactor)
        self.reactor.wait(self.gateway.start([self.config, self.secret]))
        self.target = self.gateway.targets[NAME]
        self.unit = self.target.units[0]
        self.units = self.target.units
        self.hidden = self.gateway.targets[NAME + "-other"].units[9]
        self.tag = 0
        self.ended = []
        self.nexus = self.login("iqn.2026-12.org.example:one,i,0x000000000001")

    def file(self, graph: Graph, name: bytes) -> None:
        fd = Fd(NULL_GFID, 2)
        gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
        loc = Loc(pargfid=ROOT_GFID, name=name)
        self.reactor.wait(graph.top(Create(loc=loc, fd=fd, flags=0o102, mode=0o600, xdata=gfid)))
        self.reactor.wait(graph.top(Ftruncate(fd, SIZE)))
        self.reactor.wait(graph.top(Release(fd)))

    def close(self) -> None:
        self.reactor.wait(self.gateway.stop())
        for graph in self.graphs.values():
            self.reactor.wait(graph.stop())

    def fill(self, unit: LogicalUnit, at: int, data: bytes) -> None:
        self.reactor.wait(unit.backing.write(at, data))

    def content(self, unit: LogicalUnit, at: int = 0, size: int = SIZE) -> bytes:
        return bytes(self.reactor.wait(unit.backing.read(at, size)))

    def copy(self, data: bytes, **more: Any) -> Result:
        return self.run(xcopy(data), data, **more)


@pytest.fixture
def rig() -> Iterator[Volumes]:
    rig = Volumes()
    yield rig
    rig.close()


def xcopy(data: bytes, action: int = 0) -> bytes:
    return bytes([0x83, action]) + bytes(8) + len(data).to_bytes(4, "big") + bytes(2)


def cscd(unit: LogicalUnit, kind: int = 3) -> bytes:
    """A CSCD descriptor with one of a unit's designators: 3 is NAA, 1 the T10 vendor's."""
    own = unit.identity.designators(unit.config.vendor)
    at = 0
    while own[at + 1] & 0x0F != kind:
        at += 4 + own[at + 3]
    designator = own[at : at + 4 + own[at + 3]]
    return bytes([0xE4, 0, 0, 0]) + designator.ljust(24, b"\0") + bytes([0]) + unit.block_size.to_bytes(3, "big")


def segment(source: int, target: int, count: int, lba: int, to: int, dc: bool = False) -> bytes:
    return struct.pack(">BBHHHHHQQ", 0x02, dc << 1, 24, source, target, 0, count, lba, to)


def offsets(source: int, target: int, size: int, lba: int, to: int, byte: int = 0, to_byte: int = 0) -> bytes:
    return struct.pack(">BBHHHIQQHH", 0x0A, 0, 28, source, target, size, lba, to, byte, to_byte)


def lists(cscds: list[bytes], segments: list[bytes], list_id: int = 1, usage: int = 0, inline: int = 0) -> bytes:
    one, two = b"".join(cscds), b"".join(segments)
    return struct.pack(">BBH4xII", list_id, usage << 3, len(one), len(two), inline) + one + two


def lists_4(cscds: list[bytes], segments: list[bytes], list_id: int = 70000, immediate: bool = False) -> bytes:
    one, two = b"".join(cscds), b"".join(segments)
    head = struct.pack(">BBH11xBB3xI18xHHH", 1, 0, 0x20, immediate, 0xFF, list_id, len(one), len(two), 0)
    return head + one + two


PATTERN = bytes(range(256)) * 40


# -- what is copied --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [0, 1, 2])
def test_blocks_are_copied_within_a_unit_a_volume_and_between_volumes(rig: Volumes, to: int) -> None:
    rig.fill(rig.unit, 3 * BS, PATTERN)
    target = rig.units[to]
    data = lists([cscd(rig.unit), cscd(target)], [segment(0, 1, 20, 3, 1000)])
    assert rig.copy(data).status == GOOD
    assert rig.content(target, 999 * BS, 22 * BS) == bytes(BS) + PATTERN + bytes(BS)


def test_block_sizes_are_converted(rig: Volumes) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    large = rig.units[3]
    both = [cscd(rig.unit), cscd(large)]
    assert rig.copy(lists(both, [segment(0, 1, 16, 0, 5)])).status == GOOD
    assert rig.content(large, 5 * 4096, 8192) == PATTERN[:8192]
    assert rig.copy(lists(both, [segment(0, 1, 1, 0, 7, dc=True)])).status == GOOD
    assert rig.content(large, 7 * 4096, 8192) == PATTERN[:4096] + bytes(4096)
    result = rig.copy(lists(both, [segment(0, 1, 3, 0, 9)]))
    assert str(result.sense) == "A/26/0A" and rig.content(large, 9 * 4096, 4096) == bytes(4096)


@pytest.mark.parametrize(("source", "target"), [(0, 7), (7, 0), (0, 20000), (20000, 0), (5, 5)])
@pytest.mark.parametrize("piece", [4096, 1 << 20])
def test_overlapping_ranges_move_as_memmove_does(
    rig: Volumes, source: int, target: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_engine, "_THROUGH", piece)
    before = bytes(at * 7 % 251 for at in range(60000))
    rig.fill(rig.unit, 0, before)
    data = lists([cscd(rig.unit)], [offsets(0, 0, 30000, 0, 0, source, target)])
    assert rig.copy(data).status == GOOD
    wanted = bytearray(before)
    wanted[target : target + 30000] = before[source : source + 30000]
    assert rig.content(rig.unit, 0, 60000) == bytes(wanted)


def test_a_copy_between_volumes_keeps_holes(rig: Volumes) -> None:
    rig.fill(rig.unit, 512 << 10, b"x" * 4096)
    target = rig.units[2]
    rig.fill(target, 0, b"y" * SIZE)
    assert rig.copy(lists([cscd(rig.unit), cscd(target)], [offsets(0, 1, SIZE, 0, 0)])).status == GOOD
    assert rig.content(target) == rig.content(rig.unit)
    assert rig.reactor.wait(target.backing.usage()).used < SIZE // 2


def test_segments_are_done_in_order_and_this_unit_needs_no_descriptor(rig: Volumes) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    data = lists([], [segment(THIS, THIS, 1, 0, 100), segment(THIS, THIS, 1, 100, 200)])
    assert rig.copy(data).status == GOOD
    assert rig.content(rig.unit, 200 * BS, BS) == PATTERN[:BS]


@pytest.mark.parametrize("kind", [1, 3, 2, 10])
def test_every_designator_of_a_unit_names_it(kind: int) -> None:
    rig = Volumes()
    try:
        config = LunConfig(
            path="/b", volume="m", eui="0011223344556677", uuid="6c7f0e9e-5f0b-4d0c-9d3e-6a1b5f0e7c11", device_id="b"
        )
        rig.reactor.wait(rig.gateway.apply([TargetConfig(name=NAME, luns={0: rig.config.luns[0], 1: config})]))
        rig.nexus.attentions.clear()
        rig.fill(rig.unit, 0, PATTERN)
        named = rig.target.units[1]
        assert rig.copy(lists([cscd(named, kind)], [segment(THIS, 0, 1, 0, 0)])).status == GOOD
        assert rig.content(named, 0, BS) == PATTERN[:BS]
    finally:
        rig.close()


def test_no_parameters_no_descriptors_no_segments_do_nothing(rig: Volumes) -> None:
    assert rig.copy(b"").status == GOOD
    assert rig.copy(lists([], [])).status == GOOD
    assert rig.copy(lists([cscd(rig.unit)], [segment(0, 0, 0, 0, 0)])).status == GOOD


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_unit_that_the_initiator_does_not_see_is_no_source_and_no_destination(rig: Volumes) -> None:
    rig.fill(rig.hidden, 0, b"secret" * 100)
    rig.fill(rig.unit, 0, PATTERN)
    ends = [cscd(rig.unit), cscd(rig.hidden)]
    for segments in ([segment(1, 0, 1, 0, 0)], [segment(0, 0, 1, 1, 50), segment(0, 1, 1, 0, 0)]):
        result = rig.copy(lists(ends, segments))
        assert str(result.sense) == "A/08/04" and result.sense is not None
        assert result.sense.specific == len(segments) - 1
    assert rig.content(rig.unit, 0, len(PATTERN)) == PATTERN, "nothing of the first segment either"
    assert rig.content(rig.unit, 50 * BS, BS) == bytes(BS)
    assert rig.content(rig.hidden, 0, 600) == b"secret" * 100


def test_a_lun_map_hides_units_of_the_same_target(rig: Volumes) -> None:
    turn(rig.target.lose, rig.nexus)
    nexus = rig.target.login("iqn.2026-12.org.example:two,i,0x000000000002", 1, {0: 0})
    nexus.attentions.clear()
    rig.fill(rig.units[1], 0, b"secret")
    result = rig.copy(lists([cscd(rig.units[1])], [segment(0, THIS, 1, 0, 0)]), nexus=nexus)
    assert str(result.sense) == "A/08/04" and rig.content(rig.unit, 0, BS) == bytes(BS)


def test_insecure_tpc_reaches_units_that_have_it_too() -> None:
    rig = Volumes(insecure_tpc=True)
    try:
        rig.fill(rig.hidden, 0, PATTERN)
        assert rig.copy(lists([cscd(rig.hidden)], [segment(0, THIS, 1, 0, 0)])).status == GOOD
        assert rig.content(rig.unit, 0, BS) == PATTERN[:BS]
    finally:
        rig.close()


def test_lists_that_cannot_be(rig: Volumes) -> None:
    own, one = cscd(rig.unit), segment(0, 0, 1, 0, 9)
    good = lists([own], [one])
    cases = [
        (good[:-1], "5/1A/00"),
        (good[:40], "5/1A/00"),
        (good[:8], "5/1A/00"),
        (lists([own] * 65, [one]), "5/26/06"),
        (lists([own], [one] * 65), "5/26/08"),
        (lists([own] * 65, [one] * 300), "5/1A/00"),
        (lists([b"\xe0" + own[1:]], [one]), "5/26/07"),
        (lists([own], [b"\x03" + one[1:]]), "5/26/09"),
        (lists([own], [one], inline=4), "5/26/0B"),
        (lists([own], [one], usage=1), "5/26/00"),
        (lists([own], [one], usage=3), "5/26/00"),
        (lists([own], [one[:3] + b"\x17" + one[4:]]), "5/26/00"),
        (lists([own], [segment(0, 1, 1, 0, 0)]), "A/08/04"),
        (lists([own], [segment(0, 0, 2, 0, 2047)]), "A/0D/02"),
        (lists([own], [segment(0, 0, 1, 1 << 60, 0)]), "A/0D/02"),
        (lists([own], [offsets(0, 0, 1, 2047, 0, 512)]), "A/0D/02"),
        (lists([own[:31] + b"\x08"], [one]), "A/0D/03"),
        (lists([own[:1] + b"\x05" + own[2:]], [one]), "A/0D/03"),
        (lists([own[:5] + b"\x13" + own[6:]], [one]), "A/08/04"),
    ]
    rig.fill(rig.unit, 0, PATTERN)
    for data, sense in cases:
        assert str(rig.copy(data).sense) == sense
    assert rig.content(rig.unit, 9 * BS, 20 * BS) == PATTERN[9 * BS :] + bytes(9 * BS)
    assert rig.copy(lists([own[:1] + b"\xc0" + own[2:]], [one])).status == GOOD, "the LU ID type is not looked at"


def test_reservations_of_both_ends_count(rig: Volumes) -> None:
    other = rig.login("iqn.2026-12.org.example:two,i,0x000000000002")
    far = rig.units[1]

    def out(action: int, kind: int, nexus: Nexus, unit: int, key: int, new: int) -> None:
        data = struct.pack(">QQ8x", key, new)
        result = rig.run(bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]), data, nexus=nexus, lun=unit)
        assert result.status == GOOD

    data = lists([cscd(far)], [segment(0, THIS, 1, 0, 0)])
    back = lists([cscd(far)], [segment(THIS, 0, 1, 0, 0)])
    out(0, 0, other, 1, 0, 5)
    out(1, 1, other, 1, 5, 0)  # write exclusive
    assert rig.copy(data).status == GOOD
    refused = rig.copy(back)
    assert refused.sense is not None and str(refused.sense) == "A/0D/01"
    assert refused.sense.forwarded == bytes([0x0C, 2, 2, 0x18])
    out(2, 1, other, 1, 5, 0)
    out(1, 3, other, 1, 5, 0)  # exclusive access
    assert str(rig.copy(data).sense) == "A/0D/01"
    out(0, 0, other, 0, 0, 5)
    out(1, 1, other, 0, 5, 0)
    assert rig.copy(data).status == CONFLICT.status, "the unit that takes the command is reserved itself"


def test_a_write_protected_destination_says_so(rig: Volumes) -> None:
    rig.units[1].modes.software_protected = True
    result = rig.copy(lists([cscd(rig.units[1])], [segment(THIS, 0, 1, 0, 0)]))
    assert str(result.sense) == "7/27/02"


def test_no_space_at_the_destination_comes_through_and_a_bad_medium_is_told_with_its_sense(rig: Volumes) -> None:
    target = rig.units[2]

    async def fails(offset: int, data: Any, durable: bool = False) -> None:
        raise FopError(errno.ENOSPC, "full")

    rig.fill(rig.unit, 0, PATTERN)
    target.backing.write = fails  # type: ignore[method-assign]
    ends = [cscd(rig.unit), cscd(target)]
    result = rig.copy(lists(ends, [segment(0, 0, 1, 0, 9), segment(0, 1, 1, 0, 0)]))
    assert result.sense is not None and str(result.sense) == "7/27/07" and result.sense.specific == 1
    assert result.sense.forwarded[4:8] == bytes([0x72, 7, 0x27, 7])

    async def bad(offset: int, size: int) -> bytes:
        raise FopError(errno.EIO, "bad block")

    rig.unit.backing.read = bad  # type: ignore[method-assign]
    result = rig.copy(lists(ends, [segment(0, 1, 1, 0, 0)]))
    assert result.sense is not None and str(result.sense) == "A/0D/01"
    assert result.sense.forwarded[2:8] == bytes([1, 2, 0x72, 3, 0x11, 0])


def test_a_verify_segment_asks_the_unit_and_a_register_segment_registers(rig: Volumes) -> None:
    verify = struct.pack(">BBHHHB3x", 0x07, 0, 8, 0, 0, 1)
    register = struct.pack(">BBHHHQQ4x", 0x14, 0, 24, 0, 0, 0, 77)
    data = lists([cscd(rig.units[1])], [verify, register])
    assert rig.copy(data).status == GOOD
    keys = rig.good("5e0000000000000100" + "00", lun=1)
    assert keys == struct.pack(">IIQ", 1, 8, 77)
    assert str(rig.copy(data).sense) == "A/0D/01", "it has a key by now"


# -- what is told ------------------------------------------------------------------------------------------------------


def results(action: int, list_id: int = 1, allocation: int = 1024) -> bytes:
    which = bytes([list_id]) + bytes(3) if action in (0, 4) else list_id.to_bytes(4, "big")
    return bytes([0x84, action]) + which + bytes(4) + allocation.to_bytes(4, "big") + bytes(2)


def test_operating_parameters_are_those_that_hold(rig: Volumes) -> None:
    data = rig.good(results(3, 0))
    assert len(data) == 4 + int.from_bytes(data[:4], "big") == 44 + data[43]
    assert struct.unpack(">BHHII", data[4:5] + data[8:20]) == (1, 64, 64, 8192, 1 << 30)
    assert data[44:] == bytes([0x02, 0x07, 0x0A, 0x14, 0xE4])
    assert rig.good(results(3, 0, 20)) == data[:20]


def test_what_became_of_a_copy_is_told_once_and_kept_for_a_minute(rig: Volumes) -> None:
    assert str(rig.sense(results(0))) == "5/24/00"
    data = lists([cscd(rig.unit)], [segment(0, 0, 2, 0, 9), segment(0, 0, 1, 0, 9)])
    assert rig.copy(data).status == GOOD
    assert rig.good(results(0)) == struct.pack(">IBHBI", 8, 1, 2, 0, 3 * BS)
    assert str(rig.sense(results(0))) == "5/24/00"
    assert rig.copy(data).status == GOOD
    assert rig.copy(data).status == GOOD, "a list identifier can be used again"
    assert rig.good(results(4)) == bytes(4), "it has not failed"
    rig.reactor.advance(59)
    assert rig.good(results(0))[4] == 1
    assert rig.copy(data).status == GOOD
    rig.reactor.advance(61)
    assert str(rig.sense(results(0))) == "5/24/00"
    assert rig.copy(lists([cscd(rig.unit)], [], list_id=0, usage=3)).status == GOOD
    assert str(rig.sense(results(0, 0))) == "5/24/00"


def test_what_failed_is_told_with_its_sense(rig: Volumes) -> None:
    assert str(rig.copy(lists([cscd(rig.unit)], [segment(0, 5, 2, 0, 9)])).sense) == "A/08/04"
    details = rig.good(results(4))
    assert details[56:58] == b"\x02\0" and details[60:64] == bytes([0x72, 0x0A, 0x08, 0x04])
    assert int.from_bytes(details[:4], "big") == len(details) - 4
    assert int.from_bytes(details[58:60], "big") == len(details) - 60


def test_long_list_identifiers(rig: Volumes) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    data = lists_4([cscd(rig.unit)], [segment(0, 0, 2, 0, 9)])
    assert rig.run(xcopy(data, 1), data).status == GOOD
    assert rig.content(rig.unit, 9 * BS, 2 * BS) == PATTERN[: 2 * BS]
    told = rig.good(results(5, 70000))
    assert told == struct.pack(">IBBHIBBBBQH6x", 28, 1, 1, 2, 0xFFFFFFFF, 0, 0, 0, 0, 2 * BS, 1)
    for wrong in (b"\0" + data[1:], data[:16] + b"\0" + data[17:], data[:47]):
        assert rig.run(xcopy(wrong, 1), wrong).sense is not None


def test_a_copy_in_the_background_can_be_asked_for_and_aborted(rig: Volumes) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    hold = rig.unit.order.enter(0, 10, True, 1)
    data = lists_4([cscd(rig.unit)], [segment(0, 0, 2, 0, 100)], immediate=True)
    assert rig.run(xcopy(data, 1), data).status == GOOD
    assert rig.good(results(5, 70000))[5] == 0x12
    assert str(rig.run(xcopy(data, 1), data).sense) == "5/26/00", "its list identifier is in use"
    _, abort = rig.begin(bytes([0x83, 0x1C]) + (70000).to_bytes(4, "big") + bytes(10))
    rig.reactor.run()
    assert not abort.done
    turn(rig.unit.order.leave, hold)
    assert rig.wait(abort).status == GOOD
    told = rig.good(results(5, 70000))
    assert told[5] == 0x60 and int.from_bytes(told[16:24], "big") == 0
    assert rig.content(rig.unit, 100 * BS, BS) == bytes(BS)


def test_an_aborted_command_stops_between_pieces(rig: Volumes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_engine, "_THROUGH", BS)
    rig.fill(rig.unit, 0, PATTERN)
    target = rig.units[2]
    hold = target.order.enter(1, 2, True, 1)
    data = lists([cscd(target)], [segment(THIS, 0, 20, 0, 0)])
    task, pending = rig.begin(xcopy(data), data)
    rig.reactor.run()
    turn(rig.target.manage, rig.nexus, 1, 0, task.tag)
    turn(target.order.leave, hold)
    rig.reactor.run()
    assert pending.done and pending.result is None
    assert rig.content(target, 0, 20 * BS) == PATTERN[:BS] + bytes(19 * BS)
    assert len(rig.unit.order) == len(target.order) == 0


def test_copies_in_both_directions_do_not_wait_for_each_other(rig: Volumes) -> None:
    far = rig.units[1]
    hold = rig.unit.order.enter(0, 10, True, 1)
    waiting = []
    for source, target, list_id in ((0, 1, 1), (1, 0, 2)):
        data = lists([cscd(rig.unit), cscd(far)], [segment(source, target, 5, 0, 0)], list_id)
        waiting.append(rig.begin(xcopy(data), data)[1])
    _, write = rig.begin(cdb_10(0x2A, 0, 1), b"z" * BS)
    rig.reactor.run()
    assert not any(each.done for each in waiting)
    turn(rig.unit.order.leave, hold)
    assert all(rig.wait(each).status == GOOD for each in (*waiting, write))
    assert rig.content(rig.unit, 0, BS) == b"z" * BS
