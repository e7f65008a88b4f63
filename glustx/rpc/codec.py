"""Codecs of the fop program, compiled from the declarations in `glustx.fops`.

For each fop four functions are generated as straight-line Python: decode and encode of the call's body, encode and
decode of the reply. Runs of fixed-size fields become one `struct` call; a reply without xdata is one `pack` of the
whole record, record mark and RPC header included. What cannot be generated (payloads, directory lists) is written out
in `codec_special.py`. A `Layout` says how one version of the program differs from the others; version 400's stands
here, 330's in `program_330.py`. Field layouts: stock's XDR types, as seen on the wire.
"""

from __future__ import annotations

import functools
import operator
import struct
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError, told
from glustx.fops import Fop, Reply
from glustx.inode import ANONYMOUS_FD, Fd
from glustx.rpc.xdr import XdrError
from glustx.values import NULL_GFID, ActiveLock, Caller, Flock, Iatt, LeaseInfo, Loc, Statvfs
from glustx.xdata import EMPTY, NULL_RAW, Xdata, XdataError, decode_at
from glustx.xdata_memo import XdataMemo

IX = "16s8Q4q9I"
IX_FIELDS = 22
MAX_NAME = 1 << 16

_U32 = struct.Struct(">I")
_REPLY_HEAD = struct.Struct(
    ">IIIIIIIii"
)  # mark, xid, REPLY, ACCEPTED, verf flavor, verf len, SUCCESS, op_ret, op_errno

# Wire types that have a fixed size: struct format and how many values it yields.
_FIXED = {
    "u32": ("I", 1),
    "i32": ("i", 1),
    "u64": ("Q", 1),
    "i64": ("q", 1),
    "gfid": ("16s", 1),
    "fd": ("16sq", 2),
    "remote": ("q", 1),
    "iatt": (IX, IX_FIELDS),
    "statfs": ("11Q", 11),
    "lease": ("II16sI", 4),
}


class FdLookup(typing.Protocol):
    """How the server finds an fd by the number a client sends with a gfid."""

    def __call__(self, gfid: bytes, number: int) -> Fd:
        """Return the fd; FopError EBADF when the number is not open."""


class FdNumber(typing.Protocol):
    """How the client finds the number that the brick knows an fd by."""

    def __call__(self, fd: Fd) -> int:
        """Return the remote number (-2 for an anonymous fd); FopError EBADFD when the fd is not open there."""


def read_opaque(buf: Any, pos: int, end: int, limit: int = MAX_NAME) -> tuple[bytes, int]:
    """Read an XDR string or opaque: its bytes and the position after its padding.

    Raises XdrError when it reaches past `end` or is longer than `limit`.
    """
    if pos + 4 > end:
        raise XdrError("record cut short in a string's length")
    (size,) = _U32.unpack_from(buf, pos)
    start = pos + 4
    after = start + size + (-size % 4)
    if after > end or size > limit:
        raise XdrError(f"string of {size} bytes does not fit")
    return bytes(buf[start : start + size]), after


def opaque(data: bytes) -> bytes:
    """Encode an XDR string or opaque."""
    size = len(data)
    return _U32.pack(size) + data + b"\0\0\0"[: -size % 4]


_FLOCK = struct.Struct(">IIQQI")


def read_flock(buf: Any, pos: int, end: int) -> tuple[Flock, int]:
    """Read `gf_proto_flock`."""
    if pos + 28 > end:
        raise XdrError("record cut short in a flock")
    kind, whence, start, length, pid = _FLOCK.unpack_from(buf, pos)
    owner, pos = read_opaque(buf, pos + 28, end, 1024)
    return Flock(kind, whence, start, length, pid, owner), pos


def put_flock(flock: Flock) -> bytes:
    """Encode `gf_proto_flock`."""
    return _FLOCK.pack(flock.type, flock.whence, flock.start, flock.len, flock.pid) + opaque(flock.lk_owner)


def read_locks(buf: Any, pos: int, end: int) -> tuple[tuple[ActiveLock, ...], int]:
    """Read the linked list of SETACTIVELK and of GETACTIVELK's reply."""
    locks: list[ActiveLock] = []
    while True:
        if pos + 4 > end:
            raise XdrError("record cut short in a lock list")
        (more,) = _U32.unpack_from(buf, pos)
        pos += 4
        if not more:
            return tuple(locks), pos
        flock, pos = read_flock(buf, pos, end)
        client, pos = read_opaque(buf, pos, end)
        if pos + 4 > end:
            raise XdrError("record cut short in a lock list")
        (flags,) = _U32.unpack_from(buf, pos)
        pos += 4
        locks.append(ActiveLock(flock, client.decode("utf-8", "surrogateescape"), flags))


