"""Reservations of a unit (SPC-5 5.14): RESERVE and RELEASE, and persistent ones, which are kept with the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.scsi.commands import Command
from glustx.scsi.task import Nexus

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit


class Reservations:
    """Who has reserved one unit.

    Args:
        unit: whose they are.

    Attributes:
        held: whether there is any reservation or registration; without one no command is looked at.
        holder: nexus that holds RESERVE.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.held = False
        self.holder: Nexus | None = None

    async def load(self) -> None:
        """Read what is kept with the file."""

    def refuses(self, nexus: Nexus, command: Command, cdb: bytes) -> bool:
        """Tell whether a command meets somebody else's reservation."""
        return False

    def nexus_lost(self, nexus: Nexus) -> None:
        """A nexus is gone: drop what it held by RESERVE; persistent reservations stay."""

    def reset(self) -> None:
        """The unit was reset: drop RESERVE; persistent reservations stay."""
