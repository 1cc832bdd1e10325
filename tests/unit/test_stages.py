"""Fields appended to a bundle: what is stored, what is refused, and what a removal removes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import rollferry
from rollferry import BundleNotFoundError, EngineError, FieldSchema, RefError, SchemaError, TransferRef
from rollferry.bundle.manifest import Base, Envelope, Manifest, dump
from rollferry.bundle.stages import opened
from rollferry.errors import BundleError
from rollferry.refs import MAX_STAGES
from rollferry.testing import assert_same
from rollferry.testing.faulty import FaultyEngine

ROWS = 3


@pytest.fixture(params=["shm", "inproc"])
def ferry(request: pytest.FixtureRequest, shm_directory: Path) -> Iterator[rollferry.Ferry]:
    """A Ferry of an engine of its own."""
    url = f"shm://{shm_directory}" if request.param == "shm" else f"inproc://{shm_directory.name}"
    with rollferry.connect(url) as ferry:
        yield ferry


def first() -> dict[str, Any]:
    return {"tokens": [np.arange(i) for i in range(ROWS)], "rewards": [0.5] * ROWS, "step": 7}


def stages(engine: Any, ref: TransferRef) -> list[tuple[str, Manifest]]:
    """Key and manifest of each stage."""
    with opened(engine, ref) as found:
        names = [ref.key, *(stage.manifest.base.key for stage in found[:-1] if stage.manifest.base)]
        return [(name, stage.manifest) for name, stage in zip(names, found, strict=True)]


def keys(ferry: rollferry.Ferry, ref: TransferRef) -> list[list[Any]]:
    return [[field.key for field in manifest.fields] for _, manifest in stages(ferry._engine, ref)]


def newest(ferry: rollferry.Ferry, ref: TransferRef) -> Manifest:
    return stages(ferry._engine, ref)[0][1]


def stored(ferry: rollferry.Ferry) -> set[str]:
    return set(ferry.list())


# ---- what is stored -----------------------------------------------------------------------------------------------


def test_only_what_is_new_is_stored(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(first(), metadata={"who": ["a"]})
    text = ref.to_json()
    with_values = ferry.append(ref, {"values": np.ones((ROWS, 2))})
    both = ferry.append(with_values.to_json(), {"advantages": [1.0] * ROWS, "lr": 0.1})
    assert (ref.stages, with_values.stages, both.stages) == (1, 2, 3)
    assert keys(ferry, both) == [["advantages", "lr"], ["values"], ["tokens", "rewards", "step"]]
    assert [key for key, _ in stages(ferry._engine, both)] == [both.key, with_values.key, ref.key]
    assert newest(ferry, both).base == Base.of(with_values)
    assert (with_values.rows, both.rows, with_values.nbytes) == (ROWS, ROWS, ROWS * 2 * 8 + 16)
    assert both.metadata == with_values.metadata == ref.metadata
    assert stored(ferry) == {ref.id, with_values.id, both.id}
    assert ref.to_json() == text
    assert newest(ferry, ref).base is None
    assert ferry.timings[-1].id == both.id


def test_rows_are_those_of_the_older_stages_if_there_are_any(ferry: rollferry.Ferry) -> None:
    rowless = ferry.put({"step": 7})
    assert ferry.append(rowless, {"x": [1, 2]}).rows == 2
    assert ferry.append(ferry.append(rowless, {"lr": 1.0}), {"x": [1, 2]}).rows == 2
    assert ferry.append(ferry.put(first()), {"lr": 1.0}).rows == ROWS
    for fields in ({"a": [1], "b": [1, 2]}, {"a": np.ones(1), "b": np.ones(2)}):
        assert ferry.append(ferry.put(fields), {"x": [1, 2]}).rows is None  # these differ whatever is added
    loose = ferry.put({"a": [1]}, schema={"a": FieldSchema(row_aligned=False)})
    assert (loose.rows, ferry.append(loose, {"x": [1, 2]}).rows) == (None, 2)


def test_appending_may_overwrite(ferry: rollferry.Ferry) -> None:
    ref = ferry.append(ferry.put(first()), {"values": [1.0] * ROWS})
    for name, value in (("rewards", [1.0] * ROWS), ("values", [2.0] * ROWS)):
        with pytest.raises(SchemaError, match=rf"already: {name};"):
            ferry.append(ref, {name: value, "new": 1})
        assert keys(ferry, ferry.append(ref, {name: value, "new": 1}, overwrite=True))[0] == [name, "new"]


def test_names_that_no_manifest_can_hold(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({("a", 1): 1, "\ud800": 2})
    with pytest.raises(SchemaError, match="already"):
        ferry.append(ref, {("a", 1): 1})
    with pytest.raises(SchemaError, match="already"):
        ferry.append(ferry.append(ref, {("b",): 1}), {"\ud800": 2})
    with pytest.raises(SchemaError, match="already"):
        ferry.append(ferry.put({1: "x"}), {True: "x"})  # one key of a dict
    assert ferry.append(ref, {"('a', 1)": 3}).stages == 2


def test_schemas_are_heeded(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(first())
    with pytest.raises(SchemaError, match="'x', row 1"):
        ferry.append(ref, {"x": [1, "2", 3]}, schema={"x": FieldSchema("numbers")})
    new = ferry.append(ref, {"x": [1, 2]}, schema={"x": FieldSchema(row_aligned=False)})
    assert (new.rows, [field.row_aligned for field in newest(ferry, new).fields]) == (ROWS, [False])


def test_into_another_namespace(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, namespace="a") as a, rollferry.connect(url, namespace="b") as b:
        ref = a.put(first())
        new = b.append(ref, {"x": 1})
        assert (a.list(), b.list()) == ([ref.id], [new.id])
        assert keys(a, new)[1] == list(first())
        assert (a.remove(new), a.list(), b.list()) == (True, [], [])


def test_coroutines(ferry: rollferry.Ferry) -> None:
    async def run() -> TransferRef:
        ref = await ferry.aput({"meta_info": {"a": 1}}, type="dataproto")
        return await ferry.aappend(ref, {"meta_info": {"a": 2}}, type="dataproto", overwrite=True)

    assert keys(ferry, asyncio.run(run())) == [["a"], ["a"]]


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "about"),
    [
        ({}, {}, "no fields"),
        ({"rewards": [1.0] * ROWS, "step": 1, "new": 1}, {}, "already: rewards, step;"),
        ({"a": [1], "b": np.ones(4), "c": [1] * ROWS, "d": 1}, {}, "3 rows, but a has 1, b has 4;"),
        ({"meta_info": {"a": 1}}, {"type": "dataproto"}, "the bundle is a dict"),
        ({"meta_info": {}}, {"type": "dataproto"}, "no fields"),
    ],
)
def test_what_does_not_fit_is_refused(fields: Any, options: Any, about: str, ferry: rollferry.Ferry) -> None:
    ref = ferry.put(first())
    with pytest.raises(SchemaError, match=about):
        ferry.append(ref, fields, **options)
    assert stored(ferry) == {ref.id}


def test_stages_have_a_limit(ferry: rollferry.Ferry) -> None:
    ref = msgspec.structs.replace(ferry.put(first()), stages=MAX_STAGES)
    with pytest.raises(SchemaError, match="1000 stages"):
        ferry.append(ref, {"x": 1})


def test_missing_stages_are_named(ferry: rollferry.Ferry) -> None:
    refs = [ferry.put(first())]
    for name in ("a", "b"):
        refs.append(ferry.append(refs[-1], {name: 1}))
    ferry.remove(refs[0])
    for look in (lambda: stages(ferry._engine, refs[2]), lambda: ferry.append(refs[2], {"x": 1})):
        with pytest.raises(BundleNotFoundError, match=f"{refs[2].key} lacks its stage {refs[0].key}"):
            look()
    ferry.remove(msgspec.structs.replace(refs[2], stages=1))
    with pytest.raises(BundleNotFoundError, match=f"no bundle {refs[2].key}"):
        ferry.append(refs[2], {"x": 1})


@pytest.mark.parametrize("changes", [{"stages": 1}, {"stages": 3}, {"digest": "0" * 32}, {"nbytes": 1}, {"rows": None}])
def test_forged_references_open_nothing(changes: dict[str, Any], ferry: rollferry.Ferry) -> None:
    ref = ferry.append(ferry.put(first()), {"x": [1] * ROWS})
    assert len(stages(ferry._engine, ref)) == 2
    with pytest.raises(RefError):
        stages(ferry._engine, msgspec.structs.replace(ref, **changes))


def publish(ferry: rollferry.Ferry, manifest: Manifest) -> TransferRef:
    """Store a manifest without payload as it is."""
    data, digest = dump(manifest)
    writer = ferry._engine.begin(f"default.{manifest.id}", 0, len(data))
    writer.publish(data)
    return TransferRef(
        id=manifest.id,
        engine=ferry._engine.scheme,
        namespace="default",
        nbytes=0,
        rows=manifest.rows,
        digest=digest,
        stages=2,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"digest": "0" * 32},
        {"nbytes": 1},
        {"rows": 5},
        {"id": "../" * 10 + "ab"},
        {"id": "a" * 32 + "\n"},
        {"namespace": "../x"},
        {"namespace": "a.b"},
        {"digest": "x"},
    ],
)
def test_bases_that_were_tampered_with(changes: dict[str, Any], ferry: rollferry.Ferry) -> None:
    base = msgspec.structs.replace(Base.of(ferry.put(first())), **changes)
    manifest = Manifest(
        id="f" * 32, type="dict", fields=[], columns=[], members=[], payload_nbytes=0, rows=ROWS, base=base
    )
    with pytest.raises(BundleError):
        stages(ferry._engine, publish(ferry, manifest))


def test_stages_of_another_type(ferry: rollferry.Ferry) -> None:
    base = Base.of(ferry.put({"meta_info": {"a": 1}}, type="dataproto"))
    manifest = Manifest(id="f" * 32, type="dict", fields=[], columns=[], members=[], payload_nbytes=0, base=base)
    with pytest.raises(BundleError, match="another type"):
        stages(ferry._engine, publish(ferry, manifest))


# ---- dataproto ----------------------------------------------------------------------------------------------------


def tensors(names: str, rows: int = ROWS) -> TensorDict:
    return TensorDict({name: torch.ones(rows, 2) for name in names}, batch_size=[rows])


def test_sections_are_added_to(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"batch": tensors("a"), "meta_info": {"a": 1}}, type="dataproto")
    for added in ({"batch": tensors("b")}, {"batch": {"b": torch.ones(ROWS), "n": tensors("c")}, "meta_info": None}):
        new = ferry.append(ref, added, type="dataproto")
        assert newest(ferry, new).envelope == Envelope(batch="tensordict", batch_size=[ROWS])
    new = ferry.append(ref, {"non_tensor_batch": {"a": [1] * ROWS}}, type="dataproto")  # a in this section is new
    assert [(field.section, field.key) for field in newest(ferry, new).fields] == [("non_tensor_batch", "a")]
    assert newest(ferry, new).envelope == Envelope(batch="tensordict", batch_size=[ROWS])
    with pytest.raises(SchemaError, match=r"already: batch.a, meta_info.a;"):
        ferry.append(ref, {"batch": tensors("ab"), "meta_info": {"a": 2}}, type="dataproto")
    with pytest.raises(SchemaError, match="the bundle is a dataproto, to which no dict"):
        ferry.append(ref, {"x": 1})


def test_what_sections_are_after_appending(ferry: rollferry.Ferry) -> None:
    nothing = ferry.put({"batch": None, "non_tensor_batch": None, "meta_info": None}, type="dataproto")
    only_meta = ferry.append(nothing, {"meta_info": {"a": 1}}, type="dataproto")
    assert newest(ferry, only_meta).envelope == Envelope(batch="none", absent=["non_tensor_batch"])
    with_batch = ferry.append(only_meta, {"batch": tensors("a"), "non_tensor_batch": {}}, type="dataproto")
    assert newest(ferry, with_batch).envelope == Envelope(
        batch="tensordict", batch_size=[ROWS], absent=["non_tensor_batch"]
    )
    assert with_batch.rows == ROWS
    plain = ferry.append(ferry.put({"batch": {"a": 1}}, type="dataproto"), {"batch": tensors("b")}, type="dataproto")
    assert newest(ferry, plain).envelope == Envelope(batch="dict")


@pytest.mark.parametrize(
    ("batch", "about"),
    [
        (TensorDict({"b": torch.ones(ROWS, 2)}, batch_size=[ROWS, 2]), r"batch size \[3\], the appended one \[3, 2\]"),
        ({"b": np.ones(ROWS), "c": torch.ones(ROWS)}, r"of it: batch.b$"),
        ({"b": "text", "c": torch.tensor(1)}, r"of it: batch.b, batch.c$"),
        ({"d": tensors("x", 5)}, "3 rows, but batch.d has 5"),
        ({"b": torch.ones(2)}, "3 rows, but batch.b has 2"),
    ],
)
def test_what_does_not_fit_a_tensordict(batch: Any, about: str, ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"batch": tensors("a")}, type="dataproto")
    with pytest.raises(SchemaError, match=about):
        ferry.append(ref, {"batch": batch}, type="dataproto")
    assert stored(ferry) == {ref.id}


# ---- failures and removal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["begin", "chunks", "publish"])
def test_a_failed_append_changes_nothing(step: str, ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ferry.put(first())
    engine = FaultyEngine(ferry._engine, **{step: 1})
    monkeypatch.setattr(ferry, "_engine", engine)
    with pytest.raises(EngineError, match="on purpose"):
        ferry.append(ref, {"x": np.ones(ROWS)})
    assert (engine.unpublished, engine.unclosed, stored(ferry)) == (0, 0, {ref.id})
    assert keys(ferry, ref) == [list(first())]
    assert keys(ferry, ferry.append(ref, {"x": np.ones(ROWS)}))[0] == ["x"]
    assert (engine.unpublished, engine.unclosed) == (0, 0)


def chain(ferry: rollferry.Ferry, count: int) -> list[TransferRef]:
    refs = [ferry.put(first())]
    for number in range(1, count):
        refs.append(ferry.append(refs[-1], {f"x{number}": [number] * ROWS}))
    return refs


@pytest.mark.parametrize("form", ["ref", "json", "id"])
def test_removing_removes_all_stages_once(form: str, ferry: rollferry.Ferry) -> None:
    other = ferry.put(first())
    ref = chain(ferry, 4)[-1]
    handle = {"ref": ref, "json": ref.to_json(), "id": ref.id}[form]
    assert ferry.remove(handle) is True
    assert stored(ferry) == {other.id}
    assert ferry.remove(handle) is False
    assert stored(ferry) == {other.id}


def test_the_newest_stage_goes_first(ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = chain(ferry, 3)
    order: list[str] = []
    remove = ferry._engine.remove
    monkeypatch.setattr(ferry._engine, "remove", lambda key: order.append(key) or remove(key))
    assert ferry.remove(refs[-1])
    assert order == [ref.key for ref in reversed(refs)]


@given(count=st.integers(1, 5), data=st.data())
def test_removal_with_stages_missing(count: int, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, count - 1)))
    with rollferry.connect("inproc://stages") as ferry:
        refs = chain(ferry, count)
        for number in gone:
            ferry._engine.remove(refs[number].key)
        assert ferry.remove(refs[-1]) == (count - 1 not in gone)
        # What is named by a stage that was there is gone, down to the first that wasn't.
        left = {refs[number].id for number in range(max(gone, default=0)) if number not in gone}
        assert stored(ferry) == left
        for name in left:
            ferry.remove(name)
        assert stored(ferry) == set()


def test_an_older_reference_removes_what_it_names(ferry: rollferry.Ferry) -> None:
    refs = chain(ferry, 3)
    assert ferry.remove(refs[1])
    assert stored(ferry) == {refs[2].id}
    assert ferry.remove(refs[2])
    assert stored(ferry) == set()


def test_a_bundle_that_can_not_be_read_can_be_removed(ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = chain(ferry, 2)
    engine = FaultyEngine(ferry._engine, open=1)
    monkeypatch.setattr(ferry, "_engine", engine)
    assert ferry.remove(refs[1].id)
    assert stored(ferry) == {refs[0].id}
    assert engine.unclosed == 0


def test_a_plain_reference_is_removed_unread(ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ferry.put(first())
    engine = FaultyEngine(ferry._engine)
    monkeypatch.setattr(ferry, "_engine", engine)
    assert ferry.remove(ref)
    assert dict(engine.calls) == {"remove": 1}


# ---- references ---------------------------------------------------------------------------------------------------


def reference(**changes: Any) -> TransferRef:
    values = {"id": "a" * 32, "engine": "shm", "namespace": "x", "nbytes": 1, "rows": None, "digest": "b" * 32}
    return TransferRef(**{**values, **changes})


def test_stages_in_references() -> None:
    assert "stages" not in reference().to_dict()
    for count in (2, MAX_STAGES):
        ref = reference(stages=count)
        assert ref.to_dict()["stages"] == count
        assert TransferRef.from_json(ref.to_json()) == ref
    largest = reference(
        namespace="n" * 63, engine="e" * 16, nbytes=(1 << 63) - 1, rows=(1 << 63) - 1, stages=MAX_STAGES
    )
    assert len(largest.to_json()) < 1024


@pytest.mark.parametrize("stages", [0, -1, MAX_STAGES + 1, True, 2.0, "2", None])
def test_bad_numbers_of_stages_are_refused(stages: Any) -> None:
    with pytest.raises(RefError, match="stages"):
        reference(stages=stages)
    with pytest.raises(RefError):
        TransferRef.from_dict({**reference(stages=2).to_dict(), "stages": stages})


def test_changed_numbers_of_stages_are_noticed() -> None:
    handle = reference(stages=2).to_dict()
    for changed in ({**handle, "stages": 3}, {name: handle[name] for name in handle if name != "stages"}):
        with pytest.raises(RefError, match="changed on its way"):
            TransferRef.from_dict(changed)
    with pytest.raises(RefError, match="changed on its way"):
        TransferRef.from_dict({**reference().to_dict(), "stages": 2})
    text = reference(stages=22).to_json()
    for position, old in enumerate(text):
        for new in set('0123x"{},:\\ e.-') - {old}:
            with pytest.raises(RefError):
                TransferRef.from_json(text[:position] + new + text[position + 1 :])


# ---- what is read -------------------------------------------------------------------------------------------------


def test_a_get_has_the_fields_of_all_stages(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(first())
    values = ferry.append(ref, {"values": np.arange(6.0).reshape(ROWS, 2)})
    newest_ref = ferry.append(values, {"rewards": [1.0, 2.0, 3.0], "step": 8}, overwrite=True)
    expected = first() | {"values": np.arange(6.0).reshape(ROWS, 2), "rewards": [1.0, 2.0, 3.0], "step": 8}
    assert_same(ferry.get(newest_ref.to_json()), expected)
    assert_same(ferry.get(ref), first())
    some = ferry.get(newest_ref, rows=[2, 0], fields=["rewards", "tokens", "values"])
    order = np.array([2, 0])
    assert_same(
        some,
        {
            "rewards": [3.0, 1.0],
            "tokens": [expected["tokens"][n] for n in order.tolist()],
            "values": expected["values"][order],
        },
    )
    buffer = np.zeros((ROWS, 2))
    assert ferry.get(newest_ref, into={"values": buffer})["values"] is buffer
    assert ferry.packed(newest_ref, "tokens").max_seqlen == ROWS - 1


def test_a_get_lacks_a_stage(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(first())
    newest_ref = ferry.append(ref, {"more": [1, 2, 3]})
    ferry.remove(ref)
    with pytest.raises(rollferry.BundleNotFoundError, match=f"lacks its stage {ref.key}"):
        ferry.get(newest_ref)
    with pytest.raises(rollferry.RefError, match="does not have 1 stages"):
        ferry.get(msgspec.structs.replace(newest_ref, stages=1))
