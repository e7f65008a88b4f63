"""Asking a volume server (glusterd, or `glustx serve`) for a volfile, and for the port of a brick; and hearing from it
when the volfile has changed."""

from __future__ import annotations

import errno
import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from glustx.errors import FopError, told
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address, Channel, Network
from glustx.rpc.connection import RpcConnection
from glustx.rpc.tls import TlsError
from glustx.rpc.xdr import XdrError
from glustx.runtime import Reactor, Run, TimedOut, TimerHandle, Waiter, drive, wait_for
from glustx.values import Caller

if TYPE_CHECKING:
    from glustx.rpc.tls_stream import TlsClient

log = logging.getLogger("glustx.rpc")

T = TypeVar("T")

HESITATION = 0.3  # seconds after which the next server is asked as well
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0  # seconds between attempts to find a server again
WATCH = 30.0  # seconds of silence after which a server is asked for a sign of life
MAX_SERVERS = 64

# As stock 10 does: without them glusterd takes the client for a 3.x one and refuses volumes with newer options.
OP_VERSIONS = {"min-op-version": "1", "max-op-version": "100000"}


class Dialled(RpcConnection):
    """A client connection whose coming up, or failing to, can be awaited."""

    throttles = False

    def __init__(self) -> None:
        super().__init__({})
        self.ready: Waiter[Dialled] = Waiter()
        self.lost: Callable[[Exception | None], None] | None = None

    def connection_made(self, channel: Channel) -> None:
        """The connection is there."""
        super().connection_made(channel)
        if self.ready.done:  # whoever dialled has stopped waiting
            channel.abort("nobody wants this connection any more")
        self.ready.set(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone, or never came."""
        super().connection_lost(error)
        if not self.ready.done:
            self.ready.fail(error or ConnectionResetError(errno.ECONNRESET, "closed before it was open"))
        elif self.lost is not None:
            self.lost(error)

    def ask(self, program: p.Program, proc: int, body: bytes, cred: bytes, decode: Callable[[Any], T]) -> Waiter[T]:
        """Send a call of a cold program and return the waiter of its decoded results."""
        waiter: Waiter[T] = Waiter()

        def reply_to(view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
            if view is None:
                waiter.fail(error or ConnectionResetError(errno.ECONNRESET, "no reply"))
                return
            try:
                waiter.set(decode(bytes(view[pos:end])))
            except Exception as fault:
                waiter.fail(fault)

        self.call(program.number, program.version, proc, cred, body, reply_to)
        return waiter

    def hang_up(self) -> None:
        """Close the connection; what the other end has not read by now is not waited for."""
        channel = self.channel
        if channel is None:
            return
        if channel.queued():
            channel.abort("hung up")
        else:
            channel.close()


def own_credential() -> bytes:
    """Return the credential of this process for handshakes."""
    return message.encode_auth_v2(Caller(pid=os.getpid()))


async def connect(network: Network, reactor: Reactor, address: Address, timeout: float) -> Dialled:
    """Return a connection to `address`; OSError (TimeoutError after `timeout` seconds) when there is none."""
    connection = Dialled()
    secured: TlsClient | None = None
    if address.tls is not None and not address.path:
        from glustx.rpc.tls_stream import TlsClient  # few need the ssl module

        secured = TlsClient(connection, address.tls, reactor, timeout)
        address = msgspec.structs.replace(address, tls=None)
    network.dial(address, secured or connection)
    try:
        return await wait_for(reactor, connection.ready, timeout)
    except TimedOut:
        what = "end of the TLS handshake" if secured and secured.connected else "answer"
        raise TimeoutError(errno.ETIMEDOUT, f"no {what} in {timeout:g} s") from None
    except BaseException as error:
        connection.ready.fail(error)
        connection.hang_up()
        raise
    finally:
        if secured is not None and connection.channel is None:
            secured.abort("nobody waits for the TLS handshake any more")


class VolumeServers:
    """The volume servers of a volume: asked for its volfile, and listened to for as long as the volume is in use.

    Args:
        addresses: asked in order; those that a server names in its answer come after them.
        volume: the volume's name.
        changed: called when the volfile may be another one now: a server says so, or is back after it was away. Without
            it no connection is kept.
        timeout: seconds for each step with each server.

    Source: stock's GETSPEC (program 14398633 procedure 2) and FETCHSPEC (program 52743234 procedure 1).
    """

    def __init__(
        self,
        network: Network,
        reactor: Reactor,
        addresses: Sequence[Address],
        volume: str,
        *,
        changed: Callable[[], None] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self.addresses = list(addresses)
        self.volume = volume
        self._network = network
        self._reactor = reactor
        self._changed = changed
        self._timeout = timeout
        self._kept: Dialled | None = None
        self._closed = False
        self._pause = FIRST_PAUSE
        self._timer: TimerHandle | None = None
        self._return: Run | None = None
        self._heard = -1

    async def volfile(self) -> str:
        """Return the client volfile of the volume.

        Raises FopError: ENOENT when the servers know no such volume, ENOTCONN when none could be reached (the text
        names each with its error).
        """
        kept = self._kept
        if kept is not None:
            try:
                return await self._ask(kept, self.addresses[0])
            except FopError as error:
                if error.errno != errno.ENOTCONN:
                    raise
                kept.hang_up()
        return await self._race()

    def close(self) -> None:
        """Hang up for good."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._return is not None:
            self._return.cancel()
        if self._kept is not None:
            self._kept.hang_up()

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _ask(self, connection: Dialled, address: Address) -> str:
        question = p.GetspecRequest(p.SERVERS_LIST, self.volume, dict_v1.pack_all(OP_VERSIONS))
        asked = connection.ask(p.HANDSHAKE, p.HNDSK_GETSPEC, question.encode(), own_credential(), p.GetspecReply.decode)
        try:
            reply = await wait_for(self._reactor, asked, self._timeout)
        except TimedOut:
            raise FopError(errno.ENOTCONN, f"{address}: no answer in {self._timeout:g} s") from None
        except (OSError, XdrError) as error:
            raise _failed(error, address) from None
        if reply.op_ret < 0:
            code = told(reply.op_errno or errno.ENOENT).errno
            what = "no such volume, or it is not started" if code == errno.ENOENT else os.strerror(code)
            raise FopError(code, f"volume server {address}: {what}")
        self._learn(reply.xdata)
        return str(reply.spec)

    def _learn(self, pairs: Mapping[bytes, bytes]) -> None:
        """Remember the other servers that a server names, for when it is gone."""
        for key in (b"servers-list", b"cluster.brick-vol-servers"):
            for word in dict_v1.text(pairs, key).split():
                host, _, port = word.rpartition(":")
                if host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
                    address = Address(host.strip("[]"), int(port), tls=self.addresses[0].tls)
                    if address not in self.addresses and len(self.addresses) < MAX_SERVERS:
                        self.addresses.append(address)

    async def _attempt(self, address: Address) -> tuple[Dialled, str]:
        try:
            connection = await connect(self._network, self._reactor, address, self._timeout)
        except OSError as error:
            raise _failed(error, address) from None
        try:
            return connection, await self._ask(connection, address)
        except BaseException:
            connection.hang_up()
            raise

    async def _race(self) -> str:
        """Ask one server after the other, the next one also when the one before hesitates; the first answer counts."""
        todo = deque(self.addresses)
        failures: list[FopError] = []
        runs: dict[Address, Run] = {}
        won: list[tuple[Address, Dialled, str]] = []
        ended: Waiter[None] = Waiter()

        def start(address: Address) -> None:
            def finish(value: Any, error: BaseException | None) -> None:
                runs.pop(address, None)
                if isinstance(error, Exception):
                    failures.append(error if isinstance(error, FopError) else FopError(errno.EIO, repr(error)))
                elif value is not None and not won:
                    won.append((address, *value))
                elif value is not None:
                    value[0].hang_up()
                ended.set(None)

            run = drive(self._attempt(address), finish)
            if run is not None and not run.done:
                runs[address] = run

        try:
            while not won and (todo or runs):
                ended = Waiter()
                if todo:
                    start(todo.popleft())
                if won or ended.done:
                    continue
                try:
                    await wait_for(self._reactor, ended, HESITATION if todo else 2 * self._timeout)
                except TimedOut:
                    continue
        finally:
            for run in list(runs.values()):
                run.cancel()
        if not won:
            self._refuse(failures)
        address, connection, text = won[0]
        self.addresses.remove(address)
        self.addresses.insert(0, address)
        self._keep(connection)
        return text

    def _refuse(self, failures: list[FopError]) -> NoReturn:
        said = "; ".join(error.text for error in failures)
        for error in failures:
            if error.errno != errno.ENOTCONN:  # one did answer
                raise FopError(error.errno, said)
        raise FopError(errno.ENOTCONN, f"no volume server answers ({said})")

    # -- staying in touch -------------------------------------------------------------------------------------------

    def _keep(self, connection: Dialled) -> None:
        if self._changed is None or self._closed:
            connection.hang_up()
            return
        connection.programs = {(p.CALLBACK.number, p.CALLBACK.version): self._called}
        connection.lost = functools.partial(self._lost, connection)
        before, self._kept = self._kept, connection
        if before is not None:
            before.hang_up()
        self._pause = FIRST_PAUSE
        self._heard = -1
        self._look_again(WATCH)

    def _look_again(self, pause: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(pause, self._look)

    def _called(self, connection: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
        """Hear a callback; nobody answers one."""
        if call.proc == p.CBK_FETCHSPEC and self._changed is not None:
            self._changed()
        return None

    def _lost(self, connection: Dialled, error: Exception | None) -> None:
        if connection is not self._kept:
            return
        self._kept = None
        if not self._closed:
            log.info("volume server %s of %s is gone: %s", self.addresses[0], self.volume, error or "it hung up")
            self._look_again(self._pause)

    def _look(self) -> None:
        """See whether the server is still there, or one of them there again."""
        self._timer = None
        kept = self._kept
        if kept is None:
            self._return = drive(self._race(), self._returned)
            return
        channel = kept.channel
        if channel is None:
            return
        if channel.received == self._heard:
            channel.abort(f"no answer for {WATCH:g} s")
            return
        self._heard = channel.received
        # A management daemon has no ping of its own; DUMP it answers.
        kept.call(p.DUMP.number, p.DUMP.version, p.DUMP_DUMP, own_credential(), p.DumpRequest().encode(), _unheard)
        self._look_again(WATCH)

    def _returned(self, value: Any, error: BaseException | None) -> None:
        self._return = None
        if self._closed:
            return
        if error is None:
            if self._changed is not None:
                self._changed()
            return
        log.debug("volume servers of %s: %s", self.volume, error)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._look_again(self._pause)


def _failed(error: Exception, address: Address) -> FopError:
    """Return ENOTCONN for a server that cannot be reached, and EPROTO or EINVAL where TLS is what keeps it away."""
    text = str((isinstance(error, OSError) and error.strerror) or error)
    if isinstance(error, ConnectionResetError) and address.tls is None and not address.path:
        text = "it hangs up on the first call; it may want TLS"
    told = isinstance(error, TlsError) or getattr(error, "errno", 0) == errno.EPROTO
    return FopError(getattr(error, "errno", 0) if told else errno.ENOTCONN, f"{address}: {text}")


def _unheard(*_: object) -> None:
    """Take a reply that says nothing but that the other side is there."""


async def brick_port(network: Network, reactor: Reactor, address: Address, brick: str, timeout: float) -> int:
    """Ask the portmap at `address` for the port of a brick; FopError ENOENT when it knows none.

    Source: stock's PMAP PORTBYBRICK, program 34123456 procedure 1.
    """
    connection = await connect(network, reactor, address, timeout)
    try:
        asked = connection.ask(
            p.PORTMAP,
            p.PMAP_PORTBYBRICK,
            p.PortByBrickRequest(brick).encode(),
            own_credential(),
            p.PortByBrickReply.decode,
        )
        reply = await wait_for(reactor, asked, timeout)
    finally:
        connection.hang_up()
    if reply.op_ret < 0 or not reply.port:
        raise FopError(errno.ENOENT, f"volume server {address} knows no running brick {brick}; is the volume stopped?")
    return int(reply.port)


async def volume_id(network: Network, reactor: Reactor, address: Address, volume: str, timeout: float) -> str:
    """Ask the volume server at `address` for a volume's id, as the text of a UUID.

    Raises FopError: ENOENT when it knows no such volume, ENOTCONN when it does not answer.

    Source: stock's GET_VOLUME_INFO, program 14398633 procedure 6.
    """
    question = p.GetVolumeInfoRequest(dict_v1.pack_all({"volname": volume, "flags": 1}))
    try:
        connection = await connect(network, reactor, address, timeout)
        try:
            decode, body = p.GetVolumeInfoReply.decode, question.encode()
            asked = connection.ask(p.HANDSHAKE, p.HNDSK_GET_VOLUME_INFO, body, own_credential(), decode)
            reply = await wait_for(reactor, asked, timeout)
        finally:
            connection.hang_up()
    except (OSError, XdrError, TimedOut) as error:
        raise FopError(errno.ENOTCONN, f"volume server {_failed(error, address).text}") from None
    if reply.op_ret < 0:
        raise told(reply.op_errno or errno.ENOENT, f"volume server {address}: {reply.errstr or 'no such volume'}")
    return dict_v1.text(reply.pairs, b"volume_id")
