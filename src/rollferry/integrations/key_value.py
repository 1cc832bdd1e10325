"""Samples under keys: the calls of TransferQueue's key-value interface, over a Ferry and a catalog."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollferry import Ferry
from rollferry.errors import BundleNotFoundError
from rollferry.integrations.catalog import CatalogLike

__all__ = ["KVBatchMeta", "KeyValueClient"]


@dataclass
class KVBatchMeta:
    """What a put gives back, and a controller passes on: names, no payload. JSON-safe by `dataclasses.asdict`, if tags are.

    Parameters
    ----------
    keys, partition_id
        Which samples.
    tags
        All tags of each key.
    fields
        Names of the fields that each key has.
    extra_info
        The caller's own.
    """

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class KeyValueClient:
    """Puts and gets batches of samples by key, as TransferQueue's functions of the same names do. Thread-safe.

    A put is one bundle, whatever the number of samples. Fields of one sample may come from several puts; a get reads the rows it
    needs of each bundle, and nothing else of them. Bundles are removed with the last of their samples.

    Parameters
    ----------
    ferry
        Where bundles go.
    catalog
        The `Catalog`, of which there is one for all clients, or an `ActorCatalog`.
    meta_cls
        Class of what puts give: `KVBatchMeta`, or TransferQueue's.
    """

    def __init__(self, ferry: Ferry, catalog: CatalogLike, *, meta_cls: Callable[..., Any] = KVBatchMeta) -> None:
        self.ferry = ferry
        self.catalog = catalog
        self._meta_cls = meta_cls

    def kv_put(
        self,
        key: str,
        partition_id: str,
        fields: Mapping[str, Any] | None = None,
        tag: Mapping[str, Any] | None = None,
    ) -> Any:
        """Put one sample: its values without a batch dimension, or a TensorDict of batch size [1]. As `kv_batch_put`."""
        if fields is not None and not is_tensordict(fields):
            fields = {name: value[None] if is_tensor(value) else [value] for name, value in fields.items()}
        return self.kv_batch_put([key], partition_id, fields, None if tag is None else [tag])

    def kv_batch_put(
        self,
        keys: Sequence[str],
        partition_id: str,
        fields: Any = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Put samples, or fields that samples lack so far, or tags only; when this returns every client can get them.

        Parameters
        ----------
        keys
            One for each sample; they differ.
        partition_id
            Name of the partition.
        fields
            TensorDict, or dict of values, whose row i is of ``keys[i]``: tensors, jagged nested ones too, non-tensor stacks,
            arrays, lists. They replace fields of the same names.
        tags
            For each key what to add to its tags.

        Returns
        -------
        KVBatchMeta
            With all tags, and the names of the fields that each of the keys has now.

        Raises
        ------
        ValueError
            There is nothing to put, or the numbers of rows, keys and tags differ. Nothing was put, as with all errors.
        RollferryError
            What `rollferry.Ferry.put` raises.
        """
        keys = list(keys)
        if fields is None and tags is None:
            raise ValueError("fields or tags are needed")
        if fields is None:
            noted = self.catalog.update(partition_id, keys, tags=tags)
        else:
            batch = {name: as_rows(name, value, len(keys)) for name, value in fields.items()}
            if not batch:
                raise ValueError("there are no fields")
            ref = self.ferry.put(batch)
            try:
                noted = self.catalog.update(partition_id, keys, tags=tags, ref=ref.to_json(), fields=list(batch))
            except BaseException:
                self.ferry.remove(ref)
                raise
        self._remove(noted["unused"])
        return self._meta_cls(
            keys=keys, tags=noted["tags"], partition_id=partition_id, fields=noted["fields"], extra_info={}
        )

    def kv_batch_get(
        self, keys: Sequence[str] | str, partition_id: str, select_fields: Sequence[str] | str | None = None
    ) -> Any:
        """Get samples in the order of their keys.

        Parameters
        ----------
        keys
            A key may be repeated.
        partition_id
            Name of the partition.
        select_fields
            Names of the fields; by default all that any of the keys has.

        Returns
        -------
        TensorDict
            Of batch size [keys]. Tensors and numeric arrays are tensors, jagged ones jagged; rows that are tensors of different
            shapes, of one put or several, are jagged. All else is a NonTensorStack. Writable, and private to the caller.

        Raises
        ------
        SelectionError
            There is no such key, or one lacks a field. It is a LookupError.
        BundleNotFoundError
            Samples were removed meanwhile.
        ValueError
            A field is stored in such different forms that its rows make no tensor.
        """
        from tensordict import TensorDict  # heavy

        keys = [keys] if isinstance(keys, str) else list(keys)
        fields = [select_fields] if isinstance(select_fields, str) else select_fields
        pieces: dict[str, list[tuple[Any, list[int]]]] = {}
        for batch, places in self._read(partition_id, keys, fields):
            for name, value in batch.items():
                pieces.setdefault(name, []).append((value, places))
        values = {name: as_entry(name, joined(name, pieces[name], len(keys))) for name in fields or pieces if keys}
        return TensorDict(values, batch_size=[len(keys)])

    def kv_batch_get_by_meta(self, meta: Any, select_fields: Sequence[str] | str | None = None) -> Any:
        """Get the samples that a put gave back, by default with the fields that it names; see `kv_batch_get`."""
        return self.kv_batch_get(meta.keys, meta.partition_id, meta.fields if select_fields is None else select_fields)

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Give the tags of the keys of one partition, or of all: partition -> key -> tags."""
        return self.catalog.list(partition_id)

    def kv_clear(self, keys: Sequence[str] | str, partition_id: str) -> None:
        """Remove samples, once nobody is to read them any more; those that aren't there are skipped. Results stay valid."""
        self._remove(self.catalog.remove(partition_id, [keys] if isinstance(keys, str) else list(keys)))

    async def async_kv_put(self, *given: Any, **named: Any) -> Any:
        """Do as `kv_put` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.kv_put, *given, **named)

    async def async_kv_batch_put(self, *given: Any, **named: Any) -> Any:
        """Do as `kv_batch_put` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.kv_batch_put, *given, **named)

    async def async_kv_batch_get(self, *given: Any, **named: Any) -> Any:
        """Do as `kv_batch_get` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.kv_batch_get, *given, **named)

    async def async_kv_batch_get_by_meta(self, *given: Any, **named: Any) -> Any:
        """Do as `kv_batch_get_by_meta` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.kv_batch_get_by_meta, *given, **named)

    async def async_kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Do as `kv_list` in a thread, while the event loop runs on."""
        return await asyncio.to_thread(self.kv_list, partition_id)

    async def async_kv_clear(self, keys: Sequence[str] | str, partition_id: str) -> None:
        """Do as `kv_clear` in a thread, while the event loop runs on."""
        await asyncio.to_thread(self.kv_clear, keys, partition_id)

    def _read(
        self, partition: str, keys: Sequence[str], fields: Sequence[str] | None
    ) -> list[tuple[dict[str, Any], list[int]]]:
        reads = self.catalog.resolve(partition, keys, fields)
        while True:
            try:
                return [
                    (self.ferry.get(read["ref"], fields=read["fields"], rows=read["rows"]), read["places"])
                    for read in reads
                ]
            except BundleNotFoundError:  # a put replaced what was in it, or it is gone for good
                before, reads = reads, self.catalog.resolve(partition, keys, fields)
                if reads == before:
                    raise

    def _remove(self, refs: Iterable[str]) -> None:
        for ref in refs:
            self.ferry.remove(ref)


def is_tensordict(value: object) -> bool:
    """Whether a value is a TensorDict, without importing it."""
    return type(value).__module__.partition(".")[0] == "tensordict"


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "unbind")


def is_numeric(value: object) -> bool:
    """Whether a value is an array whose dtype torch may have."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.isnative


