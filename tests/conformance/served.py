"""A brick served on a loopback port by an event loop in a thread, for tests of clients."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from glustx.graph import Graph, Surroundings
from glustx.rpc.channel import Address
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop

BRICK = "/bricks/test"


def server_volfile(below: str, top: str, options: str = "") -> str:
    """The volfile of a brick: `below` ends in the volume `top`, which is served as `/bricks/test`; `options` are more
    lines for protocol/server."""
    return f"""{below}
volume {BRICK}
    type debug/io-stats
    subvolumes {top}
end-volume
volume server
    type protocol/server
    option transport.socket.listen-port 0
    option auth.addr.{BRICK}.allow *
{options}
    subvolumes {BRICK}
end-volume
"""


def client_volfile(address: Address, more: str = "", options: str = "") -> str:
    """The volfile of a client of that brick; `more` stands above its volume `client`, `options` are lines for it."""
    if address.path:
        where = f"option transport-type unix\n    option transport.socket.connect-path {address.path}"
    else:
        where = f"option remote-host {address.host}\n    option remote-port {address.port}"
    return f"""
volume client
    type protocol/client
    {where}
    option remote-subvolume {BRICK}
{options}
end-volume
{more}"""


class Served:
    """A server graph and the thread that runs its loop.

    Args:
        text: the volfile; its root is a protocol/server.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.graph: Graph
        self.address: Address
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="served brick", daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._up.set()
            self._loop.close()

    async def _serve(self) -> None:
        network = AsyncioNetwork(self._loop)
        surroundings = Surroundings(AsyncioReactor(self._loop), network, volume="test")
        self.graph = Graph.load(self.text, surroundings, source="<server>")
        try:
            await drive_in_loop(self.graph.start(), self._loop)
            self.address = self.graph.root.address  # type: ignore[attr-defined]
            self._up.set()
            await self._stop.wait()
            await drive_in_loop(self.graph.stop(), self._loop)
        finally:
            await network.close()

    def start(self) -> None:
        """Bring it up; raises what kept it down."""
        self._thread.start()
        self._up.wait(30)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Take it down."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(30)
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def served(text: str) -> Iterator[Served]:
    """Serve a brick inside the block."""
    brick = Served(text)
    brick.start()
    try:
        yield brick
    finally:
        brick.stop()
