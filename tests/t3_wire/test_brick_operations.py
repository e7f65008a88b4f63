"""What stock's glusterd says to a brick: its command line, what that makes of a volfile, and the brick operations."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx import fops, volfile
from glustx.graph import Graph, Surroundings
from glustx.mgmt.brickargs import BrickArguments, XlatorOption, amend, parse_arguments
from glustx.mgmt.daemon import PidFile
from glustx.mgmt.operations import Operations
from glustx.mgmt.state import ServeError
from glustx.rpc import brickops as b
from glustx.rpc import dict_v1
from glustx.rpc.brickops import BRICK_OPERATIONS, BrickOpReply, BrickOpRequest
from glustx.rpc.channel import Address
from glustx.rpc.connection import RpcConnection
from glustx.runtime import ManualReactor, run_now
from glustx.values import ROOT_LOC
from tests.kit import ROOT, wait_gone
from tests.peers import wait_until
from tests.t3_wire.test_volume_server import Peer

# As glusterd 10.3 writes it.
STOCK = [
    "-s", "192.0.2.1", "--volfile-id", "v1.192.0.2.1.bricks-b1", "-p", "/run/gluster/vols/v1/192.0.2.1-bricks-b1.pid",
    "-S", "/run/gluster/38f4d5611a85f1b4.socket", "--brick-name", "/bricks/b1",
    "-l", "/var/log/glusterfs/bricks/bricks-b1.log",
    "--xlator-option", "*-posix.glusterd-uuid=e6fd9b1c-885c-463f-acd1-8c18adcb588a", "--process-name", "brick",
    "--brick-port", "49152", "--xlator-option", "v1-server.listen-port=49152",
]  # fmt: skip
LEAST = ["-s", "h", "--volfile-id", "v.h.b"]


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_line_of_stock() -> None:
    got = parse_arguments(STOCK)
    assert got == BrickArguments(
        server=Address("192.0.2.1", 24007),
        volfile_id="v1.192.0.2.1.bricks-b1",
        pid_file=Path("/run/gluster/vols/v1/192.0.2.1-bricks-b1.pid"),
        socket=Path("/run/gluster/38f4d5611a85f1b4.socket"),
        log_file=Path("/var/log/glusterfs/bricks/bricks-b1.log"),
        brick="/bricks/b1",
        port=49152,
        options=(
            XlatorOption("*-posix", "glusterd-uuid", "e6fd9b1c-885c-463f-acd1-8c18adcb588a"),
            XlatorOption("v1-server", "listen-port", "49152"),
        ),
    )
    assert got.volume == "v1" and got.client_volfile_id == "v1"


def test_every_form_of_an_option() -> None:
    apart = ["--volfile-server", "h", "--volfile-id", "v.h.b", "--log-file", "/l", "--log-level", "WARNING", "-N"]
    joined = ["--volfile-server=h", "--volfile-id=v.h.b", "--log-file=/l", "--log-level=warning", "--no-daemon"]
    short = ["-sh", "--volfile-id=v.h.b", "-l/l", "-LWARNING", "-N"]
    behind = ["-s", "h", "--volfile-id=v.h.b", "-l", "/l", "-NL", "WARNING"]
    assert parse_arguments(apart) == parse_arguments(joined) == parse_arguments(short) == parse_arguments(behind)
    assert parse_arguments(apart).foreground and parse_arguments(apart).level == "warning"
    debug = parse_arguments([*LEAST, "-l", "/l", "--debug"])
    assert (debug.foreground, debug.level, debug.log_file) == (True, "debug", None)


def test_what_is_not_known_is_passed_over_and_told() -> None:
    extra = [
        "--brick-mux",
        "--io-engine",
        "io_uring",
        "--global-threading",
        "--newer=1",
        "--newest",
        "x",
        "-Z",
        "stray",
    ]
    got = parse_arguments([*extra, *LEAST, "--localtime-logging"])
    assert got.server == Address("h", 24007) and got.local_time
    assert got.notes == (
        "--brick-mux has no effect",
        "--io-engine io_uring has no effect",
        "--global-threading has no effect",
        "--newer=1 is unknown and has no effect",
        "--newest x is unknown and has no effect",
        "-Z on the command line is passed over",
        "stray on the command line is passed over",
    )


def test_other_servers_and_ports() -> None:
    got = parse_arguments(["-s", "/run/glusterd.socket", "--volfile-server-transport=unix", "--volfile-id", "v.h.b"])
    assert got.server == Address(path="/run/glusterd.socket")
    got = parse_arguments([*LEAST, "--volfile-server-port=7", "--brick-port", "49153,49154"])
    assert got.server == Address("h", 7) and got.port == 49153
    assert parse_arguments(["-f", "b.vol"]).volfile == Path.cwd() / "b.vol"
    snapshot = parse_arguments(["-s", "h", "--volfile-id", "/snaps/s1/x7/x7.h.run-gluster-snaps-x7-brick1"])
    assert snapshot.volume == "x7" and snapshot.client_volfile_id == "/snaps/s1/x7"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "a brick needs -s HOST and --volfile-id KEY, or -f VOLFILE"),
        (["-s", "h"], "a brick needs -s HOST and --volfile-id KEY"),
        ([*LEAST, "-p"], "-p needs a value"),
        ([*LEAST, "--process-name", "snapd"], "--process-name snapd: only bricks are served"),
        ([*LEAST, "--brick-port", "many"], "--brick-port 'many' is no port"),
        ([*LEAST, "--log-level", "LOUD"], "--log-level LOUD is none of TRACE, DEBUG"),
        ([*LEAST, "--xlator-option", "nodot=1"], "--xlator-option 'nodot=1' is not VOLUME.KEY=VALUE"),
        ([*LEAST, "--xlator-option", "a.b="], "--xlator-option 'a.b=' is not VOLUME.KEY=VALUE"),
    ],
)
def test_no_brick_can_be_started_with_that(words: list[str], why: str) -> None:
    with pytest.raises(ServeError) as caught:
        parse_arguments(words)
    assert why in str(caught.value)


def amended(*words: str, family: str = "") -> dict[str, dict[str, str]]:
    text = STOCK_LIKE.format(family=family)
    spec = amend(volfile.parse(text, strict=False), parse_arguments([*LEAST, *words]))
    return {volume.name: volume.options for volume in spec.volumes}


STOCK_LIKE = """
volume v1-posix
    type storage/posix
    option directory /bricks/b1
