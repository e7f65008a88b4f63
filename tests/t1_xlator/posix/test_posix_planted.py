"""What somebody has put below `.glusterfs` of a folder before it is served: links, pipes, garbage."""

from __future__ import annotations

import os
import random
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.errors import GraphError
from tests.t1_xlator.posix.kit import Brick


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that is not the brick's; at the end it must be as it was."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "secret").write_bytes(b"secret")
    yield place
    assert os.listdir(place) == ["secret"] and (place / "secret").read_bytes() == b"secret"


def start(folder: Path) -> None:
    Brick(folder, "user").close()


def refused(folder: Path, why: str) -> None:
    with pytest.raises(GraphError, match=re.escape(why)):
        start(folder)


def test_folders_that_are_links_keep_a_brick_from_starting(folder: Path, outside: Path) -> None:
    start(folder)
    moved = folder.parent / "moved"
    mode = outside.stat().st_mode
    for name in ("", "landfill", "unlink", "indices", "indices/xattrop", "xattrs", "00", "ab", "ff", "00/00"):
        place = folder / ".glusterfs" / name
        place.rename(moved)
        place.symlink_to(outside)
        refused(folder, f"{place} is no folder, which it must be")
        assert outside.stat().st_mode == mode
        place.unlink()
        moved.rename(place)
    start(folder)


def test_a_note_that_is_not_the_bricks_keeps_it_from_starting(folder: Path, outside: Path) -> None:
    start(folder)
    note = folder / ".glusterfs" / "glustx.intent"
    secret = outside / "secret"
    plants = (
        lambda: note.symlink_to(secret),
        lambda: note.symlink_to(outside / "planted"),
        lambda: os.link(secret, note),
        lambda: os.mkfifo(note),
    )
    for plant in plants:
        note.unlink()
        plant()
        refused(folder, "glustx.intent is not a file of the brick alone; it must be moved away")
    note.unlink()
    start(folder)


def test_a_note_of_garbage_is_none(folder: Path, seeded: random.Random) -> None:
    start(folder)
    note = folder / ".glusterfs" / "glustx.intent"
    for size in (0, 3, 8, 100, 4096, 1 << 40):
        head = seeded.randbytes(min(size, 5000))
        if size == 100:  # what a note must look like, around nothing that could be one
            body = seeded.randbytes(92)
            head = struct.pack(">II", 92, zlib.crc32(body)) + body
        note.write_bytes(head)
        os.truncate(note, size)
        start(folder)


def test_a_health_file_that_is_another_files_name(folder: Path, outside: Path) -> None:
    brick = Brick(folder, "user")
    health = folder / ".glusterfs" / "health_check"
    health.unlink(missing_ok=True)
    os.link(outside / "secret", health)
    with pytest.raises(OSError, match="not a file of the brick alone"):
        brick.posix._touch_health_file()
    brick.close()


def test_leftovers_that_lead_out(folder: Path, outside: Path) -> None:
    """What a start removes is what is in the landfill, not what a link in it leads to."""
    start(folder)
    mine = folder / ".glusterfs"
    (mine / "landfill" / "tree").mkdir()
    for place in ("landfill/link", "unlink/link", "landfill/tree/link"):
        (mine / place).symlink_to(outside)
    os.mkfifo(mine / "landfill" / "tree" / "pipe")
    brick = Brick(folder, "user")
    brick.reactor.run_until(lambda: not brick.posix.removals)
    assert os.listdir(mine / "landfill") == [] and os.listdir(mine / "unlink") == []
    brick.close()
