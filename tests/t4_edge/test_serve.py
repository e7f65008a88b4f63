"""`glustx serve` as a process: what is ready when it says so, what it keeps, and that nothing outlives it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import Volume
from tests.kit import PATIENCE, Process, free_port, wait_gone
from tests.peers import ServedVolume

GLUSTX = [sys.executable, "-m", "glustx"]
MEMORY = """volume store
    type storage/memory
end-volume
volume locks
    type features/locks
    subvolumes store
end-volume
"""
SERVER = """volume s
    type protocol/server
    option listen-port {port}
    option auth.addr.locks.allow *
    subvolumes locks
end-volume
"""
CLIENT = """volume c
    type protocol/client
    option remote-port {port}
    option remote-subvolume locks
end-volume
"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A volfile of a brick in memory."""
    path = tmp_path / "mem.vol"
    path.write_text(MEMORY)
    return path


@functools.cache
def first_port(state: Path) -> str:
    """Where the bricks of one state's volumes begin, below the ports that anybody may be given."""
    return str(free_port())


@contextlib.contextmanager
def served(tmp_path: Path, *words: str | Path) -> Iterator[tuple[Process, dict[str, Any]]]:
    state = tmp_path / "state"
    ports = ["--port", "0", "--brick-port", first_port(state)]
    command = [*GLUSTX, "serve", *words, *ports, "--state-dir", state, "--json"]
    with Process(command) as process:
        yield process, process.wait_line(json.loads)


def run(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GLUSTX, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}
    )


def url(ready: dict[str, Any]) -> str:
    return f"gluster://{ready['host']}:{ready['port']}/{ready['volume']}"


def test_ready_means_ready(tmp_path: Path, memory: Path) -> None:
    with served(tmp_path, memory, "--volume", "v1") as (process, ready):
        assert (ready["ready"], ready["volume"], ready["pid"]) == (True, "v1", process.pid)
        (brick,) = ready["bricks"]
        assert brick["name"] == "locks" and os.path.exists(f"/proc/{brick['pid']}")
        with Volume(url(ready)) as volume, volume.open("/f", "wb") as file:
            file.write(b"hello")
            assert volume.listdir("/") == ["f"]
        assert process.stop() == 0
        assert wait_gone(brick["pid"]) and not os.path.exists(brick["control"])


