"""gfapi on a brick's folder: the whole stack over storage/posix inside the calling process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from glustx.gfapi import AsyncVolume, Volume
from tests.kit import ROOT

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my brick-1"
    path.mkdir()
    return path


def test_a_folder_becomes_a_volume(folder):
    with Volume(folder) as vol:
        assert vol.name == "my_brick_1"
        vol.makedirs("/a/b")
        with vol.create("/a/b/f") as file:
            file.write(b"hello")
            file.zerofill(5, MIB)
            file.fsync()
        assert (folder / "a/b/f").stat().st_size == MIB + 5
    with Volume(folder, "other") as vol:
        assert vol.name == "other"
        with vol.open("/a/b/f") as file:
            assert file.read(7) == b"hello\0\0"
        vol.rmtree("/a")
    assert [name for name in os.listdir(folder) if name != ".glusterfs"] == []


def test_names_without_a_gfid_get_one(folder):
    """As a brick leaves them that was killed while it made them."""
    with Volume(folder) as vol:
        vol.mkdir("/d")
        (folder / "d/file").write_bytes(b"half made")
        (folder / "d/sub").mkdir()
        assert sorted(vol.listdir("/d")) == ["file", "sub"]
        assert {entry.name: entry.is_dir() for entry in vol.scandir("/d")} == {"file": False, "sub": True}
        assert vol.stat("/d/file").st_size == 9 and vol.listdir("/d/sub") == []
        with vol.open("/d/file") as file:
            assert file.read() == b"half made" and file.gfid != "00000000-0000-0000-0000-000000000000"
        vol.rmtree("/d")


def test_what_blocks_runs_on_workers(folder):
    """Large writes and fsync leave the calling thread; other threads go on meanwhile."""
    data = os.urandom(MIB) * 4
    with Volume(folder) as vol:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                with vol.create(f"/{number}") as file:
                    for i in range(3):
                        assert file.pwrite(data, i * len(data)) == len(data)
                        file.fsync()
                    assert file.pread(len(data), len(data)) == data
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
        assert len(vol.listdir("/")) == 4


def test_it_runs_in_an_event_loop(folder):
    async def main() -> None:
        async with AsyncVolume(folder) as vol:
            async with await vol.create("/f") as file:
                await asyncio.gather(*(file.pwrite(bytes([i]) * MIB, i * MIB) for i in range(8)))
                await file.fsync()
                assert await file.pread(2, 3 * MIB - 1) == b"\2\3"

    asyncio.run(main())


def test_a_folder_that_cannot_be_one(tmp_path):
    with Volume(tmp_path, "one"):
        pass
    inner = tmp_path / "file"
    inner.write_text("not a volfile")
    with pytest.raises(ValueError, match="file"):
        Volume(inner)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_normal_user(tmp_path):
    """The first volume, still as root, loads all modules: the user may have no right to read them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, 65534)
        script = f"""
import os
from glustx.gfapi import Volume
with Volume({str(tmp_path)!r}) as vol, vol.create("/f") as file:
    file.zerofill(0, 4096)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with Volume({folder!r}) as vol:
    with vol.create("/f") as file:
        file.zerofill(0, 1 << 20)
    vol.setxattr("/f", "user.a", b"1")
    vol.mkdir("/d")
with Volume({folder!r}) as vol:
    found = vol.stat("/f")
    print(found.st_uid, found.st_size, vol.getxattr("/f", b"user.a"), sorted(vol.listdir("/")))
"""
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "65534 1048576 b'1' ['d', 'f']\n"
