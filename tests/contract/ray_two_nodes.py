"""Two Ray nodes on this machine: a producer on one, which is killed, and a reader on the other. Run by test_engine_ray."""

import os
import time
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rollferry
from rollferry.testing import assert_same

BATCH = {"rows": [np.arange(1 << 20), np.arange(3)], "x": [1, None]}


class Producer:
    def put(self) -> Any:
        return rollferry.connect("ray://").put(BATCH).to_json(), os.getpid(), ray.get_runtime_context().get_node_id()


def main() -> None:
    cluster = Cluster()
    cluster.add_node(num_cpus=1, object_store_memory=256 << 20, include_dashboard=False)
    other = cluster.add_node(num_cpus=1, object_store_memory=256 << 20)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with rollferry.connect("ray://") as ferry:
            near = ferry.put(BATCH)
            place = NodeAffinitySchedulingStrategy(other.node_id, soft=False)
            producer = ray.remote(Producer).options(num_cpus=0, scheduling_strategy=place).remote()
            ref, pid, node = ray.get(producer.put.remote(), timeout=60)
            assert node == other.node_id != ray.get_runtime_context().get_node_id()
            os.kill(pid, 9)
            time.sleep(2)
            for readonly in (False, True):
                assert_same(ferry.get(ref, readonly=readonly), BATCH)
            ferry.remove(ref)
            assert_same(ferry.get(near), BATCH)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("ok")


if __name__ == "__main__":
    main()
