"""An iSCSI gateway of ours against tgt: the same clients, the same file system, one run, alternating.

    python bench/iscsi.py [--against file|glfs] [--rows 'read-4k*'] [--seconds 3] [--rounds 5] [--json FILE] [--check]

`file`: tgt with its file store against a gateway that runs the brick itself. `glfs`: tgt with its libgfapi store
against a gateway over the network, both on one stock brick. Needs root and the Debian packages libiscsi-bin,
qemu-utils, qemu-block-extra, tgt (and tgt-glusterfs, glusterfs-server). The sides alternate within each round and a
ratio is taken per round. CPU per operation is that of the target's processes alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.paired import Row, Sample, failures, head_line, machine, scratch, summary, table_line, warn_of_load
from tests.gateway import GatewayProcess
from tests.kit import NetNamespace, Process, descendants, free_port
from tests.peers import StockVolume

TICK = os.sysconf("SC_CLK_TCK")
NAME = "iqn.2026-12.org.example:bench"
TGT_CONTROL = 47


@dataclass(frozen=True)
class Load:
    """What one row runs: bytes per operation, operations at a time, and which client."""

    size: int
    depth: int
    write: bool = False
    random: bool = False
    client: str = "qemu"


GATE = 0.7
LOADS = {
    "randread-4k-d1": Load(4096, 1, random=True, client="iscsi-perf"),
    "randread-4k-d32": Load(4096, 32, random=True, client="iscsi-perf"),
    "read-1m-d8": Load(1 << 20, 8, client="iscsi-perf"),
    "read-4k-d1": Load(4096, 1),
    "read-4k-d32": Load(4096, 32),
    "read-64k-d32": Load(65536, 32),
    "read-1m-d32": Load(1 << 20, 32),
    "write-4k-d1": Load(4096, 1, write=True),
    "write-4k-d32": Load(4096, 32, write=True),
    "write-64k-d32": Load(65536, 32, write=True),
    "write-1m-d32": Load(1 << 20, 32, write=True),
}


@dataclass
class Side:
    """One of the two targets: where it is, its process, its samples by row."""

    name: str
    url: str
    pid: int
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far."""
        total = 0
        for pid in {self.pid, *descendants(self.pid)}:
            with contextlib.suppress(FileNotFoundError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(words[11]) + int(words[12])
        return total / TICK


class Bench:
    """Runs loads; the clients run where the targets are reached."""

    def __init__(self, options: argparse.Namespace, prefix: list[str]) -> None:
        self.options = options
        self.prefix = prefix
        self.counts: dict[str, int] = {}

    def sample(self, side: Side, name: str, load: Load) -> Sample:
        """Measure one side once."""
        before = side.cpu_seconds()
        if load.client == "iscsi-perf":
            rate, operations = self._perf(side, load)
        else:
            rate, operations = self._qemu(side, name, load)
        return Sample(rate, (side.cpu_seconds() - before) * 1e6 / max(operations, 1))

    def _run(self, *argv: str) -> str:
        done = subprocess.run([*self.prefix, *argv], capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _perf(self, side: Side, load: Load) -> tuple[float, int]:
        seconds = max(1, round(self.options.seconds))
        words = [
            "-m",
            str(load.depth),
            "-b",
            str(load.size // 512),
            "-t",
            str(seconds),
            *(["-r"] if load.random else []),
        ]
        text = self._run("iscsi-perf", *words, side.url)
        rate = float(re.findall(r"iops average (\d+)", text)[-1])
        return rate, round(rate * seconds)

    def _qemu(self, side: Side, name: str, load: Load) -> tuple[float, int]:
        count = self.counts.get(name)
        if count is None:
            # So many that a round takes as long as was asked for, by the first try.
            trial = max(16, (8 << 20) // load.size)
            taken = self._bench(side, load, trial)
            count = self.counts[name] = max(16, int(trial / max(taken, 1e-3) * self.options.seconds))
        taken = self._bench(side, load, count)
        return count / taken, count

    def _bench(self, side: Side, load: Load, count: int) -> float:
        words = ["-c", str(count), "-d", str(load.depth), "-s", str(load.size), *(["-w"] if load.write else [])]
        text = self._run("qemu-img", "bench", "-f", "raw", "-t", "none", *words, side.url)
        return float(re.findall(r"completed in ([0-9.]+) seconds", text)[-1])


def tgt(stack: ExitStack, prefix: list[str], store: list[str]) -> Side:
    """Run tgt with one LUN."""
    port = free_port()
    process = stack.enter_context(
        Process([*prefix, "tgtd", "-f", "-C", str(TGT_CONTROL), "--iscsi", f"portal=127.0.0.1:{port}"])
    )
    admin = [*prefix, "tgtadm", "-C", str(TGT_CONTROL), "--lld", "iscsi"]
    deadline = time.monotonic() + 10
    while subprocess.run([*admin, "--mode", "sys", "--op", "show"], capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise RuntimeError("tgtd does not answer")
        time.sleep(0.05)
    for words in (
        ["--mode", "target", "--op", "new", "--tid", "1", "-T", NAME],
        ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", *store],
        ["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"],
    ):
        subprocess.run([*admin, *words], check=True, capture_output=True)
    return Side("tgt", f"iscsi://127.0.0.1:{port}/{NAME}/1", process.pid)


def fill(path: str, prefix: list[str], size: int) -> None:
    """Write data to the whole of a file or URL, so that no side reads holes."""
    subprocess.run([*prefix, "qemu-img", "create", "-q", "-f", "raw", path, str(size)], check=True)
    pattern = ["qemu-io", "-f", "raw", "-c", f"write -q -P 165 0 {size}", path]
    subprocess.run([*prefix, *pattern], check=True, capture_output=True)


def sides(options: argparse.Namespace, stack: ExitStack, folder: Path) -> tuple[list[str], list[Side]]:
    """Bring both targets up and return how clients are run, and the sides."""
    size = options.size << 20
    gateway = GatewayProcess()
    if options.against == "file":
        brick, plain = folder / "brick", folder / "lu.img"
        fill(str(plain), [], size)
        brick.mkdir()
        stack.enter_context(gateway)
        from glustx.gfapi import Volume

        with Volume(str(brick)) as volume, volume.fopen("lu.img", "wb") as file, open(plain, "rb") as source:
            while data := source.read(1 << 20):
                file.write(data)
        gateway.disk(NAME, {f"{brick}:/lu.img": ""})
        return [], [tgt(stack, [], ["-b", str(plain)]), Side("glustx", gateway.url(NAME), gateway.pid)]
    netns = stack.enter_context(NetNamespace())
    stock = stack.enter_context(StockVolume(folder / "stock", "bench", netns))
    prefix = netns.command()
    for name in ("tgt.img", "glustx.img"):
        fill(stock.url(name), prefix, size)
    with netns.entered():
        stack.enter_context(gateway)
        host = stock.url("x").split("/")[2]
        gateway.disk(NAME, {f"gluster://{host}/bench:/glustx.img": ""})
        store = ["--bstype", "glfs", "-b", "tgt.img", "--bsopts", f"logfile=/dev/null;volume=bench@{host}:tgt.img"]
        their = tgt(stack, prefix, store)
    return prefix, [their, Side("glustx", gateway.url(NAME), gateway.pid)]


def main() -> int:
    """Run the rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", choices=("file", "glfs"), default="file")
    parser.add_argument("--rows", default="*", help="patterns of rows, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long one sample takes")
    parser.add_argument("--size", type=int, default=256, help="MiB of each LUN")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--loop", choices=("ext4", "xfs", "btrfs"), help="put both on a fresh file system")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="fail when a ratio is below its gate")
    options = parser.parse_args()
    gate = GATE if options.against == "file" else 1.0
    patterns = options.rows.split(",")
    names = [name for name in LOADS if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    complaints: list[str] = []
    with ExitStack() as stack:
        folder = scratch(stack, options.folder, options.loop)
        about = machine(folder)
        about["tgt"] = subprocess.run(["tgtd", "-V"], capture_output=True, text=True).stdout.strip()
        print(json.dumps(about))
        warn_of_load(about)
        prefix, both = sides(options, stack, folder)
        bench = Bench(options, prefix)
        print(head_line("tgt", "target"))
        tables = []
        for name in names:
            for index in range(options.rounds):
                for side in both if index % 2 == 0 else reversed(both):
                    side.samples.setdefault(name, []).append(bench.sample(side, name, LOADS[name]))
            figures = summary(Row(name, gate), both[0].samples[name], both[1].samples[name], "tgt")
            print(table_line(figures, "tgt"), flush=True)
            tables.append(figures)
            complaints += failures(figures)
        if options.json:
            options.json.write_text(json.dumps({"machine": about, "rows": tables}, indent=1))
    for complaint in complaints:
        print(complaint)
    return 1 if options.check and complaints else 0


if __name__ == "__main__":
    sys.exit(main())
