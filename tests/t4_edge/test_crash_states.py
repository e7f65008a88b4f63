"""A brick that is killed (SIGKILL) at seeded moments, under clients that make, move, exchange, link and remove names
and set attributes: what was acknowledged is there after the restart, and nothing is half there."""

from __future__ import annotations

import copy
import errno
import os
import random
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import Volume
from tests.brick_check import Layout, content
from tests.kit import PATIENCE
from tests.peers import ServedVolume
from tests.t4_edge.bricks import source

CLIENTS = 4
NAMES = tuple("abcdef")
RESUME_SECONDS = 10.0
Facts = dict[str, tuple[object, ...]]


class Model:
    """What one client's folder holds: objects by number, and their names."""

    def __init__(self) -> None:
        self.objects: dict[int, dict[str, Any]] = {}
        self.names: dict[str, int] = {}

    def facts(self) -> Facts:
        """By name: kind, mode, content, xattr, and the names that are the same object."""
        same: dict[int, list[str]] = defaultdict(list)
        for name, number in sorted(self.names.items()):
            same[number].append(name)
        found: Facts = {}
        for name, number in self.names.items():
            one = self.objects[number]
            mode = 0o777 if one["kind"] == "link" else one["mode"]
            found[name] = (one["kind"], mode, one["content"], one["xattr"], tuple(same[number]))
        return found


def facts_on_disk(layout: Layout, folder: str) -> Facts:
    """The same from the brick's disk."""
    there = {
        os.path.basename(path): facts for path, facts in content(layout).items() if os.path.dirname(path) == folder
    }
    same: dict[object, list[str]] = defaultdict(list)
    for name, facts in sorted(there.items()):
        same[facts[3]].append(name)
    kinds = {0o040000: "dir", 0o100000: "file", 0o120000: "link"}
    found: Facts = {}
    for name, (mode_text, _, _, gfid, inner, users) in there.items():
        mode = int(str(mode_text), 8)
        inner = inner.encode() if isinstance(inner, str) else inner
        found[name] = (kinds[mode & 0o170000], mode & 0o7777, inner, dict(users).get("user.a"), tuple(same[gfid]))  # type: ignore[call-overload]
    return found


