"""xdata: the side channel of a fop, as an immutable typed dictionary.

On the wire (program 400) a dictionary is `u32 xdr_size, i32 count, u32 npairs` and typed pairs. `Xdata` keeps those raw
bytes and decodes them once; a client sends the same bytes for ever, so decoded objects are shared through a bounded
memo (`xdata_memo.py`). Every key that glustx reads or writes is a constant here.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from glustx.values import Iatt

# Value types of the wire's gfs3 dict (stock: GF_DATA_TYPE_*).
STR_OLD, INT, UINT, DOUBLE, STR, PTR, GFUUID, IATT, MDATA = 1, 2, 3, 4, 5, 6, 7, 8, 9

GFID_REQ = b"gfid-req"
MDATA_KEY = b"trusted.glusterfs.mdata"
SET_CTIME_MDATA = b"set-ctime-mdata"
CONTENT = b"glusterfs.content"
LIST_XATTR = b"list-xattr"
OPEN_FD_COUNT = b"glusterfs.open-fd-count"
OPEN_ACTIVE_FD_COUNT = b"glusterfs.open-active-fd-count"
WRITE_IS_APPEND = b"glusterfs.write-is-append"
WRITE_UPDATE_ATOMIC = b"glusterfs.write-update-atomic"
INODELK_COUNT = b"glusterfs.inodelk-count"
ENTRYLK_COUNT = b"glusterfs.entrylk-count"
POSIXLK_COUNT = b"glusterfs.posixlk-count"
PARENT_ENTRYLK = b"glusterfs.parent-entrylk"
INODELK_DOM_COUNT = b"glusterfs.inodelk-dom-count"
MULTI_DOM_LK_COUNT = b"glusterfs.multi-dom-lk-cnt-req"
LINK_COUNT = b"link-count"
GET_LINK_COUNT = b"get-link-count"
GET_SIZE = b"get-size"
PREOP_PARENT_KEY = b"glusterfs.preop.parent.key"
PREOP_CHECK_FAILED = b"glusterfs.preop.check.failed"
DHT_GET_IATT = b"dht-get-iatt-in-xattr"
VIRT_PRESTAT = b"virt-gf-prestat"
VIRT_POSTSTAT = b"virt-gf-poststat"
CHECK_ZERO_FILLED = b"check-zero-filled"
BUF_HAS_ZEROES = b"buf-has-zeroes"
FIPS_RCHECKSUM = b"fips-mode-rchecksum"
INTERNAL_FOP = b"glusterfs-internal-fop"
UNLINKED_LOOKUP = b"unlinked-lookup"
LEASE_ID = b"lease-id"
LOCK_MODE = b"glusterfs.lk.lkmode"
ZERO_METHOD = b"glustx.zero-method"
LIMITS = b"glustx.limits"

_IX = struct.Struct(">16s8Q4q9I")
_HEAD = struct.Struct(">IiI")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U64 = struct.Struct(">Q")
_F64 = struct.Struct(">d")
_MDATA = struct.Struct(">3q3I")

NULL_RAW = b"\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"
MAX_PAIRS = 16384  # more than there can be xattrs: Linux bounds the list of their names to 64 KiB
_USUAL_KEY = 64


class Typed(NamedTuple):
    """One value with its wire type (INT, STR, PTR, ...)."""

    type: int
    value: Any


class MdataTimes(msgspec.Struct, frozen=True, gc=False):
    """The times of type MDATA, in wire order: seconds, then nanoseconds."""

    atime: int = 0
    mtime: int = 0
    ctime: int = 0
    atime_nsec: int = 0
    mtime_nsec: int = 0
    ctime_nsec: int = 0


class XdataError(ValueError):
    """Bytes that are not a dictionary; the RPC layer answers GARBAGE_ARGS."""


def _typed(value: object) -> Typed:
    if type(value) is bytes:  # the values of xattrs: by far the most
        return Typed(PTR, value)
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(INT, int(value))
    if isinstance(value, int):
        return Typed(INT, value) if -(1 << 63) <= value < 1 << 63 else Typed(UINT, value)
    if isinstance(value, str):
        return Typed(STR, value.encode("utf-8", "surrogateescape"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Typed(PTR, bytes(value))
    if isinstance(value, Iatt):
        return Typed(IATT, value)
    if isinstance(value, MdataTimes):
        return Typed(MDATA, value)
    raise TypeError(f"xdata cannot carry {type(value).__name__}")


def gfuuid(value: bytes) -> Typed:
    """Mark 16 bytes as a gfid, so that they travel as GFUUID rather than as binary."""
    return Typed(GFUUID, value)


def uint(value: int) -> Typed:
    """Mark a number as unsigned on the wire."""
    return Typed(UINT, value)


class Xdata(Mapping[bytes, Any]):
    """An immutable dictionary of typed values; reading gives plain Python values (int, bytes, float, Iatt).

    `template.plan` is where storage keeps what it derived from the keys (which xattrs a LOOKUP wants): the template is
    shared by all calls that carry the same bytes but for their gfid-req, so the work is done once.
    """

    __slots__ = ("_pairs", "_raw", "_wider", "gfid_req", "plan", "template")

    def __init__(self, pairs: Mapping[bytes, object] | None = None) -> None:
        self._pairs: dict[bytes, Typed] = {k: _typed(v) for k, v in pairs.items()} if pairs else {}
        self._raw: bytes | None = None
        self._wider: tuple[Xdata, Xdata] | None = None
        self.plan: Any = None
        self.template: Xdata = self
        self.gfid_req: bytes | None = None
        req = self._pairs.get(GFID_REQ)
        if req is not None:
            self.gfid_req = req.value

    @classmethod
    def _share(cls, template: Xdata, gfid_req: bytes) -> Xdata:
        new = cls.__new__(cls)
        new._pairs = template._pairs
        new._raw = None
        new._wider = None
        new.plan = None
        new.template = template
        new.gfid_req = gfid_req
        return new

    def __getitem__(self, key: bytes) -> Any:
        if key == GFID_REQ and self.gfid_req is not None:
            return self.gfid_req
        return self._pairs[key].value

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __contains__(self, key: object) -> bool:
        return key in self._pairs

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def __repr__(self) -> str:
        return f"Xdata({dict(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Xdata) and dict(self.typed()) == dict(other.typed())

    def __hash__(self) -> int:
        return hash(frozenset(self._pairs))

    def typed(self) -> Iterator[tuple[bytes, Typed]]:
        """Yield (key, (type, value)) pairs."""
        for key, pair in self._pairs.items():
            if key == GFID_REQ and self.gfid_req is not None:
                yield key, Typed(GFUUID, self.gfid_req)
            else:
                yield key, pair

    def names_any(self, keys: frozenset[bytes]) -> bool:
        """Tell whether one of `keys` is here; quicker than asking for each."""
        return not keys.isdisjoint(self._pairs)

    def plus(self, more: Mapping[bytes, object]) -> Xdata:
        """Return a copy with `more` added or replaced."""
        merged: dict[bytes, object] = dict(self.typed())
        merged.update(more)
        return Xdata(merged)

    def asking(self, more: Xdata) -> Xdata:
        """Return this with the pairs of `more` added; the last `more` asked for is remembered with the template, so
        that a translator which asks for the same with every call costs no dictionary and keeps `template.plan`."""
        template = self.template
        wider = template._wider
        if wider is None or wider[0] is not more:
            wider = template._wider = (more, Xdata({**template._pairs, **more._pairs}))
        if self.gfid_req is None:
            return wider[1]
        return Xdata._share(wider[1], self.gfid_req)

    def without(self, *keys: bytes) -> Xdata:
        """Return a copy that lacks `keys`."""
        return Xdata({k: v for k, v in self.typed() if k not in keys})

    def text(self, key: bytes, default: str = "") -> str:
        """Return a string or number as text, without its trailing NUL; `default` for attributes or times."""
        value = self.get(key)
        if isinstance(value, (int, float)):
            return str(value)
        if not isinstance(value, bytes):
            return default
        return value.rstrip(b"\0").decode("utf-8", "surrogateescape")

    def number(self, key: bytes, default: int = 0) -> int:
        """Return a number, whether it was sent as one or as decimal text; `default` when it is neither."""
        value = self.get(key)
        if isinstance(value, int):
            return value
        if isinstance(value, bytes):
            text = value.rstrip(b"\0").strip()
            digits = text[1:] if text[:1] == b"-" else text
            if digits.isdigit() and len(digits) < 21:
                return int(text)
        return default

    @property
    def raw(self) -> bytes:
        """The dictionary as it goes on the wire of program 400."""
        if self._raw is None:
            self._raw = encode(self)
        return self._raw


@functools.lru_cache(1024)
def _pair_head(key: bytes, kind: int) -> bytes:
    return _opaque(key + b"\0") + _I32.pack(kind)


def encode(xdata: Xdata) -> bytes:
    """Encode a dictionary for program 400; an empty one as the NULL dict.

    Source: stock's `gfx_dict`, `{u32 xdr_size; i32 count; pair pairs<>}`.
    """
    if not xdata:
        return NULL_RAW
    out: list[bytes] = []
    for key, (kind, value) in xdata.typed():
        out.append(_pair_head(key, kind) if len(key) <= _USUAL_KEY else _pair_head.__wrapped__(key, kind))
        if kind == INT:
            out.append(_I64.pack(value))
        elif kind == UINT:
            out.append(_U64.pack(value & 0xFFFFFFFFFFFFFFFF))
        elif kind == STR:
            out.append(_opaque(value if value.endswith(b"\0") else value + b"\0"))
        elif kind in (PTR, STR_OLD):
            out.append(_opaque(value))
        elif kind == GFUUID:
            out.append(value)
        elif kind == IATT:
            out.append(_IX.pack(*msgspec.structs.astuple(value)))
        elif kind == DOUBLE:
            out.append(_F64.pack(value))
        elif kind == MDATA:
            out.append(_MDATA.pack(*msgspec.structs.astuple(value)))
        else:
            raise TypeError(f"xdata type {kind} does not exist on the wire")
    body = b"".join(out)
    return _HEAD.pack(len(body), len(xdata), len(xdata)) + body


def _opaque(data: bytes) -> bytes:
    size = len(data)
    return _U32.pack(size) + data + b"\0" * (-size % 4)


def decode_at(buf: bytes | bytearray | memoryview, pos: int, end: int) -> tuple[Xdata, int]:
    """Decode the dictionary at `pos`, reading no further than `end`; return it and the position after it.

    Raises XdataError for anything that is not a dictionary. `xdr_size` is not trusted: stock ignores it here.
    """
    xdata, pos, _ = decode_located(buf, pos, end)
    return xdata, pos


def decode_located(buf: bytes | bytearray | memoryview, pos: int, end: int) -> tuple[Xdata, int, int]:
    """Decode as `decode_at` does; return besides where the 16 bytes of the gfid-req lie, -1 when there are none."""
    if end - pos < 12:
        raise XdataError("dict header cut short")
    _, count, npairs = _HEAD.unpack_from(buf, pos)
    pos += 12
    if count < 0 or npairs == 0:
        if npairs:
            raise XdataError(f"NULL dict with {npairs} pairs")
        return EMPTY, pos, -1
    if npairs > MAX_PAIRS or npairs * 12 > end - pos:
        raise XdataError(f"dict announces {npairs} pairs")
    pairs: dict[bytes, Typed] = {}
    req_at = -1
    try:
        for _ in range(npairs):
            key, pos = _opaque_at(buf, pos, end)
            (kind,) = _I32.unpack_from(buf, pos)
            pos += 4
            value: Any
            if kind == INT:
                (value,) = _I64.unpack_from(buf, pos)
                pos += 8
            elif kind == UINT:
                (value,) = _U64.unpack_from(buf, pos)
                pos += 8
            elif kind in (PTR, STR_OLD):
                value, pos = _opaque_at(buf, pos, end)
            elif kind == STR:
                value, pos = _opaque_at(buf, pos, end)
                value = value.rstrip(b"\0")
            elif kind == GFUUID:
                value = bytes(buf[pos : pos + 16])
                pos += 16
            elif kind == IATT:
                value = Iatt(*_IX.unpack_from(buf, pos))
                pos += 148
            elif kind == DOUBLE:
                (value,) = _F64.unpack_from(buf, pos)
                pos += 8
            elif kind == MDATA:
                value = MdataTimes(*_MDATA.unpack_from(buf, pos))
                pos += 36
            else:
                raise XdataError(f"unknown value type {kind}")
            if pos > end:
                raise XdataError("dict cut short")
            key = key[:-1] if key.endswith(b"\0") else key
            pairs[key] = Typed(kind, value)
            if key == GFID_REQ:
                req_at = pos - 16 if kind == GFUUID else -1
    except struct.error:
        raise XdataError("dict cut short") from None
    req = pairs.get(GFID_REQ)
    if req is not None and (not isinstance(req.value, bytes) or len(req.value) != 16):
        raise XdataError("gfid-req is not 16 bytes")
    return Xdata(pairs), pos, req_at


def _opaque_at(buf: bytes | bytearray | memoryview, pos: int, end: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(buf, pos)
    start = pos + 4
    stop = start + size
    if stop > end:
        raise XdataError("opaque cut short")
    return bytes(buf[start:stop]), stop + (-size % 4)


EMPTY = Xdata()
EMPTY._raw = NULL_RAW

AS_MANDATORY = Xdata({LOCK_MODE: uint(1)})
"""With an LK: the lock is mandatory, where the brick has mandatory-locking `optimal`."""

# A dictionary that is there and holds nothing: stock clients crash when a listing of xattrs is answered by NULL.
NO_PAIRS = Xdata()
NO_PAIRS._raw = _HEAD.pack(0, 0, 0)
