"""Copies between units: on the brick where both files are of one volume, through this process otherwise.

A copy goes piece by piece. For each piece it takes its place among the commands of both units, asks both for
reservations, and looks whether it is still wanted. So a long copy keeps nobody waiting, a write to the source while it
runs may or may not be in what is copied, and one that is stopped has copied whole pieces only. Source and destination
may overlap: the destination then holds what the source held before, as with memmove.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.runtime import fan_out
from glustx.scsi.backing import Backing
from glustx.scsi.medium import breathe
from glustx.scsi.sense import COPY_ABORTED, DATA_PROTECT, CheckCondition, Sense, from_errno
from glustx.scsi.task import CHECK_CONDITION, RESERVATION_CONFLICT, SIMPLE, Nexus

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

MIB = 1 << 20
_THROUGH = 4 * MIB  # bytes of one piece that goes through this process
_PART = MIB  # bytes of one read of it
_FIRST, _SMALLEST, _LARGEST = 64 * MIB, 4 * MIB, 1 << 30  # bytes of one piece on the brick
_FAST, _SLOW = 0.05, 0.5  # seconds for a piece: under the first they grow, over the second they shrink
_CANNOT = (errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_SOURCE, _DESTINATION = 1, 2


class Stopped(Exception):
    """A copy that is not wanted any more."""


class Failed(Exception):
    """A copy that one of its ends refused.

    Args:
        by: source or destination (1 or 2).
        status: SCSI status that this end would have given.
        sense: with CHECK CONDITION.
    """

    def __init__(self, by: int, status: int, sense: Sense | None = None) -> None:
        super().__init__(by, status, sense)
        self.by = by
        self.status = status
        self.sense = sense

    def for_initiator(self, segment: int = 0) -> CheckCondition:
        """Return the error of a command that copies: THIRD PARTY DEVICE FAILURE with the end's own sense inside.

        What a full pool or a write-protected unit says comes through as it is: virtual machines are stopped by the
        one, and the other is no failure of the device.
        """
        sense = self.sense.encode(True) if self.sense is not None else b""
        inside = struct.pack(">BBBB", 0x0C, 2 + len(sense), self.by, self.status) + sense
        if self.sense is not None and self.sense.key == DATA_PROTECT:
            return CheckCondition(
                Sense(DATA_PROTECT, self.sense.asc, self.sense.ascq, specific=segment, forwarded=inside)
            )
        return CheckCondition(Sense(COPY_ABORTED, 0x0D, 0x01, specific=segment, forwarded=inside))


class Work:
    """One copy as its pieces see it.

    Args:
        nexus: on whose behalf; reservations of others count.
        wanted: tells before each piece whether to go on.
        moved: called with the bytes of each piece that is done.
    """

    def __init__(self, nexus: Nexus, wanted: Callable[[], bool], moved: Callable[[int], None]) -> None:
        self.nexus = nexus
        self.wanted = wanted
        self.moved = moved


async def may(unit: LogicalUnit, nexus: Nexus | None, *, writes: bool) -> None:
    """Raise Failed unless a unit is ready and lets a nexus (None: anybody) read or write its medium now."""
    by = _DESTINATION if writes else _SOURCE
    if unit.not_ready is not None:
        raise Failed(by, CHECK_CONDITION, unit.not_ready)
    if unit.reactor.time() >= unit.reservations.valid_until:
        await unit.reservations.refresh()
    if nexus is not None and not unit.reservations.permits(nexus, writes=writes):
        raise Failed(by, RESERVATION_CONFLICT)
    if writes:
        try:
            unit.check_writable()
        except CheckCondition as error:
            raise Failed(by, CHECK_CONDITION, error.sense) from None


async def copy(
    work: Work,
    source: LogicalUnit,
    source_offset: int,
    target: LogicalUnit,
    offset: int,
    size: int,
    backing: Backing | None = None,
    by_token: bool = False,
) -> None:
    """Copy `size` bytes. Raises Failed or Stopped; whole pieces are done then.

    Args:
        work: whose copy it is.
        source, source_offset: from where.
        target, offset: to where.
        size: bytes; both ranges must lie inside their units.
        backing: file to read instead of the source's own: a snapshot of it, which nobody writes.
        by_token: whether a token gives the right to read, whoever has reserved the source.
    """
    same = source is target and backing is None
    overlap = same and abs(source_offset - offset) < size
    backwards = overlap and offset > source_offset
    piece, on_brick = _FIRST, not overlap and (backing or source.backing).child.xlator is target.backing.child.xlator
    done = 0
    while done < size:
        count = min(size - done, piece if on_brick else _THROUGH)
        if on_brick:
            count = _shareable(target, source_offset + done, offset + done, count)
        at = size - done - count if backwards else done
        began = target.reactor.time()
        async with _places(None if backing is not None else source, source_offset + at, target, offset + at, count):
            if not work.wanted():
                raise Stopped
            if backing is None:
                await may(source, None if by_token else work.nexus, writes=False)
            await may(target, work.nexus, writes=True)
            if on_brick:
                try:
                    await target.backing.copy_from(backing or source.backing, source_offset + at, offset + at, count)
                except FopError as error:
                    if error.errno not in _CANNOT:
                        raise Failed(_DESTINATION, CHECK_CONDITION, _sense(error, target, offset + at)) from error
                    on_brick = False
                    continue
            else:
                await _through(backing or source.backing, source, source_offset + at, target, offset + at, count)
        took = target.reactor.time() - began
        if took < _FAST:
            piece = min(_LARGEST, piece * 2)
        elif took > _SLOW:
            piece = max(_SMALLEST, piece // 2)
        done += count
        work.moved(count)
        await breathe(target.reactor)
    if size and not target.modes.write_cache:
        await flush(target)


def _shareable(target: LogicalUnit, source_offset: int, offset: int, count: int) -> int:
    """Return how much of a piece to copy first, so that most of it is whole file system blocks: only those can be
    shared."""
    granule = int(target.backing.limits.get("block_size") or 4096)
    if (source_offset - offset) % granule:
        return count
    before = -offset % granule
    if before:
        return min(count, before)
    return count - count % granule or count


async def fill(work: Work, target: LogicalUnit, offset: int, size: int) -> None:
    """Make a range read as zeroes; its space is given back where the unit is thin. Raises as `copy` does."""
    done = 0
    while done < size:
        count = min(size - done, _LARGEST)
        async with _places(None, 0, target, offset + done, count):
            if not work.wanted():
                raise Stopped
            await may(target, work.nexus, writes=True)
            try:
                await _zero(target, offset + done, count)
            except FopError as error:
                raise Failed(_DESTINATION, CHECK_CONDITION, _sense(error, target, offset + done)) from error
        done += count
        work.moved(count)
        await breathe(target.reactor)
    if size and not target.modes.write_cache:
        await flush(target)


async def flush(target: LogicalUnit) -> None:
    """Make a destination durable; raises Failed."""
    try:
        await target.backing.flush()
    except FopError as error:
        raise Failed(_DESTINATION, CHECK_CONDITION, from_errno(error.errno, writing=True)) from error


@asynccontextmanager
async def _places(
    source: LogicalUnit | None, source_offset: int, target: LogicalUnit, offset: int, count: int
) -> AsyncIterator[None]:
    """Hold both ranges. The places are taken at one moment, so two copies cannot wait for each other."""
    ranges = [(target, offset, True)]
    if source is target and abs(source_offset - offset) < count:
        ranges = [(target, min(source_offset, offset), True)]
        count += abs(source_offset - offset)
    elif source is not None:
        ranges.append((source, source_offset, False))
    with_places = AsyncExitStack()
    holds = []
    for unit, at, writes in ranges:
        first, end = at >> unit.shift, (at + count + unit.block_size - 1) >> unit.shift
        hold = unit.order.enter(first, end, writes, SIMPLE)
        with_places.callback(unit.order.leave, hold)
        holds.append(hold)
    async with with_places:
        for hold in holds:
            if hold.waiter is not None:
                await hold.waiter
        yield


async def _through(
    backing: Backing, source: LogicalUnit, source_offset: int, target: LogicalUnit, offset: int, size: int
) -> None:
    """Read a piece whole, then write it, with holes of the source as holes."""
    parts: list[tuple[int, int]] = []
    holes: list[tuple[int, int]] = []
    at = 0
    try:
        while at < size:
            end, data = await backing.extent(source_offset + at, source_offset + size)
            end -= source_offset
            if data:
                parts.extend((begin, min(_PART, end - begin)) for begin in range(at, end, _PART))
            else:
                holes.append((at, end - at))
            at = end
        read = await fan_out(backing.read(source_offset + begin, count) for begin, count in parts)
        pieces = [each.get() for each in read]
    except FopError as error:
        raise Failed(_SOURCE, CHECK_CONDITION, _sense(error, source, source_offset, writing=False)) from error
    try:
        for begin, count in holes:
            await _zero(target, offset + begin, count)
        written = await fan_out(
            target.backing.write(offset + begin, data) for (begin, _), data in zip(parts, pieces, strict=True)
        )
        for each in written:
            each.get()
    except FopError as error:
        raise Failed(_DESTINATION, CHECK_CONDITION, _sense(error, target, offset)) from error


async def _zero(target: LogicalUnit, offset: int, size: int) -> None:
    if target.config.unmap:
        await target.backing.discard(offset, size)
    else:
        await target.backing.zero(offset, size)


def _sense(error: FopError, unit: LogicalUnit, offset: int, writing: bool = True) -> Sense:
    return from_errno(error.errno, writing=writing, lba=offset >> unit.shift)
