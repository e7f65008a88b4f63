"""Bricks of ours under stock's glusterd: what `gluster volume` does with them, and volumes that go to and fro.

/usr/sbin/glusterfsd is examples/glusterfsd here, in a mount namespace of its own, where the state folders of glusterd
are private as well: nothing of the machine's changes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import ROOT, NetNamespace, descendants, need_peer, wait_gone, which
from tests.peers import GLUSTERD_SCRIPT, Cage, StockVolume, stock_mount, wait_until

STAND_IN = """
mount --bind "$STOCK" "$WORK/stock"
mount --bind "$WORK/glusterfsd" "$STOCK"
export $ENVIRONMENT
"""


class OurVolume(StockVolume):
    """A volume of stock's glusterd whose brick is served by glustx, or by stock after `serve_by_stock`."""

    def __init__(self, folder: Path, work: Path, netns: NetNamespace, volume: str = "v1") -> None:
        super().__init__(folder, volume, netns)
        self.work = work

    def __enter__(self) -> OurVolume:
        stock = os.path.realpath(which("glusterfsd") or "glusterfsd")
        (self.work / "stock").touch()
        (self.work / "glusterfsd").write_bytes((ROOT / "examples/glusterfsd").read_bytes())
        (self.work / "glustx").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glustx "$@"\n')
        for name in ("glusterfsd", "glustx"):
            (self.work / name).chmod(0o755)
        self.serve_by_glustx()
        names = {"VOLUME": self.volume, "ADDRESS": NetNamespace.ADDRESS, "FOLDER": self.folder.resolve()}
        self.environment = [
            f"GLUSTERFSD_STOCK={self.work}/stock",
            f"GLUSTX_COMMAND={self.work}/glustx",
            f"GLUSTX_BRICKS={self.work}/bricks",
            f"PYTHONPATH={ROOT}",
        ]
        names |= {"OPTIONS": "", "STOCK": stock, "WORK": self.work, "ENVIRONMENT": " ".join(self.environment)}
        head = "".join(f"{key}='{value}'\n" for key, value in names.items())
        self.cage = Cage(head + STAND_IN + GLUSTERD_SCRIPT.replace("%s", "", 1), self.netns)
        return self

    @property
    def root(self) -> Path:
        """The cage's root folder, seen from outside."""
        return Path(f"/proc/{descendants(self.cage.process.pid)[0]}/root")

    def inner(self, path: str) -> Path:
        """A path of the cage; a link such as /var/run would lead out of it."""
        return self.root / re.sub("^/var/run", "/run", path).lstrip("/")

    def serve_by_glustx(self) -> None:
        """Have the brick served by glustx when it is started the next time."""
        (self.work / "bricks").write_text(f"{self.folder.resolve()}\n")

    def serve_by_stock(self) -> None:
        """Have it served by stock's own glusterfsd."""
        (self.work / "bricks").write_text("")

    def gluster(self, *words: str, ok: bool = True) -> str:
        """Run `gluster volume ...` in the cage and return what it says."""
        enter = ["nsenter", f"--target={descendants(self.cage.process.pid)[0]}", "--mount", "--net", "--pid", "--"]
        done = subprocess.run(
            [*enter, "gluster", "--mode=script", "volume", *words], capture_output=True, text=True, timeout=120
        )
        assert (done.returncode == 0) is ok, f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def pids(self) -> list[int]:
        """The processes of bricks, by the pids seen out here."""
        return [pid for pid in descendants(self.cage.process.pid) if "--brick-name" in words_of(pid)]

    def pid(self) -> int:
        """The brick's process; AssertionError unless there is exactly one."""
        (pid,) = self.pids()
        return pid

    def told_pid(self) -> int:
        """The pid that `gluster volume status` tells, as it is inside."""
        (line,) = re.findall(r"^\S.*\s(?:Y|N)\s+(\S+)\s*$", self.gluster("status", self.volume), re.MULTILINE)
        return int(line) if line != "N/A" else 0

    def log(self) -> str:
        """What the bricks have logged."""
        return "".join(path.read_text(errors="replace") for path in (self.root / "var/log/glusterfs/bricks").iterdir())


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def inside(pid: int) -> int:
    """The pid that a process has in its own namespace."""
    return int(re.findall(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])


