"""Persistent reservations as a state machine: against a model that is written the other way round, and its record."""

from __future__ import annotations

import copy
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx.scsi.pr_state import MOST, Conflict, Kind, News, Port, Registration, State
from glustx.scsi.pr_store import CorruptRecord, decode, encode
from glustx.scsi.sense import CheckCondition

PORTS = [Port(f"iqn.2026-12.org.example:{name},i,0x00000000000{at}", "t", 1) for at, name in enumerate("abcd", 1)]
A, B, C, D = PORTS
BY_ALL = (Kind.WRITE_EXCLUSIVE_ALL_REGISTRANTS, Kind.EXCLUSIVE_ACCESS_ALL_REGISTRANTS)


class Model:
    """Keys by nexus, and who may do what, in plain dictionaries."""

    def __init__(self) -> None:
        self.keys: dict[Port, int] = {}
        self.kind: Kind | None = None
        self.owner: Port | None = None
        self.generation = 0

    def holders(self) -> set[Port]:
        if self.kind is None:
            return set()
        return set(self.keys) if self.kind in BY_ALL else {self.owner} if self.owner else set()

    def take(self, who: Port, kind: Kind) -> None:
        self.kind, self.owner = kind, None if kind in BY_ALL else who

    def tidy(self) -> None:
        if self.kind is not None and not self.holders() & set(self.keys):
            self.kind = self.owner = None

    def do(self, what: str, who: Port, key: int, other: int, kind: Kind) -> str:
        """Do an action and return GOOD, conflict or error."""
        mine = self.keys.get(who, 0)
        if what in ("register", "ignore"):
            if what == "register" and key != mine:
                return "conflict"
            if not mine and not other:
                return "good"
            if other:
                self.keys[who] = other
            else:
                del self.keys[who]
                self.tidy()
            self.generation += 1
            return "good"
        if not mine or mine != key:
            return "conflict"
        if what == "reserve":
            if self.kind is None:
                self.take(who, kind)
                return "good"
            return "good" if who in self.holders() and kind == self.kind else "conflict"
        if what == "release":
            if who in self.holders():
                if kind != self.kind:
                    return "error"
                self.kind = self.owner = None
            return "good"
        if what == "clear":
            self.keys.clear()
            self.tidy()
            self.generation += 1
            return "good"
        assert what == "preempt"
        if self.kind in BY_ALL:
            takes = other == 0
        else:
            takes = self.owner is not None and self.keys[self.owner] == other
        if not other and not takes:
            return "error"
        victims = {port for port, has in self.keys.items() if has == other or (takes and not other)}
        if not victims:
            return "conflict"
        for port in victims - ({who} if takes else set()):
            del self.keys[port]
        if takes:
            self.take(who, kind)
        self.tidy()
        self.generation += 1
        return "good"


ACTIONS = st.tuples(
    st.sampled_from(("register", "ignore", "reserve", "release", "clear", "preempt", "preempt")),
    st.sampled_from(PORTS[:3]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(list(Kind)),
)


def do(state: State, what: str, who: Port, key: int, other: int, kind: Kind) -> str:
    try:
        if what in ("register", "ignore"):
            state.register(who, key, other, ignore=what == "ignore")
        elif what == "reserve":
            state.reserve(who, key, kind)
        elif what == "release":
            state.release(who, key, kind)
        elif what == "clear":
            state.clear(who, key)
        else:
            state.preempt(who, key, other, kind)
    except Conflict:
        return "conflict"
    except CheckCondition:
        return "error"
    return "good"


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=25))
def test_actions_do_what_the_model_says(actions: list[tuple[str, Port, int, int, Kind]]) -> None:
    state, model = State(), Model()
    for action in actions:
        before = copy.deepcopy(state)
        answer = do(state, *action)
        assert answer == model.do(*action), action
        if answer != "good":
            assert state == before, "an action that failed has changed something"
        assert {each.port: each.key for each in state.registrations} == model.keys
        assert state.kind == (model.kind or 0)
        assert {port for port in PORTS if state.holds(port)} == model.holders()
        assert state.generation == model.generation
        assert not any(action[1].digest in event.ports for event in state.events if event.serial > before.serial)
        state.check()
        assert decode(encode(state)) == state


@pytest.mark.parametrize("kind", list(Kind))
def test_who_may_read_and_write(kind: Kind) -> None:
    state = State()
    for port, key in ((A, 1), (B, 2)):
        state.register(port, 0, key)
    state.reserve(A, 1, kind)
    shared = kind >= 5
    reads = kind in (1, 5, 7)
    assert state.allows(A, writes=True) and state.allows(A, writes=False)
    assert state.allows(B, writes=True) is shared
    assert state.allows(B, writes=False) is (shared or reads)
    assert state.allows(C, writes=True) is False
    assert state.allows(C, writes=False) is reads


def news(state: State, since: int) -> dict[News, set[bytes]]:
    return {News(each.news): set(each.ports) for each in state.events if each.serial > since}


def three(kind: Kind | None) -> State:
    state = State()
    for port, key in ((A, 1), (B, 2), (C, 3)):
        state.register(port, 0, key)
    if kind is not None:
        state.reserve(A, 1, kind)
    return state


