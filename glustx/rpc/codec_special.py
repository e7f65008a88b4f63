"""The irregular layouts of program 400: READ's reply, WRITE's and PUT's payload, directory lists.

Payloads travel raw behind the XDR body, to the end of the record and unpadded; stock finds where they begin by the
size in the dict's header, which therefore must be exact. READ's reply has its xdata behind the attributes, not before
them.
"""

from __future__ import annotations

import errno
import struct
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError, told
from glustx.fops import FOPS, DirEntry, Fop, ReaddirReply, ReadReply, Reply
from glustx.rpc.codec import (
    _REPLY_HEAD,
    LAYOUT_400,
    FdLookup,
    FdNumber,
    FopCodec,
    compile_all,
    compile_codec,
    last_xdata,
    make_encode_error,
    opaque,
    read_opaque,
    read_xdata,
)
from glustx.rpc.xdr import XdrError
from glustx.values import NULL_GFID, Caller, Iatt, Loc
from glustx.xdata import EMPTY, NULL_RAW
from glustx.xdata_memo import XdataMemo

_READ_HEAD = struct.Struct(">IIIIIIIii16s8Q4q9II12s")  # RPC head, op_ret, op_errno, ix, size, NULL dict
_READ_REPLY = struct.Struct(">ii16s8Q4q9II")
_WRITE_CALL = struct.Struct(">16sqQII")
_READ_CALL = struct.Struct(">16sqQII12s")
_IX = struct.Struct(">16s8Q4q9I")
_ENTRY = struct.Struct(">IQQII")  # more, ino, off, len, type; then the name's own length
_ENTRY_BODY = struct.Struct(">QQII")
_U32 = struct.Struct(">I")
_IX_SIZE = 148
MAX_ENTRIES = 1 << 20

# Up to here one small copy beats a second buffer in the gathered write.
JOIN_LIMIT = 16384

astuple = msgspec.structs.astuple


def _decode_read(
    buf: Any, pos: int, end: int, find_fd: FdLookup, memo: XdataMemo, caller: Caller, ctime: int, stamp: int
) -> Fop:
    if pos + 52 > end:
        raise XdrError("record cut short")
    gfid, number, offset, size, flags, raw = _READ_CALL.unpack_from(buf, pos)
    xdata = EMPTY if raw == NULL_RAW and end - pos == 52 else last_xdata(memo, buf, pos + 40, end)
    fd = find_fd(gfid, number)
    return fops.Read(fd, offset, size, flags, xdata=xdata, caller=caller, ctime=ctime, stamp=stamp)


def _encode_read_reply(xid: int, reply: ReadReply, fd_number: int) -> list[Any]:
    data = reply.data
    size = len(data)
    err = errno.ENOENT if reply.eof else 0
    if reply.xdata is EMPTY:
        head = _READ_HEAD.pack(
            (196 + size) | 0x80000000, xid, 1, 0, 0, 0, 0, size, err, *astuple(reply.stat), size, NULL_RAW
        )
    else:
        raw = reply.xdata.raw
        head = b"".join(
            (
                _REPLY_HEAD.pack((184 + len(raw) + size) | 0x80000000, xid, 1, 0, 0, 0, 0, size, err),
                _IX.pack(*astuple(reply.stat)),
                _U32.pack(size),
                raw,
            )
        )
    if size <= JOIN_LIMIT:
        return [b"".join((head, data))]
    return [head, data]


def _decode_read_reply(buf: Any, pos: int, end: int, memo: XdataMemo) -> tuple[Reply, int | None]:
    if pos + 172 > end:
        raise XdrError("record cut short")
    values = _READ_REPLY.unpack_from(buf, pos)
    op_ret, op_errno = values[0], values[1]
    xdata, start = read_xdata(buf, pos + 160, end)
    if op_ret < 0:
        raise told(op_errno, "read", xdata or None)
    if end - start != op_ret:
        raise XdrError(f"READ reply of {op_ret} bytes carries {end - start}")
    data = bytes(memoryview(buf)[start:end])
    return ReadReply(data, Iatt(*values[2:24]), op_errno == errno.ENOENT, xdata=xdata), None


def _encode_read_error(xid: int, error: FopError) -> bytes:
    raw = error.xdata.raw if error.xdata is not None else NULL_RAW
    head = _REPLY_HEAD.pack((32 + 152 + len(raw)) | 0x80000000, xid, 1, 0, 0, 0, 0, -1, error.errno)
    return head + bytes(_IX_SIZE + 4) + raw


def _decode_write(
    buf: Any, pos: int, end: int, find_fd: FdLookup, memo: XdataMemo, caller: Caller, ctime: int, stamp: int
) -> Fop:
    if pos + 52 > end:
        raise XdrError("record cut short")
    gfid, number, offset, _, flags = _WRITE_CALL.unpack_from(buf, pos)
    # The announced size is ignored, as stock does: the payload is what follows the dict.
    if buf[pos + 40 : pos + 52] == NULL_RAW:
        xdata = EMPTY
        start = pos + 52
    else:
        (xdr_size,) = _U32.unpack_from(buf, pos + 40)
        start = pos + 52 + xdr_size + (-xdr_size % 4)
        if start > end:
            raise XdrError("WRITE announces more dict than the record holds")
        xdata = last_xdata(memo, buf, pos + 40, start)
    data = memoryview(buf)[start:end]
    fd = find_fd(gfid, number)
    return fops.Write(fd, offset, data, flags, xdata=xdata, caller=caller, ctime=ctime, stamp=stamp)


