"""Warnings about peers that do not behave: for each host one a minute, with the number of those that were left out.

Whoever may connect can be wrong as often as it likes; the log must not grow as fast.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

WINDOW = 60.0
HOSTS = 1024


class Complaints:
    """What was said of whom.

    Args:
        log: where it is said.
        clock: monotonic seconds.
        window: seconds in which a host is complained of once.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float], window: float = WINDOW) -> None:
        self._log = log
        self._clock = clock
        self._window = window
        self._hosts: dict[str, tuple[float, int]] = {}  # when a host was last complained of, and what was left out
        self.total = 0

    def say(self, peer: str, text: str) -> None:
        """Warn of a peer (`host:port`, or `unix:path`), or count it when its host was warned of a moment ago."""
        self.total += 1
        host = peer if peer.startswith("unix:") else peer.rpartition(":")[0]
        now = self._clock()
        since, left_out = self._hosts.pop(host, (now - self._window, 0))
        if now - since < self._window:
            self._hosts[host] = (since, left_out + 1)
            return
        more = f" ({left_out} more such warnings of {host} since the last one)" if left_out else ""
        self._log.warning("%s: %s%s", peer, text, more)
        self._hosts[host] = (now, 0)
        if len(self._hosts) > HOSTS:
            self._tell(next(iter(self._hosts)))

    def flush(self) -> None:
        """Tell what was left out and not told yet, and forget all hosts."""
        for host in list(self._hosts):
            self._tell(host)

    def _tell(self, host: str) -> None:
        _, left_out = self._hosts.pop(host)
        if left_out:
            self._log.warning("%s: %d more such warnings", host, left_out)
