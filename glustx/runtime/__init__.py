"""The runtime of translators: one-shot waiters, hand-driven coroutines, and what is built on the two.

A fop is a coroutine. Whoever holds it (the server's receive path, the asynchronous or the blocking client API)
*drives* it: `send(None)` runs it until it returns or needs something that is not there yet. In the second case it
yields a `Waiter`, and is resumed when that waiter is set. Nothing else may be awaited in a translator; no event loop
is known here.

`turns` holds these, `together` what runs several of them at a time, `reactor` what they may ask of a loop.
"""

from __future__ import annotations

from glustx.runtime.reactor import ManualReactor, Reactor, TimedOut, TimerHandle, sleep, wait_for
from glustx.runtime.together import Lock, Outcome, Queue, Tasks, fan_out, shield, spawn
from glustx.runtime.turns import Finish, Run, Waiter, drive, run_now, turn

__all__ = [
    "Finish",
    "Lock",
    "ManualReactor",
    "Outcome",
    "Queue",
    "Reactor",
    "Run",
    "Tasks",
    "TimedOut",
    "TimerHandle",
    "Waiter",
    "drive",
    "fan_out",
    "run_now",
    "shield",
    "sleep",
    "spawn",
    "turn",
    "wait_for",
]
