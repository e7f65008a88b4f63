"""The base of every translator: which of its methods answers which fop, events, options, lifecycle.

A translator defines an `async def` named after each fop it changes, or one method marked `@handles(effects)` for a
whole kind. Everything else passes through and costs nothing: when the graph is activated each fop is resolved, once,
to the method of the first translator below that cares. A method winds with `await self.child(req)`; the next line is
the unwind.
"""

from __future__ import annotations

import difflib
import enum
import errno
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from glustx import fops
from glustx.errors import FopError, GraphError
from glustx.fops import FOPS, Fop, Reply
from glustx.options import OptionSet

if TYPE_CHECKING:
    from glustx.graph import Graph

Method = Callable[[Any], Coroutine[Any, Any, Any]]
M = TypeVar("M", bound=Callable[..., Any])


class Event(enum.Enum):
    """What happens to a graph besides fops. The first group travels up from where it arose, the second down."""

    CHILD_UP = "child-up"
    CHILD_DOWN = "child-down"
    CHILD_CONNECTING = "child-connecting"
    UPCALL = "upcall"
    VOLFILE_MODIFIED = "volfile-modified"
    FOP_WAITS = "fop-waits"
    FOP_GOES_ON = "fop-goes-on"

    PARENT_UP = "parent-up"
    PARENT_DOWN = "parent-down"
    CLIENT_GONE = "client-gone"

    @property
    def goes_down(self) -> bool:
        """True for events that travel from parent to child."""
        return self in (Event.PARENT_UP, Event.PARENT_DOWN, Event.CLIENT_GONE)


def handles(effects: int) -> Callable[[M], M]:
    """Mark a method as the answer to every fop that has one of `effects` and no method of its own name.

    Where two such methods of a class claim a fop, the one whose effects are a part of the other's answers it.
    """

    def mark(method: M) -> M:
        method.__handles__ = effects  # type: ignore[attr-defined]
        return method

    return mark


class Wind:
    """A child as its parent sees it: a callable that takes a request and returns the coroutine of its answer."""

    __slots__ = ("table", "xlator")

    def __init__(self, xlator: Xlator) -> None:
        self.xlator = xlator
        self.table = xlator.table

    def __call__(self, req: Fop) -> Coroutine[Any, Any, Any]:
        return self.table[type(req)](req)

    def __repr__(self) -> str:
        return f"<child {self.xlator.name}>"


