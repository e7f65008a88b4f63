"""Transport security between clients and bricks: every face and loop, what is said when it does not come about, allow
lists of common names, and peers that mean no good."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import GraphError, MountError
from glustx.gfapi import AsyncVolume, Source, Tls, Volume
from glustx.rpc import tls as security
from glustx.rpc.complaints import Complaints
from glustx.rpc.tls import of_machine, settled
from glustx.values import ROOT_LOC
from glustx.xlators.protocol.server_auth import authorise
from tests.certificates import Authority, volfile_options
from tests.conformance.served import Served, client_volfile, served, server_volfile
from tests.kit import PATIENCE, Stopwatch
from tests.t3_wire.test_transport import loops
from tests.t3_wire.world import World, setvolume

STORE = "volume store\n type storage/memory\nend-volume\n"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "good")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "other")


@contextlib.contextmanager
def secured(tls: Tls, more: str = "", **options: str) -> Iterator[Served]:
    with served(server_volfile(STORE, "store", volfile_options(tls, **options) + more)) as brick:
        # All of these clients come from one host, of which more than one warning a minute is wanted here.
        root: Any = brick.graph.root
        root.complaints = Complaints(logging.getLogger("glustx.protocol.server"), time.monotonic, 0.0)
        yield brick


@pytest.fixture(scope="module")
def brick(ca: Authority) -> Iterator[Served]:
    with secured(ca.issue("brick")) as served:
        yield served


def source(brick: Served, tls: Tls | None, **options: str) -> Source:
    text = client_volfile(brick.address, options=volfile_options(tls, **options) if tls is not None else "")
    return Source(volume="vm", text=text, origin="<client>")


def in_loop(what: Source) -> None:
    async def main() -> None:
        async with AsyncVolume(what):
            pass

    asyncio.run(main())


def blocking(what: Source) -> None:
    with Volume(what):
        pass


def refused(what: Source, *said: str, code: int) -> None:
    """Mounting must fail at once with all of `said` and the errno, for both faces."""
    for mount in (blocking, in_loop):
        watch = Stopwatch()
        with pytest.raises(MountError) as caught:
            mount(what)
        assert watch.seconds() < 5
        text = caught.value.strerror
        assert caught.value.errno == code and all(each in text for each in said), text
        assert "brick /bricks/test" in text


# -- what works --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", loops())
def test_data_of_every_size_passes_both_ways(ca: Authority, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(5 << 20)
    if kind == "uvloop":
        import uvloop

        monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
    with secured(ca.issue("brick")) as brick, Volume(source(brick, ca.issue("client"))) as volume:
        (session,) = brick.graph.root.sessions  # type: ignore[attr-defined]
        assert session.channel.identity == "client"
        for size in (1, 16383, 16384, 16385, 128 << 10, len(data)):
            with volume.create(f"/{size}") as file:
                file.write(data[:size])
                assert file.pread(size, 0) == data[:size]
        assert volume.stat("/16384").st_size == 16384
        # What went over the wire is counted there, with what TLS adds.
        assert session.channel.received > len(data) and session.channel.sent > len(data)


def test_many_calls_at_a_time(brick: Served, ca: Authority) -> None:
    async def main() -> None:
        async with AsyncVolume(source(brick, ca.issue("client"))) as volume:
            file = await volume.create("/many")
            blocks = [bytes([n]) * 4096 for n in range(200)]
            await asyncio.gather(*(file.pwrite(block, 4096 * n) for n, block in enumerate(blocks)))
            read = await asyncio.gather(*(file.pread(4096, 4096 * n) for n in range(200)))
            assert read == blocks
            await file.close()

    asyncio.run(main())


def test_threads_share_one_connection(brick: Served, ca: Authority) -> None:
    with Volume(source(brick, ca.issue("client"))) as volume, volume.create("/threads") as file:
        file.write(bytes(1 << 20))
        found: list[int] = []

        def work() -> None:
            found.append(sum(len(file.pread(65536, 65536 * n)) for n in range(16)))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [1 << 20] * 8


@pytest.mark.parametrize("chunk", [1, 7, 1000, 1 << 16])
def test_records_come_in_pieces(make: Callable[..., World], ca: Authority, chunk: int) -> None:
    def lines(tls: Tls) -> str:
        return volfile_options(tls).lstrip()

    world = make(lines(ca.issue("brick")), chunk)
    client = world.client(lines(ca.issue("client")))
    data = bytes(range(256)) * 64
    fd = world.create(client, b"a", data)
    assert bytes(world.do(client, fops.Read(fd, 0, 1 << 20)).data) == data
    calls = [world.begin(client, fops.Stat(ROOT_LOC)) for _ in range(300)]
    assert all(call.done and call.error is None for call in calls)


def test_a_peer_that_reads_late_loses_nothing(make: Callable[..., World], ca: Authority) -> None:
    world = make(volfile_options(ca.issue("brick")).lstrip())
    client = world.client(volfile_options(ca.issue("client")).lstrip())
    fd = world.create(client, b"a", bytes(1 << 20))
    (channel,) = [each for each in world.network.channels if each.is_open]
    channel.pause_reading()
    calls = [world.begin(client, fops.Read(fd, 0, 1 << 20)) for _ in range(8)]
    assert not any(call.done for call in calls)
    channel.resume_reading()
    world.reactor.run()
    assert [len(call.value.data) for call in calls] == [1 << 20] * 8


def test_a_connection_that_broke_comes_back(brick: Served, ca: Authority) -> None:
    with Volume(source(brick, ca.issue("client"))) as volume:
        with volume.create("/back") as file:
            file.write(b"before")
            sessions = list(brick.graph.root.sessions)  # type: ignore[attr-defined]
            brick._loop.call_soon_threadsafe(lambda: [session.drop("test") for session in sessions])
            end = time.monotonic() + PATIENCE
            while True:
                with contextlib.suppress(OSError):
                    if file.pread(6, 0) == b"before" and volume.graph.xlators["client"].link.session > 1:
                        break
                assert time.monotonic() < end


# -- what does not -----------------------------------------------------------------------------------------------------


@pytest.mark.logs("refused: its certificate is not accepted: unable to get local issuer certificate")
def test_a_client_of_another_ca(brick: Served, ca: Authority, other: Authority) -> None:
    tls = other.issue("client", trusts=ca)
    refused(source(brick, tls), f"it does not accept the certificate {tls.own_cert}: unknown ca", code=errno.EPROTO)


@pytest.mark.logs("refused: it does not accept the certificate .*brick.pem: unknown ca")
def test_a_brick_of_another_ca(brick: Served, ca: Authority, other: Authority) -> None:
    tls = ca.issue("client").over(Tls())
    tls = Tls(tls.own_cert, tls.private_key, str(other.pem))
    refused(source(brick, tls), "its certificate is not accepted: ", f"(CA list {other.pem})", code=errno.EPROTO)


@pytest.mark.logs("refused: (its certificate|it does not accept the certificate)")  # the brick before may say it late
def test_a_client_that_has_expired(brick: Served, ca: Authority) -> None:
    refused(source(brick, ca.issue("old", days=-1)), "old.pem: certificate expired", code=errno.EPROTO)


@pytest.mark.logs("refused: it does not accept the certificate .*: certificate expired")
def test_a_brick_that_has_expired(ca: Authority) -> None:
    with secured(ca.issue("old-brick", days=-1)) as brick:
        refused(
            source(brick, ca.issue("client")),
            "its certificate is not accepted: certificate has expired",
            code=errno.EPROTO,
        )


@pytest.mark.logs("refused: it does not speak TLS")
def test_a_plain_client(brick: Served) -> None:
    refused(source(brick, None), "it hangs up on the first call; it may want TLS", code=errno.ENOTCONN)


@pytest.mark.logs("connection closed|more such warnings")
def test_a_plain_brick(ca: Authority) -> None:
    with served(server_volfile(STORE, "store")) as brick:
        refused(source(brick, ca.issue("client")), "it hangs up during the TLS handshake", code=errno.ENOTCONN)


def wrong_files(ca: Authority, folder: Path) -> dict[str, tuple[Tls, str]]:
    good = ca.issue("client")
    locked, nonsense = folder / "locked.key", folder / "nonsense.pem"
    text = Path(good.private_key).read_bytes()
    locked.write_bytes(_with_passphrase(text))
    nonsense.write_text("nothing\n")
    none = str(folder / "none.pem")
    return {
        "no certificate": (Tls(own_cert=none).over(good), f"the TLS certificate {none} cannot be read: No such file"),
        "no key": (Tls(private_key=none).over(good), f"the TLS private key {none} cannot be read: No such file"),
        "no CA": (Tls(ca_list=none).over(good), f"the TLS CA list {none} cannot be read: No such file"),
        "another key": (
            Tls(private_key=ca.issue("brick").private_key).over(good),
            f"brick.key is not that of {good.own_cert}",
        ),
        "passphrase": (Tls(private_key=str(locked)).over(good), f"private key {locked} has a passphrase"),
        "nonsense": (Tls(own_cert=str(nonsense)).over(good), f"no certificate and key in {nonsense}"),
        "empty CA": (Tls(ca_list=str(nonsense)).over(good), f"the TLS CA list {nonsense} cannot be used"),
        "ciphers": (Tls(cipher_list="NO-SUCH-CIPHER").over(good), "the TLS ciphers NO-SUCH-CIPHER cannot be used"),
        "curve": (Tls(ec_curve="no-such-curve").over(good), "the TLS EC curve no-such-curve cannot be used"),
    }


def _with_passphrase(key: bytes) -> bytes:
    import subprocess

    done = subprocess.run(["openssl", "pkey", "-aes128", "-passout", "pass:secret"], input=key, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_that_cannot_be_used(brick: Served, ca: Authority, tmp_path: Path) -> None:
    for tls, said in wrong_files(ca, tmp_path).values():
        extra = {"cipher_list": tls.cipher_list, "ec_curve": tls.ec_curve}
        refused(source(brick, tls, **extra), said, code=errno.EINVAL)
        with (
            pytest.raises(GraphError, match=r"server cannot listen on 127\.0\.0\.1:0: ") as caught,
            secured(tls, **extra),
        ):
            pass
        assert said in str(caught.value)


def test_long_chains_need_depth(ca: Authority, tmp_path: Path) -> None:
    middle = Authority(tmp_path / "middle", ca)
    low = Authority(tmp_path / "low", middle)
    with secured(middle.issue("near")) as brick:
        blocking(source(brick, ca.issue("client")))
    far = low.issue("far")
    with secured(far) as brick:
        said = "its certificate is not accepted: 2 others before the CA, and ssl-cert-depth is 1"
        refused(source(brick, ca.issue("client")), said, code=errno.EPROTO)
        blocking(source(brick, ca.issue("client"), cert_depth="2"))


@pytest.mark.logs("refused: its certificate is not accepted: certificate revoked")
def test_a_revoked_client(ca: Authority, tmp_path: Path) -> None:
    """ssl-crl-path, as stock for clients' certificates only."""
    import subprocess

    blocked, fine = ca.issue("blocked"), ca.issue("client")
    (tmp_path / "index").write_text("")
    (tmp_path / "number").write_text("01\n")
    settings = f"[ca]\ndefault_ca=c\n[c]\ndatabase={tmp_path}/index\ncrlnumber={tmp_path}/number\ndefault_md=sha256\n"
    (tmp_path / "conf").write_text(settings + "default_crl_days=1\n")
    words = ["openssl", "ca", "-config", tmp_path / "conf", "-cert", ca.pem, "-keyfile", ca.folder / "ca.key"]
    for more in (["-revoke", blocked.own_cert], ["-gencrl", "-out", tmp_path / "crl.pem"]):
        done = subprocess.run([*words, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    with secured(ca.issue("brick"), crl_path=str(tmp_path / "crl.pem")) as brick:
        blocking(source(brick, fine))
        refused(source(brick, blocked), "blocked.pem: certificate revoked", code=errno.EPROTO)
    with secured(ca.issue("brick"), crl_path="NULL") as brick:
        blocking(source(brick, blocked))


# -- who may come ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["auth.login./bricks/test.ssl-allow", "auth.ssl-allow"])
@pytest.mark.logs("SETVOLUME refused: Authentication failed of the common name 'client'")
def test_only_names_on_the_list_come_in(ca: Authority, key: str) -> None:
    with secured(ca.issue("brick"), f"\n    option {key} alice,host-*.example") as brick:
        for name in ("alice", "host-7.example"):
            blocking(source(brick, ca.issue(name)))
        said = "the brick refuses this client: Authentication failed of the common name 'client'"
        refused(source(brick, ca.issue("client")), said, code=errno.EACCES)


def test_what_allow_lists_say() -> None:
    def let(allowed: str | None, name: str | None, **more: str) -> bool:
        options = {"auth.addr.b.allow": "*", **more}
        if allowed is not None:
            options["auth.login.b.ssl-allow"] = allowed
        return authorise("b", "10.0.0.1:1000", "u", "p", options, False, identity=name)

    assert let(None, "a") and let("*", "a") and let("a", "a") and let("b a", "a") and let("b,a", "a")
    assert not let("", "a") and not let("b", "a") and not let("b", "") and let("*", "")
    # A list is about certificates: who has none is judged as ever, and a password is no way around it.
    assert let("b", None)
    login = {"auth.login.b.allow": "u", "auth.login.u.password": "p"}
    assert let("b", None, **login) and not let("b", "a", **login)


@pytest.mark.logs("SETVOLUME refused")
def test_a_name_that_a_client_gives_itself_counts_for_nothing(ca: Authority, make: Callable[..., World]) -> None:
    from tests.t3_wire.world import dial

    world = make("option auth.login./brick.ssl-allow alice\n  option auth.addr./brick.reject *")
    code = setvolume(world, dial(world), ssl_name="alice")[1]
    assert code == errno.EACCES


# -- peers that mean no good -------------------------------------------------------------------------------------------


def test_handshakes_that_stall_harm_nobody(brick: Served, ca: Authority, expected_logs: Any) -> None:
    expected_logs.expect("refused: no TLS handshake in 1 s")
    acceptor = brick.graph.root.tls  # type: ignore[attr-defined]
    before, acceptor.timeout = acceptor.timeout, 1.0
    hello = _client_hello()
    with contextlib.ExitStack() as stack:
        stalled = []
        for n in range(200):
            peer = stack.enter_context(socket.create_connection((brick.address.host, brick.address.port), PATIENCE))
            peer.sendall(hello[: n % len(hello)])
            stalled.append(peer)
        watch = Stopwatch()
        with Volume(source(brick, ca.issue("client"))) as volume:
            volume.stat("/")
        assert watch.seconds() < 1
        for peer in stalled:
            peer.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
    assert not acceptor.shaking
    acceptor.timeout = before


def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def _dialled(brick: Served, context: ssl.SSLContext) -> ssl.SSLSocket:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((brick.address.host, brick.address.port), PATIENCE))


@pytest.mark.logs("refused: it shows no certificate")
def test_who_shows_no_certificate(brick: Served) -> None:
    with _dialled(brick, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as peer, pytest.raises(ssl.SSLError) as caught:
        peer.recv(1)
    assert "CERTIFICATE_REQUIRED" in str(caught.value)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.logs("refused: it speaks neither TLS 1.2 nor 1.3")
def test_old_versions_are_refused(brick: Served) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        _dialled(brick, context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_close_notify_ends_the_connection(brick: Served, ca: Authority, version: ssl.TLSVersion) -> None:
    tls = ca.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tls.own_cert, tls.private_key)
    context.minimum_version = context.maximum_version = version
    with _dialled(brick, context) as peer:
        # A NULL call of no program is answered, then the end is.
        peer.sendall(struct.pack(">11I", 0x80000028, 7, 0, 2, 1, 1, 0, 0, 0, 0, 0))
        assert peer.recv(65536)[4:8] == struct.pack(">I", 7)
        peer.unwrap().close()


@pytest.mark.logs("TLS fails: .*; connection closed")
def test_ciphertext_that_was_tampered_with(brick: Served, ca: Authority) -> None:
    tls = ca.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tls.own_cert, tls.private_key)
    with _dialled(brick, context) as peer:
        peer.sendall(struct.pack(">11I", 0x80000028, 7, 0, 2, 1, 1, 0, 0, 0, 0, 0))
        assert peer.recv(65536)
        raw = socket.socket(fileno=os.dup(peer.fileno()))
        with raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
                peer.recv(1)
    blocking(source(brick, tls))


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_shown_without_a_restart(ca: Authority, expected_logs: Any) -> None:
    first, second = ca.issue("renewed"), ca.issue("renewal")
    with secured(first) as brick:
        blocking(source(brick, ca.issue("client")))
        for old, new in ((first.private_key, second.private_key), (first.own_cert, second.own_cert)):
            Path(f"{old}.new").write_bytes(Path(new).read_bytes())
            os.replace(f"{old}.new", old)
        assert _subject(brick, ca) == "renewal"
        Path(first.own_cert).write_text("broken\n")
        expected_logs.expect("no certificate and key in .*; the files read before stay in use")
        assert _subject(brick, ca) == "renewal"


def _subject(brick: Served, ca: Authority) -> str:
    tls = ca.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tls.own_cert, tls.private_key)
    context.load_verify_locations(tls.ca_list)
    context.check_hostname = False
    with context.wrap_socket(socket.create_connection((brick.address.host, brick.address.port), PATIENCE)) as peer:
        shown: Any = peer.getpeercert()
    return str(dict(pair for part in shown["subject"] for pair in part)["commonName"])


