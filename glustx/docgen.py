"""Pages that are written from the code: the matrix of translators and fops, options, fops, gfapi, the wire, SCSI.

    python -m glustx.docgen matrix          print one page (matrix, options, fops, gfapi, wire or scsi)
    python -m glustx.docgen write [FOLDER]  write all pages below FOLDER, the working copy's root

A test fails when the pages in the repository differ from what this module says.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from glustx import fops
from glustx.docgen_gfapi import gfapi_page
from glustx.docgen_scsi import scsi_page
from glustx.docgen_wire import wire_page
from glustx.fops import EFFECT_NAMES, FOPS, Fop
from glustx.graph import find_type, known_types
from glustx.options import OptionInfo, Percent, Seconds, Size
from glustx.rpc.codec import FD_NUMBER, ZEROES, Term, call_terms, reply_terms
from glustx.xlator import Xlator
from glustx.xlators.standins import REFUSED, STAND_INS, StandIn

WIDTH = 120

_WRITTEN = "Written by `python -m glustx.docgen write`; do not edit."


def translators() -> list[type[Xlator]]:
    """Return the classes of all translator types that have a module."""
    return [find_type(name) for name in known_types()]


# -- matrix ------------------------------------------------------------------------------------------------------------


def matrix() -> str:
    """Return how each translator treats each fop.

    own: a method of the fop's name. by effect: a method for all fops of a kind. pass: it goes to the child untouched.
    none: nobody below, so the fop fails with EOPNOTSUPP.
    """
    lines = [
        "How each translator treats each fop: by a method of its own, by effect, or not at all (pass; none where",
        "there is no child). A new fop shows here whom it passes by: look at each.",
        _WRITTEN,
        "",
    ]
    kinds = translators()
    for name, cls in FOPS.items():
        lines.append(f"{name}  ({', '.join(_effects(cls))})")
        for how in ("own", "by effect", "pass", "none"):
            types = " ".join(kind.type_name for kind in kinds if _how(kind, name) == how)
            if types:
                lines += textwrap.wrap(
                    types, WIDTH, initial_indent=f"    {how:<10} ", subsequent_indent=" " * 15, break_on_hyphens=False
                )
        lines.append("")
    return "\n".join(lines)


def _how(kind: type[Xlator], fop: str) -> str:
    how = kind.how(fop)
    return "none" if how == "pass" and kind.subvolume_count == (0, 0) else how


def _effects(cls: type[Fop]) -> list[str]:
    return [name for bit, name in EFFECT_NAMES.items() if cls.effects & bit]


# -- options -----------------------------------------------------------------------------------------------------------

_KINDS = {Size: "size", Percent: "percent", Seconds: "time", bool: "on/off", int: "number", float: "number"}


def options_page() -> str:
    """Return the options of all translators."""
    lines = [
        "# Options",
        "",
        _WRITTEN,
        "",
        "Sizes take `KB`, `MB`, `GB` (binary), times `s`, `min`, `h`, `d`. A *live* option may change while the graph",
        "is up.",
        "",
    ]
    for kind in translators():
        lines += [f"## {kind.type_name}", "", _sentence(kind), ""]
        infos = kind.Options.infos
        if infos:
            lines += ["| option | value | default | live | meaning |", "|---|---|---|---|---|"]
            for info in infos:
                live = "yes" if info.live else ""
                lines.append(f"| `{info.key}` | {_value(info)} | {_default(info)} | {live} | {_cell(info.doc)} |")
        else:
            lines.append("No options.")
        if kind.Options.accepted:
            accepted = ", ".join(f"`{key}`" for key in kind.Options.accepted)
            lines += ["", f"Accepted without effect: {accepted}."]
        lines.append("")
    missing = sorted(name for name in STAND_INS if find_type(name) is StandIn)
    if missing:
        lines += [
            "## Stand-ins",
            "",
            "These types of stock pass everything through, and are listed when a graph starts:",
            "",
        ]
        lines += [*textwrap.wrap(", ".join(missing) + ".", WIDTH, break_on_hyphens=False), ""]
    refused = sorted(name for name in REFUSED if name not in known_types())
    if refused:
        lines += ["## Refused", "", *(f"- {name}: {REFUSED[name]}." for name in refused), ""]
    return "\n".join(lines)


def _sentence(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _value(info: OptionInfo) -> str:
    if info.choices:
        return ", ".join(f"`{choice}`" for choice in info.choices if choice)
    kind = "text, by key" if info.pattern else _KINDS.get(info.kind, "text")
    if info.low is None and info.high is None:
        return kind
    low = "" if info.low is None else _number(info, info.low)
    high = "" if info.high is None else _number(info, info.high)
    return f"{kind}, {low} to {high}" if low and high else f"{kind}, from {low}" if low else f"{kind}, to {high}"


def _number(info: OptionInfo, value: float) -> str:
    if info.kind is Size and value and value == int(value):
        for unit, size in (("PB", 1 << 50), ("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
            if value % size == 0:
                return f"{int(value) // size}{unit}"
    return f"{value:d}" if isinstance(value, int) else f"{value:g}"


def _default(info: OptionInfo) -> str:
    if info.required:
        return "*required*"
    if info.pattern:
        return ""
    if isinstance(info.default, bool):
        return "on" if info.default else "off"
    if isinstance(info.default, (int, float)):
        return _number(info, info.default)
    return f"`{info.default}`" if info.default else ""


# -- fops --------------------------------------------------------------------------------------------------------------

_PRIORITIES = {fops.HIGH: "high", fops.NORMAL: "normal", fops.LOW: "low"}

# RFC 4506, section 4: the language these are written in.
_XDR = {
    "u32": "unsigned int {0};",
    "i32": "int {0};",
    "u64": "unsigned hyper {0};",
    "i64": "hyper {0};",
    "str": "string {0}<>;",
    "opaque": "opaque {0}<>;",
    "presence-str": "unsigned int has_{0}; string {0}<>;",
    "presence64-str": "unsigned hyper has_{0}; string {0}<>;",
    "gfid": "opaque {0}[16];",
    "fd": "opaque gfid[16]; hyper {0};",
    "remote": "hyper {0};",
    "iatt": "gfx_iattx {0};",
    "flock": "gf_proto_flock {0};",
    "lease": "gf_proto_lease {0};",
    "statfs": "gf_statfs {0};",
    "xdata": "gfx_dict {0};",
    "locks": "gfs3_locklist *{0};",
    "payload": "unsigned int size;",
}
_SHARED = """\
struct gfx_dict {            /* xdata; NULL is size 0, count -1, no pairs */
    unsigned int size;       /* bytes of all pairs */
    int count;
    struct { string key<>; int type; /* then a value of that type */ } pairs<>;
};

