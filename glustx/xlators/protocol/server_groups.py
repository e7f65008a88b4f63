"""Supplementary groups as this machine knows them, in place of those that a client sends: `manage-gids`.

A credential has room for 91 groups; who is in more is let in by what the brick's own user database says. It is asked on
a worker, since it may be a directory service that takes its time, and believed for `gid-timeout`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from glustx.fops import Fop
from glustx.runtime import Waiter

if TYPE_CHECKING:
    from glustx.graph import Graph

_USERS_MAX = 4096


def groups_of(uid: int) -> tuple[int, ...]:
    """Return the groups that a user is in, the primary one included; none for a user who is not known here."""
    import pwd  # not on every system that clients run on

    try:
        user = pwd.getpwuid(uid)
        return tuple(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return ()


class Groups:
    """The groups of users, as they were found a while ago.

    Args:
        graph: whose workers and clock to use.
        timeout: seconds that an answer is believed.
        find: what knows them; it may block.
    """

    def __init__(self, graph: Graph, timeout: float, find: Callable[[int], tuple[int, ...]] = groups_of) -> None:
        self._graph = graph
        self._timeout = timeout
        self._find = find
        self._known: dict[int, tuple[tuple[int, ...], float]] = {}
        self._asking: dict[int, list[Waiter[None]]] = {}

    def wind(self, method: Callable[[Any], Coroutine[Any, Any, Any]], req: Any) -> Coroutine[Any, Any, Any]:
        """Call a fop with the groups of its user; root needs none."""
        uid = req.caller.uid
        if not uid:
            return method(req)
        known = self._known.get(uid)
        if known is not None and self._graph.reactor.time() < known[1]:
            return method(_with(req, known[0]))
        return self._asked(method, req)

    async def _asked(self, method: Callable[[Any], Coroutine[Any, Any, Any]], req: Any) -> Any:
        return await method(_with(req, await self._resolve(req.caller.uid)))

    async def _resolve(self, uid: int) -> tuple[int, ...]:
        graph = self._graph
        waiting = self._asking.get(uid)
        if waiting is not None:
            mine: Waiter[None] = Waiter()
            waiting.append(mine)
            await mine
            known = self._known.get(uid)
            # Whoever asked may have been called off: then it is asked again.
            return known[0] if known is not None else await self._resolve(uid)
        waiting = self._asking[uid] = []
        try:
            found = await graph.workers.submit(graph.reactor, self._find, uid)
            if len(self._known) >= _USERS_MAX:
                self._known.clear()
            self._known[uid] = (found, graph.reactor.time() + self._timeout)
            return found
        finally:
            del self._asking[uid]
            for waiter in waiting:
                waiter.set(None)


def _with(req: Fop, groups: tuple[int, ...]) -> Fop:
    return msgspec.structs.replace(req, caller=msgspec.structs.replace(req.caller, groups=groups))
