"""SANITIZE (SBC-4 4.11, 5.33): all blocks are overwritten where they lie.

What has begun goes on whatever happens to the command, the initiator or the gateway, since a record of it is kept with
the file until it is done. Data is overwritten in place, and durably; what a file system that copies on write, or a
disk, keeps of its own accord is beyond that.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING

import msgspec

from glustx.errors import FopError
from glustx.runtime import Tasks, Waiter
from glustx.scsi.commands import CHANGES, Access, command, list_length
from glustx.scsi.medium import breathe
from glustx.scsi.sense import MEDIUM_ERROR, NOT_READY, CheckCondition, Sense, from_errno, invalid_field
from glustx.scsi.task import DONE, ORDERED, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

_RECORD = "trusted.glustx.scsi-sanitize"
_IMMED, _AUSE = 0x80, 0x20
_OVERWRITE, _BLOCK_ERASE, _EXIT_FAILURE_MODE = 0x01, 0x02, 0x1F
_INVERT = 0x80
_STEP = 1 << 20
_FAILED = Sense(MEDIUM_ERROR, 0x31, 0x03)


class Job(msgspec.Struct, frozen=True):
    """One sanitize operation.

    Attributes:
        pattern: what each block gets, repeated and cut to its size.
        passes: how often.
        invert: every other pass writes the pattern's complement.
        erase: only what holds data is overwritten, and its space given back afterwards.
        lenient: the unit may be used again after a failure (AUSE).
        failed: it has failed, and the unit is of no use until another one succeeds.
    """

    pattern: bytes
    passes: int = 1
    invert: bool = False
    erase: bool = False
    lenient: bool = False
    failed: bool = False


class Sanitizing:
    """The sanitize operation of one unit.

    Args:
        unit: whose it is; its `not_ready` tells initiators how far it is, or that it has failed.

    Attributes:
        job: what is done, or has failed; None without.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.job: Job | None = None
        self._tasks = Tasks(log)
        self._waiting: list[Waiter[Sense | None]] = []

    async def load(self) -> None:
        """Go on with what the record says."""
        record = await self.unit.backing.get_record(_RECORD)
        if record is None:
            return
        try:
            job = msgspec.msgpack.decode(zlib.decompress(record), type=Job)
        except (zlib.error, msgspec.DecodeError) as error:
            log.error("%r: the record of a SANITIZE makes no sense (%s); it counts as failed", self.unit, error)
            job = Job(b"\0", failed=True)
        if job.failed or self.unit.config.readonly:
            self.job = job
            self.unit.not_ready = _FAILED
        else:
            log.warning("%r: a SANITIZE was not done, and begins again", self.unit)
            self._start(job)

    async def stop(self) -> None:
        """Stop where it is; the next `load` goes on."""
        await self._tasks.stop()

    async def begin(self, job: Job, wait: bool) -> None:
        """Begin a job, and wait for its end if told so.

        Raises CheckCondition: why the unit cannot do it now, or why it has failed.
        """
        unit = self.unit
        if unit.not_ready is not None and unit.not_ready is not _FAILED:
            raise CheckCondition(unit.not_ready)
        before, unit.not_ready = unit.not_ready, _progress(0, 1)
        try:
            await self._keep(job)
        except BaseException:
            unit.not_ready = before
            raise
        ended: Waiter[Sense | None] = Waiter()
        if wait:
            self._waiting.append(ended)
        self._start(job)
        if wait:
            sense = await ended
            if sense is not None:
                raise CheckCondition(sense)

    async def forgive(self) -> None:
        """Let the unit be used though the last job has failed; CheckCondition when that job did not allow it."""
        if self.job is None:
            return
        if not self.job.failed:
            raise CheckCondition(self.unit.not_ready or _FAILED)
        if not self.job.lenient:
            raise invalid_field(1, 4, "the SANITIZE that failed was without AUSE")
        await self._keep(None)
        self.job = self.unit.not_ready = None

    async def _keep(self, job: Job | None) -> None:
        record = zlib.compress(msgspec.msgpack.encode(job)) if job is not None else None
        await self.unit.backing.set_record(_RECORD, record)

    def _start(self, job: Job) -> None:
        self.job = job
        self.unit.not_ready = _progress(0, 1)
        self._tasks.start(self._run(job))

    async def _run(self, job: Job) -> None:
        unit = self.unit
        # What has come before ends first; what comes now is not let in.
        hold = unit.order.enter(0, unit.blocks, True, ORDERED)
        try:
            if hold.waiter is not None:
                await hold.waiter
            for number in range(job.passes):
                await self._pass(job, number)
                await unit.backing.flush()
            if job.erase:
                await self._give_back()
            await self._keep(None)
        except FopError as error:
            log.error("%r: a SANITIZE has failed: %s", unit, error)
            self.job = msgspec.structs.replace(job, failed=True)
            try:
                await self._keep(self.job)
            except FopError as again:
                log.error("%r: that could not be kept; the next start will begin it again: %s", unit, again)
            self._ended(_FAILED, from_errno(error.errno, writing=True))
        else:
            self.job = None
            self._ended(None, None)
        finally:
            unit.order.leave(hold)

    def _ended(self, not_ready: Sense | None, sense: Sense | None) -> None:
        self.unit.not_ready = not_ready
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.set(sense)

    async def _pass(self, job: Job, number: int) -> None:
        unit = self.unit
        size, end = unit.block_size, unit.blocks << unit.shift
        block = (job.pattern * (size // len(job.pattern) + 1))[:size]
        if job.invert and number % 2:
            block = bytes(~byte & 0xFF for byte in block)
        data = memoryview(block * min(_STEP >> unit.shift, unit.blocks))
        at = stop = 0
        while at < end:
            if at >= stop:
                stop, found = await unit.backing.extent(at, end) if job.erase else (end, True)
                if not found:
                    at = stop
                    continue
            # To whole blocks: data may begin and end anywhere.
            count = min(len(data), end - at, (stop - at + size - 1) // size * size)
            await unit.backing.write(at, data[:count])
            at += count
            unit.not_ready = _progress(number * end + at, job.passes * end)
            await breathe(unit.reactor)

    async def _give_back(self) -> None:
        unit = self.unit
        end = unit.blocks << unit.shift
        for at in range(0, end, 64 * _STEP):
            try:
                await unit.backing.discard(at, min(64 * _STEP, end - at))
            except FopError as error:
                log.info("%r: the space of what was erased is kept: %s", unit, error)
                return
            await breathe(unit.reactor)


def _progress(done: int, whole: int) -> Sense:
    """SANITIZE IN PROGRESS, with how much of it is done."""
    return Sense(NOT_READY, 0x04, 0x1B, sks=b"\x80" + (done * 0xFFFF // whole).to_bytes(2, "big"))


def _offered(unit: LogicalUnit) -> bool:
    return unit.config.sanitize


def _erases(unit: LogicalUnit) -> bool:
    return unit.config.sanitize and unit.config.unmap


@command(
    "SANITIZE OVERWRITE",
    "48 a1 0000000000 ffff 07",
    Access.WRITE,
    CHANGES,
    service_action=_OVERWRITE,
    data_out=list_length(7, 8),
    timeout=86400,
    offered=_offered,
)
async def overwrite(unit: LogicalUnit, task: Task) -> Result:
    """Overwrite all blocks with a pattern, some times."""
    cdb = task.cdb
    data = bytes(task.data)
    length = int.from_bytes(cdb[7:9], "big")
    if not 4 < length <= unit.block_size + 4 or len(data) < length:
        raise invalid_field(7, text=f"a parameter list of {length} bytes")
    size = int.from_bytes(data[2:4], "big")
    passes = data[0] & 0x1F
    # Not INVALID FIELD IN PARAMETER LIST: initiators that test this want it so.
    if not passes or not 0 < size <= length - 4:
        raise invalid_field(7, text=f"{passes} passes of a pattern of {size} bytes")
    job = Job(data[4 : 4 + size], passes, bool(data[0] & _INVERT), lenient=bool(cdb[1] & _AUSE))
    await unit.sanitizing.begin(job, not cdb[1] & _IMMED)
    return DONE


@command(
    "SANITIZE BLOCK ERASE",
    "48 a2 0000000000 0000 07",
    Access.WRITE,
    CHANGES,
    service_action=_BLOCK_ERASE,
    timeout=86400,
    offered=_erases,
)
async def block_erase(unit: LogicalUnit, task: Task) -> Result:
    """Overwrite all data with zeroes and give its space back."""
    flags = task.cdb[1]
    await unit.sanitizing.begin(Job(b"\0", erase=True, lenient=bool(flags & _AUSE)), not flags & _IMMED)
    return DONE


@command(
    "SANITIZE EXIT FAILURE MODE",
    "48 1f 0000000000 0000 07",
    Access.WRITE,
    CHANGES,
    service_action=_EXIT_FAILURE_MODE,
    offered=_offered,
)
async def exit_failure_mode(unit: LogicalUnit, task: Task) -> Result:
    """Use the unit again after a SANITIZE with AUSE has failed."""
    await unit.sanitizing.forgive()
    return DONE
