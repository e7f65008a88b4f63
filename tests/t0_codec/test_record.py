"""The receive buffer: any chunking of any records yields the same records, memory follows what has arrived and not what
was announced, and a buffer that somebody reads from is left alone."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glustx.rpc.record import (
    BURST,
    FIRST_SIZE,
    MAX_EMPTY_FRAGMENTS,
    READ_SIZE,
    SPARES,
    USUAL_SIZE,
    Budget,
    Buffer,
    RecordBuffer,
    frame,
)
from glustx.rpc.xdr import XdrError

LAST = 0x80000000


def fragments(*parts: bytes) -> bytes:
    """One record in as many fragments as there are parts."""
    marks = [len(part) for part in parts[:-1]] + [len(parts[-1]) | LAST]
    return b"".join(struct.pack(">I", mark) + part for mark, part in zip(marks, parts, strict=True))


class Collector:
    """Feeds a RecordBuffer and keeps what it hands out."""

    def __init__(self, buffer: RecordBuffer | None = None) -> None:
        self.buffer = buffer or RecordBuffer(budget=Budget())
        self.got: list[bytes] = []
        self.pin_at: set[int] = set()
        self.pinned: list[tuple[Buffer, memoryview, bytes]] = []

    def record(self, view: memoryview, pos: int, end: int) -> None:
        data = bytes(view[pos:end])
        if len(self.got) in self.pin_at:
            self.pinned.append((self.buffer.pin(), view[pos:end], data))
        self.got.append(data)

    def read(self, data: bytes) -> int:
        """One read of a socket that holds `data`: returns how much of it there was room for."""
        room = self.buffer.room()
        size = min(len(room), len(data))
        assert size or not data
        room[:size] = data[:size]
        while self.buffer.feed(size, self.record):
            if self.buffer.held:
                return size
            size = 0
        return min(len(room), len(data))

    def feed(self, data: bytes, chunk: int = 1 << 30) -> None:
        view = memoryview(data)
        pos = 0
        while pos < len(data):
            pos += self.read(bytes(view[pos : pos + chunk]))


# -- whole records -----------------------------------------------------------------------------------------------------

RECORDS = [b"", b"x", b"four", bytes(range(256)) * 30, b"last"]


def test_many_records_in_one_read() -> None:
    c = Collector()
    c.feed(b"".join(map(frame, RECORDS)))
    assert c.got == RECORDS


def test_byte_by_byte() -> None:
    c = Collector()
    c.feed(b"".join(map(frame, RECORDS)), chunk=1)
    assert c.got == RECORDS


def test_more_records_than_one_burst() -> None:
    records = [struct.pack(">I", n) for n in range(3 * BURST + 7)]
    c = Collector()
    data = b"".join(map(frame, records))
    room = c.buffer.room()
    room[: len(data)] = data
    rounds = 0
    more = c.buffer.feed(len(data), c.record)
    while more:
        rounds += 1
        assert len(c.got) == rounds * BURST
        more = c.buffer.feed(0, c.record)
    assert rounds == 3 and c.got == records


def test_records_are_held_back_and_let_go() -> None:
    c = Collector()

    def one(view: memoryview, pos: int, end: int) -> None:
        c.record(view, pos, end)
        c.buffer.held = True

    data = b"".join(map(frame, RECORDS))
    room = c.buffer.room()
    room[: len(data)] = data
    assert c.buffer.feed(len(data), one)
    for n in range(1, len(RECORDS)):
        assert c.got == RECORDS[:n]
        assert c.buffer.feed(0, one) and len(c.got) == n
        c.buffer.held = False
        c.buffer.feed(0, one)
    assert c.got == RECORDS
    # What arrives while they are held is kept behind them, however much it is.
    c.buffer.held = True
    more = [bytes([n]) * 1000 for n in range(256)] * 10
    c.feed(b"".join(map(frame, more)))
    assert len(c.got) == len(RECORDS)
    c.buffer.held = False
    while c.buffer.feed(0, c.record):
        pass
    assert c.got == RECORDS + more


@settings(max_examples=40, deadline=None)
@given(
    records=st.lists(
        st.lists(st.one_of(st.binary(max_size=30), st.just(b"\xaa" * 70000)), min_size=1, max_size=4), max_size=8
    ),
    chunks=st.lists(st.integers(1, 200_000), min_size=1, max_size=20),
    pins=st.sets(st.integers(0, 7)),
    unpin_early=st.booleans(),
)
@example(records=[[b"\xaa" * 70000]] * 8, chunks=[65537, 3], pins={0, 3, 4}, unpin_early=True)
def test_any_chunking(records: list[list[bytes]], chunks: list[int], pins: set[int], unpin_early: bool) -> None:
    data = b"".join(fragments(*parts) for parts in records)
    c = Collector()
    c.pin_at = pins
    pos = turn = 0
    least = len(data) // 2000  # a megabyte byte by byte would take minutes and show nothing new
    while pos < len(data):
        pos += c.read(data[pos : pos + max(least, chunks[turn % len(chunks)])])
        turn += 1
        for _, view, expected in c.pinned:
            assert view == expected  # nothing was written over it
        if unpin_early and c.pinned and turn % 3 == 0:
            c.buffer.unpin(c.pinned.pop(0)[0])
    assert c.got == [b"".join(parts) for parts in records]
    for _, view, expected in c.pinned:
        assert view == expected


# -- fragments ---------------------------------------------------------------------------------------------------------


def test_one_record_in_ten_thousand_fragments() -> None:
    payload = bytes(n % 251 for n in range(10_000))
    c = Collector()
    c.feed(fragments(*(payload[n : n + 1] for n in range(10_000))) + frame(b"next"), chunk=4096)
    assert c.got == [payload, b"next"]


def test_empty_fragments() -> None:
    c = Collector()
    c.feed(fragments(b"", b"a", b"", b"b", b"") + fragments(b"", b""))
    assert c.got == [b"ab", b""]
    with pytest.raises(XdrError, match="empty fragments"):
        c.feed(fragments(*[b""] * (MAX_EMPTY_FRAGMENTS + 2)))
    # An endless record of nothing is no better when it begins with something.
    with pytest.raises(XdrError, match="empty fragments"):
        Collector().feed(fragments(b"abc", *[b""] * (MAX_EMPTY_FRAGMENTS + 9)))


# -- limits ------------------------------------------------------------------------------------------------------------


def test_the_longest_record() -> None:
    c = Collector(RecordBuffer(limit=1000, budget=Budget()))
    c.feed(frame(b"x" * 1000) + fragments(b"y" * 400, b"z" * 600))
    assert [len(record) for record in c.got] == [1000, 1000]
    for too_long in (
        struct.pack(">I", 1001 | LAST),
        fragments(b"y" * 400, b"z" * 601)[:412],
        struct.pack(">I", 0xFFFFFFFF),
    ):
        with pytest.raises(XdrError, match="longer than 1000"):
            Collector(RecordBuffer(limit=1000, budget=Budget())).feed(too_long)


def test_an_announced_gigabyte_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        c = Collector()
        c.feed(struct.pack(">I", ((1 << 30) - 1) | LAST))
        for _ in range(100):
            c.feed(b"only a little comes")
        assert tracemalloc.get_traced_memory()[1] < 2 * FIRST_SIZE
    finally:
        tracemalloc.stop()
    assert c.got == []


def test_memory_follows_what_has_arrived() -> None:
    budget = Budget()
    c = Collector(RecordBuffer(budget=budget))
    size = 40 << 20
    c.feed(struct.pack(">I", size | LAST))
    sent = 0
    while sent < size:
        part = min(1 << 20, size - sent)
        c.feed(bytes(part))
        sent += part
        assert budget.used <= 2 * sent + USUAL_SIZE
    assert len(c.got) == 1 and len(c.got[0]) == size
    # The large buffer is not kept for small records.
    c.feed(frame(b"small"))
    assert budget.used == 0 and len(c.buffer.room()) <= USUAL_SIZE


def test_the_budget_is_shared_and_given_back() -> None:
    budget = Budget(16 << 20)
    first, second = (Collector(RecordBuffer(budget=budget)) for _ in range(2))
    first.feed(struct.pack(">I", (12 << 20) | LAST) + bytes(11 << 20))
    with pytest.raises(XdrError, match="budget"):
        second.feed(struct.pack(">I", (12 << 20) | LAST) + bytes(11 << 20))
    # Usual records need no budget, so others are served while it is used up.
    third = Collector(RecordBuffer(budget=budget))
    third.feed(frame(bytes(1 << 20)))
    assert len(third.got) == 1
    second.buffer.close()
    first.buffer.close()
    assert budget.used == 0
    second = Collector(RecordBuffer(budget=budget))
    second.feed(frame(bytes(12 << 20)))
    assert len(second.got) == 1
    second.buffer.close()
    assert budget.used == 0


def test_fragments_count_against_the_budget() -> None:
    budget = Budget(4 << 20)
    c = Collector(RecordBuffer(budget=budget))
    with pytest.raises(XdrError, match="budget"):
        c.feed(fragments(*[bytes(1 << 20)] * 6))
    c.buffer.close()
    assert budget.used == 0
    c = Collector(RecordBuffer(budget=budget))
    for _ in range(3):
        c.feed(fragments(*[bytes(1 << 20)] * 3), chunk=100_000)
    assert [len(record) for record in c.got] == [3 << 20] * 3 and budget.used == 0


# -- pins --------------------------------------------------------------------------------------------------------------


def test_a_pinned_buffer_is_left_alone_and_used_again() -> None:
    c = Collector()
    c.pin_at = {0}
    c.feed(frame(b"held" * 100) + frame(b"read at once"))
    buffer, view, expected = c.pinned.pop()
    c.feed(b"".join(frame(b"other" * 1000) for _ in range(100)))
    assert view == expected
    assert buffer.buf is not c.buffer.room().obj
    c.buffer.unpin(buffer)
    seen = set()
    for _ in range(2):
        c.pin_at = {len(c.got)}
        c.feed(frame(b"again"))
        seen.add(id(c.pinned[-1][0]))
        c.buffer.room()
    assert id(buffer) in seen


def test_a_record_cut_in_two_by_a_pin() -> None:
    c = Collector()
    c.pin_at = {0}
    second = bytes(range(250)) * 40
    data = frame(b"first") + frame(second)
    c.feed(data[:5000])
    c.feed(data[5000:])
    assert c.got == [b"first", second]
    assert c.pinned[0][1] == b"first"


def test_large_buffers_are_not_kept_for_later() -> None:
    c = Collector()
    for n in range(SPARES + 2):
        c.pin_at = {n}
        c.feed(frame(bytes(3 << 20)))
    buffers = [buffer for buffer, _, _ in c.pinned]
    c.feed(frame(b"next"))
    c.pinned.clear()
    for buffer in buffers:
        c.buffer.unpin(buffer)
    assert not any(buffer in c.buffer._spare for buffer in buffers)


def test_small_records_are_read_a_few_at_a_time_and_large_ones_at_once() -> None:
    c = Collector()
    c.feed(frame(bytes(1 << 20)))
    assert len(c.buffer.room()) == READ_SIZE
    c.feed(frame(b"small") + frame(bytes(1 << 20))[:READ_SIZE])
    assert len(c.buffer.room()) >= (1 << 20) - READ_SIZE
