"""MODE SENSE and MODE SELECT: what the pages say is what the unit does."""

from __future__ import annotations

import errno
import struct
import subprocess
from collections.abc import Iterator

import pytest

from glustx.errors import FopError
from glustx.scsi.gateway import Gateway
from glustx.scsi.mode_pages import PAGES
from glustx.scsi.sense import MODE_CHANGED, UNIT_RESET
from glustx.scsi.target import Function
from glustx.scsi.task import TASK_ABORTED
from tests.kit import need_peer, which
from tests.scsi_kit import NAME, Rig, cdb_10, cdb_16

CURRENT, CHANGEABLE, DEFAULT, SAVED = range(4)
CONTROL = 0x0A
OTHER = "iqn.2026-12.org.example:two,i,0x000000000002"


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def sense_6(page: int, sub: int = 0, control: int = 0, size: int = 255, dbd: bool = True) -> bytes:
    return bytes([0x1A, 8 if dbd else 0, control << 6 | page, sub, size, 0])


def sense_10(page: int, sub: int = 0, control: int = 0, flags: int = 0x08) -> bytes:
    return struct.pack(">BBBB3xHB", 0x5A, flags, control << 6 | page, sub, 0xFFFF, 0)


def select_6(length: int, flags: int = 0x10) -> bytes:
    return bytes([0x15, flags, 0, 0, length, 0])


def select_10(length: int, flags: int = 0x10) -> bytes:
    return struct.pack(">BB5xHB", 0x55, flags, length, 0)


def page(rig: Rig, code: int, sub: int = 0, control: int = 0) -> bytearray:
    """A page as MODE SELECT wants it, without PS."""
    data = bytearray(rig.good(sense_6(code, sub, control))[4:])
    data[0] &= 0x7F
    return data


def change(rig: Rig, code: int, byte: int, mask: int, on: bool = True, sub: int = 0, flags: int = 0x10) -> None:
    body = page(rig, code, sub)
    body[byte] = body[byte] | mask if on else body[byte] & ~mask
    rig.good(select_6(4 + len(body), flags), bytes(4) + body)


# -- MODE SENSE ------------------------------------------------------------------------------------------------------


def test_all_pages_are_there_in_ascending_order(rig: Rig) -> None:
    for sub, wanted in ((0, [key for key in sorted(PAGES) if not key[1]]), (0xFF, sorted(PAGES))):
        data = rig.good(sense_6(0x3F, sub))
        assert data[0] == len(data) - 1 and data[3] == 0
        keys, at = [], 4
        while at < len(data):
            long = data[at] & 0x40
            keys.append((data[at] & 0x3F, data[at + 1] if long else 0))
            at += 4 + int.from_bytes(data[at + 2 : at + 4], "big") if long else 2 + data[at + 1]
        assert keys == wanted and at == len(data)
    assert rig.good(sense_10(0x3F, 0xFF))[8:] == data[4:]


def test_headers_and_block_descriptors(rig: Rig) -> None:
    data = rig.good(sense_6(8, dbd=False))
    assert data[1:4] == b"\x00\x10\x08" and data[4:12] == struct.pack(">II", 2048, 512)
    data = rig.good(sense_10(8, flags=0))
    assert data[:8] == struct.pack(">HBBBBH", len(data) - 2, 0, 0x10, 0, 0, 8)
    data = rig.good(sense_10(8, flags=0x10))
    assert data[:8] == struct.pack(">HBBBBH", len(data) - 2, 0, 0x10, 1, 0, 16)
    assert data[8:24] == struct.pack(">QII", 2048, 0, 512)


def test_allocation_lengths_cut_and_pages_that_are_not_there(rig: Rig) -> None:
    whole = rig.good(sense_6(0x3F))
    assert rig.good(sense_6(0x3F, size=4)) == whole[:4] and rig.good(sense_6(0x3F, size=0)) == b""
    for code, sub in ((0x02, 0), (0x0A, 2), (0x08, 1), (0x3F, 1), (0x00, 0)):
        assert str(rig.sense(sense_6(code, sub))) == "5/24/00"
    assert rig.good(sense_6(0x0A, 0xFF))[4] & 0x3F == 0x0A


