"""Readiness, removable media, sense data, log pages, self-tests, buffers, time: the state of a unit."""

from __future__ import annotations

import errno
import re
import struct
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from glustx.errors import FopError
from glustx.scsi.sense import CAPACITY_CHANGED, MEDIUM_CHANGED, Sense
from glustx.scsi.target import Function
from glustx.scsi.task import CHECK_CONDITION, GOOD, Nexus
from tests.kit import need_peer, which
from tests.scsi_kit import Rig, cdb_10, cdb_16
from tests.t2_graph.test_scsi_modes import page as mode_page
from tests.t2_graph.test_scsi_modes import select_6

READY = "000000000000"
EJECT, LOAD = "1b0000000200", "1b0000000300"
PREVENT, ALLOW = "1e0000000100", "1e0000000000"
OTHER = "iqn.2026-12.org.example:two,i,0x000000000002"


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


@pytest.fixture
def removable() -> Iterator[Rig]:
    rig = Rig(removable=True)
    yield rig
    rig.close()


def log_sense(page: int, sub: int = 0, pointer: int = 0, control: int = 1, size: int = 1024) -> bytes:
    return struct.pack(">BBBBBHHB", 0x4D, 0, control << 6 | page, sub, 0, pointer, size, 0)


def parameters(rig: Rig, page: int, **more: Any) -> dict[int, bytes]:
    data = rig.good(log_sense(page, **more))
    assert int.from_bytes(data[2:4], "big") == len(data) - 4
    found, at = {}, 4
    while at < len(data):
        code, control, size = struct.unpack_from(">HBB", data, at)
        assert control == 3
        found[code] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return found


def broken(rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int, name: str = "read") -> None:
    async def fails(*args: Any, **more: Any) -> Any:
        raise FopError(code, "broken on purpose")

    monkeypatch.setattr(rig.unit.backing, name, fails)


# -- capacity --------------------------------------------------------------------------------------------------------


def test_capacity() -> None:
    rig = Rig(size=1 << 20, pblocksize=4096, pblockoffset=512)
    assert rig.good("25000000000000000000").hex() == "000007ff00000200"
    data = rig.good(bytes([0x9E, 0x10]) + bytes(11) + b"\x20\0\0")
    assert data.hex() == "00000000000007ff" + "00000200" + "00" + "03" + "c001" + 32 * "0"
    for size in range(16):
        assert rig.good(bytes([0x9E, 0x10]) + bytes(11) + bytes([size, 0, 0])) == data[:size]
    assert str(rig.sense("25000000000100000000")) == "5/24/00"
    rig.close()


def test_a_capacity_that_ten_bytes_cannot_tell() -> None:
    rig = Rig(size=(1 << 41) + 512)
    assert rig.good("25000000000000000000").hex() == "ffffffff00000200"
    assert rig.good(bytes([0x9E, 0x10]) + bytes(11) + b"\x20\0\0")[:8].hex() == "0000000100000000"
    assert rig.good("1a003f00ff00")[4:8] == b"\xff\xff\xff\xff"
    rig.close()


# -- removable media -------------------------------------------------------------------------------------------------


def test_eject_and_load(removable: Rig) -> None:
    rig = removable
    other = rig.login(OTHER)
    rig.good(EJECT)
    rig.good(EJECT)
    for cdb in (READY, "25000000000000000000", cdb_10(0x28, 0, 1), cdb_10(0x35, 0, 1), cdb_16(0x9E, 0, 0, 0x10)):
        assert str(rig.sense(cdb)) == "2/3A/00"
    assert str(rig.sense(READY, nexus=other)) == "2/3A/00"
    assert rig.good("030000002000")[2] == 2, "REQUEST SENSE says why"
    rig.good("120000006000")
    rig.good(LOAD)
    rig.good(READY)
    sense = rig.sense(READY, nexus=other)
    assert (sense.asc, sense.ascq) == (MEDIUM_CHANGED.asc, MEDIUM_CHANGED.ascq)
    rig.good(cdb_10(0x28, 0, 1), nexus=other)


