"""docs/long.md, which `make long` writes: it names tests that exist, none has failed, and the product is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import long_table
from tests.long_table import PRODUCT, STORES, WAYS


def test_the_committed_page() -> None:
    ways, tests = long_table.read()
    assert long_table.gone(tests) == []
    assert {name: cells for name, cells in tests.items() if cells[1] != "0" or cells[0] == "0"} == {}
    for store in STORES:
        for way, cell in zip(WAYS, ways[store], strict=True):
            if (store, way) != ("memory", "alone"):
                assert cell.isdigit() and int(cell) > 100, f"{store}, {way}: {cell}"


def test_the_way_of_a_test() -> None:
    def way(rest: str) -> str | None:
        return long_table.way_of(f"{PRODUCT}::{rest}")

    assert way("TestFileSystem::test_stat[xfs]") == "xfs alone"
    assert way("TestWire400::test_a_name[btrfs-unix-a/b]") == "btrfs 400 unix"
    assert way("TestWire330::test_ranges_that_are_refused[Zerofill-memory-tls]") == "memory 330 tls"
    assert way("test_o_direct_reaches_the_brick[ext4-unix-400]") is None


def test_a_part_changes_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "long.md"
    monkeypatch.setattr(long_table, "PAGE", page)
    long_table.write({"xfs": ["7"] * len(WAYS)}, {"tests/t.py::test_one": ["1", "0", "0", "5", "a day"]}, page)
    before = long_table.read(page)
    assert before[0]["xfs"] == ["7"] * len(WAYS) and before[0]["ext4"] == ["-"] * len(WAYS)
    assert before[1] == {"tests/t.py::test_one": ["1", "0", "0", "5", "a day"]}
    long_table.write(*before, page)
    assert long_table.read(page) == before
    assert long_table.gone(before[1]) == ["tests/t.py::test_one"]
