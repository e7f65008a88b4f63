"""The base of cold message bodies: a struct whose annotated fields, in order, are the XDR body.

    class SignIn(Body, frozen=True):
        brick: Text
        port: I32
        pid: I32

gives `SignIn("/b", 49152, 7).encode()` and `SignIn.decode(body)`, which refuses what is cut short or too long.
"""

from __future__ import annotations

import functools
import struct
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from glustx.rpc import dict_v1
from glustx.rpc.program_330_iatt import OLD_IATT, iatt_values, make_iatt
from glustx.rpc.xdr import Reader, Writer, XdrError
from glustx.values import Flock, Iatt

U32 = Annotated[int, "u32"]
I32 = Annotated[int, "i32"]
U64 = Annotated[int, "u64"]
I64 = Annotated[int, "i64"]
Bytes16 = Annotated[bytes, "bytes16"]
Opaque = Annotated[bytes, "opaque"]
Text = Annotated[str, "text"]
Dict = Annotated[dict[bytes, bytes], "dict"]  # a v1 dictionary inside an opaque
OldIatt = Annotated[Iatt, "iatt"]  # gf_iatt, 100 bytes
OldFlock = Annotated[Flock, "flock"]

B = TypeVar("B", bound="Body")


def _read_iatt(reader: Reader) -> Iatt:
    return make_iatt(*OLD_IATT.unpack(reader.fixed(OLD_IATT.size)))


def _write_iatt(writer: Writer, iatt: Iatt) -> None:
    try:
        packed = OLD_IATT.pack(*iatt_values(iatt))
    except struct.error as error:
        raise XdrError(f"attributes that do not fit: {error}") from None
    writer.fixed(packed, OLD_IATT.size)


def _read_flock(reader: Reader) -> Flock:
    type_, whence, start, size = reader.u32(), reader.u32(), reader.u64(), reader.u64()
    return Flock(type_, whence, start, size, reader.u32(), reader.opaque(1024))


def _write_flock(writer: Writer, flock: Flock) -> None:
    writer.u32(flock.type).u32(flock.whence).u64(flock.start).u64(flock.len).u32(flock.pid).opaque(flock.lk_owner)


_READ: dict[str, Callable[[Reader], Any]] = {
    "u32": Reader.u32,
    "i32": Reader.i32,
    "u64": Reader.u64,
    "i64": Reader.i64,
    "bytes16": lambda reader: reader.fixed(16),
    "opaque": Reader.opaque,
    "text": Reader.text,
    "dict": lambda reader: dict_v1.decode(reader.opaque()),
    "iatt": _read_iatt,
    "flock": _read_flock,
}
_WRITE: dict[str, Callable[[Writer, Any], object]] = {
    "u32": Writer.u32,
    "i32": Writer.i32,
    "u64": Writer.u64,
    "i64": Writer.i64,
    "bytes16": lambda writer, value: writer.fixed(value, 16),
    "opaque": Writer.opaque,
    "text": Writer.text,
    # An empty dictionary goes as none at all, as in stock's own messages.
    "dict": lambda writer, value: writer.opaque(dict_v1.encode(value) if value else b""),
    "iatt": _write_iatt,
    "flock": _write_flock,
}


class Body(msgspec.Struct, frozen=True):
    """Arguments or results of a procedure."""

    def encode(self) -> bytes:
        """Return the XDR body; XdrError for a value that does not fit its field."""
        writer = Writer()
        for field, kind in self.kinds().items():
            _WRITE[kind](writer, getattr(self, field))
        return bytes(writer)

    @classmethod
    def decode(cls: type[B], body: bytes | bytearray | memoryview) -> B:
        """Return what a whole XDR body holds; XdrError when it is anything else."""
        reader = Reader(body)
        values = [_READ[kind](reader) for kind in cls.kinds().values()]
        reader.done()
        return cls(*values)

    @classmethod
    @functools.cache
    def kinds(cls) -> dict[str, str]:
        """Return the wire type of each field, in their order."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return {field: hints[field].__metadata__[0] for field in cls.__struct_fields__}
