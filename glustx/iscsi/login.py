"""The login phase as the target sees it (RFC 7143 6.3, 6.4): stages, authentication, negotiation, and how it ends."""

from __future__ import annotations

import hmac
import os
import unicodedata
from collections.abc import Callable
from typing import Protocol

from glustx.iscsi.chap import ChapError, ChapTarget
from glustx.iscsi.keys import IRRELEVANT, KEYS, NOT_UNDERSTOOD, REJECT, Parameters, Settings, answer
from glustx.iscsi.pdu import CONTINUE, FINAL, LoginRequest, LoginResponse
from glustx.iscsi.text import Inbox, Outbox, TextError, encode
from glustx.scsi.config import AclConfig, TargetConfig

SECURITY, OPERATIONAL, FULL_FEATURE = 0, 1, 3
TRANSITIONS = frozenset({(SECURITY, OPERATIONAL), (SECURITY, FULL_FEATURE), (OPERATIONAL, FULL_FEATURE)})

MOVED = (1, 1)
INITIATOR_ERROR, AUTHENTICATION, AUTHORISATION, NOT_FOUND = (2, 0), (2, 1), (2, 2), (2, 3)
VERSION, TOO_MANY, MISSING, SESSION_TYPE, NO_SESSION, INVALID = (2, 5), (2, 6), (2, 7), (2, 9), (2, 0xA), (2, 0xB)
UNAVAILABLE, NO_RESOURCES = (3, 1), (3, 2)

TEXT_LIMIT = 64 << 10
SEGMENT_LIMIT = 8192  # MaxRecvDataSegmentLength of both sides in this phase
REQUEST_LIMIT = 64
NAME_LIMIT = 223


