"""Mandatory locks on our brick and on stock's, through the same client: who is let through, and where they differ."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.values import F_RDLCK, F_SETLK, F_UNLCK, F_WRLCK, ROOT_GFID, Caller, Flock, Loc, new_gfid
from glustx.xdata import AS_MANDATORY, EMPTY, GFID_REQ, Xdata, gfuuid
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import client_volfile, served, server_volfile
from tests.kit import need_peer
from tests.peers import BRICK_VOLFILE, StockBrick
from tests.t4_edge.bricks import source

O_RDWR, O_TRUNC, O_NONBLOCK = 2, 0o1000, 0o4000
ANN, BOB = Caller(pid=7, lk_owner=b"ann-----"), Caller(pid=8, lk_owner=b"bob-----")
# What stock lets change, or read, what somebody else has locked.
STOCK_FORGETS = {"fallocate", "copy from", "copy to", "create that empties"}


@contextlib.contextmanager
def brick(kind: str, mode: str, folder: Path) -> Iterator[str]:
    """A brick in a mode; yields the volfile of its clients."""
    folder.mkdir()
    if kind == "stock":
        need_peer("namespaces", "glusterfsd")
        line = "    type features/locks\n"
        text = BRICK_VOLFILE.replace(line, f"{line}    option mandatory-locking {mode}\n")
        with StockBrick(folder, "v1", text) as stock:
            yield source(stock).text
    else:
        prepare_brick(str(folder))
        below = f"""
volume posix
    type storage/posix
    option directory {folder}
end-volume
volume locks
    type features/locks
    option mandatory-locking {mode}
    subvolumes posix
end-volume
volume io-threads
    type performance/io-threads
    subvolumes locks
