"""Sockets of the asyncio edge, on asyncio's own loop and on uvloop: TCP over IPv4 and IPv6, unix sockets, errors of
dialling and listening that say what was wrong, and a close that leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.errors import GraphError
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.rpc.channel import Address, Channel, Listener
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import Waiter


def loops() -> list[str]:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return ["asyncio"]
    return ["asyncio", "uvloop"]


Run = Callable[[Callable[[], Awaitable[None]]], None]


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


@pytest.fixture(params=loops())
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine function in a loop of either kind, and sees that no fd is left over."""

    def run(main: Callable[[], Awaitable[None]]) -> None:
        if request.param == "uvloop":
            import uvloop

            uvloop.new_event_loop().close()  # the first one opens what all share
        before = open_fds()
        if request.param == "uvloop":
            import uvloop

            loop = uvloop.new_event_loop()
        else:
            loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(asyncio.wait_for(main(), 30))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        assert open_fds() <= before

    return run


class Echo:
    """A receiver that keeps what comes, and sends it back when it is the server's."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.channel: Channel | None = None
        self.got = bytearray()
        self.buffer = memoryview(bytearray(1 << 16))
        self.made = asyncio.Event()
        self.lost = asyncio.Event()
        self.error: Exception | None = None
        self.losses = 0
        self.wanted = 0
        self.enough = asyncio.Event()
        self.resumed = asyncio.Event()

    def connection_made(self, channel: Channel) -> None:
        self.channel = channel
        self.made.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.channel is not None
        self.got += self.buffer[:nbytes]
        if self.echo:
            self.channel.write([self.buffer[:nbytes]])
        if self.wanted and len(self.got) >= self.wanted:
            self.enough.set()

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.error = error
        self.losses += 1
        self.lost.set()

    async def until(self, size: int) -> bytes:
        self.wanted = size
        if len(self.got) < size:
            self.enough.clear()
            await self.enough.wait()
        return bytes(self.got)


class Heard:
    """A receiver in a pump that keeps what comes."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.buffer = memoryview(bytearray(1 << 10))
        self.made: Waiter[Channel] = Waiter()
        self.lost: Waiter[Exception | None] = Waiter()

    def connection_made(self, channel: Channel) -> None:
        self.made.set(channel)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.buffer[:nbytes]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set(error)

    async def made_(self) -> Channel:
        return await self.made

    async def lost_(self) -> Exception | None:
        return await self.lost


@contextlib.contextmanager
def hanging_up(words: bytes) -> Iterator[tuple[Address, Callable[[], None]]]:
    """A listener, and what makes it say `words` to the first who connected, and hang up without reading (a reset)."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with server.accept()[0] as peer:
                assert select.select([peer], [], [], 30)[0]  # something is there that is never read
                peer.sendall(words)

        yield Address("127.0.0.1", server.getsockname()[1]), hang_up


async def listening(network: AsyncioNetwork, address: Address, make: Callable[[], Echo]) -> Listener:
    waiter: Waiter[Listener] = network.listen(address, make)

    async def wait() -> Listener:
        return await waiter

    listener: Listener = await drive_in_loop(wait(), network.loop)
    return listener


async def first(events: Iterable[asyncio.Event]) -> None:
    """Wait until one of the events has come."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.fixture(params=["ipv4", "ipv6", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    if request.param == "unix":
        return Address(path=str(tmp_path / "sock"))
    if request.param == "ipv6" and not has_ipv6():
        pytest.skip("needs the address ::1 (IPv6 on lo)")
    return Address("::1" if request.param == "ipv6" else "127.0.0.1", 0)


