"""Informational exceptions of a unit: what is wrong though commands succeed, and how that is told (SPC-5 7.5.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.scsi.mode_pages import DEXCPT, MRIE, TEST
from glustx.scsi.sense import NO_SENSE, RECOVERED, Attention, Sense
from glustx.scsi.task import CHECK_CONDITION, GOOD, Result

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_FAILURE_PREDICTED = (0x5D, 0x00)
_FALSE_PREDICTION = (0x5D, 0xFF)
_THRESHOLD_REACHED = (0x38, 0x07)
_RANK = 17
_ATTENTION, _CONDITIONAL, _UNCONDITIONAL, _NO_SENSE, _ON_REQUEST = 2, 3, 4, 5, 6
_UNSPECIFIED = (0, 0xFFFFFFFF)  # of the interval: told once


class Exceptions:
    """The informational exceptions of one unit.

    Args:
        unit: whose they are.

    Attributes:
        threshold: whether a thin provisioning threshold is met at the moment; those have unit attentions of their own.
        failing: whether the brick could not read or write a block (EIO); stays until LOG SELECT resets page 2Fh.
        active: whether commands must look here when they have ended.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.threshold = False
        self.failing = False
        self.active = False
        self._page = bytes(10)
        self._told: tuple[int, int] | None = None
        self._times = 0
        self._next = 0.0

    @property
    def code(self) -> tuple[int, int]:
        """ASC and ASCQ of what is wrong, (0, 0) when nothing is."""
        body = self._page
        if body[DEXCPT[0]] & DEXCPT[1]:
            return 0, 0
        if body[TEST[0]] & TEST[1]:
            return _FALSE_PREDICTION
        if self.failing:
            return _FAILURE_PREDICTED
        return _THRESHOLD_REACHED if self.threshold else (0, 0)

    @property
    def on_request(self) -> Sense | None:
        """What REQUEST SENSE tells of it, when it is to (MRIE 6)."""
        code = self.code
        if code == (0, 0) or self._method != _ON_REQUEST:
            return None
        return Sense(NO_SENSE, *code)

    @property
    def _method(self) -> int:
        return self._page[MRIE[0]] & MRIE[1]

    def configure(self, page: bytes) -> None:
        """Take the body of the mode page that says what is told and how."""
        self._page = page
        self.review()

    def failed(self) -> None:
        """The brick could not read or write a block."""
        self.failing = True
        self.review()

    def review(self) -> None:
        """Look again whether anything is wrong and to be told, after a change of either."""
        if self.code != self._told:
            self._told, self._times, self._next = None, 0, 0.0
        told_here = self.failing or self.code == _FALSE_PREDICTION
        self.active = told_here and self._method in (_ATTENTION, _CONDITIONAL, _UNCONDITIONAL, _NO_SENSE)

    def after(self, result: Result) -> Result:
        """Return how a command ends in view of what is wrong: as it did, or with the exception where it is time."""
        body = self._page
        now = self.unit.reactor.time()
        interval, count = int.from_bytes(body[2:6], "big"), int.from_bytes(body[6:10], "big")
        if self._times and (interval in _UNSPECIFIED or now < self._next or 0 < count <= self._times):
            return result
        code, method = self.code, self._method
        if method != _ATTENTION and result.status != GOOD:
            return result
        self._told, self._times, self._next = code, self._times + 1, now + interval / 10
        if method == _ATTENTION:
            self.unit.tell_all(Attention(*code, _RANK))
            return result
        key = NO_SENSE if method == _NO_SENSE else RECOVERED
        return Result(CHECK_CONDITION, result.data, result.length, Sense(key, *code))
