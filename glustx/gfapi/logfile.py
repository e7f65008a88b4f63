"""A volume's log file, as libgfapi has it: what `glustx` logs, from a level up, goes to a file while it is mounted."""

from __future__ import annotations

import logging
import os

from glustx.gfapi.exceptions import LogFileError

# GlusterFS counts from 0 (nothing) over 4 (errors), 5 (warnings) and 7 (what happens) to 9 (everything).
_LEVELS = (
    logging.CRITICAL + 1, logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR,
    logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG, logging.DEBUG,
)  # fmt: skip
_log = logging.getLogger("glustx")


class LogFile:
    """Where a volume logs.

    Args:
        path: the file; None or `/dev/null` leaves the log to the program's own `logging`.
        level: GlusterFS's, 0 to 9.
    """

    def __init__(self, path: str | os.PathLike[str] | None, level: int) -> None:
        if not 0 <= level < len(_LEVELS):
            raise ValueError(f"log level {level} is not between 0 and {len(_LEVELS) - 1}")
        self.path = path
        self.level = level
        self._handler: logging.Handler | None = None

    def begin(self) -> None:
        """Begin to write. LogFileError when the file cannot be opened. A second call does nothing."""
        if self._handler is not None or self.path in (None, "/dev/null"):
            return
        assert self.path is not None
        try:
            handler = logging.FileHandler(self.path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise LogFileError(error.errno, f"log file: {error.strerror}", os.fspath(self.path)) from None
        handler.setLevel(_LEVELS[self.level])
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handler = handler
        _log.addHandler(handler)
        if _log.getEffectiveLevel() > handler.level:
            _log.setLevel(handler.level)

    def end(self) -> None:
        """Close the file. A second call does nothing."""
        handler, self._handler = self._handler, None
        if handler is not None:
            _log.removeHandler(handler)
            handler.close()