def test_sdparm_reads_our_pages(rig: Rig) -> None:
    need_peer("sdparm")

    def told(code: int, sub: int = 0) -> str:
        data = rig.good(sense_10(code, sub))
        argv = [which("sdparm") or "sdparm", "--inhex=-", "--long"]
        return subprocess.run(argv, input=data.hex(" "), capture_output=True, text=True).stdout

    text = " ".join((told(8) + told(CONTROL) + told(1)).split())
    for words in ("WCE 1", "RCD 0", "SWP 0", "D_SENSE 0", "TAS 1", "LBPERE 1", "AWRE 1"):
        assert words in text, text


# -- MODE SELECT -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_changed_is_current_and_others_hear_of_it(rig: Rig, wide: bool) -> None:
    other = rig.login(OTHER)
    body = page(rig, CONTROL)
    body[2] |= 0x04
    if wide:
        rig.good(select_10(8 + len(body)), bytes(8) + body)
    else:
        rig.good(select_6(4 + len(body)), bytes(4) + body)
    assert page(rig, CONTROL) == body and page(rig, CONTROL, control=DEFAULT) != body
    assert str(rig.sense("000000000000", nexus=other)) == f"6/{MODE_CHANGED.asc:02X}/{MODE_CHANGED.ascq:02X}"
    rig.good("000000000000")
    rig.good(select_6(4 + len(body)), bytes(4) + body)
    rig.good("000000000000", nexus=other)  # nothing was changed, so nobody hears of anything


def test_block_descriptors_in_a_list(rig: Rig) -> None:
    body = bytes(page(rig, CONTROL))
    for blocks, size in ((0, 512), (2048, 512), (0xFFFFFFFF, 0)):
        data = bytes([0, 0, 0, 8]) + struct.pack(">II", blocks, size) + body
        rig.good(select_6(len(data)), data)
    wide = bytes([0, 0, 0, 0, 1, 0, 0, 16]) + struct.pack(">QII", 2048, 0, 512) + body
    rig.good(select_10(len(wide)), wide)
    for blocks, size, at in ((1, 512, 4), (0, 4096, 9)):
        data = bytes([0, 0, 0, 8]) + struct.pack(">II", blocks, size) + body
        sense = rig.sense(select_6(len(data)), data)
        assert str(sense) == "5/26/00" and int.from_bytes(sense.sks[1:], "big") == at
    assert str(rig.sense(select_6(16), bytes([0, 0, 0, 16]) + bytes(12))) == "5/26/00"


def test_lists_that_cannot_be_change_nothing(rig: Rig) -> None:
    before = rig.good(sense_6(0x3F, 0xFF))
    good = page(rig, CONTROL)
    good[2] |= 0x04

    def refused(data: bytes, sense: str, at: int | None = None, flags: int = 0x10, length: int | None = None) -> None:
        found = rig.sense(select_6(len(data) if length is None else length, flags), data)
        assert str(found) == sense
        if at is not None:
            assert found.sks[0] & 0xC0 == 0x80 and int.from_bytes(found.sks[1:], "big") == at
        assert rig.good(sense_6(0x3F, 0xFF)) == before

    caching = page(rig, 8)
    fixed = bytearray(caching)
    fixed[12] |= 0x80
    refused(bytes(4) + good + fixed, "5/26/00", 4 + 12 + 12)
    refused(bytes(4) + good + bytes([0x02, 0x0E]) + bytes(14), "5/26/00", 16)
    refused(bytes(4) + good + bytes([0x08, 0x11]) + bytes(17), "5/26/00", 17)
    refused(bytes(4) + good + caching[:-1], "5/1A/00")
    refused(bytes(4) + good + b"\x08", "5/1A/00")
    refused(bytes(4) + good + b"\x4a\x01\x00", "5/1A/00")
    refused(bytes(4) + good + b"\x4a\x00\x00\x1c" + bytes(28), "5/26/00")
    refused(bytes([0, 1, 0, 0]) + good, "5/26/00", 1)
    refused(bytes(3), "5/1A/00")
    refused(bytes(4) + good[:6], "5/1A/00", length=16)
    refused(bytes(4) + good, "5/24/00", flags=0)
    qam = page(rig, CONTROL)
    qam[3] |= 0x20
    refused(bytes(4) + qam, "5/26/00", 4 + 3)
    armed = page(rig, 0x1C, 2)
    armed[16] = 0x80
    refused(bytes(4) + armed, "5/26/00", 4 + 16)
    refused(b"", "5/24/00", flags=0x02, length=4)
    rig.good(select_6(0))
    rig.good(select_6(0, 0))


