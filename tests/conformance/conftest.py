"""The suite's modules are no test files themselves; their assertions should tell as much as if they were. File systems
are made once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.suite_{name}" for name in ("names", "data", "attrs", "locks")),
    *(f"tests.conformance.{name}" for name in ("brick", "models")),
)

from tests.conformance.filesystems import FileSystems  # noqa: E402


@pytest.fixture(scope="session")
def file_systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileSystems]:
    """Folders on ext4, xfs, btrfs and tmpfs."""
    made = FileSystems(tmp_path_factory.mktemp("filesystems"))
    yield made
    made.close()