def test_only_removable_media_leave(rig: Rig) -> None:
    for cdb in (EJECT, LOAD, "1b0000000000", "1b0100000100", PREVENT, EJECT, ALLOW):
        rig.good(cdb)
        rig.good(READY)


def test_a_stop_flushes_and_leaves_the_unit_ready(removable: Rig) -> None:
    rig = removable
    rig.good(cdb_10(0x2A, 0, 1), b"x" * 512)
    rig.good("1b0000000400")  # NO_FLUSH
    assert rig.unit.backing.written
    rig.good("1b0000000000")
    assert not rig.unit.backing.written
    rig.good(READY)
    for condition in range(1, 16):
        rig.good(bytes([0x1B, 1, 0, 0, condition << 4 | 2, 0]))
        rig.good(READY)


def test_removal_is_prevented_until_allowed(removable: Rig) -> None:
    rig = removable
    other = rig.login(OTHER)
    rig.good(PREVENT)
    for nexus in (rig.nexus, other):
        assert str(rig.sense(EJECT, nexus=nexus)) == "5/53/02"
    rig.good(ALLOW, nexus=other)
    assert str(rig.sense(EJECT)) == "5/53/02", "another's ALLOW is not ours"
    rig.good(ALLOW)
    rig.good(EJECT)
    rig.good(PREVENT)
    assert str(rig.sense(LOAD)) == "5/53/02"
    rig.good(ALLOW)
    rig.good(LOAD)


@pytest.mark.parametrize("how", ["lost", *Function])
def test_what_ends_a_prevention(removable: Rig, how: str | Function) -> None:
    rig = removable
    other = rig.login(OTHER)
    rig.good(PREVENT)
    if how == "lost":
        rig.target.lose(rig.nexus)
    else:
        rig.target.manage(rig.nexus, Function(how), 0)
    other.attentions.clear()
    ends = how in (
        "lost",
        Function.LOGICAL_UNIT_RESET,
        Function.TARGET_WARM_RESET,
        Function.TARGET_COLD_RESET,
        Function.I_T_NEXUS_RESET,
    )
    assert rig.run(EJECT, nexus=other).status == (GOOD if ends else CHECK_CONDITION)


# -- REQUEST SENSE ---------------------------------------------------------------------------------------------------


def test_request_sense_takes_the_attention(rig: Rig) -> None:
    rig.nexus.raise_attention(rig.unit, CAPACITY_CHANGED)
    fixed = rig.good("030000002000")
    assert len(fixed) == 18 and (fixed[0], fixed[2], fixed[12], fixed[13]) == (0x70, 6, 0x2A, 0x09)
    assert rig.good("030100002000").hex() == "7200000000000000"
    assert rig.good("030000000400") == b"\x70\0\0\0"


@pytest.mark.parametrize("descriptor", [False, True])
def test_sg_decode_sense_reads_ours(descriptor: bool) -> None:
    need_peer("sg_decode_sense")
    sense = Sense(6, 0x38, 0x07, 0x10)
    argv = [which("sg_decode_sense") or "sg_decode_sense", *sense.encode(descriptor).hex(" ").split()]
    text = subprocess.run(argv, capture_output=True, text=True).stdout
    assert "Thin provisioning soft threshold reached" in text and "Unit Attention" in text
    assert re.search("0x0*10", text)


# -- log pages -------------------------------------------------------------------------------------------------------


def test_the_list_of_pages_is_true(rig: Rig) -> None:
    codes = list(rig.good(log_sense(0))[4:])
    assert codes == sorted(codes) == [0x00, 0x0C, 0x0D, 0x0E, 0x10, 0x11, 0x19, 0x2F]
    for code in range(0x40):
        if code not in codes:
            assert str(rig.sense(log_sense(code))) == "5/24/00"
        elif code:
            assert rig.good(log_sense(code))[:2] == bytes([0x80 | code, 0]) and parameters(rig, code)
            assert rig.good(log_sense(code, 0xFF))[4:] == bytes([code, 0, code, 0xFF])
    pairs = rig.good(log_sense(0, 0xFF))
    assert pairs[0] == 0xC0 and pairs[4:8] == b"\x00\x00\x00\xff" and pairs[8::2] == bytes(codes[1:])
    assert str(rig.sense(log_sense(0x19, 1))) == "5/24/00"
    assert str(rig.sense(bytes([0x4D, 1, 0x40, 0, 0, 0, 0, 0, 255, 0]))) == "5/24/00"


