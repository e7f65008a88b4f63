"""A gateway of ours in a process of its own, as `glustx target` sets it up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from glustx.mgmt import gateway_control
from glustx.mgmt.targets import Store
from glustx.scsi.config import lun_config
from tests.kit import Process

GLUSTX = [sys.executable, "-m", "glustx"]


def _ready(line: str) -> dict | None:
    if not line.startswith("{"):
        return None
    message = json.loads(line)
    return message if message.get("ready") else None


class GatewayProcess:
    """`glustx target serve` on a free port, with its state in a folder of its own."""

    def __init__(self, log_level: str = "warning") -> None:
        self.log_level = log_level
        self.port = 0

    def __enter__(self) -> GatewayProcess:
        with contextlib.ExitStack() as stack:
            self.state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glustx-gw-")))
            self.env = {"GLUSTX_STATE_DIR": str(self.state)}
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            self.process.stop()

    def start(self) -> None:
        """Run it, on the same port as before."""
        portal = f"127.0.0.1:{self.port}"
        argv = [*GLUSTX, "target", "serve", "--portal", portal, "--json", "--log-level", self.log_level]
        self.process = Process(argv, env=self.env)
        try:
            ready = self.process.wait_line(_ready)
        except BaseException:
            self.process.stop()
            raise
        self.pid = ready["pid"]
        self.port = int(ready["portals"][0].rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def target(self, *words: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `glustx target WORDS`."""
        done = subprocess.run(
            [*GLUSTX, "target", *words], env={**os.environ, **self.env}, input=stdin, capture_output=True, text=True
        )
        if check and done.returncode:
            raise AssertionError(f"glustx target {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def disk(self, name: str, files: Mapping[str, str | tuple[str, ...]]) -> None:
        """Make a target whose LUNs are `files`: VOLUME:/PATH -> options, as `glustx target` does it."""
        store = Store(self.state)
        saved = store.load().create(name)
        for file, options in files.items():
            words = [options] if isinstance(options, str) else options
            volume, _, path = file.rpartition(":/")
            texts = {key.replace("_", "-"): value for key, _, value in (w.partition("=") for w in words if w)}
            saved, _ = saved.add_lun(name, lun_config({"volume": volume, "path": f"/{path}", **texts}))
        store.save(saved)
        asyncio.run(gateway_control.ask(self.state / "run" / "gateway.socket", "reload"))

    def url(self, name: str, lun: int = 0) -> str:
        """The URL that libiscsi and QEMU take."""
        return f"iscsi://127.0.0.1:{self.port}/{name}/{lun}"


@contextlib.contextmanager
def sparse(folder: Path, sizes: Mapping[str, int]) -> Iterator[Path]:
    """Put sparse files of `sizes` bytes through a brick into `folder`, which becomes one."""
    from glustx.gfapi import Volume

    folder.mkdir(exist_ok=True)

    with Volume(str(folder)) as volume:
        for name, size in sizes.items():
            with volume.fopen(name, "wb") as file:
                file.truncate(size)
    yield folder
