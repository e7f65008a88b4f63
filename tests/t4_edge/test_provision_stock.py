"""`glustx provision` on a volume of stock GlusterFS: our client, portmap and all, against stock's daemons."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import ROOT, NetNamespace, loop_filesystem, need_peer
from tests.peers import StockBrick, StockVolume

SIZE = 256 << 20


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockVolume]:
    need_peer("namespaces", "glusterd", "gluster")
    with NetNamespace() as netns, StockVolume(tmp_path_factory.mktemp("stock"), "v1", netns) as served:
        yield served


def provision(volume: StockVolume, verb: str, path: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "glustx", "provision", verb, volume.url(path), "--output", "json", *words]
    answer: dict[str, Any] = json.loads(volume.run(*command).stdout)
    return answer


def on_brick(volume: StockVolume) -> set[str]:
    return set(os.listdir(volume.folder)) - {".glusterfs"}


def test_create_verify_zero_info(volume: StockVolume) -> None:
    made = provision(volume, "create", "a.img", "--size", str(SIZE), "--prealloc", "full", "--owner", "36:37")
    assert (made["method_used"], made["bytes_zeroed_offloaded"]) == ("zerofill", SIZE)
    assert made["rpcs"] <= 11 and made["wire_bytes_sent"] + made["wire_bytes_received"] < 5500
    assert made["brick_zero_method"] is None  # stock does not tell
    image = volume.folder / "a.img"
    stat = os.stat(image)
    assert (stat.st_size, stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (SIZE, 36, 37, 0o600)
    assert stat.st_blocks * 512 >= SIZE
    with open(image, "r+b") as file:
        file.seek(5000)
        file.write(b"x" * 10000)
    assert provision(volume, "zero", "a.img", "--offset", "5000", "--length", "10000")["method_used"] == "zerofill"
    checked = provision(volume, "verify", "a.img")
    assert checked["zero"] and checked["bytes_read"] + checked["bytes_skipped"] == SIZE
    known = provision(volume, "info", "a.img")
    assert (known["size"], known["uid"], known["gid"]) == (SIZE, 36, 37)
    assert on_brick(volume) == {"a.img"}


def test_every_method(volume: StockVolume) -> None:
    for method, used in (("zerofill", "zerofill"), ("punch", "punch"), ("writes", "writes")):
        words = ["--size", "8M", "--prealloc", "full", "--zero-method", method, "--force"]
        assert provision(volume, "create", "m.img", *words)["method_used"] == used
        assert provision(volume, "verify", "m.img", "--full")["bytes_read"] == 8 << 20
    assert provision(volume, "create", "f.img", "--size", "8M", "--prealloc", "falloc")["method_used"] == "fallocate"
    assert os.stat(volume.folder / "f.img").st_blocks * 512 >= 8 << 20


def test_where_zerofill_is_not_offered(volume: StockVolume, tmp_path: Path) -> None:
    volfile = tmp_path / "client.vol"
    volfile.write_text(
        f"volume client\n type protocol/client\n option remote-host {volume.host}\n"
        f" option remote-subvolume {volume.folder.resolve()}\n option transport-type tcp\nend-volume\n"
        "volume utime\n type features/utime\n subvolumes client\nend-volume\n"
        "volume faults\n type debug/error-gen\n option enable ZEROFILL\n option every 1\n"
        " option error-no EOPNOTSUPP\n subvolumes utime\nend-volume\n"
    )
    command = [sys.executable, "-m", "glustx", "provision", "create", "--volfile", str(volfile), "--prealloc", "full"]
    done = volume.run(*command, "--size", "8M", "w.img")
    assert "by writes in " in done.stdout
    assert "zeroes were written because the server has no ZEROFILL: " in done.stdout
    assert (volume.folder / "w.img").read_bytes() == bytes(8 << 20)
    made = json.loads(volume.run(*command, "--size", "8M", "w.img", "--force", "--output", "json").stdout)
    assert made["method_used"] == "writes" and "no ZEROFILL" in made["fallback"]
    forced = volume.command(*command, "--size", "8M", "forced.img", "--zero-method", "zerofill")
    failed = subprocess.run(forced, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert failed.returncode == 1
    assert "method zerofill was asked for, and the server has no ZEROFILL: " in failed.stderr
    assert not [name for name in on_brick(volume) if name.startswith(("forced.img", "."))]


def test_a_target_that_is_there_and_one_that_cannot_be(volume: StockVolume) -> None:
    volume.run(sys.executable, "-m", "glustx", "fs", "cp", "/etc/hostname", volume.url("old.img"))
    old = (volume.folder / "old.img").read_bytes()
    for path, code, said in (("old.img", 1, "EEXIST"), ("none/x.img", 1, "ENOENT"), ("huge.img", 4, "are free")):
        words = ["create", volume.url(path), "--size", "9P" if code == 4 else "1M", "--prealloc", "falloc"]
        command = volume.command(sys.executable, "-m", "glustx", "provision", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == code and said in done.stderr and done.stderr.count("\n") == 1
    assert (volume.folder / "old.img").read_bytes() == old
    assert not [name for name in on_brick(volume) if name.startswith(".") or name == "huge.img"]


def test_interruptions_at_seeded_moments(volume: StockVolume, seeded: random.Random) -> None:
    before = on_brick(volume)
    for method in ("writes", "zerofill"):
        words = ["create", volume.url("i.img"), "--size", "64M", "--prealloc", "full", "--zero-method", method]
        command = volume.command(sys.executable, "-m", "glustx", "provision", *words, "--bwlimit", "64M")
        for _ in range(2):
            moment = seeded.uniform(0.0, 1.0)
            with subprocess.Popen([*command, "--progress", "json"], stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                process.stderr.readline()  # it has begun
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(moment)
                process.send_signal(signal.SIGINT)
                said = process.stderr.read().splitlines()
                code = process.wait(60)
            after = on_brick(volume) - before
            # What ends Python itself after the report is not caught.
            assert (code, after) in ((130, set()), *((code, {"i.img"}) for code in (0, 130, -2))), (moment, said)
            if code and not after:
                assert said[-1].endswith("interrupted; nothing was left behind"), moment
            if after:
                assert code != 130 or said[-1].endswith("interrupted; it was done already"), moment
                assert (volume.folder / "i.img").read_bytes() == bytes(64 << 20)
                volume.run(sys.executable, "-m", "glustx", "fs", "rm", volume.url("i.img"))


def test_what_stock_says_when_it_knows_no_such_volume(volume: StockVolume) -> None:
    words = ["create", volume.url("x").replace("/v1/", "/v2/"), "--size", "1M"]
    command = volume.command(sys.executable, "-m", "glustx", "provision", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 5 and "no such volume" in done.stderr


def test_the_disk_fills_up_meanwhile(tmp_path: Path) -> None:
    """Space is there when it is looked at, and gone before the image is whole: a small disk below a stock brick."""
    need_peer("namespaces", "glusterfsd")
    with loop_filesystem(tmp_path, "ext4", 200 << 20) as root:
        (root / "b").mkdir()
        with StockBrick(root / "b") as brick:
            ballast, free = root / "ballast", os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
            words = ["--size", str(free // 2), "--progress", "json"]
            for method in ("writes", "fs"):
                command = [sys.executable, "-m", "glustx", "provision", "create", brick.url("a.img"), *words]
                command += ["--prealloc", "full", "--zero-method", "writes", "--bwlimit", "20M"]
                if method == "fs":
                    (tmp_path / "src").write_bytes(bytes(free // 2))
                    command = [sys.executable, "-m", "glustx", "fs", "cp", os.fspath(tmp_path / "src")]
                    command += [brick.url("a.img"), "--bwlimit", "20M", "--progress", "json", "--sparse", "never"]
                with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
                    assert process.stderr is not None
                    for line in process.stderr:
                        if json.loads(line)["transferred"]:
                            break
                    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(1 << 20))
                    said = process.stderr.read().splitlines()
                    assert process.wait(60) == (4 if method == "writes" else 1), said
                assert "ENOSPC" in said[-1] and brick.url("a.img") in said[-1]
                assert set(os.listdir(root / "b")) == {".glusterfs"}
                ballast.unlink()
