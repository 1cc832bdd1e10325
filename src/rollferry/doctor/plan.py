"""What to check."""

import platform
from importlib import metadata

from rollferry import __version__, _native
from rollferry.checks import Finding, Package, Step, examine, ok
from rollferry.doctor.probe import round_trip
from rollferry.engines.registry import checks_of, packages, parse_url
from rollferry.ferry import DEFAULT_URL

__all__ = ["plan"]

REINSTALL = "in a clone of rollferry: pip install --force-reinstall ."
VALUES = (
    Package("torch", "torch", "pip install 'rollferry[torch]'"),
    Package("tensordict", "tensordict", "pip install 'rollferry[torch]'"),
    Package("pillow", "PIL.Image", "pip install 'rollferry[images]'"),
)


def plan(url: str | None) -> list[Step]:
    """Give the checks for a URL, or without one. Raises EngineError where it makes no sense."""
    steps = [
        Step("Python", python, REINSTALL),
        Step("numpy", numpy, REINSTALL),
        Step("native core", native_core, REINSTALL),
    ]
    steps += checks_of(parse_url(url or DEFAULT_URL), round_trip)
    if url is None:
        steps += [package_step(package) for package in (*VALUES, *packages())]
    return steps


def python() -> Finding:
    """Say what runs."""
    return ok(f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}")


def numpy() -> Finding:
    """Say which NumPy rollferry uses."""
    return ok(metadata.version("numpy"))


def native_core() -> Finding:
    """Whether the native core works."""
    memory = memoryview(_native.allocate(4096))
    memory[:4] = b"core"
    return ok(f"of rollferry {__version__}, loaded from {_native.__file__}")


def package_step(package: Package) -> Step:
    """Make the check of an optional package."""
    return Step(package.name, lambda: examine(package), package.install)
