"""RECEIVE COPY RESULTS and COPY OPERATION ABORT (SPC-5 6.3, 6.23 to 6.28): what became of copies."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glustx.scsi import third_party as can
from glustx.scsi.commands import Access, allocation, command
from glustx.scsi.copy_lists import Operation, Status
from glustx.scsi.sense import invalid_field
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_BYTES = 0x00  # TRANSFER COUNT UNITS
_BLOCKS = 0xF1
_MEGABYTES = 0x02
_UNKNOWN = 0xFFFFFFFF
_SHORT_STATUS = {Status.FOREGROUND: 0, Status.BACKGROUND: 0, Status.DONE: 1, Status.RESIDUAL: 1}  # else 2: error


def asked(unit: LogicalUnit, task: Task) -> Operation:
    """Return the operation that a CDB names."""
    short = task.cdb[1] & 0x1F in (0x00, 0x04)
    list_id = task.cdb[2] if short else int.from_bytes(task.cdb[2:6], "big")
    found = unit.gateway.copies.find(task, list_id, short)
    if found is None:
        raise invalid_field(2, text=f"no copy with list identifier {list_id}")
    found.questions += 1
    return found


@command("RECEIVE COPY STATUS(LID1)", "84 00 ff 00000000000000 ffffffff 00 07", Access.ANY, service_action=0x00)
async def status_1(unit: LogicalUnit, task: Task) -> Result:
    """Tell how far an EXTENDED COPY(LID1) is."""
    found = asked(unit, task)
    units, count = (_BYTES, found.moved) if found.moved < 1 << 32 else (_MEGABYTES, found.moved >> 20)
    body = struct.pack(">IBHBI", 8, _SHORT_STATUS.get(found.status, 2), found.segments, units, count)
    if not found.running:
        unit.gateway.copies.forget(found)
    return data_in(body, allocation(task.cdb))


@command("RECEIVE COPY OPERATING PARAMETERS", "84 03 00 00000000000000 ffffffff 00 07", Access.ANY, service_action=0x03)
async def operating_parameters(unit: LogicalUnit, task: Task) -> Result:
    """Tell what EXTENDED COPY takes."""
    codes = can.DESCRIPTORS
    body = struct.pack(
        ">B3xHHIIIII2xHBBBB3xB",
        0x01,  # SNLID: a copy needs no list identifier
        can.MOST_CSCDS,
        can.MOST_SEGMENTS,
        can.LONGEST_LIST,
        can.LONGEST_SEGMENT,
        0,
        0,
        0,
        can.COPIES,
        can.COPIES,
        can.GRANULARITY,
        can.GRANULARITY,
        can.GRANULARITY,
        len(codes),
    )
    body += codes
    return data_in(struct.pack(">I", len(body)) + body, allocation(task.cdb))


@command(
    "RECEIVE COPY FAILURE DETAILS(LID1)", "84 04 ff 00000000000000 ffffffff 00 07", Access.ANY, service_action=0x04
)
async def failure_details(unit: LogicalUnit, task: Task) -> Result:
    """Give the sense of an EXTENDED COPY(LID1) that failed; nothing for one that did not."""
    found = asked(unit, task)
    body = b""
    if found.sense is not None:
        sense = found.sense.encode(descriptor=True)
        body = bytes(52) + struct.pack(">BxH", found.scsi_status, len(sense)) + sense
        unit.gateway.copies.forget(found)
    return data_in(struct.pack(">I", len(body)) + body, allocation(task.cdb))


def long_status(unit: LogicalUnit, found: Operation) -> bytes:
    """Return the answer of RECEIVE COPY STATUS(LID4) and what RECEIVE ROD TOKEN INFORMATION begins with, without its
    length."""
    sense = found.sense.encode(descriptor=True) if found.sense is not None else b""
    tokens = found.action in (0x10, 0x11)
    padded = sense.ljust(-(-len(sense) // 4) * 4, b"\0")
    head = struct.pack(
        ">BBHIBBBBQH6x",
        found.action,
        found.status,
        min(found.questions, 0xFFFF),
        can.UPDATE_DELAY if found.running else _UNKNOWN,
        found.scsi_status,
        len(padded),
        len(sense),
        _BLOCKS if tokens else _BYTES,
        found.moved >> unit.shift if tokens else found.moved,
        found.segments,
    )
    return head + padded


def answer(unit: LogicalUnit, task: Task, found: Operation, body: bytes) -> Result:
    """Return an answer on an operation; one that is over is forgotten when all of the answer has been asked for."""
    result = data_in(struct.pack(">I", len(body)) + body, allocation(task.cdb))
    if not found.running and allocation(task.cdb) >= len(body) + 4:
        unit.gateway.copies.forget(found)
    return result


@command("RECEIVE COPY STATUS(LID4)", "84 05 ffffffff 00000000 ffffffff 00 07", Access.ANY, service_action=0x05)
async def status_4(unit: LogicalUnit, task: Task) -> Result:
    """Tell how far a copy with a list identifier of 32 bits is."""
    found = asked(unit, task)
    return answer(unit, task, found, long_status(unit, found))


@command("COPY OPERATION ABORT", "83 1c ffffffff 00000000 00000000 00 07", Access.ANY, service_action=0x1C)
async def abort(unit: LogicalUnit, task: Task) -> Result:
    """Stop a copy with a list identifier of 32 bits and wait for its end."""
    await unit.gateway.copies.abort(asked(unit, task))
    return DONE
