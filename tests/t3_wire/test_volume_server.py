"""The volume server without sockets: its programs, the ports it keeps, the volumes it makes of folders and files."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from glustx import volfile
from glustx.mgmt.folder import claim
from glustx.mgmt.profile import layers, with_counts
from glustx.mgmt.server import VolumeServer
from glustx.mgmt.state import FIRST_PORT, Folders, Ports, ServeError, folders
from glustx.mgmt.volumes import Brick, Terms, Volume, Volumes, volume_of_folder, volume_of_volfile
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.runtime import ManualReactor
from glustx.xlators.protocol.server_auth import authorise
from tests.t0_codec.test_rpc_cold import GOLDEN

TERMS = Terms(advertised="192.0.2.7")
ROOT = os.geteuid() == 0


class Peer:
    """A client of a receiver, in memory; also the receiver's channel."""

    peer = "192.0.2.1:1023"
    received = sent = 0

    def __init__(self, server: VolumeServer) -> None:
        self.connection = server.make_receiver()
        self.connection.connection_made(self)
        self.answers = b""
        self.aborted = ""
        self.xid = 7

    def write(self, pieces: Sequence[Any]) -> None:
        self.answers += b"".join(pieces)

    def abort(self, reason: str) -> None:
        self.aborted = reason

    close = pause_reading = resume_reading = lambda self: None

    def queued(self) -> int:
        return 0

    def send(self, record: bytes) -> tuple[message.ReplyHeader, bytes]:
        """Send one record and return the reply's header and body."""
        self.answers = b""
        data = struct.pack(">I", len(record) | 0x80000000) + record
        while data:
            room = self.connection.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]
        (mark,) = struct.unpack_from(">I", self.answers)
        assert mark == (len(self.answers) - 4) | 0x80000000
        header = message.parse_reply(self.answers, 4)
        return header, self.answers[header.pos :]

    def call(self, program: p.Program, proc: int, body: bytes = b"") -> bytes:
        """Call a procedure that succeeds at the RPC level."""
        header, results = self.send(message.encode_call(self.xid, program.number, program.version, proc) + body)
        assert header.accepted and header.stat == message.SUCCESS and header.xid == self.xid, str(header)
        return results

    def refused(self, program: p.Program, proc: int, body: bytes = b"") -> str:
        """Call a procedure that is refused at the RPC level, and return the accept_stat's name."""
        header, _ = self.send(message.encode_call(self.xid, program.number, program.version, proc) + body)
        return message.ACCEPT_NAMES[header.stat]


@pytest.fixture
def volumes() -> Volumes:
    made = Volumes()
    brick = Brick("/b", 49152, "the brick's volfile", "v.host.b")
    made.add(Volume("v", [brick], "the clients' volfile", "6b1e6ffa-3d4f-4d5c-8a53-cd93a8c8f3b5"))
    return made


@pytest.fixture
def peer(volumes: Volumes) -> Peer:
    return Peer(VolumeServer(ManualReactor(), volumes))


# -- programs ----------------------------------------------------------------------------------------------------------


def test_dump_makes_clients_take_it_for_a_management_daemon(peer: Peer) -> None:
    header, body = peer.send(GOLDEN["dump-call-glusterd"])
    assert header.stat == message.SUCCESS
    listed = p.DumpReply.decode(body)
    assert listed.offers(p.PORTMAP) and listed.offers(p.HANDSHAKE) and not listed.offers(p.FOP_400)
    header, body = peer.send(GOLDEN["ping-call"])
    assert body == bytes(12)


def getspec(peer: Peer, key: str, flags: int = 1) -> p.GetspecReply:
    return p.GetspecReply.decode(peer.call(p.HANDSHAKE, p.HNDSK_GETSPEC, p.GetspecRequest(flags, key).encode()))


@pytest.mark.parametrize("key", ["v", "/v"])
def test_getspec_for_clients(peer: Peer, key: str) -> None:
    reply = getspec(peer, key)
    assert (reply.op_ret, reply.spec) == (len(reply.spec), "the clients' volfile")


def test_getspec_for_a_brick(peer: Peer) -> None:
    assert getspec(peer, "v.host.b", 0).spec == "the brick's volfile"


@pytest.mark.logs("asks for volfile .*; the volumes here: v")
@pytest.mark.parametrize("key", ["w", "", "//v", "v.host.c"])
def test_getspec_of_what_is_not_there(peer: Peer, key: str) -> None:
    reply = getspec(peer, key)
    assert (reply.op_ret, reply.op_errno, reply.spec) == (-1, errno.ENOENT, "")


