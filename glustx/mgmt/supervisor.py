"""Starts brick processes, notices when one ends, and ends all with the volume server.

A brick's stdin is a pipe that only the volume server holds, so a brick also ends when its volume server was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import glustx
from glustx.mgmt.state import ServeError
from glustx.rpc.channel import Address

log = logging.getLogger("glustx.mgmt")

_PACKAGE = str(Path(glustx.__file__).resolve().parent.parent)
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 15.0
_RESTART_DELAYS = (1.0, 2.0, 5.0, 10.0, 30.0)


class BrickProcess:
    """One brick and the process that serves it.

    Args:
        brick: its name.
        key: its volfile's GETSPEC key.
        volume: the volume's name, for the brick's messages.
        manager: where the process finds the volume server.
        control: path of its control socket.
        options: words of the command line before and behind the command.
        restart: start it again when it ends by itself.
        ended: called when it has ended by itself.
    """

    def __init__(
        self,
        brick: str,
        key: str,
        volume: str,
        manager: Address,
        control: Path,
        options: tuple[list[str], list[str]],
        restart: bool,
        ended: Callable[[BrickProcess], None],
    ) -> None:
        self.brick = brick
        self.control = control
        self.pid = 0
        server = f"{manager.host}:{manager.port}" if ":" not in manager.host else f"[{manager.host}]:{manager.port}"
        words = ["--server", server, "--volfile-id", key, "--volume", volume, "--control", str(control), "--supervised"]
        self._argv = [sys.executable, "-m", "glustx", *options[0], "brick", *words, *options[1]]
        self._restart = restart
        self._ended = ended
        self._process: asyncio.subprocess.Process | None = None
        self._signed_in: asyncio.Future[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Start the process and wait until it has signed in; ServeError when it ends or is silent instead."""
        self._signed_in = asyncio.get_running_loop().create_future()
        await self._spawn()
        process = self._process
        assert process is not None
        gone: asyncio.Future[int] = asyncio.ensure_future(process.wait())
        either: set[asyncio.Future[Any]] = {gone, self._signed_in}
        try:
            await asyncio.wait(either, timeout=_START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            if not self._signed_in.done():
                what = f"ended ({_status(process.returncode)})" if gone.done() else "did not come up in time"
                raise ServeError(f"the process of brick {self.brick} {what}")
        finally:
            gone.cancel()
        self._watch = asyncio.ensure_future(self._watch_over())

    def signed_in(self, pid: int) -> bool:
        """Somebody says to be the process, and that it listens; tell whether it is."""
        if self._process is None or self._process.pid != pid:
            return False
        self.pid = pid
        if self._signed_in is not None and not self._signed_in.done():
            self._signed_in.set_result(None)
        return True

    async def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL when it takes too long."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
        except asyncio.TimeoutError:
            log.error("brick %s does not end: killed", self.brick)
            process.kill()
            await process.wait()

    async def _spawn(self) -> None:
        # The brick imports the very package that started it, installed or not.
        path = os.pathsep.join(filter(None, [_PACKAGE, os.environ.get("PYTHONPATH")]))
        self._process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C at the terminal is for the volume server, which ends its bricks itself
        )

    async def _watch_over(self) -> None:
        attempt = 0
        while self._process is not None:
            began = asyncio.get_running_loop().time()
            status = await self._process.wait()
            if self._stopping:
                return
            self.pid = 0
            log.error("the process of brick %s has ended (%s)", self.brick, _status(status))
            self._ended(self)
            if not self._restart:
                return
            attempt = 0 if asyncio.get_running_loop().time() - began > 60 else attempt + 1
            delay = _RESTART_DELAYS[min(attempt, len(_RESTART_DELAYS) - 1)]
            log.warning("brick %s is started again in %g s", self.brick, delay)
            await asyncio.sleep(delay)
            await self._spawn()


def _status(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit status {code}"
