"""The client's side of versus_libgfapi.py on glustx gfapi: the loops of gfmeta.c, and random reads by asyncio.

    python bench/gfmeta.py HOST PORT VOLUME FILES FOLDER PHASE...       as gfmeta.c, from stdin and to stdout
    python bench/gfmeta.py HOST PORT VOLUME randread PATH SECONDS DEPTH  4 KiB reads by DEPTH coroutines
    python bench/gfmeta.py HOST PORT VOLUME connect PATH                 mount, create a file, unmount

Each phase has a volume of its own, so that none is answered from what an earlier one cached."""

from __future__ import annotations

import asyncio
import os
import random
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from glustx.gfapi import AsyncVolume, Volume

BLOCK = 4096
LISTINGS = 10
DATA = b"x" * BLOCK


class Loops:
    """The metadata loop over `files` files in `folder`; each method returns how many operations it did."""

    def __init__(self, folder: str, files: int) -> None:
        self.paths = [f"{folder}/file{number:06d}" for number in range(files)]
        self.folder = folder

    def create(self, volume: Volume) -> int:
        for path in self.paths:
            with volume.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644) as file:
                if file.pwrite(DATA, 0) != BLOCK:
                    sys.exit(f"{path}: short write")
        return len(self.paths)

    def stat(self, volume: Volume) -> int:
        for path in self.paths:
            if volume.stat(path).st_size != BLOCK:
                sys.exit(f"{path}: wrong size")
        return len(self.paths)

    def readdirplus(self, volume: Volume) -> int:
        regular = 0
        for _ in range(LISTINGS):
            for entry in volume.scandir(self.folder):
                st = entry.stat()
                regular += stat.S_ISREG(st.st_mode) and st.st_size == BLOCK
        if regular != len(self.paths) * LISTINGS:
            sys.exit(f"readdirplus gave {regular} files, not {len(self.paths) * LISTINGS}")
        return regular

    def open_read(self, volume: Volume) -> int:
        for path in self.paths:
            with volume.open(path, os.O_RDONLY) as file:
                if file.pread(BLOCK, 0) != DATA:
                    sys.exit(f"{path}: wrong data")
        return len(self.paths)

    def unlink(self, volume: Volume) -> int:
        for path in self.paths:
            volume.unlink(path)
        return len(self.paths)


def metadata(url: str, files: int, folder: str, phases: list[str]) -> None:
    """Run phases, each when a line comes in."""
    loops = Loops(folder, files)
    with Volume(url) as first:
        print("stack glustx")
        for phase in phases:
            run: Callable[[Volume], int] = getattr(loops, phase.replace("-", "_"))
            if phase == "create":
                first.mkdir(folder, 0o755)
            with Volume(url) as volume:
                sys.stdout.flush()
                if not sys.stdin.readline():
                    sys.exit("stdin has ended")
                start = time.perf_counter()
                count = run(volume)
                print(f"{phase} {time.perf_counter() - start:.6f} {count}")
            if phase == "unlink":
                first.rmdir(folder)
    print("done", flush=True)


async def randread(url: str, path: str, seconds: float, depth: int) -> None:
    """Print how many reads of 4 KiB `depth` coroutines did, and the seconds they took."""
    async with AsyncVolume(url) as volume:
        blocks = (await volume.stat(path)).st_size // BLOCK
        async with await volume.open(path, os.O_RDONLY) as file:
            start = time.perf_counter()
            end = start + seconds

            async def reader(seed: int) -> int:
                places = random.Random(seed)
                done = 0
                while time.perf_counter() < end:
                    if len(await file.pread(BLOCK, int(places.random() * blocks) * BLOCK)) != BLOCK:
                        sys.exit(f"{path}: short read")
                    done += 1
                return done

            total = sum(await asyncio.gather(*(reader(seed) for seed in range(depth))))
            print(f"{total} {time.perf_counter() - start:.6f}", flush=True)


def connect(url: str, path: str) -> None:
    """Print the seconds that a mount, the creation of a file and the unmount take together."""
    start = time.perf_counter()
    with Volume(url) as volume:
        volume.open(path, os.O_RDWR | os.O_CREAT, 0o644).close()
    print(f"{time.perf_counter() - start:.6f}", flush=True)


def main() -> None:
    host, port, name, what, *rest = sys.argv[1:]
    url = f"gluster://{host}:{port}/{name}"
    if what == "randread":
        path, seconds, depth = rest
        try:
            import uvloop
        except ImportError:
            asyncio.run(randread(url, path, float(seconds), int(depth)))
        else:
            uvloop.run(randread(url, path, float(seconds), int(depth)))
    elif what == "connect":
        connect(url, rest[0])
    else:
        metadata(url, int(what), rest[0], rest[1:])


if __name__ == "__main__":
    main()
