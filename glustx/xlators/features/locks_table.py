"""Every lock of a brick: by inode, and by client so that all of a client's go when it goes. No fop is known here.

Nothing here waits. Whoever is granted a lock hears of it through its waiter, and goes on when the step that granted it
has ended; so each method leaves a consistent table.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from glustx.errors import FopError
from glustx.inode import Inode, InodeTable
from glustx.lock_ranges import Owner, PosixLock, conflict, put
from glustx.runtime import Waiter
from glustx.values import F_UNLCK
from glustx.xlators.features.locks_queue import EntryHold, Hold, InodeHold, LockQueue

# A client that waits for locks with all that it may have under way could not give its own ones back.
WAITING_LIMIT = 32

Domain = tuple[type[Hold], bytes]
"""A queue's name within its inode: what kind of lock it has, and the lock domain."""


class PosixWait:
    """A posix lock somebody waits for; `before` is what its owner held when it was granted."""

    __slots__ = ("before", "granted", "lock", "waiter")

    def __init__(self, lock: PosixLock) -> None:
        self.lock = lock
        self.granted = False
        self.waiter: Waiter[None] = Waiter()
        self.before: list[PosixLock] = []


class InodeLocks:
    """All locks of one inode."""

    __slots__ = ("fops_waiting", "inode", "posix", "posix_waiting", "queues")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.posix: list[PosixLock] = []
        self.posix_waiting: list[PosixWait] = []
        self.fops_waiting: list[Waiter[None]] = []
        self.queues: dict[Domain, LockQueue] = {}

    def __bool__(self) -> bool:
        return bool(self.posix or self.posix_waiting or self.fops_waiting or self.queues)

    def held(self, kind: type[Hold], domain: bytes | None = None) -> int:
        """Count the held inodelks or entrylks, in one domain or in all."""
        return sum(
            len(queue.held)
            for (its_kind, name), queue in self.queues.items()
            if its_kind is kind and (domain is None or name == domain)
        )

    def holds_name(self, name: bytes) -> bool:
        """Tell whether an entrylk is held on `name` of this directory, or on all of it."""
        probe = EntryHold(("", b""), True, 0, name)
        return any(
            hold.overlaps(probe) for (kind, _), queue in self.queues.items() if kind is EntryHold for hold in queue.held
        )


class _Client:
    """How many locks, held and waited for, a client has, in all and by inode."""

    __slots__ = ("by_inode", "total")

    def __init__(self) -> None:
        self.total = 0
        self.by_inode: dict[bytes, int] = {}


