#!/usr/bin/env python3
"""Upload a big image so that an upload that broke off goes on where it stopped.

    resumable_upload.py debian.raw gluster://host/vm/templates/debian.img

Data goes to NAME.part, and after every 64 MiB that are durable the position is kept in an xattr of that file, with the
size and time of the source: if the source has changed, the upload begins anew. At the end the volume's copy is read
back and compared by SHA-256 before it gets its name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys

from glustx.gfapi import File, Volume, parse_url

MARK = "user.upload-position"
STEP = 64 << 20
BLOCK = 4 << 20


def position(part: File, source: os.stat_result) -> int:
    """Return how much of the source is on the volume already."""
    try:
        mark = json.loads(part.getxattr(MARK))
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return 0  # nothing was kept yet
    same = (mark["size"], mark["mtime_ns"]) == (source.st_size, source.st_mtime_ns)
    return int(mark["position"]) if same else 0


def digest(file: File) -> str:
    """Return the SHA-256 of a file on the volume."""
    found = hashlib.sha256()
    at = 0
    while data := file.pread(BLOCK, at):
        found.update(data)
        at += len(data)
    return found.hexdigest()


def upload(volume: Volume, local: str, path: str) -> None:
    """Upload a file, or the rest of it."""
    part_path = f"{path}.part"
    flags = os.O_CREAT | os.O_RDWR
    with open(local, "rb") as source, volume.open(part_path, flags, 0o600) as part:
        facts = os.fstat(source.fileno())
        at = position(part, facts)
        part.truncate(at)  # what lies behind the position may be anything
        hashed = hashlib.sha256()
        while hashed_to := min(BLOCK, at - source.tell()):
            hashed.update(source.read(hashed_to))
        print(f"{local}: {at} of {facts.st_size} bytes are there", flush=True)
        while data := source.read(BLOCK):
            hashed.update(data)
            if part.pwrite(data, at) != len(data):
                raise OSError(errno.EIO, "a write was cut short", path)
            at += len(data)
            if at % STEP == 0:
                part.fsync()  # first the data, then the mark that vouches for it
                mark = {"position": at, "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
                part.setxattr(MARK, json.dumps(mark).encode())
                print(f"{local}: {at} of {facts.st_size} bytes", flush=True)
        part.fsync()
        if digest(part) != hashed.hexdigest():
            part.truncate(0)
            raise OSError(errno.EIO, "the copy differs from the source; it was emptied", path)
        if part.listxattr().count(MARK):
            part.removexattr(MARK)
    volume.rename(part_path, path)  # a new version replaces the old one in one step
    print(f"{path}: sha256 {hashed.hexdigest()}")


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    url = parse_url(sys.argv[2])
    try:
        with Volume(url) as volume:
            upload(volume, sys.argv[1], url.path)
    except OSError as error:
        print(f"{error}; run it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
