"""Offloaded data transfer: POPULATE TOKEN, WRITE USING TOKEN (SBC-4 5.16, 5.50), and what is told of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from glustx.scsi import third_party as can
from glustx.scsi.commands import CHANGES, MEDIUM, Access, allocation, command, list_length
from glustx.scsi.copy_engine import Work, copy, fill
from glustx.scsi.copy_lists import Operation, Status
from glustx.scsi.copy_results import answer, asked, long_status
from glustx.scsi.sense import (
    ILLEGAL_REQUEST,
    CheckCondition,
    Sense,
    invalid_field,
    invalid_parameter,
    parameter_length,
    pointer,
)
from glustx.scsi.task import DONE, Result, Task, data_in
from glustx.scsi.tokens import DELETED, Token

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_RANGE = 16
_IMMED, _ROD_TYPE_VALID, _DELETE = 0x01, 0x02, 0x02
_TOKEN_AT, _RANGES_OF_WRITE, _RANGES_OF_POPULATE = 16, 534, 14
_LENGTH = list_length(10, 13)

Ranges = tuple[tuple[int, int], ...]


def _sized(least: int) -> Callable[[LogicalUnit, bytes], int]:
    most = least + can.MOST_RANGES * _RANGE

    def length(unit: LogicalUnit, cdb: bytes) -> int:
        found = _LENGTH(unit, cdb)
        if found and not least + _RANGE <= found <= most:
            raise invalid_field(10, text=f"a parameter list of {found} bytes; {least + _RANGE} to {most} can be")
        return found

    return length


_populate_length, _write_length = _sized(_RANGES_OF_POPULATE + 2), _sized(_RANGES_OF_WRITE + 2)


def _ranges(unit: LogicalUnit, data: bytes, at: int) -> Ranges:
    """Return the ranges whose length stands at `at`, after checking the lengths of the list."""
    size = int.from_bytes(data[at : at + 2], "big")
    begin = at + 2
    if int.from_bytes(data[0:2], "big") + 2 > len(data) or begin + size > int.from_bytes(data[0:2], "big") + 2:
        raise invalid_parameter(0, text=f"lengths that do not fit into {len(data)} bytes")
    if size < _RANGE or size % _RANGE:
        raise invalid_parameter(at, text=f"range descriptors of {size} bytes")
    found = tuple(struct.unpack_from(">QI", data, begin + each) for each in range(0, size, _RANGE))
    for number, (lba, count) in enumerate(found):
        if lba + count > unit.blocks:
            sks = pointer(begin + number * _RANGE, in_cdb=False)
            raise CheckCondition(Sense(ILLEGAL_REQUEST, 0x21, 0, sks=sks), f"range {number} is beyond the end")
    taken = sorted(each for each in found if each[1])
    if any(lba + count > taken[after][0] for after, (lba, count) in enumerate(taken[:-1], 1)):
        raise invalid_parameter(begin, text="ranges that overlap")
    if not 0 < sum(count for _, count in found) <= can.most_token_blocks(unit):
        raise invalid_parameter(begin, text=f"not 1 to {can.most_token_blocks(unit)} blocks")
    return found


def _data(unit: LogicalUnit, task: Task, length: Callable[[LogicalUnit, bytes], int]) -> bytes:
    wanted = length(unit, task.cdb)
    if len(task.data) < wanted:
        raise parameter_length(f"{len(task.data)} of {wanted} bytes of parameters came")
    return bytes(task.data)[:wanted]


@command(
    "POPULATE TOKEN",
    "83 10 00000000 ffffffff ffffffff 3f 07",
    Access.READ,
    MEDIUM,
    service_action=0x10,
    data_out=_populate_length,
    timeout=60,
)
async def populate_token(unit: LogicalUnit, task: Task) -> Result:
    """Make a token that stands for ranges of the unit, as they are now where the brick can share blocks."""
    data = _data(unit, task, _populate_length)
    if not data:
        return DONE
    inactivity = int.from_bytes(data[4:8], "big")
    if inactivity > can.LONGEST_INACTIVITY:
        raise invalid_parameter(4, text=f"a time-out of {inactivity} seconds")
    if data[2] & _ROD_TYPE_VALID and int.from_bytes(data[8:12], "big") != can.ACCESS_UPON_REFERENCE:
        raise invalid_parameter(8, text=f"ROD type {data[8:12].hex()}")
    ranges = _ranges(unit, data, _RANGES_OF_POPULATE)

    async def populate(operation: Operation) -> None:
        token = await unit.gateway.tokens.make(unit, [each for each in ranges if each[1]], inactivity or can.INACTIVITY)
        operation.token = token.data
        operation.moved = token.blocks << unit.shift
        operation.segments = len(ranges)

    return await unit.gateway.copies.run(task, _list_id(task), populate, background=bool(data[2] & _IMMED))


def _list_id(task: Task) -> int:
    return int.from_bytes(task.cdb[6:10], "big")


@command(
    "WRITE USING TOKEN",
    "83 11 00000000 ffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    service_action=0x11,
    data_out=_write_length,
    timeout=600,
)
async def write_using_token(unit: LogicalUnit, task: Task) -> Result:
    """Write what a token stands for to ranges of the unit; as much as there is, when that is less."""
    data = _data(unit, task, _write_length)
    if not data:
        return DONE
    ranges = _ranges(unit, data, _RANGES_OF_WRITE)
    offset = int.from_bytes(data[8:16], "big")
    tokens = unit.gateway.tokens
    token = tokens.find(data[_TOKEN_AT : _TOKEN_AT + can.TOKEN_LENGTH])
    if token is not None and offset >= token.blocks:
        raise invalid_parameter(8, text=f"block {offset} of a token for {token.blocks}")

    async def write(operation: Operation) -> None:
        if token is None:
            await _zeroes(unit, task, ranges, operation)
            return
        tokens.begin_use(token)
        try:
            await _blocks(unit, task, token, offset, ranges, operation)
        finally:
            tokens.end_use(token)
        if data[2] & _DELETE:
            tokens.end(token, DELETED)

    return await unit.gateway.copies.run(task, _list_id(task), write, background=bool(data[2] & _IMMED))


async def _zeroes(unit: LogicalUnit, task: Task, ranges: Ranges, operation: Operation) -> None:
    work = Work(task.nexus, operation.wanted, operation.add)
    for lba, count in ranges:
        await fill(work, unit, lba << unit.shift, count << unit.shift)
        operation.segments += 1


async def _blocks(
    unit: LogicalUnit, task: Task, token: Token, offset: int, ranges: Ranges, operation: Operation
) -> None:
    source = token.unit
    if (sum(count for _, count in ranges) << unit.shift) & (source.block_size - 1):
        raise invalid_parameter(_RANGES_OF_WRITE + 2, text=f"the token's blocks have {source.block_size} bytes")

    def wanted() -> bool:
        token.check()
        return operation.wanted()

    work = Work(task.nexus, wanted, operation.add)
    snapshot = token.pin.backing if token.pin is not None else None
    there = [(lba << source.shift, count << source.shift) for lba, count in token.ranges]
    here = [(lba << unit.shift, count << unit.shift) for lba, count in ranges]
    for source_offset, at, size in _pairs(there, offset << source.shift, here):
        await copy(work, source, source_offset, unit, at, size, snapshot, by_token=True)
    operation.segments = len(ranges)
    if operation.moved < sum(size for _, size in here):
        operation.status = Status.RESIDUAL


def _pairs(
    there: Sequence[tuple[int, int]], skip: int, here: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """Lay two lists of (offset, size) side by side, the first from `skip` on: (first's offset, second's, size)."""
    source = iter(there)
    source_offset, left = 0, 0
    for at, size in here:
        while size:
            while not left:
                following = next(source, None)
                if following is None:
                    return
                source_offset, left = following
                skipped = min(skip, left)
                source_offset, left, skip = source_offset + skipped, left - skipped, skip - skipped
            count = min(size, left)
            yield source_offset, at, count
            source_offset, at, left, size = source_offset + count, at + count, left - count, size - count


@command("RECEIVE ROD TOKEN INFORMATION", "84 07 ffffffff 00000000 ffffffff 00 07", Access.ANY, service_action=0x07)
async def token_information(unit: LogicalUnit, task: Task) -> Result:
    """Tell how far a POPULATE TOKEN or WRITE USING TOKEN is, and give the token."""
    found = asked(unit, task)
    if found.action not in (0x10, 0x11):
        raise invalid_field(2, text="the list identifier of a copy without tokens")
    token = struct.pack(">Ixx", 2 + len(found.token)) + found.token if found.token else bytes(4)
    return answer(unit, task, found, long_status(unit, found) + token)


@command("REPORT ALL ROD TOKENS", "84 08 0000000000000000 ffffffff 00 07", Access.ANY, service_action=0x08)
async def all_tokens(unit: LogicalUnit, task: Task) -> Result:
    """List the first 96 bytes of each token of the unit: all but what makes it usable."""
    heads = b"".join(unit.gateway.tokens.heads(unit))
    return data_in(struct.pack(">II", len(heads) + 4, 0) + heads, allocation(task.cdb))
