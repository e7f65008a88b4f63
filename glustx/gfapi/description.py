"""How a volume is described: libgfapi-python's hosts, name, protocol and port, or anything that `Source` takes."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from glustx.gfapi.exceptions import BadDescription
from glustx.gfapi.source import Source
from glustx.gfapi.url import DEFAULT_PORT, is_url, parse_hosts
from glustx.rpc.channel import Address


class Description(msgspec.Struct, frozen=True):
    """A volume before it is mounted.

    Attributes:
        source: where its graph comes from.
        hosts: as they were given; empty for a source of another kind.
        by_hosts: described as in libgfapi-python: it is mounted by `mount`, and no umask is taken from modes.
    """

    source: Source
    hosts: tuple[str, ...] = ()
    by_hosts: bool = False


def describe(hosts: Any, volname: str, proto: str, port: int) -> Description:
    """Tell what is meant.

    Args:
        hosts: a host or hosts when `volname` says the volume (paths of sockets when `proto` is unix); else, or when it
            is a URL or holds a slash, any source.
        port: of hosts that name none.

    Raises:
        BadDescription: it cannot be meant. ValueError, OSError: as `Source.of`.
    """
    if hosts is None or volname is None:
        raise BadDescription("the hosts and the name of a volume cannot be None")
    if proto not in ("tcp", "unix"):
        raise BadDescription(f"protocol {proto!r} is not tcp or unix")
    if not isinstance(port, int) or not 0 < port < 65536:
        raise BadDescription(f"port {port!r} is not a number between 1 and 65535")
    names = _hosts(hosts, proto) if volname else ()
    if not names:
        if not isinstance(hosts, (Source, os.PathLike, str)) and not hosts:
            raise BadDescription("at least one host is needed")
        return Description(Source.of(hosts, volname))
    if proto == "unix":
        addresses = tuple(Address(path=name) for name in names)
    else:
        given = parse_hosts(names)
        addresses = tuple(
            Address(each.host, port) if not each.path and each.port == DEFAULT_PORT else each for each in given
        )
    return Description(Source.served(addresses, volname), names, True)


def _hosts(hosts: Any, proto: str) -> tuple[str, ...]:
    """Return the hosts that `hosts` names; none when it is a source of another kind.

    A name without a slash is a host even where a folder of that name is at hand: nobody means to make a brick of it.
    """
    if isinstance(hosts, (list, tuple)):
        return tuple(hosts)
    if not isinstance(hosts, str) or is_url(hosts) or "\n" in hosts:
        return ()
    if proto == "unix":
        return (hosts,)
    return () if "/" in hosts else tuple(name.strip() for name in hosts.split(","))