def put_locks(locks: tuple[ActiveLock, ...]) -> bytes:
    """Encode that linked list."""
    parts: list[bytes] = []
    for lock in locks:
        client = opaque(lock.client.encode("utf-8", "surrogateescape"))
        parts.append(_U32.pack(1) + put_flock(lock.flock) + client + _U32.pack(lock.flags))
    return b"".join(parts) + _U32.pack(0)


def read_xdata(buf: Any, pos: int, end: int) -> tuple[Xdata, int]:
    """Read a dict that is not the last field."""
    if buf[pos : pos + 12] == NULL_RAW and pos + 12 <= end:
        return EMPTY, pos + 12
    try:
        return decode_at(buf, pos, end)
    except XdataError as error:
        raise XdrError(str(error)) from None


def last_xdata(memo: XdataMemo, buf: Any, pos: int, end: int) -> Xdata:
    """Read the dict that ends a body, through the connection's memo."""
    try:
        return memo.get(bytes(buf[pos:end]))
    except XdataError as error:
        raise XdrError(str(error)) from None


class Layout:
    """How one version of the program lays out what the declarations say.

    Args:
        version: of program 1298437.
        iatt: struct format of an iatt and how many values it yields.
        null: the bytes of a dictionary that is not there.
        xdata_last: whether a reply's xdata ends it; otherwise it follows op_errno.
        zeroes: whether GETXATTR's and XATTROP's replies carry attributes that nobody fills.
        wire: bodies of calls that are not as declared, in the language of `Fop.wire`.
        unsent: fields that replies lack, and what they are for who receives one.
        names: what generated code calls: `iatt_values` and `make_iatt`, `read_xdata` and `last_xdata`.
        put: encodes a dictionary; None takes the bytes that it keeps of itself.
    """

    __slots__ = ("fixed", "names", "null", "put", "unsent", "version", "wire", "xdata_last", "zeroes")

    def __init__(
        self,
        version: int,
        iatt: tuple[str, int],
        null: bytes,
        names: dict[str, Any],
        *,
        xdata_last: bool = False,
        zeroes: bool = True,
        wire: dict[type[Fop], tuple[str, ...]] | None = None,
        unsent: dict[type[Reply], dict[str, str]] | None = None,
        put: Callable[[Xdata], bytes] | None = None,
    ) -> None:
        self.version = version
        self.fixed = {**_FIXED, "iatt": iatt}
        self.null = null
        self.names = {**_NAMES, **names, "NULL": null, "put_xdata": put}
        self.put = put or operator.attrgetter("raw")
        self.xdata_last = xdata_last
        self.zeroes = zeroes
        self.wire = wire or {}
        self.unsent = unsent or {}

    def put_expression(self, xdata: str) -> str:
        """Return the expression that encodes the dictionary which `xdata` stands for."""
        return f"put_xdata({xdata})" if self.names["put_xdata"] else f"{xdata}.raw"


class FopCodec:
    """The four functions of one fop.

    decode_call(buf, pos, end, find_fd, memo, caller, ctime, stamp) -> Fop; XdrError for a malformed body.
    encode_call(req, number) -> (body, payload or None); the body ends with the xdata.
    encode_reply(xid, reply, fd_number) -> list of pieces, a whole record.
    decode_reply(buf, pos, end, memo) -> (reply, fd number or None); FopError for a failed fop, XdrError for a
    malformed body. encode_error(xid, error) -> a whole record: every field of the body is there, zeroed.

    Each is compiled when it is first asked for, or by `compile`: a client needs a few of them, and all take longer than
    everything else that happens when a volume is mounted.
    """

    __slots__ = ("cls", "decode_call", "decode_reply", "encode_call", "encode_error", "encode_reply", "layout", "name")

    decode_call: Callable[..., Fop]
    encode_call: Callable[..., tuple[bytes, Any]]
    encode_reply: Callable[..., list[Any]]
    decode_reply: Callable[..., tuple[Reply, int | None]]
    encode_error: Callable[[int, FopError], bytes]

    def __init__(self, cls: type[Fop], layout: Layout) -> None:
        self.cls = cls
        self.name = cls.name
        self.layout = layout

    def __getattr__(self, part: str) -> Callable[..., Any]:
        make = _PARTS.get(part)
        if make is None:
            raise AttributeError(f"a codec has no {part}")
        try:
            function = make(self.cls, self.layout)
        except _Irregular:
            function = _irregular
        setattr(self, part, function)
        return function

    def compile(self) -> None:
        """Compile what is not compiled yet: for who answers any fop and lets nobody wait."""
        for part in _PARTS:
            getattr(self, part)


