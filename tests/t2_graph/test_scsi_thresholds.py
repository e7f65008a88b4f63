"""Soft thresholds of thin provisioning: who is told, when, and what ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glustx.scsi.backing import Usage
from glustx.scsi.sense import UNIT_ATTENTION
from glustx.scsi.task import CHECK_CONDITION, GOOD
from tests.scsi_kit import Rig, cdb_10

MIB = 1 << 20
pytestmark = pytest.mark.logs("the threshold of .* MiB .* is reached")
READY = bytes(6)


class Space:
    """What the volume of a rig is said to have."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.used, self.size, self.free = 0, 1000 * MIB, 1000 * MIB
        self.asked = 0
        rig.unit.backing.usage = self.usage  # type: ignore[method-assign]

    async def usage(self) -> Usage:
        self.asked += 1
        return Usage(self.used, self.size, self.free)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(size=64 * MIB, pool_avail_threshold=100 * MIB, used_threshold=20 * MIB)
    yield rig
    rig.close()


def told(rig: Rig, nexus: object = None) -> int | None:
    """Return the INFORMATION of the threshold's unit attention, None when there is none."""
    result = rig.run(READY, nexus=nexus)
    if result.status == GOOD:
        return None
    assert result.status == CHECK_CONDITION and result.sense is not None
    assert (result.sense.key, result.sense.asc, result.sense.ascq) == (UNIT_ATTENTION, 0x38, 0x07)
    return result.sense.information


def test_every_nexus_is_told_of_a_threshold_again_and_again_while_it_lasts(rig: Rig) -> None:
    space = Space(rig)
    other = rig.login("iqn.2026-12.org.example:two,i,0x000000000002")
    rig.reactor.advance(11)
    assert told(rig) is None
    space.used = 20 * MIB
    rig.reactor.advance(10)
    assert told(rig) == told(rig, other) == 0x18  # the second descriptor
    assert told(rig) is None
    rig.reactor.advance(290)
    assert told(rig) is None
    rig.reactor.advance(20)
    assert told(rig) == told(rig, other) == 0x18
    assert rig.unit.exceptions.threshold


def test_what_is_over_is_not_told_any_more(rig: Rig) -> None:
    space = Space(rig)
    space.free = 100 * MIB + 1
    rig.reactor.advance(10)
    assert rig.unit in rig.nexus.attentions
    space.free = 101 * MIB
    rig.reactor.advance(10)
    assert told(rig) is None
    assert not rig.unit.exceptions.threshold
    space.free = 99 * MIB
    rig.reactor.advance(10)
    assert told(rig) == 0x20


def test_writes_that_may_have_reached_a_threshold_are_followed_by_a_look(rig: Rig) -> None:
    space = Space(rig)
    rig.reactor.advance(10)
    asked = space.asked
    space.used = 20 * MIB
    for lba in range(0, 19 * 2048, 2048):
        rig.good(cdb_10(0x2A, lba, 2048), bytes(MIB))
    assert space.asked == asked
    for lba in range(0, 4096, 2048):
        rig.run(cdb_10(0x2A, lba, 2048), bytes(MIB))
    assert space.asked == asked + 1
    assert told(rig) == 0x18


def test_the_mode_pages_decide_who_hears_of_it(rig: Rig) -> None:
    space = Space(rig)
    other = rig.login("iqn.2026-12.org.example:two,i,0x000000000002")
    space.used = 30 * MIB
    rig.unit.modes.single_attention = True
    rig.reactor.advance(10)
    assert told(rig) == 0x18
    assert told(rig, other) is None
    rig.unit.modes.thin_attentions = False
    rig.reactor.advance(310)
    assert told(rig) is None and told(rig, other) is None
    rig.unit.modes.thresholds = ()
    asked = space.asked
    rig.reactor.advance(10)
    rig.reactor.advance(30)
    assert space.asked == asked + 1  # once more, to find that nothing is met
    assert rig.unit.thresholds.met is None
