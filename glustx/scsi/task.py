"""The nouns of SAM: I_T nexus, task, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from glustx.scsi.sense import Attention, Sense

if TYPE_CHECKING:
    from glustx.scsi.target import Target
    from glustx.scsi.unit import LogicalUnit

GOOD, CHECK_CONDITION, CONDITION_MET, BUSY = 0x00, 0x02, 0x04, 0x08
RESERVATION_CONFLICT, TASK_SET_FULL, TASK_ABORTED = 0x18, 0x28, 0x40

UNTAGGED, SIMPLE, ORDERED, HEAD_OF_QUEUE = 0, 1, 2, 3

Piece = bytes | bytearray | memoryview


class Nexus:
    """An I_T nexus: one initiator port logged in at one target port.

    Args:
        initiator: the initiator port's name, `iqn...,i,0x` and 12 hex digits (RFC 7143 4.4.7).
        target: where it is logged in.
        relative_port: relative target port identifier.
        peer: address of the other end, for people.

    Attributes:
        luns: what this initiator sees: LUN -> logical unit.
        attentions: pending unit attentions by logical unit.
        notify: called with an Attention that the initiator should hear of without asking (iSCSI's async message).
        tasks: tasks under way, by (LUN, tag).
        alive: False once the nexus is lost.
    """

    __slots__ = (
        "alive",
        "attentions",
        "initiator",
        "luns",
        "notify",
        "peer",
        "relative_port",
        "slots",
        "target",
        "tasks",
    )

    def __init__(self, initiator: str, target: Target, relative_port: int = 1, peer: str = "?") -> None:
        self.initiator = initiator
        self.target = target
        self.luns: dict[int, LogicalUnit] = {}
        self.notify: Callable[[Attention], None] | None = None
        self.relative_port = relative_port
        self.peer = peer
        self.attentions: dict[LogicalUnit, list[Attention]] = {}
        self.tasks: dict[tuple[int, int], Task] = {}
        self.slots: dict[object, Any] = {}
        self.alive = True

    @property
    def name(self) -> str:
        """The initiator's name without its port's ISID."""
        return self.initiator.partition(",i,")[0]

    @property
    def address(self) -> str:
        """The network address of the other end, without its port."""
        return self.peer.rpartition(":")[0].strip("[]")

    def __repr__(self) -> str:
        return f"<nexus {self.initiator} port {self.relative_port}>"

    def raise_attention(self, unit: LogicalUnit, attention: Attention) -> None:
        """Make a unit attention pending; one that is pending already is not repeated."""
        pending = self.attentions.setdefault(unit, [])
        if not any((each.asc, each.ascq) == (attention.asc, attention.ascq) for each in pending):
            pending.append(attention)
            pending.sort(key=lambda each: each.rank)

    def clear_attention(self, unit: LogicalUnit, attention: Attention) -> None:
        """Drop a pending unit attention, whatever its information."""
        pending = self.attentions.get(unit)
        if pending:
            rest = [each for each in pending if (each.asc, each.ascq) != (attention.asc, attention.ascq)]
            if rest:
                self.attentions[unit] = rest
            else:
                del self.attentions[unit]

    def take_attention(self, unit: LogicalUnit) -> Attention | None:
        """Return the most important pending unit attention and clear it; None when there is none."""
        pending = self.attentions.get(unit)
        if not pending:
            return None
        first = pending.pop(0)
        if not pending:
            del self.attentions[unit]
        return first


class Result:
    """How a command ended.

    Args:
        status: SCSI status.
        data: data-in, in pieces; no longer than the command's own length.
        length: bytes that the command means to transfer (SPDTL), of which `data` may hold fewer after an error;
            the length of `data` by default. Residuals are counted from it.
        sense: with CHECK CONDITION.
    """

    __slots__ = ("data", "length", "sense", "status")

    def __init__(
        self, status: int = GOOD, data: Sequence[Piece] = (), length: int | None = None, sense: Sense | None = None
    ) -> None:
        self.status = status
        self.data = data
        self.length = sum(map(len, data)) if length is None else length
        self.sense = sense


DONE = Result()
CONFLICT = Result(RESERVATION_CONFLICT)


def data_in(data: Piece, allocation: int) -> Result:
    """Return GOOD with data cut to the allocation length, which is no error (SPC-5 4.2.5.6)."""
    return Result(GOOD, (data if len(data) <= allocation else memoryview(data)[:allocation],))


class Task:
    """One command of one nexus, from the arrival of its last data-out to its status.

    Args:
        nexus, lun, tag: whose it is; `lun` the decoded number, `tag` unique among the nexus's tasks of that LUN.
        cdb: the command descriptor block, 16 bytes or as long as it came.
        data: data-out as far as it was transferred: at most what `Target.data_out_length` said, less when the
            initiator expected to send less. The task owns it from now on: an aborted one may use it after its abort.
        attribute: UNTAGGED, SIMPLE, ORDERED or HEAD_OF_QUEUE.
        expected: bytes that the initiator said it would transfer (iSCSI's expected data transfer length), None when the
            transport does not say; it may be more than the command takes.
        done: called in a turn: with the Result when the command has ended, with None when it was aborted and nothing is
            to be answered.

    Attributes:
        aborted: nobody waits for it any more; a command of many steps looks at this between them and ends.
    """

    __slots__ = ("aborted", "attribute", "cdb", "data", "done", "expected", "lun", "nexus", "tag", "unit")

    def __init__(
        self,
        nexus: Nexus,
        lun: int,
        tag: int,
        cdb: bytes,
        data: Piece = b"",
        attribute: int = SIMPLE,
        done: Callable[[Task, Result | None], None] | None = None,
        expected: int | None = None,
    ) -> None:
        self.nexus = nexus
        self.lun = lun
        self.tag = tag
        self.cdb = cdb
        self.data = data
        self.attribute = attribute
        self.done = done
        self.expected = expected
        self.unit: LogicalUnit | None = None
        self.aborted = False

    def __repr__(self) -> str:
        return f"<task {self.tag:#x} {self.cdb[:1].hex()} LUN {self.lun} of {self.nexus.initiator}>"