class Xlator:
    """Base class of translators.

    Args:
        name: the volume's name in the volfile.
        options: this class's `Options`.
        subvolumes: the translators below, in the volfile's order.

    Class attributes:
        Options: the option set.
        subvolume_count: (least, most) children; most None means any number.
        type_name: `category/name`, derived from the module.
        stand_in: True for a type that only passes through and is listed as such.
    """

    class Options(OptionSet):
        """No options."""

    type_name: ClassVar[str] = ""
    subvolume_count: ClassVar[tuple[int, int | None]] = (1, 1)
    stand_in: ClassVar[bool] = False
    _answers: ClassVar[dict[str, tuple[str, str]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        parts = cls.__module__.split(".")
        if len(parts) >= 4 and parts[1] == "xlators":
            cls.type_name = f"{parts[-2]}/{parts[-1].replace('_', '-')}"
        cls._answers = _answers_of(cls)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        self.name = name
        self.options: Any = options
        self.subvolumes = subvolumes
        self.parents: list[Xlator] = []
        self.graph: Graph
        self.table: dict[type[Fop], Method] = {}
        self.children: list[Wind] = []
        for child in subvolumes:
            child.parents.append(self)

    @functools.cached_property
    def child(self) -> Wind:
        """The only child; `wire` puts it into the instance, where it is found before this."""
        raise GraphError(f"{self.name} ({self.type_name}) has no single child, or is not activated")

    def __repr__(self) -> str:
        return f"<{self.type_name} {self.name}>"

    # -- lifecycle -------------------------------------------------------------------------------------------------

    def wire(self, graph: Graph) -> None:
        """Resolve every fop; called once by the graph, children first."""
        self.graph = graph
        self.children = [Wind(child) for child in self.subvolumes]
        if len(self.children) == 1:
            self.__dict__["child"] = self.children[0]
        answers = type(self)._answers
        for name, cls in FOPS.items():
            answer = answers.get(name)
            if answer is not None:
                self.table[cls] = getattr(self, answer[0])
            elif len(self.children) == 1:
                self.table[cls] = self.subvolumes[0].table[cls]
            else:
                self.table[cls] = self._unsupported

    async def _unsupported(self, req: Fop) -> Reply:
        raise FopError(errno.EOPNOTSUPP, f"{self.type_name} does not answer {req.name}")

    async def start(self) -> None:
        """Open what the translator needs (a brick, a connection); children are up already. GraphError refuses."""

    async def stop(self) -> None:
        """Give back what `start` took; parents are stopped already."""

    def check_options(self, options: Any) -> None:
        """Refuse (OptionError) a combination of values that no single field can; called before `start` and before a
        reconfigure takes effect."""

    def options_changed(self, old: Any) -> None:
        """Follow a live change of `self.options`; must not fail."""

    # -- events ----------------------------------------------------------------------------------------------------

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Hear of an event; by default pass it on in its direction, and without children answer PARENT_UP by CHILD_UP.

        A translator with several children overrides this for CHILD_UP and CHILD_DOWN: `source` says whose state it is,
        each may be told more than once, before PARENT_UP or after.

        Args:
            source: the child or parent that passed it on, None where it arose.
            data: what belongs to it (CHILD_DOWN: the FopError that says why, or None; UPCALL: the message; CLIENT_GONE:
                the client's name; FOP_WAITS, FOP_GOES_ON: the request, which other clients keep waiting, for so long
                that it must not count among those that use the storage).
        """
        if event.goes_down:
            for child in self.subvolumes:
                child.notify(event, self, data)
            if event is Event.PARENT_UP and not self.subvolumes:
                self.tell_parents(Event.CHILD_UP)
        else:
            self.tell_parents(event, data)

    def tell_parents(self, event: Event, data: Any = None) -> None:
        """Send an event up."""
        for parent in self.parents:
            parent.notify(event, self, data)
        if not self.parents and hasattr(self, "graph"):
            self.graph.event(event, data)

    # -- what people see -------------------------------------------------------------------------------------------

    def statedump(self) -> dict[str, Any]:
        """Return what the translator knows of itself, as plain values, for a statedump."""
        return {}

    def limits(self) -> dict[str, Any]:
        """Return capabilities and limits as seen from above; a parent merges its children's.

        Keys: `zero_method`, `block_size`, `max_zerofill`, `reflink` (1: COPY_FILE_RANGE shares blocks) where known;
        what one child does not know is not known.
        """
        return merge_limits([child.limits() for child in self.subvolumes])

    @classmethod
    def how(cls, fop: str) -> str:
        """Tell how this class treats a fop: "own", "by effect" or "pass"."""
        answer = cls._answers.get(fop)
        return answer[1] if answer else "pass"


def merge_limits(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the limits that hold whichever of several parts a file lies on.

    The greatest block size, the least of all other numbers, "mixed" where texts differ; nothing for a key that one of
    them lacks.
    """
    merged: dict[str, Any] = {}
    for key in parts[0] if parts else ():
        values = [part[key] for part in parts if key in part]
        if len(values) < len(parts):
            continue
        if all(isinstance(value, int) for value in values):
            merged[key] = max(values) if key == "block_size" else min(values)
        else:
            merged[key] = values[0] if all(value == values[0] for value in values) else "mixed"
    return merged


def _answers_of(cls: type[Xlator]) -> dict[str, tuple[str, str]]:
    """Map fop name to (method name, how); raise TypeError for what cannot be meant."""
    answers: dict[str, tuple[str, str]] = {}
    marked: dict[str, int] = {}
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        if name in FOPS and callable(method):
            if not inspect.iscoroutinefunction(method):
                raise TypeError(f"{cls.__qualname__}.{name} answers a fop and must be async")
            answers[name] = (name, "own")
        effects = getattr(method, "__handles__", 0)
        if effects:
            marked[name] = effects
    _refuse_strays(cls, answers)
    for fop, declared in FOPS.items():
        if fop in answers:
            continue
        claims = [name for name, effects in marked.items() if declared.effects & effects]
        # Of two methods that claim a fop the narrower one answers it, when its effects are all among the other's.
        narrow = [name for name in claims if all(marked[name] & ~marked[other] == 0 for other in claims)]
        if len(narrow) == 1:
            claims = narrow
        if len(claims) > 1:
            raise TypeError(f"{cls.__qualname__}: {' and '.join(sorted(claims))} both claim {fop}")
        if claims:
            answers[fop] = (claims[0], "by effect")
    return answers


def _refuse_strays(cls: type[Xlator], answers: Mapping[str, tuple[str, str]]) -> None:
    """Raise TypeError for a method that looks like a fop's and would never be called: `async def writev(self, req)`.

    A name with an underscore in front is a helper's; a method that is also bound to a fop's name is in use.
    """
    used = [inspect.getattr_static(cls, name) for name in answers]
    for name in dir(cls):
        method = inspect.getattr_static(cls, name)
        if name.startswith("_") or name in FOPS or not inspect.iscoroutinefunction(method):
            continue
        if (
            hasattr(method, "__handles__")
            or method in used
            or list(inspect.signature(method).parameters)[1:] != ["req"]
        ):
            continue
        near = difflib.get_close_matches(name, FOPS, n=1, cutoff=0)
        raise TypeError(
            f"{cls.__qualname__}.{name} takes a request, but no fop has this name: is {near[0]} meant? "
            "(@handles answers fops by effect; a helper's name begins with an underscore)"
        )


def matrix_row(cls: type[Xlator]) -> dict[str, str]:
    """Return fop name to "own", "by effect" or "pass" for one class (its row of the golden matrix)."""
    return {name: cls.how(name) for name in FOPS}


ALL = fops.ALL_EFFECTS
