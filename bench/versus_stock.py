"""A glustx brick against a stock glusterfsd brick: the same stock libgfapi clients, the same file system, one run.

    python bench/versus_stock.py [--rows 'randread*,stat'] [--seconds 4] [--json FILE] [--check]

Needs root (network namespaces: fio knows no other port than 24007), and the Debian packages glusterfs-server, fio, gcc
and libglusterfs-dev. The sides alternate within each round and a ratio is taken per round, because the speed of a
machine wanders more between minutes than the sides differ. CPU per operation is that of the brick's processes alone.
Where other programs have removed many files within minutes, ext4 makes each creation slow for both sides; `--loop`
keeps that out."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.paired import Row, Sample, failures, head_line, machine, scratch, summary, table_line, warn_of_load
from tests.kit import ROOT, NetNamespace, Process, compile_c, descendants
from tests.peers import ServedVolume, StockVolume, Volume

TICK = os.sysconf("SC_CLK_TCK")
VOLUME = "bench"


ROWS = [
    Row("randread-4k-qd32", 1.2, ("--rw=randread", "--bs=4k", "--iodepth=32"), cpu_gate=0.5),
    # Bimodal: a reply finds the client's core awake or asleep. More rounds find the middle.
    Row("randread-4k-qd1", 0.9, ("--rw=randread", "--bs=4k", "--iodepth=1"), rounds_factor=2.2),
    Row("randwrite-4k-qd32", 1.0, ("--rw=randwrite", "--bs=4k", "--iodepth=32")),
    Row("read-1m-qd4", 0.9, ("--rw=read", "--bs=1m", "--iodepth=4")),
    Row("write-1m-qd4", 0.9, ("--rw=write", "--bs=1m", "--iodepth=4")),
    Row("create", 1.1),
    Row("stat", 1.3),
    Row("readdirplus", 1.0),
    Row("open-read", 1.2),
    Row("unlink", 1.2),
]


@dataclass
class Side:
    """One of the two bricks, and its samples by row."""

    name: str
    volume: Volume
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        """User and system time of the brick's processes so far."""
        total = 0
        for pid in {child for brick in self.volume.bricks for child in [brick, *descendants(brick)]}:
            with contextlib.suppress(FileNotFoundError):
                # The second field, the name in parentheses, may hold blanks.
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(words[11]) + int(words[12])
        return total / TICK

    def add(self, row: str, rate: float, operations: int, cpu: float) -> None:
        self.samples.setdefault(row, []).append(Sample(rate, cpu * 1e6 / operations))


