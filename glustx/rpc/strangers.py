"""Connections to a server that have not logged in (SETVOLUME, iSCSI's login): so many may be, and stay for so long.

A client logs in at once. Whoever connects and then says nothing, half of something, or something else than that would
otherwise hold a descriptor for ever. When there are too many the one that has been here longest goes, so that
newcomers, among them the clients, still come in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from glustx.runtime import Reactor, TimerHandle


class Stranger(Protocol):
    """A connection."""

    def turn_away(self, why: str) -> None:
        """Close it."""


class Strangers:
    """Who has come and not logged in yet.

    Args:
        reactor: gives the reactor of the graph.
        limits: gives how many there may be, and for how many seconds (0: without end).
        lack: what they have not done, for messages.
    """

    def __init__(
        self, reactor: Callable[[], Reactor], limits: Callable[[], tuple[int, float]], lack: str = "logged in"
    ) -> None:
        self.lack = lack
        self._reactor = reactor
        self._limits = limits
        self._since: dict[Stranger, float] = {}  # in order of arrival
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, stranger: Stranger) -> None:
        """Somebody has connected."""
        most, patience = self._limits()
        self._since[stranger] = self._reactor().time()
        while len(self._since) > most:
            first = next(iter(self._since))
            del self._since[first]
            first.turn_away(f"{most} others have not {self.lack} either")
        if self._timer is None and patience:
            self._timer = self._reactor().call_later(patience, self._look)

    def leave(self, stranger: Stranger) -> None:
        """It has logged in or gone."""
        self._since.pop(stranger, None)

    def _look(self) -> None:
        self._timer = None
        patience = self._limits()[1]
        if not patience:
            return
        now = self._reactor().time()
        while self._since:
            first, since = next(iter(self._since.items()))
            if now - since < patience:
                self._timer = self._reactor().call_later(patience - (now - since), self._look)
                return
            del self._since[first]
            first.turn_away(f"it has not {self.lack} for {patience:g} s")

    def close(self) -> None:
        """No look follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._since.clear()
