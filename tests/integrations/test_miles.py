"""Miles' object store on rollferry, called as Miles calls its own."""

import copy
import json
import os
import pickle
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import rollferry
from rollferry.errors import BundleNotFoundError, EngineError, RefError, SchemaError
from rollferry.integrations import miles as object_store
from rollferry.schemas import MILES
from rollferry.testing import assert_same
from tests.contract.mooncake_master import Master
from tests.integrations.shards import VALUE_SPEC, shard, shards


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No object store of an earlier test, and none of the variables that configure one."""
    monkeypatch.setattr(object_store, "_INSTANCE", None)
    for name in ("ROLLFERRY_MILES", "ROLLFERRY_URL", "LOCAL_RANK", "MOONCAKE_PROTOCOL"):
        monkeypatch.delenv(name, raising=False)
    yield
    if object_store._INSTANCE is not None:
        object_store._INSTANCE.close()


def arguments(settings: Any = None, backend: str = "rollferry") -> Namespace:
    return Namespace(object_store_backend=backend, rollferry_init_kwargs=settings)


@pytest.fixture
def store(shm_directory: Path) -> object_store.BaseObjectStore:
    return object_store.init_instance(arguments({"url": f"shm://{shm_directory}"}))


@pytest.fixture(scope="module")
def shared_store(shared_shm_directory: Path) -> Iterator[object_store.RollferryObjectStore]:
    store = object_store.RollferryObjectStore(arguments({"url": f"shm://{shared_shm_directory}"}))
    yield store
    store.close()


def split(data: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """A batch as one shard for each rank, as Miles makes them."""
    shards = []
    for rank in range(ranks):
        partition = range(rank, len(data["tokens"]), ranks)
        rows = {name: [values[i] for i in partition] for name, values in data.items() if MILES[name].row_aligned}
        rest = {name: value for name, value in data.items() if not MILES[name].row_aligned}
        shards.append({"partition": partition, **rows, **rest})
    return shards


# ---- schema


@given(batch=shards())
def test_schema_changes_nothing(batch: dict[str, Any]) -> None:
    before = copy.deepcopy(batch)
    with rollferry.connect("inproc://", schema=MILES) as ferry:
        assert_same(ferry.get(ferry.put(batch)), before)


@given(batch=shards())
def test_whatever_miles_sends_comes_back(
    shared_store: object_store.RollferryObjectStore, shared_shm_directory: Path, batch: dict[str, Any]
) -> None:
    ref = shared_store.put(value=batch, value_spec=VALUE_SPEC)
    assert_same(shared_store.get(ref).value, batch)
    shared_store.remove(ref)
    assert not list((shared_shm_directory / "live").iterdir())


def test_schema_has_all_fields_and_knows_rows() -> None:
    batch = shard()
    assert set(MILES) == set(batch)
    for name, value in batch.items():
        assert MILES[name].nullable
        assert MILES[name].row_aligned == (hasattr(value, "__len__") and len(value) == 3 and name not in OF_THE_STEP)


OF_THE_STEP = {"micro_batch_indices"}  # three in number by chance


def test_schema_is_public_without_a_further_import() -> None:
    assert rollferry.schemas.MILES is MILES


# ---- the store


def test_put_get_release_remove(store: object_store.BaseObjectStore) -> None:
    data = shard()
    ref = store.put(value=data, value_spec=VALUE_SPEC)
    result = store.get(ref)
    assert_same(result.value, shard())
    with result as value:
        assert value is result.value
        kept = value["rollout_log_probs"][0]
    assert value == {}  # released
    assert kept[0] == np.float32(-0.1)
    with store.get(ref) as again:
        again["response_lengths"][0] = 99
        again["rollout_log_probs"][0][0] = 1
        assert store.get(ref).value["response_lengths"] == [2, 1, 1]  # results are private
    held = store.get(ref).value
    store.remove(ref)
    with pytest.raises(BundleNotFoundError):
        store.get(ref)
    store.remove(ref)
    assert_same(held, shard())


def test_release_happens_after_an_error_too(store: object_store.BaseObjectStore) -> None:
    result = store.get(store.put({"tokens": [[1]]}))
    with pytest.raises(KeyError), result as value:
        value["absent"]
    assert result.value == {}


def test_result_calls_what_releases_once() -> None:
    released: list[Any] = []
    with object_store.ObjectStoreGetResult(value={"a": 1}, release_fn=released.append) as value:
        assert (value, released) == ({"a": 1}, [])
    assert released == [{"a": 1}]


def test_shards_of_ranks(store: object_store.BaseObjectStore) -> None:
    n = 5
    data = {
        "tokens": [np.arange(i + 1, dtype=np.int32) for i in range(n)],
        "rewards": [0.1 * i for i in range(n)],
        "sample_indices": list(range(10, 10 + n)),
        "raw_reward": [0.5] * n,
        "total_lengths": [i + 1 for i in range(n)],
    }
    refs = [object_store.get_instance().put(value=part, value_spec=VALUE_SPEC) for part in split(data, 2)]
    for rank, ref in enumerate(refs):
        with object_store.get_instance().get(ref) as value:
            mine = dict(value)
            partition = mine.pop("partition")
            assert partition == range(rank, n, 2)
            assert [mine["total_lengths"][i] for i in partition] == [len(row) for row in mine["tokens"]]
            assert mine["sample_indices"] == [10 + i for i in partition]
            assert_same(mine["tokens"], [data["tokens"][i] for i in partition])
            assert len(mine["raw_reward"]) == n
        store.remove(ref)


def test_one_instance_for_a_process(store: object_store.BaseObjectStore, shm_directory: Path) -> None:
    assert object_store.get_instance() is store
    with pytest.raises(AssertionError, match="already"):
        object_store.init_instance(arguments({"url": f"shm://{shm_directory}"}))


def test_no_instance_yet() -> None:
    with pytest.raises(AssertionError, match="init_instance"):
        object_store.get_instance()


# ---- value specs


def test_specs_may_be_mileses_own_and_name_absent_fields(store: object_store.BaseObjectStore) -> None:
    @dataclass(frozen=True)
    class Own:
        codec: str
        dtype: str | None = None

    value = {"tokens": [[1, 2], [3]], "extra": [0.1, 0.2], "notes": ["a"]}
    spec = {"extra": Own("ndarray", "float32"), "notes": Own("auto"), "absent": Own("json_ragged")}
    assert_same(store.get(store.put(value, spec)).value, value)  # 0.1 stays, whatever dtype is declared


@pytest.mark.parametrize("codec", sorted(object_store.CODECS))
def test_every_codec_keeps_values(store: object_store.BaseObjectStore, codec: str) -> None:
    value = {"x": [0.1, None, "text", {"a": np.arange(2)}]}
    assert_same(store.get(store.put(value, {"x": object_store.ValueSpec(codec, "int64")})).value, value)


def test_unknown_codec(store: object_store.BaseObjectStore, shm_directory: Path) -> None:
    with pytest.raises(ValueError, match="field 'tokens': no codec 'zip'") as caught:
        store.put({"tokens": [[1]]}, {"tokens": object_store.ValueSpec("zip")})
    assert isinstance(caught.value, SchemaError)
    assert not list((shm_directory / "live").iterdir())


def test_specs_say_which_further_fields_have_rows() -> None:
    spec = {name: object_store.ValueSpec(codec) for name, codec in {"a": "auto", "b": "ndarray"}.items()}
    schema = object_store.schema_of({**spec, "raw_reward": object_store.ValueSpec("ndarray")})
    assert {name: field.row_aligned for name, field in schema.items()} == {"a": False, "b": True}  # MILES knows better


# ---- references


def test_reference_is_small_hashable_and_frozen(store: object_store.BaseObjectStore) -> None:
    ref = store.put({"tokens": [np.arange(50_000), np.arange(3)]})
    assert len(pickle.dumps(ref)) < 1024
    assert {ref: 1}[pickle.loads(pickle.dumps(ref))] == 1
    assert (ref.backend, ref.inner) == ("rollferry", ref.payload)
    assert json.loads(ref.payload)["namespace"] == "miles"
    with pytest.raises(FrozenInstanceError):
        ref.payload = "other"  # type: ignore[misc]


def test_foreign_reference(store: object_store.BaseObjectStore) -> None:
    for payload in ("other", json.dumps({"manifest_key": "k"})):
        with pytest.raises(RefError):
            store.get(object_store.StoreObjectRef(backend="rollferry", payload=payload))


def test_reference_in_a_tagged_union_of_pydantic(store: object_store.BaseObjectStore) -> None:
    pydantic = pytest.importorskip("pydantic")
    from typing import Annotated, Literal, Union

    class Other(pydantic.BaseModel):
        backend: Literal["ray"] = "ray"
        payload: str

    tagged = Annotated[Union[Other, object_store.StoreObjectRef], pydantic.Field(discriminator="backend")]
    adapter = pydantic.TypeAdapter(list[tagged])
    ref = store.put({"tokens": [[1, 2]]})
    back = adapter.validate_json(adapter.dump_json([ref, Other(payload="x")]))
    assert back == [ref, Other(payload="x")]
    assert store.get(back[0]).value == {"tokens": [[1, 2]]}
    alone = pydantic.TypeAdapter(object_store.StoreObjectRef)
    for wrong in (
        {"payload": "p"},
        {"backend": "ray", "payload": "p"},
        {"backend": "rollferry", "payload": "p", "x": 1},
    ):
        with pytest.raises(pydantic.ValidationError):
            alone.validate_python(wrong)


# ---- settings


def test_settings_come_from_the_argument_then_the_environment(
    shm_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argument = shm_directory / "argument"
    variable = shm_directory / "variable"
    address = shm_directory / "address"
    monkeypatch.setenv("ROLLFERRY_URL", f"shm://{address}")
    object_store.RollferryObjectStore(Namespace()).put({"x": 1})
    assert [path.name for path in shm_directory.iterdir()] == ["address"]

    monkeypatch.setenv("ROLLFERRY_MILES", json.dumps({"url": f"shm://{variable}", "namespace": "mine"}))
    ref = object_store.RollferryObjectStore(arguments("")).put({"x": 1})
    assert json.loads(ref.payload)["namespace"] == "mine"
    assert variable.exists()

    ref = object_store.RollferryObjectStore(arguments(json.dumps({"url": f"shm://{argument}"}))).put({"x": 1})
    assert json.loads(ref.payload)["namespace"] == "mine"  # key by key
    assert argument.exists()


def test_settings_reach_the_engine_and_the_ferry(shm_directory: Path) -> None:
    settings = {"url": f"shm://{shm_directory}", "pool": "1gb", "allow_pickle": True}
    store = object_store.RollferryObjectStore(arguments(settings))
    value = {"x": Namespace(a=1)}
    assert store.get(store.put(value)).value == value
    assert settings == {"url": f"shm://{shm_directory}", "pool": "1gb", "allow_pickle": True}
    with pytest.raises(EngineError, match="polo"):
        object_store.RollferryObjectStore(arguments({"url": f"shm://{shm_directory}", "polo": "1gb"}))


@pytest.mark.parametrize("given", ["{", "[1]", "3", [1]])
def test_settings_that_make_no_sense(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rollferry_init_kwargs"):
        object_store.init_instance(arguments(given))
    if isinstance(given, str):
        monkeypatch.setenv("ROLLFERRY_MILES", given)
        with pytest.raises(ValueError, match="ROLLFERRY_MILES"):
            object_store.init_instance(arguments())


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="bogus"):
        object_store.init_instance(Namespace(object_store_backend="bogus"))


@pytest.mark.parametrize(("rank", "expected"), [(None, True), ("0", True), ("3", False)])
def test_one_process_of_a_node_lends_memory(rank: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert object_store._default_contribute_segment() is expected


# ---- processes

CODE = """
import sys
from argparse import Namespace
from rollferry.integrations import miles as object_store
from rollferry.testing import assert_same
from tests.integrations.shards import VALUE_SPEC, shard

