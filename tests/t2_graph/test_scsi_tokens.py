"""POPULATE TOKEN and WRITE USING TOKEN, with snapshots and without, and the Third-party Copy page."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from glustx.errors import FopError
from glustx.fops import Lookup, Opendir, Readdir, Releasedir
from glustx.inode import Fd
from glustx.runtime import turn
from glustx.scsi import third_party as can
from glustx.scsi import token_pins
from glustx.scsi.config import LunConfig, TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.odx import _pairs
from glustx.scsi.task import CONFLICT, GOOD, Result
from glustx.scsi.token_pins import FOLDER
from glustx.values import ROOT_GFID, Loc
from tests.kit import need_peer
from tests.scsi_kit import NAME, cdb_10, cdb_16
from tests.t2_graph.test_scsi_copy import BS, PATTERN, Volumes

ZERO = struct.pack(">IHH", 0xFFFF0001, 0, 0x1F8).ljust(512, b"\0")


class Offload(Volumes):
    """The gateway of the copy tests, and words for tokens."""

    def populate(
        self, *ranges: tuple[int, int], list_id: int = 7, lun: int = 0, flags: int = 0, idle: int = 0
    ) -> Result:
        data = populate_list(*ranges, flags=flags, idle=idle)
        return self.run(cdb(0x10, list_id, len(data)), data, lun=lun)

    def token(self, *ranges: tuple[int, int], **more: Any) -> bytes:
        result = self.populate(*ranges, **more)
        assert result.status == GOOD, result.sense
        told = self.ask(more.get("list_id", 7), lun=more.get("lun", 0))
        at = 32 + told[13]
        assert told[5] == 1 and told[at : at + 6] == bytes([0, 0, 2, 2, 0, 0])
        return told[at + 6 :]

    def ask(self, list_id: int = 7, lun: int = 0) -> bytes:
        return self.good(
            bytes([0x84, 7]) + list_id.to_bytes(4, "big") + bytes(4) + (4096).to_bytes(4, "big") + bytes(2), lun=lun
        )

    def write(self, token: bytes, *ranges: tuple[int, int], offset: int = 0, lun: int = 1, **more: Any) -> Result:
        data = write_list(token, *ranges, offset=offset, flags=more.pop("flags", 0))
        return self.run(cdb(0x11, more.pop("list_id", 8), len(data)), data, lun=lun, **more)


def descriptors(ranges: tuple[tuple[int, int], ...]) -> bytes:
    return b"".join(struct.pack(">QI4x", lba, count) for lba, count in ranges)


def populate_list(*ranges: tuple[int, int], flags: int = 0, idle: int = 0, rod: int = 0) -> bytes:
    body = descriptors(ranges)
    return struct.pack(">HBxII2xH", 14 + len(body), flags, idle, rod, len(body)) + body


def write_list(token: bytes, *ranges: tuple[int, int], offset: int = 0, flags: int = 0) -> bytes:
    body = descriptors(ranges)
    return struct.pack(">HB5xQ512s6xH", 534 + len(body), flags, offset, token, len(body)) + body


def cdb(action: int, list_id: int, length: int) -> bytes:
    return bytes([0x83, action]) + bytes(4) + list_id.to_bytes(4, "big") + length.to_bytes(4, "big") + bytes(2)


@pytest.fixture(params=["snapshots", "without"])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offload]:
    # storage/memory copies instead of sharing; to whoever uses a token that looks the same.
    monkeypatch.setattr(token_pins, "can_pin", lambda unit: request.param == "snapshots")
    monkeypatch.setattr("glustx.scsi.tokens.can_pin", lambda unit: request.param == "snapshots")
    rig = Offload()
    yield rig
    rig.close()


@pytest.fixture
def plain() -> Iterator[Offload]:
    rig = Offload()
    yield rig
    rig.close()


def snapshots(rig: Offload) -> int:
    """How many snapshots there are on the first volume."""
    child = rig.unit.backing.child
    try:
        folder = rig.reactor.wait(child(Lookup(loc=Loc(pargfid=ROOT_GFID, name=FOLDER)))).stat.gfid
    except FopError:
        return 0
    fd = Fd(folder, 0)
    rig.reactor.wait(child(Opendir(loc=Loc(gfid=folder), fd=fd)))
    found = rig.reactor.wait(child(Readdir(fd, 0, 1 << 16))).entries
    rig.reactor.wait(child(Releasedir(fd)))
    return len([each for each in found if each.name not in (b".", b"..")])


# -- what is copied --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lun", [0, 1, 2])
def test_a_token_carries_ranges_to_any_unit(rig: Offload, lun: int) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    token = rig.token((3, 5), (12, 4))
    assert len(token) == 512 and token[:4] == bytes([0, 1, 0, 0]) and token[6:8] == b"\x01\xf8"
    assert int.from_bytes(token[48:64], "big") == 9 * BS
    other = rig.login("iqn.2026-12.org.example:two,i,0x000000000002")
    assert rig.write(token, (1000, 2), (1500, 6), offset=1, lun=lun, nexus=other).status == GOOD
    target = rig.units[lun]
    wanted = PATTERN[4 * BS : 8 * BS] + PATTERN[12 * BS : 16 * BS]
    assert rig.content(target, 1000 * BS, 3 * BS) == wanted[: 2 * BS] + bytes(BS)
    assert rig.content(target, 1500 * BS, 7 * BS) == wanted[2 * BS :] + bytes(BS)


def test_what_was_done_is_told(rig: Offload) -> None:
    token = rig.token((0, 10), list_id=9)
    assert str(rig.sense(bytes([0x84, 7]) + (9).to_bytes(4, "big") + bytes(10))) == "5/24/00", "it was told already"
    assert rig.write(token, (5, 3), (100, 4)).status == GOOD
    told = rig.ask(8, lun=1)
    assert struct.unpack(">BB", told[4:6]) == (0x11, 1) and told[15] == 0xF1
    assert int.from_bytes(told[16:24], "big") == 7 and told[24:26] == b"\0\x02"
    assert len(told) == 36 and told[:4] == (32).to_bytes(4, "big")


def test_a_token_that_ends_early_leaves_a_residual(rig: Offload) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    token = rig.token((0, 4))
    assert rig.write(token, (10, 4), offset=2).status == GOOD
    told = rig.ask(8, lun=1)
    assert told[5] == 4 and int.from_bytes(told[16:24], "big") == 2
    assert rig.content(rig.units[1], 10 * BS, 4 * BS) == PATTERN[2 * BS : 4 * BS] + bytes(2 * BS)
    assert str(rig.write(token, (10, 4), offset=4).sense) == "5/26/00"


def test_block_sizes_are_converted(rig: Offload) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    token = rig.token((0, 16))
    assert rig.write(token, (3, 2), lun=3).status == GOOD
    assert rig.content(rig.units[3], 3 * 4096, 8192) == PATTERN[:8192]
    large = rig.token((3, 1), lun=3)
    assert rig.write(large, (50, 8)).status == GOOD
    assert rig.content(rig.units[1], 50 * BS, 4096) == PATTERN[:4096]
    assert str(rig.write(large, (50, 3)).sense) == "5/26/00"


def test_the_token_of_zeroes_writes_them(rig: Offload) -> None:
    rig.fill(rig.units[1], 0, b"x" * 8192)
    assert rig.write(ZERO, (2, 3), (8, 1)).status == GOOD
    wanted = bytearray(b"x" * 8192)
    wanted[2 * BS : 5 * BS] = bytes(3 * BS)
    wanted[8 * BS : 9 * BS] = bytes(BS)
    assert rig.content(rig.units[1], 0, 8192) == bytes(wanted)


def test_ranges_are_laid_side_by_side() -> None:
    assert list(_pairs([(0, 3), (10, 5), (20, 1)], 2, [(100, 2), (200, 9)])) == [
        (2, 100, 1),
        (10, 101, 1),
        (11, 200, 4),
        (20, 204, 1),
    ]
    assert list(_pairs([(0, 3)], 3, [(100, 2)])) == []


# -- how long a token counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["write", "write same", "unmap", "copy"])
def test_a_write_to_its_ranges_is_not_seen_or_revokes_it(
    rig: Offload, change: str, request: pytest.FixtureRequest
) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    token = rig.token((3, 5))
    apart = rig.token((12, 2))
    if change == "write":
        rig.good(cdb_10(0x2A, 7, 1), b"z" * BS)
    elif change == "write same":
        rig.good(cdb_16(0x93, 6, 3), b"z" * BS)
    elif change == "unmap":
        rig.good("42000000000000001800", struct.pack(">HH4xQI4x", 22, 16, 4, 1))
    else:
        assert rig.write(ZERO, (7, 1), lun=0).status == GOOD
    if token_pins.can_pin(rig.unit):
        assert rig.write(token, (100, 5)).status == GOOD
        assert rig.content(rig.units[1], 100 * BS, 5 * BS) == PATTERN[3 * BS : 8 * BS]
        assert rig.unit.order.written is None
    else:
        assert str(rig.write(token, (100, 5)).sense) == "5/23/06"
        assert rig.content(rig.units[1], 100 * BS, 5 * BS) == bytes(5 * BS)
    assert rig.write(apart, (100, 2)).status == GOOD


def test_nothing_is_looked_at_without_tokens(rig: Offload) -> None:
    assert rig.unit.order.written is None
    rig.token((3, 5), idle=5)
    assert (rig.unit.order.written is None) is token_pins.can_pin(rig.unit)
    rig.reactor.advance(6)
    assert rig.unit.order.written is None


def test_a_token_expires_when_it_is_not_used(rig: Offload) -> None:
    token = rig.token((0, 4), idle=10)
    for _ in range(3):
        rig.reactor.advance(9)
        assert rig.write(token, (0, 4)).status == GOOD
    assert snapshots(rig) == token_pins.can_pin(rig.unit)
    rig.reactor.advance(11)
    assert str(rig.write(token, (0, 4)).sense) == "5/23/07"
    assert snapshots(rig) == 0
    default = rig.token((0, 4))
    rig.reactor.advance(can.INACTIVITY + 1)
    assert str(rig.write(default, (0, 4)).sense) == "5/23/07"


def test_a_token_can_be_deleted_with_its_use(rig: Offload) -> None:
    token = rig.token((0, 4))
    assert rig.write(token, (0, 4), flags=2).status == GOOD
    assert str(rig.write(token, (0, 4)).sense) == "5/23/09"
    assert snapshots(rig) == 0


def test_what_is_no_token(rig: Offload) -> None:
    token = rig.token((0, 4))
    for at, sense in ((0, "5/23/01"), (7, "5/23/0A"), (8, "5/23/04"), (200, "5/23/05"), (511, "5/23/05")):
        wrong = bytearray(token)
        wrong[at] ^= 1
        assert str(rig.write(bytes(wrong), (0, 4)).sense) == sense
    assert rig.write(token, (0, 4)).status == GOOD


def test_a_unit_that_goes_or_shrinks_takes_its_tokens_along(rig: Offload) -> None:
    token = rig.token((2000, 8))
    rig.unit.blocks = 2004
    assert str(rig.write(token, (0, 8)).sense) == "5/23/06"
    far = rig.token((0, 4), lun=2)
    luns = {lun: config for lun, config in rig.config.luns.items() if lun != 2}
    rig.reactor.wait(rig.gateway.apply([TargetConfig(name=NAME, luns=luns)]))
    rig.nexus.attentions.clear()
    assert str(rig.write(far, (0, 4)).sense) == "5/23/06"


def test_tokens_are_listed_without_what_makes_them_usable(rig: Offload) -> None:
    one, two = rig.token((0, 4)), rig.token((8, 4))
    rig.token((8, 4), lun=1)
    listed = rig.good(bytes([0x84, 8]) + bytes(8) + (4096).to_bytes(4, "big") + bytes(2))
    assert listed == struct.pack(">II", 196, 0) + one[:96] + two[:96]
    assert one[128:] != two[128:]


# -- background, abort, reservations -----------------------------------------------------------------------------------


def test_both_commands_can_go_on_in_the_background(rig: Offload) -> None:
    rig.fill(rig.unit, 0, PATTERN)
    hold = rig.unit.order.enter(0, 10, True, 1)
    assert rig.populate((0, 4), flags=1).status == GOOD
    assert rig.ask()[5] == 0x12
    assert str(rig.populate((0, 4), flags=1).sense) == "5/26/00"
    turn(rig.unit.order.leave, hold)
    rig.reactor.run()
    token = rig.ask()[-512:]
    far = rig.units[1]
    hold = far.order.enter(0, 10, True, 1)
    assert rig.write(token, (5, 4), flags=1).status == GOOD
    told = rig.ask(8, lun=1)
    assert told[5] == 0x12 and told[8:12] == (1000).to_bytes(4, "big")
    turn(far.order.leave, hold)
    rig.reactor.run()
    assert rig.ask(8, lun=1)[5] == 1
    assert rig.content(far, 5 * BS, 4 * BS) == PATTERN[: 4 * BS]


def test_a_copy_in_the_background_is_aborted(rig: Offload) -> None:
    token = rig.token((0, 4))
    far = rig.units[1]
    hold = far.order.enter(0, 10, True, 1)
    assert rig.write(token, (5, 4), flags=1).status == GOOD
    _, abort = rig.begin(bytes([0x83, 0x1C]) + (8).to_bytes(4, "big") + bytes(10), lun=1)
    turn(far.order.leave, hold)
    assert rig.wait(abort).status == GOOD
    assert rig.ask(8, lun=1)[5] == 0x60


def test_a_copy_ends_with_its_nexus_and_with_the_gateway(rig: Offload) -> None:
    token = rig.token((0, 4))
    far = rig.units[1]
    rig.fill(far, 0, PATTERN)
    hold = far.order.enter(0, 10, True, 1)
    assert rig.write(token, (5, 4), flags=1).status == GOOD
    turn(rig.target.lose, rig.nexus)
    turn(far.order.leave, hold)
    rig.reactor.run()
    assert rig.content(far, 0, len(PATTERN)) == PATTERN


def test_reservations_count_where_it_is_read_and_written(rig: Offload) -> None:
    other = rig.login("iqn.2026-12.org.example:two,i,0x000000000002")
    token = rig.token((0, 4))
    for lun in (0, 1):
        assert rig.run("5f000000000000001800", struct.pack(">QQ8x", 0, 5), nexus=other, lun=lun).status == GOOD
        assert rig.run("5f010300000000001800", struct.pack(">QQ8x", 5, 0), nexus=other, lun=lun).status == GOOD
    assert rig.populate((0, 4)).status == CONFLICT.status
    assert rig.write(token, (0, 4), lun=1).status == CONFLICT.status
    assert rig.write(token, (0, 4), lun=2).status == GOOD, "who has the token may read"


# -- parameters that cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "sense"),
    [
        (populate_list((0, 4))[:20], "5/24/00"),
        (populate_list((0, 4), (3, 2)), "5/26/00"),
        (populate_list((2047, 2)), "5/21/00"),
        (populate_list((1 << 63, 1)), "5/21/00"),
        (populate_list((5, 0)), "5/26/00"),
        (populate_list((0, 4), idle=601), "5/26/00"),
        (populate_list((0, 4), flags=2, rod=0x00800000), "5/26/00"),
        (b"\xff" + populate_list((0, 4))[1:], "5/26/00"),
        (populate_list((0, 4))[:14] + b"\0\x20" + populate_list((0, 4))[16:], "5/26/00"),
        (populate_list((0, 4))[:14] + b"\0\x08" + populate_list((0, 4))[16:], "5/26/00"),
        (populate_list(*((2 * at, 1) for at in range(257))), "5/24/00"),
    ],
)
def test_a_populate_token_that_is_refused(plain: Offload, data: bytes, sense: str) -> None:
    assert str(plain.sense(cdb(0x10, 1, len(data)), data)) == sense


def test_a_write_using_token_that_is_refused(plain: Offload) -> None:
    for data, sense in (
        (write_list(ZERO, (0, 4))[:540], "5/24/00"),
        (write_list(ZERO, (0, 4), (3, 2)), "5/26/00"),
        (write_list(ZERO, (2047, 2)), "5/21/00"),
        (write_list(ZERO, (5, 0)), "5/26/00"),
    ):
        assert str(plain.sense(cdb(0x11, 1, len(data)), data)) == sense
    assert plain.good(cdb(0x11, 1, 0)) == plain.good(cdb(0x10, 1, 0)) == b""
    short = write_list(ZERO, (0, 4))
    assert str(plain.sense(cdb(0x11, 1, len(short)), short[:100])) == "5/1A/00"


def test_full_tables_refuse(plain: Offload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(can, "MOST_TOKENS", 1)
    plain.token((0, 1))
    assert str(plain.populate((0, 1)).sense) == "5/55/0C"


def test_most_ranges_are_taken(plain: Offload) -> None:
    plain.fill(plain.unit, 0, PATTERN)
    ranges = [(2 * at, 1) for at in range(256)]
    token = plain.token(*ranges)
    assert plain.write(token, (0, 256)).status == GOOD
    got = plain.content(plain.units[1], 0, 10 * BS)
    assert got == b"".join(PATTERN[2 * at * BS : (2 * at + 1) * BS] for at in range(10))


# -- snapshots that are left over ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rig", ["snapshots"], indirect=True)
def test_snapshots_of_a_gateway_that_is_gone_are_removed_at_the_start(rig: Offload) -> None:
    rig.token((0, 4))
    assert snapshots(rig) == 1
    again = Gateway({name: graph.top for name, graph in rig.graphs.items()}, rig.reactor)
    config = TargetConfig(name=NAME, luns={0: LunConfig(path="/a", volume="m")})
    rig.reactor.wait(again.start([config]))
    assert snapshots(rig) == 0
    rig.reactor.wait(again.stop())
    rig.unit.gateway.tokens._live.clear()  # as if it had been killed


# -- VPD page 8Fh ------------------------------------------------------------------------------------------------------


def page(rig: Offload) -> bytes:
    return rig.good(bytes([0x12, 1, 0x8F, 2, 0, 0]))


def test_the_page_lists_what_there_is(plain: Offload) -> None:
    data = page(plain)
    assert int.from_bytes(data[2:4], "big") == len(data) - 4
    found = {}
    at = 4
    while at < len(data):
        kind, size = struct.unpack_from(">HH", data, at)
        assert size % 4 == 0
        found[kind] = data[at : at + 4 + size]
        at += 4 + size
    assert list(found) == [0, 1, 4, 8, 12, 0x106, 0x108, 0x8001]
    assert found[1][4:].rstrip(b"\0") == bytes.fromhex("0f 83 05 00 01 10 11 1c 84 06 00 03 04 05 07 08")
    assert struct.unpack(">HIIQQ", found[0][10:]) == (256, 600, 60, (1 << 40) // BS, (64 << 20) // BS)
    assert found[8][4:10] == bytes([5, 0x02, 0x07, 0x0A, 0x14, 0xE4])
    assert len(found[4]) == 32 and len(found[0x106]) == 96 and len(found[0x108]) == 136


def test_another_program_decodes_the_page(plain: Offload) -> None:
    need_peer("sg_vpd")
    text = page(plain).hex(" ")
    out = subprocess.run(["sg_vpd", "--inhex=-", "--page=tpc"], input=text, capture_output=True, text=True, check=True)
    for line in (
        "Maximum range descriptors: 256",
        "Maximum inactivity timeout: 600 seconds",
        "Default inactivity timeout: 60 seconds",
        "Populate token",
        "Write using token",
        "Receive ROD token information",
        "Maximum CSCD descriptor count: 64",
    ):
        assert line in out.stdout, out.stdout
