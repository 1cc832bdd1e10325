"""What every engine and every layout must do, as pytest classes to inherit from; needs pytest.

>>> class TestShm(EngineContract):  # doctest: +SKIP
...     @pytest.fixture
...     def url(self, tmp_path):
...         return f"shm://{tmp_path}"
"""

import secrets
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rollferry.bundle.publish import Terms
from rollferry.engines.base import Bytes, Engine, Ready
from rollferry.engines.registry import open_engine
from rollferry.errors import BundleNotFoundError, EngineError, EngineFullError
from rollferry.ferry import Ferry
from rollferry.memory.leases import frozen
from rollferry.testing.equality import assert_same
from rollferry.testing.faulty import FaultyEngine
from rollferry.testing.layout_contract import LayoutContract

__all__ = ["EngineContract", "FaultyEngine", "LayoutContract"]

SIZES = (0, 1, 63, 64, 65, 4096, 100_003)


def new_key(namespace: str = "contract") -> str:
    """Give a key that was never used."""
    return f"{namespace}.{secrets.token_hex(16)}"


def payload_of(nbytes: int, seed: int = 0) -> bytes:
    """Give a payload that differs everywhere from that of another seed."""
    return np.random.default_rng(seed).bytes(nbytes)


def fill(chunks: Iterable[Bytes], payload: bytes) -> None:
    """Write a payload to the chunks of a writer."""
    start = 0
    for chunk in chunks:
        if chunk.flags.writeable:
            chunk[:] = np.frombuffer(payload[start : start + len(chunk)], np.uint8)
        start += len(chunk)


def put(engine: Engine, payload: bytes, manifest: bytes = b"the manifest", namespace: str = "contract") -> str:
    """Publish a bundle; give its key."""
    key = new_key(namespace)
    writer = engine.begin(key, len(payload), len(manifest))
    try:
        fill(writer.chunks, payload)
        writer.publish(manifest)
    except BaseException:
        writer.abort()
        raise
    return key


def get(engine: Engine, key: str) -> Bytes:
    """Fetch the whole payload of a bundle."""
    reader = engine.open(key)
    try:
        return reader.fetch([(0, reader.payload_nbytes)])[0]
    finally:
        reader.close()


