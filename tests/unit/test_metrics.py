"""What a Ferry counts, and what Prometheus gets of it."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import rollferry
from rollferry import EngineFullError
from rollferry.bundle import lifetime

SIZE = 100_000


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest, shm_directory: Any) -> str:
    return f"shm://{shm_directory}" if request.param == "shm" else f"inproc://{shm_directory.name}"


def batch(nbytes: int = SIZE) -> dict[str, Any]:
    return {"a": np.zeros(nbytes, np.uint8), "b": np.zeros(10_000)}


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample, by name and labels, of the text that a server would give."""
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_counts(url: str) -> None:
    with rollferry.connect(url) as ferry:
        first = ferry.put(batch())
        more = ferry.append(first, {"c": np.zeros(8)})
        ferry.get(first)
        ferry.get(first, fields=["b"])
        read = sum(timing.fetched_nbytes for timing in ferry.timings)
        assert read > 0
        assert ferry.remove(more)
        assert not ferry.remove(first)
        found = ferry.metrics.snapshot()
        assert (found["puts"], found["gets"], found["removes"]) == (2, 2, 1)
        assert found["put_bytes"] == first.nbytes + more.nbytes
        assert found["fetched_bytes"] == read
        assert (found["waits"], found["waited_seconds"], found["refusals"]) == (0, 0, 0)
        assert {phase: told["count"] for phase, told in found["phases"]["put"].items()} == {
            "choose": 2,
            "pack": 2,
            "publish": 2,
        }
        seconds = sum(timing.phases["pack"] for timing in ferry.timings if timing.operation == "put")
        assert found["phases"]["put"]["pack"]["seconds"] == pytest.approx(seconds)
        with pytest.raises(rollferry.UnsupportedValueError):
            ferry.put({"x": object()})
        assert ferry.metrics.snapshot() == found


def test_waits_and_refusals(url: str) -> None:
    with rollferry.connect(url, quota=3 * SIZE, full="block", patience=0.2) as ferry:
        refs = [ferry.put({"a": np.zeros(SIZE, np.uint8)}) for _ in range(2)]
        with pytest.raises(EngineFullError):
            ferry.put({"a": np.zeros(2 * SIZE, np.uint8)})
        found = ferry.metrics.snapshot()
        assert (found["puts"], found["refusals"], found["waits"]) == (2, 1, 1)
        refused = found["waited_seconds"]
        assert refused > 0
        thread = threading.Thread(target=lambda: (time.sleep(0.05), ferry.remove(refs[0])))
        thread.start()
        ferry.put({"a": np.zeros(2 * SIZE - 10_000, np.uint8)})
        thread.join()
        found = ferry.metrics.snapshot()
        assert (found["puts"], found["refusals"], found["waits"]) == (3, 1, 2)
        assert list(ferry.timings[-1].phases) == ["choose", "wait", "pack", "publish"]
        assert found["waited_seconds"] - refused == pytest.approx(ferry.timings[-1].phases["wait"])


def test_reclaimed(shm_directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"shm://{shm_directory}"
    code = "import rollferry, sys; rollferry.connect(sys.argv[1]).put({'a': [1]})"
    subprocess.run([sys.executable, "-c", code, url], check=True)
    with rollferry.connect(url) as ferry:
        ferry.put(batch(), ttl=1000)
        real = time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + lifetime.ORPHAN_SECONDS + 1)
        assert len(ferry.gc(dry_run=True)) == 2
        assert ferry.metrics.snapshot()["reclaimed"] == 0
        ferry.gc()
        found = ferry.metrics.snapshot()
        assert (found["reclaimed"], found["orphans"]) == (1, 1)