end-volume
volume v1-server
    type protocol/server
    option transport-type tcp
    {family}
    subvolumes v1-posix
end-volume
"""


def test_options_of_the_command_line_come_before_the_volfile() -> None:
    got = amended("--xlator-option", "*-posix.directory=/else", "--xlator-option=v1-*.seen=yes")
    assert got["v1-posix"] == {"directory": "/else", "seen": "yes"}
    assert got["v1-server"]["seen"] == "yes"


def test_where_it_listens() -> None:
    """Everywhere, as stock does, unless somebody says otherwise."""
    bind, port = "transport.socket.bind-address", "transport.socket.listen-port"
    assert amended()["v1-server"][bind] == "0.0.0.0" and port not in amended()["v1-server"]
    assert amended(family="option transport.address-family inet6")["v1-server"][bind] == "::"
    assert amended(family=f"option {bind} 192.0.2.9")["v1-server"][bind] == "192.0.2.9"
    assert amended("--xlator-option", f"{bind}=192.0.2.8")["v1-server"][bind] == "192.0.2.8"
    assert amended("--brick-port", "7")["v1-server"][port] == "7"
    assert port not in amended("--brick-port", "7", "--xlator-option", "v1-server.listen-port=8")["v1-server"]


def test_a_pid_file_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "below" / "brick.pid"
    mine = PidFile(path)
    mine.take()
    # A lock keeps other processes out, not this one.
    program = "import pathlib, sys; from glustx.mgmt.daemon import PidFile; PidFile(pathlib.Path(sys.argv[1])).take()"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and f"pid file {path} is locked by a process that runs" in done.stderr
    assert path.read_text() == f"{os.getpid()}\n"
    path.unlink()
    path.write_text("somebody else's")
    mine.remove()
    assert path.read_text() == "somebody else's"
    again = PidFile(path)
    again.take()
    again.remove()
    assert not path.exists()


# -- brick operations --------------------------------------------------------------------------------------------------


class Asked(Peer):
    """Asks a brick that serves from memory, and hears when the brick is told to end."""

    def __init__(self, graph: Graph) -> None:
        self.ended = 0
        self.operations = Operations(graph, self.end)
        super().__init__(self)  # type: ignore[arg-type]

    def make_receiver(self) -> RpcConnection:
        return RpcConnection(self.operations.programs())

    def end(self) -> None:
        self.ended += 1

    def ask(self, proc: int, name: str = "/bricks/b1", **texts: str | int) -> BrickOpReply:
        pairs = dict_v1.pack_all({key.replace("_", "-"): text for key, text in texts.items()})
        return BrickOpReply.decode(self.call(BRICK_OPERATIONS, proc, BrickOpRequest(name, proc, pairs).encode()))

    def facts(self, proc: int, **texts: str | int) -> dict[str, str]:
        reply = self.ask(proc, **texts)
        assert (reply.op_ret, reply.op_errstr) == (0, "")
        return {key.decode(): dict_v1.text(reply.output, key) for key in reply.output}


GRAPH = """
volume v1-store
    type storage/memory
