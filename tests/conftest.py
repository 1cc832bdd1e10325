"""Hypothesis profiles and a private engine directory on tmpfs."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]  # batches are many draws; slow machines only make it worse
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("nightly", max_examples=3000, deadline=None, suppress_health_check=_SLOW, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def private_directory() -> Path:
    """A new empty directory with mode 0700, on tmpfs where there is one."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="rollferry-test-", dir=base))


@pytest.fixture
def shm_directory() -> Iterator[Path]:
    """A directory for one `shm://` engine, gone after the test."""
    path = private_directory()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def shared_shm_directory() -> Iterator[Path]:
    """A directory for one `shm://` engine that the tests of a module share."""
    path = private_directory()
    yield path
    shutil.rmtree(path, ignore_errors=True)
