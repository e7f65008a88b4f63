"""What the copy manager can do, in numbers: the Third-party Copy page and the copy commands take them from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

# EXTENDED COPY
MOST_CSCDS = 64
MOST_SEGMENTS = 64
LONGEST_LIST = 8192  # bytes of CSCD and segment descriptors
LONGEST_SEGMENT = 1 << 30  # bytes
COPIES = 255  # at a time
BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_OFFSETS, VERIFY_DEVICE, REGISTER_KEY = 0x02, 0x0A, 0x07, 0x14
IDENTIFICATION = 0xE4
SEGMENTS = {BLOCK_TO_BLOCK: 28, BLOCK_TO_BLOCK_OFFSETS: 32, VERIFY_DEVICE: 12, REGISTER_KEY: 28}  # with lengths
DESCRIPTORS = bytes(sorted((*SEGMENTS, IDENTIFICATION)))
CSCD_LENGTH = 32
THIS_UNIT = 0xFFFF  # CSCD index
GRANULARITY = 9  # of segment and inline data lengths, a power of two of bytes

# tokens
MOST_RANGES = 256
MOST_TOKENS = 4096
INACTIVITY, LONGEST_INACTIVITY = 60, 600  # seconds
LONGEST_TOKEN = 1 << 40  # bytes that one token stands for
OPTIMAL_TOKEN = 64 << 20  # bytes
ACCESS_UPON_REFERENCE, ZERO = 0x00010000, 0xFFFF0001
TOKEN_LENGTH = 512

# what is remembered of a copy that is over
KEPT = 60.0  # seconds
REMEMBERED = 4096  # copies
UPDATE_DELAY = 1000  # milliseconds that an initiator should leave between questions


def most_token_blocks(unit: LogicalUnit) -> int:
    """Return how many blocks one token may stand for."""
    return LONGEST_TOKEN >> unit.shift


def optimal_token_blocks(unit: LogicalUnit) -> int:
    """Return how many blocks are best copied by one token command."""
    return OPTIMAL_TOKEN >> unit.shift
