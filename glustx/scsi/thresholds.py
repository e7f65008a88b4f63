"""Soft thresholds of thin provisioning (SBC-4 4.7.3.7): who nears the end of the space is told before a write fails.

They are looked at every ten seconds, and as soon as so much was written that one may have been reached. While one is
met every nexus gets a unit attention, again every five minutes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from glustx.errors import FopError
from glustx.runtime import Tasks, TimerHandle
from glustx.scsi.backing import NEVER, Usage
from glustx.scsi.mode_pages import AVAILABLE, POOL_AVAILABLE, POOL_USED, THRESHOLD_EXPONENT, USED, Threshold
from glustx.scsi.sense import THRESHOLD_REACHED, Attention
from glustx.scsi.task import Nexus

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

INTERVAL = 10.0
REPEAT = 300.0
_LEAST_GROWTH = 4 << 20  # bytes between two looks for the sake of writes


class Thresholds:
    """The thresholds of one unit, which its mode page 1Ch/02h sets.

    Args:
        unit: whose they are.

    Attributes:
        met: the first one that is met, None when none is.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.met: Threshold | None = None
        self._again = 0.0
        self._timer: TimerHandle | None = None
        self._tasks = Tasks(log)

    def start(self) -> None:
        """Begin to look."""
        if self.unit.config.unmap:
            self.unit.backing.grown = self._look
            self._tick()

    async def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self.unit.backing.grown = None
        await self._tasks.stop()

    def told(self, nexus: Nexus) -> None:
        """A nexus has got the unit attention; with SITUA it is the only one."""
        if self.unit.modes.single_attention:
            for other in self.unit.nexuses - {nexus}:
                other.clear_attention(self.unit, THRESHOLD_REACHED)

    def _tick(self) -> None:
        self._timer = self.unit.reactor.call_later(INTERVAL, self._tick)
        self._look()

    def _look(self) -> None:
        if not len(self._tasks) and (self.unit.modes.thresholds or self.met is not None):
            self._tasks.start(self.check())

    async def check(self) -> None:
        """Look at the space now, and raise or clear unit attentions by it."""
        unit = self.unit
        piece = unit.block_size << THRESHOLD_EXPONENT
        try:
            usage = await unit.backing.usage()
        except FopError as error:
            log.debug("%r: how much space there is cannot be asked: %s", unit, error)
            return
        thresholds = unit.modes.thresholds
        rooms = [_room(each, usage, piece) for each in thresholds]
        met = next((each for each, room in zip(thresholds, rooms, strict=True) if room <= 0), None)
        least = min((room for room in rooms if room > 0), default=NEVER)
        unit.backing.notice = unit.backing.fresh + max(least, _LEAST_GROWTH)
        self._set(met)

    def _set(self, met: Threshold | None) -> None:
        unit, now = self.unit, self.unit.reactor.time()
        if met != self.met:
            if met is not None:
                log.warning("%r: %s", unit, _text(met, unit.block_size << THRESHOLD_EXPONENT))
            else:
                log.info("%r: no threshold is reached any more", unit)
            self._again = now
            unit.exceptions.threshold = met is not None
            unit.exceptions.review()
        self.met = met
        if met is None or not unit.modes.thin_attentions:
            for nexus in unit.nexuses:
                nexus.clear_attention(unit, THRESHOLD_REACHED)
        elif now >= self._again:
            self._again = now + REPEAT
            attention: Attention = msgspec.structs.replace(THRESHOLD_REACHED, information=met.offset)
            for nexus in unit.nexuses:
                nexus.clear_attention(unit, THRESHOLD_REACHED)
                nexus.raise_attention(unit, attention)


def _text(threshold: Threshold, piece: int) -> str:
    what = "available" if threshold.resource in (AVAILABLE, POOL_AVAILABLE) else "used"
    whose = "by the unit" if threshold.resource == USED else "in the volume"
    return f"the threshold of {threshold.count * piece >> 20} MiB {what} {whose} is reached"


def _room(threshold: Threshold, usage: Usage, piece: int) -> int:
    """Return how many bytes may be written until a threshold is reached, none or less when it is."""
    size = {
        AVAILABLE: usage.pool_free,
        USED: usage.used,
        POOL_AVAILABLE: usage.pool_free,
        POOL_USED: usage.pool_size - usage.pool_free,
    }.get(threshold.resource)
    if size is None:
        return NEVER
    # Both sides are counted in whole pieces, as the mode page and the log page show them.
    if threshold.rising:
        return threshold.count * piece - size
    return size - (threshold.count + 1) * piece + 1