def test_what_a_machine_says_of_itself(tmp_path: Path) -> None:
    file = tmp_path / "secure-access"
    assert of_machine(str(file)) is None and of_machine(str(file / "below")) is None
    file.write_text("")
    assert of_machine(str(file)) == Tls(cert_depth=1)
    file.write_text("option transport.socket.ssl-cert-depth 3\n")
    assert of_machine(str(file)) == Tls(cert_depth=3)
    assert settled(False) is None and settled(Tls("a")) == Tls("a") and settled(True) is not None


def test_files_of_ones_own_come_before_those_of_a_volfile(brick: Served, ca: Authority) -> None:
    nowhere = Tls("/none.pem", "/none.key", "/none.ca")
    with Volume(source(brick, nowhere), tls=ca.issue("client")) as volume:
        assert volume.stat("/")


def test_where_stock_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tls().whole().files() == (security.OWN_CERT, security.PRIVATE_KEY, security.CA_LIST)
    monkeypatch.setattr(security, "_OTHER_FOLDER", str(tmp_path))
    (tmp_path / "glusterfs.pem").touch()
    assert Tls().whole().files() == (str(tmp_path / "glusterfs.pem"), security.PRIVATE_KEY, security.CA_LIST)
    assert Tls(own_cert="/mine").whole().own_cert == "/mine"
