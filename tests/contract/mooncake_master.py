"""A real mooncake_master on free ports, for tests."""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rollferry.bench.keeper import answers, free_port

INSTALL = (
    "to run it: pip install 'rollferry[mooncake]'; apt-get install libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4"
)


def find_master() -> str:
    """The program; skips the test where it or the module is missing."""
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        pytest.skip(f"Mooncake can't be imported ({error}); {INSTALL}")
    beside = Path(sys.executable).with_name("mooncake_master")
    program = str(beside) if beside.exists() else shutil.which("mooncake_master")
    if program is None:
        pytest.skip(f"there is no mooncake_master; {INSTALL}")
    return program


class Master:
    """A started master; use it as a context manager."""

    def __init__(self, port: int | None = None, *flags: str) -> None:
        self.port, self.metrics = port or free_port(), free_port()
        command = [find_master(), "--rpc_address=127.0.0.1", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1"]
        command += [f"--metrics_port={self.metrics}", "--logtostderr=true", "--minloglevel=1", *flags]
        self._log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + 20
        while not all(answers(port) for port in (self.port, self.metrics)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                self._log.seek(0)
                said = self._log.read()[-300:]
                self._log.close()
                leave = pytest.skip if b"shared libraries" in said else pytest.fail
                leave(f"mooncake_master does not start: {said!r}; {INSTALL}")
            time.sleep(0.02)

    def url(self, **options: object) -> str:
        query = "".join(f"&{name}={value}" for name, value in options.items())
        return f"mooncake://127.0.0.1:{self.port}?metrics={self.metrics}{query}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Master":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._log.close()


def child(code: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([source, str(Path(__file__).parents[2])])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    )
