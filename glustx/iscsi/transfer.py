"""Data-out of one command on its way: immediate and unsolicited data, then what R2Ts ask for (RFC 7143 4.2.4, 11.7).

Sequences are in order (DataPDUInOrder and DataSequenceInOrder are Yes), so one offset per sequence says all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.iscsi.pdu import NO_TAG
from glustx.scsi.sense import ABORTED_COMMAND, Sense
from glustx.scsi.task import CHECK_CONDITION, Result

if TYPE_CHECKING:
    from glustx.iscsi.answers import IscsiTask

DATA_PHASE = Result(CHECK_CONDITION, sense=Sense(ABORTED_COMMAND, 0x4B, 0x00))
UNEXPECTED = Result(CHECK_CONDITION, sense=Sense(ABORTED_COMMAND, 0x0C, 0x0C))
DIGEST_ERROR = Result(CHECK_CONDITION, sense=Sense(ABORTED_COMMAND, 0x47, 0x05))


class Sequence:
    """One sequence of Data-Out PDUs: where the next byte goes, where the sequence ends, the next DataSN."""

    __slots__ = ("data_sn", "end", "offset")

    def __init__(self, offset: int, end: int) -> None:
        self.offset = offset
        self.end = end
        self.data_sn = 0


class Transfer:
    """The data-out of a command, from its arrival to its last byte.

    Args:
        task: whose it is.
        want: bytes that are kept: what the command means and the initiator expects, whichever is less.
        got: bytes of immediate data.
        limit: end of what may come unsolicited; None when nothing more comes.

    Attributes:
        view: where the data go; None until there is memory for them.
        failed: why the command will not run; what still comes is thrown away.
        open: sequences under way by transfer tag; NO_TAG is the unsolicited one.
        asked: end of what R2Ts have asked for.
        r2t_sn: of the next R2T.
    """

    __slots__ = ("asked", "failed", "open", "r2t_sn", "task", "view", "want")

    def __init__(self, task: IscsiTask, want: int, got: int, limit: int | None) -> None:
        self.task = task
        self.want = want
        self.view: memoryview | None = None
        self.failed: Result | None = None
        self.asked = min(got, want)
        self.r2t_sn = 0
        self.open: dict[int, Sequence] = {}
        if limit is not None:
            self.open[NO_TAG] = Sequence(got, max(limit, got))

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return not self.open and (self.failed is not None or self.asked >= self.want)

    def landing(self, tag: int, offset: int, size: int) -> memoryview | None:
        """Return where a Data-Out's bytes may be received; None when they are not what comes next."""
        sequence = self.open.get(tag)
        if sequence is None or self.view is None or self.failed is not None:
            return None
        if offset != sequence.offset or offset + size > min(sequence.end, self.want):
            return None
        return self.view[offset : offset + size]

    def take(self, tag: int, data_sn: int, offset: int, data: memoryview, landed: bool, final: bool) -> bool:
        """Take a Data-Out; False when its tag is unknown, so that it belongs to nothing we wait for."""
        sequence = self.open.get(tag)
        if sequence is None:
            return False
        size = len(data)
        if data_sn != sequence.data_sn or offset != sequence.offset or offset + size > sequence.end:
            self.failed = self.failed or DATA_PHASE
        elif self.failed is None and not landed and self.view is not None:
            stop = min(offset + size, self.want)
            if stop > offset:
                self.view[offset:stop] = data[: stop - offset]
        sequence.data_sn += 1
        sequence.offset = offset + size
        if final:
            del self.open[tag]
            if tag == NO_TAG:
                self.asked = min(sequence.offset, self.want)
            elif sequence.offset != sequence.end:
                self.failed = self.failed or DATA_PHASE
        return True

    def solicit(self, tag: int, most: int) -> tuple[int, int]:
        """Open the next sequence under a tag; return its offset and length."""
        offset = self.asked
        self.asked = min(self.want, offset + most)
        self.open[tag] = Sequence(offset, self.asked)
        self.r2t_sn += 1
        return offset, self.asked - offset
