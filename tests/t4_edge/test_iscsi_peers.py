"""QEMU and libiscsi's tools on a gateway that `glustx target` set up: data, digests, CHAP, rules, live changes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.mgmt import gateway_control
from tests.gateway import GatewayProcess, sparse
from tests.kit import need_peer

NAME = "iqn.2026-12.org.example:vms"
MIB = 1 << 20


def run(*argv: str | os.PathLike[str], code: int = 0) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def brick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    need_peer("qemu-img", "qemu-io", "block-iscsi.so", "iscsi-ls")
    folder = tmp_path_factory.mktemp("brick")
    with sparse(folder, {"a.img": 512 * MIB, "b.img": 64 * MIB, "c.img": MIB}):
        yield folder


@pytest.fixture(scope="module")
def running(brick: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess() as process:
        process.disk(NAME, {f"{brick}:/a.img": "", f"{brick}:/b.img": "block-size=4096"})
        yield process


@pytest.fixture
def gateway(running: GatewayProcess) -> Iterator[GatewayProcess]:
    """The one gateway, with what a test has changed taken back."""
    kept = (running.state / "targets.json").read_bytes()
    yield running
    (running.state / "targets.json").write_bytes(kept)
    asyncio.run(gateway_control.ask(running.state / "run" / "gateway.socket", "reload"))


def test_qemu_converts_in_and_out(gateway: GatewayProcess, tmp_path: Path) -> None:
    need_peer("qemu-img")
    source = tmp_path / "source.img"
    with open(source, "wb") as file:
        file.truncate(512 * MIB)
        for at in range(0, 512, 64):
            file.seek(at * MIB)
            file.write(os.urandom(3 * MIB + 512))
    for digest in ("none", "crc32c"):
        opts = f"driver=raw,file.driver=iscsi,file.portal=127.0.0.1:{gateway.port},file.target={NAME},file.lun=0"
        opts += f",file.transport=tcp,file.header-digest={digest}"
        run("qemu-img", "convert", "-n", "-f", "raw", source, "--target-image-opts", opts)
        run("qemu-img", "compare", "--image-opts", opts, f"driver=raw,file.driver=file,file.filename={source}")
        back = tmp_path / f"{digest}.img"
        run("qemu-img", "convert", "--image-opts", opts, "-O", "raw", back)
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, back)
        back.unlink()


def test_unmap_gives_space_back(gateway: GatewayProcess, brick: Path) -> None:
    url = gateway.url(NAME)
    run("qemu-io", "-f", "raw", "-d", "unmap", "-c", f"write -P 9 0 {16 * MIB}", "-c", "flush", url)
    full = (brick / "a.img").stat().st_blocks
    run("qemu-io", "-f", "raw", "-d", "unmap", "-c", f"discard 0 {16 * MIB}", "-c", "read -P 0 0 16M", url)
    assert full - (brick / "a.img").stat().st_blocks >= 15 * MIB // 512
    run("qemu-io", "-f", "raw", "-c", f"write -P 9 0 {MIB}", "-c", f"write -z 0 {MIB}", "-c", "read -P 0 0 1M", url)
    mapped = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", url))
    assert any(not extent["data"] for extent in mapped)


def test_logical_blocks_of_4096(gateway: GatewayProcess) -> None:
    assert re.search(r"block length:4096|Block Size:\s*4096|4096", run("iscsi-readcapacity16", gateway.url(NAME, 1)))
    run("qemu-io", "-f", "raw", "-c", "write -P 5 4k 8k", "-c", "read -P 5 4k 8k", gateway.url(NAME, 1))


def test_chap_both_ways(gateway: GatewayProcess, tmp_path: Path) -> None:
    secret, mutual = tmp_path / "secret", tmp_path / "mutual"
    secret.write_text("secret-of-host1\n")
    mutual.write_text("secret-of-target\n")
    words = ["--user", "host1", "--password-file", str(secret)]
    words += ["--mutual-user", "disks", "--mutual-password-file", str(mutual)]
    gateway.target("map", NAME, "*", *words)
    plain = f"127.0.0.1:{gateway.port}/{NAME}/0"
    refused = run("iscsi-inq", f"iscsi://{plain}", code=10)
    assert "uthent" in refused
    assert "uthent" in run("iscsi-inq", f"iscsi://host1%wrong-secret-12@{plain}", code=10)
    assert "GLUSTX" in run("iscsi-inq", f"iscsi://host1%secret-of-host1@{plain}")
    both = "?target_user=disks&target_password=secret-of-target"
    assert "GLUSTX" in run("iscsi-inq", f"iscsi://host1%secret-of-host1@{plain}{both}")
    lies = "?target_user=disks&target_password=secret-of-others"
    run("iscsi-inq", f"iscsi://host1%secret-of-host1@{plain}{lies}", code=10)
    assert "secret-of" not in gateway.process.log()
    assert "secret-of" not in gateway.target("list", "--format", "json").stdout


def test_rules_show_luns_under_other_numbers(gateway: GatewayProcess) -> None:
    gateway.target("map", NAME, "iqn.2007-10.com.github:sahlberg:libiscsi:*", "--lun", "300=1")
    listed = run("iscsi-ls", "-s", f"iscsi://127.0.0.1:{gateway.port}")
    # libiscsi shows the two bytes as they are: flat addressing, 300.
    assert re.findall(r"Lun:(\d+)", listed) == [str(0x4000 | 300)]
    assert "GLUSTX" in run("iscsi-inq", gateway.url(NAME, 300))
    assert NAME not in run("iscsi-ls", "-i", "iqn.2026-12.org.example:other", f"iscsi://127.0.0.1:{gateway.port}")
    assert gateway.target("unmap", NAME, "iqn.2007-10.com.github:sahlberg:libiscsi:*", check=False).returncode == 1


def test_what_cannot_be_is_not_kept(gateway: GatewayProcess, brick: Path) -> None:
    gateway.target("create", "iqn.2026-12.org.example:third")
    gateway.target("add-lun", "iqn.2026-12.org.example:third", f"{brick}:/c.img", "--lun", "7", "-o", "vendor=ACME")
    before = gateway.target("list").stdout
    assert f"LUN 7: {brick}:/c.img (vendor=ACME)" in before
    missing = gateway.target("add-lun", NAME, f"{brick}:/missing.img", check=False)
    assert missing.returncode == 1 and "ENOENT" in missing.stderr
    twin = gateway.target("add-lun", NAME, f"{brick}:/a.img", check=False)
    assert twin.returncode == 1 and "is LUN 0 and LUN 2" in twin.stderr
    gateway.target("create", "iqn.2026-12.org.example:second")
    same = gateway.target("add-lun", "iqn.2026-12.org.example:second", f"{brick}:/b.img", check=False)
    assert same.returncode == 1 and "different options" in same.stderr
    wrong = gateway.target("add-lun", NAME, f"{brick}:/a.img", "-o", "blocksize=512", check=False)
    assert wrong.returncode == 2 and "no option blocksize" in wrong.stderr
    gateway.target("delete", "iqn.2026-12.org.example:second")
    assert gateway.target("list").stdout == before


def test_it_grows_while_in_use(gateway: GatewayProcess) -> None:
    assert gateway.target("resize", NAME, "1").stdout == f"{64 * MIB // 4096} blocks\n"
    gateway.target("set-lun", NAME, "1", "capacity=32M")
    assert "virtual size: 32 MiB" in run("qemu-img", "info", "-f", "raw", gateway.url(NAME, 1))
    gateway.target("set-lun", NAME, "1", "capacity=auto")
    assert "virtual size: 64 MiB" in run("qemu-img", "info", "-f", "raw", gateway.url(NAME, 1))


def test_errors_by_hand(gateway: GatewayProcess) -> None:
    url = gateway.url(NAME)
    gateway.target("inject", NAME, "0", "medium-error", "--what", "read", "--lba", "0", "--blocks", "8", "--continuous")
    assert "read failed" in run("qemu-io", "-f", "raw", "-c", "read 0 4k", url, code=1)
    run("qemu-io", "-f", "raw", "-c", "read 8k 4k", url)
    gateway.target("inject", NAME, "0", "none")
    run("qemu-io", "-f", "raw", "-c", "read 0 4k", url)
    rows = json.loads(gateway.target("stats", "--format", "json").stdout)
    figures = [row for row in rows if row["path"] == "/a.img"]
    assert figures[0]["errors"] >= 1 and figures[0]["reads"] >= 2
    assert "glustx_lun_reads_total{" in gateway.target("stats", "--format", "prometheus").stdout


def test_killed_and_started_again(gateway: GatewayProcess) -> None:
    url = gateway.url(NAME)
    run("qemu-io", "-f", "raw", "-c", "write -P 3 1M 1M", "-c", "flush", url)
    gateway.kill()
    gateway.start()
    run("qemu-io", "-f", "raw", "-c", "read -P 3 1M 1M", url)
    assert gateway.target("sessions").stdout == ""