class LockTable:
    """The locks of one translator instance.

    Args:
        inodes: the graph's inode table; an inode with locks is held there.
        contended: called with (gfid, domain, held locks that somebody waits for).
    """

    def __init__(self, inodes: InodeTable, contended: Callable[[bytes, bytes, list[Hold]], None]) -> None:
        self._inodes = inodes
        self._contended = contended
        self._states: dict[bytes, InodeLocks] = {}
        self._clients: dict[str, _Client] = {}
        self._fops_waiting: dict[str, int] = {}
        self.client_limit = 0
        self.inode_limit = 0

    def __iter__(self) -> Iterator[tuple[bytes, InodeLocks]]:
        yield from self._states.items()

    def __len__(self) -> int:
        return len(self._states)

    def find(self, gfid: bytes) -> InodeLocks | None:
        """Return the locks of an inode when it has any."""
        return self._states.get(gfid)

    def clients(self) -> dict[str, int]:
        """Return how many locks each client holds or waits for."""
        return {name: client.total for name, client in self._clients.items()}

    # -- domains ---------------------------------------------------------------------------------------------------

    def acquire(self, gfid: bytes, domain: bytes, hold: Hold, *, wait: bool) -> Waiter[None] | None:
        """Take a lock in a domain; None when it is ours at once, else the waiter of that moment.

        Raises FopError: EAGAIN when it would wait and `wait` is False, ENOLCK when the client has its fill.
        """
        client = hold.owner[0]
        self._check_limit(client, gfid)
        state = self._states.get(gfid)
        queue = state.queues.get((type(hold), domain)) if state else None
        must_wait = queue is not None and queue.must_wait(hold)
        if must_wait and queue is not None:
            self._contended(gfid, domain, queue.blockers(hold))
            if not wait:
                raise FopError(errno.EAGAIN, "somebody else holds or awaits a lock that conflicts")
        if queue is None:
            state = self._state(gfid)
            queue = state.queues[(type(hold), domain)] = LockQueue()
        self._count(client, gfid, 1)
        if not must_wait:
            queue.held.append(hold)
            return None
        queue.waiting.append(hold)
        hold.waiter = Waiter()
        return hold.waiter

    def give_back(self, gfid: bytes, domain: bytes, given: Hold) -> bool:
        """Give back the lock that `given` describes; False when its owner holds no such lock."""
        state = self._states.get(gfid)
        queue = state.queues.get((type(given), domain)) if state else None
        if queue is None or queue.release(given) is None:
            return False
        self._count(given.owner[0], gfid, -1)
        self._advance(gfid, domain, type(given))
        return True

    def withdraw(self, gfid: bytes, domain: bytes, hold: Hold) -> None:
        """Take a lock out whose taker was called off, whether it still waits or was granted a moment ago."""
        state = self._states.get(gfid)
        queue = state.queues.get((type(hold), domain)) if state else None
        if queue is not None and queue.remove(hold):
            self._count(hold.owner[0], gfid, -1)
            self._advance(gfid, domain, type(hold))

    def _advance(self, gfid: bytes, domain: bytes, kind: type[Hold]) -> None:
        state = self._states[gfid]
        queue = state.queues[(kind, domain)]
        granted = queue.advance()
        for hold in granted:
            if hold.waiter is not None:
                hold.waiter.set(None)
        contended = queue.contended(granted)
        if contended:
            self._contended(gfid, domain, contended)
        if not queue:
            del state.queues[(kind, domain)]
            self._settle(gfid, state)

    # -- posix locks -----------------------------------------------------------------------------------------------

    def set_posix(self, gfid: bytes, lock: PosixLock, *, wait: bool) -> PosixWait | None:
        """Set a range to `lock.type` for its owner; None when that is done, else what to wait for.

        Raises FopError: EAGAIN when it would wait and `wait` is False, ENOLCK when the client has its fill.
        """
        state = self._states.get(gfid)
        if lock.type == F_UNLCK:
            if state is not None:
                self._put(gfid, state, lock)
                self._advance_posix(gfid, state)
            return None
        self._check_limit(lock.owner[0], gfid)
        if state is not None:
            other = conflict(state.posix, lock)
            if other is not None:
                if not wait:
                    raise FopError(errno.EAGAIN, f"{other.owner[0] or 'this process'} holds a lock that conflicts")
                waiting = PosixWait(lock)
                state.posix_waiting.append(waiting)
                self._count(lock.owner[0], gfid, 1)
                return waiting
        else:
            state = self._state(gfid)
        self._put(gfid, state, lock)
        # A lock that was made weaker may let others in.
        self._advance_posix(gfid, state)
        return None

    def withdraw_posix(self, gfid: bytes, waiting: PosixWait) -> None:
        """Undo a posix lock whose taker was called off: forget it, or put back what its owner held before."""
        state = self._states.get(gfid)
        if state is None:
            return
        if waiting in state.posix_waiting:
            state.posix_waiting.remove(waiting)
            self._count(waiting.lock.owner[0], gfid, -1)
            self._settle(gfid, state)
        elif waiting.granted:
            lock = waiting.lock
            self._put(gfid, state, PosixLock(lock.owner, F_UNLCK, lock.first, lock.last))
            for old in waiting.before:
                if conflict(state.posix, old) is None:
                    self._put(gfid, state, old)
            self._advance_posix(gfid, state)

    def drop_posix(self, gfid: bytes, gone: Callable[[PosixLock], bool]) -> None:
        """Drop the posix locks for which `gone` is true; those still waited for fail with EINTR."""
        state = self._states.get(gfid)
        if state is None:
            return
        for lock in state.posix:
            if gone(lock):
                self._count(lock.owner[0], gfid, -1)
        state.posix = [lock for lock in state.posix if not gone(lock)]
        self._fail_posix(gfid, state, gone, FopError(errno.EINTR, "the file was closed while waiting for a lock"))
        self._advance_posix(gfid, state)

    def _fail_posix(self, gfid: bytes, state: InodeLocks, gone: Callable[[PosixLock], bool], error: FopError) -> None:
        for waiting in [w for w in state.posix_waiting if gone(w.lock)]:
            state.posix_waiting.remove(waiting)
            self._count(waiting.lock.owner[0], gfid, -1)
            waiting.waiter.fail(error)

    def _put(self, gfid: bytes, state: InodeLocks, lock: PosixLock) -> None:
        before = len(state.posix)
        state.posix = put(state.posix, lock)
        self._count(lock.owner[0], gfid, len(state.posix) - before)

    def _advance_posix(self, gfid: bytes, state: InodeLocks) -> None:
        # fcntl(2): a lock waits only for locks that are held, never for others that wait. Among these, first come
        # first served.
        for waiting in list(state.posix_waiting):
            lock = waiting.lock
            if conflict(state.posix, lock) is None:
                state.posix_waiting.remove(waiting)
                waiting.before = [
                    old
                    for old in state.posix
                    if old.owner == lock.owner and old.first <= lock.last and old.last >= lock.first
                ]
                self._count(lock.owner[0], gfid, -1)
                self._put(gfid, state, lock)
                waiting.granted = True
                waiting.waiter.set(None)
        for waiter in state.fops_waiting:
            waiter.set(None)
        self._settle(gfid, state)

    # -- data fops, where locks are mandatory ----------------------------------------------------------------------

    def wait_for_change(self, gfid: bytes, client: str) -> Waiter[None]:
        """Return what is set when a posix lock of the inode may have gone; `waited` follows it. FopError EAGAIN when
        the client waits for too many."""
        count = self._fops_waiting.get(client, 0)
        if count >= WAITING_LIMIT:
            raise FopError(errno.EAGAIN, f"{count} fops of the client wait for locks")
        self._fops_waiting[client] = count + 1
        waiter: Waiter[None] = Waiter()
        self._states[gfid].fops_waiting.append(waiter)
        return waiter

    def waited(self, gfid: bytes, client: str, waiter: Waiter[None]) -> None:
        """A fop does not wait any more, whatever the reason."""
        state = self._states[gfid]
        state.fops_waiting.remove(waiter)
        self._fops_waiting[client] -= 1
        if not self._fops_waiting[client]:
            del self._fops_waiting[client]
        self._settle(gfid, state)

    def look_again(self) -> None:
        """Wake the fops that wait: what is forbidden has changed."""
        for _, state in self:
            for waiter in state.fops_waiting:
                waiter.set(None)

    # -- clients ---------------------------------------------------------------------------------------------------

    def client_gone(self, name: str) -> None:
        """Drop all locks of a client; what it waits for fails with ENOTCONN."""
        client = self._clients.get(name)
        if client is None:
            return
        error = FopError(errno.ENOTCONN, "the client is gone")
        for gfid in list(client.by_inode):
            state = self._states[gfid]
            for (kind, domain), queue in list(state.queues.items()):
                mine = [hold for hold in (*queue.held, *queue.waiting) if hold.owner[0] == name]
                for hold in mine:
                    queue.remove(hold)
                    self._count(name, gfid, -1)
                    if hold.waiter is not None:
                        hold.waiter.fail(error)
                if mine:
                    self._advance(gfid, domain, kind)
            self._fail_posix(gfid, state, lambda lock: lock.owner[0] == name, error)
            self.drop_posix(gfid, lambda lock: lock.owner[0] == name)

    def _check_limit(self, name: str, gfid: bytes) -> None:
        client = self._clients.get(name)
        if client is None:
            return
        who = f"client {name or 'in this process'}"
        if self.client_limit and client.total >= self.client_limit:
            raise FopError(errno.ENOLCK, f"{who} has {client.total} locks")
        if self.inode_limit and client.by_inode.get(gfid, 0) >= self.inode_limit:
            raise FopError(errno.ENOLCK, f"{who} has {self.inode_limit} locks on one inode")

    def _count(self, name: str, gfid: bytes, change: int) -> None:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client()
        client.total += change
        left = client.by_inode.get(gfid, 0) + change
        if left:
            client.by_inode[gfid] = left
        else:
            client.by_inode.pop(gfid, None)
            if not client.total:
                del self._clients[name]

    def _state(self, gfid: bytes) -> InodeLocks:
        state = self._states.get(gfid)
        if state is None:
            state = self._states[gfid] = InodeLocks(self._inodes.hold(gfid))
        return state

    def _settle(self, gfid: bytes, state: InodeLocks) -> None:
        if not state and self._states.get(gfid) is state:
            del self._states[gfid]
            self._inodes.drop(state.inode)


