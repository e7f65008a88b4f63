"""Transport security with stock: our clients on stock's bricks and glusterd, stock's mount on our bricks and volume
server, and what either side says of certificates it does not want. Everything that stock reads from /etc/ssl and
/var/lib/glusterd is mounted in namespaces of the tests."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.errors import MountError
from glustx.gfapi import AsyncVolume, Tls, Volume
from tests.certificates import Authority, stock_files
from tests.kit import ROOT, NetNamespace, Stopwatch, need_peer
from tests.peers import Cage, ServedVolume, StockVolume

HOST = NetNamespace.ADDRESS
DATA = os.urandom(3 << 20)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


def machine(files: Path, secure_access: bool = True) -> str:
    """Shell lines for a mount namespace: a machine with these files in /etc/ssl, and management connections secured."""
    lines = ["mkdir -p /var/lib/glusterd"]
    for folder in ("/etc/ssl", "/usr/lib/ssl"):  # the second is where Debian's OpenSSL, and so its GlusterFS, looks
        lines += [f"mkdir -p {folder}", f"mount -t tmpfs tmpfs {folder}", f"cp '{files}'/* {folder}/"]
    return "\n".join([*lines, *(["touch /var/lib/glusterd/secure-access"] if secure_access else [])])


# -- our clients -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stock(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockVolume]:
    """A volume of stock's with TLS everywhere; the clients of one common name may come in."""
    need_peer("namespaces", "glusterd", "glusterfsd", "gluster", "openssl")
    folder = tmp_path_factory.mktemp("stock")
    files = stock_files(ca.issue("brick"), folder / "ssl")
    (folder / "brick").mkdir()
    options = ("client.ssl=on", "server.ssl=on", "auth.ssl-allow=client,brick")
    with NetNamespace() as netns, StockVolume(folder / "brick", "v1", netns, options, machine(files)) as volume:
        with netns.entered():
            yield volume


def test_our_client_on_a_stock_volume(stock: StockVolume, ca: Authority) -> None:
    with Volume(f"gluster://{HOST}/v1", tls=ca.issue("client")) as volume:
        with volume.create("/a") as file:
            file.write(DATA)
            assert file.pread(len(DATA), 0) == DATA
            file.zerofill(4096, 8192)
        assert volume.stat("/a").st_size == len(DATA) and volume.listdir("/") == ["a"]
        volume.unlink("/a")


async def _mounted(tls: Tls) -> list[str]:
    async with AsyncVolume(f"gluster://{HOST}/v1", tls=tls) as volume:
        async with await volume.create("/b") as file:
            await file.write(DATA)
            watch = Stopwatch()
            assert await file.pread(len(DATA), 0) == DATA  # several calls at a time
            assert watch.seconds() < 5
        names = await volume.listdir("/")
        await volume.unlink("/b")
        return names


def test_our_client_in_a_loop(stock: StockVolume, ca: Authority) -> None:
    import asyncio

    assert asyncio.run(_mounted(ca.issue("client"))) == ["b"]


def test_our_command(stock: StockVolume, ca: Authority) -> None:
    tls = ca.issue("client")
    words = ["--tls-cert", tls.own_cert, "--tls-key", tls.private_key, "--tls-ca", tls.ca_list]
    command = [sys.executable, "-m", "glustx", *words, "fs", "df", f"gluster://{HOST}/v1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def refused(tls: Tls | bool, code: int, *said: str) -> None:
    with pytest.raises(MountError) as caught:
        Volume(f"gluster://{HOST}/v1", tls=tls)
    assert caught.value.errno == code and all(each in str(caught.value) for each in said), str(caught.value)


def test_stock_refuses_our_client(stock: StockVolume, ca: Authority, other: Authority) -> None:
    tls = other.issue("client", trusts=ca)
    refused(tls, errno.EPROTO, f"{HOST}:24007: it does not accept the certificate {tls.own_cert}: unknown ca")
    refused(ca.issue("somebody"), errno.EACCES, "the brick refuses this client: ")
    refused(False, errno.ENOTCONN, f"{HOST}:24007: it hangs up on the first call; it may want TLS")


def test_our_client_refuses_stock(stock: StockVolume, ca: Authority, other: Authority) -> None:
    tls = ca.issue("client")
    tls = Tls(tls.own_cert, tls.private_key, str(other.pem))
    refused(tls, errno.EPROTO, f"{HOST}:24007: its certificate is not accepted: ", f"(CA list {other.pem})")


# -- stock's clients ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(ca: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVolume]:
    """A volume of ours with TLS everywhere; the clients of one common name may come in."""
    need_peer("namespaces", "mount.glusterfs", "/dev/fuse", "openssl")
    tls = ca.issue("brick")
    words = ["--tls-cert", tls.own_cert, "--tls-key", tls.private_key, "--tls-ca", tls.ca_list]
    allow = ["-O", "protocol/server:auth.ssl-allow=client,friend-*"]
    command = [sys.executable, "-m", "glustx", *words, "serve", *allow]
    with NetNamespace() as netns, ServedVolume(tmp_path_factory.mktemp("ours"), "v1", netns, command) as volume:
        yield volume


MOUNT = "mkdir /run/mnt\nmount -t glusterfs -o log-level=INFO,log-file=/run/log 127.0.0.1:/v1 /run/mnt"


def mount(ours: ServedVolume, files: Path, *, secure_access: bool = True) -> Cage:
    head = (
        "mount -t tmpfs tmpfs /run\nmount -t tmpfs tmpfs /var/lib/glusterd\nmount -t tmpfs tmpfs /var/log/glusterfs\n"
    )
    lines = machine(files, secure_access)
    check = "mountpoint -q /run/mnt && ls /run/mnt || { cat /run/log; exit 1; }"
    return Cage(f"{head}{lines}\n{MOUNT} || {{ cat /run/log; exit 1; }}\n{check}", ours.netns)


def test_stocks_mount_of_our_volume(ours: ServedVolume, ca: Authority, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    for name in ("client", "friend-7"):
        cage = mount(ours, stock_files(ca.issue(name), tmp_path / name))
        try:
            cage.run("sh", "-ec", f"cp '{tmp_path}/data' /run/mnt/a && sync && cmp '{tmp_path}/data' /run/mnt/a")
            cage.run(
                "sh", "-ec", "mkdir /run/mnt/d && mv /run/mnt/a /run/mnt/d/b && ls -l /run/mnt/d && rm -r /run/mnt/d"
            )
        finally:
            cage.run("umount", "/run/mnt")
            cage.stop()


def cannot(ours: ServedVolume, files: Path, **more: bool) -> str:
    """What stock says when its mount fails."""
    with pytest.raises(AssertionError) as caught:
        mount(ours, files, **more).stop()
    return str(caught.value)


def test_we_refuse_stocks_client(ours: ServedVolume, ca: Authority, other: Authority, tmp_path: Path) -> None:
    said = cannot(ours, stock_files(ca.issue("somebody"), tmp_path / "somebody"))
    assert "Authentication failed of the common name 'somebody'" in said
    cannot(ours, stock_files(other.issue("client", trusts=ca), tmp_path / "stranger"))
    cannot(ours, stock_files(ca.issue("client"), tmp_path / "plain"), secure_access=False)
    log = ours.process.log()
    assert "refused: " in log


def test_the_volume_serves_on(ours: ServedVolume, ca: Authority) -> None:
    assert ours.netns is not None
    with ours.netns.entered(), Volume("gluster://127.0.0.1/v1", tls=ca.issue("client")) as volume:
        assert volume.listdir("/") == []
