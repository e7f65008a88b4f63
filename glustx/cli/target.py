"""`glustx target`: what an iSCSI gateway offers, in the nouns of LIO (target, portal, LUN, ACL), and running one.

The commands change a file; a gateway that runs follows at once, and what it refuses is not kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from glustx.cli.failures import FAILED, NOT_CONNECTED, USAGE, Failure, told
from glustx.cli.serve import LogFormat, LogLevel, StateDir, places, set_up_logs
from glustx.cli.target_show import Format, print_sessions, print_statistics, print_targets, watch
from glustx.mgmt.state import ServeError
from glustx.mgmt.targets import Saved, Store
from glustx.scsi.config import AclConfig, LunConfig, lun_config

app = typer.Typer(help="Offer files of volumes as SCSI disks (iSCSI).", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TARGET", help="iSCSI name, such as iqn.2026-12.org.example:vms.")]
Number = Annotated[int, typer.Argument(metavar="LUN", min=0, max=16383, help="LUN of the target.")]
Words = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="KEY=VALUE, such as block-size=4096 (docs/iscsi.md lists them); repeatable."),
]
SOCKET = "gateway.socket"


# -- targets ---------------------------------------------------------------------------------------------------------


@app.command()
def create(
    name: Name,
    alias: Annotated[str, typer.Option(help="Text for people.")] = "",
    portal_group: Annotated[int, typer.Option(min=1, max=65535, help="Target portal group tag.")] = 1,
    state_dir: StateDir = None,
) -> None:
    """Make a target. It has no LUNs yet, and everybody who can reach a portal may use it until `map` says who may."""
    _change(state_dir, lambda saved: saved.create(name, alias, portal_group))


@app.command()
def delete(name: Name, state_dir: StateDir = None) -> None:
    """Remove a target and end its sessions; the files of its LUNs stay."""
    _change(state_dir, lambda saved: saved.delete(name))


@app.command("add-lun")
def add_lun(
    name: Name,
    file: Annotated[
        str, typer.Argument(help="gluster://HOST/VOLUME/PATH, or FOLDER:/PATH or VOLFILE:/PATH on this machine.")
    ],
    lun: Annotated[int | None, typer.Option(min=0, max=16383, help="Number; the first free one by default.")] = None,
    option: Words = None,
    state_dir: StateDir = None,
) -> None:
    """Offer a file as a LUN."""
    numbers: list[int] = []

    def change(saved: Saved) -> Saved:
        volume, path = _file(file)
        changed, number = saved.add_lun(name, _lun({"volume": volume, "path": path}, option), lun)
        numbers.append(number)
        return changed

    _change(state_dir, change)
    print(f"LUN {numbers[-1]}")


@app.command("remove-lun")
def remove_lun(name: Name, lun: Number, state_dir: StateDir = None) -> None:
    """Offer a LUN no longer; its file stays."""
    _change(state_dir, lambda saved: saved.remove_lun(name, lun))


@app.command("set-lun")
def set_lun(
    name: Name,
    lun: Number,
    option: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Options; those not named stay.")],
    state_dir: StateDir = None,
) -> None:
    """Change options of a LUN. Another capacity is a resize; anything else makes initiators see a new disk."""

    def change(saved: Saved) -> Saved:
        old = saved.target(name).luns.get(lun)
        if old is None:
            raise ServeError(f"target {name} has no LUN {lun}")
        texts = {key: _text(value) for key, value in msgspec.structs.asdict(old).items()}
        return saved.set_lun(name, lun, _lun(texts, option))

    _change(state_dir, change)


@app.command()
def resize(name: Name, lun: Number, state_dir: StateDir = None) -> None:
    """Have a running gateway look at the size of a LUN's file; initiators are told when it has changed."""
    with told(ServeError):
        print(f"{_ask(state_dir, 'resize', target=name.lower(), lun=lun)} blocks")


# -- who may ---------------------------------------------------------------------------------------------------------


