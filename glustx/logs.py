"""Logging of the daemons and the command line: one handler on stderr or a file, as text or
as one JSON object a line."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class LogFile(logging.FileHandler):
    """A log file that can be opened anew, after somebody has moved it away."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        """Go on in a file of the same name; OSError, and in the old one, when that cannot be opened."""
        fresh = self._open()
        self.acquire()
        try:
            if self.stream is not None:  # it never is: only `delay` leaves the file closed
                self.stream.close()
            self.stream = fresh
        finally:
            self.release()


def set_up(level: str, form: str = "text", file: Path | None = None, utc: bool = False) -> logging.Handler:
    """Send what `glustx` logs at `level` and above to stderr, or to a file; return the handler.

    Args:
        form: one of FORMATS.
        file: appended to; OSError when it cannot be opened.
        utc: the text form tells UTC instead of local time.
    """
    handler: logging.Handler = logging.StreamHandler() if file is None else LogFile(file)
    handler.setFormatter(_Json() if form == "json" else _Text(utc))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("glustx").setLevel(level.upper())
    return handler


class _Text(logging.Formatter):
    default_msec_format = "%s.%03d"

    def __init__(self, utc: bool) -> None:
        zone = " +0000" if utc else ""
        super().__init__(f"%(asctime)s{zone} %(levelname)s %(name)s[%(process)d]: %(message)s")
        if utc:
            self.converter = time.gmtime


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line: dict[str, Any] = {
            "time": stamp,
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
