"""CRC32C, the digest of headers and data (RFC 7143 13.1), by a library where there is one, else by a table."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Union

Piece = Union[bytes, bytearray, memoryview]
Digest = Callable[[Piece, int], int]

_POLYNOMIAL = 0x82F63B78
_LITTLE = struct.Struct("<I")


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = row >> 1 ^ (_POLYNOMIAL if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_TABLE = _table()


def by_table(data: Piece, value: int = 0) -> int:
    """Return the CRC32C of `data`, continuing from `value`, byte by byte (about 10 MB/s)."""
    table = _TABLE
    value ^= 0xFFFFFFFF
    for byte in bytes(data):
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _library() -> tuple[Digest, str]:
    try:
        from crc32c import crc32c
    except ImportError:
        pass
    else:
        return crc32c, "crc32c"
    try:
        from google_crc32c import extend
    except ImportError:
        return by_table, "table"
    return (lambda data, value=0: int(extend(value, bytes(data)))), "google-crc32c"


crc32c, PROVIDER = _library()


def digest(*pieces: Piece) -> bytes:
    """Return the digest of the pieces one after the other, as it stands on the wire (least significant byte first)."""
    value = 0
    for piece in pieces:
        value = crc32c(piece, value)
    return _LITTLE.pack(value)
