"""Trees: copy, move and remove them, whatever single files say on the way."""

from __future__ import annotations

import errno
import stat as _stat
import threading
from collections.abc import Callable, Iterator, Sequence

import msgspec

from glustx.fs.copying import CopyOptions, FileCopier, give_owner
from glustx.fs.newfile import NO_LINKS, Exists, temporary_name
from glustx.fs.parallel import for_each
from glustx.fs.sides import Place, Stat, same_volume
from glustx.fs.steps import StepError, refused, step
from glustx.fs.task import Report, Task
from glustx.progress import Progress
from glustx.values import ROOT_GFID, gfid_text

_LARGE = 64 << 20
_ROOT = gfid_text(ROOT_GFID)


def destinations(sources: Sequence[Place], target: Place) -> list[tuple[Place, Place]]:
    """Return where each source goes: into `target` when it is a directory, else there is one source and it is the name.

    A source that ends in no name (a volume's root, `.`) means its contents. Raises StepError ENOTDIR.
    """
    with step(target, "lookup"):
        into = target.side.isdir(target.path)
    if not into and (len(sources) > 1 or (target.path.endswith("/") and not sources[0].path.endswith("/"))):
        raise refused(target, "lookup", errno.ENOTDIR, "not a directory")
    return [(source, target.child(source.leaf) if into and source.leaf else target) for source in sources]


def copy(
    sources: Sequence[Place], target: Place, options: CopyOptions, progress: Progress, task: Task | None = None
) -> Report:
    """Copy files, and trees with `options.recursive`; what fails is in the report, and all else is copied.

    Raises:
        StepError: the volume is lost, or `target` is no directory where it must be one.
    """
    task = task or Task("cp")
    copier = _TreeCopier(options, progress, task)
    copier.run(destinations(sources, target))
    return task.close(copier.files.moved)


def move(
    sources: Sequence[Place], target: Place, options: CopyOptions, progress: Progress, task: Task | None = None
) -> Report:
    """Move names within a volume; between sides, copy and then remove what was copied, and nothing else.

    Raises:
        StepError: the volume is lost, or `target` is no directory where it must be one.
    """
    task = task or Task("mv")
    options = msgspec.structs.replace(options, recursive=True, preserve=True, fsync=True)
    copier = _TreeCopier(options, progress, task)
    for source, dst in destinations(sources, target):
        if not same_volume(source, dst):
            copier.run([(source, dst)])
            copier.remove_sources()
            continue
        try:
            _rename(source, dst, options.clobber, task)
        except StepError as error:
            task.failed(error)
    return task.close(copier.files.moved)


def _rename(src: Place, dst: Place, clobber: bool, task: Task) -> None:
    with step(src, "lookup"):
        there = src.side.lstat(src.path)
    with step(dst, "lookup"):
        try:
            old = dst.side.lstat(dst.path)
        except FileNotFoundError:
            old = None
    if old is not None and not clobber:
        task.count(skipped=1)
        return
    if old is not None and old.gfid == there.gfid:
        raise refused(dst, "rename", errno.EINVAL, "the two names are one file")
    folder = _stat.S_ISDIR(there.st_mode)
    with step(dst, "rename"):
        if clobber or folder or not _link_over(src, dst, task):
            src.side.rename(src.path, dst.path)
    task.count(directories=folder, links=_stat.S_ISLNK(there.st_mode), files=_stat.S_ISREG(there.st_mode))


def _link_over(src: Place, dst: Place, task: Task) -> bool:
    """Move a name where nobody may have made another meanwhile; False where there are no links."""
    try:
        src.side.link(src.path, dst.path)
    except OSError as error:
        if error.errno in NO_LINKS:
            return False
        raise
    src.side.unlink(src.path)
    return True


def remove(places: Sequence[Place], *, recursive: bool, force: bool, task: Task | None = None) -> Report:
    """Remove files, and trees when `recursive`; symbolic links are removed, not followed.

    Args:
        force: what is not there is no failure.

    Raises:
        StepError: the volume is lost.
    """
    task = task or Task("rm")
    for place in places:
        try:
            with step(place, "lookup"):
                there = place.side.lstat(place.path)
            if not _stat.S_ISDIR(there.st_mode):
                with step(place, "unlink"):
                    place.side.unlink(place.path)
                task.count(**_kind(there))
            elif not recursive:
                raise refused(place, "unlink", errno.EISDIR, "a directory; -r removes it and all that is in it")
            else:
                _remove_tree(place, task)
        except StepError as error:
            if not (force and error.errno == errno.ENOENT):
                task.failed(error)
    return task.close()


