"""Bricks of either kind that a test may stop, kill and start again: on loopback, clients in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.kit import NetNamespace, need_peer
from tests.peers import ServedVolume, StockBrick, StockVolume, Volume

KINDS = ("glustx", "stock")


@contextlib.contextmanager
def brick(kind: str, folder: Path) -> Iterator[Volume]:
    """Serve `folder` by glustx, by a bare stock glusterfsd ("stock"), or by stock's glusterd ("glusterd"): in a network
    namespace then, which the calling thread enters, and those that it starts."""
    folder.mkdir(exist_ok=True)
    if kind == "glustx":
        with ServedVolume(folder, "v1") as served:
            yield served
    elif kind == "stock":
        need_peer("namespaces", "glusterfsd")
        with StockBrick(folder, "v1") as bare:
            yield bare
    else:
        need_peer("namespaces", "glusterd", "gluster")
        with NetNamespace() as netns, StockVolume(folder, "v1", netns) as volume, netns.entered():
            yield volume


def url(volume: Volume) -> str:
    """The volume's URL."""
    return volume.url("").rstrip("/")
