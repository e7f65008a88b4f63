"""RFC 4506 values over bytes, for everything that is not hot: a strict reader and a writer around xdrlib3.

A length is compared with the bytes that are there before it is used, so nothing is allocated on a peer's word, and
every fault is an `XdrError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import xdrlib3

T = TypeVar("T")


class XdrError(ValueError):
    """Bytes that are not what the protocol says, or a value that it cannot carry."""


class Reader:
    """Reads one value after the other from `data[pos:end]`, which is copied.

    Args:
        data: the bytes of a record, or more.
        pos, end: where the values stand in it; `end` None is the end of `data`.
    """

    def __init__(self, data: bytes | bytearray | memoryview, pos: int = 0, end: int | None = None) -> None:
        stop = len(data) if end is None else end
        if not 0 <= pos <= stop <= len(data):
            raise XdrError(f"cut short: {stop - pos} bytes at {pos}")
        self._start = pos
        self._size = stop - pos
        self._unpacker = xdrlib3.Unpacker(bytes(data[pos:stop]))

    @property
    def pos(self) -> int:
        """Where the next value begins in the `data` that was given."""
        return self._start + int(self._unpacker.get_position())

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return self._size - int(self._unpacker.get_position())

    def _take(self, read: Callable[[], Any], what: str) -> Any:
        try:
            return read()
        except (EOFError, struct.error, xdrlib3.Error):
            raise XdrError(f"cut short: no room for {what} at {self.pos}") from None

    def u32(self) -> int:
        """Return an unsigned int."""
        return int(self._take(self._unpacker.unpack_uint, "an unsigned int"))

    def i32(self) -> int:
        """Return an int."""
        return int(self._take(self._unpacker.unpack_int, "an int"))

    def u64(self) -> int:
        """Return an unsigned hyper."""
        return int(self._take(self._unpacker.unpack_uhyper, "an unsigned hyper"))

    def i64(self) -> int:
        """Return a hyper."""
        value = self.u64()
        return value - (1 << 64) if value >> 63 else value

    def fixed(self, size: int) -> bytes:
        """Return fixed-length opaque data of `size` bytes."""
        if size > self.left:
            raise XdrError(f"cut short: {size} bytes wanted at {self.pos}, {self.left} are there")
        return bytes(self._take(lambda: self._unpacker.unpack_fopaque(size), f"{size} bytes"))

    def opaque(self, limit: int | None = None) -> bytes:
        """Return variable-length opaque data or a string; XdrError when it is longer than `limit` bytes."""
        size = self.u32()
        if limit is not None and size > limit:
            raise XdrError(f"{size} bytes at {self.pos} where at most {limit} may be")
        return self.fixed(size)

    def text(self, limit: int | None = None) -> str:
        """Return a string as text; bytes that are not UTF-8 come as surrogates."""
        return self.opaque(limit).decode("utf-8", "surrogateescape")

    def linked(self, item: Callable[[Reader], T]) -> Iterator[T]:
        """Yield the items of a linked list: a 1 before each, a 0 behind the last."""
        while True:
            more = self.u32()
            if more == 0:
                return
            if more != 1:
                raise XdrError(f"a list goes on with {more} at {self.pos - 4}, neither 0 nor 1")
            yield item(self)

    def done(self) -> None:
        """XdrError unless all has been read."""
        if self.left:
            raise XdrError(f"{self.left} bytes too many at {self.pos}")


class Writer:
    """Collects values; each method returns the writer, so that calls can be chained. `bytes(writer)` is the result."""

    def __init__(self) -> None:
        self._packer = xdrlib3.Packer()

    def __bytes__(self) -> bytes:
        return bytes(self._packer.get_buffer())

    def _put(self, write: Callable[[Any], None], value: int, low: int, high: int) -> Writer:
        if not low <= value < high:
            raise XdrError(f"{value} is outside {low}..{high - 1}")
        write(value)
        return self

    def u32(self, value: int) -> Writer:
        """Add an unsigned int."""
        return self._put(self._packer.pack_uint, value, 0, 1 << 32)

    def i32(self, value: int) -> Writer:
        """Add an int."""
        return self._put(self._packer.pack_int, value, -(1 << 31), 1 << 31)

    def u64(self, value: int) -> Writer:
        """Add an unsigned hyper."""
        return self._put(self._packer.pack_uhyper, value, 0, 1 << 64)

    def i64(self, value: int) -> Writer:
        """Add a hyper."""
        return self._put(self._packer.pack_hyper, value, -(1 << 63), 1 << 63)

    def fixed(self, data: bytes, size: int) -> Writer:
        """Add fixed-length opaque data, which must be `size` bytes long."""
        if len(data) != size:
            raise XdrError(f"{len(data)} bytes where {size} must be")
        self._packer.pack_fopaque(size, data)
        return self

    def opaque(self, data: bytes) -> Writer:
        """Add variable-length opaque data or a string."""
        self._packer.pack_opaque(data)
        return self

    def text(self, text: str) -> Writer:
        """Add a string, surrogates as the bytes they stand for."""
        return self.opaque(text.encode("utf-8", "surrogateescape"))

    def linked(self, items: Iterable[T], item: Callable[[Writer, T], object]) -> Writer:
        """Add a linked list: a 1 before each item, a 0 behind the last."""
        for value in items:
            self.u32(1)
            item(self, value)
        return self.u32(0)