class Client:
    """One thread with a volume of its own, which changes one thing at a time in a folder of its own, and knows what it
    has been told."""

    def __init__(self, peer: ServedVolume, number: int, rng: random.Random, crowd: Crowd) -> None:
        self.folder = f"c{number}"
        self.rng = random.Random(rng.randrange(1 << 32))
        self.crowd = crowd
        self.vol = Volume(source(peer))
        self.vol.mkdir(f"/{self.folder}")
        self.model = Model()
        self.other: Model | None = None  # what else it may be, after a call without an answer
        self.count = 0
        self.done: Counter[str] = Counter()
        self.resumed = 0.0
        self.strange: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self.crowd.over:
                try:
                    self._step()
                except OSError as error:
                    if error.errno != errno.ENOTCONN:
                        raise
                    self.crowd.rest(self)
        except BaseException as error:
            self.strange = error
            self.crowd.rest(self)

    def path(self, name: str) -> str:
        """A name's path in the volume."""
        return f"/{self.folder}/{name}"

    def _step(self) -> None:
        model = copy.deepcopy(self.model)
        free = [name for name in NAMES if name not in model.names]
        used = list(model.names)
        kinds = {name: model.objects[number]["kind"] for name, number in model.names.items()}
        plain = [name for name in used if kinds[name] == "file"]
        steps = {
            "create": (free, self._create),
            "mkdir": (free, self._mkdir),
            "symlink": (free, self._symlink),
            "link": (free and plain, self._link),
            "unlink": ([name for name in used if kinds[name] != "dir"], self._unlink),
            "rmdir": ([name for name in used if kinds[name] == "dir"], self._rmdir),
            "rename": (used, self._rename),
            "exchange": (len(used) > 1 and free and used, self._exchange),
            "write": (plain, self._write),
            "setxattr": ([name for name in used if kinds[name] != "link"], self._setxattr),
            "chmod": ([name for name in used if kinds[name] != "link"], self._chmod),
            "shared": (["x"], self._shared),
        }
        what = self.rng.choice([name for name, (names, _) in steps.items() if names])
        names, step = steps[what]
        step(model, self.rng.choice(names))
        self.done[what] += 1

    def call(self, model: Model, function: Callable[..., Any], *args: Any) -> Any:
        """Make one call that turns what is there into `model`; without an answer it may be either."""
        self.other = copy.deepcopy(model)
        answer = function(*args)
        self.model, self.other = copy.deepcopy(model), None
        return answer

    def _new(self, model: Model, name: str, kind: str, mode: int, inner: object) -> None:
        self.count += 1
        model.objects[self.count] = {"kind": kind, "mode": mode, "content": inner, "xattr": None}
        model.names[name] = self.count

    def _create(self, model: Model, name: str) -> None:
        mode = self.rng.choice((0o600, 0o644, 0o755))
        self._new(model, name, "file", mode, b"")
        self.call(model, lambda: self.vol.create(self.path(name), mode, exclusive=True)).close()

    def _mkdir(self, model: Model, name: str) -> None:
        self._new(model, name, "dir", 0o755, None)
        self.call(model, self.vol.mkdir, self.path(name), 0o755)

    def _symlink(self, model: Model, name: str) -> None:
        self._new(model, name, "link", 0o777, b"to %d" % self.count)
        self.call(model, self.vol.symlink, model.objects[self.count]["content"].decode(), self.path(name))

    def _link(self, model: Model, name: str) -> None:
        new = self.rng.choice([other for other in NAMES if other not in model.names])
        model.names[new] = model.names[name]
        self.call(model, self.vol.link, self.path(name), self.path(new))

    def _unlink(self, model: Model, name: str) -> None:
        del model.names[name]
        self.call(model, self.vol.unlink, self.path(name))

    def _rmdir(self, model: Model, name: str) -> None:
        del model.names[name]
        self.call(model, self.vol.rmdir, self.path(name))

    def _rename(self, model: Model, old: str) -> None:
        kind = model.objects[model.names[old]]["kind"]
        fits = [n for n in NAMES if n not in model.names or self._replaces(kind, model.objects[model.names[n]]["kind"])]
        new = self.rng.choice(fits)
        self._move(model, old, new)

    @staticmethod
    def _replaces(kind: str, victim: str) -> bool:
        return (kind == "dir") == (victim == "dir")

    def _move(self, model: Model, old: str, new: str) -> None:
        if old != new and model.names.get(new) != model.names[old]:
            model.names[new] = model.names.pop(old)
        self.call(model, self.vol.rename, self.path(old), self.path(new))

    def _exchange(self, model: Model, one: str) -> None:
        two = self.rng.choice([name for name in model.names if name != one])
        if model.names[one] == model.names[two]:
            return
        free = self.rng.choice([name for name in NAMES if name not in model.names])
        for old, new in ((one, free), (two, one), (free, two)):
            self._move(model, old, new)

    def _write(self, model: Model, name: str) -> None:
        self.count += 1
        data = b"%016d" % self.count
        model.objects[model.names[name]]["content"] = data
        with self.vol.open(self.path(name), "r+b") as file:
            self.call(model, file.pwrite, data, 0)

    def _setxattr(self, model: Model, name: str) -> None:
        self.count += 1
        value = b"%d" % self.count
        model.objects[model.names[name]]["xattr"] = value
        self.call(model, self.vol.setxattr, self.path(name), "user.a", value)

    def _chmod(self, model: Model, name: str) -> None:
        mode = self.rng.choice((0o700, 0o711, 0o750))
        model.objects[model.names[name]]["mode"] = mode
        self.call(model, self.vol.chmod, self.path(name), mode)

    def _shared(self, model: Model, _: str) -> None:
        """Fight with the others for names: who wins is nobody's business here, what is left must be whole."""
        one, two = (f"/shared/{self.rng.choice(NAMES)}" for _ in range(2))
        calls: list[Callable[[], Any]] = [
            lambda: self.vol.create(one).close(),
            lambda: self.vol.rename(one, two),
            lambda: self.vol.rename(two, one),
            lambda: self.vol.link(one, two),
            lambda: self.vol.unlink(one),
        ]
        try:
            self.rng.choice(calls)()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ESTALE):
                raise


