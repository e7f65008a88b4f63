"""docs/gfapi.md, written from the signatures and docstrings of the client API; its examples are run by a test."""

from __future__ import annotations

import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from glustx import gfapi
from glustx.gfapi import exceptions, glfs

WIDTH = 120

_INTRO = """\
# The client API

@WRITTEN@

`glustx.gfapi` uses volumes of stock GlusterFS and of glustx without a C library. `Volume` and `File` block;
`AsyncVolume` and `AsyncFile` have the same names for asyncio. Paths are `str`, `bytes` or `os.PathLike`, start from the
volume's root, and may hold any byte: text stands for bytes as `os.fsdecode` has it, and as in `os`, what is named by
bytes gives names as bytes. Types are in the package (`py.typed`).

## Examples

Files are raw and unbuffered, and of use wherever Python takes an open file:

```python
import io, shutil, tarfile
from glustx.gfapi import Volume

with Volume("gluster://server/vm", timeout=30.0) as volume:
    volume.makedirs("/images/old", exist_ok=True)
    with volume.open("/images/disk.img", "xb") as image:
        image.zerofill(0, 1 << 20)          # the brick does it: nothing is sent
        image.pwrite(b"boot", 510)
    with volume.open("/images/notes.txt", "wb") as raw, io.TextIOWrapper(io.BufferedWriter(raw)) as text:
        print("made today", file=text)
    with volume.open("/images.tar", "wb") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
        with volume.open("/images/notes.txt") as notes:
            member = tarfile.TarInfo("notes.txt")
            member.size = volume.getsize("/images/notes.txt")
            tar.addfile(member, notes)
    volume.copy2("/images/disk.img", "/images/old")     # holes stay holes, and the data stays on the brick
    for folder, folders, files in volume.walk("/images"):
        print(folder, folders, files)
    volume.rmtree("/images")
```

The same for asyncio; a call runs at once, and only one that has to wait gives way to other tasks:

```python
import asyncio
from glustx.gfapi import AsyncVolume

async def main():
    async with AsyncVolume("gluster://server/vm") as volume:
        async with await volume.open("/f", "w+b") as file:
            await asyncio.gather(*(file.pwrite(bytes([i]) * 4096, i * 4096) for i in range(100)))
            assert (await file.stat()).st_size == 100 * 4096
        async for entry in volume.scandir("/"):
            print(entry.name, (await entry.stat()).st_size)

asyncio.run(main())
```

Who asks is the user of the process, or whoever is named: for a volume object, for a view of one, for a thread:

```python
from glustx.gfapi import Volume

with Volume("gluster://server/vm", uid=0, gid=0) as volume:
    volume.mkdir("/home", 0o777)
    volume.chmod("/home", 0o777)
    alice = volume.using(uid=1000, gid=1000, groups=(100,))
    alice.create("/home/alice").close()
    volume.setfsuid(1001)                   # in this thread, until it is set again
    volume.create("/home/bob").close()
    assert [volume.stat(f"/home/{name}").st_uid for name in ("alice", "bob")] == [1000, 1001]
```

A script for libgfapi-python needs another import and no more:

```python
from glustx.gfapi import File, Volume
from glustx.gfapi.exceptions import LibgfapiException

volume = Volume("server", "vm")
volume.mount()
with volume.fopen("hello.txt", "w") as f:
    f.write("hello")
with File(volume.open("hello.txt", 0)) as f:
    print(f.read(), f.fgetsize())
for entry in volume.scandir("/"):
    print(entry.name, entry.is_dir())
volume.setxattr("hello.txt", "user.kind", "greeting")
print(volume.getxattr("hello.txt", "user.kind"))
volume.umount()
```

## Errors

What fails raises the OSError that `os` would raise, so `FileNotFoundError`, `IsADirectoryError` and so on, with the
path as it was given, and a text that names the errno, the volume, the host and what the brick said. A call that takes
longer than the volume's `timeout` raises `TimeoutError`, and the volume stays usable. Arguments that cannot be meant
raise `ValueError` or `TypeError`. `glustx.gfapi.exceptions` has:

@EXCEPTIONS@

## Threads, tasks and fork

Threads may share a Volume and its files; so may tasks of one event loop an AsyncVolume and its files. Reads and writes
at a file's position take turns; those with an offset run side by side. A `chdir` holds for the volume object,
`setfsuid` and its kind for the calling thread or task alone.

After `fork` the connections belong to the parent, which goes on undisturbed. In the child every call on a Volume or
File from before raises RuntimeError, and closing them does nothing; a child opens volumes of its own.

## Where libgfapi-python behaves otherwise

The classes, methods, arguments and results are libgfapi-python's. Made from hosts and a name, a Volume is mounted by
`mount` (or `with`), and no umask is taken from modes. What was a trap there is none here:

| call | libgfapi-python 1.2 | here |
|---|---|---|
| `File.read` at the end of a file | None | `b""` |
| `File.write` of text | writes memory that is not the text | UTF-8 |
| `File.write` on a file not open for writing | may fail at `close` only | EBADF at once |
| `File.lseek`, `ftruncate`, `zerofill`, `discard`, `fallocate` past 2 GiB | the offset loses its upper half | right |
| `File.lseek` to before the beginning | no error, or one without errno | EINVAL |
| `File.fsync`, `fdatasync`, `ftruncate` with GlusterFS 6 and later | crash | work |
| `File.fallocate` with a mode | any mode but 0 keeps the size | the modes of fallocate(2) |
| `File.close` again | EBADF | nothing, as in `io` |
| a call on a closed file | OSError EBADF | the same, and a ValueError as well |
| `File.fileno` | a property, libgfapi's pointer | `io`'s method, which says that there is none |
| `File.fd`, `Volume.fs` | pointers of libgfapi's | none |
| `Volume.open` with a mode string, `fopen` with `x` | TypeError, ValueError | as `open` has them |
| `Volume.open` | a number; lost when no File is made of it | a File; `File(volume.open(...))` is that one |
| a File or Dir that nobody closes | its fd stays open (File) | given back when it is collected |
| `st_atime` and so on | whole seconds | seconds with their fraction; `st_atime_ns` as in `os` |
| `getxattr` of a value with a NUL, or not UTF-8 | cut there; UnicodeDecodeError | whole; bytes for a key of bytes |
| names that are not UTF-8 | UnicodeDecodeError | surrogates, as in `os` |
| `walk` with names taken out of the second list | entered all the same | not entered |
| `copytree` with `ignore` | asked for the uppermost directory only | for each |
| copies | through the client, holes filled | on the brick, holes kept, times to the nanosecond |
| `link` of a directory, `rename` of one onto a file | EISDIR | EPERM, ENOTDIR |
| `rmtree` of the root | removes all, then fails | removes all |
| `exists`, `isfile`, `isdir`, `islink` while no brick answers | False | OSError |
| `setfsuid` | for all volumes of the thread | for this volume object in the thread |
| `umount` | takes ten seconds | at once |
"""