def as_rows(name: str, value: Any, count: int) -> Any:
    """Give an entry of a TensorDict, or a value, as one with rows. Raises ValueError unless there are so many."""
    if is_tensordict(value):
        if not type(value).__name__.startswith("NonTensor"):
            raise ValueError(f"field {name!r} is a {type(value).__name__}; flatten it: fields.flatten_keys()")
        value = value.tolist()
    if is_tensor(value) and value.is_nested and not hasattr(value, "_ragged_idx"):
        raise ValueError(f"field {name!r} is a strided nested tensor; make it with layout=torch.jagged")
    if isinstance(value, list | tuple):
        rows = len(value)
    elif (is_tensor(value) or isinstance(value, np.ndarray)) and value.ndim:
        rows = int(value.shape[0])
    else:
        raise ValueError(f"field {name!r} has no rows, one for each key: {type(value).__name__}")
    if rows != count:
        raise ValueError(f"field {name!r} has {rows} rows for {count} keys")
    return value


def joined(name: str, pieces: Sequence[tuple[Any, list[int]]], count: int) -> Any:
    """Put the rows of several values where they belong."""
    if len(pieces) == 1:
        return pieces[0][0]
    values = [value for value, _ in pieces]
    places = np.concatenate([np.array(of_piece, np.int64) for _, of_piece in pieces])
    first = values[0]
    if all(is_tensor(value) and not value.is_nested for value in values) and all(
        value.dtype == first.dtype and value.shape[1:] == first.shape[1:] for value in values
    ):
        import torch  # the tensors have it imported

        return torch.cat(values)[torch.from_numpy(np.argsort(places))]
    if all(is_numeric(value) for value in values) and all(
        value.dtype == first.dtype and value.shape[1:] == first.shape[1:] for value in values
    ):
        return np.concatenate(values)[np.argsort(places)]
    rows: list[Any] = [None] * count
    for place, row in zip(places.tolist(), (row for value in values for row in rows_of(value)), strict=True):
        rows[place] = row
    axes = [value._ragged_idx - 1 for value in values if is_tensor(value) and value.is_nested]  # noqa: SLF001
    return nested(name, rows, axes[0]) if axes else rows


