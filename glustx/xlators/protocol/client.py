"""protocol/client: the graph's end of the wire to one brick, stock's or ours.

Each fop becomes a call of program 1298437, version 400 or else 330; its reply is matched by xid. The connection
(portmap, DUMP, SETVOLUME, pings, reconnection with back-off) is `client_link.py`'s work.

No fop is ever sent twice, idempotent or not: stock's client fails what was not answered when its connection broke, and
all that comes until there is another one, with ENOTCONN at once, and its users build on that (replicate goes on with
the other bricks, an application decides by itself whether to try again). What was not answered may have been done.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from glustx import fops
from glustx.errors import FopCancelled, FopError, OptionError
from glustx.fops import LOCKS, Fop, Reply
from glustx.inode import ANONYMOUS_FD, Fd, PerFd
from glustx.lock_ranges import span
from glustx.options import OptionSet, Seconds, option
from glustx.rpc.connection import RpcError
from glustx.rpc.xdr import XdrError
from glustx.runtime import Waiter, spawn
from glustx.values import ENTRYLK_UNLOCK, F_GETLK, F_SETLK, F_UNLCK, Loc
from glustx.xdata_memo import XdataMemo
from glustx.xlator import ALL, Event, Xlator, handles
from glustx.xlators.protocol.client_answers import INCREDIBLE
from glustx.xlators.protocol.client_link import ClientLink, Unanswered, text_of
from glustx.xlators.protocol.client_locks import LockBook
from glustx.xlators.protocol.tls_options import TlsOptions

log = logging.getLogger("glustx.protocol.client")


class RemoteFd:
    """What the brick knows an fd by: its number, valid for one `session` of the link."""

    __slots__ = ("flags", "loc", "number", "session", "why")

    def __init__(self, number: int, session: int, loc: Loc, flags: int) -> None:
        self.number = number
        self.session = session
        self.loc = loc
        self.flags = flags
        self.why = ""  # what made it void


class _Taking:
    """Where a fop that takes something stands between the two who care: who waits for the reply, and who wanted it."""

    __slots__ = ("abandoned", "taken")

    def __init__(self) -> None:
        self.abandoned = False
        self.taken = False


class Client(Xlator):
    """The client end of the wire to one brick."""

    subvolume_count: ClassVar[tuple[int, int | None]] = (0, 0)

    class Options(TlsOptions):
        """Where the brick is and how long to wait for it."""

        remote_host: str = option("127.0.0.1", "Host of the volume server and the brick.")
        remote_port: int = option(0, "Port of the brick; 0 asks the portmap of the volume server.", low=0, high=65535)
        remote_portmap: int = option(24007, "Port of the volume server that answers portmap.", low=1, high=65535)
        remote_path: str = option(
            "", "Unix socket of the brick, instead of host and port.", key="transport.socket.connect-path"
        )
        remote_subvolume: str = option(..., "Name of the brick: the volume below its protocol/server.")
        username: str = option("", "User for auth.login.")
        password: str = option("", "Password for auth.login; never shown.")
        ping_timeout: Seconds = option(
            42, "Seconds without an answer after which the brick is taken for gone; 0 for never.", low=0, live=True
        )
        connect_timeout: Seconds = option(10, "Seconds for each step of connecting.", low=0.1, live=True)
        frame_timeout: Seconds = option(
            1800, "Seconds after which a fop that is not answered fails; 0 for never. Locks may wait.", low=0, live=True
        )
        strict_locks: bool = option(
            False,
            "After a reconnection fds that held posix locks are void; off takes the locks again, which another client "
            "may have had meanwhile.",
            live=True,
        )
        transport_type: str = option("tcp", "Transport: tcp, socket or unix.", choices=("tcp", "socket", "unix"))
        volume_id: str = option("", "Volume id that the brick must have, when known.")
        old_protocol: bool = option(
            False, "Speak fop program 330, GlusterFS 3's, with a brick that offers it.", key="testing.old-protocol"
        )
        subdir_mount: str = option("", "A folder of the volume in place of its root; not offered, so refused.")
        accepted = (
            "transport.*",
            "transport-*",
            "send-gids",
            "filter-O_DIRECT",
            "event-threads",
            "lk-heal",
            "tcp-window-size",
            "client.*",
            "testing.*",
        )

    remote_fd: PerFd[RemoteFd]

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.remote_fd = PerFd()
        self.memo = XdataMemo()
        self.book = LockBook()
        self.link: ClientLink
        self.sent_fops = 0

    # -- life -------------------------------------------------------------------------------------------------------

    def check_options(self, options: Any) -> None:
        """Refuse what a user relies on and would not get."""
        if options.subdir_mount:
            raise OptionError(self.name, "subdir-mount", "is not offered")
        if options.transport_type == "unix" and not options.remote_path:
            raise OptionError(self.name, "transport.socket.connect-path", "is required with transport-type unix")

    async def start(self) -> None:
        """Begin to connect and wait for the first outcome; a brick that is away does not keep the graph down."""
        if self.graph.surroundings.network is None:
            raise FopError(errno.ENOTCONN, f"{self.name}: this graph has no network")
        self.link = ClientLink(self)
        try:
            await self.link.first_outcome()
        except BaseException:
            self.link.stop()  # a graph that does not come up stops only what has started
            raise

    async def stop(self) -> None:
        """Hang up; fops that wait fail with ENOTCONN."""
        self.link.stop()

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Tell the parents of the link's state when they come up."""
        if event is Event.PARENT_UP:
            if self.link.up:
                self.tell_parents(Event.CHILD_UP)
            else:
                self.tell_parents(Event.CHILD_DOWN, self.link.failure)
        elif not event.goes_down:
            self.tell_parents(event, data)

    # -- fops -------------------------------------------------------------------------------------------------------

    def number(self, fd: Fd) -> int:
        """Return the number by which the brick knows an fd (-2 for an anonymous one).

        Raises FopError EBADFD for an fd that is not open on this brick (any more).
        """
        if fd.anonymous:
            return ANONYMOUS_FD
        remote = self.remote_fd.get(fd)
        if remote is None or remote.session != self.link.session:
            why = f": {remote.why}" if remote is not None and remote.why else ""
            raise FopError(errno.EBADFD, f"{self.name}: the fd is not open on {self.link.where}{why}")
        return remote.number

    def send(self, req: Fop) -> Waiter[tuple[Reply, int | None]]:
        """Send a fop and return the waiter of its reply and, for what opens, the fd's number."""
        link = self.link
        if link.spoken.adapt is not None:
            req = link.spoken.adapt(req)
        codec = link.spoken.by_class.get(type(req))
        if codec is None:
            version = link.spoken.program.version
            raise FopError(errno.EOPNOTSUPP, f"{req.name} does not exist in fop program {version} of {link.where}")
        if not link.up:
            raise Unanswered(errno.ENOTCONN, f"{req.name} on {link.where}: {link.why}")
        try:
            body, payload = codec.encode_call(req, self.number)
        except (struct.error, XdrError) as error:
            raise FopError(errno.EINVAL, f"{req.name} on {link.where}: {error}") from None
        waiter: Waiter[tuple[Reply, int | None]] = Waiter()
        decode = codec.decode_reply
        memo = self.memo
        incredible = INCREDIBLE.get(type(req))

        def reply_to(view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
            if view is None:
                if isinstance(error, RpcError) and error.errno:
                    waiter.fail(FopError(error.errno, f"{req.name} on {link.where}: {error.strerror}"))
                    return
                why = f"{req.name} on {link.where} was not answered: {text_of(error)}"
                waiter.fail(Unanswered(errno.ENOTCONN, why))
                return
            try:
                answer = decode(view, pos, end, memo)
                if incredible is not None and incredible(req, answer[0]):
                    raise XdrError("more than was asked for")
                waiter.set(answer)
            except FopError as failure:
                waiter.fail(failure)
            except Exception as fault:
                waiter.fail(FopError(errno.EIO, f"{req.name} on {link.where}: unreadable reply ({fault})"))
                link.connection.broken(f"unreadable reply to {req.name}: {fault}")

        self.sent_fops += 1
        if req.effects & LOCKS:
            link.patient.add(reply_to)
        link.call_fop(codec.cls.procnum, req, body, payload, reply_to)
        return waiter

    @handles(ALL)
    async def remote(self, req: Fop) -> Reply:
        """Carry out any fop on the brick."""
        waiter = self.send(req)
        try:
            if req.deadline is None:
                return (await waiter)[0]
            return (await self.link.bounded(waiter, req))[0]
        except FopCancelled as stop:
            stop.at = f"{req.name} on {self.link.where}"
            raise

    async def _take(self, req: Any, taken: Callable[[Any, int], None], undo: Callable[[], Sequence[Fop]]) -> Reply:
        """Carry out a fop that takes something on the brick; when its caller has gone before it can have it, undo it.

        Args:
            taken: called with the reply and the fd's number once the brick has answered.
            undo: makes the fops that give it back.
        """
        state = _Taking()
        inner = spawn(self._taken(req, taken, undo, state))
        try:
            return await (inner if req.deadline is None else self.link.bounded(inner, req))
        except BaseException as stop:
            if isinstance(stop, FopCancelled):
                stop.at = f"{req.name} on {self.link.where}"
            state.abandoned = True
            if state.taken:  # the reply came in the very moment
                spawn(self._undo(undo()))
            raise

    async def _taken(
        self, req: Any, taken: Callable[[Any, int], None], undo: Callable[[], Sequence[Fop]], state: _Taking
    ) -> Reply:
        reply, number = await self.send(req)
        taken(reply, number or 0)
        state.taken = True
        if state.abandoned:
            await self._undo(undo())
        return reply

    async def _undo(self, gone: Sequence[Fop]) -> None:
        for req in gone:
            await self.table[type(req)](req)

    async def _open(self, req: Any, loc: Loc, flags: int) -> Reply:
        fd: Fd = req.fd
        session = self.link.session

        def taken(reply: Any, number: int) -> None:
            at = loc
            if type(req) is fops.Create:
                fd.gfid = reply.stat.gfid
                at = Loc(gfid=fd.gfid, path=loc.path)
            self.remote_fd.set(fd, RemoteFd(number, session, at, flags))
            self.link.fds.add(fd)

        return await self._take(
            req, taken, lambda: [fops.Releasedir(fd) if fd.directory else fops.Release(fd, caller=req.caller)]
        )

    async def open(self, req: fops.Open) -> Reply:
        """Open a file on the brick."""
        return await self._open(req, req.loc, req.flags)

    async def opendir(self, req: fops.Opendir) -> Reply:
        """Open a directory on the brick."""
        return await self._open(req, req.loc, 0)

    async def create(self, req: fops.Create) -> Reply:
        """Make and open a file on the brick."""
        return await self._open(req, req.loc, req.flags)

    async def _release(self, req: Any) -> Reply:
        remote = self.remote_fd.get(req.fd)
        if remote is None:
            return fops.Done()
        self.link.fds.discard(req.fd)
        self.book.drop(req.fd.gfid, self.book.through(req.fd))
        try:
            # Nobody waits for the answer: it could change nothing, and a brick that has stopped would hold up the end.
            if self.link.up and remote.session == self.link.session:
                self.send(req)
        finally:
            self.remote_fd.pop(req.fd)
        return fops.Done()

    async def release(self, req: fops.Release) -> Reply:
        """Give an fd back."""
        return await self._release(req)

    async def releasedir(self, req: fops.Releasedir) -> Reply:
        """Give a directory fd back."""
        return await self._release(req)

    async def flush(self, req: fops.Flush) -> Reply:
        """Flush a file on the brick, which drops the posix locks of the lk_owner."""
        self.book.drop(req.fd.gfid, self.book.of_owner(req.fd.gfid, req.caller.lk_owner))
        return await self.remote(req)

    # A lock that is granted to a caller who has gone would be held until this client goes.

    async def lk(self, req: fops.Lk) -> Reply:
        """Take, test or give back a posix lock on the brick."""
        if req.cmd == F_GETLK:
            return await self.remote(req)
        try:
            span(req.flock.start, req.flock.len)
        except ValueError as error:
            raise FopError(errno.EINVAL, f"lk on {self.link.where}: {error}") from None
        if req.type == F_UNLCK:
            return await self._give_back(req, self.book.set)
        before: list[Fop] = []

        def taken(*_: object) -> None:
            before.extend(self.book.as_it_is(req))
            self.book.set(req)

        return await self._take(req, taken, lambda: before)

    async def _give_back(self, req: Any, gave: Callable[[Any], None]) -> Reply:
        """Give a lock back. Only where the brick refuses to is it still held: it goes with a connection that breaks."""
        try:
            reply = await self.remote(req)
        except FopError as error:
            if isinstance(error, Unanswered):
                gave(req)
            raise
        except BaseException:
            gave(req)
            raise
        gave(req)
        return reply

    async def _internal(self, req: Any, gives_back: bool, **unlock: int) -> Reply:
        if gives_back:
            if self.book.was_lost(req):
                raise FopError(errno.ENOLCK, f"{req.name}: the lock was lost with the connection to {self.link.where}")
            return await self._give_back(req, self.book.gave)
        session = self.link.session

        def taken(*_: object) -> None:
            self.book.took(req, lost=not self.link.up or self.link.session != session)

        return await self._take(req, taken, lambda: [msgspec.structs.replace(req, deadline=None, **unlock)])

    async def inodelk(self, req: fops.Inodelk) -> Reply:
        """Take or give back an inodelk on the brick."""
        return await self._internal(req, req.type == F_UNLCK, cmd=F_SETLK, type=F_UNLCK)

    async def finodelk(self, req: fops.Finodelk) -> Reply:
        """Take or give back an inodelk of an open file on the brick."""
        return await self._internal(req, req.type == F_UNLCK, cmd=F_SETLK, type=F_UNLCK)

    async def entrylk(self, req: fops.Entrylk) -> Reply:
        """Take or give back an entrylk on the brick."""
        return await self._internal(req, req.cmd == ENTRYLK_UNLOCK, cmd=ENTRYLK_UNLOCK)

    async def fentrylk(self, req: fops.Fentrylk) -> Reply:
        """Take or give back an entrylk of an open directory on the brick."""
        return await self._internal(req, req.cmd == ENTRYLK_UNLOCK, cmd=ENTRYLK_UNLOCK)

    async def setactivelk(self, req: fops.Setactivelk) -> Reply:
        """Refuse: a stock brick dies of it."""
        raise FopError(errno.EOPNOTSUPP, "SETACTIVELK is not sent over the wire")

    async def icreate(self, req: fops.Icreate) -> Reply:
        """Refuse: a stock brick dies of what belongs to it."""
        raise FopError(errno.EOPNOTSUPP, "ICREATE is not sent over the wire")

    async def namelink(self, req: fops.Namelink) -> Reply:
        """Refuse: a stock brick dies of it."""
        raise FopError(errno.EOPNOTSUPP, "NAMELINK is not sent over the wire")

    # -- what people see --------------------------------------------------------------------------------------------

    def statedump(self) -> dict[str, Any]:
        """The link's state and wire counters."""
        return {"fops_sent": self.sent_fops, **self.link.statedump()}
