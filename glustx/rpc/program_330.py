"""Program 1298437 version 330, which GlusterFS 3.x speaks, and later clients with `testing.old-protocol`.

It has the procedures up to 52 with the same numbers and, but for RCHECKSUM and FSETATTR, the same fields as version
400. Attributes are the shorter `gf_iatt`, dictionaries are untyped (`program_330_xdata.py`), and a reply's xdata comes
last. Source: the XDR types of stock's `glusterfs3-xdr.x`, as seen on the wire.
"""

from __future__ import annotations

import errno
import struct
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopError, told
from glustx.fops import DirEntry, Fop, ReaddirReply, ReadReply, Reply
from glustx.rpc import programs as p
from glustx.rpc.codec import (
    _REPLY_HEAD,
    FdLookup,
    FdNumber,
    FopCodec,
    Layout,
    compile_all,
    compile_codec,
    last_xdata,
    make_encode_error,
    opaque,
    read_opaque,
)
from glustx.rpc.codec_special import JOIN_LIMIT, MAX_ENTRIES
from glustx.rpc.program_330_iatt import GF_IATT, OLD_IATT, iatt_values, make_iatt
from glustx.rpc.program_330_xdata import NULL_330, put_xdata, read_xdata
from glustx.rpc.xdr import XdrError
from glustx.values import NULL_GFID, Caller, Loc
from glustx.xdata_memo import XdataMemo

_U32 = struct.Struct(">I")
_READ_REPLY = struct.Struct(f">ii{GF_IATT}I")
_WRITE_CALL = struct.Struct(">16sqQII")
_ENTRY = struct.Struct(">IQQII")  # more, ino, off, len, type; then the name's own length
_ENTRY_BODY = struct.Struct(">QQII")
_MD5_SIZE = 16


LAYOUT_330 = Layout(
    330,
    (GF_IATT, 17),
    NULL_330,
    {"iatt_values": iatt_values, "make_iatt": make_iatt, "read_xdata": read_xdata, "last_xdata": last_xdata},
    xdata_last=True,
    zeroes=False,
    wire={fops.Rchecksum: ("fd.remote", "offset", "size"), fops.Fsetattr: ("fd.remote", "stat", "valid")},
    # A brick that sums with SHA-256 says so in xdata and sends the half of it that fits.
    unsent={fops.RchecksumReply: {"flags": "1 if xdata.number(b'fips-mode-rchecksum') else 0"}},
    put=put_xdata,
)


def by_gfid(req: Fop) -> Fop:
    """Return the request as it can travel: two calls name a file by the number of its fd alone.

    FSETATTR on an anonymous fd becomes SETATTR, whose answer is the same. Raises FopError EBADF for RCHECKSUM on one.
    """
    kind = type(req)
    if kind is fops.Fsetattr and req.fd.anonymous:  # type: ignore[attr-defined]
        fd, stat, valid = req.fd, req.stat, req.valid  # type: ignore[attr-defined]
        return req.also(fops.Setattr, Loc(gfid=fd.gfid), stat, valid, xdata=req.xdata)
    if kind is fops.Rchecksum and req.fd.anonymous:  # type: ignore[attr-defined]
        raise FopError(errno.EBADF, "rchecksum: program 330 needs a file that is open")
    return req


def _encode_read_reply(xid: int, reply: ReadReply, fd_number: int) -> list[Any]:
    data = reply.data
    size = len(data)
    err = errno.ENOENT if reply.eof else 0
    raw = put_xdata(reply.xdata)
    body = _READ_REPLY.pack(size, err, *iatt_values(reply.stat), size) + raw
    mark = (24 + len(body) + size) | 0x80000000
    head = struct.pack(">7I", mark, xid, 1, 0, 0, 0, 0) + body
    if size <= JOIN_LIMIT:
        return [b"".join((head, data))]
    return [head, data]


def _decode_read_reply(buf: Any, pos: int, end: int, memo: XdataMemo) -> tuple[Reply, int | None]:
    if pos + _READ_REPLY.size > end:
        raise XdrError("record cut short")
    op_ret, op_errno, *stat, _ = _READ_REPLY.unpack_from(buf, pos)
    xdata, start = read_xdata(buf, pos + _READ_REPLY.size, end)
    if op_ret < 0:
        raise told(op_errno, "read", xdata or None)
    if end - start != op_ret:
        raise XdrError(f"READ reply of {op_ret} bytes carries {end - start}")
    data = bytes(memoryview(buf)[start:end])
    return ReadReply(data, make_iatt(*stat), op_errno == errno.ENOENT, xdata=xdata), None


