"""The xdata keys of `tests/golden/xdata-keys.txt`, each tried on a brick of ours in both versions of the program; the
table in docs/wire.md is made of that file."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
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
    LEASE_RW,
    LEASE_SET,
    LEASE_UNLOCK,
    ROOT_GFID,
    Caller,
    Flock,
    Iatt,
    LeaseInfo,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, MdataTimes, Xdata, gfuuid, uint
from glustx.xlators.storage.posix import prepare_brick
from glustx.xlators.storage.posix_object import pack_mdata
from tests.conformance.brick import Brick, File
from tests.conformance.served import client_volfile, served, server_volfile
from tests.kit import ROOT

ROWS = [
    [cell.strip() for cell in line.split("|")]
    for line in (ROOT / "tests" / "golden" / "xdata-keys.txt").read_text().splitlines()
    if not line.startswith("#")
]
NAMESPACE = "trusted" if os.geteuid() == 0 else "user"
ANN = Caller(pid=5, lk_owner=b"ann-own8")
LAYOUT = struct.pack(">IIII", 0, 0, 0, 0xFFFFFFFF)
DHT = b"trusted.glusterfs.dht"


class Wire(Brick):
    """A client of a fresh brick, and the brick's folder."""

    def __init__(self, call: Callable[[fops.Fop], Any], folder: Path) -> None:
        super().__init__(call)
        self.folder = folder

    def ask(self, file: File, keys: dict[bytes, object]) -> Xdata:
        """What a named LOOKUP that asks with `keys` is told."""
        found: Xdata = self(fops.Lookup(Loc(pargfid=ROOT_GFID, name=file.loc.name), xdata=Xdata(keys))).xdata
        return found


@pytest.fixture(scope="module", params=[400, 330])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("keys")
    prepare_brick(str(folder), namespace=NAMESPACE)
    below = f"""
volume store
    type storage/posix
    option directory {folder}
    option xattr-namespace {NAMESPACE}
    option fips-mode-rchecksum on
end-volume
volume locks
    type features/locks
    option mandatory-locking optimal
    subvolumes store
end-volume
volume leases
    type features/leases
    option leases on
    subvolumes locks
end-volume
volume acl
    type system/posix-acl
    subvolumes leases
end-volume
"""
    with served(server_volfile(below, "acl")) as brick:
        pump = Pump()
        old = "    option testing.old-protocol on\nend-volume" if request.param == 330 else "end-volume"
        text = client_volfile(brick.address).replace("end-volume", old, 1)
        graph = Graph.load(text, Surroundings(pump, pump, volume="test"), source="<client>")
        try:
            pump.run(graph.start(), 60)
            assert graph.root.link.spoken.program.version == request.param  # type: ignore[attr-defined]
            yield Wire(lambda call: pump.run(graph.top(call), 30), folder)
            pump.run(graph.stop(), 20)
        finally:
            pump.close()


CHECKS: dict[str, Callable[[Wire], None]] = {}


def check(*keys: str) -> Callable[[Callable[[Wire], None]], Callable[[Wire], None]]:
    def note(function: Callable[[Wire], None]) -> Callable[[Wire], None]:
        CHECKS.update(dict.fromkeys(keys, function))
        return function

    return note


@check("any xattr, fnmatch patterns")
def _(b: Wire) -> None:
    file = b.make(b"patterns")
    b(fops.Setxattr(file.loc, Xdata({b"user.a1": b"1", b"user.a2": b"2", b"user.b": b"3"})))
    asked = Xdata({b"user.a*": 0, b"user.b": uint(0), b"user.none": 0})
    found = b.ask(file, dict(asked))
    wanted = {b"user.a1": b"1", b"user.a2": b"2", b"user.b": b"3"}
    assert {key: bytes(found[key]) for key in found} == wanted
    for req in (fops.Stat(file.loc, xdata=asked), fops.Fstat(file.fd, xdata=asked)):
        told = b(req).xdata
        assert {key: bytes(told[key]) for key in told} == wanted


