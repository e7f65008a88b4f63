"""Every lease of a brick, what is open and what is being changed beside them, and who waits. No fop is known here.

A lease belongs to (client, lease id). The methods never wait, so each leaves a consistent table; whoever waits is woken
when something was given back and looks again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from glustx.errors import FopError
from glustx.inode import O_ACCMODE, Fd, Inode, InodeTable
from glustx.runtime import Reactor, TimerHandle, Waiter
from glustx.values import LEASE_RD, LEASE_RW, gfid_text

Key = tuple[str, bytes]
"""Whose lease it is: the client's session and the lease id, which is empty where a fop brings none."""

# A client that waits for leases with all that it may have under way could not give its own ones back.
WAITING_LIMIT = 32


class Held:
    """What one (client, lease id) holds on one inode: how many leases of each type, and whether they are recalled."""

    __slots__ = ("counts", "gfid", "key", "timer")

    def __init__(self, key: Key, gfid: bytes) -> None:
        self.key = key
        self.gfid = gfid
        self.counts = {LEASE_RD: 0, LEASE_RW: 0}
        self.timer: TimerHandle | None = None

    @property
    def type(self) -> int:
        """The types held, as bits."""
        return sum(type_ for type_, count in self.counts.items() if count)

    @property
    def recalled(self) -> bool:
        """Whether it has been asked for."""
        return self.timer is not None


class InodeLeases:
    """One inode: its leases, its open fds with the lease ids that they were opened under, the changes under way."""

    __slots__ = ("changes", "fds", "held", "inode", "waiting")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.held: dict[Key, Held] = {}
        self.fds: dict[Fd, bytes] = {}
        self.changes: list[Key] = []
        self.waiting: list[tuple[str, Waiter[None]]] = []

    def __bool__(self) -> bool:
        return bool(self.held or self.fds or self.changes or self.waiting)


