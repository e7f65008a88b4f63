"""The conformance suite below access control: for root, whom it lets pass, and for a user who may do as much but whose
every fop is judged; with features/worm and features/read-only in the stack and off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from glustx import fops
from glustx.fops import Fop
from glustx.runtime import run_now
from glustx.values import ROOT_LOC, SET_MODE, Caller, Iatt
from tests.conformance.brick import Brick
from tests.conformance.suite import FopSuite
from tests.conformance.test_memory import VOLFILE, memory_graph

LAYERS = """
volume access-control
    type features/access-control
    option super-uid 1000
    subvolumes store
end-volume

volume locks
    type features/locks
    subvolumes access-control
end-volume

volume worm
    type features/worm
    subvolumes locks
end-volume

volume read-only
    type features/read-only
    subvolumes worm
end-volume
"""
USER = Caller(pid=1, uid=1000, gid=1000)


class AccessSuite(FopSuite):
    def test_owner_and_setgid(self, brick: Brick) -> None:
        """Somebody else makes files here, whom the directory must let."""
        brick(fops.Setattr(loc=ROOT_LOC, stat=Iatt(mode=0o777), valid=SET_MODE))
        super().test_owner_and_setgid(brick)


class TestAsRoot(AccessSuite):
    @pytest.fixture
    def brick(self) -> Iterator[Brick]:
        graph = memory_graph(VOLFILE + LAYERS)
        yield Brick(lambda request: run_now(graph.top(request)))
        run_now(graph.stop())


class TestAsJudgedUser(AccessSuite):
    @pytest.fixture
    def brick(self) -> Iterator[Brick]:
        graph = memory_graph(VOLFILE + LAYERS)

        def call(request: Fop) -> Any:
            caller = request.caller
            if not caller.uid and caller.pid >= 0:
                caller = msgspec.structs.replace(caller, uid=USER.uid)
            return run_now(graph.top(msgspec.structs.replace(request, caller=caller)))

        yield Brick(call)
        run_now(graph.stop())
