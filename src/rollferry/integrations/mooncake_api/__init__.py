"""The calls of ``mooncake.structured_object_store``, over rollferry: change the import, and keep your code.

::

    from rollferry.integrations.mooncake_api import FieldSchema, MooncakeBundleTransfer, export_ref, import_ref

    transfer = MooncakeBundleTransfer(store, key_prefix="miles-object-store")  # a MooncakeDistributedStore, or "shm://"
    handle = export_ref(transfer.put(batch, type="dict", field_schemas=schemas))  # JSON
    batch = transfer.get(handle, type="dict")
    transfer.cleanup_dataproto(handle)

Values come back by rollferry's exact contract, which is a superset of Mooncake's: lists as lists, every dtype as it was,
``type="dict"`` in its key order, and memory that lives as long as any view of it. So `release_result` has nothing to do.

Accepted, checked and without effect: ``chunk_bytes``, ``default_chunk_bytes``, ``policy`` and ``buffer_pool``, since engines
cut, send and pool by themselves; ``namespace`` and ``partition``, which only travel in the reference; a schema's codec and
its metadata other than ``section``, since values say themselves how they are stored best. Of ``config`` the ``replica_num``
counts, over a store and with a URL that asks for as many.

Not offered: bundles of raw buffers and structured objects (``put_bundle``, ``put_structured_object``, ``put_object``,
``read_spec``, ``materialize`` and what goes with them), destinations that are raw addresses, and handles made by Mooncake.
"""

from rollferry.integrations.codecs import CODECS
from rollferry.integrations.mooncake_api.errors import (
    BundleGoneError,
    CorruptBundleError,
    FieldMissingError,
    NotOfferedError,
    StoreFailedError,
    StoreFullError,
    WrongSelectionError,
)
from rollferry.integrations.mooncake_api.options import BundleTransferPolicy, FieldSchema
from rollferry.integrations.mooncake_api.refs import (
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
    export_ref,
    import_ref,
    is_dataproto_ref_handle,
)
from rollferry.integrations.mooncake_api.transfer import DEFAULT_BUNDLE_CHUNK_BYTES, MooncakeBundleTransfer

__all__ = [
    "CODECS",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "BundleGoneError",
    "BundleTransferPolicy",
    "CorruptBundleError",
    "FieldMissingError",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "MooncakeDataProtoRef",
    "NotOfferedError",
    "RemoteBundleRef",
    "StoreFailedError",
    "StoreFullError",
    "StructuredFieldLocation",
    "WrongSelectionError",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "is_dataproto_ref_handle",
]

export_dataproto_ref = export_ref
import_dataproto_ref = import_ref
