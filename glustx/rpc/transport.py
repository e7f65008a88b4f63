"""The asyncio edge of RPC: sockets, listeners and the reactor of a graph that lives in an event loop.

Works on asyncio's own loop and on uvloop. Replies leave by `os.writev` at once when nothing is queued, which spares a
turn of the loop and all copies; only what the kernel does not take goes through the transport.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from glustx.rpc.channel import QUEUE_HIGH, QUEUE_LOW, Address, Listener, Piece, Receiver
from glustx.rpc.sockets import bound, immutable, peer_name, refuse_living, socket_name
from glustx.runtime import TimerHandle, Waiter, turn

log = logging.getLogger("glustx.rpc")

_IOV_MAX = 1024
# Below this a copy costs less than one more buffer in the transport's queue.
_COPY_LIMIT = 64 << 10
_HAS_WRITEV = hasattr(os, "writev") and os.name == "posix"


class AsyncioReactor:
    """Clock and door of a graph that lives in an event loop.

    Args:
        loop: the loop; every call but `post` must come from its thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def time(self) -> float:
        """Return the loop's monotonic seconds."""
        return self.loop.time()

    def call_later(self, delay: float, work: Callable[[], None]) -> TimerHandle:
        """Run `work` as a turn after `delay` seconds."""
        return self.loop.call_later(delay, turn, work)

    def soon(self, work: Callable[[], None]) -> None:
        """Run `work` when those that are ready to run have run."""
        self.loop.call_soon(work)

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` as a turn soon; callable from any thread."""
        self.loop.call_soon_threadsafe(turn, work)


class Stream(asyncio.BufferedProtocol):
    """One socket in an event loop, as a Channel for its receiver."""

    identity: str | None = None

    def __init__(self, receiver: Receiver, closed: Callable[[Stream], None] | None = None) -> None:
        self.receiver = receiver
        self.peer = "?"
        self.local = ""  # this end's address, for those who must tell it to the other
        self.received = 0
        self.sent = 0
        self._closed = closed
        self._transport: Any = None
        self._fd = -1
        self._reason: str | None = None
        self._ended = False
        self.get_buffer = receiver.get_buffer  # type: ignore[method-assign]

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peer = peer_name(sock)
            self.local = socket_name(sock.getsockname())
            if _HAS_WRITEV:
                self._fd = sock.fileno()
        self._transport.set_write_buffer_limits(high=QUEUE_HIGH, low=QUEUE_LOW)
        turn(self.receiver.connection_made, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self.receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self.received += nbytes
        turn(self.receiver.buffer_updated, nbytes)

    def eof_received(self) -> bool:
        """The peer has stopped sending: close as well."""
        return False

    def resume_writing(self) -> None:
        """The transport's queue has drained."""
        resume = getattr(self.receiver, "resume_writing", None)
        if resume is not None:
            turn(resume)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._fd = -1
        self._ended = True
        if exc is None and self._reason:
            exc = ConnectionAbortedError(self._reason)
        turn(self.receiver.connection_lost, exc)
        if self._closed is not None:
            self._closed(self)

    @property
    def connected(self) -> bool:
        """True from connection_made to connection_lost."""
        return self._transport is not None and not self._ended

    # -- Channel ----------------------------------------------------------------------------------------------------

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send the pieces, at once as far as the kernel takes them."""
        if self._reason is not None:
            return
        transport = self._transport
        fd = self._fd
        index = 0
        if fd >= 0 and not transport.get_write_buffer_size():
            count = len(pieces)
            while index < count:
                batch = pieces if count <= _IOV_MAX else pieces[index : index + _IOV_MAX]
                try:
                    done = os.writev(fd, batch)
                except BlockingIOError:
                    break
                except OSError as error:
                    self._broken(str(error))
                    return
                self.sent += done
                for piece in batch:
                    size = len(piece)
                    if done < size:
                        self._queue([memoryview(piece)[done:], *pieces[index + 1 :]])
                        return
                    done -= size
                    index += 1
            if index == count:
                return
        self._queue(pieces[index:])

    def _queue(self, pieces: Sequence[Piece]) -> None:
        """Hand the rest to the transport: large immutable pieces as they are, the others in one copy."""
        small: list[Piece] = []
        for piece in pieces:
            self.sent += len(piece)
            if len(piece) < _COPY_LIMIT or not immutable(piece):
                small.append(piece)
                continue
            if small:
                self._transport.write(b"".join(small))
                small = []
            self._transport.write(piece)
        if small:
            self._transport.write(b"".join(small))

    def close(self) -> None:
        """Send what is queued, then close."""
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._reason = self._reason or reason
        self._fd = -1
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, reason: str) -> None:
        """The other side is gone. What it sent before lies in the socket still, and may say why (a TLS alert)."""
        self._reason = reason
        fd, self._fd = self._fd, -1
        asyncio.get_running_loop().call_soon(self._read_on, fd, reason)

    def _read_on(self, fd: int, reason: str) -> None:
        """Read what is left, and end."""
        try:
            while not self._transport.is_closing() and self._transport.is_reading():
                count = os.readv(fd, [self.get_buffer(-1)])
                if not count:
                    break
                self.buffer_updated(count)
        except OSError:
            pass
        finally:
            self.abort(reason)

    def pause_reading(self) -> None:
        """Stop reading."""
        if self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    def queued(self) -> int:
        """Return how many bytes wait in the transport."""
        return int(self._transport.get_write_buffer_size())


class AsyncioListener:
    """A listening socket in an event loop."""

    def __init__(self, server: asyncio.AbstractServer, address: Address) -> None:
        self._server: Any = server
        self.address = address

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        loop = server.get_loop()
        if isinstance(loop, asyncio.SelectorEventLoop):
            # A connection that has been accepted in this round of the loop needs its server for one round more.
            for sock in server.sockets:
                loop.remove_reader(sock.fileno())
            loop.call_soon(server.close)
        else:
            server.close()
        if self.address.path:
            try:
                os.unlink(self.address.path)
            except FileNotFoundError:
                pass


class AsyncioNetwork:
    """How a graph in an event loop connects and listens.

    Args:
        loop: the loop.
        connect_timeout: seconds after which a connection attempt has failed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connect_timeout: float = 20.0) -> None:
        self.loop = loop
        self.connect_timeout = connect_timeout
        self.streams: set[Stream] = set()
        self.listeners: weakref.WeakSet[AsyncioListener] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._all_gone: asyncio.Event | None = None

    def _spawn(self, co: Any) -> None:
        task = self.loop.create_task(co)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _stream(self, receiver: Receiver) -> Stream:
        stream = Stream(receiver, self._gone)
        self.streams.add(stream)
        return stream

    def _gone(self, stream: Stream) -> None:
        self.streams.discard(stream)
        if not self.streams and self._all_gone is not None:
            self._all_gone.set()

    def dial(self, address: Address, receiver: Receiver) -> None:
        """Connect in the background; the receiver hears how it went."""
        self._spawn(self._dial(address, receiver))

    async def _dial(self, address: Address, receiver: Receiver) -> None:
        stream = self._stream(receiver)
        try:
            if address.path:
                attempt = self.loop.create_unix_connection(lambda: stream, address.path)
            else:
                attempt = self.loop.create_connection(lambda: stream, address.host, address.port)
            await asyncio.wait_for(attempt, self.connect_timeout)
        except asyncio.CancelledError:
            self._failed(stream, ConnectionAbortedError(errno.ECONNABORTED, "shutting down"))
            raise
        except (asyncio.TimeoutError, TimeoutError) as error:
            slow = TimeoutError(errno.ETIMEDOUT, f"no answer in {self.connect_timeout:g} s")
            self._failed(stream, error if error.args else slow)
        except Exception as error:  # OSError, and what getaddrinfo raises for a host or port that cannot be
            if not isinstance(error, OSError):
                error = OSError(errno.EINVAL, f"{address} is no address one can connect to: {error}")
            elif error.errno and error.errno > 0:  # not a resolver's
                # Loops write the address into the text; whoever hears of this knows it.
                error = OSError(error.errno, os.strerror(error.errno))
            self._failed(stream, error)

    def _failed(self, stream: Stream, error: Exception) -> None:
        """An attempt to connect has come to nothing, or came to something too late."""
        if stream.connected:
            stream.abort(str(error))
            return
        self._gone(stream)
        turn(stream.receiver.connection_lost, error)

    def listen(
        self, address: Address, make_receiver: Callable[[], Receiver], mode: int | None = None
    ) -> Waiter[Listener]:
        """Listen on `address` and make a receiver for each connection; return the waiter of the Listener.

        Port 0 takes a free one; the listener's `address` tells which. The waiter fails with the OSError of bind. `mode`
        is that of a unix socket, from the first moment on.
        """
        waiter: Waiter[Listener] = Waiter()
        self._spawn(self._listen(address, make_receiver, waiter, mode))
        return waiter

    async def _listen(
        self, address: Address, make_receiver: Callable[[], Receiver], waiter: Waiter[Listener], mode: int | None
    ) -> None:
        def accept() -> Stream:
            return self._stream(make_receiver())

        try:
            server: asyncio.AbstractServer
            if address.path:
                refuse_living(address.path)
                server = await self.loop.create_unix_server(accept, sock=bound(address.path, mode), backlog=1024)
                where = address
            else:
                server = await self.loop.create_server(
                    accept, address.host or None, address.port, backlog=1024, reuse_address=True
                )
                where = Address(address.host, server.sockets[0].getsockname()[1])
        except OSError as error:
            # Loops write the address into the text; whoever hears of this knows it.
            code = error.errno or 0
            waiter.fail(OSError(code, os.strerror(code)) if code > 0 else error)
            return
        except (ValueError, OverflowError) as error:
            waiter.fail(OSError(errno.EINVAL, f"{address} is no address one can listen on: {error}"))
            return
        listener = AsyncioListener(server, where)
        self.listeners.add(listener)
        waiter.set(listener)

    async def close(self) -> None:
        """Stop listening, abort every connection and attempt, and wait until all are gone."""
        for listener in list(self.listeners):
            listener.close()
        for task in list(self._tasks):
            task.cancel()
        for stream in list(self.streams):
            stream.abort("shutting down")
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self.streams = {stream for stream in self.streams if stream.connected}
        if self.streams:
            self._all_gone = asyncio.Event()
            await self._all_gone.wait()
        await asyncio.sleep(0)  # sockets are closed a round later than their protocols hear of it


async def drive_in_loop(co: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Drive a translator's coroutine from an asyncio task and return its value; cancelling the task cancels the fop."""
    from glustx.runtime import Run, drive

    future: asyncio.Future[Any] = loop.create_future()
    box: list[Run | None] = [None]

    def finish(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
        else:
            future.set_result(value)

    def begin() -> None:
        box[0] = drive(co, finish)

    turn(begin)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        run = box[0]
        if run is not None and not run.done:
            run.cancel()
            # The fop undoes what it began before the task goes on; what it says in the end interests nobody.
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
        raise
