"""How to ask a running brick what it knows: a program of our own on the brick's unix socket.

Program 0x20474C58 ("GLX" in the range RFC 5531 leaves to users), version 1. STATEDUMP returns the text of
`Graph.statedump`; FACTS a dictionary of text: `volume-id`, and what the graph knows of its limits (`zero-method`, ...).
Whoever may open the socket may ask, so its mode is 0600.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from glustx.rpc import dict_v1
from glustx.rpc.body import Body, Dict, Text
from glustx.rpc.channel import Address, Channel
from glustx.rpc.connection import SEND_FEW, Handler, ProcUnavail, RpcConnection
from glustx.rpc.getspec import connect, own_credential
from glustx.rpc.message import Call
from glustx.rpc.programs import Program
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import Reactor, TimedOut, wait_for

T = TypeVar("T")

STATEDUMP, FACTS = 1, 2
MOST_ASKERS = 128
CONTROL = Program("glustx brick control", 0x20474C58, 1, {STATEDUMP: "STATEDUMP", FACTS: "FACTS"})


class StatedumpReply(Body, frozen=True):
    """A statedump."""

    text: Text


class FactsReply(Body, frozen=True):
    """Facts, as text with a trailing NUL."""

    pairs: Dict


class _Asker(RpcConnection):
    """Somebody at the control socket: clients of the brick have their turn between any two of its calls."""

    long_turn: ClassVar[float | None] = 0.005

    def __init__(self, programs: Mapping[tuple[int, int], Handler], reactor: Reactor, askers: set[_Asker]) -> None:
        super().__init__(programs, limit=1 << 20)
        self.records.burst = 1
        self.post = reactor.post
        self._askers = askers

    def connection_made(self, channel: Channel) -> None:
        """Somebody is connected, one of not too many. Who is here stays: a management daemon is silent for days."""
        super().connection_made(channel)
        self._askers.add(self)
        if len(self._askers) > MOST_ASKERS:
            self.broken(f"{MOST_ASKERS} others are at the control socket")

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(error)
        self._askers.discard(self)

    def reply(self, xid: int, results: bytes) -> None:
        """Answer a call, at once: statedumps are long, and many that gather would be memory."""
        super().reply(xid, results)
        self.flush()

    def send_high(self) -> int:
        """Return what may wait to be sent."""
        return SEND_FEW


def receivers(
    reactor: Reactor,
    statedump: Callable[[], str],
    facts: Callable[[], dict[str, str]],
    others: Mapping[tuple[int, int], Handler] | None = None,
) -> Callable[[], RpcConnection]:
    """Return what makes the receivers of connections to one control socket, answering out of the two functions.

    Args:
        others: handlers of further programs that are spoken on the same socket, by number and version.
    """

    def handle(connection: RpcConnection, call: Call, body: bytes) -> bytes:
        if call.proc == STATEDUMP:
            return StatedumpReply(statedump()).encode()
        if call.proc == FACTS:
            return FactsReply(dict_v1.pack_all(facts())).encode()
        raise ProcUnavail

    programs: dict[tuple[int, int], Handler] = {**(others or {}), (CONTROL.number, CONTROL.version): handle}
    askers: set[_Asker] = set()
    return lambda: _Asker(programs, reactor, askers)


async def ask_statedump(socket: Path, timeout: float = 10.0) -> str:
    """Return the statedump of the brick behind `socket`; OSError or XdrError when it does not answer."""
    return (await _ask(socket, STATEDUMP, StatedumpReply.decode, timeout)).text


async def ask_facts(socket: Path, timeout: float = 10.0) -> dict[str, str]:
    """Return the facts of the brick behind `socket`; OSError or XdrError when it does not answer."""
    pairs = (await _ask(socket, FACTS, FactsReply.decode, timeout)).pairs
    return {os.fsdecode(key): dict_v1.text(pairs, key) for key in pairs}


async def _ask(socket: Path, proc: int, decode: Callable[[bytes], T], timeout: float) -> T:
    loop = asyncio.get_running_loop()
    network, reactor = AsyncioNetwork(loop), AsyncioReactor(loop)

    async def ask() -> T:
        connection = await connect(network, reactor, Address(path=str(socket)), timeout)
        return await wait_for(reactor, connection.ask(CONTROL, proc, b"", own_credential(), decode), timeout)

    try:
        answer: T = await drive_in_loop(ask(), loop)
        return answer
    except TimedOut:
        raise TimeoutError(f"no answer in {timeout:g} s") from None
    finally:
        await network.close()
