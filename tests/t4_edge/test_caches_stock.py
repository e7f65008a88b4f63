"""quick-read and open-behind, by a client volfile of stock's, on a stock brick: what crosses the wire, who may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import Volume
from glustx.xlators.system import posix_acl_forms as forms
from tests.kit import need_peer
from tests.peers import StockBrick

NOBODY = 65534


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockBrick]:
    need_peer("namespaces", "glusterfsd")
    folder: Path = tmp_path_factory.mktemp("brick")
    folder.chmod(0o755)
    with StockBrick(folder) as stock:
        yield stock


@pytest.fixture
def vol(stock: StockBrick) -> Iterator[Volume]:
    with Volume(stock.url("").rstrip("/")) as vol:
        yield vol
        vol.rmtree("/top")


def make(vol: Volume, path: str, data: bytes, mode: int = 0o644) -> None:
    vol.makedirs("/top", exist_ok=True)
    with vol.open(path, "wb") as file:
        file.write(data)
    vol.chmod(path, mode)


def sent(vol: Volume) -> list[str]:
    """The fops that cross the wire from now on."""
    client: Any = next(x for x in vol.graph.xlators.values() if x.type_name == "protocol/client")
    calls: list[str] = []
    send = client.send

    def spy(req: Any) -> Any:
        calls.append(req.name)
        return send(req)

    client.send = spy
    return calls


@pytest.mark.parametrize("size", [0, 1, 4096, 65536, 65537])
def test_open_read_close(stock: StockBrick, vol: Volume, size: int) -> None:
    data = os.urandom(size)
    make(vol, "/top/f", data)
    with Volume(stock.url("").rstrip("/")) as other:
        other.stat("/top")
        calls = sent(other)
        with other.open("/top/f") as file:
            assert file.pread(70000, 0) == data
        small = size <= 65536
        assert [name for name in calls if name != "release"][:3] == (
            ["lookup"] if small else ["lookup", "open", "read"]
        )
        make(vol, "/top/f", data + b"more")
        with other.open("/top/f") as file:
            assert file.pread(70000, 0) == data + b"more"


def test_who_may_not_read(vol: Volume) -> None:
    make(vol, "/top/mine", b"secret", 0o600)
    make(vol, "/top/all", b"for all", 0o644)
    make(vol, "/top/not-you", b"for all but one", 0o644)
    acl = [
        (forms.USER_OBJ, 6, 0xFFFFFFFF),
        (forms.USER, 0, NOBODY),
        (forms.GROUP_OBJ, 4, 0xFFFFFFFF),
        (forms.MASK, 4, 0xFFFFFFFF),
        (forms.OTHER, 4, 0xFFFFFFFF),
    ]
    vol.setxattr("/top/not-you", "system.posix_acl_access", forms.pack(tuple(acl)))
    nobody = vol.using(uid=NOBODY, gid=NOBODY)
    someone = vol.using(uid=NOBODY - 1, gid=NOBODY)
    for path, data in (("/top/mine", b"secret"), ("/top/all", b"for all"), ("/top/not-you", b"for all but one")):
        with vol.open(path) as file:
            assert file.read() == data, "root reads it, and it is kept"
    for user, path in ((nobody, "/top/mine"), (someone, "/top/mine"), (nobody, "/top/not-you")):
        with pytest.raises(PermissionError):
            user.open(path)
    calls = sent(vol)
    with someone.open("/top/not-you") as file:
        assert file.read() == b"for all but one"
    assert "open" in calls, "whom an ACL lets in is for the brick to say"
    calls.clear()
    with nobody.open("/top/all") as file:
        assert file.read() == b"for all"
    assert [name for name in calls if name != "release"] == ["lookup"]
    with pytest.raises(PermissionError):
        nobody.open("/top/all", "r+b")
