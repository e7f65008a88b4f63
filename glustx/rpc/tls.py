"""Transport security by stock's names and defaults: which files a side shows and trusts, and the contexts made of them.

Both sides show a certificate and verify the other's against a CA list; host names are not compared, since what counts
is that the CA list vouches for the other side, and, on a brick, the common name in its certificate.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import ssl

OWN_CERT, PRIVATE_KEY, CA_LIST = "/etc/ssl/glusterfs.pem", "/etc/ssl/glusterfs.key", "/etc/ssl/glusterfs.ca"
# Where builds of stock look whose OpenSSL has its folder there, as Debian's.
_OTHER_FOLDER = "/usr/lib/ssl"
CERT_DEPTH = 1
CIPHER_LIST = "AES128:EECDH:EDH:HIGH:!3DES:!RC4:!DES:!MD5:!aNULL:!eNULL"
EC_CURVE = "prime256v1"
NO_TLS = "it does not speak TLS"
SECURE_ACCESS = "/var/lib/glusterd/secure-access"

_DEPTH = re.compile(r"option transport\.socket\.ssl-cert-depth\s+(\d+)")
_ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_FOREIGN = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")


class TlsError(OSError):
    """Files of which no TLS context can be made; `strerror` is a sentence that names the file."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EINVAL, text)


