"""The library behind `glustx fs`: copies to, from and within volumes, moves, removals, listings, and what failures and
interruptions leave."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.fs import listing
from glustx.fs.copying import GRAIN, CopyOptions, FileCopier, pieces_of
from glustx.fs.newfile import new_file, shielded
from glustx.fs.sides import Local, Place
from glustx.fs.steps import StepError
from glustx.fs.task import Report
from glustx.fs.trees import copy, move, remove
from glustx.gfapi import Volume
from glustx.progress import Moment, Progress
from tests.t2_graph.troubles import Interrupting, faulty

MIB = 1 << 20
LOCAL = Local()
KEEP = CopyOptions(recursive=True, preserve=True)
PLAIN = CopyOptions()


@pytest.fixture
def volume() -> Iterator[Volume]:
    with Volume.memory() as made:
        yield made


def on(side: Any, path: str) -> Place:
    return Place(side, path, "" if isinstance(side, Local) else "gluster://h/v")


def here(path: Path) -> Place:
    return Place(LOCAL, os.fspath(path))


def run(source: Place, target: Place, options: CopyOptions = PLAIN) -> Report:
    return copy([source], target, options, Progress())


def put(volume: Volume, path: str, data: bytes) -> None:
    with volume.open(path, "wb") as file:
        file.pwrite(data, 0)


def content(volume: Volume, path: str) -> bytes:
    with volume.open(path) as file:
        return file.read()


def leftovers(volume: Volume) -> list[str]:
    return [name for _, _, names in volume.walk("/") for name in names if ".glustx-" in name]


def make_tree(root: Path, rng: random.Random) -> None:
    """Files of odd sizes, a large sparse one, names of all kinds, links, an unwritable folder."""
    for folder in ("", "a", "a/b", "a/b/c", "empty"):
        (root / folder).mkdir()
    for index, size in enumerate([0, 1, 4095, 4097, 70_001, 3 * MIB + 1]):
        path = root / ("a/b" if index % 2 else "") / f"file {index}"
        path.write_bytes(rng.randbytes(size))
        path.chmod(rng.choice([0o600, 0o644, 0o755, 0o4711]))
        os.utime(path, ns=(rng.randrange(10**18), rng.randrange(10**18)))
    with open(root / "sparse", "wb") as file:
        for at in (0, 50 * MIB, 70 * MIB):
            file.seek(at)
            file.write(rng.randbytes(MIB))
        file.truncate(90 * MIB)
    (root / "a" / os.fsdecode(b"\xff\xfe\n")).write_text("strange")
    (root / "a" / "link").symlink_to("../sparse")
    (root / "dangling").symlink_to("nowhere")
    (root / "a" / "b" / "c").chmod(0o555)
    os.utime(root / "a" / "b", ns=(10**17, 10**17))


def facts(side: Any, root: str) -> dict[str, Any]:
    """All there is to know of a tree: kinds, modes, times, bytes."""
    found: dict[str, Any] = {}
    todo = [root]
    while todo:
        folder = todo.pop()
        with side.scandir(folder) as entries:
            rows = list(entries)
        for entry in rows:
            path = f"{folder}/{entry.name}"
            there = side.lstat(path)
            key = os.path.relpath(path, root)
            if stat.S_ISLNK(there.st_mode):
                found[key] = (side.readlink(path), there.st_mtime_ns)
            elif stat.S_ISDIR(there.st_mode):
                found[key] = (there.st_mode, there.st_mtime_ns)
                todo.append(path)
            else:
                file = side.open(path, os.O_RDONLY)
                found[key] = (there.st_mode, there.st_mtime_ns, hash(file.pread(there.st_size, 0)))
                file.close()
    return found


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_tree_comes_back_as_it_went(volume: Volume, tmp_path: Path, seeded: random.Random) -> None:
    make_tree(tmp_path / "src", seeded)
    went = run(here(tmp_path / "src"), on(volume, "/"), KEEP)
    assert not went.failures and (went.files, went.directories, went.links) == (8, 5, 2)
    assert went.bytes_holes >= 80 * MIB and went.bytes_offloaded == 0
    assert volume.stat("/src/sparse").st_blocks * 512 < 10 * MIB
    expected = facts(LOCAL, str(tmp_path / "src"))
    assert facts(volume, "/src") == expected
    within = run(on(volume, "/src"), on(volume, "/twin"), KEEP)
    assert not within.failures and within.bytes_copied == 0 and within.bytes_offloaded > 6 * MIB
    assert facts(volume, "/twin") == expected
    back = run(on(volume, "/twin"), here(tmp_path / "dst"), KEEP)
    assert not back.failures and facts(LOCAL, str(tmp_path / "dst")) == expected
    assert os.stat(tmp_path / "dst/sparse").st_blocks * 512 < 10 * MIB


def test_five_tebibytes_of_almost_nothing(volume: Volume, tmp_path: Path) -> None:
    big = tmp_path / "big"
    with open(big, "wb") as file:
        try:
            file.truncate(5 << 40)
        except OSError:
            pytest.skip("this file system has no files of 5 TiB")
        for at in (0, (2 << 40) + 5, (5 << 40) - 3):
            os.pwrite(file.fileno(), b"abc", at)
    assert run(here(big), on(volume, "/big")).bytes_copied < MIB
    assert run(on(volume, "/big"), on(volume, "/twin")).bytes_offloaded < MIB
    assert run(on(volume, "/twin"), here(tmp_path / "back")).bytes_copied < MIB
    there = os.stat(tmp_path / "back")
    assert there.st_size == 5 << 40 and there.st_blocks * 512 < MIB
    with open(tmp_path / "back", "rb") as file:
        assert [os.pread(file.fileno(), 3, at) for at in (0, (2 << 40) + 5, (5 << 40) - 3)] == [b"abc"] * 3


@pytest.mark.parametrize(("sparse", "holes"), [("auto", 4 * MIB), ("always", 5 * MIB), ("never", 0)])
def test_what_becomes_of_holes_and_zeroes(volume: Volume, sparse: str, holes: int) -> None:
    data = b"x" * MIB + bytes(MIB) + b"y" * MIB
    put(volume, "/a", data)
    with volume.open("/a", "r+b") as file:
        file.truncate(7 * MIB)
    done = run(on(volume, "/a"), on(volume, "/b"), CopyOptions(sparse=sparse))
    assert done.bytes_holes == holes and content(volume, "/b") == data + bytes(4 * MIB)
    # `never` copies on the brick as well; what is a hole there is the brick's affair.
    assert done.bytes_offloaded + done.bytes_copied == 7 * MIB - holes


@pytest.mark.parametrize("size", [0, 1, GRAIN, GRAIN + 1, 5 * GRAIN - 1])
def test_pieces_leave_out_zeroes_only(size: int, seeded: random.Random) -> None:
    data = bytearray(size)
    for _ in range(3):
        if size:
            data[seeded.randrange(size)] = 1
    rebuilt = bytearray(size)
    for start, end in pieces_of(bytes(data)):
        rebuilt[start:end] = data[start:end]
    assert rebuilt == data


def test_a_brick_that_does_not_copy_is_sent_the_bytes() -> None:
    with Volume(faulty("COPY_FILE_RANGE", "EOPNOTSUPP")) as volume:
        put(volume, "/a", b"z" * (5 * MIB))
        done = run(on(volume, "/a"), on(volume, "/b"))
        assert (done.bytes_copied, done.bytes_offloaded) == (5 * MIB, 0)
        assert content(volume, "/b") == b"z" * (5 * MIB)


def test_between_two_volumes(volume: Volume) -> None:
    put(volume, "/a", b"across")
    with Volume.memory() as other:
        assert run(on(volume, "/a"), on(other, "/")).bytes_copied == 6
        assert content(other, "/a") == b"across"


def test_streams(volume: Volume) -> None:
    data = b"q" * (9 * MIB + 7) + bytes(MIB)
    copier = FileCopier(CopyOptions(sparse="always"), Progress(), threading.Event())
    copier.receive(io.BytesIO(data), on(volume, "/s"))
    assert content(volume, "/s") == data and copier.moved.holes >= MIB - GRAIN
    out = io.BytesIO()
    copier.send(on(volume, "/s"), out)
    assert out.getvalue() == data


def test_modes_of_new_and_of_replaced_files(volume: Volume, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_text("new")
    source.chmod(0o775)
    run(here(source), on(volume, "/a"), CopyOptions(umask=0o027))
    assert volume.stat("/a").st_mode & 0o7777 == 0o750
    volume.chmod("/a", 0o604)
    run(here(source), on(volume, "/a"))
    assert volume.stat("/a").st_mode & 0o7777 == 0o604  # what is replaced keeps its own
    run(on(volume, "/a"), here(tmp_path / "b"))
    assert os.stat(tmp_path / "b").st_mode & 0o7777 == 0o604


def test_who_may_not_give_files_away_gets_no_set_id_bits(volume: Volume, tmp_path: Path) -> None:
    put(volume, "/a", b"#!")
    volume.chown("/a", 4242, 4243)
    volume.chmod("/a", 0o6755)
    assert not run(on(volume, "/a"), on(volume, "/b"), CopyOptions(preserve=True)).failures
    there = volume.stat("/b")
    assert (there.st_mode & 0o7777, there.st_uid, there.st_gid) == (0o6755, 4242, 4243)
    done = run(on(volume, "/a"), Place(NoChown(), str(tmp_path / "c")), CopyOptions(preserve=True))
    assert not done.failures and os.stat(tmp_path / "c").st_mode & 0o7777 == 0o755


class NoChown(Local):
    """This machine for somebody who is not root."""

    def open(self, path: str, how: int | str = os.O_RDONLY, mode: int = 0o666) -> Any:
        file: Any = super().open(path, how, mode)

        def chown(uid: int, gid: int) -> None:
            raise PermissionError(errno.EPERM, "not yours")

        file.chown = chown
        return file


def test_a_link_is_written_through_and_one_to_nowhere_is_not(volume: Volume) -> None:
    put(volume, "/data", b"old")
    put(volume, "/a", b"new")
    volume.symlink("/data", "/link")
    volume.symlink("/nowhere", "/dangling")
    run(on(volume, "/a"), on(volume, "/link"))
    assert content(volume, "/data") == b"new" and volume.islink("/link")
    assert "leads nowhere (EEXIST)" in run(on(volume, "/a"), on(volume, "/dangling")).failures[0]
    assert not volume.exists("/nowhere")


def test_no_clobber(volume: Volume) -> None:
    put(volume, "/a", b"new")
    put(volume, "/b", b"old")
    done = run(on(volume, "/a"), on(volume, "/b"), CopyOptions(clobber=False))
    assert (done.skipped, done.files, done.failures) == (1, 0, [])
    assert content(volume, "/b") == b"old"
    assert run(on(volume, "/a"), on(volume, "/c"), CopyOptions(clobber=False)).files == 1


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("/none", "/x", "/none: lookup: No such file or directory (ENOENT"),
        ("/a", "/none/x", "/none/x: create: No such file or directory (ENOENT"),
        ("/a", "/a", "/a: create: the same file as gluster://h/v/a (EINVAL)"),
        ("/d", "/x", "/d: read: a directory; -r copies it and all that is in it (EISDIR)"),
        ("/p", "/x", "/p: copy: neither file, directory nor symbolic link (ENOTSUP)"),
    ],
)
def test_what_cannot_be_copied(volume: Volume, source: str, target: str, said: str) -> None:
    put(volume, "/a", b"1")
    volume.mkdir("/d")
    volume.mknod("/p", stat.S_IFIFO | 0o600)
    before = volume.listdir("/")
    done = run(on(volume, source), on(volume, target))
    assert len(done.failures) == 1 and said in done.failures[0]
    assert volume.listdir("/") == before and content(volume, "/a") == b"1"


def test_a_tree_is_not_copied_into_itself(volume: Volume) -> None:
    volume.makedirs("/d/e")
    for target in ("/d", "/d/e", "/d/e/new"):
        assert "inside gluster://h/v/d" in run(on(volume, "/d"), on(volume, target), KEEP).failures[0]
    assert [folder for folder, _, _ in volume.walk("/")] == ["/", "/d", "/d/e"]


def test_a_volume_by_two_names_is_one(volume: Volume) -> None:
    """Two URLs of one volume: what is moved onto itself would be lost, what is copied into itself would never end."""
    alias = volume.using()
    volume.makedirs("/d/e")
    put(volume, "/a", b"precious")
    assert "the same file" in move([on(volume, "/a")], on(alias, "/a"), PLAIN, Progress()).failures[0]
    assert "the same file" in run(on(volume, "/a"), on(alias, "/"), KEEP).failures[0]
    assert content(volume, "/a") == b"precious"
    done = run(on(volume, "/"), on(alias, "/d/e/copy"), KEEP)
    assert [text for text in done.failures if "which is being copied (EINVAL)" in text] == done.failures
    assert content(volume, "/d/e/copy/a") == b"precious" and volume.listdir("/d/e/copy/d/e") == []
    moved = move([on(volume, "/d")], on(alias, "/d/e/copy/inner"), PLAIN, Progress())
    assert moved.failures and content(volume, "/d/e/copy/inner/e/copy/a") == b"precious"  # moved as far as can be


def test_one_failure_does_not_keep_the_rest(volume: Volume, tmp_path: Path) -> None:
    for name in "abcdef":
        put(volume, f"/{name}", name.encode())
    places = [on(volume, f"/{name}") for name in "abXcdYef"]
    done = copy(places, here(tmp_path), PLAIN, Progress())
    assert sorted(os.listdir(tmp_path)) == list("abcdef") and done.files == 6
    assert [text.split(": ")[0] for text in done.failures] == ["gluster://h/v/X", "gluster://h/v/Y"]


def test_several_sources_need_a_directory(volume: Volume) -> None:
    put(volume, "/a", b"")
    with pytest.raises(StepError, match="not a directory") as caught:
        copy([on(volume, "/a"), on(volume, "/a")], on(volume, "/x"), PLAIN, Progress())
    assert caught.value.errno == errno.ENOTDIR


@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EDQUOT"])
def test_a_write_that_fails_keeps_the_old_file(code: str, tmp_path: Path, seeded: random.Random) -> None:
    (tmp_path / "big").write_bytes(seeded.randbytes(9 * MIB))
    with Volume(faulty("WRITE", code, every=4)) as volume:
        put(volume, "/big", b"old")
        done = run(here(tmp_path / "big"), on(volume, "/big"))
        assert f"/big: write: {os.strerror(getattr(errno, code))} ({code}" in done.failures[0]
        assert content(volume, "/big") == b"old" and not leftovers(volume)


def test_a_lost_volume_ends_it_all(tmp_path: Path) -> None:
    for index in range(20):
        (tmp_path / f"{index}").write_bytes(b"x")
    with Volume(faulty("WRITE", "ENOTCONN", every=5)) as volume:
        with pytest.raises(StepError) as caught:
            copy([here(path) for path in tmp_path.iterdir()], on(volume, "/"), PLAIN, Progress())
        assert caught.value.lost and not leftovers(volume)


def test_progress_grows_with_what_is_found(volume: Volume, tmp_path: Path, seeded: random.Random) -> None:
    make_tree(tmp_path / "src", seeded)
    moments: list[Moment] = []
    copy([here(tmp_path / "src")], on(volume, "/"), KEEP, Progress(moments.append))
    assert (
        moments[-1].transferred
        == moments[-1].size
        == sum(
            path.stat().st_size for path in (tmp_path / "src").rglob("*") if path.is_file() and not path.is_symlink()
        )
    )


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["during", "after"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a file that was opened just when the interrupt came
def test_an_interrupted_copy_leaves_whole_files_only(
    volume: Volume, tmp_path: Path, seeded: random.Random, late: bool
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    data = {f"f{index}": seeded.randbytes(seeded.choice([10, 5 * MIB])) for index in range(4)}
    for name, each in data.items():
        (source / name).write_bytes(each)
    interrupted = 0
    for round_ in range(25):
        calls = seeded.randrange(1, 40)
        side = Interrupting(volume, [calls], late)
        old = b"old"
        volume.mkdir("/src")
        put(volume, "/src/f0", old)
        try:
            copy([here(source)], on(side, "/"), CopyOptions(recursive=True, jobs=2), Progress())
        except KeyboardInterrupt:
            interrupted += 1
        assert not leftovers(volume), f"round {round_}, call {calls}"
        for name in volume.listdir("/src"):
            there = content(volume, f"/src/{name}")
            assert there == data[name] or (name == "f0" and there == old), f"round {round_}, call {calls}: {name}"
        volume.rmtree("/src")
    assert interrupted


def test_shielded_calls_end_before_the_interrupt_counts() -> None:
    done: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go.wait(60)
        done.append(1)
        return 7

    def interrupt() -> None:
        begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go.set()

    helper = threading.Thread(target=interrupt)
    helper.start()
    answer, interrupted = shielded(work)
    helper.join()
    assert (answer, interrupted, done) == (7, True, [1])
    with pytest.raises(ZeroDivisionError):
        shielded(lambda: 1 // 0)


# -- moves and removals ------------------------------------------------------------------------------------------------


def test_moves_within_a_volume_are_renames(volume: Volume) -> None:
    put(volume, "/a", b"1")
    put(volume, "/b", b"2")
    volume.makedirs("/d/e")
    gfid = volume.stat("/a").gfid
    done = move([on(volume, "/a"), on(volume, "/b")], on(volume, "/d"), PLAIN, Progress())
    assert (done.files, done.failures, done.bytes_copied) == (2, [], 0)
    assert volume.stat("/d/a").gfid == gfid and volume.listdir("/") == ["d"]
    assert move([on(volume, "/d/e")], on(volume, "/f"), PLAIN, Progress()).directories == 1
    kept = move([on(volume, "/d/a")], on(volume, "/d/b"), CopyOptions(clobber=False), Progress())
    assert kept.skipped == 1 and content(volume, "/d/b") == b"2"
    assert move([on(volume, "/d/a")], on(volume, "/g"), CopyOptions(clobber=False), Progress()).files == 1
    assert volume.stat("/g").gfid == gfid and not volume.exists("/d/a")
    assert "one file" in move([on(volume, "/g")], on(volume, "/g"), PLAIN, Progress()).failures[0]
    assert move([on(volume, "/g")], on(volume, "/d/b"), PLAIN, Progress()).files == 1
    assert content(volume, "/d/b") == b"1"


def test_moves_between_sides_keep_everything(volume: Volume, tmp_path: Path, seeded: random.Random) -> None:
    make_tree(tmp_path / "src", seeded)
    expected = facts(LOCAL, str(tmp_path / "src"))
    done = move([here(tmp_path / "src")], on(volume, "/dst"), PLAIN, Progress())
    assert not done.failures and not (tmp_path / "src").exists()
    assert facts(volume, "/dst") == expected


def test_what_could_not_be_copied_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in "abcdefgh":
        (tmp_path / "src" / name).write_text(name)
    with Volume(faulty("WRITE", "EIO", every=3)) as volume:
        done = move([here(tmp_path / "src")], on(volume, "/"), PLAIN, Progress())
        there, left = set(volume.listdir("/src")), set(os.listdir(tmp_path / "src"))
        assert there | left == set("abcdefgh") and not there & left and left
        assert len(done.failures) == len(left) + 1  # and the folder, which is not empty


def test_remove(volume: Volume) -> None:
    volume.makedirs("/d/e/f")
    put(volume, "/d/e/x", b"")
    put(volume, "/keep", b"k")
    volume.symlink("/keep", "/d/l")
    assert "-r removes it" in remove([on(volume, "/d")], recursive=False, force=False).failures[0]
    assert remove([on(volume, "/none")], recursive=True, force=True).failures == []
    done = remove([on(volume, "/none"), on(volume, "/d")], recursive=True, force=False)
    assert (done.files, done.directories, done.links, len(done.failures)) == (1, 3, 1, 1)
    assert volume.listdir("/") == ["keep"]


def test_remove_goes_on_past_what_fails() -> None:
    with Volume(faulty("UNLINK", "EACCES", every=4)) as volume:
        volume.mkdir("/d")
        for index in range(12):
            put(volume, f"/d/{index}", b"")
        done = remove([on(volume, "/d")], recursive=True, force=False)
        assert done.files == 9 and len(volume.listdir("/d")) == 3
        assert len(done.failures) == 4 and "ENOTEMPTY" in done.failures[-1]


# -- listings ----------------------------------------------------------------------------------------------------------


def test_rows_and_urls(volume: Volume) -> None:
    name = os.fsdecode(b"\xff %#?")
    put(volume, "/" + name, b"12345")
    volume.mkdir("/d")
    volume.symlink("/d", "/l")
    rows = [row for _, page in listing.listing(on(volume, "/"), recursive=True, failed=pytest.fail) for row in page]
    assert [(row.name, row.type, row.target) for row in rows] == [
        ("d", "directory", None),
        ("l", "link", "/d"),
        (name, "file", None),
    ]
    assert rows[2].url == "gluster://h/v/%FF%20%25%23%3F" and rows[2].size == 5
    assert listing.status(on(volume, "/l"), follow=True).type == "directory"
    with pytest.raises(StepError, match="ENOENT"):
        listing.status(on(volume, "/none"))


def test_usage_counts_a_file_once(volume: Volume) -> None:
    volume.makedirs("/d/e")
    put(volume, "/d/a", b"x" * 100_000)
    volume.link("/d/a", "/d/e/same")
    put(volume, "/d/e/b", b"x")
    rows = {row.path: row for row in listing.usage(on(volume, "/d"), failed=pytest.fail)}
    assert list(rows) == ["/d/e", "/d"]
    assert (rows["/d"].size, rows["/d"].files, rows["/d"].directories) == (100_001, 3, 2)
    assert rows["/d"].allocated >= 100_000 > rows["/d/e"].allocated


def test_trees_to_a_depth(volume: Volume) -> None:
    volume.makedirs("/a/b/c")
    put(volume, "/a/x", b"1")
    top = listing.tree(on(volume, "/"), depth=2, failed=pytest.fail)
    assert [child.name for child in top.children or []] == ["a"]
    assert [child.name for child in (top.children or [])[0].children or []] == ["b", "x"]
    assert (top.children or [])[0].children[0].children == []  # type: ignore[index]


def test_space(volume: Volume) -> None:
    found = listing.space(on(volume, "/"))
    assert found.volume == "v" and 0 < found.free <= found.total


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_side_that_takes_no_files_has_none_to_remove(code: int) -> None:
    class Refusing:
        def using(self, umask: int) -> Refusing:
            return self

        def open(self, *args: object) -> None:
            raise OSError(code, "no")

        unlink = open

    with pytest.raises(OSError, match="no") as caught, new_file(Refusing(), "/f"):
        pass
    assert caught.value.errno == code  # and nothing was logged
