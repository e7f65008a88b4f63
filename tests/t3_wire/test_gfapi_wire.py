"""gfapi through a socket: both faces, many threads and tasks, large transfers, connections that end or never begin."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from glustx.gfapi import AsyncVolume, Source, Volume
from glustx.gfapi.pump import Pump
from glustx.gfapi.pump_socket import SocketChannel
from glustx.rpc.channel import Address
from glustx.runtime import Waiter
from tests.conformance.served import Served, client_volfile, served, server_volfile
from tests.conformance.test_wire import MEMORY
from tests.kit import Stopwatch
from tests.t2_graph.gfapi_faces import Waited, fails

DATA = os.urandom(1 << 20) * 9


@pytest.fixture(scope="module")
def brick() -> Iterator[Served]:
    with served(server_volfile(MEMORY, "locks")) as brick:
        yield brick


def source(brick: Served) -> Source:
    return Source(volume="test", text=client_volfile(brick.address), origin="<client>")


@pytest.fixture
def vol(brick: Served) -> Iterator[Volume]:
    with Volume(source(brick)) as volume:
        yield volume
        volume.rmtree("/")


@pytest.fixture(params=["blocking", "async"])
def face(request, brick):
    if request.param == "blocking":
        with Volume(source(brick)) as volume:
            yield volume
            volume.rmtree("/")
        return
    loop = asyncio.new_event_loop()
    with Waited(loop, AsyncVolume(source(brick))) as volume:
        yield volume
        volume.rmtree("/")
    loop.close()


# -- the usual -------------------------------------------------------------------------------------------------------


def test_a_bit_of_everything(face):
    face.makedirs("/a/b")
    with face.create("/a/b/f") as file:
        assert file.write(b"hello") == 5
        file.zerofill(1, 3)
        assert file.pread(10, 0) == b"h\0\0\0o"
        file.lock()
        with face.open("/a/b/f", "r+b") as other, pytest.raises(BlockingIOError):
            other.lock(blocking=False)
        file.unlock()
    face.symlink("b/f", "/a/l")
    assert face.stat("/a/l").st_size == 5 and face.realpath("/a/l") == "/a/b/f"
    face.setxattr("/a/b/f", "user.x", b"1")
    assert face.listxattr("/a/b/f") == ["user.x"]
    assert {entry.name for entry in face.scandir("/a")} == {"b", "l"}
    face.rename("/a/b/f", "/g")
    assert sorted(face.listdir("/")) == ["a", "g"]
    with pytest.raises(FileNotFoundError) as caught:
        face.open("/a/b/f")
    assert caught.value.filename == "/a/b/f" and "volume test" in caught.value.strerror
    with face.open("/g") as file, fails(errno.EBADF):
        file.zerofill(0, 1)


def test_large_transfers(face):
    """More than a socket takes at once, so that sends are queued and go on when it is writable again."""
    with face.create("/f") as file:
        assert file.pwrite(DATA, 5) == len(DATA)
        assert file.pread(len(DATA), 5) == DATA
        buffer = bytearray(len(DATA))
        file.seek(5)
        assert file.readinto(buffer) == len(DATA) and buffer == DATA


def test_a_directory_of_many(face):
    face.mkdir("/d")
    for i in range(500):
        face.mknod(f"/d/{i:04}{'x' * 100}")
    assert len(set(face.listdir("/d"))) == 500


# -- many at a time --------------------------------------------------------------------------------------------------


def test_threads(vol):
    with vol.create("/f") as file:
        file.truncate(64 << 16)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                block = bytes([number + 1]) * 65536
                for i in range(number, 64, 8):
                    assert file.pwrite(block, i << 16) == 65536
                    assert file.pread(65536, i << 16) == block
                with vol.create(f"/{number}") as own:
                    own.write(block)
                assert vol.getsize(f"/{number}") == 65536
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        expected = b"".join(bytes([i % 8 + 1]) * 65536 for i in range(64))
        assert hashlib.sha256(file.pread(64 << 16, 0)).digest() == hashlib.sha256(expected).digest()


def test_tasks(brick):
    async def main() -> None:
        async with AsyncVolume(source(brick)) as vol, await vol.create("/f") as file:

            async def work(number: int) -> None:
                block = bytes([number + 1]) * 4096
                for i in range(number, 320, 32):
                    await file.pwrite(block, i << 12)
                    assert await file.pread(4096, i << 12) == block

            await asyncio.gather(*(work(n) for n in range(32)))
            assert (await file.stat()).st_size == 320 << 12
            await vol.unlink("/f")

    asyncio.run(main())


def test_a_lock_held_by_another_client(brick, vol):
    vol.create("/f").close()
    with Volume(source(brick)) as other:
        with vol.open("/f", "r+b") as mine, other.open("/f", "r+b") as theirs:
            mine.lock()
            waiting: list[object] = []
            thread = threading.Thread(target=lambda: waiting.append(theirs.lock()))
            thread.start()
            assert mine.stat().st_size == 0  # others go on meanwhile
            assert theirs.stat().st_size == 0
            assert waiting == []
            mine.unlock()
            thread.join(10)
            assert waiting == [None]
            with vol.using(timeout=0.05).open("/f", "r+b") as late, pytest.raises(TimeoutError):
                late.lock()


# -- connections that end or never begin -----------------------------------------------------------------------------


def test_a_brick_that_goes_away():
    with served(server_volfile(MEMORY, "locks")) as brick:
        vol = Volume(source(brick), mount_timeout=10)
        file = vol.create("/f")
    with fails(errno.ENOTCONN):
        file.pread(1, 0)
    with fails(errno.ENOTCONN):
        vol.stat("/")
    with fails(errno.ENOTCONN):
        file.close()
    vol.close()


def test_a_port_where_nobody_listens():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        text = client_volfile(Address("127.0.0.1", port))
        with fails(errno.ENOTCONN):
            Volume(Source(volume="test", text=text, origin="<client>"), mount_timeout=0.2)
        with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
            Volume(f"gluster://127.0.0.1:{port}/test")
        assert caught.value.errno == errno.ENOTCONN


def test_a_host_that_does_not_exist():
    with pytest.raises(OSError, match=r"no-such-host\.invalid") as caught:
        Volume("gluster://no-such-host.invalid/vm")
    assert caught.value.errno == errno.ENOTCONN


def test_a_server_that_says_nothing():
    """It accepts and keeps silent: the call ends with the time-out, and the volume can be closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        text = client_volfile(Address("127.0.0.1", port)).replace(
            "end-volume", "option connect-timeout 0.2\nend-volume"
        )
        watch = Stopwatch()
        with fails(errno.ENOTCONN):
            Volume(Source(volume="test", text=text, origin="<client>"), mount_timeout=0.5)
        assert watch.seconds() < 10


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_mounting_has_a_limit_of_its_own(brick, face):
    """Not that of the calls to come: what the connection takes to come up is no sign of how the brick will answer."""
    limits = {"timeout": 0.001, "mount_timeout": 20.0}
    with socket.create_server(("127.0.0.1", 0)) as door:

        def forward() -> None:
            near, _ = door.accept()
            with near, socket.create_connection(("127.0.0.1", brick.address.port)) as far:
                first = near.recv(1 << 16)
                time.sleep(0.1)
                far.sendall(first)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=(one, other), daemon=True).start()
                over.wait(30)

        over = threading.Event()
        thread = threading.Thread(target=forward)
        thread.start()
        text = client_volfile(Address("127.0.0.1", door.getsockname()[1]))
        if face == "blocking":
            Volume(Source(volume="test", text=text, origin="<client>"), **limits).close()
        else:

            async def main() -> None:
                async with AsyncVolume(Source(volume="test", text=text, origin="<client>"), **limits):
                    pass

            asyncio.run(main())
        over.set()
        thread.join(30)


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass  # one of them is closed: the test is over