def owned_by(owner: Owner) -> Callable[[PosixLock], bool]:
    """Return the test for the locks of `owner`."""
    return lambda lock: lock.owner == owner


def set_through(fd: object) -> Callable[[PosixLock], bool]:
    """Return the test for the locks last set through `fd`."""
    return lambda lock: lock.fd is fd


def describe(state: InodeLocks) -> Iterator[tuple[str, str]]:
    """Yield the locks of an inode as (name, text) for a statedump, held and waiting, at most 100 of a kind."""
    for (kind, domain), queue in state.queues.items():
        name = "inodelk" if kind is InodeHold else "entrylk"
        yield f"lock-dump.domain.domain({name})", domain.decode("utf-8", "backslashreplace")
        for index, hold in enumerate((queue.held + queue.waiting)[:100]):
            what = f"start={hold.first}, last={hold.last}" if isinstance(hold, InodeHold) else ""
            if isinstance(hold, EntryHold):
                what = f"basename={hold.name.decode('utf-8', 'backslashreplace') or '(all)'}"
            shown = "BLOCKED" if index >= len(queue.held) else "ACTIVE"
            yield f"{name}.{name}[{index}]({shown})", _text(hold.exclusive, what, hold.pid, hold.owner)
    posix = [(lock, "ACTIVE") for lock in state.posix] + [(w.lock, "BLOCKED") for w in state.posix_waiting]
    for index, (lock, shown) in enumerate(posix[:100]):
        what = f"start={lock.first}, last={lock.last}"
        yield f"posixlk.posixlk[{index}]({shown})", _text(lock.type == 1, what, lock.pid, lock.owner)


def _text(exclusive: bool, what: str, pid: int, owner: Owner) -> str:
    kind = "WRITE" if exclusive else "READ"
    return f"type={kind}, {what}, pid={pid}, owner={owner[1].hex()}, client={owner[0]}"
