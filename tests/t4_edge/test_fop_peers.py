"""Every fop between every pair of peers, in both versions of the program. What became of each stands in
`tests/golden/fop-peers.txt`, of which docs/wire.md is made; `python -m tests.t4_edge.test_fop_peers write` writes it
anew."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glustx.fops import FOPS, OWN_FIRST
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import BRICK, Served, served, server_volfile
from tests.every_fop import Script
from tests.kit import ROOT, need_peer
from tests.peers import StockBrick
from tests.wire_tap import WireTap

GOLDEN = ROOT / "tests" / "golden" / "fop-peers.txt"
NAMES = {cls.procnum: name for name, cls in FOPS.items() if cls.procnum >= 0}
OWN = {name for proc, name in NAMES.items() if proc >= OWN_FIRST}
LAST_330 = 52
PROGRAMS = (400, 330)
PAIRS = ("glustx>glustx", "glustx>stock", "stock>glustx")
COLUMNS = [f"{pair}:{program}" for pair in PAIRS for program in PROGRAMS]

# What our brick answers otherwise than stock's, and why.
DIFFERENT = {"ipc": "the message is for features/upcall, which stock's bricks have and this one does not"}

STORAGE = """
volume store
    type storage/posix
    option directory {folder}
    option xattr-namespace {namespace}
end-volume
volume locks
    type features/locks
    subvolumes store
end-volume
"""


@contextlib.contextmanager
def our_brick(folder: Path) -> Iterator[Served]:
    namespace = "trusted" if os.geteuid() == 0 else "user"
    folder.mkdir()
    prepare_brick(str(folder), namespace=namespace)
    with served(server_volfile(STORAGE.format(folder=folder, namespace=namespace), "locks")) as brick:
        yield brick


@contextlib.contextmanager
def our_client(port: int, name: str, program: int) -> Iterator[tuple[Pump, Graph]]:
    """A graph of protocol/client alone."""
    text = f"""
volume client
    type protocol/client
    option remote-host 127.0.0.1
    option remote-port {port}
    option remote-subvolume {name}
    option testing.old-protocol {"on" if program == 330 else "off"}
end-volume
"""
    pump = Pump()
    graph = Graph.load(text, Surroundings(pump, pump, volume="test"), source="<client>")
    try:
        pump.run(graph.start(), 60)
        assert graph.root.link.up, graph.root.link.why  # type: ignore[attr-defined]
        assert graph.root.link.spoken.program.version == program  # type: ignore[attr-defined]
        yield pump, graph
        pump.run(graph.stop(), 20)
    finally:
        pump.close()


def script_of(pump: Pump, graph: Graph, by_hand: bool) -> Script:
    async def ask(request: object) -> object:
        return (await graph.root.send(request))[0]  # type: ignore[attr-defined]

    hand = (lambda request: pump.run(ask(request), 30)) if by_hand else None
    return Script(lambda request: pump.run(graph.top(request), 30), hand)


def ours_on_ours(work: Path, program: int) -> dict[str, str]:
    with our_brick(work / "brick") as brick, our_client(brick.address.port, BRICK, program) as (pump, graph):
        found = script_of(pump, graph, True).run()
    # What a version lacks is refused before it is sent.
    return {name: outcome for name, outcome in found.items() if program == 400 or FOPS[name].procnum <= LAST_330}


def ours_on_stock(work: Path, program: int) -> dict[str, str]:
    need_peer("root", "namespaces", "glusterfsd")
    folder = work / "stock"
    folder.mkdir()
    with StockBrick(folder) as brick, our_client(brick.brick_port, str(folder), program) as (pump, graph):
        found = script_of(pump, graph, False).run()
    # What stock's program lacks is refused: by the brick, or before it is sent.
    for name in OWN | {"copy_file_range"} if program == 330 else OWN:
        assert found.pop(name) == errno.errorcode[errno.EOPNOTSUPP]
    return found


def stock_on_ours(work: Path, program: int) -> dict[str, str]:
    need_peer("root", "/dev/fuse", "glusterfs", "glusterfs/api/glfs.h")
    folders = [work / "b0", work / "b1"]
    with contextlib.ExitStack() as stack:
        bricks = [stack.enter_context(our_brick(folder)) for folder in folders]
        taps = [stack.enter_context(WireTap(brick.address.port)) for brick in bricks]
        words = [f"{program}:{tap.port}:{BRICK}" for tap in taps]
        run_stock(work, words)
        damaged = folders[1] / "z"
        with open(damaged, "r+b") as file:
            file.seek(1000)
            file.write(b"garbage" * 10)
        # As if this brick had missed a write that the other one blames it for.
        os.setxattr(folders[0] / "z", "trusted.afr.c1", struct.pack(">III", 1, 0, 0))
        run_stock(work, words, DAMAGED=str(damaged))
        crossed = [one for tap in taps for one in tap.crossed]
    assert {one.version for one in crossed} == {program}
    assert not [one for one in crossed if one.accept_stat], "our brick has refused a call of stock's"
    found: dict[str, str] = {}
    for one in crossed:
        name = NAMES[one.proc]
        if one.op_ret >= 0:
            found[name] = "ok"
        else:
            found.setdefault(name, errno.errorcode[one.op_errno])
    return found


def run_stock(work: Path, words: list[str], **env: str) -> None:
    """Have stock's clients do all they can on `PROGRAM:PORT:BRICK` bricks."""
    command = [sys.executable, "-m", "tests.t4_edge.stock_fops", str(work), *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


MAKE: dict[str, Callable[[Path, int], dict[str, str]]] = dict(
    zip(PAIRS, (ours_on_ours, ours_on_stock, stock_on_ours), strict=True)
)


def column(name: str, work: Path) -> dict[str, str]:
    """Have one pair of peers try everything; return what became of each fop."""
    pair, _, program = name.partition(":")
    return MAKE[pair](work, int(program))


def table() -> dict[str, dict[str, str]]:
    """What the golden file says, by column; fops that are not sent are left out."""
    head, *lines = (line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#"))
    found: dict[str, dict[str, str]] = {name: {} for name in head[1:]}
    for fop, *cells in lines:
        for name, cell in zip(head[1:], cells, strict=True):
            if cell != "-":
                found[name][fop] = cell
    return found


@pytest.mark.parametrize("name", COLUMNS)
def test_every_fop_between_peers(name: str, tmp_path: Path) -> None:
    assert column(name, tmp_path) == table()[name]


def test_no_fop_is_left_out() -> None:
    known = table()
    for program, last in ((400, max(NAMES)), (330, LAST_330)):
        pairs = [known[f"{pair}:{program}"] for pair in PAIRS]
        assert set(pairs[0]) == {name for proc, name in NAMES.items() if proc <= last}
        assert {fop for fop, outcome in pairs[1].items() if outcome != pairs[0][fop]} == set(DIFFERENT)


def write() -> None:
    """Write the golden file."""
    made = {}
    for name in COLUMNS:
        with tempfile.TemporaryDirectory(prefix="glustx-peers-") as work:
            made[name] = column(name, Path(work))
    lines = [
        "# What became of a request of each fop, by client>brick:version of the program. ok: done. by-hand: done when",
        "# it is sent by hand; a client does not. -: not sent, or not in this version. Else the errno that all had.",
        " ".join(["fop", *COLUMNS]),
    ]
    lines += [" ".join([fop, *(made[name].get(fop, "-") for name in COLUMNS)]) for fop in NAMES.values()]
    GOLDEN.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit("usage: python -m tests.t4_edge.test_fop_peers write")
    write()
