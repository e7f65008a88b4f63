"""VERIFY and WRITE AND VERIFY (SBC-4 5.36, 5.54): where the brick is over the network, it makes checksums and the data
stays there."""

from __future__ import annotations

import errno
import hashlib
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.scsi.commands import (
    CHANGES,
    MEDIUM,
    Access,
    command,
    extent_10,
    extent_12,
    extent_16,
    extent_of,
)
from glustx.scsi.medium import breathe, first_difference, miscompare, read_failed, whole_blocks, write_failed
from glustx.scsi.read_write import blocks_out, data_out
from glustx.scsi.sense import invalid_field
from glustx.scsi.task import DONE, Piece, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_BYTCHK = 0x06
_MEDIUM, _DATA, _RESERVED, _ONE_BLOCK = 0x00, 0x02, 0x04, 0x06
_STEP = 1 << 20
_WORTH_A_CHECKSUM = 1024  # bytes; a checksum's answer takes a third of that
_SHA256 = 32
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


def _verify_out(unit: LogicalUnit, cdb: bytes) -> int:
    check = cdb[1] & _BYTCHK
    if check == _DATA:
        return blocks_out(unit, cdb)
    return unit.block_size if check == _ONE_BLOCK and extent_of(cdb)[1] else 0


@command("VERIFY(10)", "2f 16 ffffffff 3f ffff 07", Access.READ, MEDIUM, extent=extent_10, data_out=_verify_out)
@command(
    "VERIFY(12)",
    "af 16 ffffffff ffffffff 3f 07",
    Access.READ,
    MEDIUM,
    extent=extent_12,
    data_out=_verify_out,
    timeout=120,
)
@command(
    "VERIFY(16)",
    "8f 16 ffffffffffffffff ffffffff 3f 07",
    Access.READ,
    MEDIUM,
    extent=extent_16,
    data_out=_verify_out,
    timeout=120,
)
async def verify(unit: LogicalUnit, task: Task) -> Result:
    """Check that blocks can be read, and with BYTCHK what they hold: the data-out, or its one block in each."""
    cdb = task.cdb
    check = cdb[1] & _BYTCHK
    if check == _RESERVED:
        raise invalid_field(1, 2, "BYTCHK 10b")
    lba, count = extent_of(cdb)
    wanted = _verify_out(unit, cdb)
    if check == _MEDIUM:
        await check_medium(unit, task, lba, count)
    elif check == _DATA:
        await compare(unit, task, lba, whole_blocks(task.data, wanted, unit.shift))
    elif count and len(task.data) >= wanted:
        await _compare_same(unit, task, lba, count, bytes(task.data[:wanted]))
    return DONE


@command(
    "WRITE AND VERIFY(10)",
    "2e 12 ffffffff 3f ffff 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_10,
    data_out=blocks_out,
)
@command(
    "WRITE AND VERIFY(12)",
    "ae 12 ffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_12,
    data_out=blocks_out,
)
@command(
    "WRITE AND VERIFY(16)",
    "8e 12 ffffffffffffffff ffffffff 3f 07",
    Access.WRITE,
    MEDIUM | CHANGES,
    extent=extent_16,
    data_out=blocks_out,
)
async def write_and_verify(unit: LogicalUnit, task: Task) -> Result:
    """Write blocks durably and check that they can be read, with BYTCHK that they hold what was written."""
    cdb = task.cdb
    lba, count = extent_of(cdb)
    data = data_out(unit, task, count)
    if len(data):
        try:
            await unit.backing.write(lba << unit.shift, data, durable=True)
        except FopError as error:
            raise write_failed(unit, task, error, lba) from error
    if cdb[1] & _DATA:
        await compare(unit, task, lba, data)
    else:
        await check_medium(unit, task, lba, len(data) >> unit.shift)
    return DONE


# -- the work --------------------------------------------------------------------------------------------------------


async def check_medium(unit: LogicalUnit, task: Task, lba: int, count: int) -> None:
    """Read blocks where they are, holes left out."""
    backing = unit.backing
    at, end = lba << unit.shift, lba + count << unit.shift
    stop, data = (end, True) if end - at <= _STEP else (at, True)
    try:
        while at < end and not task.aborted:
            if at >= stop:
                stop, data = await backing.extent(at, end)
            if data:
                size = min(_STEP, stop - at)
                if not backing.remote or await _checksum(unit, at, size) is None:
                    await backing.read(at, size)
                at += size
                if at < end:
                    await breathe(unit.reactor)
            else:
                at = stop
    except FopError as error:
        raise await read_failed(unit, task, error, at >> unit.shift, min(_STEP, end - at) >> unit.shift) from error


async def compare(unit: LogicalUnit, task: Task, lba: int, expected: Piece, start: int = 0) -> None:
    """Compare blocks with the bytes that they should hold.

    Raises CheckCondition: MISCOMPARE with `start` and the first byte that differs as information.
    """
    whole = memoryview(expected)
    for at in range(0, len(whole), _STEP):
        if task.aborted:
            return
        piece = bytes(whole[at : at + _STEP])
        digest = hashlib.sha256(piece).digest() if _by_checksum(unit, len(piece)) else b""
        await _compare_piece(unit, task, (lba << unit.shift) + at, piece, digest, start + at)
        if at + _STEP < len(whole):
            await breathe(unit.reactor)


async def _compare_same(unit: LogicalUnit, task: Task, lba: int, count: int, block: bytes) -> None:
    """Compare each of some blocks with one."""
    step = min(_STEP >> unit.shift, count)
    pattern = block * step
    digest = hashlib.sha256(pattern).digest() if _by_checksum(unit, len(pattern)) else b""
    done = 0
    while done < count and not task.aborted:
        if count - done < step:
            pattern = pattern[: count - done << unit.shift]
            digest = hashlib.sha256(pattern).digest() if digest else b""
        await _compare_piece(unit, task, lba + done << unit.shift, pattern, digest, done << unit.shift)
        done += step
        if done < count:
            await breathe(unit.reactor)


def _by_checksum(unit: LogicalUnit, size: int) -> bool:
    return unit.backing.remote and size >= _WORTH_A_CHECKSUM


async def _compare_piece(
    unit: LogicalUnit, task: Task, offset: int, piece: bytes, digest: bytes, information: int
) -> None:
    try:
        if digest and await _checksum(unit, offset, len(piece)) == digest:
            return
        found = await unit.backing.read(offset, len(piece))
    except FopError as error:
        raise await read_failed(unit, task, error, offset >> unit.shift, len(piece) >> unit.shift) from error
    where = first_difference(found, piece)
    if where is not None:
        raise miscompare(information + where)


async def _checksum(unit: LogicalUnit, offset: int, size: int) -> bytes | None:
    """Return the brick's checksum of a range, an empty one when it is too weak to trust; None where it has none."""
    try:
        strong = (await unit.backing.checksum(offset, size))[1]
    except FopError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return strong if len(strong) == _SHA256 else b""
