"""The suite's modules are no test files themselves; their assertions should tell as much as if they were."""

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.{name}" for name in ("brick", "suite_names", "suite_data", "suite_attrs", "models"))
)
