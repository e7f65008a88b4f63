"""Progress for people (a bar) and for programs (JSON lines), both on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glustx.progress import Moment, Show

SHOWS = ("auto", "bar", "json", "none")


@contextlib.contextmanager
def progress_on(kind: str, name: str) -> Iterator[Show | None]:
    """Show progress of the work on `name` while the block runs.

    Args:
        kind: one of SHOWS; `auto` is a bar on a terminal and nothing elsewhere.
    """
    if kind == "auto":
        kind = "bar" if sys.stderr.isatty() else "none"
    if kind == "json":
        yield _json_line
    elif kind == "bar":
        with _bar(name) as show:
            yield show
    else:
        yield None


def _json_line(moment: Moment) -> None:
    import msgspec

    print(msgspec.json.encode(moment).decode(), file=sys.stderr, flush=True)


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)

        def show(moment: Moment) -> None:
            what = f"{moment.phase} ({moment.method})" if moment.method else moment.phase
            bar.update(task, description=what, total=moment.size or None, completed=moment.transferred)

        yield show
