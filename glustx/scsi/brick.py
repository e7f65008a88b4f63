"""What a graph tells of the brick at its other end."""

from __future__ import annotations

import logging
from typing import Any

from glustx.errors import FopError
from glustx.fops import Getxattr, Statfs
from glustx.values import ROOT_LOC, Caller, Loc
from glustx.xdata import LIMITS
from glustx.xlator import Wind, Xlator

log = logging.getLogger("glustx.scsi")


def over_network(xlator: Xlator) -> bool:
    """Tell whether what a translator passes down goes over a network."""
    return xlator.type_name == "protocol/client" or any(map(over_network, xlator.subvolumes))


async def limits_of(child: Wind, loc: Loc, caller: Caller) -> dict[str, Any]:
    """Return the limits of a graph (see `Xlator.limits`).

    A brick over a network is asked for its own; one that does not know the question tells its block size.

    Args:
        child: the graph.
        loc: a file on it.
        caller: who asks.
    """
    known = child.xlator.limits()
    if "block_size" in known:
        return known
    try:
        text = (await child(Getxattr(ROOT_LOC, LIMITS, caller=caller))).xattrs.text(LIMITS)
        pairs = (word.partition("=") for word in text.split())
        return known | {key: int(value) if value.isdigit() else value for key, _, value in pairs}
    except FopError:
        pass
    try:
        return known | {"block_size": (await child(Statfs(loc=loc, caller=caller))).statfs.bsize}
    except FopError as error:
        log.warning("the block size of %r cannot be asked: %s", child.xlator, error)
        return known
