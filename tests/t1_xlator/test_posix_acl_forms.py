"""POSIX ACLs as values: bytes, text, and what they grant, against libacl and the kernel."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import tempfile
from pathlib import Path

import pytest

from glustx.values import Caller
from glustx.xlators.system import posix_acl_forms as forms
from tests.kit import need_peer

NONE = 0xFFFFFFFF
RICH = ((1, 6, NONE), (2, 4, 1000), (2, 7, 2000), (4, 4, NONE), (8, 6, 50), (16, 6, NONE), (32, 0, NONE))


def test_bytes_both_ways() -> None:
    assert forms.parse(forms.pack(RICH)) == RICH
    assert forms.pack(forms.of_mode(0o640)).hex() == (
        "02000000" "01000600ffffffff" "04000400ffffffff" "20000000ffffffff"
    )  # fmt: skip


@pytest.mark.parametrize(
    "raw", [b"", b"\2\0\0", b"\3\0\0\0", b"\2\0\0\0" + b"x", b"\2\0\0\0\3\0\0\0\0\0\0\0", b"\2\0\0\0\1\0\10\0\0\0\0\0"]
)
def test_bytes_that_are_no_acl(raw: bytes) -> None:
    with pytest.raises(ValueError, match="ACL"):
        forms.parse(raw)


def test_text_both_ways() -> None:
    text = b"u::rw-,u:1000:r--,u:2000:rwx,g::r--,g:50:rw-,m::rw-,o::---"
    assert forms.to_text(RICH) == text
    assert forms.from_text(text) == RICH
    assert forms.from_text(b"user::rw\nuser:root:r\ngroup::\nmask:r\nother:x\0") == (
        (1, 6, NONE), (2, 4, 0), (4, 0, NONE), (16, 4, NONE), (32, 1, NONE)
    )  # fmt: skip
    assert forms.from_text(b"") == ()


@pytest.mark.parametrize(
    "text", [b"u:rw", b"x::r", b"m:5:r", b"u::rwz", b"u::rwxr", b"u:nobody-like-this:r", b"u:-1:r"]
)
def test_text_that_is_no_acl(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"ACL|nobody"):
        forms.from_text(text)


def test_text_as_getfacl_and_setfacl_have_it(tmp_path: Path) -> None:
    need_peer("setfacl")
    file = tmp_path / "f"
    file.touch(0o640)
    subprocess.run(["setfacl", "-m", "u:1000:r,u:2000:rwx,g:50:rw,m::rw", file], check=True)
    acl = forms.parse(os.getxattr(file, "system.posix_acl_access"))
    shown = subprocess.run(["getfacl", "-cnE", file], capture_output=True, text=True, check=True).stdout.split()
    long = {"u": "user", "g": "group", "m": "mask", "o": "other"}
    assert [long[word[0]] + word[1:] for word in forms.to_text(acl).decode().split(",")] == shown
    os.setxattr(file, "system.posix_acl_access", forms.pack(forms.from_text(forms.to_text(acl))))
    assert forms.parse(os.getxattr(file, "system.posix_acl_access")) == acl


@pytest.mark.parametrize("want", range(8))
def test_mode_bits(want: int) -> None:
    for mode in itertools.product(range(8), repeat=3):
        bits = mode[0] << 6 | mode[1] << 3 | mode[2]
        for caller, of in ((Caller(uid=7, gid=9), 0), (Caller(uid=5, gid=8), 1), (Caller(uid=5, gid=9, groups=(8,)), 1), (Caller(uid=5, gid=9), 2)):  # fmt: skip  # noqa: E501
            assert forms.permits(7, 8, bits, (), caller, want) is (mode[of] & want == want)


def test_what_an_acl_grants_is_what_the_kernel_grants(seeded: random.Random) -> None:
    """Random ACLs, users and groups; the kernel is asked by access(2) as the very user."""
    need_peer("root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        _compare(Path(folder), seeded)


def _compare(folder: Path, rng: random.Random) -> None:
    cases = []
    for number in range(60):
        file = folder / str(number)
        file.touch()
        os.chown(file, rng.choice((1000, 1001)), rng.choice((50, 51)))
        entries = {(1, NONE), (4, NONE), (16, NONE), (32, NONE)}
        entries |= {(2, rng.choice((1000, 1001, 1002))) for _ in range(rng.randrange(3))}
        entries |= {(8, rng.choice((50, 51, 52))) for _ in range(rng.randrange(3))}
        # Linux does not look at the ACL when its mask is empty; stock, like the standard, then denies.
        acl = tuple((tag, rng.randrange(tag == 16, 8), id_) for tag, id_ in sorted(entries))
        os.setxattr(file, "system.posix_acl_access", forms.pack(acl))
        st = file.stat()
        for caller in (Caller(uid=rng.choice((1000, 1001, 1002, 1003)), gid=rng.choice((50, 51, 53)), groups=groups)
                       for groups in ((), (51,), (50, 52))):  # fmt: skip
            cases.append((file, st, acl, caller))
    for (file, st, acl, caller), granted in zip(cases, _asked(cases), strict=True):
        ours = "".join(str(int(forms.permits(st.st_uid, st.st_gid, st.st_mode, acl, caller, w))) for w in range(1, 8))
        assert ours == granted, (file, oct(st.st_mode), acl, caller)


def _asked(cases: list[tuple[Path, os.stat_result, forms.Acl, Caller]]) -> list[str]:
    """What the kernel says to each, as a digit for each of the seven combinations of R, W and X."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answers = []
            for file, _, _, caller in cases:
                os.setgroups(list(caller.groups))
                os.setresgid(caller.gid, caller.gid, 0)
                os.setresuid(caller.uid, caller.uid, 0)
                answers.append("".join(str(int(os.access(file, want))) for want in range(1, 8)))
                os.setresuid(0, 0, 0)
                os.setresgid(0, 0, 0)
            os.write(writer, "\n".join(answers).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text.split("\n")
