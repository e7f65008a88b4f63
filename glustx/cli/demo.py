"""`glustx demo`: the main job in a temporary folder: serve a volume, provision images both ways, compare, verify."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glustx import linux
from glustx.cli.failures import Failure, told
from glustx.options import parse_size
from glustx.units import human

if TYPE_CHECKING:
    from glustx.mgmt.profile import Layer

_VOLUME = "demo"
_READY_SECONDS = 90.0
_STOP_SECONDS = 30.0
_GIB = 1 << 30


def demo(
    folder: Annotated[Path | None, typer.Option(help="Where the temporary folder goes.")] = None,
    size: Annotated[str, typer.Option(help="Image that the brick zeroes by itself.")] = "20G",
    written: Annotated[str, typer.Option(help="Image that is zeroed by sending zeroes, for comparison.")] = "1G",
) -> None:
    """Serve a volume, provision an image by offload and one by writes, verify both, show the graph, clean up."""
    from glustx.cli.interrupts import stoppable

    with told(OSError), stoppable() as stop:
        try:
            _Demo(_affordable(folder, parse_size(size)), parse_size(written)).run()
        except ValueError as error:
            raise Failure(str(error)) from None
        except KeyboardInterrupt:
            raise Failure(f"{stop.text}; everything was cleaned up", stop.code) from None


def _affordable(folder: Path | None, size: int) -> tuple[Path, int, str]:
    """Return where to work, how big an image it can hold, and what to say about that."""
    where = folder or Path(tempfile.gettempdir())
    if folder is None and _in_memory(where) and os.access("/var/tmp", os.W_OK):
        where = Path("/var/tmp")  # 20 GiB of zeroes would be taken from memory
    space = os.statvfs(where)
    free = space.f_bavail * space.f_frsize
    if size * 5 // 4 <= free:
        return where, size, ""
    less = max(free * 3 // 5 // _GIB * _GIB, _GIB // 8)
    if less > free // 2:
        raise Failure(f"{where} has {human(free)} free, which is too little; give another --folder")
    return where, less, f"{where} has {human(free)} free, so the image is {human(less)} instead of {human(size)}."


def _in_memory(where: Path) -> bool:
    fd = os.open(where, os.O_RDONLY)
    try:
        return linux.fs_magic(fd) == linux.TMPFS_MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


class _Demo:
    def __init__(self, place: tuple[Path, int, str], written: int) -> None:
        from rich.console import Console

        self.parent, self.size, self.remark = place
        self.written = min(written, self.size)
        self.console = Console(highlight=False, soft_wrap=True)
        self.server: subprocess.Popen[bytes] | None = None
        self.brick_method = ""

    def run(self) -> None:
        work = Path(tempfile.mkdtemp(prefix="glustx-demo-", dir=self.parent))
        try:
            self._show(work)
        finally:
            self._stop()
            shutil.rmtree(work)
            self._say(f"Everything is stopped, and {work} is removed.")

    def _show(self, work: Path) -> None:
        from glustx.mgmt.control import ask_facts
        from glustx.mgmt.profile import layers

        brick = work / "brick"
        state = ["--state-dir", str(work / "state")]
        if self.remark:
            self._say(self.remark)
        self._say("[bold]1. Serve a folder as a volume[/]")
        options = ["--volume", _VOLUME, "--port", "0", "--profile", *state, "--json"]
        ready = self._serve(["serve", str(brick), *options])
        self.brick_method = asyncio.run(ask_facts(Path(ready["bricks"][0]["control"]))).get("zero-method", "")
        url = f"gluster://{ready['host']}:{ready['port']}/{_VOLUME}"
        self._say(f"   {url} is up: volume server pid {ready['pid']}, brick pid {ready['bricks'][0]['pid']}")

        full = ["--prealloc", "full", "--output", "json"]
        self._say(f"\n[bold]2. Provision {human(self.size)} of zeroes: the brick does it (ZEROFILL)[/]")
        offload = self._glustx("provision", "create", f"{url}/offload.img", "--size", str(self.size), *full)
        self._say(f"\n[bold]3. The same by writes over the wire, {human(self.written)} only[/]")
        options = ["--size", str(self.written), "--zero-method", "writes"]
        writes = self._glustx("provision", "create", f"{url}/writes.img", *options, *full)
        self._compare([offload, writes])

        self._say("\n[bold]4. Read both back[/]")
        for name, how in (("offload.img", []), ("writes.img", ["--full"])):
            found = self._glustx("provision", "verify", f"{url}/{name}", "--output", "json", *how)
            read, skipped = human(found["bytes_read"]), human(found["bytes_skipped"])
            verdict = f"{human(found['size'])} read as zeroes" if found["zero"] else "NOT ZERO"
            self._say(f"   {name}: {verdict} ({read} read, {skipped} of holes, {found['seconds']:.2f} s)")

        self._say("\n[bold]5. The brick's graph, with the fops that each translator had[/]")
        self._graph(layers(self._run("statedump", _VOLUME, *state)))

    # -- processes -------------------------------------------------------------------------------------------------

    def _command(self, words: Sequence[str]) -> list[str]:
        self._say(f"   [dim]$ glustx {' '.join(words)}[/]")
        return [sys.executable, "-m", "glustx", *words]

    def _serve(self, words: Sequence[str]) -> dict[str, Any]:
        self.server = subprocess.Popen(self._command(words), stdout=subprocess.PIPE, start_new_session=True)
        assert self.server.stdout is not None
        if not select.select([self.server.stdout], [], [], _READY_SECONDS)[0]:
            raise Failure(f"the volume was not served within {_READY_SECONDS:g} s")
        line = self.server.stdout.readline()
        if not line:
            raise Failure("the volume could not be served")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _run(self, *words: str) -> str:
        done = subprocess.run(self._command(words), stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise Failure(f"glustx {words[0]} ended with {done.returncode}", done.returncode)
        return done.stdout

    def _glustx(self, *words: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._run(*words))
        return answer

    def _stop(self) -> None:
        if self.server is None or self.server.poll() is not None:
            return
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.console.print(text)

    def _compare(self, reports: Sequence[dict[str, Any]]) -> None:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("image", "size", "method", "brick", "seconds", "RPCs", "sent", "received"):
            table.add_column(heading, justify="left" if heading in ("image", "method", "brick") else "right")
        for report in reports:
            table.add_row(
                report["path"].lstrip("/"),
                human(report["size"]),
                report["method_used"],
                self.brick_method if report["method_used"] == "zerofill" else "",
                f"{report['seconds']:.3f}",
                str(report["rpcs"]),
                human(report["wire_bytes_sent"]),
                human(report["wire_bytes_received"]),
            )
        self._say("")
        self.console.print(table)

    def _graph(self, found: Sequence[Layer]) -> None:
        from rich.table import Table

        from glustx import fops
        from glustx.graph import find_type

        layers = [layer for layer in found if layer.fops]
        table = Table(box=None, pad_edge=False)
        table.add_column("fop")
        for layer in layers:
            table.add_column(layer.type, justify="right")
        passed = False
        for name in fops.FOPS:
            if not any(layer.fops.get(name) for layer in layers):
                continue
            touched = [find_type(layer.type).how(name) != "pass" for layer in layers]
            passed = passed or not all(touched)
            counts = zip(layers, touched, strict=True)
            table.add_row(name, *(str(layer.fops.get(name, 0)) if mine else "-" for layer, mine in counts))
        self._say(f"   {' > '.join(layer.type for layer in found)}\n")
        self.console.print(table)
        if passed:
            self._say("- : the translator leaves the fop alone, so it never enters it")