end-volume
volume /bricks/b1
    type debug/io-stats
    option latency-measurement {on}
    option count-fop-hits {on}
    subvolumes v1-store
end-volume
volume v1-server
    type protocol/server
    subvolumes /bricks/b1
end-volume
"""


@pytest.fixture
def graph() -> Iterator[Graph]:
    graph = Graph.load(GRAPH.format(on="on"), Surroundings(ManualReactor()))
    run_now(graph.start())
    yield graph
    run_now(graph.stop())


@pytest.fixture
def asked(graph: Graph) -> Asked:
    return Asked(graph)


@pytest.mark.logs("TERMINATE: no brick '/bricks/b2' here, but /bricks/b1")
def test_terminate(asked: Asked) -> None:
    """Whoever wants an unknown brick down is content."""
    assert asked.ask(b.TERMINATE, "/bricks/b2").op_ret == 0 and asked.ended == 0
    assert asked.ask(b.TERMINATE).op_ret == 0 and asked.ended == 1


def test_profile(graph: Graph, asked: Asked) -> None:
    brick = graph.root.children[0]
    for _ in range(3):
        run_now(brick(fops.Lookup(ROOT_LOC)))
    first = asked.facts(b.XLATOR_INFO, info_op=b.INFO_ALL)
    lookup = fops.Lookup.gf_fop
    assert first["info-op"] == "1" and first["cumulative"] == "-1" and first["interval"] == "0"
    for number in (-1, 0):
        assert first[f"{number}-{lookup}-hits"] == "3"
        least, most = (float(first[f"{number}-{lookup}-{which}latency"]) for which in ("min", "max"))
        # Nanoseconds: no LOOKUP takes less than a hundred of them, nor a second.
        assert 100 < least <= float(first[f"{number}-{lookup}-avglatency"]) <= most < 1e9
    run_now(brick(fops.Lookup(ROOT_LOC)))
    assert asked.facts(b.XLATOR_INFO, info_op=b.INFO_INCREMENTAL, peek="on")[f"1-{lookup}-hits"] == "1"
    assert asked.facts(b.XLATOR_INFO, info_op=b.INFO_CUMULATIVE)[f"-1-{lookup}-hits"] == "4"
    second = asked.facts(b.XLATOR_INFO, info_op=b.INFO_INCREMENTAL)
    assert second[f"1-{lookup}-hits"] == "1" and "cumulative" not in second
    assert f"2-{lookup}-hits" not in asked.facts(b.XLATOR_INFO, info_op=b.INFO_INCREMENTAL)
    assert asked.facts(b.XLATOR_INFO, info_op=b.INFO_CLEAR) == {"info-op": "4", "stats-cleared": "1"}
    assert f"-1-{lookup}-hits" not in asked.facts(b.XLATOR_INFO)


def test_status_without_clients(asked: Asked) -> None:
    def status(cmd: int) -> dict[str, str]:
        return asked.facts(b.STATUS, name="", brick_name="/bricks/b1", cmd=cmd | 0x500)

    assert status(b.STATUS_CLIENTS) == status(b.STATUS_CLIENT_LIST) == {"clientcount": "0"}
    assert status(b.STATUS_FD) == {"conncount": "0"}
    assert status(b.STATUS_CALLPOOL) == {"callpool.count": "0"}
    assert status(b.STATUS_INODE)["conncount"] == "1" and "conn0.itable.lru_size" in status(b.STATUS_INODE)
    if sys.platform == "linux":
        assert int(status(b.STATUS_MEM)["mallinfo.arena"]) > 0


@pytest.mark.logs("is refused: ")
def test_what_is_refused_says_why(asked: Asked) -> None:
    for proc, why in {
        b.ATTACH: "a process serves one brick; turn cluster.brick-multiplex off",
        b.BRICK_BARRIER: "barriers are not offered, so neither are snapshots",
        b.XLATOR_OP: "this process heals nothing",
    }.items():
        reply = asked.ask(proc)
        assert (reply.op_ret, reply.op_errstr) == (-1, why) and not reply.output
    assert "`gluster volume top` is not offered" in asked.ask(b.XLATOR_INFO, top_op=1).op_errstr
    assert asked.ask(b.XLATOR_INFO, "/b2").op_errstr == "no brick '/b2' here, but /bricks/b1"
    assert asked.ask(b.STATUS, brick_name="/bricks/b1", cmd=0x20).op_errstr == "status 0x20 is not known"


def test_garbage(asked: Asked) -> None:
    assert asked.refused(BRICK_OPERATIONS, b.STATUS, b"\0\0") == "GARBAGE_ARGS"
    assert asked.refused(BRICK_OPERATIONS, 5, BrickOpRequest("", 5).encode()) == "PROC_UNAVAIL"
    assert asked.ended == 0


# -- the process -------------------------------------------------------------------------------------------------------


def glusterfsd(*words: object) -> list[str]:
    return [sys.executable, "-m", "glustx", "glusterfsd", *map(str, words)]


BRICK = """
volume v1-posix
    type storage/posix
    option directory {folder}
    option xattr-namespace user
