"""What importing gfapi costs and what it leaves alone; what a type checker makes of a user's script."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import textwrap

import pytest

from glustx.gfapi import AsyncFile, AsyncVolume, File, Volume
from tests.kit import ROOT

UNWANTED = (
    "typer",
    "rich",
    "uvloop",
    "asyncio",
    "hypothesis",
    "glustx.cli",
    "glustx.xlators.storage.posix",
    "glustx.linux",
)


def run_python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_leaves_much_alone():
    loaded = run_python("import sys, glustx.gfapi; print('\\n'.join(sys.modules))").split()
    assert "glustx.gfapi.sync" in loaded
    assert [name for name in UNWANTED if name in loaded] == []


def test_a_memory_volume_needs_no_more():
    script = """
        import sys
        from glustx.gfapi import Volume
        with Volume.memory() as vol, vol.create("/f") as file:
            file.write(b"x")
        print("\\n".join(sys.modules))
    """
    loaded = run_python(textwrap.dedent(script)).split()
    assert [name for name in UNWANTED if name in loaded] == []


def test_it_imports_where_there_is_no_linux():
    """The modules that only POSIX systems have are hidden, and sys.platform says something else."""
    script = """
        import asyncio, selectors, socket, subprocess, sys, threading
        sys.platform = "win32"
        for name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop", "mfusepy", "fuse"):
            sys.modules[name] = None
        for name in ("posix", "posix_folder", "posix_zero"):
            sys.modules[f"glustx.xlators.storage.{name}"] = None
        import glustx.gfapi, glustx.gfapi.aio, glustx.gfapi.glfs, glustx.rpc.getspec
        import glustx.xlators.protocol.client
        from glustx.gfapi.errors import native
        from glustx.gfapi.flags import open_flags
        import errno, os
        print(native(39) == errno.ENOTEMPTY, open_flags(os.O_RDWR | os.O_CREAT) == 0o102)
        from glustx.gfapi import AsyncVolume, Volume
        with Volume.memory() as volume:
            volume.makedirs("/d/e")
            volume.fopen("/d/f", "w").close()
            volume.copytree("/d", "/c")
            print(sorted(volume.listdir("/c")))

        async def main():
            async with AsyncVolume.memory() as volume:
                await volume.mkdir("/d")
                print(await volume.listdir("/"))

        asyncio.run(main())
    """
    assert run_python(textwrap.dedent(script)).splitlines() == ["True True", "['e', 'f']", "['d']"]


def test_types_are_in_the_package():
    assert (ROOT / "glustx" / "py.typed").exists() and "glustx = py.typed" in (ROOT / "setup.cfg").read_text()


@pytest.mark.parametrize(("blocking", "asynchronous"), [(Volume, AsyncVolume), (File, AsyncFile)])
def test_the_faces_are_twins(blocking, asynchronous):
    """Every public method is on both, with the same parameters and a docstring; one waits, the other is awaited."""
    only = {"mount", "mounted", "closed"}
    if blocking is File:
        only |= {n for n in dir(File) if hasattr(__import__("io").RawIOBase, n)} - {"read", "readinto", "write"}
    names = {n for n in dir(blocking) if not n.startswith("_")} | {
        n for n in dir(asynchronous) if not n.startswith("_")
    }
    for name in sorted(names - only):
        one, other = getattr(blocking, name), getattr(asynchronous, name)
        assert one.__doc__ and other.__doc__, name
        if callable(one):
            mine = list(inspect.signature(one).parameters.values())
            theirs = list(inspect.signature(other).parameters.values())
            assert [(p.name, p.kind) for p in mine] == [(p.name, p.kind) for p in theirs], name
            assert not inspect.iscoroutinefunction(one), name


USER_SCRIPT = """
import asyncio
import hashlib
import io
import os
import pathlib
import shutil
import tarfile
import uuid
from typing import List, Optional, Tuple

from glustx.gfapi import (
    AsyncFile, AsyncVolume, DirEntry, Error, File, LibgfapiException, StatResult, Volume, VolumeNotMounted, parse_url
)

