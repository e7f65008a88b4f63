"""Bricks of either kind that a test may stop, kill and start again: on loopback, clients in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from glustx.gfapi import Source
from tests.kit import NetNamespace, need_peer
from tests.peers import ServedVolume, StockBrick, StockVolume, Volume

KINDS = ("glustx", "stock")


@contextlib.contextmanager
def brick(kind: str, folder: Path) -> Iterator[Volume]:
    """Serve `folder` by glustx, by a bare stock glusterfsd ("stock"), or by stock's glusterd ("glusterd"): in a network
    namespace then, which the calling thread enters, and those that it starts."""
    folder.mkdir(exist_ok=True)
    if kind == "glustx":
        with ServedVolume(folder, "v1") as served:
            yield served
    elif kind == "stock":
        need_peer("namespaces", "glusterfsd")
        with StockBrick(folder, "v1") as bare:
            yield bare
    else:
        need_peer("namespaces", "glusterd", "gluster")
        with NetNamespace() as netns, StockVolume(folder, "v1", netns) as volume, netns.entered():
            yield volume


def url(volume: Volume) -> str:
    """The volume's URL."""
    return volume.url("").rstrip("/")


def source(volume: Volume, **options: object) -> Source:
    """The volume without the performance translators of its volfile, which may answer in place of the brick.

    options: of protocol/client, with underscores for dashes.
    """
    if isinstance(volume, StockVolume):
        where = f"option remote-host {NetNamespace.ADDRESS}"  # its port is asked of glusterd's portmap
    else:
        assert isinstance(volume, (ServedVolume, StockBrick))
        where = f"option remote-port {volume.brick_port}"
    more = "".join(f"\n    option {key.replace('_', '-')} {value}" for key, value in options.items())
    text = f"""
volume {volume.volume}-client-0
    type protocol/client
    option remote-subvolume {volume.folder.resolve()}
    {where}{more}
end-volume
volume {volume.volume}
    type features/utime
    subvolumes {volume.volume}-client-0
end-volume
"""
    return Source(volume=volume.volume, text=text, origin="<client>", host=volume.host)
