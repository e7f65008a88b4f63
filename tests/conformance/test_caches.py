"""The suite through the caches of a client's stack: none of them may be seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from glustx.runtime import run_now
from tests.conformance.brick import Brick
from tests.conformance.suite import FopSuite
from tests.conformance.test_memory import VOLFILE, memory_graph

CACHES = """
volume open-behind
    type performance/open-behind
    {open_behind}
    subvolumes store
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
        graph = memory_graph(VOLFILE + CACHES.format(open_behind=open_behind, quick_read=""))
        yield Brick(lambda request: run_now(graph.top(request)))
        run_now(graph.stop())


class TestCachesAnonymous(TestCaches):
    """What only looks goes by the anonymous fd."""

    @pytest.fixture
    def open_behind(self) -> str:
        return "option use-anonymous-fd on\n    option read-after-open off"
