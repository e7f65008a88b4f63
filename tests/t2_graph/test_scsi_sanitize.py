"""SANITIZE: what it does to the data, what it says meanwhile, what a failure or a restart in between makes of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from glustx import fops
from glustx.runtime import Waiter
from glustx.scsi.gateway import Gateway
from glustx.scsi.target import Function
from glustx.scsi.task import GOOD
from tests.scsi_kit import NAME, Faulty, Rig, cdb_10

BS = 512
MIB = 1 << 20
READY = bytes(6)
ERASE, EXIT = 0x02, 0x1F


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(size=4 * MIB)
    rig.good(cdb_10(0x2A, 0, 64), b"a" * 64 * BS)
    rig.good(cdb_10(0x2A, 8191, 1), b"z" * BS)
    yield rig
    rig.close()


def sanitize(action: int, flags: int = 0, length: int = 0) -> bytes:
    return bytes([0x48, action | flags, 0, 0, 0, 0, 0]) + length.to_bytes(2, "big") + b"\0"


def overwrite(pattern: bytes, passes: int = 1, flags: int = 0) -> tuple[bytes, bytes]:
    data = bytes([passes, 0]) + len(pattern).to_bytes(2, "big") + pattern
    return sanitize(0x01, flags, len(data)), data


def triple(rig: Rig, cdb: bytes, data: bytes = b"") -> tuple[int, int, int]:
    sense = rig.sense(cdb, data)
    return sense.key, sense.asc, sense.ascq


def whole(rig: Rig) -> bytes:
    return rig.good(cdb_10(0x28, 0, 8192))


@pytest.mark.parametrize("pattern", [b"\xaa" * BS, b"\xaa\x55" * 100, b"\1\2\3", b"\0"])
def test_an_overwrite_leaves_its_pattern_everywhere(rig: Rig, pattern: bytes) -> None:
    rig.good(*overwrite(pattern))
    assert whole(rig) == (pattern * BS)[:BS] * 8192
    assert not rig.unit.backing.written
    rig.good(READY)
    assert len(rig.unit.order) == 0


def test_every_other_pass_is_inverted(rig: Rig) -> None:
    brick = Faulty(rig)
    rig.good(*overwrite(b"\x0f", 0x82))
    assert whole(rig) == b"\xf0" * 4 * MIB
    assert brick.counts[fops.Write] == 8
    assert brick.counts[fops.Fsync] >= 2


def test_a_block_erase_overwrites_data_and_frees_it(rig: Rig) -> None:
    brick = Faulty(rig)
    rig.good(sanitize(ERASE))
    assert whole(rig) == bytes(4 * MIB)
    assert 0 < brick.counts[fops.Write] <= 2
    assert rig.reactor.wait(rig.unit.backing.usage()).used == 0


@pytest.mark.parametrize("length", [*range(5), BS + 5])
def test_odd_parameter_lists_are_refused(rig: Rig, length: int) -> None:
    assert triple(rig, sanitize(1, 0, length), bytes(length)) == (5, 0x24, 0)


@pytest.mark.parametrize("head", ["00000200", "01000000", "01000204"])
def test_odd_patterns_are_refused(rig: Rig, head: str) -> None:
    data = bytes.fromhex(head) + b"\xaa" * BS
    assert triple(rig, sanitize(1, 0, len(data)), data) == (5, 0x24, 0)


def test_reserved_bits_and_other_actions_are_refused(rig: Rig) -> None:
    for cdb in (sanitize(ERASE, 0, 8), sanitize(EXIT, 0, 8), sanitize(ERASE, 0x40), b"\x48\x02\x01" + bytes(7)):
        assert triple(rig, cdb, bytes(8)) == (5, 0x24, 0)
    for action in set(range(0x20)) - {1, 2, 0x1F}:
        assert triple(rig, sanitize(action)) == (5, 0x24, 0)
    rig.unit.modes.software_protected = True
    assert triple(rig, sanitize(ERASE)) == (7, 0x27, 0x02)
    assert triple(rig, *overwrite(b"\xaa")) == (7, 0x27, 0x02)


def test_a_unit_without_the_option_does_not_know_the_command() -> None:
    rig = Rig(sanitize=False)
    try:
        assert triple(rig, sanitize(ERASE)) == (5, 0x20, 0)
    finally:
        rig.close()


def test_while_it_goes_on_the_unit_is_not_ready_and_nothing_stops_it(rig: Rig) -> None:
    brick = Faulty(rig)
    gate: Waiter[None] = Waiter()
    brick.gates[fops.Write] = gate
    task, pending = rig.begin(*overwrite(b"\xaa"))
    for cdb in (READY, cdb_10(0x28, 0, 1), bytes.fromhex("1b0000000100"), sanitize(ERASE), sanitize(EXIT)):
        sense = rig.sense(cdb)
        assert (sense.key, sense.asc, sense.ascq) == (2, 0x04, 0x1B)
    assert sense.sks == b"\x80\0\0"
    assert rig.run(bytes.fromhex("120000002400")).status == GOOD
    rig.target.manage(rig.nexus, Function.ABORT_TASK, 0, task.tag)
    rig.target.manage(rig.nexus, Function.LOGICAL_UNIT_RESET, 0)
    rig.nexus.attentions.clear()
    assert pending.done and pending.result is None
    assert triple(rig, READY) == (2, 0x04, 0x1B)
    gate.set(None)
    rig.reactor.run()
    assert whole(rig) == b"\xaa" * 4 * MIB


def test_with_immed_the_progress_is_told_until_it_is_done(rig: Rig) -> None:
    brick = Faulty(rig)
    gates: list[Waiter[None]] = [Waiter(), Waiter()]
    brick.gates[fops.Write] = gates[0]
    cdb, data = overwrite(b"\xaa", flags=0x80)
    rig.good(cdb, data)
    brick.gates[fops.Fsync] = gates[1]
    gates[0].set(None)
    rig.reactor.run()
    assert rig.sense(READY).sks == b"\x80\xff\xff"
    gates[1].set(None)
    rig.reactor.run()
    rig.good(READY)


@pytest.mark.logs("SANITIZE has failed")
def test_a_failure_stays_until_it_is_forgiven_or_another_one_succeeds(rig: Rig) -> None:
    brick = Faulty(rig)
    for flags in (0x00, 0x20):
        brick.errors[fops.Write] = errno.EIO
        cdb, data = overwrite(b"\xaa", flags=flags)
        assert triple(rig, cdb, data) == (3, 0x0C, 0)
        assert triple(rig, READY) == (3, 0x31, 0x03)
        brick.errors.clear()
        if flags:
            rig.good(sanitize(EXIT))
        else:
            assert triple(rig, sanitize(EXIT)) == (5, 0x24, 0)
            rig.good(sanitize(ERASE))
        rig.good(READY)
    rig.good(sanitize(EXIT))


@pytest.mark.logs("SANITIZE")
@pytest.mark.parametrize("fails", [False, True])
def test_a_restart_in_between_goes_on_or_remembers_the_failure(rig: Rig, fails: bool) -> None:
    brick = Faulty(rig)
    gate: Waiter[None] = Waiter()
    brick.gates[fops.Write] = gate
    cdb, data = overwrite(b"\xaa", flags=0xA0)
    rig.good(cdb, data)
    if fails:
        brick.errors[fops.Write] = errno.EIO
        gate.set(None)
        rig.reactor.run()
    rig.reactor.wait(rig.gateway.stop())
    rig.gateway = Gateway({"m": rig.graph.top}, rig.reactor)
    rig.reactor.wait(rig.gateway.start([rig.config]))
    rig.target = rig.gateway.targets[NAME]
    rig.unit = rig.target.units[0]
    rig.nexus = rig.login("iqn.2026-12.org.example:one,i,0x000000000001")
    if fails:
        assert triple(rig, READY) == (3, 0x31, 0x03)
        rig.good(sanitize(EXIT))
        rig.good(READY)
    else:
        rig.reactor.run()
        assert whole(rig) == b"\xaa" * 4 * MIB
