"""Requests written byte by byte, for what no client sends by itself: PUT, ICREATE and NAMELINK are done right, what the
versions of the program lack is answered as stock does, and fields that lie are errors of the one call."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.fops import OWN_FIRST
from glustx.rpc import message
from glustx.rpc import programs as p
from glustx.values import ROOT_GFID, Caller
from glustx.xdata import NULL_RAW
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import Served, served, server_volfile
from tests.t3_wire.test_hostile import Peer

PROGRAM = p.FOP_400.number
GFID = bytes.fromhex("36b61fbc99114e09a8e30329da86b7d5")
OTHER = bytes.fromhex("46b61fbc99114e09a8e30329da86b7d6")
NULL_330 = bytes(4)
IX, I3 = 148, 100
NULL, PUT, ICREATE, NAMELINK, COPY_FILE_RANGE, COMPOUND = 0, 55, 53, 54, 56, 49
LOOKUP, READ, GETXATTR, UNLINK, LEASE, IPC, GETACTIVELK, SETACTIVELK, MKDIR, STAT, FSTAT = (
    27, 12, 18, 5, 50, 47, 51, 52, 4, 1, 25
)  # fmt: skip


def opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def gfid_req(gfid: bytes) -> bytes:
    return struct.pack(">IiI", 36, 1, 1) + opaque(b"gfid-req\0") + struct.pack(">i", 7) + gfid


def pair(key: bytes, value: bytes) -> bytes:
    body = opaque(key + b"\0") + struct.pack(">i", 6) + opaque(value)
    return struct.pack(">IiI", len(body), 1, 1) + body


def old_pair(key: bytes, value: bytes) -> bytes:
    return opaque(struct.pack(">iii", 1, len(key), len(value)) + key + b"\0" + value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("by-hand")


@pytest.fixture(scope="module")
def brick(folder: Path) -> Iterator[Served]:
    namespace = "trusted" if os.geteuid() == 0 else "user"
    prepare_brick(str(folder), namespace=namespace)
    below = f"""
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
    with served(server_volfile(below, "locks")) as one:
        yield one


@pytest.fixture
def peer(brick: Served) -> Iterator[Peer]:
    with Peer(brick) as one:
        yield one.login()


def done(peer: Peer, proc: int, body: bytes, version: int = 400) -> bytes:
    """What follows op_ret and op_errno of a fop that must succeed."""
    stat, results = peer.ask(PROGRAM, version, proc, body)
    assert stat == message.SUCCESS
    op_ret, op_errno = struct.unpack_from(">ii", results)
    assert op_ret >= 0, errno.errorcode[op_errno]
    return results[8:]


def failed(peer: Peer, proc: int, body: bytes, version: int = 400) -> int:
    """The errno of a fop that must fail."""
    stat, results = peer.ask(PROGRAM, version, proc, body)
    assert stat == message.SUCCESS
    op_ret, op_errno = struct.unpack_from(">ii", results)
    assert op_ret == -1
    return int(op_errno)


def lookup(gfid: bytes, name: bytes = b"") -> bytes:
    own, parent = (bytes(16), gfid) if name else (gfid, bytes(16))
    return own + parent + struct.pack(">I", 0) + opaque(name) + NULL_RAW


def unlink(name: bytes) -> bytes:
    return ROOT_GFID + opaque(name) + struct.pack(">I", 0) + NULL_RAW


def put(name: bytes, data: bytes, gfid: bytes, size: int | None = None, offset: int = 0) -> bytes:
    numbers = struct.pack(">IIIQI", 0o100666, 0o022, 0, offset, len(data) if size is None else size)
    return ROOT_GFID + opaque(name) + numbers + pair(b"user.colour", b"red") + gfid_req(gfid) + data


def test_put_makes_a_file_with_content_and_xattrs(peer: Peer, folder: Path) -> None:
    data = b"all in one step"
    rest = done(peer, PUT, put(b"whole", data, GFID))
    assert rest[:12] == NULL_RAW and len(rest) == 12 + 3 * IX
    stat = struct.unpack(">16s8Q4q9I", rest[12 : 12 + IX])
    assert (stat[0], stat[5], stat[21]) == (GFID, len(data), 0o100644)  # gfid, size, mode without the umask
    assert (folder / "whole").read_bytes() == data
    assert os.getxattr(folder / "whole", "user.colour") == b"red"
    read = GFID + struct.pack(">qQII", -2, 0, 100, 0) + NULL_RAW
    assert done(peer, READ, read).endswith(data)
    # A second one leaves the first as it is.
    assert failed(peer, PUT, put(b"whole", b"other", OTHER)) == errno.EEXIST
    assert (folder / "whole").read_bytes() == data
    assert failed(peer, LOOKUP, lookup(OTHER)) == errno.ENOENT
    done(peer, UNLINK, unlink(b"whole"))


