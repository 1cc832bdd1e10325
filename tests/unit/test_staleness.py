"""How old a policy a reader takes."""

import pickle

import msgspec
import pytest

import rollferry
from rollferry import RefError, StaleRolloutError, TransferRef


def test_the_lag_is_bounded(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"a": [1]}, policy_version=7)
    text = ref.to_json()
    assert TransferRef.from_json(text) == ref
    assert (ref.policy_version, len(text) < 400) == (7, True)
    for current in (5, 7, 9):
        assert ferry.get(text, max_lag=2, current_version=current) == {"a": [1]}
    with pytest.raises(StaleRolloutError, match="policy version 7, 3 behind 10; 2 is allowed") as caught:
        ferry.get(text, max_lag=2, current_version=10)
    assert (caught.value.lag, caught.value.max_lag) == (3, 2)
    assert pickle.loads(pickle.dumps(caught.value)).lag == 3
    assert ferry.get(text) == {"a": [1]}
    assert ferry.append(ref, {"b": [2]}).policy_version == 7


def test_what_makes_no_sense(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"a": [1]})
    assert "policy_version" not in ref.to_dict()
    with pytest.raises(RefError, match="no policy version"):
        ferry.get(ref, max_lag=0, current_version=1)
    for options in ({"max_lag": 1}, {"current_version": 1}, {"max_lag": -1, "current_version": 1}, {"max_lag": True}):
        with pytest.raises(ValueError):
            ferry.get(ref, **options)
    for version in (-1, 1.0, True, 1 << 63):
        with pytest.raises(ValueError, match="policy_version must be an int"):
            ferry.put({"a": [1]}, policy_version=version)
    assert ferry.list() == [ref.id]
    changed = ferry.put({"a": [1]}, policy_version=3).to_dict() | {"policy_version": 9}
    with pytest.raises(RefError, match="changed on its way"):
        TransferRef.from_dict(changed)
    with pytest.raises(RefError, match="policy_version"):
        msgspec.structs.replace(ref, policy_version=-3)
