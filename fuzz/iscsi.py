"""A whole iSCSI target under bytes that make no sense: before login, in a session, and as PDUs in a session.

The first byte picks one of the three and in which pieces the rest arrives. In a session digests may be on. As PDUs, an
input is read in steps of 50 bytes: what to set right (length, CmdSN, digests), how much data there are, and a header.
The network and the clock are in memory, so an input runs the same way every time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from glustx.iscsi import pdu as p
from glustx.iscsi.login import Login
from glustx.iscsi.server import Limits
from glustx.iscsi.text import TextError, encode, parse
from glustx.scsi.config import AclConfig
from tests.iscsi import TARGET, TEST_UNIT_READY, World, read_10, write_10

CHUNKS = (1 << 16, 4096, 100, 48, 7)
STEP = 50
_CHAP = (AclConfig(user="user", password="secretsecret", mutual_user="target", mutual_password="othersecret!"),)
logging.getLogger("glustx.iscsi").addHandler(logging.NullHandler())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("glustx.iscsi")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def iscsi(data: bytes) -> None:
    """What a target answers does not depend on the pieces in which bytes arrive; others are served meanwhile; when all
    is over no memory is missing."""
    if data:
        mode, chunk = data[0] % 3, CHUNKS[data[0] // 6 % len(CHUNKS)]
        with _quiet():
            answers = [_run(mode, bool(data[0] // 3 % 2), size, data[1:]) for size in {CHUNKS[0], chunk}]
        assert answers[0] == answers[-1], f"another answer to pieces of {chunk}"


def _run(mode: int, digests: bool, chunk: int, data: bytes) -> list[tuple[str, bytes]]:
    world = World(chunk=chunk, blocks=64, limits=Limits(memory=1 << 16, session_memory=1 << 15, ping_interval=0))
    complaints = _Complaints()
    world.server.complaints = complaints  # type: ignore[assignment]
    kinds = ("CRC32C",) if digests else ("None",)
    host: Any = world.initiator()
    if mode:
        assert host.login(header_digest=kinds, data_digest=kinds).status_class == 0
        host.exp_stat_sn = 0
    if mode == 2:
        for at in range(0, len(data), STEP):
            _send(host, data[at : at + STEP])
            world.reactor.run()
    else:
        host.channel.write([data])
    world.reactor.run()
    got = [(repr(pdu.head), pdu.data) for pdu in host.pdus]
    assert world.logged_in(number=9).do(TEST_UNIT_READY).status == 0, "others are not served"
    world.server.stop()
    world.reactor.run()
    assert not world.server.memory.budget.used, f"{world.server.memory.budget.used} bytes of memory are lost"
    assert not world.server.sessions and not world.disk.nexuses
    return got


def _send(host: Any, step: bytes) -> None:
    what, much = step[0], step[1] if len(step) > 1 else 0
    head = bytearray(step[2:].ljust(p.BHS, b"\0"))
    if what & 1:
        head[24:28] = host.cmd_sn.to_bytes(4, "big")
        host.cmd_sn = (host.cmd_sn + (not head[0] & p.IMMEDIATE)) & 0xFFFFFFFF
    size = much << 6 if what & 2 else much
    if what & 4:
        head[5:8] = size.to_bytes(3, "big")
        head[4] = 0
    try:
        pdu = p.decode(bytes(head))
    except p.PduError:
        host.channel.write([head])
        return
    body = bytes([what]) * pdu.data_length if what & 4 else b""
    host.channel.write([host.raw(pdu, body) if what & 4 else bytes(head)])


class _Complaints:
    total = 0

    def say(self, peer: str, text: str) -> None:
        assert "fault of this side" not in text, text

    def flush(self) -> None:
        pass


def iscsi_login(data: bytes) -> None:
    """Texts, and the login that is made of them: `flags, length of the text, text` over and over."""
    with contextlib.suppress(TextError):
        pairs = parse(data)
        assert parse(encode(pairs)) == pairs
    world = World(acls=_CHAP if data[:1] < b"\x80" else (), blocks=1)
    login = Login(world.server, "127.0.0.1", lambda size: bytes(size))
    at = 1
    while at + 2 <= len(data) and not login.refused and not login.done:
        flags, size = data[at], data[at + 1]
        text = data[at + 2 : at + 2 + size]
        at += 2 + size
        response, told = login.request(p.LoginRequest(immediate=True, flags=flags), text)
        assert p.LoginResponse.decode(response.encode()) == response
        assert len(told) <= 8192
        assert bool(response.status_class) == bool(login.refused)
    assert "secret" not in login.refused.replace("wrong user or secret", "").replace("no mutual secret", "")


def iscsi_seeds() -> Iterator[tuple[Any, bytes]]:
    """Yield (target, input): what an initiator sends in its first moments, and a few PDUs of every kind."""
    names = encode(
        [("InitiatorName", "iqn.2026-12.org.example:a"), ("TargetName", TARGET), ("AuthMethod", "CHAP,None")]
    )
    more = encode([("CHAP_A", "5,8"), ("MaxBurstLength", "0x1000"), ("HeaderDigest", "CRC32C,None")])
    proof = encode([("CHAP_N", "user"), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", "0b" + "AAAA")])
    for first in (b"\0", b"\xff"):
        steps = [(0x81, names), (0x04, more), (0x87, proof)]
        yield iscsi_login, first + b"".join(bytes([flags, len(text)]) + text for flags, text in steps)
    login = p.LoginRequest(immediate=True, flags=0x87, cmd_sn=1, data_length=len(names)).encode() + names
    login += bytes(-len(names) & 3)
    commands = [
        p.ScsiCommand(flags=0xC1, itt=1, length=512, cdb=read_10(0, 1).ljust(16, b"\0")),
        p.ScsiCommand(flags=0xA1, itt=2, length=1024, cdb=write_10(0, 2).ljust(16, b"\0")),
        p.DataOut(itt=2, ttt=1),
        p.ScsiCommand(flags=0x21, itt=3, length=16384, cdb=write_10(0, 32).ljust(16, b"\0")),
        p.DataOut(itt=3, offset=64),
        p.TaskManagement(immediate=True, flags=0x82, itt=4),
        p.NopOut(itt=5),
        p.TextRequest(itt=6),
        p.Snack(itt=7),
        p.LogoutRequest(itt=8),
    ]
    stream = b""
    for number, pdu in enumerate(commands, 1):
        if hasattr(pdu, "cmd_sn"):
            pdu.cmd_sn = number
        stream += pdu.encode()
    for chunk in range(len(CHUNKS)):
        yield iscsi, bytes([6 * chunk]) + login + stream
        for digests in (0, 3):
            yield iscsi, bytes([6 * chunk + digests + 1]) + stream
            for what in (5, 7):
                script = b"".join(bytes([what, 8 * number]) + pdu.encode() for number, pdu in enumerate(commands))
                yield iscsi, bytes([6 * chunk + digests + 2]) + script


__all__ = ["iscsi", "iscsi_login", "iscsi_seeds"]
