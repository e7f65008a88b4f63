"""Ctrl-C, SIGTERM and a time limit as one KeyboardInterrupt in the main thread, so that work that began is undone."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from glustx.cli.failures import FAILED, INTERRUPTED, TERMINATED
from glustx.gfapi import interrupt


class Stop:
    """Why the command ends before it is done."""

    def __init__(self) -> None:
        self.text = "interrupted"
        self.code = INTERRUPTED


@contextlib.contextmanager
def stoppable(timeout: float = 0.0) -> Iterator[Stop]:
    """Raise KeyboardInterrupt inside the block at SIGINT, SIGTERM, or after `timeout` seconds (0: never).

    The Stop tells which it was. Only the first one counts: what undoes the work is not interrupted itself.
    """
    why = Stop()
    timer = getattr(signal, "SIGALRM", None)
    reasons = {signal.SIGINT: ("interrupted", INTERRUPTED), signal.SIGTERM: ("terminated", TERMINATED)}
    if timer is not None:
        reasons[timer] = (f"not done in {timeout:g} s", FAILED)

    def stop(number: int, frame: FrameType | None) -> None:
        for each in reasons:
            signal.signal(each, signal.SIG_IGN)
        why.text, why.code = reasons[signal.Signals(number)]
        # gfapi lets it out only where no translator is in the middle of something.
        interrupt.on_sigint(signal.SIGINT, frame)

    before = {number: signal.signal(number, stop) for number in reasons}
    if timeout and timer is not None:
        signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        yield why
    finally:
        if timeout and timer is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
