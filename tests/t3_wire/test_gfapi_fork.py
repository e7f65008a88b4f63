"""fork with a volume open: the child is refused and does no harm, the parent goes on; a child's own volume works."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from glustx.gfapi import Source, Volume
from tests.conformance.served import Served, client_volfile, served, server_volfile
from tests.conformance.test_wire import MEMORY
from tests.kit import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def brick() -> Iterator[Served]:
    with served(server_volfile(MEMORY, "locks")) as brick:
        yield brick


@pytest.fixture
def source(brick: Served) -> Source:
    return Source(volume="test", text=client_volfile(brick.address), origin="<client>")


def in_child(work: Callable[[], Any]) -> Any:
    """Run `work` in a forked child and return what it returns; a child that fails or hangs fails the test."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, json.dumps(work()).encode())
        except BaseException as error:
            os.write(write, json.dumps(f"failed: {error!r}").encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def test_the_child_is_refused_and_the_parent_goes_on(source: Source) -> None:
    with Volume(source) as volume, volume.create("/f") as file:
        file.write(b"parent")
        file.lock(start=0, length=1)
        entries = volume.scandir("/")
        calls: dict[str, Callable[[], Any]] = {
            "stat": lambda: volume.stat("/"),
            "view": lambda: volume.using(uid=5).mkdir("/child"),
            "copy": lambda: volume.copyfile("/f", "/g"),
            "walk": lambda: list(volume.walk("/", onerror=None)),
            "pread": lambda: file.pread(1, 0),
            "write": lambda: file.write(b"child"),
            "scandir": lambda: next(entries),
        }

        def child() -> dict[str, str]:
            said = {}
            for name, call in calls.items():
                try:
                    said[name] = f"returned {call()!r}"
                except RuntimeError as error:
                    said[name] = str(error)
            file.close()
            entries.close()
            volume.close()
            gc.collect()
            return said

        said = in_child(child)
        assert said == dict.fromkeys(calls, "this volume was opened before fork(); a child process has to open its own")
        # Nothing of it reached the brick: the connection, the fd and the lock are as they were.
        assert volume.listdir("/") == ["f"] and file.pread(10, 0) == b"parent"
        with Volume(source) as other, other.open("/f", "r+b") as theirs, pytest.raises(BlockingIOError):
            theirs.lock(start=0, length=1, blocking=False)
        assert [entry.name for entry in entries] == ["f"]
        file.write(b" goes on")
        assert file.pread(20, 0) == b"parent goes on"
        volume.unlink("/f")


def test_a_child_opens_its_own(source: Source) -> None:
    def child() -> list[str]:
        with Volume(source) as own, own.create("/of-the-child") as file:
            file.write(b"1")
            return own.listdir("/")

    with Volume(source) as volume:
        assert in_child(child) == ["of-the-child"]
        assert volume.getsize("/of-the-child") == 1
        volume.unlink("/of-the-child")


def test_a_child_that_ends_as_programs_do_leaves_the_parent_alone(source: Source) -> None:
    """With its exit handlers and its collector run, as under multiprocessing."""
    script = """
        import multiprocessing, os, sys
        from glustx.gfapi import Source, Volume

        def work(source, number):
            with Volume(source) as own:
                own.mknod(f"/child-{number}")

        source = Source(volume="test", text=sys.argv[1], origin="<client>")
        with Volume(source) as volume:
            file = volume.create("/f")
            pid = os.fork()
            if not pid:
                sys.exit(0)
            os.waitpid(pid, 0)
            context = multiprocessing.get_context("fork")
            children = [context.Process(target=work, args=(source, n)) for n in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join()
            file.write(b"still open")
            file.close()
            print(sorted(volume.listdir("/")), volume.getsize("/f"), [child.exitcode for child in children])
            volume.rmtree("/")
    """
    argv = [sys.executable, "-c", textwrap.dedent(script), source.text]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("['child-0', 'child-1', 'f'] 10 [0, 0]\n", "")
