"""debug/error-gen: fops that fail on purpose, for tests of whatever is above.

By default every n-th enabled fop fails, as in stock, so a run can be repeated; with `random-failure` each fails with
the same probability, from a seeded generator. A fop that is chosen to fail never reaches the child.
"""

from __future__ import annotations

import difflib
import errno
import random
from typing import Any

from glustx import fops
from glustx.errors import FopError, OptionError
from glustx.fops import FOPS, Fop, Reply
from glustx.options import OptionSet, Percent, option
from glustx.xlator import Xlator, handles
from glustx.xlators.debug.oplist import parse_ops


class ErrorGen(Xlator):
    """Fails a share of the fops that pass."""

    class Options(OptionSet):
        """Options of debug/error-gen."""

        failure: Percent = option(Percent(5.0), "Share of the enabled fops to fail.", low=0, high=100, live=True)
        every: int = option(0, "Fail every n-th enabled fop; 0 takes the distance from `failure`.", low=0, live=True)
        error_no: str = option(
            "EIO", "Name of the errno to fail with; of several in a comma list one is drawn.", live=True
        )
        enable: str = option("", "Fops that may fail, a comma list; empty means all.", live=True)
        random_failure: bool = option(False, "Draw which fops fail, instead of every n-th.", live=True)
        seed: int = option(0, "Where the drawing begins; the same seed repeats the same failures.")

    def check_options(self, options: Any) -> None:
        """Refuse names that are no fop's or no errno's."""
        parse_ops(self.name, "enable", options.enable)
        self._errnos(options)

    def options_changed(self, old: Any) -> None:
        """Follow new shares and lists; the count goes on."""
        options = self.options
        self._enabled = parse_ops(self.name, "enable", options.enable) or frozenset(FOPS)
        self._codes = self._errnos(options)
        share = options.failure / 100
        self._distance = options.every or (max(1, round(1 / share)) if share else 0)

    async def start(self) -> None:
        """Begin to count and to draw."""
        self.options_changed(None)
        self._random = random.Random(self.options.seed)
        self._count = 0
        self._failed = 0

    def _errnos(self, options: Any) -> list[int]:
        codes: list[int] = []
        for name in options.error_no.replace(" ", "").upper().split(","):
            code = getattr(errno, name, None)
            if not isinstance(code, int):
                near = difflib.get_close_matches(name, errno.errorcode.values(), n=1)
                hint = f"; the nearest is {near[0]}" if near else ""
                raise OptionError(self.name, "error-no", f"{name!r} is not the name of an errno{hint}")
            codes.append(code)
        return codes

    @handles(fops.ALL_EFFECTS)
    async def maybe_fail(self, req: Fop) -> Reply:
        """Pass the fop on, or fail it when it is its turn."""
        if req.name in self._enabled and self._strikes():
            self._failed += 1
            code = self._codes[0] if len(self._codes) == 1 else self._random.choice(self._codes)
            raise FopError(code, f"{self.name} fails this {req.name} on purpose")
        reply: Reply = await self.child(req)
        return reply

    def _strikes(self) -> bool:
        self._count += 1
        if self.options.random_failure:
            return bool(self._random.random() * 100 < self.options.failure)
        return bool(self._distance) and self._count % self._distance == 0

    def statedump(self) -> dict[str, Any]:
        """Show how many fops were looked at and how many failed."""
        return {"enabled-fops": self._count, "failed": self._failed}
