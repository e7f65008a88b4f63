"""Makes stock's own clients, FUSE and libgfapi, send every fop that they can be brought to.

A program of its own, because a mount or a library that hangs must not hang the tests.

    python -m tests.t4_edge.stock_fops FOLDER PROGRAM:PORT:BRICK...

FOLDER is scratch space; the bricks are those of one replicated volume, which a second client reads name by name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CLIENT = """
volume c{index}
    type protocol/client
    option remote-host 127.0.0.1
    option remote-port {port}
    option remote-subvolume {brick}
    option transport-type tcp
    option transport.address-family inet
    option testing.old-protocol {old}
end-volume
"""
ABOVE = """
volume r0
    type cluster/replicate
    option afr-pending-xattr {clients}
    option data-self-heal on
    option metadata-self-heal on
    option entry-self-heal on
    option data-self-heal-algorithm diff
    option self-heal-daemon off
    subvolumes {subvolumes}
end-volume
volume dht
    type cluster/distribute
    {readdirp}
    subvolumes r0
end-volume
volume utime
    type features/utime
    subvolumes dht
end-volume
volume md
    type performance/md-cache
    option cache-invalidation on
    option md-cache-timeout 0
    option force-readdirp off
    subvolumes utime
end-volume
volume top
    type debug/io-stats
    subvolumes md
end-volume
"""


def volfile(bricks: list[str], readdirp: str = "") -> str:
    """The client graph over `PROGRAM:PORT:NAME` bricks."""
    text, names = "", []
    for index, word in enumerate(bricks):
        program, port, brick = word.split(":", 2)
        text += CLIENT.format(index=index, port=port, brick=brick, old="on" if program == "330" else "off")
        names.append(f"c{index}")
    return text + ABOVE.format(clients=",".join(names), subvolumes=" ".join(names), readdirp=readdirp)


@contextlib.contextmanager
def mounted(graph: Path, at: Path, *options: str) -> Iterator[Path]:
    """Stock's FUSE client of a volfile."""
    at.mkdir(exist_ok=True)
    subprocess.run(["glusterfs", "-f", graph, "-l", graph.with_suffix(".log"), *options, at], check=True)
    deadline = time.monotonic() + 60
    while not os.path.ismount(at):
        assert time.monotonic() < deadline, graph.with_suffix(".log").read_text()
        time.sleep(0.05)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def fails(code: int, call: Any, *args: Any) -> None:
    """A call that must fail with `code`."""
    with pytest.raises(OSError, match=rf"^\[Errno {code}\]"):
        call(*args)