def test_getspec_with_a_key_that_is_too_long(peer: Peer) -> None:
    reply = getspec(peer, "x" * 255)
    assert (reply.op_ret, reply.op_errno, reply.spec) == (-1, errno.EINVAL, "")


@pytest.mark.logs("signs in .* which is no brick here")
def test_portmap(peer: Peer, volumes: Volumes) -> None:
    def port() -> tuple[int, int]:
        reply = p.PortByBrickReply.decode(peer.call(p.PORTMAP, p.PMAP_PORTBYBRICK, p.PortByBrickRequest("/b").encode()))
        return reply.op_ret, reply.port

    def tell(proc: int, body: bytes) -> int:
        return p.StatusReply.decode(peer.call(p.PORTMAP, proc, body)).op_ret

    assert port() == (-1, 0)
    for name, wrong in (("/b", 0), ("/b", 49153), ("/b", -1), ("/c", 49152)):  # not what the volume server gave out
        assert tell(p.PMAP_SIGNIN, p.SignInRequest(name, wrong, 1).encode()) == -1
    assert tell(p.PMAP_SIGNIN, p.SignInRequest("/b", 49152, 1).encode()) == 0
    assert port() == (0, 49152)
    assert tell(p.PMAP_SIGNOUT, p.SignOutRequest("/b", 49153).encode()) == -1  # of a process that was there before
    assert port() == (0, 49152)
    assert tell(p.PMAP_SIGNOUT, p.SignOutRequest("/b", 49152).encode()) == 0
    assert port() == (-1, 0)


@pytest.mark.logs("signs in .* which is not the brick's")
def test_sign_ins_are_heard(volumes: Volumes) -> None:
    heard: list[tuple[str, int, int]] = []

    def hear(*what: Any) -> bool:
        heard.append(what)
        return len(heard) > 1

    call = GOLDEN["signin-call"]
    new = p.SignInRequest.decode(call[message.parse_call(call).pos :])
    volumes.add(Volume("stock", [Brick(new.brick, new.port, "", "key")], ""))
    server = VolumeServer(ManualReactor(), volumes, hear)
    peer = Peer(server)
    assert p.StatusReply.decode(peer.send(call)[1]).op_ret == -1  # it is not that process
    assert volumes.portmap == {}
    assert p.StatusReply.decode(peer.send(call)[1]).op_ret == 0
    assert heard == [(new.brick, new.port, new.pid)] * 2 and new.pid > 0
    assert volumes.portmap == {new.brick: new.port}
    # Who comes later cannot take it back, though it says the same.
    other = Peer(server)
    assert p.StatusReply.decode(other.send(call)[1]).op_ret == 0
    out = p.SignOutRequest(new.brick, new.port).encode()
    assert p.StatusReply.decode(other.call(p.PORTMAP, p.PMAP_SIGNOUT, out)).op_ret == -1
    assert p.StatusReply.decode(peer.call(p.PORTMAP, p.PMAP_SIGNOUT, out)).op_ret == 0


def test_volume_info(peer: Peer) -> None:
    def ask(**question: str) -> p.GetVolumeInfoReply:
        body = p.GetVolumeInfoRequest(dict_v1.pack_all(question)).encode()
        return p.GetVolumeInfoReply.decode(peer.call(p.HANDSHAKE, p.HNDSK_GET_VOLUME_INFO, body))

    reply = ask(volname="v", flags="1")
    assert reply.op_ret == 0
    assert dict_v1.text(reply.pairs, b"volume_id") == "6b1e6ffa-3d4f-4d5c-8a53-cd93a8c8f3b5"
    assert (ask(volname="w", flags="1").op_ret, ask(volname="v").op_ret) == (-1, -1)


def test_what_is_refused(peer: Peer) -> None:
    assert peer.refused(p.HANDSHAKE, p.HNDSK_SETVOLUME) == "PROC_UNAVAIL"
    assert peer.refused(p.FOP_400, 27) == "PROG_UNAVAIL"
    assert peer.refused(p.Program("", p.PORTMAP.number, 9), 1) == "PROG_MISMATCH"
    assert peer.refused(p.HANDSHAKE, p.HNDSK_GETSPEC, b"\0\0\0") == "GARBAGE_ARGS"
    assert peer.refused(p.PORTMAP, 3) == "PROC_UNAVAIL"
    assert not peer.aborted


