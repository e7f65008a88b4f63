"""What stands behind `glustx provision`: words of the command line, connecting, failures as sentences, reports."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from glustx import logs
from glustx.cli.failures import FAILED, MISMATCH, NO_SPACE, NOT_CONNECTED, USAGE, Failure
from glustx.cli.interrupts import stoppable
from glustx.cli.security import chosen
from glustx.gfapi import Volume
from glustx.gfapi.url import GlusterURL, is_url, parse_url
from glustx.options import parse_size
from glustx.provision.images import PREALLOCATIONS, Info, Report, Verified
from glustx.provision.target import NO_SPACE_ERRNOS
from glustx.provision.zeroing import ALIASES, METHODS, Limits
from glustx.units import human

_MIN_CHUNK = 1 << 20

# -- words of the command line -----------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """What a command works on: where its volume comes from, the path in it, and what messages call it."""

    source: GlusterURL | str
    path: str
    name: str


def place_of(target: str, volfile: Path | None) -> Place:
    """Return the place that a URL means, or a path in the volume of a volfile or brick folder."""
    if volfile is not None:
        if is_url(target):
            raise Failure("give a URL, or --volfile with a path in its volume, not both", USAGE)
        if not os.path.exists(volfile):
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


def size_of(text: str, option: str) -> int:
    """Return the bytes that an option's word means."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}", USAGE) from None


def one_of(word: str, allowed: tuple[str, ...], option: str) -> str:
    """Return a word that an option allows."""
    if word not in allowed:
        raise Failure(f"{option} {word!r} is none of {', '.join(allowed)}", USAGE)
    return word


def prealloc_of(word: str) -> str:
    """Return what --prealloc means for a raw image."""
    if word == "metadata":
        raise Failure("--prealloc metadata is for qcow2: a raw image has no metadata to allocate", USAGE)
    return one_of(word, PREALLOCATIONS, "--prealloc")


def method_of(word: str) -> str:
    """Return what --zero-method means."""
    return one_of(ALIASES.get(word, word), METHODS, "--zero-method")


def limits_of(chunk: str, jobs: int, bwlimit: str) -> Limits:
    """Return what --chunk, --jobs and --bwlimit mean."""
    size = size_of(chunk, "--chunk")
    if size < _MIN_CHUNK:
        raise Failure(f"--chunk {chunk} is less than {human(_MIN_CHUNK)}", USAGE)
    return Limits(size, jobs, size_of(bwlimit, "--bwlimit"))


def owner_of(text: str) -> tuple[int, int] | None:
    """Return the UID and GID of --owner."""
    if not text:
        return None
    uid, colon, gid = text.partition(":")
    if not (colon and uid.isdigit() and gid.isdigit() and int(uid) < 2**32 and int(gid) < 2**32):
        raise Failure(f"--owner {text!r} is not UID:GID in numbers", USAGE)
    return int(uid), int(gid)


def mode_of(text: str) -> int:
    """Return the bits of --mode."""
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise Failure(f"--mode {text!r} is not an octal mode", USAGE)
    return mode


# -- running and reporting ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def heard(
    target: str, volfile: Path | None, timeout: float, undone: str = "", done: Sequence[Report] = ()
) -> Iterator[Place]:
    """The place that a command works on; its failures, of whatever kind, leave as one sentence and an exit code.

    Args:
        timeout: seconds; 0 means no limit.
        undone: what to say of the work when it was stopped.
        done: holds something once the work is done, after which a stop changes nothing.
    """
    logs.set_up("error")
    place = place_of(target, volfile)
    with stoppable(timeout) as stop:
        try:
            with _failing(place):
                yield place
        except KeyboardInterrupt:
            left = "it was done already" if done else undone
            raise Failure("; ".join(filter(None, (f"{place.name}: {stop.text}", left))), stop.code) from None


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
def open_volume(place: Place) -> Iterator[Volume]:
    """The mounted volume of a place; NOT_CONNECTED when that cannot be had."""
    try:
        volume = Volume(place.source, tls=chosen())
    except OSError as error:
        raise Failure(f"{place.name}: {error.strerror or error}", NOT_CONNECTED) from None
    except ValueError as error:  # also VolfileError, OptionError and GraphError
        raise Failure(f"{place.name}: {error}") from None
    try:
        yield volume
    finally:
        volume.close()


def show_report(report: Report, place: Place, output: str) -> None:
    """Print what create or zero did."""
    if output == "json":
        _print_json(report, place)
        return
    if report.dry_run:
        print(f"{place.name}: would {report.verb} {human(report.size)} by {report.method_used}; nothing was changed")
        return
    known = report.brick_zero_method if report.method_used == "zerofill" else None
    brick = f" (brick: {known})" if known else ""
    wire = f"{report.rpcs} RPCs, {human(report.wire_bytes_sent)} sent, {human(report.wire_bytes_received)} received"
    verb = {"create": "created", "zero": "zeroed"}[report.verb]
    print(f"{place.name}: {verb} {human(report.size)} by {report.method_used}{brick} in {report.seconds:.3f} s; {wire}")
    if report.fallback:
        print(f"{place.name}: zeroes were written because {report.fallback}")


def show_info(found: Info, place: Place, output: str) -> None:
    """Print what is known of an image."""
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


def show_verified(found: Verified, place: Place, output: str) -> None:
    """Print what was read back; a Failure (MISMATCH) when it is not zero."""
    if output == "json":
        _print_json(found, place)
    elif found.zero:
        read, skipped = human(found.bytes_read), human(found.bytes_skipped)
        how = f"{read} read, {skipped} of holes, {found.seconds:.2f} s"
        print(f"{place.name}: {human(found.size)} of zeroes ({how})")
    if not found.zero:
        sys.stdout.flush()
        raise Failure(f"verify {place.name}: byte {found.first_nonzero} is not zero", MISMATCH)


def _print_json(answer: msgspec.Struct, place: Place) -> None:
    fields = {"target": place.name, **msgspec.structs.asdict(answer)}
    print(msgspec.json.encode(fields).decode())
