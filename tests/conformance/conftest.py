"""The suite's modules are no test files themselves; their assertions should tell as much as if they were."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.suite_{name}" for name in ("names", "data", "attrs", "locks")),
    *(f"tests.conformance.{name}" for name in ("brick", "models")),
)
