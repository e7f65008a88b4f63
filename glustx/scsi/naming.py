"""What initiators tell a unit to remember: identifying information and the time (SPC-5 6)."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from glustx.scsi.commands import CHANGES, Access, allocation, command, list_length
from glustx.scsi.sense import (
    IDENTIFIER_CHANGED,
    TIMESTAMP_CHANGED,
    invalid_field,
    invalid_parameter,
    parameter_length,
)
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_RECORD = "trusted.glustx.scsi-info-"
_DEVICE, _TEXT, _SUPPORTED = 0x00, 0x02, 0x7F
_LARGEST = {_DEVICE: 512, _TEXT: 256}  # bytes of information, by type
_ORIGIN_SET, _ORIGIN_CLOCK = 2, 3
_TIMESTAMP = struct.Struct(">HBB6sH")


# -- identifying information -----------------------------------------------------------------------------------------


@command("REPORT IDENTIFYING INFORMATION", "a3 05 00000000 ffffffff fe 07", Access.ANY, service_action=0x05)
async def report_identifying_information(unit: LogicalUnit, task: Task) -> Result:
    """What was set last, or the types that can be set (7Fh)."""
    kind = task.cdb[10] >> 1
    if kind == _SUPPORTED:
        data = b"".join(struct.pack(">BBH", each << 1, 0, size) for each, size in _LARGEST.items())
    elif kind in _LARGEST:
        data = await unit.backing.get_record(f"{_RECORD}{kind}") or b""
    else:
        raise invalid_field(10, 7, f"type {kind:#04x} of identifying information")
    return data_in(struct.pack(">2xH", len(data)) + data, allocation(task.cdb))


@command(
    "SET IDENTIFYING INFORMATION",
    "a4 06 00000000 ffffffff fe 07",
    Access.WRITE,
    CHANGES,
    service_action=0x06,
    data_out=list_length(6, 9),
)
async def set_identifying_information(unit: LogicalUnit, task: Task) -> Result:
    """Keep a text or bytes with the file for all gateways; an empty list removes it."""
    kind, length = task.cdb[10] >> 1, int.from_bytes(task.cdb[6:10], "big")
    if kind not in _LARGEST:
        raise invalid_field(10, 7, f"type {kind:#04x} of identifying information")
    if length > _LARGEST[kind]:
        raise invalid_field(6, text=f"{length} bytes of identifying information, above {_LARGEST[kind]}")
    data = bytes(task.data[:length])
    if len(data) < length:
        raise parameter_length(f"{len(data)} bytes of {length}")
    if kind == _TEXT and data and data[-1]:
        raise invalid_parameter(length - 1, text="a text that does not end with NUL")
    await unit.backing.set_record(f"{_RECORD}{kind}", data or None)
    unit.tell_all(IDENTIFIER_CHANGED, but=task.nexus)
    return DONE


# -- timestamp -------------------------------------------------------------------------------------------------------


@command("REPORT TIMESTAMP", "a3 0f 00000000 ffffffff 00 07", Access.ANY, service_action=0x0F)
async def report_timestamp(unit: LogicalUnit, task: Task) -> Result:
    """Milliseconds since 1970: the gateway's clock, or what SET TIMESTAMP made of it."""
    if unit.timestamp is None:
        origin, now = _ORIGIN_CLOCK, int(time.time() * 1000)
    else:
        told, at = unit.timestamp
        origin, now = _ORIGIN_SET, told + int((unit.reactor.time() - at) * 1000)
    data = _TIMESTAMP.pack(10, origin, 0, (now & (1 << 48) - 1).to_bytes(6, "big"), 0)
    return data_in(data, allocation(task.cdb))


@command(
    "SET TIMESTAMP",
    "a4 0f 00000000 ffffffff 00 07",
    Access.WRITE,
    service_action=0x0F,
    data_out=list_length(6, 9),
)
async def set_timestamp(unit: LogicalUnit, task: Task) -> Result:
    """Tell this unit another time, until it is closed."""
    length = int.from_bytes(task.cdb[6:10], "big")
    if not length:
        return DONE
    data = bytes(task.data[:12])
    if len(data) < 12:
        raise parameter_length(f"a timestamp of {len(data)} bytes")
    unit.timestamp = int.from_bytes(data[4:10], "big"), unit.reactor.time()
    unit.tell_all(TIMESTAMP_CHANGED, but=task.nexus)
    return DONE
