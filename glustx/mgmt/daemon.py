"""A process that goes to the background once it serves: the fork, the pid file, what the parent says and returns."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from glustx.mgmt.state import ServeError

log = logging.getLogger("glustx.daemon")


class Announcer:
    """Tells whoever waits for this process how its start went, once.

    Args:
        pipe: where the parent reads, or None when there is no parent that waits.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def ready(self) -> None:
        """The process serves: the parent exits with 0."""
        self._tell(b"\0")

    def failed(self, sentence: str, status: int) -> None:
        """The process will not serve: the parent prints the sentence and exits with `status` (1 to 255)."""
        if self._pipe is None:
            print(sentence, file=sys.stderr)
        self._tell(bytes([status]) + sentence.encode("utf-8", "surrogateescape")[: 1 << 15])

    def _tell(self, message: bytes) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        try:
            os.write(pipe, message)
        except BrokenPipeError:
            log.warning("the parent did not wait")
        finally:
            os.close(pipe)


def daemonize() -> Announcer:
    """Go on in a child, in a session of its own, in the root folder, and without a terminal.

    The parent stays until the child has announced how it went, and exits with that; so this returns in the child only.
    Nothing may have started a thread before.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writing)
        _wait(reading, pid)
    os.close(reading)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    return Announcer(writing)


def _wait(pipe: int, pid: int) -> NoReturn:
    with open(pipe, "rb") as announced:
        said = announced.read()
    if not said:
        _, code = os.waitpid(pid, 0)
        status = os.waitstatus_to_exitcode(code)
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        print(f"process {pid} {how} before it served", file=sys.stderr)
        sys.stderr.flush()
        os._exit(status if status > 0 else 1)
    if said[0]:
        print(said[1:].decode("utf-8", "surrogateescape"), file=sys.stderr)
        sys.stderr.flush()
    # Past the exit handlers: they are the child's.
    os._exit(said[0])


def set_process_name(name: str) -> None:
    """Give the process the name that ps and pgrep show (comm, 15 bytes); its command line stays what it is."""
    try:
        Path("/proc/self/comm").write_text(name[:15])
    except OSError as error:
        log.debug("the process cannot be named %s: %s", name, error)


class PidFile:
    """A file that holds the process id and, as stock's, a lock (lockf) for as long as the process lives.

    A process that opens and closes its own pid file once more loses the lock.

    Args:
        path: where it is; a file of a process that is gone is taken over.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def take(self) -> None:
        """Lock the file and write this process's id; ServeError when another process has it locked."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.write(self._fd, b"%d\n" % os.getpid())
        except BlockingIOError:
            self._close()
            raise ServeError(f"pid file {self.path} is locked by a process that runs") from None
        except OSError as error:
            self._close()
            raise ServeError(f"cannot write pid file {self.path}: {error.strerror}") from None

    def remove(self) -> None:
        """Remove the file, unless somebody has put another one in its place, and give the lock back."""
        if self._fd < 0:
            return
        try:
            if os.path.samestat(os.fstat(self._fd), os.stat(self.path)):
                self.path.unlink()
        except FileNotFoundError:
            pass
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
