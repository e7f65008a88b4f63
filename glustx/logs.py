"""Logging of the daemons and the command line: one handler on stderr, as text or as one JSON object a line."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


def set_up(level: str, form: str = "text") -> None:
    """Send what `glustx` logs at `level` and above to stderr; `form` is one of FORMATS."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("glustx").setLevel(level.upper())


class _Text(logging.Formatter):
    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s[%(process)d]: %(message)s")


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
