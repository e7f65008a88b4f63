"""`glustx provision` as a process on a served volume: reports, exit codes, sentences, what an interruption leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Process, Stopwatch

GLUSTX = [sys.executable, "-m", "glustx"]
SIZE = 256 << 20


class Served:
    """A volume of one brick folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    def url(self, path: str, hosts: str = "127.0.0.1") -> str:
        return f"gluster://{hosts}:{self.port}/v/{path}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("provision")
    words = ["serve", folder / "b", "--volume", "v", "--port", "0", "--state-dir", folder / "state", "--json"]
    with Process([*GLUSTX, *words]) as process:
        yield Served(folder / "b", process.wait_line(json.loads)["port"])


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*GLUSTX, "provision", *words], capture_output=True, text=True, timeout=100)
    assert "Traceback" not in done.stderr
    return done


def report(*words: str | Path) -> dict[str, Any]:
    done = run(*words, "--output", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def names(served: Served) -> set[str]:
    return set(os.listdir(served.folder)) - {".glusterfs"}


def test_create_by_offload(served: Served) -> None:
    made = report("create", served.url("offload.img"), "--size", "256M", "--prealloc", "full")
    assert (made["method_used"], made["size"], made["bytes_zeroed_offloaded"]) == ("zerofill", SIZE, SIZE)
    assert made["target"] == served.url("offload.img")
    # Ten RPCs and none longer than its fixed fields, however big the image is.
    assert made["rpcs"] <= 9 and made["wire_bytes_sent"] + made["wire_bytes_received"] < 4096
    image = os.stat(served.folder / "offload.img")
    assert (image.st_size, image.st_mode & 0o7777) == (SIZE, 0o600) and image.st_blocks * 512 >= SIZE
    checked = report("verify", served.url("offload.img"))
    assert checked["zero"] and checked["bytes_read"] + checked["bytes_skipped"] == SIZE
    known = report("info", served.url("offload.img"))
    assert (known["size"], known["mode"], known["uid"]) == (SIZE, "0600", os.geteuid())


def test_create_by_writes(served: Served) -> None:
    made = report("create", served.url("writes.img"), "--size", "16M", "--prealloc", "full", "--zero-method", "write")
    assert (made["method_used"], made["bytes_written"]) == ("writes", 16 << 20)
    assert made["wire_bytes_sent"] > 16 << 20 and made["rpcs"] > 16
    assert report("verify", served.url("writes.img"), "--full")["bytes_read"] == 16 << 20


def test_text_report_and_a_second_host(served: Served) -> None:
    # The first of the two hosts answers on no port.
    url = f"gluster://127.0.0.1:1,127.0.0.1:{served.port}/v/text.img"
    done = run("create", url, "--size", "1M", "--mode", "0640")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{url}: created 1 MiB by sparse in ") and " RPCs, " in done.stdout
    assert os.stat(served.folder / "text.img").st_mode & 0o7777 == 0o640


def test_zero_and_verify_of_a_range(served: Served) -> None:
    path = served.folder / "range.img"
    assert run("create", served.url("range.img"), "--size", "30000").returncode == 0
    data = bytes(range(1, 251)) * 120
    path.write_bytes(data)
    done = run("verify", served.url("range.img"), "--offset", "100", "--output", "json")
    assert done.returncode == 3 and json.loads(done.stdout)["first_nonzero"] == 100
    assert f"verify {served.url('range.img')}: byte 100 is not zero" in done.stderr
    assert report("zero", served.url("range.img"), "--offset", "3", "--length", "10001")["size"] == 10001
    assert path.read_bytes() == data[:3] + bytes(10001) + data[10004:]
    assert run("verify", served.url("range.img"), "--offset", "3", "--length", "10001").returncode == 0


def test_progress_in_json(served: Served) -> None:
    words = ["--size", "8M", "--prealloc", "full", "--zero-method", "writes", "--progress", "json"]
    done = run("create", served.url("progress.img"), *words)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert set(lines[0]) == {"phase", "transferred", "size", "elapsed", "rate", "eta", "method"}
    assert [line["transferred"] for line in lines if line["phase"] == "zeroing"][-1] == 8 << 20
    assert {line["method"] for line in lines if line["phase"] == "zeroing"} == {"writes"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["{u}/x", "--size", "9P", "--prealloc", "full"], 4, "ENOSPC: 9 PiB (10133099161583616 bytes) are needed and"),
        (["{u}/no/x", "--size", "1M"], 1, "{u}/no/x: No such file or directory (ENOENT"),
        (["{u}/x", "--size", "1M", "--prealloc", "metadata"], 2, "--prealloc metadata is for qcow2"),
        (["{u}/x", "--size", "1M", "--prealloc", "some"], 2, "--prealloc 'some' is none of off, falloc, full"),
        (["{u}/x", "--size", "lots"], 2, "--size: 'lots' is not a size"),
        (["{u}/x", "--size", "-1"], 2, "--size: '-1' is not a size"),
        (["{u}/x", "--size", "1M", "--zero-method", "magic"], 2, "--zero-method 'magic' is none of"),
        (["{u}/x", "--size", "1M", "--owner", "root"], 2, "--owner 'root' is not UID:GID"),
        (["{u}/x", "--size", "1M", "--mode", "9"], 2, "--mode '9' is not an octal mode"),
        (["{u}/x", "--size", "1M", "--chunk", "1K"], 2, "--chunk 1K is less than 1 MiB"),
        (["{u}/x", "--size", "1M", "--output", "xml"], 2, "--output 'xml' is none of text, json"),
        (["{u}/", "--size", "1M"], 2, "names no file"),
        (["/x", "--size", "1M"], 2, "is not a URL such as gluster://host/volume/path"),
        (["{u}/x"], 2, "Missing option '--size'"),
        (["gluster://127.0.0.1:1/v/x", "--size", "1M"], 5, "no volume server answers (127.0.0.1:1: "),
        (["{u}x/x", "--size", "1M"], 5, "no such volume"),
        (["/x", "--size", "1M", "--volfile", "nowhere.vol"], 2, "--volfile nowhere.vol does not exist"),
    ],
)
def test_what_a_user_gets_wrong(served: Served, words: list[str], code: int, said: str) -> None:
    before = names(served)
    url = served.url("")[:-1]
    done = run("create", *(word.format(u=url) for word in words))
    assert done.returncode == code, done.stderr
    assert said.format(u=url) in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == "" and names(served) == before


