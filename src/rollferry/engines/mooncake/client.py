"""The client of Mooncake Store: set up once for a process, its status codes turned into errors."""

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollferry.engines.mooncake.options import Options
from rollferry.engines.mooncake.pool import Borrowed, Pool
from rollferry.engines.mooncake.statuses import EXISTS, FULL, INVALID, MISSING, OVER_QUOTA, PASSING, STATUS, failure
from rollferry.engines.mooncake.surroundings import (
    DEFAULT_TENANT,
    OWN_BUFFER,
    ask,
    available_nbytes,
    check_surroundings,
    limit_waits,
    load_module,
    read_quotas,
    read_room,
)
from rollferry.errors import BundleError, EngineError, EngineFullError, FerryClosedError

__all__ = ["Client", "connect"]

AT_ONCE = 32  # objects in one call: each may take a connection
PAUSES = (0.05, 0.2, 0.5)  # seconds before each further attempt
CLOSE_SECONDS = 0.002  # between looks whether calls are over
GIVES_UP_SECONDS = 55.0  # Mooncake waits for a transfer for 60, and then lets it go on by itself
Transfer = Callable[..., list[int]]  # keys, then addresses, sizes and perhaps more for each -> statuses


class Client:
    """A client that is set up; raises EngineError where it can't be. Made by `connect`.

    Parameters
    ----------
    options
        Which master, and how.
    store
        A store that a framework has set up, to be used and never closed; by default the client has one of its own.
    """

    def __init__(self, options: Options, store: Any = None) -> None:
        self.options = options
        self.users = 0
        self.retries = 0
        module = load_module()
        self._pid = os.getpid()
        self.working: dict[object, None] = {}  # whoever is at work
        self._unremoved: dict[str, None] = {}
        self.closed = False
        self._gone = False  # Mooncake's own part
        self._adopted = store is not None
        self.store: Any = set_up(module, options) if store is None else store
        self.replication: Any = module.ReplicateConfig()
        self.replication.replica_num = options.replicas
        self.replication.with_hard_pin = True
        self.pool = Pool(self._register, self._unregister, options.buffer)
        self.borrowed = Borrowed(self._register, self._unregister)

    def at_work(self) -> "AtWork":
        """Keep the client open meanwhile. Raises EngineError in the child of a fork, and where it is closed."""
        if os.getpid() != self._pid:
            raise forked()
        return AtWork(self)

    def put(self, key: str, addresses: Sequence[int], sizes: Sequence[int], bundle_nbytes: int) -> None:
        """Store one object, put together from registered memory: all of it, or none and EngineError."""
        tries = Tries(self.options.timeout)
        try:
            while True:
                [status] = self._watched(self._put_once, [key], [list(addresses)], [list(sizes)])
                if status not in PASSING or not tries.again():
                    break
                self.retries += 1
                self.discard([key])  # half an object that stayed would pass for a whole one
            if status in (FULL, OVER_QUOTA):
                raise self._full(status, bundle_nbytes)
            if status < 0:
                raise failure(status, f"{key} can't be put")
        except BaseException as error:
            self.discard_after(error, [key])
            raise

    def put_bytes(self, key: str, data: bytes) -> None:
        """Store a small object; one that is there already stays."""
        if self.exists(key):
            return
        region = self.pool.acquire(len(data))
        try:
            region.memory[: len(data)] = np.frombuffer(data, np.uint8)
            self.put(key, [region.address], [len(data)], len(data))
        finally:
            self.pool.release(region)

    def get(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Read objects into registered memory; give for each the bytes that were read, or MISSING.

        They are read few at a time, again where a status may pass, and up to the first that is bad.
        """
        return self._get(self._get_once, keys, [[one] for one in addresses], [[one] for one in sizes])

    def get_ranges(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Read ranges of objects, all into one region of registered memory; see `get`."""
        return self._get(self._get_ranges_once, keys, addresses, sizes, offsets)

    def _get(self, transfer: Transfer, keys: Sequence[str], *places: Sequence[Sequence[int]]) -> list[int]:
        statuses = [0] * len(keys)
        for start in range(0, len(keys), AT_ONCE):
            tries = Tries(self.options.timeout)
            todo = list(range(start, min(start + AT_ONCE, len(keys))))
            while True:
                found = self._watched(transfer, [keys[n] for n in todo], *[[one[n] for n in todo] for one in places])
                for n, status in zip(todo, found, strict=True):
                    statuses[n] = status
                todo = [n for n in todo if statuses[n] in PASSING]
                if not todo or not tries.again():
                    break
                self.retries += 1
            if any(status < 0 for status in statuses[start : start + AT_ONCE]):
                break
        for key, status in zip(keys, statuses, strict=True):
            if status == INVALID:
                raise BundleError(f"{key} is not as long as its bundle says")
            if status < 0 and status != MISSING:
                raise failure(status, f"{key} can't be read")
        return statuses

    def _put_once(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        statuses: list[int]
        if all(len(one) == 1 for one in addresses):  # which takes less of a processor that others use too
            places = [one[0] for one in addresses], [one[0] for one in sizes]
            statuses = self.store.batch_put_from(keys, *places, self.replication)
        else:
            statuses = self.store.batch_put_from_multi_buffers(keys, addresses, sizes, self.replication)
        return statuses

    def _get_once(self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]]) -> list[int]:
        statuses: list[int] = self.store.batch_get_into(keys, [one[0] for one in addresses], [one[0] for one in sizes])
        return statuses

    def _get_ranges_once(
        self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]], offsets: list[list[int]]
    ) -> list[int]:
        base = min(map(min, addresses))
        places = [[address - base for address in of_key] for of_key in addresses]
        [found] = self.store.get_into_ranges([base], [keys], [places], [offsets], [sizes])
        return [min(of_key) if min(of_key) < 0 else sum(of_key) for of_key in found]

    def _watched(self, transfer: Transfer, keys: list[str], addresses: list[Sequence[int]], *more: object) -> list[int]:
        """Transfer objects. Memory that Mooncake may still be at work on afterwards is never used again."""
        statuses: list[int] = []
        began = time.monotonic()
        try:
            statuses = transfer(keys, addresses, *more)
        finally:
            if time.monotonic() - began >= GIVES_UP_SECONDS:
                for n, places in enumerate(addresses):
                    if n >= len(statuses) or statuses[n] < 0:
                        self.pool.retire(places)
                        self.borrowed.retire(places)
        return statuses

    def check_absent(self, keys: Sequence[str]) -> None:
        """Raise EngineError where an object exists: Mooncake would report success, and keep the old one."""
        for key, status in zip(keys, self.store.batch_is_exist(list(keys)), strict=True):
            if status != 0:
                raise failure(status if status < 0 else EXISTS, f"{key} can't be put")

    def discard_after(self, error: BaseException, keys: Sequence[str]) -> None:
        """Remove what was put before an error, which is the one to raise."""
        try:
            self.discard_unpublished(keys)
        except EngineError as second:
            error.add_note(f"removing what was put failed too, and is tried again with the next put: {second}")

    def discard_unpublished(self, keys: Sequence[str]) -> None:
        """Remove objects of a bundle that was never published; where that fails, the next put tries again."""
        self._unremoved.update(dict.fromkeys(keys))
        self.sweep()

    def sweep(self) -> None:
        """Remove what couldn't be removed before."""
        keys = list(self._unremoved)
        if keys:
            self.discard(keys)
            for key in keys:
                self._unremoved.pop(key, None)

    def size(self, key: str) -> int | None:
        """Give the bytes of an object; None where there is none."""
        for pause in (*PAUSES, None):
            nbytes: int = self.store.get_size(key)
            if nbytes >= 0:
                return nbytes
            if nbytes == MISSING:
                return None
            if nbytes not in PASSING or pause is None:
                break
            self.retries += 1
            time.sleep(pause)
        raise failure(nbytes, f"{key} can't be looked for")

    def exists(self, key: str) -> bool:
        """Say whether there is an object."""
        status = self.store.is_exist(key)
        if status < 0:
            raise failure(status, f"{key} can't be looked for")
        return bool(status)

    def discard(self, keys: Sequence[str]) -> list[bool]:
        """Remove objects, whoever reads them; say for each whether it was there."""
        statuses = self.store.batch_remove(list(keys), True)
        for key, status in zip(keys, statuses, strict=True):
            if status not in (0, MISSING):
                raise failure(status, f"{key} can't be removed")
        return [status == 0 for status in statuses]

    def discard_all(self, start: str) -> None:
        """Remove all objects whose keys start so, of which the tenant's need not be listed."""
        status = self.store.remove_by_regex(f"^{re.escape(start)}", True)
        if status < 0:
            raise failure(status, f"{start} can't be removed")

    def sizes(self, keys: Sequence[str]) -> dict[str, int]:
        """Give the bytes that objects take, with all replicas, for those that exist."""
        found = self.store.batch_get_replica_desc(list(keys))
        return {
            key: sum(one.get_memory_descriptor().buffer_descriptor.size for one in replicas if one.is_memory_replica())
            for key, replicas in found.items()
        }

    def all_keys(self) -> list[str]:
        """Give the keys of all objects of the tenant. Raises EngineError where the master doesn't list them."""
        try:
            if self.options.tenant != DEFAULT_TENANT and read_quotas(self.options):
                raise EngineError(
                    f"the master lists the bundles of the tenant 'default' only, not of {self.options.tenant!r}: list, usage, gc, "
                    "readers= and full='evict-oldest' need tenant='default' (docs/mooncake.md)"
                )
            return ask(self.options, "get_all_keys").splitlines()
        except OSError as error:
            raise EngineError(
                f"the master's HTTP server at http://{self.options.host}:{self.options.metrics} gives no answer ({error}); "
                f"list and usage need it: connect with ?metrics=PORT, the --metrics_port of mooncake_master"
            ) from error

    def close(self) -> None:
        """End this user; the last one ends the client, and with it the segment that it lends, when running calls are over.

        Until then it stays in CLIENTS, without users, so that a connect with the same options waits for its ports, devices
        and memory, and others don't.
        """
        if os.getpid() != self._pid:
            return
        with CHANGED:
            self.users -= 1
            if self.users:
                return
        try:
            self.closed = True
            while self.working:
                time.sleep(CLOSE_SECONDS)
            self.pool.close()
            self._gone = True
            if not self._adopted:
                self.store.close()
        finally:
            with CHANGED:
                if CLIENTS.get(self.options) is self:
                    del CLIENTS[self.options]
                CHANGED.notify_all()

    def _full(self, status: int, nbytes: int) -> EngineFullError:
        try:
            room = read_room(self.options)
        except OSError:
            room = None
        if room is None:
            known = "how much the store has is unknown"
        elif room.capacity:
            known = f"the whole store has {room.free:,} bytes free, perhaps in pieces"
        else:
            known = "no process lends memory at present"
        return EngineFullError(
            f"Mooncake Store has no room for {nbytes:,} bytes in {self.options.replicas} replica(s): {STATUS[status]}; {known}. "
            f"Remove bundles, or start clients with a larger ?segment=",
            needed=nbytes,
            free=room.free if room else 0,
        )

    def _register(self, address: int, nbytes: int) -> None:
        status = self.store.register_buffer(address, nbytes)
        if status != 0:
            raise failure(status, f"{nbytes:,} bytes of memory can't be registered; is 'ulimit -l' too low?")

    def _unregister(self, address: int) -> None:
        if not self._gone:  # what results hold may come back later
            self.store.unregister_buffer(address)


