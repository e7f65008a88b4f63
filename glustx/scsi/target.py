"""A target: logical units by LUN, the nexuses that are logged in, and task management (SAM-5 7)."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any

from glustx.runtime import drive
from glustx.scsi import commands
from glustx.scsi.commands import WITHOUT_UNIT, refuse_reserved
from glustx.scsi.config import TargetConfig
from glustx.scsi.sense import (
    COMMANDS_CLEARED,
    LUN_NOT_SUPPORTED,
    LUNS_CHANGED,
    POWER_ON,
    TARGET_RESET,
    UNIT_RESET,
    CheckCondition,
)
from glustx.scsi.task import CHECK_CONDITION, TASK_ABORTED, Nexus, Result, Task
from glustx.scsi.unit import LogicalUnit

if TYPE_CHECKING:
    from glustx.scsi.gateway import Gateway

log = logging.getLogger("glustx.scsi")


class Function(enum.IntEnum):
    """Task management functions, with iSCSI's numbers (RFC 7143 11.5.1, RFC 7144)."""

    ABORT_TASK = 1
    ABORT_TASK_SET = 2
    CLEAR_ACA = 3
    CLEAR_TASK_SET = 4
    LOGICAL_UNIT_RESET = 5
    TARGET_WARM_RESET = 6
    TARGET_COLD_RESET = 7
    TASK_REASSIGN = 8
    QUERY_TASK = 9
    QUERY_TASK_SET = 10
    I_T_NEXUS_RESET = 11
    QUERY_ASYNC_EVENT = 12


class Answer(enum.IntEnum):
    """Answers to task management, with iSCSI's numbers (RFC 7143 11.6.1)."""

    COMPLETE = 0
    NO_TASK = 1
    NO_LUN = 2
    STILL_ALLEGIANT = 3
    NO_REASSIGN = 4
    UNSUPPORTED = 5
    UNAUTHORISED = 6
    SUCCEEDED = 7
    REJECTED = 255