def _encode_write(req: fops.Write, number: FdNumber) -> tuple[bytes, Any]:
    fd = req.fd
    body = _WRITE_CALL.pack(fd.gfid, number(fd), req.offset, len(req.data), req.flags)
    return body + req.xdata.raw, req.data


_PUT = struct.Struct(">IIIQI")  # mode, umask, flags, offset, size


def _decode_put(
    buf: Any, pos: int, end: int, find_fd: FdLookup, memo: XdataMemo, caller: Caller, ctime: int, stamp: int
) -> Fop:
    if pos + 16 > end:
        raise XdrError("record cut short")
    pargfid = bytes(buf[pos : pos + 16])
    name, pos = read_opaque(buf, pos + 16, end)
    if pos + _PUT.size > end:
        raise XdrError("record cut short")
    mode, umask, flags, offset, size = _PUT.unpack_from(buf, pos)
    xattrs, pos = read_xdata(buf, pos + _PUT.size, end)
    xdata, pos = read_xdata(buf, pos, end)
    if end - pos != size:
        raise XdrError(f"PUT of {size} bytes carries {end - pos}")
    return fops.Put(
        Loc(pargfid=pargfid, name=name), mode, umask, flags, offset, memoryview(buf)[pos:end], xattrs,
        xdata=xdata, caller=caller, ctime=ctime, stamp=stamp,
    )  # fmt: skip


def _encode_put(req: fops.Put, number: FdNumber) -> tuple[bytes, Any]:
    head = _PUT.pack(req.mode, req.umask, req.flags, req.offset, len(req.data))
    body = b"".join((req.loc.pargfid, opaque(req.loc.name), head, req.xattrs.raw, req.xdata.raw))
    return body, req.data


def _encode_list(xid: int, reply: ReaddirReply, plus: bool) -> list[Any]:
    parts: list[bytes] = [reply.xdata.raw]
    for entry in reply.entries:
        name = entry.name
        size = len(name)
        parts.append(_ENTRY.pack(1, entry.ino, entry.off, size, entry.type))
        parts.append(opaque(name))
        if plus:
            stat = entry.stat
            parts.append(bytes(_IX_SIZE) if stat is None else _IX.pack(*astuple(stat)))
            parts.append(entry.xattrs.raw)
    parts.append(b"\0\0\0\0")
    body = b"".join(parts)
    err = errno.ENOENT if reply.eof else 0
    head = _REPLY_HEAD.pack((32 + len(body)) | 0x80000000, xid, 1, 0, 0, 0, 0, len(reply.entries), err)
    return [head + body]


def _decode_list(buf: Any, pos: int, end: int, plus: bool, fop: str) -> tuple[Reply, int | None]:
    if pos + 8 > end:
        raise XdrError("record cut short")
    op_ret, op_errno = struct.unpack_from(">ii", buf, pos)
    xdata, pos = read_xdata(buf, pos + 8, end)
    if op_ret < 0:
        raise told(op_errno, fop, xdata or None)
    entries: list[DirEntry] = []
    while True:
        if pos + 4 > end:
            raise XdrError("record cut short in a directory list")
        (more,) = _U32.unpack_from(buf, pos)
        pos += 4
        if not more:
            break
        if pos + 24 > end or len(entries) >= MAX_ENTRIES:
            raise XdrError("record cut short in a directory entry")
        ino, off, _, kind = _ENTRY_BODY.unpack_from(buf, pos)
        name, pos = read_opaque(buf, pos + 24, end)
        if not plus:
            entries.append(DirEntry(ino, off, kind, name))
            continue
        if pos + _IX_SIZE > end:
            raise XdrError("record cut short in a directory entry")
        stat = Iatt(*_IX.unpack_from(buf, pos))
        xattrs, pos = read_xdata(buf, pos + _IX_SIZE, end)
        # A null gfid means that the brick could not look at the entry: the caller must LOOKUP it.
        known = stat if stat.gfid != NULL_GFID else None
        entries.append(DirEntry(ino, off, kind, name, known, xattrs, stat.gfid))
    return ReaddirReply(tuple(entries), op_errno == errno.ENOENT, xdata=xdata), None


def _special() -> dict[type[Fop], FopCodec]:
    write, put = compile_codec(fops.Write), compile_codec(fops.Put)
    write.decode_call, write.encode_call = _decode_write, _encode_write
    put.decode_call, put.encode_call = _decode_put, _encode_put
    read = compile_codec(fops.Read)
    read.decode_call = _decode_read
    read.encode_reply = _encode_read_reply
    read.decode_reply = _decode_read_reply
    read.encode_error = _encode_read_error
    found: dict[type[Fop], FopCodec] = {fops.Read: read, fops.Write: write, fops.Put: put}
    for cls, plus in ((fops.Readdir, False), (fops.Readdirp, True)):
        codec = compile_codec(cls)
        codec.encode_reply = lambda xid, reply, fd_number, plus=plus: _encode_list(xid, reply, plus)
        codec.decode_reply = lambda buf, pos, end, memo, plus=plus, name=cls.name: _decode_list(
            buf, pos, end, plus, name
        )
        codec.encode_error = make_encode_error(bytes(4), LAYOUT_400)
        found[cls] = codec
    return found


FOP400: dict[int, FopCodec] = compile_all((cls for cls in FOPS.values() if cls.procnum >= 0), _special(), LAYOUT_400)
FOP400_BY_CLASS: dict[type[Fop], FopCodec] = {codec.cls: codec for codec in FOP400.values()}
