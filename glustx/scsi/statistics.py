"""What a unit has done: commands, bytes and time, by command and in sum, and what its brick refused."""

from __future__ import annotations

import errno
import logging
from time import perf_counter

from glustx.errors import FopError
from glustx.scsi.commands import Access, Command
from glustx.scsi.task import GOOD, Result, Task

log = logging.getLogger("glustx.scsi")


class Statistics:
    """Counters of one unit; they only grow.

    Attributes:
        by_command: name -> [commands, seconds].
        reads, writes: commands that move data.
        read_bytes, write_bytes: data-in and data-out of those.
        read_seconds, write_seconds: from the arrival of their data to their end.
        errors: commands that did not end GOOD.
        refused: errno -> fops of the brick that failed with it.
    """

    __slots__ = (
        "_idle",
        "_idle_since",
        "_under_way",
        "by_command",
        "errors",
        "read_bytes",
        "read_seconds",
        "reads",
        "refused",
        "write_bytes",
        "write_seconds",
        "writes",
    )

    def __init__(self) -> None:
        self.by_command: dict[str, list[float]] = {}
        self.refused: dict[int, int] = {}
        self.reads = self.writes = self.read_bytes = self.write_bytes = self.errors = 0
        self.read_seconds = self.write_seconds = 0.0
        self._under_way = 0
        self._idle = 0.0
        self._idle_since = perf_counter()

    def begin(self) -> float:
        """A command begins; returns when, for `count`."""
        now = perf_counter()
        if not self._under_way:
            self._idle += now - self._idle_since
        self._under_way += 1
        return now

    def count(self, command: Command | None, task: Task, result: Result | None, started: float) -> None:
        """Count a command that has ended; without a result it was cancelled."""
        now = perf_counter()
        self._under_way -= 1
        if not self._under_way:
            self._idle_since = now
        if result is None:
            return
        seconds = now - started
        name = command.name if command is not None else "unknown"
        row = self.by_command.get(name)
        if row is None:
            row = self.by_command[name] = [0, 0.0]
        row[0] += 1
        row[1] += seconds
        if result.status != GOOD:
            self.errors += 1
        if command is None or command.extent is None:
            return
        if command.access is Access.READ:
            self.reads += 1
            self.read_seconds += seconds
            self.read_bytes += result.length
        elif command.access is Access.WRITE:
            self.writes += 1
            self.write_seconds += seconds
            self.write_bytes += len(task.data)

    def totals(self) -> tuple[int, ...]:
        """Return reads, writes, bytes read and written, and the milliseconds spent on reads, on writes and idle."""
        idle = self._idle if self._under_way else self._idle + perf_counter() - self._idle_since
        milliseconds = (int(seconds * 1000) for seconds in (self.read_seconds, self.write_seconds, idle))
        return self.reads, self.writes, self.read_bytes, self.write_bytes, *milliseconds

    def failed(self, task: Task, error: FopError) -> None:
        """A fop of a command has failed: operators want the reason that an initiator is not told."""
        self.refused[error.errno] = self.refused.get(error.errno, 0) + 1
        unit = task.unit
        where = f"{unit.backing.volume}:{unit.backing.path}" if unit is not None else "?"
        log.warning("%s: opcode %#04x of %s failed: %s", where, task.cdb[0], task.nexus.initiator, str(error))
        if unit is not None and error.errno == errno.EIO:
            unit.exceptions.failed()
