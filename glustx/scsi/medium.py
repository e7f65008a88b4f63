"""What the chapters on the medium share: failures that name a block, pieces of long work, comparing bytes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.runtime import Reactor, Waiter
from glustx.scsi.sense import MISCOMPARE, CheckCondition, Sense, from_errno, invalid_field
from glustx.scsi.task import Piece, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_COUNT_AT = {0: 4, 1: 7, 2: 7, 4: 10, 5: 6}  # group of the opcode -> byte of the number of blocks


def too_long(cdb: bytes, most: int) -> CheckCondition:
    """Return the error for more blocks than one command may have."""
    return invalid_field(_COUNT_AT[cdb[0] >> 5], text=f"more than {most} blocks")


def whole_blocks(data: Piece, size: int, shift: int) -> Piece:
    """Return what came of `size` bytes of data-out, cut to whole blocks: an initiator may have promised less than its
    CDB says."""
    return memoryview(data)[: min(len(data), size) >> shift << shift]


async def breathe(reactor: Reactor) -> None:
    """Let others have a turn: for long work whose fops may all end at once."""
    waiter: Waiter[None] = Waiter()
    reactor.post(lambda: waiter.set(None))
    await waiter


def write_failed(unit: LogicalUnit, task: Task, error: FopError, lba: int) -> CheckCondition:
    """Return what an initiator is told of a write at `lba` that failed, and log why."""
    unit.statistics.failed(task, error)
    return CheckCondition(from_errno(error.errno, writing=True, lba=lba), str(error))


async def read_failed(unit: LogicalUnit, task: Task, error: FopError, lba: int, count: int) -> CheckCondition:
    """Return what an initiator is told of a failed read, with the first block that cannot be read, and log why."""
    unit.statistics.failed(task, error)
    if error.errno == errno.EIO:
        lba = await _first_bad(unit, lba, count)
    return CheckCondition(from_errno(error.errno, writing=False, lba=lba), str(error))


async def _first_bad(unit: LogicalUnit, lba: int, count: int) -> int:
    """Find the first unreadable block of a range, reading ever smaller halves, about once the range in all."""
    while count > 1:
        half = count // 2
        try:
            await unit.backing.read(lba << unit.shift, half << unit.shift)
        except FopError as error:
            if error.errno != errno.EIO:
                return lba
            count = half
        else:
            lba += half
            count -= half
    return lba


def first_difference(one: Piece, other: Piece) -> int | None:
    """Return where two pieces of the same length first differ, None when they do not."""
    left, right = bytes(one), bytes(other)
    if left == right:
        return None
    low, high = 0, len(left)
    while high - low > 64:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return next(at for at in range(low, high) if left[at] != right[at])


def miscompare(offset: int) -> CheckCondition:
    """MISCOMPARE DURING VERIFY OPERATION; `offset` is the first byte that differs."""
    return CheckCondition(Sense(MISCOMPARE, 0x1D, 0x00, offset), f"byte {offset} differs")