def test_rtd_goes_back_to_the_defaults(rig: Rig) -> None:
    change(rig, CONTROL, 2, 0x04)
    change(rig, 8, 2, 0x04, False)
    rig.good(select_6(0, 0x12))
    assert rig.good(sense_6(0x3F, 0xFF)) == rig.good(sense_6(0x3F, 0xFF, DEFAULT))


@pytest.mark.logs("broken on purpose")
@pytest.mark.parametrize("step", ["flush", "set_record"])
def test_what_cannot_be_done_leaves_all_as_it_was(rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    async def fails(*args: object) -> None:
        raise FopError(errno.EROFS, "broken on purpose")

    other = rig.login(OTHER)
    rig.good(cdb_10(0x2A, 0, 1), b"x" * 512)
    before = rig.good(sense_6(0x3F, 0xFF)), rig.good(sense_6(0x3F, 0xFF, SAVED))
    body = page(rig, 8)
    body[2] &= ~0x04
    with monkeypatch.context() as patched:
        patched.setattr(rig.unit.backing, step, fails)
        assert rig.sense(select_6(4 + len(body), 0x11), bytes(4) + body).key == 7
    assert (rig.good(sense_6(0x3F, 0xFF)), rig.good(sense_6(0x3F, 0xFF, SAVED))) == before
    assert rig.unit.modes.write_cache and rig.unit not in other.attentions


def test_saved_pages_stay_with_the_file(rig: Rig) -> None:
    change(rig, CONTROL, 2, 0x04)
    change(rig, 8, 2, 0x04, False, flags=0x11)  # saves all that is current
    assert page(rig, CONTROL, control=SAVED)[2] & 0x04
    change(rig, CONTROL, 4, 0x08)
    assert rig.target.manage(rig.nexus, Function.LOGICAL_UNIT_RESET, 0) == 0
    assert rig.nexus.take_attention(rig.unit) == UNIT_RESET
    assert not rig.unit.modes.software_protected and rig.unit.modes.descriptor_sense
    rig.reactor.wait(rig.gateway.stop())
    rig.gateway = Gateway({"m": rig.graph.top}, rig.reactor)
    rig.reactor.wait(rig.gateway.start([rig.config]))
    unit = rig.gateway.targets[NAME].units[0]
    assert unit.modes.descriptor_sense and not unit.modes.write_cache and not unit.modes.software_protected


def test_an_option_of_the_unit_is_worth_more_than_what_is_saved() -> None:
    rig = Rig(writecache=False, avail_threshold=1 << 20)
    change(rig, 8, 2, 0x04, flags=0x11)
    change(rig, CONTROL, 2, 0x04, flags=0x11)
    assert rig.unit.modes.write_cache
    rig.reactor.wait(rig.gateway.stop())
    rig.gateway = Gateway({"m": rig.graph.top}, rig.reactor)
    rig.reactor.wait(rig.gateway.start([rig.config]))
    unit = rig.gateway.targets[NAME].units[0]
    assert not unit.modes.write_cache and unit.modes.descriptor_sense
    assert [each.count for each in unit.modes.thresholds] == [1]
    rig.close()


def test_a_read_only_unit_saves_nothing() -> None:
    rig = Rig(readonly=True)
    assert rig.good(sense_6(0x3F))[2] == 0x90, "WP and DPOFUA"
    assert not any(rig.good(sense_6(code, sub))[4] & 0x80 for code, sub in PAGES)
    assert str(rig.sense(sense_6(8, control=SAVED))) == "5/39/00"
    body = page(rig, CONTROL)
    assert str(rig.sense(select_6(16, 0x11), bytes(4) + body)) == "5/24/00"
    rig.close()


# -- each bit does what it says --------------------------------------------------------------------------------------


def test_swp_protects_and_is_told_as_wp(rig: Rig) -> None:
    change(rig, CONTROL, 4, 0x08)
    assert rig.good(sense_6(CONTROL))[2] == 0x90
    assert str(rig.sense(cdb_10(0x2A, 0, 1), bytes(512))) == "7/27/02"
    assert rig.good(cdb_10(0x28, 0, 1)) == bytes(512)
    change(rig, CONTROL, 4, 0x08, False)
    rig.good(cdb_10(0x2A, 0, 1), bytes(512))
    assert rig.good(sense_6(CONTROL))[2] == 0x10


def test_d_sense_is_what_transports_look_at(rig: Rig) -> None:
    sense = rig.sense(cdb_16(0x88, (1 << 64) - 1, 1))
    assert sense.encode(rig.unit.modes.descriptor_sense)[0] & 0x7F == 0x70
    change(rig, CONTROL, 2, 0x04)
    assert sense.encode(rig.unit.modes.descriptor_sense)[0] == 0x72


def test_a_write_cache_that_is_switched_off_is_empty(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 1), b"x" * 512)
    assert rig.unit.backing.written
    change(rig, 8, 2, 0x04, False)
    assert not rig.unit.backing.written
    rig.good(cdb_10(0x2A, 0, 1), b"y" * 512)
    assert not rig.unit.backing.written