@check("any xattr")
def _(b: Wire) -> None:
    loc = Loc(pargfid=ROOT_GFID, name=b"gifted")
    b(fops.Mkdir(loc, 0o755, xdata=b.fresh().plus({DHT: LAYOUT, b"trusted.glusterfs.dht.mds": bytes(4)})))
    found = b(fops.Lookup(loc, xdata=Xdata({DHT: uint(16), b"trusted.glusterfs.dht.mds": uint(4)}))).xdata
    assert bytes(found[DHT]) == LAYOUT and bytes(found[b"trusted.glusterfs.dht.mds"]) == bytes(4)


@check("trusted.glusterfs.mdata")
def _(b: Wire) -> None:
    key = b"trusted.glusterfs.mdata"
    assert len(b.ask(b.make(b"mdata"), {key: 1})[key]) == 57
    times = pack_mdata((10, 1, 20, 2, 30, 3))
    loc = Loc(pargfid=ROOT_GFID, name=b"healed")
    stat = b(fops.Mkdir(loc, 0o755, xdata=b.fresh().plus({key: times}))).stat
    assert (stat.ctime_ns, stat.mtime_ns, stat.atime_ns) == (10_000_000_001, 20_000_000_002, 30_000_000_003)
    reply = b(fops.Lookup(loc, xdata=Xdata({key: 1})))
    assert bytes(reply.xdata[key]) == times and reply.stat.mtime == 20


@check("glusterfs.content")
def _(b: Wire) -> None:
    file = b.make(b"content", b"abc")
    assert bytes(b.ask(file, {b"glusterfs.content": uint(3)})[b"glusterfs.content"]) == b"abc"
    assert b"glusterfs.content" not in b.ask(file, {b"glusterfs.content": uint(2)})


@check("list-xattr")
def _(b: Wire) -> None:
    file = b.make(b"list")
    b(fops.Setxattr(file.loc, Xdata({b"user.l": b"1"})))
    found = b.ask(file, {b"list-xattr": 1})
    assert bytes(found[b"user.l"]) == b"1" and b"trusted.gfid" not in found


@check("get-size")
def _(b: Wire) -> None:
    assert b.ask(b.make(b"size", b"abc"), {b"get-size": 1}).number(b"get-size") == 3


@check("gfid-req")
def _(b: Wire) -> None:
    (b.folder / "foreign").write_bytes(b"put here by hand")
    gfid = new_gfid()
    loc = Loc(pargfid=ROOT_GFID, name=b"foreign")
    assert b(fops.Lookup(loc, xdata=Xdata({GFID_REQ: gfuuid(gfid)}))).stat.gfid == gfid
    made = b.make(b"requested")
    assert b.lookup(b"requested").stat.gfid == made.gfid
    b.fails(fops.Mkdir(Loc(pargfid=ROOT_GFID, name=b"nothing"), 0o755), errno.EINVAL)


@check("unlinked-lookup")
def _(b: Wire) -> None:
    file = b.make(b"unlinked", b"abc")
    b(fops.Unlink(file.loc))
    b.fails(fops.Lookup(Loc(gfid=file.gfid)), errno.ENOENT)
    assert b(fops.Lookup(Loc(gfid=file.gfid), xdata=Xdata({b"unlinked-lookup": 1}))).stat.size == 3


@check("glusterfs.open-fd-count")
def _(b: Wire) -> None:
    file = b.make(b"opened")
    b.open(file.gfid)
    assert b.ask(file, {b"glusterfs.open-fd-count": uint(4)}).number(b"glusterfs.open-fd-count") == 2


def written(b: Wire, file: File, offset: int, key: bytes, value: object = 4) -> Any:
    return b(fops.Write(file.fd, offset, b"data", caller=ANN, xdata=Xdata({key: value})))


@check("glusterfs.open-active-fd-count")
def _(b: Wire) -> None:
    key = b"glusterfs.open-active-fd-count"
    assert written(b, b.make(b"active"), 0, key, uint(4)).xdata.number(key) == 1


