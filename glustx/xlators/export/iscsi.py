"""export/iscsi: presents files of the volumes below as SCSI logical units to iSCSI initiators.

Sits at the top of a graph. What it shows is told by options in the form `glustx.scsi.config.targets_of` reads: targets,
their LUNs with FreeBSD CTL's options, and rules for initiators; all of them can change while initiators are at work.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any, ClassVar

from glustx.errors import GraphError, OptionError
from glustx.iscsi.exporter import Exporter
from glustx.options import OptionSet, option, wildcard
from glustx.rpc.channel import Address
from glustx.runtime import Tasks
from glustx.scsi.config import TargetConfig, targets_of
from glustx.xlator import Xlator

log = logging.getLogger("glustx.export.iscsi")


class Iscsi(Xlator):
    """The iSCSI end of a graph; its subvolumes are the volumes whose files it offers."""

    subvolume_count: ClassVar[tuple[int, int | None]] = (1, None)

    class Options(OptionSet):
        """Where to listen, and what to offer."""

        portals: str = option("127.0.0.1:3260", "Where to listen: HOST:PORT, by comma; port 0 takes a free one.")
        advertise: str = option("", "What initiators are told instead: HOST:PORT for each portal, by comma.")
        target: dict[str, str] = wildcard(
            "target.*",
            "Targets: target.T is the iSCSI name of the one that other options call T; target.T.alias, .portal-group,"
            " .redirect.",
            live=True,
        )
        lun: dict[str, str] = wildcard(
            "lun.*",
            "LUNs: lun.T.N is the file of LUN N of target T, PATH or SUBVOLUME:PATH; lun.T.N.block-size and the like.",
            live=True,
        )
        acl: dict[str, str] = wildcard(
            "acl.*",
            "Rules: acl.T.A is the name of an initiator that may use target T, or a pattern; acl.T.A.user, .password,"
            " .mutual-user, .mutual-password, .addresses, .luns.",
            live=True,
        )

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.tasks = Tasks(log)
        self.exporter: Exporter | None = None

    def check_options(self, options: Any) -> None:
        """Refuse targets, LUNs and rules that cannot be."""
        try:
            configs = self._targets(options)
        except ValueError as error:
            raise OptionError(self.name, "target.*", str(error)) from None
        names = {child.name for child in self.subvolumes}
        for config in configs:
            for number, lun in config.luns.items():
                if lun.volume and lun.volume not in names:
                    known = ", ".join(sorted(names))
                    text = f"LUN {number} of {config.name}: there is no subvolume {lun.volume}; there is {known}"
                    raise OptionError(self.name, "lun.*", text)
        try:
            portals = _addresses(options.portals)
            advertised = _addresses(options.advertise)
        except ValueError as error:
            raise OptionError(self.name, "portals", str(error)) from None
        if not portals or len(advertised) not in (0, len(portals)):
            raise OptionError(self.name, "advertise", "there is one for each portal, or none")

    @staticmethod
    def _targets(options: Any) -> list[TargetConfig]:
        return targets_of({**options.target, **options.lun, **options.acl})

    async def start(self) -> None:
        """Open the files and listen, when there is a network to listen on."""
        network = self.graph.surroundings.network
        listens = network is not None and hasattr(network, "listen")
        exporter = self.exporter = Exporter(
            self.graph.reactor, network if listens else None, client=f"glustx-{self.name}-{uuid.uuid4()}"
        )
        exporter.gateway.volumes.update({child.xlator.name: child for child in self.children})
        portals = _addresses(self.options.portals)
        advertised = _addresses(self.options.advertise)
        await exporter.start(
            portals,
            self._targets(self.options),
            {str(portal): told for portal, told in zip(portals, advertised, strict=False)},
        )

    async def stop(self) -> None:
        """End the sessions and give the files back."""
        await self.tasks.stop()
        if self.exporter is not None:
            await self.exporter.stop()
            self.exporter = None

    def options_changed(self, old: Any) -> None:
        """Follow other targets in the background; what cannot be is logged, and all stays as it was."""
        if self.exporter is not None:
            self.tasks.start(self._follow(self.exporter))

    async def _follow(self, exporter: Exporter) -> None:
        try:
            await exporter.apply(self._targets(self.options))
        except GraphError as error:
            log.error("%s stays as it was: %s", self.name, error)

    @property
    def addresses(self) -> list[Address]:
        """Where it listens, once it is started."""
        return self.exporter.addresses() if self.exporter is not None else []

    def statedump(self) -> dict[str, Any]:
        """Sessions, and what each unit has done."""
        exporter = self.exporter
        if exporter is None:
            return {}
        shown: dict[str, Any] = {"portals": ", ".join(map(str, exporter.addresses()))}
        for session in exporter.sessions():
            key = f"session.{session['target']}.{session['initiator']}"
            shown[key] = f"from {session['peer']}, {session.get('tasks', 0)} commands under way"
        for unit in exporter.gateway.units.values():
            counted = unit.statistics
            shown[f"unit.{unit.backing.volume}:{unit.backing.path}"] = (
                f"{counted.reads} reads {counted.read_bytes} bytes {counted.writes} writes {counted.write_bytes} bytes"
                f" {counted.errors} errors"
            )
        return shown


def _addresses(text: str) -> list[Address]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{part!r} is not HOST:PORT")
        found.append(Address(host.removeprefix("[").removesuffix("]"), int(port)))
    return found
