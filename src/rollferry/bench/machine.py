"""What a run was measured on and with."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import rollferry
from rollferry.bench.arms import ARMS
from rollferry.bench.memory import available_nbytes

__all__ = ["describe_machine", "describe_packages"]


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
    versions = (ARMS[name].version().split() for name in arms)
    return own | {version[0]: version[1] for version in versions if version}