class _Irregular(TypeError):
    """A field that no generated code can carry."""


class Term(typing.NamedTuple):
    """One field of a body: the expression it comes from, and its wire type."""

    path: str
    wire: str


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _wire_type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Annotated:
        return str(typing.get_args(hint)[1])
    known = {Iatt: "iatt", Flock: "flock", LeaseInfo: "lease", Xdata: "xdata", Statvfs: "statfs", Loc: "gfid", Fd: "fd"}
    if hint in known:
        return known[hint]
    if hint == tuple[ActiveLock, ...]:
        return "locks"
    raise _Irregular(f"no wire type for {hint!r}")


def call_terms(cls: type[Fop], layout: Layout | None = None) -> list[Term]:
    """Return the fields of a call's body in wire order (version 400's by default), without the xdata behind them."""
    hints = _hints(cls)
    terms: list[Term] = []
    for word in layout.wire.get(cls, cls.wire) if layout else cls.wire:
        field, _, part = word.partition(".")
        if part in ("gfid", "pargfid"):
            terms.append(Term(word, "gfid"))
        elif part == "name":
            terms.append(Term(word, "str"))
        elif part == "remote":
            terms.append(Term(word, "remote"))
        else:
            wire = _wire_type(hints[field])
            terms.append(Term(f"{word}.gfid" if hints[field] is Loc else word, wire))
    return terms


# Terms of a reply that are no field of it. Not identifiers, so that no field can have such a path.
ZEROES = "<zeroes>"  # attributes that stock sends zeroed and nobody reads
FD_NUMBER = "<fd>"  # the number that the brick gives the request's fd


def _var(path: str) -> str:
    return "fd_number" if path == FD_NUMBER else "v_" + path.replace(".", "_")


class _Source:
    """Lines of a generated function and the names it uses."""

    def __init__(self, head: str, names: dict[str, Any]) -> None:
        self.lines = [head]
        self.names = dict(names)
        self.count = 0

    def add(self, line: str) -> None:
        self.lines.append("    " + line)

    def struct(self, fmt: str) -> str:
        self.count += 1
        name = f"S{self.count}"
        self.names[name] = struct.Struct(">" + fmt)
        return name

    def make(self, what: str) -> Callable[..., Any]:
        text = "\n".join(self.lines) + "\n"
        exec(compile(text, f"<codec of {what}>", "exec"), self.names)
        made: Callable[..., Any] = self.names["f"]
        return made


_NAMES: dict[str, Any] = {
    "Caller": Caller,
    "EMPTY": EMPTY,
    "Fd": Fd,
    "Flock": Flock,
    "LeaseInfo": LeaseInfo,
    "Loc": Loc,
    "NULL_GFID": NULL_GFID,
    "Statvfs": Statvfs,
    "XdrError": XdrError,
    "astuple": msgspec.structs.astuple,
    "opaque": opaque,
    "told": told,
    "put_flock": put_flock,
    "put_locks": put_locks,
    "read_flock": read_flock,
    "read_locks": read_locks,
    "read_opaque": read_opaque,
}
_BUILD = {"iatt": "make_iatt", "statfs": "Statvfs", "lease": "LeaseInfo"}
_VALUES = {"iatt": "iatt_values", "statfs": "astuple", "lease": "astuple"}


