"""A brick's disk that somebody has tampered with, or raced with: handles and names that became links or pipes lead
nowhere, and no fop follows them or waits for them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from glustx import fops, volgen
from glustx.inode import Fd
from glustx.values import NULL_GFID, ROOT_GFID, SET_MODE, Iatt, Loc, gfid_text
from glustx.xdata import Xdata
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import Served, served
from tests.kit import Stopwatch
from tests.t3_wire.attacks import Attacker, at, making, new

REFUSED = (errno.ESTALE, errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EINVAL, errno.ENODATA)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "brick").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    return tmp_path / "brick"


@pytest.fixture
def outside(folder: Path) -> Iterator[Path]:
    """A folder that is not the brick's; at the end it must be as it was."""
    place = folder.parent / "outside"
    yield place
    assert os.listdir(place) == ["secret"] and (place / "secret").read_bytes() == b"secret"
    assert stat.S_IMODE((place / "secret").stat().st_mode) == 0o644
    assert not [name for name in os.listxattr(place / "secret") if name.startswith(("user.", "trusted."))]


@pytest.fixture
def brick(folder: Path) -> Iterator[Served]:
    namespace = "trusted" if os.geteuid() == 0 else "user"
    prepare_brick(str(folder), namespace=namespace)
    options = {"storage/posix": {"xattr-namespace": namespace}}
    with served(volgen.brick_volfile("test", str(folder), 0, options=options)) as one:
        yield one


@pytest.fixture
def attacker(brick: Served, folder: Path) -> Iterator[Attacker]:
    with Attacker(brick.address, str(folder)) as one:
        yield one.login()


def handle(folder: Path, gfid: bytes) -> Path:
    text = gfid_text(gfid)
    return folder / ".glusterfs" / text[:2] / text[2:4] / text


def on_file(gfid: bytes) -> dict[str, fops.Fop]:
    here, anonymous = Loc(gfid=gfid), Fd(gfid, 2, anonymous=True)
    return {
        "open": fops.Open(here, Fd(gfid, 2), 2),
        "truncate": fops.Truncate(here, 0),
        "read": fops.Read(anonymous, 0, 100),
        "write": fops.Write(anonymous, 0, b"planted"),
        "zerofill": fops.Zerofill(anonymous, 0, 6),
        "chmod": fops.Setattr(here, Iatt(mode=0o777), SET_MODE),
        "xattr": fops.Setxattr(here, Xdata({b"user.planted": b"1"})),
        "stat": fops.Stat(here),
    }


@pytest.mark.parametrize("known", [True, False], ids=["known", "cold"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_files_handle_that_became_something_else(
    brick: Served, attacker: Attacker, folder: Path, outside: Path, known: bool, kind: str
) -> None:
    gfid = attacker.made(fops.Mknod(at(b"file"), stat.S_IFREG | 0o644, xdata=new()))
    if known:
        assert attacker.errno(fops.Write(Fd(gfid, 2, anonymous=True), 0, b"mine")) == 0
    else:
        posix = next(x for x in brick.graph.xlators.values() if x.type_name == "storage/posix")
        posix._inos.clear()  # type: ignore[attr-defined]
        brick.graph.inodes.forget(gfid)
    place = handle(folder, gfid)
    place.unlink()
    if kind == "link":
        place.symlink_to(outside / "secret")
    else:
        os.mkfifo(place)
    watch = Stopwatch()
    for name, req in on_file(gfid).items():
        if known and name in ("read", "write", "zerofill"):
            continue  # the file itself is still open behind an anonymous fd
        assert attacker.errno(req) in REFUSED, name
    assert watch.seconds() < 1


def test_a_folders_handle_that_leads_out(attacker: Attacker, folder: Path, outside: Path) -> None:
    parent = attacker.made(fops.Mkdir(at(b"parent"), 0o755, xdata=new()))
    targets = [os.fsencode(outside), b"../../../../outside", b"../../00/00/" + gfid_text(parent).encode() + b"/.."]
    for target in targets:
        gfid = os.urandom(16)
        place = handle(folder, gfid)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, place)
        for name, req in making(gfid, b"planted").items():
            assert attacker.errno(req) in REFUSED, (target, name)
        assert attacker.errno(fops.Opendir(Loc(gfid=gfid), Fd(gfid, 0, directory=True))) in REFUSED
        assert attacker.errno(fops.Lookup(at(b"secret", gfid))) in REFUSED


def test_handles_of_folders_that_run_in_a_circle(attacker: Attacker, folder: Path) -> None:
    one, two = os.urandom(16), os.urandom(16)
    for gfid, parent in ((one, two), (two, one)):
        text = gfid_text(parent)
        place = handle(folder, gfid)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(f"../../{text[:2]}/{text[2:4]}/{text}/x")
    watch = Stopwatch()
    assert attacker.errno(fops.Lookup(at(b"x", one))) in REFUSED
    assert attacker.errno(fops.Stat(Loc(gfid=two))) in REFUSED
    assert watch.seconds() < 1


def test_a_folder_that_became_a_link_out(attacker: Attacker, folder: Path, outside: Path) -> None:
    gfid = attacker.made(fops.Mkdir(at(b"dir"), 0o755, xdata=new()))
    child = attacker.made(fops.Mkdir(at(b"child", gfid), 0o755, xdata=new()))
    (folder / "dir").rename(folder.parent / "moved-away")
    (folder / "dir").symlink_to(outside)
    # The folder that is open is the one that was, wherever it is now; by name there is only the link.
    for name in (b"secret", b"planted"):
        assert attacker.errno(fops.Lookup(at(name, gfid))) in REFUSED
        assert attacker.errno(fops.Unlink(at(name, gfid))) in REFUSED
    assert attacker.errno(fops.Stat(Loc(gfid=child))) in (0, *REFUSED)
    assert attacker.errno(fops.Lookup(at(b"dir"))) in (0, *REFUSED)


def test_a_name_that_became_a_link_or_a_pipe(attacker: Attacker, folder: Path, outside: Path) -> None:
    """CREATE of a name that is there already opens what is there."""
    (folder / "link").symlink_to(outside / "secret")
    os.mkfifo(folder / "pipe")
    watch = Stopwatch()
    for name in (b"link", b"pipe"):
        for flags in (0o102, 0o1102, 0o101):
            assert attacker.errno(fops.Create(at(name), Fd(NULL_GFID, 2), flags, 0o644, xdata=new())) == errno.EEXIST
    assert watch.seconds() < 1


def test_a_handles_folder_that_leads_out(attacker: Attacker, folder: Path, outside: Path) -> None:
    gfid = b"\x12\x34" + os.urandom(14)
    place = handle(folder, gfid).parent
    place.symlink_to(outside)
    assert attacker.errno(fops.Stat(Loc(gfid=gfid))) == errno.ESTALE
    for req in making(ROOT_GFID, b"new").values():
        assert attacker.errno(msgspec.structs.replace(req, xdata=new(gfid))) == errno.ENOTDIR
    assert attacker.errno(fops.Lookup(at(b"new"))) == errno.ENOENT
