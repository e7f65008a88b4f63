"""What a server that lies in its listings cannot do: lead a copy out of its folder, or keep a listing from ending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from glustx import fops
from glustx.fs.sides import Place
from glustx.fs.trees import entries as entries_of
from glustx.gfapi import Volume
from tests.t2_graph.gfapi_faces import MEMORY


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a volume whose listings have other names, or other offsets, for all of theirs."""

    def make(**lies: Any) -> Volume:
        volume = Volume(MEMORY)
        volume.makedirs("/d")
        volume.create("/d/f").close()
        session = volume._core.session
        honest = session.top

        async def top(req: fops.Fop) -> Any:
            reply = await honest(req)
            if type(req) is not fops.Readdirp:
                return reply
            entries = [msgspec.structs.replace(entry, **lies) for entry in reply.entries]
            return msgspec.structs.replace(reply, entries=entries, eof=False)

        monkeypatch.setattr(session, "top", top)
        return volume

    return make


@pytest.mark.parametrize("name", [b"../out", b"/etc/out", b"a/b", b"a\0b", b""])
def test_names_that_are_none(liar: Any, name: bytes, tmp_path: Path) -> None:
    with liar(name=name) as volume:
        for listing in (
            volume.listdir,
            lambda path: list(volume.scandir(path)),
            lambda path: volume.copytree(path, "/c"),
        ):
            with pytest.raises(OSError, match=r"EIO .*can be no name"):
                listing("/d")


def test_a_name_that_is_listed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with Volume(MEMORY) as volume:
        volume.symlink("/elsewhere", "/x")
        volume.create("/y").close()
        session = volume._core.session
        honest = session.top

        async def top(req: fops.Fop) -> Any:
            reply = await honest(req)
            if type(req) is not fops.Readdirp:
                return reply
            entries = [
                msgspec.structs.replace(entry, name=b"x") for entry in reply.entries if entry.name in (b"x", b"y")
            ]
            return msgspec.structs.replace(reply, entries=entries)

        monkeypatch.setattr(session, "top", top)
        assert len(volume.listdir("/")) == 2
        assert [place.path for place, _ in entries_of(Place(volume, "/", "v:/"))] == ["/x"]


def test_listings_that_go_round(liar: Any) -> None:
    with liar(off=0) as volume, pytest.raises(OSError, match=r"EIO .*over and over"):
        volume.listdir("/d")