@app.command("map")
def map_(
    name: Name,
    initiator: Annotated[str, typer.Argument(help="Its iSCSI name; * stands for any characters.")],
    lun: Annotated[
        list[str] | None,
        typer.Option("--lun", help="SEEN=LUN, or LUN: what it sees, and under which number; all by default."),
    ] = None,
    address: Annotated[list[str] | None, typer.Option(help="Network it may come from; repeatable.")] = None,
    user: Annotated[str, typer.Option(help="CHAP user that it must show.")] = "",
    password_file: Annotated[Path | None, typer.Option(help="File with that user's secret, - for stdin.")] = None,
    mutual_user: Annotated[str, typer.Option(help="CHAP user that the target shows in turn.")] = "",
    mutual_password_file: Annotated[Path | None, typer.Option(help="File with that user's secret.")] = None,
    state_dir: StateDir = None,
) -> None:
    """Let initiators use a target, in place of the rule for the same ones. After a first rule, others may not."""

    def change(saved: Saved) -> Saved:
        luns = _pairs(lun) if lun else None
        rule = AclConfig(
            initiator=initiator,
            user=user,
            password=_secret(password_file),
            mutual_user=mutual_user,
            mutual_password=_secret(mutual_password_file),
            addresses=tuple(address or ()),
            luns=luns,
        )
        return saved.map(name, rule)

    _change(state_dir, change)


@app.command()
def unmap(
    name: Name,
    initiator: Annotated[str, typer.Argument(help="As in `map`.")],
    state_dir: StateDir = None,
) -> None:
    """Remove the rule for initiators; those that may no longer use the target lose their sessions."""
    _change(state_dir, lambda saved: saved.unmap(name, initiator))


@app.command()
def redirect(
    name: Name,
    portal: Annotated[str, typer.Argument(help="HOST:PORT that logins are sent to; `none` ends that.")],
    state_dir: StateDir = None,
) -> None:
    """Send logins of a target to another portal."""

    def change(saved: Saved) -> Saved:
        where = "" if portal == "none" else portal
        return saved.with_target(msgspec.structs.replace(saved.target(name), redirect=where))

    _change(state_dir, change)


@app.command()
def portals(
    portal: Annotated[list[str], typer.Argument(help="HOST:PORT; HOST:PORT=HOST:PORT advertises the second.")],
    state_dir: StateDir = None,
) -> None:
    """Set where the gateway listens from its next start on."""

    def change(saved: Saved) -> Saved:
        pairs = [text.partition("=") for text in portal]
        for listened, _, told_ in pairs:
            for each in filter(None, (listened, told_)):
                if not each.rpartition(":")[2].isdigit():
                    raise ServeError(f"{each!r} is not HOST:PORT")
        advertise = {listened: told_ for listened, _, told_ in pairs if told_}
        return msgspec.structs.replace(saved, portals=tuple(pair[0] for pair in pairs), advertise=advertise)

    _change(state_dir, change, follow=False)


# -- seeing ----------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    form: Annotated[Format, typer.Option("--format", help="How.")] = Format.TEXT,
    state_dir: StateDir = None,
) -> None:
    """Show targets with their LUNs and rules."""
    with told(ServeError):
        print_targets(Store(places(state_dir).state).load(), form)


@app.command()
def sessions(
    form: Annotated[Format, typer.Option("--format", help="How.")] = Format.TEXT,
    state_dir: StateDir = None,
) -> None:
    """Show who is logged in at the running gateway."""
    with told(ServeError):
        print_sessions(_ask(state_dir, "sessions"), form)


@app.command()
def stats(
    form: Annotated[Format, typer.Option("--format", help="How; prometheus is its text format.")] = Format.TEXT,
    state_dir: StateDir = None,
) -> None:
    """Show what each LUN and session of the running gateway has done."""
    with told(ServeError):
        print_statistics(_ask(state_dir, "statistics"), form)


@app.command()
def top(
    seconds: Annotated[float, typer.Option(min=0.1, help="Between two looks.")] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="How many looks; 0 for no end.")] = 0,
    state_dir: StateDir = None,
) -> None:
    """Show what the LUNs of the running gateway are doing, again and again."""
    with told(ServeError):
        watch(lambda: _ask(state_dir, "statistics"), seconds, count)


# -- acting on a running gateway -------------------------------------------------------------------------------------


@app.command()
def logout(
    name: Name,
    initiator: Annotated[str, typer.Argument(help="Its iSCSI name, or a pattern.")],
    state_dir: StateDir = None,
) -> None:
    """End sessions; initiators that may use the target come back by themselves."""
    with told(ServeError):
        count = _ask(state_dir, "logout", target=name.lower(), initiator=initiator)
        print(f"{count} session{'' if count == 1 else 's'} ended")


