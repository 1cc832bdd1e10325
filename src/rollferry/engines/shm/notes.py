"""Notes beside bundles: a file of lines for each bundle that has some."""

import os
from contextlib import suppress

from rollferry.engines.shm.directory import Directory

__all__ = ["add", "forget", "read", "sweep"]


def add(directory: Directory, key: str, text: str) -> bool:
    """Write a line; False where the bundle isn't there."""
    path = directory.notes_path(key)
    # One write to a file that is open for appending: lines of several processes don't mix.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)
    if os.path.lexists(directory.live_path(key)):
        return True
    forget(directory, key)  # who removed the bundle may have looked before the note was there
    return False


def read(directory: Directory, key: str) -> set[str]:
    """Give the whole lines."""
    try:
        with open(directory.notes_path(key), encoding="ascii", errors="replace") as file:
            return {line[:-1] for line in file if line.endswith("\n")}
    except FileNotFoundError:
        return set()


def forget(directory: Directory, key: str) -> None:
    """Delete all lines."""
    with suppress(FileNotFoundError):
        os.unlink(directory.notes_path(key))


def sweep(directory: Directory) -> None:
    """Delete the lines about bundles that are gone: whoever removed one, or wrote one too late, may have died over it."""
    for key in directory.noted():
        if not os.path.lexists(directory.live_path(key)):
            forget(directory, key)
