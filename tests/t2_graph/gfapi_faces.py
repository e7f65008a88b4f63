"""The two faces of gfapi as one, so that every test of behaviour runs on both."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from glustx.gfapi import AsyncDirEntry, AsyncFile, AsyncVolume, Source, Volume

MEMORY = """
volume store
    type storage/memory
end-volume
volume test
    type features/locks
    subvolumes store
end-volume
"""


@contextlib.contextmanager
def fails(code: int) -> Iterator[None]:
    """The block must raise an OSError with the errno `code`, whose text says its name."""
    with pytest.raises(OSError, match=errno.errorcode[code]) as caught:
        yield
    assert caught.value.errno == code


class Waited:
    """An asynchronous object whose coroutines are run to their end by each call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        object.__setattr__(self, "_loop", loop)
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            bare = [arg._target if isinstance(arg, Waited) else arg for arg in args]
            result = value(*bare, **kwargs)
            if inspect.iscoroutine(result):
                result = self._loop.run_until_complete(result)
            return self._wrap(result)

        return call

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, (AsyncFile, AsyncVolume, AsyncDirEntry)) or hasattr(result, "__anext__"):
            return Waited(self._loop, result)
        return result

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                yield self._wrap(self._loop.run_until_complete(self._target.__anext__()))
            except StopAsyncIteration:
                return

    def __enter__(self) -> Any:
        self._loop.run_until_complete(self._target.__aenter__())
        return self

    def __exit__(self, *failure: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(*failure))


def open_faces(face: str, text: str = MEMORY, **options: Any) -> Iterator[Any]:
    """Yield a mounted volume of the face "blocking" or "async", and close it."""
    source = Source(volume="test", text=text, origin="<test>")
    if face == "blocking":
        with Volume(source, **options) as volume:
            yield volume
        return
    loop = asyncio.new_event_loop()
    try:
        with Waited(loop, AsyncVolume(source, **options)) as volume:
            yield volume
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