# -- the pump's own sockets ------------------------------------------------------------------------------------------


class Echo:
    """A receiver that collects what comes."""

    def __init__(self, size: int = 65536) -> None:
        self.channel: SocketChannel | None = None
        self.made: Waiter[SocketChannel] = Waiter()
        self.lost: Waiter[Exception | None] = Waiter()
        self.arrived: Waiter[None] = Waiter()
        self.expected = 0
        self.data = bytearray()
        self.buffer = bytearray(size)

    def connection_made(self, channel: SocketChannel) -> None:
        self.channel = channel
        self.made.set(channel)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]
        if len(self.data) >= self.expected:
            self.arrived.set(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.made.fail(error or ConnectionError())
        self.lost.set(error)


@pytest.fixture
def pump():
    made = Pump()
    made.start_background()
    yield made
    made.close()


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def listener(request, tmp_path):
    if request.param == "unix":
        path = str(tmp_path / "socket")
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(path)
        address = Address(path=path)
    else:
        host = "127.0.0.1" if request.param == "tcp" else "::1"
        try:
            sock = socket.socket(socket.AF_INET if request.param == "tcp" else socket.AF_INET6)
            sock.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no {request.param} here: {error}")
        address = Address(host, sock.getsockname()[1])
    sock.listen()
    yield sock, address
    sock.close()


def in_turn(pump: Pump, work) -> None:
    async def co():
        work()

    pump.run(co())


async def value_of(waiter):
    return await waiter


def test_bytes_go_both_ways_in_order(pump, listener):
    sock, address = listener
    receiver = Echo()
    in_turn(pump, lambda: pump.dial(address, receiver))
    channel = pump.run(value_of(receiver.made), 10)
    peer, _ = sock.accept()
    received = bytearray()
    receiver.expected = len(DATA)

    def answer() -> None:
        while len(received) < len(DATA) + 2000 * 3:
            received.extend(peer.recv(1 << 16))
        peer.sendall(DATA)

    thread = threading.Thread(target=answer)

    def send() -> None:
        channel.write([DATA[:10], memoryview(DATA)[10:20], bytearray(DATA[20:])])
        channel.write([b"abc"] * 2000)  # more pieces than one call takes
        assert channel.queued() > 0

    in_turn(pump, send)
    thread.start()
    pump.run(value_of(receiver.arrived), 30)
    thread.join(10)
    assert received == DATA + b"abc" * 2000
    assert receiver.data == DATA
    assert (channel.sent, channel.received, channel.queued()) == (len(received), len(DATA), 0)
    assert str(address) == channel.peer
    peer.close()
    assert pump.run(value_of(receiver.lost), 10) is None
    assert not pump.channels


def test_what_is_queued_leaves_before_a_close(pump, listener):
    sock, address = listener
    receiver = Echo()
    in_turn(pump, lambda: pump.dial(address, receiver))
    channel = pump.run(value_of(receiver.made), 10)
    peer, _ = sock.accept()

    def send() -> None:
        channel.write([DATA])
        channel.close()
        channel.write([b"too late"])

    in_turn(pump, send)
    received = bytearray()
    while part := peer.recv(1 << 16):
        received.extend(part)
    assert received == DATA
    assert pump.run(value_of(receiver.lost), 10) is None
    peer.close()


def test_an_abort(pump, listener):
    sock, address = listener
    receiver = Echo()
    in_turn(pump, lambda: pump.dial(address, receiver))
    channel = pump.run(value_of(receiver.made), 10)
    peer, _ = sock.accept()
    in_turn(pump, lambda: channel.abort("enough"))
    error = pump.run(value_of(receiver.lost), 10)
    assert isinstance(error, ConnectionAbortedError) and "enough" in str(error)
    assert peer.recv(10) == b""
    peer.close()


def test_reading_can_be_paused(pump, listener):
    sock, address = listener
    receiver = Echo(size=10)
    in_turn(pump, lambda: pump.dial(address, receiver))
    channel = pump.run(value_of(receiver.made), 10)
    peer, _ = sock.accept()
    in_turn(pump, channel.pause_reading)
    peer.sendall(b"x" * 100)
    select = selectors.DefaultSelector()
    select.register(channel._sock, selectors.EVENT_READ)
    assert select.select(10)  # it is there, and nobody reads it
    select.close()
    in_turn(pump, lambda: None)
    assert receiver.data == b""
    receiver.expected = 100
    in_turn(pump, channel.resume_reading)
    pump.run(value_of(receiver.arrived), 10)
    assert receiver.data == b"x" * 100
    peer.close()


@pytest.mark.logs("glustx.gfapi: .*: reading failed")
def test_a_receiver_that_fails_ends_its_connection_alone(pump, listener, caplog):
    sock, address = listener
    good, bad = Echo(), Echo()

    def fail(nbytes: int) -> None:
        raise ZeroDivisionError("a bug")

    bad.buffer_updated = fail  # type: ignore[method-assign]
    peers = []
    for receiver in (good, bad):
        in_turn(pump, lambda receiver=receiver: pump.dial(address, receiver))
        pump.run(value_of(receiver.made), 10)
        peers.append(sock.accept()[0])
    peers[1].sendall(b"x")
    assert isinstance(pump.run(value_of(bad.lost), 10), ZeroDivisionError)
    assert "a bug" in caplog.text
    good.expected = 5
    peers[0].sendall(b"hello")
    pump.run(value_of(good.arrived), 10)
    assert good.data == b"hello"
    for peer in peers:
        peer.close()


def test_closing_gives_up_on_what_is_being_dialled():
    """A listener whose queue is full never answers; the attempt ends with the pump."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = Address("127.0.0.1", listener.getsockname()[1])
        pump = Pump()
        receivers = [Echo() for _ in range(6)]
        for receiver in receivers:
            in_turn(pump, lambda receiver=receiver: pump.dial(address, receiver))
        in_turn(pump, lambda: None)
        assert len(pump.channels) == 6
        pump.close()
        assert not pump.channels
        assert not all(receiver.made.done for receiver in receivers)


def test_addresses_are_tried_in_order(pump, monkeypatch, listener):
    """A name that stands for two addresses, of which only the second answers."""
    sock, address = listener
    if address.path:
        pytest.skip("a path stands for itself")
    with socket.socket(sock.family) as dead:
        dead.bind((address.host, 0))
        family = sock.family
        names = [(family, socket.SOCK_STREAM, 6, "", dead.getsockname()), (family, 1, 6, "", sock.getsockname())]
        real = socket.getaddrinfo

        def resolve(host: str, *args: object, **kwargs: object) -> object:
            if host != "two.example":
                return real(host, *args, **kwargs)
            if kwargs.get("flags"):
                raise socket.gaierror(socket.EAI_NONAME, "a name")
            return names

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        receiver = Echo()
        in_turn(pump, lambda: pump.dial(Address("two.example", address.port), receiver))
        channel = pump.run(value_of(receiver.made), 10)
        assert channel.peer.startswith("two.example")
        sock.accept()[0].close()
