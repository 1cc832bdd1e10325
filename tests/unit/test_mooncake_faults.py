"""What the client of mooncake:// does with each status code; the store is a fake, as real ones fail too rarely."""

import os
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry.engines.mooncake import client as module
from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.engine import MooncakeEngine
from rollferry.engines.mooncake.options import options_of
from rollferry.engines.registry import EngineURL, parse_url
from rollferry.errors import BundleError, BundleNotFoundError, EngineError, EngineFullError, FerryClosedError

BATCH = {"x": np.arange(20_000)}


class FakeStore:
    """Objects in a dict; `faults` gives the status of a call, by its name and number, or None to do it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: Callable[[str, int, str], int | None] = lambda name, turn, key: None
        self.turns: dict[str, int] = {}
        self.memory: dict[int, Any] = {}
        self.setup_status = 0
        self.closed = 0

    def setup(self, config: dict[str, str]) -> int:
        return self.setup_status

    def close(self) -> int:
        self.closed += 1
        return 0

    def register_buffer(self, address: int, nbytes: int) -> int:
        return 0

    def unregister_buffer(self, address: int) -> int:
        return 0

    def each(self, name: str, keys: list[str], do: Callable[[int, str], int]) -> list[int]:
        self.turns[name] = turn = self.turns.get(name, 0) + 1
        found = [(n, key, self.faults(name, turn, key)) for n, key in enumerate(keys)]
        return [do(n, key) if fault is None else fault for n, key, fault in found]

    def batch_put_from_multi_buffers(
        self, keys: list[str], addresses: list[list[int]], sizes: list[list[int]], config: object
    ) -> list[int]:
        def do(n: int, key: str) -> int:
            pieces = [view(*place).tobytes() for place in zip(addresses[n], sizes[n], strict=True)]
            self.objects.setdefault(key, b"".join(pieces))
            return 0

        return self.each("put", keys, do)

    def batch_put_from(self, keys: list[str], addresses: list[int], sizes: list[int], config: object) -> list[int]:
        return self.batch_put_from_multi_buffers(keys, [[one] for one in addresses], [[one] for one in sizes], config)

    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        def do(n: int, key: str) -> int:
            data = self.objects.get(key)
            if data is None:
                return -704
            if len(data) > sizes[n]:
                return -600
            view(addresses[n], len(data))[:] = np.frombuffer(data, np.uint8)
            return len(data)

        return self.each("get", keys, do)

    def get_into_ranges(self, buffers: Any, keys: Any, places: Any, offsets: Any, sizes: Any) -> Any:
        [base], [keys], [places], [offsets], [sizes] = buffers, keys, places, offsets, sizes
        found: list[list[int]] = []

        def do(n: int, key: str) -> int:
            for place, offset, size in zip(places[n], offsets[n], sizes[n], strict=True):
                data = self.objects.get(key)
                if data is None or offset + size > len(data):
                    found[n].append(-704 if data is None else -600)
                else:
                    view(base + place, size)[:] = np.frombuffer(data[offset : offset + size], np.uint8)
                    found[n].append(size)
            return 0

        found += [[] for _ in keys]
        for n, status in enumerate(self.each("ranges", keys, do)):
            if status:
                found[n] = [*sizes[n][:-1], status]  # the last range of the object
        return [found]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return self.each("exist", keys, lambda n, key: int(key in self.objects))

    def is_exist(self, key: str) -> int:
        return self.batch_is_exist([key])[0]

    def get_size(self, key: str) -> int:
        return self.each("size", [key], lambda n, key: len(self.objects[key]) if key in self.objects else -704)[0]

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        assert force
        return self.each("remove", keys, lambda n, key: -704 if self.objects.pop(key, None) is None else 0)


def view(address: int, nbytes: int) -> Any:
    import ctypes

    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    store = FakeStore()
    fake = SimpleNamespace(MooncakeDistributedStore=lambda: store, ReplicateConfig=SimpleNamespace)
    monkeypatch.setattr(module, "load_module", lambda: fake)
    monkeypatch.setattr(module, "check_surroundings", lambda options: "here")
    monkeypatch.setattr(module, "PAUSES", (0, 0, 0))
    return store


def ferry_of(chunk: int = 4096) -> rollferry.Ferry:
    options = options_of(EngineURL("mooncake", "127.0.0.1:1", "", {"chunk": str(chunk), "metrics": "1"}))
    engine = MooncakeEngine(Client(options))
    return rollferry.Ferry(engine)


@pytest.mark.parametrize("status", [-800, -900, -1, -200, -705])
@pytest.mark.parametrize("suffix", ["/7", "/root"])
def test_put_that_fails_leaves_nothing(store: FakeStore, status: int, suffix: str) -> None:
    ferry = ferry_of()
    store.faults = lambda name, turn, key: status if name == "put" and key.endswith(suffix) else None
    with pytest.raises(EngineFullError if status == -200 else EngineError) as caught:
        ferry.put(BATCH)
    assert type(caught.value) is (EngineFullError if status == -200 else EngineError)
    assert store.objects == {}
    store.faults = lambda name, turn, key: None
    assert (ferry.get(ferry.put(BATCH))["x"] == BATCH["x"]).all()


@pytest.mark.parametrize("suffix", ["/7", "/root"])
def test_what_cant_be_removed_is_removed_by_the_next_put(store: FakeStore, suffix: str) -> None:
    """A network that is cut fails the put, and the removal of what it had put."""
    ferry = ferry_of()
    store.faults = lambda name, turn, key: (
        -900 if name == "remove" or (name == "put" and key.endswith(suffix)) else None
    )
    with pytest.raises(EngineError, match="Mooncake status -900") as caught:
        ferry.put(BATCH)
    assert any("next put" in note for note in caught.value.__notes__)
    assert len(store.objects) >= 7
    store.faults = lambda name, turn, key: None
    ref = ferry.put({"x": 1})
    assert [key for key in store.objects if ref.id not in key] == []
    assert ferry.get(ref) == {"x": 1}


def test_put_that_fails_once_is_tried_again(store: FakeStore) -> None:
    """What the failed attempt left is removed first: Mooncake calls it a success to put what exists."""
    ferry = ferry_of()

    def faults(name: str, turn: int, key: str) -> int | None:
        if name == "put" and turn == 4 and key.endswith("/3"):
            store.objects[key] = b"half"
            return -800
        return None

    store.faults = faults
    assert (ferry.get(ferry.put(BATCH))["x"] == BATCH["x"]).all()
    assert ferry._engine.retries == 1


@pytest.mark.parametrize("status", [-703, -707, -800])
@pytest.mark.parametrize("chunk", [4096, 1 << 20])
def test_get_retries_what_may_pass(store: FakeStore, status: int, chunk: int) -> None:
    ferry = ferry_of(chunk)
    ref = ferry.put(BATCH)
    store.faults = lambda name, turn, key: status if name == "get" and turn <= 2 else None
    assert (ferry.get(ref)["x"] == BATCH["x"]).all()
    store.faults = lambda name, turn, key: status if name == "get" else None
    store.turns.clear()
    with pytest.raises(EngineError, match=f"Mooncake status {status}"):
        ferry.get(ref)
    assert store.turns["get"] == 4


def test_lengths_that_are_wrong(store: FakeStore) -> None:
    ferry = ferry_of()
    ref = ferry.put(BATCH)
    good = dict(store.objects)
    for key in good:
        for data in (good[key] + b"x", good[key][:-1], b""):
            store.objects = {**good, key: data}
            with pytest.raises(BundleError, match=ref.id):
                ferry.get(ref)
    store.objects = good
    store.faults = lambda name, turn, key: 10 if name == "get" else None  # a short read
    with pytest.raises(BundleError, match="10 bytes were read"):
        ferry.get(ref)


def test_removed_between_steps(store: FakeStore) -> None:
    ferry = ferry_of()
    ref = ferry.put(BATCH)
    good = dict(store.objects)
    for step in ("get", "exist"):
        for when in (1, 2):
            store.objects = dict(good)
            store.turns.clear()

            def faults(name: str, turn: int, key: str, step: str = step, when: int = when) -> None:
                if name == step and turn == when:
                    store.objects.clear()

            store.faults = faults
            if (step, when) == ("exist", 2):
                ferry.get(ref)  # it looks only once
            else:
                with pytest.raises(BundleNotFoundError):
                    ferry.get(ref)


def test_setup_that_fails_leaves_no_client(store: FakeStore) -> None:
    store.setup_status = -1
    with pytest.raises(EngineError, match="536,870,912 bytes.*are available"):
        rollferry.connect("mooncake://127.0.0.1:1")
    assert (store.closed, module.CLIENTS) == (1, {})
    store.setup_status = 0
    rollferry.connect("mooncake://127.0.0.1:1").close()
    assert (store.closed, module.CLIENTS) == (2, {})


def test_memory_of_a_transfer_that_was_given_up_is_never_used_again(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ferry = ferry_of()
    pool = ferry._engine._client.pool
    ref = ferry.put(BATCH)
    held = pool.free_nbytes, pool._registered
    monkeypatch.setattr(module, "GIVES_UP_SECONDS", 0)
    for name in ("get", "put"):
        store.faults = lambda call, turn, key, name=name: -800 if call == name and key.endswith("/2") else None
        for _ in range(3):
            with pytest.raises(EngineError, match="Mooncake status -800"):
                ferry.get(ref) if name == "get" else ferry.put(BATCH)
    store.faults = lambda name, turn, key: None
    assert pool.free_nbytes
    retired = list(pool._retired)
    assert len(retired) == 6
    assert len({region.address for region in retired}) == 6
    before = [region.memory.tobytes() for region in retired]
    assert (ferry.get(ferry.put(BATCH))["x"] == BATCH["x"]).all()
    assert [region.memory.tobytes() for region in retired] == before
    assert len(pool._retired) == 6
    assert pool._registered <= 2 * held[1]  # they don't count


def test_array_that_a_given_up_transfer_may_read_stays(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry = ferry_of(1 << 20)
    borrowed = ferry._engine._client.borrowed
    batch = {"x": np.arange(1 << 18)}
    monkeypatch.setattr(module, "GIVES_UP_SECONDS", 0)
    store.faults = lambda call, turn, key: -800 if call == "put" and key.endswith("/1") else None
    with pytest.raises(EngineError, match="Mooncake status -800"):
        ferry.put(batch)
    store.faults = lambda name, turn, key: None
    assert [memory.ctypes.data for memory in borrowed._retired] == [batch["x"].ctypes.data]
    assert (ferry.get(ferry.put(batch))["x"] == batch["x"]).all()  # copied from now on, as it is taken


def test_pieces_are_joined_only_within_one_registration(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that lie side by side are registered one by one, so a range must not go from one to the other."""
    seen: list[list[int]] = []
    put = store.batch_put_from_multi_buffers

    def watched(keys: list[str], addresses: list[list[int]], sizes: list[list[int]], config: object) -> list[int]:
        seen.extend(sizes)
        return put(keys, addresses, sizes, config)

    monkeypatch.setattr(store, "batch_put_from_multi_buffers", watched)
    ferry = ferry_of(16 << 20)
    base = np.arange(1 << 20)
    batch = {"a": base[: 1 << 19], "b": base[1 << 19 :], "c": np.arange(10), "d": [1, 2, 3]}
    ref = ferry.put(batch)
    assert seen[0][:3] == [64, 4 << 20, 4 << 20]
    assert len(seen[0]) == 4  # what is staged behind them is one piece again, with the manifest
    result = ferry.get(ref)
    assert all(np.array_equal(result[name], batch[name]) for name in batch)


