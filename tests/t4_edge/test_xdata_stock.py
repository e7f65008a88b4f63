"""What a brick adds to its replies when a request's xdata asks for it: ours and stock's, key by key and fop by fop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.values import (
    ENTRYLK_LOCK_NB,
    ENTRYLK_WRLCK,
    F_SETLK,
    F_WRLCK,
    ROOT_GFID,
    Caller,
    Flock,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, Xdata, gfuuid, uint
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import client_volfile, served, server_volfile
from tests.kit import need_peer
from tests.peers import StockBrick
from tests.t4_edge.bricks import source

ANN = Caller(pid=7, lk_owner=b"ann-----")
KEYS: dict[bytes, object] = {
    b"user.one": 0,
    b"trusted.t*": 0,
    b"user.none": 0,
    b"glusterfs.content": uint(4096),
    b"list-xattr": 1,
    b"get-size": 1,
    b"glusterfs.open-fd-count": uint(4),
    b"glusterfs.open-active-fd-count": uint(4),
    b"glusterfs.inodelk-count": uint(0),
    b"glusterfs.entrylk-count": uint(0),
    b"glusterfs.posixlk-count": uint(0),
    b"glusterfs.parent-entrylk": uint(0),
    b"glusterfs.inodelk-dom-count": "domain",
    b"glusterfs.inodelk-dom-prefix:domain": uint(0),
    b"glusterfs.multi-dom-lk-cnt-req": uint(0),
    b"link-count": "glusterfs.xattrop_index_count",
    b"gfidless-lookup": 1,
    b"trusted.glusterfs.quota.limit-set": 0,
    b"trusted.glusterfs.quota.size": 0,
    b"glusterfs.posix.acl": 0,
    b"system.posix_acl_access": 0,
    b"trusted.glusterfs.mdata": 1,
    b"dht-get-iatt-in-xattr": 1,
    b"get-link-count": uint(1),
    b"glusterfs.write-is-append": uint(4),
    b"unknown-key": 1,
}
# Times and attributes are compared elsewhere: here it is enough that both or neither are there.
VARIES = {b"trusted.glusterfs.mdata", b"virt-gf-prestat", b"virt-gf-poststat", b"dht-get-iatt-in-xattr"}


class Bench:
    """A client of a brick, a file with xattrs, locks and an open fd in it, and a folder around that."""

    def __init__(self, pump: Pump, graph: Graph) -> None:
        self.pump, self.graph = pump, graph
        self.folder = self.do(fops.Mkdir(Loc(pargfid=ROOT_GFID, name=b"d"), 0o755, xdata=self.fresh())).stat.gfid
        self.named = Loc(pargfid=self.folder, name=b"f")
        self.fd = Fd(b"", 2)
        made = self.do(fops.Create(self.named, self.fd, 0o102, 0o644, xdata=self.fresh()))
        self.fd.gfid = made.stat.gfid
        self.loc = Loc(gfid=self.fd.gfid)
        self.do(fops.Write(self.fd, 0, b"0123456789"))
        for key in (b"user.one", b"trusted.two", b"trusted.three"):
            self.do(fops.Setxattr(self.loc, Xdata({key: b"value of " + key})))
        flock = Flock(F_WRLCK, 0, 0, 5, 7, ANN.lk_owner)
        self.do(fops.Lk(self.fd, F_SETLK, F_WRLCK, flock, caller=ANN))
        self.do(fops.Inodelk(self.loc, b"domain", F_SETLK, F_WRLCK, flock, caller=ANN))
        self.do(fops.Inodelk(self.loc, b"other", F_SETLK, F_WRLCK, flock, caller=ANN))
        self.do(fops.Entrylk(Loc(gfid=self.folder), b"domain", ENTRYLK_LOCK_NB, ENTRYLK_WRLCK, b"f", caller=ANN))

    @staticmethod
    def fresh() -> Xdata:
        return Xdata({GFID_REQ: gfuuid(new_gfid())})

    def do(self, req: fops.Fop) -> Any:
        return self.pump.run(self.graph.top(req), 60)

    def told(self, req: fops.Fop) -> Xdata:
        """The xdata of the reply, or of the entry f in it."""
        try:
            reply = self.do(req)
        except FopError as error:
            return error.xdata or Xdata()
        if isinstance(reply, fops.ReaddirReply):
            return next(entry.xattrs for entry in reply.entries if entry.name == b"f")
        return reply.xdata  # type: ignore[no-any-return]


@contextlib.contextmanager
def bench(kind: str, folder: Path) -> Iterator[Bench]:
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        if kind == "stock":
            need_peer("namespaces", "glusterfsd")
            text = source(stack.enter_context(StockBrick(folder, "v1"))).text
        else:
            prepare_brick(str(folder))
            below = f"""