@contextlib.contextmanager
def serving(base: Path) -> Iterator[OurVolume]:
    need_peer("namespaces", "glusterd", "gluster", "glusterfsd")
    folder, work = base / "brick", base / "work"
    folder.mkdir()
    work.mkdir()
    with NetNamespace() as netns, OurVolume(folder, work, netns) as volume:
        yield volume


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurVolume]:
    with serving(tmp_path_factory.mktemp("ours")) as served:
        yield served


@pytest.fixture
def mount(volume: OurVolume, tmp_path: Path) -> Iterator[Path]:
    need_peer("mount.glusterfs", "/dev/fuse")
    with stock_mount(volume, tmp_path) as mounted:
        yield mounted


# -- what glusterd sees of the process ---------------------------------------------------------------------------------


def test_the_process_is_what_glusterd_looks_for(volume: OurVolume) -> None:
    pid = volume.pid()
    words = words_of(pid)
    assert Path(f"/proc/{pid}/comm").read_text() == "glusterfsd\n"
    assert words[words.index("-m") :][:3] == ["-m", "glustx", "glusterfsd"]
    # glusterd looks for the socket among the first 1024 bytes of the command line.
    assert "-S" in words and "\0-S\0" in "\0".join(words)[:1024]
    assert volume.told_pid() == inside(pid)
    pid_file = volume.inner(words[words.index("-p") + 1])
    assert pid_file.read_text() == f"{inside(pid)}\n"
    assert "POSIX" in locks_of(pid, pid_file)
    open_files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    assert str(volume.folder.resolve()) in open_files
    assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1, 2)] == ["/dev/null"] * 3
    assert os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/cwd") == "/"


def locks_of(pid: int, path: Path) -> str:
    inode = path.stat().st_ino
    return "".join(line for line in Path("/proc/locks").read_text().splitlines(True) if f":{inode} " in line)


def test_detail(volume: OurVolume) -> None:
    told = volume.gluster("status", "v1", "detail")
    assert re.search(r"^Online +: Y", told, re.MULTILINE) and f"Brick {NetNamespace.ADDRESS}:{volume.folder}" in told


# -- what it is asked --------------------------------------------------------------------------------------------------


def test_status_of_clients_fds_inodes_memory_and_calls(volume: OurVolume, mount: Path) -> None:
    with open(mount / "open", "w") as file:
        file.write("x")
        file.flush()
        os.fsync(file.fileno())
        clients = volume.gluster("status", "v1", "clients")
        assert "Clients connected : 1" in clients
        received, sent, version = re.findall(r"^192\.0\.2\.1:\d+ +(\d+) +(\d+) +(\d+)", clients, re.MULTILINE)[0]
        assert int(received) > 500 and int(sent) > 500 and int(version) == 100000
        assert re.search(r"^fuse +1$", volume.gluster("status", "v1", "client-list"), re.MULTILINE)
        fds = volume.gluster("status", "v1", "fd")
        client = Path(f"/proc/{mount.client}/status").read_text()  # type: ignore[attr-defined]
        (own,) = re.findall(r"^Pid:\s(\d+)", client, re.MULTILINE)
        assert re.search(rf"^0 +{own} +1 +\d+ *$", fds, re.MULTILINE), fds
    inodes = volume.gluster("status", "v1", "inode")
    assert re.search(r"^Active Inodes : [1-9]", inodes, re.MULTILINE)
    assert re.search(r"^Arena +: [1-9]\d{5}", volume.gluster("status", "v1", "mem"), re.MULTILINE)
    assert "Pending calls: 0" in volume.gluster("status", "v1", "callpool")
    os.unlink(mount / "open")