class Target:
    """One target with its units.

    Args:
        gateway: whose it is.
        config: name, units, rules.
        units: LUN -> unit.
    """

    def __init__(self, gateway: Gateway, config: TargetConfig, units: dict[int, LogicalUnit]) -> None:
        self.gateway = gateway
        self.config = config
        self.units = units
        self.nexuses: dict[tuple[str, int], Nexus] = {}

    @property
    def name(self) -> str:
        """The iSCSI name."""
        return self.config.name

    def __repr__(self) -> str:
        return f"<target {self.name}>"

    # -- nexuses -----------------------------------------------------------------------------------------------------

    def login(self, initiator: str, relative_port: int, luns: dict[int, int] | None, peer: str = "?") -> Nexus:
        """Make the nexus of an initiator port that has logged in; one with the same name and port must be lost before.

        Args:
            initiator: initiator port name (name, `,i,0x`, ISID in hex).
            relative_port: relative target port identifier.
            luns: LUN for the initiator -> LUN of the target; None for all as they are.
            peer: address, for people.
        """
        nexus = Nexus(initiator, self, relative_port, peer)
        nexus.slots["luns"] = luns
        self.nexuses[initiator, relative_port] = nexus
        self._map(nexus)
        for unit in nexus.luns.values():
            nexus.raise_attention(unit, POWER_ON)
        return nexus

    def lose(self, nexus: Nexus) -> None:
        """An initiator port is gone: its tasks are aborted and what only a nexus holds is dropped."""
        nexus.alive = False
        if self.nexuses.get((nexus.initiator, nexus.relative_port)) is nexus:
            del self.nexuses[nexus.initiator, nexus.relative_port]
        for task in list(nexus.tasks.values()):
            self._abort(task)
        for unit in set(nexus.luns.values()):
            unit.nexuses.discard(nexus)
            unit.reservations.nexus_lost(nexus)
        nexus.attentions.clear()

    def _map(self, nexus: Nexus) -> None:
        luns: dict[int, int] | None = nexus.slots["luns"]
        pairs = luns.items() if luns is not None else [(lun, lun) for lun in self.units]
        seen = {lun: self.units[own] for lun, own in pairs if own in self.units}
        for unit in set(nexus.luns.values()) - set(seen.values()):
            unit.nexuses.discard(nexus)
            nexus.attentions.pop(unit, None)
        for unit in set(seen.values()) - set(nexus.luns.values()):
            unit.nexuses.add(nexus)
        nexus.luns = dict(sorted(seen.items()))

    def reconfigure(self, config: TargetConfig, units: dict[int, LogicalUnit]) -> None:
        """Take another configuration: tasks on units that an initiator no longer sees are aborted, and each initiator
        whose units are others now is told. Whether it may stay at all is for whoever let it in."""
        self.config = config
        self.units = units
        for nexus in list(self.nexuses.values()):
            before = dict(nexus.luns)
            rule = config.rule(nexus.name, nexus.address)
            nexus.slots["luns"] = rule.luns if rule is not None else {}
            self._map(nexus)
            if nexus.luns == before:
                continue
            for task in list(nexus.tasks.values()):
                if task.unit is not None and nexus.luns.get(task.lun) is not task.unit:
                    self._abort(task)
            for unit in set(nexus.luns.values()):
                nexus.raise_attention(unit, LUNS_CHANGED if unit in before.values() else POWER_ON)
            if nexus.notify is not None:
                nexus.notify(LUNS_CHANGED)

    # -- commands ----------------------------------------------------------------------------------------------------

    def data_out_length(self, nexus: Nexus, lun: int, cdb: bytes) -> int:
        """Return how many bytes of data-out a command wants (0 for one that wants none or will be refused)."""
        command = commands.find(cdb)
        unit = nexus.luns.get(lun)
        if command is None or command.data_out is None or unit is None:
            return 0
        if command.offered is not None and not command.offered(unit):
            return 0
        try:
            return int(command.data_out(unit, cdb))
        except CheckCondition:
            return 0

    def enlist(self, task: Task) -> None:
        """Take a command into the task set when it arrives; its data-out may still be on the way."""
        task.unit = task.nexus.luns.get(task.lun)
        task.nexus.tasks[task.lun, task.tag] = task

    def submit(self, task: Task) -> None:
        """Run an enlisted command whose data-out is there; `task.done` hears how it ended. Needs a turn around it."""
        unit = task.unit

        def finish(result: Any, error: BaseException | None) -> None:
            if task.aborted:
                return
            del task.nexus.tasks[task.lun, task.tag]
            if error is not None:
                log.error("%r: %s", task, error, exc_info=error)
                return
            if task.done is not None:
                task.done(task, result)

        drive(unit.run(task) if unit is not None else self._without_unit(task), finish)

    async def _without_unit(self, task: Task) -> Result:
        command = commands.find(task.cdb)
        if command is None or not command.flags & WITHOUT_UNIT:
            return Result(CHECK_CONDITION, sense=LUN_NOT_SUPPORTED)
        try:
            refuse_reserved(command, task.cdb)
            result: Result = await command.handler(None, task)
        except CheckCondition as error:
            return Result(CHECK_CONDITION, sense=error.sense)
        return result

    # -- task management ---------------------------------------------------------------------------------------------

    def manage(self, nexus: Nexus, function: int, lun: int, tag: int = 0) -> Answer:
        """Do a task management function and return the answer; it waits for nothing.

        A task that is aborted may still have a fop under way. It keeps its place among overlapping commands until that
        has ended, so nothing that comes after it can be overtaken by it.
        """
        if function == Function.TARGET_WARM_RESET or function == Function.TARGET_COLD_RESET:
            for each in set(self.units.values()):
                self._reset(each, nexus, target=True)
            return Answer.COMPLETE
        if function == Function.I_T_NEXUS_RESET:
            for task in list(nexus.tasks.values()):
                self._abort(task)
            for each in set(nexus.luns.values()):
                each.preventing.discard(nexus)
            return Answer.COMPLETE
        if function == Function.TASK_REASSIGN:
            return Answer.NO_REASSIGN
        unit = nexus.luns.get(lun)
        if unit is None:
            return Answer.NO_LUN
        if function == Function.ABORT_TASK:
            found = nexus.tasks.get((lun, tag))
            if found is None:
                return Answer.NO_TASK
            self._abort(found)
        elif function == Function.ABORT_TASK_SET:
            for task in unit.tasks():
                if task.nexus is nexus:
                    self._abort(task)
        elif function == Function.CLEAR_TASK_SET:
            self.clear_tasks(unit, but=nexus)
        elif function == Function.LOGICAL_UNIT_RESET:
            self._reset(unit, nexus)
        elif function == Function.QUERY_TASK:
            return Answer.SUCCEEDED if (lun, tag) in nexus.tasks else Answer.COMPLETE
        elif function == Function.QUERY_TASK_SET:
            mine = any(task.nexus is nexus for task in unit.tasks())
            return Answer.SUCCEEDED if mine else Answer.COMPLETE
        elif function == Function.QUERY_ASYNC_EVENT:
            return Answer.SUCCEEDED if unit in nexus.attentions else Answer.COMPLETE
        else:
            return Answer.UNSUPPORTED
        return Answer.COMPLETE

    def clear_tasks(self, unit: LogicalUnit, but: Nexus) -> None:
        """Abort the tasks of all nexuses on a unit; the others learn of it by TASK ABORTED (TAS) or an attention."""
        told = unit.modes.report_aborts
        for task in unit.tasks():
            if task.nexus is not but and not told:
                task.nexus.raise_attention(unit, COMMANDS_CLEARED)
            self._abort(task, told and task.nexus is not but)

    def abort_tasks(self, nexus: Nexus, unit: LogicalUnit) -> bool:
        """Abort, for another nexus, what a nexus has under way on a unit; tells whether anything was aborted without a
        status (without TAS)."""
        found = [task for task in nexus.tasks.values() if task.unit is unit]
        told = unit.modes.report_aborts
        for task in found:
            self._abort(task, told)
        return bool(found) and not told

    def _reset(self, unit: LogicalUnit, by: Nexus, target: bool = False) -> None:
        told = unit.modes.report_aborts
        for task in unit.tasks():
            self._abort(task, told and task.nexus is not by)
        unit.reservations.reset()
        unit.modes.reset()
        unit.preventing.clear()
        unit.tell_all(TARGET_RESET if target else UNIT_RESET)

    @staticmethod
    def _abort(task: Task, told: bool = False) -> None:
        task.aborted = True
        task.nexus.tasks.pop((task.lun, task.tag), None)
        if task.done is not None:
            task.done(task, Result(TASK_ABORTED) if told else None)