end-volume
volume v1-server
    type protocol/server
    option transport.socket.bind-address 127.0.0.1
    subvolumes v1-posix
end-volume
"""


def test_what_keeps_a_brick_down_is_told_at_once(tmp_path: Path) -> None:
    """On stderr of the process that was started, and in the log."""
    log, pid_file = tmp_path / "brick.log", tmp_path / "brick.pid"
    words = ["-f", tmp_path / "none.vol", "-l", log, "-p", pid_file]
    for more in ([], ["-N"]):
        done = subprocess.run(glusterfsd(*words, *more), capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert done.returncode == 1
        assert done.stderr == f"glusterfsd: cannot read volfile {tmp_path}/none.vol: No such file or directory\n"
    assert log.read_text().count("cannot read volfile") == 2 and not pid_file.exists()


def test_a_port_that_is_taken_is_told_by_its_errno(tmp_path: Path) -> None:
    """glusterd then tries another."""
    (tmp_path / "brick.vol").write_text(BRICK.format(folder=tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["-f", tmp_path / "brick.vol", "--brick-port", taken.getsockname()[1], "-l", tmp_path / "log"]
        done = subprocess.run(glusterfsd(*words), capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == errno.EADDRINUSE and "EADDRINUSE" in done.stderr


def test_a_folder_that_another_process_is_about_to_give_up(tmp_path: Path) -> None:
    """It is waited for; the parent returns when it is served, and SIGTERM ends the child and its pid file."""
    folder, log, pid_file = tmp_path / "brick", tmp_path / "log", tmp_path / "pid"
    folder.mkdir()
    (tmp_path / "brick.vol").write_text(BRICK.format(folder=folder))
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    starting = subprocess.Popen(
        glusterfsd("-f", tmp_path / "brick.vol", "-l", log, "-p", pid_file), cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        wait_until("it waits", lambda: log.exists() and "serves this folder already; waiting" in log.read_text(), 30)
        assert starting.poll() is None
    finally:
        os.close(other)
        said = starting.communicate(timeout=30)[1]
    assert starting.returncode == 0, said
    pid = int(pid_file.read_text())
    assert pid != starting.pid
    os.kill(pid, signal.SIGTERM)
    assert wait_gone(pid) and not pid_file.exists()
    assert log.read_text().rstrip().endswith("the brick has ended")
