"""How long a bundle lives: until its readers are done, until its time is over, or until it is removed.

A manifest says what was asked for when it was put. What comes later is noted beside the bundle: a reader that is done, a time
that was extended. Ages are measured by a clock that no setting of the time changes (CLOCK_BOOTTIME) as long as the machine is
the same and was not started anew, else by the time of day.
"""

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from rollferry.bundle.manifest import Lifetime
from rollferry.bundle.stages import open_manifest, remove_stages, stages_of
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, BundleNotFoundError
from rollferry.refs import TransferRef

__all__ = [
    "ORPHAN_SECONDS",
    "READERS_SECONDS",
    "State",
    "age_of",
    "born",
    "expired",
    "keep",
    "note_done",
    "readers_done",
    "state_of",
]

READERS_SECONDS = 6 * 3600.0  # that a bundle waits for its readers where no time was given
ORPHAN_SECONDS = 24 * 3600.0  # that one without a time stays once its producer is dead
DONE, KEPT = "done-", "kept-"
Reason = Literal["time", "orphan"]


class State(NamedTuple):
    """How it is with a bundle.

    Parameters
    ----------
    age
        Seconds since it was put.
    left
        Seconds until its time is over; None where it has none.
    done
        Names of the readers that are done.
    owner_alive
        Whether its producer lives; None where that can't be known.
    """

    age: float
    left: float | None
    done: frozenset[str]
    owner_alive: bool | None


def born(ttl: float | None, readers: int | None) -> Lifetime:
    """Describe the life of a bundle that is being put."""
    boot, owner = here(os.getpid())
    return Lifetime(
        created=time.time(),
        boot=boot,
        uptime=time.clock_gettime(time.CLOCK_BOOTTIME),
        owner=owner,
        ttl=READERS_SECONDS if ttl is None and readers is not None else ttl,
        readers=readers,
    )


def state_of(lifetime: Lifetime, notes: set[str]) -> State:
    """Say how it is with a bundle, by its notes."""
    age = age_of(lifetime)
    end = lifetime.ttl
    for text in notes:
        kept = seconds_kept(text)
        if kept is not None:
            end = max(end or 0.0, kept)
    return State(age, None if end is None else end - age, readers_done(notes), owner_alive(lifetime))


def expired(state: State) -> Reason | None:
    """Say why a bundle is to be reclaimed; None where it isn't."""
    if state.left is not None:
        return "time" if state.left <= 0 else None
    return "orphan" if state.owner_alive is False and state.age > ORPHAN_SECONDS else None


def note_done(engine: Engine, ref: TransferRef, reader: str, readers: int) -> bool:
    """Note that a reader is done; the last one removes the bundle. False where it is gone, or the reader was done before."""
    key, note = ref.key, DONE + reader
    before = note in engine.notes(key)
    try:
        if not before:
            engine.note(key, note)
    except BundleNotFoundError:
        return False
    # Also where it was done before: it may have been killed between the two.
    if len(readers_done(engine.notes(key))) >= readers:
        remove_stages(engine, stages_of(engine, ref))
    return not before


def readers_done(notes: set[str]) -> frozenset[str]:
    """Give the names of the readers that are done."""
    return frozenset(text[len(DONE) :] for text in notes if text.startswith(DONE))


def keep(engine: Engine, ref: TransferRef, seconds: float) -> None:
    """Have a bundle, with its older stages, live so many seconds from now on, at least."""
    for name in stages_of(engine, ref):
        lifetime = open_manifest(engine, name)[0].lifetime
        if lifetime is None:
            raise BundleError(f"bundle {name} was put by a rollferry that knew no lifetimes")
        engine.note(name, f"{KEPT}{age_of(lifetime) + seconds:.3f}")


def seconds_kept(text: str) -> float | None:
    """Read a note of `keep`: the age up to which a bundle is kept; None where it is none."""
    if not text.startswith(KEPT):
        return None
    try:
        return float(text[len(KEPT) :])
    except ValueError:
        return None


def age_of(lifetime: Lifetime) -> float:
    """Give the seconds since a bundle was put."""
    if lifetime.boot == here(os.getpid())[0]:
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - lifetime.uptime)
    return max(0.0, time.time() - lifetime.created)


@lru_cache(maxsize=1)
def here(pid: int) -> tuple[str, str]:
    """Name this start of this machine, and this process: id, start time and the namespace that its id is of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.stat("/proc/self/ns/pid").st_ino
        return boot, f"{pid}:{started(pid)}:{space}"
    except OSError:
        return "", ""


def started(pid: int) -> int | None:
    """Give when a process was started, in ticks since the machine was; None where there is none."""
    try:
        # The name of the program, in parentheses, may hold anything.
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        return None


def owner_alive(lifetime: Lifetime) -> bool | None:
    """Say whether the producer of a bundle lives; None where that can't be known from here."""
    boot, own = here(os.getpid())
    if not boot or lifetime.boot != boot:
        return None
    try:
        pid, start, space = map(int, lifetime.owner.split(":"))
    except ValueError:
        return None
    if space != int(own.rpartition(":")[2]):
        return None
    return started(pid) == start
