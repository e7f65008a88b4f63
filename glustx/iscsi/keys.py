"""The keys of login negotiation (RFC 7143 13) and what each side makes of the other's value."""

from __future__ import annotations

import enum
from typing import Any, Union

import msgspec

Value = Union[int, bool, str]

NOT_UNDERSTOOD, IRRELEVANT, REJECT = "NotUnderstood", "Irrelevant", "Reject"


class Rule(enum.Enum):
    """How the value that holds follows from the two that were said."""

    LIST = "the first of the offered ones that the other side takes"
    MINIMUM = "the smaller number"
    MAXIMUM = "the larger number"
    OR = "Yes if one side says so"
    AND = "Yes if both sides say so"
    DECLARED = "each side's own, unanswered"
    OBSOLETE = "refused"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What one side of a session wants. Sizes in bytes.

    Attributes:
        auth_methods, header_digest, data_digest: what is taken, the best first.
        max_recv: longest data segment that this side takes (MaxRecvDataSegmentLength).
        max_burst, first_burst: bytes of one solicited sequence, and of all unsolicited data of a command.
        max_outstanding_r2t: transfers of one command at a time.
        time2wait, time2retain: seconds before and after which a lost session may be taken up again.
        protocol_level: 2 for the task management functions of RFC 7144.
    """

    auth_methods: tuple[str, ...] = ("None",)
    header_digest: tuple[str, ...] = ("None", "CRC32C")
    data_digest: tuple[str, ...] = ("None", "CRC32C")
    max_connections: int = 1
    initial_r2t: bool = False
    immediate_data: bool = True
    max_recv: int = 256 << 10
    max_burst: int = 4 << 20
    first_burst: int = 256 << 10
    max_outstanding_r2t: int = 4
    time2wait: int = 2
    time2retain: int = 0
    data_pdu_in_order: bool = True
    data_sequence_in_order: bool = True
    error_recovery_level: int = 0
    if_marker: bool = False
    of_marker: bool = False
    protocol_level: int = 2
    task_reporting: tuple[str, ...] = ("RFC3720",)


class Key(msgspec.Struct, frozen=True):
    """One key: `setting` names the field of Settings, `discovery` tells whether it means something there, too."""

    name: str
    rule: Rule
    setting: str = ""
    default: Value = ""
    low: int = 0
    high: int = 0
    discovery: bool = True


_SIZE = (512, (1 << 24) - 1)

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("AuthMethod", Rule.LIST, "auth_methods", "None"),
        Key("HeaderDigest", Rule.LIST, "header_digest", "None"),
        Key("DataDigest", Rule.LIST, "data_digest", "None"),
        Key("MaxConnections", Rule.MINIMUM, "max_connections", 1, 1, 65535, False),
        Key("InitialR2T", Rule.OR, "initial_r2t", True, discovery=False),
        Key("ImmediateData", Rule.AND, "immediate_data", True, discovery=False),
        Key("MaxRecvDataSegmentLength", Rule.DECLARED, "max_recv", 8192, *_SIZE),
        Key("MaxBurstLength", Rule.MINIMUM, "max_burst", 262144, *_SIZE, False),
        Key("FirstBurstLength", Rule.MINIMUM, "first_burst", 65536, *_SIZE, False),
        Key("MaxOutstandingR2T", Rule.MINIMUM, "max_outstanding_r2t", 1, 1, 65535, False),
        Key("DefaultTime2Wait", Rule.MAXIMUM, "time2wait", 2, 0, 3600),
        Key("DefaultTime2Retain", Rule.MINIMUM, "time2retain", 20, 0, 3600),
        Key("DataPDUInOrder", Rule.OR, "data_pdu_in_order", True, discovery=False),
        Key("DataSequenceInOrder", Rule.OR, "data_sequence_in_order", True, discovery=False),
        Key("ErrorRecoveryLevel", Rule.MINIMUM, "error_recovery_level", 0, 0, 2),
        Key("IFMarker", Rule.AND, "if_marker", False),
        Key("OFMarker", Rule.AND, "of_marker", False),
        Key("IFMarkInt", Rule.OBSOLETE),
        Key("OFMarkInt", Rule.OBSOLETE),
        Key("iSCSIProtocolLevel", Rule.MINIMUM, "protocol_level", 1, 0, 31),
        Key("TaskReporting", Rule.LIST, "task_reporting", "RFC3720", discovery=False),
        Key("SessionType", Rule.DECLARED),
        Key("InitiatorName", Rule.DECLARED),
        Key("InitiatorAlias", Rule.DECLARED),
        Key("TargetName", Rule.DECLARED),
        Key("TargetAlias", Rule.DECLARED),
        Key("TargetAddress", Rule.DECLARED),
        Key("TargetPortalGroupTag", Rule.DECLARED),
    )
}


class Parameters(msgspec.Struct):
    """What holds in a session; the defaults until something else is negotiated.

    `max_send` is the other side's MaxRecvDataSegmentLength.
    """

    header_digest: bool = False
    data_digest: bool = False
    initial_r2t: bool = True
    immediate_data: bool = True
    max_recv: int = 8192
    max_send: int = 8192
    max_burst: int = 262144
    first_burst: int = 65536
    max_outstanding_r2t: int = 1
    error_recovery_level: int = 0
    protocol_level: int = 1
    time2wait: int = 2
    time2retain: int = 20

    def take(self, name: str, value: Value) -> None:
        """Note a negotiated value, or the size that the other side has declared."""
        key = KEYS[name]
        if key.setting in ("header_digest", "data_digest"):
            setattr(self, key.setting, value == "CRC32C")
        elif name == "MaxRecvDataSegmentLength":
            self.max_send = int(value)
        elif key.setting in self.__struct_fields__:
            setattr(self, key.setting, value)


def number(text: str) -> int:
    """Read a decimal or 0x number (RFC 7143 6.1); ValueError for anything else."""
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    if not digits.isascii() or not digits.isalnum():
        raise ValueError(f"{text[:20]!r} is no number")
    return int(digits, 16 if digits is not text else 10)


def _read(key: Key, text: str) -> Value:
    if key.rule in (Rule.OR, Rule.AND):
        if text not in ("Yes", "No"):
            raise ValueError(f"{key.name} is Yes or No, not {text[:20]!r}")
        return text == "Yes"
    value = number(text)
    if not key.low <= value <= key.high:
        raise ValueError(f"{key.name}={value} is outside {key.low}..{key.high}")
    return value


def show(value: Value) -> str:
    """Return a value as a text."""
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return str(value)


def answer(key: Key, offered: str, settings: Settings) -> tuple[str | None, Value | None]:
    """Return what the responder says to an offered value (None: nothing), and the value that holds now (None: none).

    A value that cannot be is answered with Reject, as RFC 7143 6.2 has it.
    """
    if key.rule is Rule.OBSOLETE:
        return REJECT, None
    ours: Any = getattr(settings, key.setting) if key.setting else ()
    if key.rule is Rule.LIST:
        for choice in offered.split(","):
            if choice in ours:
                return choice, choice
        return REJECT, None
    if not key.setting:
        return None, offered
    try:
        theirs = _read(key, offered)
    except ValueError:
        return REJECT, None
    if key.rule is Rule.DECLARED:
        return None, theirs
    value = _settle(key, theirs, ours)
    return show(value), value


def _settle(key: Key, theirs: Value, ours: Value) -> Value:
    if key.rule is Rule.MINIMUM:
        return min(int(theirs), int(ours))
    if key.rule is Rule.MAXIMUM:
        return max(int(theirs), int(ours))
    return bool(theirs) or bool(ours) if key.rule is Rule.OR else bool(theirs) and bool(ours)


def offer(key: Key, settings: Settings) -> str:
    """Return what the side that begins says of a key."""
    value = getattr(settings, key.setting)
    return ",".join(value) if isinstance(value, tuple) else show(value)


def accept(key: Key, said: str, settings: Settings) -> Value | None:
    """Return what holds after the responder's answer to our offer; None when the key did not come about.

    ValueError for an answer that our offer does not allow.
    """
    if said in (NOT_UNDERSTOOD, IRRELEVANT, REJECT):
        return None
    ours = getattr(settings, key.setting)
    if key.rule is Rule.LIST:
        if said not in ours:
            raise ValueError(f"{key.name}={said} was not offered")
        return said
    value = _read(key, said)
    if key.rule is not Rule.DECLARED and _settle(key, value, ours) != value:
        raise ValueError(f"{key.name}={said} does not follow from {show(ours)}")
    return value
