"""What a unit has done: commands, bytes and time, by command and in sum, and what its brick refused."""

from __future__ import annotations

import logging

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
        errors: commands that did not end GOOD.
    """

    __slots__ = (
        "by_command",
        "errors",
        "read_bytes",
        "read_seconds",
        "reads",
        "write_bytes",
        "write_seconds",
        "writes",
    )

    def __init__(self) -> None:
        self.by_command: dict[str, list[float]] = {}
        self.reads = self.writes = self.read_bytes = self.write_bytes = self.errors = 0
        self.read_seconds = self.write_seconds = 0.0

    def count(self, command: Command | None, task: Task, result: Result, seconds: float) -> None:
        """Count a command that has ended."""
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

    def failed(self, task: Task, error: FopError) -> None:
        """A fop of a command has failed: operators want the reason that an initiator is not told."""
        unit = task.unit
        where = f"{unit.backing.volume}:{unit.backing.path}" if unit is not None else "?"
        log.warning("%s: opcode %#04x of %s failed: %s", where, task.cdb[0], task.nexus.initiator, error)