class LeaseTable:
    """The leases of one translator instance.

    Args:
        inodes: the graph's inode table; an inode of which something is known here is held there.
        recall: called with each lease that must be given back.
        reactor: returns the clock.

    Attributes:
        active: how many (client, lease id, inode) there are.
        timeout: seconds after which a recalled lease is taken away.
        client_limit: how many of them one client may have; 0 means no limit.
    """

    def __init__(self, inodes: InodeTable, recall: Callable[[Held], None], reactor: Callable[[], Reactor]) -> None:
        self._inodes = inodes
        self._tell = recall
        self._reactor = reactor
        self._states: dict[bytes, InodeLeases] = {}
        self._clients: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        self.active = 0
        self.timeout = 60.0
        self.client_limit = 0

    def __iter__(self) -> Iterator[tuple[bytes, InodeLeases]]:
        return iter(list(self._states.items()))

    # -- leases ----------------------------------------------------------------------------------------------------

    def type(self, gfid: bytes) -> int:
        """Return the types of all leases on an inode, as bits."""
        state = self._states.get(gfid)
        union = 0
        for held in state.held.values() if state else ():
            union |= held.type
        return union

    def grant(self, gfid: bytes, key: Key, type_: int) -> None:
        """Grant a lease.

        Raises FopError: EPERM, as stock, when somebody else's leases, fds or changes are in the way, or somebody waits
        for a lease to be given back; the leases that are in the way are recalled. ENOLCK when the client has its fill.
        """
        state = self._states.get(gfid)
        write = type_ == LEASE_RW
        if state is not None:
            others = self.conflicts(gfid, key, write=write)
            self.recall(others)
            if others or state.waiting or any(held.recalled for held in state.held.values()):
                raise FopError(errno.EPERM, f"a lease on {gfid_text(gfid)} has to be given back first")
            if any(_others(fd, id_, key) and (write or fd.flags & O_ACCMODE) for fd, id_ in state.fds.items()):
                raise FopError(errno.EPERM, f"{gfid_text(gfid)} is open elsewhere")
            if any(change != key for change in state.changes):
                raise FopError(errno.EPERM, f"{gfid_text(gfid)} is being changed")
        held = state.held.get(key) if state is not None else None
        if held is None:
            count = self._clients.get(key[0], 0)
            if self.client_limit and count >= self.client_limit:
                raise FopError(errno.ENOLCK, f"client {key[0] or 'in this process'} has {count} leases")
            held = self._state(gfid).held[key] = Held(key, gfid)
            self._clients[key[0]] = count + 1
            self.active += 1
        held.counts[type_] += 1

    def give_back(self, gfid: bytes, key: Key, type_: int) -> None:
        """Give one lease back; what is not held has been taken away meanwhile, which is no error.

        Raises FopError: EINVAL for a type that is not among those held.
        """
        state = self._states.get(gfid)
        held = state.held.get(key) if state else None
        if state is None or held is None:
            return
        if not held.counts.get(type_):
            raise FopError(errno.EINVAL, f"no lease of type {type_} is held on {gfid_text(gfid)} under this id")
        held.counts[type_] -= 1
        if not held.type:
            self._drop(state, held)
        self._wake(state)
        self._settle(gfid, state)

    def conflicts(self, gfid: bytes, key: Key, *, write: bool) -> list[Held]:
        """Return the leases of others that forbid to change an inode, or (without `write`) to read it."""
        state = self._states.get(gfid)
        if state is None or not state.held:
            return []
        return [held for held in state.held.values() if held.key != key and (write or held.counts[LEASE_RW])]

    def recall(self, leases: list[Held]) -> None:
        """Ask for leases; those that have been asked for before are on their way."""
        for held in leases:
            if not held.recalled:
                held.timer = self._reactor().call_later(self.timeout, lambda held=held: self._expire(held))  # type: ignore[misc]
                self._tell(held)

    def _expire(self, held: Held) -> None:
        state = self._states[held.gfid]
        self._drop(state, held)
        self._wake(state)
        self._settle(held.gfid, state)

    def drop_client(self, name: str | None) -> None:
        """Drop all leases of a client that is gone, or (None) of everybody."""
        if not self.active or (name is not None and name not in self._clients):
            return
        for gfid, state in self:
            gone = [held for held in state.held.values() if name is None or held.key[0] == name]
            for held in gone:
                self._drop(state, held)
            if gone:
                self._wake(state)
                self._settle(gfid, state)

    def _drop(self, state: InodeLeases, held: Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
        del state.held[held.key]
        self.active -= 1
        left = self._clients[held.key[0]] - 1
        if left:
            self._clients[held.key[0]] = left
        else:
            del self._clients[held.key[0]]

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, gfid: bytes, client: str) -> Waiter[None]:
        """Return what is set when a lease on the inode has gone; `waited` follows it. FopError EAGAIN when the client
        waits for too many."""
        count = self._waiting.get(client, 0)
        if count >= WAITING_LIMIT:
            raise FopError(errno.EAGAIN, f"{count} fops of the client wait for leases")
        self._waiting[client] = count + 1
        waiter: Waiter[None] = Waiter()
        self._state(gfid).waiting.append((client, waiter))
        return waiter

    def waited(self, gfid: bytes, client: str, waiter: Waiter[None]) -> None:
        """Somebody does not wait any more, whatever the reason."""
        state = self._states[gfid]
        state.waiting.remove((client, waiter))
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]
        self._settle(gfid, state)

    def _wake(self, state: InodeLeases) -> None:
        # They stay in `waiting` until they have looked again: nobody is granted a lease in between.
        for _, waiter in state.waiting:
            waiter.set(None)

    # -- what goes on beside them ----------------------------------------------------------------------------------

    def opened(self, gfid: bytes, fd: Fd, lease_id: bytes) -> None:
        """An fd is open, or about to be."""
        self._state(gfid).fds[fd] = lease_id

    def closed(self, gfid: bytes, fd: Fd) -> None:
        """It is not."""
        state = self._states.get(gfid)
        if state is not None and state.fds.pop(fd, None) is not None:
            self._settle(gfid, state)

    def changing(self, gfid: bytes, key: Key) -> None:
        """A change begins that no fd open for writing tells of; until `changed` nobody else is granted a lease."""
        self._state(gfid).changes.append(key)

    def changed(self, gfid: bytes, key: Key) -> None:
        """It has ended."""
        state = self._states[gfid]
        state.changes.remove(key)
        self._settle(gfid, state)

    def _state(self, gfid: bytes) -> InodeLeases:
        state = self._states.get(gfid)
        if state is None:
            state = self._states[gfid] = InodeLeases(self._inodes.hold(gfid))
        return state

    def _settle(self, gfid: bytes, state: InodeLeases) -> None:
        if not state and self._states.get(gfid) is state:
            del self._states[gfid]
            self._inodes.drop(state.inode)


def _others(fd: Fd, lease_id: bytes, key: Key) -> bool:
    # An fd without a lease id is its client's, whichever of its ids that asks.
    return fd.client != key[0] or bool(lease_id and lease_id != key[1])