end-volume
"""
        with served(server_volfile(below, "io-threads")) as ours:
            yield client_volfile(ours.address)


class File:
    """A file of ten bytes, open twice by one client: fds that wait and fds that do not."""

    def __init__(self, pump: Pump, graph: Graph, name: bytes, mode: int = 0o644) -> None:
        self.pump, self.graph, self.name = pump, graph, name
        fresh = Xdata({GFID_REQ: gfuuid(new_gfid())})
        made = fops.Mknod(Loc(pargfid=ROOT_GFID, name=name), 0o100000 | mode, xdata=fresh)
        self.loc = Loc(gfid=self.do(made).stat.gfid)
        self.patient, self.hasty = self.open(O_RDWR), self.open(O_RDWR | O_NONBLOCK)
        self.do(fops.Write(self.patient, 0, b"0123456789", caller=ANN))

    def do(self, req: fops.Fop) -> object:
        return self.pump.run(self.graph.top(req), 60)

    def open(self, flags: int) -> Fd:
        fd = Fd(self.loc.gfid, flags)
        self.do(fops.Open(self.loc, fd, flags))
        return fd

    def lock(self, kind: int, start: int = 0, size: int = 0, mandatory: bool = False) -> None:
        asked = AS_MANDATORY if mandatory else EMPTY
        flock = Flock(kind, 0, start, size, ANN.pid, ANN.lk_owner)
        self.do(fops.Lk(self.patient, F_SETLK, kind, flock, caller=ANN, xdata=asked))

    def errno_of(self, req: fops.Fop) -> int:
        try:
            self.do(req)
        except FopError as error:
            return error.errno
        return 0

    def tries(self, who: Caller) -> dict[str, int]:
        """The errno of each fop that touches data, by an fd that does not wait."""
        fd, by = self.hasty, {"caller": who}
        fresh = Xdata({GFID_REQ: gfuuid(new_gfid())})
        here = Loc(pargfid=ROOT_GFID, name=self.name)
        flags = O_RDWR | 0o100 | O_TRUNC
        other = self.other()
        requests: dict[str, fops.Fop] = {
            "read": fops.Read(fd, 2, 3, **by),
            "write": fops.Write(fd, 2, b"abc", **by),
            "ftruncate": fops.Ftruncate(fd, 4, **by),
            "truncate": fops.Truncate(self.loc, 4, **by),
            "truncate behind": fops.Truncate(self.loc, 9, **by),
            "zerofill": fops.Zerofill(fd, 2, 3, **by),
            "discard": fops.Discard(fd, 2, 3, **by),
            "fallocate": fops.Fallocate(fd, 2, 3, **by),
            "copy from": fops.CopyFileRange(fd, other, 2, 0, 3, **by),
            "copy to": fops.CopyFileRange(other, fd, 0, 2, 3, **by),
            "open that empties": fops.Open(self.loc, Fd(self.loc.gfid, O_RDWR | O_TRUNC), O_RDWR | O_TRUNC, **by),
            "create that empties": fops.Create(here, Fd(b"", flags), flags, 0o644, xdata=fresh, **by),
            "elsewhere": fops.Write(fd, 6, b"x", **by),
        }
        return {name: self.errno_of(req) for name, req in requests.items()}

    def other(self) -> Fd:
        file = File.__new__(File)
        file.pump, file.graph = self.pump, self.graph
        loc = Loc(pargfid=ROOT_GFID, name=self.name + b"-other")
        fresh = Xdata({GFID_REQ: gfuuid(new_gfid())})
        with contextlib.suppress(FopError):
            self.do(fops.Mknod(loc, 0o100644, xdata=fresh))
        file.loc = Loc(gfid=self.do(fops.Lookup(loc)).stat.gfid)  # type: ignore[attr-defined]
        fd = file.open(O_RDWR)
        self.do(fops.Write(fd, 0, b"0123456789"))
        return fd


@contextlib.contextmanager
def client(text: str) -> Iterator[tuple[Pump, Graph]]:
    pump = Pump()
    graph = Graph.load(text, Surroundings(pump, pump, volume="v1"), source="<client>")
    try:
        pump.run(graph.start(), 60)
        yield pump, graph
        pump.run(graph.stop(), 60)
    finally:
        pump.close()


def expected(kind: str, blocked: set[str]) -> dict[str, int]:
    passes = STOCK_FORGETS if kind == "stock" else set()
    return {name: errno.EAGAIN if name in blocked - passes else 0 for name in ALL}


ALL = {
    "read", "write", "ftruncate", "truncate", "truncate behind", "zerofill", "discard", "fallocate", "copy from",
    "copy to", "open that empties", "create that empties", "elsewhere",
}  # fmt: skip
WRITES = ALL - {"read", "copy from", "truncate behind", "elsewhere"}


@pytest.mark.parametrize("kind", ["glustx", "stock"])
@pytest.mark.parametrize("mode", ["forced", "optimal"])
def test_who_is_let_through(kind: str, mode: str, tmp_path: Path) -> None:
    need_peer("root")
    with brick(kind, mode, tmp_path / "brick") as text, client(text) as (pump, graph):
        file = File(pump, graph, b"write")
        file.lock(F_WRLCK, 2, 3, mandatory=True)
        assert file.tries(BOB) == expected(kind, WRITES | {"read", "copy from"})
        file = File(pump, graph, b"read")
        file.lock(F_RDLCK, 2, 3, mandatory=True)
        assert file.tries(BOB) == expected(kind, WRITES)
        file = File(pump, graph, b"advisory")
        file.lock(F_WRLCK, 2, 3)
        assert file.tries(BOB) == expected(kind, set() if mode == "optimal" else WRITES | {"read", "copy from"})
        file = File(pump, graph, b"own")
        file.lock(F_WRLCK, 2, 3, mandatory=True)
        assert file.tries(ANN) == expected(kind, {"open that empties", "create that empties"})


@pytest.mark.parametrize("kind", ["glustx", "stock"])
def test_a_write_waits(kind: str, tmp_path: Path) -> None:
    need_peer("root")
    with (
        brick(kind, "forced", tmp_path / "brick") as text,
        client(text) as (pump, graph),
        client(text) as (other_pump, other_graph),
    ):
        file = File(pump, graph, b"f")
        file.lock(F_WRLCK)
        fd = Fd(file.loc.gfid, O_RDWR)
        other_pump.run(other_graph.top(fops.Open(file.loc, fd, O_RDWR)), 60)
        done: list[object] = []
        write = fops.Write(fd, 0, b"later", caller=BOB)
        thread = threading.Thread(target=lambda: done.append(other_pump.run(other_graph.top(write), 60)))
        thread.start()
        file.do(fops.Write(file.patient, 0, b"first", caller=ANN))
        assert bytes(file.do(fops.Read(file.patient, 0, 5, caller=ANN)).data) == b"first"  # type: ignore[attr-defined]
        assert not done
        file.lock(F_UNLCK)
        thread.join(60)
        assert done and bytes(file.do(fops.Read(file.patient, 0, 5, caller=ANN)).data) == b"later"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["glustx", "stock"])
def test_file_goes_by_the_mode(kind: str, tmp_path: Path) -> None:
    need_peer("root")
    with brick(kind, "file", tmp_path / "brick") as text, client(text) as (pump, graph):
        for mode, obeyed in ((0o2644, True), (0o644, False), (0o2654, False)):
            file = File(pump, graph, b"f%o" % mode, mode)
            file.lock(F_WRLCK)
            code = file.errno_of(fops.Write(file.hasty, 0, b"x", caller=BOB))
            # Stock's brick has the mode "file" and never looks at any.
            assert code == (errno.EAGAIN if obeyed and kind == "glustx" else 0), oct(mode)