def test_streams(run: Run, address: Address) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        accepted: list[Echo] = []

        def make() -> Echo:
            accepted.append(Echo(echo=True))
            return accepted[-1]

        listener = await listening(network, address, make)
        if address.path:
            assert listener.address == address
        else:
            assert listener.address.port > 0 and listener.address.host == address.host
        near = Echo()
        network.dial(listener.address, near)
        await near.made.wait()
        assert near.channel is not None
        expected = f"unix:{address.path}" if address.path else str(listener.address)
        assert near.channel.peer == expected
        pieces = [b"first ", memoryview(bytearray(b"second ")), b"", bytearray(b"third")]
        near.channel.write(pieces)
        assert await near.until(18) == b"first second third"
        assert (near.channel.sent, near.channel.received, near.channel.queued()) == (18, 18, 0)
        (far,) = accepted
        assert far.channel is not None and (far.channel.sent, far.channel.received) == (18, 18)
        if not address.path:
            assert far.channel.peer.rpartition(":")[0] in (address.host, f"[{address.host}]")
        # What was written before a close arrives before the end.
        far.channel.write([b"last words"])
        far.channel.close()
        await near.lost.wait()
        assert near.got.endswith(b"last words") and near.error is None
        await far.lost.wait()
        listener.close()
        listener.close()
        await network.close()
        assert not network.streams and (near.losses, far.losses) == (1, 1)

    run(main)
    assert not (address.path and os.path.exists(address.path))


