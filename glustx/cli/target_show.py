"""What `glustx target` prints: lines for people, JSON for programs, Prometheus's text format for its collectors."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from typing import Any

import msgspec

from glustx.mgmt.targets import Saved
from glustx.scsi.config import LunConfig
from glustx.units import human

_COUNTERS = ("reads", "writes", "read_bytes", "write_bytes", "read_seconds", "write_seconds", "errors")


class Format(str, enum.Enum):
    """How answers are printed."""

    TEXT = "text"
    JSON = "json"
    PROMETHEUS = "prometheus"


def print_targets(saved: Saved, form: Format) -> None:
    """Print what is kept; secrets are left out."""
    if form is not Format.TEXT:
        shown = msgspec.to_builtins(saved, str_keys=True)
        for target in shown["targets"].values():
            for rule in target["acls"]:
                for name in ("password", "mutual_password"):
                    rule[name] = bool(rule[name])
        print(json.dumps(shown))
        return
    print(f"portals {', '.join(f'{p} as {saved.advertise[p]}' if p in saved.advertise else p for p in saved.portals)}")
    for target in saved.targets.values():
        redirect = f", logins go to {target.redirect}" if target.redirect else ""
        print(f"{target.name}{f' ({target.alias})' if target.alias else ''}{redirect}")
        for lun, config in target.luns.items():
            print(f"  LUN {lun}: {config.volume}:{config.path}{_differing(config)}")
        for rule in target.acls:
            luns = "" if rule.luns is None else " sees " + " ".join(f"{a}={b}" for a, b in rule.luns.items())
            chap = " mutual CHAP" if rule.mutual_user else " CHAP" if rule.user else ""
            where = f" from {', '.join(rule.addresses)}" if rule.addresses else ""
            print(f"  ACL {rule.initiator}{where}{chap}{luns}")
        if not target.acls:
            print("  ACL none: everybody may use it")


def _differing(config: LunConfig) -> str:
    plain = msgspec.structs.asdict(LunConfig(path=""))
    own = msgspec.structs.asdict(config)
    words = [
        f"{key.replace('_', '-')}={value}"
        for key, value in own.items()
        if value != plain[key] and key not in ("path", "volume")
    ]
    return f" ({', '.join(words)})" if words else ""


def print_sessions(rows: list[dict[str, Any]], form: Format) -> None:
    """Print the sessions of a gateway, as its control socket tells them."""
    if form is not Format.TEXT:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['target'] or 'discovery'}  {row['initiator']}  from {row['peer']}"
            f"  {row.get('tasks', 0)} commands under way, {row.get('commands', 0)} in all"
        )


def print_statistics(rows: list[dict[str, Any]], form: Format) -> None:
    """Print what each unit has done."""
    if form is Format.JSON:
        print(json.dumps(rows))
    elif form is Format.PROMETHEUS:
        for name in _COUNTERS:
            print(f"# TYPE glustx_lun_{name}_total counter")
            for row in rows:
                labels = ",".join(f'{key}="{_escaped(str(row[key]))}"' for key in ("volume", "path", "serial"))
                print(f"glustx_lun_{name}_total{{{labels}}} {row[name]:g}")
    else:
        for row in rows:
            print(
                f"{row['volume']}:{row['path']}  {row['reads']} reads ({human(row['read_bytes'])}),"
                f" {row['writes']} writes ({human(row['write_bytes'])}), {row['errors']} errors"
            )
            for name, (count, seconds) in sorted(row["by_command"].items()):
                print(f"  {name:<36} {count:>10.0f}  {seconds / count * 1e6 if count else 0:>10.1f} us")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def watch(ask: Callable[[], list[dict[str, Any]]], seconds: float, count: int) -> None:
    """Print what the units do in each span of `seconds`, `count` times or for ever."""
    before = {(row["volume"], row["path"]): row for row in ask()}
    then = time.monotonic()
    looks = 0
    while not count or looks < count:
        time.sleep(seconds)
        rows, now = ask(), time.monotonic()
        span, then = now - then, now
        print(f"{'LUN':<40} {'read/s':>9} {'write/s':>9} {'in':>12} {'out':>12} {'us/read':>9} {'us/write':>9}")
        for row in rows:
            old = before.get((row["volume"], row["path"]))
            if old is None:
                continue
            diff = {name: row[name] - old[name] for name in _COUNTERS}
            print(
                f"{row['volume'] + ':' + row['path']:<40} {diff['reads'] / span:>9.0f} {diff['writes'] / span:>9.0f}"
                f" {human(diff['write_bytes'] / span) + '/s':>12} {human(diff['read_bytes'] / span) + '/s':>12}"
                f" {_each(diff['read_seconds'], diff['reads']):>9} {_each(diff['write_seconds'], diff['writes']):>9}",
                flush=True,
            )
        before = {(row["volume"], row["path"]): row for row in rows}
        looks += 1


def _each(seconds: float, count: float) -> str:
    return f"{seconds / count * 1e6:.0f}" if count else "-"
