"""What debug/io-stats counts: per fop hits, errors and latency, and the sizes of reads and writes. Pure.

The hot path only appends a latency to a list; the list is folded into figures when it is long, or when someone looks.
Everything is kept for the interval that is under way and for all those before it; their sum is the cumulative figure.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

FOLD_AT = 512


class FopCount:
    """One fop in one span of time. Latencies are nanoseconds; `histogram[n]` counts those of `n` bits."""

    __slots__ = ("bytes", "count", "errors", "high", "histogram", "low", "sizes", "timed", "total")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.count = 0
        self.errors = 0
        self.timed = 0
        self.total = 0
        self.low = 0
        self.high = 0
        self.histogram: Counter[int] = Counter()
        self.bytes = 0
        self.sizes: Counter[int] = Counter()

    def add(self, other: FopCount) -> None:
        """Add the figures of another span."""
        if other.timed:
            self.low = min(self.low, other.low) if self.timed else other.low
            self.high = max(self.high, other.high)
        self.count += other.count
        self.errors += other.errors
        self.timed += other.timed
        self.total += other.total
        self.histogram += other.histogram
        self.bytes += other.bytes
        self.sizes += other.sizes


class FopStats:
    """One fop: latencies and sizes that are not folded yet, the interval, and all intervals before it."""

    __slots__ = ("before", "lengths", "now", "samples")

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.lengths: list[int] = []
        self.now = FopCount()
        self.before = FopCount()

    def fold(self) -> None:
        """Turn the samples into figures of the interval."""
        samples, lengths, now = self.samples, self.lengths, self.now
        if lengths:
            now.bytes += sum(lengths)
            now.sizes.update(map(int.bit_length, lengths))
            lengths.clear()
        if not samples:
            return
        low, high = min(samples), max(samples)
        now.low = min(now.low, low) if now.timed else low
        now.high = max(now.high, high)
        now.count += len(samples)
        now.timed += len(samples)
        now.total += sum(samples)
        now.histogram.update(map(int.bit_length, samples))
        samples.clear()

    def cumulative(self) -> FopCount:
        """Return the figures since the last reset."""
        self.fold()
        both = FopCount()
        both.add(self.before)
        both.add(self.now)
        return both

    def next_interval(self) -> None:
        """Begin a new interval."""
        self.fold()
        self.before.add(self.now)
        self.now.clear()

    def reset(self) -> None:
        """Forget everything."""
        self.samples.clear()
        self.lengths.clear()
        self.now.clear()
        self.before.clear()


def table(counts: dict[str, FopCount], seconds: float) -> dict[str, Any]:
    """Return one span as plain values, laid out as `gluster volume profile` shows it.

    Latencies are microseconds; `percent` is a fop's share of all latency; `blocks` tells how many reads and writes
    had a size of at least the key (a power of two) and less than twice that.
    """
    all_time = sum(count.total for count in counts.values()) or 1
    fops: dict[str, Any] = {}
    blocks: dict[int, dict[str, int]] = {}
    for name, count in sorted(counts.items()):
        if not count.count:
            continue
        row: dict[str, Any] = {"count": count.count, "errors": count.errors}
        if count.timed:
            row.update(
                percent=round(100 * count.total / all_time, 2),
                avg=round(count.total / count.timed / 1000, 2),
                min=round(count.low / 1000, 2),
                max=round(count.high / 1000, 2),
                histogram={(1 << bits >> 1) / 1000: hits for bits, hits in sorted(count.histogram.items())},
            )
        fops[name] = row
        for bits, hits in count.sizes.items():
            block = blocks.setdefault(1 << bits >> 1, {"reads": 0, "writes": 0})
            block["reads" if name == "read" else "writes"] += hits
    return {
        "duration": round(seconds, 3),
        "read": counts["read"].bytes if "read" in counts else 0,
        "written": counts["write"].bytes if "write" in counts else 0,
        "blocks": dict(sorted(blocks.items())),
        "fops": fops,
    }
