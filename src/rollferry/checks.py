"""Checks: what was looked at, what was seen, what to do about it. Engines state theirs as steps; `doctor` takes them."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Literal, NamedTuple

import msgspec

__all__ = ["Check", "Finding", "Package", "State", "Step", "attempt", "examine", "ok", "require", "size", "take"]

State = Literal["ok", "warn", "fail", "absent", "skipped"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at.

    Parameters
    ----------
    name
        What it is.
    state
        ``ok``; ``warn``: it works, but not as well as it could; ``fail``; ``absent``: optional, and not there;
        ``skipped``: not looked at, since something that it needs fails.
    found
        What was seen.
    advice
        The command or setting that mends it; empty where there is nothing to mend.
    """

    name: str
    state: State
    found: str
    advice: str = ""


class Finding(NamedTuple):
    """A check without its name. One that isn't ok and has no advice gets that of its step."""

    state: State
    found: str
    advice: str = ""


class Step(NamedTuple):
    """A check to be made.

    Parameters
    ----------
    name
        Name of the check, used once in a list of steps.
    look
        Looks. What it raises makes the check fail.
    advice
        What to do where it raises, never returns, or finds something amiss and says no better.
    needs
        Names of earlier checks; where one of them fails, this one is skipped.
    """

    name: str
    look: Callable[[], Finding]
    advice: str
    needs: tuple[str, ...] = ()


class Package(NamedTuple):
    """An optional package.

    Parameters
    ----------
    name
        What it is called.
    module
        What to import of it.
    install
        The command that installs it.
    libraries
        The command that installs the shared libraries that it needs, if it doesn't bring them.
    """

    name: str
    module: str
    install: str
    libraries: str = ""


def ok(found: str) -> Finding:
    """Say that all is well."""
    return Finding("ok", found)


def take(steps: Sequence[Step], done: Sequence[Check] = ()) -> Iterator[Check]:
    """Make the checks of all steps but the first ones, which are `done`. Raises nothing."""
    useless = {check.name for check in done if check.state in ("fail", "skipped")}
    for step in steps[len(done) :]:
        missing = [name for name in step.needs if name in useless]
        finding = Finding("skipped", f"needs: {', '.join(missing)}") if missing else attempt(step)
        if finding.state in ("fail", "skipped"):
            useless.add(step.name)
        yield Check(step.name, *finding)


def attempt(step: Step) -> Finding:
    """Look, and say what was raised."""
    try:
        finding = step.look()
    except Exception as error:  # noqa: BLE001  # whatever it is, it is what was found
        finding = Finding("fail", " ".join(str(error).split()) or type(error).__name__)
    return finding if finding.state == "ok" or finding.advice else finding._replace(advice=step.advice)


def examine(package: Package) -> Finding:
    """Import an optional package; ``absent`` where it isn't installed, ``warn`` where it is but can't be imported."""
    try:
        importlib.import_module(package.module)
    except ModuleNotFoundError as error:
        if f"{package.module}.".startswith(f"{error.name}."):
            return Finding("absent", "not installed", package.install)
        return broken(package, error)
    except Exception as error:  # noqa: BLE001  # packages raise anything while they are imported
        return broken(package, error)
    return ok(version_of(package))


def require(package: Package) -> Finding:
    """Import a package; ``fail`` where that can't be."""
    finding = examine(package)
    return finding if finding.state == "ok" else finding._replace(state="fail")


def broken(package: Package, error: Exception) -> Finding:
    """Say why an installed package can't be imported."""
    library = package.libraries and ".so" in str(error)
    kind = "a shared library is missing" if library else "it can't be imported"
    return Finding("warn", f"installed, but {kind}: {error}", package.libraries if library else package.install)


def version_of(package: Package) -> str:
    """Give name and version of what was installed."""
    names = metadata.packages_distributions().get(package.module.partition(".")[0], ())
    return ", ".join(f"{name} {metadata.version(name)}" for name in dict.fromkeys(names)) or "of unknown version"


def size(nbytes: float) -> str:
    """Write a number of bytes, such as ``1.5 GiB``."""
    units = iter(("bytes", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while nbytes >= 1024 and unit != "TiB":
        nbytes, unit = nbytes / 1024, next(units)
    return f"{nbytes:,.0f} {unit}" if unit == "bytes" else f"{nbytes:,.1f} {unit}"
