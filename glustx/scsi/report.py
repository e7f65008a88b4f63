"""What a target tells of itself: LUNs, commands, task management functions, target port groups (SPC-5 6)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glustx.scsi.commands import COMMANDS, KEEPS_ATTENTION, WITHOUT_UNIT, Access, Command, allocation, command, rows_of
from glustx.scsi.identity import PORT_GROUP
from glustx.scsi.sense import LUNS_CHANGED, invalid_field
from glustx.scsi.task import Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_ONLY_UNITS, _WELL_KNOWN, _ALL = 0x00, 0x01, 0x02
_SMALLEST = 16  # of an allocation length for REPORT LUNS in SPC-4
_NOMINAL = 1  # seconds
_NOT_SUPPORTED, _AS_STANDARD = 0x01, 0x03
_SERVACTV, _CTDP = 0x01, 0x02
_CTDP_ONE = 0x80
# ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, QUERY TASK, TARGET RESET; then
# QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET.
_FUNCTIONS = bytes([0x80 | 0x40 | 0x10 | 0x08 | 0x04 | 0x02, 0x04 | 0x02 | 0x01])
_FUNCTION_TIMEOUT = 300  # of 100 ms
_ACTIVE_OPTIMIZED = 0x00
_SUPPORTS_ACTIVE_OPTIMIZED = 0x01


def encode_lun(lun: int) -> bytes:
    """Return a LUN in 8 bytes (SAM-5 4.7): peripheral device addressing below 256, else flat space addressing."""
    return struct.pack(">H6x", lun if lun < 256 else 0x4000 | lun)


@command("REPORT LUNS", "a0 00 ff 000000 ffffffff 00 07", Access.ANY, WITHOUT_UNIT | KEEPS_ATTENTION)
async def report_luns(unit: LogicalUnit | None, task: Task) -> Result:
    """The LUNs that this initiator sees."""
    select, size = task.cdb[2], allocation(task.cdb)
    if select not in (_ONLY_UNITS, _WELL_KNOWN, _ALL):
        raise invalid_field(2, text=f"select report {select:#04x}")
    if size < _SMALLEST:
        raise invalid_field(6, text=f"an allocation length of {size}")
    luns = b"" if select == _WELL_KNOWN else b"".join(encode_lun(lun) for lun in task.nexus.luns)
    for each in set(task.nexus.luns.values()):
        task.nexus.clear_attention(each, LUNS_CHANGED)
    return data_in(struct.pack(">I4x", len(luns)) + luns, size)


# -- REPORT SUPPORTED OPERATION CODES --------------------------------------------------------------------------------


@command("REPORT SUPPORTED OPERATION CODES", "a3 0c 87 ff ffff ffffffff 00 07", Access.ANY, service_action=0x0C)
async def report_supported_operation_codes(unit: LogicalUnit, task: Task) -> Result:
    """All commands, or one with its CDB usage map; with RCTD their time-outs."""
    cdb = task.cdb
    timeouts, options, opcode = bool(cdb[2] & 0x80), cdb[2] & 0x07, cdb[3]
    service_action = cdb[4] << 8 | cdb[5]
    if options == 0:
        data = b"".join(_listed(row, timeouts) for row in _rows(unit))
        return data_in(struct.pack(">I", len(data)) + data, allocation(cdb))
    if options > 3:
        raise invalid_field(2, 2, f"reporting options {options}")
    rows = [row for row in rows_of(opcode) if _offered(unit, row)]
    has_actions = bool(rows) and rows[0].service_action is not None
    if options == 1 and has_actions:
        raise invalid_field(2, 2, f"opcode {opcode:#04x} has service actions")
    if options == 2 and rows and not has_actions:
        raise invalid_field(2, 2, f"opcode {opcode:#04x} has no service actions")
    wanted = 0 if options == 1 else service_action
    found = next((row for row in rows if (row.service_action or 0) == wanted), None)
    return data_in(_one(found, timeouts), allocation(cdb))


def _rows(unit: LogicalUnit) -> list[Command]:
    """Return the commands that a unit offers, by opcode and service action."""
    return [
        COMMANDS[key]
        for key in sorted(COMMANDS, key=lambda key: (key[0], key[1] or 0))
        if _offered(unit, COMMANDS[key])
    ]


def _offered(unit: LogicalUnit, row: Command) -> bool:
    return row.offered is None or bool(row.offered(unit))


def _timeouts(row: Command) -> bytes:
    return struct.pack(">HBBII", 10, 0, 0, min(_NOMINAL, row.timeout), row.timeout)


def _listed(row: Command, timeouts: bool) -> bytes:
    flags = (_SERVACTV if row.service_action is not None else 0) | (_CTDP if timeouts else 0)
    head = struct.pack(">BBHBBH", row.opcode, 0, row.service_action or 0, 0, flags, len(row.usage))
    return head + _timeouts(row) if timeouts else head


def _one(row: Command | None, timeouts: bool) -> bytes:
    if row is None:
        return struct.pack(">BBH", 0, _NOT_SUPPORTED, 0)
    flags = _AS_STANDARD | (_CTDP_ONE if timeouts else 0)
    head = struct.pack(">BBH", 0, flags, len(row.usage)) + row.usage
    return head + _timeouts(row) if timeouts else head


# -- the rest of MAINTENANCE IN --------------------------------------------------------------------------------------


@command(
    "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
    "a3 0d 80 00 0000 ffffffff 00 07",
    Access.ANY,
    service_action=0x0D,
)
async def report_supported_functions(unit: LogicalUnit, task: Task) -> Result:
    """The task management functions; with REPD their time-outs."""
    data = _FUNCTIONS + bytes(2)
    if task.cdb[2] & 0x80:
        # TMFTMOV, and one time-out for all of them.
        data = _FUNCTIONS + struct.pack(">BBBB2sII", 0, 12, 0x01, 0, _FUNCTIONS, _FUNCTION_TIMEOUT, _FUNCTION_TIMEOUT)
    return data_in(data, allocation(task.cdb))


@command("REPORT TARGET PORT GROUPS", "a3 ea 000000 00 ffffffff 00 07", Access.ANY, service_action=0x0A)
async def report_target_port_groups(unit: LogicalUnit, task: Task) -> Result:
    """The one target port group, active and optimized on every path."""
    form = task.cdb[1] >> 5
    if form > 1:
        raise invalid_field(1, 7, f"parameter data format {form}")
    # A target has one port: its portal group.
    ports = struct.pack(">HH", 0, task.nexus.relative_port)
    group = struct.pack(">BBHBBBB", _ACTIVE_OPTIMIZED, _SUPPORTS_ACTIVE_OPTIMIZED, PORT_GROUP, 0, 0, 0, 1) + ports
    if form:
        group = bytes([0x10, 0, 0, 0]) + group  # extended header; a transition takes no time
    return data_in(struct.pack(">I", len(group)) + group, allocation(task.cdb))