def _remove_tree(top: Place, task: Task) -> None:
    todo: list[tuple[Place, bool]] = [(top, False)]
    while todo:
        folder, emptied = todo.pop()
        try:
            if emptied:
                with step(folder, "rmdir"):
                    folder.side.rmdir(folder.path)
                task.count(directories=1)
                continue
            todo.append((folder, True))
            for place, there in entries(folder):
                if _stat.S_ISDIR(there.st_mode):
                    todo.append((place, False))
                    continue
                try:
                    with step(place, "unlink"):
                        place.side.unlink(place.path)
                    task.count(**_kind(there))
                except StepError as error:
                    task.failed(error)
        except StepError as error:
            task.failed(error)


def _kind(there: Stat) -> dict[str, int]:
    return {"links": 1} if _stat.S_ISLNK(there.st_mode) else {"files": 1}


def entries(folder: Place) -> list[tuple[Place, Stat]]:
    """Return what is in a directory, with attributes, by name; each name once.

    A server that listed one twice, as a link and as a file, would have the file written to where the link leads.
    """
    with step(folder, "readdir"), folder.side.scandir(folder.path) as found:
        rows = {entry.name: (folder.child(entry.name), entry.stat(follow_symlinks=False)) for entry in found}
    return sorted(rows.values(), key=lambda row: row[0].path)


