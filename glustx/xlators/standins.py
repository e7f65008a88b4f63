"""Translator types of stock volfiles that glustx does not have: those that may be passed through, and those that must
not be.

A stand-in changes nothing, is listed when the graph starts, and shows in status; so nobody is misled about what
protects the data. A type whose absence would lose or misplace data is refused instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from glustx.errors import GraphError, OptionError
from glustx.options import OptionSet, parse_bool
from glustx.volfile import VolumeSpec
from glustx.xlator import Event, Xlator

if TYPE_CHECKING:
    from glustx.graph import Graph

STAND_INS = frozenset(
    {
        "cluster/distribute",
        "cluster/nufa",
        "cluster/switch",
        "features/arbiter",
        "features/barrier",
        "features/bitrot-stub",
        "features/changelog",
        "features/index",
        "features/marker",
        "features/namespace",
        "features/quiesce",
        "features/quota",
        "features/sdfs",
        "features/snapview-client",
        "features/trash",
        "features/upcall",
        "performance/io-cache",
        "performance/md-cache",
        "performance/nl-cache",
        "performance/read-ahead",
        "performance/readdir-ahead",
        "performance/write-behind",
    }
)

REFUSED = {
    "cluster/replicate": "without replication a write would reach one copy only",
    "cluster/disperse": "without erasure coding the bricks hold no readable data",
    "features/cdc": "without decompression what the brick compresses would be read as it came",
    "features/cloudsync": "without the cloud, files whose data has been moved there would read as empty",
    "features/shard": "without sharding only the first block of a file would be seen",
}

# Types that place files on several subvolumes: with one there is nothing to place.
PLACING = frozenset({"cluster/distribute", "cluster/nufa", "cluster/switch"})

# Types whose further subvolumes hold something that is not offered, and what then is not seen.
FIRST_ONLY = {"features/snapview-client": "snapshots"}

# Options under which a type may not be passed through: someone relies on what it does.
RELIED_ON = {
    "features/barrier": ("barrier",),
    "features/bitrot-stub": ("bitrot",),
    "features/changelog": ("changelog",),
    "features/quota": ("server-quota",),
    "features/trash": ("trash",),
    "features/upcall": ("cache-invalidation",),
    "features/marker": ("quota", "inode-quota", "xtime"),
}


def refuse_relied_on(volume: VolumeSpec) -> None:
    """Refuse a stand-in for a volume that needs the real one: GraphError.

    It has an option on that someone relies on (OptionError when the option's text is neither on nor off), or more
    subvolumes than can be passed through to.
    """
    count = len(volume.subvolumes)
    if count > 1 and volume.type in PLACING:
        raise GraphError(f"{volume.type} ({volume.name}) has {count} subvolumes; only volumes of one are offered")
    if count != 1 and volume.type not in FIRST_ONLY:
        raise GraphError(f"{volume.type} ({volume.name}) has {count} subvolumes, not 1")
    for key in RELIED_ON.get(volume.type, ()):
        text = volume.options.get(key)
        try:
            on = text is not None and parse_bool(text)
        except ValueError as error:
            raise OptionError(volume.name, key, str(error)) from None
        if on:
            raise GraphError(f"{volume.type} ({volume.name}) has {key} on, which is not offered; turn it off")


def note(volume: VolumeSpec) -> str:
    """Return the sentence that lists a stand-in when its graph starts."""
    text = f"{volume.type} ({volume.name}) is a stand-in that passes everything through"
    unseen = FIRST_ONLY.get(volume.type)
    return f"{text}; {unseen} are not seen" if unseen else text


class StandIn(Xlator):
    """Passes every fop to its first subvolume, and that one's events up."""

    stand_in = True
    subvolume_count: ClassVar[tuple[int, int | None]] = (1, None)

    class Options(OptionSet):
        """Takes any option, uses none."""

    def wire(self, graph: Graph) -> None:
        """Resolve every fop to the first subvolume's."""
        super().wire(graph)
        self.table.update(self.subvolumes[0].table)

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Pass events on, but not those of further subvolumes."""
        if event.goes_down or source is self.subvolumes[0]:
            super().notify(event, source, data)

    def statedump(self) -> dict[str, Any]:
        """That it is none of its type."""
        return {"stand_in": True}

    def limits(self) -> dict[str, Any]:
        """Return the first subvolume's."""
        return self.subvolumes[0].limits()