store = object_store.init_instance(Namespace(object_store_backend="rollferry", rollferry_init_kwargs=sys.argv[1]))
if sys.argv[2] == "put":
    print(store.put(value=shard(), value_spec=VALUE_SPEC).payload)
else:
    ref = object_store.StoreObjectRef(backend="rollferry", payload=sys.argv[3])
    with store.get(ref) as value:
        assert_same(value, shard())
    store.remove(ref)
"""


def process(settings: dict[str, Any], *arguments: str) -> str:
    path = os.pathsep.join([str(Path(rollferry.__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(settings), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().rpartition("\n")[2]


def test_producer_and_trainer_are_processes(shm_directory: Path) -> None:
    settings = {"url": f"shm://{shm_directory}"}
    payload = process(settings, "put")
    assert len(list((shm_directory / "live").iterdir())) == 1  # its producer is gone
    process(settings, "get", payload)
    assert not list((shm_directory / "live").iterdir())


# ---- mooncake://, with Miles' own arguments for it


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with Master() as master:
        yield master


def mooncake_arguments(master: Master | None, replicas: int = 1, **more: Any) -> Namespace:
    address = f"127.0.0.1:{master.port}" if master else "127.0.0.1:1"
    given = {"protocol": "tcp", "master_server_address": address, "global_segment_size": "64mb", **more}
    return Namespace(object_store_backend="mooncake", mooncake_store_init_kwargs=given, mooncake_replica_num=replicas)


def test_mooncake_with_the_arguments_of_miles(master: Master) -> None:
    store = object_store.init_instance(mooncake_arguments(master, local_buffer_size=64 << 20, local_hostname=None))
    assert isinstance(store, object_store.MooncakeObjectStore)
    ref = store.put(value=shard(), value_spec=VALUE_SPEC)
    with store.get(ref) as value:
        assert_same(value, shard())
    process({"url": f"mooncake://127.0.0.1:{master.port}", "segment": 0}, "get", ref.payload)  # removes it
    with pytest.raises(BundleNotFoundError):
        store.get(ref)


def test_mooncake_process_that_lends_nothing(master: Master) -> None:
    settings = {"url": f"mooncake://127.0.0.1:{master.port}", "segment": "64mb"}
    driver = object_store.RollferryObjectStore(arguments(settings), contribute_segment=False)
    try:
        with pytest.raises(EngineError):  # nobody lends anything
            driver.put(shard())
        lender = object_store.init_instance(arguments(settings), contribute_segment=True)
        ref = driver.put(shard())
        assert_same(lender.get(ref).value, shard())
        lender.remove(ref)
    finally:
        driver.close()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (mooncake_arguments(None, replicas=0), "mooncake_replica_num"),
        (mooncake_arguments(None, segment_size="1gb"), "segment_size is not known"),
    ],
)
def test_mooncake_arguments_that_make_no_sense(args: Namespace, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        object_store.init_instance(args)


def test_mooncake_needs_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mooncake.store", exc_type=ImportError)
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    args = Namespace(object_store_backend="mooncake", mooncake_store_init_kwargs=None, mooncake_replica_num=1)
    with pytest.raises(EngineError, match="MOONCAKE_MASTER"):
        object_store.init_instance(args)
