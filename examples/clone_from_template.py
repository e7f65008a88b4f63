#!/usr/bin/env python3
"""Make N VM images from a template on the same volume; the brick copies, so nothing crosses the network.

    clone_from_template.py gluster://host/vm/templates/debian.img gluster://host/vm/guests web-01 web-02 ...

Each clone appears under its name when it is whole. Clones that are there already are left alone, so the script can be
run again after a failure.
"""

from __future__ import annotations

import sys

from glustx.fs.newfile import Exists, new_file
from glustx.gfapi import Volume, parse_url

STEP = 256 << 20  # bytes per call: small enough that Ctrl-C is heard soon


def clone(volume: Volume, template: str, path: str) -> int:
    """Copy one image within the volume; return the bytes of data that were copied."""
    copied = 0
    with volume.open(template, "rb") as source, new_file(volume, path, 0o600) as new:
        size = source.stat().st_size
        at = 0
        while at < size:
            try:
                start = source.seek_data(at)  # holes of the template stay holes
            except OSError:  # ENXIO: only a hole is left
                break
            at = source.seek_hole(start)
            for offset in range(start, at, STEP):
                # On XFS and btrfs bricks this shares the blocks instead of copying them.
                copied += source.copy_file_range(new.file, min(STEP, at - offset), offset, offset)
        new.file.truncate(size)
        new.file.fsync()
        new.commit(replace=False)
    return copied


def main() -> int:
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    template, folder, names = parse_url(sys.argv[1]), parse_url(sys.argv[2]), sys.argv[3:]
    if (template.addresses, template.volume) != (folder.addresses, folder.volume):
        print("template and clones must be on one volume", file=sys.stderr)
        return 2
    with Volume(template) as volume:
        volume.makedirs(folder.path, exist_ok=True)
        for name in names:
            path = f"{folder.path.rstrip('/')}/{name}.img"
            if volume.lexists(path):
                print(f"{path}: is there already")
                continue
            try:
                print(f"{path}: {clone(volume, template.path, path)} bytes copied by the brick")
            except Exists:
                print(f"{path}: somebody else has made it meanwhile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
