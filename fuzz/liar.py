"""A client of a brick that lies: its answers are spoilt on the way, come twice, late, to nobody, or not at all.

An input is read as a script, as in `brick.py`: what the client asks, and what becomes of each answer. Whatever a fop
comes to, it is a reply or a FopError, and the client's graph still stops.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fuzz.brick import HERE, Script, World, watched
from glustx.errors import FopCancelled, FopError
from glustx.graph import Graph, Surroundings
from glustx.rpc.fop_programs import FOPS_400
from glustx.rpc.record import frame
from glustx.runtime import Run, drive, turn

VOLFILE = """
volume client
  type protocol/client
  option remote-port 49152
  option remote-subvolume /brick
  option ping-timeout 10
  option frame-timeout 60
end-volume
volume dht
  type cluster/distribute
  subvolumes client
end-volume
volume quick
  type performance/quick-read
  subvolumes dht
end-volume
volume behind
  type performance/open-behind
  subvolumes quick
end-volume
"""
_WORDS = (0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 20, 4096, 65536)
_STEPS = 30
_FOPS = [FOPS_400.codecs[number] for number in sorted(FOPS_400.codecs)]


class Liar:
    """Stands between the brick and its client, and rewrites what the brick sends.

    Args:
        script: decides.
        channel: the brick's end of the connection.
    """

    def __init__(self, script: Script, channel: Any) -> None:
        self.script = script
        self.send = channel.write
        self.kept: list[bytes] = []
        self.rest = b""
        self.honest = script.byte() < 230  # until the handshake is over
        channel.write = self.write

    def write(self, pieces: Sequence[Any]) -> None:
        """Pass on what a record has become."""
        data = self.rest + b"".join(map(bytes, pieces))
        while len(data) >= 4:
            size = int.from_bytes(data[:4], "big") & 0x7FFFFFFF
            if len(data) < 4 + size:
                break
            record, data = data[4 : 4 + size], data[4 + size :]
            for lie in [record] if self.honest else self.lies(record):
                self.send([lie if lie is not record else frame(record)])
        self.rest = data

    def lies(self, record: bytes) -> list[bytes]:
        """Return what is sent in the place of a record, with record marks."""
        script = self.script
        self.kept = [*self.kept[-7:], record]
        how = script.byte() % 16
        if how < 6:
            return [frame(record)]
        if how == 6:
            return [frame(record)] * 2
        if how == 7:
            return []
        if how == 8:
            return [frame(script.pick(self.kept))]
        if how == 9:
            return [frame(struct.pack(">I", script.number(32)) + record[4:])]
        if how == 10:
            return [frame(record[: 4 + (script.byte() << 8 | script.byte()) % max(1, len(record) - 4)])]
        if how == 11 and script.byte() > 200:
            return [struct.pack(">I", script.pick(_WORDS) | 0x80000000) + record[:100]]
        spoilt = bytearray(record)
        for _ in range(1 + script.byte() % 4):
            at = 4 + (script.byte() << 8 | script.byte()) % max(1, len(record) - 8)
            if how < 14:
                at -= at % 4
                spoilt[at : at + 4] = struct.pack(">I", script.pick(_WORDS))
            else:
                spoilt[at] = script.byte()
        return [frame(bytes(spoilt))]


class Started:
    """A coroutine under way; once it is done it has ended well, in a FopError, or by being called off."""

    def __init__(self, co: Any, name: str = "start") -> None:
        self.name = name
        self.done = False
        self.wrong: BaseException | None = None
        self.run: Run | None = None
        turn(self.begin, co)

    def begin(self, co: Any) -> None:
        """Start it."""
        self.run = drive(co, self.finish)

    def finish(self, value: Any, error: BaseException | None) -> None:
        """It has ended."""
        if self.done or (isinstance(error, FopError) and error.errno <= 0):
            self.wrong = AssertionError(f"{self.name} ended twice or without an errno: {error}")
        elif error is not None and not isinstance(error, (FopError, FopCancelled)):
            self.wrong = error
        self.done = True


def liar(data: bytes) -> None:
    """Fops on a brick whose answers cannot be trusted."""
    script = Script(data)
    with watched():
        world = World()
        graph = Graph.load(VOLFILE, Surroundings(world.reactor, world.network))
        make = world.server.make_receiver
        liars: list[Liar] = []

        def receiver() -> Any:
            made = make()
            met = made.connection_made

            def connection_made(channel: Any) -> None:
                liars.append(Liar(script, channel))
                met(channel)

            made.connection_made = connection_made
            return made

        world.network.listeners[HERE].make_receiver = receiver
        starting = Started(graph.start())
        world.reactor.run()
        for _ in range(50):
            if starting.done:
                break
            world.reactor.advance(5)
        assert starting.done, "the graph neither starts nor says why not"
        for one in liars:
            one.honest = False
        asked: list[Started] = []
        for _ in range(_STEPS):
            if not script:
                break
            codec = script.pick(_FOPS)
            req = world.request(codec.cls, script, {})
            asked.append(Started(graph.top(req), req.name))
            if script.byte() & 3 == 0 and asked[-1].run is not None:
                asked[-1].run.cancel()
            world.reactor.run()
            if script.byte() > 240:
                world.reactor.advance(script.byte())
        world.reactor.advance(100)
        for one in liars:
            one.honest = True
        world.reactor.wait(graph.stop())
        world.reactor.run()
        left = [fop.name for fop in asked if not fop.done]
        assert not left, f"{left} do not end"
        for fop in asked:
            if fop.wrong is not None:
                raise AssertionError(f"{fop.name}: {fop.wrong!r}") from fop.wrong