@check("glusterfs.write-is-append")
def _(b: Wire) -> None:
    file, key = b.make(b"append", b"abc"), b"glusterfs.write-is-append"
    assert [written(b, file, at, key, uint(4)).xdata.number(key, -1) for at in (3, 0)] == [1, 0]


@check("glusterfs.write-update-atomic")
def _(b: Wire) -> None:
    file, asked = b.make(b"atomic", b"abc"), Xdata({b"glusterfs.write-update-atomic": uint(4)})
    for request in (fops.Write(file.fd, 3, b"d", xdata=asked), fops.Zerofill(file.fd, 4, 6, xdata=asked)):
        before = b.stat(file.gfid).size
        reply = b(request)
        assert (reply.pre.size, reply.post.size) == (before, b.stat(file.gfid).size)


@check("batch-fsync")
def _(b: Wire) -> None:
    b(fops.Fsync(b.make(b"batch").fd, xdata=Xdata({b"batch-fsync": 1, b"glusterfs-internal-fop": "yes"})))


@check("glusterfs-internal-fop")
def _(b: Wire) -> None:
    # The reserve itself is tested where there is one: here it is not in the way.
    assert written(b, b.make(b"internal"), 0, b"glusterfs-internal-fop", "yes").count == 4


@check("glusterfs.preop.parent.key")
def _(b: Wire) -> None:
    parent = b.mkdir(b"parent")
    b(fops.Setxattr(parent, Xdata({DHT: LAYOUT})))

    def make(name: bytes, layout: bytes) -> fops.Mkdir:
        asked = b.fresh().plus({b"glusterfs.preop.parent.key": DHT.decode(), DHT: layout})
        return fops.Mkdir(Loc(pargfid=parent.gfid, name=name), 0o755, xdata=asked)

    b(make(b"agreed", LAYOUT))
    with pytest.raises(FopError) as caught:
        b(make(b"stale", LAYOUT[::-1]))
    assert caught.value.errno == errno.EIO
    assert caught.value.xdata is not None and b"glusterfs.preop.check.failed" in caught.value.xdata
    assert b.names(parent.gfid) == [b"agreed"]


@check("changelog.rename-op")
def _(b: Wire) -> None:
    file = b.make(b"before")
    told = Xdata({b"changelog.rename-op": ROOT_GFID * 2 + bytes(8)})
    b(fops.Rename(file.loc, Loc(pargfid=ROOT_GFID, name=b"after"), xdata=told))
    assert b.lookup(b"after").stat.gfid == file.gfid


@check("dht-get-iatt-in-xattr")
def _(b: Wire) -> None:
    file = b.make(b"iatts", b"abc")
    for request in (
        fops.Setxattr(file.loc, Xdata({b"user.i": b"1"}), xdata=Xdata({b"dht-get-iatt-in-xattr": 1})),
        fops.Removexattr(file.loc, b"user.i", xdata=Xdata({b"dht-get-iatt-in-xattr": 1})),
    ):
        found = b(request).xdata
        for key in (b"virt-gf-prestat", b"virt-gf-poststat"):
            assert isinstance(found[key], Iatt)
            assert (found[key].gfid, found[key].size, found[key].mode) == (file.gfid, 3, 0o100644)


@check("set-ctime-mdata")
def _(b: Wire) -> None:
    file = b.make(b"times")
    later = 2**31 - 9
    b(fops.Setxattr(file.loc, Xdata({b"set-ctime-mdata": MdataTimes(1, later, later, 0, 5, 6)})))
    stat = b.stat(file.gfid)
    assert (stat.mtime, stat.mtime_nsec, stat.ctime, stat.ctime_nsec) == (later, 5, later, 6)
    assert stat.atime > 1


@check("ignore-deem-statfs")
def _(b: Wire) -> None:
    real = b(fops.Statfs(Loc(gfid=ROOT_GFID), xdata=Xdata({b"ignore-deem-statfs": 1}))).statfs
    assert real.blocks == os.statvfs(b.folder).f_blocks


