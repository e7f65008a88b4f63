"""features/locks: ranges against a per-byte model, queues, cancellation, clients that go, counts, contention."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx import fops
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.lock_ranges import LAST, PosixLock, conflict, put, span
from glustx.runtime import turn
from glustx.upcall import EntrylkContention, InodelkContention
from glustx.values import (
    ENTRYLK_LOCK,
    ENTRYLK_LOCK_NB,
    ENTRYLK_RDLCK,
    ENTRYLK_UNLOCK,
    ENTRYLK_WRLCK,
    F_GETLK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    NULL_GFID,
    ROOT_GFID,
    ActiveLock,
    Caller,
    Flock,
    Iatt,
    Loc,
)
from glustx.xdata import (
    EMPTY,
    ENTRYLK_COUNT,
    INODELK_COUNT,
    INODELK_DOM_COUNT,
    MULTI_DOM_LK_COUNT,
    PARENT_ENTRYLK,
    POSIXLK_COUNT,
    Xdata,
)
from glustx.xlator import Event
from glustx.xlators.features.locks import Locks
from tests.fakes import ALL_FOPS, Call, Parent, Storage, sample_request, stack, who

FILE = b"\x11" * 16
OTHER = b"\x22" * 16
A, B, C = who("a", "client-1"), who("b", "client-1"), who("c", "client-2")
SIZE = 24  # bytes of the modelled file


# -- ranges


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 0, (0, LAST)),
        (5, 1, (5, 5)),
        (5, 0, (5, LAST)),
        (0x7FFFFFFFFFFFFFFE, 0, (LAST - 1, LAST)),
        (LAST, 1, (LAST, LAST)),
        (10, -4, (6, 9)),
        (10, (1 << 64) - 4, (6, 9)),
    ],
)
def test_span(start: int, length: int, expected: tuple[int, int]) -> None:
    assert span(start, length) == expected


@pytest.mark.parametrize(("start", "length"), [(-1, 1), ((1 << 64) - 1, 1), (LAST, 2), (3, -4), (1 << 62, 1 << 62 + 1)])
def test_span_out_of_range(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        span(start, length)


ranges = st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).map(lambda pair: (min(pair), max(pair)))
steps = st.tuples(st.sampled_from("abc"), st.sampled_from([F_RDLCK, F_WRLCK, F_UNLCK]), ranges)


class Naive:
    """Posix locks byte by byte: for each owner, what it holds on each byte."""

    def __init__(self) -> None:
        self.bytes: dict[str, list[int]] = {name: [F_UNLCK] * SIZE for name in "abc"}

    def free_for(self, owner: str, kind: int, first: int, last: int) -> bool:
        return not any(
            held != F_UNLCK and F_WRLCK in (held, kind)
            for name, line in self.bytes.items()
            if name != owner
            for held in line[first : last + 1]
        )

    def set(self, owner: str, kind: int, first: int, last: int) -> None:
        self.bytes[owner][first : last + 1] = [kind] * (last + 1 - first)


def lines(locks: list[PosixLock]) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {name: [F_UNLCK] * SIZE for name in "abc"}
    for lock in locks:
        line = seen[lock.owner[1].decode()]
        for at in range(lock.first, lock.last + 1):
            assert line[at] == F_UNLCK, "two locks of one owner on one byte"
            line[at] = lock.type
    return seen


@given(st.lists(steps, min_size=10, max_size=40))
def test_ranges_against_bytes(program: list[tuple[str, int, tuple[int, int]]]) -> None:
    model, locks = Naive(), []
    for owner, kind, (first, last) in program:
        lock = PosixLock(("", owner.encode()), kind, first, last)
        blocked = kind != F_UNLCK and conflict(locks, lock) is not None
        assert blocked == (kind != F_UNLCK and not model.free_for(owner, kind, first, last))
        if not blocked:
            locks = put(locks, lock)
            model.set(owner, kind, first, last)
        assert lines(locks) == model.bytes
        # Neighbours of one owner and type are one lock.
        ends = {(other.owner, other.type, other.last + 1) for other in locks}
        assert not any((other.owner, other.type, other.first) in ends for other in locks)


def test_conflict_names_the_lowest() -> None:
    held = [PosixLock(("", b"a"), F_WRLCK, 50, 59), PosixLock(("", b"b"), F_RDLCK, 10, 19)]
    found = conflict(held, PosixLock(("", b"c"), F_WRLCK, 0, 99))
    assert found is held[1]
    assert conflict(held, PosixLock(("", b"c"), F_RDLCK, 0, 49)) is None


# -- helpers for the translator


class Brick:
    """A locks translator over a fake storage, and fops on it by short names."""

    def __init__(self, **options: str) -> None:
        texts = {key.replace("_", "-"): text for key, text in options.items()}
        self.graph: Graph = stack(Storage, (Locks, texts), Parent)
        self.storage: Any = self.graph.xlators["fake"]
        self.locks: Any = self.graph.xlators["locks"]
        self.parent: Any = self.graph.xlators["parent"]
        self.reactor: Any = self.graph.reactor
        self.fds: dict[Caller, Fd] = {}

    def call(self, req: fops.Fop) -> Call:
        return Call(self.graph.top(req))

    def fd(self, caller: Caller) -> Fd:
        return self.fds.setdefault(caller, Fd(FILE, 2))

    def lk(
        self, caller: Caller, kind: int, start: int = 0, length: int = 0, *, cmd: int = F_SETLKW, fd: Fd | None = None
    ) -> Call:
        flock = Flock(kind, 0, start, length, 7, b"not looked at")
        return self.call(fops.Lk(fd or self.fd(caller), cmd, kind, flock, caller=caller))

    def inodelk(
        self,
        caller: Caller,
        kind: int = F_WRLCK,
        start: int = 0,
        length: int = 0,
        *,
        cmd: int = F_SETLKW,
        domain: bytes = b"afr",
    ) -> Call:
        flock = Flock(kind, 0, start, length, caller.pid)
        return self.call(fops.Inodelk(Loc(gfid=FILE), domain, cmd, kind, flock, caller=caller))

    def entrylk(
        self,
        caller: Caller,
        name: bytes = b"",
        *,
        cmd: int = ENTRYLK_LOCK,
        kind: int = ENTRYLK_WRLCK,
        domain: bytes = b"afr",
    ) -> Call:
        return self.call(fops.Entrylk(Loc(gfid=FILE), domain, cmd, kind, name, caller=caller))

    def holds(self) -> int:
        inode = self.graph.inodes.find(FILE)
        return inode.holds if inode else 0

    def empty(self) -> bool:
        return len(self.locks.locks) == 0 and not self.locks.locks.clients() and self.holds() == 0

    def gone(self, client: str) -> None:
        self.parent.notify(Event.CLIENT_GONE, None, client)


@pytest.fixture
def brick() -> Brick:
    return Brick()


# -- posix locks


def test_setlk_conflict_and_unlock(brick: Brick) -> None:
    assert brick.lk(A, F_WRLCK, 0, 10).errno == 0
    assert brick.holds() == 1
    assert brick.lk(C, F_WRLCK, 9, 1, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.lk(C, F_RDLCK, 9, 1, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.lk(C, F_WRLCK, 10, 1, cmd=F_SETLK).errno == 0
    assert brick.lk(A, F_UNLCK, 0, 10, cmd=F_SETLK).errno == 0
    assert brick.lk(C, F_UNLCK).errno == 0
    assert brick.empty()
    assert brick.lk(C, F_UNLCK).errno == 0, "giving back what one does not hold is fine"
    assert brick.storage.seen == []


def test_the_owner_is_the_credentials(brick: Brick) -> None:
    # All flocks here carry the same lk_owner.
    assert brick.lk(A, F_WRLCK).errno == 0
    assert brick.lk(B, F_WRLCK, cmd=F_SETLK).errno == errno.EAGAIN
    same_owner_elsewhere = Caller(lk_owner=A.lk_owner, client="client-2")
    assert brick.lk(same_owner_elsewhere, F_WRLCK, cmd=F_SETLK).errno == errno.EAGAIN


def test_the_type_of_the_request_decides(brick: Brick) -> None:
    brick.call(fops.Lk(brick.fd(A), F_SETLK, F_WRLCK, Flock(F_RDLCK), caller=A)).result()
    assert brick.lk(B, F_RDLCK, cmd=F_SETLK).errno == errno.EAGAIN


def test_getlk(brick: Brick) -> None:
    brick.lk(A, F_RDLCK, 10, 5)
    answer = brick.lk(B, F_WRLCK, 0, 100, cmd=F_GETLK).result().flock
    assert answer == Flock(F_RDLCK, 0, 10, 5, 7, b"a")
    assert brick.lk(B, F_RDLCK, 0, 100, cmd=F_GETLK).result().flock.type == F_UNLCK
    assert brick.lk(A, F_WRLCK, 0, 100, cmd=F_GETLK).result().flock.type == F_UNLCK
    brick.lk(A, F_RDLCK, 100, 0)
    assert brick.lk(B, F_WRLCK, 200, 1, cmd=F_GETLK).result().flock.len == 0
    assert brick.lk(B, F_WRLCK, 200, 1, cmd=F_SETLK).errno == errno.EAGAIN


def test_setlkw_is_served_in_order(brick: Brick) -> None:
    brick.lk(A, F_WRLCK)
    first, second, third = brick.lk(B, F_WRLCK, 0, 5), brick.lk(C, F_WRLCK, 0, 10), brick.lk(who("d"), F_RDLCK, 20, 1)
    assert (first.done, second.done, third.done) == (False, False, False)
    brick.lk(A, F_UNLCK)
    assert (first.errno, second.done, third.errno) == (0, False, 0)
    brick.lk(B, F_UNLCK)
    assert second.errno == 0


def test_setlkw_waits_for_held_locks_only(brick: Brick) -> None:
    brick.lk(A, F_RDLCK)
    writer = brick.lk(B, F_WRLCK)
    assert not writer.done
    assert brick.lk(C, F_RDLCK).errno == 0, "fcntl(2): a waiting writer stops nobody"
    brick.lk(C, F_UNLCK)
    brick.lk(A, F_UNLCK)
    assert writer.errno == 0


def test_a_weaker_lock_lets_others_in(brick: Brick) -> None:
    brick.lk(A, F_WRLCK)
    reader = brick.lk(C, F_RDLCK)
    brick.lk(A, F_RDLCK)
    assert reader.errno == 0


@pytest.mark.parametrize("kind", [3, 99])
def test_bad_types_commands_and_ranges(brick: Brick, kind: int) -> None:
    assert brick.lk(A, kind).errno == errno.EINVAL
    assert brick.lk(A, F_WRLCK, cmd=kind).errno == errno.EINVAL
    assert brick.inodelk(A, kind).errno == errno.EINVAL
    assert brick.inodelk(A, cmd=F_GETLK).errno == errno.EOPNOTSUPP
    assert brick.entrylk(A, cmd=kind).errno == errno.EINVAL
    assert brick.lk(A, F_WRLCK, -1, 1).errno == errno.EINVAL
    assert brick.inodelk(A, F_WRLCK, LAST, 2).errno == errno.EINVAL
    nameless = fops.Inodelk(Loc(pargfid=ROOT_GFID, name=b"f"), b"d", F_SETLK, F_WRLCK, Flock(F_WRLCK))
    assert brick.call(nameless).errno == errno.EINVAL
    assert brick.empty()


def test_flush_drops_the_owners_locks_and_its_waiters(brick: Brick) -> None:
    brick.lk(A, F_WRLCK, 0, 5)
    brick.lk(B, F_WRLCK, 10, 5)
    waiting = brick.lk(A, F_WRLCK, 10, 5)
    other = brick.lk(C, F_WRLCK, 0, 5)
    flush = brick.call(fops.Flush(brick.fd(A), caller=A))
    assert flush.errno == 0
    assert [type(req) for req in brick.storage.seen] == [fops.Flush]
    assert waiting.errno == errno.EINTR
    assert other.errno == 0
    assert brick.lk(C, F_RDLCK, 10, 1, cmd=F_SETLK).errno == errno.EAGAIN, "the other owner's stays"


def test_release_drops_the_locks_set_through_the_fd(brick: Brick) -> None:
    one, two = Fd(FILE, 2), Fd(FILE, 2)
    brick.lk(A, F_WRLCK, 0, 5, fd=one)
    brick.lk(B, F_WRLCK, 10, 5, fd=two)
    waiting = brick.lk(C, F_WRLCK, 0, 0)
    assert brick.call(fops.Release(one)).errno == 0
    assert brick.lk(A, F_RDLCK, 10, 1, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.call(fops.Release(two)).errno == 0
    assert waiting.errno == 0


@pytest.mark.parametrize("order", ["waiting", "cancel first", "grant first"])
def test_setlkw_called_off(brick: Brick, order: str) -> None:
    brick.lk(B, F_RDLCK, 0, 4)
    brick.lk(A, F_RDLCK, 2, 4)
    upgrade = brick.lk(B, F_WRLCK, 0, 8)
    assert not upgrade.done

    def race() -> None:
        if order == "cancel first":
            upgrade.cancel()
        if order != "waiting":
            brick.lk(A, F_UNLCK)
        if order != "cancel first":
            upgrade.cancel()

    turn(race)
    if order == "grant first":
        assert upgrade.errno == 0, "too late to call off"
        return
    assert upgrade.cancelled
    brick.lk(A, F_UNLCK)
    held = brick.call(fops.Getactivelk(Loc(gfid=FILE))).result().locks
    assert [(lock.flock.type, lock.flock.start, lock.flock.len) for lock in held] == [(F_RDLCK, 0, 4)]
    brick.lk(B, F_UNLCK)
    assert brick.empty()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["set", "wait", "unlock", "cancel", "flush"]),
            st.sampled_from([F_RDLCK, F_WRLCK]),
            ranges,
        ),
        min_size=8,
        max_size=25,
    )
)
def test_posix_locks_against_bytes(program: list[tuple[str, str, int, tuple[int, int]]]) -> None:
    """The translator against the per-byte model: waiters are served in order, as soon as they may."""
    brick, model = Brick(), Naive()
    waiting: list[tuple[Call, str, int, int, int]] = []

    def serve() -> None:
        for entry in list(waiting):
            call, owner, kind, first, last = entry
            if model.free_for(owner, kind, first, last):
                model.set(owner, kind, first, last)
                waiting.remove(entry)
                assert call.errno == 0
            else:
                assert not call.done

    for owner, what, kind, (first, last) in program:
        caller = who(owner)
        if what == "cancel":
            if waiting:
                call = waiting.pop(first % len(waiting))[0]
                call.cancel()
                assert call.cancelled
        elif what == "unlock":
            assert brick.lk(caller, F_UNLCK, first, last - first + 1).errno == 0
            model.set(owner, F_UNLCK, first, last)
        elif what == "flush":
            assert brick.call(fops.Flush(brick.fd(caller), caller=caller)).errno == 0
            model.set(owner, F_UNLCK, 0, SIZE - 1)
            for entry in [entry for entry in waiting if entry[1] == owner]:
                waiting.remove(entry)
                assert entry[0].errno == errno.EINTR
        else:
            free = model.free_for(owner, kind, first, last)
            call = brick.lk(caller, kind, first, last - first + 1, cmd=F_SETLK if what == "set" else F_SETLKW)
            if free:
                assert call.errno == 0
                model.set(owner, kind, first, last)
            elif what == "set":
                assert call.errno == errno.EAGAIN
            else:
                waiting.append((call, owner, kind, first, last))
        serve()
        state = brick.locks.locks.find(FILE)
        assert lines(state.posix if state else []) == model.bytes
        total = (len(state.posix) if state else 0) + len(waiting)
        assert sum(brick.locks.locks.clients().values()) == total
    for call, *_ in waiting:
        call.cancel()
    for owner in "abc":
        brick.lk(who(owner), F_UNLCK)
    assert brick.empty()


# -- inodelk, entrylk


def test_inodelk_whole_file_and_domains(brick: Brick) -> None:
    assert brick.inodelk(A).errno == 0
    assert brick.inodelk(C, start=1 << 40, length=1, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.inodelk(C, cmd=F_SETLK, domain=b"dht").errno == 0
    assert brick.inodelk(A, F_UNLCK).errno == 0
    assert brick.inodelk(C, F_UNLCK, domain=b"dht").errno == 0
    assert brick.empty()


def test_inodelks_nest_and_never_merge(brick: Brick) -> None:
    assert brick.inodelk(A, start=0, length=10).errno == 0
    assert brick.inodelk(A, start=0, length=10).errno == 0
    assert brick.inodelk(A, F_RDLCK, start=10, length=10).errno == 0
    assert brick.inodelk(A, F_UNLCK, start=0, length=20).errno == errno.EINVAL
    assert brick.inodelk(A, F_UNLCK, start=0, length=10).errno == 0
    assert brick.inodelk(C, start=5, length=1, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.inodelk(A, F_UNLCK, start=0, length=10).errno == 0
    assert brick.inodelk(C, start=5, length=1, cmd=F_SETLK).errno == 0


def test_giving_back_what_one_does_not_hold(brick: Brick) -> None:
    assert brick.inodelk(A, F_UNLCK).errno == errno.EINVAL
    assert brick.entrylk(A, b"n", cmd=ENTRYLK_UNLOCK).errno == errno.EINVAL
    brick.inodelk(A)
    assert brick.inodelk(C, F_UNLCK).errno == errno.EINVAL
    assert brick.inodelk(A, F_UNLCK, domain=b"other").errno == errno.EINVAL
    assert brick.entrylk(A, cmd=ENTRYLK_UNLOCK).errno == errno.EINVAL


def test_a_newcomer_waits_behind_those_that_wait(brick: Brick) -> None:
    brick.inodelk(A, F_RDLCK)
    writer = brick.inodelk(B)
    reader = brick.inodelk(C, F_RDLCK)
    assert not reader.done
    assert brick.inodelk(C, F_RDLCK, cmd=F_SETLK).errno == errno.EAGAIN
    assert brick.inodelk(A, F_RDLCK).errno == 0, "who holds a lock here may nest"
    brick.inodelk(A, F_UNLCK)
    assert not writer.done
    brick.inodelk(A, F_UNLCK)
    assert (writer.errno, reader.done) == (0, False)
    brick.inodelk(B, F_UNLCK)
    assert reader.errno == 0


def test_calling_off_who_waits_lets_those_behind_go(brick: Brick) -> None:
    brick.inodelk(A, F_RDLCK)
    writer = brick.inodelk(B)
    reader = brick.inodelk(C, F_RDLCK)
    writer.cancel()
    assert writer.cancelled
    assert reader.errno == 0


@pytest.mark.parametrize("grant_first", [True, False])
def test_inodelk_called_off_as_it_is_granted(brick: Brick, grant_first: bool) -> None:
    brick.inodelk(A)
    second, third = brick.inodelk(B), brick.inodelk(C)

    def race() -> None:
        if not grant_first:
            second.cancel()
        brick.inodelk(A, F_UNLCK)
        if grant_first:
            second.cancel()

    turn(race)
    if grant_first:
        assert second.errno == 0, "too late to call off"
        brick.inodelk(B, F_UNLCK)
    else:
        assert second.cancelled
    assert third.errno == 0
    brick.inodelk(C, F_UNLCK)
    assert brick.empty()


def test_a_chain_of_a_thousand_hand_overs(brick: Brick) -> None:
    brick.inodelk(A)
    order: list[int] = []

    async def user(index: int) -> None:
        caller = who(f"user {index}")
        lock = fops.Inodelk(Loc(gfid=FILE), b"afr", F_SETLKW, F_WRLCK, Flock(F_WRLCK), caller=caller)
        await brick.graph.top(lock)
        order.append(index)
        unlock = fops.Inodelk(Loc(gfid=FILE), b"afr", F_SETLK, F_UNLCK, Flock(F_UNLCK), caller=caller)
        await brick.graph.top(unlock)

    calls = [Call(user(index)) for index in range(1000)]
    brick.inodelk(A, F_UNLCK)
    assert order == list(range(1000))
    assert all(call.errno == 0 for call in calls)
    assert brick.empty()


def test_entrylk_names(brick: Brick) -> None:
    assert brick.entrylk(A, b"x").errno == 0
    assert brick.entrylk(C, b"y", cmd=ENTRYLK_LOCK_NB).errno == 0
    assert brick.entrylk(C, b"x", cmd=ENTRYLK_LOCK_NB).errno == errno.EAGAIN
    assert brick.entrylk(C, b"x", cmd=ENTRYLK_LOCK_NB, domain=b"dht").errno == 0
    everything = brick.entrylk(B)
    assert not everything.done
    assert brick.entrylk(who("d"), b"z", cmd=ENTRYLK_LOCK_NB).errno == errno.EAGAIN, "all names are waited for"
    brick.entrylk(A, b"x", cmd=ENTRYLK_UNLOCK)
    assert not everything.done
    brick.entrylk(C, b"y", cmd=ENTRYLK_UNLOCK)
    assert everything.errno == 0


def test_entrylk_readers_share(brick: Brick) -> None:
    assert brick.entrylk(A, b"x", kind=ENTRYLK_RDLCK).errno == 0
    assert brick.entrylk(C, b"x", kind=ENTRYLK_RDLCK, cmd=ENTRYLK_LOCK_NB).errno == 0
    assert brick.entrylk(B, b"x", cmd=ENTRYLK_LOCK_NB).errno == errno.EAGAIN


def test_fd_forms_meet_loc_forms(brick: Brick) -> None:
    fd = Fd(FILE, 0)
    brick.call(fops.Finodelk(fd, b"afr", F_SETLK, F_WRLCK, Flock(F_WRLCK), caller=A)).result()
    assert brick.inodelk(C, cmd=F_SETLK).errno == errno.EAGAIN
    brick.call(fops.Fentrylk(fd, b"afr", ENTRYLK_LOCK, ENTRYLK_WRLCK, b"n", caller=A)).result()
    assert brick.entrylk(C, b"n", cmd=ENTRYLK_LOCK_NB).errno == errno.EAGAIN
    brick.call(fops.Finodelk(fd, b"afr", F_SETLK, F_UNLCK, Flock(F_UNLCK), caller=A)).result()
    brick.call(fops.Fentrylk(fd, b"afr", ENTRYLK_UNLOCK, ENTRYLK_WRLCK, b"n", caller=A)).result()
    assert brick.empty()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["try", "wait", "unlock", "cancel", "gone"]),
            st.sampled_from([F_RDLCK, F_WRLCK]),
            st.tuples(st.integers(0, 5), st.integers(1, 4)),
        ),
        min_size=8,
        max_size=30,
    )
)
def test_domains_keep_their_promises(program: list[tuple[str, str, int, tuple[int, int]]]) -> None:
    """Whatever happens: no two conflicting locks are held, nobody waits for nothing, nothing is left behind."""
    brick = Brick()
    held: list[tuple[str, int, int, int]] = []
    waiting: list[tuple[Call, str, int, int, int]] = []

    def settle() -> None:
        for entry in list(waiting):
            if entry[0].done:
                waiting.remove(entry)
                if entry[0].errno == 0:
                    held.append(entry[1:])
        for index, one in enumerate(held):
            for other in held[:index]:
                clash = one[0] != other[0] and F_WRLCK in (one[1], other[1])
                assert not (clash and one[2] < other[2] + other[3] and other[2] < one[2] + one[3])
        if waiting:
            assert held, "somebody waits although nobody holds a lock"
        queue = brick.locks.locks.find(FILE)
        assert len(held) == (queue.held(type(next(iter(queue.queues.values())).held[0])) if queue else 0)

    for name, what, kind, (start, length) in program:
        caller = Caller(lk_owner=name.encode(), client=name)
        if what == "cancel":
            if waiting:
                waiting[start % len(waiting)][0].cancel()
        elif what == "gone":
            mine = [entry[0] for entry in waiting if entry[1] == name]
            brick.gone(name)
            assert all(call.errno == errno.ENOTCONN for call in mine)
            held = [entry for entry in held if entry[0] != name]
        elif what == "unlock":
            mine_held = [entry for entry in held if entry[0] == name and entry[2:] == (start, length)]
            call = brick.inodelk(caller, F_UNLCK, start, length)
            assert call.errno == (0 if mine_held else errno.EINVAL)
            if mine_held:
                # The one of these that is given back is the first taken; types may differ.
                held.remove(mine_held[0])
        else:
            call = brick.inodelk(caller, kind, start, length, cmd=F_SETLK if what == "try" else F_SETLKW)
            if call.done and call.errno == 0:
                held.append((name, kind, start, length))
            elif not call.done:
                assert what == "wait"
                waiting.append((call, name, kind, start, length))
        settle()
    for client in "abcd":
        brick.gone(client)
    assert brick.empty()


# -- clients


def test_client_gone(brick: Brick) -> None:
    brick.lk(A, F_WRLCK, 0, 5)
    brick.inodelk(A)
    brick.entrylk(B, b"n")
    waiters = [brick.lk(C, F_WRLCK), brick.inodelk(C), brick.entrylk(C)]
    mine = brick.inodelk(B)
    brick.gone("client-1")
    assert [call.errno for call in waiters] == [0, 0, 0]
    assert mine.errno == errno.ENOTCONN
    assert brick.storage.events == [(Event.CLIENT_GONE, "client-1")]
    brick.gone("client-2")
    assert brick.empty()
    brick.gone("nobody")


def test_teardown_closes_waiters(brick: Brick) -> None:
    brick.inodelk(A)
    waiting = brick.inodelk(C)
    waiting.close()
    brick.inodelk(A, F_UNLCK)
    assert brick.empty()


def test_limit_for_one_client() -> None:
    brick = Brick(client_lock_limit="3")
    assert brick.lk(A, F_WRLCK, 0, 1).errno == 0
    assert brick.inodelk(B).errno == 0
    assert not brick.inodelk(A).done
    assert brick.entrylk(A).errno == errno.ENOLCK
    assert brick.lk(A, F_WRLCK, 10, 1).errno == errno.ENOLCK
    assert brick.inodelk(B, F_UNLCK).errno == 0
    assert brick.inodelk(C, domain=b"other").errno == 0
    assert brick.entrylk(A).errno == 0
    brick.graph.xlators["locks"].options.client_lock_limit = 0
    brick.locks.options_changed(None)
    assert brick.lk(A, F_WRLCK, 20, 1).errno == 0


# -- active locks


def test_active_locks_move(brick: Brick) -> None:
    brick.lk(A, F_WRLCK, 0, 5)
    brick.lk(C, F_RDLCK, 10, 0)
    locks = brick.call(fops.Getactivelk(Loc(gfid=FILE))).result().locks
    assert locks == (
        ActiveLock(Flock(F_WRLCK, 0, 0, 5, 7, b"a"), "client-1"),
        ActiveLock(Flock(F_RDLCK, 0, 10, 0, 7, b"c"), "client-2"),
    )
    there = Brick()
    assert there.call(fops.Setactivelk(Loc(gfid=FILE), locks)).errno == 0
    assert there.call(fops.Getactivelk(Loc(gfid=FILE))).result().locks == locks
    assert there.lk(B, F_WRLCK, 0, 1, cmd=F_SETLK).errno == errno.EAGAIN
    both = (ActiveLock(Flock(F_RDLCK, 0, 8, 1), "x"), ActiveLock(Flock(F_WRLCK, 0, 4, 1), "x"))
    assert there.call(fops.Setactivelk(Loc(gfid=FILE), both)).errno == errno.EAGAIN
    assert there.call(fops.Getactivelk(Loc(gfid=FILE))).result().locks == locks, "all or none"
    there.gone("client-1")
    there.gone("client-2")
    assert there.empty()


# -- counts


def test_counts_only_where_asked_for(brick: Brick) -> None:
    brick.lk(A, F_WRLCK, 0, 5)
    brick.lk(A, F_WRLCK, 10, 5)
    brick.inodelk(A)
    brick.inodelk(A, domain=b"dht")
    brick.entrylk(A, b"n")
    fd = Fd(FILE, 2)
    asked = Xdata({INODELK_COUNT: 0, ENTRYLK_COUNT: 0, POSIXLK_COUNT: 0})
    for req in (
        fops.Write(fd, 0, b"x", xdata=asked),
        fops.Fxattrop(fd, 0, EMPTY, xdata=asked),
        fops.Stat(Loc(gfid=FILE), xdata=asked),
        fops.Fsync(fd, xdata=asked),
    ):
        assert dict(brick.call(req).result().xdata) == {INODELK_COUNT: 2, ENTRYLK_COUNT: 1, POSIXLK_COUNT: 2}
    assert brick.call(fops.Write(fd, 0, b"x")).result().xdata is EMPTY
    assert brick.call(fops.Write(fd, 0, b"x", xdata=Xdata({b"other": 1}))).result().xdata is EMPTY
    domain = Xdata({INODELK_DOM_COUNT: "dht"})
    assert dict(brick.call(fops.Write(fd, 0, b"x", xdata=domain)).result().xdata) == {INODELK_COUNT: 1}
    many = Xdata({MULTI_DOM_LK_COUNT: 1, b"glusterfs.inodelk-dom-prefix:afr": 1, b"glusterfs.inodelk-dom-prefix:x": 1})
    assert dict(brick.call(fops.Stat(Loc(gfid=FILE), xdata=many)).result().xdata) == {
        b"glusterfs.inodelk-dom-prefix:afr": 1,
        b"glusterfs.inodelk-dom-prefix:x": 0,
    }


def test_a_named_lookup_counts_on_the_inode_it_finds(brick: Brick) -> None:
    brick.inodelk(A)
    brick.entrylk(A, b"n")
    brick.storage.answer = lambda req: fops.LookupReply(stat=Iatt(gfid=FILE), postparent=Iatt())
    asked = Xdata({INODELK_COUNT: 0, PARENT_ENTRYLK: 0})

    def lookup(name: bytes, parent: bytes) -> dict[bytes, Any]:
        return dict(brick.call(fops.Lookup(Loc(pargfid=parent, name=name), xdata=asked)).result().xdata)

    assert lookup(b"n", FILE) == {INODELK_COUNT: 1, PARENT_ENTRYLK: 1}
    assert lookup(b"m", FILE) == {INODELK_COUNT: 1, PARENT_ENTRYLK: 0}
    brick.entrylk(A)
    assert lookup(b"m", FILE) == {INODELK_COUNT: 1, PARENT_ENTRYLK: 1}
    assert lookup(b"n", OTHER) == {INODELK_COUNT: 1, PARENT_ENTRYLK: 0}


def test_readdirp_counts_for_each_entry(brick: Brick) -> None:
    brick.inodelk(A)
    entries = (
        fops.DirEntry(1, 1, 8, b"locked", Iatt(gfid=FILE), Xdata({b"user.a": b"1"})),
        fops.DirEntry(2, 2, 8, b"free", Iatt(gfid=OTHER)),
        fops.DirEntry(3, 3, 8, b"bare"),
    )
    brick.storage.answer = lambda req: fops.ReaddirReply(entries=entries, eof=True)
    asked = Xdata({INODELK_COUNT: 0})
    reply = brick.call(fops.Readdirp(Fd(ROOT_GFID, 0), 0, 4096, xdata=asked)).result()
    assert [dict(entry.xattrs) for entry in reply.entries] == [
        {b"user.a": b"1", INODELK_COUNT: 1},
        {INODELK_COUNT: 0},
        {},
    ]
    assert reply.eof


def test_requests_that_do_not_ask_get_the_childs_own_coroutine(brick: Brick) -> None:
    below = brick.storage.table
    for cls in ALL_FOPS:
        if cls.effects & fops.LOCKS or cls in (fops.Flush, fops.Release, fops.Getactivelk):
            continue
        req = sample_request(cls)
        mine, its = brick.locks.table[cls](req), below[cls](req)
        assert mine.cr_code is its.cr_code, cls.name
        mine.close()
        its.close()


def test_counts_of_an_unknown_inode_are_zero(brick: Brick) -> None:
    asked = Xdata({INODELK_COUNT: 0})
    brick.storage.answer = lambda req: fops.PrePost(pre=Iatt(), post=Iatt())
    unlink = fops.Unlink(Loc(gfid=NULL_GFID, pargfid=FILE, name=b"n"), xdata=asked)
    assert dict(brick.call(unlink).result().xdata) == {INODELK_COUNT: 0}


# -- contention


def upcalls(brick: Brick) -> list[Any]:
    return [data for event, data in brick.parent.events if event is Event.UPCALL]


def test_contention_is_told_to_the_holder_and_not_too_often(brick: Brick) -> None:
    holder = who("h", "client-1", 42)
    brick.inodelk(holder, start=3, length=4)
    brick.inodelk(who("w", "client-2"), cmd=F_SETLK)
    message = InodelkContention("client-1", FILE, Flock(F_WRLCK, 0, 3, 4, 42), 42, b"afr")
    assert upcalls(brick) == [message]
    brick.inodelk(who("w", "client-2"), cmd=F_SETLK)
    assert len(upcalls(brick)) == 1
    brick.reactor.advance(5)
    brick.inodelk(who("x", "client-3"), cmd=F_SETLK)
    assert upcalls(brick) == [message, message]


def test_contention_of_names(brick: Brick) -> None:
    brick.entrylk(who("h", "client-1", 42), b"n")
    brick.entrylk(C, b"n")
    assert upcalls(brick) == [EntrylkContention("client-1", FILE, ENTRYLK_WRLCK, 42, b"n", b"afr")]


def test_the_next_holder_is_told_of_those_still_waiting(brick: Brick) -> None:
    brick.inodelk(A)
    brick.inodelk(C)
    brick.inodelk(who("d", "client-3"))
    brick.inodelk(A, F_UNLCK)
    assert [message.client for message in upcalls(brick)] == ["client-1", "client-2"]


def test_contention_can_be_turned_off() -> None:
    brick = Brick(notify_contention="off")
    brick.inodelk(A)
    brick.inodelk(C)
    assert upcalls(brick) == []


def test_statedump_lists_holders_and_waiters(brick: Brick) -> None:
    brick.inodelk(A)
    brick.inodelk(C)
    brick.entrylk(A)
    brick.lk(A, F_WRLCK, 1, 2)
    dump = brick.graph.statedump()
    where = "inode(11111111-1111-1111-1111-111111111111)"
    assert (
        f"{where}.inodelk.inodelk[0](ACTIVE)=type=WRITE, start=0, last={LAST}, pid=0, owner=61, client=client-1" in dump
    )
    assert (
        f"{where}.inodelk.inodelk[1](BLOCKED)=type=WRITE, start=0, last={LAST}, pid=0, owner=63, client=client-2"
        in dump
    )
    assert f"{where}.entrylk.entrylk[0](ACTIVE)=type=WRITE, basename=(all), pid=0, owner=61, client=client-1" in dump
    assert f"{where}.posixlk.posixlk[0](ACTIVE)=type=WRITE, start=1, last=2, pid=7, owner=61, client=client-1" in dump
    assert "client(client-1).locks=3" in dump
