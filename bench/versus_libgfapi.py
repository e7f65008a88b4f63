"""glustx gfapi against stock's libgfapi: two clients, the same stock brick behind the same glusterd, one run.

    python bench/versus_libgfapi.py [--rows 'stat,create'] [--seconds 4] [--json FILE] [--check]

The C side is fio's gfapi_async engine and gfmeta.c, ours is gfmeta.py, which does the same in Python: asyncio for the
reads at depth 32, the blocking Volume for the rest. Needs root and the Debian packages glusterfs-server, fio, gcc and
libglusterfs-dev. The sides alternate within each round and a ratio is taken per round; CPU per operation is that of
the client. The last line is what a mount, a creation and an unmount take together; libgfapi takes ten seconds for it.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.paired import Row, Sample, failures, head_line, machine, scratch, summary, table_line, warn_of_load
from tests.kit import ROOT, NetNamespace, Process, compile_c
from tests.peers import StockVolume

TICK = os.sysconf("SC_CLK_TCK")
VOLUME = "bench"
OTHER = "libgfapi"
ROWS = [
    Row("randread-4k-qd32", 1.4, ("--rw=randread", "--bs=4k", "--iodepth=32")),
    Row("create", 1.2),
    Row("stat", 1.2),
    Row("readdirplus", 1.0),
    Row("open-read", 1.2),
    Row("unlink", 1.0),
]
Sides = dict[str, dict[str, list[Sample]]]


class Clients:
    """The two clients of one stock volume."""

    def __init__(self, options: argparse.Namespace, work: Path, volume: StockVolume) -> None:
        self.options = options
        self.volume = volume
        flags = ["-shared", "-fPIC"]
        self.preload = compile_c(ROOT / "tests/c/nofini.c", work / "nofini.so", libraries=(), flags=flags)
        self.where = [volume.host, str(volume.port), VOLUME]
        self.meta = {
            OTHER: [str(compile_c(ROOT / "bench/gfmeta.c", work / "gfmeta"))],
            "glustx": [options.python, str(ROOT / "bench/gfmeta.py")],
        }
        self.samples: Sides = {OTHER: {}, "glustx": {}}

    def add(self, side: str, row: str, operations: int, seconds: float, cpu: float) -> None:
        self.samples[side].setdefault(row, []).append(Sample(operations / seconds, cpu * 1e6 / operations))

    def run(self, command: list[str]) -> tuple[str, float]:
        """Run a client; what it printed and the CPU seconds of the process."""
        with subprocess.Popen(self.volume.command(*command), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            out = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command}: exit {process.returncode}\n{out}")
        return out, usage.ru_utime + usage.ru_stime

    def fio(self, *words: str) -> tuple[dict, float]:
        # The engine comes first: it brings the options that follow.
        job = ["--name=bench", "--ioengine=gfapi_async", f"--volume={VOLUME}", f"--brick={self.volume.host}"]
        # A thread, because a process of its own would not be counted in the CPU time of the command.
        job += ["--thread", "--filename=fio.data", f"--size={self.options.size}", "--norandommap", *words]
        out, cpu = self.run(["env", f"LD_PRELOAD={self.preload}", "fio", "--output-format=json", *job])
        return json.loads(out[out.index("{") :])["jobs"][0], cpu

    def read(self, side: str, row: Row) -> None:
        if side == OTHER:
            job, cpu = self.fio(*row.fio, "--time_based", f"--runtime={self.options.seconds}")
            count = job["read"]["total_ios"]
            self.add(side, row.name, count, count / job["read"]["iops"], cpu)
        else:
            command = [*self.meta[side], *self.where, "randread", "/fio.data", str(self.options.seconds), "32"]
            out, cpu = self.run(command)
            count, seconds = out.split()
            self.add(side, row.name, int(count), float(seconds), cpu)

    def metadata(self, side: str, folder: str, phases: list[str]) -> None:
        command = [*self.meta[side], *self.where, str(self.options.files), folder, *phases]
        with Process(self.volume.command(*command), stdin=subprocess.PIPE) as process:
            process.wait_line(lambda line: line if line.startswith("stack") else None)
            for phase in phases:
                before = cpu_seconds(process.popen.pid)
                assert process.popen.stdin is not None
                process.popen.stdin.write(b"go\n")
                process.popen.stdin.flush()
                _, seconds, count = process.wait_line(str.split, timeout=600)
                self.add(side, phase, int(count), float(seconds), cpu_seconds(process.popen.pid) - before)
            process.wait_line(lambda line: True if line == "done" else None)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    # The second field, the name in parentheses, may hold blanks.
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICK


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="*", help="comma-separated patterns: " + ", ".join(row.name for row in ROWS))
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds per row")
    parser.add_argument("--seconds", type=float, default=4, help="length of one sample of reads")
    parser.add_argument("--size", default="256m", help="size of the file that is read")
    parser.add_argument("--files", type=int, default=2000, help="files of the metadata loop")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where the brick is made")
    parser.add_argument("--loop", choices=["ext4", "xfs"], help="make a fresh file system in an image there instead")
    parser.add_argument("--python", default=sys.executable, help="interpreter for our client")
    parser.add_argument("--json", type=Path, help="write all samples there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a row misses its gate")
    return parser.parse_args()


def rounds(clients: Clients, rows: list[Row]) -> None:
    """Take all samples."""
    turns = [(OTHER, "glustx") if number % 2 == 0 else ("glustx", OTHER) for number in range(clients.options.rounds)]
    for row in rows:
        if row.fio:
            clients.fio("--rw=write", "--bs=1m", "--iodepth=4", "--end_fsync=1")
            for sides in turns:
                for side in sides:
                    clients.read(side, row)
    if not all(row.fio for row in rows):
        # Removal comes after all rounds of the rest, because ext4 creates slowly for minutes after a mass removal.
        for phases in ([row.name for row in ROWS if not row.fio and row.name != "unlink"], ["unlink"]):
            for number, sides in enumerate(turns):
                for side in sides:
                    clients.metadata(side, f"{side}{number}", phases)


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
        (folder / "brick").mkdir()
        netns = stack.enter_context(NetNamespace())  # fio knows no other port than 24007
        volume = stack.enter_context(StockVolume(folder / "brick", VOLUME, netns))
        clients = Clients(options, folder, volume)
        rounds(clients, rows)
        results = [summary(row, *(clients.samples[s][row.name] for s in (OTHER, "glustx")), OTHER) for row in rows]
        print(head_line(OTHER, "client"))
        for figures in results:
            print(table_line(figures, OTHER))
        command = [*clients.meta["glustx"], *clients.where, "connect"]
        mounts = [float(clients.run([*command, f"/new{number}"])[0]) for number in range(options.rounds)]
        mount = statistics.median(mounts)
        print(f"mount, create and unmount: {mount * 1000:.0f} ms [{min(mounts) * 1000:.0f}-{max(mounts) * 1000:.0f}]")
    complaints = [sentence for figures in results for sentence in failures(figures)]
    if mount > 0.1:
        complaints.append(f"mount, create and unmount take {mount:.3f} s, over 0.1")
    if options.json:
        figures = {"machine": about, "seconds": round(time.monotonic() - started), "rows": results, "mounts": mounts}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    warn_of_load(about)
    print(f"{time.monotonic() - started:.0f} s; {len(complaints)} complaints")
    for sentence in complaints:
        print(f"  {sentence}")
    return 1 if options.check and complaints else 0


if __name__ == "__main__":
    sys.exit(main())
