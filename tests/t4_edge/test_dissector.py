"""Wireshark's dissector on our traffic: it finds nothing malformed that it does not find in stock's traffic for the
same procedure. (Version 4.0 names those from 43 on by the number before, and so calls some of stock's malformed.)"""

from __future__ import annotations

import collections
import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import PATIENCE, NetNamespace, Process, need_peer, which
from tests.peers import StockBrick
from tests.t4_edge.test_fop_peers import BRICK, LAST_330, NAMES, PROGRAMS, our_brick, our_client, run_stock, script_of

REPLY = "1"
FOP_PROGRAM = "1298437"
# Of each frame: who sent it, and of the RPC messages in it type, version, procedure; then what is malformed in it.
FIELDS = ("tcp.dstport", "rpc.msgtyp", "rpc.program", "rpc.programversion", "rpc.procedure", "_ws.malformed")

Seen = dict[tuple[str, str, str], int]


@contextlib.contextmanager
def captured(file: Path) -> Iterator[None]:
    """Capture what crosses the loopback link of the namespace that the thread is in."""
    file.touch(mode=0o666)
    with Process(["dumpcap", "-q", "-i", "lo", "-f", "tcp", "-w", str(file)]) as capture:
        # The file's header is written when the capture has begun.
        deadline = time.monotonic() + PATIENCE
        while not file.exists() or not file.stat().st_size:
            assert time.monotonic() < deadline, capture.log(4096)
            time.sleep(0.02)
        yield
        # What has crossed is in the file within its buffer's time-out.
        size, since = -1, time.monotonic()
        while time.monotonic() - since < 0.4:
            if file.stat().st_size != size:
                size, since = file.stat().st_size, time.monotonic()
            time.sleep(0.05)


def dissected(file: Path, port: int) -> tuple[Seen, Seen]:
    """Return how often each (call or reply, version, procedure) of the fop program came, and was malformed.

    With several messages in a frame nobody knows which one it is; stock's client does that, our script does not.
    """
    words = [word for field in FIELDS for word in ("-e", field)]
    command = [which("tshark") or "tshark", "-r", str(file), "-d", f"tcp.port=={port},rpc", "-T", "fields", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    came: Seen = collections.Counter()
    malformed: Seen = collections.Counter()
    for line in done.stdout.splitlines():
        _, kinds, programs, versions, procs, bad = (line + "\t" * 6).split("\t")[:6]
        for kind, program, version, proc in zip(
            kinds.split(","), programs.split(","), versions.split(","), procs.split(","), strict=False
        ):
            if program == FOP_PROGRAM:
                came[kind, version, proc] += 1
                if bad:
                    malformed[kind, version, proc] += 1
    return came, malformed


@contextlib.contextmanager
def bricks_of(kind: str, work: Path) -> Iterator[list[tuple[int, str]]]:
    """Two fresh bricks of one kind, by port and name."""
    with contextlib.ExitStack() as stack:
        found = []
        for folder in (work / "b0", work / "b1"):
            if kind == "stock":
                folder.mkdir(parents=True)
                found.append((stack.enter_context(StockBrick(folder)).brick_port, str(folder)))
            else:
                work.mkdir(exist_ok=True)
                found.append((stack.enter_context(our_brick(folder)).address.port, BRICK))
        yield found


def our_traffic(work: Path, kind: str, program: int) -> tuple[Seen, Seen]:
    """Every fop, one after the other, by our client on a brick of one kind."""
    with bricks_of(kind, work) as ((port, name), _), captured(work / "seen.pcap"):
        with our_client(port, name, program) as (pump, graph):
            script_of(pump, graph, kind != "stock").run()
    return dissected(work / "seen.pcap", port)


def stocks_traffic(work: Path, program: int) -> tuple[Seen, Seen]:
    """What stock's clients send to a stock brick."""
    with bricks_of("stock", work) as bricks, captured(work / "seen.pcap"):
        run_stock(work, [f"{program}:{port}:{name}" for port, name in bricks])
    return dissected(work / "seen.pcap", bricks[0][0])


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_is_malformed_that_is_not_so_in_stocks_traffic(program: int, tmp_path: Path) -> None:
    need_peer("root", "namespaces", "/dev/fuse", "glusterfs", "glusterfsd", "glusterfs/api/glfs.h", "tshark")
    with NetNamespace() as netns, netns.entered():
        _, theirs = stocks_traffic(tmp_path / "stock", program)
        _, mixed = our_traffic(tmp_path / "mixed", "stock", program)
        came, ours = our_traffic(tmp_path / "ours", "glustx", program)
    last = max(NAMES) if program == 400 else LAST_330
    assert {key[2] for key in came} == {str(proc) for proc in NAMES if proc <= last}
    stocks = set(theirs) | {key for key in mixed if key[0] == REPLY}
    print(f"stock: {sorted(stocks)}, glustx: {sorted(ours)}")
    assert set(ours) <= stocks