def _decode_write(
    buf: Any, pos: int, end: int, find_fd: FdLookup, memo: XdataMemo, caller: Caller, ctime: int, stamp: int
) -> Fop:
    at = pos + _WRITE_CALL.size
    if at + 4 > end:
        raise XdrError("record cut short")
    gfid, number, offset, _, flags = _WRITE_CALL.unpack_from(buf, pos)
    (length,) = _U32.unpack_from(buf, at)
    start = at + 4 + length + (-length % 4)
    if start > end:
        raise XdrError("WRITE announces more dict than the record holds")
    xdata = last_xdata(memo, buf, at, start)
    # The announced size is ignored, as stock does: the payload is what follows the dict.
    data = memoryview(buf)[start:end]
    fd = find_fd(gfid, number)
    return fops.Write(fd, offset, data, flags, xdata=xdata, caller=caller, ctime=ctime, stamp=stamp)


def _encode_write(req: fops.Write, number: FdNumber) -> tuple[bytes, Any]:
    fd = req.fd
    body = _WRITE_CALL.pack(fd.gfid, number(fd), req.offset, len(req.data), req.flags)
    return body + put_xdata(req.xdata), req.data


def _encode_list(xid: int, reply: ReaddirReply, plus: bool) -> list[Any]:
    parts: list[bytes] = []
    for entry in reply.entries:
        name = entry.name
        parts.append(_ENTRY.pack(1, entry.ino, entry.off, len(name), entry.type))
        parts.append(opaque(name))
        if plus:
            stat = entry.stat
            parts.append(bytes(OLD_IATT.size) if stat is None else OLD_IATT.pack(*iatt_values(stat)))
            parts.append(put_xdata(entry.xattrs))
    parts.append(b"\0\0\0\0")
    parts.append(put_xdata(reply.xdata))
    body = b"".join(parts)
    err = errno.ENOENT if reply.eof else 0
    head = _REPLY_HEAD.pack((32 + len(body)) | 0x80000000, xid, 1, 0, 0, 0, 0, len(reply.entries), err)
    return [head + body]


def _decode_list(buf: Any, pos: int, end: int, plus: bool, fop: str) -> tuple[Reply, int | None]:
    if pos + 8 > end:
        raise XdrError("record cut short")
    op_ret, op_errno = struct.unpack_from(">ii", buf, pos)
    pos += 8
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
        if pos + OLD_IATT.size > end:
            raise XdrError("record cut short in a directory entry")
        stat = make_iatt(*OLD_IATT.unpack_from(buf, pos))
        xattrs, pos = read_xdata(buf, pos + OLD_IATT.size, end)
        # A null gfid means that the brick could not look at the entry: the caller must LOOKUP it.
        known = stat if stat.gfid != NULL_GFID else None
        entries.append(DirEntry(ino, off, kind, name, known, xattrs, stat.gfid))
    xdata, _ = read_xdata(buf, pos, end)
    if op_ret < 0:
        raise told(op_errno, fop, xdata or None)
    return ReaddirReply(tuple(entries), op_errno == errno.ENOENT, xdata=xdata), None


def _special() -> dict[type[Fop], FopCodec]:
    write = compile_codec(fops.Write, LAYOUT_330)
    write.decode_call, write.encode_call = _decode_write, _encode_write
    read = compile_codec(fops.Read, LAYOUT_330)
    read.encode_reply, read.decode_reply = _encode_read_reply, _decode_read_reply
    read.encode_error = make_encode_error(bytes(OLD_IATT.size + 4), LAYOUT_330)
    sums = compile_codec(fops.Rchecksum, LAYOUT_330)
    whole = sums.encode_reply

    def encode_sums(xid: int, reply: fops.RchecksumReply, fd_number: int) -> list[Any]:
        # Stock's clients of this version read 16 bytes, however long the sum is.
        strong = reply.strong[:_MD5_SIZE].ljust(_MD5_SIZE, b"\0")
        return whole(xid, msgspec.structs.replace(reply, strong=strong), fd_number)

    sums.encode_reply = encode_sums
    found: dict[type[Fop], FopCodec] = {fops.Read: read, fops.Write: write, fops.Rchecksum: sums}
    for cls, plus in ((fops.Readdir, False), (fops.Readdirp, True)):
        codec = compile_codec(cls, LAYOUT_330)
        codec.encode_reply = lambda xid, reply, fd_number, plus=plus: _encode_list(xid, reply, plus)
        codec.decode_reply = lambda buf, pos, end, memo, plus=plus, name=cls.name: _decode_list(
            buf, pos, end, plus, name
        )
        codec.encode_error = make_encode_error(bytes(4), LAYOUT_330)
        found[cls] = codec
    return found


FOP330: dict[int, FopCodec] = compile_all(p.fop_procedures(330).values(), _special(), LAYOUT_330)