def test_profile(volume: OurVolume, mount: Path) -> None:
    assert "Profile on Volume v1 is not started" in volume.gluster("profile", "v1", "info", ok=False)
    volume.gluster("profile", "v1", "start")
    try:
        (mount / "big").write_bytes(bytes(1 << 20))
        os.unlink(mount / "big")
        first = volume.gluster("profile", "v1", "info")
        cumulative, interval = first.split("Interval 0 Stats:")
        for text in (cumulative, interval):
            assert re.search(r" [\d.]+ ns +[\d.]+ ns +[\d.]+ ns +\d+ +WRITE$", text, re.MULTILINE), first
            assert "Data Written: 1048576 bytes" in text
        # An average of so little would be microseconds taken for nanoseconds.
        assert float(re.findall(r"([\d.]+) ns +[\d.]+ ns +[\d.]+ ns +\d+ +WRITE$", cumulative, re.MULTILINE)[0]) > 3000
        assert "WRITE" not in volume.gluster("profile", "v1", "info", "incremental")
        assert "WRITE" in volume.gluster("profile", "v1", "info", "cumulative")
        assert "Cleared stats." in volume.gluster("profile", "v1", "info", "clear")
        assert "WRITE" not in volume.gluster("profile", "v1", "info", "peek")
    finally:
        volume.gluster("profile", "v1", "stop")


def test_what_is_not_done_is_refused_in_words(volume: OurVolume) -> None:
    assert "`gluster volume top` is not offered" in volume.gluster("top", "v1", "open", ok=False)
    assert volume.told_pid() == inside(volume.pid())


def test_statedump(volume: OurVolume) -> None:
    volume.gluster("statedump", "v1")
    name = f"{str(volume.folder.resolve()).strip('/').replace('/', '-')}.{inside(volume.pid())}.dump."

    def dumps() -> list[Path]:
        return [path for path in (volume.root / "run/gluster").iterdir() if path.name.startswith(name)]

    wait_until("a statedump", dumps)
    (dump,) = dumps()
    lines = dump.read_text().splitlines()
    assert lines[0].startswith("DUMP-START-TIME: ") and lines[-1].startswith("DUMP-END-TIME: ")
    assert "[storage/posix.v1-posix]" in lines and not [line for line in lines if "password" in line]
    dump.unlink()


def test_the_log_is_rotated(volume: OurVolume) -> None:
    (log,) = (volume.root / "var/log/glusterfs/bricks").iterdir()
    moved = log.with_suffix(".log.1")
    log.rename(moved)
    try:
        os.kill(volume.pid(), signal.SIGHUP)
        wait_until("the log file is there again", log.exists)
        volume.gluster("top", "v1", "open", ok=False)
        assert "is not offered" in log.read_text() and "is not offered" not in moved.read_text().splitlines()[-1]
    finally:
        moved.unlink()


# -- options of a running brick ----------------------------------------------------------------------------------------


def test_options_change_under_a_client(volume: OurVolume, mount: Path) -> None:
    pid = volume.pid()
    (mount / "file").write_text("before")
    volume.gluster("set", "v1", "features.read-only", "on")
    wait_until("read-only", lambda: refused(mount / "other"))
    volume.gluster("set", "v1", "features.read-only", "off")
    wait_until("not read-only", lambda: not refused(mount / "other"))
    assert (mount / "file").read_text() == "before"
    assert volume.pid() == pid
    for name in ("file", "other"):
        os.unlink(mount / name)


def refused(path: Path) -> bool:
    try:
        path.write_text("x")
    except OSError:
        return True
    return False


def test_an_option_that_must_wait_keeps_no_other_from_its_turn(volume: OurVolume) -> None:
    volume.gluster("set", "v1", "storage.build-pgfid", "on")
    sentence = "v1-posix: update-link-count-parent cannot be changed while the graph is up: it waits until"
    wait_until("a word about what waits", lambda: sentence in volume.log())
    volume.gluster("set", "v1", "storage.reserve", "2")
    wait_until("the other option", lambda: "v1-posix: reserve '1' -> '2'" in volume.log())
    assert volume.log().count(sentence) == 1
    volume.gluster("reset", "v1")


def test_an_option_that_somebody_relies_on_is_refused(volume: OurVolume) -> None:
    volume.gluster("set", "v1", "features.trash", "on")
    wait_until("the reason", lambda: "has trash on, which is not offered; turn it off" in volume.log())
    volume.gluster("stop", "v1")
    volume.gluster("start", "v1", ok=False)
    assert volume.told_pid() == 0 if "Started" in volume.gluster("info", "v1") else True
    volume.gluster("reset", "v1")
    volume.gluster("start", "v1")
    assert volume.told_pid() == inside(volume.pid())


# -- ends and beginnings -----------------------------------------------------------------------------------------------


