"""`glustx provision`: VM images on a volume. Parses and prints; the work is done in `glustx.provision`."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from glustx import logs
from glustx.cli.failures import FAILED, MISMATCH, NO_SPACE, NOT_CONNECTED, USAGE, Failure, told
from glustx.cli.interrupts import stoppable
from glustx.cli.show import SHOWS, progress_on
from glustx.gfapi.url import GlusterURL, is_url, parse_url
from glustx.options import parse_size
from glustx.provision import images
from glustx.provision.images import CreateRequest, Report
from glustx.provision.progress import Progress
from glustx.provision.target import NO_SPACE_ERRNOS, Volume, human
from glustx.provision.zeroing import ALIASES, DEFAULT_CHUNK, METHODS, Limits

app = typer.Typer(help="Make, zero, inspect and verify VM images on a volume.", no_args_is_help=True)

OUTPUTS = ("text", "json")
_MAX_JOBS = 64
_MIN_CHUNK = 1 << 20

Target = Annotated[
    str, typer.Argument(help="gluster://HOST[:PORT][,HOST2]/VOLUME/PATH, or a path in the volume of --volfile.")
]
VolfileWord = Annotated[
    Path | None, typer.Option("--volfile", help="Volfile, or brick folder, to work on without a volume server.")
]
Method = Annotated[
    str,
    typer.Option("--zero-method", help="auto, zerofill (the brick does it), punch (leaves it sparse) or writes."),
]
Chunk = Annotated[str, typer.Option(help="Bytes that one job of method writes takes at a time.")]
Jobs = Annotated[int, typer.Option(min=1, max=_MAX_JOBS, help="Requests in flight, for methods that send data.")]
Bandwidth = Annotated[str, typer.Option(help="Bytes per second that method writes may send; 0 for no limit.")]
ProgressWord = Annotated[str, typer.Option("--progress", help=f"On stderr: {', '.join(SHOWS)}.")]
Output = Annotated[str, typer.Option(help=f"The report on stdout: {', '.join(OUTPUTS)}.")]
Fsync = Annotated[bool, typer.Option("--fsync/--no-fsync", help="Make it durable before reporting success.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds after which all is undone; 0 for no limit.")]


@app.command()
def create(
    target: Target,
    size: Annotated[str, typer.Option(help="Size of the image: bytes, or with K, M, G, T (binary).")],
    prealloc: Annotated[str, typer.Option(help="off (sparse), falloc (allocated), full (filled with zeroes).")] = "off",
    zero_method: Method = "auto",
    volfile: VolfileWord = None,
    force: Annotated[bool, typer.Option("--force/--no-clobber", help="Replace a file that is there.")] = False,
    owner: Annotated[str, typer.Option(help="UID:GID of the image.")] = "",
    mode: Annotated[str, typer.Option(help="Permissions, octal.")] = "0600",
    chunk: Chunk = "128M",
    jobs: Jobs = 4,
    bwlimit: Bandwidth = "0",
    fsync: Fsync = True,
    progress: ProgressWord = "auto",
    output: Output = "text",
    dry_run: DryRun = False,
    timeout: Timeout = 0.0,
) -> None:
    """Make a raw image.

    It grows under a temporary name and gets its own when it is whole; Ctrl-C and errors leave nothing behind.
    """
    with told(), _heard(target, volfile, timeout, "nothing was left behind") as place:
        if prealloc == "metadata":
            raise Failure("--prealloc metadata is for qcow2: a raw image has no metadata to allocate", USAGE)
        request = CreateRequest(
            _size(size, "--size"),
            _word(prealloc, images.PREALLOCATIONS, "--prealloc"),
            _method(zero_method),
            _limits(chunk, jobs, bwlimit),
            force,
            _owner(owner),
            _mode(mode),
            fsync,
            dry_run,
        )
        _word(output, OUTPUTS, "--output")
        with progress_on(_word(progress, SHOWS, "--progress"), place.name) as shown, _open(place) as volume:
            report = images.create(volume, place.path, request, Progress(shown))
        _print_report(report, place, output)


@app.command()
def zero(
    target: Target,
    offset: Annotated[str, typer.Option(help="Where the range begins.")] = "0",
    length: Annotated[str, typer.Option(help="How long it is; to the end of the file by default.")] = "",
    zero_method: Method = "auto",
    volfile: VolfileWord = None,
    chunk: Chunk = "128M",
    jobs: Jobs = 4,
    bwlimit: Bandwidth = "0",
    fsync: Fsync = True,
    progress: ProgressWord = "auto",
    output: Output = "text",
    dry_run: DryRun = False,
    timeout: Timeout = 0.0,
) -> None:
    """Make a range of an image read as zeroes."""
    with told(), _heard(target, volfile, timeout, "part of the range may be zeroed") as place:
        at = _size(offset, "--offset")
        size = _size(length, "--length") if length else None
        limits = _limits(chunk, jobs, bwlimit)
        method = _method(zero_method)
        _word(output, OUTPUTS, "--output")
        with progress_on(_word(progress, SHOWS, "--progress"), place.name) as shown, _open(place) as volume:
            report = images.zero(
                volume, place.path, at, size, method, limits, Progress(shown), fsync=fsync, dry_run=dry_run
            )
        _print_report(report, place, output)


@app.command()
def info(target: Target, volfile: VolfileWord = None, output: Output = "text", timeout: Timeout = 0.0) -> None:
    """Show an image's size, what it takes, and how its brick zeroes."""
    with told(), _heard(target, volfile, timeout) as place:
        _word(output, OUTPUTS, "--output")
        with _open(place) as volume:
            found = images.info(volume, place.path)
    if output == "json":
        _print_json(found, place)
        return
    print(f"image      {place.name}")
    print(f"size       {human(found.size)} ({found.size} bytes)")
    print(f"allocated  {human(found.allocated)} ({found.allocated} bytes)")
    print(f"owner      {found.uid}:{found.gid}, mode {found.mode}")
    print(f"gfid       {found.gfid}")
    print(f"volume     {human(found.free)} free of {human(found.total)}")
    print(f"zeroing    {found.brick_zero_method or 'by a method that the brick does not tell'}")