def blocking() -> int:
    with Volume("gluster://localhost/vm", timeout=5.0) as vol:
        names: List[str] = vol.listdir("/")
        found: StatResult = vol.stat("/a")
        vol.mkdir(b"/d", mode=0o700)
        vol.rename("/a", "/b")
        vol.using(uid=1000).unlink("/b")
        file: File
        with vol.create("/img", exclusive=True) as file:
            file.zerofill(0, 1 << 30)
            data: bytes = file.pread(10, 0)
            count: int = file.write(data)
            file.lock(exclusive=False, blocking=False)
        for entry in vol.scandir("/"):
            size: int = entry.stat().st_size
        for top, dirs, files in vol.walk("/"):
            print(top.upper(), dirs, files)
        return found.st_size + count + len(names)

def as_in_libgfapi_python() -> Tuple[str, bytes]:
    vol = Volume(["host1", "host2"], "vm", port=24007, log_file="/tmp/log", log_level=7)
    try:
        vol.mount()
    except LibgfapiException as error:
        print(error)
    with File(vol.open("f", os.O_RDWR | os.O_CREAT, 0o644), path="f", mode="r+") as file:
        file.write("text")
        file.fallocate(0, 0, 4096)
        twin: File = file.dup()
        size: int = twin.fgetsize() + twin.lseek(0, os.SEEK_END)
        value: str = file.fgetxattr("user.a", size=20)
    raw: bytes = vol.getxattr("f", b"user.a")
    identity: uuid.UUID = vol.get_volume_id()
    entry: DirEntry[str]
    for entry in vol.scandir(pathlib.PurePosixPath("/")):
        print(entry.name.upper(), entry.is_dir(follow_symlinks=True), entry.inode())
    lengths: List[int] = [len(name) for name in vol.listdir(b"/")]
    for folder, folders, others in vol.walk(b"/", topdown=False):
        print(folder + b"/" + b"".join(folders + others))
    try:
        vol.copytree("a", "b", symlinks=True, ignore=shutil.ignore_patterns("*.tmp"))
        vol.copy2("a", b"b")
    except Error as error:
        print(error.errno)
    vol.rmtree("b", onerror=lambda call, path, error: print(call, path, error.errno))
    vol.setfsuid(1000)
    with vol.fopen("f", "rb") as opened, io.BufferedReader(opened) as buffered:
        with tarfile.open(fileobj=opened) as tar:
            tar.getnames()
        shutil.copyfileobj(buffered, io.BytesIO())
        digest: str = hashlib.sha256(buffered.read()).hexdigest()
    vol.umount()
    return vol.readlink("l"), vol.readlink(b"l")

async def asynchronous() -> Optional[int]:
    async with AsyncVolume(parse_url("gluster://h/vm")) as vol:
        await vol.makedirs("/a/b", exist_ok=True)
        file: AsyncFile
        async with await vol.open("/img", "r+b") as file:
            await file.fallocate(1, 0, 4096)
            found: StatResult = await file.stat()
            data: bytes = await file.read(5)
        async for entry in vol.scandir("/"):
            is_dir: bool = await entry.is_dir()
        return found.st_size + len(data)

print(blocking(), asyncio.run(asynchronous()))
"""

MISTAKES = """
from glustx.gfapi import AsyncVolume, Volume

vol = Volume("gluster://localhost/vm")
vol.mkdir(5)
vol.stat("/a").st_sise
vol.zerofill("/a")
number: int = vol.listdir("/")
vol.create("/f").zerofill("0", 5)
async def main(avol: AsyncVolume) -> None:
    names: list[str] = avol.listdir("/")
"""


@pytest.mark.skipif(not shutil.which("mypy", path=f"{sys.prefix}/bin"), reason="needs mypy")
def test_a_users_script_type_checks(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(USER_SCRIPT)
    bad.write_text(MISTAKES)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    done = subprocess.run([*command, str(good)], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.stdout == "", done.stdout + done.stderr
    done = subprocess.run([*command, str(bad)], cwd=ROOT, capture_output=True, text=True, timeout=110)
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert lines == {5, 6, 7, 8, 9, 11}, done.stdout