def test_killed_and_started_by_force(volume: OurVolume, mount: Path) -> None:
    with open(mount / "kept", "w") as file:
        file.write("acknowledged")
        file.flush()
        os.fsync(file.fileno())
        doomed = volume.pid()
        os.kill(doomed, signal.SIGKILL)
        assert wait_gone(doomed)
        wait_until("glusterd sees that it is gone", lambda: volume.told_pid() == 0)
        volume.gluster("start", "v1", "force")
        assert volume.told_pid() == inside(volume.pid())
        wait_until("the client is back", lambda: os.path.exists(mount / "kept"))
        file.write(" and more")
    assert (mount / "kept").read_text() == "acknowledged and more"
    os.unlink(mount / "kept")


@pytest.mark.parametrize("how", ["gf_attach", "SIGTERM"])
def test_ended_by_others(volume: OurVolume, how: str) -> None:
    """It ends within five seconds, signs out, and leaves no pid file."""
    pid = volume.pid()
    words = words_of(pid)
    socket, pid_file = (words[words.index(option) + 1] for option in ("-S", "-p"))
    if how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
    else:
        volume.cage.run("gf_attach", "-d", socket, str(volume.folder.resolve()))
    assert wait_gone(pid, 5)
    assert not volume.inner(pid_file).exists()
    wait_until("glusterd sees that it is gone", lambda: volume.told_pid() == 0)
    volume.gluster("start", "v1", "force")
    assert volume.told_pid() == inside(volume.pid())


def test_glusterd_is_away_for_a_while(volume: OurVolume, mount: Path) -> None:
    """Clients go on, glusterd finds the brick again, and what is set then arrives."""
    pid = volume.pid()
    (daemon,) = [p for p in descendants(volume.cage.process.pid) if words_of(p)[0].endswith("glusterd")]
    os.kill(daemon, signal.SIGKILL)
    assert wait_gone(daemon)
    (mount / "meanwhile").write_text("x")
    volume.cage.run("env", *volume.environment, "glusterd")
    wait_until("glusterd has found the brick", lambda: volume.told_pid() == inside(pid))
    volume.gluster("set", "v1", "features.read-only", "on")
    wait_until("the option arrives", lambda: refused(mount / "meanwhile"))
    volume.gluster("reset", "v1")
    wait_until("and goes", lambda: not refused(mount / "meanwhile"))
    os.unlink(mount / "meanwhile")
    assert volume.pid() == pid


def test_bricks_of_replicated_volumes_are_refused(volume: OurVolume) -> None:
    """Their clients count on an index of what must be healed."""
    bricks = [volume.work / f"replica{number}" for number in range(3)]
    for brick in bricks:
        brick.mkdir()
    (volume.work / "bricks").write_text("".join(f"{path}\n" for path in [volume.folder.resolve(), *bricks]))
    words = [f"{NetNamespace.ADDRESS}:{path}" for path in bricks]
    volume.gluster("create", "v2", "replica", "3", *words, "force")
    try:
        volume.gluster("start", "v2", ok=False)
        assert "bricks of replicated volumes are not offered" in volume.log()
        wait_until("only the other volume's brick is left", lambda: len(volume.pids()) == 1)
    finally:
        volume.gluster("delete", "v2")
        volume.serve_by_glustx()


# -- several bricks ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def of_several(
    volume: OurVolume, name: str, count: int, *words: str, more: int = 0, stocks: int | None = None
) -> Iterator[OurVolume]:
    """Another volume of the same glusterd, started, of `count` bricks of ours; `more` are ready to be added to it, and
    the one with the number `stocks` is served by stock."""
    bricks = [volume.work / f"{name}-{number}" for number in range(count + more)]
    for brick in bricks:
        brick.mkdir()
    ours = [path for number, path in enumerate(bricks) if number != stocks]
    (volume.work / "bricks").write_text("".join(f"{path}\n" for path in [volume.folder.resolve(), *ours]))
    volume.gluster("create", name, *words, *(f"{NetNamespace.ADDRESS}:{path}" for path in bricks[:count]), "force")
    other = copy.copy(volume)
    other.volume = name
    try:
        volume.gluster("start", name)
        yield other
    finally:
        volume.gluster("stop", name, ok="Started" in volume.gluster("info", name))
        volume.gluster("delete", name)
        volume.serve_by_glustx()


