"""The untyped dictionary of handshakes and of program 330: `i32 count`, then key length, value length, key, NUL, value.

Lengths of values are exact, lengths of keys leave the NUL out; nothing is padded. Numbers travel as decimal text, and
text with its trailing NUL. A dictionary that is not there is no bytes at all.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from glustx.rpc.xdr import XdrError

MAX_PAIRS = 65536

_COUNT = struct.Struct(">i")
_LENGTHS = struct.Struct(">ii")


def encode(pairs: Mapping[bytes, bytes]) -> bytes:
    """Encode a dictionary; an empty one is `i32 0`, which stock takes as it takes no bytes.

    Raises XdrError for more than `MAX_PAIRS` pairs or a key with a NUL in it.
    """
    if len(pairs) > MAX_PAIRS:
        raise XdrError(f"a dictionary of {len(pairs)} pairs")
    out = [_COUNT.pack(len(pairs))]
    for key, value in pairs.items():
        if not key or b"\0" in key:
            raise XdrError(f"{key!r} cannot be a key")
        out += [_LENGTHS.pack(len(key), len(value)), key, b"\0", value]
    return b"".join(out)


def decode(data: bytes | bytearray | memoryview) -> dict[bytes, bytes]:
    """Decode a dictionary; no bytes give an empty one. Of a key that comes twice the last value counts.

    Raises XdrError for anything else than a whole dictionary.
    """
    return {key: bytes(data[start:stop]) for key, (start, stop) in locate(data).items()}


def locate(data: bytes | bytearray | memoryview) -> dict[bytes, tuple[int, int]]:
    """Return where in a dictionary the value of each key begins and ends; else as `decode`."""
    size = len(data)
    if not size:
        return {}
    if size < _COUNT.size:
        raise XdrError("dictionary cut short")
    (count,) = _COUNT.unpack_from(data, 0)
    pos = _COUNT.size
    if not 0 <= count <= MAX_PAIRS or count * (_LENGTHS.size + 1) > size - pos:
        raise XdrError(f"a dictionary of {size} bytes announces {count} pairs")
    places: dict[bytes, tuple[int, int]] = {}
    for _ in range(count):
        if size - pos < _LENGTHS.size:
            raise XdrError("dictionary cut short")
        keylen, vallen = _LENGTHS.unpack_from(data, pos)
        pos += _LENGTHS.size
        if keylen < 0 or vallen < 0 or keylen + 1 + vallen > size - pos:
            raise XdrError(f"dictionary with a key of {keylen} and a value of {vallen} bytes, {size - pos} are left")
        key = bytes(data[pos : pos + keylen])
        if data[pos + keylen]:
            raise XdrError(f"key {key!r} does not end in NUL")
        pos += keylen + 1
        places[key] = (pos, pos + vallen)
        pos += vallen
    if pos != size:
        raise XdrError(f"{size - pos} bytes after the dictionary")
    return places


def pack_text(text: str | int) -> bytes:
    """Return a value that holds text, or a number as decimal text."""
    return str(text).encode("utf-8", "surrogateescape") + b"\0"


def pack_all(texts: Mapping[str, str | int]) -> dict[bytes, bytes]:
    """Return a dictionary whose values are all text or numbers."""
    return {key.encode("utf-8", "surrogateescape"): pack_text(value) for key, value in texts.items()}


def text(pairs: Mapping[bytes, bytes], key: bytes, default: str = "") -> str:
    """Return the text of a value up to its NUL; `default` when the key is not there."""
    value = pairs.get(key)
    return default if value is None else value.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def number(pairs: Mapping[bytes, bytes], key: bytes, default: int = 0) -> int:
    """Return the number a value holds as decimal text; `default` when the key is not there or holds none."""
    word = pairs.get(key, b"").partition(b"\0")[0].strip()
    digits = word[1:] if word[:1] == b"-" else word
    return int(word) if digits.isdigit() and len(digits) <= 20 else default
