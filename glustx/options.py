"""Options of a translator: typed fields with a default, bounds and a sentence, parsed from a volfile's text.

    class Options(OptionSet):
        thread_count: int = option(16, "Fops that may wait at one time.", low=1, high=64, live=True)

The key in a volfile is the field's name with dashes (`thread-count`). Types: bool, int, float, str, `Size` (bytes,
64KB), `Percent`, `Seconds` (10, 5min). A key that stock knows and glustx does not need is accepted by name and listed
once; anything else is an error that names the nearest key.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, NewType

import msgspec

from glustx.errors import OptionError

Size = NewType("Size", int)
Percent = NewType("Percent", float)
Seconds = NewType("Seconds", float)

_TRUE = {"on", "yes", "true", "enable", "1"}
_FALSE = {"off", "no", "false", "disable", "0"}
_SIZES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_TIMES = {"": 1, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "hr": 3600, "d": 86400, "days": 86400, "w": 604800}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([BKMGTP]?)(?:i?B)?", re.IGNORECASE)
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)


class OptionInfo(msgspec.Struct, frozen=True):
    """What is known of one option: what `docgen` prints and `OptionSet.parse` obeys."""

    field: str
    key: str
    kind: Any
    default: Any
    doc: str
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    live: bool
    required: bool
    pattern: bool


class _Declared:
    def __init__(self, **facts: Any) -> None:
        self.facts = facts


def option(
    default: Any,
    doc: str,
    *,
    key: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    live: bool = False,
) -> Any:
    """Declare an option.

    Args:
        default: value when the volfile has none; `...` makes the option required.
        doc: one sentence for people.
        key: the volfile's key where it is not the field's name with dashes.
        low, high: inclusive bounds of a number.
        choices: the only texts allowed.
        live: True when `reconfigure` may change it under load.
    """
    return _Declared(default=default, doc=doc, key=key, low=low, high=high, choices=choices, live=live, pattern=False)


def wildcard(pattern: str, doc: str, *, live: bool = False) -> Any:
    """Declare a family of options by an fnmatch pattern (`auth.addr.*.allow`); the field is a dict of key to text."""
    return _Declared(default=None, doc=doc, key=pattern, low=None, high=None, choices=(), live=live, pattern=True)


def parse_size(text: str) -> int:
    """Return bytes for `64KB`, `1.5G`, `4096`; units are binary. ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size (such as 4096, 64KB, 1GB)")
    unit = _SIZES[match[2].upper()]
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_seconds(text: str) -> float:
    """Return seconds for `10`, `5min`, `2h`. ValueError for anything else."""
    match = _TIME.fullmatch(text.strip())
    if not match or match[2].lower() not in _TIMES:
        raise ValueError(f"{text!r} is not a time (such as 10, 5min, 2h)")
    return float(match[1]) * _TIMES[match[2].lower()]


def parse_bool(text: str) -> bool:
    """Return the truth of on/off, yes/no, true/false, enable/disable, 1/0. ValueError for anything else."""
    low = text.strip().lower()
    if low in _TRUE:
        return True
    if low in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither on nor off")


def _parse(kind: Any, text: str) -> Any:
    if kind is bool:
        return parse_bool(text)
    if kind is int:
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
    if kind is Size:
        return parse_size(text)
    if kind is Seconds:
        return parse_seconds(text)
    if kind is Percent:
        try:
            return float(text.strip().rstrip("%"))
        except ValueError:
            raise ValueError(f"{text!r} is not a percentage") from None
    return text


class OptionSet:
    """Base of every translator's `Options`; an instance holds the values, read-only by convention.

    Class attributes:
        accepted: keys (fnmatch patterns allowed) that stock knows and this translator does not need.
    """

    infos: ClassVar[tuple[OptionInfo, ...]] = ()
    accepted: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        infos = list(cls.infos)
        declared = {name: value for name, value in vars(cls).items() if isinstance(value, _Declared)}
        hints = typing.get_type_hints(cls) if declared else {}
        for name, value in declared.items():
            facts = dict(value.facts)
            default = facts.pop("default")
            key = facts.pop("key") or name.replace("_", "-")
            required = default is ...
            info = OptionInfo(field=name, key=key, kind=hints[name], default=default, required=required, **facts)
            infos = [other for other in infos if other.field != name] + [info]
            setattr(cls, name, {} if info.pattern else default)
        cls.infos = tuple(infos)

    def __init__(self, **values: Any) -> None:
        known = {info.field for info in self.infos}
        for name, value in values.items():
            if name not in known:
                raise TypeError(f"{type(self).__qualname__} has no option {name}")
            setattr(self, name, value)

    @classmethod
    def parse(cls, xlator: str, texts: Mapping[str, str], *, strict: bool = True) -> tuple[OptionSet, list[str]]:
        """Build the set from a volfile's texts.

        Args:
            xlator: the volume's name, for errors.
            texts: key to text.
            strict: True makes an unknown key an error; False (text that came from a peer) only notes it.

        Returns the set and the notes: keys accepted without effect, unknown keys when not strict.
        Raises OptionError for an unknown key, a bad value, or a missing required option.
        """
        values: dict[str, Any] = {}
        notes: list[str] = []
        plain = {info.key: info for info in cls.infos if not info.pattern}
        for key, text in texts.items():
            info = plain.get(key) or plain.get(key.replace("_", "-"))
            if info is not None:
                values[info.field] = cls._value(xlator, info, key, text)
                continue
            family = next((i for i in cls.infos if i.pattern and fnmatch.fnmatchcase(key, i.key)), None)
            if family is not None:
                values.setdefault(family.field, {})[key] = text
                continue
            if any(fnmatch.fnmatchcase(key, pattern) for pattern in cls.accepted):
                notes.append(f"option {key} of {xlator} is accepted and has no effect")
                continue
            near = difflib.get_close_matches(key, list(plain), n=1)
            hint = f"; the nearest is {near[0]}" if near else ""
            if strict:
                raise OptionError(xlator, key, f"no such option{hint}")
            notes.append(f"option {key} of {xlator} is unknown and ignored{hint}")
        for info in cls.infos:
            if info.required and info.field not in values:
                raise OptionError(xlator, info.key, "is required")
        return cls(**values), notes

    @staticmethod
    def _value(xlator: str, info: OptionInfo, key: str, text: str) -> Any:
        try:
            value = _parse(info.kind, text)
        except ValueError as error:
            raise OptionError(xlator, key, str(error)) from None
        if isinstance(value, float) and not math.isfinite(value):
            raise OptionError(xlator, key, f"{text!r} is not a number one can use")
        if info.choices and value not in info.choices:
            raise OptionError(xlator, key, f"{text!r} is not one of {', '.join(info.choices)}")
        if (info.low is not None and value < info.low) or (info.high is not None and value > info.high):
            low = "" if info.low is None else f"{info.low:g}"
            high = "" if info.high is None else f"{info.high:g}"
            raise OptionError(xlator, key, f"{text!r} is outside {low}..{high}")
        return value

    def values(self) -> dict[str, Any]:
        """Return key to value, for statedumps and status; secrets are left out."""
        shown: dict[str, Any] = {}
        for info in self.infos:
            if info.pattern:
                shown.update((k, v) for k, v in getattr(self, info.field).items() if "password" not in k)
            elif "password" not in info.key:
                shown[info.key] = getattr(self, info.field)
        return shown
