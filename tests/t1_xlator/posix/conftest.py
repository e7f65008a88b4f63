"""Fixtures of the tests of storage/posix; most run in both xattr namespaces."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import loop_filesystem

pytest.register_assert_rewrite("tests.t1_xlator.posix.kit")

from tests.t1_xlator.posix.kit import Brick, trusted_allowed  # noqa: E402


@pytest.fixture(params=["trusted", "user"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "trusted" and not trusted_allowed(tmp_path):
        pytest.skip("trusted.* xattrs are refused here (not root, or the file system has none)")
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "brick"
    made.mkdir()
    return made


@pytest.fixture
def brick(folder: Path, namespace: str) -> Iterator[Brick]:
    made = Brick(folder, namespace)
    yield made
    made.close()


@pytest.fixture
def stock(folder: Path, tmp_path: Path) -> Iterator[Brick]:
    """A brick with stock's layout."""
    if not trusted_allowed(tmp_path):
        pytest.skip("trusted.* xattrs are refused here (not root, or the file system has none)")
    made = Brick(folder)
    yield made
    made.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Brick]:
    with loop_filesystem(tmp_path, "ext4", 48 << 20, ["-N", "400"]) as root:
        folder = root / "brick"
        folder.mkdir()
        made = Brick(folder, reserve="0")
        yield made
        made.close()
        gc.collect()  # an fd in a cycle would keep the file system busy
