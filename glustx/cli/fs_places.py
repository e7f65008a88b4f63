"""What the words of `glustx fs` mean: places on volumes, which are mounted once each, local files, `-`."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

import msgspec
import typer

from glustx import logs
from glustx.cli.failures import FAILED, NOT_CONNECTED, USAGE, Failure, told
from glustx.cli.interrupts import stoppable
from glustx.cli.security import chosen
from glustx.errors import MountError
from glustx.fs.copying import CopyOptions, FileCopier
from glustx.fs.sides import Local, Place
from glustx.fs.steps import StepError, step
from glustx.fs.task import Task
from glustx.gfapi import Volume
from glustx.gfapi.url import is_url, parse_url
from glustx.options import parse_size
from glustx.progress import Progress

STDIO = "-"


class Volumes:
    """The volumes of a command."""

    def __init__(self) -> None:
        self.umask = os.umask(0)
        os.umask(self.umask)
        self._local = Local()
        self._open: dict[str, Volume] = {}

    def __enter__(self) -> Volumes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for volume in self._open.values():
            volume.close()

    def place(self, word: str) -> Place:
        """Return the place that a URL names; a Failure for anything else."""
        if not is_url(word):
            raise Failure(f"{word!r} is not a URL such as gluster://host/volume/path", USAGE)
        try:
            url = parse_url(word)
        except ValueError as error:
            raise Failure(str(error), USAGE) from None
        root = msgspec.structs.replace(url, path="")
        base, mark, query = str(root).partition("?")
        suffix = mark + query
        if base + suffix not in self._open:
            try:
                self._open[base + suffix] = Volume(root, umask=self.umask, tls=chosen())
            except ValueError as error:  # also VolfileError, OptionError and GraphError
                raise Failure(f"{root}: {error}", NOT_CONNECTED) from None
        return Place(self._open[base + suffix], url.path, base, suffix)

    def place_or_file(self, word: str) -> Place:
        """Return the place that a URL or a local path names."""
        return self.place(word) if is_url(word) else Place(self._local, word)

    def places(self, words: Sequence[str]) -> list[Place]:
        """Return the places of several URLs."""
        return [self.place(word) for word in words]


@contextlib.contextmanager
def working(verb: str, timeout: float = 0.0) -> Iterator[Volumes]:
    """The volumes of a command, whose failures of whatever kind leave as one sentence and an exit code.

    Args:
        timeout: seconds; 0 means no limit.
    """
    logs.set_up("error")
    with told(), stoppable(timeout) as stop:
        try:
            with Volumes() as volumes:
                yield volumes
                sys.stdout.flush()
        except KeyboardInterrupt:
            raise Failure(f"{verb}: {stop.text}; no file was left half done", stop.code) from None
        except StepError as error:
            raise Failure(f"{verb}: {error}", NOT_CONNECTED if error.lost else FAILED) from None
        except (BrokenPipeError, MountError):
            raise
        except (OSError, ValueError) as error:
            raise Failure(f"{verb}: {error}") from None


class Complaints:
    """Failures that do not end a command: told at once, and remembered for its exit code."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.any = False

    def __call__(self, error: StepError) -> None:
        if error.lost:
            raise error
        self.any = True
        print(f"glustx: {self.verb}: {error}", file=sys.stderr)

    def task(self) -> Task:
        """A task whose failures are told here."""
        return Task(self.verb, self)

    def end(self) -> None:
        """End the command with the code of a partial failure if something failed."""
        if self.any:
            sys.stdout.flush()
            raise typer.Exit(FAILED)


def end(task: Task) -> None:
    """End the command with the code of a partial failure if something of a task failed."""
    if task.report.failures:
        sys.stdout.flush()
        raise typer.Exit(FAILED)


def sources_and_target(words: Sequence[str], verb: str) -> tuple[list[str], str]:
    """Return the sources and the target among a command's words, one of which at least must be on a volume."""
    *sources, target = words
    if not sources:
        raise Failure(f"{verb}: a source and a target are needed", USAGE)
    if not any(map(is_url, words)):
        raise Failure(f"{verb}: neither {', '.join(sources)} nor {target} is a URL of a volume", USAGE)
    if not is_url(target) and not all(map(is_url, sources)):
        raise Failure(f"{verb}: to a local target only URLs of volumes can be copied", USAGE)
    return sources, target


def through_pipe(volumes: Volumes, words: Sequence[str], options: CopyOptions, progress: Progress, task: Task) -> None:
    """Copy one file from stdin or to stdout."""
    if len(words) != 2:
        raise Failure("cp: with - there is one source and one target", USAGE)
    source, target = words
    copier = FileCopier(options, progress, threading.Event())
    progress.phase("copying")
    try:
        if target == STDIO:
            place = volumes.place(source)
            with step(place, "stat"):
                progress.grow(place.side.stat(place.path).st_size)
            copier.send(place, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            copier.receive(sys.stdin.buffer, volumes.place(target))
        task.count(files=1)
    except StepError as error:
        task.failed(error)
    task.close(copier.moved)


def refuse_root(places: Sequence[Place], verb: str) -> None:
    """Fail when one of the places is a whole volume."""
    for place in places:
        if not place.local and not place.path.strip("/."):
            raise Failure(f"{verb}: {place.base} is a whole volume, not a file in it", USAGE)


def one_of(word: str, allowed: tuple[str, ...], option: str) -> str:
    """Return a word that an option allows."""
    if word not in allowed:
        raise Failure(f"{option} {word!r} is none of {', '.join(allowed)}", USAGE)
    return word


def mode_of(text: str) -> int:
    """Return the bits of --mode."""
    try:
        bits = int(text, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o7777:
        raise Failure(f"--mode {text!r} is not an octal mode", USAGE)
    return bits


def size_of(text: str, option: str) -> int:
    """Return the bytes that an option's word means."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}", USAGE) from None
