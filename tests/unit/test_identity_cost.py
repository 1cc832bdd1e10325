"""The look for repeated objects is thorough only where something can be repeated."""

from typing import Any

import numpy as np
import pytest

from rollferry.bundle.fields import encode_batch
from rollferry.layouts.encoder import Encoder


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each column was looked at thoroughly."""
    seen = []
    encode = Encoder._encode

    def noting(self: Encoder, values: list[Any], handler: Any) -> int:
        seen.append(self._thorough)
        return encode(self, values, handler)

    monkeypatch.setattr(Encoder, "_encode", noting)
    return seen


def test_an_ordinary_batch_is_not_looked_through(looks: list[bool]) -> None:
    batch = {"rows": [np.arange(i) for i in range(5)], "meta": [{"a": [str(i)] * i} for i in range(5)], "d": np.ones(3)}
    encode_batch(batch, None, allow_pickle=False)
    assert looks
    assert not any(looks)


def test_one_that_is_referred_to_from_elsewhere_is(looks: list[bool]) -> None:
    rows = [np.arange(3), np.arange(4)]
    encode_batch({"rows": rows}, None, allow_pickle=False)
    assert looks == [True]
