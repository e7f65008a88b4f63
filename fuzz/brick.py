"""A whole brick under calls that make no sense, one after the other: bytes in, replies out, and nothing else.

An input is read as a script. Each step picks a fop of either program, fills its fields from what lies on the brick and
from numbers at the edges of their types, may spoil some bytes of the encoded call, and sends it. The network and the
clock are in memory, so a script runs the same way every time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import struct
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from glustx import fops, xdata
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import ANONYMOUS_FD, Fd
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.rpc.fop_programs import FOPS_330, FOPS_400
from glustx.rpc.memory_pair import MemoryNetwork
from glustx.rpc.record import frame
from glustx.rpc.xdr import XdrError
from glustx.runtime import ManualReactor
from glustx.values import F_SETLK, F_WRLCK, ROOT_GFID, ActiveLock, Caller, Flock, Iatt, LeaseInfo, Loc
from glustx.xdata import EMPTY, Typed, Xdata, gfuuid

HERE = Address("127.0.0.1", 49152)
VOLFILE = """
volume store
  type storage/memory
  option capacity 16MB
  option max-file-size 1MB
end-volume
volume access
  type features/access-control
  subvolumes store
end-volume
volume locks
  type features/locks
  subvolumes access
end-volume
volume worm
  type features/worm
  option worm-file-level on
  subvolumes locks
end-volume
volume /brick
  type debug/io-stats
  subvolumes worm
end-volume
volume server
  type protocol/server
  option listen-port 49152
  option auth.addr./brick.allow *
  option fds-per-client 40
  subvolumes /brick
end-volume
"""
_PROGRAMS = (FOPS_400, FOPS_330)
_STEPS = 40
_FILE, _DIR, _CHILD, _LINK = (bytes([n]) * 16 for n in (0x11, 0x22, 0x33, 0x44))
_GFIDS = (
    *(ROOT_GFID, _FILE, _DIR, _CHILD, _LINK, ROOT_GFID, _FILE, _DIR),
    *(bytes([n]) * 16 for n in range(0x60, 0x68)),
    *(bytes(16), b"\x55" * 16, b"\xff" * 16),
)
_NAMES = (
    b"file", b"dir", b"child", b"link", b"new", b"other", b"", b".", b"..", b"a/b", b"/", b"n\0", b".glusterfs",
    b"new", b"other", b"new-2", b"n" * 255, b"n" * 256, b"\xff\xfe", b"%s%n",
)  # fmt: skip
_NUMBERS = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 64, 0o100, 0o1000, 0o2000, 0o644, 0o100644, 0o777, 4095, 4096, 4097, 65536,
    1 << 20, 1 << 27, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1,
)  # fmt: skip
_TEXTS = (
    b"", b"user.a", b"user.b", b"trusted.gfid", b"trusted.glusterfs.mdata", b"trusted.afr.x",
    b"glusterfs.open-fd-count",
    b"system.posix_acl_access", b"system.posix_acl_default", b"security.selinux", b"user." + b"k" * 251, b"domain",
    b"glusterfs.content", b"list-xattr", b"user.*", b"trusted.start_time", b"trusted.reten_state", b"\0",
    b"glusterfs.gfidtopath", b"trusted.glusterfs.pathinfo", b"glusterfs.lockinfo", b"glusterfs.clrlk.tinode.kall",
)  # fmt: skip
# What a client would say, so that more than errors comes about.
_LIKELY: dict[str, tuple[int, ...]] = {
    "mode": (0o100644, 0o100666, 0o40777, 0o644),
    "umask": (0, 0o22),
    "flags": (0, 2, 0o101),
    "offset": (0, 1, 4096, 5000),
    "offset_in": (0, 5000),
    "offset_out": (0, 4096),
    "size": (1, 100, 4096, 65536),
    "cmd": (0, 1, 2),
    "type": (0, 1, 2),
    "keep_size": (0, 1),
    "what": (3, 4),
    "valid": (1, 2, 4, 8, 0x10, 0x20, 0x3F),
    "xflags": (0, 1),
    "mask": (0, 4, 7),
}
_ACL = struct.pack("<IHHIHHIHHI", 2, 1, 6, 0xFFFFFFFF, 4, 4, 0xFFFFFFFF, 32, 4, 0xFFFFFFFF)


@functools.cache
def _kinds(cls: type[Fop]) -> dict[str, str]:
    """Return the wire type of each number of a fop."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field: hint.__metadata__[0] for field, hint in hints.items() if hasattr(hint, "__metadata__")}