def test_put_with_a_hole_in_front(peer: Peer, folder: Path) -> None:
    done(peer, PUT, put(b"holed", b"end", GFID, offset=5))
    assert (folder / "holed").read_bytes() == bytes(5) + b"end"
    done(peer, UNLINK, unlink(b"holed"))


@pytest.mark.parametrize("size", [0, 3, 1 << 31])
def test_put_that_lies_about_its_size_is_garbage(peer: Peer, folder: Path, size: int) -> None:
    assert peer.ask(PROGRAM, 400, PUT, put(b"lie", b"four", GFID, size=size))[0] == message.GARBAGE_ARGS
    assert not (folder / "lie").exists()
    assert failed(peer, PUT, put(b"a/b", b"", GFID)) == errno.EINVAL
    assert failed(peer, PUT, put(b"none", b"", GFID).replace(gfid_req(GFID), NULL_RAW)) == errno.EINVAL


def test_icreate_and_namelink_make_a_file_in_two_steps(peer: Peer, folder: Path) -> None:
    rest = done(peer, ICREATE, GFID + struct.pack(">I", 0o100640) + NULL_RAW)
    assert rest[:12] == NULL_RAW and len(rest) == 12 + IX and rest[12:28] == GFID
    done(peer, STAT, GFID + NULL_RAW)  # by its gfid it is there ...
    assert not (folder / "named").exists()
    rest = done(peer, NAMELINK, ROOT_GFID + opaque(b"named") + gfid_req(GFID))
    assert rest[:12] == NULL_RAW and len(rest) == 12 + 2 * IX
    assert rest[12:28] == rest[12 + IX : 28 + IX] == ROOT_GFID
    assert done(peer, LOOKUP, lookup(ROOT_GFID, b"named"))[12:28] == GFID  # ... and now by its name
    assert (folder / "named").stat().st_mode == 0o100640
    assert (folder / "named").stat().st_nlink == 2  # its name and its handle
    done(peer, UNLINK, unlink(b"named"))
    assert failed(peer, LOOKUP, lookup(GFID)) == errno.ENOENT


def test_namelink_and_icreate_refuse_what_makes_no_sense(peer: Peer, folder: Path) -> None:
    """The requests that kill a stock brick, among others."""
    unknown = ROOT_GFID + opaque(b"ghost") + gfid_req(OTHER)
    assert failed(peer, NAMELINK, unknown) in (errno.ESTALE, errno.ENOENT)
    assert failed(peer, NAMELINK, ROOT_GFID + opaque(b"ghost") + NULL_RAW) == errno.EINVAL
    assert failed(peer, NAMELINK, OTHER + opaque(b"ghost") + gfid_req(OTHER)) == errno.ESTALE
    assert failed(peer, NAMELINK, ROOT_GFID + opaque(b"..") + gfid_req(ROOT_GFID)) in (errno.EINVAL, errno.EPERM)
    assert failed(peer, NAMELINK, ROOT_GFID + opaque(b"root") + gfid_req(ROOT_GFID)) == errno.EPERM
    assert failed(peer, ICREATE, bytes(16) + struct.pack(">I", 0o100644) + NULL_RAW) == errno.EINVAL
    assert failed(peer, ICREATE, GFID + struct.pack(">I", 0o020644) + NULL_RAW) == errno.EOPNOTSUPP
    done(peer, ICREATE, GFID + struct.pack(">I", 0o100644) + NULL_RAW)
    assert failed(peer, ICREATE, GFID + struct.pack(">I", 0o100644) + NULL_RAW) == errno.EEXIST
    (folder / "taken").touch()
    assert failed(peer, NAMELINK, ROOT_GFID + opaque(b"taken") + gfid_req(GFID)) == errno.EEXIST
    done(peer, NAMELINK, ROOT_GFID + opaque(b"free") + gfid_req(GFID))
    done(peer, UNLINK, unlink(b"free"))
    os.unlink(folder / "taken")


@pytest.mark.parametrize("version", [400, 330])
def test_null_compound_and_what_there_is_not(peer: Peer, version: int) -> None:
    assert peer.ask(PROGRAM, version, NULL) == (message.SUCCESS, bytes(12))
    assert peer.ask(PROGRAM, version, COMPOUND, bytes(64))[0] == message.GARBAGE_ARGS
    first = 57 if version == 400 else 53
    for proc in (*range(first, 60), OWN_FIRST - 1, 2**31, 2**32 - 1):
        assert peer.ask(PROGRAM, version, proc, bytes(200))[0] == message.PROC_UNAVAIL