def _decode_fields(src: _Source, terms: list[Term], layout: Layout) -> None:
    """Emit code that reads `terms` from buf at pos into v_* variables."""
    fixed = layout.fixed
    i = 0
    while i < len(terms):
        run: list[Term] = []
        while i < len(terms) and terms[i].wire in fixed:
            run.append(terms[i])
            i += 1
        if run:
            fmt = "".join(fixed[t.wire][0] for t in run)
            packed = src.struct(fmt)
            size = src.names[packed].size
            targets: list[str] = []
            after: list[str] = []
            for t in run:
                var = _var(t.path)
                count = fixed[t.wire][1]
                if t.wire == "fd":
                    targets += [f"{var}_gfid", f"{var}_no"]
                elif count > 1:
                    parts = [f"{var}_{k}" for k in range(count)]
                    targets += parts
                    after.append(f"{var} = {_BUILD[t.wire]}({', '.join(parts)})")
                else:
                    targets.append(var)
            src.add(f"if pos + {size} > end: raise XdrError('record cut short')")
            src.add(f"{', '.join(targets)}, = {packed}.unpack_from(buf, pos)")
            src.add(f"pos += {size}")
            for line in after:
                src.add(line)
            continue
        t = terms[i]
        i += 1
        var = _var(t.path)
        if t.wire in ("str", "opaque"):
            src.add(f"{var}, pos = read_opaque(buf, pos, end)")
        elif t.wire == "presence-str":
            src.add(f"{var}, pos = read_opaque(buf, pos + 4, end)")
        elif t.wire == "presence64-str":
            src.add(f"{var}, pos = read_opaque(buf, pos + 8, end)")
        elif t.wire == "flock":
            src.add(f"{var}, pos = read_flock(buf, pos, end)")
        elif t.wire == "locks":
            src.add(f"{var}, pos = read_locks(buf, pos, end)")
        elif t.wire == "xdata":
            src.add(f"{var}, pos = read_xdata(buf, pos, end)")
        else:
            raise _Irregular(f"cannot decode wire type {t.wire}")


def _call_arguments(cls: type[Fop], terms: list[Term]) -> list[str]:
    """Emit the constructor's arguments from the v_* variables."""
    hints = _hints(cls)
    own = [f for f in cls.__struct_fields__ if f not in Fop.__struct_fields__]
    paths = {t.path for t in terms}
    arguments: list[str] = []
    for field in own:
        if hints[field] is Loc:
            parts = [f"{p}={_var(f'{field}.{p}')}" for p in ("gfid", "pargfid", "name") if f"{field}.{p}" in paths]
            arguments.append(f"{field}=Loc({', '.join(parts)})")
        elif hints[field] is Fd:
            if field in paths:
                arguments.append(f"{field}=find_fd({_var(field)}_gfid, {_var(field)}_no)")
            elif f"{field}.remote" in paths:
                gfid = _var(f"{field}.gfid") if f"{field}.gfid" in paths else "NULL_GFID"
                arguments.append(f"{field}=find_fd({gfid}, {_var(field + '.remote')})")
            else:
                gfid = "v_loc_gfid" if "loc.gfid" in paths else "b''"
                flags = "v_flags" if "flags" in paths else "0"
                directory = ", directory=True" if cls is fops.Opendir else ""
                arguments.append(f"{field}=Fd({gfid}, {flags}{directory}, client=caller.client)")
        elif field in paths:
            arguments.append(f"{field}={_var(field)}")
    return arguments


def _make_decode_call(cls: type[Fop], layout: Layout) -> Callable[..., Fop]:
    terms = call_terms(cls, layout)
    src = _Source("def f(buf, pos, end, find_fd, memo, caller, ctime, stamp):", {**layout.names, "cls": cls})
    _decode_fields(src, terms, layout)
    src.add("xdata = last_xdata(memo, buf, pos, end)")
    arguments = _call_arguments(cls, terms)
    src.add(f"return cls({', '.join([*arguments, 'xdata=xdata, caller=caller, ctime=ctime, stamp=stamp'])})")
    return src.make(f"{cls.name} call")


def _encode_fields(src: _Source, terms: list[Term], owner: str, layout: Layout) -> list[str]:
    """Return expressions whose concatenation is the body of `terms`."""
    fixed = layout.fixed
    pieces: list[str] = []
    i = 0
    while i < len(terms):
        run: list[Term] = []
        while i < len(terms) and terms[i].wire in fixed:
            run.append(terms[i])
            i += 1
        if run:
            packed = src.struct("".join(fixed[t.wire][0] for t in run))
            values: list[str] = []
            for t in run:
                expr = f"{owner}.{t.path}"
                if t.wire == "fd":
                    values += [f"{expr}.gfid", f"number({expr})"]
                elif t.wire == "remote":
                    values.append(f"number({owner}.{t.path.split('.')[0]})")
                elif fixed[t.wire][1] > 1:
                    values.append(f"*{_VALUES[t.wire]}({expr})")
                else:
                    values.append(expr)
            pieces.append(f"{packed}.pack({', '.join(values)})")
            continue
        t = terms[i]
        i += 1
        expr = f"{owner}.{t.path}"
        if t.wire in ("str", "opaque"):
            pieces.append(f"opaque({expr})")
        elif t.wire == "presence-str":
            pieces.append(f"(b'\\0\\0\\0\\1' if {expr} else b'\\0\\0\\0\\0') + opaque({expr})")
        elif t.wire == "presence64-str":
            pieces.append(f"(b'\\0\\0\\0\\0\\0\\0\\0\\1' if {expr} else bytes(8)) + opaque({expr})")
        elif t.wire == "flock":
            pieces.append(f"put_flock({expr})")
        elif t.wire == "locks":
            pieces.append(f"put_locks({expr})")
        elif t.wire == "xdata":
            pieces.append(layout.put_expression(expr))
        else:
            raise _Irregular(f"cannot encode wire type {t.wire}")
    return pieces


