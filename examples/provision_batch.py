#!/usr/bin/env python3
"""Make a batch of fully allocated, zeroed images at once, over one connection, with asyncio.

    provision_batch.py gluster://host/vm/pool --size 10G --count 50 --at-once 8

A ZEROFILL is one small request however big the image is, so many can be under way while the brick works.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import sys
import time

from glustx.gfapi import AsyncVolume, parse_url
from glustx.options import parse_size


async def make(volume: AsyncVolume, path: str, size: int, limit: asyncio.Semaphore) -> str:
    """Make one image; it is whole when it has its name."""
    async with limit:
        growing = f"{path}.part"
        began = time.monotonic()
        try:
            async with await volume.open(growing, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600) as image:
                try:
                    await image.zerofill(0, size)
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                        raise
                    await image.allocate(0, size)  # an old server: allocated space reads as zeroes, too
                await image.fsync()
            await volume.link(growing, path)  # unlike a rename it never replaces a disk that is there
            await volume.unlink(growing)
        except BaseException:  # Ctrl-C as well
            try:
                await volume.unlink(growing)
            except OSError:
                pass
            raise
        return f"{path}: {time.monotonic() - began:.2f} s"


async def run(options: argparse.Namespace) -> int:
    """Make all images; one that fails does not stop the others."""
    url = parse_url(options.folder)
    limit = asyncio.Semaphore(options.at_once)
    async with AsyncVolume(url) as volume:
        await volume.makedirs(url.path, exist_ok=True)
        paths = [f"{url.path.rstrip('/')}/disk-{index:04}.img" for index in range(options.count)]
        jobs = [make(volume, path, parse_size(options.size), limit) for path in paths]
        failed = 0
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        for path, outcome in zip(paths, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failed += 1
                print(f"{path}: {outcome}", file=sys.stderr)
            else:
                print(outcome)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="gluster://host/volume/folder")
    parser.add_argument("--size", default="10G")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=8, help="images under way at a time")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
