"""WRITE SAME, UNMAP and GET LBA STATUS: ranges without their data (SBC-4 4.7, 5)."""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.scsi.commands import (
    CHANGES,
    MEDIUM,
    TO_END,
    Access,
    allocation,
    command,
    extent_10,
    extent_16,
    extent_of,
    list_length,
)
from glustx.scsi.medium import breathe, too_long, write_failed
from glustx.scsi.sense import (
    ILLEGAL_REQUEST,
    check,
    invalid_field,
    invalid_parameter,
    lba_out_of_range,
    parameter_length,
)
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.order import Hold
    from glustx.scsi.unit import LogicalUnit

_UNMAP = 0x08
_NDOB = 0x01
_PATTERN = 1 << 20
_PIECE = 64 << 20  # what others wait for at most
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_MAPPED, _DEALLOCATED = 0, 1
_MOST_DESCRIPTORS = 1024
_LIST_FULL, _AT_CAPACITY = 1, 3  # why the list ends where it does
_DESCRIPTOR = struct.Struct(">QIB3x")


# -- WRITE SAME ------------------------------------------------------------------------------------------------------


def _one_block(unit: LogicalUnit, cdb: bytes) -> int:
    return 0 if cdb[0] == 0x93 and cdb[1] & _NDOB else unit.block_size


@command(
    "WRITE SAME(10)",
    "41 08 ffffffff 3f ffff 07",
    Access.WRITE,
    MEDIUM | CHANGES | TO_END,
    extent=extent_10,
    data_out=_one_block,
    timeout=120,
)
@command(
    "WRITE SAME(16)",
    "93 09 ffffffffffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES | TO_END,
    extent=extent_16,
    data_out=_one_block,
    timeout=120,
)
async def write_same(unit: LogicalUnit, task: Task) -> Result:
    """Fill blocks with one block; zeroes cost no data, and with UNMAP no space."""
    cdb = task.cdb
    lba, count = extent_of(cdb)
    count = count or unit.blocks - lba
    if count > unit.limits.max_write_same:
        raise too_long(cdb, unit.limits.max_write_same)
    if cdb[1] & _UNMAP and not unit.config.unmap:
        raise invalid_field(1, 3, "the unit is fully provisioned")
    wanted = _one_block(unit, cdb)
    if len(task.data) != wanted or task.expected not in (None, wanted):
        raise check(ILLEGAL_REQUEST, 0x0E, 0x03, f"data-out is to be {wanted} bytes")
    block = bytes(task.data)
    if block.strip(b"\0"):
        await _fill(unit, task, block, lba, count)
    elif cdb[1] & _UNMAP:
        await clear(unit, task, lba, count)
    else:
        await zero(unit, task, lba, count)
    if not task.aborted and not unit.modes.write_cache:
        await unit.backing.flush()
    return DONE


async def _fill(unit: LogicalUnit, task: Task, block: bytes, lba: int, count: int) -> None:
    """Write a block again and again, until done or nobody waits for it any more."""
    step = _PATTERN >> unit.shift
    pattern = memoryview(block * min(step, count))
    end = lba + count
    while lba < end and not task.aborted:
        size = min(step, end - lba)
        try:
            await unit.backing.write(lba << unit.shift, pattern[: size << unit.shift])
        except FopError as error:
            raise write_failed(unit, task, error, lba) from error
        lba += size
        await breathe(unit.reactor)


async def zero(unit: LogicalUnit, task: Task, lba: int, count: int) -> None:
    """Make blocks read as zeroes, allocated where the brick can (ZEROFILL), else by writing them."""
    try:
        await unit.backing.zero(lba << unit.shift, count << unit.shift)
    except FopError as error:
        if error.errno not in _UNSUPPORTED:
            raise write_failed(unit, task, error, lba) from error
        await _fill(unit, task, bytes(unit.block_size), lba, count)


async def clear(unit: LogicalUnit, task: Task, lba: int, count: int) -> None:
    """Give the space of blocks back (DISCARD): all of them read as zeroes, whole granules become free."""
    try:
        await unit.backing.discard(lba << unit.shift, count << unit.shift)
    except FopError as error:
        if error.errno not in _UNSUPPORTED:
            raise write_failed(unit, task, error, lba) from error
        await zero(unit, task, lba, count)


# -- UNMAP -----------------------------------------------------------------------------------------------------------


def _thin(unit: LogicalUnit) -> bool:
    return unit.config.unmap


@command(
    "UNMAP",
    "42 00 00000000 3f ffff 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    data_out=list_length(7, 8),
    timeout=120,
    offered=_thin,
)
async def unmap(unit: LogicalUnit, task: Task) -> Result:
    """Give the space of blocks back; nothing is done unless all descriptors are right."""
    ranges = _descriptors(unit, bytes(task.data), int.from_bytes(task.cdb[7:9], "big"))
    # All take their places now, before anything that comes later; each gives its blocks back as it goes on.
    holds = [unit.order.enter(first, end, True, task.attribute) for first, end in ranges]
    try:
        while holds:
            await _unmap_range(unit, task, holds[0])
            unit.order.leave(holds.pop(0))
    finally:
        for hold in holds:
            unit.order.leave(hold)
    if ranges and not task.aborted and not unit.modes.write_cache:
        await unit.backing.flush()
    return DONE