def bricks_of(volume: OurVolume, name: str) -> dict[str, int]:
    """The processes that serve a volume, by brick, as `gluster volume status` tells them too."""
    found = {}
    for pid in volume.pids():
        words = words_of(pid)
        if words[words.index("--volfile-id") + 1].startswith(f"{name}."):
            found[words[words.index("--brick-name") + 1]] = pid
    told = re.findall(r"\s(?:Y|N)\s+(\S+)\s*$", volume.gluster("status", name), re.MULTILINE)
    assert sorted(map(inside, found.values())) == sorted(int(pid) for pid in told if pid != "N/A")
    return found


def test_a_distributed_volume(volume: OurVolume, tmp_path: Path) -> None:
    need_peer("mount.glusterfs", "/dev/fuse")
    with of_several(volume, "v2", 2) as pair:
        point = tmp_path / "point"
        point.mkdir()
        with stock_mount(pair, point) as mounted:
            fill(mounted, "spread")
            for number in range(20):  # to names that may belong to the other brick
                os.rename(mounted / f"spread-folder/deep/er/file{number}", mounted / f"spread-folder/deep/new{number}")
            clients = seen_by_clients(mounted)
            first, second = bricks_of(volume, "v2").items()
            assert all("glustx" in words_of(pid) for _, pid in (first, second))
            assert all(sum(1 for _ in Path(path).glob("*/deep/er/*")) > 3 for path, _ in (first, second))
            doomed = Path(second[0])
            kept = next(path for path in mounted.glob("spread-folder/deep/er/*") if holds(doomed, mounted, path))
            os.kill(second[1], signal.SIGKILL)
            assert wait_gone(second[1])
            wait_until("the client knows", lambda: not os.path.exists(kept))
            wait_until("so does glusterd", lambda: list(bricks_of(volume, "v2")) == [first[0]])
            volume.gluster("start", "v2", "force")
            again = bricks_of(volume, "v2")
            assert again[first[0]] == first[1] and again[second[0]] != second[1]
            wait_until("the client is back", lambda: os.path.exists(kept))
        with stock_mount(pair, point) as mounted:
            assert seen_by_clients(mounted) == clients
        volume.gluster("statedump", "v2")
        names = [f"{path.strip('/').replace('/', '-')}.{inside(pid)}.dump." for path, pid in again.items()]
        run = volume.root / "run/gluster"
        wait_until("two statedumps", lambda: all(list(run.glob(f"{name}*")) for name in names))
        for name in names:
            (dump,) = run.glob(f"{name}*")
            assert "[storage/posix.v2-posix]" in dump.read_text().splitlines()
            dump.unlink()
    wait_until("both bricks have ended", lambda: len(volume.pids()) == 1)


def holds(brick: Path, root: Path, path: Path) -> bool:
    """Whether a brick has a file itself, and not only a pointer to where it is."""
    there = brick / path.relative_to(root)
    return there.exists() and "trusted.glusterfs.dht.linkto" not in os.listxattr(there)


@pytest.mark.long
def test_a_brick_is_added_and_files_move_there_with_their_times(volume: OurVolume, tmp_path: Path) -> None:
    """Beside one of stock's."""
    need_peer("mount.glusterfs", "/dev/fuse")
    with of_several(volume, "v3", 2, more=1, stocks=1) as three:
        point = tmp_path / "point"
        point.mkdir()
        with stock_mount(three, point) as mounted:
            fill(mounted, "spread")
            clients = without_times_of_symlinks(mounted)
        volume.gluster("add-brick", "v3", f"{NetNamespace.ADDRESS}:{volume.work / 'v3-2'}", "force")
        volume.gluster("rebalance", "v3", "start", "force")

        def over() -> bool:
            told = volume.gluster("rebalance", "v3", "status")
            assert "failed" not in told
            return "completed" in told

        wait_until("the rebalance is over", over)
        by = {path[-1]: "glustx" in words_of(pid) for path, pid in bricks_of(volume, "v3").items()}
        assert by == {"0": True, "1": False, "2": True}
        assert sum(1 for _ in (volume.work / "v3-2").glob("*/deep/er/*")) > 3
        with stock_mount(three, point) as mounted:
            assert without_times_of_symlinks(mounted) == clients


