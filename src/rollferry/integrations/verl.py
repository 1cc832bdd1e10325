"""verl's batches over a Ferry: whole DataProtos by handle, and samples by key as TransferQueue has them.

docs/verl.md says which lines of verl to change. verl itself is needed only where its DataProto is to be made.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from rollferry import Ferry, TransferRef
from rollferry.errors import SelectionError
from rollferry.integrations.catalog import ActorCatalog, Catalog
from rollferry.integrations.key_value import KeyValueClient, KVBatchMeta

__all__ = ["ActorCatalog", "Catalog", "DataProtoStore", "KVBatchMeta", "KeyValueClient", "rows_of_rank"]

Handle = dict[str, Any]


class DataProtoStore:
    """Puts whole DataProtos and gets them, or parts of them, by handle. Thread-safe.

    Parameters
    ----------
    ferry
        Where bundles go.
    data_cls
        Class of what comes back, called with ``batch``, ``non_tensor_batch`` and ``meta_info``. By default verl's DataProto.
    """

    def __init__(self, ferry: Ferry, data_cls: type[Any] | None = None) -> None:
        self.ferry = ferry
        self._data_cls = data_cls

    def put(self, data: Any) -> Handle:
        """Store a DataProto, exactly as it is; when this returns every process can get it.

        Returns
        -------
        dict
            JSON-safe, less than 1 KB; ``rows`` is the number of samples.

        Raises
        ------
        RollferryError
            What `rollferry.Ferry.put` raises. Nothing was put.
        """
        return self.ferry.put(data, type="dataproto").to_dict()

    def append(self, handle: Handle, data: Any, *, overwrite: bool = False) -> Handle:
        """Add fields to a stored DataProto; only they are sent. The earlier handle goes on to mean what it did.

        Parameters
        ----------
        handle
            What `put` or `append` gave.
        data
            DataProto of as many samples with the further fields, or dict of some of its sections.
        overwrite
            Whether fields replace those of the same names.

        Returns
        -------
        dict
            Handle of the whole. Deleting it deletes the earlier ones too.

        Raises
        ------
        SchemaError
            Such a field is there already, or the number of samples differs. Otherwise as `rollferry.Ferry.append`.
        """
        return self.ferry.append(handle, data, type="dataproto", overwrite=overwrite).to_dict()

    def get(
        self,
        handle: Handle,
        fields: Iterable[str] | Mapping[str, Iterable[str] | None] | None = None,
        rows: Any = None,
        data_cls: type[Any] | None = None,
    ) -> Any:
        """Rebuild a stored DataProto, or what is asked for of it; nothing else is fetched.

        Parameters
        ----------
        handle
            What `put` or `append` gave.
        fields
            Names of fields, or for each section names or None for all; by default everything. What isn't named is left out,
            ``meta_info`` too.
        rows
            Samples: what indexes a DataProto, such as what `rows_of_rank` gives.
        data_cls
            As for the class.

        Returns
        -------
        DataProto
            Writable, and private to the caller.

        Raises
        ------
        ImportError
            verl isn't installed, and there is no `data_cls`.
        RollferryError
            What `rollferry.Ferry.get` raises: SelectionError for fields and rows that aren't there, BundleNotFoundError where it
            was deleted.
        """
        made = data_cls or self._data_cls or verl_class()
        return self.ferry.get(handle, type="dataproto", fields=fields, rows=rows, data_cls=made)

    def delete(self, handle: Handle) -> bool:
        """Remove a stored DataProto once all readers have it; False where it was removed before. Results stay valid."""
        return self.ferry.remove(handle)


def rows_of_rank(handle: Handle, rank: int, ranks: int) -> slice:
    """Give the samples of one data-parallel rank: those of chunk `rank` of ``DataProto.chunk(ranks)``.

    Raises
    ------
    SelectionError
        The samples can't be divided evenly, which verl requires too.
    """
    count = TransferRef.from_dict(handle).rows
    if count is None or not 0 <= rank < ranks or count % ranks:
        raise SelectionError(f"{count} samples can't be divided evenly for rank {rank} of {ranks}")
    share = count // ranks
    return slice(rank * share, (rank + 1) * share)


def verl_class() -> type[Any]:
    """Give verl's DataProto."""
    from verl import DataProto  # heavy, and only needed where a result is made

    found: type[Any] = DataProto
    return found