@app.command()
def verify(
    target: Target,
    offset: Annotated[str, typer.Option(help="Where the range begins.")] = "0",
    length: Annotated[str, typer.Option(help="How long it is; to the end of the file by default.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Read holes too, instead of trusting SEEK_DATA.")] = False,
    volfile: VolfileWord = None,
    jobs: Jobs = 4,
    progress: ProgressWord = "auto",
    output: Output = "text",
    timeout: Timeout = 0.0,
) -> None:
    """Read an image back and tell whether it is all zeroes; exit code 3 when it is not."""
    with told(), _heard(target, volfile, timeout) as place:
        at = _size(offset, "--offset")
        size = _size(length, "--length") if length else None
        _word(output, OUTPUTS, "--output")
        with progress_on(_word(progress, SHOWS, "--progress"), place.name) as shown, _open(place) as volume:
            found = images.verify(volume, place.path, at, size, Progress(shown), full=full, jobs=jobs)
        if output == "json":
            _print_json(found, place)
        elif found.zero:
            read, skipped = human(found.bytes_read), human(found.bytes_skipped)
            print(
                f"{place.name}: {human(found.size)} of zeroes ({read} read, {skipped} of holes, {found.seconds:.2f} s)"
            )
        if not found.zero:
            raise Failure(f"verify {place.name}: byte {found.first_nonzero} is not zero", MISMATCH)


# -- words of the command line -----------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """What a command works on: where its volume comes from, the path in it, and what messages call it."""

    source: GlusterURL | str
    path: str
    name: str


def _place(target: str, volfile: Path | None) -> Place:
    if volfile is not None:
        if is_url(target):
            raise Failure("give a URL, or --volfile with a path in its volume, not both", USAGE)
        if not volfile.exists():
            raise Failure(f"--volfile {volfile} does not exist", USAGE)
        path = "/" + target.strip("/")
        place = Place(str(volfile), path, f"{volfile}:{path}")
    else:
        try:
            url = parse_url(target)
        except ValueError as error:
            raise Failure(str(error), USAGE) from None
        place = Place(url, url.path, str(url))
    if place.path.strip("/") == "" or place.path.endswith("/"):
        raise Failure(f"{place.name} names no file", USAGE)
    return place