class Bench:
    """The programs compiled, the options, and how one sample of either kind is taken."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        flags = ["-shared", "-fPIC"]
        self.preload = compile_c(ROOT / "tests/c/nofini.c", work / "nofini.so", libraries=(), flags=flags)
        self.gfmeta = compile_c(ROOT / "bench/gfmeta.c", work / "gfmeta")

    def fio(self, side: Side, *words: str) -> dict:
        """Run fio on the side's file; its first job's result."""
        # The engine comes first: it brings the options that follow.
        job = [
            "--name=bench",
            "--ioengine=gfapi_async",
            f"--volume={side.volume.volume}",
            f"--brick={side.volume.host}",
        ]
        job += ["--filename=fio.data", f"--size={self.options.size}", "--norandommap", *words]
        command = ["env", f"LD_PRELOAD={self.preload}", "fio", "--output-format=json", *job]
        done = subprocess.run(side.volume.command(*command), capture_output=True, text=True, timeout=600)
        if done.returncode or "{" not in done.stdout:
            sys.exit(f"{shlex.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]

    def preload_file(self, side: Side) -> None:
        self.fio(side, "--rw=write", "--bs=1m", "--iodepth=4", "--end_fsync=1")

    def sample_fio(self, side: Side, row: Row) -> None:
        before = side.cpu_seconds()
        job = self.fio(side, *row.fio, "--time_based", f"--runtime={self.options.seconds}")
        cpu = side.cpu_seconds() - before
        result = job["write" if "write" in row.fio[0] else "read"]
        if job["error"] or not result["total_ios"]:
            sys.exit(f"{side.name}: {row.name}: fio error {job['error']}, {result['total_ios']} operations")
        side.add(row.name, result["iops"], result["total_ios"], cpu)

    def sample_metadata(self, side: Side, folder: str, phases: list[str]) -> None:
        where = [side.volume.host, str(side.volume.port), side.volume.volume, str(self.options.files), folder]
        with Process(side.volume.command(self.gfmeta, *where, *phases), stdin=subprocess.PIPE) as process:
            side.stack = process.wait_line(lambda line: line.split()[1:] if line.startswith("stack") else None)
            for phase in phases:
                before = side.cpu_seconds()
                process.popen.stdin.write(b"go\n")
                process.popen.stdin.flush()
                name, seconds, count = process.wait_line(str.split, timeout=600)
                assert name == phase
                side.add(name, int(count) / float(seconds), int(count), side.cpu_seconds() - before)
            process.wait_line(lambda line: True if line == "done" else None)


@contextlib.contextmanager
def two_sides(options: argparse.Namespace, folder: Path) -> Iterator[list[Side]]:
    """A stock volume and the one compared with it, each in a network namespace of its own."""
    command = shlex.split(options.glustx_cmd) if options.glustx_cmd else None
    with contextlib.ExitStack() as stack:
        sides = []
        for name in ("stock", "glustx"):
            brick = folder / name
            brick.mkdir()
            netns = stack.enter_context(NetNamespace())
            if name == "stock":
                volume: Volume = stack.enter_context(StockVolume(brick, VOLUME, netns))
            else:
                volume = stack.enter_context(ServedVolume(brick, VOLUME, netns, command))
            sides.append(Side(name, volume))
        yield sides


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="*", help="comma-separated patterns: " + ", ".join(row.name for row in ROWS))
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds per row (2.2 times that at depth 1)")
    parser.add_argument("--seconds", type=float, default=4, help="length of one fio sample")
    parser.add_argument("--size", default="512m", help="size of the file that fio works on")
    parser.add_argument("--files", type=int, default=2000, help="files of the metadata loop")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where both bricks are made")
    parser.add_argument("--loop", choices=["ext4", "xfs"], help="make a fresh file system in an image there instead")
    parser.add_argument("--glustx-cmd", help="serve with this instead of `python -m glustx serve`")
    parser.add_argument("--json", type=Path, help="write all samples there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a row misses its gate")
    return parser.parse_args()


def main() -> int:
    options = parse()
    rows = [row for row in ROWS if any(fnmatch.fnmatch(row.name, word) for word in options.rows.split(","))]
    if not rows:
        sys.exit(f"no row matches {options.rows!r}")
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = scratch(stack, options.folder, options.loop)
        about = machine(folder)
        print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
        bench = Bench(options, folder)
        with two_sides(options, folder) as sides:
            return report(run(bench, sides, rows), sides, about, options, time.monotonic() - started)


def run(bench: Bench, sides: list[Side], rows: list[Row]) -> list[dict]:
    """Take all samples, printing each row as soon as it is complete."""
    print(head_line("stock", "brick"))
    results = []
    fio_rows = [row for row in rows if row.fio]
    if fio_rows:
        for side in sides:
            bench.preload_file(side)
    for row in fio_rows:
        for number in range(round(bench.options.rounds * row.rounds_factor)):
            for side in sides if number % 2 == 0 else reversed(sides):
                bench.sample_fio(side, row)
        results.append(summary(row, *(side.samples[row.name] for side in sides)))
        print(table_line(results[-1]), flush=True)
    metadata_rows = [row for row in rows if not row.fio]
    if metadata_rows:
        # Removal comes after all rounds of the rest: for some minutes ext4 passes over every inode freed lately, one by
        # one, at each creation, which then costs more than either brick.
        for phases in ([row.name for row in ROWS if not row.fio and row.name != "unlink"], ["unlink"]):
            for number in range(bench.options.rounds):
                for side in sides if number % 2 == 0 else reversed(sides):
                    bench.sample_metadata(side, f"round{number}", phases)
        results += [summary(row, *(side.samples[row.name] for side in sides)) for row in metadata_rows]
        print("\n".join(map(table_line, results[len(fio_rows) :])), flush=True)
    return results


def report(
    results: list[dict], sides: list[Side], about: dict[str, str], options: argparse.Namespace, seconds: float
) -> int:
    """The end of the run: the client stacks compared, the JSON file, the exit status."""
    complaints = [sentence for figures in results for sentence in failures(figures)]
    stacks = [side.stack for side in sides]
    if stacks[0] != stacks[1]:
        complaints.insert(0, f"the client stacks differ: {' '.join(stacks[0])} | {' '.join(stacks[1])}")
    if options.json:
        figures = {"machine": about, "seconds": round(seconds), "client_stack": stacks, "rows": results}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    warn_of_load(about)
    print(f"{seconds:.0f} s; {len(complaints)} complaints")
    for sentence in complaints:
        print(f"  {sentence}")
    return 1 if options.check and complaints else 0


if __name__ == "__main__":
    sys.exit(main())