def test_parameter_pointers_and_short_allocations(rig: Rig) -> None:
    assert list(parameters(rig, 0x19)) == [1, 2, 3]
    assert list(parameters(rig, 0x19, pointer=2)) == [2, 3]
    assert str(rig.sense(log_sense(0x19, pointer=4))) == "5/24/00"
    whole = rig.good(log_sense(0x19, pointer=2))
    assert rig.good(log_sense(0x19, pointer=2, size=6)) == whole[:6]


def test_statistics_count_what_was_moved(rig: Rig) -> None:
    def figures() -> tuple[int, ...]:
        return struct.unpack_from(">4Q", parameters(rig, 0x19)[1])

    rig.good(cdb_10(0x2A, 0, 3), bytes(3 * 512))
    rig.good(cdb_10(0x28, 0, 5))
    rig.good(cdb_10(0x28, 0, 1))
    assert figures() == (2, 1, 3, 6)
    other = rig.login(OTHER)
    rig.good("4c025900000000000000")
    assert figures() == (0, 0, 0, 0)
    assert str(rig.sense(READY, nexus=other)) == "6/2A/02"
    assert rig.unit.statistics.reads == 2, "operators' own counters go on"
    rig.good(cdb_10(0x28, 0, 1))
    assert figures() == (1, 0, 0, 1)


def test_space_is_what_the_volume_says(rig: Rig) -> None:
    rig.good(cdb_10(0x2A, 0, 2048), b"x" * (1 << 20))
    usage = rig.reactor.wait(rig.unit.backing.usage())
    found = parameters(rig, 0x0C)
    assert {code: struct.unpack_from(">IB", data) for code, data in found.items()} == {
        0x01: (usage.pool_free >> 20, 2),
        0x02: (usage.used >> 20, 1),
        0xF1: (usage.pool_free >> 20, 2),
        0xF2: ((usage.pool_size - usage.pool_free) >> 20, 2),
    }
    assert usage.used >> 20 == 1


def test_self_tests_are_done_and_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parameters(rig, 0x10)[1] == bytes(16)
    for cdb in ("1d0400000000", "1d2000000000", "1dc000000000"):
        rig.good(cdb)
    found = parameters(rig, 0x10)
    assert len(found) == 20 and [found[at][0] for at in (1, 2, 3)] == [6 << 5, 1 << 5, 0]
    rig.good("4c025000000000000000")
    assert parameters(rig, 0x10)[1] == bytes(16)


