"""Ferries over a private directory, and Python processes beside the test's own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rollferry

Python = Callable[..., str]


@pytest.fixture
def ferry(shm_directory: Path) -> Iterator[rollferry.Ferry]:
    """A Ferry of a `shm://` engine of its own."""
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        yield ferry


@pytest.fixture
def python() -> Python:
    """A function that runs code in a new process, which must end well and silently, and gives what it printed."""

    def run(code: str, *arguments: object) -> str:
        command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A function that starts code in a new process, waits until it has printed a line, and leaves it running."""
    children = []

    def run(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def stored(shm_directory: Path) -> Callable[[str], dict[str, int]]:
    """A function that gives name and inode of each file in a folder of the engine's directory."""

    def files(folder: str) -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(shm_directory / folder)}

    return files


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 8 MB."""
    root = tmp_path / "small"
    root.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", root], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {done.stderr.strip()}")
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)
