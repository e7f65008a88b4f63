"""features/read-only: refuses every fop that changes something, whatever its name and through whatever fd.

Internal clients, whose pid is negative, may change a read-only volume, as in stock. Unlike stock it goes by effects, so
that ZEROFILL, DISCARD and COPY_FILE_RANGE are changes as well.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Coroutine
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, WRITES_DATA, Fop
from glustx.options import OptionSet, option
from glustx.xlator import Xlator, handles

CHANGES = WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC


class ReadOnly(Xlator):
    """Answers EROFS to changes."""

    class Options(OptionSet):
        """Options of features/read-only."""

        read_only: bool = option(False, "Refuse all changes (EROFS).", live=True)

    @handles(CHANGES)
    def changed(self, req: Fop) -> Coroutine[Any, Any, Any]:
        """Refuse a change; an XATTROP that adds nothing is none."""
        if not self.options.read_only or req.caller.pid < 0:
            return self.child(req)
        return self.child(req) if idle(req) else refuse(self, req)

    async def open(self, req: fops.Open) -> fops.Done:
        """Refuse an fd that is good for writing."""
        if self.options.read_only and writes(req.flags) and req.caller.pid >= 0:
            await refuse(self, req)
        done: fops.Done = await self.child(req)
        return done


def writes(flags: int) -> bool:
    """Tell whether flags of an OPEN ask for writing."""
    return bool(flags & _WRITING)


def idle(req: Fop) -> bool:
    """Tell whether a fop is an XATTROP whose deltas are all zero: it only asks."""
    if not isinstance(req, (fops.Xattrop, fops.Fxattrop)):
        return False
    return not any(any(value) if isinstance(value, bytes) else value for value in req.xattrs.values())


async def refuse(xlator: Xlator, req: Fop, why: str = "the volume is read-only") -> Any:
    """Raise FopError EROFS."""
    place = next(iter(req.targets()), "")
    raise FopError(errno.EROFS, f"{xlator.graph.surroundings.host}: {req.name} {place}: {why}")
