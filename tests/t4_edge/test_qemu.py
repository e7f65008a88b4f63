"""Stock QEMU's gluster driver on a brick: images created, converted, compared, mapped and resized, with the bytes
looked at on the brick itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.kit import ROOT, Stopwatch, affordable, compile_c, need_peer
from tests.peers import Volume

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def qemu(peer_volume: Volume, tmp_path_factory: pytest.TempPathFactory):
    """`qemu("qemu-img", ...)` runs a QEMU tool where it reaches the volume; `patient=True` spares it nothing."""
    need_peer("qemu-img", "qemu-io", "block-gluster.so", "gcc", "glusterfs/api/glfs.h")
    flags = ["-shared", "-fPIC"]
    quick = compile_c(ROOT / "tests/c/nofini.c", tmp_path_factory.mktemp("c") / "nofini.so", libraries=(), flags=flags)

    def run(*argv: object, patient: bool = False, status: int = 0) -> str:
        command = list(map(str, argv))
        if not patient:
            command = ["env", f"LD_PRELOAD={quick}", *command]
        done = subprocess.run(peer_volume.command(*command), capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local raw image of 96 MiB: data, a hole of 32 MiB, data, and written zeros."""
    rng = random.Random(3)
    path = tmp_path_factory.mktemp("disk") / "disk.raw"
    with open(path, "wb") as file:
        file.write(rng.randbytes(16 * MIB))
        file.seek(48 * MIB)
        file.write(rng.randbytes(24 * MIB + 512))
        file.write(bytes(8 * MIB))
        file.truncate(96 * MIB)
    return path


def test_create_20_gib_preallocated(peer_volume: Volume, qemu) -> None:
    size = affordable(peer_volume.folder, 20 * GIB)
    watch = Stopwatch()
    qemu("qemu-img", "create", "-f", "raw", "-o", "preallocation=full", peer_volume.url("a.img"), size, patient=True)
    seconds = watch.seconds()
    # Ten seconds of it are glfs_fini's, which is QEMU's habit with every brick.
    assert seconds < 15
    info = os.stat(peer_volume.folder / "a.img")
    assert info.st_size == size
    assert info.st_blocks * 512 >= size
    with open(peer_volume.folder / "a.img", "rb") as file:
        for offset in (0, size // 2, size - MIB):
            assert os.pread(file.fileno(), MIB, offset) == bytes(MIB)


def test_create_with_falloc_and_off(peer_volume: Volume, qemu) -> None:
    qemu("qemu-img", "create", "-f", "raw", "-o", "preallocation=falloc", peer_volume.url("falloc.img"), "1G")
    info = os.stat(peer_volume.folder / "falloc.img")
    assert info.st_size == GIB
    assert info.st_blocks * 512 >= GIB
    qemu("qemu-img", "create", "-f", "raw", "-o", "preallocation=off", peer_volume.url("off.img"), "1G")
    info = os.stat(peer_volume.folder / "off.img")
    assert info.st_size == GIB
    assert info.st_blocks * 512 < MIB


@pytest.mark.parametrize("preallocation", ["off", "falloc", "full"])
def test_convert_in_compare_and_out(peer_volume: Volume, qemu, disk: Path, tmp_path: Path, preallocation: str) -> None:
    name = f"convert-{preallocation}.img"
    url = peer_volume.url(name)
    option = f"preallocation={preallocation}"
    qemu("qemu-img", "convert", "-f", "raw", "-O", "raw", "-o", option, disk, url)
    assert (peer_volume.folder / name).read_bytes() == disk.read_bytes()
    qemu("qemu-img", "compare", "-f", "raw", "-F", "raw", disk, url)
    qemu("qemu-img", "convert", "-f", "raw", "-O", "raw", url, tmp_path / "out.raw")
    assert (tmp_path / "out.raw").read_bytes() == disk.read_bytes()
    # Also with "off", because QEMU zerofills the target's holes.
    assert os.stat(peer_volume.folder / name).st_blocks * 512 >= 96 * MIB


def test_convert_into_an_existing_image(peer_volume: Volume, qemu, disk: Path) -> None:
    """`-n` into a preallocated image full of old data: the driver must zero what the source has as holes."""
    url = peer_volume.url("existing.img")
    qemu("qemu-img", "create", "-f", "raw", "-o", "preallocation=full", url, "96M")
    qemu("qemu-io", "-f", "raw", "-c", "write -P 0xaa 0 96M", url)
    qemu("qemu-img", "convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", disk, url)
    qemu("qemu-img", "compare", "-f", "raw", "-F", "raw", disk, url)
    assert (peer_volume.folder / "existing.img").read_bytes() == disk.read_bytes()


def test_compare_finds_one_changed_byte(peer_volume: Volume, qemu, disk: Path) -> None:
    url = peer_volume.url("changed.img")
    qemu("qemu-img", "convert", "-f", "raw", "-O", "raw", disk, url)
    with open(peer_volume.folder / "changed.img", "rb+") as file:
        byte = os.pread(file.fileno(), 1, 60 * MIB)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 60 * MIB)
    said = qemu("qemu-img", "compare", "-f", "raw", "-F", "raw", disk, url, status=1)
    assert f"offset {60 * MIB}" in said


