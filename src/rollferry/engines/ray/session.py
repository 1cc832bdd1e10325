"""The connection to Ray: attaching, the actors, and calls that end in bounded time."""

import ipaddress
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray import exceptions
from ray._private import services

from rollferry.engines.ray.actors import Registry
from rollferry.errors import EngineError, EngineFullError

__all__ = ["Session", "TokenError", "attach", "probe"]

REGISTRY_NAME = "rollferry-registry-5"  # the number changes with what the actors understand
PROBE_SECONDS = 10
ATTACHING = threading.Lock()
LED_TO: dict[str, str] = {}  # address that was asked for -> that of the GCS to which it led
FORKED = threading.Event()  # set in the child of a process that was attached
os.register_at_fork(after_in_child=lambda: FORKED.set() if ray.is_initialized() else None)


def attach(address: str) -> None:
    """Attach this process to Ray, unless it is. Raises EngineError where that can't be."""
    if FORKED.is_set():
        refuse_fork()
    with ATTACHING:
        if not ray.is_initialized():
            start(address)
            LED_TO[address] = ray.get_runtime_context().gcs_address
            return
    if ray.util.client.ray.is_connected():
        raise EngineError(
            "ray:// does not work through Ray Client, which has no object store; run as a job or on a node"
        )
    current = ray.get_runtime_context().gcs_address
    if address and current not in (address, LED_TO.get(address)) and not places(address) & places(current):
        raise EngineError(f"this process is attached to Ray at {current}, not at {address}; connect with ray://")


def start(address: str) -> None:
    """Attach this process. Raises EngineError where that can't be."""
    named = address or os.environ.get("RAY_ADDRESS", "")
    at = f" at {named}" if named else ""
    if named.startswith("ray://"):
        raise EngineError(f"RAY_ADDRESS is {named}, of Ray Client, through which ray:// does not work; unset it")
    if named and not named.rpartition(":")[2].isdecimal():
        raise EngineError(f"RAY_ADDRESS is {named}, which is no host:port of a Ray; correct or unset it")
    try:
        where = probe(address)
    except (RuntimeError, ValueError, OSError) as error:
        advice = "Start one with `ray start --head`, name it (ray://host:port), or call ray.init() before connecting"
        if named:
            advice = f"Start one there with `ray start --head --port={named.rpartition(':')[2]}`"
        raise EngineError(f"there is no Ray to attach to{at}: {brief(error)}. {advice}") from error
    try:
        if named:  # otherwise ray.init may yet find a token to show
            greet(where)
        ray.init(address=address or "auto", ignore_reinit_error=True, log_to_driver=False)
    except (RuntimeError, ValueError, OSError, exceptions.RayError) as error:
        if wants_token(error):
            raise TokenError(f"the cluster at {where} asks for a token: {TokenError.advice}") from error
        raise EngineError(f"attaching to Ray at {where} failed: {brief(error)}") from error


class TokenError(EngineError):
    """The cluster asks for a token, and this process has none, or a wrong one."""

    advice = "export RAY_AUTH_MODE=token and copy the head's ~/.ray/auth_token"


def wants_token(error: BaseException | None) -> bool:
    """Say whether a token was missing or wrong."""
    while error is not None:
        if type(error).__name__ == "AuthenticationError" or "InvalidAuthToken" in str(error):  # old Rays lack the type
            return True
        error = error.__cause__ or error.__context__
    return False


def probe(address: str) -> str:
    """Give the address that Ray makes of one. Raises ConnectionError or ValueError where nothing answers there.

    Of that ray.init would convince itself for minutes.
    """
    try:
        where: str = services.canonicalize_bootstrap_address_or_die(address or "auto")
    except ConnectionError:
        raise ConnectionError("none runs on this machine, and RAY_ADDRESS is not set") from None
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{where} does not answer ({getattr(error, 'strerror', None) or error})") from error
    return where


def greet(where: str) -> None:
    """Raise what Ray raises where it is not the GCS, or wants a token: at the first try, while ray.init makes twenty."""
    try:
        from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    except ImportError:
        pass  # a Ray without tokens
    else:
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # the client would end the process
    services.GcsClient(address=where)


def places(address: str) -> set[tuple[str, str]]:
    """Give the IP addresses that an address stands for, each with its port. As for Ray, loopback is this node."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        found = {host}
    else:
        found = {services.get_node_ip_address() if ipaddress.ip_address(ip).is_loopback else ip for ip in found}
    return {(ip, port) for ip in found}


def brief(error: BaseException) -> str:
    """Give the message of an error as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


def refuse_fork() -> None:
    """Raise the EngineError for the child of a fork."""
    raise EngineError("Ray does not survive a fork; start a fresh process (multiprocessing: spawn) and connect there")


