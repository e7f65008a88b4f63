"""What a gateway offers, as it is kept between runs: portals, and targets with their LUNs and rules, in one JSON file.

The nouns are LIO's. A file is replaced as a whole (written beside, fsynced, renamed), under a lock that whoever changes
it holds; it has mode 0600, since it holds CHAP secrets.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from glustx.mgmt.state import ServeError
from glustx.scsi.config import AclConfig, LunConfig, TargetConfig, check_name

DEFAULT_PORTAL = "127.0.0.1:3260"


class Saved(msgspec.Struct, frozen=True):
    """A gateway's configuration.

    Attributes:
        portals: `host:port` to listen on.
        advertise: portal -> `host:port` that initiators are told instead, behind NAT.
        targets: by name. A LUN's `volume` is what gfapi can open: a URL, a brick's folder, a volfile.
    """

    portals: tuple[str, ...] = (DEFAULT_PORTAL,)
    advertise: dict[str, str] = {}
    targets: dict[str, TargetConfig] = {}

    def volumes(self) -> list[str]:
        """Return the volumes of all LUNs, each once."""
        return list(dict.fromkeys(lun.volume for target in self.targets.values() for lun in target.luns.values()))

    def check(self) -> None:
        """Raise ServeError for what cannot be."""
        for name, target in self.targets.items():
            try:
                if name != target.name:
                    raise ValueError(f"is kept as {name}")
                target.check()
            except ValueError as error:
                raise ServeError(f"target {target.name}: {error}") from None

    def target(self, name: str) -> TargetConfig:
        """Return a target; ServeError when there is none of that name."""
        found = self.targets.get(name.lower())
        if found is None:
            known = ", ".join(self.targets) or "none"
            raise ServeError(f"there is no target {name}; there is {known}")
        return found

    def with_target(self, target: TargetConfig) -> Saved:
        """Return the configuration with a target added or replaced."""
        return msgspec.structs.replace(self, targets={**self.targets, target.name: target})

    # -- changes ---------------------------------------------------------------------------------------------------

    def create(self, name: str, alias: str = "", portal_group: int = 1) -> Saved:
        """Add a target without LUNs."""
        name = name.lower()
        try:
            check_name(name)
        except ValueError as error:
            raise ServeError(str(error)) from None
        if name in self.targets:
            raise ServeError(f"target {name} is there already")
        return self.with_target(TargetConfig(name=name, alias=alias, portal_group=portal_group))

    def delete(self, name: str) -> Saved:
        """Remove a target; the files of its LUNs stay."""
        gone = self.target(name)
        return msgspec.structs.replace(self, targets={k: t for k, t in self.targets.items() if t is not gone})

    def add_lun(self, name: str, config: LunConfig, number: int | None = None) -> tuple[Saved, int]:
        """Add a LUN, under the first free number unless one is given; return that as well."""
        target = self.target(name)
        if number is None:
            number = next(n for n in range(len(target.luns) + 1) if n not in target.luns)
        if number in target.luns:
            raise ServeError(f"target {target.name} has LUN {number} already ({target.luns[number].path})")
        luns = dict(sorted({**target.luns, number: config}.items()))
        return self.with_target(msgspec.structs.replace(target, luns=luns)), number

    def remove_lun(self, name: str, number: int) -> Saved:
        """Remove a LUN, and from the rules what showed it."""
        target = self.target(name)
        if number not in target.luns:
            raise ServeError(f"target {target.name} has no LUN {number}")
        luns = {lun: config for lun, config in target.luns.items() if lun != number}
        acls = tuple(
            msgspec.structs.replace(rule, luns={seen: own for seen, own in rule.luns.items() if own != number})
            if rule.luns is not None
            else rule
            for rule in target.acls
        )
        return self.with_target(msgspec.structs.replace(target, luns=luns, acls=acls))

    def set_lun(self, name: str, number: int, config: LunConfig) -> Saved:
        """Change a LUN's options."""
        target = self.target(name)
        return self.with_target(msgspec.structs.replace(target, luns={**target.luns, number: config}))

    def map(self, name: str, rule: AclConfig) -> Saved:
        """Add a rule for initiators, or replace that for the same ones. Exact names come before patterns."""
        target = self.target(name)
        rest = [each for each in target.acls if each.initiator.lower() != rule.initiator.lower()]
        rules = sorted([*rest, rule], key=lambda each: any(char in each.initiator for char in "*?["))
        return self.with_target(msgspec.structs.replace(target, acls=tuple(rules)))

    def unmap(self, name: str, initiator: str) -> Saved:
        """Remove the rule for an initiator or pattern. The last one cannot go: without rules everybody may come."""
        target = self.target(name)
        rest = tuple(each for each in target.acls if each.initiator.lower() != initiator.lower())
        if len(rest) == len(target.acls):
            raise ServeError(f"target {target.name} has no rule for {initiator}")
        if not rest:
            raise ServeError(f"without its last rule everybody may use target {target.name}; map others first, or '*'")
        return self.with_target(msgspec.structs.replace(target, acls=rest))


class Store:
    """The file that holds a gateway's configuration.

    Args:
        folder: where it lies, as `targets.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "targets.json"

    def load(self) -> Saved:
        """Return what is kept, the defaults where nothing is; ServeError for what cannot be read."""
        try:
            saved = msgspec.json.decode(self.file.read_bytes(), type=Saved)
        except FileNotFoundError:
            return Saved()
        except (OSError, msgspec.MsgspecError) as error:
            raise ServeError(f"cannot read {self.file}: {error}") from None
        saved.check()
        return saved

    def save(self, saved: Saved) -> None:
        """Replace what is kept, durably; ServeError when it cannot be, and the old one stays."""
        saved.check()
        new = self.file.with_suffix(f".{os.getpid()}.new")
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(saved)) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, self.file)
            folder = os.open(self.file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise ServeError(f"cannot keep targets in {self.file}: {error.strerror or error}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to change the file, waiting for others who do."""
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ServeError(f"cannot lock {self.file}: {error.strerror or error}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
