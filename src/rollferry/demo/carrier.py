"""Putting and getting with the ferry, each batch checked equal on arrival."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import rollferry
from rollferry.demo.activity import Recorder
from rollferry.demo.batches import Batch
from rollferry.demo.errors import MismatchError
from rollferry.demo.fingerprint import differing_fields, fingerprint

__all__ = ["Carrier", "Parcel"]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What travels through the pipes in place of a batch.

    Parameters
    ----------
    ref : str
        The ref, as JSON.
    fingerprint : dict of str
        Made by the producer from the batch that it put.
    nbytes : int
        Size of the bundle.
    """

    ref: str
    fingerprint: dict[str, str]
    nbytes: int


class Carrier:
    """One process's ferry.

    Parameters
    ----------
    url, namespace : str
        As for `rollferry.connect`.
    recorder : Recorder
        Notes every put, get and check.

    Attributes
    ----------
    put_seconds, get_seconds : list of float
        How long each put and get took; the owner clears them.
    equal : int
        How many batches arrived, each equal to what was put.
    """

    def __init__(self, url: str, namespace: str, recorder: Recorder) -> None:
        self._ferry = rollferry.connect(url, namespace=namespace)
        self._recorder = recorder
        self._put_here: dict[str, None] = {}
        self.put_seconds: list[float] = []
        self.get_seconds: list[float] = []
        self.equal = 0

    def send(self, batch: Batch, step: int) -> Parcel:
        """Put a batch."""
        with self._recorder.record("check", step):
            sent = fingerprint(batch)
        with self._recorder.record("put", step) as watch:
            ref = self._ferry.put(batch, metadata={"step": step})
        self.put_seconds.append(watch.seconds)
        parcel = Parcel(ref.to_json(), sent, ref.nbytes)
        self._put_here[parcel.ref] = None
        return parcel

    @contextmanager
    def receive(self, parcel: Parcel, step: int) -> Iterator[Batch]:
        """Get a batch, check it, lend it for the block, and give its memory back.

        Raises
        ------
        MismatchError
            It differs from what was put.
        """
        with self._recorder.record("get", step) as watch:
            loan = self._ferry.borrow(parcel.ref)
            batch = loan.__enter__()
        self.get_seconds.append(watch.seconds)
        try:
            with self._recorder.record("check", step):
                different = differing_fields(parcel.fingerprint, fingerprint(batch))
            if different:
                raise MismatchError(f"step {step}: fields differ from what was put: {', '.join(different)}")
            self.equal += 1
            yield batch
        finally:
            loan.__exit__(None, None, None)

    def drop(self, parcel: Parcel) -> bool:
        """Remove a bundle; true when it was still there."""
        self._put_here.pop(parcel.ref, None)
        return bool(self._ferry.remove(parcel.ref))

    def close(self) -> int:
        """Remove whatever this process put that is still there, and close the ferry.

        Returns
        -------
        int
            How many bundles were left to remove: 0 after an undisturbed run, whose readers remove in time.
        """
        left = sum(bool(self._ferry.remove(ref)) for ref in self._put_here)
        self._put_here.clear()
        self._ferry.close()
        return left