def test_what_a_put_without_room_reclaims_is_counted(shm_directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollferry.bundle.reclaim.FULL_SECONDS", 0.0)
    with rollferry.connect(f"shm://{shm_directory}", quota=150_000) as ferry:
        ferry.put({"a": np.zeros(100_000, np.uint8)}, ttl=0.01)
        time.sleep(0.02)
        kept = ferry.put({"a": np.zeros(100_000, np.uint8)})
        assert ferry.list() == [kept.id]
        assert ferry.metrics.snapshot()["reclaimed"] == 1


def test_threads_lose_no_count(url: str) -> None:
    with rollferry.connect(url) as ferry:
        threads = [
            threading.Thread(target=lambda: [ferry.remove(ferry.put({"a": [1]})) for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = ferry.metrics.snapshot()
        assert (found["puts"], found["removes"], found["phases"]["put"]["pack"]["count"]) == (200, 200, 200)


def test_the_child_of_a_fork_counts_from_zero(shm_directory: Any) -> None:
    code = (
        "import os, sys, rollferry\n"
        "ferry = rollferry.connect(sys.argv[1])\n"
        "ferry.put({'a': [1]})\n"
        "ferry.metrics._lock.acquire()\n"  # as another thread may have it
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ferry.put({'a': [1]})\n"
        "    os._exit(ferry.metrics.snapshot()['puts'])\n"
        "ferry.metrics._lock.release()\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ferry.metrics.snapshot()['puts'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"shm://{shm_directory}"], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_prometheus_gets_all(url: str) -> None:
    registry = CollectorRegistry()
    with rollferry.connect(url, namespace="train") as ferry:
        rollferry.metrics.exporter(ferry, registry)
        ref = ferry.put(batch())
        ferry.get(ref)
        found = scrape(registry)
        assert found["rollferry_puts_total"] == found["rollferry_gets_total"] == 1
        assert found["rollferry_put_bytes_total"] == ref.nbytes
        assert found["rollferry_phase_seconds_count operation=get phase=rebuild"] == 1
        assert found["rollferry_phase_seconds_sum operation=put phase=pack"] == ferry.timings[0].phases["pack"]
        assert found["rollferry_up"] == 1
        assert found["rollferry_live_bytes namespace=train"] == ferry.usage().live_nbytes > SIZE
        assert found["rollferry_bundles namespace=train"] == 1
        assert found["rollferry_oldest_age_seconds namespace=train"] > 0
        ferry.remove(ref)
        after = scrape(registry)
        assert after["rollferry_live_bytes namespace=train"] == 0
        assert after["rollferry_peak_bytes namespace=train"] == found["rollferry_live_bytes namespace=train"]
        assert "rollferry_oldest_age_seconds namespace=train" not in after
    closed = scrape(registry)
    assert (closed["rollferry_up"], closed["rollferry_removes_total"]) == (0, 1)
    assert "rollferry_live_bytes namespace=train" not in closed


def test_it_is_unregistered_and_one_registry_takes_one_ferry(url: str) -> None:
    registry = CollectorRegistry(auto_describe=True)
    with rollferry.connect(url) as ferry, rollferry.connect(url) as other:
        made = rollferry.metrics.exporter(ferry, registry)
        with pytest.raises(ValueError, match="Duplicated"):
            rollferry.metrics.exporter(other, registry)
        collected = {family.name for family in made.collect()}
        assert {family.name for family in made.describe()} == collected
        registry.unregister(made)
        rollferry.metrics.exporter(other, registry)
        assert scrape(registry)["rollferry_puts_total"] == 0


def test_without_the_package(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with rollferry.connect(url) as ferry, pytest.raises(ImportError, match=r"rollferry\[metrics\]"):
        rollferry.metrics.exporter(ferry)


def test_usage_by_namespace(url: str) -> None:
    with rollferry.connect(url, namespace="a") as a, rollferry.connect(url, namespace="b") as b:
        refs = [a.put(batch()) for _ in range(3)]
        b.put(batch(1000))
        usage = a.usage()
        assert {name: held.bundles for name, held in usage.namespaces.items()} == {"a": 3, "b": 1}
        assert sum(held.live_nbytes for held in usage.namespaces.values()) == usage.live_nbytes
        assert usage.namespaces["a"].oldest_age > usage.namespaces["b"].oldest_age > 0
        a.remove(refs[0])
        later = a.usage(ages=False).namespaces["a"]
        assert later.bundles == 2
        assert later.live_nbytes < later.peak_nbytes == usage.namespaces["a"].live_nbytes
        assert later.oldest_age is None


def test_free_memory_is_pooled_for_the_namespace_that_left_it(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, namespace="a") as a, rollferry.connect(url, namespace="b-c") as b:
        refs = [a.put(batch()), a.put(batch(10 * SIZE))]
        free = a.usage().free_nbytes
        assert free is not None
        b.remove(b.put(batch(1000)))
        for ref in refs:
            a.remove(ref)
        usage = b.usage()
        assert {name: held.bundles for name, held in usage.namespaces.items()} == {"a": 0, "b-c": 0}
        assert usage.namespaces["a"].pooled_nbytes > 11 * SIZE
        assert 1000 < usage.namespaces["b-c"].pooled_nbytes < SIZE
        assert sum(held.pooled_nbytes for held in usage.namespaces.values()) == usage.pooled_nbytes
        b.put(batch(10 * SIZE))
        assert SIZE < a.usage().namespaces["a"].pooled_nbytes < 2 * SIZE + (1 << 20)


def test_peaks_are_those_of_all_processes(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    code = (
        "import rollferry, sys, time, numpy as np\n"
        "f = rollferry.connect(sys.argv[1], namespace='a')\n"
        "refs = []\n"
        "for _ in range(3): refs.append(f.put({'a': np.zeros(1_000_000, np.uint8)})); time.sleep(0.05)\n"
        "for ref in refs: f.remove(ref)\n"
    )
    with rollferry.connect(url, namespace="b") as ferry:
        ferry.put(batch())
        for _ in range(2):
            subprocess.run([sys.executable, "-c", code, url], check=True)
            held = ferry.usage().namespaces["a"]
            assert (held.bundles, held.live_nbytes) == (0, 0)
            assert 3_000_000 < held.peak_nbytes < 4_000_000
    with rollferry.connect(url) as later:
        assert later.usage().namespaces["a"].peak_nbytes == held.peak_nbytes
    assert sum(path.name.startswith("a+") for path in (shm_directory / "peaks").iterdir()) == 1


def test_manifests_are_read_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url) as ferry:
        engine = type(ferry._engine)
        opens, real = [], engine.open
        monkeypatch.setattr(engine, "open", lambda self, key: (opens.append(key), real(self, key))[1])
        ferry.put(batch())
        ferry.put(batch())
        ferry.usage()
        ferry.gc()
        ferry.usage(ages=True)
        assert len(opens) == 2
        ferry.put(batch())
        ferry.gc()
        assert len(opens) == 3


def test_networked_engines_are_not_searched_for_ages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url) as ferry:
        monkeypatch.setattr(ferry._engine, "networked", True, raising=False)
        ferry.put(batch())
        assert ferry.usage().namespaces["default"].oldest_age is None
        assert ferry.usage(ages=True).namespaces["default"].oldest_age > 0


def test_bundles(url: str) -> None:
    with rollferry.connect(url) as ferry, rollferry.connect(url, namespace="other", reader="rank0") as other:
        plain = ferry.put({"x": [1, 2], 7: ["a", "b"]})
        ferry.append(plain, {"y": [3, 4]})
        shared = other.put({"batch": {"x": np.zeros(4)}}, type="dataproto", readers=2, ttl=100)
        other.remove(shared)
        first, second, third = ferry.bundles()
        assert (first.key, first.type, first.rows, first.fields, first.base) == (plain.key, "dict", 2, ["x", "7"], None)
        assert (first.left, first.readers, first.done, first.owner_alive) == (None, None, [], True)
        assert (second.fields, second.base) == (["y"], plain.key)
        assert (third.namespace, third.id, third.type, third.fields) == ("other", shared.id, "dataproto", ["batch.x"])
        assert (third.readers, third.done) == (2, ["rank0"])
        assert 0 < third.left < 100
        assert first.age >= second.age >= third.age > 0
        assert [info.key for info in ferry.bundles("other")] == [shared.key]
        assert sum(info.nbytes for info in ferry.bundles()) == ferry.usage().live_nbytes


def test_describe(url: str) -> None:
    import torch

    with rollferry.connect(url, checksum=True) as ferry:
        old = ferry.put(
            {
                "tokens": [np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)],
                "dense": torch.zeros(2, 4, dtype=torch.bfloat16),
                "text": ["ab", "c"],
                "step": 3,
                "nested": [{"a": 1}, {"a": 2}],
            }
        )
        ref = ferry.append(old, {"text": ["x", "y"]}, overwrite=True)
        before = len(ferry.timings)
        report = ferry.describe(ref)
        fields = {field.name: field for field in report.fields}
        assert list(fields) == ["tokens", "dense", "step", "nested", "text"]
        found = {name: (field.layout, field.dtype, field.rows) for name, field in fields.items()}
        assert found["tokens"] == ("ragged", "int32", 2)
        assert found["dense"] == ("dense", "bfloat16", 2)
        assert found["text"] == ("text", "str", 2)
        assert found["step"][2] is None
        assert found["nested"][::2] == ("tree", 2)
        assert fields["dense"].nbytes == 16
        assert (fields["text"].bundle, fields["tokens"].bundle) == (ref.key, old.key)
        assert report.checksums
        assert report.ref == ref
        assert len(ferry.timings) == before  # it is no get
        by_id = ferry.describe(ref.id)
        assert by_id.fields == report.fields
        assert list(ferry.get(by_id.ref)) == list(ferry.get(ref))
        with pytest.raises(rollferry.BundleNotFoundError):
            ferry.describe("0" * 32)
        with pytest.raises(rollferry.RefError):
            ferry.describe("nonsense")
        ferry.remove(old)
        with pytest.raises(rollferry.BundleNotFoundError, match="lacks its stage"):
            ferry.describe(ref.id)


def test_a_hostile_manifest_ends(url: str) -> None:
    """Columns that refer to earlier ones, twice each, would take 2**60 looks to name."""
    from rollferry.bundle.manifest import Field, Manifest, dump
    from rollferry.layouts.tree.null import Null
    from rollferry.layouts.tree.shared import Shared
    from rollferry.layouts.tree.union import Union
    from rollferry.memory.plan import Member

    columns: list[Any] = [Null(rows=1)]
    fields = [Field(key="0", form="list", column=0)]
    members = 0
    for level in range(1, 60):
        last = len(columns) - 1
        pair = [Shared(rows=1, index=members + 2 * n, foreign=members + 2 * n + 1, sources=[last]) for n in range(2)]
        columns += [*pair, Union(rows=1, columns=[last + 1, last + 2], tags=members + 4)]
        members += 5
        fields.append(Field(key=str(level), form="list", column=len(columns) - 1))
    key = "default." + "1" * 32
    manifest = Manifest(
        id="1" * 32, type="dict", fields=fields, columns=columns, members=[Member(0, 0)] * members, payload_nbytes=0
    )
    data, _ = dump(manifest)
    with rollferry.connect(url) as ferry:
        writer = ferry._engine.begin(key, 0, len(data))
        list(writer.chunks)
        writer.publish(data)
        with pytest.raises(rollferry.BundleError, match="without end"):
            ferry.describe("1" * 32)
        assert len(ferry.bundles()[0].fields) == 60
