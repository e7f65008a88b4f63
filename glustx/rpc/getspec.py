"""Asking a volume server (glusterd, or `glustx serve`) for a volfile, and for the port of a brick."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from glustx.errors import FopError
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address, Channel, Network
from glustx.rpc.connection import RpcConnection
from glustx.rpc.xdr import XdrError
from glustx.runtime import Reactor, TimedOut, Waiter, wait_for
from glustx.values import Caller

T = TypeVar("T")

# What stock 10 sends: without them glusterd takes the client for a 3.x one and refuses volumes with newer options.
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
        """Close the connection."""
        if self.channel is not None:
            self.channel.close()


def own_credential() -> bytes:
    """Return the credential of this process for handshakes."""
    return message.encode_auth_v2(Caller(pid=os.getpid()))


async def connect(network: Network, reactor: Reactor, address: Address, timeout: float) -> Dialled:
    """Return a connection to `address`; OSError (TimeoutError after `timeout` seconds) when there is none."""
    connection = Dialled()
    network.dial(address, connection)
    try:
        return await wait_for(reactor, connection.ready, timeout)
    except TimedOut:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {timeout:g} s") from None
    except BaseException as error:
        connection.ready.fail(error)
        connection.hang_up()
        raise


async def fetch_volfile(
    network: Network,
    reactor: Reactor,
    addresses: Sequence[Address],
    volume: str,
    *,
    timeout: float = 10.0,
) -> str:
    """Return the client volfile of a volume.

    Args:
        addresses: volume servers, asked in order until one answers.
        volume: the volume's name.
        timeout: seconds for each.

    Raises FopError: ENOENT when a server knows no such volume, ENOTCONN when none could be reached (the text names
    each with its error). Source: stock's GETSPEC, program 14398633 procedure 2.
    """
    failures: list[str] = []
    for address in addresses:
        try:
            connection = await connect(network, reactor, address, timeout)
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
            continue
        try:
            question = p.GetspecRequest(p.SERVERS_LIST, volume, dict_v1.pack_all(OP_VERSIONS))
            asked = connection.ask(
                p.HANDSHAKE, p.HNDSK_GETSPEC, question.encode(), own_credential(), p.GetspecReply.decode
            )
            reply = await wait_for(reactor, asked, timeout)
        except TimedOut:
            failures.append(f"{address}: no answer in {timeout:g} s")
            continue
        except (OSError, XdrError) as error:
            failures.append(f"{address}: {error}")
            continue
        finally:
            connection.hang_up()
        if reply.op_ret < 0:
            code = reply.op_errno or errno.ENOENT
            what = "no such volume, or it is not started" if code == errno.ENOENT else os.strerror(code)
            raise FopError(code, f"volume server {address}: {what}")
        return str(reply.spec)
    raise FopError(errno.ENOTCONN, f"no volume server answers ({'; '.join(failures)})")


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