def test_folders_are_volumes_of_their_own_and_last(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with served(tmp_path, one, two) as (_, first):
        names = [volume["name"] for volume in first["volumes"]]
        assert names == ["one", "two"]
        with Volume(f"gluster://127.0.0.1:{first['port']}/two") as volume:
            volume.mkdir("/kept")
    with served(tmp_path, one, two) as (_, second):
        for before, after in zip(first["volumes"], second["volumes"], strict=True):
            assert before["id"] == after["id"] and len(before["id"]) == 36
            assert before["bricks"][0]["port"] == after["bricks"][0]["port"]
        with Volume(f"gluster://127.0.0.1:{second['port']}/two") as volume:
            assert volume.isdir("/kept")


def test_bricks_end_with_a_volume_server_that_is_killed(tmp_path: Path, memory: Path) -> None:
    with served(tmp_path, memory) as (process, ready):
        process.kill()
        assert wait_gone(ready["bricks"][0]["pid"])


def test_a_dead_brick_stays_down_unless_asked(tmp_path: Path, memory: Path) -> None:
    with served(tmp_path, memory) as (process, ready):
        pid = ready["bricks"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert wait_gone(pid)
        await_log(process, "the process of brick locks has ended (killed by SIGKILL)")
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", ready["bricks"][0]["port"])) != 0


def test_restart(tmp_path: Path, memory: Path) -> None:
    with served(tmp_path, memory, "--restart", "--log-level", "info") as (process, ready):
        os.kill(ready["bricks"][0]["pid"], signal.SIGKILL)
        await_log(process, "is started again in")
        await_log(process, f"brick locks is on port {ready['bricks'][0]['port']}", times=2)
        with Volume(url(ready)) as volume:
            assert volume.listdir("/") == []


def await_log(process: Process, text: str, times: int = 1) -> None:
    """Wait until the process has logged `text`: stderr gives no event."""
    deadline = time.monotonic() + PATIENCE
    while process.log().count(text) < times:
        assert time.monotonic() < deadline, process.log()
        time.sleep(0.05)


def test_statedump_counts_each_layer(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "b", "--profile") as (_, ready):
        with Volume(url(ready)) as volume:
            volume.mkdir("/d")
        done = run("statedump", "b", "--state-dir", tmp_path / "state")
        assert done.returncode == 0, done.stderr
        sections = done.stdout.split("\n[")
        assert [s.split("]")[0] for s in sections if "fop.mkdir.count=1" in s] == [
            f"debug/io-stats.{tmp_path}/b",
            "debug/io-stats.b-io-threads-stats",
            "debug/io-stats.b-locks-stats",
            "debug/io-stats.b-access-control-stats",
            "debug/io-stats.b-posix-stats",
        ]
    done = run("statedump", "none", "--state-dir", tmp_path / "state")
    assert (done.returncode, done.stdout) == (1, "") and "no volume none has been served" in done.stderr


def test_statedump_of_a_volfile_that_pins_its_port_and_of_a_volume_that_is_down(tmp_path: Path) -> None:
    path = tmp_path / "pinned.vol"
    path.write_text(MEMORY + SERVER.format(port=free_port()))
    state = tmp_path / "state"
    with served(tmp_path, path) as (_, ready):
        done = run("statedump", "pinned", "--state-dir", state)
        assert done.returncode == 0 and done.stdout.startswith("# locks\n[protocol/server.s]"), done.stderr
        control = ready["bricks"][0]["control"]
    done = run("statedump", "pinned", "--state-dir", state)
    assert (done.returncode, done.stdout) == (5, "")
    assert f"glustx: no brick of volume pinned runs (locks); there is no socket in {state}/run" in done.stderr
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(control)  # as a brick leaves it that was killed
    done = run("statedump", "pinned", "--state-dir", state)
    assert (done.returncode, done.stdout) == (5, "")
    assert f"glustx: brick locks of pinned does not answer at {control}: " in done.stderr


def test_text_line_and_state_from_the_environment(tmp_path: Path, memory: Path) -> None:
    env = {"GLUSTX_STATE_DIR": str(tmp_path / "elsewhere")}
    with Process([*GLUSTX, "serve", memory, "--port", "0"], env=env) as process:
        line = process.wait_line(lambda line: line)
        assert line.startswith("serving gluster://127.0.0.1:") and f"(pid {process.pid}; bricks: locks on " in line
        assert (tmp_path / "elsewhere" / "volumes" / "mem.json").exists()


def test_a_served_volume_of_the_tests_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLUSTX_STATE_DIR", str(tmp_path / "own"))
    with ServedVolume(tmp_path / "b", "v") as served:
        environ = Path(f"/proc/{served.process.pid}/environ").read_bytes().split(b"\0")
        (state,) = [Path(os.fsdecode(word[17:])) for word in environ if word.startswith(b"GLUSTX_STATE_DIR=")]
        assert json.loads((state / "volumes" / "v.json").read_text())["ports"] == {
            str(tmp_path / "b"): served.brick_port
        }
    assert not state.exists() and not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nowhere/b"], 1, "glustx: cannot use {cwd}/nowhere/b as a brick: ENOENT (No such file or directory)"),
        (["x" * 256], 1, "/" + "x" * 256 + " as a brick: ENAMETOOLONG"),
        (["missing.vol"], 2, "glustx: volfile missing.vol does not exist"),
        (
            ["typo.vol"],
            1,
            "glustx: typo.vol:2:2: volume 'x' must begin with its 'type', found 'typo'; did you mean 'type'?",
        ),
        (["b", "c", "--volume", "v"], 2, "glustx: --volume names one volume, and a volume of several bricks"),
        (["b", "--volume", "a b"], 1, "glustx: volume name 'a b'"),
        (["b", "--log-level", "loud"], 2, "glustx: --log-level loud is none of debug, info, warning, error"),
        (["b", "--address", "192.0.2.99"], 1, "glustx: cannot listen on 192.0.2.99: EADDRNOTAVAIL"),
    ],
)
def test_what_a_user_gets_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typo.vol").write_text("volume x\n typo storage/posix\nend-volume\n")
    paths = os.pathsep.join(sys.path)
    done = run("serve", *words, "--state-dir", tmp_path / "state", env={"PYTHONPATH": paths})
    assert done.returncode == code, done.stderr
    assert said.format(cwd=tmp_path) in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr


def test_a_port_that_is_taken(tmp_path: Path, memory: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        state = ["--state-dir", tmp_path / "state"]
        done = run("serve", memory, "--port", port, *state)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}: EADDRINUSE" in done.stderr
        done = run("serve", memory, "--port", "0", "--brick-port", port, *state)
        assert done.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr and "the process of brick locks ended" in done.stderr


def test_a_brick_by_hand(tmp_path: Path) -> None:
    port = free_port()
    path = tmp_path / "b.vol"
    path.write_text(MEMORY + SERVER.format(port=port))
    with Process([*GLUSTX, "brick", "-f", path, "--log-level", "info"]) as process:
        await_log(process, f"listens on 127.0.0.1:{port}")
        with Volume(CLIENT.format(port=port)) as volume:
            volume.mkdir("/d")
        assert process.stop() == 0
    done = run("brick")
    assert done.returncode == 2 and "needs --volfile" in done.stderr
    path.write_text(MEMORY)
    done = run("brick", "-f", path)
    assert done.returncode == 1 and "is a features/locks, not protocol/server or export/iscsi" in done.stderr