@app.command()
def inject(
    name: Name,
    lun: Number,
    error: Annotated[str, typer.Argument(help="aborted, medium-error, attention, or KEY/ASC/ASCQ in hex; none clears")],
    what: Annotated[str, typer.Option(help="read, write, any, or a command's name.")] = "any",
    lba: Annotated[int | None, typer.Option(min=0, help="First block of a range; all by default.")] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Its length.")] = 1,
    continuous: Annotated[bool, typer.Option("--continuous", help="Every time, not once.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Have commands of a LUN meet an error, to test initiators."""
    with told(ServeError):
        _ask(
            state_dir,
            "inject",
            target=name.lower(),
            lun=lun,
            error=error,
            what=what,
            lba=lba,
            blocks=blocks,
            continuous=continuous,
        )


@app.command()
def serve(
    portal: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT to listen on, in place of those kept; port 0 takes a free one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
    state_dir: StateDir = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C. One line on stdout says when initiators may come."""
    from glustx.mgmt.gateway import Ready, run_gateway

    def ready(facts: Ready) -> None:
        if json:
            print(msgspec.json.encode(facts).decode(), flush=True)
        else:
            count = len(facts.targets)
            print(
                f"serving {count} target{'' if count == 1 else 's'} on {', '.join(facts.portals)} (pid {facts.pid})",
                flush=True,
            )

    with told(ServeError):
        set_up_logs(log_level, log_format)
        where = places(state_dir)
        run_gateway(Store(where.state), where.run / SOCKET, ready, portals=tuple(portal or ()))


# -- helpers ---------------------------------------------------------------------------------------------------------


def _socket(state_dir: Path | None) -> Path:
    return places(state_dir).run / SOCKET


def _ask(state_dir: Path | None, op: str, **arguments: Any) -> Any:
    from glustx.mgmt import gateway_control

    socket = _socket(state_dir)
    try:
        return asyncio.run(gateway_control.ask(socket, op, **arguments))
    except OSError as error:
        why = error.strerror or str(error)
        raise Failure(
            f"no gateway answers at {socket} ({why}); `glustx target serve` runs one", NOT_CONNECTED
        ) from None


def _change(state_dir: Path | None, change: Callable[[Saved], Saved], *, follow: bool = True) -> None:
    """Change what is kept, and have a running gateway follow; when it refuses, the old is kept."""
    from glustx.mgmt import gateway_control

    with told(ServeError):
        store = Store(places(state_dir).state)
        with store.locked():
            old = store.load()
            store.save(change(old))
            if not follow:
                return
            try:
                asyncio.run(gateway_control.ask(_socket(state_dir), "reload"))
            except ServeError:
                store.save(old)
                raise
            except TimeoutError:
                raise Failure("kept, but the gateway that runs does not answer", FAILED) from None
            except OSError:
                pass  # none runs


def _file(text: str) -> tuple[str, str]:
    from glustx.gfapi.url import is_url, parse_url

    if is_url(text):
        try:
            url = parse_url(text)
        except ValueError as error:
            raise Failure(str(error), USAGE) from None
        if url.path == "/":
            raise Failure(f"{text} names no file in the volume", USAGE)
        return str(msgspec.structs.replace(url, path="/")), url.path
    place, colon, path = text.rpartition(":/")
    if not colon or not path:
        raise Failure(f"{text!r} is neither gluster://HOST/VOLUME/PATH nor FOLDER:/PATH", USAGE)
    if not os.path.exists(place):
        raise Failure(f"{place}: there is no such folder or volfile", USAGE)
    return os.path.abspath(place), "/" + path


def _lun(texts: dict[str, str], words: list[str] | None) -> LunConfig:
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals:
            raise Failure(f"{word!r} is not KEY=VALUE", USAGE)
        texts[key.replace("-", "_")] = value
    try:
        return lun_config(texts)
    except ValueError as error:
        raise Failure(str(error), USAGE) from None


def _text(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _pairs(words: list[str]) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for word in words:
        seen, equals, own = word.partition("=")
        if not seen.isdigit() or (equals and not own.isdigit()):
            raise Failure(f"--lun {word!r} is not SEEN=LUN", USAGE)
        pairs[int(seen)] = int(own) if equals else int(seen)
    return pairs


def _secret(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        text = typer.get_text_stream("stdin").readline() if str(file) == "-" else file.read_text()
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from None
    return text.rstrip("\r\n")