class Session:
    """The actors of one Ray namespace. Thread-safe.

    Parameters
    ----------
    namespace
        The namespace.
    timeout
        Seconds that a call may take.
    """

    def __init__(self, namespace: str, timeout: float) -> None:
        self.timeout = timeout
        self._namespace = namespace
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._guarantees: dict[str, tuple[str, int]] = {}  # by name: namespace and bytes
        self._token: Any = None  # see `holder`
        self._holder = b""
        self._registry: Any = None
        self._doubtful = False  # an actor has died; the name of the registry may lead to a dead one
        self._keeper: tuple[str, Any] | None = None  # its name, and it
        self._dead_keeper = ""

    def registry(self) -> Any:
        """Give the registry; it is started if there is none."""
        self._check()
        with self._lock:
            if self._registry is None:
                try:
                    self._registry = self._living() if self._doubtful else self._named()
                except (exceptions.RayError, ValueError, RuntimeError, OSError) as error:
                    raise EngineError(f"the registry can't be reached or started: {error}") from error
                self._doubtful = False
                for name in self._guarantees:  # a new registry knows of none
                    self._give(name)
            return self._registry

    def holder(self) -> bytes:
        """Give what tells a process that is alive from a dead one: an object that ends with its owner, out of Ray's sight."""
        with self._lock:
            if self._token is None:
                self._token = ray.put(b"")
                self._holder = ray.cloudpickle.dumps(self._token)
            return self._holder

    def guarantee(self, namespace: str, nbytes: int) -> None:
        """Have bytes kept for a namespace, by every registry that there is until `release`."""
        name = secrets.token_hex(8)
        self.registry()
        with self._lock:
            self._guarantees[name] = namespace, nbytes
            try:
                self._give(name)
            except BaseException:
                del self._guarantees[name]
                raise

    def release(self) -> None:
        """End all guarantees."""
        with self._lock:
            names, self._guarantees = list(self._guarantees), {}
            registry = self._registry
        if names and registry is not None and ray.is_initialized() and os.getpid() == self._pid:
            with suppress(EngineError):
                self.wait([registry.release.remote(name) for name in names], "ending guarantees")

    def _give(self, name: str) -> None:
        call = self._registry.guarantee.remote(name, *self._guarantees[name], self.holder())
        self.wait(call, "a guarantee of the registry")

    def _named(self) -> Any:
        """Give the registry that has the name, which is started if there is none."""
        actor = ray.remote(Registry).options(
            name=REGISTRY_NAME,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=0,
        )
        return actor.remote()

    def _living(self) -> Any:
        """Give a registry that answers: a dead one has the name until Ray has noticed."""
        deadline = time.monotonic() + self.timeout
        while True:
            actor = self._named()
            try:
                ray.get(actor.__ray_ready__.remote(), timeout=max(deadline - time.monotonic(), 0))
            except exceptions.ActorDiedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return actor

    def keeper(self) -> Any:
        """Give the keeper of this node."""
        self._check()
        with self._lock:
            if self._keeper is not None:
                return self._keeper[1]
        registry = self.registry()
        node = ray.get_runtime_context().get_node_id()
        name, keeper = self.wait(registry.keeper.remote(node, self._dead_keeper), "finding the keeper of this node")
        with self._lock:
            self._keeper = (name, keeper)
        return keeper

    def _check(self) -> None:
        """Raise EngineError where Ray can't be called; it would hang, or start a Ray of its own."""
        if os.getpid() != self._pid:
            refuse_fork()
        if not ray.is_initialized():
            raise EngineError("this process is no longer attached to Ray, by ray.shutdown(); connect again")

    def forget(self, *, died: bool = False) -> None:
        """Look for the actors anew the next time."""
        with self._lock:
            self._doubtful |= died
            if self._keeper is not None:
                self._dead_keeper = self._keeper[0]
            self._registry = self._keeper = None

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the registry."""
        registry = self.registry()
        return self.wait(getattr(registry, method).remote(*args), f"{method} of the registry")

    def wait(self, refs: Any, what: str, nbytes: int = 0) -> Any:
        """Give the values of references, which need so many bytes of the object store; see `errors`."""
        with self.errors(what, nbytes):
            return ray.get(refs, timeout=self.timeout)

    @contextmanager
    def errors(self, what: str, nbytes: int) -> Iterator[None]:
        """Raise EngineError for what goes wrong in Ray, and EngineFullError where it had no room for so many bytes."""
        try:
            yield
        except exceptions.GetTimeoutError as error:
            self.forget()
            raise EngineError(
                f"{what} took longer than {self.timeout:g} s (ray://?timeout=...); is Ray alive?"
            ) from error
        except exceptions.ActorDiedError as error:
            self.forget(died=True)
            raise EngineError(
                f"{what} failed, since an actor that holds the bundles has died; those it held are lost, and the next put "
                f"starts a new one: {error}"
            ) from error
        except (exceptions.ObjectStoreFullError, exceptions.OutOfDiskError) as error:
            free = int(ray.available_resources().get("object_store_memory", 0))
            raise EngineFullError(
                f"Ray's object store is full, and so is the disk that it falls back to: {what} needs {nbytes:,} bytes, and "
                f"{free:,} were free in the cluster when Ray last counted. Remove bundles, or give Ray more "
                "(object_store_memory)",
                needed=nbytes,
                free=free,
            ) from error
        except exceptions.RayError as error:
            if isinstance(error, exceptions.RayTaskError) and isinstance(error.cause, EngineError):
                raise error.cause from None
            self.forget()
            raise EngineError(f"{what} failed: {error}") from error
