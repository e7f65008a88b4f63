"""The geometry of a unit is its brick's, also over a network; options win."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from glustx.fops import Fop
from glustx.scsi.backing import Backing
from glustx.scsi.config import LunConfig
from glustx.scsi.limits import BlockLimits
from glustx.xlator import Wind
from tests.scsi_kit import MEMORY, Rig


def posix(folder: Path) -> str:
    return f"volume m\n type storage/posix\n option directory {folder}\nend-volume\n"


class Far:
    """A graph that knows nothing of its brick, and passes all to it."""

    class Ignorant:
        type_name = "protocol/client"
        subvolumes: tuple[Any, ...] = ()

        def limits(self) -> dict[str, Any]:
            return {}

    def __init__(self, rig: Rig) -> None:
        self.xlator = self.Ignorant()
        self.top = rig.graph.top

    def __call__(self, req: Fop) -> Any:
        return self.top(req)


def test_a_brick_that_is_far_tells_its_limits(tmp_path: Path) -> None:
    rig = Rig(posix(tmp_path))
    try:
        near = rig.unit.backing.limits
        assert near["block_size"] == os.statvfs(tmp_path).f_frsize
        backing = rig.reactor.wait(Backing.open(cast(Wind, Far(rig)), "/disk", "m"))
        assert backing.limits == near and backing.remote and not rig.unit.backing.remote
        rig.reactor.wait(backing.close())
    finally:
        rig.close()


def test_a_brick_that_does_not_know_the_question_tells_its_block_size() -> None:
    rig = Rig(MEMORY)
    try:
        near = rig.unit.backing.limits
        backing = rig.reactor.wait(Backing.open(cast(Wind, Far(rig)), "/disk", "m"))
        assert backing.limits == {"block_size": near["block_size"]}
        rig.reactor.wait(backing.close())
    finally:
        rig.close()


@pytest.mark.parametrize(
    ("options", "told", "exponent", "aligned", "granularity"),
    [
        ({}, {"block_size": 4096}, 3, 0, 8),
        ({"block_size": 4096}, {"block_size": 4096}, 0, 0, 1),
        ({"block_size": 4096}, {"block_size": 512}, 0, 0, 1),
        ({}, {"block_size": 65536}, 7, 0, 128),
        ({"pblocksize": 512}, {"block_size": 4096}, 0, 0, 1),
        ({"pblocksize": 4096, "pblockoffset": 3584}, {"block_size": 512}, 3, 7, 8),
        ({"ublocksize": 65536}, {"block_size": 4096}, 3, 0, 128),
        ({}, {"block_size": 3000}, 3, 0, 8),
        ({}, {"block_size": "nonsense"}, 3, 0, 8),
        ({}, {"block_size": -4096}, 3, 0, 8),
        ({}, {}, 3, 0, 8),
    ],
)
def test_options_win_over_what_the_brick_tells(
    options: dict[str, int], told: dict[str, Any], exponent: int, aligned: int, granularity: int
) -> None:
    rig = Rig()
    try:
        rig.unit.backing.limits = told
        rig.unit.backing.blksize = 0
        limits = BlockLimits.of(LunConfig(path="/disk", **options), rig.unit.backing)  # type: ignore[arg-type]
        assert (limits.physical_exponent, limits.lowest_aligned) == (exponent, aligned)
        assert limits.unmap_granularity == granularity
    finally:
        rig.close()
