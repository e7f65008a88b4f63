"""INQUIRY and its pages, REPORT LUNS, REPORT SUPPORTED OPERATION CODES, and what else a target tells of itself."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator

import pytest

from glustx.scsi.commands import COMMANDS, MEDIUM, Access, cdb_length
from glustx.scsi.config import TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.report import encode_lun
from glustx.scsi.sense import LUNS_CHANGED, POWER_ON
from tests.kit import need_peer, which
from tests.scsi_kit import NAME, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def inquiry(page: int | None = None, size: int = 512) -> bytes:
    return struct.pack(">BBBHB", 0x12, page is not None, page or 0, size, 0)


def rsoc(options: int, opcode: int = 0, action: int = 0, timeouts: bool = False, size: int = 65535) -> bytes:
    return struct.pack(">BBBBHIBB", 0xA3, 0x0C, options | timeouts << 7, opcode, action, size, 0, 0)


def decoded(program: str, data: bytes) -> str:
    """What an initiator's own tool reads out of data-in."""
    need_peer(program)
    argv = [which(program) or program, "--inhex=-"]
    done = subprocess.run(argv, input=data.hex(" "), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- INQUIRY ---------------------------------------------------------------------------------------------------------


def test_standard_inquiry(rig: Rig) -> None:
    data = rig.good(inquiry())
    assert len(data) == 96 and data[4] == 91
    assert data[0] == 0 and data[1] == 0 and data[2] == 6 and data[3] == 0x12
    assert data[5] == 0x18, "implicit ALUA, third-party copy"
    assert data[6] == 0x10 and data[7] == 0x02
    assert data[8:36] == b"GLUSTX  glustx disk     0001"
    assert {0x0460, 0x04C0, 0x0960} <= set(struct.unpack_from(">8H", data, 58))


def test_inquiry_is_cut_to_any_length(rig: Rig) -> None:
    whole = rig.good(inquiry())
    for size in (0, 5, 36, 95, 96, 97, 511, 512, 0xFFFF):
        assert rig.good(inquiry(size=size)) == whole[:size]


def test_a_page_code_without_evpd_is_refused(rig: Rig) -> None:
    sense = rig.sense(bytes([0x12, 0, 0x80, 0, 255, 0]))
    assert str(sense) == "5/24/00" and sense.sks == bytes([0xC0, 0, 2])
    assert str(rig.sense(inquiry(0xC0))) == "5/24/00"
    assert str(rig.sense(bytes([0x12, 2, 0, 0, 255, 0]))) == "5/24/00", "CMDDT is obsolete"


def test_names_and_removable_medium_are_the_options() -> None:
    rig = Rig(vendor="ACME", product="disk", revision="9", serial="S1", removable=True, eui="0011223344556677")
    data = rig.good(inquiry())
    assert data[1] == 0x80 and data[8:36] == b"ACME    disk            9   "
    assert rig.good(inquiry(0x80)) == b"\x00\x80\x00\x02S1"
    assert b"\x01\x02\x00\x08" + bytes.fromhex("0011223344556677") in rig.good(inquiry(0x83))
    rig.close()


def test_every_listed_page_is_there_and_nothing_else(rig: Rig) -> None:
    listed = rig.good(inquiry(0x00))
    assert listed[:4] == struct.pack(">BBH", 0, 0, len(listed) - 4)
    codes = list(listed[4:])
    assert codes == sorted(set(codes)) and codes[0] == 0
    assert {0x80, 0x83, 0x86, 0x87, 0x88, 0xB0, 0xB1, 0xB2} <= set(codes)
    for code in range(256):
        if code in codes:
            data = rig.good(inquiry(code, 0xFFFF))
            assert data[1] == code and int.from_bytes(data[2:4], "big") == len(data) - 4
        else:
            assert str(rig.sense(inquiry(code))) == "5/24/00"


def test_device_identification_is_well_formed(rig: Rig) -> None:
    data = rig.good(inquiry(0x83))[4:]
    found = []
    while data:
        size = data[3]
        found.append((data[1] & 0x30, data[1] & 0x0F, data[4 : 4 + size]))
        data = data[4 + size :]
    kinds = [(where, kind) for where, kind, _ in found]
    assert kinds == [(0, 3), (0, 1), (0x10, 4), (0x10, 5), (0x10, 8), (0x20, 8)]
    naa = found[0][2]
    assert naa == rig.unit.identity.naa and len(naa) == 8 and naa[0] >> 4 == 3
    assert found[4][2].rstrip(b"\0") == f"{NAME},t,0x0001".encode() and len(found[4][2]) % 4 == 0


def test_identity_is_the_files_own_and_outlives_the_gateway(rig: Rig) -> None:
    before = rig.unit.identity
    rig.reactor.wait(rig.gateway.stop())
    rig.gateway = Gateway({"m": rig.graph.top}, rig.reactor)
    rig.reactor.wait(rig.gateway.start([rig.config]))
    assert rig.gateway.targets[NAME].units[0].identity == before
    other = Rig()
    assert other.unit.identity.naa != before.naa and other.unit.identity.serial != before.serial
    other.close()


def test_block_limits_are_what_commands_obey(rig: Rig) -> None:
    data = rig.good(inquiry(0xB0))
    assert len(data) == 64
    limits = rig.unit.limits
    fields = struct.unpack_from(">BBHIIIIIIIQ", data, 4)
    assert fields[:5] == (0, limits.max_compare, limits.optimal_granularity, limits.max_transfer, 2048)
    assert fields[6:] == (
        limits.max_unmap,
        limits.unmap_descriptors,
        limits.unmap_granularity,
        0x80000000 | limits.unmap_alignment,
        limits.max_write_same,
    )
    assert limits.max_unmap <= 1 << 20


def test_a_unit_without_unmap_says_so_everywhere() -> None:
    rig = Rig(unmap=False)
    assert rig.good(inquiry(0xB2))[4:8] == bytes(4)
    assert rig.good(inquiry(0xB0))[20:36] == bytes(16)
    assert rig.good(bytes([0x9E, 0x10]) + bytes(11) + b"\x20\0\0")[14] & 0xC0 == 0
    assert rig.good(rsoc(1, 0x42))[1] & 7 == 1
    assert str(rig.sense(b"\x42" + bytes(9))) == "5/20/00"
    opcodes = [rig.good(rsoc(0))[at] for at in range(4, len(rig.good(rsoc(0))), 8)]
    assert 0x42 not in opcodes and 0x2A in opcodes
    rig.close()


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (0x83, ["NAA", "T10 vendor", "Relative target port: 0x1", f"{NAME},t,0x0001", "Target device that contains"]),
        (0x86, ["HEADSUP=1 ORDSUP=1 SIMPSUP=1", "V_SUP=1", "LUICLR=1", "RTD_SUP=1", "sense data length=252"]),
        (0x87, ["Policy page code: 0x3f,  subpage code: 0xff", "shared"]),
        (0x88, ["Relative port=1", f"{NAME},t,0x0001"]),
        (0xB0, ["Maximum compare and write length: 255", "Unmap granularity alignment valid: true"]),
        (0xB1, ["Non-rotating medium", "FUAB=1", "VBULS=1"]),
        (0xB2, ["(LBPU): 1", "(LBPWS): 1", "(LBPWS10): 1", "(LBPRZ): 1", "exponent: 11", "thin provisioned"]),
    ],
)
def test_sg_vpd_reads_our_pages(rig: Rig, page: int, says: list[str]) -> None:
    text = decoded("sg_vpd", rig.good(inquiry(page)))
    for words in says:
        assert words in text