class Tls(msgspec.Struct, frozen=True):
    """What one side of a secured connection shows and trusts; what is left empty is as in stock.

    Args:
        own_cert: file of its certificate, with those between it and the CA, PEM; /etc/ssl/glusterfs.pem.
        private_key: file of the key, PEM, without a passphrase; /etc/ssl/glusterfs.key.
        ca_list: file of the certificates that vouch for the other side, PEM; /etc/ssl/glusterfs.ca.
        cert_depth: most certificates between the other side's own and the CA's; 1.
        cipher_list: OpenSSL's names of ciphers for TLS 1.2.
        dh_param: file of DH parameters, for servers; none.
        ec_curve: curve of the key exchange; prime256v1.
        crl_path: folder (hashed) or file of revocation lists, for servers; none.

    Source: stock's options transport.socket.ssl-*.
    """

    own_cert: str = ""
    private_key: str = ""
    ca_list: str = ""
    cert_depth: int | None = None
    cipher_list: str = ""
    dh_param: str = ""
    ec_curve: str = ""
    crl_path: str = ""

    @classmethod
    def of_options(cls, options: Any) -> Tls:
        """Return what the ssl options of a translator say (fields named `ssl_` and the name here)."""
        return cls(**{name: getattr(options, f"ssl_{name}") for name in cls.__struct_fields__})

    def over(self, other: Tls) -> Tls:
        """Return this, with what is left empty here taken from `other`."""
        empty = {name: getattr(other, name) for name in self.__struct_fields__ if getattr(self, name) in ("", None)}
        return msgspec.structs.replace(self, **empty)

    def whole(self) -> Tls:
        """Return this, with what is left empty as stock has it: files in /etc/ssl, or else in /usr/lib/ssl."""
        me = self.over(_STOCK)
        moved = {}
        for name in ("own_cert", "private_key", "ca_list"):
            path = getattr(me, name)
            if path == getattr(_STOCK, name) and not os.path.exists(path):
                other = os.path.join(_OTHER_FOLDER, os.path.basename(path))
                if os.path.exists(other):
                    moved[name] = other
        return msgspec.structs.replace(me, **moved) if moved else me

    def files(self) -> tuple[str, ...]:
        """Return the files that a context is made of."""
        me = self.whole()
        return tuple(filter(None, (me.own_cert, me.private_key, me.ca_list, me.dh_param, me.crl_file)))

    @property
    def crl_file(self) -> str:
        """Where the revocation lists are; empty for none (stock writes NULL for it)."""
        return "" if self.crl_path.upper() == "NULL" else self.crl_path

    def context(self, *, server: bool) -> ssl.SSLContext:
        """Return a context for TLS 1.2 and newer, in which both sides show certificates that the CA list vouches for.

        Raises TlsError when a file is missing, unreadable or not what it should be.
        """
        import ssl

        me = self.whole()
        for what, path in (("certificate", me.own_cert), ("private key", me.private_key), ("CA list", me.ca_list)):
            _readable(what, path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        _try("ciphers", me.cipher_list, lambda: context.set_ciphers(me.cipher_list))
        _load_own(context, me)
        _try("CA list", me.ca_list, lambda: context.load_verify_locations(me.ca_list))
        if server:
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
            context.num_tickets = 0
        if server or me.ec_curve != EC_CURVE:
            _try("EC curve", me.ec_curve, lambda: context.set_ecdh_curve(me.ec_curve))
        if server and me.dh_param:
            _readable("DH parameters", me.dh_param)
            _try("DH parameters", me.dh_param, lambda: context.load_dh_params(me.dh_param))
        if server and me.crl_file:
            folder = os.path.isdir(me.crl_file)
            if not folder:
                _readable("revocation lists", me.crl_file)
            where = {"capath" if folder else "cafile": me.crl_file}
            _try("revocation lists", me.crl_file, lambda: context.load_verify_locations(**where))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        return context


_STOCK = Tls(OWN_CERT, PRIVATE_KEY, CA_LIST, CERT_DEPTH, CIPHER_LIST, "", EC_CURVE, "")


class Contexts:
    """The context of a side that lives long: made anew when its files have changed, so that renewing a certificate
    needs no restart.

    Raises TlsError when it is made; `get` goes on with the last good context and hands the error to `failed`.
    """

    def __init__(self, tls: Tls, *, server: bool, failed: Callable[[TlsError], None]) -> None:
        self.tls = tls
        self._server = server
        self._failed = failed
        self._seen = self._look()
        self._context = tls.context(server=server)

    def get(self) -> ssl.SSLContext:
        """Return a context of the files as they are now."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = self.tls.context(server=self._server)
            except TlsError as error:
                self._failed(error)
        return self._context

    def _look(self) -> list[tuple[int, int, int]]:
        seen = []
        for path in self.tls.files():
            try:
                found = os.stat(path)
            except OSError:
                seen.append((0, 0, 0))
            else:
                seen.append((found.st_ino, found.st_size, found.st_mtime_ns))
        return seen


def of_machine(path: str = SECURE_ACCESS) -> Tls | None:
    """Return how this machine secures connections with volume servers, or None where it does not.

    Source: stock: they are secured where the file `secure-access` exists; it may name a depth of certificates.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            said = _DEPTH.search(file.read(65536))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Tls() if os.path.exists(path) else None
    return Tls(cert_depth=int(said[1]) or CERT_DEPTH if said else CERT_DEPTH)


def settled(tls: Tls | bool | None) -> Tls | None:
    """Return what secures connections with volume servers: the files given; for True stock's; for None what this
    machine does."""
    if tls is True:
        return of_machine() or Tls()
    if tls is None:
        return of_machine()
    return tls or None


def common_name(certificate: Any) -> str:
    """Return the first common name of a peer's certificate as `getpeercert` returns it; empty when it has none."""
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def too_deep(connection: ssl.SSLObject, depth: int) -> int:
    """Return by how many certificates the peer's chain is longer than `depth` allows; 0 when it is not.

    The peer's own certificate and the CA's do not count (OpenSSL's SSL_set_verify_depth, which Python does not offer).
    """
    # Public from Python 3.13 on; the object below has had it since 3.10.
    chain = getattr(connection, "get_verified_chain", None) or connection._sslobj.get_verified_chain  # type: ignore[attr-defined]
    return max(0, len(chain() or ()) - 2 - depth)


def sentence(error: Exception, tls: Tls) -> str:
    """Return what an error of the ssl module says of the other side."""
    import ssl

    me = tls.whole()
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message} (CA list {me.ca_list})"
    reason = getattr(error, "reason", None) or ""
    if "_ALERT_" in reason:
        said = reason.partition("_ALERT_")[2]
        alert = said.lower().replace("_", " ")
        if any(word in said for word in _ABOUT_CERTIFICATES):
            return f"it does not accept the certificate {me.own_cert}: {alert}"
        return f"it ends the TLS handshake: {alert}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate"
    if reason in _FOREIGN:
        return NO_TLS
    if reason in ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW"):
        return "it speaks neither TLS 1.2 nor 1.3"
    return f"TLS fails: {reason.lower().replace('_', ' ') or error}"


def _readable(what: str, path: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise TlsError(f"the TLS {what} {path} cannot be read: {error.strerror or error}") from None


def _load_own(context: ssl.SSLContext, me: Tls) -> None:
    """Load certificate and key; one with a passphrase is refused, or OpenSSL would ask for it at the terminal."""
    asked: list[bool] = []

    def no_passphrase() -> str:
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(me.own_cert, me.private_key, no_passphrase)
    except (OSError, ValueError) as error:
        if asked:
            raise TlsError(f"the TLS private key {me.private_key} has a passphrase") from None
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the TLS private key {me.private_key} is not that of {me.own_cert}") from None
        # OpenSSL does not say which of the two files it means.
        text = f"no certificate and key in {me.own_cert} and {me.private_key}: {_reason(error)}"
        raise TlsError(text) from None


def _try(what: str, value: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        raise TlsError(f"the TLS {what} {value} cannot be used: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error).lower().replace("_", " ")
