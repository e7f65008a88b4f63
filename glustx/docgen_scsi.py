"""The page of the SCSI device server: commands, vital product data, mode pages, log pages."""

from __future__ import annotations

from glustx.scsi import chapters, logs, mode_pages, vpd
from glustx.scsi.commands import CHANGES, COMMANDS, KEEPS_ATTENTION, MEDIUM, WITHOUT_UNIT, Access, Command
from glustx.scsi.config import LunConfig

_RESERVED = {
    Access.ANY: "passes",
    Access.READ: "reads",
    Access.WRITE: "writes",
    Access.RESERVE: "judges",
    Access.PERSISTENT: "judges",
}
_FLAGS = ((MEDIUM, "medium"), (CHANGES, "writable"), (WITHOUT_UNIT, "no unit"), (KEEPS_ATTENTION, "before attentions"))


def scsi_page(written: str) -> str:
    """Return the tables from which the device server works; `written` is the line that says by what it was written."""
    return "\n".join(
        [
            "# SCSI commands and pages",
            "",
            written,
            "",
            "What a logical unit answers, from the tables that it works with. How disks are set up is told in",
            "[iscsi.md](iscsi.md).",
            "",
            *_commands(),
            *_vital_product_data(),
            *_modes(),
            *_logs(),
        ]
    )


def _commands() -> list[str]:
    lines = [
        "## Commands",
        "",
        "The usage map has 1 bits where a bit of the CDB is looked at; others must be 0. To somebody else's persistent",
        "reservation a command *passes*, *reads*, *writes*, or *judges* for itself. What it may need or be: a *medium*",
        "that is there, a *writable* unit, answered for a LUN with *no unit*, done *before attentions* of the unit,",
        "there *if offered* by the unit's options. The time-out is the recommended one, in seconds.",
        "",
    ]
    for chapter in chapters.ALL:
        rows = [COMMANDS[key] for key in sorted(COMMANDS, key=_order)]
        rows = [row for row in rows if row.handler.__module__ == chapter.__name__]
        if rows:
            title = (chapter.__doc__ or "").strip().partition("\n\n")[0]
            lines += [" ".join(title.split()), ""]
            lines += ["| command | usage map | reservation | needs | time-out | answer |", "|---|---|---|---|---|---|"]
            lines += [*map(_row, rows), ""]
    return lines


def _order(key: tuple[int, int | None]) -> tuple[int, int]:
    return key[0], key[1] or 0


def _row(row: Command) -> str:
    needs = [text for bit, text in _FLAGS if row.flags & bit]
    if row.offered is not None:
        needs.append("if offered")
    usage = row.usage.hex(" ")
    doc = _cell(row.doc)
    return f"| {row.name} | `{usage}` | {_RESERVED[row.access]} | {', '.join(needs)} | {row.timeout} | {doc} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _vital_product_data() -> list[str]:
    lines = ["## Vital product data", "", "| page | name |", "|---|---|", "| 00 | Supported pages |"]
    lines += [f"| {code:02X} | {vpd.PAGES[code].name} |" for code in sorted(vpd.PAGES)]
    return [*lines, ""]


def _modes() -> list[str]:
    lines = [
        "## Mode pages",
        "",
        "Bodies (what follows the page's length) as they are by default, and the bits that MODE SELECT may change. All",
        "pages can be saved, but on read-only units.",
        "",
        "| page | name | default | changeable |",
        "|---|---|---|---|",
    ]
    config = LunConfig(path="/disk.img")
    for code, subcode in sorted(mode_pages.PAGES):
        page = mode_pages.PAGES[code, subcode]
        number = f"{code:02X}" + (f"/{subcode:02X}" if subcode else "")
        default, changeable = page.default(config, 0).hex(" ", 4), page.changeable.hex(" ", 4)
        lines.append(f"| {number} | {page.name} | `{default}` | `{changeable}` |")
    return [*lines, ""]


def _logs() -> list[str]:
    lines = [
        "## Log pages",
        "",
        "| page | name |",
        "|---|---|",
        "| 00 | Supported pages |",
        "| 00/FF | with subpages |",
    ]
    lines += [f"| {code:02X} | {logs.PAGES[code].name} |" for code in sorted(logs.PAGES)]
    return [*lines, ""]
