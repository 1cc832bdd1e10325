"""What is left after ray.shutdown(). Run by test_engine_ray."""

import time

import numpy as np
import ray

import rollferry
from rollferry.errors import EngineError

ray.init(address="local", num_cpus=1, object_store_memory=256 << 20, include_dashboard=False, log_to_driver=False)
ferry = rollferry.connect("ray://")
ref = ferry.put({"rows": [np.arange(1 << 20)]})
views, private = ferry.get(ref, readonly=True), ferry.get(ref)
ray.shutdown()
for action in (lambda: ferry.get(ref), lambda: ferry.put({"x": 1}), ferry.list):
    start = time.monotonic()
    try:
        action()
    except EngineError as error:
        assert "no longer attached" in str(error)
    else:
        raise AssertionError
    assert time.monotonic() - start < 1
assert not ray.is_initialized()
assert (private["rows"][0] == np.arange(1 << 20)).all()
assert (views["rows"][0] == np.arange(1 << 20)).all()
ferry.close()
print("ok")
