"""What a data fop touches, for mandatory locking: which range of which file it reads or changes, by its effects. Pure.

Stock asks READ, WRITE, TRUNCATE, FTRUNCATE, DISCARD, ZEROFILL and OPEN with O_TRUNC, and lets FALLOCATE,
COPY_FILE_RANGE, RCHECKSUM, and CREATE that empties a file, pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from glustx import fops
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.lock_ranges import LAST
from glustx.values import F_WRLCK, Loc
from glustx.xdata import LOCK_MODE, Xdata

OFF, FILE, FORCED, OPTIMAL = "off", "file", "forced", "optimal"
MANDATORY = 1  # in LK's xdata, and in the flags of an ActiveLock
_SGID, _XGRP = 0o2000, 0o010
_O_APPEND, _O_NONBLOCK = 0o2000, 0o4000


class Touch(NamedTuple):
    """Bytes `first` to `last` of a file, read or changed; `whole` when the file is emptied, which no lock may see."""

    gfid: bytes
    first: int
    last: int
    write: bool
    may_wait: bool
    appends: bool = False
    whole: bool = False


def obeys(cls: type[Fop]) -> bool:
    """Tell whether fops of a class touch data by ranges."""
    if cls in (fops.Truncate, fops.Ftruncate):
        return True
    return cls.range is not Fop.range and cls is not fops.Put


def empties(req: Any) -> Loc | None:
    """Return what a fop empties as a whole, if it does: by gfid, or by name where it is looked up by that."""
    if isinstance(req, fops.Open):
        return req.loc if req.flags & fops.O_TRUNC else None
    if isinstance(req, fops.Create):
        return Loc(pargfid=req.loc.pargfid, name=req.loc.name) if req.flags & fops.O_TRUNC else None
    return None


def touches(req: Any) -> list[Touch]:
    """Return what a fop of a class that `obeys` touches."""
    if isinstance(req, fops.Truncate):
        return [Touch(req.loc.gfid, req.offset, LAST, True, False)]
    if isinstance(req, fops.Ftruncate):
        return [_touch(req.fd, req.offset, LAST + 1 - req.offset, True)]
    if isinstance(req, fops.CopyFileRange):
        return [_touch(req.fd_in, req.offset_in, req.size, False), _touch(req.fd_out, req.offset_out, req.size, True)]
    offset, size = req.range()
    write = bool(req.effects & (fops.WRITES_DATA | fops.MAY_GROW))
    return [_touch(req.fd, offset, size, write)] if size else []


def _touch(fd: Fd, offset: int, size: int, write: bool) -> Touch:
    appends = write and bool(fd.flags & _O_APPEND)
    last = LAST if appends else min(offset + size - 1, LAST)
    return Touch(fd.gfid, 0 if appends else offset, last, write, not fd.flags & _O_NONBLOCK, appends)


def forbids(lock: Any, touch: Touch, owner: tuple[str, bytes], mode: str) -> bool:
    """Tell whether a held posix lock forbids what `owner` is about to do."""
    if mode == OPTIMAL and not lock.mandatory:
        return False
    if touch.whole:
        return True
    overlaps = lock.first <= touch.last and lock.last >= touch.first
    return bool(overlaps and lock.owner != owner and (touch.write or lock.type == F_WRLCK))


def marked(mode: int) -> bool:
    """Tell whether a file's mode says that its locks are mandatory, as Linux had it: setgid without group execute."""
    return mode & (_SGID | _XGRP) == _SGID


def is_mandatory(asked: Xdata) -> bool:
    """Tell whether the xdata of an LK asks for a mandatory lock."""
    return bool(asked.number(LOCK_MODE) & MANDATORY)
