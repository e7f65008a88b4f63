"""EXTENDED COPY, with list identifiers of eight bits (LID1) and of 32 (LID4) (SPC-5 6.4, 6.5).

Who may be copied from and to: units that the same nexus sees, and no others; with `insecure_tpc` on both units, any of
the gateway. Everything is checked before the first byte moves: descriptors, whom they mean, ranges, reservations.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec

from glustx.scsi import third_party as can
from glustx.scsi.commands import Access, command, list_length
from glustx.scsi.copy_engine import Failed, Work, copy, may
from glustx.scsi.copy_lists import Operation
from glustx.scsi.pr_state import Conflict, State
from glustx.scsi.reservations import port_of
from glustx.scsi.sense import (
    COPY_ABORTED,
    ILLEGAL_REQUEST,
    CheckCondition,
    Sense,
    check,
    invalid_parameter,
    parameter_length,
)
from glustx.scsi.task import DONE, RESERVATION_CONFLICT, Nexus, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_ID_HELD, _ID_DROPPED, _NO_ID = 0, 2, 3  # LIST ID USAGE
_FORMAT_4, _HEADER_CSCD = 0x01, 0xFF
_UNREACHABLE, _NO_DEVICE, _WRONG_TYPE = (0x08, 0x04), (0x0D, 0x02), (0x0D, 0x03)
_DESTINATION_COUNTS = 0x02  # DC
_TEST_UNIT_READY = 0x01


class Lists(msgspec.Struct, frozen=True):
    """A parameter list taken apart: `cscds` and `segments` are whole descriptors, `at` where each begins."""

    list_id: int
    usage: int
    immediate: bool
    cscds: tuple[bytes, ...]
    segments: tuple[tuple[int, bytes], ...]


class Range(msgspec.Struct, frozen=True):
    """One segment that copies; in bytes."""

    source: Any
    source_offset: int
    target: Any
    offset: int
    size: int


def parse(data: bytes, *, short: bool) -> Lists:
    """Take a parameter list apart.

    Args:
        data: as it came.
        short: the format of LID1 rather than LID4.

    Raises CheckCondition: PARAMETER LIST LENGTH ERROR, too many or unsupported descriptors, INVALID FIELD IN PARAMETER
    LIST.
    """
    header = 16 if short else 48
    if len(data) < header:
        raise parameter_length(f"a header of {len(data)} bytes")
    if short:
        list_id, flags, cscd_bytes, segment_bytes, inline = struct.unpack_from(">BBH4xII", data)
        immediate = False
    else:
        if data[0] != _FORMAT_4:
            raise invalid_parameter(0, text=f"parameter list format {data[0]}")
        if data[16] != _HEADER_CSCD or int.from_bytes(data[2:4], "big") != 0x20:
            raise invalid_parameter(16, text="a header that is not of type FFh with 32 bytes")
        flags, immediate = data[1], bool(data[15] & 1)
        list_id, cscd_bytes, segment_bytes, inline = struct.unpack_from(">I18xHHH", data, 20)
    usage = flags >> 3 & 3
    if usage == 1 or (usage == _NO_ID and list_id):
        raise invalid_parameter(1, 4, f"list identifier {list_id} with LIST ID USAGE {usage}")
    if inline:
        raise check(ILLEGAL_REQUEST, 0x26, 0x0B, f"{inline} bytes of inline data")
    if cscd_bytes + segment_bytes > can.LONGEST_LIST or header + cscd_bytes + segment_bytes > len(data):
        raise parameter_length(f"descriptors of {cscd_bytes} and {segment_bytes} bytes in {len(data)}")
    cscds = _cscds(data, header, cscd_bytes)
    segments = _segments(data, header + cscd_bytes, segment_bytes)
    return Lists(list_id, usage, immediate, cscds, segments)


def _cscds(data: bytes, at: int, size: int) -> tuple[bytes, ...]:
    if size % can.CSCD_LENGTH:
        raise parameter_length(f"CSCD descriptors of {size} bytes")
    if size // can.CSCD_LENGTH > can.MOST_CSCDS:
        raise check(ILLEGAL_REQUEST, 0x26, 0x06, f"{size // can.CSCD_LENGTH} CSCD descriptors")
    found = tuple(data[begin : begin + can.CSCD_LENGTH] for begin in range(at, at + size, can.CSCD_LENGTH))
    for each in found:
        if each[0] != can.IDENTIFICATION:
            raise check(ILLEGAL_REQUEST, 0x26, 0x07, f"CSCD descriptor type {each[0]:#x}")
    return found


def _segments(data: bytes, at: int, size: int) -> tuple[tuple[int, bytes], ...]:
    found = []
    end = at + size
    while at < end:
        kind = data[at]
        length = can.SEGMENTS.get(kind)
        if length is None:
            raise check(ILLEGAL_REQUEST, 0x26, 0x09, f"segment descriptor type {kind:#x}")
        if at + length > end:
            raise parameter_length("a segment descriptor that is cut off")
        if int.from_bytes(data[at + 2 : at + 4], "big") != length - 4:
            raise invalid_parameter(at + 2, text=f"a segment descriptor of type {kind:#x} has {length} bytes")
        found.append((at, data[at : at + length]))
        if len(found) > can.MOST_SEGMENTS:
            raise check(ILLEGAL_REQUEST, 0x26, 0x08, f"more than {can.MOST_SEGMENTS} segment descriptors")
        at += length
    return tuple(found)


def _refuse(asc: tuple[int, int], segment: int, text: str) -> CheckCondition:
    return CheckCondition(Sense(COPY_ABORTED, *asc, specific=segment), text)


def reachable(unit: LogicalUnit, nexus: Nexus) -> set[LogicalUnit]:
    """Return the units that a nexus may copy from and to by commands on `unit`."""
    found = set(nexus.luns.values())
    if unit.config.insecure_tpc:
        found.update(each for each in unit.gateway.units.values() if each.config.insecure_tpc)
    return found


def named_by(cscd: bytes, units: set[LogicalUnit]) -> LogicalUnit | None:
    """Return the unit that a CSCD descriptor (type E4h) names, None for one that is not among `units`."""
    what, length = cscd[5], cscd[7]
    if what & 0x30 or length > 20:
        return None  # not of a logical unit
    wanted = (what & 0x0F, cscd[8 : 8 + length])
    for unit in units:
        own = unit.identity.designators(unit.config.vendor)
        at = 0
        while at < len(own):
            size = own[at + 3]
            if (own[at + 1] & 0x3F, own[at + 4 : at + 4 + size]) == wanted:
                return unit
            at += 4 + size
    return None


class _Copy:
    """One EXTENDED COPY: what its descriptors mean for a unit and a nexus."""

    def __init__(self, unit: LogicalUnit, nexus: Nexus, lists: Lists) -> None:
        self.unit = unit
        self.nexus = nexus
        self.lists = lists
        self.units = reachable(unit, nexus)
        self.known: dict[int, LogicalUnit] = {}

    def end(self, index: int, segment: int) -> LogicalUnit:
        """Return the unit of a CSCD index."""
        if index == can.THIS_UNIT:
            return self.unit
        found = self.known.get(index)
        if found is None:
            found = self.known[index] = self._find(index, segment)
        return found

    def _find(self, index: int, segment: int) -> LogicalUnit:
        if index >= len(self.lists.cscds):
            raise _refuse(_UNREACHABLE, segment, f"there is no CSCD descriptor {index}")
        cscd = self.lists.cscds[index]
        found = named_by(cscd, self.units)
        if found is None:
            raise _refuse(_UNREACHABLE, segment, f"CSCD descriptor {index} names no unit that {self.nexus!r} sees")
        block = int.from_bytes(cscd[29:32], "big")
        if cscd[1] & 0x1F or block not in (0, found.block_size):
            raise _refuse(_WRONG_TYPE, segment, f"{found!r} is a disk with blocks of {found.block_size} bytes")
        return found

    def range(self, number: int, segment: bytes) -> Range | None:
        """Return what a segment copies, None for one that does something else."""
        kind = segment[0]
        if kind not in (can.BLOCK_TO_BLOCK, can.BLOCK_TO_BLOCK_OFFSETS):
            index = segment[4:6] if kind == can.VERIFY_DEVICE else segment[6:8]
            self.end(int.from_bytes(index, "big"), number)
            return None
        source_index, index = struct.unpack_from(">HH", segment, 4)
        source, target = self.end(source_index, number), self.end(index, number)
        from_lba, lba = struct.unpack_from(">QQ", segment, 12)
        if kind == can.BLOCK_TO_BLOCK:
            counted = target if segment[1] & _DESTINATION_COUNTS else source
            size = int.from_bytes(segment[10:12], "big") << counted.shift
            from_byte = byte = 0
            if size & (source.block_size - 1) or size & (target.block_size - 1):
                raise _refuse((0x26, 0x0A), number, "a segment that ends within a block")
        else:
            size, from_byte, byte = (
                int.from_bytes(segment[8:12], "big"),
                int.from_bytes(segment[28:30], "big"),
                int.from_bytes(segment[30:32], "big"),
            )
        if size > can.LONGEST_SEGMENT:
            raise invalid_parameter(self.lists.segments[number][0] + 8, text=f"a segment of {size} bytes")
        source_offset, offset = (from_lba << source.shift) + from_byte, (lba << target.shift) + byte
        for end, first in ((source, source_offset), (target, offset)):
            if first + size > end.blocks << end.shift:
                raise _refuse(_NO_DEVICE, number, f"a segment beyond the end of {end!r}")
        return Range(source, source_offset, target, offset, size)

    async def run(self, operation: Operation) -> None:
        """Check all segments, then do them."""
        work = Work(self.nexus, operation.wanted, operation.add)
        ranges = [self.range(number, segment) for number, (_, segment) in enumerate(self.lists.segments)]
        for number, each in enumerate(ranges):
            if each is not None:
                operation.segments = number
                await may(each.source, self.nexus, writes=False)
                await may(each.target, self.nexus, writes=True)
        for number, (_, segment) in enumerate(self.lists.segments):
            operation.segments = number
            each = ranges[number]
            if each is not None:
                await copy(work, each.source, each.source_offset, each.target, each.offset, each.size)
            elif segment[0] == can.VERIFY_DEVICE:
                self._verify(number, segment)
            else:
                await self._register(number, segment)
        operation.segments = len(ranges)

    def _verify(self, number: int, segment: bytes) -> None:
        unit = self.end(int.from_bytes(segment[4:6], "big"), number)
        if segment[8] & _TEST_UNIT_READY and unit.not_ready is not None:
            raise Failed(1, 0x02, unit.not_ready)

    async def _register(self, number: int, segment: bytes) -> None:
        unit = self.end(int.from_bytes(segment[6:8], "big"), number)
        key, new = struct.unpack_from(">QQ", segment, 8)
        nexus = port_of(self.nexus)

        def action(state: State) -> bool:
            return state.register(nexus, key, new)

        try:
            await unit.reservations.change(action, restricts=False)
        except Conflict:
            raise Failed(2, RESERVATION_CONFLICT) from None


async def _extended_copy(unit: LogicalUnit, task: Task, short: bool) -> Result:
    length = int.from_bytes(task.cdb[10:14], "big")
    if not length:
        return DONE
    data = bytes(task.data)[:length]
    lists = parse(data, short=short)
    doing = _Copy(unit, task.nexus, lists)
    return await unit.gateway.copies.run(
        task,
        lists.list_id,
        doing.run,
        short=short,
        background=lists.immediate,
        named=lists.usage != _NO_ID,
    )


_LENGTH = list_length(10, 13)


def parameters(unit: LogicalUnit, cdb: bytes) -> int:
    """Return the data-out of EXTENDED COPY; PARAMETER LIST LENGTH ERROR for more than a list may have."""
    length = _LENGTH(unit, cdb)
    if length > can.LONGEST_LIST + (1 << 16):
        raise parameter_length(f"a parameter list of {length} bytes")
    return length


@command(
    "EXTENDED COPY(LID1)",
    "83 00 0000000000000000 ffffffff 00 07",
    Access.WRITE,
    service_action=0x00,
    data_out=parameters,
    timeout=600,
)
async def extended_copy_1(unit: LogicalUnit, task: Task) -> Result:
    """Copy ranges between units that the initiator sees."""
    return await _extended_copy(unit, task, short=True)


@command(
    "EXTENDED COPY(LID4)",
    "83 01 0000000000000000 ffffffff 00 07",
    Access.WRITE,
    service_action=0x01,
    data_out=parameters,
    timeout=600,
)
async def extended_copy_4(unit: LogicalUnit, task: Task) -> Result:
    """As LID1, with list identifiers of 32 bits and in the background if asked to."""
    return await _extended_copy(unit, task, short=False)