# -- volumes -----------------------------------------------------------------------------------------------------------


def test_names_must_differ(volumes: Volumes) -> None:
    with pytest.raises(ServeError, match="named twice"):
        volumes.add(Volume("v", [], ""))
    with pytest.raises(ServeError, match="in two volumes"):
        volumes.add(Volume("w", [Brick("/b", 1, "", "")], ""))


def test_volume_of_a_folder(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "state")
    folder = tmp_path / "images"
    made = volume_of_folder(folder, "", ports, TERMS, root=ROOT)
    (brick,) = made.bricks
    assert (made.name, brick.name, brick.key) == (
        "images",
        str(folder),
        f"images.192.0.2.7.{str(folder)[1:].replace('/', '-')}",
    )
    server = volfile.parse(brick.text)
    assert server.root.type == "protocol/server" and server.root.subvolumes == (str(folder),)
    assert server.root.options["transport.socket.listen-port"] == str(brick.port)
    assert server.root.options["transport.socket.bind-address"] == "127.0.0.1"
    posix = server.by_name["images-posix"].options
    assert posix["directory"] == str(folder) and posix["volume-id"] == made.id
    assert posix.get("xattr-namespace", "trusted") == ("trusted" if ROOT else "user")
    client = volfile.parse(made.client_text).by_name["images-client-0"].options
    assert (client["remote-host"], client["remote-port"]) == ("192.0.2.7", str(brick.port))
    assert client["remote-subvolume"] == str(folder)
    again = volume_of_folder(folder, "", ports, TERMS, root=ROOT)
    assert again == made


def test_a_folder_that_root_did_not_make_stays_so(tmp_path: Path) -> None:
    first = claim(tmp_path, root=False)
    assert first.namespace == "user"
    assert claim(tmp_path, root=ROOT) == first


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_a_folder_that_root_made_is_for_root(tmp_path: Path) -> None:
    claim(tmp_path, root=True)
    (tmp_path / ".glusterfs").mkdir()
    with pytest.raises(ServeError, match="only root can serve it"):
        claim(tmp_path, root=False)


def test_bad_names_and_folders_change_nothing(tmp_path: Path) -> None:
    ports = Ports(tmp_path / "state")
    (tmp_path / "b").mkdir()
    with pytest.raises(ServeError, match="volume name 'no good'"):
        volume_of_folder(tmp_path / "b", "no good", ports, TERMS, root=ROOT)
    assert os.listxattr(tmp_path / "b") == []
    with pytest.raises(ServeError, match="No such file or directory"):
        volume_of_folder(tmp_path / "none" / "b", "v", ports, TERMS, root=ROOT)
    assert not (tmp_path / "state").exists()


SERVED = """volume store
    type storage/memory
end-volume

volume s
    type protocol/server
    option transport.socket.listen-port 50000
    option auth.addr.store.allow 10.0.0.*
    subvolumes store
end-volume
"""


def test_volume_of_a_volfile_with_a_server(tmp_path: Path) -> None:
    path = tmp_path / "mem.vol"
    path.write_text(SERVED)
    made = volume_of_volfile(path, "", Ports(tmp_path), TERMS)
    assert (made.name, made.bricks[0].name, made.bricks[0].port) == ("mem", "store", 50000)
    root = volfile.parse(made.bricks[0].text).root
    assert root.options["auth.addr.store.allow"] == "10.0.0.*"
    assert root.options["transport.socket.bind-address"] == "127.0.0.1"
    assert volume_of_volfile(path, "", Ports(tmp_path), Terms(brick_port=50001)).bricks[0].port == 50001


