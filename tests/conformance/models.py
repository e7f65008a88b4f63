"""Random fops against a model: the bytes of one file against a bytearray, the names of a tree against a dictionary."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from glustx import fops
from glustx.fops import Discard, Fallocate, Ftruncate, Read, Seek, Write, Zerofill
from glustx.values import ROOT_GFID, SEEK_DATA, SEEK_HOLE, Loc
from tests.conformance.brick import Brick, errno_name

LIMIT = 300_000
# Around pages, blocks and extents, where mistakes live.
PLACES = st.one_of(
    st.integers(0, LIMIT),
    st.sampled_from([0, 1, 511, 512, 4095, 4096, 4097, 8192, 65535, 65536, 65537, 131072]),
)
SIZES = st.one_of(st.integers(1, 70_000), st.sampled_from([1, 512, 4095, 4096, 4097, 8192, 65536]))


class BytesModel(RuleBasedStateMachine):
    """One file and the bytearray that it must equal. Subclasses give `brick`."""

    brick: Brick

    def __init__(self) -> None:
        super().__init__()
        self.file = self.brick.make(b"model-%s" % id(self).to_bytes(8, "big").hex().encode())
        self.model = bytearray()

    def teardown(self) -> None:
        """Remove the file."""
        self.brick(fops.Unlink(loc=self.file.loc))
        self.brick(fops.Release(fd=self.file.fd))

    def _grow(self, size: int) -> None:
        self.model.extend(bytes(max(0, size - len(self.model))))

    def _sizes(self, reply: Any, before: int) -> None:
        assert (reply.pre.size, reply.post.size) == (before, len(self.model))

    @rule(offset=PLACES, size=SIZES, byte=st.integers(1, 255))
    def write(self, offset: int, size: int, byte: int) -> None:
        before = len(self.model)
        reply = self.brick(Write(fd=self.file.fd, offset=offset, data=bytes([byte]) * size))
        self._grow(offset + size)
        self.model[offset : offset + size] = bytes([byte]) * size
        assert reply.count == size
        self._sizes(reply, before)

    @rule(offset=PLACES, size=SIZES)
    def zerofill(self, offset: int, size: int) -> None:
        before = len(self.model)
        reply = self.brick(Zerofill(fd=self.file.fd, offset=offset, size=size))
        self._grow(offset + size)
        self.model[offset : offset + size] = bytes(size)
        self._sizes(reply, before)

    @rule(offset=PLACES, size=SIZES)
    def discard(self, offset: int, size: int) -> None:
        reply = self.brick(Discard(fd=self.file.fd, offset=offset, size=size))
        end = min(len(self.model), offset + size)
        if offset < end:
            self.model[offset:end] = bytes(end - offset)
        self._sizes(reply, len(self.model))

    @rule(offset=PLACES, size=SIZES, keep=st.booleans())
    def fallocate(self, offset: int, size: int, keep: bool) -> None:
        before = len(self.model)
        reply = self.brick(Fallocate(fd=self.file.fd, offset=offset, size=size, keep_size=int(keep)))
        if not keep:
            self._grow(offset + size)
        self._sizes(reply, before)

    @rule(size=PLACES)
    def truncate(self, size: int) -> None:
        before = len(self.model)
        reply = self.brick(Ftruncate(fd=self.file.fd, offset=size))
        del self.model[size:]
        self._grow(size)
        self._sizes(reply, before)

    @rule(offset=PLACES, size=SIZES, to=PLACES)
    def copy(self, offset: int, size: int, to: int) -> None:
        before = len(self.model)
        count = max(0, min(size, before - offset))
        code, reply = self.brick.outcome(
            fops.CopyFileRange(fd_in=self.file.fd, fd_out=self.file.fd, offset_in=offset, offset_out=to, size=size)
        )
        if code:
            assert code == errno.EINVAL and abs(offset - to) < size
            return
        assert reply.count <= count and (reply.count or not count)
        if reply.count:
            self._grow(to + reply.count)
            self.model[to : to + reply.count] = self.model[offset : offset + reply.count]
        self._sizes(reply, before)

    @rule(offset=PLACES, size=SIZES)
    def read(self, offset: int, size: int) -> None:
        reply = self.brick(Read(fd=self.file.fd, offset=offset, size=size))
        assert bytes(reply.data) == self.model[offset : offset + size]
        if offset + size < len(self.model):
            assert not reply.eof

    @rule(offset=PLACES, hole=st.booleans())
    def seek(self, offset: int, hole: bool) -> None:
        """What is skipped as a hole reads as zeroes; what is skipped as data may be anything."""
        what = SEEK_HOLE if hole else SEEK_DATA
        code, reply = self.brick.outcome(Seek(fd=self.file.fd, offset=offset, what=what))
        if code:
            assert code == errno.ENXIO
            assert offset >= len(self.model) or (not hole and not any(self.model[offset:]))
            return
        found = reply.offset
        note(f"found {found}")
        assert offset <= found <= len(self.model) and offset < len(self.model)
        if not hole:
            assert found < len(self.model) and not any(self.model[offset:found])

    @invariant()
    def same_bytes(self) -> None:
        assert self.brick.stat(self.file.gfid).size == len(self.model)
        assert self.brick.read(self.file.fd, 0, len(self.model) + 10) == self.model


# What a folder in the way of a rename may be called (rename(2)); xfs says EEXIST.
NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
NAMES = st.sampled_from([b"a", b"b", b"c", b"d", b"\xff\xfe", b"x" * 255])


class NamesModel(RuleBasedStateMachine):
    """A tree and the dictionary that it must equal: path of a folder to {name: gfid}. Subclasses give `brick`."""

    brick: Brick
    folders = Bundle("folders")

    def __init__(self) -> None:
        super().__init__()
        self.top = self.brick.mkdir(b"names-%s" % id(self).to_bytes(8, "big").hex().encode())
        self.entries: dict[bytes, dict[bytes, bytes]] = {self.top.gfid: {}}
        self.links: dict[bytes, int] = {}
        self.above: dict[bytes, bytes] = {}

    def teardown(self) -> None:
        """Remove the tree."""
        self.brick(fops.Rmdir(loc=Loc(pargfid=ROOT_GFID, name=self.top.name), xflags=1))

    @rule(target=folders)
    def the_top(self) -> bytes:
        return self.top.gfid

    def _alive(self, folder: bytes) -> bool:
        return folder in self.entries

    def _expect(self, request: fops.Fop, *expected: int) -> Any:
        code, reply = self.brick.outcome(request)
        either = self.brick.gone if expected == (errno.ESTALE,) else expected
        assert code in either, f"{request.name}: {errno_name(code)}, not {' or '.join(map(errno_name, either))}"
        return reply

    @rule(target=folders, folder=folders, name=NAMES)
    def mkdir(self, folder: bytes, name: bytes) -> bytes:
        xdata = self.brick.fresh()
        request = fops.Mkdir(loc=Loc(pargfid=folder, name=name), mode=0o755, xdata=xdata)
        if not self._alive(folder):
            self._expect(request, errno.ESTALE)
            return folder
        if name in self.entries[folder]:
            self._expect(request, errno.EEXIST)
            return folder
        gfid: bytes = self._expect(request, 0).stat.gfid
        self.entries[folder][name] = gfid
        self.entries[gfid] = {}
        self.above[gfid] = folder
        return gfid

    @rule(folder=folders, name=NAMES)
    def mknod(self, folder: bytes, name: bytes) -> None:
        request = fops.Mknod(loc=Loc(pargfid=folder, name=name), mode=0o100644, xdata=self.brick.fresh())
        if not self._alive(folder):
            self._expect(request, errno.ESTALE)
        elif name in self.entries[folder]:
            self._expect(request, errno.EEXIST)
        else:
            gfid = self._expect(request, 0).stat.gfid
            self.entries[folder][name] = gfid
            self.links[gfid] = 1

    @rule(folder=folders, name=NAMES, new_folder=folders, new_name=NAMES)
    def link(self, folder: bytes, name: bytes, new_folder: bytes, new_name: bytes) -> None:
        gfid = self.entries.get(folder, {}).get(name)
        if gfid is None or gfid not in self.links or not self._alive(new_folder):
            return
        request = fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=new_folder, name=new_name))
        if new_name in self.entries[new_folder]:
            self._expect(request, errno.EEXIST)
        else:
            self.links[gfid] += 1
            assert self._expect(request, 0).stat.nlink == self.links[gfid]
            self.entries[new_folder][new_name] = gfid

    @rule(folder=folders, name=NAMES)
    def unlink(self, folder: bytes, name: bytes) -> None:
        request = fops.Unlink(loc=Loc(pargfid=folder, name=name))
        if not self._alive(folder):
            self._expect(request, errno.ESTALE)
            return
        gfid = self.entries[folder].get(name)
        if gfid is None:
            self._expect(request, errno.ENOENT)
        elif gfid not in self.links:
            self._expect(request, errno.EISDIR)
        else:
            self._expect(request, 0)
            del self.entries[folder][name]
            self._unlinked(gfid)

    def _unlinked(self, gfid: bytes) -> None:
        self.links[gfid] -= 1
        if not self.links[gfid]:
            del self.links[gfid]
            self._expect(fops.Stat(loc=Loc(gfid=gfid)), errno.ESTALE)

    @rule(folder=folders, name=NAMES)
    def rmdir(self, folder: bytes, name: bytes) -> None:
        if not self._alive(folder):
            return
        request = fops.Rmdir(loc=Loc(pargfid=folder, name=name))
        gfid = self.entries[folder].get(name)
        if gfid is None:
            self._expect(request, errno.ENOENT)
        elif gfid in self.links:
            self._expect(request, errno.ENOTDIR)
        elif self.entries[gfid]:
            self._expect(request, errno.ENOTEMPTY)
        else:
            self._expect(request, 0)
            del self.entries[folder][name], self.entries[gfid], self.above[gfid]

    @rule(folder=folders, name=NAMES, new_folder=folders, new_name=NAMES)
    def rename(self, folder: bytes, name: bytes, new_folder: bytes, new_name: bytes) -> None:
        if not self._alive(folder) or not self._alive(new_folder):
            return
        if (folder, name) == (new_folder, new_name) and not self.brick.renames_to_itself:
            return
        request = fops.Rename(oldloc=Loc(pargfid=folder, name=name), newloc=Loc(pargfid=new_folder, name=new_name))
        gfid, victim = self.entries[folder].get(name), self.entries[new_folder].get(new_name)
        if gfid is None:
            self._expect(request, errno.ENOENT)
        elif gfid in self.entries and self._inside(new_folder, gfid):
            # A file system may look at what stands in the way first.
            way = (errno.ENOTDIR,) if victim in self.links else NOT_EMPTY if victim is not None else ()
            assert self.brick.outcome(request)[0] in (errno.EINVAL, *way)
        elif victim == gfid:
            self._expect(request, 0)
        elif victim is not None and victim in self.entries and self._inside(folder, victim):
            # Above what is to move; a file system may look at the kinds first.
            assert self.brick.outcome(request)[0] in (*NOT_EMPTY, errno.EISDIR)
        elif victim is not None and victim in self.entries and gfid not in self.entries:
            self._expect(request, errno.EISDIR)
        elif victim is not None and victim not in self.entries and gfid in self.entries:
            self._expect(request, errno.ENOTDIR)
        elif victim is not None and self.entries.get(victim):
            self._expect(request, *NOT_EMPTY)
        else:
            assert self._expect(request, 0).stat.gfid == gfid
            del self.entries[folder][name]
            self.entries[new_folder][new_name] = gfid
            if gfid in self.entries:
                self.above[gfid] = new_folder
            if victim in self.entries:
                del self.entries[victim], self.above[victim]
            elif victim is not None:
                self._unlinked(victim)

    def _inside(self, folder: bytes, top: bytes) -> bool:
        at: bytes | None = folder
        while at is not None:
            if at == top:
                return True
            at = self.above.get(at)
        return False

    @rule(folder=folders)
    def listing(self, folder: bytes) -> None:
        if not self._alive(folder):
            self._expect(fops.Lookup(loc=Loc(gfid=folder)), errno.ENOENT)
            return
        found = {entry.name: entry.stat.gfid for entry in self.brick.entries(folder, size=500)}
        assert found.pop(b".") == folder
        found.pop(b"..")
        assert found == self.entries[folder]
        folders = sum(gfid in self.entries for gfid in found.values())
        assert self.brick.stat(folder).nlink == self.brick.folder_links(folders)

    @rule(folder=folders, name=NAMES)
    def lookup(self, folder: bytes, name: bytes) -> None:
        request = fops.Lookup(loc=Loc(pargfid=folder, name=name))
        if not self._alive(folder):
            self._expect(request, errno.ESTALE)
        elif name not in self.entries[folder]:
            self._expect(request, errno.ENOENT)
        else:
            gfid = self.entries[folder][name]
            stat = self._expect(request, 0).stat
            assert stat.gfid == gfid
            if gfid in self.links:
                assert stat.nlink == self.links[gfid]
