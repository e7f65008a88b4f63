"""`glustx fs`: the files of volumes, as cp, ls and their like do it. The commands and their options, nothing else."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from glustx.cli.failures import USAGE, Failure
from glustx.cli.show import SHOWS, progress_on

app = typer.Typer(
    help="List, copy, move and remove files of volumes.\n\n"
    "Exit codes: 0 done, 1 some of it failed, 2 usage, 5 the volume cannot be reached, 130 and 143 interrupted.",
    no_args_is_help=True,
)

Urls = Annotated[
    list[str],
    typer.Argument(metavar="URL...", help="gluster://HOST[:PORT][,HOST2]/VOLUME/PATH; without PATH the volume's root."),
]
Words = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE... TARGET", help="URLs, local paths; for cp also - for stdin or stdout."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Report = Annotated[bool, typer.Option("--json", help="The report as one JSON object.")]
Readable = Annotated[bool, typer.Option("--readable", help="Sizes as KiB, MiB, GiB.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Directories and all that is in them.")]
NoClobber = Annotated[bool, typer.Option("--no-clobber", "-n", help="Leave files alone that are there.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what was done.")]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="Requests in flight.")]
Bandwidth = Annotated[str, typer.Option(help="Bytes per second; 0 for no limit.")]
ProgressWord = Annotated[str, typer.Option("--progress", help=f"On stderr: {', '.join(SHOWS)}.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds after which the command gives up; 0 for no limit.")]


@app.command()
def ls(
    urls: Urls,
    long: Annotated[bool, typer.Option("--long", "-l", help="Mode, names, owner, size, time.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Directories below as well.")] = False,
    directory: Annotated[bool, typer.Option("--directory", "-d", help="Directories themselves, not inside.")] = False,
    readable: Readable = False,
    as_json: Json = False,
    timeout: Timeout = 0.0,
) -> None:
    """List directories, all names included."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs import listing
    from glustx.fs.steps import StepError

    with p.working("ls", timeout) as volumes:
        complaints = p.Complaints("ls")
        several = False
        for place in volumes.places(urls):
            try:
                row = listing.status(place, follow=not long)
                if directory or row.type != "directory":
                    show.print_rows([row], long=long, readable=readable, as_json=as_json)
                    continue
                for folder, rows in listing.listing(place, recursive=recursive, failed=complaints):
                    if not as_json and (recursive or len(urls) > 1):
                        print(("\n" if several else "") + show.safe(folder.name) + ":")
                    several = True
                    show.print_rows(rows, long=long, readable=readable, as_json=as_json)
            except StepError as error:
                complaints(error)
        complaints.end()


@app.command()
def stat(
    urls: Urls,
    follow: Annotated[bool, typer.Option("--dereference", "-L", help="Follow symbolic links.")] = False,
    as_json: Json = False,
    timeout: Timeout = 0.0,
) -> None:
    """Show the attributes of files."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs import listing
    from glustx.fs.steps import StepError

    with p.working("stat", timeout) as volumes:
        complaints = p.Complaints("stat")
        for index, place in enumerate(volumes.places(urls)):
            try:
                row = listing.status(place, follow=follow)
            except StepError as error:
                complaints(error)
                continue
            if as_json:
                show.print_json(row)
            else:
                print("\n" * bool(index), end="")
                show.print_status(row, place.name)
        complaints.end()


@app.command()
def cat(urls: Urls, timeout: Timeout = 0.0) -> None:
    """Write files to stdout."""
    from glustx.cli import fs_places as p
    from glustx.fs.copying import CopyOptions, FileCopier
    from glustx.fs.steps import StepError
    from glustx.progress import Progress

    with p.working("cat", timeout) as volumes:
        import threading

        complaints = p.Complaints("cat")
        copier = FileCopier(CopyOptions(), Progress(), threading.Event())
        for place in volumes.places(urls):
            try:
                copier.send(place, sys.stdout.buffer)
            except StepError as error:
                complaints(error)
        sys.stdout.buffer.flush()
        complaints.end()


@app.command()
def cp(
    words: Words,
    recursive: Recursive = False,
    preserve: Annotated[
        bool, typer.Option("--preserve", "-p", help="Keep mode, times, and the owner if allowed.")
    ] = False,
    no_clobber: NoClobber = False,
    sparse: Annotated[
        str, typer.Option(help="auto keeps holes, always makes holes of zeroes too, never writes them out.")
    ] = "auto",
    fsync: Annotated[bool, typer.Option("--fsync", help="Make each file durable before it gets its name.")] = False,
    jobs: Jobs = 4,
    bwlimit: Bandwidth = "0",
    progress: ProgressWord = "auto",
    verbose: Verbose = False,
    as_json: Report = False,
    timeout: Timeout = 0.0,
) -> None:
    """Copy files to, from, between and within volumes.

    A file appears under its name when it is whole. Within a volume the brick copies (copy_file_range).
    """
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs.copying import SPARSE, CopyOptions
    from glustx.fs.trees import copy
    from glustx.progress import Progress

    with p.working("cp", timeout) as volumes:
        options = CopyOptions(
            recursive=recursive,
            preserve=preserve,
            clobber=not no_clobber,
            sparse=p.one_of(sparse, SPARSE, "--sparse"),
            fsync=fsync,
            jobs=jobs,
            bwlimit=p.size_of(bwlimit, "--bwlimit"),
            umask=volumes.umask,
        )
        sources, target = p.sources_and_target(words, "cp")
        task = p.Complaints("cp").task()
        with progress_on(p.one_of(progress, SHOWS, "--progress"), "cp") as shown:
            if p.STDIO in words:
                p.through_pipe(volumes, words, options, Progress(shown), task)
            else:
                places = [volumes.place_or_file(word) for word in sources]
                copy(places, volumes.place_or_file(target), options, Progress(shown), task)
        show.print_report(task.report, verbose=verbose, as_json=as_json, file=sys.stderr if target == p.STDIO else None)
        p.end(task)


@app.command()
def mv(
    words: Words,
    no_clobber: NoClobber = False,
    jobs: Jobs = 4,
    bwlimit: Bandwidth = "0",
    progress: ProgressWord = "auto",
    verbose: Verbose = False,
    as_json: Report = False,
    timeout: Timeout = 0.0,
) -> None:
    """Move files: a rename within a volume; else a copy, made durable, after which the source is removed."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs.copying import CopyOptions
    from glustx.fs.trees import move
    from glustx.progress import Progress

    with p.working("mv", timeout) as volumes:
        sources, target = p.sources_and_target(words, "mv")
        if p.STDIO in words:
            raise Failure("mv: stdin and stdout cannot be moved", USAGE)
        places = [volumes.place_or_file(word) for word in sources]
        p.refuse_root(places, "mv")
        options = CopyOptions(
            clobber=not no_clobber, jobs=jobs, bwlimit=p.size_of(bwlimit, "--bwlimit"), umask=volumes.umask
        )
        task = p.Complaints("mv").task()
        with progress_on(p.one_of(progress, SHOWS, "--progress"), "mv") as shown:
            move(places, volumes.place_or_file(target), options, Progress(shown), task)
        show.print_report(task.report, verbose=verbose, as_json=as_json)
        p.end(task)


