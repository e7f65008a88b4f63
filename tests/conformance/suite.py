"""The whole conformance suite: a subclass says how its graph is made and driven, and where it may answer otherwise.

class TestMine(FopSuite):
    @pytest.fixture
    def brick(self): yield Brick(call)

    @pytest.fixture(scope="class")
    def models(self): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.brick import Brick
from tests.conformance.models import BytesModel, NamesModel
from tests.conformance.suite_attrs import AttrsSuite
from tests.conformance.suite_data import DataSuite
from tests.conformance.suite_names import NamesSuite

# A model works in a folder or file of its own, so that many of them share a brick.
EXAMPLES = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class FopSuite(NamesSuite, DataSuite, AttrsSuite):
    """Every fop, then two models under random fops. The fixture `brick` gives a fresh, empty graph."""

    examples = EXAMPLES

    def test_bytes_of_a_file(self, brick: Brick) -> None:
        run_state_machine_as_test(_on(BytesModel, brick), settings=self.examples)

    def test_names_of_a_tree(self, brick: Brick) -> None:
        run_state_machine_as_test(_on(NamesModel, brick), settings=self.examples)


def _on(model: type[Any], brick: Brick) -> Callable[[], Any]:
    return type(model.__name__, (model,), {"brick": brick})
