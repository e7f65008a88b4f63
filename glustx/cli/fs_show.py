"""What `glustx fs` prints: lines for people, JSON for programs."""

from __future__ import annotations

import json
import stat as _stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

import msgspec

from glustx.fs.listing import Branch, Row, Space, Usage
from glustx.fs.task import Report
from glustx.units import human

_LETTERS = {"directory": "d", "link": "l", "fifo": "p", "socket": "s", "block": "b", "char": "c"}
_MARKS = {"directory": "/", "link": "@", "fifo": "|", "socket": "="}


def print_json(answer: msgspec.Struct) -> None:
    """Print one object on one line; bytes of names that are no UTF-8 become escaped surrogates."""
    print(json.dumps(msgspec.to_builtins(answer)))


def safe(name: str) -> str:
    """Return a name as a terminal may get it; what is no terminal gets the bytes as they are."""
    if name.isprintable() or not sys.stdout.isatty():
        return name
    return "".join(c if c.isprintable() else "?" for c in name)


def print_rows(rows: Sequence[Row], *, long: bool, readable: bool, as_json: bool) -> None:
    """Print rows of `ls`."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    if not long:
        for row in rows:
            print(safe(row.name))
        return
    cells = [
        (
            _mode_text(row),
            str(row.links),
            str(row.uid),
            str(row.gid),
            _size(row.size, readable),
            _time_text(row.mtime_ns),
            safe(row.name) + (f" -> {safe(row.target)}" if row.target is not None else ""),
        )
        for row in rows
    ]
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in range(5)]
    for cell in cells:
        head = (cell[0], *(cell[i].rjust(widths[i]) for i in range(1, 5)))
        print(*head, *cell[5:])


def _mode_text(row: Row) -> str:
    return _LETTERS.get(row.type, "-") + _stat.filemode(int(row.mode, 8))[1:]


def _size(size: int, readable: bool) -> str:
    return human(size) if readable else str(size)


def _time_text(ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(ns // 10**9))


def print_status(row: Row, name: str) -> None:
    """Print what `stat` tells."""
    target = f" -> {safe(row.target)}" if row.target is not None else ""
    print(f"name       {safe(name)}{target}")
    print(f"type       {row.type}, mode {row.mode}, {row.links} name{'s' * (row.links != 1)}")
    print(f"owner      {row.uid}:{row.gid}")
    print(f"size       {human(row.size)} ({row.size} bytes)")
    print(f"allocated  {human(row.allocated)} ({row.allocated} bytes)")
    for label, ns in (("accessed", row.atime_ns), ("modified", row.mtime_ns), ("changed", row.ctime_ns)):
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ns // 10**9))
        print(f"{label:<10} {text}.{ns % 10**9:09}")
    print(f"gfid       {row.gfid}")


def print_space(rows: Sequence[Space], *, readable: bool) -> None:
    """Print what `df` tells."""
    cells = [("volume", "size", "used", "free", "use%", "inodes free")]
    for row in rows:
        share = f"{-(-row.used * 100 // (row.used + row.free))}%" if row.used + row.free else "-"
        total, used, free = (_size(size, readable) for size in (row.total, row.used, row.free))
        cells.append((row.url, total, used, free, share, str(row.inodes_free)))
    widths = [max(len(cell[i]) for cell in cells) for i in range(6)]
    for cell in cells:
        print(cell[0].ljust(widths[0]), *(cell[i].rjust(widths[i]) for i in range(1, 6)), sep="  ")


def print_usage(row: Usage, *, apparent: bool, readable: bool, name: str) -> None:
    """Print a line of `du`."""
    print(f"{_size(row.size if apparent else row.allocated, readable)}\t{safe(name)}")


def print_tree(top: Branch, name: str) -> None:
    """Print a tree with lines."""
    print(safe(name))
    directories = files = 0
    for branch, lead in _lines(top):
        target = f" -> {safe(branch.target)}" if branch.target is not None else ""
        size = f"  {human(branch.size)}" if branch.type == "file" else ""
        print(f"{lead}{safe(branch.name)}{_MARKS.get(branch.type, '')}{target}{size}")
        directories += branch.type == "directory"
        files += branch.type != "directory"
    print(f"\n{directories} director{'y' if directories == 1 else 'ies'}, {files} file{'s' * (files != 1)}")


def _lines(top: Branch) -> Iterator[tuple[Branch, str]]:
    stack = [(branch, "", index == 0) for index, branch in enumerate(reversed(top.children or []))]
    while stack:
        branch, indent, last = stack.pop()
        yield branch, indent + ("`-- " if last else "|-- ")
        below = indent + ("    " if last else "|   ")
        stack.extend((child, below, index == 0) for index, child in enumerate(reversed(branch.children or [])))


def print_report(report: Report, *, verbose: bool, as_json: bool, file: TextIO | None = None) -> None:
    """Print what became of a copy, a move or a removal; nothing unless asked, as cp, mv and rm do."""
    if as_json:
        print(json.dumps(msgspec.to_builtins(report)), file=file)
        return
    if not verbose:
        return
    parts = [f"{report.files} files", f"{report.directories} directories", f"{report.links} links"]
    if report.skipped:
        parts.append(f"{report.skipped} were there already")
    if report.bytes_offloaded:
        parts.append(f"{human(report.bytes_offloaded)} copied by the brick")
    if report.bytes_copied:
        parts.append(f"{human(report.bytes_copied)} sent")
    if report.bytes_holes:
        parts.append(f"{human(report.bytes_holes)} of holes")
    print(f"{report.verb}: {', '.join(parts)}; {len(report.failures)} failed; {report.seconds:.2f} s", file=file)
