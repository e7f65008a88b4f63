"""Log pages, LOG SENSE and LOG SELECT (SPC-5 7.3, SBC-4 6.4)."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from glustx.scsi.commands import Access, command, list_length
from glustx.scsi.mode_pages import AVAILABLE, POOL_AVAILABLE, POOL_USED, THRESHOLD_EXPONENT, USED
from glustx.scsi.sense import LOG_CHANGED, invalid_field, invalid_parameter, parameter_length
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_LIST = 0x03  # control byte of a binary list parameter
_DISABLE_SAVE, _SPF = 0x80, 0x40
_ALL_SUBPAGES = 0xFF
_RESULTS = 20  # self-tests that page 10h holds
_UNKNOWN_TEMPERATURE = 0xFF
_DEDICATED, _SHARED = 1, 2  # scope of a resource count
_DEFAULT_CUMULATIVE = 3

Parameters = dict[int, bytes]
Build = Callable[["LogicalUnit"], Awaitable[Parameters]]


class SelfTest(msgspec.Struct, frozen=True):
    """How a self-test has ended.

    Attributes:
        code: SELF-TEST CODE of SEND DIAGNOSTIC, 0 for the default one.
        hours: since the unit was opened.
        sense: key, ASC and ASCQ; None when it passed.
    """

    code: int
    hours: int
    sense: tuple[int, int, int] | None


class Logs:
    """What log pages need besides the unit's own counters.

    Args:
        unit: whose it is.

    Attributes:
        self_tests: the last ones, newest first.
        starts: how often the unit was opened or its medium loaded.
        since: the statistics when LOG SELECT reset them, all 0 before.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.opened = unit.reactor.time()
        self.self_tests: list[SelfTest] = []
        self.starts = 1
        self.since: tuple[int, ...] = (0,) * 7

    def tested(self, code: int, sense: tuple[int, int, int] | None) -> None:
        """Keep how a self-test has ended."""
        hours = int(self.unit.reactor.time() - self.opened) // 3600
        self.self_tests = [SelfTest(code, min(hours, 0xFFFF), sense), *self.self_tests][:_RESULTS]

    def reset(self, code: int) -> None:
        """Begin a page anew; 0 means all."""
        if code in (0x00, 0x10):
            self.self_tests = []
        if code in (0x00, 0x19):
            self.since = self.unit.statistics.totals()
        if code in (0x00, 0x2F):
            self.unit.exceptions.failing = False
            self.unit.exceptions.review()


class LogPage(msgspec.Struct, frozen=True):
    """One page; `build` returns its parameters by code."""

    code: int
    name: str
    build: Build


PAGES: dict[int, LogPage] = {}


def page(code: int, name: str) -> Callable[[Build], Build]:
    """Declare the function below as the parameters of a page."""

    def declare(build: Build) -> Build:
        if code in PAGES:
            raise ValueError(f"log page {code:#04x} is declared already")
        PAGES[code] = LogPage(code, name, build)
        return build

    return declare