def by_mount(root: Path) -> None:
    """What programs do on a mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder, path = root / "d", root / "d" / "f"
    folder.mkdir()
    path.write_bytes(bytes(range(200)))
    assert path.read_bytes() == bytes(range(200))
    os.truncate(path, 100)
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 5000)
    os.fsync(fd)
    for mode, offset, size in ((0, 0, 8192), (1, 8192, 8192), (3, 0, 4096)):
        assert libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(size)) == 0
    os.pwrite(fd, b"data", 4096)
    with contextlib.suppress(OSError):
        os.lseek(fd, 0, os.SEEK_DATA)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    os.fchmod(fd, 0o600)
    os.fstat(fd)
    os.close(fd)
    os.setxattr(path, "user.b", b"2")
    assert os.getxattr(path, "user.b") == b"2" and "user.b" in os.listxattr(path)
    os.removexattr(path, "user.b")
    fails(errno.ENODATA, os.removexattr, path, "user.b")
    os.symlink("target/of/it", root / "s")
    assert os.readlink(root / "s") == "target/of/it"
    os.link(path, root / "l")
    os.rename(root / "l", root / "l2")
    os.mkfifo(root / "fifo")
    os.chmod(path, 0o644)
    fails(errno.EEXIST, os.mkdir, folder)
    fails(errno.ENOTEMPTY, os.rmdir, folder)
    (root / "e").mkdir()
    os.rmdir(root / "e")
    assert sorted(os.listdir(root)) == ["d", "fifo", "l2", "s"]
    os.statvfs(root)
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    os.unlink(root / "l2")


def by_names(root: Path) -> None:
    """Names without attributes, and attributes of inodes that are known."""
    assert sorted(os.listdir(root)) == ["d", "fifo", "s"]
    for _ in range(2):
        os.stat(root / "d" / "f")
    os.access(root / "d" / "f", os.X_OK)


def by_library(graph: Path, newest: bool) -> None:
    """What only libgfapi sends."""
    lib = ctypes.CDLL("libgfapi.so.0", use_errno=True)
    pointer, number, text = ctypes.c_void_p, ctypes.c_long, ctypes.c_char_p
    for name, kinds in {
        "glfs_new": [text], "glfs_set_volfile": [pointer, text], "glfs_set_logging": [pointer, text, ctypes.c_int],
        "glfs_init": [pointer], "glfs_creat": [pointer, text, ctypes.c_int, ctypes.c_int],
        "glfs_zerofill": [pointer, number, number], "glfs_discard": [pointer, number, number],
        "glfs_fsetxattr": [pointer, text, text, number, ctypes.c_int],
        "glfs_fgetxattr": [pointer, text, text, number], "glfs_fremovexattr": [pointer, text],
        "glfs_fchmod": [pointer, ctypes.c_uint], "glfs_access": [pointer, text, ctypes.c_int],
        "glfs_write": [pointer, text, number, ctypes.c_int], "glfs_close": [pointer],
        "glfs_copy_file_range": [pointer, pointer, pointer, pointer, number, ctypes.c_uint, pointer, pointer, pointer],
    }.items():  # fmt: skip
        getattr(lib, name).argtypes = kinds
    lib.glfs_new.restype = lib.glfs_creat.restype = pointer
    lib.glfs_copy_file_range.restype = number
    fs = lib.glfs_new(b"top")
    lib.glfs_set_volfile(fs, os.fsencode(graph))
    lib.glfs_set_logging(fs, os.fsencode(graph.with_suffix(".gfapi.log")), 7)
    assert lib.glfs_init(fs) == 0
    fd = lib.glfs_creat(fs, b"/z", os.O_RDWR, 0o644)
    assert fd
    assert lib.glfs_zerofill(fd, 0, 1 << 20) == 0 and lib.glfs_discard(fd, 0, 4096) == 0
    assert lib.glfs_zerofill(fd, 0, 0) == -1
    assert lib.glfs_fsetxattr(fd, b"user.q", b"v", 1, 0) == 0
    assert lib.glfs_fgetxattr(fd, b"user.q", ctypes.create_string_buffer(10), 10) == 1
    assert lib.glfs_fremovexattr(fd, b"user.q") == 0 and lib.glfs_fchmod(fd, 0o600) == 0
    assert lib.glfs_access(fs, b"/z", os.R_OK) == 0
    data = b"all of it is the same" * 20_000
    assert lib.glfs_write(fd, data, len(data), 0) == len(data) and lib.glfs_close(fd) == 0
    # Replicate does not know how to copy on the bricks, so this is for one of them alone.
    alone = lib.glfs_new(b"alone")
    lib.glfs_set_volfile(alone, os.fsencode(graph.with_name("alone.vol")))
    lib.glfs_set_logging(alone, os.fsencode(graph.with_suffix(".alone.log")), 7)
    assert lib.glfs_init(alone) == 0
    fd = lib.glfs_creat(alone, b"/copied", os.O_RDWR, 0o644)
    assert lib.glfs_write(fd, b"0123456789", 10, 0) == 10
    first, second = ctypes.c_int64(2), ctypes.c_int64(20)
    copied = lib.glfs_copy_file_range(fd, ctypes.byref(first), fd, ctypes.byref(second), 5, 0, None, None, None)
    assert copied == (5 if newest else -1), copied
    assert lib.glfs_close(fd) == 0
    # glfs_fini waits ten seconds for nothing; the end of the process does as well.


def by_healing(root: Path) -> None:
    """Opening a file whose copies differ has them compared by their sums."""
    deadline = time.monotonic() + 60
    while b"garbage" in Path(os.environ["DAMAGED"]).read_bytes():
        assert time.monotonic() < deadline, "the damaged copy is not healed"
        (root / "z").read_bytes()
        time.sleep(0.1)


def main(folder: Path, bricks: list[str]) -> None:
    """Everything, with two bricks that are there; "heal" as PROGRAM does the last step alone."""
    graph, plain = folder / "client.vol", folder / "plain.vol"
    graph.write_text(volfile(bricks))
    plain.write_text(volfile(bricks, "option use-readdirp off"))
    (folder / "alone.vol").write_text(volfile(bricks[:1]).split("\nvolume r0")[0])
    if "DAMAGED" in os.environ:
        with mounted(graph, folder / "mnt", "--attribute-timeout=0") as root:
            by_healing(root)
        return
    with mounted(graph, folder / "mnt", "--acl", "--attribute-timeout=0", "--entry-timeout=0") as root:
        by_mount(root)
    with mounted(plain, folder / "mnt", "--use-readdirp=no", "--attribute-timeout=0", "--entry-timeout=600") as root:
        by_names(root)
    by_library(graph, not bricks[0].startswith("330"))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
