"""Ferry.timings names the phases of every put and get."""

import numpy as np

import rollferry

BATCH = {"rows": [np.arange(n) for n in range(10)], "dense": np.zeros(1 << 18)}


def test_phases() -> None:
    with rollferry.connect("inproc://timings?chunk=4096", checksum=True) as ferry:
        ref = ferry.put(BATCH)
        ferry.get(ref)
        ferry.get(ref, verify="full")
        put, get, verified = ferry.timings
        ferry.remove(ref)
    assert (put.operation, put.id, put.nbytes, put.rows) == ("put", ref.id, ref.nbytes, ref.rows)
    assert list(put.phases) == ["choose", "pack", "publish"]
    assert (get.operation, get.id) == ("get", ref.id)
    assert list(get.phases) == ["open", "fetch", "rebuild"]
    assert list(verified.phases) == ["open", "fetch", "verify", "rebuild"]
    assert all(seconds >= 0 for seconds in put.phases.values())
    assert put.seconds == sum(put.phases.values())


def test_failed_calls_have_none_and_only_the_last_are_kept() -> None:
    with rollferry.connect("inproc://timings") as ferry:
        for _ in range(1030):
            ferry.remove(ferry.put({}))
        assert len(ferry.timings) == 1024
        ferry.timings.clear()
        try:
            ferry.put({"x": object()})
        except rollferry.UnsupportedValueError:
            pass
        assert not ferry.timings