class _TreeCopier:
    """Copies trees: directories and links as they are met, small files side by side, large ones part by part."""

    def __init__(self, options: CopyOptions, progress: Progress, task: Task) -> None:
        self.options = options
        self.progress = progress
        self.task = task
        self.stop = threading.Event()
        self.files = FileCopier(options, progress, self.stop)
        self._large: list[tuple[Place, Place]] = []
        self._folders: list[tuple[Place, Place, Stat]] = []
        self._done: list[tuple[Place, bool]] = []

    def run(self, pairs: Sequence[tuple[Place, Place]]) -> None:
        """Copy each source to its destination."""
        self.stop.clear()
        self.progress.phase("copying")
        for src, dst in pairs:
            self._large.clear()
            self._folders.clear()
            for_each(lambda pair: self._file(*pair, 1), self._walk(src, dst), self.options.jobs, self.stop)
            self.stop.clear()  # for_each sets it at its end
            for pair in self._large:
                self._file(*pair, self.options.jobs)
            # Deepest first: what is made inside changes a directory's times, and a mode may forbid to make it.
            for each in reversed(self._folders):
                self._attempt(self._finish_folder, *each)

    def remove_sources(self) -> None:
        """Remove what was copied since the last time; a directory that got something new meanwhile stays."""
        for place, folder in reversed(self._done):
            try:
                with step(place, "rmdir" if folder else "unlink"):
                    (place.side.rmdir if folder else place.side.unlink)(place.path)
            except StepError as error:
                self.task.failed(error)
        self._done.clear()

    def _attempt(self, work: Callable[..., object], *args: object) -> bool:
        try:
            work(*args)
        except StepError as error:
            if isinstance(error.__cause__, Exists):
                self.task.count(skipped=1)  # made by somebody else meanwhile
            else:
                self.task.failed(error)
            return False
        return True

    def _walk(self, top: Place, target: Place) -> Iterator[tuple[Place, Place]]:
        """Make directories and links, and yield the small files."""
        try:
            with step(top, "lookup"):
                there = top.side.lstat(top.path) if self.options.recursive else top.side.stat(top.path)
            if _stat.S_ISDIR(there.st_mode):
                if not self.options.recursive:
                    raise refused(top, "read", errno.EISDIR, "a directory; -r copies it and all that is in it")
                _refuse_own_inside(top, target)
                _refuse_itself(top, target)
        except StepError as error:
            self.task.failed(error)
            return
        todo = [(top, target, there)]
        made = ""
        while todo:
            src, dst, there = todo.pop()
            if _stat.S_ISREG(there.st_mode):
                self.progress.grow(there.st_size)
                if there.st_size >= _LARGE:
                    self._large.append((src, dst))
                else:
                    yield src, dst
                continue
            try:
                if _stat.S_ISDIR(there.st_mode):
                    if made and there.gfid == made:
                        # One volume by two names: the copy is met on the way.
                        raise refused(dst, "mkdir", errno.EINVAL, f"inside {top.name}, which is being copied")
                    self._folder(src, dst, there)
                    if dst is target and not (src.local or dst.local):
                        with step(dst, "stat"):
                            made = dst.side.stat(dst.path).gfid
                    inside = [(place, dst.child(place.leaf), stat) for place, stat in entries(src)]
                    todo.extend(reversed(inside))
                elif _stat.S_ISLNK(there.st_mode):
                    self._link(src, dst, there)
                else:
                    raise refused(src, "copy", errno.EOPNOTSUPP, "neither file, directory nor symbolic link")
            except StepError as error:
                self.task.failed(error)

    def _folder(self, src: Place, dst: Place, there: Stat) -> None:
        made = True
        with step(dst, "mkdir"):
            try:
                # Open to its owner until all is in it.
                dst.side.mkdir(dst.path, there.st_mode & 0o777 | 0o700)
            except FileExistsError:
                made = False
                if not _stat.S_ISDIR(dst.side.lstat(dst.path).st_mode):  # nor through a link, as GNU cp
                    raise
        self.task.count(directories=1)
        self._done.append((src, True))
        if made or self.options.preserve:
            self._folders.append((src, dst, there))

    def _finish_folder(self, src: Place, dst: Place, there: Stat) -> None:
        mode = _stat.S_IMODE(there.st_mode)
        if not self.options.preserve:
            if mode | 0o700 != mode:
                with step(dst, "chmod"):
                    dst.side.chmod(dst.path, mode & 0o777 & ~self.options.umask)
            return
        with step(dst, "chown"):
            give_owner(_ByPath(dst), there)
        with step(dst, "chmod"):
            dst.side.chmod(dst.path, mode)
        with step(dst, "utime"):
            dst.side.utime(dst.path, ns=(there.st_atime_ns, there.st_mtime_ns))

    def _link(self, src: Place, dst: Place, there: Stat) -> None:
        with step(src, "readlink"):
            target = src.side.readlink(src.path)
        with step(dst, "symlink"):
            try:
                dst.side.symlink(target, dst.path)
            except FileExistsError:
                if not self.options.clobber:
                    self.task.count(skipped=1)
                    return
                if dst.side.isdir(dst.path) and not _stat.S_ISLNK(dst.side.lstat(dst.path).st_mode):
                    raise
                name = temporary_name(dst.path)
                dst.side.symlink(target, name)
                dst.side.rename(name, dst.path)
        if self.options.preserve:
            with step(dst, "utime"):
                dst.side.utime(dst.path, ns=(there.st_atime_ns, there.st_mtime_ns), follow_symlinks=False)
        self.task.count(links=1)
        self._done.append((src, False))

    def _file(self, src: Place, dst: Place, jobs: int) -> None:
        if not self.options.clobber and dst.side.lexists(dst.path):
            self.task.count(skipped=1)
            return
        if self._attempt(self._one, src, dst, jobs):
            self.task.count(files=1)
            self._done.append((src, False))

    def _one(self, src: Place, dst: Place, jobs: int) -> None:
        _refuse_itself(src, dst)
        self.files.copy(src, dst, jobs=jobs, follow=not self.options.recursive)


class _ByPath:
    def __init__(self, place: Place) -> None:
        self._place = place

    def chown(self, uid: int, gid: int) -> None:
        self._place.side.chown(self._place.path, uid, gid)


def _refuse_itself(src: Place, dst: Place) -> None:
    """Refuse to copy a file onto itself. A gfid tells that also of a volume that is known by two names."""
    if src.local or dst.local:
        return
    try:
        one, other = src.side.stat(src.path).gfid, dst.side.stat(dst.path).gfid
    except OSError:
        return  # nothing is there, or the copy will tell
    if one == other and (one != _ROOT or same_volume(src, dst)):
        raise refused(dst, "create", errno.EINVAL, f"the same file as {src.name}")


def _refuse_own_inside(src: Place, dst: Place) -> None:
    if not same_volume(src, dst):
        return
    inner, outer = "/" + dst.path.strip("/") + "/", "/" + src.path.strip("/") + "/"
    if inner.startswith(outer.replace("//", "/")):
        raise refused(dst, "mkdir", errno.EINVAL, f"inside {src.name}, which is to be copied")