@pytest.mark.parametrize("version", [400, 330])
def test_leases_and_messages_to_nobody_are_answered(peer: Peer, version: int) -> None:
    null = NULL_RAW if version == 400 else NULL_330
    lease = ROOT_GFID + struct.pack(">II16sI", 2, 1, b"lease-id", 0) + null
    assert failed(peer, LEASE, lease, version) == errno.ENOSYS
    assert failed(peer, IPC, struct.pack(">i", 77) + null, version) == errno.EOPNOTSUPP


@pytest.mark.parametrize("version", [400, 330])
def test_locks_are_listed_and_set(peer: Peer, folder: Path, version: int) -> None:
    null = NULL_RAW if version == 400 else NULL_330
    done(peer, PUT, put(b"locked", b"", GFID))
    flock = struct.pack(">IIQQI", 1, 0, 5, 10, 77) + opaque(b"owner-of")
    one = struct.pack(">I", 1) + flock + opaque(b"some-client") + struct.pack(">I", 0)
    done(peer, SETACTIVELK, GFID + one + struct.pack(">I", 0) + null, version)
    stat, results = peer.ask(PROGRAM, version, GETACTIVELK, GFID + null)
    assert stat == message.SUCCESS
    assert struct.unpack_from(">i", results) == (1,)  # how many: a stock client reads the list only then
    listed = results[8 + 12 :] if version == 400 else results[8:]
    assert listed == one + struct.pack(">I", 0) + (b"" if version == 400 else null)
    done(peer, UNLINK, unlink(b"locked"))


# -- version 330 by hand -----------------------------------------------------------------------------------------------


def test_an_old_client_makes_and_reads_a_file(brick: Served, folder: Path) -> None:
    with Peer(brick) as peer:
        peer.cred = message.encode_auth_v2(Caller(pid=7, uid=0, gid=0, groups=(1, 2), lk_owner=b"owner"))
        peer.login()
        body = ROOT_GFID + struct.pack(">III", 0o302, 0o100600, 0) + opaque(b"old") + old_pair(b"gfid-req", OTHER)
        rest = done(peer, 23, body, 330)
        stat, number = rest[:I3], struct.unpack_from(">Q", rest, I3)[0]
        assert stat[:16] == OTHER and len(rest) == 3 * I3 + 8 + len(old_pair(b"gfid-req", OTHER))
        fd = OTHER + struct.pack(">q", number)
        write = fd + struct.pack(">QII", 3, 5, 0) + old_pair(b"glusterfs.write-is-append", b"4\0") + b"bytes"
        done(peer, 13, write, 330)
        read = fd + struct.pack(">QII", 0, 100, 0) + NULL_330
        stat_code, results = peer.ask(PROGRAM, 330, READ, read)
        assert stat_code == 0 and struct.unpack_from(">ii", results) == (8, errno.ENOENT)
        assert results[8 + I3 :] == struct.pack(">I", 8) + NULL_330 + bytes(3) + b"bytes"
        attributes = struct.unpack(">16s2Q4I2QIQ6I", done(peer, FSTAT, fd + NULL_330, 330)[:I3])
        assert (attributes[0], attributes[3], attributes[8]) == (OTHER, 0o100600, 8)
        # The same fd, in the words of the newer version.
        assert len(done(peer, FSTAT, fd + NULL_RAW)) == 12 + IX
        done(peer, 41, fd + NULL_330, 330)
        assert failed(peer, FSTAT, fd + NULL_330, 330) == errno.EBADF
    assert (folder / "old").read_bytes() == bytes(3) + b"bytes"
    os.unlink(folder / "old")


def test_an_old_client_is_a_stranger_before_setvolume(brick: Served) -> None:
    with Peer(brick) as peer:
        assert peer.ask(PROGRAM, 330, STAT, ROOT_GFID + NULL_330)[0] == message.GARBAGE_ARGS
        assert peer.ask(PROGRAM, 330, NULL) == (message.SUCCESS, bytes(12))


@pytest.mark.parametrize(
    "lie", ["7fffffff", "80000000", "00000004 ffffffff", "00000010 00000001 7fffffff 00000000 00000000"]
)
def test_old_dictionaries_that_lie_are_garbage(peer: Peer, lie: str) -> None:
    assert peer.ask(PROGRAM, 330, STAT, ROOT_GFID + bytes.fromhex(lie))[0] == message.GARBAGE_ARGS
    assert peer.ask(PROGRAM, 330, 13, ROOT_GFID + bytes(24) + bytes.fromhex(lie))[0] == message.GARBAGE_ARGS
    done(peer, STAT, ROOT_GFID + NULL_330, 330)
