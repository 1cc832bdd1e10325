"""Hosts of a network of their own: network namespaces whose veth pairs meet in a bridge. Needs root and iproute2."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue

import pytest

from tests.contract.mooncake_master import find_master

ROOT = Path(__file__).parents[2]
ADDRESSES = {"master": 1, "producer": 2, "consumer": 3, "storage": 4}
RPC, METRICS = 50051, 9003  # as in the documents: every host has all ports to itself


def ip(*words: object) -> str:
    """Run ``ip``."""
    command = ["ip", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Hosts with addresses 10.77.0.*, and a switch between them, none of which the machine itself sees.

    Neighbours are entered for good, so that a packet to a host that is cut off is lost without a word, as it is behind a
    router; without, the kernel would notice within seconds that nobody answers to the address.
    """

    def __init__(self) -> None:
        self._stem = f"rollferry-{os.getpid()}-"
        self._made: list[str] = []
        self.processes: list[Process] = []

    def __enter__(self) -> "Network":
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        for host in ("switch", *ADDRESSES):
            try:
                ip("netns", "add", self.namespace(host))
            except OSError as error:
                pytest.skip(f"network namespaces can't be made here: {error}")
            self._made.append(self.namespace(host))
        self._switch("link", "add", "bridge", "type", "bridge")
        self._switch("link", "set", "bridge", "up")
        for host, number in ADDRESSES.items():
            inside = ("-n", self.namespace(host))
            peer = ("peer", "name", "eth0", "netns", self.namespace(host))
            self._switch("link", "add", port(host), "type", "veth", *peer)
            self._switch("link", "set", port(host), "master", "bridge", "up")
            ip(*inside, "link", "set", "eth0", "address", hardware(number))
            ip(*inside, "address", "add", f"{address(host)}/24", "dev", "eth0")
            ip(*inside, "link", "set", "lo", "up")
            ip(*inside, "link", "set", "eth0", "up")
            for other in ADDRESSES.values():
                if other != number:
                    ip(*inside, "neigh", "add", f"10.77.0.{other}", "lladdr", hardware(other), "dev", "eth0")

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
        while self._made:
            try:
                ip("netns", "delete", self._made.pop())  # its links, and with them the bridge, go too
            except OSError as error:
                print(error, file=sys.stderr)

    def namespace(self, host: str) -> str:
        return self._stem + host

    def _switch(self, *words: object) -> None:
        ip("-n", self.namespace("switch"), *words)

    def cut(self, host: str) -> None:
        """From now on, every packet from and to the host is lost."""
        self._switch("link", "set", port(host), "down")

    def mend(self, host: str) -> None:
        self._switch("link", "set", port(host), "up")

    def slow(self, host: str, rate: str | None) -> None:
        """Limit what reaches the host; None ends that."""
        there = self.namespace("switch"), port(host)
        if rate is None:
            tc(*there, "del")
        else:
            tc(*there, "replace", "tbf", "rate", rate, "burst", "128kb", "latency", "100ms")

    def received(self, host: str) -> int:
        """Bytes that reached the host so far."""
        text = ip("-n", self.namespace("switch"), "-statistics", "-json", "link", "show", port(host))
        return int(json.loads(text)[0]["stats64"]["tx"]["bytes"])

    def start(self, host: str, *command: str) -> "Process":
        process = Process(["ip", "netns", "exec", self.namespace(host), *command])
        self.processes.append(process)
        return process


def address(host: str) -> str:
    return f"10.77.0.{ADDRESSES[host]}"


def port(host: str) -> str:
    """Its link at the switch."""
    return f"to-{host}"


def hardware(number: int) -> str:
    return f"02:00:00:00:77:{number:02x}"


def tc(namespace: str, device: str, action: str, *words: str) -> None:
    subprocess.run(
        ["tc", "-n", namespace, "qdisc", action, "dev", device, "root", *words],
        check=True,
        capture_output=True,
        timeout=30,
    )


class Process:
    """A process on a host."""

    def __init__(self, command: Sequence[str]) -> None:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def write(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self, seconds: float = 120) -> str:
        """The next line that it prints; AssertionError where there is none in time."""
        try:
            line = self._lines.get(timeout=seconds)
        except Empty:
            raise AssertionError(f"no answer within {seconds} s; it logged: {self.logged()}") from None
        assert line, f"it ended with {self._process.wait()}; it logged: {self.logged()}"
        return line.rstrip("\n")

    def waiting(self) -> bool:
        """Whether nothing was printed that wasn't read."""
        return self._lines.empty()

    def logged(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self.kill()
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._log):
            try:
                file.close()
            except BrokenPipeError:  # what it never read
                pass

    def end(self, seconds: float = 60) -> int:
        """Close its input; give its exit status."""
        self._process.stdin.close()
        return self._process.wait(seconds)


class Agent:
    """A process on a host that does with a Ferry what it is told; see agent.py."""

    def __init__(self, network: Network, host: str, **options: object) -> None:
        self.process = network.start(host, sys.executable, str(Path(__file__).with_name("agent.py")), url(**options))
        assert self.process.line() == "ready"

    def begin(self, do: str, **arguments: object) -> None:
        self.process.write(json.dumps({"do": do, **arguments}))

    def finish(self, seconds: float = 180) -> dict:
        answer = json.loads(self.process.line(seconds))
        print(answer)
        return answer

    def __call__(self, do: str, **arguments: object) -> dict:
        self.begin(do, **arguments)
        return self.finish()


def start_master(network: Network) -> Process:
    """A master that answers."""
    program = find_master()
    options = ["--rpc_port", str(RPC), "--metrics_port", str(METRICS), "--default_kv_lease_ttl", "60000"]
    master = network.start("master", program, *options, "--logtostderr=true")
    asks = "import socket, sys; [socket.create_connection(('127.0.0.1', int(port)), 1) for port in sys.argv[1:]]"
    command = ["ip", "netns", "exec", network.namespace("master"), sys.executable, "-c", asks, str(RPC), str(METRICS)]
    deadline = time.monotonic() + 30
    while subprocess.run(command, capture_output=True).returncode:
        assert time.monotonic() < deadline, f"the master doesn't start: {master.logged()}"
        time.sleep(0.1)
    return master


def url(**options: object) -> str:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return f"mooncake://{address('master')}:{RPC}?{query}"
