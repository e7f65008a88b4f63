"""Files that appear whole or not at all: they grow under a temporary name and get their own when they are done."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from glustx.fs.parallel import Gate

log = logging.getLogger("glustx.fs")

T = TypeVar("T")

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
NO_CHANGES = (errno.EROFS, errno.EACCES, errno.EPERM)
_PATIENCE = 5.0


class Exists(OSError):
    """The file is there already, and it was not asked to be replaced."""


class _Call(Generic[T]):
    """A call in another thread, and what it came to."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._begun = self._called_off = False
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._ended = Gate()

    def run(self, patience: float = -1) -> bool:
        """Start the thread and wait for its end, for ever by default; tell whether it has come."""
        threading.Thread(target=self._run, name="glustx-shielded", daemon=True).start()
        return self._ended.wait(patience)

    def _run(self) -> None:
        with self._lock:
            if self._called_off:
                return
            self._begun = True
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        self._ended.open()

    def finish(self) -> bool:
        """Wait for the end of a call that has begun, though not for ever; tell whether there was one and it ended."""
        with self._lock:
            self._called_off = not self._begun
        return self._begun and self._ended.wait(_PATIENCE)

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._value[0]


def shielded(call: Callable[[], T]) -> tuple[T, bool]:
    """Make a call that KeyboardInterrupt does not cut in two; return its result and whether one came meanwhile.

    A request that is interrupted may have been carried out or not; who must know waits for the answer, though for
    seconds only, since a server that hangs must not keep a program from being interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        return call(), False  # only the main thread is interrupted
    made = _Call(call)
    try:
        made.run()
    except KeyboardInterrupt:
        if not made.finish():
            raise
        return made.result(), True
    return made.result(), False


class NewFile:
    """A file on its way.

    Attributes:
        file: open for reading and writing.
        name: the temporary one.
        path: the final one.
    """

    def __init__(self, side: Any, name: str, path: str) -> None:
        self.side = side
        self.name = name
        self.path = path
        self.file: Any = None
        self.committed = False

    def commit(self, *, replace: bool) -> None:
        """Close the file and give it its name; an interruption while that is on its way comes too late.

        Raises:
            Exists: somebody else has made a file of that name meanwhile, and `replace` is not set.
            OSError: what the side says, also of writes that were held back until the file was closed.
        """
        self.file.close()
        shielded(lambda: self._name_it(replace))
        self.committed = True

    def discard(self) -> None:
        """Close and remove it, unless it has its name. A server that does not answer is not waited for long."""
        if self.committed:
            return
        removal = _Call(self._remove)
        try:
            if removal.run(_PATIENCE):
                removal.result()
            else:
                log.error("%s may have been left: the server did not answer for %g s", self.name, _PATIENCE)
        except FileNotFoundError:
            pass
        except OSError as error:
            # Who takes no new files, and so refused this one, has none to remove.
            if self.file is not None or error.errno not in NO_CHANGES:
                log.error("%s could not be removed: %s", self.name, error)

    def _remove(self) -> None:
        try:
            self.side.unlink(self.name)
        finally:
            if self.file is not None:
                with contextlib.suppress(OSError):
                    self.file.close()

    def _name_it(self, replace: bool) -> None:
        side, name, path = self.side, self.name, self.path
        if replace:
            side.rename(name, path)
            return
        try:
            # Unlike a rename, a link never replaces what somebody else has made in the meantime. An object that knows
            # its gfid spares a LOOKUP.
            side.link(self.file if hasattr(self.file, "gfid") else name, path)
        except FileExistsError:
            raise _meanwhile(path) from None
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if side.lexists(path):
                raise _meanwhile(path) from None
            side.rename(name, path)
        else:
            side.unlink(name)


def _meanwhile(path: str) -> Exists:
    return Exists(errno.EEXIST, "EEXIST: somebody else has made the file meanwhile", path)


def temporary_name(path: str) -> str:
    """Return a name beside `path` that nobody else takes."""
    folder, base = os.path.split(path.rstrip("/"))
    tag = f".glustx-{secrets.token_hex(4)}"
    # The name must fit where the final one does: 255 bytes in every file system.
    short = os.fsdecode(os.fsencode(base)[: 255 - len(tag) - 1])
    return os.path.join(folder, f".{short}{tag}")


@contextlib.contextmanager
def new_file(side: Any, path: str, mode: int = 0o600) -> Iterator[NewFile]:
    """A file beside `path`, with a `commit`; closed and removed when the block ends without one, whatever ends it.

    Args:
        side: a gfapi volume, or `Local`.
        mode: permissions; on a volume exactly these, locally less the process's umask.
    """
    new = NewFile(side, temporary_name(path), path)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        new.file, interrupted = shielded(lambda: side.using(umask=0).open(new.name, flags, mode))
        if interrupted:
            raise KeyboardInterrupt
        yield new
    finally:
        new.discard()
