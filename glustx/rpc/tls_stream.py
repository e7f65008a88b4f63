"""TLS as a layer without a socket: the receiver of a channel that carries ciphertext, and the channel of a receiver
that knows nothing of it. So every edge has it, event loop, pump and memory alike.
"""

from __future__ import annotations

import errno
import logging
import ssl
from collections.abc import Callable, Sequence

from glustx.rpc.channel import Channel, Piece, Receiver
from glustx.rpc.complaints import Complaints
from glustx.rpc.tls import NO_TLS, Contexts, Tls, TlsError, common_name, sentence, too_deep
from glustx.runtime import Reactor, TimerHandle

log = logging.getLogger("glustx.rpc")

HANDSHAKE_SECONDS = 10.0
# For who has been told no to read it, before the connection goes.
LINGER_SECONDS = 1.0
# That may be under way in one listener; with one more the oldest is dropped.
MAX_HANDSHAKES = 1024
# Until a peer has proved who it is, it gets little memory.
_FIRST_SIZE = 4 << 10
_READ_SIZE = 128 << 10
# Ciphertext that may wait to be deciphered before the channel is not read from.
_HIGH = 512 << 10


class TlsStream:
    """One secured connection, between its channel and the receiver of the plaintext.

    Args:
        tls: for messages, and for the depth of certificates.
        context: made of it.
        reactor: of the channel's edge.
        server: which side of the handshake this is.
        timeout: seconds that the handshake may take.
    """

    def __init__(self, tls: Tls, context: ssl.SSLContext, reactor: Reactor, *, server: bool, timeout: float) -> None:
        self.peer = "?"
        self.identity: str | None = None
        self.tls = tls
        self._server = server
        self._reactor = reactor
        self._timeout = timeout
        self._timer: TimerHandle | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._channel: Channel | None = None
        self._receiver: Receiver | None = None  # once the handshake is over
        self._room = memoryview(bytearray(_FIRST_SIZE))
        self._reason: OSError | None = None
        self._over = False  # nothing more is read or written
        self._heard = False
        self._held = False
        self._stopped = False
        self._due = False

    def receiver(self) -> Receiver:
        """Return who reads the plaintext; called when the handshake is over."""
        raise NotImplementedError

    def refused(self, error: OSError) -> None:
        """Hear that the handshake has come to nothing, and why."""
        raise NotImplementedError

    def spoilt(self, why: str) -> None:
        """Hear that a connection which has come through the handshake has to end, and why."""

    @property
    def connected(self) -> bool:
        """True once there is a channel, whether or not the handshake is over."""
        return self._channel is not None

    # -- receiver of the ciphertext ---------------------------------------------------------------------------------

    def connection_made(self, channel: Channel) -> None:
        """The channel is there: begin the handshake."""
        self._channel = channel
        self.peer = channel.peer
        if self._over:
            channel.abort("nobody wants this connection any more")
            return
        self._timer = self._reactor.call_later(self._timeout, self._late)
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next ciphertext goes."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Ciphertext has arrived."""
        if self._over:
            return
        self._incoming.write(self._room[:nbytes])
        if self._receiver is None:
            self._shake()
        else:
            self._deliver()

    def resume_writing(self) -> None:
        """The channel has sent most of its queue."""
        resume = getattr(self._receiver, "resume_writing", None)
        if resume is not None:
            resume()

    def connection_lost(self, error: Exception | None) -> None:
        """The channel is gone."""
        self._over = True
        self._forget_timer()
        receiver = self._receiver
        why: Exception | None = self._reason or error
        if receiver is None:
            if isinstance(self._reason, ConnectionAbortedError):
                return  # told already
            if not isinstance(why, OSError) or (self._reason is None and self.connected):
                why = ConnectionResetError(errno.ECONNRESET, "it hangs up during the TLS handshake")
            self.refused(why)
            return
        if self._reason is None and not self._server and not self._heard:
            # In TLS 1.3 a client has done its part before the server looks at the certificate.
            text = f"it hangs up after the TLS handshake; it may not accept the certificate {self.tls.whole().own_cert}"
            why = ConnectionResetError(errno.ECONNRESET, text)
        receiver.connection_lost(why)

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except ssl.SSLError as error:
            self._give_up(sentence(error, self.tls))
            return
        self._send()
        depth = self.tls.whole().cert_depth or 0
        excess = too_deep(self._object, depth)
        if excess:
            self._give_up(
                f"its certificate is not accepted: {depth + excess} others before the CA, and ssl-cert-depth is {depth}"
            )
            return
        self._forget_timer()
        self.identity = common_name(self._object.getpeercert() or {})
        self._room = memoryview(bytearray(_READ_SIZE))
        receiver = self._receiver = self.receiver()
        receiver.connection_made(self)
        self._deliver()

    def _late(self) -> None:
        self._timer = None
        self._reason = TimeoutError(errno.ETIMEDOUT, f"no TLS handshake in {self._timeout:g} s")
        self.abort("no TLS handshake in time")

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        """Hand on as much plaintext as the receiver has room for: one filling of its buffer a turn."""
        receiver = self._receiver
        if self._over or self._held or receiver is None or not self._more():
            return
        room = receiver.get_buffer(-1)
        read: Callable[[int, memoryview], int] = self._object.read  # type: ignore[assignment]
        size, have = len(room), 0
        failure: ssl.SSLError | None = None
        ended = False  # by a close_notify
        try:
            while have < size and self._more():
                count = read(size - have, room[have:])
                if not count:
                    ended = True
                    break
                have += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            failure = error
        if failure is None:
            self._send()  # an answer to a change of keys
        if have:
            self._heard = True
            receiver.buffer_updated(have)
        if self._over:
            return
        if failure is not None:
            self._give_up(sentence(failure, self.tls))
        elif ended:
            self.close()
        else:
            if have == size:
                self._again()
            self._flow()

    def _more(self) -> bool:
        return bool(self._incoming.pending or self._object.pending())

    def _again(self) -> None:
        """Go on in a turn of its own: what has been read is used before the buffer is filled anew."""
        if self._more() and not self._due and not self._held and not self._over:
            self._due = True
            self._reactor.post(self._next)

    def _next(self) -> None:
        self._due = False
        self._deliver()

    def _flow(self) -> None:
        stop = self._held or self._incoming.pending > _HIGH
        channel = self._channel
        if stop != self._stopped and channel is not None and not self._over:
            self._stopped = stop
            if stop:
                channel.pause_reading()
            else:
                channel.resume_reading()

    def _give_up(self, why: str) -> None:
        """End the connection, and let the other side read why before it goes."""
        self._over = True
        self._reason = ConnectionAbortedError(errno.EPROTO, why)
        self._forget_timer()
        if self._receiver is not None:
            self.spoilt(why)
        else:
            self.refused(self._reason)
        self._send()  # an alert, which tells the other side
        channel = self._channel
        assert channel is not None
        if why == NO_TLS:
            channel.abort(why)
            return
        self._timer = self._reactor.call_later(LINGER_SECONDS, lambda: channel.abort(why))
        if not self._server:
            channel.close()

    # -- channel of the plaintext -----------------------------------------------------------------------------------

    @property
    def received(self) -> int:
        """Bytes that have come over the wire."""
        return self._channel.received if self._channel is not None else 0

    @property
    def sent(self) -> int:
        """Bytes that have gone over the wire."""
        return self._channel.sent if self._channel is not None else 0

    def write(self, pieces: Sequence[Piece]) -> None:
        """Encipher and send the pieces, each in TLS records of its own.

        No TLS record holds parts of two messages: stock goes back to its poll after one of them, and what its OpenSSL
        has deciphered of the next waits there until more comes over the socket.
        """
        if self._over:
            return
        try:
            for piece in pieces:
                self._encipher(piece)
        except ssl.SSLError as error:
            self._reason = ConnectionAbortedError(errno.EPROTO, sentence(error, self.tls))
            self.abort(str(self._reason.strerror))
            return
        self._send()

    def _encipher(self, piece: Piece) -> None:
        size = len(piece)
        done = self._object.write(piece) if size else 0
        while done < size:
            done += self._object.write(memoryview(piece)[done:])

    def _send(self) -> None:
        if self._outgoing.pending and self._channel is not None:
            self._channel.write([self._outgoing.read()])

    def close(self) -> None:
        """Send what is queued and a close_notify, then close."""
        if self._channel is None or self._over:
            self._over = True
            return
        self._over = True
        try:
            self._object.unwrap()
        except ssl.SSLError:
            pass  # the other side's close_notify is not waited for
        self._send()
        self._channel.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._over = True
        if self._channel is not None:
            self._channel.abort(reason)

    def pause_reading(self) -> None:
        """Hand nothing on until `resume_reading`."""
        self._held = True
        self._flow()

    def resume_reading(self) -> None:
        """Go on."""
        self._held = False
        self._again()
        self._flow()

    def queued(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._channel.queued() if self._channel is not None else 0


class TlsClient(TlsStream):
    """The dialling side: `reader` hears of the connection when the handshake is over, or why it came to nothing."""

    def __init__(self, reader: Receiver, tls: Tls, reactor: Reactor, timeout: float = HANDSHAKE_SECONDS) -> None:
        super().__init__(tls, tls.context(server=False), reactor, server=False, timeout=timeout)
        self._reader = reader

    def receiver(self) -> Receiver:
        """Return the reader."""
        return self._reader

    def refused(self, error: OSError) -> None:
        """Tell the reader."""
        self._reader.connection_lost(error)


class TlsAcceptor:
    """The accepting side of many connections: a receiver is made for those that come through the handshake.

    Args:
        complain: called with (peer, text) for a peer that is refused; by default a host is warned of once a minute.

    Raises TlsError for files of which no context can be made.
    """

    def __init__(
        self,
        make_receiver: Callable[[], Receiver],
        tls: Tls,
        reactor: Reactor,
        complain: Callable[[str, str], None] | None = None,
    ) -> None:
        self.make_inner = make_receiver
        self.tls = tls
        self.reactor = reactor
        self.timeout = HANDSHAKE_SECONDS
        self.complain = complain or Complaints(log, reactor.time).say
        self.shaking: dict[_Accepted, None] = {}  # the oldest first
        self._contexts = Contexts(tls, server=True, failed=self._stale)

    def make_receiver(self) -> Receiver:
        """Return the receiver of a new connection."""
        return _Accepted(self, self._contexts.get())

    def close(self) -> None:
        """Drop the connections whose handshake is not over."""
        for stream in list(self.shaking):
            stream.abort("the server is going down")

    def _stale(self, error: TlsError) -> None:
        log.error("%s; the files read before stay in use", error.strerror)


class _Accepted(TlsStream):
    def __init__(self, acceptor: TlsAcceptor, context: ssl.SSLContext) -> None:
        super().__init__(acceptor.tls, context, acceptor.reactor, server=True, timeout=acceptor.timeout)
        self._acceptor = acceptor
        if len(acceptor.shaking) >= MAX_HANDSHAKES:
            next(iter(acceptor.shaking)).abort("too many unfinished handshakes")
        acceptor.shaking[self] = None

    def receiver(self) -> Receiver:
        self._acceptor.shaking.pop(self, None)
        return self._acceptor.make_inner()

    def refused(self, error: OSError) -> None:
        self._acceptor.shaking.pop(self, None)
        if isinstance(error, ConnectionResetError):  # who only looks whether the port is open is no news
            log.info("%s: %s", self.peer, error.strerror)
        else:
            self._acceptor.complain(self.peer, f"refused: {error.strerror or error}")

    def spoilt(self, why: str) -> None:
        self._acceptor.complain(self.peer, f"{why}; connection closed")
