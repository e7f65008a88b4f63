"""The RPC programs of GlusterFS: numbers, versions, procedures, and the bodies of all that are not fops.

The fop program's procedures are those of `glustx.fops`; the bodies of callbacks stand in `glustx.rpc.callbacks`.
"""

from __future__ import annotations

import errno

import msgspec

from glustx.fops import FOPS, Fop
from glustx.rpc.body import I32, U32, U64, Body, Dict, Opaque, Text
from glustx.rpc.xdr import Reader, Writer, XdrError
from glustx.volfile import MAX_TEXT


class Program(msgspec.Struct, frozen=True):
    """One version of an RPC program; `procedures` gives the names of its procedure numbers."""

    name: str
    number: int
    version: int
    procedures: dict[int, str] = {}

    def procedure(self, number: int) -> str:
        """Return the name of a procedure, or what stands for one that has none."""
        return self.procedures.get(number, f"procedure {number}")


# Procedure numbers.
DUMP_DUMP, DUMP_PING = 1, 2
HNDSK_SETVOLUME, HNDSK_GETSPEC, HNDSK_PING, HNDSK_SET_LK_VER = 1, 2, 3, 4
HNDSK_EVENT_NOTIFY, HNDSK_GET_VOLUME_INFO, HNDSK_GET_SNAPSHOT_INFO = 5, 6, 7
PMAP_PORTBYBRICK, PMAP_BRICKBYPORT, PMAP_SIGNIN, PMAP_SIGNOUT = 1, 2, 4, 5
CBK_FETCHSPEC, CBK_INO_FLUSH, CBK_EVENT_NOTIFY, CBK_GET_SNAPS, CBK_CACHE_INVALIDATION = 1, 2, 3, 4, 5
CBK_CHILD_UP, CBK_CHILD_DOWN, CBK_RECALL_LEASE, CBK_STATEDUMP = 6, 7, 8, 9
CBK_INODELK_CONTENTION, CBK_ENTRYLK_CONTENTION = 10, 11

_FOP_NAMES = {0: "NULL", **{cls.procnum: cls.name.upper() for cls in FOPS.values() if cls.procnum >= 0}}
_LAST_330 = 52  # ICREATE and what follows it came with version 400

DUMP = Program("GF-DUMP", 123451501, 1, {DUMP_DUMP: "DUMP", DUMP_PING: "PING"})
HANDSHAKE = Program(
    "GlusterFS Handshake",
    14398633,
    2,
    {
        HNDSK_SETVOLUME: "SETVOLUME",
        HNDSK_GETSPEC: "GETSPEC",
        HNDSK_PING: "PING",
        HNDSK_SET_LK_VER: "SET_LK_VER",
        HNDSK_EVENT_NOTIFY: "EVENT_NOTIFY",
        HNDSK_GET_VOLUME_INFO: "GET_VOLUME_INFO",
        HNDSK_GET_SNAPSHOT_INFO: "GET_SNAPSHOT_INFO",
    },
)
PORTMAP = Program(
    "Gluster Portmap",
    34123456,
    1,
    {
        PMAP_PORTBYBRICK: "PORTBYBRICK",
        PMAP_BRICKBYPORT: "BRICKBYPORT",
        PMAP_SIGNIN: "SIGNIN",
        PMAP_SIGNOUT: "SIGNOUT",
    },
)
FOP_400 = Program("GlusterFS 4.x v1", 1298437, 400, _FOP_NAMES)
FOP_330 = Program("GlusterFS 3.3", 1298437, 330, {n: name for n, name in _FOP_NAMES.items() if n <= _LAST_330})
CALLBACK = Program(
    "GlusterFS Callback",
    52743234,
    1,
    {
        CBK_FETCHSPEC: "FETCHSPEC",
        CBK_INO_FLUSH: "INO_FLUSH",
        CBK_EVENT_NOTIFY: "EVENT_NOTIFY",
        CBK_GET_SNAPS: "GET_SNAPS",
        CBK_CACHE_INVALIDATION: "CACHE_INVALIDATION",
        CBK_CHILD_UP: "CHILD_UP",
        CBK_CHILD_DOWN: "CHILD_DOWN",
        CBK_RECALL_LEASE: "RECALL_LEASE",
        CBK_STATEDUMP: "STATEDUMP",
        CBK_INODELK_CONTENTION: "INODELK_CONTENTION",
        CBK_ENTRYLK_CONTENTION: "ENTRYLK_CONTENTION",
    },
)
PROGRAMS = (DUMP, HANDSHAKE, PORTMAP, FOP_400, FOP_330, CALLBACK)

GLUSTERD_PORT = 24007
GFS_ID = 0xCAED
"""What a client says it is in a DUMP."""
MAX_KEY = 254
"""Bytes of the longest GETSPEC key that stock takes."""
SERVERS_LIST = 1
"""GETSPEC flag of a client: name the other volume servers too."""


def fop_procedures(version: int = 400) -> dict[int, type[Fop]]:
    """Return the fops of the fop program by procedure number."""
    last = _LAST_330 if version == FOP_330.version else max(_FOP_NAMES)
    return {cls.procnum: cls for cls in FOPS.values() if 0 <= cls.procnum <= last}


