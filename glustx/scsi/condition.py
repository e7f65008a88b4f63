"""The state of a unit and its medium: ready or not, started, loaded, and its sense data (SPC-5 6, SBC-4 5)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glustx.scsi.commands import KEEPS_ATTENTION, MEDIUM, WITHOUT_UNIT, Access, allocation, command
from glustx.scsi.sense import (
    ILLEGAL_REQUEST,
    LUN_NOT_SUPPORTED,
    MEDIUM_CHANGED,
    NO_SENSE_DATA,
    NOT_READY,
    CheckCondition,
    Sense,
    check,
)
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

NO_MEDIUM = Sense(NOT_READY, 0x3A, 0x00)
_START, _LOEJ, _NO_FLUSH = 0x01, 0x02, 0x04
_LBPME, _LBPRZ = 0x8000, 0x4000


@command("TEST UNIT READY", "00 00000000 07", Access.ANY, MEDIUM)
async def test_unit_ready(unit: LogicalUnit, task: Task) -> Result:
    """Whether the medium can be used."""
    return DONE


@command("REQUEST SENSE", "03 01 0000 ff 07", Access.ANY, WITHOUT_UNIT | KEEPS_ATTENTION)
async def request_sense(unit: LogicalUnit | None, task: Task) -> Result:
    """A pending unit attention, which that clears, or why the unit is not ready, or nothing."""
    sense = _sense(unit, task)
    return data_in(sense.encode(bool(task.cdb[1] & 1)), allocation(task.cdb))


def _sense(unit: LogicalUnit | None, task: Task) -> Sense:
    if unit is None:
        return LUN_NOT_SUPPORTED
    attention = unit.take_attention(task.nexus)
    if attention is not None:
        return attention.sense
    return unit.not_ready or unit.exceptions.on_request or NO_SENSE_DATA


@command("START STOP UNIT", "1b 01 00 0f f7 07", Access.WRITE, timeout=60)
async def start_stop_unit(unit: LogicalUnit, task: Task) -> Result:
    """Eject or load a removable medium. A stop makes everything durable, but the unit stays usable: others use it."""
    flags = task.cdb[4]
    if flags >> 4:
        return DONE  # a power condition: there is no power to save
    if unit.not_ready is not None and unit.not_ready is not NO_MEDIUM:
        raise CheckCondition(unit.not_ready)
    moves = bool(flags & _LOEJ) and unit.config.removable
    if moves:
        _refuse_prevented(unit)
    if not flags & (_START | _NO_FLUSH) and unit.backing.written:
        await unit.backing.flush()
    if moves:
        _refuse_prevented(unit)  # which somebody may have done meanwhile
        _load(unit, task, bool(flags & _START))
    return DONE


def _refuse_prevented(unit: LogicalUnit) -> None:
    if unit.removal_prevented():
        raise check(ILLEGAL_REQUEST, 0x53, 0x02, "an initiator prevents medium removal")


def _load(unit: LogicalUnit, task: Task, load: bool) -> None:
    if load and unit.not_ready is NO_MEDIUM:
        unit.not_ready = None
        unit.logs.starts += 1
        unit.tell_all(MEDIUM_CHANGED, but=task.nexus)
    elif not load and unit.not_ready is None:
        unit.not_ready = NO_MEDIUM


@command("PREVENT ALLOW MEDIUM REMOVAL", "1e 000000 01 07", Access.WRITE)
async def prevent_allow_medium_removal(unit: LogicalUnit, task: Task) -> Result:
    """Prevent, until this nexus allows it or is lost, that anybody ejects the medium."""
    if task.cdb[4] & 1:
        unit.preventing.add(task.nexus)
    else:
        unit.preventing.discard(task.nexus)
    return DONE


@command("READ CAPACITY(10)", "25 00 00000000 0000 00 07", Access.ANY, MEDIUM)
async def read_capacity_10(unit: LogicalUnit, task: Task) -> Result:
    """Last LBA (FFFFFFFFh: use READ CAPACITY(16)) and block length."""
    return data_in(struct.pack(">II", min(unit.blocks - 1, 0xFFFFFFFF), unit.block_size), 8)


@command("READ CAPACITY(16)", "9e 10 0000000000000000 ffffffff 00 07", Access.ANY, MEDIUM, service_action=0x10)
async def read_capacity_16(unit: LogicalUnit, task: Task) -> Result:
    """Last LBA, block length, blocks per physical block and their alignment, whether the unit is thin."""
    limits = unit.limits
    thin = _LBPME | _LBPRZ if unit.config.unmap else 0
    data = struct.pack(
        ">QIBBH16x",
        unit.blocks - 1,
        unit.block_size,
        0,
        limits.physical_exponent,
        limits.lowest_aligned | thin,
    )
    return data_in(data, allocation(task.cdb))
