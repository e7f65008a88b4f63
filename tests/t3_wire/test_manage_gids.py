"""manage-gids: with which groups a client's fops arrive, how often the user database is asked, and by whom."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.runtime import turn
from glustx.values import ROOT_LOC, Caller
from glustx.xlators.protocol.server_groups import Groups, groups_of
from tests.fakes import Call
from tests.t3_wire.test_squash import Watched

GROUPS = {1000: (1000, 4, 27), 65534: (65534, 99)}


class Users:
    """A user database that counts its questions."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.threads: set[int] = set()

    def __call__(self, uid: int) -> tuple[int, ...]:
        self.threads.add(threading.get_ident())
        self.asked.append(uid)
        assert self.open.wait(30)
        return GROUPS.get(uid, ())


def world_with(users: Users, options: str = "", timeout: float = 300) -> Watched:
    world = Watched("option manage-gids on\n" + options)
    world.protocol.groups = Groups(world.server, timeout, users)
    return world


@pytest.fixture
def users() -> Iterator[Users]:
    users = Users()
    yield users
    users.open.set()


def test_the_brick_knows_better(users: Users) -> None:
    world = world_with(users)
    graph = world.client()
    for _ in range(2):
        assert world.arrives(graph, Caller(1, 1000, 1000, (5, 6))).groups == (1000, 4, 27)
    assert world.arrives(graph, Caller(1, 2000, 2000, (5, 6))).groups == ()  # nobody here knows the user
    assert world.arrives(graph, Caller(1, 0, 0, (5,))).groups == (5,)  # root needs none
    assert users.asked == [1000, 2000] and threading.get_ident() not in users.threads


def test_squashed_first(users: Users) -> None:
    world = world_with(users, "option root-squash on")
    assert world.arrives(world.client(), Caller(1, 0, 0)).groups == GROUPS[65534]


def test_an_answer_gets_old(users: Users) -> None:
    world = world_with(users, timeout=60)
    graph = world.client()
    caller = Caller(1, 1000, 1000)
    world.arrives(graph, caller)
    world.pass_time(55)
    world.arrives(graph, caller)
    assert users.asked == [1000]
    world.pass_time(10)
    world.arrives(graph, caller)
    assert users.asked == [1000, 1000]


def test_those_that_come_meanwhile_wait_for_one_answer(users: Users) -> None:
    world = world_with(users)
    graph = world.client()
    users.open.clear()
    caller = Caller(1, 1000, 1000)
    calls = [world.begin(graph, fops.Stat(ROOT_LOC, caller=caller)) for _ in range(5)]
    assert not any(call.done for call in calls) and not world.seen
    assert world.do(graph, fops.Stat(ROOT_LOC)).stat.is_dir()  # others are not held up
    users.open.set()
    world.arrives(graph, caller)
    assert all(call.done for call in calls) and users.asked == [1000]
    assert {seen.groups for seen in world.seen} == {GROUPS[1000], ()}


def test_who_asks_may_be_called_off(users: Users) -> None:
    world = world_with(users)
    groups: Any = world.protocol.groups
    users.open.clear()

    async def method(req: Any) -> Any:
        return req.caller.groups

    req = fops.Stat(ROOT_LOC, caller=Caller(1, 1000, 1000))
    first, second = Call(groups.wind(method, req)), Call(groups.wind(method, req))
    turn(first.cancel)
    assert first.cancelled and not second.done
    users.open.set()
    world.reactor.wait(groups.wind(method, req))
    assert second.value == GROUPS[1000]


def test_on_and_off_while_it_runs() -> None:
    world = Watched()
    graph = world.client()
    user = next(entry for entry in pwd.getpwall() if entry.pw_uid)
    caller = Caller(1, user.pw_uid, 77, (78,))
    assert world.arrives(graph, caller).groups == (78,)
    server = world.protocol
    before, server.options = server.options, type(server.options)(auth=server.options.auth, manage_gids=True)
    server.options_changed(before)
    assert set(world.arrives(graph, caller).groups) == set(os.getgrouplist(user.pw_name, user.pw_gid))
    server.options = before
    server.options_changed(before)
    assert world.arrives(graph, caller).groups == (78,)


def test_what_this_machine_knows() -> None:
    me = pwd.getpwuid(0)
    assert set(groups_of(0)) == set(os.getgrouplist(me.pw_name, me.pw_gid))
    assert groups_of(0x7FFFFFF0) == ()
