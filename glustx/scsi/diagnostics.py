"""Self-tests, the data buffer and defect lists (SPC-5 6, SBC-4 5)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.scsi.commands import MEDIUM, Access, allocation, command, list_length
from glustx.scsi.sense import (
    HARDWARE_ERROR,
    CheckCondition,
    Sense,
    invalid_field,
    invalid_parameter,
    parameter_length,
)
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

BUFFER_SIZE = 256 << 10

_SELFTEST = 0x04
_SHORT, _EXTENDED, _FOREGROUND_SHORT, _FOREGROUND_EXTENDED = 1, 2, 5, 6
_FAILED_SELF_TEST = Sense(HARDWARE_ERROR, 0x3E, 0x03)
_DATA, _DESCRIPTOR, _ECHO_DESCRIPTOR = 0x02, 0x03, 0x0B


# -- diagnostics -----------------------------------------------------------------------------------------------------


@command("SEND DIAGNOSTIC", "1d f7 00 ffff 07", Access.WRITE, data_out=list_length(3, 4), timeout=120)
async def send_diagnostic(unit: LogicalUnit, task: Task) -> Result:
    """Test whether the brick answers (short), and reads the first and the last block (extended)."""
    flags, length = task.cdb[1], int.from_bytes(task.cdb[3:5], "big")
    code = flags >> 5
    if flags & _SELFTEST and code:
        raise invalid_field(1, 7, "a self-test code with SELFTEST")
    if not flags & _SELFTEST and not code:
        _diagnostic_page(bytes(task.data[:length]), length)
        return DONE
    if length:
        raise invalid_field(3, text="a parameter list with a self-test")
    if not flags & _SELFTEST and code not in (_SHORT, _EXTENDED, _FOREGROUND_SHORT, _FOREGROUND_EXTENDED):
        raise invalid_field(1, 7, f"self-test code {code}")
    try:
        await unit.backing.refresh()
        if code in (_EXTENDED, _FOREGROUND_EXTENDED):
            for lba in (0, unit.blocks - 1):
                await unit.backing.read(lba << unit.shift, unit.block_size)
    except FopError as error:
        unit.statistics.failed(task, error)
        unit.logs.tested(code, (_FAILED_SELF_TEST.key, _FAILED_SELF_TEST.asc, _FAILED_SELF_TEST.ascq))
        # That a background test has failed stands in log page 10h only.
        if code not in (_SHORT, _EXTENDED):
            raise CheckCondition(_FAILED_SELF_TEST, str(error)) from error
    else:
        unit.logs.tested(code, None)
    return DONE


def _diagnostic_page(data: bytes, length: int) -> None:
    """Raise what is wrong with a diagnostic page to be sent; 00h, which lists the pages, is the only one."""
    if not length:
        return
    if len(data) < length or length < 4:
        raise parameter_length("the list ends in a diagnostic page")
    if data[0]:
        raise invalid_parameter(0, text=f"diagnostic page {data[0]:#04x}")
    if int.from_bytes(data[2:4], "big") != length - 4:
        raise parameter_length("the diagnostic page has another length than the list")


@command("RECEIVE DIAGNOSTIC RESULTS", "1c 01 ff ffff 07", Access.READ)
async def receive_diagnostic_results(unit: LogicalUnit, task: Task) -> Result:
    """The list of diagnostic pages, which is the only one."""
    if task.cdb[1] & 1 and task.cdb[2]:
        raise invalid_field(2, text=f"diagnostic page {task.cdb[2]:#04x}")
    return data_in(b"\x00\x00\x00\x01\x00", allocation(task.cdb))


# -- the data buffer -------------------------------------------------------------------------------------------------


def _write_length(unit: LogicalUnit, cdb: bytes) -> int:
    size = int.from_bytes(cdb[6:9], "big")
    return size if size <= BUFFER_SIZE else 0


@command("WRITE BUFFER", "3b 1f ff ffffff ffffff 07", Access.WRITE, data_out=_write_length)
async def write_buffer(unit: LogicalUnit, task: Task) -> Result:
    """Fill the unit's buffer, which tests of the way to it use (mode 02h: data)."""
    cdb = task.cdb
    offset, size = int.from_bytes(cdb[3:6], "big"), int.from_bytes(cdb[6:9], "big")
    _check_buffer(cdb[1] & 0x1F, cdb[2], (_DATA,))
    if offset + size > BUFFER_SIZE:
        raise invalid_field(3 if offset > BUFFER_SIZE else 6, text=f"beyond the {BUFFER_SIZE} bytes of the buffer")
    data = task.data[:size]
    if len(data):
        if not unit.buffer:
            unit.buffer = bytearray(BUFFER_SIZE)
        unit.buffer[offset : offset + len(data)] = data
    return DONE


