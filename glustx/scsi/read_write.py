"""READ and WRITE in all lengths, SYNCHRONIZE CACHE and PRE-FETCH (SBC-4 5)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.runtime import spawn
from glustx.scsi.commands import (
    CHANGES,
    MEDIUM,
    TO_END,
    Access,
    command,
    extent_6,
    extent_10,
    extent_12,
    extent_16,
    extent_of,
)
from glustx.scsi.medium import read_failed, too_long, write_failed
from glustx.scsi.task import DONE, GOOD, Piece, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_FUA = 0x08
_IMMED = 0x02


def blocks_out(unit: LogicalUnit, cdb: bytes) -> int:
    """Return the data-out of a command that sends all its blocks.

    Raises CheckCondition for more than a command may have, so that nobody sends them.
    """
    count = extent_of(cdb)[1]
    if count > unit.limits.max_transfer:
        raise too_long(cdb, unit.limits.max_transfer)
    return count << unit.shift


@command("READ(6)", "08 1f ffff ff 07", Access.READ, MEDIUM, extent=extent_6)
def read_6(unit: LogicalUnit, task: Task) -> Awaitable[Result]:
    """Read blocks; 0 means 256."""
    return _read(unit, task, *extent_6(task.cdb), False)


@command("READ(10)", "28 18 ffffffff 3f ffff 07", Access.READ, MEDIUM, extent=extent_10)
@command("READ(12)", "a8 18 ffffffff ffffffff 3f 07", Access.READ, MEDIUM, extent=extent_12)
@command("READ(16)", "88 18 ffffffffffffffff ffffffff 3f 07", Access.READ, MEDIUM, extent=extent_16)
def read(unit: LogicalUnit, task: Task) -> Awaitable[Result]:
    """Read blocks; FUA makes durable what was written before."""
    cdb = task.cdb
    return _read(unit, task, *extent_of(cdb), bool(cdb[1] & _FUA))


async def _read(unit: LogicalUnit, task: Task, lba: int, count: int, fua: bool) -> Result:
    if count > unit.limits.max_transfer:
        raise too_long(task.cdb, unit.limits.max_transfer)
    if not count:
        return DONE
    if (fua or unit.modes.read_cache_disabled) and unit.backing.written:
        await unit.backing.flush()  # what is read is to be on the medium
    size = count << unit.shift
    try:
        data = await unit.backing.read(lba << unit.shift, size)
    except FopError as error:
        raise await read_failed(unit, task, error, lba, count) from error
    return Result(GOOD, (data,), size)


@command("WRITE(6)", "0a 1f ffff ff 07", Access.WRITE, MEDIUM | CHANGES, extent=extent_6, data_out=blocks_out)
def write_6(unit: LogicalUnit, task: Task) -> Awaitable[Result]:
    """Write blocks; 0 means 256."""
    return _write(unit, task, *extent_6(task.cdb), not unit.modes.write_cache)


@command(
    "WRITE(10)",
    "2a 18 ffffffff 3f ffff 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_10,
    data_out=blocks_out,
)
@command(
    "WRITE(12)",
    "aa 18 ffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_12,
    data_out=blocks_out,
)
@command(
    "WRITE(16)",
    "8a 18 ffffffffffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_16,
    data_out=blocks_out,
)
def write(unit: LogicalUnit, task: Task) -> Awaitable[Result]:
    """Write blocks; with FUA, or without a write cache, they are durable when it ends."""
    cdb = task.cdb
    return _write(unit, task, *extent_of(cdb), bool(cdb[1] & _FUA) or not unit.modes.write_cache)


async def _write(unit: LogicalUnit, task: Task, lba: int, count: int, durable: bool) -> Result:
    data = data_out(unit, task, count)
    if len(data):
        try:
            await unit.backing.write(lba << unit.shift, data, durable)
        except FopError as error:
            raise write_failed(unit, task, error, lba) from error
    return DONE


def data_out(unit: LogicalUnit, task: Task, count: int) -> Piece:
    """Return the data-out of a command that writes `count` blocks: less when less has come, and then to the byte.

    GOOD says no more of a truncated transfer than that what came was written (FCP-4 9.4.2). Raises CheckCondition for
    more blocks than a command may have.
    """
    if count > unit.limits.max_transfer:
        raise too_long(task.cdb, unit.limits.max_transfer)
    data, size = task.data, count << unit.shift
    return data if len(data) == size else memoryview(data)[:size]


# The whole file is made durable whatever the range. 0 blocks are not taken as "to the end" here: that would make every
# flush wait for the writes under way, which it need not cover.
@command("SYNCHRONIZE CACHE(10)", "35 06 ffffffff 3f ffff 07", Access.WRITE, MEDIUM, extent=extent_10, timeout=120)
@command(
    "SYNCHRONIZE CACHE(16)",
    "91 06 ffffffffffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM,
    extent=extent_16,
    timeout=120,
)
async def synchronize_cache(unit: LogicalUnit, task: Task) -> Result:
    """Make all that was written durable; with IMMED it is begun, and a failure meets the next flush as well."""
    if task.cdb[1] & _IMMED:
        spawn(_flush_later(unit, task))
    else:
        await unit.backing.flush()
    return DONE


async def _flush_later(unit: LogicalUnit, task: Task) -> None:
    try:
        await unit.backing.flush()
    except FopError as error:
        unit.statistics.failed(task, error)


@command("PRE-FETCH(10)", "34 02 ffffffff 3f ffff 07", Access.READ, MEDIUM | TO_END, extent=extent_10)
@command("PRE-FETCH(16)", "90 02 ffffffffffffffff ffffffff 3f 07", Access.READ, MEDIUM | TO_END, extent=extent_16)
async def pre_fetch(unit: LogicalUnit, task: Task) -> Result:
    """A hint to the brick's page cache, which reads ahead by itself; GOOD promises nothing (SBC-4 5.14)."""
    return DONE
