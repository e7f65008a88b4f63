"""Sense data: why a command ended with CHECK CONDITION, and its two formats on the wire (SPC-5 4.4)."""

from __future__ import annotations

import errno
import struct

import msgspec

NO_SENSE, RECOVERED, NOT_READY, MEDIUM_ERROR, HARDWARE_ERROR, ILLEGAL_REQUEST, UNIT_ATTENTION, DATA_PROTECT = range(8)
COPY_ABORTED, ABORTED_COMMAND, MISCOMPARE = 0x0A, 0x0B, 0x0E

_FIXED = struct.Struct(">BBBIBIBBB3s")


class Sense(msgspec.Struct, frozen=True, gc=False):
    """One reason: sense key, additional sense code and qualifier, and what goes with them.

    `information` is the byte offset or LBA that the code speaks of, `specific` the command-specific information,
    `sks` the three sense-key specific bytes (field pointer or progress), `forwarded` a whole descriptor of type 0Ch
    with the sense of a copy's source or destination.
    """

    key: int
    asc: int = 0
    ascq: int = 0
    information: int | None = None
    specific: int | None = None
    sks: bytes = b""
    forwarded: bytes = b""
    deferred: bool = False

    def encode(self, descriptor: bool) -> bytes:
        """Return the sense data in descriptor format, or in fixed format (18 bytes)."""
        return self._descriptor() if descriptor else self._fixed()

    def _fixed(self) -> bytes:
        # What does not fit into 32 bits is left out, which VALID = 0 says.
        valid = self.information is not None and self.information < 1 << 32
        information = self.information if valid and self.information is not None else 0
        specific = self.specific if self.specific is not None and self.specific < 1 << 32 else 0
        head = (0x80 if valid else 0) | (0x71 if self.deferred else 0x70)
        return _FIXED.pack(
            head, 0, self.key, information, 10, specific, self.asc, self.ascq, 0, self.sks.ljust(3, b"\0")
        )

    def _descriptor(self) -> bytes:
        parts = []
        if self.information is not None:
            parts.append(struct.pack(">BBBBQ", 0x00, 10, 0x80, 0, self.information))
        if self.specific is not None:
            parts.append(struct.pack(">BBBBQ", 0x01, 10, 0, 0, self.specific))
        if self.sks:
            parts.append(struct.pack(">BBBB3sB", 0x02, 6, 0, 0, self.sks, 0))
        parts.append(self.forwarded)
        tail = b"".join(parts)
        code = 0x73 if self.deferred else 0x72
        return struct.pack(">BBBBBBBB", code, self.key, self.asc, self.ascq, 0, 0, 0, len(tail)) + tail

    def __str__(self) -> str:
        return f"{self.key:X}/{self.asc:02X}/{self.ascq:02X}"


class CheckCondition(Exception):
    """A command that ends with CHECK CONDITION; the only exception, besides FopError, that a command raises.

    Args:
        sense: what the initiator is told.
        text: what logs say of it.
    """

    def __init__(self, sense: Sense, text: str = "") -> None:
        super().__init__(sense, text)
        self.sense = sense
        self.text = text

    def __str__(self) -> str:
        return f"{self.sense}: {self.text}" if self.text else str(self.sense)


def check(key: int, asc: int, ascq: int = 0, text: str = "", information: int | None = None) -> CheckCondition:
    """Return the error of a sense key with its code and qualifier."""
    return CheckCondition(Sense(key, asc, ascq, information), text)


def pointer(byte: int, bit: int | None = None, *, in_cdb: bool) -> bytes:
    """Return the sense-key specific bytes that point at a field of the CDB or of the parameter list."""
    return struct.pack(">BH", 0x80 | (0x40 if in_cdb else 0) | (0x08 | bit if bit is not None else 0), byte)


def invalid_field(byte: int, bit: int | None = None, text: str = "") -> CheckCondition:
    """INVALID FIELD IN CDB; `byte` and `bit` say where."""
    return CheckCondition(Sense(ILLEGAL_REQUEST, 0x24, 0, sks=pointer(byte, bit, in_cdb=True)), text)


def invalid_parameter(byte: int, bit: int | None = None, text: str = "") -> CheckCondition:
    """INVALID FIELD IN PARAMETER LIST; `byte` and `bit` say where."""
    return CheckCondition(Sense(ILLEGAL_REQUEST, 0x26, 0, sks=pointer(byte, bit, in_cdb=False)), text)


