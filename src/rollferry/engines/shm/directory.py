"""The directory of a shm:// engine: which files lie where, and that they are ours."""

import contextlib
import os
import re
import secrets
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

from rollferry import _native
from rollferry.engines.shm.descriptors import translated
from rollferry.engines.shm.segment import KEY
from rollferry.errors import EngineError, RollferryWarning

__all__ = ["DEFAULT_ROOT", "Directory", "check_named", "make_private", "root_of"]

DEFAULT_ROOT = "/dev/shm"  # noqa: S108  # a private directory is made in it
POOL_NAME = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{32})")  # capacity and inode
TMP_NAME = re.compile(r"[0-9a-f]{32}")


class Directory:
    """Folders on one file system: ``live/``, ``pool/`` and ``tmp/`` for segments; ``notes/``, ``reserved/``, ``guarantees/``, ``peaks/``.

    A segment is named for its inode wherever it is free or being written, so that who knows a segment finds it again
    without listing a folder.

    Parameters
    ----------
    path
        The directory; by default one of this user's own under /dev/shm.
    """

    def __init__(self, path: str) -> None:
        self.root = root = root_of(path)
        self.live, self.pool, self.tmp = root / "live", root / "pool", root / "tmp"
        self.notes, self.reserved = root / "notes", root / "reserved"
        self.guarantees, self.peaks = root / "guarantees", root / "peaks"
        self._live, self._pool, self._tmp = f"{self.live}/", f"{self.pool}/", f"{self.tmp}/"
        with translated(root):
            if path:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                check_named(root)
            else:
                make_private(root)
            for folder in (self.live, self.pool, self.tmp, self.notes, self.reserved, self.guarantees, self.peaks):
                make_private(folder)
            self.in_memory = self._is_in_memory()

    def live_path(self, key: str) -> str:
        """Give the path of a published bundle. `key` comes from a checked reference."""
        if not self.is_key(key):
            raise EngineError(f"{key!r} is no key of a bundle")
        return f"{self._live}{key}"

    def notes_path(self, key: str) -> str:
        """Give the path of what is written down about a bundle."""
        self.live_path(key)
        return f"{self.notes}/{key}"

    def pool_path(self, capacity: int, inode: int) -> str:
        """Give the path of a free segment."""
        return f"{self._pool}{capacity:x}-{inode:032x}"

    def tmp_path(self, inode: int) -> str:
        """Give the path of a segment being written."""
        return f"{self._tmp}{inode:032x}"

    def new_path(self) -> str:
        """Give a path for a segment yet to be made."""
        return f"{self._tmp}{secrets.token_hex(16)}"

    @staticmethod
    def is_key(name: str) -> bool:
        """Whether a name can be that of a published bundle."""
        return KEY.fullmatch(name) is not None

    def live_keys(self) -> Iterator[str]:
        """Give the keys of all published bundles."""
        return (name for name in os.listdir(self.live) if KEY.fullmatch(name))

    def live_sizes(self) -> dict[str, int]:
        """Give the bytes of the segments of all published bundles."""
        found = {}
        for key in self.live_keys():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found[key] = os.stat(self.live_path(key), follow_symlinks=False).st_size
        return found

    def live_names(self) -> set[str]:
        """Give the names of all published bundles and of whatever else lies there, which is faster than to check them."""
        return set(os.listdir(self.live))

    def noted(self) -> Iterator[str]:
        """Give the keys of all bundles, there or gone, about which something is written down."""
        return (name for name in os.listdir(self.notes) if KEY.fullmatch(name))

    def pooled(self) -> list[tuple[int, int]]:
        """Give capacity and inode of each free segment, as their names have them."""
        matches = (POOL_NAME.fullmatch(name) for name in os.listdir(self.pool))
        return [(int(match[1], 16), int(match[2], 16)) for match in matches if match]

    def unfinished(self) -> list[str]:
        """Give the paths of named segments being written."""
        return [self._tmp + name for name in os.listdir(self.tmp) if TMP_NAME.fullmatch(name)]

    def free_nbytes(self) -> int:
        """Give the free bytes of the file system."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize

    def lacks(self, nbytes: int) -> bool:
        """Whether the file system surely has fewer bytes free."""
        status = os.statvfs(self.root)
        return (
            status.f_blocks > 0 and nbytes > status.f_bavail * status.f_frsize
        )  # a tmpfs without a size has no blocks

    def total_nbytes(self) -> int:
        """Give the size of the file system."""
        status = os.statvfs(self.root)
        return status.f_blocks * status.f_frsize

    def _is_in_memory(self) -> bool:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            in_memory = _native.is_memory_backed(fd)
        finally:
            os.close(fd)
        if not in_memory:
            warnings.warn(
                f"{self.root} is not in memory (tmpfs), so batches may be written to disk and will be slower",
                RollferryWarning,
                stacklevel=7,
            )
        return in_memory


def root_of(path: str) -> Path:
    """Give the directory that a URL's path, or an empty one, stands for."""
    if path:
        return Path(path).absolute()
    if Path(DEFAULT_ROOT).is_dir():
        return Path(DEFAULT_ROOT) / f"rollferry-{os.geteuid()}"
    raise EngineError(f"there is no {DEFAULT_ROOT}; name another directory, as in shm:///some/directory")


def check_named(root: Path) -> None:
    """Check that other users can't put folders of theirs in the place of ours."""
    status = os.stat(root)
    mode = status.st_mode
    if status.st_uid not in (0, os.geteuid()) or (mode & 0o022 and not mode & stat.S_ISVTX):
        raise PermissionError(f"{root} can be changed by other users")


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter, or check that it is one."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(f"{folder} is not a directory") from None
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(f"{folder} belongs to, or is open to, other users") from None
