"""Mounting volumes of stock glusterd: what is in its volfiles, changes of options while files are open, and all that
can keep a volume from being mounted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from glustx.errors import MountError
from glustx.gfapi import AsyncVolume, Source, Volume
from glustx.gfapi.pump import Pump
from glustx.graph import find_type, known_types
from glustx.rpc.channel import Address
from glustx.rpc.getspec import VolumeServers
from glustx.volfile import parse
from glustx.xlators.standins import REFUSED, STAND_INS, StandIn
from tests.kit import PATIENCE, ROOT, NetNamespace, Stopwatch, descendants, need_peer, wait_gone
from tests.peers import StockVolume

HOST = NetNamespace.ADDRESS

# What puts another translator into stock 10.3's client volfiles, and which.
TOGETHER = {
    "performance.read-ahead=on": "performance/read-ahead",
    "performance.readdir-ahead=on": "performance/readdir-ahead",
    "performance.io-cache=on": "performance/io-cache",
    "performance.nl-cache=on": "performance/nl-cache",
    "features.uss=on": "features/snapview-client",
    "debug.trace=client": "debug/trace",
    "cluster.nufa=on": "cluster/nufa",
}
ALONE = {
    "debug.delay-gen=client": "debug/delay-gen",
    "cluster.switch=on": "cluster/switch",
    "debug.error-gen=client": "debug/error-gen",
    "features.shard=on": "features/shard",
    "features.cloudsync=on": "features/cloudsync",
    "network.compression=on": "features/cdc",
}
DEFAULT = {
    "protocol/client", "cluster/distribute", "features/utime", "performance/write-behind", "performance/open-behind",
    "performance/quick-read", "performance/md-cache", "performance/io-threads", "debug/io-stats",
}  # fmt: skip
# Volumes of several bricks, by what `gluster volume create` takes before the bricks.
SHAPES = {
    "replicated": (["replica", "3"], 3, "type cluster/replicate is refused"),
    "arbitrated": (["replica", "3", "arbiter", "1"], 3, "type cluster/replicate is refused"),
    "dispersed": (["disperse", "3", "redundancy", "1"], 3, "type cluster/disperse is refused"),
    "distributed": ([], 2, "has 2 subvolumes; only volumes of one are offered"),
}

# The cage has a mount namespace of its own: nothing of this is seen outside.
CERTIFICATE = """
cd /run/gluster
openssl req -x509 -newkey rsa:2048 -nodes -keyout glusterfs.key -out glusterfs.pem -days 1 -subj /CN=test 2>/dev/null
cp glusterfs.pem glusterfs.ca
for folder in /etc/ssl /usr/lib/ssl; do  # the one or the other, by how stock was built
    cp -a $folder copy
    cp glusterfs.* copy/
    mount -t tmpfs tmpfs $folder
    cp -a copy/. $folder/
    rm -r copy
done
"""


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockVolume]:
    need_peer("namespaces", "glusterd", "gluster")
    folder = tmp_path_factory.mktemp("stock")
    with NetNamespace() as netns, StockVolume(folder, "v1", netns) as served, netns.entered():
        yield served


def gluster(volume: StockVolume, *words: str) -> None:
    volume.cage.run("gluster", "--mode=script", "volume", *words)


@contextlib.contextmanager
def option(volume: StockVolume, *texts: str) -> Iterator[None]:
    """Options of the volume, for the block; all go back to their defaults after it."""
    gluster(volume, "set", volume.volume, *(word for text in texts for word in text.split("=")))
    try:
        yield
    finally:
        gluster(volume, "reset", volume.volume)


def seen(vol: Volume, what: Callable[[], bool]) -> None:
    """Go on working until something is so; AssertionError after a minute."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        with contextlib.suppress(OSError):  # debug/error-gen may be in the graph
            vol.stat("/")


def mount_fails(name: str = "v1", host: str = HOST) -> MountError:
    return refused(f"gluster://{host}/{name}")


def refused(source: str | Source) -> MountError:
    """Why a volume cannot be mounted; a brick follows its options a moment after they are set."""
    end = time.monotonic() + PATIENCE
    while True:
        watch = Stopwatch()
        try:
            Volume(source).close()
        except MountError as failure:
            assert watch.seconds() < 5
            return failure
        assert time.monotonic() < end, f"{source} can be mounted"


def command_fails(volume: StockVolume, url: str) -> str:
    """What the command line says of a volume that cannot be mounted."""
    command = volume.command(sys.executable, "-m", "glustx", "provision", "info", url)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 5 and done.stdout == "" and "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    return line


# -- the types of volfiles ---------------------------------------------------------------------------------------------