def parameter_length(text: str = "") -> CheckCondition:
    """PARAMETER LIST LENGTH ERROR."""
    return check(ILLEGAL_REQUEST, 0x1A, 0, text)


def lba_out_of_range(byte: int = 2) -> CheckCondition:
    """LOGICAL BLOCK ADDRESS OUT OF RANGE; `byte` is where the LBA stands in the CDB."""
    return CheckCondition(Sense(ILLEGAL_REQUEST, 0x21, 0, sks=pointer(byte, in_cdb=True)))


NO_SENSE_DATA = Sense(NO_SENSE)
LUN_NOT_SUPPORTED = Sense(ILLEGAL_REQUEST, 0x25)
INVALID_OPCODE = Sense(ILLEGAL_REQUEST, 0x20, sks=pointer(0, in_cdb=True))
SPACE_ALLOCATION_FAILED = Sense(DATA_PROTECT, 0x27, 0x07)
WRITE_PROTECTED_HARDWARE = Sense(DATA_PROTECT, 0x27, 0x01)
WRITE_PROTECTED_SOFTWARE = Sense(DATA_PROTECT, 0x27, 0x02)
# Initiators with several paths try another one, and others try again later.
UNREACHABLE = Sense(NOT_READY, 0x04, 0x01)
INTERNAL_FAILURE = Sense(HARDWARE_ERROR, 0x44)

_AWAY = (errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ECONNRESET, errno.EBADFD, errno.ESTALE, errno.EAGAIN)


def from_errno(code: int, *, writing: bool, lba: int | None = None) -> Sense:
    """Return what an initiator is told of a fop that failed with errno `code`.

    Args:
        writing: whether the command was to change the medium.
        lba: where, when one block is known.
    """
    if code in (errno.ENOSPC, errno.EDQUOT):
        return SPACE_ALLOCATION_FAILED
    if code in (errno.EROFS, errno.EACCES, errno.EPERM):
        return WRITE_PROTECTED_HARDWARE if writing else INTERNAL_FAILURE
    if code == errno.EIO:
        return Sense(MEDIUM_ERROR, 0x0C, 0x00, lba) if writing else Sense(MEDIUM_ERROR, 0x11, 0x00, lba)
    return UNREACHABLE if code in _AWAY else INTERNAL_FAILURE


class Attention(msgspec.Struct, frozen=True, gc=False):
    """A unit attention condition (key 6): `rank` orders them, the lowest is reported first."""

    asc: int
    ascq: int
    rank: int
    information: int | None = None

    @property
    def sense(self) -> Sense:
        """The sense that reports it."""
        return Sense(UNIT_ATTENTION, self.asc, self.ascq, self.information)


POWER_ON = Attention(0x29, 0x00, 0)
TARGET_RESET = Attention(0x29, 0x02, 1)
UNIT_RESET = Attention(0x29, 0x03, 2)
NEXUS_LOSS = Attention(0x29, 0x07, 3)
MEDIUM_CHANGED = Attention(0x28, 0x00, 4)
LUNS_CHANGED = Attention(0x3F, 0x0E, 5)
MODE_CHANGED = Attention(0x2A, 0x01, 6)
LOG_CHANGED = Attention(0x2A, 0x02, 7)
TIMESTAMP_CHANGED = Attention(0x2A, 0x10, 7)
INQUIRY_CHANGED = Attention(0x3F, 0x03, 8)
IDENTIFIER_CHANGED = Attention(0x3F, 0x05, 9)
RESERVATIONS_PREEMPTED = Attention(0x2A, 0x03, 10)
RESERVATIONS_RELEASED = Attention(0x2A, 0x04, 11)
REGISTRATIONS_PREEMPTED = Attention(0x2A, 0x05, 12)
COMMANDS_CLEARED = Attention(0x2F, 0x00, 13)
ACCESS_STATE_CHANGED = Attention(0x2A, 0x06, 14)
CAPACITY_CHANGED = Attention(0x2A, 0x09, 15)
THRESHOLD_REACHED = Attention(0x38, 0x07, 16)
FAILURE_PREDICTED = Attention(0x5D, 0x00, 17)