_GLFS = """\
## glfs: libgfapi's functions

For code that is ported from C, `glustx.gfapi.glfs` has functions under libgfapi's names, with its order of arguments. A
`glfs_fd_t` is a File, an open directory a Dir; where C gives -1 and errno, they raise OSError.
"""


def gfapi_page(written: str) -> str:
    """Return the page; `written` says where it comes from."""
    names = [name for name in sorted(exceptions.__all__)]
    kinds = [f"- `{name}`: {_sentence(getattr(exceptions, name))}" for name in names]
    lines = [_INTRO.replace("@WRITTEN@", written).replace("@EXCEPTIONS@", "\n".join(_wrapped(kinds)))]
    for name in gfapi.__all__:
        thing = getattr(gfapi, name)
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            continue
        lines += [f"## {name}", ""]
        if not inspect.isclass(thing):
            lines += [*_entry(name, thing), ""]
            continue
        lines += [*_class(name, thing), ""]
    lines += [_GLFS]
    for name, function in sorted(vars(glfs).items()):
        if name.startswith("glfs_"):
            lines += _entry(name, function)
    return "\n".join(lines) + "\n"


def _class(name: str, cls: type[Any]) -> list[str]:
    twin = getattr(gfapi, name.removeprefix("Async")) if name.startswith("Async") else None
    lines = _about(cls)
    members = list(_members(cls))
    if twin is not None:
        plain = [f"`{n}`" for n, m in members if callable(m) and not inspect.iscoroutinefunction(m)]
        text = f"The methods are {twin.__name__}'s, and coroutines"
        text += f", except {', '.join(plain)}." if plain else "."
        return [*lines, "", *_wrap(text)]
    if members:
        lines += ["", "Methods and properties:", ""]
    for member, value in members:
        lines += _entry(member, value, cls)
    return lines