class LoginRefused(Exception):
    """How a login ends early.

    Args:
        status: class and detail.
        text: why, for the log.
        keys: what the answer carries.
    """

    def __init__(self, status: tuple[int, int], text: str, keys: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.keys = keys


class Directory(Protocol):
    """What a login asks of whoever holds the targets."""

    settings: Settings
    discovery_rule: AclConfig

    def look_up(self, name: str) -> TargetConfig:
        """Return the target of a name; LoginRefused when there is none, or none yet."""


class Login:
    """One connection's login.

    Args:
        directory: targets and settings.
        address: the initiator's network address, without port.
        random: source of challenges.

    Attributes:
        done: the last response agrees to full feature phase; only its TSIH is missing.
        refused: why the login has failed, "" while it has not.
        initiator, isid, tsih, cid, target, rule, discovery, parameters: what was found out.
    """

    def __init__(self, directory: Directory, address: str, random: Callable[[int], bytes] = os.urandom) -> None:
        self.directory = directory
        self.address = address
        self.done = False
        self.refused = ""
        self.initiator = ""
        self.isid = b""
        self.tsih = 0
        self.cid = 0
        self.target: TargetConfig | None = None
        self.rule = AclConfig()
        self.discovery = False
        self.parameters = Parameters()
        self._random = random
        self._stage = -1
        self._requests = 0
        self._inbox = Inbox(TEXT_LIMIT)
        self._outbox = Outbox()
        self._known = False
        self._said: dict[str, str] = {}
        self._chap: ChapTarget | None = None
        self._method = ""
        self._declared = False

    @property
    def port_name(self) -> str:
        """The initiator port's name."""
        return f"{self.initiator},i,0x{self.isid.hex()}"

    def request(self, pdu: LoginRequest, data: bytes) -> tuple[LoginResponse, bytes]:
        """Take a Login Request and return the response with its text; sequence numbers are the caller's to fill in."""
        response = LoginResponse(flags=pdu.flags & 0x0C, isid=pdu.isid, tsih=pdu.tsih, itt=pdu.itt)
        try:
            self._check(pdu)
            pairs = self._inbox.add(data, bool(pdu.flags & CONTINUE))
            if pairs is None:
                return response, b""
            if not self._outbox:
                self._outbox.put(encode(self._negotiate(pairs, pdu)))
            elif pairs:
                raise LoginRefused(INVALID, "keys while an answer was under way")
            text, more = self._outbox.take(SEGMENT_LIMIT)
            if more:
                response.flags |= CONTINUE
            elif pdu.flags & FINAL and self._may_leave():
                response.flags |= FINAL | pdu.flags & 3
                self._stage = pdu.flags & 3
                self.done = self._stage == FULL_FEATURE
            return response, text
        except TextError as error:
            failure = LoginRefused(INITIATOR_ERROR, str(error))
        except ChapError as error:
            failure = LoginRefused(AUTHENTICATION, f"{self.initiator}: {error}")
        except LoginRefused as error:
            failure = error
        return self.refusal(pdu, failure)

    def refusal(self, pdu: LoginRequest, failure: LoginRefused) -> tuple[LoginResponse, bytes]:
        """Return the response that ends the login."""
        self.refused = str(failure)
        self.done = False
        status, detail = failure.status
        response = LoginResponse(
            flags=pdu.flags & 0x0C, isid=pdu.isid, tsih=pdu.tsih, itt=pdu.itt, status_class=status, status_detail=detail
        )
        return response, encode(failure.keys)

    def _check(self, pdu: LoginRequest) -> None:
        self._requests += 1
        if self._requests > REQUEST_LIMIT:
            raise LoginRefused(INITIATOR_ERROR, f"more than {REQUEST_LIMIT} login requests")
        if pdu.version_min > 0:
            raise LoginRefused(VERSION, f"version {pdu.version_min}")
        stage, following = pdu.flags >> 2 & 3, pdu.flags & 3
        if self._stage < 0:
            if stage not in (SECURITY, OPERATIONAL):
                raise LoginRefused(INVALID, f"a login that begins at stage {stage}")
            self._stage = stage
            self.isid, self.tsih, self.cid = pdu.isid, pdu.tsih, pdu.cid
        if (pdu.isid, pdu.tsih, pdu.cid) != (self.isid, self.tsih, self.cid):
            raise LoginRefused(INVALID, "ISID, TSIH or CID changed during login")
        if stage != self._stage:
            raise LoginRefused(INVALID, f"stage {stage} instead of {self._stage}")
        if pdu.flags & FINAL and (pdu.flags & CONTINUE or (stage, following) not in TRANSITIONS):
            raise LoginRefused(INVALID, f"a step from stage {stage} to {following}")

    # -- who it is ---------------------------------------------------------------------------------------------------

    def _identify(self, keys: dict[str, str]) -> list[tuple[str, str]]:
        """Look at what the first request must tell; return what the first response tells."""
        if "InitiatorName" not in keys:
            raise LoginRefused(MISSING, "no InitiatorName")
        self.initiator = normal(keys["InitiatorName"])
        kind = keys.get("SessionType", "Normal")
        if kind not in ("Normal", "Discovery"):
            raise LoginRefused(SESSION_TYPE, f"SessionType={kind[:20]}")
        self._known = True
        self.discovery = kind == "Discovery"
        if self.discovery:
            self.rule = self.directory.discovery_rule
            return []
        if not keys.get("TargetName"):
            raise LoginRefused(MISSING, "no TargetName")
        target = self.target = self.directory.look_up(normal(keys["TargetName"]))
        rule = target.rule(self.initiator, self.address)
        if rule is None:
            raise LoginRefused(AUTHORISATION, f"{self.initiator} may not use {target.name}")
        if target.redirect:
            moved = (("TargetAddress", target.redirect),)
            raise LoginRefused(MOVED, f"{target.name} is at {target.redirect}", moved)
        self.rule = rule
        told = [("TargetPortalGroupTag", str(target.portal_group))]
        if target.alias:
            told.insert(0, ("TargetAlias", target.alias))
        return told

    @property
    def _proof_needed(self) -> bool:
        return bool(self.rule.user)

    def _may_leave(self) -> bool:
        if self._stage != SECURITY or not self._proof_needed:
            return True
        return self._chap is not None and self._chap.done

    # -- keys --------------------------------------------------------------------------------------------------------

    def _negotiate(self, pairs: list[tuple[str, str]], pdu: LoginRequest) -> list[tuple[str, str]]:
        keys: dict[str, str] = {}
        for name, value in pairs:
            known = keys.setdefault(name, value)
            if not hmac.compare_digest(known.encode(), value.encode()):
                raise LoginRefused(INITIATOR_ERROR, f"{name} has two values")
        told = self._identify(keys) if not self._known else []
        if self._stage == OPERATIONAL and self._proof_needed and not (self._chap and self._chap.done):
            raise LoginRefused(AUTHENTICATION, f"{self.initiator} left authentication out")
        proofs = {name: value for name, value in keys.items() if name.startswith("CHAP_")}
        # What FirstBurstLength may be follows from the other keys.
        for name in sorted(keys, key=lambda name: name == "FirstBurstLength"):
            if name not in proofs:
                told += self._key(name, keys[name])
        if self._stage == SECURITY:
            told += self._authenticate(proofs, bool(pdu.flags & FINAL))
        elif proofs:
            raise LoginRefused(INVALID, "CHAP after the security stage")
        if self._stage == OPERATIONAL and not self._declared:
            self._declared = True
            self.parameters.max_recv = self.directory.settings.max_recv
            told.append(("MaxRecvDataSegmentLength", str(self.parameters.max_recv)))
        return told

    def _authenticate(self, proofs: dict[str, str], leaving: bool) -> list[tuple[str, str]]:
        if proofs and self._method != "CHAP":
            raise LoginRefused(AUTHENTICATION, "CHAP was not agreed on")
        if self._method != "CHAP":
            if leaving and self._proof_needed:
                raise LoginRefused(AUTHENTICATION, f"{self.initiator} left authentication out")
            return []
        rule = self.rule
        if self._chap is None:
            self._chap = ChapTarget(
                rule.user, rule.password.encode(), rule.mutual_user, rule.mutual_password.encode(), self._random
            )
        return self._chap.step(proofs)

    def _key(self, name: str, value: str) -> list[tuple[str, str]]:
        before = self._said.get(name)
        if before is not None:
            if before == value:
                return []
            raise LoginRefused(INITIATOR_ERROR, f"{name} was {before[:40]} before")
        self._said[name] = value
        if value in (NOT_UNDERSTOOD, IRRELEVANT, REJECT):
            return []
        key = KEYS.get(name)
        if key is None:
            return [(name, NOT_UNDERSTOOD)]
        if name == "AuthMethod":
            return [(name, self._choose(value))]
        if self.discovery and not key.discovery:
            return [(name, IRRELEVANT)]
        if name == "FirstBurstLength" and self.parameters.initial_r2t and not self.parameters.immediate_data:
            return [(name, IRRELEVANT)]
        said, held = answer(key, value, self.directory.settings)
        if name == "FirstBurstLength" and isinstance(held, int) and held > self.parameters.max_burst:
            held = self.parameters.max_burst
            said = str(held)
        if held is not None and key.setting:
            self.parameters.take(name, held)
        return [(name, said)] if said is not None else []

    def _choose(self, offered: str) -> str:
        if self._stage != SECURITY:
            return IRRELEVANT
        wanted = "CHAP" if self._proof_needed else "None"
        if wanted not in offered.split(","):
            raise LoginRefused(AUTHENTICATION, f"it offers {offered[:60]}, and {wanted} is needed")
        self._method = wanted
        return wanted


def normal(name: str) -> str:
    """Return an iSCSI name in its normal form (RFC 3722, as far as names in use need it)."""
    name = unicodedata.normalize("NFKC", name).lower()
    if not name or len(name.encode()) > NAME_LIMIT or not name.isprintable() or " " in name or "," in name:
        raise LoginRefused(INITIATOR_ERROR, f"{name[:40]!r} is no iSCSI name")
    return name


def stage_flags(current: int, following: int | None = None) -> int:
    """Return byte 1 of a login PDU in a stage, asking to go on to another."""
    return current << 2 | (FINAL | following if following is not None else 0)
