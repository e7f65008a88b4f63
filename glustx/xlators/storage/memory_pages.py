"""Sparse file content for storage/memory: pages that hold bytes, and extents that are only allocated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

PAGE = 4096
_ZERO_PAGE = bytes(PAGE)


class Extents:
    """A set of whole numbers kept as sorted ranges [start, stop) that neither overlap nor touch."""

    __slots__ = ("_starts", "_stops", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self.total = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._stops, strict=True)))

    @property
    def end(self) -> int:
        """The number behind the last range, 0 for an empty set."""
        return self._stops[-1] if self._stops else 0

    def missing(self, start: int, stop: int) -> int:
        """Return how many numbers of [start, stop) are not in the set."""
        have = 0
        index = max(0, bisect_right(self._starts, start) - 1)
        while index < len(self._starts) and self._starts[index] < stop:
            have += max(0, min(stop, self._stops[index]) - max(start, self._starts[index]))
            index += 1
        return stop - start - have

    def add(self, start: int, stop: int) -> None:
        """Add [start, stop)."""
        index = bisect_right(self._starts, start) - 1
        if index >= 0 and self._stops[index] >= stop:
            return
        self._replace(start, stop, [(start, stop)], touching=True)

    def remove(self, start: int, stop: int) -> None:
        """Remove [start, stop)."""
        self._replace(start, stop, [], touching=False)

    def _replace(self, start: int, stop: int, new: list[tuple[int, int]], touching: bool) -> None:
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._stops[first] < start or (self._stops[first] == start and not touching):
            first += 1
        last = first
        limit = stop + 1 if touching else stop
        while last < len(self._starts) and self._starts[last] < limit:
            last += 1
        if first == last and not new:
            return
        old = list(zip(self._starts[first:last], self._stops[first:last], strict=True))
        if new and old:
            new = [(min(start, old[0][0]), max(stop, old[-1][1]))]
        elif old:
            if old[0][0] < start:
                new.append((old[0][0], start))
            if old[-1][1] > stop:
                new.append((stop, old[-1][1]))
        self._starts[first:last] = [pair[0] for pair in new]
        self._stops[first:last] = [pair[1] for pair in new]
        self.total += sum(b - a for a, b in new) - sum(b - a for a, b in old)

    def at_or_after(self, number: int) -> int | None:
        """Return the smallest member that is not below `number`, or None."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._stops[index]:
            return number
        return self._starts[index + 1] if index + 1 < len(self._starts) else None

    def end_of(self, number: int) -> int:
        """Return the first number at or behind `number` that is not in the set."""
        index = bisect_right(self._starts, number) - 1
        return self._stops[index] if index >= 0 and number < self._stops[index] else number


class Pages:
    """The bytes of one file. A page that is allocated and holds no bytes reads as zeroes and costs no memory."""

    __slots__ = ("_bytes", "_written", "allocated", "size")

    def __init__(self) -> None:
        self.size = 0
        self.allocated = Extents()
        self._written = Extents()
        self._bytes: dict[int, bytearray] = {}

    @staticmethod
    def span(offset: int, size: int) -> tuple[int, int]:
        """Return the pages [first, last) that bytes [offset, offset + size) lie in."""
        return offset // PAGE, -(-(offset + size) // PAGE)

    def needed(self, offset: int, size: int) -> int:
        """Return how many pages would have to be allocated to hold the range."""
        return self.allocated.missing(*self.span(offset, size)) if size else 0

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes of the range that lie inside the file."""
        stop = min(self.size, offset + size)
        if offset >= stop:
            return b""
        number, start = divmod(offset, PAGE)
        if start + stop - offset <= PAGE:
            page = self._bytes.get(number)
            return bytes(page[start : start + stop - offset]) if page is not None else bytes(stop - offset)
        last = -(-stop // PAGE)
        get = self._bytes.get
        whole = b"".join([get(n, _ZERO_PAGE) for n in range(number, last)])
        return whole[start : start + stop - offset]

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Put `data` at `offset`, growing the file to hold it."""
        size = len(data)
        if not size:
            return
        first, last = self.span(offset, size)
        self.allocated.add(first, last)
        self._written.add(first, last)
        view = memoryview(data)
        done = 0
        while done < size:
            number, start = divmod(offset + done, PAGE)
            step = min(PAGE - start, size - done)
            page = self._bytes.get(number)
            if step == PAGE:
                self._bytes[number] = bytearray(view[done : done + step])
            else:
                if page is None:
                    page = self._bytes[number] = bytearray(PAGE)
                page[start : start + step] = view[done : done + step]
            done += step
        self.size = max(self.size, offset + size)

    def allocate(self, offset: int, size: int) -> None:
        """Allocate the pages of the range; bytes and size stay as they are."""
        self.allocated.add(*self.span(offset, size))

    def clear(self, offset: int, size: int) -> None:
        """Make the range read as zeroes: bytes of whole pages are dropped, those of partial ones zeroed."""
        stop = offset + size
        first, last = -(-offset // PAGE), stop // PAGE
        edges = {(offset // PAGE), (stop // PAGE)}
        for number in edges:
            page = self._bytes.get(number)
            a, b = max(offset, number * PAGE), min(stop, (number + 1) * PAGE)
            if page is not None and a < b:
                page[a - number * PAGE : b - number * PAGE] = bytes(b - a)
        if first < last:
            if last - first < len(self._bytes):
                for number in range(first, last):
                    self._bytes.pop(number, None)
            else:
                for number in [n for n in self._bytes if first <= n < last]:
                    del self._bytes[number]
            self._written.remove(first, last)

    def punch(self, offset: int, size: int) -> None:
        """Clear the range and give its whole pages back."""
        self.clear(offset, size)
        first, last = -(-offset // PAGE), (offset + size) // PAGE
        if first < last:
            self.allocated.remove(first, last)

    def truncate(self, size: int) -> None:
        """Set the size; what is cut off is given back and reads as zeroes should the file grow again."""
        if size <= self.size:
            end = -(-max(self.size, self.allocated.end * PAGE) // PAGE) * PAGE
            if end > size:
                self.punch(size, end - size)
        self.size = size

    def next_data(self, offset: int) -> int | None:
        """Return where bytes are held at or behind `offset`, or None when none are up to the end of the file."""
        number = self._written.at_or_after(offset // PAGE)
        if number is None or number * PAGE >= self.size:
            return None
        return max(offset, number * PAGE)

    def next_hole(self, offset: int) -> int:
        """Return where a hole begins at or behind `offset`; the end of the file is one."""
        number = offset // PAGE
        end = self._written.end_of(number)
        return offset if end == number else min(end * PAGE, self.size)
