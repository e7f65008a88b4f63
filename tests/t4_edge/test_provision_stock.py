"""`glustx provision` on a volume of stock GlusterFS: our client, portmap and all, against stock's daemons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit import ROOT, NetNamespace, need_peer
from tests.peers import StockVolume

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


def test_what_stock_says_when_it_knows_no_such_volume(volume: StockVolume) -> None:
    words = ["create", volume.url("x").replace("/v1/", "/v2/"), "--size", "1M"]
    command = volume.command(sys.executable, "-m", "glustx", "provision", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 5 and "no such volume" in done.stderr
