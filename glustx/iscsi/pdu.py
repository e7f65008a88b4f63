"""The basic header segments of iSCSI's PDUs, as values and as bytes (RFC 7143 11).

Each class is one opcode's header; `encode` and `decode` are the inverse of each other. Sessions pack and unpack the two
or three that make up the traffic (`COMMAND`, `DATA_OUT`, `DATA_IN`) by hand and use the classes for the rest.
"""

from __future__ import annotations

import struct
from typing import ClassVar, TypeVar

import msgspec

BHS = 48
NO_TAG = 0xFFFFFFFF  # of tasks and of transfers
IMMEDIATE = 0x40
FINAL = 0x80
CONTINUE = 0x40  # of texts
READ, WRITE = 0x40, 0x20  # of SCSI Commands
OVERFLOW, UNDERFLOW, STATUS = 0x04, 0x02, 0x01  # of Data-In; the first two of SCSI Responses, too

NOP_OUT, SCSI_COMMAND, TASK_MANAGEMENT, LOGIN, TEXT, DATA_OUT_PDU, LOGOUT, SNACK = 0, 1, 2, 3, 4, 5, 6, 0x10
NOP_IN, SCSI_RESPONSE, TASK_MANAGEMENT_RESPONSE, LOGIN_RESPONSE, TEXT_RESPONSE = 0x20, 0x21, 0x22, 0x23, 0x24
DATA_IN_PDU, LOGOUT_RESPONSE, R2T_PDU, ASYNC, REJECT = 0x25, 0x26, 0x31, 0x32, 0x3F

# opcode, flags, length of the AHS, LUN, initiator task tag, expected length, CmdSN, CDB
COMMAND = struct.Struct(">BB2xB3xQIII4x16s")
# flags, initiator task tag, target transfer tag, DataSN, buffer offset
DATA_OUT = struct.Struct(">xB14xII12xII4x")
# opcode 25, flags, status, data length, initiator task tag, transfer tag, StatSN, ExpCmdSN, MaxCmdSN, DataSN, offset,
# residual
DATA_IN = struct.Struct(">BBxBI8xIIIIIIII")
# opcode 21, flags, status, data length, initiator task tag, StatSN, ExpCmdSN, MaxCmdSN, ExpDataSN, residual
RESPONSE = struct.Struct(">BBxBI8xI4xIIII4xI")
_LENGTHS = struct.Struct(">I")

P = TypeVar("P", bound="Pdu")


class PduError(ValueError):
    """Bytes that are no PDU, or not one that may come here; the connection cannot go on."""


class Pdu(msgspec.Struct, kw_only=True):
    """A header. Fields shared by all: `immediate`, the whole of byte 1 (`flags`), the lengths of what follows."""

    opcode: ClassVar[int] = -1
    layout: ClassVar[tuple[tuple[str, int, str], ...]] = ()
    _packer: ClassVar[struct.Struct]
    _names: ClassVar[tuple[str, ...]]

    immediate: bool = False
    flags: int = FINAL
    ahs_length: int = 0
    data_length: int = 0

    def encode(self) -> bytes:
        """Return the 48 bytes; `ahs_length` is in bytes, a multiple of 4."""
        values = [getattr(self, name) for name in self._names]
        first = self.opcode | (IMMEDIATE if self.immediate else 0)
        raw = bytearray(self._packer.pack(first, self.flags, *values))
        _LENGTHS.pack_into(raw, 4, self.ahs_length >> 2 << 24 | self.data_length)
        return bytes(raw)

    @classmethod
    def decode(cls: type[P], raw: bytes | bytearray | memoryview, pos: int = 0) -> P:
        """Read a header of this class from 48 bytes at `pos`; PduError when there are fewer or it is of another."""
        if len(raw) - pos < BHS:
            raise PduError(f"{len(raw) - pos} bytes are no header")
        first, flags, *values = cls._packer.unpack_from(raw, pos)
        if first & 0x3F != cls.opcode:
            raise PduError(f"opcode {first & 0x3F:#x} instead of {cls.opcode:#x}")
        (lengths,) = _LENGTHS.unpack_from(raw, pos + 4)
        return cls(
            immediate=bool(first & IMMEDIATE),
            flags=flags,
            ahs_length=(lengths >> 24) * 4,
            data_length=lengths & 0xFFFFFF,
            **dict(zip(cls._names, values, strict=True)),
        )


BY_OPCODE: dict[int, type[Pdu]] = {}


def _declare(cls: type[P]) -> type[P]:
    """Make the packer of a class from its layout: (field, offset, format of `struct`) in order of offset."""
    form, at = ">BB", 2
    for _, offset, code in cls.layout:
        form += f"{offset - at}x{code}"
        at = offset + struct.calcsize(">" + code)
    cls._packer = struct.Struct(f"{form}{BHS - at}x")
    cls._names = tuple(name for name, _, _ in cls.layout)
    BY_OPCODE[cls.opcode] = cls
    return cls


_ITT = ("itt", 16, "I")
_TTT = ("ttt", 20, "I")
_LUN = ("lun", 8, "8s")
_ASK = (("cmd_sn", 24, "I"), ("exp_stat_sn", 28, "I"))
_SNS = (("stat_sn", 24, "I"), ("exp_cmd_sn", 28, "I"), ("max_cmd_sn", 32, "I"))


