"""Copy operations of a gateway: those under way, and what is remembered of those that are over.

An operation belongs to the nexus and unit that its command came by, and has a list identifier there. One that runs in
the background goes on until it is done, is aborted, or its nexus is lost. What became of it is kept `KEPT` seconds.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from glustx.errors import FopCancelled, FopError
from glustx.runtime import Reactor, Tasks, TimerHandle, Waiter
from glustx.scsi import third_party as can
from glustx.scsi.copy_engine import Failed, Stopped
from glustx.scsi.sense import (
    COPY_ABORTED,
    ILLEGAL_REQUEST,
    INTERNAL_FAILURE,
    CheckCondition,
    Sense,
    check,
    from_errno,
    invalid_parameter,
)
from glustx.scsi.task import CHECK_CONDITION, DONE, GOOD, Nexus, Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

Key = tuple[Nexus, "LogicalUnit", int, bool]
STOPPED = Sense(COPY_ABORTED, 0x00, 0x06)  # I/O process terminated


class Status(enum.IntEnum):
    """Copy operation status (SPC-5 6.24.2)."""

    DONE = 0x01
    ERROR = 0x02
    RESIDUAL = 0x04
    FOREGROUND = 0x11
    BACKGROUND = 0x12
    ABORTED = 0x60


class Operation:
    """One copy command.

    Args:
        task: the command.
        list_id, short: its list identifier, of eight bits with `short` (LID1).
        background: whether it is answered before it ends.

    Attributes:
        action: the command's service action.
        status: where it is; `sense` and `scsi_status` are set after an error.
        segments: segment descriptors, or ranges, that are done.
        moved: bytes that are done.
        token: ROD token that it has made.
        aborted: whether somebody wants it to stop.
        questions: commands that have asked for it, and itself.
        over: set at its end.
    """

    def __init__(self, task: Task, list_id: int, short: bool, background: bool) -> None:
        assert task.unit is not None
        self.task = task
        self.unit: LogicalUnit = task.unit
        self.nexus = task.nexus
        self.key: Key = (task.nexus, task.unit, list_id, short)
        self.action = task.cdb[1] & 0x1F
        self.background = background
        self.status = Status.BACKGROUND if background else Status.FOREGROUND
        self.sense: Sense | None = None
        self.scsi_status = GOOD
        self.segments = 0
        self.moved = 0
        self.token = b""
        self.aborted = False
        self.questions = 1
        self.over: list[Waiter[None]] = []
        self.timer: TimerHandle | None = None

    @property
    def running(self) -> bool:
        """Whether it is under way."""
        return self.status in (Status.FOREGROUND, Status.BACKGROUND)

    def wanted(self) -> bool:
        """Tell whether to go on."""
        return self.nexus.alive and not self.aborted and (self.background or not self.task.aborted)

    def add(self, size: int) -> None:
        """Count bytes that are done."""
        self.moved += size


Doing = Callable[[Operation], Coroutine[Any, Any, None]]


class CopyLists:
    """The copy operations of one gateway."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self._operations: dict[Key, Operation] = {}
        self._running: set[Operation] = set()
        self._tasks = Tasks(log)

    def find(self, task: Task, list_id: int, short: bool = False) -> Operation | None:
        """Return the operation with a list identifier of a task's nexus and unit."""
        assert task.unit is not None
        return self._operations.get((task.nexus, task.unit, list_id, short))

    async def run(
        self,
        task: Task,
        list_id: int,
        doing: Doing,
        *,
        short: bool = False,
        background: bool = False,
        named: bool = True,
    ) -> Result:
        """Do a copy command and return how it ended, or GOOD at once for one in the background.

        Args:
            task: the command.
            list_id, short: its list identifier, of eight bits with `short` (LID1).
            doing: does it; may raise Failed, Stopped, CheckCondition and FopError.
            background: IMMED.
            named: whether the list identifier counts; without it nobody can ask for the operation.
        """
        operation = Operation(task, list_id, short, background)
        known = self._operations.get(operation.key) if named else None
        if known is not None and known.running:
            raise invalid_parameter(0, text=f"list identifier {list_id} is in use")
        if len(self._running) >= can.COPIES:
            raise check(ILLEGAL_REQUEST, 0x55, 0x03, f"{can.COPIES} copies are under way")
        if known is not None:
            self.forget(known)
        if named:
            self._operations[operation.key] = operation
        self._running.add(operation)
        if background:
            self._tasks.start(self._do(operation, doing))
            return DONE
        await self._do(operation, doing)
        return Result(operation.scsi_status, sense=operation.sense) if operation.scsi_status else DONE

    async def _do(self, operation: Operation, doing: Doing) -> None:
        status = Status.ERROR
        try:
            await doing(operation)
            status = operation.status if not operation.running else Status.DONE
        except Stopped:
            status = Status.ABORTED
            self._failed(operation, STOPPED)
        except Failed as error:
            self._failed(operation, error.for_initiator(operation.segments).sense)
        except CheckCondition as error:
            self._failed(operation, error.sense)
        except FopError as error:
            operation.unit.statistics.failed(operation.task, error)
            self._failed(operation, from_errno(error.errno, writing=True))
        except FopCancelled:
            status = Status.ABORTED
            self._failed(operation, STOPPED)
            raise
        except Exception:
            log.exception("%r: a copy failed", operation.unit)
            self._failed(operation, INTERNAL_FAILURE)
        finally:
            operation.status = status
            self._running.discard(operation)
            waiting, operation.over = operation.over, []
            for waiter in waiting:
                waiter.set(None)
            if self._operations.get(operation.key) is operation:
                self._keep(operation)

    def _keep(self, operation: Operation) -> None:
        operation.timer = self.reactor.call_later(can.KEPT, lambda: self.forget(operation))
        if len(self._operations) > can.REMEMBERED:
            oldest = next((each for each in self._operations.values() if not each.running), operation)
            self.forget(oldest)

    @staticmethod
    def _failed(operation: Operation, sense: Sense) -> None:
        operation.scsi_status, operation.sense = CHECK_CONDITION, sense

    async def abort(self, operation: Operation) -> None:
        """Stop an operation and wait until it is over."""
        operation.aborted = True
        if operation.running:
            waiter: Waiter[None] = Waiter()
            operation.over.append(waiter)
            await waiter

    def forget(self, operation: Operation) -> None:
        """Remember an operation no longer."""
        if operation.timer is not None:
            operation.timer.cancel()
        if self._operations.get(operation.key) is operation:
            del self._operations[operation.key]

    async def stop(self) -> None:
        """Abort all operations and forget them."""
        for operation in list(self._running):
            operation.aborted = True
        await self._tasks.stop()
        for operation in list(self._running):
            await self.abort(operation)
        for operation in list(self._operations.values()):
            self.forget(operation)
