"""The options of transport security, which all commands share: `glustx --tls ...`, or the environment."""

from __future__ import annotations

from typing import Annotated

import typer

from glustx.cli.failures import USAGE, Failure, told
from glustx.rpc.tls import Tls

Wanted = Annotated[
    bool | None,
    typer.Option(
        "--tls/--no-tls",
        envvar="GLUSTX_TLS",
        help="Secure connections with volume servers (and serve bricks so); by default where stock does, on machines "
        "with /var/lib/glusterd/secure-access.",
    ),
]
Cert = Annotated[
    str,
    typer.Option("--tls-cert", envvar="GLUSTX_TLS_CERT", help="Own certificate, instead of /etc/ssl/glusterfs.pem."),
]
Key = Annotated[
    str, typer.Option("--tls-key", envvar="GLUSTX_TLS_KEY", help="Its key, instead of /etc/ssl/glusterfs.key.")
]
Ca = Annotated[
    str,
    typer.Option("--tls-ca", envvar="GLUSTX_TLS_CA", help="CAs of the others, instead of /etc/ssl/glusterfs.ca."),
]

_chosen: Tls | bool | None = None


def choose(wanted: bool | None, cert: str, key: str, ca: str) -> None:
    """Keep what the command line says; a file turns TLS on."""
    global _chosen
    named = bool(cert or key or ca)
    if wanted is False and named:
        with told():
            raise Failure("--no-tls, and a file for TLS: give one or the other", USAGE)
    _chosen = Tls(cert, key, ca) if named else wanted


def chosen() -> Tls | bool | None:
    """Return what the command line says: files, yes or no, or None for what this machine does."""
    return _chosen


def words(tls: Tls | None) -> list[str]:
    """Return the words of a command line that say the same."""
    if tls is None:
        return ["--no-tls"]
    files = {"--tls-cert": tls.own_cert, "--tls-key": tls.private_key, "--tls-ca": tls.ca_list}
    return ["--tls", *(word for option, file in files.items() if file for word in (option, file))]
