"""File-level WORM on our brick and on a stock one, through stock's mount: the same errors, the same state on disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit import PATIENCE, need_peer
from tests.peers import BRICK_VOLFILE, ServedVolume, StockBrick, Volume, stock_mount

OPTIONS = {"worm-file-level": "on", "default-retention-period": "3", "auto-commit-period": "100"}
KEYS = ("trusted.start_time", "trusted.worm_file", "trusted.reten_state")


@contextlib.contextmanager
def served(kind: str, folder: Path) -> Iterator[Volume]:
    if kind == "stock":
        lines = "".join(f"    option {key} {value}\n" for key, value in OPTIONS.items())
        layer = "volume {name}-worm\n    type features/worm\n" + lines + "    subvolumes {name}-locks\nend-volume\n"
        text = BRICK_VOLFILE.replace("subvolumes {name}-locks", "subvolumes {name}-worm")
        text = text.replace("volume {name}-leases", layer + "\nvolume {name}-leases")
        with StockBrick(folder, "v1", text) as volume:
            yield volume
        return
    words = [word for key, value in OPTIONS.items() for word in ("-O", f"features/worm:{key}={value}")]
    with ServedVolume(folder, "v1", command=[sys.executable, "-m", "glustx", "serve", *words]) as volume:
        yield volume


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def overwrite(path: Path) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.write(b"again")
        os.fsync(file.fileno())


def state(path: Path) -> dict[str, bytes]:
    """The state on the disk, the moments in it as N."""
    found = {key: os.getxattr(path, key) for key in KEYS if key in os.listxattr(path)}
    return {key: re.sub(rb"\d{9,}", b"N", value) for key, value in found.items()}


@pytest.mark.parametrize("kind", ["glustx", "stock"])
def test_the_life_of_a_file(tmp_path: Path, kind: str) -> None:
    need_peer("root", "glusterfsd", "mount.glusterfs", "/dev/fuse")
    brick, point = tmp_path / "brick", tmp_path / "mnt"
    brick.mkdir()
    point.mkdir()
    made = {"trusted.start_time": b"N\0", "trusted.worm_file": b"1\0"}
    with served(kind, brick) as volume, stock_mount(volume, point) as mount:
        file, disk = mount / "f", brick / "f"
        file.write_bytes(b"data")
        deadline = time.monotonic() + PATIENCE
        while state(disk) != made:  # a mount tells the brick of a close in its own time
            assert time.monotonic() < deadline, state(disk)
            time.sleep(0.05)
        assert outcome(lambda: overwrite(file)) == "done"
        file.chmod(0o444)
        assert state(disk) == {**made, "trusted.reten_state": b"3/3/100\0"}
        for attempt in (
            lambda: overwrite(file),
            lambda: os.truncate(file, 0),
            lambda: os.rename(file, mount / "g"),
            lambda: os.link(file, mount / "g"),
            lambda: os.unlink(file),
        ):
            assert outcome(attempt) == "EROFS"
        assert file.read_bytes()[:5] == b"again"
        time.sleep(4)
        assert outcome(lambda: overwrite(file)) == "EROFS"
        assert state(disk) == {**made, "trusted.reten_state": b"1/0/0\0"}
        assert outcome(lambda: os.unlink(file)) == "done"
        assert not disk.exists()