def types_of(name: str) -> set[str]:
    """The types in the client volfile that stock hands out."""
    pump = Pump()
    try:
        text = pump.run(VolumeServers(pump, pump, [Address(HOST, 24007)], name).volfile(), 10)
    finally:
        pump.close()
    return {spec.type for spec in parse(text, strict=False).volumes}


@pytest.mark.logs("glustx.gfapi: .*: the new volfile is not followed: type features/")
def test_every_type_that_a_client_volfile_can_name(volume: StockVolume) -> None:
    assert types_of("v1") == DEFAULT
    with Volume(f"gluster://{HOST}/v1") as vol:
        file = vol.create("/types")
        for texts in (TOGETHER, *({text: kind} for text, kind in ALONE.items())):
            with option(volume, *texts):
                assert types_of("v1") >= set(texts.values())
                refused = [kind for kind in texts.values() if kind in REFUSED and kind not in known_types()]
                if refused:
                    failure = mount_fails()
                    assert failure.errno == errno.EOPNOTSUPP
                    said = f"the volfile from {HOST} cannot be run: type {refused[0]} is refused: {REFUSED[refused[0]]}"
                    assert said in str(failure)
                    assert file.pwrite(b"here", 0) == 4  # the graph that runs goes on
                    continue
                seen(vol, lambda texts=texts: {spec.type for spec in vol.graph.spec.volumes} >= set(texts.values()))
                for kind in texts.values():
                    if kind in STAND_INS and find_type(kind) is StandIn:
                        assert any(f"{kind} (" in note and "is a stand-in" in note for note in vol.graph.notes)
                        assert "stand_in=True" in vol.graph.statedump()
                    else:
                        assert kind in {xlator.type_name for xlator in vol.graph.xlators.values()}
                if "debug.error-gen=client" not in texts:
                    assert file.pwrite(b"new", 0) == 3 and file.pread(3, 0) == b"new"
        file.close()
    gluster(volume, "quota", "v1", "enable")
    try:
        assert types_of("v1") == DEFAULT  # quota lives on the brick
    finally:
        gluster(volume, "quota", "v1", "disable")


@pytest.mark.parametrize("name", SHAPES)
def test_volumes_of_several_bricks(volume: StockVolume, name: str) -> None:
    words, count, said = SHAPES[name]
    # No brick of these ever starts, so that any folder will do.
    folder = f"/run/gluster/{name}"
    volume.cage.run("mkdir", "-p", folder)
    gluster(volume, "create", name, *words, *(f"{HOST}:{folder}/{n}" for n in range(count)), "force")
    if any(kind in known_types() and kind in said for kind in REFUSED):
        pytest.skip("this kind of volume is offered")
    assert said in str(mount_fails(name))


# -- options that change -----------------------------------------------------------------------------------------------


def test_an_option_that_is_set_is_seen_by_who_has_it_mounted(volume: StockVolume) -> None:
    with Volume(f"gluster://{HOST}/v1") as vol:
        graph = vol.graph
        client = graph.xlators["v1-client-0"]
        with option(volume, "network.ping-timeout=11"):
            seen(vol, lambda: client.options.ping_timeout == 11)
        seen(vol, lambda: client.options.ping_timeout == 42)
        assert vol.graph is graph


def test_files_stay_open_and_locked_while_the_graph_is_replaced(volume: StockVolume) -> None:
    with Volume(f"gluster://{HOST}/v1") as vol, Volume(f"gluster://{HOST}/v1") as other:
        with vol.create("/kept") as file, other.open("/kept", "r+b") as theirs:
            file.write(b"0" * 4096)
            file.lock()
            stop = threading.Event()
            failures: list[BaseException] = []
            rounds = [0]

            def work() -> None:
                try:
                    while not stop.is_set():
                        rounds[0] += 1
                        block = b"%08d" % rounds[0] * 512
                        assert file.pwrite(block, 0) == 4096
                        assert file.pread(4096, 0) == block
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work)]
            for thread in threads:
                thread.start()
            with option(volume, "performance.io-cache=on"):
                seen(vol, lambda: "v1-io-cache" in vol.graph.xlators)
                before = rounds[0]
                seen(vol, lambda: rounds[0] > before + 3)
                with pytest.raises(BlockingIOError):
                    theirs.lock(blocking=False)
            seen(vol, lambda: "v1-io-cache" not in vol.graph.xlators)
            stop.set()
            for thread in threads:
                thread.join(60)
            assert failures == []
            file.unlock()
            seen(other, lambda: "v1-io-cache" not in other.graph.xlators)
            theirs.lock(blocking=False)
            assert theirs.pread(8, 0) == b"%08d" % rounds[0]


