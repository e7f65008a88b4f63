"""A brick that answers what cannot be: the fop fails with EIO, the connection ends, and the next one works."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.values import ROOT_LOC, SEEK_HOLE
from tests.t3_wire.world import World, fails, link


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.stop()


def lying(world: World, cls: type[Fop], lie: Callable[[Any], Any]) -> None:
    """Have the brick answer a fop with what `lie` makes of its answer."""
    table = world.server.xlators["/brick"].table
    honest = table[cls]

    async def answer(req: Any) -> Any:
        return lie(await honest(req))

    table[cls] = answer


Lie = tuple[type[Fop], Callable[[Fd], Fop], dict[str, Any]]
LIES: dict[str, Lie] = {
    "read": (fops.Read, lambda fd: fops.Read(fd, 0, 10), {"data": bytes(11)}),
    "write": (fops.Write, lambda fd: fops.Write(fd, 0, b"ab"), {"count": 3}),
    "copy": (fops.CopyFileRange, lambda fd: fops.CopyFileRange(fd, fd, 0, 100, 4), {"count": 5}),
    "seek": (fops.Seek, lambda fd: fops.Seek(fd, 2, SEEK_HOLE), {"offset": 1}),
}


@pytest.mark.logs("unreadable reply to .*: more than was asked for; connection closed")
@pytest.mark.parametrize("name", LIES)
def test_more_than_was_asked_for(world: World, name: str) -> None:
    cls, make, changes = LIES[name]
    lying(world, cls, lambda reply: msgspec.structs.replace(reply, **changes))
    graph = world.client()
    fd = world.create(graph, b"f")
    world.do(graph, fops.Ftruncate(fd, 4096))
    assert "more than was asked for" in fails(world, graph, make(fd), errno.EIO)
    assert not link(graph).up
    world.pass_time(2.5)
    assert world.do(graph, fops.Stat(ROOT_LOC)).stat.is_dir()


@pytest.mark.parametrize("code", [0, -1, 1 << 20, -(1 << 31)])
def test_errnos_that_are_none(world: World, code: int) -> None:
    def refuse(reply: Any) -> Any:
        raise FopError(code, "nonsense")

    lying(world, fops.Stat, refuse)
    graph = world.client()
    fails(world, graph, fops.Stat(ROOT_LOC), errno.EIO)
    assert link(graph).up