volume posix
    type storage/posix
    option directory {folder}
end-volume
volume access-control
    type features/access-control
    subvolumes posix
end-volume
volume locks
    type features/locks
    subvolumes access-control
end-volume
volume index
    type features/index
    subvolumes locks
end-volume
"""
            text = client_volfile(stack.enter_context(served(server_volfile(below, "index"))).address)
        pump = Pump()
        stack.callback(pump.close)
        graph = Graph.load(text, Surroundings(pump, pump, volume="v1"), source="<client>")
        pump.run(graph.start(), 60)
        yield Bench(pump, graph)
        pump.run(graph.stop(), 60)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, Bench]]:
    need_peer("root")
    work = tmp_path_factory.mktemp("xdata")
    with bench("glustx", work / "glustx") as ours, bench("stock", work / "stock") as stock:
        yield ours, stock


def requests(b: Bench, xdata: Xdata) -> dict[str, fops.Fop]:
    folder = Fd(b.folder, 0, directory=True)
    b.do(fops.Opendir(Loc(gfid=b.folder), folder))
    return {
        "lookup": fops.Lookup(b.named, xdata=xdata),
        "lookup by gfid": fops.Lookup(b.loc, xdata=xdata),
        "lookup of nothing": fops.Lookup(Loc(pargfid=b.folder, name=b"none"), xdata=xdata),
        "stat": fops.Stat(b.loc, xdata=xdata),
        "fstat": fops.Fstat(b.fd, xdata=xdata),
        "readdirp": fops.Readdirp(folder, 0, 65536, xdata=xdata),
        "write": fops.Write(b.fd, 10, b"more", xdata=xdata),
        "fsync": fops.Fsync(b.fd, xdata=xdata),
        "setxattr": fops.Setxattr(b.loc, Xdata({b"user.x": b"y"}), xdata=xdata),
        "getxattr": fops.Getxattr(b.loc, b"user.one", xdata=xdata),
        "read": fops.Read(b.fd, 0, 4, xdata=xdata),
    }


def shown(xdata: Xdata) -> dict[bytes, object]:
    return {key: True if key in VARIES else value for key, value in dict(xdata).items()}


ACL = b"glusterfs.posix.acl"
# What ours tells also where stock does not: lock counts with whatever fop asks, replicate's pending heals with STAT.
MORE = {
    b"glusterfs.inodelk-count",
    b"glusterfs.entrylk-count",
    b"glusterfs.posixlk-count",
    b"glusterfs.inodelk-dom-prefix:domain",
    b"link-count",
}
# Where they differ: contents come with LOOKUP alone, where it is asked who may read them, and so do ACLs as text; stock
# adds them, and other xattrs, to the one of a GETXATTR as well. Ours lists every xattr with READDIRP's entries too.
DIFFERS = {("stat", b"glusterfs.content"), ("readdirp", b"list-xattr")}
DIFFERS |= {(name, ACL) for name in ("stat", "fstat", "readdirp")}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.decode())
def test_a_key(both: tuple[Bench, Bench], key: bytes) -> None:
    ours, stock = both
    asked = Xdata({key: KEYS[key]})
    if key == b"glusterfs.multi-dom-lk-cnt-req":
        asked = asked.plus({b"glusterfs.inodelk-dom-prefix:domain": uint(0)})
    mine, theirs = requests(ours, asked), requests(stock, asked)
    for name in mine:
        told, wanted = shown(ours.told(mine[name])), shown(stock.told(theirs[name]))
        if name == "getxattr" or (name, key) in DIFFERS:
            continue
        extra = {k: v for k, v in told.items() if k not in wanted and k in MORE}
        assert {k: v for k, v in told.items() if k not in extra} == wanted, name


def test_all_keys_at_once(both: tuple[Bench, Bench]) -> None:
    ours, stock = both
    for name in ("lookup", "lookup by gfid", "fstat"):
        told, wanted = (shown(b.told(requests(b, Xdata(KEYS))[name])) for b in (ours, stock))
        if name == "fstat":
            del wanted[ACL]
        assert {k: v for k, v in told.items() if k not in MORE or k in wanted} == wanted, name