def set_up(module: Any, options: Options) -> Any:
    """Make a store. Raises EngineError where that can't be."""
    hostname = check_surroundings(options)
    limit_waits(options.timeout)
    store = module.MooncakeDistributedStore()
    config = {
        "local_hostname": hostname,
        "metadata_server": options.metadata,
        "global_segment_size": str(options.segment),
        "local_buffer_size": str(OWN_BUFFER),
        "protocol": options.protocol,
        "rdma_devices": options.device,
        "master_server_addr": options.master,
        "tenant_id": options.tenant,
    }
    status = store.setup(config)
    if status != 0:
        store.close()
        raise EngineError(
            f"Mooncake's client can't be set up (status {status}) with {options.protocol}, a segment of "
            f"{options.segment:,} bytes; {available_nbytes():,} bytes of memory are available. The lines that it logged "
            f"say why: too large a ?segment=, an address that can't be used, or memory that can't be locked"
        )
    return store


class AtWork:
    """Keeps a client open as long as it is entered.

    By steps that no exception of a signal handler can come between, which a lock or a generator would not be.

    Parameters
    ----------
    client
        The client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> None:
        self._client.working[self] = None
        if self._client.closed:
            del self._client.working[self]
            raise FerryClosedError("the engine is closed; connect again")

    def __exit__(self, *_: object) -> None:
        del self._client.working[self]


class Tries:
    """Attempts at one transfer, with pauses in between.

    Parameters
    ----------
    timeout
        Seconds that one may take.
    """

    def __init__(self, timeout: float) -> None:
        self._late = time.monotonic() + min(timeout, GIVES_UP_SECONDS) / 2
        self._pauses = iter(PAUSES)

    def again(self) -> bool:
        """Wait for the next attempt; False where there is none: they were enough, or took too long to be passing trouble."""
        pause = next(self._pauses, None)
        if pause is None or time.monotonic() > self._late:
            return False
        time.sleep(pause)
        return True


CLIENTS: dict[Options, Client] = {}
CHANGED = threading.Condition(threading.Lock())  # CLIENTS, or the users of one
LEAKED: list[Any] = []


def connect(options: Options, store: Any = None) -> Client:
    """Give the process's client of these options, made over a given store or its own if it is the first; it has one user more."""
    if LEAKED:
        raise forked()
    with CHANGED:
        CHANGED.wait_for(lambda: options not in CLIENTS or CLIENTS[options].users)  # one without is being closed
        client = CLIENTS.get(options)
        if client is None:
            client = CLIENTS[options] = Client(options, store)
        client.users += 1
        return client


def after_fork() -> None:
    """Forget the parent's clients, but never let the child destroy them: it has none of their threads."""
    global CHANGED  # noqa: PLW0603  # the parent may have held it
    CHANGED = threading.Condition(threading.Lock())
    for client in CLIENTS.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client.store))
        LEAKED.append(client)
    CLIENTS.clear()


os.register_at_fork(after_in_child=after_fork)


def forked() -> EngineError:
    """Make the error of a child."""
    return EngineError(
        "mooncake:// can't be used in the child of a fork, as Mooncake's threads are not there: start the process with "
        "multiprocessing's 'spawn', or connect after the fork only"
    )
