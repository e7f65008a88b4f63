"""RESERVE, RELEASE and PERSISTENT RESERVE by commands, over restarts, and by two gateways on one volume."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from glustx.errors import GraphError
from glustx.runtime import turn
from glustx.scsi.gateway import Gateway
from glustx.scsi.pr_commands import transport_id
from glustx.scsi.pr_store import KEY
from glustx.scsi.reservations import LEASE
from glustx.scsi.task import CONFLICT, GOOD, TASK_ABORTED, Nexus, Result
from glustx.xlators.features.locks import Locks
from tests.conftest import ExpectedLogs
from tests.scsi_kit import NAME, Rig, cdb_10

LOCKS = "volume m\n type storage/memory\nend-volume\nvolume l\n type features/locks\n subvolumes m\nend-volume\n"
KEY_1, KEY_2 = 0x1122334455667788, 0xFFEEDDCCBBAA9988
WE, EA, WE_RO, EA_RO, WE_AR, EA_AR = 1, 3, 5, 6, 7, 8
REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, ABORT, IGNORE, MOVE = range(8)
READ, WRITE = cdb_10(0x28, 0, 1), cdb_10(0x2A, 0, 1)
TWO = "iqn.2026-12.org.example:two,i,0x000000000002"


def out(action: int, kind: int = 0, length: int = 24) -> bytes:
    return bytes([0x5F, action, kind, 0, 0]) + length.to_bytes(4, "big") + b"\0"


def keys(key: int, action_key: int = 0, flags: int = 0) -> bytes:
    return struct.pack(">QQIB3x", key, action_key, 0, flags)


def inquire(action: int, allocation: int = 512) -> bytes:
    return bytes([0x5E, action, 0, 0, 0, 0, 0]) + allocation.to_bytes(2, "big") + b"\0"


class Cluster(Rig):
    """A rig with a second initiator and short words for what they do."""

    def __init__(self, volfile: str = LOCKS) -> None:
        super().__init__(volfile)
        self.other = self.login(TWO)

    def out(self, nexus: Nexus, action: int, key: int, action_key: int = 0, kind: int = 0, flags: int = 0) -> int:
        return self.run(out(action, kind), keys(key, action_key, flags), nexus=nexus).status

    def keys(self, nexus: Nexus | None = None) -> list[int]:
        data = self.good(inquire(0), nexus=nexus)
        return [int.from_bytes(data[at : at + 8], "big") for at in range(8, len(data), 8)]

    def generation(self) -> int:
        return int.from_bytes(self.good(inquire(0, 4)), "big")

    def told(self, nexus: Nexus) -> list[tuple[int, int]]:
        """The unit attentions of a nexus, taken away."""
        found = [(each.asc, each.ascq) for each in nexus.attentions.pop(self.unit, [])]
        return sorted(found)

    def may(self, nexus: Nexus) -> str:
        """Which of reading and writing a nexus may do."""
        read = self.run(READ, nexus=nexus).status
        write = self.run(WRITE, bytes(512), nexus=nexus).status
        assert {read, write} <= {GOOD, CONFLICT.status}
        return ("r" if read == GOOD else "-") + ("w" if write == GOOD else "-")

    def restart(self) -> None:
        """The gateway again, on the same graph."""
        self.reactor.wait(self.gateway.stop())
        self.again()

    def again(self) -> None:
        self.gateway = Gateway({"m": self.graph.top}, self.reactor)
        self.reactor.wait(self.gateway.start([self.config]))
        self.target = self.gateway.targets[NAME]
        self.unit = self.target.units[0]
        self.nexus = self.login(self.nexus.initiator)
        self.other = self.login(TWO)


@pytest.fixture(params=["locks", "without locks"])
def pair(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster() if request.param == "locks" else Cluster(LOCKS.partition("volume l")[0])
    yield cluster
    cluster.close()


# -- RESERVE and RELEASE ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcodes", [(0x16, 0x17), (0x56, 0x57)])
def test_reserve_keeps_others_out_until_release(pair: Cluster, opcodes: tuple[int, int]) -> None:
    take, give = (bytes([each]) + bytes(5 if each < 0x20 else 9) for each in opcodes)
    for _ in range(2):
        pair.good(take)
    assert pair.may(pair.nexus) == "rw" and pair.may(pair.other) == "--"
    assert pair.run(take, nexus=pair.other).status == CONFLICT.status
    assert pair.run(inquire(0), nexus=pair.other).status == CONFLICT.status
    pair.good(give, nexus=pair.other)
    assert pair.may(pair.other) == "--"
    pair.good(give)
    assert pair.may(pair.other) == "rw"
    pair.good(take, nexus=pair.other)
    assert pair.may(pair.nexus) == "--"


@pytest.mark.parametrize("how", ["lost", "unit reset", "target reset"])
def test_reserve_ends_with_its_nexus_and_by_a_reset(pair: Cluster, how: str) -> None:
    pair.good("160000000000")
    assert pair.may(pair.other) == "--"
    if how == "lost":
        turn(pair.target.lose, pair.nexus)
    else:
        turn(pair.target.manage, pair.nexus, 5 if how == "unit reset" else 6, 0)
    pair.other.attentions.clear()
    pair.good("160000000000", nexus=pair.other)


def test_reserve_beside_registrations_is_for_those_who_may_write(pair: Cluster) -> None:
    assert pair.out(pair.nexus, REGISTER, 0, KEY_1) == GOOD
    pair.good("160000000000")
    assert pair.may(pair.other) == "rw", "it reserves nothing then"
    assert pair.run("160000000000", nexus=pair.other).status == CONFLICT.status
    assert pair.run("170000000000", nexus=pair.other).status == CONFLICT.status
    pair.good("170000000000")


# -- PERSISTENT RESERVE ----------------------------------------------------------------------------------------------


def test_a_key_comes_back_whole_and_the_length_is_that_of_all_keys(pair: Cluster) -> None:
    assert pair.out(pair.nexus, IGNORE, 0, KEY_1) == GOOD
    assert pair.out(pair.other, REGISTER, 0, KEY_2) == GOOD
    assert pair.good(inquire(0)) == struct.pack(">IIQQ", 2, 16, KEY_1, KEY_2)
    for short in (0, 7, 8, 12):
        assert pair.good(inquire(0, short)) == struct.pack(">IIQQ", 2, 16, KEY_1, KEY_2)[:short]
    assert pair.out(pair.nexus, REGISTER, KEY_2, 5) == CONFLICT.status
    assert pair.out(pair.nexus, REGISTER, KEY_1, 5) == GOOD
    assert pair.out(pair.nexus, REGISTER, 5, 0) == GOOD
    assert pair.keys() == [KEY_2]


@pytest.mark.parametrize(
    ("kind", "registered", "stranger"),
    [
        (WE, "r-", "r-"),
        (EA, "--", "--"),
        (WE_RO, "rw", "r-"),
        (EA_RO, "rw", "--"),
        (WE_AR, "rw", "r-"),
        (EA_AR, "rw", "--"),
    ],
)
def test_each_type_lets_through_what_it_should(pair: Cluster, kind: int, registered: str, stranger: str) -> None:
    assert pair.out(pair.nexus, REGISTER, 0, KEY_1) == pair.out(pair.other, REGISTER, 0, KEY_2) == GOOD
    assert pair.out(pair.nexus, RESERVE, KEY_1, kind=kind) == GOOD
    key = 0 if kind in (WE_AR, EA_AR) else KEY_1
    assert pair.good(inquire(1)) == struct.pack(">IIQIBBH", 2, 16, key, 0, 0, kind, 0)
    assert pair.may(pair.nexus) == "rw" and pair.may(pair.other) == registered
    assert pair.out(pair.other, REGISTER, KEY_2, 0) == GOOD
    assert pair.may(pair.other) == stranger
    assert pair.out(pair.other, RESERVE, KEY_2, kind=kind) == CONFLICT.status
    assert pair.out(pair.nexus, RELEASE, KEY_1, kind=kind) == GOOD
    assert pair.good(inquire(1)) == struct.pack(">II", 3, 0)
    assert pair.may(pair.other) == "rw"
    assert pair.told(pair.nexus) == pair.told(pair.other) == []


def test_news_go_to_the_others_alone(pair: Cluster) -> None:
    one, two = pair.nexus, pair.other
    pair.out(one, REGISTER, 0, KEY_1)
    pair.out(two, REGISTER, 0, KEY_2)
    pair.out(one, RESERVE, KEY_1, kind=WE_RO)
    pair.out(one, RELEASE, KEY_1, kind=WE_RO)
    assert (pair.told(one), pair.told(two)) == ([], [(0x2A, 0x04)])
    pair.out(one, RESERVE, KEY_1, kind=WE)
    assert pair.out(two, PREEMPT, KEY_2, KEY_1, kind=WE) == GOOD
    assert (pair.told(one), pair.told(two)) == ([(0x2A, 0x05)], [])
    assert pair.may(one) == "r-" and pair.may(two) == "rw"
    pair.out(one, REGISTER, 0, KEY_1)
    assert pair.out(one, CLEAR, KEY_1) == GOOD
    assert (pair.told(one), pair.told(two)) == ([], [(0x2A, 0x03)])
    assert pair.keys() == [] and pair.may(one) == "rw"


def test_generation_counts_what_changes_registrations(pair: Cluster) -> None:
    one = pair.nexus
    steps = (
        (REGISTER, 0, 1, 0),
        (RESERVE, 1, 0, WE),
        (RELEASE, 1, 0, WE),
        (IGNORE, 0, 2, 0),
        (PREEMPT, 2, 2, WE),
        (REGISTER, 0, 0, 0),
        (REGISTER, 0, 3, 0),
        (CLEAR, 3, 0, 0),
    )
    seen = []
    for action, key, action_key, kind in steps:
        assert pair.out(one, action, key, action_key, kind) == GOOD
        seen.append(pair.generation())
    assert seen == [1, 1, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("told", [False, True])
def test_preempt_and_abort_ends_tasks(pair: Cluster, told: bool) -> None:
    pair.unit.modes.report_aborts = told
    pair.out(pair.nexus, REGISTER, 0, KEY_1)
    pair.out(pair.other, REGISTER, 0, KEY_2)
    hold = pair.unit.order.enter(0, 10, True, 1)
    _, stuck = pair.begin(WRITE, b"x" * 512, nexus=pair.other)
    _, abort = pair.begin(out(ABORT, WE), keys(KEY_1, KEY_2))
    pair.reactor.run()
    assert stuck.done and (stuck.result.status if stuck.result else None) == (TASK_ABORTED if told else None)
    assert not abort.done, "what has begun is still under way"
    turn(pair.unit.order.leave, hold)
    assert pair.wait(abort).status == GOOD
    assert pair.told(pair.other) == [(0x2A, 0x05)] + ([] if told else [(0x2F, 0x00)]) and pair.told(pair.nexus) == []
    assert bytes(pair.reactor.wait(pair.unit.backing.read(0, 512))) == bytes(512)


def test_parameters_that_cannot_be(pair: Cluster) -> None:
    def sense(cdb: bytes, data: bytes) -> str:
        return str(pair.sense(cdb, data))

    assert sense(out(REGISTER, length=23), bytes(23)) == "5/1A/00"
    assert sense(out(REGISTER, length=25), bytes(25)) == "5/1A/00"
    assert sense(out(REGISTER), bytes(8)) == "5/1A/00"
    assert sense(out(RESERVE, 2), keys(0)) == "5/24/00"
    assert sense(out(RESERVE, 0x11), keys(0)) == "5/24/00"
    assert sense(out(PREEMPT, WE), keys(0, flags=8)) == "5/24/00"
    assert sense(out(IGNORE), keys(0, 1, flags=8)) == "5/24/00"
    assert sense(out(8), keys(0)) == "5/24/00"
    for action in range(4, 32):
        assert sense(inquire(action), b"") == "5/24/00"
    pair.out(pair.nexus, REGISTER, 0, KEY_1)
    assert sense(out(PREEMPT, WE), keys(KEY_1, 0)) == "5/26/00"
    pair.out(pair.nexus, RESERVE, KEY_1, kind=WE)
    assert sense(out(RELEASE, EA), keys(KEY_1)) == "5/26/04"
    assert pair.keys() == [KEY_1]


def test_capabilities_and_full_status(pair: Cluster) -> None:
    assert pair.good(inquire(2)) == bytes.fromhex("0008 1d 90 ea01 0000")
    pair.out(pair.nexus, REGISTER, 0, KEY_1, flags=1)
    pair.out(pair.other, REGISTER, 0, KEY_2, flags=4)
    assert pair.good(inquire(2)) == bytes.fromhex("0008 1d 90 ea01 0000")
    pair.out(pair.nexus, RESERVE, KEY_1, kind=EA_RO)
    name = transport_id(pair.nexus.initiator)
    two = transport_id(TWO)
    assert pair.good(inquire(3)) == (
        struct.pack(">II", 2, 48 + len(name) + len(two))
        + struct.pack(">QIBB4xHI", KEY_1, 0, 1, EA_RO, 1, len(name))
        + name
        + struct.pack(">QIBB4xHI", KEY_2, 0, 2, 0, 0, len(two))
        + two
    )
    assert len(name) % 4 == 0 and name[:1] == b"\x45"


def test_a_transport_id_has_at_least_24_bytes() -> None:
    assert transport_id("iqn.x,i,0x1") == b"\x45\0\0\x14iqn.x,i,0x1" + bytes(9)


def test_register_and_move(pair: Cluster) -> None:
    def move(to: bytes, relative: int = 1, flags: int = 0, size: int | None = None) -> Result:
        size = len(to) if size is None else size
        data = struct.pack(">QQBBHI", KEY_1, KEY_2, 0, flags, relative, size) + to
        return pair.run(out(MOVE, length=len(data)), data)

    two = transport_id(TWO)
    assert move(two).status == CONFLICT.status
    pair.out(pair.nexus, REGISTER, 0, KEY_1)
    assert move(two).status == CONFLICT.status, "it holds nothing"
    pair.out(pair.nexus, RESERVE, KEY_1, kind=EA)
    for wrong in (move(two, 7), move(two, size=20), move(b"\x05" + two[1:]), move(transport_id("iqn.x"))):
        assert wrong.sense is not None and wrong.sense.key == 5
    assert move(two, flags=2).status == GOOD
    assert pair.keys() == [KEY_2]
    assert pair.may(pair.nexus) == "--" and pair.may(pair.other) == "rw"


def test_register_for_others(pair: Cluster) -> None:
    two = transport_id(TWO)
    data = keys(0, KEY_1, flags=8) + len(two).to_bytes(4, "big") + two
    assert pair.run(out(REGISTER, length=len(data)), data).status == GOOD
    assert pair.keys() == [KEY_1, KEY_1]
    assert pair.out(pair.other, RESERVE, KEY_1, kind=WE) == GOOD
    for wrong in (data[:-1], data[:26], keys(KEY_1, KEY_2, flags=8) + struct.pack(">I", 8) + two[:8]):
        assert pair.sense(out(REGISTER, length=len(wrong)), wrong).key == 5


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_aptpl_survives_a_restart_and_nothing_else_does(pair: Cluster) -> None:
    pair.out(pair.nexus, REGISTER, 0, KEY_1, flags=1)
    pair.out(pair.nexus, RESERVE, KEY_1, kind=EA)
    assert pair.good(inquire(2))[3] & 1
    pair.restart()
    assert pair.keys() == [KEY_1] and pair.generation() == 0
    assert pair.may(pair.nexus) == "rw" and pair.may(pair.other) == "--"
    assert pair.out(pair.nexus, REGISTER, KEY_1, KEY_2, flags=0) == GOOD
    pair.restart()
    assert pair.keys() == [] and pair.may(pair.other) == "rw"
    pair.restart()
    assert pair.keys() == []


def test_a_corrupt_record_refuses_the_unit(pair: Cluster, expected_logs: ExpectedLogs) -> None:
    pair.out(pair.nexus, REGISTER, 0, KEY_1, flags=1)
    backing = pair.unit.backing
    record = pair.reactor.wait(backing.get_record(KEY))
    assert record is not None
    pair.reactor.wait(backing.set_record(KEY, bytes(record[:-1]) + b"\0"))
    if pair.unit.reservations.store.shared:
        expected_logs.expect("checksum does not fit .* commands are refused")
        pair.reactor.advance(LEASE)
        assert str(pair.sense(WRITE, bytes(512))) == "4/44/00", "what is not known cannot be judged"
        assert str(pair.sense(out(IGNORE), keys(0, 1))) == "4/44/00"
    with pytest.raises(GraphError, match=r"/disk.*checksum.*trusted\.glustx\.scsi-pr"):
        pair.restart()
    again = Gateway({"m": pair.graph.top}, pair.reactor)
    with pytest.raises(GraphError):
        pair.reactor.wait(again.start([pair.config]))


# -- several gateways -------------------------------------------------------------------------------------------------


class Gateways:
    """Two gateways on one volume: an initiator at each."""

    def __init__(self) -> None:
        self.first = Cluster()
        self.second = Cluster.__new__(Cluster)
        self.second.__dict__.update(self.first.__dict__)
        self.second.again()
        self.reactor = self.first.reactor

    def wait_out(self, rig: Cluster, nexus: Nexus, *args: int, kind: int = 0) -> int:
        """Do a PERSISTENT RESERVE OUT; its wait for the other gateway passes."""
        _, pending = rig.begin(out(args[0], kind), keys(*args[1:]), nexus=nexus)
        self.reactor.run()
        if not pending.done:
            self.reactor.advance(2 * LEASE)
        return rig.wait(pending).status

    def close(self) -> None:
        self.reactor.wait(self.second.gateway.stop())
        self.first.close()


@pytest.fixture
def both() -> Iterator[Gateways]:
    gateways = Gateways()
    yield gateways
    gateways.close()


def test_gateways_share_reservations(both: Gateways) -> None:
    first, second = both.first, both.second
    assert both.wait_out(first, first.nexus, REGISTER, 0, KEY_1) == GOOD
    assert second.keys() == [KEY_1]
    assert both.wait_out(second, second.other, REGISTER, 0, KEY_2) == GOOD
    assert both.wait_out(first, first.nexus, RESERVE, KEY_1, kind=WE_RO) == GOOD
    assert second.may(second.other) == "rw"
    assert second.may(second.nexus) == "rw", "the same initiator port by another gateway is the same nexus"
    stranger = second.login("iqn.2026-12.org.example:three,i,0x000000000003")
    assert second.may(stranger) == "r-"
    assert both.wait_out(second, second.other, PREEMPT, KEY_2, KEY_1, kind=EA) == GOOD
    assert first.may(first.other) == "rw"
    both.reactor.advance(LEASE)
    assert first.told(first.nexus) == [(0x2A, 0x05)]
    assert first.may(first.nexus) == "--"
    assert first.keys(first.other) == [KEY_2]


def test_a_right_that_is_taken_is_gone_everywhere_when_it_is_answered(both: Gateways) -> None:
    first, second = both.first, both.second
    assert second.may(second.other) == "rw"
    both.wait_out(first, first.nexus, REGISTER, 0, KEY_1)
    _, pending = first.begin(out(RESERVE, EA), keys(KEY_1))
    both.reactor.run()
    assert not pending.done, "the other gateway may not know yet"
    both.reactor.advance(LEASE)
    assert not pending.done
    both.reactor.advance(LEASE)
    assert pending.done
    assert second.may(second.other) == "--"


def test_nobody_waits_for_a_gateway_that_is_gone(both: Gateways) -> None:
    both.reactor.wait(both.second.gateway.stop())
    first = both.first
    assert first.out(first.nexus, REGISTER, 0, KEY_1) == first.out(first.nexus, RESERVE, KEY_1, kind=WE) == GOOD


def test_registrations_live_as_long_as_any_gateway(both: Gateways) -> None:
    both.wait_out(both.first, both.first.nexus, REGISTER, 0, KEY_1)
    both.first.restart()
    assert both.first.keys() == [KEY_1]
    assert both.first.generation() == 1
    both.reactor.wait(both.second.gateway.stop())
    both.first.restart()
    assert both.first.keys() == []


def test_an_abort_at_one_gateway_ends_tasks_at_the_other(both: Gateways) -> None:
    first, second = both.first, both.second
    both.wait_out(first, first.nexus, REGISTER, 0, KEY_1)
    both.wait_out(second, second.other, REGISTER, 0, KEY_2)
    hold = second.unit.order.enter(0, 10, True, 1)
    _, stuck = second.begin(WRITE, b"x" * 512, nexus=second.other)
    assert both.wait_out(first, first.nexus, ABORT, KEY_1, KEY_2, kind=WE) == GOOD
    assert stuck.done and stuck.result is not None and stuck.result.status == TASK_ABORTED
    assert second.told(second.other) == [(0x2A, 0x05)]
    turn(second.unit.order.leave, hold)


def test_a_record_that_cannot_be_written_changes_nothing() -> None:
    full = (
        "volume m\n type storage/memory\nend-volume\n"
        "volume e\n type debug/error-gen\n option failure 100\n option enable FSETXATTR\n option error-no ENOSPC\n"
        " subvolumes m\nend-volume\n"
    )
    cluster = Cluster(full)
    try:
        assert str(cluster.sense(out(REGISTER), keys(0, KEY_1))) == "5/55/04"
        assert cluster.keys() == [] and cluster.generation() == 0
    finally:
        cluster.close()


def test_a_gateway_finds_reservations_again_after_its_connection_was_lost(both: Gateways) -> None:
    first, second = both.first, both.second
    both.wait_out(first, first.nexus, REGISTER, 0, KEY_1)
    locks = first.graph.top.xlator
    assert isinstance(locks, Locks)
    turn(locks.locks.client_gone, "")
    assert first.reactor.wait(first.unit.reservations.store.alone())
    both.reactor.advance(2 * LEASE)
    assert second.may(second.other) == first.may(first.other) == "rw"
    assert not first.reactor.wait(first.unit.reservations.store.alone()), "each has said again that it is there"
    assert not second.reactor.wait(second.unit.reservations.store.alone())
