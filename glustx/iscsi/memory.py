"""Memory for the data of commands: bounded for all sessions together and for each. Buffers for data-out are used again,
since fresh memory for a large write costs as much as the write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from glustx.rpc.record import Budget
from glustx.rpc.xdr import XdrError

SMALL = 8 << 10  # what is not larger is not accounted for
REUSED = 64 << 10  # what is not smaller is kept for the next one
SPARE_BYTES = 16 << 20


class Memory:
    """Buffers for commands' data.

    Args:
        limit: bytes of all sessions.
        each: bytes of one session.
    """

    def __init__(self, limit: int = 1 << 30, each: int = 128 << 20) -> None:
        self.budget = Budget(limit)
        self.each = each
        self._spares: dict[int, list[bytearray]] = {}
        self._spare = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, share: Share, size: int) -> bytearray | None:
        """Return a buffer of at least `size` bytes, or None when there is no room for it now."""
        if size > SMALL and not self.claim(share, size):
            return None
        if size < REUSED:
            return bytearray(size)
        rounded = 1 << (size - 1).bit_length()
        spares = self._spares.get(rounded)
        if spares:
            self._spare -= rounded
            return spares.pop()
        return bytearray(rounded)

    def claim(self, share: Share, size: int) -> bool:
        """Account for `size` bytes (more than SMALL) that somebody else holds; False when there is no room for them."""
        if share.used + size > self.each and share.used:
            return False
        try:
            self.budget.claim(0, size)
        except XdrError:
            return False
        share.used += size
        return True

    def give_back(self, share: Share, size: int, buffer: bytearray | None) -> None:
        """Return `size` bytes to the budget, and the buffer for others to use unless it is None."""
        if buffer is not None and size >= REUSED and self._spare + len(buffer) <= SPARE_BYTES:
            self._spare += len(buffer)
            self._spares.setdefault(len(buffer), []).append(buffer)
        if size > SMALL:
            share.used -= size
            self.budget.used -= size
            # Each asks again, and waits again when there is still no room; no more than are here now, so this ends.
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()

    def wait(self, again: Callable[[], None]) -> None:
        """Call `again` once, when something has been given back."""
        self._waiting.append(again)


class Share:
    """What one session takes."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0
