"""What text requests ask in full feature phase: SendTargets (RFC 7143 4.4.3, appendix C), and keys that may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glustx.iscsi.keys import KEYS, NOT_UNDERSTOOD, number
from glustx.iscsi.login import LoginRefused, normal
from glustx.iscsi.text import TextError

if TYPE_CHECKING:
    from glustx.iscsi.session import Session


def answer(session: Session, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the answer to a text request's keys; TextError for what is to be rejected."""
    told: list[tuple[str, str]] = []
    for name, value in pairs:
        if name == "SendTargets":
            told += _send_targets(session, value)
        elif name == "MaxRecvDataSegmentLength":
            _shrink(session, value)
        elif name.startswith(("X-", "X#")):
            told.append((name, NOT_UNDERSTOOD))
        else:
            raise TextError(f"{name}={value[:40]} has no place here")
    return told


def _shrink(session: Session, value: str) -> None:
    key = KEYS["MaxRecvDataSegmentLength"]
    try:
        size = number(value)
    except ValueError as error:
        raise TextError(str(error)) from None
    if not key.low <= size <= key.high:
        raise TextError(f"{key.name}={size}")
    session.max_send = size


def _send_targets(session: Session, value: str) -> list[tuple[str, str]]:
    """`All`: every target that the initiator may use; nothing: the session's own; a name: that target."""
    if value == "All":
        wanted = ""
    elif value == "" and not session.discovery:
        wanted = session.target_name
    elif value.startswith(("iqn.", "eui.", "naa.")):
        try:
            wanted = normal(value)
        except LoginRefused as error:
            raise TextError(str(error)) from None
    else:
        raise TextError(f"SendTargets={value[:40]}")
    told = []
    for config in session.server.targets_for(session.initiator, session.address):
        if wanted in ("", config.name):
            told.append(("TargetName", config.name))
            for address in session.server.portal_addresses(session.connection):
                told.append(("TargetAddress", f"{address},{config.portal_group}"))
    return told
