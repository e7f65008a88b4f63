"""`glustx fs` as a process, on volumes of ours and of stock's: what it prints, its exit codes, what it leaves."""

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

from tests.kit import NetNamespace, Process, Stopwatch, need_peer
from tests.peers import ServedVolume, StockVolume, Volume

MIB = 1 << 20


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    with ServedVolume(tmp_path_factory.mktemp("ours") / "b", "v1") as served:
        yield served


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    need_peer("namespaces", "glusterd", "gluster")
    with NetNamespace() as netns, StockVolume(tmp_path_factory.mktemp("stock"), "v1", netns) as served:
        yield served


@pytest.fixture(params=["ours", "stock"])
def volume(request: pytest.FixtureRequest) -> Volume:
    found: Volume = request.getfixturevalue(request.param)
    return found


def run(volume: Volume, *words: str | Path, code: int = 0, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = volume.command(sys.executable, "-m", "glustx", "fs", *words)
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode == code, (done.returncode, done.stdout[:1000], done.stderr)
    return done


def objects(volume: Volume, *words: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(volume, *words, "--json").stdout.splitlines()]


def url(volume: Volume, path: str = "") -> str:
    return volume.url(path)


def leftovers(folder: Path) -> list[str]:
    return [name for _, _, names in os.walk(folder) for name in names if ".glustx-" in name]


def test_a_tree_there_and_back(volume: Volume, tmp_path: Path) -> None:
    rng = random.Random(5)
    src = tmp_path / "src"
    (src / "d").mkdir(parents=True)
    (src / "plain").write_bytes(rng.randbytes(3 * MIB + 17))
    (src / "plain").chmod(0o640)
    os.utime(src / "plain", ns=(10**18 + 5, 10**18 + 7))
    with open(src / "d" / "sparse", "wb") as file:
        file.write(b"head")
        file.seek(80 * MIB)
        file.write(b"tail")
        file.truncate(100 * MIB)
    strange = os.fsdecode(b"n\xf8t utf-8")
    (src / strange).write_text("x")
    (src / "link").symlink_to("plain")

    report = json.loads(run(volume, "cp", "-r", "-p", src, url(volume), "--json").stdout)
    assert (report["files"], report["directories"], report["links"], report["failures"]) == (3, 2, 1, [])
    assert report["bytes_holes"] > 90 * MIB
    brick = volume.folder / "src"
    there = os.stat(brick / "plain")
    assert (there.st_mode & 0o7777, there.st_size) == (0o640, 3 * MIB + 17)
    assert os.stat(brick / "d" / "sparse").st_blocks * 512 < MIB
    assert (brick / strange).read_text() == "x"

    rows = {row["name"]: row for row in objects(volume, "ls", url(volume, "src"))}
    assert set(rows) == {"plain", "d", strange, "link"}
    assert rows["plain"]["mtime_ns"] == 10**18 + 7 and rows["link"]["target"] == "plain"
    assert run(volume, "cat", rows[strange]["url"]).stdout == b"x"
    assert os.fsencode(strange) in run(volume, "ls", url(volume, "src")).stdout.splitlines()

    within = json.loads(run(volume, "cp", "-r", "-p", url(volume, "src"), url(volume, "twin"), "--json").stdout)
    assert within["failures"] == [] and within["bytes_copied"] == 0 and within["bytes_offloaded"] >= 3 * MIB
    run(volume, "cp", "-r", "-p", url(volume, "twin"), tmp_path / "back")
    subprocess.run(["diff", "-r", "--no-dereference", src, tmp_path / "back"], check=True)
    back = os.stat(tmp_path / "back" / "plain")
    assert (back.st_mode & 0o7777, back.st_mtime_ns) == (0o640, 10**18 + 7)
    assert os.stat(tmp_path / "back" / "d" / "sparse").st_blocks * 512 < MIB
    assert not leftovers(volume.folder) and not leftovers(tmp_path)


def test_pipes_moves_and_removals(ours: Volume, tmp_path: Path) -> None:
    data = random.Random(6).randbytes(5 * MIB + 3)
    run(ours, "mkdir", "-p", url(ours, "p/q"))
    run(ours, "cp", "-", url(ours, "p/a"), stdin=data)
    assert run(ours, "cp", url(ours, "p/a"), "-").stdout == data
    run(ours, "mv", url(ours, "p/a"), url(ours, "p/q"))
    assert objects(ours, "stat", url(ours, "p/q/a"))[0]["size"] == len(data)
    run(ours, "mv", url(ours, "p/q/a"), tmp_path)
    assert (tmp_path / "a").read_bytes() == data and not (ours.folder / "p/q/a").exists()
    run(ours, "mv", tmp_path / "a", url(ours, "p/b"))
    assert (ours.folder / "p/b").read_bytes() == data and not (tmp_path / "a").exists()
    assert b"EISDIR" in run(ours, "rm", url(ours, "p"), code=1).stderr
    done = run(ours, "rm", "-r", "-v", url(ours, "p"), url(ours, "none"), code=1)
    assert b"1 files, 2 directories" in done.stdout and b"/v1/none: lookup: No such file" in done.stderr
    assert not (ours.folder / "p").exists()
    run(ours, "rm", "-f", url(ours, "none"))


def test_what_is_there(ours: Volume) -> None:
    run(ours, "mkdir", url(ours, "t"), url(ours, "t/d"))
    run(ours, "cp", "-", url(ours, "t/d/f"), stdin=b"12345")
    tree = objects(ours, "tree", url(ours, "t"))[0]
    assert [child["name"] for child in tree["children"][0]["children"]] == ["f"]
    assert b"`-- d/\n    `-- f  5 B\n" in run(ours, "tree", url(ours, "t")).stdout
    assert [row["path"] for row in objects(ours, "du", url(ours, "t"))] == ["/t/d", "/t"]
    assert objects(ours, "du", "-s", url(ours, "t"))[0]["size"] == 5
    space = objects(ours, "df", url(ours))[0]
    figures = os.statvfs(ours.folder)
    assert space["volume"] == "v1" and space["total"] == figures.f_blocks * figures.f_frsize
    assert run(ours, "df", "--readable", url(ours)).stdout.startswith(b"volume ")
    long = run(ours, "ls", "-l", url(ours, "t/d")).stdout.decode().split()
    assert long[0] == "-rw-r--r--" and long[-1] == "f"
    assert run(ours, "ls", "-R", url(ours, "t")).stdout.decode().splitlines()[-1] == "f"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["cat", "{u}/none"], 1, "cat: {u}/none: open: No such file or directory (ENOENT on volume v1 at "),
        (["cp", "/etc/hostname", "{u}/none/x"], 1, "cp: {u}/none/x: create: No such file or directory (ENOENT"),
        (["cp", "/etc/hostname", "/tmp/x"], 2, "cp: neither /etc/hostname nor /tmp/x is a URL of a volume"),
        (["cp", "-", "{u}/x", "--sparse", "so"], 2, "--sparse 'so' is none of auto, always, never"),
        (["rm", "-r", "{u}/"], 2, "rm: {u} is a whole volume, not a file in it"),
        (["ls", "/etc"], 2, "'/etc' is not a URL such as gluster://host/volume/path"),
        (["ls", "gluster://127.0.0.1:1/v1"], 5, "127.0.0.1:1: Connection refused"),
    ],
)
def test_what_a_user_gets_wrong(ours: Volume, words: list[str], code: int, said: str) -> None:
    base = url(ours)[:-1]
    done = run(ours, *(word.format(u=base) for word in words), code=code)
    assert said.format(u=base) in done.stderr.decode() and done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def test_an_interrupted_copy_leaves_nothing(volume: Volume, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(random.Random(7).randbytes(32 * MIB))
    before = set(os.listdir(volume.folder))
    words = ["cp", big, url(volume, "stopped"), "--bwlimit", "8M", "--progress", "json"]
    command = volume.command(sys.executable, "-m", "glustx", "fs", *map(str, words))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["transferred"]:
                break
        assert len(set(os.listdir(volume.folder)) - before) == 1  # the temporary file
        watch = Stopwatch()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert watch.seconds() < 5
    assert rest.splitlines()[-1].endswith("cp: interrupted; no file was left half done")
    assert set(os.listdir(volume.folder)) == before


def test_a_reader_that_goes_away(ours: Volume) -> None:
    run(ours, "cp", "-", url(ours, "long"), stdin=bytes(8 * MIB))
    command = ours.command(sys.executable, "-m", "glustx", "fs", "cat", url(ours, "long"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(60) == 1


def test_a_volume_that_goes_away(tmp_path: Path) -> None:
    with ServedVolume(tmp_path / "b", "v1") as volume:
        command = [sys.executable, "-m", "glustx", "fs", "cp", "-", url(volume, "x")]
        with Process(command, stdin=subprocess.PIPE) as process:
            assert process.popen.stdin is not None
            process.popen.stdin.write(bytes(8 * MIB))
            process.popen.stdin.flush()
            while not leftovers(volume.folder):  # it has begun
                assert process.popen.poll() is None, process.log()
            volume.crash()
            with contextlib.suppress(BrokenPipeError):  # it may have ended already
                process.popen.stdin.write(bytes(4 * MIB))
                process.popen.stdin.close()
            assert process.popen.wait(60) == 5, process.log()
            assert "cp: gluster://" in process.log() and "ENOTCONN" in process.log()
            process.popen.stdin = None
