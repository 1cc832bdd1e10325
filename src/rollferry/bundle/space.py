"""The space of a namespace: its quota, and what a put does where there is no room."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeVar, get_args

from rollferry.bundle.lifetime import age_of
from rollferry.bundle.stages import open_manifest
from rollferry.engines.base import Engine
from rollferry.errors import EngineFullError, RollferryError
from rollferry.timings import Stopwatch

__all__ = ["FullPolicy", "Space"]

FullPolicy = Literal["raise", "block", "evict-oldest"]
MIN_PAUSE, MAX_PAUSE = 0.001, 0.05  # seconds between two tries
SHARE = 5  # a pause is so many times as long as the try before it
T = TypeVar("T")


class Space(NamedTuple):
    """The space of a namespace, as its owner wants it.

    Parameters
    ----------
    quota
        Most bytes of its bundles; None for any number.
    full
        What a put does where there is no room, in the quota or the engine: ``raise`` EngineFullError, ``block`` until there is,
        or ``evict-oldest``: remove the oldest bundles of the namespace, read or not.
    patience
        Seconds to block at most.
    """

    quota: int | None = None
    full: FullPolicy = "raise"
    patience: float = 60.0

    def check(self) -> None:
        """Raise ValueError unless it makes sense."""
        if self.full not in get_args(FullPolicy):
            raise ValueError(f"full must be one of {', '.join(get_args(FullPolicy))}, not {self.full!r:.60}")
        if self.patience < 0 or (self.quota is not None and self.quota < 1):
            raise ValueError("quota must be at least one byte, and patience at least 0 seconds")

    def place(
        self,
        engine: Engine,
        key: str,
        nbytes: int,
        attempt: Callable[[], T],
        *,
        watch: Stopwatch,
        reclaim: Callable[[], bool] = bool,
    ) -> T:
        """Give what `attempt` to put so many bytes gives, which may be tried several times.

        Parameters
        ----------
        engine, key, nbytes
            Where, of which bundle, and how many.
        attempt
            Puts, or raises EngineFullError.
        watch
            Notes what there is to wait as the phase ``wait``.
        reclaim
            Removes bundles whose time is over, which is done before others are waited for or removed; says whether there were
            any.

        Raises
        ------
        EngineFullError
            There is no room.
        """
        late = time.monotonic() + self.patience
        reserved = self.quota is None
        try:
            while True:
                began = time.monotonic()
                try:
                    reserved = reserved or self._reserve(engine, key, nbytes)
                    return attempt()
                except EngineFullError as error:
                    never = self.quota is not None and nbytes > self.quota
                    if never or not (reclaim() or ROOM[self.full](Refusal(engine, key, error, began, late))):
                        raise
                    watch.lap("wait")
        finally:
            if self.quota is not None:
                engine.unreserve(key)

    def _reserve(self, engine: Engine, key: str, nbytes: int) -> bool:
        """Set bytes aside. Raises EngineFullError where the quota doesn't leave them."""
        namespace, quota = key.rpartition(".")[0], self.quota or 0
        if nbytes > quota or not engine.reserve(namespace, key, nbytes, quota, queue=self.full != "raise"):
            raise EngineFullError(
                f"the namespace {namespace!r} has a quota of {quota:,} bytes, which leaves no room for {nbytes:,}. "
                "Remove bundles that were read, raise the quota, or connect with full='block'",
                needed=nbytes,
                free=0,
            )
        return True


class Refusal(NamedTuple):
    """A put that found no room.

    Parameters
    ----------
    engine, key
        Where, and of which bundle.
    error
        What it raised.
    began, late
        When the try began, and when to give up, by time.monotonic().
    """

    engine: Engine
    key: str
    error: EngineFullError
    began: float
    late: float


def wait(refusal: Refusal) -> bool:
    """Wait for others to make room; False where it took too long."""
    now = time.monotonic()
    if now >= refusal.late:
        refusal.error.add_note("nobody made room in time (patience)")
        return False
    pause = min(max(MIN_PAUSE, SHARE * (now - refusal.began)), MAX_PAUSE)
    time.sleep(min(pause, refusal.late - now))
    return True


def evict(refusal: Refusal) -> bool:
    """Remove the oldest bundle of the namespace, a newer stage before what it lies over; False where there is none."""
    start = refusal.key.rpartition(".")[0] + "."
    ages = {}
    bases = set()
    for other in refusal.engine.list():
        if other.startswith(start):
            try:
                manifest = open_manifest(refusal.engine, other)[0]
            except RollferryError:  # gone meanwhile, or damaged
                continue
            ages[other] = float("inf") if manifest.lifetime is None else age_of(manifest.lifetime)
            if manifest.base is not None:
                bases.add(manifest.base.key)
    newest = ages.keys() - bases
    if not newest:
        return False
    refusal.engine.remove(max(newest, key=ages.__getitem__))
    return True


#: What makes room, by policy; False where it can't.
ROOM: dict[str, Callable[[Refusal], bool]] = {
    "raise": lambda _: False,
    "block": wait,
    "evict-oldest": evict,
}
