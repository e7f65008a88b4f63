"""COMPARE AND WRITE and ORWRITE (SBC-4 5.3, 5.11): blocks that are read and changed with nobody in between.

Within a gateway the order of commands sees to that, against other gateways an inodelk. WRITE ATOMIC is not offered:
that a loss of power leaves all or nothing is more than a file system promises of a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.scsi.commands import CHANGES, MEDIUM, Access, command, extent_16
from glustx.scsi.medium import first_difference, miscompare, read_failed, whole_blocks, write_failed
from glustx.scsi.read_write import blocks_out
from glustx.scsi.sense import ILLEGAL_REQUEST, check, invalid_field
from glustx.scsi.task import DONE, Piece, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_FUA = 0x08


def _one_byte_extent(cdb: bytes) -> tuple[int, int]:
    return int.from_bytes(cdb[2:10], "big"), cdb[13]


def _twice(unit: LogicalUnit, cdb: bytes) -> int:
    if cdb[13] > unit.limits.max_compare:
        raise invalid_field(13, text=f"more than {unit.limits.max_compare} blocks")
    return 2 * cdb[13] << unit.shift


@command(
    "COMPARE AND WRITE",
    "89 18 ffffffffffffffff 000000 ff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=_one_byte_extent,
    data_out=_twice,
)
async def compare_and_write(unit: LogicalUnit, task: Task) -> Result:
    """Write the second half of the data-out if the blocks hold the first; nothing is written when they differ."""
    cdb = task.cdb
    lba, count = _one_byte_extent(cdb)
    wanted = _twice(unit, cdb)
    if not count and task.expected:
        raise invalid_field(13, text="data-out for no block")
    if len(task.data) != wanted or task.expected not in (None, wanted):
        raise check(ILLEGAL_REQUEST, 0x0E, 0x03, f"data-out is to be {wanted} bytes")
    if not count:
        return DONE
    half = wanted // 2
    data = memoryview(task.data)
    async with unit.backing.alone(lba << unit.shift, half):
        where = first_difference(await _read(unit, task, lba, count), data[:half])
        if where is not None:
            raise miscompare(where)
        await _write(unit, task, lba, data[half:])
    return DONE


@command(
    "ORWRITE(16)",
    "8b 18 ffffffffffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_16,
    data_out=blocks_out,
)
async def orwrite(unit: LogicalUnit, task: Task) -> Result:
    """Write the bits of the data-out that blocks lack."""
    lba = extent_16(task.cdb)[0]
    data = whole_blocks(task.data, blocks_out(unit, task.cdb), unit.shift)
    size = len(data)
    if not size:
        return DONE
    async with unit.backing.alone(lba << unit.shift, size):
        found = await _read(unit, task, lba, size >> unit.shift)
        both = int.from_bytes(found, "little") | int.from_bytes(data, "little")
        await _write(unit, task, lba, both.to_bytes(size, "little"))
    return DONE


async def _read(unit: LogicalUnit, task: Task, lba: int, count: int) -> Piece:
    try:
        return await unit.backing.read(lba << unit.shift, count << unit.shift)
    except FopError as error:
        raise await read_failed(unit, task, error, lba, count) from error


async def _write(unit: LogicalUnit, task: Task, lba: int, data: Piece) -> None:
    durable = bool(task.cdb[1] & _FUA) or not unit.modes.write_cache
    try:
        await unit.backing.write(lba << unit.shift, data, durable)
    except FopError as error:
        raise write_failed(unit, task, error, lba) from error