def test_qcow2(peer_volume: Volume, qemu, disk: Path, tmp_path: Path) -> None:
    url = peer_volume.url("disk.qcow2")
    qemu("qemu-img", "convert", "-f", "raw", "-O", "qcow2", disk, url)
    qemu("qemu-img", "check", "-f", "qcow2", url)
    qemu("qemu-img", "snapshot", "-c", "first", url)
    qemu("qemu-io", "-f", "qcow2", "-c", "write -P 0x55 1M 3M", "-c", "write -z 50M 4M", "-c", "flush", url)
    qemu("qemu-io", "-f", "qcow2", "-c", "read -P 0x55 1M 3M", "-c", "read -P 0 50M 4M", url)
    qemu("qemu-img", "check", "-f", "qcow2", url)
    qemu("qemu-img", "snapshot", "-a", "first", url)
    qemu("qemu-img", "compare", "-f", "raw", "-F", "qcow2", disk, url)


def test_write_zeroes_and_discard(peer_volume: Volume, qemu) -> None:
    url = peer_volume.url("io.img")
    qemu("qemu-img", "create", "-f", "raw", url, "32M")
    qemu(
        *("qemu-io", "-f", "raw", "-d", "unmap", "-c", "write -P 0x11 0 32M"),
        *("-c", "write -z 1M 4M", "-c", "discard 8M 8M", "-c", "aio_write -P 0x22 20M 512k"),
        *("-c", "aio_write -P 0x33 24M 4k", "-c", "aio_flush", "-c", "flush", url),
    )
    data = (peer_volume.folder / "io.img").read_bytes()
    expected = bytearray(b"\x11" * (32 * MIB))
    expected[MIB : 5 * MIB] = bytes(4 * MIB)
    expected[8 * MIB : 16 * MIB] = bytes(8 * MIB)
    expected[20 * MIB : 20 * MIB + 512 * 1024] = b"\x22" * (512 * 1024)
    expected[24 * MIB : 24 * MIB + 4096] = b"\x33" * 4096
    assert data == bytes(expected)
    assert os.stat(peer_volume.folder / "io.img").st_blocks * 512 <= 25 * MIB
    qemu("qemu-io", "-f", "raw", "-c", "read -P 0 1M 4M", "-c", "read -P 0 8M 8M", "-c", "read -P 0x22 20M 512k", url)


def test_cache_none(peer_volume: Volume, qemu, disk: Path, tmp_path: Path) -> None:
    """Images opened with O_DIRECT: sectors, and sizes that are none."""
    url = peer_volume.url("direct.img")
    qemu("qemu-img", "convert", "-t", "none", "-f", "raw", "-O", "raw", disk, url)
    qemu("qemu-img", "compare", "-T", "none", "-f", "raw", "-F", "raw", disk, url)
    qemu(
        *("qemu-io", "-t", "none", "-f", "raw", "-c", "write -P 0x11 0 4M", "-c", "write -P 0x22 512 512"),
        *("-c", "aio_write -P 0x33 1M 64k", "-c", "aio_write -P 0x44 2M 4k", "-c", "aio_flush"),
        *("-c", "write -z 3M 512k", "-c", "flush", "-c", "read -P 0x22 512 512", "-c", "read -P 0x33 1M 64k", url),
    )
    expected = bytearray(disk.read_bytes())
    expected[: 4 * MIB] = b"\x11" * (4 * MIB)
    for start, size, byte in ((512, 512, 0x22), (MIB, 65536, 0x33), (2 * MIB, 4096, 0x44), (3 * MIB, MIB // 2, 0)):
        expected[start : start + size] = bytes([byte]) * size
    assert (peer_volume.folder / "direct.img").read_bytes() == expected
    qemu("qemu-img", "convert", "-t", "none", "-T", "none", "-f", "raw", "-O", "raw", url, tmp_path / "out.raw")
    assert (tmp_path / "out.raw").read_bytes() == expected


def test_map_shows_the_holes(peer_volume: Volume, qemu, disk: Path) -> None:
    url = peer_volume.url("map.img")
    qemu("qemu-img", "convert", "-f", "raw", "-O", "raw", disk, url)
    extents = json.loads(qemu("qemu-img", "map", "--output=json", "-f", "raw", url))
    data = [(extent["start"], extent["length"]) for extent in extents if extent["data"]]
    assert data[0][0] == 0
    holes = [extent for extent in extents if not extent["data"]]
    assert any(extent["start"] == 16 * MIB and extent["length"] == 32 * MIB for extent in holes)
    assert sum(extent["length"] for extent in extents) == 96 * MIB


def test_resize(peer_volume: Volume, qemu, disk: Path) -> None:
    url = peer_volume.url("resize.img")
    qemu("qemu-img", "convert", "-f", "raw", "-O", "raw", disk, url)
    qemu("qemu-img", "resize", "-f", "raw", "--preallocation=full", url, "160M")
    data = (peer_volume.folder / "resize.img").read_bytes()
    assert data == disk.read_bytes() + bytes(64 * MIB)
    assert os.stat(peer_volume.folder / "resize.img").st_blocks * 512 >= 64 * MIB + 40 * MIB
    qemu("qemu-img", "resize", "-f", "raw", "--shrink", url, "10M")
    assert (peer_volume.folder / "resize.img").read_bytes() == disk.read_bytes()[: 10 * MIB]
    info = json.loads(qemu("qemu-img", "info", "--output=json", "-f", "raw", url))
    assert info["virtual-size"] == 10 * MIB


def test_errors_are_named(peer_volume: Volume, qemu) -> None:
    missing = peer_volume.url("missing.img")
    done = subprocess.run(
        peer_volume.command("qemu-img", "info", "-f", "raw", missing), capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "No such file" in done.stderr
