"""A graph: translators built from a volfile, brought up from the bottom, reconfigured in two phases, and taken down.

`Graph.load` builds and checks everything before anything is opened. `await graph.start()` brings it up, children first;
`graph.top` is the wind into it. What the graph needs from its surroundings (a clock, worker threads, a way to connect)
is the `Surroundings` that the edge hands in.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import logging
import pkgutil
import re
from collections.abc import Callable, Mapping
from typing import Any

import glustx.xlators
from glustx.errors import GraphError, OptionError
from glustx.inode import InodeTable
from glustx.options import OptionSet
from glustx.rpc.tls import Tls
from glustx.runtime import Reactor, Waiter, fan_out
from glustx.volfile import Volfile
from glustx.volfile import parse as parse_volfile
from glustx.workers import Workers, shared
from glustx.xlator import Event, Wind, Xlator
from glustx.xlators.standins import REFUSED, STAND_INS, StandIn, note, refuse_relied_on

log = logging.getLogger("glustx.graph")

_TYPE = re.compile(r"[a-z]+/[a-z][a-z0-9-]*")


def find_type(type_name: str) -> type[Xlator]:
    """Return the class of a translator type such as `performance/io-threads`.

    Module `xlators/performance/io_threads.py` is type `performance/io-threads`; there is no registry. Raises
    GraphError for a type that is refused (with the reason) or unknown (with the nearest known one).
    """
    if _TYPE.fullmatch(type_name):
        module_name = f"glustx.xlators.{type_name.replace('/', '.').replace('-', '_')}"
        if importlib.util.find_spec(module_name.rsplit(".", 1)[0]) and importlib.util.find_spec(module_name):
            module = importlib.import_module(module_name)
            for value in vars(module).values():
                if not (inspect.isclass(value) and issubclass(value, Xlator)):
                    continue
                if (value.type_name, value.__module__) == (type_name, module_name):
                    return value
    reason = REFUSED.get(type_name)
    if reason:
        raise GraphError(f"type {type_name} is refused: {reason}")
    if type_name in STAND_INS:
        return StandIn
    near = difflib.get_close_matches(type_name, sorted({*known_types(), *STAND_INS}), n=1)
    hint = f"; the nearest is {near[0]}" if near else ""
    raise GraphError(f"unknown translator type {type_name}{hint}")


def known_types() -> list[str]:
    """Return all translator types that have a module, sorted."""
    found: list[str] = []
    for category in pkgutil.iter_modules(glustx.xlators.__path__):
        if not category.ispkg:
            continue
        package = importlib.import_module(f"glustx.xlators.{category.name}")
        for module in pkgutil.iter_modules(package.__path__):
            source = importlib.util.find_spec(f"{package.__name__}.{module.name}")
            loader: Any = source.loader if source else None
            text = loader.get_source(f"{package.__name__}.{module.name}") if loader else ""
            if text and re.search(r"^class \w+\([^)]*\bXlator\b", text, re.MULTILINE):
                found.append(f"{category.name}/{module.name.replace('_', '-')}")
    return sorted(found)


class Surroundings:
    """What an edge lends a graph.

    Args:
        reactor: clock and door of the loop the graph lives in.
        network: how protocol/client connects (see `glustx.rpc.transport`); None where no network is wanted.
        workers: threads for calls that block; the process's own by default.
        host, volume: for messages that people read.
        tls: secures connections with volume servers, None where they are not; its files come before those that a
            volfile names for bricks.
    """

    def __init__(
        self,
        reactor: Reactor,
        network: Any = None,
        workers: Workers | None = None,
        host: str = "localhost",
        volume: str = "",
        tls: Tls | None = None,
    ) -> None:
        self.reactor = reactor
        self.network = network
        self.workers = workers or shared()
        self.host = host
        self.volume = volume
        self.tls = tls


class Graph:
    """Translators of one volfile, ready to be started.

    Attributes:
        xlators: by name, in the volfile's order (children before parents).
        root: the last volume of the file.
        top: the wind into `root`.
        inodes: the inode table that all translators of the graph share.
        notes: sentences about options without effect and stand-ins, listed once at start.
        winding: fops under way that edges counted in (see `enter` and `leave`).
    """

    def __init__(self, spec: Volfile, surroundings: Surroundings) -> None:
        self.spec = spec
        self.surroundings = surroundings
        self.reactor = surroundings.reactor
        self.workers = surroundings.workers
        self.inodes = InodeTable()
        self.xlators: dict[str, Xlator] = {}
        self.notes: list[str] = list(spec.warnings)
        self.listeners: list[Callable[[Event, Any], None]] = []
        self.started: list[Xlator] = []
        self.winding = 0
        self._idle: list[Waiter[None]] = []
        self.root: Xlator
        self.top: Wind

    # -- building --------------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        text: str,
        surroundings: Surroundings,
        *,
        source: str = "<volfile>",
        strict: bool = True,
        types: Mapping[str, type[Xlator]] | None = None,
    ) -> Graph:
        """Build a graph from a volfile's text; nothing is opened yet.

        Args:
            text: the volfile.
            source: file name or address it came from, for messages.
            strict: True for a local file (unknown options are errors), False for text from a peer.
            types: translator classes by type that have no module under glustx/xlators, such as a test's own.

        Raises VolfileError, OptionError, GraphError.
        """
        return cls.build(parse_volfile(text, source, strict=strict), surroundings, strict=strict, types=types)

    @classmethod
    def build(
        cls,
        spec: Volfile,
        surroundings: Surroundings,
        *,
        strict: bool = True,
        types: Mapping[str, type[Xlator]] | None = None,
    ) -> Graph:
        """Build a graph from a parsed volfile."""
        graph = cls(spec, surroundings)
        for volume in spec.volumes:
            kind = (types or {}).get(volume.type) or find_type(volume.type)
            if kind is StandIn:
                refuse_relied_on(volume)
                graph.notes.append(note(volume))
            options = graph._options(kind, volume.name, volume.options, strict)
            children = [graph.xlators[name] for name in volume.subvolumes]
            least, most = kind.subvolume_count
            if len(children) < least or (most is not None and len(children) > most):
                wanted = str(least) if least == most else f"{least} to {most if most is not None else 'any number'}"
                raise GraphError(
                    f"{spec.source}: volume {volume.name} of type {volume.type} has {len(children)} subvolumes, "
                    f"not {wanted}"
                )
            xlator = kind(volume.name, options, children)
            graph.xlators[volume.name] = xlator
        if not graph.xlators:
            raise GraphError(f"{spec.source}: no volume")
        graph.root = graph.xlators[spec.root.name]
        for xlator in graph.xlators.values():
            xlator.check_options(xlator.options)
            xlator.wire(graph)
        graph.top = Wind(graph.root)
        return graph

    def _options(self, kind: type[Xlator], name: str, texts: Mapping[str, str], strict: bool) -> OptionSet:
        if kind is StandIn:
            return OptionSet()
        options, notes = kind.Options.parse(name, texts, strict=strict)
        self.notes.extend(notes)
        return options

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring all translators up, children first and those of one height side by side; on failure those already up
        are stopped again."""
        for sentence in self.notes:
            log.info("%s", sentence)
        try:
            for level in self._levels():
                for outcome in await fan_out([self._start(xlator) for xlator in level]):
                    outcome.get()
        except BaseException:
            await self.stop()
            raise
        self.root.notify(Event.PARENT_UP)

    async def _start(self, xlator: Xlator) -> None:
        await xlator.start()
        self.started.append(xlator)

    def _levels(self) -> list[list[Xlator]]:
        # Those of a level have all their children below it, so ten bricks that are away cost one time-out, not ten.
        heights: dict[Xlator, int] = {}
        levels: list[list[Xlator]] = []
        for xlator in self.xlators.values():
            height = heights[xlator] = 1 + max((heights[child] for child in xlator.subvolumes), default=-1)
            if height == len(levels):
                levels.append([])
            levels[height].append(xlator)
        return levels

    async def stop(self) -> None:
        """Take all translators down, parents first; each is stopped even when another fails."""
        if self.started:
            self.root.notify(Event.PARENT_DOWN)
        while self.started:
            xlator = self.started.pop()
            try:
                await xlator.stop()
            except Exception:
                log.exception("%s (%s) failed to stop", xlator.name, xlator.type_name)

    def enter(self) -> None:
        """Count a fop in that an edge sends and does not see end at once."""
        self.winding += 1

    def leave(self) -> None:
        """Count it out."""
        self.winding -= 1
        if not self.winding:
            idle, self._idle = self._idle, []
            for waiter in idle:
                waiter.set(None)

    async def drain(self) -> None:
        """Wait until no counted fop is under way."""
        if self.winding:
            waiter: Waiter[None] = Waiter()
            self._idle.append(waiter)
            await waiter

    # -- change ----------------------------------------------------------------------------------------------------

    def reconfigure(
        self, text: str, *, source: str = "<volfile>", strict: bool = True, later: list[str] | None = None
    ) -> list[str]:
        """Change live options to those of another volfile of the same shape.

        Two phases: everything is parsed and checked first; if anything is refused, nothing has changed.

        Args:
            later: takes a sentence for each option that is not live; these then keep their values instead of refusing
                the whole.

        Returns the changes as sentences. Raises VolfileError, OptionError (also for an option that is not live, without
        `later`), or GraphError when the shape differs (then a new graph is needed).
        """
        spec = parse_volfile(text, source, strict=strict)
        if self._shape(spec) != self._shape(self.spec):
            raise GraphError(f"{source}: other volumes than the running graph has; a new graph is needed")
        plan: list[tuple[Xlator, Any, list[str]]] = []
        for volume in spec.volumes:
            xlator = self.xlators[volume.name]
            if isinstance(xlator, StandIn):
                refuse_relied_on(volume)
                continue
            options, _ = xlator.Options.parse(volume.name, volume.options, strict=strict)
            changes = []
            for info in options.infos:
                old, new = getattr(xlator.options, info.field), getattr(options, info.field)
                if old == new:
                    continue
                if not info.live:
                    if later is None:
                        raise OptionError(volume.name, info.key, "cannot be changed while the graph is up")
                    setattr(options, info.field, old)
                    later.append(f"{volume.name}: {info.key} cannot be changed while the graph is up")
                    continue
                # A family of options may hold passwords.
                values = "has changed" if info.pattern or "password" in info.key else f"{old!r} -> {new!r}"
                changes.append(f"{volume.name}: {info.key} {values}")
            if changes:
                xlator.check_options(options)
                plan.append((xlator, options, changes))
        done: list[str] = []
        for xlator, options, changes in plan:
            old_options, xlator.options = xlator.options, options
            xlator.options_changed(old_options)
            done.extend(changes)
        self.spec = spec
        return done

    @staticmethod
    def _shape(spec: Volfile) -> list[tuple[str, str, tuple[str, ...]]]:
        return [(volume.name, volume.type, volume.subvolumes) for volume in spec.volumes]

    # -- what happens and what people see --------------------------------------------------------------------------

    def event(self, event: Event, data: Any) -> None:
        """An event has reached the top: tell the edges."""
        for listener in list(self.listeners):
            listener(event, data)

    def statedump(self) -> str:
        """Return the state of every translator as text: a section each, `key=value` lines."""
        lines: list[str] = []
        for xlator in reversed(self.xlators.values()):
            lines.append(f"[{xlator.type_name}.{xlator.name}]")
            state = {f"option.{k}": v for k, v in xlator.options.values().items()}
            state.update(xlator.statedump())
            lines.extend(f"{key}={value}" for key, value in state.items())
            lines.append("")
        return "\n".join(lines)