class _Asked(Pdu, kw_only=True):
    itt: int = NO_TAG
    cmd_sn: int = 0
    exp_stat_sn: int = 0


class _Answered(Pdu, kw_only=True):
    itt: int = NO_TAG
    stat_sn: int = 0
    exp_cmd_sn: int = 0
    max_cmd_sn: int = 0


@_declare
class NopOut(_Asked, kw_only=True):
    """NOP-Out (11.18)."""

    opcode = NOP_OUT
    layout = (_LUN, _ITT, _TTT, *_ASK)
    lun: bytes = bytes(8)
    ttt: int = NO_TAG


@_declare
class NopIn(_Answered, kw_only=True):
    """NOP-In (11.19)."""

    opcode = NOP_IN
    layout = (_LUN, _ITT, _TTT, *_SNS)
    lun: bytes = bytes(8)
    ttt: int = NO_TAG


@_declare
class ScsiCommand(_Asked, kw_only=True):
    """SCSI Command (11.3); flags are F, R, W and the task attribute."""

    opcode = SCSI_COMMAND
    layout = (_LUN, _ITT, ("length", 20, "I"), *_ASK, ("cdb", 32, "16s"))
    lun: bytes = bytes(8)
    length: int = 0
    cdb: bytes = bytes(16)


@_declare
class ScsiResponse(_Answered, kw_only=True):
    """SCSI Response (11.4); flags say which residual there is."""

    opcode = SCSI_RESPONSE
    layout = (
        ("response", 2, "B"), ("status", 3, "B"), _ITT, ("snack_tag", 20, "I"), *_SNS, ("exp_data_sn", 36, "I"),
        ("bidi_residual", 40, "I"), ("residual", 44, "I"),
    )  # fmt: skip
    response: int = 0
    status: int = 0
    snack_tag: int = 0
    exp_data_sn: int = 0
    bidi_residual: int = 0
    residual: int = 0


@_declare
class TaskManagement(_Asked, kw_only=True):
    """Task Management Function Request (11.5); the function is in the flags."""

    opcode = TASK_MANAGEMENT
    layout = (_LUN, _ITT, ("ref_itt", 20, "I"), *_ASK, ("ref_cmd_sn", 32, "I"), ("exp_data_sn", 36, "I"))
    lun: bytes = bytes(8)
    ref_itt: int = NO_TAG
    ref_cmd_sn: int = 0
    exp_data_sn: int = 0


@_declare
class TaskManagementResponse(_Answered, kw_only=True):
    """Task Management Function Response (11.6)."""

    opcode = TASK_MANAGEMENT_RESPONSE
    layout = (("response", 2, "B"), _ITT, *_SNS)
    response: int = 0


@_declare
class DataOut(Pdu, kw_only=True):
    """Data-Out (11.7)."""

    opcode = DATA_OUT_PDU
    layout = (_LUN, _ITT, _TTT, ("exp_stat_sn", 28, "I"), ("data_sn", 36, "I"), ("offset", 40, "I"))
    lun: bytes = bytes(8)
    itt: int = NO_TAG
    ttt: int = NO_TAG
    exp_stat_sn: int = 0
    data_sn: int = 0
    offset: int = 0


@_declare
class DataIn(_Answered, kw_only=True):
    """Data-In (11.7); flags are F, A, the residual's and S."""

    opcode = DATA_IN_PDU
    layout = (
        ("status", 3, "B"), _LUN, _ITT, _TTT, *_SNS, ("data_sn", 36, "I"), ("offset", 40, "I"), ("residual", 44, "I"),
    )  # fmt: skip
    status: int = 0
    lun: bytes = bytes(8)
    ttt: int = NO_TAG
    data_sn: int = 0
    offset: int = 0
    residual: int = 0


@_declare
class R2t(_Answered, kw_only=True):
    """Ready To Transfer (11.8)."""

    opcode = R2T_PDU
    layout = (_LUN, _ITT, _TTT, *_SNS, ("r2t_sn", 36, "I"), ("offset", 40, "I"), ("length", 44, "I"))
    lun: bytes = bytes(8)
    ttt: int = 0
    r2t_sn: int = 0
    offset: int = 0
    length: int = 0


@_declare
class AsyncMessage(_Answered, kw_only=True):
    """Asynchronous Message (11.9); its initiator task tag is always ffffffff."""

    opcode = ASYNC
    layout = (
        _LUN, _ITT, *_SNS, ("event", 36, "B"), ("vendor_code", 37, "B"), ("parameter1", 38, "H"),
        ("parameter2", 40, "H"), ("parameter3", 42, "H"),
    )  # fmt: skip
    lun: bytes = bytes(8)
    event: int = 0
    vendor_code: int = 0
    parameter1: int = 0
    parameter2: int = 0
    parameter3: int = 0


@_declare
class TextRequest(_Asked, kw_only=True):
    """Text Request (11.10)."""

    opcode = TEXT
    layout = (_LUN, _ITT, _TTT, *_ASK)
    lun: bytes = bytes(8)
    ttt: int = NO_TAG


