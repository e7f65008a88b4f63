"""How commands end on the wire: data-in, status, sense and residuals (RFC 7143 11.4, 11.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glustx.iscsi.digest import Piece
from glustx.iscsi.memory import Share
from glustx.iscsi.pdu import (
    DATA_IN,
    DATA_IN_PDU,
    FINAL,
    NO_TAG,
    OVERFLOW,
    READ,
    RESPONSE,
    SCSI_RESPONSE,
    STATUS,
    UNDERFLOW,
    WRITE,
    AsyncMessage,
)
from glustx.iscsi.session import MASK, PADS, Session
from glustx.scsi.sense import Attention
from glustx.scsi.task import Nexus, Result, Task

if TYPE_CHECKING:
    from glustx.iscsi.connection import Connection
    from glustx.iscsi.login import Login
    from glustx.iscsi.transfer import Transfer

_WRITES = frozenset((0x0A, 0x2A, 0xAA, 0x8A))
_FINAL_STATUS = FINAL | STATUS


class IscsiTask(Task):
    """A task with what its SCSI Command said.

    Attributes:
        flags: byte 1.
        edtl: expected data transfer length.
        wanted: bytes of data-out that the CDB means.
        immediate: it came past the window.
        transfer: data-out on its way.
        buffer: memory of its data, and how much of it is accounted for (`claimed`).
        data_sn: Data-In and R2T PDUs sent.
    """

    __slots__ = ("buffer", "claimed", "data_sn", "edtl", "flags", "immediate", "transfer", "wanted")

    def __init__(
        self, nexus: Nexus, lun: int, tag: int, cdb: bytes, flags: int, edtl: int, immediate: bool, done: Any
    ) -> None:
        self.nexus = nexus
        self.lun = lun
        self.tag = tag
        self.cdb = cdb
        self.data = b""
        self.attribute = flags & 7
        self.done = done
        self.expected = edtl
        self.unit = None
        self.aborted = False
        self.flags = flags
        self.edtl = edtl
        self.wanted = 0
        self.immediate = immediate
        self.transfer: Transfer | None = None
        self.buffer: bytearray | None = None
        self.claimed = 0
        self.data_sn = 0


class AnsweringSession(Session):
    """A session with commands under way.

    Attributes:
        tasks: by initiator task tag.
        commands, read_bytes, written_bytes: so far.
    """

    def __init__(self, connection: Connection, login: Login, tsih: int) -> None:
        super().__init__(connection, login, tsih)
        self.tasks: dict[int, IscsiTask] = {}
        self.commands = self.read_bytes = self.written_bytes = 0
        self.memory = self.server.memory
        self.share = Share()
        self._immediate = 0
        self._plain = not (self.parameters.header_digest or self.parameters.data_digest)

    def done(self, task: Any, result: Result | None) -> None:
        """A command has ended (None: aborted, and nothing is answered)."""
        if self.tasks.pop(task.tag, None) is None:
            return
        if task.immediate:
            self._immediate -= 1
        else:
            self.room += 1
        task.transfer = None
        if task.claimed:
            # An aborted one may still read its buffer; so may commands that keep what they were given.
            self._give_back(task, task.buffer if not task.aborted and task.cdb[0] in _WRITES else None)
        if result is None or self.closed:
            return
        data, edtl = result.data, task.edtl
        if data and self._plain and result.length == edtl <= self.max_send and len(data) == 1:
            piece = data[0]
            if len(piece) == edtl and task.flags & READ and result.sense is None:
                connection = self.connection
                stat_sn = self.stat_sn
                self.stat_sn = (stat_sn + 1) & MASK
                head = DATA_IN.pack(
                    DATA_IN_PDU, _FINAL_STATUS, result.status, edtl, task.tag, NO_TAG, stat_sn, self.exp_cmd_sn,
                    (self.exp_cmd_sn + self.room - 1) & MASK, 0, 0, 0,
                )  # fmt: skip
                out = connection.out
                out.append(head)
                out.append(piece)
                if edtl & 3:
                    out.append(PADS[edtl & 3])
                connection.weight += edtl
                self.read_bytes += edtl
                if not connection.in_turn:
                    connection.flush_soon()
                return
        self._answer(task, result)

    def _give_back(self, task: IscsiTask, buffer: bytearray | None) -> None:
        claimed, task.claimed, task.buffer = task.claimed, 0, None
        self.memory.give_back(self.share, claimed, buffer)

    def _answer(self, task: IscsiTask, result: Result) -> None:
        length = task.wanted or (0 if task.flags & WRITE and not task.flags & READ else result.length)
        edtl = task.edtl
        flags, residual = 0, 0
        if length > edtl:
            flags, residual = OVERFLOW, length - edtl
        elif length < edtl:
            flags, residual = UNDERFLOW, edtl - length
        if task.flags & READ and result.data:
            size = min(sum(map(len, result.data)), edtl)
            if size:
                self.read_bytes += size
                if result.sense is None:
                    self._data_in(task, result.data, size, result.status, flags, residual)
                    return
                self._data_in(task, result.data, size, None, 0, 0)
        sense = b""
        if result.sense is not None:
            unit = task.unit
            sense = result.sense.encode(unit is not None and unit.modes.descriptor_sense)
            sense = len(sense).to_bytes(2, "big") + sense
        stat_sn = self.stat_sn
        self.stat_sn = (stat_sn + 1) & MASK
        head = RESPONSE.pack(
            SCSI_RESPONSE, FINAL | flags, result.status, len(sense), task.tag, stat_sn, self.exp_cmd_sn,
            (self.exp_cmd_sn + self.room - 1) & MASK, task.data_sn, residual,
        )  # fmt: skip
        self.emit(head, (sense,) if sense else (), len(sense))

    def _data_in(
        self, task: IscsiTask, data: Sequence[Piece], size: int, status: int | None, flags: int, residual: int
    ) -> None:
        """Send data in PDUs of at most what the initiator takes, in sequences of MaxBurstLength; with a status, it
        rides on the last one."""
        most, burst = self.max_send, self.parameters.max_burst
        pieces = _cut(data)
        offset, burst_end = 0, burst
        while offset < size:
            length = min(most, burst_end - offset, size - offset)
            last = offset + length == size
            marks, stat_sn = 0, 0
            if last or offset + length == burst_end:
                marks, burst_end = FINAL, burst_end + burst
            if last and status is not None:
                marks |= STATUS | flags
                stat_sn = self.stat_sn
                self.stat_sn = (stat_sn + 1) & MASK
            head = DATA_IN.pack(
                DATA_IN_PDU, marks, status or 0 if last else 0, length, task.tag, NO_TAG, stat_sn, self.exp_cmd_sn,
                (self.exp_cmd_sn + self.room - 1) & MASK, task.data_sn, offset, residual if last else 0,
            )  # fmt: skip
            task.data_sn += 1
            self.emit(head, pieces(length), length)
            offset += length

    def _notify(self, attention: Attention) -> None:
        """Tell the initiator of something that it need not ask for (asynchronous event 0)."""
        if not self.closed:
            sense = attention.sense.encode(False)
            self.send(AsyncMessage(), len(sense).to_bytes(2, "big") + sense)


def _cut(data: Sequence[Piece]) -> Any:
    """Return a function that takes the next so many bytes off the pieces, uncopied."""
    rest = [memoryview(piece) for piece in data if len(piece)]
    rest.reverse()

    def take(size: int) -> list[Piece]:
        found: list[Piece] = []
        while size:
            piece = rest.pop()
            if len(piece) > size:
                rest.append(piece[size:])
                piece = piece[:size]
            found.append(piece)
            size -= len(piece)
        return found

    return take
