"""The suite through the caches of a client's stack: none of them may be seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glustx.runtime import run_now
from tests.conformance.brick import Brick
from tests.conformance.suite import FopSuite
from tests.conformance.suite_locks import LocksSuite
from tests.conformance.test_memory import VOLFILE, memory_graph
from tests.conformance.test_wire import MEMORY, through_the_wire

CACHES = """
volume open-behind
    type performance/open-behind
    {open_behind}
    subvolumes {below}
end-volume
volume quick-read
    type performance/quick-read
    {quick_read}
    subvolumes open-behind
end-volume
"""


@pytest.fixture
def open_behind() -> str:
    return ""


class TestCaches(FopSuite):
    """open-behind and quick-read, in stock's order."""

    @pytest.fixture
    def brick(self, open_behind: str) -> Iterator[Brick]:
        graph = memory_graph(VOLFILE + CACHES.format(below="store", open_behind=open_behind, quick_read=""))
        yield Brick(lambda request: run_now(graph.top(request)))
        run_now(graph.stop())


class TestCachesAnonymous(TestCaches):
    """What only looks goes by the anonymous fd."""

    @pytest.fixture
    def open_behind(self) -> str:
        return "option use-anonymous-fd on\n    option read-after-open off"


@pytest.mark.long
class TestCachesWire(LocksSuite, FopSuite):
    """A client with both of a brick that a socket lies between."""

    @pytest.fixture
    def brick(self) -> Iterator[Brick]:
        yield from through_the_wire(MEMORY, CACHES.format(below="client", open_behind="", quick_read=""))
