#!/usr/bin/env python3
"""Put a cloud-init seed (NoCloud) for each guest on a volume: a small ISO 9660 image labelled `cidata`.

    cloud_init_seed.py gluster://host/vm/guests web-01 web-02 --user-data user-data.yaml

The guest gets the image as a CD-ROM beside its disk. user-data is the same for all, meta-data names the guest.
"""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path

from glustx.fs.newfile import new_file
from glustx.gfapi import Volume, parse_url

SECTOR = 2048


def both(value: int, size: int = 4) -> bytes:
    """Return a number in both byte orders, as ISO 9660 wants it (7.2.3, 7.3.3)."""
    return value.to_bytes(size, "little") + value.to_bytes(size, "big")


def record(name: bytes, sector: int, size: int, flags: int, rock_ridge: bytes = b"") -> bytes:
    """Return a directory record (9.1); Rock Ridge carries the name in lower case and with a dash."""
    pad = b"\0" * (1 - len(name) % 2)
    body = both(sector) + both(size) + bytes(7) + bytes([flags, 0, 0]) + both(1, 2)
    body += bytes([len(name)]) + name + pad + rock_ridge
    body += b"\0" * (len(body) % 2)
    return bytes([len(body) + 2, 0]) + body


def named(name: str) -> bytes:
    """Return the Rock Ridge fields of a file, which other readers skip: NM (its name) and PX (its mode)."""
    raw = name.encode()
    return b"NM" + bytes([5 + len(raw), 1, 0]) + raw + posix(0o100444, 1)


def posix(mode: int, links: int) -> bytes:
    """Return Rock Ridge's mode, number of links and owner."""
    return b"PX" + bytes([36, 1]) + both(mode) + both(links) + both(0) + both(0)


# In the first record of the root, SP and ER tell that there is Rock Ridge.
ROCK_RIDGE = b"SP" + bytes([7, 1, 0xBE, 0xEF, 0]) + b"ER" + bytes([18, 1, 10, 0, 0, 1]) + b"RRIP_1991A"


def iso(files: dict[str, bytes]) -> bytes:
    """Return an ISO 9660 image with Rock Ridge names that holds `files` in its root."""
    root_at, path_little, path_big, first = 18, 19, 20, 21
    entries, data, at = b"", b"", first
    for index, (name, content) in enumerate(sorted(files.items())):
        entries += record(f"FILE{index};1".encode(), at, len(content), 0, named(name))
        data += content + b"\0" * (-len(content) % SECTOR)
        at += -(-len(content) // SECTOR)
    dot = record(b"\0", root_at, SECTOR, 2, ROCK_RIDGE + posix(0o40555, 2))
    root = dot + record(b"\1", root_at, SECTOR, 2, posix(0o40555, 2)) + entries
    if len(root) > SECTOR:
        raise ValueError("too many files for one sector of names")
    path_table = struct.pack("<BBIHBB", 1, 0, root_at, 1, 0, 0), struct.pack(">BBIHBB", 1, 0, root_at, 1, 0, 0)
    head = b"\1CD001\1\0" + b"LINUX".ljust(32) + b"cidata".ljust(32) + bytes(8)
    head += both(at) + bytes(32) + both(1, 2) + both(1, 2) + both(SECTOR, 2) + both(len(path_table[0]))
    head += struct.pack("<II", path_little, 0) + struct.pack(">II", path_big, 0)
    head += record(b"\0", root_at, SECTOR, 2) + b" " * (128 * 4 + 37 * 3)
    head += (b"0" * 16 + b"\0") * 4 + b"\1\0"
    sectors = [head, b"\xffCD001\1", root, *path_table]
    return bytes(16 * SECTOR) + b"".join(sector.ljust(SECTOR, b"\0") for sector in sectors) + data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="gluster://host/volume/folder")
    parser.add_argument("guests", nargs="+")
    parser.add_argument("--user-data", type=Path, required=True)
    options = parser.parse_args()
    user_data = options.user_data.read_bytes()
    url = parse_url(options.folder)
    with Volume(url) as volume:
        volume.makedirs(url.path, exist_ok=True)
        for guest in options.guests:
            meta_data = f"instance-id: {guest}\nlocal-hostname: {guest}\n".encode()
            path = f"{url.path.rstrip('/')}/{guest}-seed.iso"
            with new_file(volume, path, 0o600) as new:
                new.file.pwrite(iso({"user-data": user_data, "meta-data": meta_data}), 0)
                new.file.fsync()
                new.commit(replace=True)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