def test_sg_inq_reads_our_inquiry(rig: Rig) -> None:
    text = decoded("sg_inq", rig.good(inquiry()))
    for words in ("[SPC-4]", "TPGS=1  3PC=1", "HiSUP=1  Resp_data_format=2", "CmdQue=1", "glustx disk"):
        assert words in text


# -- LUNs ------------------------------------------------------------------------------------------------------------


def test_a_lun_without_a_unit(rig: Rig) -> None:
    data = rig.good(inquiry(), lun=7)
    assert data[0] == 0x7F and len(data) == 96
    assert rig.good(inquiry(0x00), lun=7)[4:] == b"\x00\x83"
    assert NAME.encode() in rig.good(inquiry(0x83), lun=7)
    for cdb in (inquiry(0x80), b"\x12\x02\0\0\x60\0", b"\x12\0\0\0\x60\x04"):
        assert str(rig.sense(cdb, lun=7)) == "5/24/00"
    fixed = rig.good("030000002000", lun=7)
    assert (fixed[2], fixed[12], fixed[13]) == (5, 0x25, 0)
    assert rig.good("030100002000", lun=7)[:4] == b"\x72\x05\x25\x00"
    assert rig.good("a00000000000000000100000", lun=7)[3] == 8
    for cdb in ("000000000000", "28000000000000000100", "1a003f00ff00"):
        assert str(rig.sense(cdb, lun=7)) == "5/25/00"


def test_lun_formats() -> None:
    assert [encode_lun(lun).hex() for lun in (0, 1, 255, 256, 300, 16383)] == [
        "0000000000000000",
        "0001000000000000",
        "00ff000000000000",
        "4100000000000000",
        "412c000000000000",
        "7fff000000000000",
    ]


def test_report_luns_lists_what_the_initiator_sees(rig: Rig) -> None:
    target = rig.target
    config = TargetConfig(name=NAME, luns={0: rig.unit.config, 300: rig.unit.config})
    target.reconfigure(config, {0: rig.unit, 300: rig.unit})
    rig.nexus.attentions.clear()
    assert rig.good("a00000000000000000200000").hex() == "00000010000000000000000000000000412c000000000000"
    assert rig.good("a00001000000000000200000").hex() == "0000000000000000"
    assert rig.good("a00002000000000000200000")[3] == 16
    assert rig.good("000000000000", lun=300) == b""
    assert str(rig.sense("a000000000000000000f0000")) == "5/24/00"
    for select in ("10", "11", "12", "03"):
        assert str(rig.sense(f"a000{select}000000000000200000")) == "5/24/00"


