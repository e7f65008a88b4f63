"""Persistent reservations as a state machine (SPC-5 5.14): registrations, the reservation, and what actions make of it.

Nothing here knows of units, files or sessions. An action either raises and changes nothing, or changes the state and
returns the news for other I_T nexuses.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable

import msgspec

from glustx.scsi.sense import ILLEGAL_REQUEST, check, invalid_parameter

MOST = 255  # registrations of one unit
_EVENTS = 8  # that are kept for gateways which have not seen them yet


class Kind(enum.IntEnum):
    """Types of a persistent reservation, with SPC's numbers."""

    WRITE_EXCLUSIVE = 1
    EXCLUSIVE_ACCESS = 3
    WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5
    EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6
    WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7
    EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8

    @property
    def shared(self) -> bool:
        """Whether every registrant may do what the holder may."""
        return self >= Kind.WRITE_EXCLUSIVE_REGISTRANTS_ONLY

    @property
    def held_by_all(self) -> bool:
        """Whether every registrant is a holder."""
        return self >= Kind.WRITE_EXCLUSIVE_ALL_REGISTRANTS

    @property
    def exclusive(self) -> bool:
        """Whether others may not even read."""
        return self in (
            Kind.EXCLUSIVE_ACCESS,
            Kind.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
            Kind.EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
        )


class News(enum.IntEnum):
    """What other nexuses are told of an action."""

    RESERVATIONS_PREEMPTED = 1
    RESERVATIONS_RELEASED = 2
    REGISTRATIONS_PREEMPTED = 3
    ABORTED = 4  # not told by itself: the tasks of these nexuses are to be aborted


class Port(msgspec.Struct, frozen=True, array_like=True, order=True):
    """An I_T nexus as it is known over restarts: initiator port, target, relative target port (0: every one)."""

    initiator: str
    target: str
    relative: int

    @property
    def digest(self) -> bytes:
        """Eight bytes that stand for it in an event."""
        text = f"{self.initiator}\0{self.target}\0{self.relative}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:8]

    def covers(self, nexus: Port) -> bool:
        """Tell whether this is, or includes, the nexus."""
        return self == nexus or (self.relative == 0 and self == msgspec.structs.replace(nexus, relative=0))


class Registration(msgspec.Struct, array_like=True):
    """One registered nexus and its key."""

    port: Port
    key: int


class Event(msgspec.Struct, frozen=True, array_like=True):
    """News for nexuses, given by their `Port.digest`; `serial` is the state's after the action."""

    serial: int
    news: int
    ports: tuple[bytes, ...]


class Conflict(Exception):
    """An action that ends with RESERVATION CONFLICT."""


