"""What shm:// needs of a machine, checked."""

import os
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from rollferry import _native
from rollferry.checks import Finding, Step, ok, size
from rollferry.engines.accounts import usage_of
from rollferry.engines.base import Usage
from rollferry.engines.registry import EngineURL, Probe
from rollferry.engines.shm.directory import DEFAULT_ROOT, check_named, make_private, root_of
from rollferry.engines.shm.engine import ShmEngine
from rollferry.engines.shm.segment import WRITER_BYTE
from rollferry.errors import EngineFullError, RollferryWarning

__all__ = ["Examination"]

MIN_FREE = 1 << 30
MIN_DESCRIPTORS = 1024
OLD_SECONDS = 24 * 3600
HELD = "left behind"
ANOTHER = "name another directory: shm:///some/directory"
REMOVE = "python -c \"import rollferry; f = rollferry.connect('{}'); [f.remove(id) for id in f.list()]\""


class Examination:
    """The checks of one URL. Whatever they make lies in a directory of its own, gone after each.

    Parameters
    ----------
    url, probe
        The URL, and what puts a batch through an engine.
    """

    def __init__(self, url: EngineURL, probe: Probe) -> None:
        self._url = url
        self._probe = probe

    def steps(self) -> list[Step]:
        """Give the checks."""
        place, private = "directory", "private"
        return [
            Step(place, self.directory, ANOTHER),
            Step(private, self.private, ANOTHER, (place,)),
            Step("in memory", self.in_memory, ANOTHER, (place,)),
            Step("room", self.room, ANOTHER, (place, private)),
            Step("locks", self.locks, ANOTHER, (place, private)),
            Step("unnamed files", self.unnamed_files, "mount /proc", (place, private)),
            Step("descriptors", self.descriptors, f"ulimit -n {MIN_DESCRIPTORS}"),
            Step(HELD, self.held, f"delete the directory, or {ANOTHER}", (place, private)),
            Step("round trip", self.round_trip, ANOTHER, (place, private, "locks", "unnamed files")),
        ]

    @cached_property
    def root(self) -> Path:
        """The directory of the engine, which need not exist."""
        return root_of(self._url.path)

    @cached_property
    def base(self) -> Path:
        """The directory, or what exists of the path to it."""
        return next(path for path in (self.root, *self.root.parents) if os.path.lexists(path))

    @cached_property
    def usage(self) -> Usage:
        """What the engine holds."""
        if not all((self.root / name).is_dir() for name in ("live", "pool", "tmp")):
            return usage_of({}, pooled={}, peaks={}, guaranteed={}, free_nbytes=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RollferryWarning)  # that it is slow is a check of its own
            return ShmEngine(str(self.root), None).usage()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a directory on the same file system for a while; the engine's own may be in use."""
        with tempfile.TemporaryDirectory(prefix="rollferry-doctor-", dir=self.base) as path:
            yield Path(path)

    def directory(self) -> Finding:
        """Whether there is one, or can be."""
        user = os.geteuid()
        if not self.base.is_dir():
            return Finding("fail", f"{self.base} is not a directory")
        if not os.access(self.base, os.W_OK | os.X_OK):
            made = f"mkdir -p -m 700 {self.root} && chown {user} {self.root}"
            return Finding("fail", f"user {user} can't write to {self.base}", f"as root: {made}; or {ANOTHER}")
        return ok(f"{self.root}" if self.base == self.root else f"{self.root} can be made")

    def private(self) -> Finding:
        """Whether other users are kept out; just what `Directory` asks for."""
        if self.base != self.root:
            return ok("only this user will have access")
        folders = [path for name in ("live", "pool", "tmp") if os.path.lexists(path := self.root / name)]
        try:
            (check_named if self._url.path else make_private)(self.root)
            for folder in folders:
                make_private(folder)
        except OSError as error:
            mend = f"chown -R {os.geteuid()} {self.root} && chmod -R go= {self.root}"
            return Finding("fail", str(error), f"{mend}; or {ANOTHER}")
        return ok(f"mode {self.root.stat().st_mode & 0o7777:04o}, owner {self.root.stat().st_uid}")

    def in_memory(self) -> Finding:
        """Whether it is on a tmpfs."""
        if self._memory_backed:
            return ok(f"yes; mounted on {self._mount}")
        advice = f"use shm://, which is in {DEFAULT_ROOT}, or: mount -t tmpfs -o size=16g tmpfs {self.root}"
        return Finding("warn", f"no; {self._mount} may write batches to disk, which is slower", advice)

    def room(self) -> Finding:
        """Whether batches fit. The memory of the pool is free as far as puts are concerned."""
        status = os.statvfs(self.base)
        pooled = self.usage.pooled_nbytes
        free = status.f_bavail * status.f_frsize + pooled
        found = f"{size(free)} of {size(status.f_blocks * status.f_frsize)} free, {size(pooled)} of it pooled"
        return ok(found) if free >= MIN_FREE else Finding("warn", found, self._enlarge())

    def locks(self) -> Finding:
        """Whether the kernel keeps a second writer out."""
        with self.scratch() as folder:
            path = folder / "locked"
            with path.open("wb") as first, path.open("rb+") as second:
                taken = _native.try_lock(first.fileno(), WRITER_BYTE, True)
                if taken and not _native.try_lock(second.fileno(), WRITER_BYTE, True):
                    return ok("locks of open file descriptions work")
        return Finding("fail", "locks of open file descriptions have no effect here")

    def unnamed_files(self) -> Finding:
        """Whether a file can be written first and named later."""
        with self.scratch() as folder:
            try:
                fd = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
            except OSError as error:
                found = f"this file system has none ({error.strerror}), so the next put cleans up after killed writers"
                return Finding("warn", found, f"a tmpfs has them; {ANOTHER}")
            try:
                os.link(f"/proc/self/fd/{fd}", folder / "named", src_dir_fd=fd, follow_symlinks=True)
            finally:
                os.close(fd)
        return ok("files get their names when they are complete")

    def descriptors(self) -> Finding:
        """Whether many processes' worth of files can be open."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        found = f"{soft:,} can be open" if soft != resource.RLIM_INFINITY else "any number can be open"
        few = 0 <= soft < MIN_DESCRIPTORS
        enough = hard == resource.RLIM_INFINITY or hard >= MIN_DESCRIPTORS
        advice = f"ulimit -n {MIN_DESCRIPTORS}" if enough else f"docker run --ulimit nofile={MIN_DESCRIPTORS}"
        return Finding("warn", found, advice) if few else ok(found)

    def held(self) -> Finding:
        """Say what the engine holds, and whether some of it looks forgotten."""
        usage = self.usage
        found = f"{usage.bundles:,} bundles of {size(usage.live_nbytes)}, {size(usage.pooled_nbytes)} pooled"
        seconds = time.time() - self._oldest()
        if seconds < OLD_SECONDS:
            return ok(found)
        advice = f"if nobody needs it: {REMOVE.format(self._url.text)}"
        return Finding("warn", f"{found}; the oldest bundle is {seconds / 3600:,.0f} hours old", advice)

    def round_trip(self) -> Finding:
        """Put a batch through an engine beside this one."""
        with self.scratch() as folder:
            try:
                return self._probe(self._url._replace(path=str(folder)))
            except EngineFullError as error:
                return Finding("fail", str(error), self._enlarge())

    @cached_property
    def _mount(self) -> Path:
        return next(path for path in (self.base, *self.base.parents) if os.path.ismount(path))

    @cached_property
    def _memory_backed(self) -> bool:
        fd = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _native.is_memory_backed(fd)
        finally:
            os.close(fd)

    def _enlarge(self) -> str:
        if not self._memory_backed:
            return f"free space on {self._mount}, or use shm://, which is in {DEFAULT_ROOT}"
        remount = f"mount -o remount,size=16g {self._mount}"
        in_container = "in a container: docker run --shm-size=16g; else: "
        return in_container + remount if str(self._mount) == DEFAULT_ROOT else remount

    def _oldest(self) -> float:
        oldest = time.time()
        if self.usage.bundles:
            with os.scandir(self.root / "live") as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed meanwhile
                        oldest = min(oldest, entry.stat(follow_symlinks=False).st_mtime)
        return oldest