def test_report_luns_takes_the_attention_about_luns_alone(rig: Rig) -> None:
    rig.nexus.raise_attention(rig.unit, LUNS_CHANGED)
    rig.nexus.raise_attention(rig.unit, POWER_ON)
    rig.good("a00000000000000000200000")
    assert str(rig.sense("000000000000")) == "6/29/00"
    rig.good("000000000000")


# -- REPORT SUPPORTED OPERATION CODES --------------------------------------------------------------------------------


def test_all_commands_and_each_of_them(rig: Rig) -> None:
    data = rig.good(rsoc(0))
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    rows = [struct.unpack_from(">BxHxBH", data, at) for at in range(4, len(data), 8)]
    assert len(rows) == len({row[:2] for row in rows}) > 40
    for opcode, action, flags, length in rows:
        serves = bool(flags & 1)
        assert not flags & 2 and (serves or not action)
        assert length == cdb_length(opcode), f"{opcode:#x}"
        right, wrong = (2, 1) if serves else (1, 2)
        assert str(rig.sense(rsoc(wrong, opcode, action))) == "5/24/00"
        one = rig.good(rsoc(right, opcode, action))
        assert rig.good(rsoc(3, opcode, action)) == one
        assert one[1] == 3 and int.from_bytes(one[2:4], "big") == length == len(one) - 4
        usage = one[4:]
        assert usage[0] == opcode and (not serves or usage[1] & 0x1F == action)


def test_time_outs(rig: Rig) -> None:
    data = rig.good(rsoc(0, timeouts=True))
    for at in range(4, len(data), 20):
        assert data[at + 5] & 2 and data[at + 8 : at + 10] == b"\x00\x0a"
        nominal, recommended = struct.unpack_from(">II", data, at + 12)
        assert 0 < nominal <= recommended
    one = rig.good(rsoc(1, 0x28, timeouts=True))
    assert one[1] == 0x83 and len(one) == 4 + 10 + 12


def test_what_there_is_not(rig: Rig) -> None:
    assert rig.good(rsoc(1, 0xC1))[1] == 1
    assert rig.good(rsoc(2, 0x9E, 0x1F))[1] == 1
    assert rig.good(rsoc(3, 0x28, 5))[1] == 1
    assert str(rig.sense(rsoc(4))) == "5/24/00"
    assert str(rig.sense("c10000000000")) == "5/20/00"
    assert str(rig.sense(b"\x9e\x1f" + bytes(14))) == "5/24/00"
    assert str(rig.sense(b"\xa4\x0a" + bytes(10))) == "5/24/00", "SET TARGET PORT GROUPS: access states are implicit"


def test_bits_that_the_usage_map_lacks_are_refused(rig: Rig) -> None:
    for (opcode, action), row in COMMANDS.items():
        if row.offered is not None:
            continue
        for byte in range(1, len(row.usage)):
            free = ~row.usage[byte] & 0xFF
            if action is not None and byte == 1:
                free &= 0xE0
            if not free:
                continue
            cdb = bytearray(len(row.usage))
            cdb[0], cdb[1] = opcode, action or 0
            bit = free.bit_length() - 1
            cdb[byte] |= 1 << bit
            sense = rig.sense(bytes(cdb))
            assert str(sense) == "5/24/00" and sense.sks == bytes([0xC8 | bit, 0, byte]), f"{row.name} byte {byte}"


def test_naca_is_refused_by_every_command(rig: Rig) -> None:
    for (opcode, action), row in COMMANDS.items():
        cdb = bytearray(len(row.usage))
        cdb[0], cdb[1], cdb[-1] = opcode, action or 0, 0x04
        assert str(rig.sense(bytes(cdb))) == ("5/20/00" if row.offered and not row.offered(rig.unit) else "5/24/00")


def test_task_management_functions(rig: Rig) -> None:
    assert rig.good("a30d00000000000000100000").hex() == "de070000"
    data = rig.good("a30d80000000000000200000")
    assert len(data) == 16 and data[3] == 12


def test_target_port_groups(rig: Rig) -> None:
    data = rig.good("a30a00000000000000400000")
    assert data.hex() == "0000000c" + "0001000100000001" + "00000001"
    assert rig.good("a32a00000000000000400000").hex() == "00000010" + "10000000" + data[4:].hex()
    assert str(rig.sense("a34a00000000000000400000")) == "5/24/00"


def test_every_command_says_what_it_does_and_how_long_it_may_take() -> None:
    for row in COMMANDS.values():
        assert row.doc.endswith(".") and row.timeout > 0, row.name
        assert row.access is not Access.RESERVE or not row.flags & MEDIUM, row.name