class State(msgspec.Struct, array_like=True):
    """Registrations and reservation of one unit.

    Attributes:
        serial: changes with every action that changes anything; tells gateways whether they are up to date.
        generation: PRGENERATION.
        registrations: by no particular order; the first registered comes first.
        kind: type of the reservation, 0 for none.
        holder: who holds it; None for none and for the types that all registrants hold.
        persists: APTPL of the last registration: whether all this outlives a restart.
        events: the latest news.
    """

    serial: int = 0
    generation: int = 0
    registrations: list[Registration] = []
    kind: int = 0
    holder: Port | None = None
    persists: bool = False
    events: list[Event] = []

    # -- questions ---------------------------------------------------------------------------------------------------

    def find(self, nexus: Port) -> Registration | None:
        """Return a nexus's registration."""
        for each in self.registrations:
            if each.port.covers(nexus):
                return each
        return None

    def holds(self, nexus: Port) -> bool:
        """Tell whether a nexus holds the reservation."""
        if not self.kind:
            return False
        if Kind(self.kind).held_by_all:
            return self.find(nexus) is not None
        return self.holder is not None and self.holder.covers(nexus)

    def allows(self, nexus: Port, *, writes: bool) -> bool:
        """Tell whether the reservation lets a nexus read or write the medium."""
        if not self.kind or self.holds(nexus):
            return True
        kind = Kind(self.kind)
        if kind.shared and self.find(nexus) is not None:
            return True
        return not writes and not kind.exclusive

    @property
    def holder_key(self) -> int:
        """The key that READ RESERVATION shows: the holder's, 0 where all registrants hold it."""
        registration = self.find(self.holder) if self.holder is not None else None
        return registration.key if registration is not None else 0

    def copy(self) -> State:
        """Return a copy that can be changed on its own."""
        return msgspec.structs.replace(
            self,
            registrations=[msgspec.structs.replace(each) for each in self.registrations],
            events=list(self.events),
        )

    def check(self) -> None:
        """Raise ValueError for a state that no actions lead to."""
        if self.kind and self.kind not in tuple(Kind):
            raise ValueError(f"reservation type {self.kind}")
        by_all = bool(self.kind) and Kind(self.kind).held_by_all
        if (self.holder is not None) != (bool(self.kind) and not by_all):
            raise ValueError(f"a reservation of type {self.kind} with holder {self.holder}")
        if (self.holder is not None and self.find(self.holder) is None) or (by_all and not self.registrations):
            raise ValueError("a reservation of nobody that is registered")
        if any(not 0 < each.key < 1 << 64 for each in self.registrations):
            raise ValueError("a registration whose key has not 1 to 64 bits")
        if len({each.port for each in self.registrations}) < len(self.registrations):
            raise ValueError("a nexus that is registered twice")

    # -- actions -----------------------------------------------------------------------------------------------------

    def register(
        self,
        nexus: Port,
        key: int,
        new: int,
        *,
        ignore: bool = False,
        persists: bool = False,
        every_port: bool = False,
        others: Iterable[Port] = (),
    ) -> bool:
        """REGISTER, and with `ignore` REGISTER AND IGNORE EXISTING KEY.

        Args:
            nexus: who asks.
            key: the key it says it has, 0 for none.
            new: its key from now on; 0 ends the registration.
            persists: APTPL.
            every_port: ALL_TG_PT: the registration counts at all ports of the target.
            others: SPEC_I_PT: nexuses that are registered as well, all or none.

        Returns whether anything was done.
        """
        known = self.find(nexus)
        if not ignore and key != (known.key if known is not None else 0):
            raise Conflict
        if known is None and not new:
            return False
        if known is not None and others:
            raise check(ILLEGAL_REQUEST, 0x24, 0, "SPEC_I_PT by a nexus that is registered")
        news: list[tuple[News, Iterable[Port]]] = []
        if known is None:
            wanted = [msgspec.structs.replace(nexus, relative=0) if every_port else nexus]
            for port in others:
                wanted.append(msgspec.structs.replace(port, relative=0) if every_port else port)
            self._add(wanted, new, replacing=every_port)
        elif new:
            if every_port and known.port.relative:
                self._widen(known, nexus)
            known.key = new
        else:
            news = self._drop(known, but=nexus)
        self.persists = persists
        self._done(news)
        return True

    def _add(self, ports: list[Port], key: int, replacing: bool) -> None:
        if len(set(ports)) < len(ports) or any(self.find(port) is not None for port in ports):
            raise Conflict
        # ALL_TG_PT takes the place of registrations at single ports, which must have the same key (SPC-5 5.14.7).
        inside = [each for each in self.registrations if replacing and any(port.covers(each.port) for port in ports)]
        if any(each.key != key for each in inside):
            raise Conflict
        if len(self.registrations) - len(inside) + len(ports) > MOST:
            raise check(ILLEGAL_REQUEST, 0x55, 0x04, f"more than {MOST} registrations")
        if self.holder is not None:
            self.holder = next((port for port in ports if replacing and port.covers(self.holder)), self.holder)
        self.registrations = [each for each in self.registrations if each not in inside]
        self.registrations.extend(Registration(port, key) for port in ports)

    def _widen(self, known: Registration, nexus: Port) -> None:
        port = msgspec.structs.replace(nexus, relative=0)
        inside = [each for each in self.registrations if port.covers(each.port) and each is not known]
        if any(each.key != known.key for each in inside):
            raise Conflict
        if self.holder is not None and port.covers(self.holder):
            self.holder = port
        self.registrations = [each for each in self.registrations if not any(each is one for one in inside)]
        known.port = port

    def reserve(self, nexus: Port, key: int, kind: Kind) -> bool:
        """RESERVE: take the reservation, or keep the same one."""
        self._member(nexus, key)
        if self.kind:
            if self.holds(nexus) and self.kind == kind:
                return False
            raise Conflict
        self.kind = kind
        self.holder = None if kind.held_by_all else self._member(nexus, key).port
        self._done((), generation=False)
        return True

    def release(self, nexus: Port, key: int, kind: Kind) -> bool:
        """RELEASE: give the reservation back; nothing when somebody else, or nobody, holds one."""
        self._member(nexus, key)
        if not self.holds(nexus):
            return False
        if self.kind != kind:
            raise check(ILLEGAL_REQUEST, 0x26, 0x04, f"type {kind} released, {self.kind} is held")
        self._done(self._end(but=nexus), generation=False)
        return True

    def clear(self, nexus: Port, key: int) -> bool:
        """CLEAR: end the reservation and all registrations."""
        self._member(nexus, key)
        told = [each.port for each in self.registrations if not each.port.covers(nexus)]
        self.registrations, self.kind, self.holder = [], 0, None
        self._done([(News.RESERVATIONS_PREEMPTED, told)])
        return True

    def preempt(self, nexus: Port, key: int, victim: int, kind: Kind, *, abort: bool = False) -> bool:
        """PREEMPT: end the registrations with key `victim`; take the reservation where one of them holds it."""
        self._member(nexus, key)
        by_all = bool(self.kind) and Kind(self.kind).held_by_all
        takes = bool(self.kind) and (victim == 0 if by_all else victim == self.holder_key)
        if not victim and not takes:
            raise invalid_parameter(8, text="PREEMPT without a service action key")
        gone = [each for each in self.registrations if each.key == victim or (by_all and not victim)]
        if not gone:
            raise Conflict
        news: list[tuple[News, Iterable[Port]]] = []
        others = [each.port for each in gone if not each.port.covers(nexus)]
        if takes:
            gone = [each for each in gone if not each.port.covers(nexus)]
        self.registrations = [each for each in self.registrations if not any(each is one for one in gone)]
        news.append((News.REGISTRATIONS_PREEMPTED, others))
        if takes:
            if self.kind != kind:
                rest = [each.port for each in self.registrations if not each.port.covers(nexus)]
                news.append((News.RESERVATIONS_RELEASED, rest))
            self.kind = kind
            self.holder = None if kind.held_by_all else self._member(nexus, key).port
        elif by_all and not self.registrations:
            news.extend(self._end(but=nexus))
        if abort:
            news.append((News.ABORTED, others))
        self._done(news)
        return True

    def move(self, nexus: Port, key: int, new: int, to: Port, *, unregister: bool, persists: bool) -> bool:
        """REGISTER AND MOVE: the holder hands the reservation to another nexus, which has key `new` from then on."""
        mine = self._member(nexus, key)
        if not self.holds(nexus) or Kind(self.kind).held_by_all:
            raise Conflict
        if not new:
            raise invalid_parameter(8, text="REGISTER AND MOVE to the key 0")
        if mine.port.covers(to):
            raise invalid_parameter(24, text="REGISTER AND MOVE to its own nexus")
        known = self.find(to)
        if known is None:
            if len(self.registrations) - unregister >= MOST:
                raise check(ILLEGAL_REQUEST, 0x55, 0x04, f"more than {MOST} registrations")
            known = Registration(to, new)
            self.registrations.append(known)
        known.key = new
        self.holder = known.port
        if unregister:
            self.registrations.remove(mine)
        self.persists = persists
        self._done(())
        return True

    # -- parts -------------------------------------------------------------------------------------------------------

    def _member(self, nexus: Port, key: int) -> Registration:
        known = self.find(nexus)
        if known is None or known.key != key:
            raise Conflict
        return known

    def _drop(self, known: Registration, but: Port) -> list[tuple[News, Iterable[Port]]]:
        held = bool(self.kind) and (
            len(self.registrations) == 1 if Kind(self.kind).held_by_all else self.holder == known.port
        )
        self.registrations.remove(known)
        return self._end(but) if held else []

    def _end(self, but: Port) -> list[tuple[News, Iterable[Port]]]:
        kind, self.kind, self.holder = Kind(self.kind), 0, None
        if not kind.shared:
            return []
        return [(News.RESERVATIONS_RELEASED, [each.port for each in self.registrations if not each.port.covers(but)])]

    def _done(self, news: Iterable[tuple[News, Iterable[Port]]], generation: bool = True) -> None:
        self.serial += 1
        if generation:
            self.generation = (self.generation + 1) & 0xFFFFFFFF
        for what, ports in news:
            digests = tuple(port.digest for port in ports)
            if digests:
                self.events.append(Event(self.serial, what, digests))
        del self.events[:-_EVENTS]