@pytest.mark.long
def test_graph_after_graph_under_load(volume: StockVolume) -> None:
    """Four threads and twenty coroutines read what they have just written while graphs come and go."""
    stop = threading.Event()
    failures: list[BaseException] = []
    slowest = [0.0]

    def work(vol: Volume, number: int) -> None:
        try:
            with vol.create(f"/thread{number}") as file:
                for turn in itertools.count():
                    began = time.monotonic()
                    block = b"%07d" % turn * 1000
                    assert file.pwrite(block, 0) == len(block) and file.pread(len(block), 0) == block
                    name = f"/thread{number}-{turn % 5}"
                    with vol.create(name) as other:
                        other.write(block)
                    with vol.open(name, "rb") as other:
                        assert other.read() == block
                    assert f"thread{number}" in vol.listdir("/")
                    vol.unlink(name)
                    slowest[0] = max(slowest[0], time.monotonic() - began)
                    if stop.is_set():
                        return
        except BaseException as error:
            failures.append(error)

    async def crowd() -> None:
        async def one(vol: AsyncVolume, number: int) -> None:
            async with await vol.create(f"/task{number}") as file:
                turn = 0
                while not stop.is_set():
                    turn += 1
                    block = b"%07d" % turn * 500
                    assert await file.pwrite(block, 0) == len(block) and await file.pread(len(block), 0) == block

        async with AsyncVolume(f"gluster://{HOST}/v1") as vol:
            await asyncio.gather(*(one(vol, number) for number in range(20)))

    def loop() -> None:
        try:
            asyncio.run(crowd())
        except BaseException as error:
            failures.append(error)

    with Volume(f"gluster://{HOST}/v1") as vol:
        threads = [threading.Thread(target=work, args=(vol, number)) for number in range(4)]
        threads.append(threading.Thread(target=loop))
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                gluster(volume, "set", "v1", "performance.read-ahead", ("on", "off")[number % 2])
                wanted = number % 2 == 0
                seen(vol, lambda wanted=wanted: ("v1-read-ahead" in vol.graph.xlators) is wanted)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
            gluster(volume, "reset", "v1")
    assert failures == [] and not any(thread.is_alive() for thread in threads)
    print(f"slowest round: {slowest[0]:.3f} s")
    assert slowest[0] < 5


def test_the_management_daemon_is_away_for_a_while(volume: StockVolume) -> None:
    """The volume goes on meanwhile, and what was set before the client came back is seen then."""
    with Volume(f"gluster://{HOST}/v1") as vol:
        client = vol.graph.xlators["v1-client-0"]
        (daemon,) = volume.cage.pids("glusterd")
        os.kill(daemon, signal.SIGKILL)
        assert wait_gone(daemon)
        with vol.create("/without") as file:
            file.write(b"still here")
        assert vol.getsize("/without") == 10
        volume.cage.run("glusterd")
        with option(volume, "network.ping-timeout=13"):
            seen(vol, lambda: client.options.ping_timeout == 13)
        seen(vol, lambda: client.options.ping_timeout == 42)


def test_several_hosts(volume: StockVolume) -> None:
    """The first of them does not exist: that costs a moment, not a time-out."""
    watch = Stopwatch()
    with Volume(f"gluster://127.0.0.1:1,{HOST}/v1") as vol:
        assert vol.host == HOST and vol.exists("/")
    with Volume([f"{HOST}:1", "localhost"], "v1") as vol:
        assert vol.host == "localhost"
    assert watch.seconds() < 3


def test_the_socket_of_the_management_daemon(volume: StockVolume) -> None:
    init = descendants(volume.cage.process.pid)[0]
    with Volume(f"gluster+unix:///v1?socket=/proc/{init}/root/run/glusterd.socket") as vol:
        assert vol.exists("/") and vol.host.endswith("glusterd.socket")


def test_to_connect_create_and_close_is_quick(volume: StockVolume) -> None:
    """All of it, the volume server and the brick's port included, by calls that block; libgfapi needs 10 s to leave."""
    took = []
    for number in range(5):
        watch = Stopwatch()
        with Volume(f"gluster://{HOST}/v1") as vol:
            vol.create(f"/quick{number}").close()
        took.append(watch.seconds())
    print("seconds:", *(f"{seconds:.4f}" for seconds in took))
    # The quickest says what it costs; the others what else the machine was doing.
    assert min(took) < 0.1 and sorted(took)[2] < 0.5


# -- what keeps a volume from being mounted ----------------------------------------------------------------------------


def test_a_volume_that_does_not_exist(volume: StockVolume) -> None:
    failure = mount_fails("v2")
    assert failure.errno == errno.ENOENT
    assert f"cannot mount volume v2 (ENOENT): volume server {HOST}:24007: no such volume" in str(failure)
    assert "no such volume" in command_fails(volume, volume.url("x").replace("/v1/", "/v2/"))


def test_a_port_and_a_host_where_nobody_is(volume: StockVolume) -> None:
    assert f"no volume server answers ({HOST}:1: Connection refused)" in str(mount_fails(host=f"{HOST}:1"))
    # A namespace has no way to anywhere else.
    assert "198.51.100.1:24007: Network is unreachable" in str(mount_fails(host="198.51.100.1"))


