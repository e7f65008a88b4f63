"""Copies and tokens on bricks that can share blocks, and on one that cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor
from glustx.scsi.config import LunConfig, TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.task import GOOD
from tests.kit import loop_filesystem
from tests.loopfs import SIZES
from tests.scsi_kit import NAME, cdb_10
from tests.t2_graph.test_scsi_copy import BS, cscd, lists, offsets
from tests.t2_graph.test_scsi_tokens import Offload

DATA = 32 << 20
SIZE = DATA + 8192


class Brick(Offload):
    """LUNs 0 and 1 on files of a brick; the first is full of random bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folder = root / "brick"
        folder.mkdir()
        self.reactor = ManualReactor()
        text = (
            f"volume p\n type storage/posix\n option directory {folder}\nend-volume\n"
            "volume l\n type features/locks\n subvolumes p\nend-volume\n"
        )
        self.graph = Graph.load(text, Surroundings(self.reactor))
        self.graphs = {"m": self.graph}
        self.reactor.wait(self.graph.start())
        for name in (b"a", b"b"):
            self.file(self.graph, name)
        with open(folder / "a", "r+b") as file:
            file.write(os.urandom(SIZE))
            os.fsync(file.fileno())
        os.truncate(folder / "b", SIZE)
        self.gateway = Gateway({"m": self.graph.top}, self.reactor)
        self.config = TargetConfig(name=NAME, luns={0: LunConfig(path="/a"), 1: LunConfig(path="/b")})
        self.reactor.wait(self.gateway.start([self.config]))
        self.target = self.gateway.targets[NAME]
        self.units = self.target.units
        self.unit = self.units[0]
        self.tag = 0
        self.ended = []
        self.nexus = self.login("iqn.2026-12.org.example:one,i,0x000000000001")

    def used(self) -> int:
        """Bytes taken on the file system, with nothing pending."""
        os.sync()
        vfs = os.statvfs(self.root)
        return (vfs.f_blocks - vfs.f_bfree) * vfs.f_frsize

    def snapshots(self) -> list[str]:
        """The files behind tokens."""
        folder = self.root / "brick" / ".glustx-rod"
        return os.listdir(folder) if folder.exists() else []


@pytest.fixture
def brick(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brick]:
    kind = request.param
    with loop_filesystem(tmp_path, kind, SIZES[kind]) as root:
        brick = Brick(root)
        try:
            yield brick
        finally:
            brick.close()


@pytest.mark.parametrize("brick", ["xfs", "btrfs"], indirect=True)
def test_copies_and_tokens_share_blocks(brick: Brick) -> None:
    one, two = brick.units[0], brick.units[1]
    before = brick.used()
    data = lists([cscd(one), cscd(two)], [offsets(0, 1, SIZE, 0, 0)])
    assert brick.copy(data).status == GOOD
    assert brick.content(two, 0, SIZE) == brick.content(one, 0, SIZE)
    old = brick.content(one, 3 * BS, 1 << 20)

    token = brick.token((3, 2048 * 30), (SIZE // BS - 5, 5))
    assert len(brick.snapshots()) == 1
    assert brick.used() - before < DATA // 4
    brick.good(cdb_10(0x2A, 0, 100), b"new" + bytes(100 * BS - 3))
    brick.good(cdb_10(0x2A, SIZE // BS - 5, 5), b"\xff" * 5 * BS)
    assert brick.write(token, (11, 2048 * 30), flags=2).status == GOOD
    assert brick.content(two, 11 * BS, 1 << 20) == old, "the token stands for what there was"
    brick.reactor.run_until(lambda: not brick.snapshots())


@pytest.mark.parametrize("brick", ["xfs"], indirect=True)
def test_snapshots_in_use_are_left_alone_by_another_gateway(brick: Brick) -> None:
    token = brick.token((0, 16))
    other = Gateway({"m": brick.graph.top}, brick.reactor, client="other")
    brick.reactor.wait(other.start([brick.config]))
    assert len(brick.snapshots()) == 1
    assert brick.write(token, (16, 16)).status == GOOD
    left = brick.root / "brick" / ".glustx-rod"
    brick.reactor.wait(other.stop())
    brick.reactor.wait(brick.gateway.stop())
    assert os.listdir(left) == []


@pytest.mark.parametrize("brick", ["ext4"], indirect=True)
def test_where_blocks_cannot_be_shared_a_token_is_revoked_by_writes(brick: Brick) -> None:
    one, two = brick.units[0], brick.units[1]
    token = brick.token((0, 2048), (4096, 16))
    assert brick.snapshots() == []
    assert brick.write(token, (5, 2048)).status == GOOD
    assert brick.content(two, 5 * BS, 1 << 20) == brick.content(one, 0, 1 << 20)
    brick.good(cdb_10(0x2A, 2048, 100), bytes(100 * BS))
    assert brick.write(token, (5, 2048)).status == GOOD
    brick.good(cdb_10(0x2A, 4100, 1), bytes(BS))
    assert str(brick.write(token, (5, 2048)).sense) == "5/23/06"