class Crowd:
    """The clients, and who of them rests."""

    def __init__(self, peer: ServedVolume, rng: random.Random) -> None:
        self.peer = peer
        self.over = False
        self._lock = threading.Condition()
        self._resting: set[Client] = set()
        self._round = 0
        with Volume(source(peer)) as vol:
            vol.mkdir("/shared")
        self.clients = [Client(peer, number, rng, self) for number in range(CLIENTS)]
        for client in self.clients:
            client.thread.start()

    def rest(self, client: Client) -> None:
        """A client's connection has broken: wait until what is there was looked at, and for the connection."""
        with self._lock:
            here = self._round
            self._resting.add(client)
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._round > here or self.over)
        if client.strange is not None or self.over:
            return
        began = time.monotonic()
        while True:
            try:
                client.vol.stat("/")
                break
            except OSError as error:
                if error.errno != errno.ENOTCONN or time.monotonic() - began > RESUME_SECONDS:
                    raise
                time.sleep(0.01)
        client.resumed = time.monotonic() - began

    def all_rest(self) -> None:
        """Wait until every client has met the end of its connection."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._resting) == len(self.clients), 60)

    def go_on(self) -> None:
        """Let them go on."""
        with self._lock:
            self._resting.clear()
            self._round += 1
            self._lock.notify_all()

    def healthy(self) -> None:
        """Raise what ended a client."""
        for client in self.clients:
            if client.strange is not None:
                raise AssertionError(f"the client of {client.folder} ended") from client.strange

    def stop(self) -> None:
        """End all."""
        self.over = True
        with self._lock:
            self._lock.notify_all()
        for client in self.clients:
            client.thread.join(60)
            client.vol.close()


def wait_for_no_waste(folder: Path) -> None:
    """What was unlinked while it was open, and removed trees, go in the background after a start."""
    deadline = time.monotonic() + PATIENCE
    while os.listdir(folder / ".glusterfs/landfill") and time.monotonic() < deadline:
        time.sleep(0.01)


def kills(folder: Path, count: int, rng: random.Random) -> None:
    """Kill and restart a brick `count` times and check it each time."""
    folder.mkdir()
    layout = Layout(folder, "trusted" if os.geteuid() == 0 else "user")
    unanswered: Counter[str] = Counter()
    resumed: list[float] = []
    with ServedVolume(folder, "v1") as peer:
        crowd = Crowd(peer, rng)
        try:
            for number in range(count):
                marks = [sum(client.done.values()) for client in crowd.clients]
                while any(sum(c.done.values()) < mark + 5 for c, mark in zip(crowd.clients, marks, strict=True)):
                    crowd.healthy()
                    time.sleep(0.002)
                time.sleep(rng.uniform(0.0, 0.05))
                peer.crash()
                crowd.all_rest()
                crowd.healthy()
                peer.restart()
                wait_for_no_waste(folder)
                assert layout.problems() == [], f"kill {number}"
                for client in crowd.clients:
                    there = facts_on_disk(layout, client.folder)
                    if client.other is None:
                        assert there == client.model.facts(), f"kill {number}: {client.folder}"
                    elif there == client.other.facts():
                        unanswered["done"] += client.other.facts() != client.model.facts()
                        client.model = client.other
                    else:
                        assert there == client.model.facts(), f"kill {number}: {client.folder}, of two states neither"
                        unanswered["not done"] += 1
                    client.other = None
                crowd.go_on()
                if number:
                    resumed += [client.resumed for client in crowd.clients]
        finally:
            crowd.stop()
        crowd.healthy()
        total = sum((client.done for client in crowd.clients), Counter())
        print(
            f"{count} kills, {sum(total.values())} calls acknowledged {dict(total)}; calls without an answer: "
            f"{dict(unanswered)}; resumed in {statistics.median(resumed):.2f} s (median), {max(resumed):.2f} s at most"
        )
        assert len(total) == 12 and min(total.values()) > 0


def test_killed_at_8_moments(tmp_path: Path, seeded: random.Random) -> None:
    kills(tmp_path / "brick", 8, seeded)


@pytest.mark.long
def test_killed_at_300_moments(tmp_path: Path, seeded: random.Random) -> None:
    kills(tmp_path / "brick", 300, seeded)
