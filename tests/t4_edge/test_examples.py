"""Every program in examples/ is run here, and what it has made is looked at on the brick."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glustx.gfapi import AsyncVolume
from tests.kit import PATH, ROOT, Process, compile_c, need_peer
from tests.peers import Volume
from tests.t2_graph.troubles import faulty

MIB = 1 << 20
EXAMPLES = ROOT / "examples"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def example(peer_volume: Volume, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`example("name.py", word...)` runs one where it reaches the volume, with `glustx` on PATH; returns its stdout."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "glustx").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glustx "$@"\n')
    (folder / "glustx").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{PATH}", "PYTHONPATH": os.fspath(ROOT)}

    def run(name: str, *words: str | Path, status: int = 0, preload: Path | None = None) -> str:
        program = [sys.executable] if name.endswith(".py") else ["sh"]
        command = peer_volume.command(*program, EXAMPLES / name, *words)
        if preload is not None:
            command = ["env", f"LD_PRELOAD={preload}", *command]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=110)
        assert done.returncode == status, f"{name}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def no_fini(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spares qemu-img the ten seconds that libgfapi takes to leave."""
    need_peer("qemu-img", "block-gluster.so", "gcc", "glusterfs/api/glfs.h")
    target = tmp_path_factory.mktemp("c") / "nofini.so"
    return compile_c(ROOT / "tests/c/nofini.c", target, libraries=(), flags=["-shared", "-fPIC"])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A raw image of 96 MiB: data, a hole, data, zeroes that are written."""
    rng = random.Random(4)
    path = tmp_path / "debian.raw"
    with open(path, "wb") as file:
        file.write(rng.randbytes(9 * MIB))
        file.seek(48 * MIB)
        file.write(rng.randbytes(3 * MIB))
        file.write(bytes(8 * MIB))
        file.truncate(96 * MIB)
    return path


def put(volume: Volume, source: Path, path: str) -> None:
    volume.run(sys.executable, "-m", "glustx", "fs", "cp", source, volume.url(path))


def test_clones_of_a_template(peer_volume: Volume, example: Run, image: Path) -> None:
    put(peer_volume, image, "template.img")
    words = [peer_volume.url("template.img"), peer_volume.url("clones"), "a", "b", "c"]
    said = example("clone_from_template.py", *words)
    assert len(re.findall(r"copied by the brick", said)) == 3
    for name in "abc":
        clone = peer_volume.folder / "clones" / f"{name}.img"
        assert clone.read_bytes() == image.read_bytes()
        assert os.stat(clone).st_blocks * 512 < 40 * MIB and clone.stat().st_mode & 0o777 == 0o600
    assert example("clone_from_template.py", *words).count("is there already") == 3
    example("clone_from_template.py", status=2)


def test_a_batch(peer_volume: Volume, example: Run) -> None:
    words = [peer_volume.url("pool"), "--size", "8M", "--count", "12", "--at-once", "4"]
    assert example("provision_batch.py", *words).count(".img: ") == 12
    pool = peer_volume.folder / "pool"
    assert sorted(os.listdir(pool)) == [f"disk-{index:04}.img" for index in range(12)]
    for path in pool.iterdir():
        assert path.read_bytes() == bytes(8 * MIB) and path.stat().st_blocks * 512 >= 8 * MIB
    inodes = {path.name: path.stat().st_ino for path in pool.iterdir()}
    assert example("provision_batch.py", *words, status=1) == ""  # disks that are there are never replaced
    assert {path.name: path.stat().st_ino for path in pool.iterdir()} == inodes


def test_a_batch_where_a_server_has_no_zerofill() -> None:
    spec = importlib.util.spec_from_file_location("provision_batch", EXAMPLES / "provision_batch.py")
    assert spec and spec.loader
    batch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(batch)

    async def run() -> tuple[bytes, list[str]]:
        async with AsyncVolume(faulty("ZEROFILL", "EOPNOTSUPP")) as volume:
            await batch.make(volume, "/a.img", 5 * MIB, asyncio.Semaphore(1))
            async with await volume.open("/a.img") as image:
                return await image.pread(6 * MIB, 0), await volume.listdir("/")

    assert asyncio.run(run()) == (bytes(5 * MIB), ["a.img"])


def test_the_examples_pass_a_strict_type_checker() -> None:
    mypy = Path(sys.executable).with_name("mypy")
    if not mypy.exists():
        pytest.skip("needs mypy")
    command = [mypy, "--strict", "--config-file=", "--follow-imports=silent", *EXAMPLES.glob("*.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout


def test_an_upload_that_breaks_off_goes_on(peer_volume: Volume, example: Run, tmp_path: Path) -> None:
    source = tmp_path / "big.raw"
    source.write_bytes(random.Random(8).randbytes(150 * MIB))
    script, url = EXAMPLES / "resumable_upload.py", peer_volume.url("up.img")
    command = peer_volume.command(sys.executable, script, source, url)
    with Process(command, env={"PYTHONPATH": os.fspath(ROOT)}) as process:
        process.wait_line(lambda line: True if f": {64 * MIB} of" in line else None)
        process.kill()  # not even a signal handler runs
    assert (peer_volume.folder / "up.img.part").exists() and not (peer_volume.folder / "up.img").exists()
    said = example("resumable_upload.py", source, url)
    resumed = re.search(r": (\d+) of \d+ bytes are there", said)
    assert resumed and int(resumed[1]) in (64 * MIB, 128 * MIB)
    assert (peer_volume.folder / "up.img").read_bytes() == source.read_bytes()
    assert not (peer_volume.folder / "up.img.part").exists()


def test_seeds(peer_volume: Volume, example: Run, tmp_path: Path) -> None:
    user_data = tmp_path / "user-data.yaml"
    user_data.write_text("#cloud-config\n" + "# longer than a sector\n" * 200)
    example("cloud_init_seed.py", peer_volume.url("seeds"), "web-01", "web-02", "--user-data", user_data)
    for guest in ("web-01", "web-02"):
        raw = (peer_volume.folder / "seeds" / f"{guest}-seed.iso").read_bytes()
        found = iso_files(raw)
        assert set(found) == {"user-data", "meta-data"}
        assert found["user-data"] == user_data.read_bytes()
        assert f"local-hostname: {guest}\n".encode() in found["meta-data"]


def test_the_kernel_reads_a_seed(peer_volume: Volume, example: Run, tmp_path: Path) -> None:
    need_peer("root", "/dev/loop-control", "losetup")
    if "iso9660" not in Path("/proc/filesystems").read_text():
        pytest.skip("this kernel has no iso9660")
    (tmp_path / "user-data").write_text("#cloud-config\n")
    example("cloud_init_seed.py", peer_volume.url("seeds"), "k", "--user-data", tmp_path / "user-data")
    root = tmp_path / "mnt"
    root.mkdir()
    subprocess.run(["mount", "-o", "loop,ro", peer_volume.folder / "seeds/k-seed.iso", root], check=True)
    try:
        assert sorted(os.listdir(root)) == ["meta-data", "user-data"]
        assert (root / "user-data").read_text() == "#cloud-config\n"
    finally:
        subprocess.run(["umount", root], check=True)


def test_upload_and_clone(peer_volume: Volume, example: Run, image: Path, no_fini: Path) -> None:
    said = example("upload_and_clone.sh", image, peer_volume.url("uc"), "200M", "web-01", preload=no_fini)
    template = peer_volume.folder / "uc/templates/debian.raw"
    assert template.read_bytes() == image.read_bytes() and os.stat(template).st_blocks * 512 < 20 * MIB
    disk = peer_volume.folder / "uc/guests/web-01.img"
    assert disk.stat().st_size == 200 * MIB and os.stat(disk).st_blocks * 512 < 20 * MIB
    with open(disk, "rb") as file:
        assert file.read(96 * MIB) == image.read_bytes()
    assert "web-01.img" in said


def test_qemu_img(peer_volume: Volume, example: Run, no_fini: Path) -> None:
    said = example("qemu_img.sh", peer_volume.url("q"), "64M", preload=no_fini)
    assert "the overlay is sound" in said and "file format: qcow2" in said
    base = os.stat(peer_volume.folder / "q/golden/base.img")
    assert base.st_size == 64 * MIB and base.st_blocks * 512 >= 64 * MIB


def test_verify_zeroes(peer_volume: Volume, example: Run) -> None:
    said = example("verify_zeroes.sh", peer_volume.url("z.img"), "32M")
    assert said.count(" of zeroes (") == 2 and '"size":1048576' in said
    assert (peer_volume.folder / "z.img").read_bytes() == bytes(32 * MIB)
    assert not (peer_volume.folder / "z.img.used").exists()


def test_every_example_is_run_and_listed() -> None:
    text, here = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".sh"):
            assert f"]({path.name})" in text and f'"{path.name}"' in here, path.name
            assert os.access(path, os.X_OK) and path.read_text().startswith("#!"), path.name


def iso_files(raw: bytes) -> dict[str, bytes]:
    """Read an ISO 9660 image's root by its Rock Ridge names."""
    head = raw[16 * 2048 :]
    assert head[1:6] == b"CD001" and head[40:72].rstrip() == b"cidata"
    assert struct.unpack_from("<I", head, 80)[0] * 2048 == len(raw)
    at, size = (struct.unpack_from("<I", head, 156 + offset)[0] for offset in (2, 10))
    folder, found = raw[at * 2048 : at * 2048 + size], {}
    while folder and folder[0]:
        entry, folder = folder[: folder[0]], folder[folder[0] :]
        sector, length = struct.unpack_from("<I", entry, 2)[0], struct.unpack_from("<I", entry, 10)[0]
        name = re.search(rb"NM(.)\x01\x00", entry[33 + entry[32] :], re.DOTALL)
        if name:
            begin = 33 + entry[32] + name.end()
            text = entry[begin : begin + name[1][0] - 5].decode()
            found[text] = raw[sector * 2048 : sector * 2048 + length]
    return found
