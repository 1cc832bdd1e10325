"""The process that keeps the services: it starts them, says where they are, and stops them when its standard input ends.

So they end with the benchmark, however that ends. Its argument is JSON: the names for which a mooncake_master is wanted,
and the bytes of Ray's object store, or 0 for no Ray. Its only answer, to the file descriptor that is its second argument,
says for each name, and for ``ray``, where the service is, or the error.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

_START_SECONDS = 20.0
_LIBRARIES = "libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4"


def start_master(masters: list[subprocess.Popen[bytes]]) -> dict[str, str]:
    """Start a master on free ports of the loopback device; add it to those to be stopped."""
    beside = Path(sys.executable).with_name("mooncake_master")
    program = str(beside) if beside.exists() else shutil.which("mooncake_master")
    if program is None:
        return {"error": "there is no program mooncake_master"}
    port, metrics = free_port(), free_port()
    command = [program, "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_host=127.0.0.1"]
    command += [f"--metrics_port={metrics}", "--logtostderr=true", "--minloglevel=1"]
    master = subprocess.Popen(command)  # noqa: S603  # our own command
    masters.append(master)
    deadline = time.monotonic() + _START_SECONDS
    while not (answers(port) and answers(metrics)):
        if master.poll() is not None or time.monotonic() > deadline:
            return {"error": f"mooncake_master does not start; does it lack libraries ({_LIBRARIES})?"}
        time.sleep(0.02)
    return {"master": f"127.0.0.1:{port}", "metrics": f"127.0.0.1:{metrics}", "metrics_port": str(metrics)}


def start_ray(object_store_nbytes: int) -> dict[str, str]:
    """Start a Ray of this process's own."""
    try:
        import ray

        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            object_store_memory=object_store_nbytes,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        return {"address": ray.get_runtime_context().gcs_address}
    except Exception as error:  # noqa: BLE001  # Ray raises anything; the bench says it
        return {"error": f"Ray does not start: {error}"}


def free_port() -> int:
    """Give a port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def answers(port: int) -> bool:
    """Say whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Start, wait, stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wanted = json.loads(sys.argv[1])
    masters: list[subprocess.Popen[bytes]] = []
    try:
        services = {name: start_master(masters) for name in wanted["masters"]}
        if wanted["ray"]:
            services["ray"] = start_ray(wanted["ray"])
        with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as answer:
            answer.write(json.dumps(services) + "\n")
        sys.stdin.read()
    finally:
        for master in masters:
            master.kill()  # it has nothing to save
            master.wait()
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()


if __name__ == "__main__":
    main()