def test_interrupted_transfer_is_not_taken_as_over(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ferry = ferry_of()
    pool = ferry._engine._client.pool
    monkeypatch.setattr(module, "GIVES_UP_SECONDS", 0)

    def interrupt(name: str, turn: int, key: str) -> None:
        if name == "get":
            raise KeyboardInterrupt

    ref = ferry.put({"x": 1})
    store.faults = interrupt
    with pytest.raises(KeyboardInterrupt):
        ferry.get(ref)
    store.faults = lambda name, turn, key: None
    assert pool.free_nbytes >= 0
    assert len(pool._retired) == 1
    assert ferry.get(ref) == {"x": 1}


@pytest.mark.parametrize("name", ["get", "put"])
def test_what_takes_long_is_not_tried_again(store: FakeStore, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ferry = ferry_of()
    ref = ferry.put(BATCH)
    store.turns.clear()
    clock = iter(range(0, 10_000, 15))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    store.faults = lambda call, turn, key: -800 if call == name else None
    with pytest.raises(EngineError, match="Mooncake status -800"):
        ferry.get(ref) if name == "get" else ferry.put(BATCH)
    assert store.turns[name] == 1


def test_waits_of_mooncake_are_limited(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MC_RPC_TIMEOUT_MS", "MC_RPC_CONNECT_TIMEOUT_MS", "MC_TCP_STATUS_TIMEOUT_SEC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.delenv("MC_TCP_PROGRESS_TIMEOUT_SEC", raising=False)
    for query, seconds in (("", 20), ("?timeout=8", 8), ("", 20)):
        rollferry.connect(f"mooncake://127.0.0.1:1{query}").close()
        assert os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] == os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] == str(seconds)
        assert os.environ["MC_RPC_TIMEOUT_MS"] == str(1000 * seconds)
        assert os.environ["MC_RPC_CONNECT_TIMEOUT_MS"] == str(250 * seconds)


def test_close_that_waits_keeps_nobody_else_waiting(store: FakeStore) -> None:
    old, other = (options_of(parse_url(f"mooncake://127.0.0.1:1?chunk={chunk}")) for chunk in (4096, 8192))
    client = module.connect(old)
    assert module.connect(old) is client
    client.close()
    assert (client.users, store.closed) == (1, 0)
    again: list[Client] = []
    closing = threading.Thread(target=client.close)
    connecting = [threading.Thread(target=lambda: again.append(module.connect(old))) for _ in range(3)]
    with client.at_work():
        closing.start()
        while not client.closed:
            pass
        module.connect(other).close()  # others come and go
        assert store.closed == 1
        for thread in connecting:
            thread.start()
        connecting[0].join(0.2)
        assert again == []
        with pytest.raises(FerryClosedError), client.at_work():
            pass
    for thread in (closing, *connecting):
        thread.join()
    assert store.closed == 2
    assert again[0] is not client
    assert all(one is again[0] for one in again)
    assert module.CLIENTS == {old: again[0]}
    for users in (2, 1, 0):
        again[0].close()
        assert again[0].users == users
    assert (store.closed, module.CLIENTS) == (3, {})


def test_close_that_fails_leaves_no_client(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    client = module.connect(options_of(parse_url("mooncake://127.0.0.1:1")))

    def fails() -> None:
        raise RuntimeError("as it may be")

    monkeypatch.setattr(store, "close", fails)
    with pytest.raises(RuntimeError):
        client.close()
    assert module.CLIENTS == {}


def test_metrics_port_of_something_else(store: FakeStore) -> None:
    def answer(server: socket.socket) -> None:
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        client = Client(options_of(parse_url(f"mooncake://127.0.0.1:1?metrics={server.getsockname()[1]}")))
        assert "is unknown" in str(client._full(-200, 1))
        with pytest.raises(EngineError, match="metrics=PORT"):
            client.all_keys()
        thread.join()


ROWS = slice(2_000, 2_100)  # 800 bytes of the chunks 3 and 4


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows far apart, which are not worth to be read along."""
    monkeypatch.setattr("rollferry.engines.mooncake.reader.NEAR", 64)
    return [10, 3_000, 9_000, 19_000]


@pytest.mark.parametrize("status", [-703, -707, -800, -900, -704, -600])
def test_ranges_that_fail(store: FakeStore, several: list[int], status: int) -> None:
    ferry = ferry_of()
    ref = ferry.put(BATCH)
    passing = status in (-703, -707, -800)
    store.faults = lambda name, turn, key: status if name == "ranges" and turn <= 2 and key.endswith("/5") else None
    if passing:
        assert (ferry.get(ref, rows=several)["x"] == BATCH["x"][several]).all()
    store.faults = lambda name, turn, key: status if name == "ranges" and key.endswith("/5") else None
    store.turns.clear()
    with pytest.raises(BundleError if status in (-704, -600) else EngineError, match="/5 can't|/5 is not|chunk 5 of"):
        ferry.get(ref, rows=several)
    assert store.turns["ranges"] == (4 if passing else 1)
    assert "get" not in store.turns or store.turns["get"] == 1  # the root, and no chunk


def test_chunk_that_is_too_short_for_its_ranges(store: FakeStore) -> None:
    ferry = ferry_of()
    ref = ferry.put(BATCH)
    key = next(key for key in store.objects if key.endswith("/4"))
    store.objects[key] = store.objects[key][:10]
    with pytest.raises(BundleError, match="/4 is not as long as its bundle says"):
        ferry.get(ref, rows=ROWS)


def test_memory_of_ranges_that_were_given_up(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never used again; that of calls that were interrupted neither, if they took so long; otherwise it is free again."""
    ferry = ferry_of()
    pool = ferry._engine._client.pool
    ref = ferry.put(BATCH)

    def interrupt(name: str, turn: int, key: str) -> int | None:
        if name == "ranges":
            raise KeyboardInterrupt
        return None

    def fail(name: str, turn: int, key: str) -> int | None:
        return -800 if name == "ranges" and key.endswith("/4") else None

    for faults, error in ((interrupt, KeyboardInterrupt), (fail, EngineError)):
        for seconds, retired in ((55.0, 0), (0, 1)):
            monkeypatch.setattr(module, "GIVES_UP_SECONDS", seconds)
            store.faults = faults
            pool._retired.clear()
            with pytest.raises(error):
                ferry.get(ref, rows=ROWS)
            store.faults = lambda name, turn, key: None
            assert pool.free_nbytes == pool._registered
            assert len(pool._retired) == retired
    assert (ferry.get(ref, rows=ROWS)["x"] == BATCH["x"][ROWS]).all()


def test_root_that_another_bundle_overwrote_while_it_was_read(store: FakeStore) -> None:
    """The memory of a removed bundle is used again at once; what was read is then a good root, of another bundle."""
    ferry = ferry_of()
    ref, other = ferry.put(BATCH), ferry.put(BATCH)
    root, foreign = (next(key for key in store.objects if r.id in key and key.endswith("/root")) for r in (ref, other))
    mine = store.objects[root]

    def removed(name: str, turn: int, key: str) -> None:
        if name == "get" and key == root:
            store.objects[root] = store.objects[foreign]

    def cleared(name: str, turn: int, key: str) -> None:
        removed(name, turn, key)
        if name == "size" and turn == 2:
            store.objects.pop(root)

    store.faults = removed
    with pytest.raises(rollferry.RefError, match="not the one"):
        ferry.get(ref, rows=ROWS)
    store.objects[root] = mine
    store.turns.clear()
    store.faults = cleared
    with pytest.raises(BundleNotFoundError):
        ferry.get(ref, rows=ROWS)
