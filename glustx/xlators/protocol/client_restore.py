"""After a reconnection, before the link is up: open the fds of the last session again and take their posix locks again.

What cannot be had again is void: every later fop on such an fd fails with EBADFD and says why. A posix lock that was
free when the brick came back may have been somebody else's in the meantime, unless `strict-locks` is on: then fds that
held locks are void at once.

The caller may unlock, flush or release while this is under way (it is told ENOTCONN, or nothing for a release). So what
the brick has given is compared with what is still wanted until the two agree; no await lies between the last comparison
and the moment in which the link is up.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.lock_ranges import PosixLock
from glustx.rpc.connection import RpcConnection
from glustx.runtime import Waiter, sleep, wait_for
from glustx.upcall import LocksLost
from glustx.values import F_SETLK, F_UNLCK, Caller, Flock, gfid_text
from glustx.xdata import AS_MANDATORY, EMPTY
from glustx.xlator import Event

if TYPE_CHECKING:
    from glustx.xlators.protocol.client import RemoteFd
    from glustx.xlators.protocol.client_link import ClientLink

log = logging.getLogger("glustx.protocol.client")

_ONCE = 0o1300  # O_CREAT, O_EXCL and O_TRUNC have done their work
# A brick may still be busy burying our last connection, which holds the very locks that we ask for.
_PAUSES = (0.05, 0.1, 0.2, 0.4)


class Restore:
    """One attempt to get back what an earlier connection held.

    Args:
        link: not up yet, its session counted up.
        connection: through which SETVOLUME has succeeded.
    """

    def __init__(self, link: ClientLink, connection: RpcConnection) -> None:
        self.link = link
        self.client = link.client
        self.book = link.client.book
        self.connection = connection
        self._opened: dict[Fd, tuple[RemoteFd, int]] = {}
        self._taken: set[tuple[bytes, PosixLock]] = set()

    async def run(self) -> None:
        """Reopen and lock again. Raises OSError or TimedOut when the connection does not last."""
        await self._reopen()
        pauses = list(_PAUSES)
        while True:
            held = list(self.book)
            stale = self._taken.difference(held)
            wanted = [lock for lock in held if lock not in self._taken]
            if not stale and not wanted:
                break
            if stale:
                for gfid, lock in stale:
                    self._taken.discard((gfid, lock))
                    await self._unlock(lock)
                    # It may have been cut into pieces that are still wanted: ask for all that its owner has left.
                    self._taken = {(g, x) for g, x in self._taken if g != gfid or x.owner != lock.owner}
                continue
            busy = await self._lock(wanted)
            if busy and pauses:
                await sleep(self.link.reactor, pauses.pop(0))
            elif busy:
                for gfid, lock in busy:
                    await self._lost(gfid, lock, "another client has it")
        for fd, (remote, number) in self._opened.items():
            if self.client.remote_fd.get(fd) is not remote:
                self._give_back(fd, number)

    # -- fds --------------------------------------------------------------------------------------------------------

    async def _reopen(self) -> None:
        strict = self.link.options.strict_locks
        asked = []
        for fd in list(self.link.fds):
            remote = self.client.remote_fd.get(fd)
            if remote is None:
                continue
            held = self.book.through(fd)
            if held and strict:
                self._void(fd, remote, "its posix locks went with the connection (strict-locks is on)")
                self._report(fd.gfid, held)
                continue
            req: Any
            if fd.directory:
                req = fops.Opendir(remote.loc, fd)
            else:
                req = fops.Open(remote.loc, fd, remote.flags & ~_ONCE)
            asked.append((fd, remote, self._ask(req)))
        for fd, remote, waiter in asked:
            try:
                _, number = await self._answer(waiter)
            except FopError as error:
                held = self.book.through(fd)
                self._void(fd, remote, f"it could not be reopened: {error}")
                if held:
                    self._report(fd.gfid, held)
                continue
            self._opened[fd] = (remote, number or 0)
            remote.number, remote.session = number or 0, self.link.session

    def _void(self, fd: Fd, remote: RemoteFd, why: str) -> None:
        log.warning("%s: the fd of %s on %s is void: %s", self.client.name, gfid_text(fd.gfid), self.link.where, why)
        remote.session, remote.why = -1, why
        self.link.fds.discard(fd)
        self.book.drop(fd.gfid, self.book.through(fd))

    def _give_back(self, fd: Fd, number: int) -> None:
        self._ask(fops.Releasedir(fd) if fd.directory else fops.Release(fd), lambda _: number)

    # -- locks ------------------------------------------------------------------------------------------------------

    async def _lock(self, wanted: list[tuple[bytes, PosixLock]]) -> list[tuple[bytes, PosixLock]]:
        """Take locks again; return those that are in the way of another client's."""
        asked = []
        for gfid, lock in wanted:
            if lock.fd in self._opened and self.client.remote_fd.get(lock.fd) is self._opened[lock.fd][0]:
                asked.append((gfid, lock, self._ask(_lk(lock, lock.type))))
            else:
                self.book.drop(gfid, [lock])  # its fd is void, or was released
        busy = []
        for gfid, lock, waiter in asked:
            try:
                await self._answer(waiter)
            except FopError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    busy.append((gfid, lock))
                else:
                    await self._lost(gfid, lock, str(error))
            else:
                self._taken.add((gfid, lock))
        return busy

    async def _unlock(self, lock: PosixLock) -> None:
        if lock.fd in self._opened:
            number = self._opened[lock.fd][1]
            try:
                await self._answer(self._ask(_lk(lock, F_UNLCK), lambda _: number))
            except FopError as error:
                log.info("%s: a lock could not be given back: %s", self.client.name, error)

    async def _lost(self, gfid: bytes, lock: PosixLock, why: str) -> None:
        """One lock is lost: void the fds through which its owner holds locks of the file, and give the others back."""
        held = self.book.of_owner(gfid, lock.owner[1])
        if lock not in held:
            return
        self.book.drop(gfid, held)
        for other in held:
            if (gfid, other) in self._taken:
                self._taken.discard((gfid, other))
                await self._unlock(other)
        for fd in {other.fd for other in held}:
            remote = self.client.remote_fd.get(fd)
            if remote is not None and fd in self._opened:
                self._void(fd, remote, f"its posix lock on {_range(lock)} was lost with the connection: {why}")
                self._give_back(fd, self._opened.pop(fd)[1])
        self._report(gfid, held)

    def _report(self, gfid: bytes, held: list[PosixLock]) -> None:
        told = LocksLost(self.link.where, tuple((gfid, lock.flock()) for lock in held))
        self.client.tell_parents(Event.UPCALL, told)

    # -- calls on a link that is not up -----------------------------------------------------------------------------

    def _ask(self, req: Fop, number: Callable[[Fd], int] | None = None) -> Waiter[tuple[Any, int | None]]:
        spoken = self.link.spoken
        codec = spoken.by_class[type(req)]
        body, _ = codec.encode_call(req, number or self.client.number)
        decode, memo = codec.decode_reply, self.client.memo
        waiter: Waiter[tuple[Any, int | None]] = Waiter()

        def reply_to(view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
            if view is None:
                waiter.fail(error or ConnectionResetError(errno.ECONNRESET, "no reply"))
                return
            try:
                waiter.set(decode(view, pos, end, memo))
            except Exception as failure:
                waiter.fail(failure)

        cred = spoken.encode_cred(req.caller)
        program = spoken.program
        self.connection.call(program.number, program.version, req.procnum, cred, body, reply_to)
        return waiter

    async def _answer(self, waiter: Waiter[tuple[Any, int | None]]) -> tuple[Any, int | None]:
        return await wait_for(self.link.reactor, waiter, self.link.options.connect_timeout)


def _lk(lock: PosixLock, kind: int) -> fops.Lk:
    held = lock.flock()
    flock = Flock(type=kind, start=held.start, len=held.len, pid=held.pid, lk_owner=held.lk_owner)
    caller = Caller(pid=lock.pid, lk_owner=lock.owner[1])
    return fops.Lk(lock.fd, F_SETLK, kind, flock, caller=caller, xdata=AS_MANDATORY if lock.mandatory else EMPTY)


def _range(lock: PosixLock) -> str:
    held = lock.flock()
    return f"bytes {lock.first} to {lock.last}" if held.len else f"bytes {lock.first} to the end"
