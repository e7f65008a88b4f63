"""Volumes with troubles: fops that fail, and an interrupt in the middle of a call."""

from __future__ import annotations

import signal
import threading
from typing import Any

_ticking = threading.Lock()


def faulty(fop: str, code: str = "EIO", every: int = 1, store: str = "") -> str:
    """A volfile whose every n-th `fop` fails."""
    return (
        f"volume store\n type storage/memory\n {store}\nend-volume\n"
        "volume locks\n type features/locks\n subvolumes store\nend-volume\n"
        "volume faults\n type debug/error-gen\n subvolumes locks\n"
        f" option enable {fop}\n option every {every}\n option error-no {code}\nend-volume\n"
    )


class Interrupting:
    """A volume during whose n-th call, or just after it, the main thread gets SIGINT."""

    def __init__(self, volume: Any, calls: list[int], late: bool) -> None:
        self._volume, self._calls, self._late = volume, calls, late

    def _tick(self) -> None:
        with _ticking:
            self._calls[0] -= 1
            now = not self._calls[0]
        if now:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _wrap(self, value: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            bare = [arg._volume if isinstance(arg, Interrupting) else arg for arg in args]
            if not self._late:
                self._tick()
            answer = value(*bare, **kwargs)
            if self._late:
                self._tick()
            return Interrupting(answer, self._calls, self._late) if hasattr(answer, "close") else answer

        return call

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._volume, name)
        return self._wrap(value) if callable(value) else value

    def using(self, **how: Any) -> Interrupting:
        return Interrupting(self._volume.using(**how), self._calls, self._late)

    def __enter__(self) -> Any:
        return self._volume.__enter__()

    def __exit__(self, *error: object) -> None:
        self._volume.__exit__(*error)
