"""protocol/client: the graph's end of the wire to one brick, stock's or ours.

Each fop becomes a call of program 1298437 version 400; its reply is matched by xid. The connection (portmap, DUMP,
SETVOLUME, pings, reconnection with back-off) is `client_link.py`'s work. A fop that was sent and not answered when the
connection breaks fails with ENOTCONN: it is never sent twice.
"""

from __future__ import annotations

import errno
import logging
from typing import Any, ClassVar

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop, Reply
from glustx.inode import ANONYMOUS_FD, Fd, PerFd
from glustx.options import OptionSet, Seconds, option
from glustx.rpc.codec_special import FOP400_BY_CLASS
from glustx.rpc.xdr import XdrError
from glustx.runtime import Waiter, spawn
from glustx.values import Loc
from glustx.xdata import XdataMemo
from glustx.xlator import ALL, Event, Xlator, handles
from glustx.xlators.protocol.client_link import ClientLink

log = logging.getLogger("glustx.protocol.client")


class RemoteFd:
    """What the brick knows an fd by: its number, valid for one `session` of the link."""

    __slots__ = ("flags", "loc", "number", "session")

    def __init__(self, number: int, session: int, loc: Loc, flags: int) -> None:
        self.number = number
        self.session = session
        self.loc = loc
        self.flags = flags


class Client(Xlator):
    """The client end of the wire to one brick."""

    subvolume_count: ClassVar[tuple[int, int | None]] = (0, 0)

    class Options(OptionSet):
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
            42, "Seconds without an answer after which the brick is taken for gone.", low=1, live=True
        )
        connect_timeout: Seconds = option(10, "Seconds for each step of connecting.", low=0.1, live=True)
        frame_timeout: Seconds = option(1800, "Seconds after which a fop that is not answered fails.", low=1, live=True)
        transport_type: str = option("tcp", "Transport: tcp, socket or unix.", choices=("tcp", "socket", "unix"))
        volume_id: str = option("", "Volume id that the brick must have, when known.")
        accepted = (
            "transport.*",
            "transport-*",
            "strict-locks",
            "send-gids",
            "filter-O_DIRECT",
            "event-threads",
            "lk-heal",
            "tcp-window-size",
            "client.*",
            "testing.*",
            "subdir-mount",
        )

    remote_fd: PerFd[RemoteFd]

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.remote_fd = PerFd()
        self.memo = XdataMemo()
        self.link: ClientLink
        self.sent_fops = 0

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect and wait for the first outcome; a brick that is away does not keep the graph down."""
        if self.graph.surroundings.network is None:
            raise FopError(errno.ENOTCONN, f"{self.name}: this graph has no network")
        self.link = ClientLink(self)
        await self.link.first_outcome()

    async def stop(self) -> None:
        """Hang up; fops that wait fail with ENOTCONN."""
        self.link.stop()

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Tell the parents of the link's state when they come up."""
        if event is Event.PARENT_UP:
            if self.link.up:
                self.tell_parents(Event.CHILD_UP)
            else:
                self.tell_parents(Event.CHILD_DOWN, self.link.why)
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
            raise FopError(errno.EBADFD, f"{self.name}: the fd is not open on {self.link.where}")
        return remote.number

    def send(self, req: Fop) -> Waiter[tuple[Reply, int | None]]:
        """Send a fop and return the waiter of its reply and, for what opens, the fd's number."""
        codec = FOP400_BY_CLASS.get(type(req))
        if codec is None:
            raise FopError(errno.EOPNOTSUPP, f"{req.name} does not exist on the wire")
        link = self.link
        if not link.up:
            raise FopError(errno.ENOTCONN, f"{req.name} on {link.where}: {link.why}")
        body, payload = codec.encode_call(req, self.number)
        waiter: Waiter[tuple[Reply, int | None]] = Waiter()
        decode = codec.decode_reply
        memo = self.memo

        def reply_to(view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
            if view is None:
                waiter.fail(FopError(errno.ENOTCONN, f"{req.name} on {link.where} was not answered: {error}"))
                return
            try:
                waiter.set(decode(view, pos, end, memo))
            except FopError as failure:
                waiter.fail(failure)
            except XdrError as fault:
                waiter.fail(FopError(errno.EIO, f"{req.name} on {link.where}: unreadable reply ({fault})"))
                link.connection.broken(f"unreadable reply to {req.name}: {fault}")

        self.sent_fops += 1
        link.call_fop(codec.cls.procnum, req, body, payload, reply_to)
        return waiter

    @handles(ALL)
    async def remote(self, req: Fop) -> Reply:
        """Carry out any fop on the brick."""
        waiter = self.send(req)
        if req.deadline is None:
            return (await waiter)[0]
        return (await self.link.bounded(waiter, req))[0]

    async def _open(self, req: Any, loc: Loc, flags: int) -> Reply:
        """Open; when the caller has gone before the reply is there, the reply's fd is released."""
        abandoned: list[BaseException] = []
        inner = spawn(self._opened(req, loc, flags, abandoned))
        try:
            return await (inner if req.deadline is None else self.link.bounded(inner, req))
        except BaseException as error:
            abandoned.append(error)
            raise

    async def _opened(self, req: Any, loc: Loc, flags: int, abandoned: list[BaseException]) -> Reply:
        session = self.link.session
        reply, number = await self.send(req)
        if type(req) is fops.Create:
            req.fd.gfid = reply.stat.gfid  # type: ignore[attr-defined]
            loc = Loc(gfid=req.fd.gfid, path=loc.path)
        self.remote_fd.set(req.fd, RemoteFd(number or 0, session, loc, flags))
        if abandoned:
            await self._release(fops.Releasedir(req.fd) if req.fd.directory else fops.Release(req.fd))
        else:
            self.link.fds.add(req.fd)
        return reply

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
        try:
            if not self.link.up or remote.session != self.link.session:
                return fops.Done()  # the brick has given it back by itself
            return (await self.send(req))[0]
        finally:
            self.remote_fd.pop(req.fd)

    async def release(self, req: fops.Release) -> Reply:
        """Give an fd back."""
        return await self._release(req)

    async def releasedir(self, req: fops.Releasedir) -> Reply:
        """Give a directory fd back."""
        return await self._release(req)

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
