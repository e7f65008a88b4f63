"""Mode pages of a unit: what they say, what may be changed, what is kept (SPC-5 7.5, SBC-4 6.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit


class ModePages:
    """The settings of one unit.

    Args:
        unit: whose they are.

    Attributes:
        descriptor_sense: D_SENSE: sense in descriptor format.
        software_protected: SWP.
        write_cache: WCE; without it every write is durable before it is answered.
        read_cache_disabled: RCD.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.reset()

    def reset(self) -> None:
        """Go back to what is saved, or to the defaults."""
        self.descriptor_sense = False
        self.software_protected = False
        self.write_cache = self.unit.config.writecache
        self.read_cache_disabled = not self.unit.config.readcache

    async def load(self) -> None:
        """Read what is kept with the file."""
