"""`glustx provision`: VM images on a volume. The commands and their options; `provisioning` does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glustx.cli.failures import told
from glustx.cli.show import SHOWS, progress_on

app = typer.Typer(help="Make, zero, inspect and verify VM images on a volume.", no_args_is_help=True)

OUTPUTS = ("text", "json")
_MAX_JOBS = 64

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
    from glustx.cli import provisioning as p
    from glustx.progress import Progress
    from glustx.provision import images

    done: list[images.Report] = []
    with told(), p.heard(target, volfile, timeout, "nothing was left behind", done) as place:
        request = images.CreateRequest(
            p.size_of(size, "--size"),
            p.prealloc_of(prealloc),
            p.method_of(zero_method),
            p.limits_of(chunk, jobs, bwlimit),
            force,
            p.owner_of(owner),
            p.mode_of(mode),
            fsync,
            dry_run,
        )
        p.one_of(output, OUTPUTS, "--output")
        with progress_on(p.one_of(progress, SHOWS, "--progress"), place.name) as shown, p.open_volume(place) as volume:
            done.append(images.create(volume, place.path, request, Progress(shown)))
        p.show_report(done[0], place, output)


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
    from glustx.cli import provisioning as p
    from glustx.progress import Progress
    from glustx.provision import images

    done: list[images.Report] = []
    with told(), p.heard(target, volfile, timeout, "part of the range may be zeroed", done) as place:
        at = p.size_of(offset, "--offset")
        size = p.size_of(length, "--length") if length else None
        limits = p.limits_of(chunk, jobs, bwlimit)
        method = p.method_of(zero_method)
        p.one_of(output, OUTPUTS, "--output")
        with progress_on(p.one_of(progress, SHOWS, "--progress"), place.name) as shown, p.open_volume(place) as volume:
            done.append(
                images.zero(volume, place.path, at, size, method, limits, Progress(shown), fsync=fsync, dry_run=dry_run)
            )
        p.show_report(done[0], place, output)


@app.command()
def info(target: Target, volfile: VolfileWord = None, output: Output = "text", timeout: Timeout = 0.0) -> None:
    """Show an image's size, what it takes, and how its brick zeroes."""
    from glustx.cli import provisioning as p
    from glustx.provision import images

    with told(), p.heard(target, volfile, timeout) as place:
        p.one_of(output, OUTPUTS, "--output")
        with p.open_volume(place) as volume:
            found = images.info(volume, place.path)
        p.show_info(found, place, output)


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
    from glustx.cli import provisioning as p
    from glustx.progress import Progress
    from glustx.provision import images

    with told(), p.heard(target, volfile, timeout) as place:
        at = p.size_of(offset, "--offset")
        size = p.size_of(length, "--length") if length else None
        p.one_of(output, OUTPUTS, "--output")
        with progress_on(p.one_of(progress, SHOWS, "--progress"), place.name) as shown, p.open_volume(place) as volume:
            found = images.verify(volume, place.path, at, size, Progress(shown), full=full, jobs=jobs)
        p.show_verified(found, place, output)
