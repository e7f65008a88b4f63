"""Keeps docs/long.md: what became of every long test when it last ran, loaded by `make long` (pytest -p).

A run of a part brings its own rows up to date and leaves the others.
"""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "long.md"
PRODUCT = "tests/conformance/test_product.py"
STORES = ("memory", "ext4", "xfs", "btrfs", "tmpfs")
WAYS = ("alone", *(f"{program} {transport}" for program in (400, 330) for transport in ("tcp", "unix", "tls")))

HEAD = """\
# Long tests

Written by `make long`; do not edit. Long tests are those that `make test` leaves out. A row is what became of a test
when it last ran; a class, or a test with several sets of parameters, counts each.

## The fop suite over everything that a fop may go through

Tests that have passed, by store and by what lies between: nothing, or version 400 or 330 of the program over TCP, unix
sockets or TLS. `tests/conformance/test_product.py` is the suite; storage/memory alone is in `make test`.
"""

Rows = dict[str, list[str]]


def read(page: Path = PAGE) -> tuple[Rows, Rows]:
    """Return the rows of the two tables, by their first cell."""
    tables: list[Rows] = []
    for line in page.read_text().splitlines() if page.exists() else ():
        if line.startswith("|---"):
            tables.append({})
        elif line.startswith("| ") and not line.startswith(("| store |", "| test |")):
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            tables[-1][first.strip("`")] = cells
    ways, tests = tables or ({}, {})
    return ways, tests


def write(ways: Rows, tests: Rows, page: Path = PAGE) -> None:
    """Write the page."""
    lines = [HEAD, f"| store | {' | '.join(WAYS)} |", "|---" * (len(WAYS) + 1) + "|"]
    lines += [f"| {store} | {' | '.join(ways.get(store, ['-'] * len(WAYS)))} |" for store in STORES]
    lines += [
        "",
        "## Every other long test",
        "",
        "| test | passed | failed | skipped | seconds | on |",
        "|---" * 6 + "|",
    ]
    lines += [f"| `{name}` | {' | '.join(cells)} |" for name, cells in sorted(tests.items())]
    page.write_text("\n".join(lines) + "\n")


class Outcomes:
    """Collects reports, and merges them into the page when the session ends."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.seconds: Counter[str] = Counter()
        self.long: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.long = {item.nodeid for item in items if item.get_closest_marker("long")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        way = way_of(report.nodeid)
        if report.nodeid not in self.long and way is None:
            return
        key = way or "::".join(report.nodeid.partition("[")[0].split("::")[:2])
        self.seconds[key] += report.duration
        if report.failed or report.skipped or report.when == "call":
            self.counts[key][report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.counts:
            return
        ways, tests = read()
        on = f"{datetime.date.today()}, Python {platform.python_version()}"
        for key, count in self.counts.items():
            if key in _PLACES:
                store, column = _PLACES[key]
                text = f"{count['passed']}" + "".join(
                    f", {count[word]} {word}" for word in ("failed", "skipped") if count[word]
                )
                ways.setdefault(store, ["-"] * len(WAYS))[column] = text
            else:
                numbers = [str(count[word]) for word in ("passed", "failed", "skipped")]
                tests[key] = [*numbers, f"{self.seconds[key]:.0f}", on]
        write(ways, tests)


_PLACES = {f"{store} {way}": (store, column) for store in STORES for column, way in enumerate(WAYS)}
_CLASSES = {"TestFileSystem": "", "TestWire400": "400 ", "TestWire330": "330 "}


def way_of(nodeid: str) -> str | None:
    """Return `STORE WAY` of a test of the suite over everything, None for any other test."""
    if not nodeid.startswith(f"{PRODUCT}::Test"):
        return None
    head, _, params = nodeid.partition("[")
    name = head.split("::")[1]
    for word in re.split(r"[\[\]]", params):
        for store in STORES:
            for transport in ("tcp", "unix", "tls"):
                if f"{store}-{transport}" in word:
                    return f"{store} {_CLASSES[name]}{transport}"
            if name == "TestFileSystem" and store in word:
                return f"{store} alone"
    return None


def gone(tests: Iterable[str]) -> list[str]:
    """Return the rows of tests that are no more."""
    left = []
    for row in tests:
        file, name = row.split("::")
        path = PAGE.parent.parent / file
        text = path.read_text() if path.exists() else ""
        if not re.search(rf"^(?:async )?(?:def|class) {name}\b", text, re.MULTILINE):
            left.append(row)
    return left


def pytest_configure(config: pytest.Config) -> None:
    """Start collecting."""
    config.pluginmanager.register(Outcomes(), "long table")
