"""MooncakeBundleTransfer: put, get, append and clean up, as Mooncake's class of that name is called."""

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import rollferry
from rollferry.errors import RollferryWarning
from rollferry.integrations.mooncake_api.batches import build
from rollferry.integrations.mooncake_api.errors import FieldMissingError, NotOfferedError, as_there
from rollferry.integrations.mooncake_api.forms import FORMS, Form, Wanted
from rollferry.integrations.mooncake_api.options import (
    BundleTransferPolicy,
    FieldSchema,
    Kind,
    Name,
    Place,
    check_positive,
    check_schemas,
)
from rollferry.integrations.mooncake_api.refs import MooncakeDataProtoRef, RefLike, as_dataproto_ref

__all__ = ["DEFAULT_BUNDLE_CHUNK_BYTES", "MooncakeBundleTransfer"]

DEFAULT_BUNDLE_CHUNK_BYTES = 64 << 20
STORE = "MooncakeDistributedStore"


class MooncakeBundleTransfer:
    """Hands batches over by Mooncake's calls. Thread-safe, as a Ferry is.

    Parameters
    ----------
    store
        Where bundles go: a ``MooncakeDistributedStore`` that is set up, which stays the caller's to close; a Ferry, likewise;
        a URL for `rollferry.connect`; None for the environment variable ``ROLLFERRY_URL``, and without it ``shm://``.
    key_prefix
        Namespace of the bundles. What a namespace can't have becomes ``-``; a Ferry keeps its own.
    default_chunk_bytes
        Checked, and without effect, as ``chunk_bytes`` and ``policy`` of the calls.
    buffer_pool
        Without effect: engines have their own.
    url
        A URL to be used in place of the store.

    Attributes
    ----------
    ferry
        The Ferry that does the work.

    Raises
    ------
    TypeError
        The store is of another class, which doesn't tell where its master is.
    StoreFailedError
        A RuntimeError: the engine can't be used.
    """

    def __init__(
        self,
        store: object = None,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES,
        buffer_pool: object = None,  # noqa: ARG002
        *,
        url: str | None = None,
    ) -> None:
        check_positive(default_chunk_bytes)
        self._target = store if url is None else url
        self._namespace = re.sub("[^A-Za-z0-9_-]+", "-", check_text("key_prefix", key_prefix)).strip("-_")[:63]
        if not self._namespace:
            raise ValueError(f"key_prefix must have a letter or digit, not {key_prefix!r}")
        known = self._target is None or isinstance(self._target, str | rollferry.Ferry)
        if not known and STORE not in {cls.__name__ for cls in type(store).__mro__}:
            raise TypeError(
                f"a {STORE}, a rollferry.Ferry or a URL is needed, not {type(store).__name__}, which doesn't tell where its "
                "bundles are: pass url='mooncake://HOST:PORT' or another URL, or None for ROLLFERRY_URL"
            )
        self.ferry: rollferry.Ferry = self._connect()
        self._replicated: dict[int, rollferry.Ferry] = {}

    def put(
        self,
        data: Any,
        *,
        type: Kind = "dataproto",
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,  # noqa: ARG002
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Store a batch; when this returns it is complete and visible to every reader.

        Parameters
        ----------
        data
            For ``dataproto`` an object with ``batch``, ``non_tensor_batch`` and ``meta_info``, a dict of these, or a flat dict;
            for ``dict`` a flat dict, or sections to be put together.
        type
            Kind of batch.
        namespace, partition, stage
            Names that travel in the reference.
        chunk_bytes, policy
            Checked, and without effect.
        config
            A ``ReplicateConfig``, whose ``replica_num`` counts over a store; with a Ferry or URL that has another number it is
            a RollferryWarning, as ``?replicas=`` of the URL decides. Its other settings have no effect.
        field_schemas
            Instructions for fields. Of a flat dict, fields without one belong to ``meta_info``, if others have one.

        Returns
        -------
        MooncakeDataProtoRef

        Raises
        ------
        TypeError, ValueError
            The batch, a schema or an option makes no sense; a value can't be kept exactly; a None where none is allowed. The
            message names field and place. Nothing was put.
        StoreFullError, StoreFailedError
            RuntimeErrors: no room, or the engine can't do its work.
        """
        form, schemas = form_of(type), check_schemas(field_schemas)
        check_positive(chunk_bytes)
        texts = check_text("namespace", namespace), check_text("partition", partition)
        batch, places, meta_info, schema = form.incoming(data, schemas)
        with as_there():
            transfer_ref = self._writer(config).put(batch, type=type, schema=schema)
        ref = MooncakeDataProtoRef.first(transfer_ref, type, *texts)
        return ref.with_stage(transfer_ref, check_text("stage", stage), places, meta_info)

    def get(
        self,
        ref: RefLike,
        *,
        type: Kind = "dataproto",
        fields: Iterable[Name] | None = None,
        batch_fields: Iterable[Name] | None = None,
        non_tensor_fields: Iterable[Name] | None = None,
        meta_info_keys: Iterable[Name] | None = None,
        data_cls: Any = None,
        destinations: Mapping[Name, Any] | None = None,
        rows: Any = None,
    ) -> Any:
        """Rebuild a batch, or a part of it; only what is asked for is read.

        Arrays and tensors live as long as any view of them, and are the caller's own to write to.

        Parameters
        ----------
        ref
            What `put` or `append_dataproto_fields` gave, or its handle.
        type
            Form to give it in, whichever it was put in.
        fields
            Fields of ``batch`` and ``non_tensor_batch``; by default all.
        batch_fields, non_tensor_fields
            The same, as two lists; with either given, the other is empty by default.
        meta_info_keys
            Fields of ``meta_info``; by default all. Those that aren't there are left out.
        data_cls
            Class to make of it: by ``data_cls.from_dict(batch, non_tensor_batch, meta_info=...)`` where it has that, else by
            ``data_cls(batch=..., non_tensor_batch=..., meta_info=...)``. Without effect for ``dict``.
        destinations
            Arrays and tensors to be filled and given back, by field.
        rows
            Slice, ints or bools; as indexing the whole batch with them would do.

        Returns
        -------
        object
            For ``dataproto`` a dict of three dicts, or what was made of them; for ``dict`` one dict, with the keys in the order
            of `put`.

        Raises
        ------
        BundleGoneError, FieldMissingError
            KeyErrors: the bundle was removed; there is no such field.
        WrongSelectionError
            A ValueError and IndexError: rows or destinations don't fit.
        TypeError, RefError
            The reference is of another class; it is damaged or foreign, which is a ValueError.
        NotOfferedError
            A destination is a raw address.
        StoreFailedError, CorruptBundleError
            RuntimeErrors.
        """
        out, own = form_of(type), as_dataproto_ref(ref)
        places = asked(own, fields, batch_fields, non_tensor_fields, meta_info_keys)
        check_destinations(destinations)
        form = FORMS[own.kind]
        with as_there():
            batch = form.read(self.ferry, own, Wanted(places, rows, destinations))
        return form.flat(batch) if out is FORMS["dict"] else build(data_cls, form.envelope(batch, own))

    def put_dataproto(self, data: Any, **options: Any) -> MooncakeDataProtoRef:
        """Do as ``put(type="dataproto")``."""
        return self.put(data, type="dataproto", **options)

    def get_dataproto(self, ref: RefLike, **options: Any) -> Any:
        """Do as ``get(type="dataproto")``."""
        return self.get(ref, type="dataproto", **options)

    def put_legacy_dict(self, data: Any, **options: Any) -> MooncakeDataProtoRef:
        """Do as ``put(type="dict")``."""
        return self.put(data, type="dict", **options)

    def get_legacy_dict(self, ref: RefLike, **options: Any) -> Any:
        """Do as ``get(type="dict")``."""
        return self.get(ref, type="dict", **options)

    def append_dataproto_fields(
        self,
        ref: RefLike,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,  # noqa: ARG002
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Add fields to a bundle, without writing what it has again.

        Parameters
        ----------
        ref
            Reference or handle. It stays readable, as it was.
        data
            As for `put`, with the bundle's number of rows. Fields of ``meta_info`` take the place of earlier ones.
        stage
            Name of what is added.
        overwrite
            Whether fields may take the place of earlier ones, be it all of an earlier stage or some.
        chunk_bytes, policy, config, field_schemas
            As for `put`.

        Returns
        -------
        MooncakeDataProtoRef
            All fields. Clean this one up, in place of the earlier ones.

        Raises
        ------
        ValueError
            A field exists already, or the number of rows is another.
        """
        own, schemas = as_dataproto_ref(ref), check_schemas(field_schemas)
        check_positive(chunk_bytes)
        check_text("stage", stage)
        batch, places, meta_info, schema = FORMS[own.kind].incoming(data, schemas)
        check_sections(own, places)
        twice = [name for name, section in places if section != "meta_info" and name in own.field_index]
        if twice and not overwrite:
            raise ValueError(f"the bundle has the fields {twice} already; overwrite=True puts new ones in their place")
        with as_there():
            appended = self._writer(config).append(
                own.transfer_ref, batch, type=own.kind, overwrite=True, schema=schema
            )
        return own.with_stage(appended, stage, places, meta_info)

    def cleanup_dataproto(self, ref: RefLike) -> None:
        """Remove a bundle, with all its stages; a second time does nothing. Results stay valid."""
        own = as_dataproto_ref(ref)
        with as_there():
            self.ferry.remove(own.transfer_ref)

    def remove_legacy_dict(self, ref: RefLike) -> None:
        """Do as `cleanup_dataproto`."""
        self.cleanup_dataproto(ref)

    def dataproto_manifest_view(self, ref: RefLike) -> dict[str, Any]:
        """Say what a bundle has: sizes, names, and fields by section, each with its stage. Reads the reference only.

        The ``spec`` of each field is empty, where Mooncake says how it lies in the store.
        """
        own = as_dataproto_ref(ref)
        fields = {name: {**place._asdict(), "spec": {}} for name, place in own.field_index.items()}
        return {
            "namespace": own.namespace,
            "partition": own.partition,
            "batch_size": own.batch_size,
            "batch_fields": {name: field for name, field in fields.items() if field["section"] == "batch"},
            "non_tensor_fields": {
                name: field for name, field in fields.items() if field["section"] == "non_tensor_batch"
            },
            "meta_info_keys": [name for name, section in own.places if section == "meta_info"],
            "stages": {name: {"manifest_key": stage.manifest_key} for name, stage in own.stage_refs.items()},
        }

    def close(self) -> None:
        """Let go of the engine; Mooncake's class has no such call. A store or Ferry that was handed over stays open."""
        opened = [] if isinstance(self._target, rollferry.Ferry) else [self.ferry]
        for ferry in [*opened, *self._replicated.values()]:
            ferry.close()

    @staticmethod
    def release_result(result: object) -> None:
        """Do nothing: memory goes back when the last view of it does, and views that were kept stay valid."""

    def _connect(self, **options: Any) -> rollferry.Ferry:
        if isinstance(self._target, rollferry.Ferry):
            return self._target
        with as_there():
            return rollferry.connect(self._target, namespace=self._namespace, **options)

    def _writer(self, config: Any) -> rollferry.Ferry:
        """Give the Ferry that makes as many replicas as asked for."""
        replicas = getattr(config, "replica_num", 1)
        if replicas == 1:
            return self.ferry
        if self._target is None or isinstance(self._target, str | rollferry.Ferry):
            warnings.warn(
                f"config asks for {replicas} replicas, which a URL or Ferry decides on: mooncake://HOST:PORT?replicas={replicas}",
                RollferryWarning,
                stacklevel=3,
            )
            return self.ferry
        if replicas not in self._replicated:
            self._replicated[replicas] = self._connect(replicas=replicas)
        return self._replicated[replicas]


def form_of(type: Any) -> Form:
    """Give the form of a kind of batch. Raises ValueError for an unknown one."""
    if type not in FORMS:
        raise ValueError(f"type must be one of {', '.join(FORMS)}, not {type!r}")
    form: Form = FORMS[type]
    return form


def check_text(name: str, value: object) -> str:
    """Give a name. Raises TypeError and ValueError where it is none."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {value!r:.60}")
    if not value:
        raise ValueError(f"{name} is empty")
    return value


def check_sections(ref: MooncakeDataProtoRef, places: Iterable[Place]) -> None:
    """Raise ValueError for a field that the bundle has in another section, but for those of meta_info, a namespace apart."""
    apart = "meta_info" if ref.kind == "dataproto" else None
    earlier = {name: section for name, section in ref.places if section != apart}
    for name, section in places:
        if section != apart and earlier.get(name, section) != section:
            raise ValueError(
                f"the bundle has the field {name!r} in the section {earlier[name]}, so it can't be in {section}"
            )


def asked(
    ref: MooncakeDataProtoRef,
    fields: Iterable[Name] | None,
    batch_fields: Iterable[Name] | None,
    non_tensor_fields: Iterable[Name] | None,
    meta_info_keys: Iterable[Name] | None,
) -> list[Place] | None:
    """Give the fields that a get is to read, in the order of the bundle; None for all."""
    lists = (fields, batch_fields, non_tensor_fields, meta_info_keys)
    if all(one is None for one in lists):
        return None
    for one in lists:
        if isinstance(one, str | bytes):
            raise TypeError(f"fields are a list of names, not {one!r:.60}: [{one!r:.60}]")
    if fields is not None and not (batch_fields is None and non_tensor_fields is None):
        raise ValueError("fields can't go with batch_fields or non_tensor_fields")
    wanted = {name for one in lists[:3] if one is not None for name in one}
    missing = [name for name in wanted if name not in ref.field_index]
    if missing:
        raise FieldMissingError(f"there are no fields {missing}; there are {list(ref.field_index)}")
    everything = all(one is None for one in lists[:3])
    keys = None if meta_info_keys is None else set(meta_info_keys)
    return [
        (name, section)
        for name, section in ref.places
        if (keys is None or name in keys if section == "meta_info" else everything or name in wanted)
    ]


def check_destinations(destinations: Mapping[Name, Any] | None) -> None:
    """Raise NotOfferedError for a destination that is no array or tensor, such as a raw address."""
    for name, buffer in (destinations or {}).items():
        if not (hasattr(buffer, "dtype") and hasattr(buffer, "shape")):
            raise NotOfferedError(
                f"the destination of field {name!r} is a {type(buffer).__name__}; arrays and tensors are filled, addresses aren't"
            )