def without_times_of_symlinks(root: Path) -> dict[str, tuple[object, ...]]:
    """What clients see, but for the times of symbolic links: rebalance does not take those along, whoever serves."""
    return {
        name: facts[:5] + facts[7:] if os.path.islink(root / name) else facts
        for name, facts in seen_by_clients(root).items()
    }


# -- to and fro --------------------------------------------------------------------------------------------------------


def fill(root: Path, mark: str) -> None:
    """A tree with what a brick keeps in other ways than a plain folder does."""
    folder = root / f"{mark}-folder"
    (folder / "deep/er").mkdir(parents=True)
    (folder / "data").write_bytes(hashlib.sha256(mark.encode()).digest() * 5000)
    os.link(folder / "data", folder / "deep/link")
    os.symlink("../data", folder / "deep/symlink")
    os.mkfifo(folder / "fifo")
    (folder / "odd\n name \udcff\udcfe").write_text(mark)
    with open(folder / "sparse", "wb") as file:
        file.truncate(10 << 20)
        os.pwrite(file.fileno(), b"end", (10 << 20) - 3)
    os.setxattr(folder / "data", b"user.kept", mark.encode())
    os.chmod(folder / "sparse", 0o6751)
    os.chown(folder / "sparse", 1234, 4321)
    os.utime(folder / "data", ns=(1_000_000_007_000_000_001, 1_100_000_000_123_456_789))
    for number in range(40):
        (folder / "deep/er" / f"file{number}").write_text(f"{mark} {number}")


def seen_by_clients(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            st = os.lstat(path)
            content: object = os.readlink(path) if os.path.islink(path) else None
            if name in files and os.path.isfile(path) and not os.path.islink(path):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            kept = [] if os.path.islink(path) else sorted(n for n in os.listxattr(path) if n.startswith("user."))
            values = [os.getxattr(path, key) for key in kept]
            facts = (st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_mtime_ns, st.st_ctime_ns)
            size = st.st_size if not os.path.isdir(path) or os.path.islink(path) else 0
            found[os.path.relpath(path, root)] = (*facts, size, content, kept, values)
    return {name: facts for name, facts in found.items() if not name.startswith(".trashcan")}


def on_disk(brick: Path) -> dict[str, object]:
    """Every name of a brick, the handles too, with its inode and its trusted xattrs."""
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(brick):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            where = os.path.relpath(path, brick)
            if where.startswith((".glusterfs/health_check", ".glusterfs/indices", ".trashcan")):
                continue
            keys = sorted(os.listxattr(path, follow_symlinks=False))
            values = [os.getxattr(path, key, follow_symlinks=False) for key in keys if key != "trusted.glusterfs.mdata"]
            found[where] = (os.lstat(path).st_ino, keys, values)
    return found


def test_a_volume_goes_from_one_to_the_other_and_back(volume: OurVolume, tmp_path: Path) -> None:
    need_peer("mount.glusterfs", "/dev/fuse")
    point = tmp_path / "point"
    point.mkdir()
    clients: dict[str, tuple[object, ...]] = {}
    disk: dict[str, object] = {}
    for turn, by in enumerate(("glustx", "stock", "glustx", "stock", "glustx")):
        volume.gluster("stop", "v1")
        wait_until("the brick has ended", lambda: not volume.pids())
        assert disk == {} or on_disk(volume.folder) == disk, "a stop has changed the brick"
        volume.serve_by_stock() if by == "stock" else volume.serve_by_glustx()
        volume.gluster("start", "v1")
        assert ("glustx" in words_of(volume.pid())) is (by == "glustx")
        with stock_mount(volume, point) as mounted:
            now = seen_by_clients(mounted)
            assert now == clients, f"{by} shows another tree than the one before it"
            before = on_disk(volume.folder)
            assert {name: facts for name, facts in before.items() if name in disk} == disk, f"{by} changed the brick"
            for old in list(mounted.glob(f"*{turn - 1}-folder")):
                os.rename(old / "data", old / "moved")
                os.unlink(old / "deep/er/file0")
                (old / "deep/er/file1").write_text("changed")
            fill(mounted, f"{by}{turn}")
            os.sync()
        with stock_mount(volume, point) as mounted:
            clients = seen_by_clients(mounted)
        disk = on_disk(volume.folder)
    assert len(clients) > 200