@pytest.mark.logs(r"listens on 127.0.0.")
def test_the_command_line_wins_over_a_server_in_a_volfile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mem.vol"
    extra = "    option transport.socket.bind-address 0.0.0.0\n    option auth.ip.store.allow *\n    subvolumes store"
    path.write_text(SERVED.replace("    subvolumes store", extra))

    def options(terms: Terms) -> Mapping[str, str]:
        return volfile.parse(volume_of_volfile(path, "", Ports(tmp_path), terms).bricks[0].text).root.options

    kept = options(Terms())
    assert kept["transport.socket.bind-address"] == "127.0.0.1"
    assert (kept["auth.addr.store.allow"], kept["auth.ip.store.allow"]) == ("10.0.0.*", "*")
    assert "s listens on 127.0.0.1 (--address), not on 0.0.0.0" in caplog.text
    told = options(Terms(address="127.0.0.2", allow="192.0.2.1"))
    assert told["transport.socket.bind-address"] == "127.0.0.2"
    auth = {key: value for key, value in told.items() if key.startswith("auth.")}
    assert auth == {"auth.addr.store.allow": "192.0.2.1"}
    assert authorise("store", "192.0.2.1:1000", "", "", auth, strict=False)
    assert not authorise("store", "10.0.0.1:1000", "", "", auth, strict=False)
    path.write_text(SERVED.replace("    subvolumes store", "    option auth-path known\n    subvolumes store"))
    assert options(Terms(allow="192.0.2.1"))["auth.addr.known.allow"] == "192.0.2.1"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("auth.login.store.allow joe", "--allow cannot narrow s, whose auth.login.store.allow lets users in"),
        ("transport-type unix", "s listens on a unix socket"),
        ("transport.socket.listen-path /run/s", "s listens on a unix socket"),
    ],
)
def test_what_would_let_clients_in_past_the_command_line(tmp_path: Path, option: str, said: str) -> None:
    path = tmp_path / "mem.vol"
    path.write_text(SERVED.replace("    subvolumes store", f"    option {option}\n    subvolumes store"))
    with pytest.raises(ServeError, match=said):
        volume_of_volfile(path, "", Ports(tmp_path / "state"), Terms(allow="127.0.0.1"))
    assert not (tmp_path / "state").exists()


def test_a_port_that_a_volfile_pins(tmp_path: Path) -> None:
    path = tmp_path / "mem.vol"
    path.write_text(SERVED)
    ports = Ports(tmp_path / "state")
    volume_of_volfile(path, "", ports, TERMS)
    assert ports.bricks("mem") == {"store": 50000}
    volume_of_volfile(path, "", ports, Terms(brick_port=50001))
    assert ports.bricks("mem") == {"store": 50001}
    path.write_text(SERVED.replace("50000", "70000"))
    with pytest.raises(ServeError, match="the port '70000' of s is not a number from 0 to 65535"):
        volume_of_volfile(path, "", ports, TERMS)
    assert ports.bricks("mem") == {"store": 50001}


def test_volume_of_a_volfile_without_one(tmp_path: Path) -> None:
    path = tmp_path / "mem.vol"
    path.write_text(SERVED[: SERVED.index("\nvolume s")])
    made = volume_of_volfile(path, "w", Ports(tmp_path), Terms(allow="127.*"))
    root = volfile.parse(made.bricks[0].text).root
    assert (root.name, root.type, root.subvolumes) == ("w-server", "protocol/server", ("store",))
    assert root.options["auth.addr.store.allow"] == "127.*"
    assert volfile.parse(made.client_text).by_name["w-client-0"].options["remote-subvolume"] == "store"


def test_volfiles_that_cannot_be_served(tmp_path: Path) -> None:
    path = tmp_path / "two.vol"
    path.write_text(
        SERVED.replace("volume s\n", "volume more\n type storage/memory\nend-volume\nvolume s\n").replace(
            "subvolumes store", "subvolumes store more"
        )
    )
    with pytest.raises(ServeError, match="offers 2 bricks"):
        volume_of_volfile(path, "", Ports(tmp_path), TERMS)
    path.write_text("volume x\n typo storage/posix\nend-volume\n")
    with pytest.raises(ServeError, match=r"two.vol:2:2: .*did you mean 'type'"):
        volume_of_volfile(path, "", Ports(tmp_path), TERMS)


# -- ports -------------------------------------------------------------------------------------------------------------


def test_ports_are_kept_and_differ(tmp_path: Path) -> None:
    first = Ports(tmp_path).fix("v", "/a", "127.0.0.1")
    assert first >= FIRST_PORT
    assert Ports(tmp_path).fix("v", "/a", "127.0.0.1") == first
    second = Ports(tmp_path).fix("w", "/b", "127.0.0.1")
    assert second != first
    assert Ports(tmp_path).fix("v", "/a", "127.0.0.1", 50505) == 50505
    assert Ports(tmp_path).fix("v", "/a", "127.0.0.1") == 50505
    assert Ports(tmp_path).bricks("v") == {"/a": 50505}


def test_a_port_that_is_used_is_not_chosen(tmp_path: Path) -> None:
    free = Ports(tmp_path / "1").fix("v", "/a", "127.0.0.1")
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", free))
        busy.listen()
        assert Ports(tmp_path / "2").fix("v", "/a", "127.0.0.1") > free