async def _unmap_range(unit: LogicalUnit, task: Task, hold: Hold) -> None:
    if hold.waiter is not None:
        await hold.waiter
    step = _PIECE >> unit.shift
    while hold.first < hold.end and not task.aborted:
        count = min(step, hold.end - hold.first)
        await clear(unit, task, hold.first, count)
        unit.order.shrink(hold, hold.first + count)
        await breathe(unit.reactor)


def _descriptors(unit: LogicalUnit, data: bytes, length: int) -> list[tuple[int, int]]:
    """Return the ranges (first, end) of a parameter list, sorted and merged.

    Raises CheckCondition for what is against the Block Limits page or beyond the unit.
    """
    data = data[:length]
    if not length:
        return []
    if len(data) < 8:
        raise parameter_length(f"an UNMAP list of {len(data)} bytes")
    size = min(int.from_bytes(data[2:4], "big"), len(data) - 8)
    limits = unit.limits
    if size // 16 > limits.unmap_descriptors:
        raise invalid_parameter(2, text=f"more than {limits.unmap_descriptors} descriptors")
    total = 0
    found: list[tuple[int, int]] = []
    for at in range(8, 8 + size // 16 * 16, 16):
        lba, count = struct.unpack_from(">QI", data, at)
        if lba + count > unit.blocks:
            raise lba_out_of_range()
        total += count
        if total > limits.max_unmap:
            raise invalid_parameter(at + 8, text=f"more than {limits.max_unmap} blocks")
        if count:
            found.append((lba, lba + count))
    found.sort()
    merged: list[tuple[int, int]] = []
    for first, end in found:
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((first, end))
    return merged


# -- GET LBA STATUS --------------------------------------------------------------------------------------------------


# Report types: all, all but mapped, mapped, deallocated, anchored (which nothing is).
_WANTED = ((_MAPPED, _DEALLOCATED), (_DEALLOCATED,), (_MAPPED,), (_DEALLOCATED,), ())


@command("GET LBA STATUS(16)", "9e 12 ffffffffffffffff ffffffff 07 07", Access.READ, MEDIUM, service_action=0x12)
async def get_lba_status(unit: LogicalUnit, task: Task) -> Result:
    """Tell which blocks take space, as far as the file system knows: what is allocated but was never written reads as
    free."""
    cdb = task.cdb
    lba = int.from_bytes(cdb[2:10], "big")
    if lba >= unit.blocks:
        raise lba_out_of_range()
    if cdb[14] >= len(_WANTED):
        raise invalid_field(14, 2, f"report type {cdb[14]}")
    wanted = _WANTED[cdb[14]]
    length = allocation(cdb)
    most = min(max(1, (length - 8) // 16), _MOST_DESCRIPTORS)
    rows: list[bytes] = []
    at = lba
    while wanted and len(rows) < most and not task.aborted:
        if at >= unit.blocks:
            break
        end, status = await _stretch(unit, at)
        if status in wanted:
            # A descriptor counts to 2^32 - 1.
            end = min(end, at + 0xFFFFFFFF)
            rows.append(_DESCRIPTOR.pack(at, end - at, status))
        at = end
        if not len(rows) % 64:
            await breathe(unit.reactor)
    done = _AT_CAPACITY if at >= unit.blocks or not wanted else _LIST_FULL
    return data_in(struct.pack(">I3xB", 4 + 16 * len(rows), done << 1 | 1) + b"".join(rows), length)


async def _stretch(unit: LogicalUnit, lba: int) -> tuple[int, int]:
    """Return where the blocks of one status that begin at `lba` end, and the status. A physical block is mapped when
    any part of it is."""
    if not unit.config.unmap:
        return unit.blocks, _MAPPED
    shift, step = unit.shift, 1 << unit.limits.physical_exponent
    offset = unit.limits.lowest_aligned
    capacity = unit.blocks << shift
    end = at = max(0, (lba - offset) // step * step + offset)
    status = None
    while at < unit.blocks:
        stop, data = await unit.backing.extent(at << shift, capacity)
        block = stop >> shift
        if data or block < unit.blocks:
            block = (block - offset) // step * step + offset
        if data and block << shift < stop:
            block = block + step
        found = _MAPPED if data or block <= at else _DEALLOCATED
        block = min(max(block, at + step) if found == _MAPPED else block, unit.blocks)
        if status is not None and found != status:
            break
        status, end, at = found, block, block
    return end, _MAPPED if status is None else status
