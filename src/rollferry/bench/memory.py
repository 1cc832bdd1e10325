"""Memory of this process and machine, as the kernel counts it."""

from __future__ import annotations

import re
import resource
from pathlib import Path

__all__ = ["available_nbytes", "peak_nbytes", "reset_peak", "resident_nbytes"]


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