def _make_encode_call(cls: type[Fop], layout: Layout) -> Callable[..., tuple[bytes, Any]]:
    src = _Source("def f(req, number):", layout.names)
    pieces = _encode_fields(src, call_terms(cls, layout), "req", layout)
    pieces.append(layout.put_expression("req.xdata"))
    src.add(f"return b''.join(({', '.join(pieces)},)), None")
    return src.make(f"{cls.name} call")


def reply_terms(cls: type[Fop], layout: Layout | None = None) -> tuple[str, list[Term]]:
    """Return the expression of op_ret and the terms besides `op_ret, op_errno, xdata`: fields, ZEROES, FD_NUMBER."""
    hints = _hints(cls.reply)
    unsent = layout.unsent.get(cls.reply, {}) if layout else {}
    ret = "0"
    terms: list[Term] = []
    for field in cls.reply.__struct_fields__:
        if field == "xdata" or field in unsent:
            continue
        wire = _wire_type(hints[field])
        if wire == "op_ret":
            ret = f"reply.{field}"
        else:
            terms.append(Term(field, wire))
    if (layout is None or layout.zeroes) and cls.reply in (fops.XattrReply, fops.XattropReply):
        terms += [Term(ZEROES, "iatt"), Term(ZEROES, "iatt")]
    if cls.reply is fops.ReadlinkReply:
        ret = "len(reply.path)"
    if cls.reply is fops.ActiveLksReply:
        ret = "len(reply.locks)"  # a stock client looks at the list only when this is not 0
    if cls is fops.Open or cls is fops.Opendir:
        terms = [Term(FD_NUMBER, "i64")]
    if cls is fops.Create:
        terms.insert(1, Term(FD_NUMBER, "u64"))
    return ret, terms


def _make_encode_reply(cls: type[Fop], layout: Layout) -> Callable[..., list[Any]]:
    ret, terms = reply_terms(cls, layout)
    fixed = layout.fixed
    src = _Source(
        "def f(xid, reply, fd_number):",
        {**layout.names, "head": _REPLY_HEAD.pack, "ZERO_IATT": bytes(struct.calcsize(">" + fixed["iatt"][0]))},
    )
    if all(t.wire in fixed for t in terms) and not any(t.path == ZEROES for t in terms):
        null = f"{len(layout.null)}s"
        fmt = "".join(fixed[t.wire][0] for t in terms)
        packed = src.struct("IIIIIIIii" + (fmt + null if layout.xdata_last else null + fmt))
        mark = (src.names[packed].size - 4) | 0x80000000
        values = []
        for t in terms:
            if t.path == FD_NUMBER:
                values.append("fd_number")
            elif fixed[t.wire][1] > 1:
                values.append(f"*{_VALUES[t.wire]}(reply.{t.path})")
            else:
                values.append(f"reply.{t.path}")
        src.add("if reply.xdata is EMPTY:")
        values.insert(len(values) if layout.xdata_last else 0, "NULL")
        fields = ", ".join([f"{mark}, xid, 1, 0, 0, 0, 0, {ret}, 0", *values])
        src.add(f"    return [{packed}.pack({fields})]")
    pieces: list[str] = []
    for t in terms:
        if t.path == ZEROES:
            pieces.append("ZERO_IATT")
        elif t.path == FD_NUMBER:
            packed = src.struct(fixed[t.wire][0])
            pieces.append(f"{packed}.pack(fd_number)")
        else:
            pieces += _encode_fields(src, [t], "reply", layout)
    pieces.insert(len(pieces) if layout.xdata_last else 0, layout.put_expression("reply.xdata"))
    src.add(f"body = b''.join(({', '.join(pieces)},))")
    src.add(f"return [head((32 + len(body)) | 0x80000000, xid, 1, 0, 0, 0, 0, {ret}, 0) + body]")
    return src.make(f"{cls.name} reply")


