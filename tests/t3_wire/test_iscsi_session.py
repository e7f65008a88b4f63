"""iSCSI sessions over streams in memory: order, data both ways, residuals, task management, text, logout, limits."""

from __future__ import annotations

import random
import struct

import pytest

from glustx.iscsi import pdu as p
from glustx.iscsi.keys import Settings
from glustx.iscsi.login import FULL_FEATURE, OPERATIONAL, stage_flags
from glustx.iscsi.server import Limits, Portal
from glustx.iscsi.session import WINDOW
from glustx.iscsi.text import encode
from glustx.rpc.channel import Address
from glustx.scsi.config import AclConfig, TargetConfig
from glustx.scsi.sense import LUNS_CHANGED
from glustx.scsi.target import Function
from glustx.scsi.task import TASK_ABORTED
from tests.conftest import ExpectedLogs
from tests.iscsi import (
    BAD_CDB,
    BLOCK,
    INITIATOR,
    MASK,
    TARGET,
    TEST_UNIT_READY,
    Disk,
    Initiator,
    World,
    read_10,
    write_10,
)

SMALL = {"max_burst": 8192, "first_burst": 4096}


def pattern(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def host(world: World) -> Initiator:
    return world.logged_in()


# -- data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1 << 16, 1000, 1])
@pytest.mark.parametrize("digests", [("None",), ("CRC32C",)])
@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize("initial_r2t", [True, False])
def test_what_is_written_is_read(chunk: int, digests: tuple[str, ...], immediate: bool, initial_r2t: bool) -> None:
    """All ways that data can take, whatever the pieces that a stream comes in."""
    world = World(chunk=chunk, settings=Settings(max_recv=4096, max_burst=16384, first_burst=8192))
    host = world.logged_in(
        header_digest=digests, data_digest=digests, immediate_data=immediate, initial_r2t=initial_r2t, max_recv=1536
    )
    for blocks in (1, 9, 17) if chunk == 1 else (1, 2, 3, 8, 9, 16, 17, 31, 64, 200):
        data = pattern(blocks * BLOCK, blocks)
        assert host.write(3, data).status == 0
        assert host.read(3, blocks).data == data
    assert host.nothing() and not world.server.memory.budget.used


@pytest.mark.parametrize("size", [65536, 262144, 300000 // BLOCK * BLOCK, 1 << 20, 3 << 20])
@pytest.mark.parametrize("digests", [("None",), ("CRC32C",)])
@pytest.mark.parametrize("immediate", [True, False])
def test_large_data(world: World, size: int, digests: tuple[str, ...], immediate: bool) -> None:
    """Data that go straight from the stream to where a command keeps them."""
    host = world.logged_in(data_digest=digests, header_digest=digests, immediate_data=immediate)
    for seed in (1, 2):
        data = pattern(size, seed)
        assert host.write(seed, data).status == 0
        assert host.read(seed, size // BLOCK).data == data
    assert not world.server.memory.budget.used


def test_data_in_sequences(world: World) -> None:
    """PDUs of what the initiator takes, F at each MaxBurstLength, the status in the last one."""
    host = world.logged_in(max_recv=1024, max_burst=2560)
    answer = host.read(0, 11)
    assert [(len(pdu.data), pdu.flags) for pdu in answer.pdus] == [
        (1024, 0), (1024, 0), (512, p.FINAL), (1024, 0), (1024, 0), (512, p.FINAL), (512, p.FINAL | p.STATUS),
    ]  # fmt: skip
    world.disk.bytes[7 * BLOCK : 9 * BLOCK] = pattern(1024)
    assert host.read(7, 2).data == pattern(1024)  # in two pieces from the target


def test_r2ts_are_bounded(world: World) -> None:
    host = world.logged_in(max_outstanding_r2t=2, immediate_data=False, initial_r2t=True, **SMALL)
    data = pattern(64 * BLOCK)
    itt = host.start(write_10(0, 64), data=data)
    first, second = host.take(p.R2T_PDU), host.take(p.R2T_PDU)
    assert host.nothing()
    assert [(r.offset, r.length, r.r2t_sn) for r in (first, second)] == [(0, 8192, 0), (8192, 8192, 1)]
    assert first.ttt != second.ttt and p.NO_TAG not in (first.ttt, second.ttt)
    host.sequence(itt, second.ttt, 8192, data[8192:16384])  # sequences may overtake each other
    third = host.take(p.R2T_PDU)
    assert (third.offset, third.r2t_sn) == (16384, 2)
    host.sequence(itt, first.ttt, 0, data[:8192])
    host.sequence(itt, third.ttt, 16384, data[16384:24576])
    fourth = host.take(p.R2T_PDU)
    host.sequence(itt, fourth.ttt, 24576, data[24576:])
    assert host.finish(itt).status == 0
    assert bytes(world.disk.bytes[: len(data)]) == data


def test_status_waits_for_all_of_an_unsolicited_burst(world: World) -> None:
    host = world.logged_in(**SMALL)
    data = pattern(4096)
    itt = host.start(write_10(0, 8), data=data, immediate_data=data[:512], final=False)
    host.data_out(itt, p.NO_TAG, 0, 512, data[512:1024], False)
    assert host.nothing()
    host.data_out(itt, p.NO_TAG, 1, 1024, data[1024:2048], True)
    answer = host.finish(itt, data)  # an early F leaves the rest to an R2T
    assert answer.status == 0 and [pdu.opcode for pdu in answer.pdus] == [p.R2T_PDU, p.SCSI_RESPONSE]
    assert (answer.pdus[0].offset, answer.pdus[0].length) == (2048, 2048)
    assert bytes(world.disk.bytes[:4096]) == data


@pytest.mark.parametrize(
    ("blocks", "length", "status", "got"),
    [(1, 512, "", 512), (1, 1024, "U512", 512), (1, 256, "O256", 256), (1, 0, "O512", 0), (1, 200, "O312", 200),
     (1, 10000, "U9488", 512), (2, 512, "O512", 512), (0, 512, "U512", 0)],
)  # fmt: skip
def test_residuals_of_reads(host: Initiator, world: World, blocks: int, length: int, status: str, got: int) -> None:
    world.disk.bytes[:2048] = pattern(2048)
    answer = host.read(0, blocks, length=length)
    assert answer.status == 0 and answer.data == pattern(2048)[:got]
    assert residual(answer) == status


@pytest.mark.parametrize(
    ("length", "status", "written"),
    [(1024, "", 1024), (2048, "U1024", 1024), (512, "O512", 512), (0, "O1024", 0), (200, "O824", 200)],
)
@pytest.mark.parametrize("immediate", [True, False])
def test_residuals_of_writes(world: World, length: int, status: str, written: int, immediate: bool) -> None:
    host = world.logged_in(immediate_data=immediate, initial_r2t=True)
    data = pattern(2048)[:length]
    itt = host.start(write_10(0, 2), data=data, length=length, immediate_data=data if immediate else b"")
    answer = host.finish(itt, data)
    assert answer.status == 0 and residual(answer) == status
    assert bytes(world.disk.bytes[:2048]) == pattern(2048)[:written] + bytes(2048 - written)


def residual(answer: object) -> str:
    mark = "O" if answer.overflow else "U" if answer.underflow else ""  # type: ignore[attr-defined]
    return f"{mark}{answer.residual}" if mark else ""  # type: ignore[attr-defined]


def test_residuals_of_failures(host: Initiator) -> None:
    answer = host.do(BAD_CDB, read=512)
    assert (answer.status, answer.code, residual(answer)) == (2, "5/20/00", "U512")
    answer = host.do(read_10(0, 1), read=512, lun=3)
    assert (answer.code, residual(answer)) == ("5/25/00", "U512")
    answer = host.do(write_10(0, 1), data=bytes(512), lun=3, immediate_data=bytes(512))
    assert (answer.code, residual(answer)) == ("5/25/00", "U512")


def test_data_that_a_refused_command_did_not_want(world: World) -> None:
    """The status comes after the last of the unsolicited data, which are thrown away."""
    host = world.logged_in(**SMALL)
    itt = host.start(write_10(0, 4), data=bytes(2048), lun=5, immediate_data=bytes(512), final=False)
    assert host.nothing()
    host.data_out(itt, p.NO_TAG, 0, 512, bytes(1536), True)
    assert host.finish(itt).code == "5/25/00"
    assert host.do(TEST_UNIT_READY).status == 0


def test_a_direction_that_does_not_go_with_the_cdb(host: Initiator, world: World) -> None:
    answer = host.do(write_10(0, 1), read=512)
    assert (answer.status, answer.code) == (2, "5/0e/03")
    assert not any(world.disk.bytes)
    answer = host.do(read_10(0, 1), data=bytes(512), immediate_data=bytes(512))
    assert (answer.status, answer.data, residual(answer)) == (0, b"", "U512")


@pytest.mark.logs("an additional header segment of type 9")
def test_an_extended_cdb(host: Initiator, world: World) -> None:
    extended = bytes.fromhex("00090100") + bytes(range(8))
    assert host.do(b"\x7f" + bytes(15), ahs=extended).code == "5/20/00"
    assert world.disk.ran[-1].cdb == b"\x7f" + bytes(15) + bytes(range(8))
    host.start(TEST_UNIT_READY, ahs=bytes.fromhex("0005090000000000"))
    assert host.take(p.REJECT).reason == p.Reason.FIELD
    assert host.do(TEST_UNIT_READY).status == 0


# -- wrong data-out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digests", [("None",), ("CRC32C",)])
@pytest.mark.parametrize(
    "sends",
    [
        [(0, 0, 512, False), (0, 512, 512, True)],
        [(27, 0, 1024, True)],
        [(MASK, 0, 1024, True)],
        [(1, 0, 512, False), (0, 512, 512, True)],
        [(0, 512, 512, False), (1, 0, 512, True)],
        [(0, 0, 512, True)],
        [(0, 0, 512, False), (1, 512, 1024, True)],
        [(0, 0, 1024, False), (1, 1024, 512, True)],
    ],
)  # fmt: skip
def test_wrong_sequences_fail(world: World, sends: list[tuple[int, int, int, bool]], digests: tuple[str, ...]) -> None:
    """A write is never GOOD when DataSN, offset or length of its data are wrong; the session goes on."""
    host = world.logged_in(immediate_data=False, initial_r2t=True, data_digest=digests)
    itt = host.start(write_10(0, 2), data=bytes(1024))
    ttt = host.take(p.R2T_PDU).ttt
    for sn, offset, size, final in sends:
        host.data_out(itt, ttt, sn, offset, b"\xee" * size, final)
    answer = host.finish(itt)
    assert (answer.status, answer.code) == (2, "b/4b/00")
    assert not world.disk.ran and not world.server.memory.budget.used
    assert host.do(TEST_UNIT_READY).status == 0


def test_unsolicited_data_that_were_not_agreed_on(world: World) -> None:
    host = world.logged_in(immediate_data=False, initial_r2t=True)
    itt = host.start(write_10(0, 1), data=bytes(512), immediate_data=bytes(512))
    assert host.finish(itt).code == "b/0c/0c"
    itt = host.start(write_10(0, 1), data=bytes(512), final=False)
    host.data_out(itt, p.NO_TAG, 0, 0, bytes(512), True)
    assert host.finish(itt).code == "b/0c/0c"
    host = world.logged_in(number=2, first_burst=512)
    itt = host.start(write_10(0, 2), data=bytes(1024), immediate_data=bytes(1024))
    assert host.finish(itt).code == "b/0c/0c"
    itt = host.start(write_10(0, 2), data=bytes(1024), immediate_data=bytes(512), final=False)
    host.data_out(itt, p.NO_TAG, 0, 512, bytes(512), True)
    assert host.finish(itt).code == "b/4b/00"


def test_data_of_nobody_are_thrown_away(host: Initiator) -> None:
    host.data_out(999, p.NO_TAG, 0, 0, bytes(100), True)
    host.data_out(999, 77, 0, 0, bytes(20000), True)
    assert host.nothing() and host.do(TEST_UNIT_READY).status == 0


def test_spoiled_data(world: World) -> None:
    host = world.logged_in(data_digest=("CRC32C",), initial_r2t=True)
    for size in (512, 65536):
        itt = host.start(write_10(0, size // 512), data=bytes(size), immediate_data=bytes(size), spoil="data")
        rejected = host.take(p.REJECT)
        assert (rejected.reason, rejected.data[0], rejected.data[16:20]) == (2, 1, struct.pack(">I", itt))
        assert host.finish(itt).code == "b/47/05"
        itt = host.start(write_10(0, size // 512), data=bytes(size))
        ttt = host.take(p.R2T_PDU).ttt
        host.data_out(itt, ttt, 0, 0, bytes(size), True, spoil="data")
        assert host.take(p.REJECT).reason == 2
        assert host.finish(itt).code == "b/47/05"
    host.send(p.NopOut(itt=5, cmd_sn=host.next_sn()), b"data", spoil="data")
    assert host.take(p.REJECT).reason == 2
    assert not world.disk.ran and not world.server.memory.budget.used
    assert host.do(TEST_UNIT_READY).status == 0


@pytest.mark.logs("header that does not fit its digest")
@pytest.mark.parametrize("size", [0, 65536])
def test_a_spoiled_header_ends_the_connection(world: World, size: int) -> None:
    host = world.logged_in(header_digest=("CRC32C",))
    host.start(write_10(0, size // 512), data=bytes(size), immediate_data=bytes(size), spoil="header")
    assert host.gone and not world.server.sessions and not world.disk.ran
    assert not world.server.memory.budget.used


# -- order --------------------------------------------------------------------------------------------------------


def test_outside_the_window_nothing_is_heard(host: Initiator, world: World) -> None:
    for cmd_sn in (host.cmd_sn - 1, host.max_cmd_sn + 1, host.cmd_sn + (1 << 31)):
        host.start(TEST_UNIT_READY, cmd_sn=cmd_sn & MASK)
        host.send(p.NopOut(itt=host.tag(), cmd_sn=cmd_sn & MASK))
        assert host.nothing()
    assert host.do(TEST_UNIT_READY).status == 0 and len(world.disk.ran) == 1


def test_the_window_closes_and_opens(host: Initiator, world: World) -> None:
    world.disk.holding = True
    tags = [host.start(TEST_UNIT_READY) for _ in range(WINDOW)]
    assert host.nothing() and len(world.disk.held) == WINDOW
    assert host.ping().max_cmd_sn == (host.cmd_sn - 1) & MASK  # closed: MaxCmdSN is ExpCmdSN - 1
    host.start(TEST_UNIT_READY, cmd_sn=host.cmd_sn)
    assert host.nothing() and len(world.disk.held) == WINDOW
    world.disk.let_go()
    assert [host.take(p.SCSI_RESPONSE).itt for _ in tags] == tags
    assert host.do(TEST_UNIT_READY).status == 0


def test_numbers_wrap_around(world: World) -> None:
    host = world.initiator()
    host.cmd_sn, host.exp_stat_sn = MASK - 2, MASK - 1
    assert host.login().status_class == 0
    for _ in range(6):
        assert host.do(TEST_UNIT_READY).status == 0
    assert host.cmd_sn == 3


def test_a_gap_is_waited_for(host: Initiator, world: World) -> None:
    early = host.next_sn()
    tags = [host.start(write_10(0, 1), data=bytes(512), immediate_data=b"\x07" * 512), host.start(TEST_UNIT_READY)]
    assert host.nothing() and not world.disk.ran
    first = host.start(TEST_UNIT_READY, cmd_sn=early)
    assert [host.take(p.SCSI_RESPONSE).itt for _ in range(3)] == [first, *tags]
    assert world.disk.bytes[0] == 7


def test_a_command_that_never_came_is_passed_over(host: Initiator) -> None:
    missing = host.next_sn()
    tag = host.start(TEST_UNIT_READY)
    assert host.nothing()
    assert host.manage(Function.ABORT_TASK, tag=4711, ref_cmd_sn=missing) == 0
    assert host.take(p.SCSI_RESPONSE).itt == tag
    assert host.manage(Function.ABORT_TASK, tag=4711, ref_cmd_sn=missing) == 1


def test_tags_in_use(host: Initiator, world: World) -> None:
    world.disk.holding = True
    itt = host.start(TEST_UNIT_READY)
    host.start(TEST_UNIT_READY, itt=itt)
    assert host.take(p.REJECT).reason == p.Reason.IN_PROGRESS
    host.start(write_10(0, 128), itt=itt, data=bytes(65536), immediate_data=bytes(65536))
    assert host.take(p.REJECT).reason == p.Reason.IN_PROGRESS
    host.start(TEST_UNIT_READY, itt=p.NO_TAG)
    assert host.take(p.REJECT).reason == p.Reason.FIELD
    world.disk.let_go()
    assert host.finish(itt).status == 0 and not world.server.memory.budget.used
    assert host.do(TEST_UNIT_READY, itt=itt).status == 0


def test_immediate_commands_are_few(host: Initiator, world: World) -> None:
    world.disk.holding = True
    tags = [host.start(TEST_UNIT_READY, immediate=True) for _ in range(33)]
    rejected = host.take(p.REJECT)
    assert rejected.reason == p.Reason.IMMEDIATE
    assert struct.unpack_from(">I", rejected.data, 16)[0] == tags[-1] and host.nothing()
    world.disk.let_go()
    assert [host.take(p.SCSI_RESPONSE).itt for _ in range(32)] == tags[:32]
    assert host.do(TEST_UNIT_READY, immediate=True).status == 0


# -- what must not come -------------------------------------------------------------------------------------------


@pytest.mark.logs("sends opcode 0x1f")
def test_other_opcodes_are_rejected(host: Initiator) -> None:
    for first, reason in ((0x5F, 5), (0x60, 4), (0x43, 5)):
        host.channel.write([bytes([first, 0x80]) + bytes(46)])
        rejected = host.take(p.REJECT)
        assert (rejected.reason, rejected.data[0], len(rejected.data)) == (reason, first, 48)
    host.send(p.Snack(itt=1))
    assert host.take(p.REJECT).reason == p.Reason.SNACK
    assert host.do(TEST_UNIT_READY).status == 0


@pytest.mark.logs("data segment of 262145 bytes; it may send 262144")
def test_a_segment_that_is_too_long(host: Initiator, world: World) -> None:
    host.channel.write([p.NopOut(immediate=True, data_length=262145).encode()])
    assert host.take(p.REJECT).reason == p.Reason.PROTOCOL
    assert host.gone and not world.server.sessions


@pytest.mark.logs("opcode 0x1 before login")
def test_a_command_before_login(world: World) -> None:
    host = world.initiator()
    host.start(TEST_UNIT_READY)
    got = host.take(p.LOGIN_RESPONSE)
    assert (got.status_class, got.status_detail) == (2, 0xB)
    assert host.gone and not world.server.connections and not world.disk.ran


@pytest.mark.parametrize("size", [48, 5000])
def test_random_bytes(expected_logs: ExpectedLogs, seeded: random.Random, size: int) -> None:
    """A stranger's noise ends its connection, or waits for more; an initiator's is answered or ends it."""
    expected_logs.expect("")
    for _ in range(30):
        world = World()
        stranger, host = world.initiator(), world.logged_in(number=2)
        stranger.channel.write([seeded.randbytes(size)])
        host.channel.write([seeded.randbytes(size)])
        world.reactor.run()
        assert world.logged_in(number=3).do(TEST_UNIT_READY).status == 0
        world.server.complaints.flush()


# -- task management ----------------------------------------------------------------------------------------------


def test_abort_task(host: Initiator, world: World) -> None:
    world.disk.holding = True
    first, second = host.start(read_10(0, 1), read=512), host.start(TEST_UNIT_READY)
    assert host.manage(Function.QUERY_TASK, tag=first) == 7
    assert host.manage(Function.ABORT_TASK, tag=first) == 0
    assert host.manage(Function.QUERY_TASK, tag=first) == 0
    assert host.manage(Function.ABORT_TASK, tag=first) == 1
    world.disk.let_go()
    assert host.finish(second).status == 0 and host.nothing()


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize("function", [1, 2, 4, 5, 6, 11])
def test_tasks_whose_data_are_on_their_way(world: World, function: int, immediate: bool) -> None:
    """They end without a status, their late data are dropped, and their memory comes back."""
    host = world.logged_in(initial_r2t=True, immediate_data=False, max_burst=65536)
    itt = host.start(write_10(0, 256), data=bytes(131072))
    ttt = host.take(p.R2T_PDU).ttt
    host.data_out(itt, ttt, 0, 0, bytes(4096), False)
    host.take(p.R2T_PDU)
    assert host.nothing() and world.server.memory.budget.used == 131072
    assert host.manage(function, tag=itt, immediate=immediate) == 0
    host.sequence(itt, ttt, 4096, bytes(61440))
    assert host.nothing() and not world.server.memory.budget.used and not world.disk.ran
    assert host.do(TEST_UNIT_READY).status == 0


@pytest.mark.parametrize("function", [4, 5, 6])
def test_resets_while_a_data_out_is_half_there(world: World, function: int) -> None:
    """Its first part lies in the task's memory already when somebody else's reset ends the task."""
    host, other = world.logged_in(initial_r2t=True, immediate_data=False), world.logged_in(number=2)
    itt = host.start(write_10(0, 128), data=bytes(65536))
    ttt = host.take(p.R2T_PDU).ttt
    raw = host.raw(p.DataOut(itt=itt, ttt=ttt), pattern(65536))
    host.channel.write([raw[:20000]])
    world.reactor.run()
    assert other.manage(function) == 0
    assert host.finish(itt).status == TASK_ABORTED  # TAS is on
    host.channel.write([raw[20000:]])
    assert host.nothing() and not world.server.memory.budget.used and not world.disk.ran
    assert host.write(0, pattern(65536, 2)).status == 0
    assert bytes(world.disk.bytes[:65536]) == pattern(65536, 2)


@pytest.mark.parametrize(("function", "answer"), [(3, 5), (8, 4), (9, 0), (10, 0), (12, 7), (0, 5), (99, 5)])
def test_other_functions(host: Initiator, function: int, answer: int) -> None:
    assert host.manage(function) == answer


def test_functions_on_a_lun_that_is_not_there(host: Initiator) -> None:
    for function in (2, 4, 5):
        assert host.manage(function, lun=9) == 2


def test_a_reset_ends_the_tasks_of_all(host: Initiator, world: World) -> None:
    other = world.logged_in(number=2)
    world.disk.holding = True
    host.start(TEST_UNIT_READY)
    theirs = other.start(TEST_UNIT_READY)
    world.reactor.run()
    assert host.manage(Function.LOGICAL_UNIT_RESET) == 0
    assert host.nothing() and other.finish(theirs).status == TASK_ABORTED  # TAS is on
    world.disk.let_go()
    assert host.nothing() and other.nothing()
    assert host.do(TEST_UNIT_READY).status == 0 and other.do(TEST_UNIT_READY).status == 0


def test_a_cold_reset_drops_all_connections(host: Initiator, world: World) -> None:
    other = world.logged_in(number=2)
    assert host.manage(Function.TARGET_COLD_RESET) == 0
    assert host.take(p.ASYNC).event == 3 and other.take(p.ASYNC).event == 3
    assert host.gone and other.gone and not world.server.sessions
    assert world.logged_in().do(TEST_UNIT_READY).status == 0


# -- NOP, async, logout -------------------------------------------------------------------------------------------


def test_pings(host: Initiator, world: World) -> None:
    assert host.ping(b"x" * 999).data == b"x" * 999
    host.send(p.NopOut(itt=77, cmd_sn=host.next_sn()), b"in order")
    assert host.take(p.NOP_IN).data == b"in order"
    host.send(p.NopOut(immediate=True, itt=p.NO_TAG, ttt=9, cmd_sn=host.cmd_sn))
    assert host.nothing()
    small = world.logged_in(number=2, max_recv=512)
    assert small.ping(b"y" * 4000).data == b"y" * 512
    world.disk.holding = True
    host.start(TEST_UNIT_READY)
    assert host.ping().data == b"ping"  # however long a command takes


def test_silent_initiators_are_asked(world: World, expected_logs: ExpectedLogs) -> None:
    host, other = world.logged_in(), world.logged_in(number=2)
    world.reactor.advance(15)
    world.reactor.advance(15)
    asked = host.take(p.NOP_IN)
    assert asked.itt == p.NO_TAG and asked.ttt != p.NO_TAG
    host.send(p.NopOut(immediate=True, itt=p.NO_TAG, ttt=asked.ttt, cmd_sn=host.cmd_sn))
    world.reactor.run()
    expected_logs.expect("does not answer; session dropped")
    world.reactor.advance(15)
    assert not host.lost and other.gone
    assert host.do(TEST_UNIT_READY).status == 0 and len(world.server.sessions) == 1


def test_asynchronous_messages(host: Initiator, world: World) -> None:
    session = next(iter(world.server.sessions.values()))
    session.nexus.notify(LUNS_CHANGED)  # type: ignore[attr-defined]
    told = host.take(p.ASYNC)
    size = int.from_bytes(told.data[:2], "big")
    assert told.event == 0 and size == 18
    assert (told.data[2 + 2] & 15, told.data[2 + 12], told.data[2 + 13]) == (6, 0x3F, 0x0E)
    session.ask_for_logout(30)
    told = host.take(p.ASYNC)
    assert (told.event, told.parameter3) == (1, 30)
    assert host.do(TEST_UNIT_READY).status == 0
    world.server.stop()
    assert host.take(p.ASYNC).event == 3
    assert host.gone and not world.server.connections and not world.disk.nexuses


@pytest.mark.parametrize(("reason", "cid", "answer"), [(0, 0, 0), (1, 0, 0), (1, 7, 1), (2, 0, 2)])
def test_logout(host: Initiator, world: World, reason: int, cid: int, answer: int) -> None:
    world.disk.holding = True
    host.start(TEST_UNIT_READY)
    host.send(p.LogoutRequest(flags=p.FINAL | reason, itt=8, cid=cid, cmd_sn=host.next_sn()))
    assert host.take(p.LOGOUT_RESPONSE).response == answer
    assert host.gone is (answer == 0) and bool(world.disk.nexuses) is (answer != 0)


def test_a_lost_connection_loses_the_nexus(host: Initiator, world: World) -> None:
    world.disk.holding = True
    host.start(TEST_UNIT_READY)
    host.start(write_10(0, 2000), data=bytes(1024000))
    world.reactor.run()
    assert world.disk.nexuses and world.server.memory.budget.used == 1024000
    host.channel.abort("pulled")
    world.reactor.run()
    assert not world.disk.nexuses and not world.server.sessions and not world.server.connections
    assert not world.server.memory.budget.used
    world.disk.let_go()


# -- sessions -----------------------------------------------------------------------------------------------------


def test_session_reinstatement(host: Initiator, world: World) -> None:
    """A rebooted initiator logs in again as it did before; only its old session ends."""
    other = world.logged_in(number=2)
    world.disk.holding = True
    host.start(TEST_UNIT_READY)
    other.start(TEST_UNIT_READY)
    world.reactor.run()
    again = world.logged_in()
    assert host.gone and not other.lost and len(world.server.sessions) == 2
    world.disk.let_go()
    assert other.take(p.SCSI_RESPONSE) and again.nothing()
    assert again.do(TEST_UNIT_READY).status == 0
    assert again.tsih not in (0, other.tsih)


def test_portals_lead_to_one_target_port(host: Initiator, world: World) -> None:
    """All portals are one group: the same initiator port through another one takes its session's place."""
    world.open_portal(Address("127.0.0.2", 3260))
    again = world.logged_in(at=Address("127.0.0.2", 3260))
    assert host.gone and len(world.server.sessions) == 1
    other = world.logged_in(number=2)
    assert again.do(TEST_UNIT_READY).status == 0 and other.do(TEST_UNIT_READY).status == 0
    assert {nexus.relative_port for nexus in world.disk.nexuses.values()} == {world.disk.config.portal_group}


@pytest.mark.logs("login refused")
def test_session_handles(host: Initiator, world: World) -> None:
    second = world.initiator()
    second.tsih = host.tsih
    got = login_with(second, cid=5)
    assert (got.status_class, got.status_detail) == (2, 6)
    stranger = world.initiator()
    stranger.tsih = 4711
    got = login_with(stranger)
    assert (got.status_class, got.status_detail) == (2, 0xA)
    assert host.do(TEST_UNIT_READY).status == 0
    same = world.initiator()
    same.tsih = host.tsih
    assert login_with(same).status_class == 0 and host.gone  # its connection is reinstated


def login_with(host: Initiator, **changes: int) -> object:
    return host.login_pdu(stage_flags(OPERATIONAL, FULL_FEATURE), encode(host.names()), **changes)


def test_three_hundred_sessions(world: World) -> None:
    hosts = [world.logged_in(f"{INITIATOR}{number // 100}", number % 100) for number in range(300)]
    assert not any(host.lost for host in hosts) and len(world.server.sessions) == 300
    for number, host in enumerate(hosts):
        assert host.write(number, pattern(512, number)).status == 0
    assert all(host.read(number, 1).data == pattern(512, number) for number, host in enumerate(hosts))
    assert len(world.server.facts()) == 300
    assert world.server.facts()[0]["written_bytes"] == 512


@pytest.mark.logs("3 others have not logged in either")
def test_strangers_are_few(expected_logs: ExpectedLogs) -> None:
    world = World(limits=Limits(strangers=3))
    host = world.logged_in()
    strangers = [world.initiator() for _ in range(100)]
    world.reactor.run()
    assert [bool(stranger.lost) for stranger in strangers] == [True] * 97 + [False] * 3
    assert len(world.server.connections) == 4
    assert host.do(TEST_UNIT_READY).status == 0
    assert world.logged_in(number=2).do(TEST_UNIT_READY).status == 0
    expected_logs.expect("more such warnings")
    world.server.complaints.flush()
    expected_logs.expect("it has not logged in for 15 s")
    world.reactor.advance(15)
    assert all(stranger.gone for stranger in strangers) and not host.lost
    assert host.do(TEST_UNIT_READY).status == 0


@pytest.mark.logs("login refused: .*wrong user or secret")
def test_wrong_secrets_ten_times(caplog: pytest.LogCaptureFixture) -> None:
    world = World(acls=[AclConfig(user="user", password="secretsecret")])
    for number in range(10):
        host = world.initiator(number=number)
        host.login_pdu(stage_flags(0), encode([*host.names(), ("AuthMethod", "CHAP")]))
        host.login_pdu(stage_flags(0), encode([("CHAP_A", "5")]))
        got = host.login_pdu(stage_flags(0, 1), encode([("CHAP_N", "user"), ("CHAP_R", "0x" + "12" * 16)]))
        assert (got.status_class, got.status_detail) == (2, 1) and host.gone
    assert world.server.complaints.total == 10
    assert sum("wrong user or secret" in line for line in caplog.messages) == 1
    assert not world.server.connections and "secretsecret" not in caplog.text


def test_too_many_sessions(expected_logs: ExpectedLogs) -> None:
    expected_logs.expect("2 sessions are enough")
    world = World(limits=Limits(sessions=2))
    hosts = [world.logged_in(number=number) for number in (1, 2)]
    third = world.initiator(number=3)
    got = third.login()
    assert (got.status_class, got.status_detail) == (3, 2) and third.gone
    assert world.logged_in(number=2).do(TEST_UNIT_READY).status == 0 and hosts[1].gone


@pytest.mark.logs("login refused: there is no target")
def test_a_target_that_is_not_there_yet() -> None:
    world = World()
    for serving, status in ((True, (2, 3)), (False, (3, 1))):
        world.server.serving = serving
        host = world.initiator()
        got = host.login(target="iqn.2026-12.org.example:other")
        assert (got.status_class, got.status_detail) == status and host.gone


@pytest.mark.logs("is at 192.0.2.1:3260")
def test_redirects() -> None:
    world = World(redirect="192.0.2.1:3260")
    host = world.initiator()
    got = host.login_pdu(stage_flags(OPERATIONAL, FULL_FEATURE), encode(host.names()))
    assert (got.status_class, got.status_detail) == (1, 1)
    assert host.login_pairs == [("TargetAddress", "192.0.2.1:3260")] and host.gone


def test_initiators_see_the_luns_of_their_rule() -> None:
    world = World(acls=[AclConfig(initiator=INITIATOR, luns={300: 0})], luns=(0, 1))
    host = world.logged_in()
    assert host.do(TEST_UNIT_READY, lun=300).status == 0
    assert host.do(read_10(0, 1), read=512, lun=1).code == "5/25/00"
    data = pattern(65536)
    itt = host.start(write_10(0, 128), data=data, lun=300, immediate_data=data)
    assert host.finish(itt).status == 0 and bytes(world.disk.bytes[:65536]) == data


# -- discovery ----------------------------------------------------------------------------------------------------


def crowd(world: World, count: int, **config: object) -> list[str]:
    names = [f"{TARGET}-{number:03}" for number in range(count)]
    for name in names:
        world.gateway.targets[name] = Disk(world.gateway, TargetConfig(name=name, **config), 1)  # type: ignore[arg-type]
    return names


def test_two_hundred_targets_in_small_pieces(world: World) -> None:
    names = crowd(world, 200)
    host = world.initiator()
    assert host.login(discovery=True, max_recv=512).status_class == 0
    told = host.text([("SendTargets", "All")])
    assert told is not None
    assert [value for key, value in told if key == "TargetName"] == [TARGET, *names]
    assert {value for key, value in told if key == "TargetAddress"} == {"127.0.0.1:3260,1"}


def test_discovery_sessions_run_no_commands(world: World, expected_logs: ExpectedLogs) -> None:
    host = world.initiator()
    assert host.login(discovery=True).status_class == 0 and not world.disk.nexuses
    expected_logs.expect("sends opcode 0x1")
    host.start(TEST_UNIT_READY)
    assert host.take(p.REJECT).reason == p.Reason.UNSUPPORTED
    assert host.ping().data == b"ping"
    host.send(p.LogoutRequest(itt=8, cmd_sn=host.next_sn() - 1))
    assert host.take(p.LOGOUT_RESPONSE).response == 0 and host.gone


@pytest.mark.logs("sends a text that is refused")
def test_send_targets_in_a_normal_session(world: World, host: Initiator) -> None:
    other = crowd(world, 1)[0]
    mine = [("TargetName", TARGET), ("TargetAddress", "127.0.0.1:3260,1")]
    theirs = [("TargetName", other), ("TargetAddress", "127.0.0.1:3260,1")]
    assert host.text([("SendTargets", "All")]) == mine + theirs
    assert host.text([("SendTargets", "")]) == mine
    assert host.text([("SendTargets", other)]) == theirs
    assert host.text([("SendTargets", "iqn.2026-12.org.example:nobody")]) == []
    assert host.text([("X-com.example", "1")]) == [("X-com.example", "NotUnderstood")]
    for key, value in (
        ("SendTargetsPlease", "All"), ("SendTargets", "Alle"), ("SendTargets", "A"), ("sENDtARGETS", "aLL"),
        ("MaxRecvDataSegmentLength", "1"),
    ):  # fmt: skip
        assert host.text([(key, value)]) is None
    assert host.do(TEST_UNIT_READY).status == 0
    assert host.text([("MaxRecvDataSegmentLength", "512")]) == []
    assert [len(pdu.data) for pdu in host.read(0, 2).pdus] == [512, 512]


@pytest.mark.logs("sends a text that is refused")
def test_texts_in_pieces(host: Initiator) -> None:
    itt = host.tag()
    host.send(p.TextRequest(flags=p.CONTINUE, itt=itt, cmd_sn=host.next_sn()), b"SendTar")
    got = host.take(p.TEXT_RESPONSE)
    assert got.ttt != p.NO_TAG and (got.flags, got.data) == (0, b"")
    host.send(p.TextRequest(itt=itt, ttt=got.ttt, cmd_sn=host.next_sn()), b"gets=All\0")
    assert host.take(p.TEXT_RESPONSE).data.startswith(b"TargetName=")
    host.send(p.TextRequest(itt=itt, ttt=12345, cmd_sn=host.next_sn()), b"")
    assert host.take(p.REJECT).reason == p.Reason.FIELD
    assert host.do(TEST_UNIT_READY).status == 0


def test_only_what_an_initiator_may_use_is_told() -> None:
    world = World(acls=[AclConfig(initiator="iqn.nobody")])
    name = crowd(world, 1)[0]
    host = world.initiator()
    assert host.login(discovery=True).status_class == 0
    assert host.text([("SendTargets", "All")]) == [("TargetName", name), ("TargetAddress", "127.0.0.1:3260,1")]


def test_portals_tell_where_they_are(world: World) -> None:
    """An address that is set, or the one that the initiator has reached, or where the portal listens."""
    host = world.initiator()
    assert host.login(discovery=True).status_class == 0

    def told() -> list[str]:
        return [value for key, value in host.text([("SendTargets", "All")]) or [] if key == "TargetAddress"]

    world.portal.address = Address("fd00::1", 3261)
    assert told() == ["[fd00::1]:3261,1"]
    second = Portal(world.server, 2, Address("disks.example.org", 860))
    assert told() == ["[fd00::1]:3261,1", "disks.example.org:860,1"]
    channel = next(iter(world.server.connections)).channel
    channel.local = "[fe80::2]:3261"  # type: ignore[union-attr]
    second.advertised, second.address = None, Address("0.0.0.0", 3262)
    assert told() == ["[fe80::2]:3261,1", "[fe80::2]:3262,1"]
    second.address = Address("192.0.2.7", 3262)
    assert told() == ["[fe80::2]:3261,1", "192.0.2.7:3262,1"]


@pytest.mark.logs("login refused")
def test_discovery_with_a_secret() -> None:
    world = World(discovery_rule=AclConfig(user="user", password="secretsecret"))
    host = world.initiator()
    assert host.login(discovery=True).status_class == 2 and host.gone
    assert world.logged_in(number=2).do(TEST_UNIT_READY).status == 0


# -- memory -------------------------------------------------------------------------------------------------------


def test_writes_wait_for_memory() -> None:
    """What is asked for waits for room; what comes unasked is turned down with TASK SET FULL."""
    world = World(limits=Limits(memory=100_000, session_memory=90_000))
    host = world.logged_in(immediate_data=True, initial_r2t=True)
    data = pattern(65536)
    first = host.start(write_10(0, 128), data=data)
    r2t = host.take(p.R2T_PDU)
    second = host.start(write_10(200, 128), data=data)
    assert host.nothing()
    refused = host.start(write_10(400, 128), data=data, immediate_data=data)
    assert host.finish(refused).status == 0x28
    host.sequence(first, r2t.ttt, 0, data)
    later = host.take(p.R2T_PDU)
    assert later.itt == second and host.finish(first).status == 0
    host.sequence(second, later.ttt, 0, data)
    assert host.finish(second).status == 0
    assert bytes(world.disk.bytes[200 * BLOCK : 328 * BLOCK]) == data and not world.server.memory.budget.used
    assert host.do(write_10(0, 500), data=bytes(256000)).code == "5/24/00"


def test_reads_are_bounded() -> None:
    world = World(limits=Limits(memory=3 << 20, session_memory=2 << 20))
    host, other = world.logged_in(), world.logged_in(number=2)
    world.disk.holding = True
    tags = [host.start(read_10(0, 2000), read=1024000) for _ in range(2)]
    assert host.nothing() and host.finish(host.start(read_10(0, 2000), read=1024000)).status == 0x28
    small = host.start(read_10(0, 8), read=4096)
    theirs = other.start(read_10(0, 1500), read=768000)
    assert host.nothing() and other.nothing()
    world.disk.let_go()
    assert [len(host.finish(tag).data) for tag in (*tags, small)] == [1024000, 1024000, 4096]
    assert len(other.finish(theirs).data) == 768000 and not world.server.memory.budget.used


def test_a_session_that_is_over_does_not_linger(host: Initiator, world: World) -> None:
    """An initiator that neither reads nor closes after its session is over is cut off."""
    host.channel.pause_reading()
    next(iter(world.server.sessions.values())).drop("enough")
    world.reactor.run()
    world.reactor.advance(15)
    assert world.server.connections and not host.lost
    world.reactor.advance(15)
    assert not world.server.connections and host.gone


def test_who_does_not_read_is_not_read_from(world: World) -> None:
    host = world.logged_in()
    host.channel.pause_reading()
    tags = [host.start(read_10(0, 2000), read=1024000) for _ in range(20)]
    world.reactor.run()
    assert 4 <= len(world.disk.ran) < 12
    host.channel.resume_reading()
    for tag in tags:
        assert len(host.finish(tag).data) == 1024000
