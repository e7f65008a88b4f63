"""Everything one process offers: volumes, the units on their files, the targets that show them to initiators."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from glustx.errors import FopError, GraphError
from glustx.runtime import Reactor
from glustx.scsi import chapters
from glustx.scsi.backing import Backing
from glustx.scsi.config import LunConfig, TargetConfig
from glustx.scsi.copy_lists import CopyLists
from glustx.scsi.sense import CAPACITY_CHANGED
from glustx.scsi.target import Target
from glustx.scsi.tokens import Tokens
from glustx.scsi.unit import LogicalUnit
from glustx.xlator import Wind

log = logging.getLogger("glustx.scsi")

_CHAPTERS = chapters.ALL  # the opcode table is whole before the first unit is made


class Gateway:
    """Targets and units over one or several volumes.

    Args:
        volumes: name -> graph; the first is what a unit without a volume name means.
        reactor: clock.
        client: whose fds and locks these are on the bricks.
    """

    def __init__(self, volumes: Mapping[str, Wind], reactor: Reactor, client: str = "") -> None:
        self.volumes = dict(volumes)
        self.reactor = reactor
        self.client = client
        self.units: dict[tuple[str, str], LogicalUnit] = {}
        self.targets: dict[str, Target] = {}
        self.copies = CopyLists(reactor)
        self.tokens = Tokens(reactor)

    async def start(self, targets: Sequence[TargetConfig]) -> None:
        """Open all units and make the targets; GraphError says which cannot be, and nothing stays open then."""
        try:
            for config in targets:
                await self.add_target(config)
            await self.tokens.sweep(list(self.units.values()))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Lose every nexus, make everything durable and close the files."""
        for target in self.targets.values():
            for nexus in list(target.nexuses.values()):
                target.lose(nexus)
        self.targets.clear()
        await self.copies.stop()
        await self.tokens.stop()
        units, self.units = list(self.units.values()), {}
        for unit in units:
            await self._close(unit)

    async def _close(self, unit: LogicalUnit) -> None:
        try:
            await unit.stop()
        except FopError as error:
            log.error("%r: %s", unit, error)

    async def add_target(self, config: TargetConfig) -> Target:
        """Open a target's units and make it; GraphError when its name or a unit's identity is taken."""
        if config.name in self.targets:
            raise GraphError(f"target {config.name} is there twice")
        units = {lun: await self.unit(each) for lun, each in sorted(config.luns.items())}
        target = self.targets[config.name] = Target(self, config, units)
        return target

    async def apply(self, configs: Sequence[TargetConfig]) -> list[Target]:
        """Become what `configs` describe, while initiators are at work.

        What can fail is done first: all new units are opened, and a GraphError leaves everything as it was. Then
        targets and units come, go and change; sessions stay, and hear of it by unit attentions. A unit whose `capacity`
        alone has changed is resized, one with other new options is replaced.

        Returns the targets that are gone; whoever holds their sessions ends them.
        """
        for config in configs:
            try:
                config.check()
            except ValueError as error:
                raise GraphError(f"target {config.name}: {error}") from None
        names = [config.name for config in configs]
        if len(set(names)) < len(names):
            raise GraphError(f"target {max(names, key=names.count)} is there twice")
        kept, self.units = self.units, {}
        opened: list[LogicalUnit] = []
        resized: list[LogicalUnit] = []
        try:
            wanted: dict[str, dict[int, LogicalUnit]] = {}
            for config in configs:
                units = wanted[config.name] = {}
                for lun, each in sorted(config.luns.items()):
                    units[lun] = await self._keep_or_open(each, kept, opened, resized)
        except BaseException:
            self.units = kept
            for unit in opened:
                await self._close(unit)
            raise
        gone = [self.targets.pop(name) for name in list(self.targets) if name not in wanted]
        for target in gone:
            for nexus in list(target.nexuses.values()):
                target.lose(nexus)
        for config in configs:
            known = self.targets.get(config.name)
            if known is None:
                self.targets[config.name] = Target(self, config, wanted[config.name])
            else:
                known.reconfigure(config, wanted[config.name])
        for unit in resized:
            await self.resize(unit)
        for unit in set(kept.values()) - set(self.units.values()):
            await self._close(unit)
        return gone

    async def _keep_or_open(
        self,
        config: LunConfig,
        kept: Mapping[tuple[str, str], LogicalUnit],
        opened: list[LogicalUnit],
        resized: list[LogicalUnit],
    ) -> LogicalUnit:
        key = (config.volume or next(iter(self.volumes)), config.path)
        old = kept.get(key)
        if old is not None and key not in self.units:
            if old.config == config:
                self.units[key] = old
                return old
            if msgspec.structs.replace(old.config, capacity=config.capacity) == config:
                old.config = config
                self.units[key] = old
                resized.append(old)
                return old
        fresh = key not in self.units
        unit = await self.unit(config)
        if fresh:
            opened.append(unit)
        return unit

    async def unit(self, config: LunConfig) -> LogicalUnit:
        """Return the unit of a file, opened at first use; GraphError when that fails or two would be one to initiators.

        Two targets that name the same file share the unit, and must agree on its options.
        """
        volume = config.volume or next(iter(self.volumes))
        child = self.volumes.get(volume)
        if child is None:
            raise GraphError(f"{config.path}: there is no volume {volume}; there are {', '.join(self.volumes)}")
        known = self.units.get((volume, config.path))
        if known is not None:
            if known.config != config:
                raise GraphError(f"{volume}:{config.path} is two LUNs with different options")
            return known
        try:
            config.check()
            backing = await Backing.open(child, config.path, volume, readonly=config.readonly, client=self.client)
        except (FopError, ValueError) as error:
            raise GraphError(f"{volume}:{config.path} cannot be a LUN: {error}") from error
        unit = LogicalUnit(self, config, backing, self.reactor)
        try:
            self._check_identity(unit)
            await unit.start()
        except BaseException:
            await self._close(unit)
            raise
        self.units[volume, config.path] = unit
        return unit

    def _check_identity(self, unit: LogicalUnit) -> None:
        if not unit.blocks:
            raise GraphError(f"{unit!r} has no room for a block of {unit.block_size} bytes")
        for other in self.units.values():
            mine, theirs = unit.identity, other.identity
            if other.backing.volume == unit.backing.volume and other.backing.gfid == unit.backing.gfid:
                raise GraphError(f"{unit!r} and {other!r} are one file")
            for name in ("serial", "naa", "eui", "uuid"):
                if getattr(mine, name) and getattr(mine, name) == getattr(theirs, name):
                    raise GraphError(f"{unit!r} and {other!r} have one {name}; initiators would take them for one disk")

    async def resize(self, unit: LogicalUnit) -> None:
        """Follow the size of a unit's file (or its `capacity`); every nexus is told when it has changed."""
        await unit.backing.refresh()
        blocks = (unit.config.capacity or unit.backing.size) >> unit.shift
        if blocks and blocks != unit.blocks:
            unit.blocks = blocks
            unit.tell_all(CAPACITY_CHANGED)