struct gfx_iattx {
    opaque gfid[16];
    unsigned hyper flags, ino, dev, rdev, size, blocks, attributes, attributes_mask;
    hyper atime, mtime, ctime, btime;
    unsigned int atime_nsec, mtime_nsec, ctime_nsec, btime_nsec, nlink, uid, gid, blksize, mode;
};

struct gf_proto_flock {
    unsigned int type, whence;
    unsigned hyper start, len;   /* len 0 reaches to the end of the file */
    unsigned int pid;
    opaque lk_owner<>;
};"""


def fops_page() -> str:
    """Return every fop: what it does, what the translators know of it, and its bodies on the wire."""
    lines = [
        "# File operations",
        "",
        _WRITTEN,
        "",
        "Each fop is declared once, in `glustx/fops.py`. The bodies are those of program 1298437 version 400, in the",
        "language of RFC 4506; a reply begins with `int op_ret; int op_errno;`, and where it fails all else is zero.",
        "",
        "```",
        _SHARED,
        "```",
        "",
    ]
    for name, cls in FOPS.items():
        number = f"procedure {cls.procnum}" if cls.procnum >= 0 else "never on the wire"
        lines += [f"## {name}", "", _sentence(cls), ""]
        lines.append(
            f"{number.capitalize()}, number {cls.gf_fop} in logs. Effects: {', '.join(_effects(cls))}. "
            f"Priority: {_PRIORITIES[cls.priority]}. Answer: `{cls.reply.__name__}`."
        )
        if cls.procnum >= 0:
            lines += ["", "```", *_call(cls), "", *_reply(cls), "```"]
        lines.append("")
    return "\n".join(lines)


def _field(term: Term) -> str:
    field, _, part = term.path.partition(".")
    name = field if part in ("", "remote") else part if field == "loc" else f"{field}_{part}"
    if term.wire == "fd":
        return _XDR["fd"].format(name)
    return _XDR[term.wire].format("fd" if term.path == FD_NUMBER else name)


def _call(cls: type[Fop]) -> list[str]:
    terms = call_terms(cls)
    lines = [f"struct {cls.name}_req {{", *(f"    {_field(term)}" for term in terms), "    gfx_dict xdata;", "};"]
    if any(term.wire == "payload" for term in terms):
        lines.append("/* then `size` bytes of data, to the end of the record */")
    return lines


def _reply(cls: type[Fop]) -> list[str]:
    head = [f"struct {cls.name}_rsp {{", "    int op_ret; int op_errno;"]
    if cls is fops.Read:  # the only reply whose xdata is not in front
        return [
            *head,
            "    gfx_iattx stat;",
            "    unsigned int size;",
            "    gfx_dict xdata;",
            "};",
            "/* then `size` bytes of data, to the end of the record */",
        ]
    head.append("    gfx_dict xdata;")
    if cls.reply is fops.ReaddirReply:
        plus = " gfx_iattx stat; gfx_dict xattrs;" if cls is fops.Readdirp else ""
        entry = f"unsigned hyper ino, off; unsigned int len, type; string name<>;{plus}"
        return [*head, f"    struct {{ {entry} }} *entries;    /* a linked list */", "};"]
    _, terms = reply_terms(cls)
    zeroed = iter(("pre", "post"))
    fields = [
        _field(Term(next(zeroed), term.wire) if term.path == ZEROES else term)
        for term in terms
        if term.wire != "payload"
    ]
    return [*head, *(f"    {field}" for field in fields), "};"]


# -- pages -------------------------------------------------------------------------------------------------------------

PAGES: dict[str, tuple[str, Callable[[], str]]] = {
    "matrix": ("tests/golden/fop-matrix.txt", matrix),
    "options": ("docs/options.md", options_page),
    "fops": ("docs/fops.md", fops_page),
    "gfapi": ("docs/gfapi.md", lambda: gfapi_page(_WRITTEN)),
    "wire": ("docs/wire.md", lambda: wire_page(_WRITTEN)),
    "scsi": ("docs/scsi.md", lambda: scsi_page(_WRITTEN)),
}


def main(words: list[str]) -> int:
    """Print a page, or write them all; return an exit status."""
    if words[:1] == ["write"] and len(words) <= 2:
        root = Path(words[1] if len(words) == 2 else ".")
        for name, make in PAGES.values():
            (root / name).write_text(make())
        return 0
    if len(words) == 1 and words[0] in PAGES:
        sys.stdout.write(PAGES[words[0]][1]())
        return 0
    sys.stderr.write(f"usage: python -m glustx.docgen {'|'.join(PAGES)}, or: write [FOLDER]\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