def _size(text: str, option: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}", USAGE) from None


def _word(word: str, allowed: tuple[str, ...], option: str) -> str:
    if word not in allowed:
        raise Failure(f"{option} {word!r} is none of {', '.join(allowed)}", USAGE)
    return word


def _method(word: str) -> str:
    return _word(ALIASES.get(word, word), METHODS, "--zero-method")


def _limits(chunk: str, jobs: int, bwlimit: str) -> Limits:
    size = _size(chunk, "--chunk") if chunk else DEFAULT_CHUNK
    if size < _MIN_CHUNK:
        raise Failure(f"--chunk {chunk} is less than {human(_MIN_CHUNK)}", USAGE)
    return Limits(size, jobs, _size(bwlimit, "--bwlimit"))


def _owner(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    uid, colon, gid = text.partition(":")
    if not (colon and uid.isdigit() and gid.isdigit() and int(uid) < 2**32 and int(gid) < 2**32):
        raise Failure(f"--owner {text!r} is not UID:GID in numbers", USAGE)
    return int(uid), int(gid)


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise Failure(f"--mode {text!r} is not an octal mode", USAGE)
    return mode


# -- running and reporting ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _heard(target: str, volfile: Path | None, timeout: float, undone: str = "") -> Iterator[Place]:
    """The place that a command works on; its failures, of whatever kind, leave as one sentence and an exit code.

    Args:
        timeout: seconds; 0 means no limit.
        undone: what to say of the work when it was stopped.
    """
    logs.set_up("error")
    place = _place(target, volfile)
    with stoppable(timeout) as stop:
        try:
            with _failing(place):
                yield place
        except KeyboardInterrupt:
            raise Failure("; ".join(filter(None, (f"{place.name}: {stop.text}", undone))), stop.code) from None


@contextlib.contextmanager
def _failing(place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        raise Failure(_sentence(place, error, name), NO_SPACE if name in NO_SPACE_ERRNOS else FAILED) from None
    except ValueError as error:
        raise Failure(f"{place.name}: {error}", USAGE) from None


def _sentence(place: Place, error: OSError, name: str) -> str:
    text = error.strerror or str(error)
    return f"{place.name}: {text}" if not name or name in text else f"{place.name}: {name}: {text}"


@contextlib.contextmanager
def _open(place: Place) -> Iterator[Volume]:
    from glustx.gfapi import Volume as Mounted

    try:
        volume = Mounted(place.source)
    except OSError as error:
        raise Failure(f"{place.name}: cannot connect: {error.strerror or error}", NOT_CONNECTED) from None
    except ValueError as error:  # also VolfileError, OptionError and GraphError
        raise Failure(f"{place.name}: {error}") from None
    try:
        yield volume
    finally:
        volume.close()


def _print_json(answer: msgspec.Struct, place: Place) -> None:
    fields = {"target": place.name, **msgspec.structs.asdict(answer)}
    print(msgspec.json.encode(fields).decode())


def _print_report(report: Report, place: Place, output: str) -> None:
    if output == "json":
        _print_json(report, place)
        return
    if report.dry_run:
        print(f"{place.name}: would {report.verb} {human(report.size)} by {report.method_used}; nothing was changed")
        return
    brick = (
        f" (brick: {report.brick_zero_method})" if report.method_used == "zerofill" and report.brick_zero_method else ""
    )
    wire = f"{report.rpcs} RPCs, {human(report.wire_bytes_sent)} sent, {human(report.wire_bytes_received)} received"
    verb = {"create": "created", "zero": "zeroed"}[report.verb]
    print(f"{place.name}: {verb} {human(report.size)} by {report.method_used}{brick} in {report.seconds:.3f} s; {wire}")
    sys.stdout.flush()