@command("READ BUFFER(10)", "3c 1f ff ffffff ffffff 07", Access.READ)
async def read_buffer_10(unit: LogicalUnit, task: Task) -> Result:
    """The unit's buffer (mode 02h), its size (03h) or that there is no echo buffer (0Bh)."""
    cdb = task.cdb
    return _read_buffer(unit, cdb, int.from_bytes(cdb[3:6], "big"), int.from_bytes(cdb[6:9], "big"), cdb[2])


@command("READ BUFFER(16)", "9b 1f ffffffffffffffff ffffffff ff 07", Access.READ)
async def read_buffer_16(unit: LogicalUnit, task: Task) -> Result:
    """As READ BUFFER(10), with wider fields."""
    cdb = task.cdb
    return _read_buffer(unit, cdb, int.from_bytes(cdb[2:10], "big"), int.from_bytes(cdb[10:14], "big"), cdb[14])


def _check_buffer(mode: int, buffer: int, modes: tuple[int, ...]) -> None:
    if mode not in modes:
        raise invalid_field(1, 4, f"buffer mode {mode:#04x}")
    if buffer:
        raise invalid_field(2, text=f"buffer {buffer}")


def _read_buffer(unit: LogicalUnit, cdb: bytes, offset: int, size: int, buffer: int) -> Result:
    mode = cdb[1] & 0x1F
    if mode == _DESCRIPTOR:
        # A buffer that there is not has no capacity, which is no error (SPC-5 6.18.6).
        return data_in(struct.pack(">I", 0 if buffer else BUFFER_SIZE), size)
    _check_buffer(mode, buffer, (_DATA, _ECHO_DESCRIPTOR))
    if mode == _ECHO_DESCRIPTOR:
        return data_in(bytes(4), size)
    if offset > BUFFER_SIZE:
        raise invalid_field(2 if cdb[0] == 0x9B else 3, text=f"beyond the {BUFFER_SIZE} bytes of the buffer")
    end = min(offset + size, BUFFER_SIZE)
    return data_in(bytes(unit.buffer[offset:end]) if unit.buffer else bytes(end - offset), size)


# -- defects ---------------------------------------------------------------------------------------------------------


@command("READ DEFECT DATA(10)", "37 00 1f 00000000 ffff 07", Access.READ, MEDIUM)
async def read_defect_data_10(unit: LogicalUnit, task: Task) -> Result:
    """An empty list, whatever is asked for: bad sectors are the business of what is below the brick."""
    return data_in(struct.pack(">BBH", 0, task.cdb[2] & 0x1F, 0), allocation(task.cdb))


@command("READ DEFECT DATA(12)", "b7 1f ffffffff ffffffff 00 07", Access.READ, MEDIUM)
async def read_defect_data_12(unit: LogicalUnit, task: Task) -> Result:
    """As READ DEFECT DATA(10)."""
    return data_in(struct.pack(">BBHI", 0, task.cdb[1] & 0x1F, 0, 0), allocation(task.cdb))