@pytest.mark.parametrize("kind", list(Kind))
def test_release_tells_others_where_they_shared_it(kind: Kind) -> None:
    for how in ("release", "unregister"):
        state = three(kind)
        since = state.serial
        if how == "release":
            state.release(A, 1, kind)
        else:
            state.register(A, 1, 0)
        if kind < 5 or (how == "unregister" and kind in BY_ALL):
            assert news(state, since) == {}
        else:
            assert news(state, since) == {News.RESERVATIONS_RELEASED: {B.digest, C.digest}}


def test_clear_and_preempt_tell_whom_they_took_something_from() -> None:
    state = three(Kind.WRITE_EXCLUSIVE)
    since = state.serial
    state.clear(B, 2)
    assert news(state, since) == {News.RESERVATIONS_PREEMPTED: {A.digest, C.digest}}
    state = three(Kind.WRITE_EXCLUSIVE)
    since = state.serial
    state.preempt(B, 2, 1, Kind.WRITE_EXCLUSIVE)
    assert news(state, since) == {News.REGISTRATIONS_PREEMPTED: {A.digest}}
    assert state.holds(B)
    state = three(Kind.WRITE_EXCLUSIVE)
    since = state.serial
    state.preempt(B, 2, 1, Kind.EXCLUSIVE_ACCESS, abort=True)
    assert news(state, since) == {
        News.REGISTRATIONS_PREEMPTED: {A.digest},
        News.RESERVATIONS_RELEASED: {C.digest},
        News.ABORTED: {A.digest},
    }


def test_a_nexus_may_preempt_itself_where_it_does_not_hold() -> None:
    state = three(None)
    since = state.serial
    state.preempt(A, 1, 1, Kind.WRITE_EXCLUSIVE)
    assert state.find(A) is None and not state.kind and news(state, since) == {}


def test_move_hands_the_reservation_over() -> None:
    state = three(Kind.WRITE_EXCLUSIVE)
    with pytest.raises(Conflict):
        state.move(B, 2, 9, D, unregister=False, persists=False)
    with pytest.raises(CheckCondition):
        state.move(A, 1, 0, D, unregister=False, persists=False)
    with pytest.raises(CheckCondition):
        state.move(A, 1, 9, A, unregister=False, persists=False)
    state.move(A, 1, 9, D, unregister=True, persists=True)
    assert state.holds(D) and state.find(A) is None and state.holder_key == 9 and state.persists
    assert state.generation == 4
    by_all = three(Kind.WRITE_EXCLUSIVE_ALL_REGISTRANTS)
    with pytest.raises(Conflict):
        by_all.move(A, 1, 9, D, unregister=False, persists=False)


def test_all_ports_of_a_target_are_one_registration() -> None:
    far = msgspec.structs.replace(A, relative=2)
    elsewhere = msgspec.structs.replace(A, target="u")
    state = State()
    state.register(A, 0, 7)
    state.reserve(A, 7, Kind.WRITE_EXCLUSIVE)
    state.register(A, 7, 7, every_port=True)
    assert state.find(far) is not None and state.holds(far) and len(state.registrations) == 1
    assert state.find(elsewhere) is None
    mixed = State()
    mixed.register(A, 0, 1)
    mixed.register(far, 0, 2)
    with pytest.raises(Conflict):
        mixed.register(A, 1, 1, every_port=True)
    assert len(mixed.registrations) == 2


def test_named_ports_are_registered_all_or_none() -> None:
    state = State()
    state.register(A, 0, 1, others=[B, C])
    assert [each.key for each in state.registrations] == [1, 1, 1]
    with pytest.raises(Conflict):
        state.register(D, 0, 4, others=[B])
    with pytest.raises(CheckCondition):
        state.register(A, 1, 4, others=[D])
    assert state.find(D) is None and state.generation == 1


def test_there_is_an_end_to_registrations() -> None:
    state = State(registrations=[Registration(Port(f"iqn.x:{at},i,0x1", "t", 1), at + 1) for at in range(MOST)])
    with pytest.raises(CheckCondition, match="5/55/04"):
        state.register(A, 0, 1)
    assert decode(encode(state)) == state


def test_the_record_of_a_large_cluster_fits_on_ext4() -> None:
    dice = random.Random(5)
    state = State()
    for _ in range(64):
        name = f"iqn.1991-05.com.microsoft:node{dice.randrange(1000)}.example.org,i,0x{dice.getrandbits(48):012x}"
        state.register(Port(name, "iqn.2026-12.org.example:disks", 1), 0, dice.getrandbits(64))
    assert len(encode(state)) < 3000  # of about 4000 for all xattrs of a file


@pytest.mark.parametrize("at", [0, 4, 10, 30, -1])
def test_a_record_with_a_wrong_byte_is_refused(at: int) -> None:
    record = bytearray(encode(three(Kind.WRITE_EXCLUSIVE)))
    record[at] ^= 0x10
    with pytest.raises(CorruptRecord):
        decode(bytes(record))


def test_a_record_of_nonsense_is_refused() -> None:
    for state in (
        State(kind=2),
        State(kind=1),
        State(holder=A),
        State(kind=1, holder=A),
        State(kind=7),
        State(registrations=[Registration(A, 0)]),
        State(registrations=[Registration(A, 1), Registration(A, 1)]),
    ):
        with pytest.raises(CorruptRecord):
            decode(encode(state))
    for record in (b"", b"GXPR", encode(State())[:-1]):
        with pytest.raises(CorruptRecord):
            decode(record)