def rows_of(value: Any) -> Iterable[Any]:
    """Give the rows of a value one by one."""
    rows: Iterable[Any] = value.unbind() if is_tensor(value) else value
    return rows


def as_entry(name: str, value: Any) -> Any:
    """Give a value as an entry of a TensorDict."""
    import torch  # heavy
    from tensordict import NonTensorData, NonTensorStack

    if is_tensor(value):
        return value
    if is_numeric(value):
        return torch.from_numpy(value)
    rows = list(value)
    if not rows or not all(is_tensor(row) for row in rows):
        return NonTensorStack(*[NonTensorData(row) for row in rows])
    shapes = [tuple(row.shape) for row in rows]
    if len(set(shapes)) == 1 and len({row.dtype for row in rows}) == 1:
        return torch.stack(rows)
    axes = [axis for axis, sizes in enumerate(zip(*shapes, strict=False)) if len(set(sizes)) > 1]
    return nested(name, rows, axes[0] if axes else 0)


def nested(name: str, rows: Sequence[Any], axis: int) -> Any:
    """Give tensors that differ in one axis as a jagged nested tensor. Raises ValueError where they are no such tensors."""
    import torch  # likewise

    found = {
        (row.dtype, row.ndim, *row.shape[:axis], *row.shape[axis + 1 :]) if is_tensor(row) else type(row)
        for row in rows
    }
    if len(found) > 1 or not all(is_tensor(row) and row.ndim > axis for row in rows):
        described = ", ".join(
            sorted({f"{row.dtype} {tuple(row.shape)}" if is_tensor(row) else str(type(row)) for row in rows})
        )
        raise ValueError(f"the rows of field {name!r} make no tensor: {described:.200}")
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([row.shape[axis] for row in rows], out=offsets[1:])
    values = torch.cat(list(rows), dim=axis)
    return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets), jagged_dim=axis + 1)
