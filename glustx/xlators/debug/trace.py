"""debug/trace: two log lines for every fop, one as it goes down and one as it comes back.

The lines show arguments and attributes; of data, xattr values and xdata values they show sizes and names only. What is
left out by the options passes at the price of a look into a set.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import DirEntry, Fop, Reply
from glustx.inode import Fd
from glustx.options import OptionSet, option
from glustx.values import Caller, Flock, Iatt, Loc, gfid_text
from glustx.xdata import Xdata
from glustx.xlator import Xlator, handles
from glustx.xlators.debug.oplist import parse_ops

log = logging.getLogger("glustx.trace")

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


class Trace(Xlator):
    """Logs fops on their way in and out."""

    class Options(OptionSet):
        """Options of debug/trace."""

        include_ops: str = option("", "Fops to log, a comma list; empty means all.", live=True)
        exclude_ops: str = option("", "Fops not to log, a comma list; only without include-ops.", live=True)
        log_level: str = option("INFO", "Level of the lines.", key="force-log-level", choices=tuple(_LEVELS), live=True)
        accepted = ("log-file", "log-history", "history-size")

    def check_options(self, options: Any) -> None:
        """Refuse names that are no fop's."""
        self._chosen(options)

    def options_changed(self, old: Any) -> None:
        """Follow the lists."""
        self._ops = self._chosen(self.options)

    async def start(self) -> None:
        """Resolve the lists."""
        self._numbers = itertools.count(1)
        self._ops = self._chosen(self.options)

    def _chosen(self, options: Any) -> frozenset[str]:
        include = parse_ops(self.name, "include-ops", options.include_ops)
        exclude = parse_ops(self.name, "exclude-ops", options.exclude_ops)
        return include or frozenset(fops.FOPS) - exclude

    @handles(fops.ALL_EFFECTS)
    async def traced(self, req: Fop) -> Reply:
        """Log the fop and its answer."""
        level = _LEVELS[self.options.log_level]
        if req.name not in self._ops or not log.isEnabledFor(level):
            reply: Reply = await self.child(req)
            return reply
        number = next(self._numbers)
        log.log(level, "%s: %d: %s(%s)", self.name, number, req.name, _fields(req))
        try:
            reply = await self.child(req)
        except FopError as error:
            log.log(level, "%s: %d: %s => %s%s", self.name, number, req.name, error, _tail(error.xdata))
            raise
        except BaseException as error:
            log.log(level, "%s: %d: %s => %s", self.name, number, req.name, type(error).__name__)
            raise
        log.log(level, "%s: %d: %s => (%s)", self.name, number, req.name, _fields(reply))
        return reply


def _tail(xdata: Xdata | None) -> str:
    return f" xdata={show(xdata)}" if xdata else ""


def _fields(struct: Fop | Reply) -> str:
    """All fields that say something; the context of a request last."""
    words = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name == "xdata" and not value:
            continue
        if name in ("ctime", "stamp", "deadline") and not value:
            continue
        if name == "data":
            words.append(f"data=<{len(value)} bytes>")
        elif name in ("mode", "umask"):
            words.append(f"{name}={value:#o}")
        else:
            words.append(f"{name}={show(value)}")
    return ", ".join(words)


def show(value: object) -> str:
    """Return a value of a request or reply in a few words; never the contents of data, xattrs or xdata."""
    if isinstance(value, Loc):
        return f"{value} gfid {gfid_text(value.gfid)}" if value.path is not None or value.name else str(value)
    if isinstance(value, Fd):
        return repr(value)
    if isinstance(value, Iatt):
        return (
            f"{{gfid={gfid_text(value.gfid)}, mode={value.mode:#o}, nlink={value.nlink}, uid={value.uid}, "
            f"gid={value.gid}, size={value.size}, blocks={value.blocks}}}"
        )
    if isinstance(value, Xdata):
        return "{" + ", ".join(key.decode("utf-8", "backslashreplace") for key in value) + "}"
    if isinstance(value, Caller):
        return f"{{pid={value.pid}, uid={value.uid}, gid={value.gid}, lk_owner={value.lk_owner.hex()}}}"
    if isinstance(value, Flock):
        return f"{{type={value.type}, start={value.start}, len={value.len}, lk_owner={value.lk_owner.hex()}}}"
    if isinstance(value, DirEntry):
        return value.name.decode("utf-8", "backslashreplace")
    if isinstance(value, tuple):
        return "[" + ", ".join(show(item) for item in value) + "]"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