def test_state_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    (tmp_path / "volumes" / "v.json").write_text("{")
    with pytest.raises(ServeError, match=r"v\.json"):
        Ports(tmp_path).fix("v", "/a", "127.0.0.1")


def test_folders() -> None:
    assert folders(None, {}, True) == Folders(Path("/var/lib/glustx"), Path("/run/glustx"))
    assert folders(None, {"HOME": "/h"}, False) == Folders(
        Path("/h/.local/state/glustx"), Path("/h/.local/state/glustx/run")
    )
    xdg = {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"}
    assert folders(None, xdg, False) == Folders(Path("/s/glustx"), Path("/r/glustx"))
    chosen = folders(Path("/x"), xdg, True)
    assert chosen.socket("v", "/a") == chosen.socket("v", "/a") != chosen.socket("v", "/b")
    with pytest.raises(ServeError, match="longer than"):
        folders(Path("/" + "x" * 100), {}, True).socket("v", "/a")


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_reach_the_brick_of_a_folder(tmp_path: Path) -> None:
    options = {
        "features/read-only": {"read-only": "on"},
        "protocol/server": {"root-squash": "on"},
        "storage/posix": {"reserve": "5%"},
        "debug/io-stats": {"latency-measurement": "on"},
    }
    made = volume_of_folder(tmp_path / "b", "v", Ports(tmp_path), Terms(options=options), root=ROOT)
    spec = volfile.parse(made.bricks[0].text)
    assert spec.by_name["v-read-only"].options == {"read-only": "on"}
    assert spec.root.options["root-squash"] == "on"
    assert spec.by_name["v-posix"].options["reserve"] == "5%"
    stats = spec.by_name[str(tmp_path / "b")].options
    assert (stats["latency-measurement"], stats["log-level"]) == ("on", "WARNING")


@pytest.mark.parametrize(
    ("kind", "key", "value", "sentence"),
    [
        ("features/quota", "server-quota", "on", "not in the stack"),
        ("storage/posix", "reserve", "101%", "option reserve: '101%' is neither a percentage nor a size"),
        ("storage/posix", "reserved", "1", "the nearest is reserve"),
        ("features/worm", "retention-mode", "none", "is not one of relax, enterprise"),
    ],
)
def test_wrong_options_leave_the_folder_alone(tmp_path: Path, kind: str, key: str, value: str, sentence: str) -> None:
    with pytest.raises(ServeError, match=sentence):
        volume_of_folder(tmp_path / "b", "v", Ports(tmp_path), Terms(options={kind: {key: value}}), root=ROOT)
    assert list((tmp_path / "b").iterdir()) == [] and os.listxattr(tmp_path / "b") == []


# -- counting ----------------------------------------------------------------------------------------------------------


def test_with_counts_keeps_the_bricks_name(tmp_path: Path) -> None:
    made = volume_of_folder(tmp_path / "b", "v", Ports(tmp_path), Terms(profile=True), root=ROOT)
    spec = volfile.parse(made.bricks[0].text)
    assert spec.root.subvolumes == (str(tmp_path / "b"),)
    chain = []
    at = spec.root
    while at.subvolumes:
        at = spec.by_name[at.subvolumes[0]]
        chain.append((at.name.removeprefix("v-"), at.options.get("count-fop-hits", "")))
    assert chain == [
        (str(tmp_path / "b"), "on"),
        ("io-threads-stats", "on"),
        ("io-threads", ""),
        ("locks-stats", "on"),
        ("locks", ""),
        ("access-control-stats", "on"),
        ("access-control", ""),
        ("posix-stats", "on"),
        ("posix", ""),
    ]
    assert volfile.parse(with_counts(SERVED)).root.subvolumes == ("store",)


def test_layers_of_a_statedump() -> None:
    dump = """[protocol/server.s]
rpcs=3

[debug/io-stats.top]
fop.lookup.count=2
fop.lookup.errors=0

[debug/io-stats.p-stats]
fop.lookup.count=1
fop.zerofill.count=1
fop.zerofill.latency=avg:1,min:1,max:1

[storage/posix.p]
health=ok
"""
    found = layers(dump)
    assert [(layer.type, layer.fops) for layer in found] == [
        ("protocol/server", {}),
        ("debug/io-stats", {"lookup": 2}),
        ("storage/posix", {"lookup": 1, "zerofill": 1}),
    ]
