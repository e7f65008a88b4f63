"""storage/posix under the conformance suite, on the file system of the temporary folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.brick import Brick
from tests.conformance.suite import FopSuite


@pytest.fixture
def brick(tmp_path: Path) -> Iterator[Brick]:
    reactor = ManualReactor()
    folder = tmp_path / "brick"
    folder.mkdir()
    namespace = "trusted" if os.geteuid() == 0 else "user"
    prepare_brick(str(folder), namespace=namespace)
    options = f"option directory {folder}\noption xattr-namespace {namespace}"
    text = f"volume store\ntype storage/posix\n{options}\nend-volume\n"
    graph = Graph.load(text, Surroundings(reactor))
    reactor.wait(graph.start())
    yield Brick(lambda request: reactor.wait(graph.top(request)))
    reactor.wait(graph.stop())


class TestPosix(FopSuite):
    """storage/posix alone."""
