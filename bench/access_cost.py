"""What access control adds to a fop: the same fops on storage/posix with and without it, alternating.

    python bench/access_cost.py [ROUNDS]

Medians of the differences in nanoseconds; "judged" is an anonymous fd of a user, which is looked at every time.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glustx import fops
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    ROOT_LOC,
    SET_MODE,
    STAMP_CTIME,
    STAMP_MTIME,
    Caller,
    Iatt,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, MDATA_KEY, Xdata, gfuuid

USER = Caller(pid=1, uid=1000, gid=1000, groups=(4, 24))
PER_ROUND = 2000
_ACCESS = "volume access\n type features/access-control\n subvolumes posix\nend-volume\n"


def brick(folder: Path, guarded: bool) -> tuple[Graph, ManualReactor]:
    reactor = ManualReactor()
    text = f"volume posix\n type storage/posix\n option directory {folder}\nend-volume\n"
    graph = Graph.load(text + (_ACCESS if guarded else ""), Surroundings(reactor))
    reactor.wait(graph.start())
    return graph, reactor


def cases(graph: Graph, reactor: ManualReactor) -> dict[str, Callable[[], Any]]:
    """The fops to time, on a file of 4 KiB."""

    def do(req: fops.Fop) -> Any:
        return reactor.wait(graph.top(req))

    do(fops.Setattr(loc=ROOT_LOC, stat=Iatt(mode=0o777), valid=SET_MODE))
    fd = Fd(NULL_GFID, os.O_RDWR)
    birth = Xdata({GFID_REQ: gfuuid(new_gfid())})
    gfid = do(fops.Create(loc=Loc(pargfid=ROOT_GFID, name=b"f"), fd=fd, flags=2, mode=0o666, xdata=birth)).stat.gfid
    data = b"x" * 4096
    do(fops.Write(fd=fd, offset=0, data=data))
    anonymous = Fd(gfid, os.O_RDWR, anonymous=True)
    wanted = Xdata({MDATA_KEY: 1})
    clock = itertools.count(time.time_ns(), 1000)

    def write(fd: Fd, caller: Caller) -> fops.Write:
        return fops.Write(fd=fd, offset=0, data=data, caller=caller, ctime=next(clock), stamp=STAMP_CTIME | STAMP_MTIME)

    def named(caller: Caller) -> fops.Lookup:
        return fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"f"), xdata=wanted, caller=caller)

    root = Caller(pid=1)
    return {
        "READ, root": lambda: fops.Read(fd=fd, offset=0, size=4096, caller=root),
        "READ, user": lambda: fops.Read(fd=fd, offset=0, size=4096, caller=USER),
        "READ, judged": lambda: fops.Read(fd=anonymous, offset=0, size=4096, caller=USER),
        "WRITE, root": lambda: write(fd, root),
        "WRITE, user": lambda: write(fd, USER),
        "WRITE, judged": lambda: write(anonymous, USER),
        "STAT, user": lambda: fops.Stat(loc=Loc(gfid=gfid), caller=USER),
        "LOOKUP, root": lambda: named(root),
        "LOOKUP, user": lambda: named(USER),
    }


def timed(graph: Graph, make: Callable[[], Any]) -> float:
    requests = [make() for _ in range(PER_ROUND)]
    top = graph.top
    began = time.perf_counter_ns()
    for req in requests:
        try:
            top(req).send(None)
        except StopIteration:
            continue
        raise AssertionError(f"{req.name} suspended")
    return (time.perf_counter_ns() - began) / PER_ROUND


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as work:
        sides = []
        for name, guarded in (("without", False), ("with", True)):
            folder = Path(work, name)
            folder.mkdir()
            graph, reactor = brick(folder, guarded)
            sides.append((graph, cases(graph, reactor), reactor))
        (plain, plain_cases, _), (guarded_graph, guarded_cases, _) = sides
        print(f"{'':16}{'without':>10}{'with':>10}{'more':>8}  ns, medians of {rounds} rounds of {PER_ROUND}")
        for name, make in plain_cases.items():
            pairs = [(timed(plain, make), timed(guarded_graph, guarded_cases[name])) for _ in range(rounds)]
            without, with_ = (statistics.median(side) for side in zip(*pairs, strict=True))
            more = statistics.median(b - a for a, b in pairs)
            print(f"{name:16}{without:10.0f}{with_:10.0f}{more:8.0f}")
        for graph, _, reactor in sides:
            reactor.wait(graph.stop())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