def test_an_address_that_the_brick_rejects(volume: StockVolume) -> None:
    with option(volume, f"auth.reject={HOST}"):
        failure = mount_fails()
        assert failure.errno == errno.EACCES
        assert f"brick {volume.folder}: the brick refuses this client: Authentication failed" in str(failure)
        assert f"(EACCES): {HOST}:" in command_fails(volume, volume.url("x"))


def own_text(volume: StockVolume) -> str:
    """The volfile for those that run where glusterd does: with a user and a password."""
    pump = Pump()
    try:
        text = pump.run(VolumeServers(pump, pump, [Address(HOST, 24007)], "v1").volfile(), 10)
    finally:
        pump.close()
    assert "option username " in text and "option password " in text
    return text


def test_user_and_password(volume: StockVolume) -> None:
    text = own_text(volume)
    # Only a user who brings the password is let in now.
    with option(volume, "auth.allow=198.51.100.7"):
        with Volume(Source(volume="v1", text=text, origin="mine")) as vol:
            assert vol.exists("/")
        without = re.sub(r"option (username|password) .*", "", text)
        wrong = re.sub(r"option password .*", "option password wrong", text)
        for bad in (without, wrong):
            failure = refused(Source(volume="v1", text=bad, origin="mine"))
            assert failure.errno == errno.EACCES
            assert "Authentication failed" in str(failure) and "wrong" not in str(failure)


def test_a_brick_that_does_not_exist(volume: StockVolume) -> None:
    text = re.sub(r"option remote-subvolume .*", "option remote-subvolume /nowhere", own_text(volume))
    with pytest.raises(MountError, match=f"{HOST}:24007 knows no running brick /nowhere"):
        Volume(Source(volume="v1", text=text, origin="mine"))
    with Volume(f"gluster://{HOST}/v1") as vol:
        port = vol.graph.xlators["v1-client-0"].link.brick.port
    text = text.replace("option remote-subvolume", f"option remote-port {port}\n    option remote-subvolume")
    with pytest.raises(MountError, match="the brick refuses this client: ") as caught:
        Volume(Source(volume="v1", text=text, origin="mine"))
    assert "brick /nowhere" in str(caught.value)


def test_a_brick_that_wants_tls(volume: StockVolume, tmp_path: Path) -> None:
    need_peer("openssl")
    volume.cage.run("sh", "-ec", CERTIFICATE)
    volume.cage.run("sh", "-ec", f"cp /etc/ssl/glusterfs.* {tmp_path}")
    gluster(volume, "set", "v1", "server.ssl", "on")
    gluster(volume, "stop", "v1")
    gluster(volume, "start", "v1")
    try:
        failure = mount_fails()
        assert failure.errno == errno.ENOTCONN and f"brick {volume.folder}: it hangs up on the first call" in str(
            failure
        )
        gluster(volume, "set", "v1", "client.ssl", "on")
        failure = mount_fails()
        assert failure.errno == errno.EINVAL
        assert "the TLS certificate /etc/ssl/glusterfs.pem cannot be read" in str(failure)
        files = {"own-cert": "glusterfs.pem", "private-key": "glusterfs.key", "ca-list": "glusterfs.ca"}
        lines = [f"option transport.socket.ssl-{key} {tmp_path / name}" for key, name in files.items()]
        text = own_text(volume).replace("option remote-subvolume", "\n    ".join([*lines, "option remote-subvolume"]))
        with Volume(Source(volume="v1", text=text, origin="mine")) as vol:
            with vol.open("/secured", "wb") as file:
                file.write(b"secured" * 100_000)
            assert vol.open("/secured", "rb").read() == b"secured" * 100_000
    finally:
        for key in ("server.ssl", "client.ssl"):
            gluster(volume, "reset", "v1", key)
        gluster(volume, "stop", "v1")
        gluster(volume, "start", "v1")


def test_a_brick_that_hangs(volume: StockVolume) -> None:
    (pid,) = volume.cage.pids("glusterfsd")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(MountError, match=f"brick {volume.folder}: no answer in 0.5 s") as caught:
            Volume(f"gluster://{HOST}/v1", mount_timeout=0.5)
        assert caught.value.errno == errno.ENOTCONN
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_volume_that_is_stopped(volume: StockVolume) -> None:
    gluster(volume, "stop", "v1")
    try:
        assert f"knows no running brick {volume.folder}; is the volume stopped?" in str(mount_fails())
        assert "is the volume stopped?" in command_fails(volume, volume.url("x"))
    finally:
        gluster(volume, "start", "v1")
    with Volume(f"gluster://{HOST}/v1") as vol:
        assert vol.exists("/")
