"""What the benches share that measure two sides in alternating rounds: samples, ratios per round, the table, the gates.

The speed of a machine wanders more between minutes than the sides differ, so a ratio is taken per round and the middle
one counts.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.kit import loop_filesystem


@dataclass(frozen=True)
class Row:
    """One line of the table: what is run, and the least ratio of rates (most of CPU) that `--check` accepts."""

    name: str
    gate: float
    fio: tuple[str, ...] = ()  # empty: a phase of the metadata loop
    rounds_factor: float = 1.0
    cpu_gate: float | None = None


@dataclass
class Sample:
    """One measurement: operations per second and microseconds of CPU per operation."""

    rate: float
    cpu_us: float


def spread(values: list[float], digits: int = 2) -> str:
    """The median with the least and the greatest."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def summary(row: Row, theirs: list[Sample], ours: list[Sample], other: str = "stock") -> dict:
    """The figures of one row, as they are printed and as they go into a JSON file."""
    ratios = [b.rate / a.rate for a, b in zip(theirs, ours, strict=True)]
    cpu = [statistics.median(sample.cpu_us for sample in samples) for samples in (theirs, ours)]
    return {
        "row": row.name,
        f"{other}_per_s": [round(sample.rate, 1) for sample in theirs],
        "glustx_per_s": [round(sample.rate, 1) for sample in ours],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": statistics.median(ratios),
        "gate": row.gate,
        f"{other}_cpu_us": cpu[0],
        "glustx_cpu_us": cpu[1],
        "cpu_ratio": cpu[1] / cpu[0] if cpu[0] else None,
        "cpu_gate": row.cpu_gate,
    }


def head_line(other: str, cpu: str) -> str:
    """The head of the table: what is compared with, and whose CPU is shown."""
    return f"{'row':<18} {other + '/s':>10} {'glustx/s':>10}   {'ratio [min-max]':<18} {cpu + ' CPU us/op':<18}   gate"


def table_line(figures: dict, other: str = "stock") -> str:
    """One row of the table."""
    theirs, ours = (statistics.median(figures[f"{name}_per_s"]) for name in (other, "glustx"))
    cpu = f"{figures[f'{other}_cpu_us']:7.1f} -> {figures['glustx_cpu_us']:7.1f}"
    gate = f"{figures['gate']:.1f}" + (f", CPU {figures['cpu_gate']}" if figures["cpu_gate"] else "")
    return f"{figures['row']:<18} {theirs:>10.0f} {ours:>10.0f}   {spread(figures['ratios']):<18} {cpu}   {gate}"


def failures(figures: dict) -> list[str]:
    """What `--check` complains about in one row."""
    found = []
    if figures["ratio"] < figures["gate"]:
        found.append(f"{figures['row']}: ratio {figures['ratio']:.2f} is below {figures['gate']}")
    if figures["cpu_gate"] and (figures["cpu_ratio"] is None or figures["cpu_ratio"] > figures["cpu_gate"]):
        found.append(
            f"{figures['row']}: CPU per operation is {figures['cpu_ratio']} of the other's, over {figures['cpu_gate']}"
        )
    return found


def first_line(*command: str) -> str:
    """The first line that a command prints."""
    return subprocess.run(command, capture_output=True, text=True).stdout.partition("\n")[0]


def machine(folder: Path) -> dict[str, str]:
    """What the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown CPU")
    return {
        "cpu": f"{os.cpu_count()} x {model}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "filesystem": first_line("findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(folder)),
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "stock": first_line("glusterfs", "--version"),
        "fio": first_line("fio", "--version"),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def warn_of_load(about: dict[str, str]) -> None:
    """Say so when the machine was busy before the first sample."""
    if float(about["load"]) > 0.5:
        print(
            f"the machine was not idle at the start (load {about['load']}): trust CPU per operation before the ratios"
        )


def scratch(stack: ExitStack, folder: Path, loop: str | None, size: int = 16 << 30) -> Path:
    """A folder for the bricks, on a fresh file system of type `loop` of `size` bytes if one is asked for."""
    made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glustx-versus-", dir=folder)))
    return stack.enter_context(loop_filesystem(made, loop, size)) if loop else made
