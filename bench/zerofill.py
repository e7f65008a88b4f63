"""The table that the ZEROFILL fop was proposed with: an image of 20 and one of 25 GiB filled with zeroes, offloaded to
the brick and by repeated writes, with the time of the provisioning process and the bytes it put on the wire.

    python bench/zerofill.py [--scale 0.1] [--folder DIR] [--json FILE]

Serves a brick in a new folder below DIR by `glustx serve`, on a free port of 127.0.0.1, and runs `glustx provision
create --prealloc full` against it. A size is cut, which is said, when DIR has less than twice that space."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.kit import ROOT, affordable
from tests.peers import ServedVolume

GIB = 1 << 30
SIZES = (20, 25)
METHODS = (("offloaded", "zerofill"), ("repeated writes", "writes"))


def provision(volume: ServedVolume, command: list[str], size: int, method: str) -> dict:
    """Run one `glustx provision create`; its report, with the real, user and system seconds of the process."""
    words = ["provision", "create", volume.url(f"{method}.img"), "--size", str(size), "--prealloc", "full"]
    words += ["--zero-method", method, "--progress", "none", "--output", "json"]
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([*command, *words], stdout=out, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        # wait4 has reaped it, which Popen must know.
        process.returncode = os.waitstatus_to_exitcode(status)
        real = time.monotonic() - start
        out.seek(0)
        lines = out.read().splitlines()
    if process.returncode or not lines:
        sys.exit(f"{shlex.join([*command, *words])}: exit {process.returncode}")
    report = json.loads(lines[-1])
    image = volume.folder / f"{method}.img"
    info = image.stat()
    if info.st_size != size or info.st_blocks * 512 < size:
        sys.exit(f"{image}: {info.st_size} bytes, {info.st_blocks} blocks, not an allocated image of {size} bytes")
    image.unlink()
    return {**report, "real": real, "user": usage.ru_utime, "sys": usage.ru_stime}


def line(label: str, figures: dict) -> str:
    times = " ".join(f"{figures[key]:>9.3f}" for key in ("real", "user", "sys"))
    wire = figures["wire_bytes_sent"] + figures["wire_bytes_received"]
    return (
        f"{label:<28} {times} {figures['seconds']:>9.3f} {figures['rpcs']:>8,} {wire:>16,}   {figures['method_used']}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply both sizes by this")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="where the brick is made")
    parser.add_argument("--glustx-cmd", default=shlex.join([sys.executable, "-m", "glustx"]), help="how to run glustx")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    command = shlex.split(options.glustx_cmd)
    rows = []
    with tempfile.TemporaryDirectory(prefix="glustx-zerofill-", dir=options.folder) as folder:
        with ServedVolume(Path(folder), "zerofill", command=[*command, "serve"]) as volume:
            print(f"{'':<28} {'real':>9} {'user':>9} {'sys':>9} {'in fops':>9} {'RPCs':>8} {'wire bytes':>16}   method")
            for gib in SIZES:
                size = affordable(Path(folder), int(gib * GIB * options.scale) & -4096)
                for name, method in METHODS:
                    figures = provision(volume, command, size, method)
                    rows.append({"size": size, "asked": gib, "way": name, **figures})
                    print(line(f"{size / GIB:.2f} GiB {name}", figures), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
