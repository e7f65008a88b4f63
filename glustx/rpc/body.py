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
from glustx.rpc.xdr import Reader, Writer, XdrError
from glustx.values import IATT_ALL, Flock, Iatt

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

_OLD_IATT = struct.Struct(">16s2Q4I2QIQ6I")

B = TypeVar("B", bound="Body")


def _read_iatt(reader: Reader) -> Iatt:
    gfid, ino, dev, mode, nlink, uid, gid, rdev, size, blksize, blocks, *times = _OLD_IATT.unpack(
        reader.fixed(_OLD_IATT.size)
    )
    atime, atime_nsec, mtime, mtime_nsec, ctime, ctime_nsec = times
    return Iatt(
        gfid=gfid,
        flags=IATT_ALL,
        ino=ino,
        dev=dev,
        mode=mode,
        nlink=nlink,
        uid=uid,
        gid=gid,
        rdev=rdev,
        size=size,
        blksize=blksize,
        blocks=blocks,
        atime=atime,
        atime_nsec=atime_nsec,
        mtime=mtime,
        mtime_nsec=mtime_nsec,
        ctime=ctime,
        ctime_nsec=ctime_nsec,
    )


def _write_iatt(writer: Writer, iatt: Iatt) -> None:
    words = (iatt.mode, iatt.nlink, iatt.uid, iatt.gid, iatt.rdev, iatt.size, iatt.blksize, iatt.blocks)
    times = (iatt.atime, iatt.atime_nsec, iatt.mtime, iatt.mtime_nsec, iatt.ctime, iatt.ctime_nsec)
    # The layout has 32 bits for seconds; stock cuts off what is above them.
    cut = [value & 0xFFFFFFFF for value in times]
    try:
        packed = _OLD_IATT.pack(iatt.gfid, iatt.ino, iatt.dev, *words, *cut)
    except struct.error as error:
        raise XdrError(f"attributes that do not fit: {error}") from None
    writer.fixed(packed, _OLD_IATT.size)


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
