"""Record marking (RFC 5531, section 11): one receive buffer in which whole records are found where they landed.

Bytes go straight from the socket into the buffer; a record is handed out as a place in it, never copied. The buffer
starts small, grows only as bytes really arrive (so an announced gigabyte costs nothing), and is left behind, not
overwritten, when somebody still reads from it (`pin`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from glustx.rpc.xdr import XdrError

FIRST_SIZE = 64 << 10
READ_SIZE = 128 << 10  # of small records
USUAL_SIZE = 1280 << 10  # holds a 1 MiB WRITE record and a few small ones
RECORD_LIMIT = 1 << 30
BUDGET = 1 << 30
MAX_EMPTY_FRAGMENTS = 64
BURST = 256  # records handed out in one go, so that what they cause can be sent in between
SPARES = 4

_U32 = struct.Struct(">I")


class Budget:
    """Bytes that receive buffers beyond their usual size may take.

    Args:
        limit: all that share the budget together.
        each: one connection alone; None leaves it all there is.
    """

    def __init__(self, limit: int = BUDGET, each: int | None = None) -> None:
        self.limit = limit
        self.each = each
        self.used = 0

    def claim(self, had: int, wanted: int) -> None:
        """Change what one connection takes from `had` to `wanted` bytes; XdrError when it is too much."""
        if wanted > had:
            if self.each is not None and wanted > self.each:
                raise XdrError(f"a record that needs {wanted} bytes; one connection may have {self.each}")
            if self.used - had + wanted > self.limit:
                raise XdrError("the budget for large records is used up")
        self.used += wanted - had


_process_budget = Budget()


class Buffer:
    """One piece of memory that bytes are received in; `pins` counts the requests that still read from it."""

    __slots__ = ("buf", "head", "pins", "view")

    def __init__(self, size: int) -> None:
        self.buf = bytearray(size)
        self.view = memoryview(self.buf)
        self.head = self.view[:READ_SIZE]
        self.pins = 0


class RecordBuffer:
    """The receive buffer of one connection.

    Args:
        limit: longest record, in bytes; a longer one raises XdrError before memory is taken.
        budget: shared bound on what large records may take.

    Attributes:
        held: set it to keep records that have arrived from being handed out, from the next one on.
        burst: records handed out in one go.
    """

    __slots__ = (
        "_budget",
        "_claimed",
        "_end",
        "_fragments",
        "_now",
        "_spare",
        "_start",
        "_whole",
        "burst",
        "held",
        "limit",
    )

    def __init__(self, limit: int = RECORD_LIMIT, budget: Budget | None = None) -> None:
        self.limit = limit
        self.held = False
        self.burst = BURST
        self._budget = budget or _process_budget
        self._claimed = 0
        self._now = Buffer(FIRST_SIZE)
        self._spare: list[Buffer] = []
        self._start = 0  # where the first record that is not whole yet begins
        self._end = 0  # where the next byte goes
        self._whole: bytearray | None = None  # a record of several fragments, as far as it has come
        self._fragments = 0

    def pin(self) -> Buffer:
        """Keep the present buffer for a request that reads from it beyond this turn; the next bytes go to another.

        Whoever pins gives the buffer back with `unpin` once nothing reads from it any more, or lets it be forgotten.
        """
        self._now.pins += 1
        return self._now

    def unpin(self, buffer: Buffer) -> None:
        """Give a pinned buffer back to be used again: fresh memory for a large WRITE costs as much as the write."""
        buffer.pins -= 1
        usual = buffer is not self._now and len(buffer.buf) <= USUAL_SIZE
        if not buffer.pins and usual and len(self._spare) < SPARES:
            self._spare.append(buffer)

    def room(self) -> memoryview:
        """Return where the next bytes should go."""
        now = self._now
        size = len(now.buf)
        start, end = self._start, self._end
        if now.pins:
            self._move(max(FIRST_SIZE, min(size, USUAL_SIZE)))
        elif start == end:
            self._start = self._end = 0
            if size > USUAL_SIZE:
                self._move(USUAL_SIZE)
            return self._now.head
        elif end == size or (start and self._needed() > size - start):
            needed = self._needed()
            if needed <= size and start:
                now.buf[: end - start] = bytes(now.view[start:end])
                self._start, self._end = 0, end - start
            else:
                # Beyond the usual size, memory follows the bytes that have arrived, not the announcement.
                self._move(USUAL_SIZE if needed <= USUAL_SIZE else min(needed, max(2 * USUAL_SIZE, 2 * (end - start))))
        # No more of small records at once than is dealt with while others wait; a large one goes where it belongs.
        start, end = self._start, self._end
        stop = start + self._needed() if end - start >= 4 else end
        return self._now.view[end : max(stop, end) + READ_SIZE]

    def _needed(self) -> int:
        have = self._end - self._start
        if have < 4:
            return 4
        (mark,) = _U32.unpack_from(self._now.buf, self._start)
        return 4 + int(mark & 0x7FFFFFFF)

    def _move(self, size: int) -> None:
        have = self._end - self._start
        if size <= have:
            size = have + FIRST_SIZE
        self._claim(size)
        spare = next((b for b in self._spare if size <= len(b.buf) <= USUAL_SIZE), None)
        if spare is not None:
            self._spare.remove(spare)
        fresh = spare or Buffer(size)
        fresh.buf[:have] = self._now.view[self._start : self._end]
        self._now = fresh
        self._start, self._end = 0, have

    def _claim(self, size: int) -> None:
        """Account for a buffer of `size` bytes and for what there is of a record in fragments."""
        extra = max(0, size - USUAL_SIZE) + (len(self._whole) if self._whole is not None else 0)
        self._budget.claim(self._claimed, extra)
        self._claimed = extra

    def close(self) -> None:
        """Give the budget back; no call follows."""
        self._budget.used -= self._claimed
        self._claimed = 0
        self._whole = None
        self._spare.clear()

    def feed(self, nbytes: int, record: Callable[[memoryview, int, int], None]) -> bool:
        """Take note of `nbytes` that arrived in `room()` and call `record(view, pos, end)` for each whole record.

        Returns True when it stopped before the last one: after `burst` records or because of `held`; feeding 0 bytes
        goes on. Raises XdrError for a record that is too long or in pieces without end.
        """
        self._end += nbytes
        buf, view = self._now.buf, self._now.view
        for _ in range(self.burst):
            if self.held:
                return True
            start = self._start
            have = self._end - start
            if have < 4:
                return False
            (mark,) = _U32.unpack_from(buf, start)
            size = mark & 0x7FFFFFFF
            already = len(self._whole) if self._whole is not None else 0
            if size + already > self.limit:
                raise XdrError(f"a record of {size + already} bytes is longer than {self.limit}")
            if have < 4 + size:
                return False
            pos = start + 4
            stop = pos + size
            self._start = stop
            if mark & 0x80000000 and self._whole is None:
                record(view, pos, stop)
                continue
            whole = self._whole if self._whole is not None else bytearray()
            self._fragments += 1
            if not size and self._fragments - MAX_EMPTY_FRAGMENTS > len(whole):
                raise XdrError("a record in empty fragments")
            whole += view[pos:stop]
            self._whole = whole
            self._claim(len(buf))
            if mark & 0x80000000:
                self._whole = None
                self._fragments = 0
                self._claim(len(buf))
                record(memoryview(whole), 0, len(whole))
        return True


def frame(body: bytes) -> bytes:
    """Return `body` as a record of one fragment."""
    return _U32.pack(len(body) | 0x80000000) + body
