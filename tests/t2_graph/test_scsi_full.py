"""A unit larger than its brick's file system: what happens when that is really full, and after space is freed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.loopfs import Disk, small_disk
from tests.scsi_kit import Rig, cdb_10, cdb_16
from tests.t2_graph.test_scsi_blocks import unmap, unmap_list

MIB = 1 << 20
STEP = 4 * MIB // 512


@pytest.fixture(scope="module", params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with small_disk(request.param, tmp_path_factory.mktemp("disk")) as disk:
        yield disk
        gc.collect()  # what was logged referred to the file, and that would keep the disk busy


@pytest.mark.logs("failed: .*ENOSPC")
def test_a_full_disk_refuses_new_blocks_only_and_goes_on_after_an_unmap(disk: Disk) -> None:
    brick = disk.root / "brick"
    brick.mkdir()
    rig = Rig(f"volume m\n type storage/posix\n option directory {brick}\nend-volume\n", size=1 << 30)
    try:
        data = b"\x5a" * 4 * MIB
        at = 0
        while (result := rig.run(cdb_16(0x8A, at, STEP), data)).status == 0:
            at += STEP
        assert result.sense is not None
        assert (result.sense.key, result.sense.asc, result.sense.ascq) == (7, 0x27, 0x07)
        assert at > 5 * STEP
        for cdb in (cdb_10(0x41, 2000000, 64), cdb_16(0x93, 1 << 20, 1 << 20)):
            sense = rig.sense(cdb, bytes(512))
            assert (sense.key, sense.asc, sense.ascq) == (7, 0x27, 0x07)
        assert rig.good(cdb_10(0x28, at - 8, 8)) == b"\x5a" * 4096
        rig.good(cdb_10(0x2A, 0, 8), b"\xa5" * 4096)
        rig.good(cdb_10(0x35, 0, 0))
        freed = unmap_list((STEP, 2 * STEP))
        rig.good(unmap(freed), freed)
        rig.good(cdb_10(0x35, 0, 0))  # a journal gives space back when it is written
        rig.reactor.advance(6)  # the brick looks at its free space now and then, on a worker
        rig.reactor.run_until(lambda: not rig.graph.top.xlator.low_on_space)  # type: ignore[attr-defined]
        rig.good(cdb_16(0x8A, at + STEP, STEP), data)
        assert rig.good(cdb_10(0x28, STEP, 8)) == bytes(4096)
        assert rig.good(cdb_10(0x28, 0, 8)) == b"\xa5" * 4096
    finally:
        rig.close()
