"""xdata in program 330: the untyped dictionary inside an opaque, read into and written from `Xdata`.

On this wire a value is the bytes that stock keeps in memory: numbers are decimal text with a NUL, a gfid its 16 bytes,
attributes and times the little-endian memory of stock's C structs. What type a value had is lost, so that it is known
by its key where it is not read as bytes. `Xdata.number` and `Xdata.text` read both kinds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from glustx.rpc import dict_v1
from glustx.rpc.xdr import XdrError
from glustx.values import Iatt
from glustx.xdata import (
    DOUBLE,
    EMPTY,
    GFID_REQ,
    GFUUID,
    IATT,
    INT,
    MAX_PAIRS,
    MDATA,
    NO_PAIRS,
    SET_CTIME_MDATA,
    STR,
    STR_OLD,
    UINT,
    VIRT_POSTSTAT,
    VIRT_PRESTAT,
    MdataTimes,
    Typed,
    Xdata,
    XdataError,
)
from glustx.xdata_memo import XdataMemo

NULL_330 = bytes(4)
_U32 = struct.Struct(">I")

# struct iatt and struct mdata_iatt of stock 10 on a 64-bit little-endian machine, alignment included.
_IATT_MEMORY = struct.Struct("<5Q4IQ4q4I2Q16sI4B")
_MDATA_MEMORY = struct.Struct("<3q3I4x")
_IA_TYPES = {0o100000: 1, 0o040000: 2, 0o120000: 3, 0o060000: 4, 0o020000: 5, 0o010000: 6, 0o140000: 7}
_ST_TYPES = {ia: st for st, ia in _IA_TYPES.items()}


def _pack_iatt(iatt: Iatt) -> bytes:
    mode = iatt.mode
    special = mode >> 11 & 1 | mode >> 9 & 2 | mode >> 7 & 4  # setuid, setgid, sticky from the lowest bit up
    return _IATT_MEMORY.pack(
        iatt.flags, iatt.ino, iatt.dev, iatt.rdev, iatt.size,
        iatt.nlink, iatt.uid, iatt.gid, iatt.blksize, iatt.blocks,
        iatt.atime, iatt.mtime, iatt.ctime, iatt.btime,
        iatt.atime_nsec, iatt.mtime_nsec, iatt.ctime_nsec, iatt.btime_nsec,
        iatt.attributes, iatt.attributes_mask, iatt.gfid, _IA_TYPES.get(mode & 0o170000, 0),
        special, *(_mirrored(mode >> shift & 7) for shift in (6, 3, 0)),
    )  # fmt: skip


def _unpack_iatt(memory: bytes) -> Iatt:
    values = _IATT_MEMORY.unpack(memory)
    flags, ino, dev, rdev, size, nlink, uid, gid, blksize, blocks = values[:10]
    atime, mtime, ctime, btime, atime_nsec, mtime_nsec, ctime_nsec, btime_nsec = values[10:18]
    attributes, attributes_mask, gfid, kind, special, *bits = values[18:]
    mode = _ST_TYPES.get(kind, 0) | (special & 1) << 11 | (special & 2) << 9 | (special & 4) << 7
    for shift, three in zip((6, 3, 0), bits, strict=True):
        mode |= _mirrored(three & 7) << shift
    return Iatt(
        gfid, flags, ino, dev, rdev, size, blocks, attributes, attributes_mask, atime, mtime, ctime, btime,
        atime_nsec, mtime_nsec, ctime_nsec, btime_nsec, nlink, uid, gid, blksize, mode,
    )  # fmt: skip


def _mirrored(three: int) -> int:
    # In a C bit field read comes first, that is in the lowest bit.
    return (three & 1) << 2 | three & 2 | three >> 2


def _text(value: object) -> bytes:
    return str(value).encode() + b"\0"


_PUT: dict[int, Callable[[Any], bytes]] = {
    INT: _text,
    UINT: lambda value: _text(value & 0xFFFFFFFFFFFFFFFF),
    DOUBLE: lambda value: b"%f\0" % value,
    STR: lambda value: value if value.endswith(b"\0") else value + b"\0",
    IATT: _pack_iatt,
    MDATA: lambda value: _MDATA_MEMORY.pack(*msgspec.structs.astuple(value)),
}


def _typed(key: bytes, value: bytes) -> Typed:
    if key == GFID_REQ:
        if len(value) != 16:
            raise XdrError("gfid-req is not 16 bytes")
        return Typed(GFUUID, value)
    if key == SET_CTIME_MDATA and len(value) == _MDATA_MEMORY.size:
        return Typed(MDATA, MdataTimes(*_MDATA_MEMORY.unpack(value)))
    if key in (VIRT_PRESTAT, VIRT_POSTSTAT) and len(value) == _IATT_MEMORY.size:
        return Typed(IATT, _unpack_iatt(value))
    return Typed(STR_OLD, value)


def put_xdata(xdata: Xdata) -> bytes:
    """Encode a dictionary with its length and padding; an empty one as none at all.

    Raises XdrError for a key that this encoding cannot hold.
    """
    if not xdata and xdata is not NO_PAIRS:
        return NULL_330
    pairs = {key: _PUT[kind](value) if kind in _PUT else bytes(value) for key, (kind, value) in xdata.typed()}
    body = dict_v1.encode(pairs)
    return b"".join((_U32.pack(len(body)), body, b"\0\0\0"[: -len(body) % 4]))


def read_xdata(buf: Any, pos: int, end: int) -> tuple[Xdata, int]:
    """Decode the dictionary at `pos`; return it and the position behind its padding.

    Raises XdrError for anything that is not a whole dictionary.
    """
    xdata, pos, _ = _decode(buf, pos, end)
    return xdata, pos


def _decode(buf: Any, pos: int, end: int) -> tuple[Xdata, int, int]:
    if pos + 4 > end:
        raise XdrError("record cut short in a dictionary's length")
    (size,) = _U32.unpack_from(buf, pos)
    start = pos + 4
    after = start + size + (-size % 4)
    if after > end:
        raise XdrError(f"dictionary of {size} bytes, {end - start} are left")
    if not size:
        return EMPTY, after, -1
    data = bytes(buf[start : start + size])
    places = dict_v1.locate(data)
    if len(places) > MAX_PAIRS:
        raise XdrError(f"a dictionary of {len(places)} pairs")
    if not places:
        return EMPTY, after, -1
    pairs = {key: _typed(key, data[first:stop]) for key, (first, stop) in places.items()}
    return Xdata(pairs), after, start + places[GFID_REQ][0] if GFID_REQ in places else -1


class Memo330(XdataMemo):
    """The memo of a connection that speaks program 330."""

    __slots__ = ()

    null: ClassVar[bytes] = NULL_330
    mark: ClassVar[bytes] = b"\0\0\0\x08\0\0\0\x10gfid-req\0"

    def decode(self, raw: bytes) -> tuple[Xdata, int, int]:
        """Return the dictionary at the head of `raw`, where it ends, and where its gfid-req stands (-1: nowhere)."""
        try:
            return _decode(raw, 0, len(raw))
        except XdrError as error:
            raise XdataError(str(error)) from None
