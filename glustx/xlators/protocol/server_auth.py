"""Who may use a brick, and as whom: stock's auth.addr and auth.login modules and its root squashing, as pure functions
of options and a request.

Both modules are asked. One that rejects decides; else one that accepts is enough; else the client is refused.
"""

from __future__ import annotations

import fnmatch
import hmac
import ipaddress
from collections.abc import Mapping

import msgspec

from glustx.values import Caller

ACCEPT, REJECT, DONT_CARE = "accept", "reject", "don't care"
NOBODY = 65534
# Clients of the trusted pool that work on the whole volume: gsyncd, rebalance, a mount with no-root-squash, quota's
# mount, the self-heal daemon.
_EXEMPT = frozenset({-1, -3, -4, -5, -6})
_ADDRESS = frozenset("0123456789abcdef.:/*?[]-!%")


def matches(address: str, patterns: str) -> bool:
    """Tell whether an address matches one of the patterns, which commas or blanks separate: fnmatch or CIDR; one with
    `!` in front matches every address that the rest does not."""
    for pattern in patterns.replace(",", " ").split():
        negated = pattern.startswith("!")
        pattern = pattern.removeprefix("!")
        hit = fnmatch.fnmatchcase(address, pattern)
        if not hit and "/" in pattern:
            try:
                hit = ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
            except ValueError:
                hit = False
        if hit != negated:
            return True
    return False


def host_names(patterns: str) -> list[str]:
    """Return the patterns that are host names, which match no address: names are not resolved here."""
    return [p for p in patterns.replace(",", " ").split() if not set(p.lower()) <= _ADDRESS]


def by_address(brick: str, address: str, options: Mapping[str, str], insecure: bool = True) -> str:
    """Ask auth.addr: `auth.addr.<brick>.reject`, then `.allow`. A client on a unix socket has the address "unix".

    Without `insecure` a client whose port is not below 1024 is not accepted by its address.
    """
    host = "unix"
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if "." in host:
            host = host.removeprefix("::ffff:")
        if not insecure and int(port) >= 1024:
            return DONT_CARE
    for spelling in ("auth.addr", "auth.ip"):
        rejected = options.get(f"{spelling}.{brick}.reject")
        if rejected is not None and matches(host, rejected):
            return REJECT
    for spelling in ("auth.addr", "auth.ip"):
        allowed = options.get(f"{spelling}.{brick}.allow")
        if allowed is not None and (host == "unix" or matches(host, allowed)):
            return ACCEPT
    return DONT_CARE


def by_certificate(brick: str, name: str, options: Mapping[str, str]) -> str:
    """Ask auth.login for the common name in a client's certificate: where there is a list, it must be on it.

    The list is `auth.login.<brick>.ssl-allow`, or `auth.ssl-allow`, with fnmatch patterns between commas or blanks.
    """
    allowed = options.get(f"auth.login.{brick}.ssl-allow", options.get("auth.ssl-allow"))
    if allowed is None:
        return DONT_CARE
    patterns = allowed.replace(",", " ").split()
    return ACCEPT if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) else REJECT


def by_login(brick: str, user: str, password: str, options: Mapping[str, str], strict: bool) -> str:
    """Ask auth.login: the user must be in `auth.login.<brick>.allow` and bring `auth.login.<user>.password`."""
    allowed = options.get(f"auth.login.{brick}.allow")
    if not user or allowed is None:
        return REJECT if strict else DONT_CARE
    if user not in {name.strip() for name in allowed.split(",")}:
        return REJECT if strict else DONT_CARE
    wanted = options.get(f"auth.login.{user}.password")
    if wanted is not None and hmac.compare_digest(wanted.encode(), password.encode()):
        return ACCEPT
    return REJECT


def authorise(
    brick: str,
    address: str,
    user: str,
    password: str,
    options: Mapping[str, str],
    strict: bool,
    insecure: bool = True,
    identity: str | None = None,
) -> bool:
    """Tell whether a client may use `brick`.

    Args:
        brick: the name the auth options speak of (auth-path, or the subvolume's own name).
        address: the peer as the channel names it.
        user, password: from SETVOLUME; empty when none were sent.
        options: all `auth.*` options.
        strict: `strict-auth-accept`: without a known user there is no access.
        insecure: `rpc-auth-allow-insecure`: ports from 1024 up will do.
        identity: the common name in the client's certificate, None without TLS. Where there is one, user and password
            are not looked at; what a client says of itself in SETVOLUME never stands in for it.
    """
    if identity is None:
        login = by_login(brick, user, password, options, strict)
    else:
        login = by_certificate(brick, identity, options)
    answers = (by_address(brick, address, options, insecure), login)
    return REJECT not in answers and ACCEPT in answers


def squashed(caller: Caller, everybody: bool, uid: int, gid: int, trusted: bool) -> Caller:
    """Return the caller that stands in another's place under root-squash, or under all-squash.

    Args:
        everybody: all-squash: who it is makes no difference, and its groups are left out (stock leaves them in).
        uid, gid: anonuid and anongid.
        trusted: the client has logged in. Only such a one may be internal: the negative pid of another is taken away,
            since permissions are not asked for where there is one.
    """
    if trusted and caller.pid in _EXEMPT:
        return caller
    pid = caller.pid if trusted else max(caller.pid, 0)
    if everybody:
        return msgspec.structs.replace(caller, pid=pid, uid=uid, gid=gid, groups=())
    return msgspec.structs.replace(
        caller,
        pid=pid,
        uid=caller.uid or uid,
        gid=caller.gid or gid,
        groups=tuple(group or gid for group in caller.groups),
    )
