"""Every attack of attacks.py against the brick that `glustx serve` runs, and against stock's where that is safe: the
answers are those of tests/golden/attacks.txt, and nothing outside the brick, nor of its own, is touched.

    python -m tests.t3_wire.test_attacks_errnos write    # both columns anew, as root
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from glustx import volgen
from glustx.rpc import message
from glustx.rpc.channel import Address
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import served
from tests.kit import ROOT, need_peer
from tests.peers import StockBrick
from tests.t3_wire.attacks import GROUPS, USER, Attacker, Scene, by_user

GOLDEN = ROOT / "tests" / "golden" / "attacks.txt"
HEAD = """# What a client gets that asks for what it should not: group, request, glustx's answer, a stock 10.3 brick's.
# A dash: not asked, since stock follows links out of its brick, waits for ever at a pipe, takes names up to a NUL.
"""


def unsafe_for_stock(group: str, request: str) -> bool:
    """Tell whether a stock brick would do harm, or stop."""
    return group in ("below the link out", "name with NUL") or request.endswith(("pipe", "device"))


def name_of(code: int) -> str:
    return errno.errorcode.get(code, str(code)) if code else "ok"


def answers(address: Address, brick: str, outside: Path, stock: bool = False) -> dict[tuple[str, str], str]:
    """Carry out all attacks and return what became of each."""
    found: dict[tuple[str, str], str] = {}
    with Attacker(address, brick) as attacker:
        attacker.login()
        scene = Scene(attacker, outside)
        for group, make in GROUPS.items():
            for request in make(scene):
                if stock and unsafe_for_stock(group, request):
                    found[group, request] = "-"
                    continue
                # Made anew: a descriptor that one attack has opened shall not serve the next.
                found[group, request] = name_of(attacker.errno(make(scene)[request]))
    with Attacker(address, brick, USER) as user:
        user.login()
        for request, req in by_user(scene).items():
            found["by a user", request] = name_of(user.errno(req))
    return found


@contextlib.contextmanager
def scenery() -> Iterator[tuple[Path, Path]]:
    """A folder for a brick and one outside with a secret."""
    with tempfile.TemporaryDirectory(prefix="glustx-attacks-") as base:
        outside = Path(base, "outside")
        outside.mkdir(mode=0o755)
        (outside / "secret").write_bytes(b"secret")
        (outside / "secret").chmod(0o600)
        brick = Path(base, "brick")
        brick.mkdir()
        yield brick, outside


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[Address]:
    """Our brick as it is served, on a port of its own."""
    prepare_brick(str(folder), namespace="trusted")
    with served(volgen.brick_volfile("test", str(folder), 0)) as brick:
        yield brick.address


def golden() -> dict[tuple[str, str], tuple[str, str]]:
    found = {}
    for line in GOLDEN.read_text().splitlines():
        if line and not line.startswith("#"):
            group, request, glustx, stock = (word.strip() for word in line.split(" ; "))
            found[group, request] = (glustx, stock)
    return found


def differing(found: dict[tuple[str, str], str], column: int) -> list[str]:
    known = {where: answer[column] for where, answer in golden().items()}
    assert found.keys() == known.keys(), found.keys() ^ known.keys()
    return [
        f"{where}: {found[where]}, not {known[where]}" for where in found if known[where] not in (found[where], "-")
    ]


def test_the_answers_of_our_brick() -> None:
    need_peer("root")
    with scenery() as (folder, outside):
        with ours(folder) as address:
            before = set(os.listdir(folder.parent))
            found = answers(address, str(folder), outside)
            assert differing(found, 0) == []
            with Attacker(address, str(folder)) as late:
                late.login()
        secret = (outside / "secret").stat()
        assert os.listdir(outside) == ["secret"] and (outside / "secret").read_bytes() == b"secret"
        assert stat.S_IMODE(secret.st_mode) == 0o600 and not os.listxattr(outside / "secret")
        assert set(os.listdir(folder.parent)) == before
        # What is there is what was put there, with the gfids of then; a name may hold what a name may hold.
        assert {"file", "dir", "out", "out-file", "pipe", ".glusterfs"} <= set(os.listdir(folder))
        assert not {"planted", "child", "new-name"} & set(os.listdir(folder))
        assert os.listdir(folder / "dir") == []
        assert (
            os.stat(folder / ".glusterfs/00/00/00000000-0000-0000-0000-000000000001").st_ino == os.stat(folder).st_ino
        )
        gfid = os.getxattr(folder / "file", "trusted.gfid").hex()
        handle = folder / ".glusterfs" / gfid[:2] / gfid[2:4]
        assert any(os.lstat(handle / one).st_ino == os.lstat(folder / "file").st_ino for one in os.listdir(handle))


def test_the_answers_of_a_stock_brick() -> None:
    need_peer("namespaces", "glusterfsd")
    with scenery() as (folder, outside), StockBrick(folder) as brick:
        found = answers(Address("127.0.0.1", brick.brick_port), str(folder.resolve()), outside, stock=True)
        assert differing(found, 1) == []


def test_a_name_longer_than_any_string_is_garbage() -> None:
    need_peer("root")
    with scenery() as (folder, _), ours(folder) as address, Attacker(address, str(folder)) as attacker:
        attacker.login()
        body = bytes(15) + b"\1" + (65537).to_bytes(4, "big") + b"n" * 65540 + bytes(24)
        for proc in (5, 6):  # UNLINK, RMDIR
            assert attacker.ask(1298437, 400, proc, body)[0] == message.GARBAGE_ARGS


def write() -> None:
    """Write the golden file."""
    with scenery() as (folder, outside), ours(folder) as address:
        first = answers(address, str(folder), outside)
    with scenery() as (folder, outside), StockBrick(folder) as brick:
        second = answers(Address("127.0.0.1", brick.brick_port), str(folder.resolve()), outside, stock=True)
    lines = [f"{group} ; {request} ; {first[group, request]} ; {second[group, request]}" for group, request in first]
    GOLDEN.write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    write()