class Script:
    """An input, taken from the front; zeroes follow its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.data)

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1] if self.at <= len(self.data) else 0

    def pick(self, choices: Sequence[Any]) -> Any:
        """Return one of at most 256 things."""
        return choices[self.byte() % len(choices)]

    def number(self, bits: int, signed: bool = False) -> int:
        """Return a number of a wire type."""
        value: int = self.pick(_NUMBERS)
        if value == 8:
            value = self.byte() << 8 | self.byte()
        value &= (1 << bits) - 1
        return value - (1 << bits) if signed and value >> (bits - 1) else value

    def some(self) -> bytes:
        """Return a few bytes."""
        size = self.pick((0, 1, 4, 12, 16, 57, 100))
        return bytes(self.byte() for _ in range(size))


class Alarm(logging.Handler):
    """Raises what a brick logs as an error: it says that something of its own went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Client:
    """The dialling end: sends calls, and holds what became of them."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.room = memoryview(bytearray(1 << 16))
        self.channel: Any = None
        self.closed = False
        self.xid = 0
        self.done = 0  # calls that went well
        self.waiting: dict[int, Any] = {}

    def connection_made(self, channel: Any) -> None:
        """It is up."""
        self.channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        """Take replies."""
        self.buffer += self.room[:nbytes]
        while len(self.buffer) >= 4:
            size = int.from_bytes(self.buffer[:4], "big") & 0x7FFFFFFF
            if len(self.buffer) < 4 + size:
                return
            record = bytes(self.buffer[4 : 4 + size])
            del self.buffer[: 4 + size]
            self.answered(record)

    def connection_lost(self, error: Exception | None) -> None:
        """It is down."""
        self.closed = True

    def answered(self, record: bytes) -> None:
        """Look at a reply: it is one to a call, and what a client makes of it is right."""
        xid, kind = struct.unpack_from(">II", record)
        if kind == message.CALL:
            return  # a callback
        header = message.parse_reply(record)
        if xid == 0:
            return  # to a call whose header could not be read
        assert xid in self.waiting, f"a reply to nothing: {header}"
        spoken, codec = self.waiting.pop(xid)
        if codec is None:
            self.done += xid == 1
            return
        if not header.accepted or header.stat != message.SUCCESS:
            return
        try:
            _, number = codec.decode_reply(memoryview(record), header.pos, len(record), spoken.memo())
        except FopError as refused:
            if refused.errno <= 0:
                raise AssertionError(f"{codec.name}: errno {refused.errno}") from None
        else:
            self.done += 1
            assert number is None or 0 <= number < 40, f"{codec.name}: fd {number}"

    def send(self, prog: int, vers: int, proc: int, cred: bytes, body: bytes, waits: Any, spoil: Script | None) -> None:
        """Send a call, some of its bytes changed by `spoil`."""
        self.xid += 1
        self.waiting[self.xid] = waits
        call = bytearray(message.encode_call(self.xid, prog, vers, proc, cred) + body)
        if spoil is not None:
            for _ in range(spoil.byte() % 6):
                at = 8 + (spoil.byte() << 8 | spoil.byte()) % (len(call) - 8)
                call[at] = spoil.pick((0, 1, 4, 0x7F, 0x80, 0xFF, spoil.byte()))
            if spoil.byte() > 240:
                del call[24 + spoil.byte() :]
        self.channel.write([frame(bytes(call))])


class World:
    """A brick with a few objects on it, and one client that has logged in."""

    def __init__(self) -> None:
        self.reactor = ManualReactor()
        self.network = MemoryNetwork(self.reactor)
        self.graph = Graph.load(VOLFILE, Surroundings(self.reactor, self.network))
        self.reactor.wait(self.graph.start())
        self.server: Any = self.graph.root
        self.fill()
        self.client = self.login("one")
        for gfid in (_FILE, _CHILD):
            self.ask(fops.Open(Loc(gfid=gfid), Fd(gfid, 2), 2))
        self.ask(fops.Opendir(Loc(gfid=_DIR), Fd(_DIR, 0, directory=True)))
        assert self.client.done == 4

    def fill(self) -> None:
        """Put a file, a folder with a file in it, and a link on the brick."""
        top = self.graph.xlators["/brick"].table

        def do(req: Fop) -> None:
            self.reactor.wait(top[type(req)](req))

        def wish(gfid: bytes) -> Xdata:
            return Xdata({xdata.GFID_REQ: gfuuid(gfid)})

        do(fops.Mknod(Loc(pargfid=ROOT_GFID, name=b"file"), 0o100666, xdata=wish(_FILE)))
        do(fops.Write(Fd(_FILE, 2, anonymous=True), 5000, b"data" * 100))
        do(fops.Setxattr(Loc(gfid=_FILE), Xdata({b"user.a": b"1", b"trusted.afr.x": bytes(12)})))
        do(fops.Mkdir(Loc(pargfid=ROOT_GFID, name=b"dir"), 0o777, xdata=wish(_DIR)))
        do(fops.Mknod(Loc(pargfid=_DIR, name=b"child"), 0o100644, xdata=wish(_CHILD)))
        do(fops.Symlink(Loc(pargfid=ROOT_GFID, name=b"link"), b"../../etc", xdata=wish(_LINK)))

    def login(self, name: str) -> Client:
        """Connect and come through SETVOLUME."""
        client = Client()
        self.network.dial(HERE, client)
        self.reactor.run()
        pairs = {"process-uuid": name, "remote-subvolume": "/brick", "fops-version": str(p.FOP_400.number)}
        body = p.SetvolumeRequest(dict_v1.pack_all(pairs)).encode()
        client.send(p.HANDSHAKE.number, 2, p.HNDSK_SETVOLUME, message.encode_auth_null(), body, (None, None), None)
        self.reactor.run()
        assert not client.waiting and len(self.server.clients) == 1
        return client

    def ask(self, req: Fop) -> None:
        """Send a call as it should be, of program 400."""
        codec = FOPS_400.by_class[type(req)]
        body, _ = codec.encode_call(req, lambda fd: 0)
        cred = FOPS_400.encode_cred(req.caller)
        self.client.send(p.FOP_400.number, 400, codec.cls.procnum, cred, body, (FOPS_400, codec), None)
        self.reactor.run()

    def step(self, script: Script) -> None:
        """Send one call."""
        spoken = _PROGRAMS[script.byte() & 1]
        codec = spoken.codecs[script.pick(sorted(spoken.codecs))]
        numbers: dict[int, int] = {}
        req = self.request(codec.cls, script, numbers)
        try:
            if spoken.adapt is not None:
                req = spoken.adapt(req)
            body, payload = codec.encode_call(req, lambda fd: numbers[id(fd)])
            cred = spoken.encode_cred(req.caller)
        except (FopError, XdrError, struct.error, OverflowError, TypeError):
            return  # what no client could write down
        spoil = script if script.byte() > 200 else None
        vers = spoken.program.version
        waits = (spoken, None if spoil else codec)
        self.client.send(p.FOP_400.number, vers, codec.cls.procnum, cred, body + bytes(payload or b""), waits, spoil)

    def request(self, cls: type[Fop], script: Script, numbers: dict[int, int]) -> Fop:
        """Make a request of a fop out of the script."""
        values: dict[str, Any] = {}
        for field in cls.__struct_fields__:
            if field not in ("ctime", "stamp", "deadline"):
                values[field] = self.value(cls, field, script, numbers)
        return cls(**values)

    def value(self, cls: type[Fop], field: str, script: Script, numbers: dict[int, int]) -> Any:
        """Make the value of one field."""
        if field == "xdata":
            return self.xattrs(script, script.byte() & 3)
        if field == "caller":
            uid = script.pick((0, 0, 0, 1000, 0xFFFFFFFF))
            groups, owner = (4,) * (script.byte() % 3), b"o%d" % (script.byte() % 3)
            return Caller(pid=script.pick((1, 0, 7)), uid=uid, gid=uid, groups=groups, lk_owner=owner)
        if field in ("loc", "oldloc", "newloc"):
            return Loc(gfid=script.pick(_GFIDS), pargfid=script.pick(_GFIDS), name=script.pick(_NAMES))
        if field in ("fd", "fd_in", "fd_out"):
            fd = Fd(script.pick(_GFIDS), 2)
            numbers[id(fd)] = script.pick((ANONYMOUS_FD, 0, 1, 2, 3, 39, 40, -1, (1 << 63) - 1, -(1 << 63)))
            return fd
        if field == "flock":
            return Flock(
                script.pick((0, 1, 1, 2, 77)), script.pick((0, 0, 0, 1, 2, 9)), script.number(64), script.number(64),
                script.number(32), b"o" * script.pick((1, 8, 255)),
            )  # fmt: skip
        if field == "lease":
            kinds = (0, 1, 2, 3, 9)
            return LeaseInfo(script.pick(kinds), script.pick(kinds), bytes([script.byte() % 3]) * 16)
        if field == "locks":
            lock = Flock(script.pick((0, 1, 2)), 0, script.number(64), script.number(64), 1, b"o")
            return (ActiveLock(lock, script.pick(("one", "x"))),) * (script.byte() % 3)
        if field == "stat":
            wide = {name: script.number(63) for name in ("atime", "mtime", "ctime", "size")}
            narrow = {name: script.number(32) for name in ("mode", "uid", "gid", "mtime_nsec")}
            return Iatt(gfid=script.pick(_GFIDS), **wide, **narrow)
        if field == "xattrs":
            return self.xattrs(script, script.byte() & 3)
        if field == "data":
            return b"w" * script.pick((0, 1, 4096, 5000))
        if field in ("key", "domain", "basename", "linkname"):
            return script.pick(_TEXTS)
        if field in _LIKELY and script.byte() & 1:
            return script.pick(_LIKELY[field])
        kind = _kinds(cls)[field]
        return script.number(int(kind[1:]), kind[0] == "i")

    @staticmethod
    def xattrs(script: Script, count: int) -> Xdata:
        """Make a dictionary, usually with a gfid for what may be new."""
        pairs: dict[bytes, object] = {}
        if script.byte() > 60:
            pairs[xdata.GFID_REQ] = gfuuid(script.pick(_GFIDS))
        for _ in range(count):
            value = script.pick((0, 1, 2, 3))
            pairs[script.pick(_TEXTS)] = (
                script.some(), _ACL, Typed(script.pick((1, 5, 6, 7)), script.some()), xdata.uint(script.number(31)),
            )[value]  # fmt: skip
        return Xdata(pairs) if pairs else EMPTY

    def end(self) -> None:
        """The client goes: nothing of it stays."""
        self.client.channel.abort("gone")
        self.reactor.run()
        assert not self.server.sessions and not self.server.clients, "a connection stays"
        assert self.graph.winding == 0, f"{self.graph.winding} fops do not end"
        assert self.server.budget.used == 0 and self.server.descriptors.used == 0
        other = self.client = self.login("two")
        # What was locked or held is free again, and the brick answers.
        flock = Flock(F_WRLCK, 0, 0, 0, 1, b"z")
        for gfid in (ROOT_GFID, _FILE, _DIR):
            self.ask(fops.Inodelk(Loc(gfid=gfid), b"domain", F_SETLK, F_WRLCK, flock, caller=Caller(lk_owner=b"z")))
        assert not other.waiting and other.done == 4, "the brick does not answer, or keeps locks of who is gone"
        other.channel.abort("gone")
        self.reactor.run()
        self.reactor.wait(self.graph.stop())


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Fail when the block logs an error, and keep the log to ourselves."""
    alarm = Alarm()
    logger = logging.getLogger("glustx")
    logger.addHandler(alarm)
    propagate, logger.propagate = logger.propagate, False
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        logger.removeHandler(alarm)
        logger.propagate = propagate
    assert not alarm.found, alarm.found[0]


def brick(data: bytes) -> None:
    """Calls of a client that has been let in: each is answered, waits for a lock, or ends the connection."""
    with watched():
        world = World()
        script = Script(data)
        for _ in range(_STEPS):
            if not script or world.client.closed:
                break
            world.step(script)
            if script.byte() & 1:
                world.reactor.run()
        world.reactor.run()
        # A fop that is under way waits for a lock.
        runs = sum(len(session.runs) for session in world.server.sessions)
        unanswered = [codec for _, codec in world.client.waiting.values() if codec is not None]
        assert world.client.closed or len(unanswered) <= runs, f"no answer to {unanswered}"
        world.end()
