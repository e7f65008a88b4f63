"""The page about the wire: versions of the fop program, what became of every fop between peers, and known xdata keys.

The tables are the files in `tests/golden` that tests write or check.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glustx.rpc import programs as p
from glustx.rpc.codec import call_terms
from glustx.rpc.program_330 import LAYOUT_330

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"

_INTRO = """\
glustx speaks two versions of GlusterFS's fop program, 1298437, at both ends. A brick lists both in its DUMP and answers
both on one connection. A client takes 400 where the brick offers it and 330 otherwise; `option testing.old-protocol on`
of protocol/client, stock's own name for it, makes it take 330. The bodies of version 400 are in [fops.md](fops.md)."""

_OLD = """\
GlusterFS 3.x speaks version 330: procedures up to 52, with the same numbers and the same fields in the same order but
for the two calls below. What differs everywhere:

- Attributes are `gf_iatt`: 100 bytes, no birth time, no flags, and 32 bits for seconds.
- xdata and sets of xattrs are untyped dictionaries inside an opaque: `int count`, then for each pair `int keylen`,
  `int vallen`, the key, a NUL, the value. Numbers are decimal text with a NUL, attributes and times the memory of
  stock's C structs. An opaque without bytes is no dictionary.
- A reply's xdata comes last. GETXATTR and XATTROP carry no attributes.
- The credential is AUTH_GLUSTERFS v2, which says nothing of times: a brick of ours stamps those of its own clock. Two
  bricks then store different times, and replicate's client compares them: it heals the metadata of a file that has
  changed when it looks at it next.
- RCHECKSUM's reply has 16 bytes of the sum and no flags; xdata `fips-mode-rchecksum` tells the half of a SHA-256 from
  an MD5.
- COPY_FILE_RANGE, PUT, ICREATE and NAMELINK do not exist; our client answers EOPNOTSUPP without asking."""

_XDR = {"remote": "hyper {};", "u64": "unsigned hyper {};", "u32": "unsigned int {};", "i32": "int {};"}

_PEERS = """\
What became of one request of each fop, by client and brick, in versions 400 and 330. *by hand*: done when it is sent by
hand, a client does not send it; `-`: not sent, or not in this version. Stock is GlusterFS 10.3. Leases are off on both
kinds of brick, and the message of IPC is for features/upcall, which only stock's brick has.
`tests/t4_edge/test_fop_peers.py` tries all of it."""

_KEYS = """\
The keys of xdata that stock's stacks send and what a brick of ours does with each; `tests/t3_wire/test_xdata_keys.py`
tries them in both versions."""


def _rows(name: str) -> Iterator[str]:
    return (line for line in (GOLDEN / name).read_text().splitlines() if not line.startswith("#"))


def wire_page(written: str) -> str:
    """Return the page; `written` says who writes it."""
    lines = [
        "# The wire",
        "",
        written,
        "",
        _INTRO,
        "",
        "| Program | Number | Version | Procedures |",
        "|---|---|---|---|",
    ]
    for program in (p.FOP_400, p.FOP_330, p.DUMP, p.HANDSHAKE):
        lines.append(f"| {program.name} | {program.number} | {program.version} | {len(program.procedures)} |")
    lines += ["", "## Version 330", "", _OLD, "", "```"]
    for cls in LAYOUT_330.wire:
        fields = [_XDR.get(term.wire, "gf_iatt {};") for term in call_terms(cls, LAYOUT_330)]
        names = ["fd" if term.wire == "remote" else term.path for term in call_terms(cls, LAYOUT_330)]
        body = " ".join(field.format(name) for field, name in zip(fields, names, strict=True))
        lines.append(f"struct {cls.name}_req {{ {body} opaque xdata<>; }};")
    lines += ["```", "", "## Every fop between peers", "", _PEERS, ""]
    head, *fops = (line.split() for line in _rows("fop-peers.txt"))
    columns = [f"{pair.replace('>', ' on ')}, {program}" for pair, program in (word.split(":") for word in head[1:])]
    lines += [f"| fop | {' | '.join(columns)} |", "|---" * len(head) + "|"]
    lines += [
        f"| {fop.upper()} | {' | '.join(cell.replace('-hand', ' hand') for cell in cells)} |" for fop, *cells in fops
    ]
    lines += ["", "## xdata keys", "", _KEYS, "", "| key | with | the brick | where |", "|---|---|---|---|"]
    for row in _rows("xdata-keys.txt"):
        key, fop, does, where = (cell.strip() for cell in row.split("|"))
        place = f"`{where}`" if does != "-" else where
        lines.append(f"| `{key}` | {fop} | {does if does != '-' else 'does nothing'} | {place} |")
    return "\n".join([*lines, ""])
