"""ROLL's transfer backend over a Ferry and a catalog: put, get and delete of the rows of remote batches.

docs/roll.md says which lines of ROLL to change. ROLL itself is needed only where its RowRemoteBatch is to be made.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollferry import Ferry
from rollferry.integrations.catalog import ActorCatalog, Catalog, CatalogLike
from rollferry.integrations.key_value import KeyValueClient

__all__ = ["ActorCatalog", "Catalog", "RollClient"]


class RollClient:
    """A client of ROLL's ``transfer_backend``, beside those for TransferQueue and Mooncake. Thread-safe.

    Parameters
    ----------
    ferry
        Where bundles go.
    catalog
        The `Catalog`, of which there is one for all clients, or an `ActorCatalog`.
    remote_batch
        What makes the result of a put, called with ``partition``, ``device``, ``fields``, ``row_ids`` and ``cache``. By default
        ROLL's RowRemoteBatch.
    """

    def __init__(self, ferry: Ferry, catalog: CatalogLike, *, remote_batch: Callable[..., Any] | None = None) -> None:
        self.samples = KeyValueClient(ferry, catalog)
        self._remote_batch = remote_batch

    def put(self, partition: str, row_ids: Sequence[str], fields: Mapping[str, Any], batch_size: int) -> Any:
        """Store rows, or further fields of rows that are there; fields of the same names are replaced.

        Parameters
        ----------
        partition
            Name of the group of rows.
        row_ids
            Their ids; they differ.
        fields
            Tensors, and arrays of objects, whose row i is of ``row_ids[i]``.
        batch_size
            Number of rows.

        Returns
        -------
        RowRemoteBatch
            Without a copy of the values; they are read when they are first used.

        Raises
        ------
        TypeError
            A field is neither tensor nor array, as in ROLL.
        ValueError
            The numbers of rows differ. Nothing was put, as with all errors.
        RollferryError
            What `rollferry.Ferry.put` raises.
        """
        wrong = {name: type(value).__name__ for name, value in fields.items() if not hasattr(value, "shape")}
        if wrong:
            raise TypeError(f"fields must be tensors or arrays, not {wrong}")
        if batch_size != len(row_ids):
            raise ValueError(f"there are {len(row_ids)} row ids for a batch of {batch_size}")
        make = self._remote_batch or roll_class()
        self.samples.kv_batch_put(row_ids, partition, fields)
        return make(partition=partition, device=None, fields=list(fields), row_ids=list(row_ids), cache=None)

    def get(self, partition: str, keys: Sequence[str], fields: Sequence[str]) -> Any:
        """Give fields of rows, in the order of their ids, which may be repeated, as a TensorDict.

        Tensors are tensors; what were arrays of objects are NonTensorStacks. Raises what `KeyValueClient.kv_batch_get` raises.
        """
        return self.samples.kv_batch_get(keys, partition, list(fields))

    def delete(self, partition: str, keys: Sequence[str], fields: Sequence[str] = ()) -> None:  # noqa: ARG002
        """Remove rows, whole ones whatever the fields, as ROLL's client for TransferQueue does. What was read stays valid."""
        self.samples.kv_clear(keys, partition)


def roll_class() -> Callable[..., Any]:
    """Give ROLL's class of remote batches by rows."""
    from roll.distributed.scheduler.remote_protocol import RowRemoteBatch  # heavy, and only needed where one is made

    found: Callable[..., Any] = RowRemoteBatch
    return found