@page(0x0C, "Logical block provisioning")
async def _provisioning(unit: LogicalUnit) -> Parameters:
    usage = await unit.backing.usage()
    piece = unit.block_size << THRESHOLD_EXPONENT
    counts = {
        AVAILABLE: (usage.pool_free, _SHARED),
        USED: (usage.used, _DEDICATED),
        POOL_AVAILABLE: (usage.pool_free, _SHARED),
        POOL_USED: (usage.pool_size - usage.pool_free, _SHARED),
    }
    return {code: struct.pack(">IB3x", min(size // piece, 0xFFFFFFFF), scope) for code, (size, scope) in counts.items()}


@page(0x0D, "Temperature")
async def _temperature(unit: LogicalUnit) -> Parameters:
    return {0x0000: bytes([0, _UNKNOWN_TEMPERATURE]), 0x0001: bytes([0, _UNKNOWN_TEMPERATURE])}


@page(0x0E, "Start-stop cycle counter")
async def _start_stop(unit: LogicalUnit) -> Parameters:
    return {0x0004: struct.pack(">I", unit.logs.starts)}


@page(0x10, "Self-test results")
async def _self_tests(unit: LogicalUnit) -> Parameters:
    found: Parameters = {}
    for index in range(_RESULTS):
        if index >= len(unit.logs.self_tests):
            found[index + 1] = bytes(16)
            continue
        each = unit.logs.self_tests[index]
        result = 0 if each.sense is None else 7
        found[index + 1] = struct.pack(
            ">BBHQBBBB", each.code << 5 | result, 0, each.hours, (1 << 64) - 1, *(each.sense or (0, 0, 0)), 0
        )
    return found


@page(0x11, "Solid state media")
async def _solid_state(unit: LogicalUnit) -> Parameters:
    return {0x0001: bytes(4)}  # percentage used: what wears out is below the brick


@page(0x19, "General statistics and performance")
async def _statistics(unit: LogicalUnit) -> Parameters:
    totals = unit.statistics.totals()
    reads, writes, in_bytes, out_bytes, read_ms, write_ms, idle_ms = (
        now - then for now, then in zip(totals, unit.logs.since, strict=True)
    )
    blocks_received, blocks_sent = out_bytes >> unit.shift, in_bytes >> unit.shift
    return {
        0x0001: struct.pack(">8Q", reads, writes, blocks_received, blocks_sent, read_ms, write_ms, 0, 0),
        0x0002: struct.pack(">Q", idle_ms),
        0x0003: struct.pack(">II", 3, 1),  # intervals are 1 * 10^-3 s
    }


@page(0x2F, "Informational exceptions")
async def _exceptions(unit: LogicalUnit) -> Parameters:
    return {0x0000: bytes([*unit.exceptions.code, _UNKNOWN_TEMPERATURE, _UNKNOWN_TEMPERATURE])}


def _offered(unit: LogicalUnit) -> list[int]:
    """Return the codes of the pages that a unit has, ascending."""
    left_out = set()
    if not unit.config.unmap:
        left_out.add(0x0C)
    if unit.config.rpm != 1:
        left_out.add(0x11)
    return sorted({0x00, *PAGES} - left_out)


async def _encode(unit: LogicalUnit, code: int, subcode: int, pointer: int) -> bytes:
    """Return a log page with its header."""
    offered = _offered(unit)
    if code not in offered:
        raise invalid_field(2, 5, f"log page {code:#04x}")
    if subcode not in (0, _ALL_SUBPAGES):
        raise invalid_field(3, text=f"subpage {subcode:#04x} of log page {code:#04x}")
    if code == 0x00 or subcode:
        if pointer:
            raise invalid_field(5, text=f"a parameter pointer into log page {code:#04x}/{subcode:#04x}")
        data = _listed(offered, code, subcode)
    else:
        parameters = {key: value for key, value in (await PAGES[code].build(unit)).items() if key >= pointer}
        if not parameters:
            raise invalid_field(5, text=f"parameter {pointer:#06x} is behind the last of log page {code:#04x}")
        data = b"".join(
            struct.pack(">HBB", key, _LIST, len(value)) + value for key, value in sorted(parameters.items())
        )
    first = code | _DISABLE_SAVE | (_SPF if subcode else 0)
    return struct.pack(">BBH", first, subcode, len(data)) + data


def _listed(offered: list[int], code: int, subcode: int) -> bytes:
    if not subcode:
        return bytes(offered)
    pairs = [(each, 0) for each in offered] + [(0x00, _ALL_SUBPAGES)] if code == 0x00 else [(code, 0)]
    if code:
        pairs.append((code, _ALL_SUBPAGES))
    return b"".join(map(bytes, sorted(pairs)))


@command("LOG SENSE", "4d 00 ff ff 00 ffff ffff 07", Access.ANY)
async def log_sense(unit: LogicalUnit, task: Task) -> Result:
    """A log page from a parameter on; all parameters are lists, which have neither thresholds nor defaults."""
    cdb = task.cdb
    data = await _encode(unit, cdb[2] & 0x3F, cdb[3], cdb[5] << 8 | cdb[6])
    return data_in(data, cdb[7] << 8 | cdb[8])


@command("LOG SELECT", "4c 02 ff ff 000000 ffff 07", Access.WRITE, data_out=list_length(7, 8))
async def log_select(unit: LogicalUnit, task: Task) -> Result:
    """Begin a log page anew, or all of them; no parameter can be set."""
    cdb = task.cdb
    code, subcode, length = cdb[2] & 0x3F, cdb[3], cdb[7] << 8 | cdb[8]
    if cdb[1] & 0x02 and length:
        raise invalid_field(1, 1, "a parameter list with PCR")
    if length:
        _refuse(bytes(task.data[:length]), length)
    if code not in _offered(unit):
        raise invalid_field(2, 5, f"log page {code:#04x}")
    if subcode:
        raise invalid_field(3, text=f"subpage {subcode:#04x} of log page {code:#04x}")
    if cdb[1] & 0x02 or cdb[2] >> 6 == _DEFAULT_CUMULATIVE:
        unit.logs.reset(code)
        unit.tell_all(LOG_CHANGED, but=task.nexus)
    return DONE


def _refuse(data: bytes, length: int) -> None:
    """Raise what is wrong with a parameter list: it ends too early, or it sets what cannot be set."""
    if len(data) < length or length < 4 or int.from_bytes(data[2:4], "big") > length - 4:
        raise parameter_length("the list ends in a log page")
    raise invalid_parameter(4 if length > 4 else 0, text="log parameters that cannot be set")