@app.command()
def rm(
    urls: Urls,
    recursive: Recursive = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="What is not there is no failure.")] = False,
    verbose: Verbose = False,
    as_json: Report = False,
    timeout: Timeout = 0.0,
) -> None:
    """Remove files; symbolic links are removed, not followed."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs.trees import remove

    with p.working("rm", timeout) as volumes:
        places = volumes.places(urls)
        p.refuse_root(places, "rm")
        task = p.Complaints("rm").task()
        remove(places, recursive=recursive, force=force, task=task)
        show.print_report(task.report, verbose=verbose, as_json=as_json)
        p.end(task)


@app.command()
def mkdir(
    urls: Urls,
    parents: Annotated[bool, typer.Option("--parents", "-p", help="All that lead there; no error if there.")] = False,
    mode: Annotated[str, typer.Option("--mode", "-m", help="Permissions, octal, less the umask.")] = "0777",
    timeout: Timeout = 0.0,
) -> None:
    """Make directories."""
    from glustx.cli import fs_places as p
    from glustx.fs.steps import StepError, step

    with p.working("mkdir", timeout) as volumes:
        bits = p.mode_of(mode)
        complaints = p.Complaints("mkdir")
        for place in volumes.places(urls):
            try:
                with step(place, "mkdir"):
                    if parents:
                        place.side.makedirs(place.path, bits, exist_ok=True)
                    else:
                        place.side.mkdir(place.path, bits)
            except StepError as error:
                complaints(error)
        complaints.end()


@app.command()
def df(urls: Urls, readable: Readable = False, as_json: Json = False, timeout: Timeout = 0.0) -> None:
    """Show how much space volumes have."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs import listing

    with p.working("df", timeout) as volumes:
        rows = [listing.space(place) for place in volumes.places(urls)]
        if as_json:
            for row in rows:
                show.print_json(row)
        else:
            show.print_space(rows, readable=readable)


@app.command()
def du(
    urls: Urls,
    summarize: Annotated[bool, typer.Option("--summarize", "-s", help="One line for each URL.")] = False,
    apparent: Annotated[bool, typer.Option("--apparent-size", help="Sizes of files, not the space they take.")] = False,
    readable: Readable = False,
    as_json: Json = False,
    timeout: Timeout = 0.0,
) -> None:
    """Show how much space trees take."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs import listing
    from glustx.fs.steps import StepError

    with p.working("du", timeout) as volumes:
        complaints = p.Complaints("du")
        for place in volumes.places(urls):
            try:
                for row in listing.usage(place, failed=complaints):
                    if summarize and row.path != place.path:
                        continue
                    if as_json:
                        show.print_json(row)
                    else:
                        show.print_usage(row, apparent=apparent, readable=readable, name=place.at(row.path).name)
            except StepError as error:
                complaints(error)
        complaints.end()


@app.command()
def tree(
    urls: Urls,
    depth: Annotated[int, typer.Option("--depth", "-L", min=0, help="Levels to go down; 0 for no limit.")] = 0,
    as_json: Json = False,
    timeout: Timeout = 0.0,
) -> None:
    """Show trees."""
    from glustx.cli import fs_places as p
    from glustx.cli import fs_show as show
    from glustx.fs import listing
    from glustx.fs.steps import StepError

    with p.working("tree", timeout) as volumes:
        complaints = p.Complaints("tree")
        for place in volumes.places(urls):
            try:
                top = listing.tree(place, depth=depth, failed=complaints)
            except StepError as error:
                complaints(error)
                continue
            if as_json:
                show.print_json(top)
            else:
                show.print_tree(top, place.name)
        complaints.end()
