"""File systems for conformance tests: each is made at its first use and stays until the session ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glustx.fops import Fop
from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.brick import Brick
from tests.loopfs import small_disk

# What a range at 2^62 gets: 0 where the file system has no limit below it.
FAR = {"ext4": errno.EFBIG, "xfs": 0, "btrfs": 0, "tmpfs": 0}
FILE_SYSTEMS = tuple(FAR)


class FileSystems:
    """Mounts below a folder, by their type.

    Args:
        work: where images and mount points are made; all of them are gone after `close`.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._roots: dict[str, Path] = {}
        self._mounted = contextlib.ExitStack()

    def folder(self, kind: str) -> Path:
        """A new folder on a file system of `kind`; skips, with the reason, where none can be made."""
        if kind not in self._roots:
            self._roots[kind] = self._mounted.enter_context(small_disk(kind, self._work)).root
        made = self._roots[kind] / secrets.token_hex(8)
        made.mkdir()
        return made

    def close(self) -> None:
        """Unmount everything."""
        gc.collect()  # an fd in a cycle would keep a file system busy
        self._mounted.close()


def storage(folder: Path) -> str:
    """Make `folder` a brick; the volfile of its storage/posix, a volume named `store`."""
    namespace = "trusted" if os.geteuid() == 0 else "user"
    prepare_brick(str(folder), namespace=namespace)
    return f"""
volume store
    type storage/posix
    option directory {folder}
    option xattr-namespace {namespace}
end-volume
"""


@contextlib.contextmanager
def posix_brick(kind: str, text: str) -> Iterator[Brick]:
    """A graph of storage/posix alone; `kind` is its file system, `text` its volfile."""
    reactor = ManualReactor()
    graph = Graph.load(text, Surroundings(reactor))
    reactor.wait(graph.start())
    try:
        brick = brick_on(kind, lambda request: reactor.wait(graph.top(request)))
        brick.graph = graph
        yield brick
    finally:
        reactor.wait(graph.stop())


def brick_on(store: str, call: Callable[[Fop], Any]) -> Brick:
    """A brick that answers as its store, a file system or memory, makes it."""
    brick = Brick(call)
    brick.far = FAR.get(store, brick.far)
    brick.counts_folders = store != "btrfs"
    return brick
