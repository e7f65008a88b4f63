"""What a user may do on our brick and on a stock one, through the same stock clients: the same answers; ACLs that are
set through a mount are on the brick's disk, and the other way round."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import ROOT, compile_c, need_peer
from tests.peers import ServedVolume, StockBrick, Volume, stock_mount, wait_until

USER, OTHER, GROUP = 1000, 2000, 50
BRICKS = {"glustx": ServedVolume, "stock": StockBrick}


@contextlib.contextmanager
def served(kind: str, work: Path) -> Iterator[Volume]:
    folder = work / f"brick-{kind}"
    folder.mkdir()
    with BRICKS[kind](folder, "v1") as volume:
        yield volume


def furnish(root: Path) -> None:
    """The files and folders that the user tries."""
    for name, mode in (("open", 0o755), ("closed", 0o700), ("shared", 0o777), ("tmp", 0o1777), ("default", 0o777),
                       ("setgid", 0o2777)):  # fmt: skip
        (root / name).mkdir()
        (root / name).chmod(mode)
    os.chown(root / "setgid", 0, 77)
    (root / "open/sub").mkdir()
    (root / "tmp/otherdir").mkdir()
    files = {
        "open/r640": (0, 0, 0o640), "open/r644": (0, 0, 0o644), "open/r666": (0, 0, 0o666),
        "open/mine": (USER, USER, 0o644), "open/mine400": (USER, USER, 0o400), "open/mine200": (USER, USER, 0o200),
        "open/group060": (0, USER, 0o060), "open/group040": (0, GROUP, 0o040),
        "open/aclr": (0, 0, 0o600), "open/aclrw": (0, 0, 0o600), "open/aclmasked": (0, 0, 0o600),
        "open/acldenied": (0, 0, 0o644), "closed/in": (0, 0, 0o644),
        "tmp/mine": (USER, USER, 0o644), "tmp/other": (OTHER, OTHER, 0o666),
    }  # fmt: skip
    for name, (uid, gid, mode) in files.items():
        path = root / name
        path.write_bytes(b"data")
        os.chown(path, uid, gid)
        path.chmod(mode)
    for name in ("open/r640", "open/r644"):
        os.setxattr(root / name, "user.there", b"value")
    for name, acl in (
        ("open/aclr", f"u:{USER}:r"),
        ("open/aclrw", f"u:{USER}:rw"),
        ("open/aclmasked", f"u:{USER}:rw,m::r"),
        ("open/acldenied", f"u:{USER}:-"),
    ):
        subprocess.run(["setfacl", "-m", acl, root / name], check=True)
    subprocess.run(["setfacl", "-d", "-m", f"u:{OTHER}:rwx,o::-", root / "default"], check=True)


def getfacl(path: Path) -> str:
    return subprocess.run(
        ["getfacl", "-cnpE", path.name], cwd=path.parent, capture_output=True, text=True, check=True
    ).stdout


def compare(found: dict[str, dict[str, str]], known: dict[str, tuple[str, str]]) -> None:
    """Both sides answered alike, but for what `known` says: name to what stock and we answer."""
    ours, stocks = found["glustx"], found["stock"]
    assert list(ours) == list(stocks)
    different = {name: (stocks[name], ours[name]) for name in ours if ours[name] != stocks[name]}
    assert different == known


def test_a_user_on_a_mount_with_acls(tmp_path: Path) -> None:
    need_peer("root", "glusterfsd", "mount.glusterfs", "/dev/fuse", "setfacl")
    found: dict[str, dict[str, str]] = {}
    for kind in BRICKS:
        point = tmp_path / f"mnt-{kind}"
        point.mkdir()
        with served(kind, tmp_path) as volume, stock_mount(volume, point, ["acl"]) as mount:
            furnish(mount)
            words = [sys.executable, str(ROOT / "tests/t4_edge/as_user.py"), *map(str, (USER, USER, GROUP))]
            done = subprocess.run(words, cwd=mount, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            found[kind] = json.loads(done.stdout)
    assert found["glustx"]["read-0640"] == "EACCES" and found["glustx"]["write-acl"] == "done"
    compare(found, {})


def test_a_user_of_libgfapi(tmp_path: Path) -> None:
    """Here nothing but the brick asks for permission."""
    need_peer("root", "glusterfsd", "mount.glusterfs", "/dev/fuse", "setfacl", "gcc", "glusterfs/api/glfs.h")
    program = compile_c(ROOT / "tests/c/access.c", tmp_path / "access")
    found: dict[str, dict[str, str]] = {}
    for kind in BRICKS:
        point = tmp_path / f"mnt-{kind}"
        point.mkdir()
        with served(kind, tmp_path) as volume:
            with stock_mount(volume, point, ["acl"]) as mount:
                furnish(mount)
            done = volume.run(program, volume.host, str(volume.port), volume.volume, "-", str(USER), str(USER))
            found[kind] = dict(line.split() for line in done.stdout.splitlines())  # type: ignore[misc]
    assert found["glustx"]["open-0640-read"] == found["glustx"]["create-in-roots"] == "13"
    # Stock's brick sends the content of small files with LOOKUP to whomever, and the client's quick-read hands it out.
    leaks = ("open-0640-read", "open-mine-0200-read", "open-acl-denied")
    compare(found, {name: ("0", "13") for name in leaks})


def test_acls_on_the_mount_and_on_the_disk_are_the_same(tmp_path: Path) -> None:
    need_peer("root", "mount.glusterfs", "/dev/fuse", "setfacl", "getfacl")
    point = tmp_path / "mnt"
    point.mkdir()
    with served("glustx", tmp_path) as volume, stock_mount(volume, point, ["acl"]) as mount:
        (mount / "f").touch()
        (mount / "d").mkdir()
        subprocess.run(["setfacl", "-m", "u:1000:rw,g:50:r,m::rw", "f"], cwd=mount, check=True)
        subprocess.run(["setfacl", "-d", "-m", "u:1000:rwx,g:50:rx", "d"], cwd=mount, check=True)
        (mount / "d/inner").mkdir()
        (mount / "d/file").touch()
        for name in ("f", "d", "d/inner", "d/file"):
            text = getfacl(mount / name)
            assert text == getfacl(volume.folder / name)
            assert "user:1000" in text, name
        (mount / "f").chmod(0o600)
        assert getfacl(mount / "f") == getfacl(volume.folder / "f")
        assert "mask::---" in getfacl(volume.folder / "f")
        subprocess.run(["setfacl", "-b", "f"], cwd=mount, check=True)
        assert getfacl(volume.folder / "f").split() == ["user::rw-", "group::---", "other::---"]
        # Done on the disk, seen by the client once it no longer believes what it knows.
        subprocess.run(["setfacl", "-m", "u:2000:r", volume.folder / "f"], check=True)
        wait_until("the mount shows the ACL", lambda: "user:2000:r--" in getfacl(mount / "f"))


@pytest.mark.parametrize("option", ["root", "all"])
def test_squashed_root_on_a_mount(tmp_path: Path, option: str) -> None:
    need_peer("root", "mount.glusterfs", "/dev/fuse")
    folder, point = tmp_path / "brick", tmp_path / "mnt"
    folder.mkdir(mode=0o755)
    point.mkdir()
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o777)
    command = [sys.executable, "-m", "glustx", "serve", "-O", f"protocol/server:{option}-squash=on", "-O", "protocol/server:anonuid=1234"]  # fmt: skip  # noqa: E501
    with ServedVolume(folder, "v1", command=command) as volume, stock_mount(volume, point) as mount:
        with pytest.raises(PermissionError):
            (mount / "f").touch()
        (mount / "shared/f").touch()
        st = (volume.folder / "shared/f").stat()
        assert (st.st_uid, st.st_gid) == (1234, 65534)


def test_a_read_only_volume_on_a_mount(tmp_path: Path) -> None:
    need_peer("root", "mount.glusterfs", "/dev/fuse")
    folder, point = tmp_path / "brick", tmp_path / "mnt"
    folder.mkdir()
    point.mkdir()
    with ServedVolume(folder, "v1"):
        pass
    command = [sys.executable, "-m", "glustx", "serve", "-O", "features/read-only:read-only=on"]
    with ServedVolume(folder, "v1", command=command) as volume, stock_mount(volume, point) as mount:
        assert os.listdir(mount) == []
        for attempt in (lambda: (mount / "f").touch(), lambda: (mount / "d").mkdir(), lambda: mount.chmod(0o700)):
            with pytest.raises(OSError, match="Read-only file system"):
                attempt()
