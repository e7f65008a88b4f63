"""A brick whose health check fails goes down in an orderly way: its clients and its volume server learn of it."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from glustx.gfapi import Volume
from tests.kit import wait_gone
from tests.peers import ServedVolume
from tests.t4_edge.bricks import source


def test_a_brick_goes_down_when_its_health_check_fails(tmp_path: Path) -> None:
    folder = tmp_path / "brick"
    folder.mkdir()
    words = ["-O", "storage/posix:health-check-interval=1"]
    with ServedVolume(folder, "v1", command=[sys.executable, "-m", "glustx", "serve", *words]) as peer:
        vol = Volume(source(peer))
        file = vol.create("/f")
        assert file.write(b"acknowledged") == 12
        # What the check writes to is not to be written to any more.
        health = folder / ".glusterfs/health_check"
        health.unlink(missing_ok=True)
        health.mkdir()
        assert wait_gone(peer.bricks[0])
        for call in (lambda: vol.stat("/f"), file.close):
            with pytest.raises(OSError, match="ENOTCONN") as caught:
                call()
            assert caught.value.errno == errno.ENOTCONN
        vol.close()
        assert f"failed its health check: {health} is not a file of the brick alone" in peer.process.log()
        assert f"brick {folder} is down: it failed its health check" in peer.process.log()
        assert (folder / "f").read_bytes() == b"acknowledged"
