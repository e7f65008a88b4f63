"""`glustx demo`, which `make demo` runs: it shows what it promises, as root and as a normal user, and cleans up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.kit import ROOT, need_peer

NOBODY = 65534


def demo(folder: Path, **who: Any) -> str:
    words = [sys.executable, "-m", "glustx", "demo", "--folder", str(folder), "--size", "64M", "--written", "8M"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110, cwd=ROOT, **who)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert os.listdir(folder) == []
    return done.stdout


def check(shown: str) -> None:
    assert re.search(r"^offload.img +64 MiB +zerofill +(zero-range|punch|writes) +0\.\d+ +9 +1\.\d+ KiB", shown, re.M)
    assert re.search(r"^writes.img +8 MiB +writes +\d+\.\d+ +\d+ +8.\d+ MiB", shown, re.M)
    assert "offload.img: 64 MiB read as zeroes" in shown and "writes.img: 8 MiB read as zeroes (8 MiB read" in shown
    assert "protocol/server > debug/io-stats > performance/io-threads > features/locks > " in shown
    assert "> features/access-control > storage/posix" in shown
    assert re.search(r"^zerofill( +1){5}$", shown, re.M)
    assert "is removed." in shown


def test_demo(tmp_path: Path) -> None:
    check(demo(tmp_path))


def test_demo_as_a_normal_user() -> None:
    need_peer("root")
    who: dict[str, Any] = {
        "user": NOBODY,
        "group": NOBODY,
        "extra_groups": [],
        "env": {**os.environ, "HOME": "/nonexistent"},
    }
    try:
        subprocess.run([sys.executable, "-c", "import glustx"], capture_output=True, cwd=ROOT, check=True, **who)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("another user cannot read this interpreter or this checkout")
    with tempfile.TemporaryDirectory(prefix="glustx-test-") as name:  # what pytest gives is for its own user only
        shutil.chown(name, NOBODY, NOBODY)
        check(demo(Path(name), **who))


def test_a_size_that_is_none(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "glustx", "demo", "--folder", str(tmp_path), "--size", "nonsense"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "glustx: 'nonsense' is not a size (such as 4096, 64KB, 1GB)\n")
