"""What a run was measured on and with, and memory as the kernel counts it."""

from __future__ import annotations

import os
import platform
import re
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import rollferry
from rollferry.bench.arms import ARMS

__all__ = [
    "available_nbytes",
    "describe_machine",
    "describe_packages",
    "peak_nbytes",
    "reset_peak",
    "resident_nbytes",
]


def describe_machine() -> dict[str, Any]:
    """Name processor, cores, memory, kernel and Python."""
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "cpu": found[1].strip() if found else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "available_nbytes": available_nbytes(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def describe_packages(arms: Iterable[str]) -> dict[str, str]:
    """Give the versions of what the arms measure."""
    own = {"rollferry": rollferry.__version__, "numpy": np.__version__}
    return own | dict(version for name in arms if (version := ARMS[name].version()))


def resident_nbytes() -> int:
    """Give the bytes of this process that are in memory now, shared ones too."""
    return _field("/proc/self/status", "VmRSS")


def peak_nbytes() -> int:
    """Give the most bytes of this process that were in memory since `reset_peak`, or since it started."""
    return _field("/proc/self/status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def reset_peak() -> bool:
    """Start the peak anew; False where the kernel doesn't let this process do so."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def available_nbytes() -> int:
    """Give the bytes that new work on this machine can take without swapping."""
    return _field("/proc/meminfo", "MemAvailable")


def _field(file: str, name: str) -> int:
    """Read a figure of a file of /proc, in bytes; 0 where it isn't there."""
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", Path(file).read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
