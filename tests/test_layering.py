"""The shape of the package, checked on its syntax trees: imports go one way, the loop and the environment stay at the
edges, files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "glustx").rglob("*.py"))

# From the bottom up; those of one row do not know each other. A module belongs to the longest prefix that fits.
LAYERS = (
    ("glustx", "glustx.values", "glustx.linux", "glustx.units", "glustx.volfile", "glustx.logs", "glustx.progress"),
    ("glustx.xdata", "glustx.upcall", "glustx.volgen", "glustx.lock_ranges"),
    ("glustx.errors", "glustx.inode", "glustx.xdata_memo"),
    ("glustx.fops", "glustx.runtime", "glustx.options"),
    ("glustx.workers", "glustx.xlator"),
    ("glustx.rpc", "glustx.scsi", "glustx.xlators.standins"),
    ("glustx.graph", "glustx.iscsi"),
    ("glustx.xlators.system",),
    (
        "glustx.xlators.cluster",
        "glustx.xlators.debug",
        "glustx.xlators.export",
        "glustx.xlators.features",
        "glustx.xlators.performance",
        "glustx.xlators.protocol",
        "glustx.xlators.storage",
    ),
    ("glustx.gfapi",),
    ("glustx.docgen_gfapi", "glustx.docgen_scsi", "glustx.docgen_wire"),
    ("glustx.docgen",),
    ("glustx.fs",),
    ("glustx.provision", "glustx.mgmt"),
    ("glustx.cli",),
    ("glustx.__main__",),
)
RANK = {prefix: rank for rank, layer in enumerate(LAYERS) for prefix in layer}
RANK["glustx.xlators"] = 0  # the package itself is empty

# Who may know an event loop.
LOOPS = ("glustx.rpc.transport", "glustx.gfapi", "glustx.cli", "glustx.mgmt")

# Who may look at the environment, besides the command line.
ENVIRONMENT = {"glustx.mgmt.supervisor": "hands its own environment on to the processes it starts"}

# Files that are longer than LIMIT lines, and why.
LIMIT = 400
LONG = {
    "glustx/xdata.py": "the dictionary and its bytes",
    "glustx/fops.py": "one declaration after the other: a table that is looked up, not read",
    "glustx/rpc/codec.py": "one encoder and decoder after the other",
    "glustx/gfapi/aio.py": "the calls of the public API, one after the other",
    "glustx/gfapi/file.py": "the calls of the public API, one after the other",
    "glustx/gfapi/sync.py": "the calls of the public API, one after the other",
    "glustx/gfapi/volume.py": "the calls of the public API, one after the other",
    "glustx/gfapi/pump.py": "one mutex guards the baton, the selector and the calls that wait",
    "glustx/xlators/protocol/client_link.py": "one connection's life, from dialling to hanging up",
    "glustx/xlators/protocol/server_session.py": "one connection's state, which its handlers share",
    "glustx/xlators/storage/posix_handle.py": "one cache of objects, and all that must keep it true",
    "glustx/xlators/storage/posix_xattr.py": "the fops on xattrs, by inode and by fd, and the steps they share",
    "glustx/xlators/storage/posix_names.py": "fops that make names, and the steps they share",
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imported(path: Path, *, for_types: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for every import in a file, wherever it stands; those for type checkers only on request."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            skipped.update(inner for stmt in node.body for inner in ast.walk(stmt))
    for node in ast.walk(tree):
        if node in skipped and not for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in MODULES else node.module


def prefix_of(module: str) -> str:
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        prefix = ".".join(parts[:size])
        if prefix in RANK:
            # Only exact matches count for the package itself and for packages that are rows of their own parts.
            if prefix in ("glustx", "glustx.xlators") and prefix != module:
                break
            return prefix
    raise AssertionError(f"{module} has no place among the layers: give it one in LAYERS")


def test_imports_go_down() -> None:
    wrong = []
    for module, path in MODULES.items():
        mine = prefix_of(module)
        for line, name in imported(path):
            if name.split(".")[0] == "glustx":
                theirs = prefix_of(name)
                if theirs != mine and RANK[theirs] >= RANK[mine]:
                    wrong.append(f"{path.relative_to(ROOT)}:{line}: {mine} imports {name}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_rpc_knows_neither_translators_nor_edges() -> None:
    forbidden = ("glustx.xlator", "glustx.graph", "glustx.gfapi", "glustx.cli", "glustx.mgmt")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        if module.startswith("glustx.rpc")
        for line, name in imported(path, for_types=True)
        if name.startswith(forbidden)
    ]
    assert not wrong, "\n".join(wrong)


def test_event_loops_stay_at_the_edges() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        if not any(module == edge or module.startswith(f"{edge}.") for edge in LOOPS)
        for line, name in imported(path)
        if name.split(".")[0] in ("asyncio", "uvloop")
    ]
    assert not wrong, "\n".join(wrong)


def test_translators_bring_no_threads_of_their_own() -> None:
    """Below the edges nothing selects, queues or starts threads; `Workers` and the reactors do."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        if module.startswith("glustx.xlators")
        for line, name in imported(path)
        if name in ("selectors", "select", "queue", "concurrent.futures")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_environment_is_the_command_lines() -> None:
    wrong = []
    for module, path in MODULES.items():
        if module.startswith("glustx.cli") or module in ENVIRONMENT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                looked = {node.attr}
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                looked = {alias.name for alias in node.names}
            else:
                continue
            if looked & {"environ", "environb", "getenv", "putenv"}:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_files_are_short_and_say_their_job() -> None:
    wrong = []
    for path in FILES:
        text, name = path.read_text(), str(path.relative_to(ROOT))
        lines = text.count("\n")
        if lines > LIMIT and name not in LONG:
            wrong.append(f"{name} has {lines} lines: make two of it, or give a reason in LONG")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        if not docstring.split("\n\n")[0].rstrip().endswith((".", ":")):
            wrong.append(f"{name} does not say its job in its first sentence")
    assert not wrong, "\n".join(wrong)
    assert set(LONG) <= {str(path.relative_to(ROOT)) for path in FILES}
    assert set(ENVIRONMENT) <= set(MODULES)
