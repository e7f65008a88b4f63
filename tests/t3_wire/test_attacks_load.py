"""Clients and strangers that take all they can get: locks, fds, xattrs, memory, connections. What each gets is bounded,
with an errno or a closed connection for the rest; the brick's memory and descriptors are what they were; and a client
beside them is served in less than a second."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.rpc import message
from glustx.rpc import programs as p
from glustx.rpc.codec_special import FOP400
from glustx.values import (
    ENTRYLK_LOCK_NB,
    ENTRYLK_WRLCK,
    F_SETLK,
    F_SETLKW,
    F_WRLCK,
    ROOT_GFID,
    Flock,
    Loc,
)
from glustx.xdata import Xdata
from glustx.xdata_memo import XdataMemo
from tests.kit import PATIENCE
from tests.t3_wire.attacks import Attacker, at, new
from tests.t3_wire.brick_process import MIB, BrickProcess, others_served

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")

MANY = 70_000


@pytest.fixture(scope="module")
def brick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrickProcess]:
    with BrickProcess(tmp_path_factory.mktemp("loaded")) as one:
        yield one


@pytest.fixture
def attacker(brick: BrickProcess) -> Iterator[Attacker]:
    with brick.attacker() as one:
        yield one.login()


def answers(attacker: Attacker, requests: Iterable[Fop], window: int = 200) -> Counter[int]:
    """Send requests, `window` of them before their answers are read; count the errnos."""
    found: Counter[int] = Counter()
    pending: list[Fop] = []

    def take() -> None:
        for req in pending:
            record = attacker.record()
            header = message.parse_reply(record)
            assert header.accepted and header.stat == message.SUCCESS
            try:
                FOP400[req.procnum].decode_reply(record, header.pos, len(record), XdataMemo())
                found[0] += 1
            except FopError as error:
                found[error.errno] += 1
        pending.clear()

    parts: list[bytes] = []
    for req in requests:
        parts.append(attacker.fop_call(req))
        pending.append(req)
        if len(pending) == window:
            attacker.send(b"".join(parts))
            parts.clear()
            take()
    attacker.send(b"".join(parts))
    take()
    return found


def file_of(attacker: Attacker, name: str) -> Loc:
    return Loc(gfid=attacker.made(fops.Mknod(at(name.encode()), stat.S_IFREG | 0o644, xdata=new())))


def flock(n: int) -> Flock:
    return Flock(F_WRLCK, 0, n * 10, 5, 1, b"attacker")


# -- what a client may hold --------------------------------------------------------------------------------------------


def test_locks_on_one_inode(brick: BrickProcess, attacker: Attacker) -> None:
    here = file_of(attacker, "locked")
    before = brick.resident()
    with others_served(brick, "inodelks on one inode"):
        locks = (fops.Inodelk(here, b"d", F_SETLK, F_WRLCK, flock(n)) for n in range(4600))
        assert answers(attacker, locks) == {0: 4096, errno.ENOLCK: 504}
    assert brick.resident() - before < 32 * MIB
    with brick.attacker() as other:
        other.login()  # what is full for one is not for another
        assert other.errno(fops.Inodelk(here, b"d", F_SETLK, F_WRLCK, flock(100_000))) == 0


def test_locks_on_names(brick: BrickProcess, attacker: Attacker) -> None:
    here = Loc(gfid=attacker.made(fops.Mkdir(at(b"locked-dir"), 0o755, xdata=new())))
    before = brick.resident()
    with others_served(brick, "entrylks in one folder"):
        locks = (fops.Entrylk(here, b"d", ENTRYLK_LOCK_NB, ENTRYLK_WRLCK, b"%d" % n) for n in range(4600))
        assert answers(attacker, locks) == {0: 4096, errno.ENOLCK: 504}
    assert brick.resident() - before < 32 * MIB


def test_posix_locks(brick: BrickProcess, attacker: Attacker) -> None:
    here = file_of(attacker, "posix-locked")
    fd = Fd(here.gfid, 2)
    attacker.fop(fops.Open(here, fd, 2))
    with others_served(brick, "posix locks on one file"):
        locks = (fops.Lk(fd, F_SETLK, F_WRLCK, flock(n)) for n in range(4600))
        assert answers(attacker, locks) == {0: 4096, errno.ENOLCK: 504}


def test_locks_in_all(brick: BrickProcess, attacker: Attacker) -> None:
    """Locks may be asked for on gfids that nobody has looked up: those are counted as well."""
    before = brick.resident()
    gfids = [os.urandom(16) for _ in range(25)]
    with others_served(brick, "locks in all"):
        locks = (fops.Inodelk(Loc(gfid=gfids[n % 25]), b"d%d" % n, F_SETLK, F_WRLCK, flock(n)) for n in range(MANY))
        found = answers(attacker, locks, 500)
    assert found[errno.ENOLCK] == MANY - found[0] and 0 < found[0] <= 65536 < MANY, found
    taken = brick.resident() - before
    print(f"{found[0]} locks take {taken / MIB:.0f} MiB")
    assert taken < 160 * MIB
    attacker.socket.close()
    # All of them go with their client.
    with others_served(brick, "their end"), brick.attacker() as late:
        late.login()
        settle(lambda: late.errno(fops.Inodelk(Loc(gfid=gfids[0]), b"d0", F_SETLK, F_WRLCK, flock(0))) == 0)
        time.sleep(0.05)


def test_locks_that_wait(brick: BrickProcess, attacker: Attacker) -> None:
    here = file_of(attacker, "awaited")
    assert attacker.errno(fops.Inodelk(here, b"d", F_SETLK, F_WRLCK, flock(0))) == 0
    before = brick.resident()
    with brick.attacker() as waiting, others_served(brick, "locks that wait"):
        waiting.login()
        calls = [waiting.fop_call(fops.Inodelk(here, b"d", F_SETLKW, F_WRLCK, flock(0))) for _ in range(5000)]
        waiting.send(b"".join(calls))
        refused = 0
        for _ in range(5000 - 4096):
            record = waiting.record()
            refused += struct.unpack_from(">ii", record, 24) == (-1, errno.ENOLCK)
        assert refused == 5000 - 4096
        assert brick.resident() - before < 64 * MIB


def test_fds(tmp_path: Path) -> None:
    """A client that opens and opens: when it has its share, others still open files and connect."""
    with BrickProcess(tmp_path, fds_per_client=2000) as brick, brick.attacker() as attacker:
        attacker.login()
        here = file_of(attacker, "opened")
        before = brick.resident(), brick.descriptors()
        with others_served(brick, "opens"):
            assert answers(attacker, (fops.Open(here, Fd(here.gfid, 0), 0) for _ in range(2500))) == {
                0: 2000,
                errno.EMFILE: 500,
            }
        root = Loc(gfid=ROOT_GFID)
        with others_served(brick, "opendirs"), brick.attacker() as second:
            second.login()
            opens = (fops.Opendir(root, Fd(ROOT_GFID, 0, directory=True)) for _ in range(2500))
            assert answers(second, opens) == {0: 2000, errno.EMFILE: 500}
        with brick.attacker() as other:
            assert other.login().errno(fops.Open(here, Fd(here.gfid, 0), 0)) == 0
        assert brick.resident() - before[0] < 32 * MIB
        attacker.socket.close()
        settle(lambda: brick.descriptors() <= before[1] + 2)


def test_a_process_with_few_descriptors(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[0] < 600:
        pytest.skip("needs 600 descriptors to begin with")
    brick = BrickProcess(tmp_path)
    resource.prlimit(brick.process.popen.pid, resource.RLIMIT_NOFILE, (600, 600))
    with brick, brick.attacker() as attacker:
        attacker.login()
        here = file_of(attacker, "opened")
        found = answers(attacker, (fops.Open(here, Fd(here.gfid, 0), 0) for _ in range(700)))
        assert found == {0: 150, errno.EMFILE: 550}
        for _ in range(2):
            with brick.attacker() as other:
                assert other.login().errno(fops.Open(here, Fd(here.gfid, 0), 0)) == 0


def test_xattrs(brick: BrickProcess, attacker: Attacker) -> None:
    """The file system bounds what one inode may have; what is remembered of it is bounded as well."""
    here = file_of(attacker, "xattrs")
    before = brick.resident()
    with others_served(brick, "xattrs on one file"):
        found = answers(
            attacker, (fops.Setxattr(here, Xdata({b"user.%06d" % n: os.urandom(200)})) for n in range(3000))
        )
        assert set(found) <= {0, errno.ENOSPC, errno.E2BIG, errno.EDQUOT}, found
        asked = (fops.Getxattr(here, b"user.missing-%d" % n) for n in range(8_000))
        assert answers(attacker, asked) == {errno.ENODATA: 8_000}
    assert brick.resident() - before < 32 * MIB


def test_names_that_are_not_there(brick: BrickProcess, attacker: Attacker) -> None:
    """Gfids and names that do not exist leave nothing behind."""
    assert answers(attacker, (fops.Stat(Loc(gfid=os.urandom(16))) for _ in range(2000))) == {errno.ESTALE: 2000}
    before = brick.resident()
    with others_served(brick, "gfids that are not there"):
        assert answers(attacker, (fops.Stat(Loc(gfid=os.urandom(16))) for _ in range(8_000))) == {errno.ESTALE: 8_000}
        assert answers(attacker, (fops.Lookup(at(b"%d" % n)) for n in range(8_000))) == {errno.ENOENT: 8_000}
    assert brick.resident() - before < 8 * MIB


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_gigabyte_that_is_announced_and_not_sent(brick: BrickProcess) -> None:
    before = brick.resident()
    with contextlib.ExitStack() as stack, others_served(brick, "announced gigabytes"):
        for _ in range(50):
            peer = stack.enter_context(brick.attacker()).login()
            peer.send(struct.pack(">I", ((1 << 30) - 1) | 0x80000000) + bytes(1000))
        time.sleep(0.2)
        assert brick.resident() - before < 16 * MIB


def test_what_slow_clients_may_take(tmp_path: Path) -> None:
    """Large records that do not end: each connection has its share, all have theirs, and usual records need none."""
    options = {"memory_per_connection": "16MB", "memory_limit": "40MB"}
    with BrickProcess(tmp_path, **options) as brick, contextlib.ExitStack() as stack:
        stack.enter_context(brick.attacker()).login()
        before = brick.resident()
        part = struct.pack(">I", (200 << 20) | 0x80000000) + bytes(7 * MIB)
        with others_served(brick, "slow clients"):
            greedy = stack.enter_context(brick.attacker()).login()
            with contextlib.suppress(ConnectionError):
                greedy.send(part + bytes(30 * MIB))
            greedy.wait_closed()
            slow = [stack.enter_context(brick.attacker()).login() for _ in range(6)]
            for peer in slow:
                with contextlib.suppress(ConnectionError):
                    peer.send(part)
            # Nothing else than the end comes to them.
            settle(lambda: len(select.select([peer.socket for peer in slow], [], [], 0)[0]) >= 2)
            with brick.attacker() as usual:
                usual.login()
                fd = usual.create(bytes(MIB))
                assert usual.fop(fops.Read(fd, 0, MIB)).data == bytes(MIB)
            assert len(select.select([peer.socket for peer in slow], [], [], 0)[0]) <= 4
        assert brick.resident() - before < 80 * MIB


def test_ten_thousand_fragments_of_one_byte(brick: BrickProcess, attacker: Attacker) -> None:
    data = attacker.call(
        p.HANDSHAKE.number, p.HANDSHAKE.version, p.HNDSK_GETSPEC, p.GetspecRequest(1, "k" * 9900, {}).encode()
    )[4:]
    before = brick.resident()
    with others_served(brick, "10,000 fragments"):
        marks = [1] * (len(data) - 1) + [0x80000001]
        attacker.send(b"".join(struct.pack(">IB", mark, byte) for mark, byte in zip(marks, data, strict=True)))
        assert p.GetspecReply.decode(attacker.record()[24:]).op_ret == -1
    assert brick.resident() - before < 8 * MIB


# -- connections -------------------------------------------------------------------------------------------------------


def settle(done: object, seconds: float = PATIENCE) -> None:
    """Wait until the brick has heard of the ends of connections."""
    deadline = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it does not come to rest"
        time.sleep(0.02)


def test_two_hundred_that_send_half_a_header_and_stall(tmp_path: Path) -> None:
    with BrickProcess(tmp_path, stranger_timeout=1, stranger_limit=150) as brick, contextlib.ExitStack() as stack:
        brick.attacker().login().socket.close()
        before = brick.resident(), brick.descriptors()
        with others_served(brick, "200 that stall"):
            stalled = [stack.enter_context(brick.attacker()) for _ in range(200)]
            for peer in stalled:
                with contextlib.suppress(ConnectionError):
                    peer.send(b"\x80\x00")
            # Those that have been here longest make room; a client still comes in and stays.
            settle(lambda: brick.descriptors() <= before[1] + 155)
            client = stack.enter_context(brick.attacker()).login()
            assert brick.resident() - before[0] < 40 * MIB
            for peer in stalled:
                peer.wait_closed()
            assert client.errno(fops.Stat(Loc(gfid=ROOT_GFID))) == 0
        settle(lambda: brick.descriptors() <= before[1] + 2)
        log = brick.process.log()
        assert log.count("WARNING") + log.count("connection closed") <= 3, log


def test_a_thousand_connections_come_and_go(brick: BrickProcess) -> None:
    def round_of(count: int) -> None:
        for n in range(count):
            with brick.attacker() as peer:
                if n % 4 == 1:
                    peer.send(b"\x80\x00")
                elif n % 4 == 2:
                    peer.login()
                elif n % 8 == 3:
                    peer.login().create(b"left open")
                if n % 2:  # a reset instead of a polite end
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    round_of(200)
    settle(lambda: brick.descriptors() < 100)
    before = brick.resident(), brick.descriptors()
    with others_served(brick, "1000 that come and go"):
        round_of(1000)
    # Connections and their fds are gone; a few folders and files may be kept open by then.
    settle(lambda: brick.descriptors() <= before[1] + 2)
    assert brick.resident() - before[0] < 6 * MIB
