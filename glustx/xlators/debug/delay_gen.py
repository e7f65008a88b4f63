"""debug/delay-gen: fops that take longer on purpose, for tests of order and time-outs."""

from __future__ import annotations

import random
from typing import Any

from glustx import fops
from glustx.fops import FOPS, Fop, Reply
from glustx.options import OptionSet, Percent, option
from glustx.runtime import sleep
from glustx.xlator import Xlator, handles
from glustx.xlators.debug.oplist import parse_ops


class DelayGen(Xlator):
    """Holds up a share of the fops on their way down."""

    class Options(OptionSet):
        """Options of debug/delay-gen."""

        delay_percentage: Percent = option(
            Percent(10.0), "Share of the enabled fops to hold up.", low=0, high=100, live=True
        )
        delay_duration: int = option(100_000, "How long to hold one up, in microseconds.", low=0, live=True)
        enable: str = option("", "Fops that may be held up, a comma list; empty means all.", live=True)
        seed: int = option(0, "Where the drawing begins; the same seed repeats the same delays.")

    def check_options(self, options: Any) -> None:
        """Refuse names that are no fop's."""
        parse_ops(self.name, "enable", options.enable)

    def options_changed(self, old: Any) -> None:
        """Follow the list."""
        self._enabled = parse_ops(self.name, "enable", self.options.enable) or frozenset(FOPS)

    async def start(self) -> None:
        """Begin to draw."""
        self.options_changed(None)
        self._random = random.Random(self.options.seed)
        self._delayed = 0

    @handles(fops.ALL_EFFECTS)
    async def maybe_wait(self, req: Fop) -> Reply:
        """Pass the fop on, after a while when it is drawn."""
        if req.name in self._enabled and self._random.random() * 100 < self.options.delay_percentage:
            self._delayed += 1
            await sleep(self.graph.reactor, self.options.delay_duration / 1_000_000)
        reply: Reply = await self.child(req)
        return reply

    def statedump(self) -> dict[str, Any]:
        """Show how many fops were held up."""
        return {"delayed": self._delayed}