@check("unlink-only-if-dht-linkto-file")
def _(b: Wire) -> None:
    file = b.make(b"no-link-file")
    b.fails(fops.Unlink(file.loc, xdata=Xdata({b"unlink-only-if-dht-linkto-file": 1})), errno.EBUSY)
    loc, linkto = Loc(pargfid=ROOT_GFID, name=b"link-file"), b"trusted.glusterfs.dht.linkto"
    b(fops.Mknod(loc, 0o101000, xdata=b.fresh().plus({linkto: b"other\0"})))
    b(fops.Unlink(loc, xdata=Xdata({b"unlink-only-if-dht-linkto-file": 1})))


@check("dont-unlink-for-open-fd")
def _(b: Wire) -> None:
    file = b.make(b"in-use")
    asked = Xdata({b"dont-unlink-for-open-fd": 1})
    b.fails(fops.Unlink(file.loc, xdata=asked), errno.EBUSY)
    b(fops.Release(file.fd))
    b(fops.Unlink(file.loc, xdata=asked))


@check("get-link-count", "gf_get_file_block_count")
def _(b: Wire) -> None:
    file = b.make(b"counted", b"x" * 5000)
    b(fops.Link(file.loc, Loc(pargfid=ROOT_GFID, name=b"counted-2")))
    blocks = b.stat(file.gfid).blocks
    asked = Xdata({b"get-link-count": 1, b"gf_get_file_block_count": 1})
    for name, links in ((b"counted", 2), (b"counted-2", 1)):
        found = b(fops.Unlink(Loc(pargfid=ROOT_GFID, name=name), xdata=asked)).xdata
        assert found.number(b"get-link-count") == links
        assert found.number(b"gf_get_file_block_count") == blocks


@check("check-zero-filled", "fips-mode-rchecksum")
def _(b: Wire) -> None:
    file, asked = b.make(b"sums", bytes(100) + b"x"), Xdata({b"check-zero-filled": 1})
    found = [b(fops.Rchecksum(file.fd, 0, size, xdata=asked)).xdata for size in (100, 101)]
    assert [xdata.number(b"buf-has-zeroes") for xdata in found] == [1, 0]
    assert all(xdata.number(b"fips-mode-rchecksum") == 1 for xdata in found)


@check("glusterfs.inodelk-count", "glusterfs.inodelk-dom-count", "glusterfs.inodelk-dom-prefix:DOMAIN")
def _(b: Wire) -> None:
    file = b.make(b"locked")
    for domain, owner in ((b"one", b"a"), (b"one", b"b"), (b"two", b"c")):
        at = Flock(F_WRLCK, 0, owner[0], 1, 1, owner)
        b(fops.Inodelk(file.loc, domain, F_SETLK, F_WRLCK, at, caller=Caller(pid=1, lk_owner=owner)))
    key = b"glusterfs.inodelk-count"
    assert b.ask(file, {key: uint(0)}).number(key) == 3
    assert written(b, file, 0, b"glusterfs.inodelk-dom-count", "one").xdata.number(key) == 2
    prefix = b"glusterfs.inodelk-dom-prefix:"
    keys: dict[bytes, object] = {prefix + b"one": 1, prefix + b"two": 1, b"glusterfs.multi-dom-lk-cnt-req": 1}
    found = b.ask(file, keys)
    assert [found.number(prefix + domain) for domain in (b"one", b"two")] == [2, 1]


@check("glusterfs.posixlk-count")
def _(b: Wire) -> None:
    file, key = b.make(b"posixlk"), b"glusterfs.posixlk-count"
    b(fops.Lk(file.fd, F_SETLK, F_WRLCK, Flock(F_WRLCK, 0, 0, 5, 5, b"ann-own8"), caller=ANN))
    assert b.ask(file, {key: uint(0)}).number(key) == 1


