"""How far a job is: phases and bytes, told to whoever shows them at a bearable rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

MIN_STEP = 0.01
MIN_SECONDS = 2.0


class Moment(msgspec.Struct, frozen=True):
    """How far a job is; `rate` in bytes per second, `eta` in seconds (None when nothing can be said)."""

    phase: str
    transferred: int
    size: int
    elapsed: float
    rate: float | None
    eta: float | None
    method: str


Show = Callable[[Moment], None]


class Progress:
    """Counts bytes of a phase, from any thread, and shows a moment at its begin and end, at every percent, and every
    two seconds in between if something has been counted.

    Args:
        show: where moments go; None shows nothing.
        clock: monotonic seconds.
    """

    def __init__(self, show: Show | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._phase_began = self._began
        self._phase = ""
        self._method = ""
        self._size = self._done = self._shown_done = 0
        self._shown_at = self._began

    def phase(self, name: str, size: int = 0, method: str = "") -> None:
        """Begin a phase of `size` bytes."""
        with self._lock:
            self._phase, self._size, self._method = name, size, method
            self._done = self._shown_done = 0
            self._phase_began = self._clock()
            self._tell()

    def grow(self, count: int) -> None:
        """Make the phase longer by `count` bytes that were not known of when it began."""
        with self._lock:
            self._size += count

    def add(self, count: int) -> None:
        """Count bytes of the phase."""
        with self._lock:
            self._done += count
            step = (self._done - self._shown_done) / self._size if self._size else 0.0
            if step >= MIN_STEP or self._done >= self._size or self._clock() - self._shown_at >= MIN_SECONDS:
                self._tell()

    def _tell(self) -> None:
        now = self._clock()
        self._shown_at, self._shown_done = now, self._done
        if self._show is None:
            return
        spent = now - self._phase_began
        rate = self._done / spent if self._done and spent > 0 else None
        eta = (self._size - self._done) / rate if rate else None
        self._show(Moment(self._phase, self._done, self._size, now - self._began, rate, eta, self._method))