@_declare
class TextResponse(_Answered, kw_only=True):
    """Text Response (11.11)."""

    opcode = TEXT_RESPONSE
    layout = (_LUN, _ITT, _TTT, *_SNS)
    lun: bytes = bytes(8)
    ttt: int = NO_TAG


@_declare
class LoginRequest(_Asked, kw_only=True):
    """Login Request (11.12); flags are T, C, the current and the next stage."""

    opcode = LOGIN
    layout = (
        ("version_max", 2, "B"), ("version_min", 3, "B"), ("isid", 8, "6s"), ("tsih", 14, "H"), _ITT, ("cid", 20, "H"),
        *_ASK,
    )  # fmt: skip
    version_max: int = 0
    version_min: int = 0
    isid: bytes = bytes(6)
    tsih: int = 0
    cid: int = 0


@_declare
class LoginResponse(_Answered, kw_only=True):
    """Login Response (11.13)."""

    opcode = LOGIN_RESPONSE
    layout = (
        ("version_max", 2, "B"), ("version_active", 3, "B"), ("isid", 8, "6s"), ("tsih", 14, "H"), _ITT, *_SNS,
        ("status_class", 36, "B"), ("status_detail", 37, "B"),
    )  # fmt: skip
    version_max: int = 0
    version_active: int = 0
    isid: bytes = bytes(6)
    tsih: int = 0
    status_class: int = 0
    status_detail: int = 0


@_declare
class LogoutRequest(_Asked, kw_only=True):
    """Logout Request (11.14); the reason is in the flags."""

    opcode = LOGOUT
    layout = (_ITT, ("cid", 20, "H"), *_ASK)
    cid: int = 0


@_declare
class LogoutResponse(_Answered, kw_only=True):
    """Logout Response (11.15)."""

    opcode = LOGOUT_RESPONSE
    layout = (("response", 2, "B"), _ITT, *_SNS, ("time2wait", 40, "H"), ("time2retain", 42, "H"))
    response: int = 0
    time2wait: int = 0
    time2retain: int = 0


@_declare
class Snack(Pdu, kw_only=True):
    """SNACK Request (11.16); its type is in the flags."""

    opcode = SNACK
    layout = (_LUN, _ITT, _TTT, ("exp_stat_sn", 28, "I"), ("begin", 40, "I"), ("run", 44, "I"))
    lun: bytes = bytes(8)
    itt: int = NO_TAG
    ttt: int = NO_TAG
    exp_stat_sn: int = 0
    begin: int = 0
    run: int = 0


@_declare
class RejectPdu(_Answered, kw_only=True):
    """Reject (11.17); the data are the header that was refused."""

    opcode = REJECT
    layout = (("reason", 2, "B"), _ITT, *_SNS, ("data_sn", 36, "I"))
    reason: int = 0
    data_sn: int = 0


class Reason:
    """Why a PDU is rejected (RFC 7143 11.17.1)."""

    DATA_DIGEST = 0x02
    SNACK = 0x03
    PROTOCOL = 0x04
    UNSUPPORTED = 0x05
    IMMEDIATE = 0x06
    IN_PROGRESS = 0x07
    DATA_ACK = 0x08
    FIELD = 0x09
    RESOURCES = 0x0A
    LOGOUT = 0x0C


def decode(raw: bytes | bytearray | memoryview, pos: int = 0) -> Pdu:
    """Read the header of any opcode; PduError for one that there is not."""
    if len(raw) - pos < BHS:
        raise PduError(f"{len(raw) - pos} bytes are no header")
    cls = BY_OPCODE.get(raw[pos] & 0x3F)
    if cls is None:
        raise PduError(f"opcode {raw[pos] & 0x3F:#x}")
    return cls.decode(raw, pos)


def ahs_segments(raw: bytes) -> list[tuple[int, bytes]]:
    """Return (type, content after the reserved byte) of each additional header segment; PduError for nonsense."""
    found, at = [], 0
    while at < len(raw):
        if len(raw) - at < 4:
            raise PduError("an additional header segment is cut off")
        size, kind = int.from_bytes(raw[at : at + 2], "big"), raw[at + 2]
        if size < 1 or at + 3 + size > len(raw):
            raise PduError(f"an additional header segment of {size} bytes in {len(raw) - at}")
        found.append((kind, raw[at + 4 : at + 3 + size]))
        at += (3 + size + 3) & ~3
    return found


def lun_of(raw: int) -> int:
    """Return the LUN of an 8-byte LUN field read as a number (SAM-5 4.7); -1 for what names none of ours."""
    if raw & 0xFFFFFFFFFFFF:
        return -1
    head = raw >> 48
    if head < 0x4000:  # a bus of its own in peripheral addressing there is none: some write larger numbers so
        return head
    return head & 0x3FFF if head >> 14 == 1 else -1


def lun_field(lun: int) -> bytes:
    """Return the 8-byte field of a LUN: peripheral addressing below 256, flat above."""
    return (lun if lun < 256 else lun | 0x4000).to_bytes(2, "big") + bytes(6)