@check("glusterfs.entrylk-count", "glusterfs.parent-entrylk")
def _(b: Wire) -> None:
    folder = b.mkdir(b"entrylk")
    loc = Loc(pargfid=folder.gfid, name=b"name")
    b(fops.Mkdir(loc, 0o755, xdata=b.fresh()))
    parent, count = b"glusterfs.parent-entrylk", b"glusterfs.entrylk-count"
    assert b(fops.Lookup(loc, xdata=Xdata({parent: uint(0)}))).xdata.number(parent, -1) == 0
    b(fops.Entrylk(folder, b"domain", ENTRYLK_LOCK_NB, ENTRYLK_WRLCK, b"name", caller=ANN))
    assert b(fops.Lookup(loc, xdata=Xdata({parent: uint(0)}))).xdata.number(parent) == 1
    at = Loc(pargfid=ROOT_GFID, name=b"entrylk")
    assert b(fops.Lookup(at, xdata=Xdata({count: uint(0)}))).xdata.number(count) == 1


@check("link-count")
def _(b: Wire) -> None:
    file, asked = b.make(b"links"), Xdata({b"link-count": "glusterfs.xattrop_index_count"})
    pending = b.folder / ".glusterfs" / "indices" / "xattrop"
    assert b.ask(file, dict(asked)).number(b"link-count", -1) == 0
    pending.mkdir(parents=True, exist_ok=True)
    (pending / "xattrop-base").touch()
    assert b(fops.Fstat(file.fd, xdata=asked)).xdata.number(b"link-count", -1) == 0
    (pending / "a gfid").touch()
    assert b(fops.Stat(file.loc, xdata=asked)).xdata.number(b"link-count") == 1
    with pytest.raises(FopError, match="ENOENT") as caught:
        b(fops.Lookup(Loc(pargfid=ROOT_GFID, name=b"none"), xdata=asked))
    assert caught.value.xdata is not None and caught.value.xdata.number(b"link-count") == 1
    assert b"link-count" not in b.ask(file, {b"link-count": "something else"})


@check("glusterfs.lk.lkmode")
def _(b: Wire) -> None:
    file = b.make(b"lkmode")
    lock = fops.Lk(file.fd, F_SETLK, F_WRLCK, Flock(F_WRLCK, 0, 0, 5, 5, b"ann-own8"), caller=ANN)
    truncate = fops.Truncate(file.loc, 0, caller=Caller(pid=6, lk_owner=b"bob"))
    b(lock)
    b(truncate)
    b(msgspec.structs.replace(lock, xdata=Xdata({b"glusterfs.lk.lkmode": uint(1)})))
    with pytest.raises(FopError, match="EAGAIN"):
        b(truncate)


@check("lease-id")
def _(b: Wire) -> None:
    file, mine = b.make(b"lease"), b"an id".ljust(16, b"\0")
    fd = Fd(file.fd.gfid, 0o4002)
    b(fops.Open(file.loc, fd, 0o4002))
    b(fops.Lease(file.loc, LeaseInfo(LEASE_SET, LEASE_RW, mine)))
    with pytest.raises(FopError, match="EAGAIN"):
        b(fops.Write(fd, 0, b"text"))
    b(fops.Write(fd, 0, b"text", xdata=Xdata({b"lease-id": mine})))
    b(fops.Lease(file.loc, LeaseInfo(LEASE_UNLOCK, LEASE_RW, mine)))
    b(fops.Write(fd, 0, b"text"))


@check("glusterfs.posix.acl, glusterfs.posix.default_acl")
def _(b: Wire) -> None:
    file = b.make(b"acl", mode=0o640)
    assert b"rw-" in bytes(b.ask(file, {b"glusterfs.posix.acl": 0})[b"glusterfs.posix.acl"])


DONE = [row[0] for row in ROWS if row[2] != "-"]


# One check may be of several keys; it bears the name of the first.
FIRST = {function: key for key, function in reversed(CHECKS.items())}


@pytest.mark.parametrize("key", sorted(FIRST.values()))
def test_the_brick_knows_the_key(client: Wire, key: str) -> None:
    CHECKS[key](client)


def test_every_key_that_is_done_is_tried_where_the_table_says() -> None:
    assert set(DONE) == set(CHECKS)
    for _, _, does, place in ROWS:
        assert does == "-" or (ROOT / "glustx" / "xlators" / place).is_file(), place
    assert all(len(row) == 4 for row in ROWS)