def describe(prog: int, vers: int, proc: int) -> str:
    """Return what people call a procedure, for messages."""
    for program in PROGRAMS:
        if program.number == prog and program.version == vers:
            return f"{program.name} {program.procedure(proc)}"
    return f"program {prog} version {vers} procedure {proc}"


# -- GF-DUMP -----------------------------------------------------------------------------------------------------------


class DumpRequest(Body, frozen=True):
    """Asks which programs there are."""

    gfs_id: U64 = GFS_ID


class DumpReply(msgspec.Struct, frozen=True):
    """The programs there are; one that came over the wire has no procedures."""

    programs: tuple[Program, ...]
    op_ret: int = 0
    op_errno: int = 0
    gfs_id: int = 0

    def offers(self, program: Program) -> bool:
        """Tell whether this version of the program is there; its name is free text and does not count."""
        wanted = (program.number, program.version)
        return any((known.number, known.version) == wanted for known in self.programs)

    def encode(self) -> bytes:
        """Return the XDR body."""

        def item(writer: Writer, program: Program) -> None:
            writer.text(program.name).u64(program.number).u64(program.version)

        return bytes(Writer().u64(self.gfs_id).i32(self.op_ret).i32(self.op_errno).linked(self.programs, item))

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> DumpReply:
        """Return what a whole XDR body holds; XdrError when it is anything else."""
        reader = Reader(body)
        gfs_id, op_ret, op_errno = reader.u64(), reader.i32(), reader.i32()
        programs = tuple(reader.linked(lambda r: Program(r.text(), r.u64(), r.u64())))
        reader.done()
        return cls(programs, op_ret, op_errno, gfs_id)


class PingReply(Body, frozen=True):
    """Answer to a ping of either program, to SETVOLUME's companions, and to fop NULL."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    xdata: Opaque = b""


# -- Handshake ---------------------------------------------------------------------------------------------------------


class GetspecRequest(Body, frozen=True):
    """Asks for a volfile.

    Args:
        flags: SERVERS_LIST from a client, 0 from a brick.
        key: `VOL` or `/VOL` for the client's, `VOL.HOST.path-with-dashes` for a brick's.
        xdata: `min-op-version` and `max-op-version`, without which stock takes the caller for a very old one.
    """

    flags: U32
    key: Text
    xdata: Dict = {}


class GetspecReply(Body, frozen=True):
    """A volfile: `op_ret` is its length in bytes, or -1."""

    op_ret: I32
    op_errno: I32
    spec: Text
    xdata: Dict = {}

    @classmethod
    def found(cls, spec: str, xdata: dict[bytes, bytes] | None = None) -> GetspecReply:
        """Return the answer that holds a volfile; XdrError for one that no client would take."""
        size = len(spec.encode("utf-8", "surrogateescape"))
        if size > MAX_TEXT:
            raise XdrError(f"a volfile of {size} bytes")
        return cls(size, 0, spec, xdata or {})

    @classmethod
    def failed(cls, number: int = errno.ENOENT) -> GetspecReply:
        """Return the answer that there is none."""
        return cls(-1, number, "")


class SetvolumeRequest(Body, frozen=True):
    """Asks to be let at a brick: `process-uuid`, `remote-subvolume` and `fops-version` are required by stock."""

    pairs: Dict


class SetvolumeReply(Body, frozen=True):
    """Lets a client at the brick (`op_ret` 0; `op_errno` then says nothing) or not."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    pairs: Dict = {}


class SetLkVerRequest(Body, frozen=True):
    """Names the version of the locks a client holds."""

    uid: Text
    lk_ver: I32


class SetLkVerReply(Body, frozen=True):
    """Repeats the version."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    lk_ver: I32 = 0


class GetVolumeInfoRequest(Body, frozen=True):
    """Asks for facts of a volume: `volname` and `flags` 1 for the volume's id."""

    pairs: Dict


class GetVolumeInfoReply(Body, frozen=True):
    """Facts of a volume (`volume_id`), or why there are none."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    errstr: Text = ""
    pairs: Dict = {}


# -- Portmap -----------------------------------------------------------------------------------------------------------


class PortByBrickRequest(Body, frozen=True):
    """Asks on which port a brick listens, by its remote-subvolume name."""

    brick: Text


class PortByBrickReply(Body, frozen=True):
    """The port; an unknown brick has `op_ret` -1 and zeroes."""

    op_ret: I32 = 0
    op_errno: I32 = 0
    status: I32 = 0
    port: I32 = 0


class SignInRequest(Body, frozen=True):
    """A brick says where it listens."""

    brick: Text
    port: I32
    pid: I32


class SignOutRequest(Body, frozen=True):
    """A brick says that it no longer listens."""

    brick: Text
    port: I32
    rdma_port: I32 = 0


class StatusReply(Body, frozen=True):
    """Done, or not."""

    op_ret: I32 = 0
    op_errno: I32 = 0
