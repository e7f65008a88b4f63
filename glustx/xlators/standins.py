"""Translator types of stock volfiles that glustx does not have: those that may be passed through, and those that must
not be.

A stand-in changes nothing, is listed when the graph starts, and shows in status; so nobody is misled about what
protects the data. A type whose absence would lose or misplace data is refused instead.
"""

from __future__ import annotations

from glustx.errors import GraphError, OptionError
from glustx.options import OptionSet, parse_bool
from glustx.volfile import VolumeSpec
from glustx.xlator import Xlator

STAND_INS = frozenset(
    {
        "cluster/distribute",
        "features/access-control",
        "features/arbiter",
        "features/barrier",
        "features/bitrot-stub",
        "features/changelog",
        "features/index",
        "features/leases",
        "features/marker",
        "features/quota",
        "features/read-only",
        "features/selinux",
        "features/sdfs",
        "features/trash",
        "features/upcall",
        "features/worm",
        "performance/io-cache",
        "performance/md-cache",
        "performance/nl-cache",
        "performance/open-behind",
        "performance/quick-read",
        "performance/read-ahead",
        "performance/readdir-ahead",
        "performance/write-behind",
        "system/posix-acl",
    }
)

REFUSED = {
    "cluster/replicate": "without replication a write would reach one copy only",
    "cluster/disperse": "without erasure coding the bricks hold no readable data",
    "features/shard": "without sharding only the first block of a file would be seen",
}

# Options under which a type may not be passed through: someone relies on what it does.
RELIED_ON = {
    "features/quota": ("server-quota",),
    "features/marker": ("quota", "inode-quota", "xtime"),
    "features/read-only": ("read-only",),
    "features/worm": ("worm", "worm-file-level"),
    "features/selinux": (),
}


def refuse_relied_on(volume: VolumeSpec) -> None:
    """Refuse a stand-in for a volume with an option on that someone relies on: GraphError, or OptionError when the
    option's text is neither on nor off."""
    for key in RELIED_ON.get(volume.type, ()):
        text = volume.options.get(key)
        try:
            on = text is not None and parse_bool(text)
        except ValueError as error:
            raise OptionError(volume.name, key, str(error)) from None
        if on:
            raise GraphError(f"{volume.type} ({volume.name}) has {key} on, which is not offered; turn it off")


class StandIn(Xlator):
    """Passes every fop and event through."""

    stand_in = True

    class Options(OptionSet):
        """Takes any option, uses none."""