@pytest.mark.parametrize("size", [1 << 16, 32 << 20])
def test_more_than_a_socket_takes(run: Run, size: int) -> None:
    """A peer that does not read: what the kernel does not take is queued, in order, and told about when it is gone."""

    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        far = Echo()
        listener = await listening(network, Address(), lambda: far)
        near = Echo()
        network.dial(listener.address, near)
        await near.made.wait()
        await far.made.wait()
        assert near.channel is not None and far.channel is not None
        far.channel.pause_reading()
        far.channel.pause_reading()
        words = struct.pack(f">{size // 8}Q", *range(size // 8))
        # Thousands of pieces, more than one system call takes, and buffers that are reused at once.
        scratch = bytearray(words)
        view = memoryview(scratch)
        step = max(4096, size // 2500 // 8 * 8)
        near.channel.write([view[at : at + step] for at in range(0, size, step)])
        scratch[:] = bytes(size)
        near.channel.write([b"end"])
        assert near.channel.sent == size + 3
        if size > 16 << 20:
            assert near.channel.queued() > 4 << 20
        far.channel.resume_reading()
        got = await far.until(size + 3)
        assert got[:-3] == words and got[-3:] == b"end"
        if size > 16 << 20:
            await near.resumed.wait()
        assert near.channel.queued() == 0
        await network.close()

    run(main)


def test_last_words_are_heard_though_writing_fails(run: Run) -> None:
    words = os.urandom(40_000)  # a window of them: what has not been sent a reset takes away

    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        with hanging_up(words) as (address, hang_up):
            near = Echo()
            network.dial(address, near)
            await near.made.wait()
            assert near.channel is not None
            near.channel.write([b"never read"])
            hang_up()
            near.channel.write([b"into the void"])
            near.channel.write([b"and more"])
            await near.lost.wait()
        assert near.got == words and near.losses == 1
        assert isinstance(near.error, ConnectionError)
        await network.close()

    run(main)


def test_last_words_are_heard_by_a_pump() -> None:
    words = os.urandom(40_000)  # a window of them: what has not been sent a reset takes away
    pump = Pump()
    try:
        with hanging_up(words) as (address, hang_up):
            near = Heard()
            pump.dial(address, near)
            channel = pump.run(near.made_())

            async def write() -> None:
                channel.write([b"never read"])
                hang_up()
                channel.write([b"into the void"])
                channel.write([b"and more"])

            pump.run(write())
            assert isinstance(pump.run(near.lost_()), ConnectionError)
        assert near.got == words
    finally:
        pump.close()


def test_aborting(run: Run) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        far = Echo()
        listener = await listening(network, Address(), lambda: far)
        near = Echo()
        network.dial(listener.address, near)
        await near.made.wait()
        await far.made.wait()
        assert near.channel is not None
        near.channel.abort("for a reason")
        near.channel.abort("for another")
        near.channel.write([b"unheard"])
        near.channel.close()
        await near.lost.wait()
        await far.lost.wait()
        assert isinstance(near.error, ConnectionAbortedError) and "for a reason" in str(near.error)
        assert far.got == b""
        await network.close()
        assert (near.losses, far.losses) == (1, 1)

    run(main)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (Address("127.0.0.1", 1), errno.ECONNREFUSED),
        (Address(path="/nowhere/at/all"), errno.ENOENT),
        (Address("127.0.0.1", 1 << 20), None),
        (Address("x" * 300, 1), None),
        (Address("host.invalid", 1), None),
    ],
    ids=["refused", "no-path", "port", "long-name", "unknown-name"],
)
def test_dialling_in_vain(run: Run, target: Address, code: int | None) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        near = Echo()
        network.dial(target, near)
        await near.lost.wait()
        assert isinstance(near.error, OSError) and near.losses == 1 and near.channel is None
        if code is not None:
            assert near.error.errno == code
        assert not network.streams
        await network.close()

    run(main)


def test_dialling_takes_no_longer_than_it_may(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            network = AsyncioNetwork(asyncio.get_running_loop(), connect_timeout=0.2)
            address = Address("127.0.0.1", full.getsockname()[1])
            attempts = [Echo() for _ in range(4)]
            for one in attempts:
                network.dial(address, one)
            # The backlog takes one or two; the others hear nothing from the peer.
            await first(one.lost for one in attempts)
            errors = [one.error for one in attempts if one.losses]
            assert errors and all(isinstance(error, TimeoutError) and "0.2 s" in str(error) for error in errors)
            await network.close()
            for one in attempts:
                await one.lost.wait()
                assert one.losses == 1

    run(main)


def test_closing_ends_attempts(run: Run) -> None:
    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            network = AsyncioNetwork(asyncio.get_running_loop())
            attempts = [Echo() for _ in range(4)]
            for one in attempts:
                network.dial(Address("127.0.0.1", full.getsockname()[1]), one)
            await first(one.made for one in attempts)
            await network.close()
            assert [one.losses for one in attempts] == [1, 1, 1, 1] and not network.streams

    run(main)


BRICK = """
volume /brick
  type storage/memory
end-volume

volume bricks-server
  type protocol/server
  option auth.addr./brick.allow *
  {options}
  subvolumes /brick
end-volume
"""


async def served(network: AsyncioNetwork, options: str) -> Graph:
    graph = Graph.load(BRICK.format(options=options), Surroundings(AsyncioReactor(network.loop), network))
    await drive_in_loop(graph.start(), network.loop)
    return graph


def test_a_port_that_is_taken(run: Run) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        first = await served(network, "")
        port = first.root.address.port  # type: ignore[attr-defined]
        with pytest.raises(
            GraphError,
            match=rf"bricks-server cannot listen on 127.0.0.1:{port}: EADDRINUSE \(Address already in use\)$",
        ):
            await served(network, f"option listen-port {port}")
        await drive_in_loop(first.stop(), network.loop)
        again = await served(network, f"option listen-port {port}")
        await drive_in_loop(again.stop(), network.loop)
        await network.close()

    run(main)


def test_a_unix_socket_that_is_taken(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        option = f"option transport-type unix\noption transport.socket.listen-path {tmp_path}/sock"
        first = await served(network, option)
        with pytest.raises(GraphError, match=r"cannot listen on unix:.*sock: EADDRINUSE"):
            await served(network, option)
        near = Echo()
        network.dial(Address(path=f"{tmp_path}/sock"), near)
        await near.made.wait()  # the first still has its path
        await drive_in_loop(first.stop(), network.loop)
        assert not (tmp_path / "sock").is_socket()
        # A path that a killed process has left behind is taken over.
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{tmp_path}/sock")
        again = await served(network, option)
        await drive_in_loop(again.stop(), network.loop)
        await network.close()

    run(main)


@pytest.mark.parametrize("host", ["203.0.113.1", "no such host", "host.invalid"])
def test_addresses_that_are_not_ours(run: Run, host: str) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        with pytest.raises(GraphError, match=f"bricks-server cannot listen on {host}:0"):
            await served(network, f'option transport.socket.bind-address "{host}"')
        await network.close()

    run(main)


def test_stopping_a_brick_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        graph = await served(network, "")
        address = graph.root.address  # type: ignore[attr-defined]
        near: list[Any] = [Echo() for _ in range(20)]
        for one in near:
            network.dial(address, one)
        for one in near:
            await one.made.wait()
        await drive_in_loop(graph.stop(), network.loop)
        assert graph.root.sessions == set()  # type: ignore[attr-defined]
        for one in near:
            await one.lost.wait()
        late = Echo()
        network.dial(address, late)
        await late.lost.wait()
        assert isinstance(late.error, ConnectionRefusedError)
        await network.close()

    run(main)