class EngineContract:
    """What an engine must do. A subclass gives the fixture `url`; each test starts with an empty engine.

    Attributes
    ----------
    opened_stays
        Whether a bundle that was opened can be fetched after its removal. Otherwise fetch raises BundleNotFoundError.
    reserves
        Whether bytes can be set aside. Otherwise reserve raises EngineError.
    guarantees
        Whether bytes can be kept for a namespace. Otherwise guarantee raises EngineError.
    slack
        Bytes by which what is free may change meanwhile, by others.
    """

    opened_stays = True
    reserves = True
    guarantees = True
    slack = 64 << 20

    @pytest.fixture
    def url(self) -> str:
        """Give the URL of an engine that nobody else uses and that is empty."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self, url: str) -> Iterator[Engine]:
        """Open the engine."""
        engine = open_engine(url)
        yield engine
        engine.close()

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_bundle_comes_back(self, engine: Engine, nbytes: int) -> None:
        """Manifest and payload are the bytes that were written."""
        payload = payload_of(nbytes)
        reader = engine.open(put(engine, payload, b"\0manifest\xff"))
        assert reader.manifest == b"\0manifest\xff"
        assert reader.payload_nbytes == nbytes
        assert reader.fetch([(0, nbytes)])[0].tobytes() == payload
        reader.close()

    @pytest.mark.parametrize("nbytes", SIZES)
    def test_chunks_are_writable_memory_for_the_payload(self, engine: Engine, nbytes: int) -> None:
        """Lent chunks are as long together as was asked for."""
        writer = engine.begin(new_key(), nbytes, 1)
        lent = 0
        for chunk in writer.chunks:
            lent += len(chunk)
            assert chunk.dtype == np.uint8
            assert chunk.ndim == 1
            assert chunk.flags.writeable
            assert chunk.flags.c_contiguous
        assert lent == nbytes
        writer.abort()

    def test_ready_memory_needs_no_copy(self, engine: Engine) -> None:
        """Parts that are ready are taken as they are, or chunks are lent for them; all bytes arrive in either case."""
        payload = np.frombuffer(payload_of(20_000), np.uint8)
        places = [(64, 5_000), (6_400, 12_345)]
        ready = [Ready(start, frozen(payload[start : start + nbytes])) for start, nbytes in places]
        key = new_key()
        writer = engine.begin(key, len(payload), 1, ready)
        fill(writer.chunks, payload.tobytes())
        writer.publish(b"m")
        assert get(engine, key).tobytes() == payload.tobytes()
        aborted = engine.begin(new_key(), len(payload), 1, ready)
        fill(aborted.chunks, payload.tobytes())
        aborted.abort()
        assert engine.list() == [key]

    @pytest.mark.parametrize("nbytes", [0, 1, 1_000_003])
    def test_manifest_may_have_any_length(self, engine: Engine, nbytes: int) -> None:
        """It is kept byte for byte."""
        manifest = payload_of(nbytes, seed=5)
        reader = engine.open(put(engine, b"payload", manifest))
        assert reader.manifest == manifest
        reader.close()

    def test_unpublished_is_invisible(self, engine: Engine, url: str) -> None:
        """Nobody sees a bundle before it is published."""
        key = new_key()
        writer = engine.begin(key, 100, 1)
        fill(writer.chunks, payload_of(100))
        for other in (engine, open_engine(url)):
            assert other.list() == []
            assert other.usage().bundles == 0
            with pytest.raises(BundleNotFoundError):
                other.open(key)
            assert other.remove(key) is False
        writer.publish(b"m")
        assert engine.list() == [key]

    def test_sizes(self, engine: Engine) -> None:
        """Every bundle is there, with its bytes at least."""
        keys = {put(engine, payload_of(nbytes), b"m"): nbytes for nbytes in (0, 10, 100_000)}
        sizes = engine.sizes()
        assert set(sizes) == set(keys)
        assert all(sizes[key] > nbytes for key, nbytes in keys.items())

    def test_notes_are_seen_by_all_and_end_with_the_bundle(self, engine: Engine, url: str) -> None:
        """Also where two write the same, and in whatever order; who notes something about nothing is told so."""
        key, other = put(engine, b"payload", b"m"), put(engine, b"payload", b"m")
        again = open_engine(url)
        assert engine.notes(key) == set()
        texts = {"done-rank0", "done-a_b.1", "kept-12.500"}
        for text in (*texts, *texts):
            (engine if text.startswith("kept") else again).note(key, text)
        assert engine.notes(key) == again.notes(key) == texts
        assert engine.notes(other) == set()
        assert sorted(engine.list()) == sorted([key, other])
        assert engine.usage().bundles == 2
        engine.remove(key)
        assert engine.notes(key) == set()
        with pytest.raises(BundleNotFoundError):
            engine.note(key, "late")
        assert engine.notes(key) == set()
        engine.remove(other)
        assert engine.usage().live_nbytes == 0

    def test_bytes_are_set_aside_once(self, engine: Engine, url: str) -> None:
        """For one namespace, over all who use the engine; whoever waits longest is next."""
        if not self.reserves:
            with pytest.raises(EngineError):
                engine.reserve("one", "one." + "0" * 32, 1, 100, queue=True)
            return
        other = open_engine(url)
        first, second, third, fourth, last = (f"one.{number:032x}" for number in range(5))
        assert engine.reserve("one", first, 60, 100, queue=True)
        assert not other.reserve("one", second, 60, 100, queue=True)
        assert not engine.reserve("one", third, 10, 100, queue=True)  # it fits, but came later
        assert not engine.reserve("one", fourth, 60, 100, queue=False)  # and has no place then
        assert engine.reserve("two", "two." + "0" * 32, 100, 100, queue=True)
        engine.unreserve(first)
        assert not engine.reserve("one", third, 10, 100, queue=True)
        assert other.reserve("one", second, 60, 100, queue=True)
        assert engine.reserve("one", third, 10, 100, queue=True)
        assert not engine.reserve("one", fourth, 60, 100, queue=False)
        assert engine.reserve("one", last, 1, 100, queue=False)
        engine.unreserve(last)
        other.unreserve(second)
        engine.unreserve(third)
        engine.unreserve("two." + "0" * 32)
        key = put(engine, payload_of(70), b"m")
        namespace = key.rpartition(".")[0]
        assert not engine.reserve(namespace, f"{namespace}.{1:032x}", 60, 100, queue=True)
        engine.remove(key)
        assert engine.reserve(namespace, f"{namespace}.{1:032x}", 60, 100, queue=True)
        engine.unreserve(f"{namespace}.{1:032x}")

    def test_abort_leaves_nothing(self, engine: Engine) -> None:
        """Also the second time; and nothing can be published afterwards."""
        key = new_key()
        writer = engine.begin(key, 100, 1)
        writer.abort()
        writer.abort()
        with pytest.raises(EngineError):
            writer.publish(b"m")
        assert engine.list() == []
        assert engine.usage().live_nbytes == 0

    def test_publishes_once(self, engine: Engine) -> None:
        """A second publish is an error and changes nothing; an abort after it does nothing."""
        key = new_key()
        writer = engine.begin(key, 3, 1)
        fill(writer.chunks, b"abc")
        writer.publish(b"1")
        with pytest.raises(EngineError):
            writer.publish(b"2")
        writer.abort()
        reader = engine.open(key)
        assert (reader.manifest, reader.fetch([(0, 3)])[0].tobytes()) == (b"1", b"abc")

    def test_ranges(self, engine: Engine) -> None:
        """Ranges come in the order asked for; they may be empty, overlap, repeat, and lie anywhere."""
        payload = payload_of(1000)
        reader = engine.open(put(engine, payload))
        ranges = [(990, 10), (0, 0), (5, 700), (64, 1), (1000, 0), (5, 700), (0, 1000)]
        parts = reader.fetch(ranges)
        assert [part.tobytes() for part in parts] == [payload[start : start + n] for start, n in ranges]
        assert reader.fetch([]) == []
        reader.close()

    @pytest.mark.parametrize("writable", [True, False])
    def test_small_ranges_again_and_again(self, engine: Engine, writable: bool) -> None:
        """A reader may be asked for ranges, and all of the payload, as often as is wanted, in any order."""
        payload = payload_of(100_003)
        key = put(engine, payload)
        reader = engine.open(key)
        fetches = [
            [(70_000, 100)],
            [(4090, 12), (0, 0), (8191, 2), (12_288, 4096)],  # across the ends of chunks, and one as a whole
            [(99_000, 1003), (10, 1), (4000, 5000), (10, 1), (4096, 10), (100_003, 0)],
            [(start, 7) for start in range(0, 100_000, 999)],
            [],
            [(50_000, 0)],
            [(0, 100_003), (70_000, 100)],
            [(70_000, 100)],
            [(1, 99_000)],
            [(0, 100_003)],
        ]
        held: list[tuple[tuple[int, int], Bytes]] = []
        for ranges in fetches:
            held += zip(ranges, reader.fetch(ranges, writable=writable), strict=True)
        reader.close()
        for (start, nbytes), part in held:
            assert part.tobytes() == payload[start : start + nbytes]
            assert part.flags.writeable or not writable
            assert not nbytes or part.ctypes.data % 64 == start % 64
        for _, part in held:
            if part.flags.writeable:
                part[:] = 0
        assert get(engine, key).tobytes() == payload

    def test_removed_before_it_is_fetched(self, engine: Engine) -> None:
        """What was opened can be fetched, or it is said that it is gone."""
        payload = payload_of(100_000)
        key = put(engine, payload)
        reader = engine.open(key)
        assert engine.remove(key)
        for seed in range(3):
            put(engine, payload_of(100_000, seed=seed + 1))
        for ranges in ([(10, 20), (60_000, 100)], [(0, 100_000)]):
            if not self.opened_stays:
                with pytest.raises(BundleNotFoundError):
                    reader.fetch(ranges)
                continue
            parts = reader.fetch(ranges)
            assert [part.tobytes() for part in parts] == [payload[start : start + nbytes] for start, nbytes in ranges]
        reader.close()

    def test_fetched_memory_is_aligned(self, engine: Engine) -> None:
        """Members, whose offsets are multiples of 64, lie in memory as they do in the payload."""
        reader = engine.open(put(engine, payload_of(1000)))
        for part in reader.fetch([(0, 100), (128, 100), (960, 40)]):
            assert part.ctypes.data % 64 == 0
        reader.close()

    def test_fetched_is_writable_and_private(self, engine: Engine) -> None:
        """Writing to it reaches neither the stored bundle nor another reader."""
        payload = payload_of(100)
        key = put(engine, payload)
        first, second = get(engine, key), get(engine, key)
        first[:] = 0
        assert second.tobytes() == payload
        assert get(engine, key).tobytes() == payload

    def test_fetched_outlives_everything(self, engine: Engine, url: str) -> None:
        """Memory of a result is its reader's, also when the bundle is removed and its space is used again."""
        payload = payload_of(50_000)
        key = put(engine, payload)
        reader = engine.open(key)
        held = [part[10:] for part in reader.fetch([(0, 50_000), (10, 100)])]
        reader.close()
        reader.close()
        assert engine.remove(key)
        for seed in range(5):
            engine.remove(put(engine, payload_of(50_000, seed=seed + 1)))
        engine.close()
        engine.close()
        other = open_engine(url)
        put(other, payload_of(50_000, seed=9))
        assert held[0].tobytes() == payload[10:]
        assert held[1].tobytes() == payload[20:110]

    def test_remove(self, engine: Engine) -> None:
        """True the first time; afterwards the bundle is gone, and the others are not."""
        key, other = put(engine, b"one"), put(engine, b"other")
        assert engine.remove(key) is True
        assert engine.remove(key) is False
        with pytest.raises(BundleNotFoundError):
            engine.open(key)
        assert engine.list() == [other]
        assert get(engine, other).tobytes() == b"other"

    def test_missing_bundle(self, engine: Engine) -> None:
        """It can't be opened, and not be removed."""
        with pytest.raises(BundleNotFoundError):
            engine.open(new_key())
        assert engine.remove(new_key()) is False

    def test_usage_and_list(self, engine: Engine) -> None:
        """Every published bundle is listed and counted until it is removed."""
        keys = [put(engine, payload_of(10_000, seed=n)) for n in range(200)]
        assert sorted(engine.list()) == sorted(keys)
        usage = engine.usage()
        assert usage.bundles == 200
        assert usage.live_nbytes >= 200 * 10_000
        assert get(engine, keys[77]).tobytes() == payload_of(10_000, seed=77)
        assert all(engine.remove(key) for key in keys)
        assert engine.list() == []
        assert (engine.usage().bundles, engine.usage().live_nbytes) == (0, 0)

    def test_accounts_by_namespace(self, engine: Engine, url: str) -> None:
        """What each holds, and the most that it held, by whoever asks."""
        keys = [put(engine, payload_of(100_000), namespace="one") for _ in range(3)]
        put(engine, payload_of(1_000), namespace="two")
        before = engine.usage().namespaces
        assert {name: held.bundles for name, held in before.items()} == {"one": 3, "two": 1}
        assert before["one"].live_nbytes == sum(engine.sizes()[key] for key in keys)
        for key in keys[1:]:
            engine.remove(key)
        after = engine.usage().namespaces["one"]
        assert after.bundles == 1
        assert (
            100_000 <= after.live_nbytes < before["one"].live_nbytes == before["one"].peak_nbytes == after.peak_nbytes
        )
        other = open_engine(url)
        there = other.usage()
        other.close()
        assert there.bundles == sum(held.bundles for held in there.namespaces.values()) == 2
        assert there.namespaces["one"].peak_nbytes >= after.live_nbytes
        assert {held.guaranteed_nbytes for held in there.namespaces.values()} == {0}
        for key in engine.list():
            engine.remove(key)

    def test_bytes_guaranteed_to_a_namespace_are_left_by_all_others(self, engine: Engine, url: str) -> None:
        """They are its own until the engine that was asked for them is closed; its own bundles count."""
        if not self.guarantees:
            with pytest.raises(EngineError):
                engine.guarantee("one", 1)
            return
        owner = open_engine(url)
        free = engine.usage().free_nbytes
        assert free is not None
        more = 2 * self.slack
        with pytest.raises(EngineFullError, match="one"):
            owner.guarantee("one", free + more)
        owner.guarantee("one", free - more)
        owner.guarantee("one", 1)  # the larger one holds
        assert engine.usage().namespaces["one"].guaranteed_nbytes == free - more
        with pytest.raises(EngineFullError, match="two"):
            engine.guarantee("two", 2 * more)
        with pytest.raises(EngineFullError, match="two") as caught:
            put(engine, bytes(more + self.slack), namespace="two")
        assert caught.value.needed > more
        assert caught.value.free < more + self.slack
        small = put(engine, b"small", namespace="two")
        own = put(engine, bytes(more + self.slack), namespace="one")
        assert engine.usage().namespaces["one"].live_nbytes > more
        with pytest.raises(EngineFullError):  # what it has put is not to be kept any more
            put(engine, bytes(more + self.slack), namespace="two")
        engine.remove(own)
        owner.close()
        assert engine.usage().namespaces.keys() >= {"two"}
        large = put(engine, bytes(more + self.slack), namespace="two")
        for key in (small, large):
            assert engine.remove(key)

    def test_a_guarantee_over_what_others_have_put(self, engine: Engine, url: str) -> None:
        """Who has put already loses nothing; the guarantee says how many bytes there are."""
        if not self.guarantees:
            return
        there = put(engine, payload_of(100_000), namespace="two")
        engine.guarantee("one", 1_000_000)
        own = put(engine, payload_of(10_000), namespace="one")
        assert get(engine, there).tobytes() == payload_of(100_000)
        other = open_engine(url)
        held = other.usage().namespaces
        assert (held["one"].guaranteed_nbytes, held["two"].guaranteed_nbytes) == (1_000_000, 0)
        other.close()  # which gave none
        assert engine.usage().namespaces["one"].guaranteed_nbytes == 1_000_000
        for key in (there, own):
            engine.remove(key)

    def test_nothing_is_unfinished(self, engine: Engine) -> None:
        """A bundle being written is none of those that were left."""
        writer = engine.begin(new_key(), 100_000, 1)
        fill(writer.chunks, payload_of(100_000))
        assert engine.unfinished() == {}
        writer.publish(b"m")
        assert engine.unfinished() == {}
        assert engine.usage().bundles == 1

    def test_opened_twice(self, engine: Engine, url: str) -> None:
        """What one handle puts the other reads and removes; closing one leaves bundles in place."""
        other = open_engine(url)
        key = put(other, b"abc")
        other.close()
        assert get(engine, key).tobytes() == b"abc"
        assert engine.remove(key) is True

    def test_threads(self, engine: Engine) -> None:
        """Many threads put, get and remove at once."""

        def work(number: int) -> None:
            for turn in range(30):
                payload = payload_of(1 + 997 * turn, seed=number * 100 + turn)
                key = put(engine, payload, payload[:9])
                fetched = get(engine, key)
                assert engine.remove(key)
                assert fetched.tobytes() == payload

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        assert engine.list() == []

    def test_several_readers(self, engine: Engine) -> None:
        """One bundle is read by many at once, while it is removed."""
        payload = payload_of(100_000)
        key = put(engine, payload)
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            reader = engine.open(key)
            barrier.wait(60)
            if number == 0:
                assert engine.remove(key)
            try:
                assert reader.fetch([(0, 100_000)])[0].tobytes() == payload
            except BundleNotFoundError:
                assert not self.opened_stays
            reader.close()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))

    @pytest.mark.parametrize("step", ["begin", "chunks", "publish"])
    def test_put_that_fails_leaves_nothing(self, engine: Engine, step: str) -> None:
        """A Ferry gives the step's error on, and everything back."""
        faulty = FaultyEngine(engine, **{step: 1})
        ferry = Ferry(faulty, Terms(namespace="contract", checksum=True))
        batch = {"rows": [np.arange(50), np.arange(1000)], "texts": ["a", "b"]}
        with pytest.raises(EngineError, match=f"{step} fails on purpose"):
            ferry.put(batch)
        assert (faulty.unpublished, engine.list(), engine.usage().live_nbytes) == (0, [], 0)
        ref = ferry.put(batch)
        assert_same(ferry.get(ref, verify="full"), batch)
        assert faulty.unclosed == 0

    @pytest.mark.parametrize("step", ["open", "fetch"])
    def test_get_that_fails_closes_its_reader(self, engine: Engine, step: str) -> None:
        """The bundle stays, and can be read the next time."""
        faulty = FaultyEngine(engine, **{step: 1})
        ferry = Ferry(faulty, Terms(namespace="contract", checksum=False))
        ref = ferry.put({"rows": [1, 2, 3]})
        with pytest.raises(EngineError, match=f"{step} fails on purpose"):
            ferry.get(ref)
        assert faulty.unclosed == 0
        assert_same(ferry.get(ref), {"rows": [1, 2, 3]})