def test_without_a_read_cache_a_read_makes_durable_what_it_reads(rig: Rig) -> None:
    change(rig, 8, 2, 0x01)
    assert page(rig, 8)[2] & 1
    for read in (cdb_10(0x28, 0, 1), bytes([0x08, 0, 0, 0, 1, 0])):
        rig.good(cdb_10(0x2A, 0, 1), b"x" * 512)
        assert rig.unit.backing.written and rig.good(read) == b"x" * 512
        assert not rig.unit.backing.written


@pytest.mark.parametrize("nuar", [False, True])
def test_nuar_keeps_releases_quiet(rig: Rig, nuar: bool) -> None:
    change(rig, CONTROL, 3, 0x08, nuar)
    other = rig.login(OTHER)
    keys = struct.pack(">QQ8x", 0, 1)
    for nexus in (rig.nexus, other):
        rig.good(bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0]), keys, nexus=nexus)
    keys = struct.pack(">QQ8x", 1, 0)
    for action in (1, 2):  # RESERVE and RELEASE, write exclusive for registrants
        rig.good(bytes([0x5F, action, 5, 0, 0, 0, 0, 0, 24, 0]), keys)
    told = [(each.asc, each.ascq) for each in other.attentions.get(rig.unit, [])]
    assert told == ([] if nuar else [(0x2A, 0x04)])


def test_qam_lets_overlapping_commands_run_side_by_side(rig: Rig) -> None:
    assert rig.unit.order.restricted
    change(rig, CONTROL, 3, 0x10)
    assert not rig.unit.order.restricted
    loose = Rig(reordering="unrestricted")
    assert page(loose, CONTROL)[3] & 0xF0 == 0x10
    loose.close()


@pytest.mark.parametrize("tas", [False, True])
def test_tas_says_how_tasks_of_others_end(rig: Rig, tas: bool) -> None:
    change(rig, CONTROL, 5, 0x40, tas)
    other = rig.login(OTHER)
    for function in (Function.CLEAR_TASK_SET, Function.LOGICAL_UNIT_RESET):
        hold = rig.unit.order.enter(0, 1, True, 1)
        _, mine = rig.begin(cdb_10(0x28, 0, 1))
        _, theirs = rig.begin(cdb_10(0x28, 0, 1), nexus=other)
        rig.target.manage(rig.nexus, function, 0)
        assert mine.done and mine.result is None and theirs.done
        assert (theirs.result.status if theirs.result else None) == (TASK_ABORTED if tas else None)
        told = [(each.asc, each.ascq) for each in other.attentions.pop(rig.unit, [])]
        assert told == ([(0x29, 3)] if function is Function.LOGICAL_UNIT_RESET else [] if tas else [(0x2F, 0)])
        rig.unit.order.leave(hold)
        rig.nexus.attentions.clear()
        if function is Function.LOGICAL_UNIT_RESET:
            change(rig, CONTROL, 5, 0x40, tas)


def test_thresholds_are_read_from_the_page(rig: Rig) -> None:
    body = page(rig, 0x1C, 2)
    assert [body[at + 1] for at in range(16, 48, 8)] == [0x01, 0x02, 0xF1, 0xF2]
    struct.pack_into(">BBHI", body, 24, 0x81, 0x02, 0, 7)
    body[4] |= 1
    rig.good(select_6(4 + len(body)), bytes(4) + body)
    (threshold,) = rig.unit.modes.thresholds
    assert (threshold.offset, threshold.resource, threshold.rising, threshold.count) == (24, 0x02, True, 7)
    assert rig.unit.modes.single_attention and rig.unit.modes.thin_attentions
    change(rig, 0x01, 7, 0x80, False)
    assert not rig.unit.modes.thin_attentions
