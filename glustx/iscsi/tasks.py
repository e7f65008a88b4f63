"""A normal session: SCSI commands with their data both ways, and task management (RFC 7143 4.2, 11.3 to 11.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.iscsi.answers import AnsweringSession, IscsiTask
from glustx.iscsi.memory import REUSED, SMALL
from glustx.iscsi.pdu import (
    COMMAND,
    DATA_OUT,
    DATA_OUT_PDU,
    FINAL,
    IMMEDIATE,
    NO_TAG,
    READ,
    SCSI_COMMAND,
    TASK_MANAGEMENT,
    WRITE,
    PduError,
    R2t,
    Reason,
    TaskManagement,
    TaskManagementResponse,
    ahs_segments,
    lun_of,
)
from glustx.iscsi.session import MASK
from glustx.iscsi.transfer import DIGEST_ERROR, UNEXPECTED, Transfer
from glustx.scsi.sense import ILLEGAL_REQUEST, Sense
from glustx.scsi.target import Answer, Function
from glustx.scsi.task import CHECK_CONDITION, TASK_SET_FULL, Nexus, Result

if TYPE_CHECKING:
    from glustx.iscsi.connection import Connection
    from glustx.iscsi.login import Login
    from glustx.scsi.target import Target

IMMEDIATE_LIMIT = 32  # they come past the window
READ_LIMIT = 16 << 20  # no unit reads more at once, whatever is expected

_READS = frozenset((0x08, 0x28, 0xA8, 0x88))
_WRITES = frozenset((0x0A, 0x2A, 0xAA, 0x8A))
_FULL = Result(TASK_SET_FULL)
# INVALID FIELD IN COMMAND INFORMATION UNIT: the PDU does not go with its CDB.
_WRONG_UNIT = Result(CHECK_CONDITION, sense=Sense(ILLEGAL_REQUEST, 0x0E, 0x03))
_TOO_LONG = Result(CHECK_CONDITION, sense=Sense(ILLEGAL_REQUEST, 0x24, 0x00))


class NormalSession(AnsweringSession):
    """A session with a target.

    Args:
        connection, login, tsih: as for any session.
        target: where commands go.
        nexus: what the target knows the initiator as.

    """

    def __init__(self, connection: Connection, login: Login, tsih: int, target: Target, nexus: Nexus) -> None:
        super().__init__(connection, login, tsih)
        self.target = target
        self.nexus = nexus
        nexus.notify = self._notify
        self._landed: bytearray | None = None
        self._landed_size = 0
        self.handlers[SCSI_COMMAND] = self.command
        self.handlers[DATA_OUT_PDU] = self.data_out
        self.handlers[TASK_MANAGEMENT] = self.manage

    def end(self) -> None:
        """The session is over: the nexus is lost and its tasks with it."""
        if not self.closed:
            super().end()
            self.nexus.notify = None
            self.target.lose(self.nexus)
            for task in list(self.tasks.values()):
                self.done(task, None)
            self._drop_landed()

    # -- commands ----------------------------------------------------------------------------------------------------

    def command(self, view: memoryview, pos: int, data: memoryview) -> None:
        """Take a SCSI Command with its immediate data."""
        first, flags, ahs, lun, itt, edtl, cmd_sn, cdb = COMMAND.unpack_from(view, pos)
        immediate = first & IMMEDIATE
        if immediate:
            if self._immediate >= IMMEDIATE_LIMIT:
                self._drop_landed()
                self.reject(Reason.IMMEDIATE, view, pos)
                return
        elif cmd_sn == self.exp_cmd_sn and self.room:
            self.exp_cmd_sn = (cmd_sn + 1) & MASK
        else:
            self._drop_landed()
            self.out_of_order(cmd_sn, view, pos, data)
            return
        tasks = self.tasks
        if itt in tasks or itt == NO_TAG:
            self._drop_landed()
            self.reject(Reason.IN_PROGRESS if itt in tasks else Reason.FIELD, view, pos)
            return
        if ahs:
            try:
                cdb = _whole_cdb(cdb, bytes(view[pos + 48 : pos + 48 + ahs * 4]))
            except PduError as error:
                self._drop_landed()
                self.complain(f"sends {error}")
                self.reject(Reason.FIELD, view, pos)
                return
        if immediate:
            self._immediate += 1
        else:
            self.room -= 1
        lun = lun >> 48 if lun & 0xFF00FFFFFFFFFFFF == 0 else lun_of(lun)
        task = IscsiTask(self.nexus, lun, itt, cdb, flags, edtl, bool(immediate), self.done)
        tasks[itt] = task
        self.commands += 1
        self.target.enlist(task)
        if flags & (READ | WRITE | FINAL) == READ | FINAL and cdb[0] in _READS and not data:
            if edtl > REUSED and not self._claim_read(task):
                self._answer_early(task, _FULL)
            else:
                self.target.submit(task)
        else:
            self._begin(task, data)
        if self.held or self.skipped:
            self.go_on()

    def _claim_read(self, task: IscsiTask) -> bool:
        """Account for the data of a large read, which wait in memory until they are sent."""
        size = min(task.edtl, READ_LIMIT)
        if not self.memory.claim(self.share, size):
            return False
        task.claimed = size
        return True

    def _begin(self, task: IscsiTask, data: memoryview) -> None:
        """Run a command at once when its data are there or it has none; else wait for them."""
        flags, edtl, size = task.flags, task.edtl, len(data)
        task.wanted = wanted = self.target.data_out_length(self.nexus, task.lun, task.cdb)
        landed, self._landed = self._landed, None
        if flags & FINAL and not size and (not wanted or not edtl):
            self.target.submit(task)
            return
        writes = flags & WRITE
        want = min(wanted, edtl) if writes else 0
        if landed is not None:
            task.buffer, task.claimed = landed, self._landed_size
            if self._landed_size != want:  # the unit has changed since the data began to arrive
                landed, data = None, memoryview(bytes(data))
                self._give_back(task, task.buffer)
        most = min(edtl, self.parameters.first_burst)
        allowed = self.parameters.immediate_data and size <= most
        if flags & FINAL and writes and want <= size and allowed:
            self._submit_with(task, data, want, landed is not None)
            return
        transfer = task.transfer = Transfer(task, want, size, None if flags & FINAL else most)
        if not writes:
            transfer.failed = _WRONG_UNIT
        elif (size and not allowed) or (not flags & FINAL and self.parameters.initial_r2t):
            transfer.failed = UNEXPECTED
        elif want > self.memory.each or want > self.memory.budget.limit:
            transfer.failed = _TOO_LONG
        if landed is not None:  # its first bytes lie where they belong
            transfer.view = memoryview(landed)
        elif transfer.failed is None and want:
            self._find_room(task, data)
        self._proceed(task)

    def _submit_with(self, task: IscsiTask, data: memoryview, want: int, landed: bool) -> None:
        """All data came with the command."""
        if landed:
            task.data = data[:want]
        elif want > SMALL:
            buffer = self.memory.take(self.share, want)
            if buffer is None:
                self._answer_early(task, _FULL)
                return
            task.buffer, task.claimed = buffer, want
            task.data = memoryview(buffer)[:want]
            task.data[:] = data[:want]
        else:
            task.data = bytes(data[:want])
        self.written_bytes += want
        self.target.submit(task)

    def _find_room(self, task: IscsiTask, data: memoryview) -> None:
        """Get memory for a transfer. What comes unasked needs it now; R2Ts can wait until there is some."""
        transfer = task.transfer
        if transfer is None:
            return
        buffer = self.memory.take(self.share, transfer.want)
        if buffer is not None:
            task.buffer, task.claimed = buffer, transfer.want
            transfer.view = memoryview(buffer)
            kept = min(len(data), transfer.want)
            transfer.view[:kept] = data[:kept]
        elif len(data) or transfer.open:
            transfer.failed = _FULL
        else:
            self.memory.wait(lambda: self._try_again(task))

    def _try_again(self, task: IscsiTask) -> None:
        if self.tasks.get(task.tag) is task:
            self._find_room(task, memoryview(b""))
            self._proceed(task)

    def _proceed(self, task: IscsiTask) -> None:
        """Go on with a transfer: ask for more, run the command, or say why it will not run."""
        transfer = task.transfer
        if transfer is None:
            return
        if transfer.complete:
            task.transfer = None
            if transfer.failed is not None:
                self._answer_early(task, transfer.failed)
                return
            if transfer.view is not None:
                task.data = transfer.view[: transfer.want]
                self.written_bytes += transfer.want
            self.target.submit(task)
            return
        if transfer.failed is not None or NO_TAG in transfer.open or transfer.view is None:
            return
        while transfer.asked < transfer.want and len(transfer.open) < self.parameters.max_outstanding_r2t:
            tag, number = self.new_tag(), transfer.r2t_sn
            offset, length = transfer.solicit(tag, self.parameters.max_burst)
            lun = (task.lun if task.lun < 256 else task.lun | 0x4000).to_bytes(2, "big") + bytes(6)
            self.send(R2t(lun=lun, itt=task.tag, ttt=tag, r2t_sn=number, offset=offset, length=length), consume=False)
            task.data_sn += 1
            if length >= REUSED:
                self.connection.bulk = True

    def _answer_early(self, task: IscsiTask, result: Result) -> None:
        """End a command that the target has not been asked to run."""
        self.nexus.tasks.pop((task.lun, task.tag), None)
        self.done(task, result)

    # -- data-out ----------------------------------------------------------------------------------------------------

    def landing(self, view: memoryview, pos: int, size: int) -> memoryview | None:
        """Return where the data of a PDU that has begun to arrive should be received, None for the usual buffer."""
        if view[pos] & 0x3F == DATA_OUT_PDU:
            _, itt, ttt, _, offset = DATA_OUT.unpack_from(view, pos)
            task = self.tasks.get(itt)
            if task is None or task.transfer is None:
                return None
            return task.transfer.landing(ttt, offset, size)
        _, flags, ahs, lun, itt, edtl, cmd_sn, cdb = COMMAND.unpack_from(view, pos)
        if ahs or not flags & WRITE or cmd_sn != self.exp_cmd_sn or not self.room or itt in self.tasks:
            return None
        want = min(edtl, self.target.data_out_length(self.nexus, lun_of(lun), cdb))
        if size > want or want > self.memory.each:
            return None
        self._landed = self.memory.take(self.share, want)
        self._landed_size = want
        return memoryview(self._landed)[:size] if self._landed is not None else None

    def _drop_landed(self) -> None:
        landed, self._landed = self._landed, None
        if landed is not None:
            self.memory.give_back(self.share, self._landed_size, landed)

    def data_out(self, view: memoryview, pos: int, data: memoryview) -> None:
        """Take a Data-Out; one that belongs to nothing may be late data of an aborted task."""
        flags, itt, ttt, data_sn, offset = DATA_OUT.unpack_from(view, pos)
        task = self.tasks.get(itt)
        transfer = task.transfer if task is not None else None
        if task is None or transfer is None:
            return
        final = bool(flags & FINAL)
        self.connection.bulk = not final
        if transfer.take(ttt, data_sn, offset, data, self.connection.landed, final) and final:
            self._proceed(task)

    def spoiled(self, view: memoryview, pos: int, size: int) -> None:
        """Data did not fit their digest: the PDU is rejected, and a command that they were for fails (RFC 7143 7.8)."""
        super().spoiled(view, pos, size)
        opcode = view[pos] & 0x3F
        if opcode == DATA_OUT_PDU:
            flags, itt, ttt, _, _ = DATA_OUT.unpack_from(view, pos)
            task = self.tasks.get(itt)
            if task is not None and task.transfer is not None:
                task.transfer.failed = task.transfer.failed or DIGEST_ERROR
                if flags & FINAL:
                    task.transfer.open.pop(ttt, None)
                    self._proceed(task)
            return
        self._drop_landed()
        if opcode == SCSI_COMMAND:
            _, flags, _, lun, itt, edtl, _, cdb = COMMAND.unpack_from(view, pos)
            if itt in self.tasks or itt == NO_TAG:
                return
            task = IscsiTask(self.nexus, lun_of(lun), itt, cdb, flags, edtl, True, self.done)
            self.tasks[itt] = task
            self._immediate += 1
            transfer = task.transfer = Transfer(task, 0, size, None if flags & FINAL else edtl)
            transfer.failed = DIGEST_ERROR
            self._proceed(task)

    # -- task management ---------------------------------------------------------------------------------------------

    def manage(self, view: memoryview, pos: int, data: memoryview) -> None:
        """Do a task management function; it waits for nothing, so the answer follows at once."""
        if not self.admit(view, pos, data):
            return
        pdu = TaskManagement.decode(view, pos)
        function, lun = pdu.flags & 0x7F, lun_of(int.from_bytes(pdu.lun, "big"))
        answer = self.target.manage(self.nexus, function, lun, pdu.ref_itt)
        if function == Function.ABORT_TASK and answer != Answer.COMPLETE:
            answer = self._never_came(pdu)
        self.send(TaskManagementResponse(itt=pdu.itt, response=int(answer)))
        if function == Function.TARGET_COLD_RESET and answer == Answer.COMPLETE:
            self.server.drop_sessions(self.target, "target cold reset")
        elif self.held or self.skipped:
            self.go_on()

    def _never_came(self, pdu: TaskManagement) -> Answer:
        """ABORT TASK of a command that has not arrived: when it still could, it is passed over (RFC 7143 11.5.1)."""
        ahead = (pdu.ref_cmd_sn - self.exp_cmd_sn) & MASK
        if ahead >= self.room or pdu.ref_itt in self.tasks:
            return Answer.NO_TASK
        self.skipped.add(pdu.ref_cmd_sn)
        return Answer.COMPLETE


def _whole_cdb(cdb: bytes, ahs: bytes) -> bytes:
    """Return the CDB with what an additional header segment holds of it."""
    for kind, content in ahs_segments(ahs):
        if kind == 1:
            return cdb + content
        if kind != 2:
            raise PduError(f"an additional header segment of type {kind}")
    return cdb