def _make_decode_reply(cls: type[Fop], layout: Layout) -> Callable[..., tuple[Reply, int | None]]:
    ret, terms = reply_terms(cls, layout)
    src = _Source("def f(buf, pos, end, memo):", {**layout.names, "cls": cls.reply, "name": cls.name})
    head = src.struct("ii")
    src.add("if pos + 8 > end: raise XdrError('record cut short')")
    src.add(f"op_ret, op_errno = {head}.unpack_from(buf, pos)")
    src.add("pos += 8")
    failed = "if op_ret < 0: raise told(op_errno, name, xdata or None)"
    if not layout.xdata_last:
        src.add("xdata, pos = read_xdata(buf, pos, end)")
        src.add(failed)
    shown = [t for t in terms if t.path != ZEROES]
    _decode_fields(src, shown, layout)
    unseen = len(zero_body([t for t in terms if t.path == ZEROES], layout))
    if unseen:
        src.add(f"if pos + {unseen} > end: raise XdrError('record cut short')")
    if layout.xdata_last:
        src.add("xdata, pos = read_xdata(buf, pos, end)")
        src.add(failed)
    arguments = [f"{t.path}={_var(t.path)}" for t in shown if t.path != FD_NUMBER]
    if ret.startswith("reply."):
        arguments.append(f"{ret.split('.')[1]}=op_ret")
    arguments += [f"{field}={value}" for field, value in layout.unsent.get(cls.reply, {}).items()]
    fd = "fd_number" if any(t.path == FD_NUMBER for t in terms) else "None"
    src.add(f"return cls({', '.join([*arguments, 'xdata=xdata'])}), {fd}")
    return src.make(f"{cls.name} reply")


def zero_body(terms: list[Term], layout: Layout) -> bytes:
    """Return the fields of a reply, all zero, as an error reply carries them."""
    out = b""
    for t in terms:
        if t.wire in layout.fixed:
            out += bytes(struct.calcsize(">" + layout.fixed[t.wire][0]))
        elif t.wire == "flock":
            out += bytes(32)
        elif t.wire == "xdata":
            out += layout.null
        else:
            out += bytes(4)
    return out


def make_encode_error(fields: bytes, layout: Layout) -> Callable[[int, FopError], bytes]:
    """Return encode_error for a fop whose reply has `fields` besides op_ret, op_errno and xdata."""
    size = len(fields)
    put, last = layout.put, layout.xdata_last

    def encode_error(xid: int, error: FopError) -> bytes:
        raw = put(error.xdata) if error.xdata is not None else layout.null
        mark = (32 + len(raw) + size) | 0x80000000
        head = _REPLY_HEAD.pack(mark, xid, 1, 0, 0, 0, 0, -1, error.errno)
        return b"".join((head, fields, raw) if last else (head, raw, fields))

    return encode_error


def _irregular(*_: Any) -> Any:
    raise TypeError("this layout is written by hand in codec_special.py")


_PARTS: dict[str, Callable[[type[Fop], Layout], Callable[..., Any]]] = {
    "decode_call": _make_decode_call,
    "encode_call": _make_encode_call,
    "encode_reply": _make_encode_reply,
    "decode_reply": _make_decode_reply,
    "encode_error": lambda cls, layout: make_encode_error(zero_body(reply_terms(cls, layout)[1], layout), layout),
}


def compile_codec(cls: type[Fop], layout: Layout | None = None) -> FopCodec:
    """Return the codec of a fop, for version 400 by default; a part whose layout is irregular raises TypeError when it
    is used."""
    return FopCodec(cls, layout or LAYOUT_400)


def compile_all(fops: Iterable[type[Fop]], special: dict[type[Fop], FopCodec], layout: Layout) -> dict[int, FopCodec]:
    """Return the codecs of `fops` by procedure number; `special` ones win."""
    return {cls.procnum: special.get(cls) or compile_codec(cls, layout) for cls in fops}


LAYOUT_400 = Layout(
    400,
    (IX, IX_FIELDS),
    NULL_RAW,
    {
        "iatt_values": msgspec.structs.astuple,
        "last_xdata": last_xdata,
        "make_iatt": Iatt,
        "read_xdata": read_xdata,
    },
)


def anonymous(gfid: bytes, number: int, client: str = "") -> Fd | None:
    """Return an anonymous fd for the wire's number -2, else None."""
    return Fd(gfid, 2, anonymous=True, client=client) if number == ANONYMOUS_FD else None
