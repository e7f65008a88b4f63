"""Addresses of volumes as people write them: `gluster://host[:port][,host2]/volume/path` and host lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qs, quote, unquote, unquote_to_bytes

import msgspec

from glustx.rpc.channel import Address

DEFAULT_PORT = 24007

_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_SPECIAL = re.compile("[%?#\\udc80-\\udcff]")
_VOLUME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class GlusterURL(msgspec.Struct, frozen=True):
    """Where a volume is served, and a path in it.

    `addresses` are tried in order; `path` starts with a slash and is `/` when the URL has none. Non-UTF-8 bytes of a
    path are kept as surrogates, as `os.fsdecode` does.
    """

    addresses: tuple[Address, ...]
    volume: str
    path: str = "/"

    def __str__(self) -> str:
        path = _quoted(self.path)
        if self.addresses[0].path:
            return f"gluster+unix:///{self.volume}{path}?socket={quote(self.addresses[0].path)}"
        hosts = ",".join(_host_text(address) for address in self.addresses)
        return f"gluster://{hosts}/{self.volume}{path if path != '/' else ''}"


def _host_text(address: Address) -> str:
    host = f"[{address.host.replace('%', '%25')}]" if ":" in address.host else address.host
    return host if address.port == DEFAULT_PORT else f"{host}:{address.port}"


def _quoted(path: str) -> str:
    """Escape what would not come back from a URL, and leave the rest as people read it."""
    return _SPECIAL.sub(lambda hit: quote(hit[0].encode("utf-8", "surrogateescape")), path)


def is_url(text: str) -> bool:
    """Tell whether `text` is meant as a URL of a volume."""
    return text.startswith(("gluster:", "gluster+"))


def parse_url(text: str) -> GlusterURL:
    """Parse `gluster[+tcp]://host[:port][,host2...]/volume[/path]` or `gluster+unix:///volume[/path]?socket=FILE`.

    IPv6 addresses stand in brackets (a zone behind %25, RFC 6874); the port is 24007 when there is none; the path may
    be percent-encoded. `?transport=unix` says the same as `+unix`.

    Raises:
        ValueError: one sentence that says what is wrong.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        raise ValueError(f"{text!r} is not a URL such as gluster://host/volume/path")
    if scheme not in ("gluster", "gluster+tcp", "gluster+unix"):
        raise ValueError(f"{text!r}: scheme {scheme!r} is not gluster, gluster+tcp or gluster+unix")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    if fragment:
        raise ValueError(f"{text!r}: '#' in a path is written %23")
    authority, _, tail = rest.partition("/")
    volume, slash, path = tail.partition("/")
    volume = unquote(volume)
    if not _VOLUME.fullmatch(volume):
        raise ValueError(f"{text!r}: {volume!r} is not a volume's name")
    options = parse_qs(query, keep_blank_values=True)
    transports = options.pop("transport", [])
    if transports:
        if transports not in (["tcp"], ["unix"]) or scheme not in ("gluster", f"gluster+{transports[0]}"):
            raise ValueError(f"{text!r}: the transport is tcp or unix, and said once")
        scheme = f"gluster+{transports[0]}"
    if scheme == "gluster+unix":
        sockets = options.pop("socket", [])
        if authority or len(sockets) != 1 or not sockets[0]:
            raise ValueError(f"{text!r}: a unix URL is gluster+unix:///volume/path?socket=FILE")
        addresses: tuple[Address, ...] = (Address(path=sockets[0]),)
    else:
        if not authority:
            raise ValueError(f"{text!r} names no host")
        try:
            addresses = tuple(parse_host(host) for host in authority.split(","))
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    if options:
        raise ValueError(f"{text!r}: unknown parameter {min(options)!r}")
    inside = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    if "\0" in inside:
        raise ValueError(f"{text!r}: a path cannot hold a NUL")
    return GlusterURL(addresses, volume, slash + inside if slash else "/")


def parse_host(text: str) -> Address:
    """Parse `host`, `host:port`, `[v6]`, `[v6]:port`, a bare IPv6 address, or an absolute path of a unix socket.

    Raises:
        ValueError: one sentence that says what is wrong.
    """
    if text.startswith("/"):
        return Address(path=text)
    port = ""
    colon = ""
    if text.startswith("["):
        host, bracket, after = text[1:].partition("]")
        host = host.replace("%25", "%", 1)
        colon, port = after[:1], after[1:]
        if not bracket or colon not in ("", ":") or ":" not in host:
            raise ValueError(f"{text!r} is not an address such as [::1]:24007")
    elif text.count(":") > 1:
        host = text
    else:
        host, colon, port = text.partition(":")
    if ":" in host:
        if not re.fullmatch(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?", host):
            raise ValueError(f"{text!r}: {host!r} is not an IPv6 address")
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{text!r}: {host!r} is not a host name")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r}: port {port!r} is not between 1 and 65535")
    return Address(host=host, port=int(port) if colon else DEFAULT_PORT)


def parse_hosts(hosts: str | Iterable[str]) -> tuple[Address, ...]:
    """Parse one host, a comma list, or several hosts. ValueError when one is wrong or there is none."""
    texts = hosts.split(",") if isinstance(hosts, str) else list(hosts)
    if not texts:
        raise ValueError("no host")
    return tuple(parse_host(text.strip()) for text in texts)
