"""root-squash and all-squash: as whom a client's fops arrive, for clients of the pool and for strangers."""

from __future__ import annotations

from typing import Any

import pytest

from glustx import fops
from glustx.graph import Graph
from glustx.options import OptionSet
from glustx.values import ROOT_LOC, Caller
from glustx.xlators.protocol.server import Server
from glustx.xlators.protocol.server_auth import squashed
from tests.t3_wire.world import World

LOGIN = "option auth.login./brick.allow alice\noption auth.login.alice.password s3cret\n"
ALICE = "option username alice\noption password s3cret\n"


class Watched(World):
    """A world that notes who comes to its brick."""

    def __init__(self, options: str = "") -> None:
        super().__init__(options)
        self.seen: list[Caller] = []
        table = self.server.xlators["/brick"].table
        below = table[fops.Stat]

        async def stat(req: Any) -> Any:
            self.seen.append(req.caller)
            return await below(req)

        table[fops.Stat] = stat

    def arrives(self, graph: Graph, caller: Caller) -> Caller:
        """The caller that the brick sees when `caller` sends a STAT."""
        self.do(graph, fops.Stat(ROOT_LOC, caller=caller))
        return self.seen[-1]


def who(caller: Caller) -> tuple[int, int, int, tuple[int, ...]]:
    return caller.pid, caller.uid, caller.gid, caller.groups


@pytest.mark.parametrize(
    ("options", "sent", "seen"),
    [
        ("", Caller(1, 0, 0, (0, 5)), (1, 0, 0, (0, 5))),
        ("", Caller(-3, 0, 0), (-3, 0, 0, ())),
        ("option root-squash on", Caller(1, 0, 0, (0, 5)), (1, 65534, 65534, (65534, 5))),
        ("option root-squash on", Caller(1, 1000, 0, (4,)), (1, 1000, 65534, (4,))),
        ("option root-squash on", Caller(1, 1000, 1000, (4,)), (1, 1000, 1000, (4,))),
        ("option server.root-squash on\noption server.anonuid 7\noption anongid 8", Caller(1, 0, 0), (1, 7, 8, ())),
        ("option all-squash on", Caller(1, 1000, 1000, (4,)), (1, 65534, 65534, ())),
        ("option server.all-squash on\noption anonuid 7", Caller(1, 0, 1000), (1, 7, 65534, ())),
        # A stranger's claim to be the self-heal daemon is worth nothing.
        ("option root-squash on", Caller(-6, 0, 0), (0, 65534, 65534, ())),
    ],
)
def test_a_stranger(options: str, sent: Caller, seen: tuple[int, int, int, tuple[int, ...]]) -> None:
    world = Watched(options)
    graph = world.client()
    assert who(world.arrives(graph, sent)) == seen
    assert who(world.arrives(graph, sent)) == seen, "and again, from the memo"


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        (Caller(1, 0, 0), (1, 65534, 65534, ())),
        *((Caller(pid, 0, 0), (pid, 0, 0, ())) for pid in (-1, -3, -4, -5, -6)),
        (Caller(-8, 0, 0), (-8, 65534, 65534, ())),
    ],
)
def test_a_client_of_the_pool(sent: Caller, seen: tuple[int, int, int, tuple[int, ...]]) -> None:
    world = Watched(LOGIN + "option root-squash on")
    assert who(world.arrives(world.client(ALICE), sent)) == seen


def test_a_live_change_is_followed() -> None:
    world = Watched()
    graph = world.client()
    root = Caller(1, 0, 0)
    assert world.arrives(graph, root).uid == 0
    server = world.protocol
    before, server.options = server.options, Server.Options(auth=server.options.auth, root_squash=True)
    server.options_changed(before)
    assert world.arrives(graph, root).uid == 65534
    server.options = before
    server.options_changed(before)
    assert world.arrives(graph, root).uid == 0


def test_spellings() -> None:
    options: OptionSet
    options, notes = Server.Options.parse("s", {"server.anonuid": "5", "server.tcp-user-timeout": "9"})
    assert getattr(options, "anonuid") == 5  # noqa: B009
    assert notes == ["option server.tcp-user-timeout of s is accepted and has no effect"]


def test_locks_and_sessions_stay_the_clients() -> None:
    caller = Caller(5, 0, 0, (), b"owner", "client")
    got = squashed(caller, True, 1, 2, False)
    assert (got.lk_owner, got.client) == (b"owner", "client")