@pytest.mark.logs("broken on purpose")
def test_a_self_test_that_fails(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(rig, monkeypatch, errno.EIO)
    rig.good("1d4000000000")  # in the background: the log tells
    assert str(rig.sense("1dc000000000")) == "4/3E/03"
    found = parameters(rig, 0x10)
    assert found[1][0] == 6 << 5 | 7 and found[1][12:15] == b"\x04\x3e\x03" and found[2][0] == 2 << 5 | 7


def test_diagnostics_that_cannot_be(rig: Rig) -> None:
    for cdb in ("1d2400000000", "1d6000000000", "1d8000000000", "1d0400000400"):
        assert str(rig.sense(cdb, bytes(int(cdb[8:10], 16)))) == "5/24/00"
    rig.good("1d1000000400", b"\x00\x00\x00\x00")
    assert str(rig.sense("1d1000000400", b"\x40\x00\x00\x00")) == "5/26/00"
    assert str(rig.sense("1d1000000300", b"\x00\x00\x00")) == "5/1A/00"
    assert rig.good("1c010000ff00") == b"\x00\x00\x00\x01\x00"
    assert str(rig.sense("1c014000ff00")) == "5/24/00"


def test_log_select_sets_nothing(rig: Rig) -> None:
    page = rig.good(log_sense(0x19))
    length = len(page).to_bytes(2, "big").hex()
    assert str(rig.sense(f"4c0059000000 00{length}00", page)) == "5/26/00"
    assert str(rig.sense(f"4c0059000000 00{length}00", page[:-1])) == "5/1A/00"
    assert str(rig.sense(f"4c0259000000 00{length}00", page)) == "5/24/00"
    assert str(rig.sense("4c025500000000000000")) == "5/24/00"
    rig.good("4c005900000000000000")


@pytest.mark.parametrize("page", [0x00, 0x0C, 0x0D, 0x0E, 0x10, 0x11, 0x19, 0x2F])
def test_sg_logs_reads_our_pages(rig: Rig, page: int) -> None:
    need_peer("sg_logs")
    says = {
        0x0C: "Scope: dedicated to lu",
        0x0D: "not available",
        0x0E: "Accumulated start-stop cycles = 1",
        0x19: "number of read commands = 0",
        0x2F: "IE asc = 0x0, ascq = 0x0",
    }
    argv = [which("sg_logs") or "sg_logs", "--inhex=-"]
    done = subprocess.run(argv, input=rig.good(log_sense(page)).hex(" "), capture_output=True, text=True)
    assert done.returncode == 0 and says.get(page, "page") in done.stdout, done.stdout + done.stderr


# -- informational exceptions ----------------------------------------------------------------------------------------


def exceptions(rig: Rig, flags: int, method: int, interval: int = 0, count: int = 0) -> None:
    body = mode_page(rig, 0x1C)
    struct.pack_into(">BBII", body, 2, flags, method, interval, count)
    rig.good(select_6(4 + len(body)), bytes(4) + body)


def told(rig: Rig, nexus: Nexus | None = None) -> str:
    result = rig.run(READY, nexus=nexus)
    return str(result.sense) if result.sense is not None else ""


@pytest.mark.logs("broken on purpose")
def test_a_brick_that_could_not_read_predicts_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        broken(rig, patched, errno.EIO)
        assert str(rig.sense(cdb_10(0x28, 0, 1))) == "3/11/00"
    assert parameters(rig, 0x2F)[0][:2] == b"\x5d\x00"
    assert told(rig) == "", "MRIE 0: only who asks is told"
    exceptions(rig, 0, 6)
    assert rig.good("030000002000")[12] == 0x5D and told(rig) == ""
    exceptions(rig, 0x08, 6)
    assert parameters(rig, 0x2F)[0][:2] == bytes(2) and rig.good("030000002000")[12] == 0
    exceptions(rig, 0, 0)
    rig.good("4c026f00000000000000")
    assert parameters(rig, 0x2F)[0][:2] == bytes(2)


@pytest.mark.logs("broken on purpose")
def test_a_full_brick_predicts_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(rig, monkeypatch, errno.ENOSPC, "write")
    assert str(rig.sense(cdb_10(0x2A, 0, 1), bytes(512))) == "7/27/07"
    assert parameters(rig, 0x2F)[0][:2] == bytes(2)
    assert rig.unit.statistics.refused == {errno.ENOSPC: 1}


def test_a_threshold_that_is_met_shows_in_the_log_and_nowhere_else(rig: Rig) -> None:
    exceptions(rig, 0, 4)
    rig.unit.exceptions.threshold = True
    rig.unit.exceptions.review()
    assert parameters(rig, 0x2F)[0][:2] == b"\x38\x07"
    assert [told(rig), told(rig)] == ["", ""], "thresholds have unit attentions of their own"
    exceptions(rig, 0, 6)
    assert rig.good("030000002000")[12:14] == b"\x38\x07"


def test_a_test_exception_as_an_attention(rig: Rig) -> None:
    other = rig.login(OTHER)
    exceptions(rig, 0x04, 2)
    assert told(rig, other) == "6/2A/01" and told(rig) == "", "the next command that ends brings it up"
    assert [told(rig, nexus) for nexus in (other, rig.nexus, other, rig.nexus)] == ["6/5D/FF", "6/5D/FF", "", ""]


@pytest.mark.parametrize(("method", "sense"), [(3, "1/5D/FF"), (4, "1/5D/FF"), (5, "0/5D/FF")])
def test_a_test_exception_at_the_end_of_a_command(rig: Rig, method: int, sense: str) -> None:
    exceptions(rig, 0x04, method, interval=100, count=2)
    for expected in (sense, sense, "", ""):
        data = rig.run(cdb_10(0x28, 0, 1))
        assert (str(data.sense) if data.sense else "", b"".join(data.data)) == (expected, bytes(512))
        assert told(rig) == ""
        rig.reactor.advance(11)


# -- buffers, defects, information, time -----------------------------------------------------------------------------


def test_buffers(rig: Rig) -> None:
    assert rig.good("3c030000000000000400").hex() == "00040000"
    assert rig.good("3c030100000000000400").hex() == "00000000"
    assert rig.good("3c0b0000000000000400").hex() == "00000000"
    assert rig.good("3c020000000400000800") == bytes(8)
    rig.good("3b020000000500000300", b"abc")
    assert rig.good("3c020000000400000800") == b"\0abc\0\0\0\0"
    assert rig.good("9b02" + "0000000000000005" + "00000003" + "0000") == b"abc"
    assert str(rig.sense("3b020003ffff00000200", b"zz")) == "5/24/00"
    assert str(rig.sense("3b050000000000000200", b"zz")) == "5/24/00"
    assert str(rig.sense("3c020100000000000800")) == "5/24/00"
    assert str(rig.sense("3c000000000000000800")) == "5/24/00"
    assert len(rig.good("3c020003fff000002000")) == 16


def test_defect_lists_are_empty(rig: Rig) -> None:
    assert rig.good("37001d00000000002000").hex() == "001d0000"
    assert rig.good("b71d00000000000000200000").hex() == "001d000000000000"


def test_identifying_information_stays_with_the_file(rig: Rig) -> None:
    other = rig.login(OTHER)

    def report(kind: int) -> bytes:
        return rig.good(bytes([0xA3, 5, 0, 0, 0, 0, 0, 0, 2, 0, kind << 1, 0]))

    def set_to(kind: int, data: bytes, length: int | None = None) -> bytes:
        size = (len(data) if length is None else length).to_bytes(4, "big")
        return bytes([0xA4, 6, 0, 0, 0, 0]) + size + bytes([kind << 1, 0])

    assert report(0) == bytes(4) and report(2) == bytes(4)
    assert report(0x7F).hex() == "00000008" + "00000200" + "04000100"
    rig.good(set_to(0, b"rack 7"), b"rack 7")
    rig.good(set_to(2, b"db\0"), b"db\0")
    assert report(0) == b"\0\0\0\x06rack 7" and report(2) == b"\0\0\0\x03db\0"
    assert str(rig.sense(READY, nexus=other)) == "6/3F/05"
    rig.good(set_to(0, b""))
    assert report(0) == bytes(4)
    assert str(rig.sense(set_to(2, b"db"), b"db")) == "5/26/00"
    assert str(rig.sense(set_to(0, b"abc", 5), b"abc")) == "5/1A/00"
    assert str(rig.sense(set_to(0, b"", 513), b"x" * 513)) == "5/24/00"
    assert str(rig.sense(set_to(1, b"x"), b"x")) == "5/24/00"


def test_the_time(rig: Rig) -> None:
    def now() -> tuple[int, int]:
        data = rig.good("a30f00000000000000200000")
        assert len(data) == 12 and data[:2] == b"\x00\x0a"
        return data[2], int.from_bytes(data[4:10], "big")

    other = rig.login(OTHER)
    assert now()[0] == 3 and now()[1] > 1_700_000_000_000
    rig.good("a40f000000000000000c0000", bytes(4) + (5000).to_bytes(6, "big") + bytes(2))
    assert str(rig.sense(READY, nexus=other)) == "6/2A/10"
    assert now() == (2, 5000)
    rig.reactor.advance(1.5)
    assert now() == (2, 6500)
    assert str(rig.sense("a40f000000000000000b0000", bytes(11))) == "5/1A/00"
    rig.good("a40f00000000000000000000")