def test_a_file_that_is_there(served: Served) -> None:
    words = ["create", served.url("there.img"), "--size", "1M"]
    assert run(*words).returncode == 0
    done = run(*words)
    assert done.returncode == 1 and "EEXIST: the file is there already; --force replaces it" in done.stderr
    assert run(*words, "--force").returncode == 0


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interruption_leaves_nothing_behind(served: Served, number: int, code: int, said: str) -> None:
    before = names(served)
    words = [
        "--size",
        "2G",
        "--prealloc",
        "full",
        "--zero-method",
        "writes",
        "--bwlimit",
        "20M",
        "--progress",
        "json",
    ]
    process = subprocess.Popen(
        [*GLUSTX, "provision", "create", served.url("stopped.img"), *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if json.loads(line)["transferred"]:
            break
    assert len(names(served) - before) == 1  # the temporary file
    watch = Stopwatch()
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(60) == code
    assert watch.seconds() < 10
    assert rest.splitlines()[-1] == f"glustx: {served.url('stopped.img')}: {said}; nothing was left behind"
    assert names(served) == before


def test_a_time_limit(served: Served) -> None:
    before = names(served)
    words = ["--size", "2G", "--prealloc", "full", "--zero-method", "writes", "--bwlimit", "20M", "--timeout", "0.5"]
    done = run("create", served.url("late.img"), *words)
    assert done.returncode == 1 and "not done in 0.5 s; nothing was left behind" in done.stderr
    assert names(served) == before


def test_on_a_volfile_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    volfile = tmp_path / "e.vol"
    kind = "trusted" if os.geteuid() == 0 else "user"
    words = ["volgen", "embedded", "e", tmp_path / "b", "-O", f"storage/posix:xattr-namespace={kind}", "-o", volfile]
    subprocess.run([*GLUSTX, *words], check=True)
    made = report("create", "/a.img", "--volfile", volfile, "--size", "1M", "--prealloc", "full")
    assert (made["rpcs"], made["target"], made["method_used"]) == (0, f"{volfile}:/a.img", "zerofill")
    assert made["brick_zero_method"] in ("zero-range", "punch", "writes")
    assert report("verify", "/a.img", "--volfile", volfile, "--full")["zero"]
    assert (tmp_path / "b" / "a.img").read_bytes() == bytes(1 << 20)


def test_dry_run(served: Served) -> None:
    before = names(served)
    done = run("create", served.url("dry.img"), "--size", "1G", "--prealloc", "full", "--dry-run")
    assert done.returncode == 0
    assert done.stdout == f"{served.url('dry.img')}: would create 1 GiB by zerofill; nothing was changed\n"
    assert names(served) == before
