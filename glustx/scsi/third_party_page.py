"""VPD page 8Fh, Third-party Copy (SPC-5 7.7.18, SBC-4 6.6.6): a list of descriptors, each a multiple of four bytes."""

from __future__ import annotations

import struct

from glustx.scsi import third_party as can
from glustx.scsi.commands import COMMANDS
from glustx.scsi.task import Nexus
from glustx.scsi.unit import LogicalUnit
from glustx.scsi.vpd import page

_REMOTE_TOKENS_NO = 0
_TOKEN_IN, _TOKEN_OUT = 0x02, 0x01


def _descriptor(kind: int, body: bytes) -> bytes:
    body = body.ljust(-(-len(body) // 4) * 4, b"\0")
    return struct.pack(">HH", kind, len(body)) + body


def _block_device_rods(unit: LogicalUnit) -> bytes:
    return struct.pack(
        ">6xHIIQQ",
        can.MOST_RANGES,
        can.LONGEST_INACTIVITY,
        can.INACTIVITY,
        can.most_token_blocks(unit),
        can.optimal_token_blocks(unit),
    )


def _commands() -> bytes:
    parts = []
    for opcode in (0x83, 0x84):
        actions = sorted(action for known, action in COMMANDS if known == opcode and action is not None)
        parts.append(bytes((opcode, len(actions), *actions)))
    return bytes((sum(map(len, parts)),)) + b"".join(parts)


def _parameter_data() -> bytes:
    return struct.pack(">4xHHII12x", can.MOST_CSCDS, can.MOST_SEGMENTS, can.LONGEST_LIST, 0)


def _rod_features(unit: LogicalUnit) -> bytes:
    most, optimal = can.LONGEST_TOKEN, can.OPTIMAL_TOKEN
    block = struct.pack(">BxHxxHQQQQQ", 0, 0x2C, 0, most, optimal, optimal, optimal, 0)
    head = struct.pack(
        ">B11xIII18xH",
        _REMOTE_TOKENS_NO,
        can.INACTIVITY,
        can.LONGEST_INACTIVITY,
        can.LONGEST_INACTIVITY,
        len(block),
    )
    return head + block


def _rod_types() -> bytes:
    kinds = ((can.ACCESS_UPON_REFERENCE, _TOKEN_IN | _TOKEN_OUT), (can.ZERO, _TOKEN_IN))
    parts = [struct.pack(">IBxH", kind, flags, 0).ljust(64, b"\0") for kind, flags in kinds]
    return struct.pack(">xxH", sum(map(len, parts))) + b"".join(parts)


def _general() -> bytes:
    return struct.pack(
        ">IIIBB",
        can.COPIES,
        can.COPIES,
        can.LONGEST_SEGMENT,
        can.GRANULARITY,
        can.GRANULARITY,
    ).ljust(32, b"\0")


@page(0x8F, "Third-party copy")
def third_party_copy(unit: LogicalUnit, nexus: Nexus) -> bytes:
    """Describe what copy commands a unit takes, and their limits."""
    return b"".join(
        (
            _descriptor(0x0000, _block_device_rods(unit)),
            _descriptor(0x0001, _commands()),
            _descriptor(0x0004, _parameter_data()),
            _descriptor(0x0008, bytes((len(can.DESCRIPTORS),)) + can.DESCRIPTORS),
            _descriptor(0x000C, struct.pack(">HH", 2, can.THIS_UNIT)),
            _descriptor(0x0106, _rod_features(unit)),
            _descriptor(0x0108, _rod_types()),
            _descriptor(0x8001, _general()),
        )
    )
