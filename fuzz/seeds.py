"""The corpus to start from, made from the captured traffic of stock peers in tests/golden: every call and reply of it,
cut into what the targets take."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz import targets
from fuzz.iscsi import iscsi_seeds
from fuzz.scsi import scsi_seeds
from glustx.rpc import message
from glustx.rpc.record import frame

_GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
_VOLFILE = b"volume a\n    type storage/memory\n    option x y\nend-volume\n"
_ACL = struct.pack("<IHHIHHIHHI", 2, 1, 6, 0xFFFFFFFF, 4, 4, 0xFFFFFFFF, 32, 4, 0xFFFFFFFF)


def seeds() -> Iterator[bytes]:
    """Yield the inputs."""
    for version, name in enumerate(("fops.txt", "fops-330.txt")):
        numbers = sorted(targets._PROGRAMS[version].codecs)
        for line in (_GOLDEN / "wire" / name).read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            _, call, reply = line.split()
            asked, answer = bytes.fromhex(call), bytes.fromhex(reply)
            head = message.parse_call(asked)
            if head.proc not in numbers:
                continue
            picked = bytes([version, numbers.index(head.proc)])
            answered = answer[message.parse_reply(answer).pos :]
            yield targets.tagged(targets.call, picked + asked[head.pos :])
            yield targets.tagged(targets.reply, picked + answered)
            yield targets.tagged(targets.header, asked)
            yield targets.tagged(targets.header, answer)
            yield targets.tagged(targets.connection, asked)
            yield targets.tagged(targets.record, b"\x10" + frame(asked) + frame(answer))
    yield from _small()


def _small() -> Iterator[bytes]:
    text = b"\0\0\0\x01\0\0\0\x03\0\0\0\x04key\0text"
    typed = struct.pack(">IiII", 20, 1, 1, 4) + b"key\0" + struct.pack(">iq", 1, 7)
    req = struct.pack(">IiII", 36, 1, 1, 9) + b"gfid-req\0\0\0\0" + struct.pack(">i", 7) + bytes(range(16))
    yield targets.tagged(targets.dict_400, typed)
    yield targets.tagged(targets.dict_400, req)
    yield targets.tagged(targets.dict_330, text)
    yield targets.tagged(targets.dict_330, struct.pack(">I", len(text)) + text)
    yield targets.tagged(targets.record, b"\x03" + b"\0\0\0\x02ab" + b"\x80\0\0\x01c")
    for number in range(len(targets._BODIES)):
        yield targets.tagged(targets.body, bytes([number]) + bytes(64))
    for number in range(20):
        for target in (targets.brick, targets.liar):
            yield targets.tagged(target, random.Random(number).randbytes(1500))
    for target, data in (*iscsi_seeds(), *scsi_seeds()):
        yield targets.tagged(target, data)
    yield targets.tagged(targets.texts, _VOLFILE)
    yield targets.tagged(targets.texts, _ACL)
    yield targets.tagged(targets.texts, b"u::rwx,g::r-x,o::r--,u:7:r--,m::rwx")


def write(folder: Path, only: Callable[[bytes], None] | None = None) -> int:
    """Put the seeds, or those of one target, into a folder, one file each; return how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [data for data in seeds() if only is None or data[:1] == targets.tagged(only, b"")]
    for count, data in enumerate(found, 1):
        (folder / f"seed-{count:04}").write_bytes(data)
    return len(found)
