"""Volumes for the tests with real peers. GLUSTX_TEST_STOCK=1 runs the same tests on stock GlusterFS too, which proves
the tests themselves."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import NetNamespace, need_peer
from tests.peers import ServedVolume, StockVolume, Volume

KINDS = ["glustx", "stock"] if os.environ.get("GLUSTX_TEST_STOCK") == "1" else ["glustx"]
MakeVolume = Callable[[Path], contextlib.AbstractContextManager[Volume]]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Whose brick serves the volumes of the test: "glustx" or "stock"."""
    return request.param


@pytest.fixture(scope="module")
def make_volume(kind: str) -> MakeVolume:
    """`with make_volume(folder) as volume:` serves the folder as volume `v1` in a network namespace of its own."""
    need_peer("namespaces", *(["glusterd", "gluster"] if kind == "stock" else []))

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Volume]:
        volume_class = StockVolume if kind == "stock" else ServedVolume
        with NetNamespace() as netns, volume_class(folder, "v1", netns) as volume:
            yield volume

    return make


@pytest.fixture(scope="module")
def peer_volume(make_volume: MakeVolume, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    """One volume for all tests of a module; they keep apart by file name and may not restart it."""
    folder = tmp_path_factory.mktemp(f"brick-{kind}")
    folder.chmod(0o755)
    try:
        with make_volume(folder) as volume:
            yield volume
    finally:
        # pytest keeps the folders of its last three runs, and images of 20 GiB are in here.
        shutil.rmtree(folder)