def _members(cls: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a class of ours offers, but not what it has from elsewhere."""
    for name in sorted(dir(cls)):
        value = inspect.getattr_static(cls, name)
        if isinstance(value, (staticmethod, classmethod)):
            value = getattr(cls, name)
        owner = next(kind for kind in cls.__mro__ if name in vars(kind))
        if name.startswith("_") or not owner.__module__.startswith("glustx.") or isinstance(value, enum.EnumMeta):
            continue
        if isinstance(value, property) or (callable(value) and value.__doc__):
            yield name, value


def _entry(name: str, value: Any, cls: type[Any] | None = None) -> list[str]:
    if isinstance(value, property):
        return _wrapped([f"- `{name}`: {_sentence(value)}"])
    other = getattr(value, "__name__", name)
    if cls is not None and other != name and hasattr(cls, other):
        return [f"- `{name}`: as `{other}`."]
    head = f"- `{name}{_signature(value, cls is not None)}`: {_sentence(value)}"
    found = re.search(r"^Raises:\n((?:    .*\n?)+)", inspect.getdoc(value) or "", re.MULTILINE)
    errors = " ".join(found[1].split()) if found else ""
    return _wrapped([head + (f" Raises {errors}" if errors else "")])


def _signature(value: Any, method: bool) -> str:
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())
    if method and parameters and parameters[0].name in ("self", "volume"):
        parameters = parameters[1:]
    elif parameters and parameters[0].name == "self":  # a method of File that stands for a function
        parameters[0] = parameters[0].replace(name="fd")
    shown = [p.replace(annotation=p.empty, default=_default(p)) for p in parameters]
    text = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    returned = signature.return_annotation
    if returned in (signature.empty, "None", "Any", None):
        return text
    return f"{text} -> {returned if isinstance(returned, str) else returned.__name__}"


class _Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    if parameter.name in ("mode", "umask") and isinstance(value, int) and value:
        return _Shown(oct(value))
    return value


def _about(cls: type[Any]) -> list[str]:
    """Return a class's docstring, its sections as lists."""
    lines: list[str] = []
    for part in (inspect.getdoc(cls) or "").split("\n\n"):
        head, _, rest = part.partition("\n")
        if head in ("Args:", "Attributes:", "Raises:"):
            items = re.findall(r"^    (\S.*(?:\n     +.*)*)", rest, re.MULTILINE)
            texts = [" ".join(item.split()) for item in items]
            lines += [f"{head}", "", *_wrapped([f"- `{a}`: {b}" for a, _, b in (t.partition(": ") for t in texts)])]
        else:
            lines += _wrap(" ".join(part.split()))
        lines.append("")
    return lines[:-1]


def _sentence(thing: Any) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return text if text.endswith(".") else text + "."


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _wrapped(items: list[str]) -> list[str]:
    lines: list[str] = []
    for item in items:
        lines += textwrap.wrap(item, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return lines
