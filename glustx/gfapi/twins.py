"""One coroutine, two methods: `api(core_function)` in a table of methods becomes an `async def` in a class that is
Asynchronous and a plain call in one that is Blocking, with the same signature and docstring. `over(function)` does the
same for what is written over a face's own methods."""

from __future__ import annotations

import functools
import inspect
import io
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from glustx.errors import FopCancelled, FopError
from glustx.gfapi.errors import os_error
from glustx.runtime import TimedOut

if TYPE_CHECKING:
    from glustx.gfapi.pump import Pump

_ETIMEDOUT, _ESTALE, _ECANCELED = 110, 116, 125  # Linux's numbers, like all below this edge

_PATHS = ("path", "path1", "path2", "src", "dst", "source", "link_name")

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class api(Generic[S, P, R]):  # noqa: N801 - reads as a decorator
    """A method of both faces, made from a coroutine function of the core.

    Parameters named path, src, dst or target are what an OSError of the call names.
    """

    def __init__(self, function: Callable[Concatenate[S, P], Coroutine[Any, Any, R]]) -> None:
        self.function = function
        self.__doc__ = function.__doc__
        names = list(inspect.signature(function).parameters)[1:]
        self._places = [(i, n) for i, n in enumerate(names) if n in _PATHS]

    def places(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
        """Return the paths among the arguments of a call."""
        found: list[object] = []
        for index, name in self._places:
            value = args[index] if index < len(args) else kwargs.get(name)
            if isinstance(value, (str, bytes, os.PathLike)):
                found.append(os.fspath(value))
        return tuple(found)

    @overload
    def __get__(self, obj: Asynchronous, owner: type[Any] | None = None) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __get__(self, obj: Blocking, owner: type[Any] | None = None) -> Callable[P, R]: ...

    @overload
    def __get__(self, obj: None, owner: type[Any]) -> api[S, P, R]: ...

    def __get__(self, obj: Any, owner: type[Any] | None = None) -> Any:
        if obj is None:
            return self
        raise TypeError(f"{type(obj).__name__} is neither Asynchronous nor Blocking")


class over(api[S, P, R]):  # noqa: N801 - reads as a decorator
    """A method of both faces, made from a coroutine function over a face whose methods are coroutines."""


class Straight:
    """A blocking object as one of coroutines; they never wait, so `straight` runs them."""

    def __init__(self, face: Any) -> None:
        self.face = face

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.face, name)
        if not callable(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*[arg.face if isinstance(arg, Straight) else arg for arg in args], **kwargs)
            return Straight(result) if isinstance(result, io.IOBase) else result

        return call


def straight(co: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine over Straight objects to its end."""
    try:
        co.send(None)
    except StopIteration as end:
        value: R = end.value
        return value
    raise AssertionError("it waits for something else than a blocking object")


def straight_iter(steps: AsyncIterator[R]) -> Iterator[R]:
    """Run an asynchronous generator over Straight objects step by step."""
    while True:
        try:
            value = straight(cast("Coroutine[Any, Any, R]", steps.__anext__()))
        except StopAsyncIteration:
            return
        yield value


class Face:
    """What a user holds: a face of a core object.

    `_core` has the coroutines; `_where` names the volume for errors; `_timeout` bounds each call, in seconds.
    """

    _core: Any
    _timeout: float | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        make = cls._make_method
        if make is None:
            return
        for name in dir(cls):
            entry = inspect.getattr_static(cls, name)
            if isinstance(entry, api):
                setattr(cls, name, make(entry))

    _make_method: Any = None

    def _failure(self, error: BaseException, places: tuple[object, ...]) -> BaseException:
        """Return what a user sees of an error that a core coroutine raised."""
        where = str(self._core.session)
        path, other = (*places, None, None)[:2]
        if path is None:
            path = getattr(self._core, "path", None)
        if isinstance(error, FopError):
            return os_error(error, where, path, other)
        if isinstance(error, TimedOut):
            return os_error(FopError(_ETIMEDOUT, str(error)), where, path, other)
        if isinstance(error, FopCancelled):
            return os_error(FopError(_ECANCELED, "called off"), where, path, other)
        return error

    def _again(self, error: BaseException) -> bool:
        """Tell whether a call may be made once more: a directory that was remembered is gone."""
        if not isinstance(error, FopError) or error.errno != _ESTALE or not hasattr(self._core, "walk"):
            return False
        self._core.session.dentries.clear()
        return True


class Asynchronous(Face):
    """A face whose methods are coroutines of the event loop."""

    async def _call(self, co: Coroutine[Any, Any, R]) -> R:
        """Drive a core coroutine from a task of the event loop."""
        raise NotImplementedError

    async def _do(self, co: Coroutine[Any, Any, R], *places: object) -> R:
        """Drive a core coroutine; an error is told as an OSError that names `places`."""
        try:
            return await self._call(co)
        except (FopError, TimedOut, FopCancelled) as error:
            failure = self._failure(error, places)
        raise failure from None

    @staticmethod
    def _make_method(entry: api[Any, Any, Any]) -> Any:
        function = entry.function
        places = entry.places
        if isinstance(entry, over):

            @functools.wraps(function)
            async def steps(self: Any, *args: Any, **kwargs: Any) -> Any:
                return await function(self, *args, **kwargs)

            return steps

        @functools.wraps(function)
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            core = self._core
            try:
                return await self._call(function(core, *args, **kwargs))
            except (FopError, TimedOut, FopCancelled) as error:
                failure: BaseException = error
            if self._again(failure):
                try:
                    return await self._call(function(core, *args, **kwargs))
                except (FopError, TimedOut, FopCancelled) as error:
                    failure = error
            raise self._failure(failure, places(args, kwargs)) from None

        return method


class Blocking(Face):
    """A face whose methods block the calling thread."""

    _pump: Pump

    def _do(self, co: Coroutine[Any, Any, R], *places: object) -> R:
        """Drive a core coroutine; an error is told as an OSError that names `places`."""
        try:
            return self._pump.run(co, self._timeout)
        except (FopError, TimedOut, FopCancelled) as error:
            failure = self._failure(error, places)
        raise failure from None

    @staticmethod
    def _make_method(entry: api[Any, Any, Any]) -> Any:
        function = entry.function
        places = entry.places
        if isinstance(entry, over):

            @functools.wraps(function)
            def steps(self: Any, *args: Any, **kwargs: Any) -> Any:
                return straight(function(Straight(self), *args, **kwargs))

            return steps

        @functools.wraps(function)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            core = self._core
            try:
                return self._pump.run(function(core, *args, **kwargs), self._timeout)
            except (FopError, TimedOut, FopCancelled) as error:
                failure: BaseException = error
            if self._again(failure):
                try:
                    return self._pump.run(function(core, *args, **kwargs), self._timeout)
                except (FopError, TimedOut, FopCancelled) as error:
                    failure = error
            raise self._failure(failure, places(args, kwargs)) from None

        return method
