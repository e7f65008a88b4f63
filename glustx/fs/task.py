"""The score of a command that works on many files: what was done, what was skipped, what failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from glustx.fs.copying import Moved
from glustx.fs.steps import StepError


class Report(msgspec.Struct):
    """What became of a copy, a move or a removal.

    `bytes_copied` went through this process, `bytes_offloaded` were copied by the brick, `bytes_holes` stayed holes.
    `skipped` were there already. `failures` are sentences.
    """

    verb: str
    files: int = 0
    directories: int = 0
    links: int = 0
    skipped: int = 0
    bytes_copied: int = 0
    bytes_offloaded: int = 0
    bytes_holes: int = 0
    seconds: float = 0.0
    failures: list[str] = []


class Task:
    """Keeps the score of one command: what was done, and what failed.

    Args:
        verb: cp, mv or rm.
        told: hears of each failure as it comes.
    """

    def __init__(self, verb: str, told: Callable[[StepError], None] | None = None) -> None:
        self.report = Report(verb)
        self._told = told
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def failed(self, error: StepError) -> None:
        """Note a failure, from any thread; one that means that the volume is lost is raised."""
        if error.lost:
            raise error
        with self._lock:
            self.report.failures.append(str(error))
            if self._told is not None:
                self._told(error)

    def count(self, files: int = 0, directories: int = 0, links: int = 0, skipped: int = 0) -> None:
        """Note what was done, from any thread."""
        with self._lock:
            self.report.files += files
            self.report.directories += directories
            self.report.links += links
            self.report.skipped += skipped

    def close(self, moved: Moved | None = None) -> Report:
        """Return the report."""
        if moved is not None:
            self.report.bytes_copied = moved.copied
            self.report.bytes_offloaded = moved.offloaded
            self.report.bytes_holes = moved.holes
        self.report.seconds = time.monotonic() - self._began
        return self.report
