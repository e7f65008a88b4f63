"""Fop counts for every translator of a brick: a debug/io-stats above each, and what a statedump says of them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from glustx import volfile
from glustx.volfile import Volfile, VolumeSpec

_STATS = "debug/io-stats"
_SERVER = "protocol/server"
_SUFFIX = "-stats"
_COUNTING = {"count-fop-hits": "on", "latency-measurement": "on"}


class Layer(msgspec.Struct, frozen=True):
    """One translator of a graph and the fops that reached it, by fop name."""

    name: str
    type: str
    fops: dict[str, int]


def with_counts(text: str) -> str:
    """Return a brick's volfile with a debug/io-stats above each translator, and those that were there counting.

    What clients ask for by name, the volume below protocol/server, stays where it is.
    """
    spec = volfile.parse(text)
    kept = {name for volume in spec.volumes if volume.type == _SERVER for name in volume.subvolumes}
    above: dict[str, str] = {}
    volumes: list[VolumeSpec] = []
    for volume in spec.volumes:
        below = tuple(above.get(name, name) for name in volume.subvolumes)
        options = {**volume.options, **_COUNTING} if volume.type == _STATS else volume.options
        volumes.append(VolumeSpec(volume.name, volume.type, options, below))
        if volume.type not in (_STATS, _SERVER) and volume.name not in kept:
            above[volume.name] = volume.name + _SUFFIX
            volumes.append(VolumeSpec(volume.name + _SUFFIX, _STATS, dict(_COUNTING), (volume.name,)))
    return volfile.format(Volfile(tuple(volumes), spec.source))


def layers(statedump: str) -> list[Layer]:
    """Return the translators of a statedump from the top down, each with what its own io-stats has counted.

    A debug/io-stats that stands for itself has its own counts; translators without counts have none.
    """
    sections = list(_sections(statedump))
    counts = {name: fops for _, name, fops in sections}
    found: list[Layer] = []
    for kind, name, fops in sections:
        if kind == _STATS and name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX) in counts:
            continue
        found.append(Layer(name, kind, counts.get(name + _SUFFIX, fops)))
    return found


def _sections(statedump: str) -> Iterator[tuple[str, str, dict[str, int]]]:
    kind = name = ""
    fops: dict[str, int] = {}
    for line in [*statedump.splitlines(), "["]:
        if line.startswith("["):
            if name:
                yield kind, name, fops
            kind, _, name = line[1:].removesuffix("]").partition(".")
            fops = {}
        elif line.startswith("fop.") and ".count=" in line:
            fop, _, count = line.removeprefix("fop.").partition(".count=")
            fops[fop] = int(count)
