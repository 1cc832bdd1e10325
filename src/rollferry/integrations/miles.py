"""Miles' object store, with rollferry behind it.

The names are those of Miles' own module, so that its code runs on this one when it imports it instead; docs/miles.md
says which lines to change. Miles itself is not needed.
"""

import json
import os
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol

import rollferry
from rollferry import FieldSchema, Schema, SchemaError
from rollferry.integrations.codecs import CODECS
from rollferry.schemas import MILES

__all__ = [
    "BaseObjectStore",
    "MooncakeObjectStore",
    "ObjectStoreBackend",
    "ObjectStoreGetResult",
    "RayObjectStore",
    "RollferryObjectStore",
    "StoreObjectRef",
    "ValueSpec",
    "get_instance",
    "init_instance",
]

ENVIRONMENT = "ROLLFERRY_MILES"

#: Key of Miles' --mooncake-store-init-kwargs -> option of mooncake://. The address of the master goes into the URL.
MOONCAKE_OPTIONS = {
    "protocol": "protocol",
    "device_name": "device",
    "metadata_server": "metadata",
    "local_hostname": "hostname",
    "global_segment_size": "segment",
    "local_buffer_size": "buffer",
    "chunk_bytes": "chunk",
}
MASTER = "master_server_address"


class ObjectStoreBackend(Enum):
    """Values of ``args.object_store_backend``."""

    RAY = "ray"
    MOONCAKE = "mooncake"
    ROLLFERRY = "rollferry"


@dataclass(frozen=True)
class ValueSpec:
    """What Miles declares about a field.

    Parameters
    ----------
    codec
        One of `rollferry.integrations.codecs.CODECS`. ``auto`` says that the field holds no value for each sample; the others say nothing here.
    dtype
        Not used: values keep the dtype that they have.
    """

    codec: str
    dtype: str | None = None


class SpecLike(Protocol):
    """A `ValueSpec`, or Miles' own."""

    @property
    def codec(self) -> str:
        """Name of the codec."""


@dataclass(frozen=True)
class StoreObjectRef:
    """Reference to a stored value: two strings. Hashable, picklable, and a member of a tagged union for pydantic.

    Parameters
    ----------
    backend
        The tag.
    payload
        JSON of a `rollferry.TransferRef`; less than 1 KB.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    backend: Literal["rollferry"]
    payload: str

    @property
    def inner(self) -> str:
        """The payload, as the Box of earlier versions of Miles has it."""
        return self.payload


class ObjectStoreGetResult:
    """A value that was got. As a context manager it gives the value, and releases it at the end of the block.

    Parameters
    ----------
    value
        The value.
    release_fn
        Called with the value at the end of the block.
    """

    def __init__(self, value: Any, release_fn: Callable[[Any], None]) -> None:
        self._value = value
        self._release_fn = release_fn

    @property
    def value(self) -> Any:
        """The value."""
        return self._value

    def __enter__(self) -> Any:
        return self._value

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release_fn(self._value)


class BaseObjectStore(ABC):
    """Miles' interface of an object store."""

    @abstractmethod
    def put(self, value: Any, value_spec: Mapping[str, SpecLike] | None = None) -> StoreObjectRef:
        """Store a value; give its reference."""

    @abstractmethod
    def get(self, ref: StoreObjectRef) -> ObjectStoreGetResult:
        """Give the value of a reference."""

    @abstractmethod
    def remove(self, ref: StoreObjectRef) -> None:
        """Remove what a reference refers to."""


class RollferryObjectStore(BaseObjectStore):
    """Object store on the engine that settings name. May be used from several threads at once.

    Settings are the arguments of `rollferry.connect` and the options of its engine: ``{"url": "shm://", "namespace":
    "miles"}``. They come from ``args.rollferry_init_kwargs`` (a dict or its JSON), and for keys that it lacks from the
    environment variable ``ROLLFERRY_MILES`` (JSON). Without a URL in either, ``ROLLFERRY_URL`` has it, and else it is
    ``shm://``.

    Parameters
    ----------
    args
        Arguments of Miles.
    contribute_segment
        Whether this process lends the memory that the settings name as ``segment`` to a ``mooncake://`` store.

    Attributes
    ----------
    ferry
        The `rollferry.Ferry`, with all that it can do.

    Raises
    ------
    ValueError
        The settings are no JSON object, or name no valid namespace.
    EngineError
        The engine can't be used.
    """

    def __init__(self, args: Namespace, *, contribute_segment: bool = True) -> None:
        settings = {
            "schema": MILES,
            "namespace": "miles",
            **self._settings_of_backend(args),
            **json_object(os.environ.get(ENVIRONMENT), ENVIRONMENT),
            **json_object(getattr(args, "rollferry_init_kwargs", None), "rollferry_init_kwargs"),
        }
        url = settings.pop("url", None) or os.environ.get("ROLLFERRY_URL") or "shm://"
        if not contribute_segment and str(url).startswith("mooncake:"):
            settings["segment"] = 0
        self.ferry = rollferry.connect(url, **settings)

    def put(self, value: Any, value_spec: Mapping[str, SpecLike] | None = None) -> StoreObjectRef:
        """Store rollout data, exactly as it is; when this returns every process can get it.

        Parameters
        ----------
        value
            Dict of fields.
        value_spec
            What is declared about fields, absent ones too.

        Returns
        -------
        StoreObjectRef

        Raises
        ------
        SchemaError
            A spec has an unknown codec. (It is a ValueError.)
        RollferryError
            What `rollferry.Ferry.put` raises. Nothing was put.
        """
        ref = self.ferry.put(value, schema=schema_of(value_spec or {}))
        return StoreObjectRef(backend="rollferry", payload=ref.to_json())

    def get(self, ref: StoreObjectRef) -> ObjectStoreGetResult:
        """Give stored rollout data: the same keys, types and values; writable, and private to the caller.

        Any number of processes may get it. Releasing empties the dict; arrays that were taken out of it stay valid.

        Raises
        ------
        RollferryError
            What `rollferry.Ferry.get` raises: BundleNotFoundError where it was removed.
        """
        return ObjectStoreGetResult(value=self.ferry.get(ref.payload), release_fn=self.ferry.release)

    def remove(self, ref: StoreObjectRef) -> None:
        """Remove rollout data once all readers have it; a second time does nothing. Results stay valid."""
        self.ferry.remove(ref.payload)

    def close(self) -> None:
        """Let go of the engine. What is stored and what was got stay."""
        self.ferry.close()

    def _settings_of_backend(self, args: Namespace) -> dict[str, Any]:  # noqa: ARG002
        return {}


class RayObjectStore(RollferryObjectStore):
    """Object store in the Ray cluster that this process is attached to, unless settings say otherwise."""

    def _settings_of_backend(self, args: Namespace) -> dict[str, Any]:  # noqa: ARG002
        return {"url": "ray://"}


class MooncakeObjectStore(RollferryObjectStore):
    """Object store in Mooncake Store, with Miles' arguments for it.

    ``args.mooncake_store_init_kwargs`` and ``args.mooncake_replica_num`` are translated to options of ``mooncake://``;
    what they lack comes from Mooncake's environment variables. As in Miles the protocol is ``rdma`` by default.

    Raises
    ------
    ValueError
        An argument is not known, or there is less than one replica.
    """

    def _settings_of_backend(self, args: Namespace) -> dict[str, Any]:
        given = json_object(args.mooncake_store_init_kwargs, "mooncake_store_init_kwargs")
        unknown = sorted(set(given) - {MASTER, *MOONCAKE_OPTIONS})
        if unknown:
            known = ", ".join([MASTER, *MOONCAKE_OPTIONS])
            raise ValueError(f"mooncake_store_init_kwargs: {', '.join(unknown)} is not known; known are {known}")
        if args.mooncake_replica_num < 1:
            raise ValueError(f"mooncake_replica_num must be 1 at least, not {args.mooncake_replica_num}")
        return {
            "url": f"mooncake://{given.pop(MASTER, None) or ''}",
            "replicas": args.mooncake_replica_num,
            "protocol": os.environ.get("MOONCAKE_PROTOCOL") or "rdma",
            **{MOONCAKE_OPTIONS[key]: value for key, value in given.items() if value not in (None, "")},
        }


STORES: dict[ObjectStoreBackend, type[RollferryObjectStore]] = {
    ObjectStoreBackend.RAY: RayObjectStore,
    ObjectStoreBackend.MOONCAKE: MooncakeObjectStore,
    ObjectStoreBackend.ROLLFERRY: RollferryObjectStore,
}

_INSTANCE: BaseObjectStore | None = None


def init_instance(args: Namespace, *, contribute_segment: bool | None = None) -> BaseObjectStore:
    """Make the object store of this process, once.

    Parameters
    ----------
    args
        Arguments of Miles; ``args.object_store_backend`` says which store.
    contribute_segment
        Whether this process lends memory to a ``mooncake://`` store. By default one process of a node does: the one
        without LOCAL_RANK, or with 0.

    Raises
    ------
    AssertionError
        There is one already, as in Miles.
    ValueError
        There is no such backend, or its settings make no sense.
    """
    global _INSTANCE  # noqa: PLW0603
    if _INSTANCE is not None:
        raise AssertionError("there is an object store already; get_instance gives it")
    store = STORES[ObjectStoreBackend(args.object_store_backend)]
    contribute = _default_contribute_segment() if contribute_segment is None else contribute_segment
    _INSTANCE = store(args, contribute_segment=contribute)
    return _INSTANCE


def get_instance() -> BaseObjectStore:
    """Give the object store of this process. Raises AssertionError where there is none, as in Miles."""
    if _INSTANCE is None:
        raise AssertionError("there is no object store yet; call init_instance first")
    return _INSTANCE


def _default_contribute_segment() -> bool:
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def schema_of(value_spec: Mapping[str, SpecLike]) -> Schema:
    """Give the schema of the fields that a value spec names and MILES does not have. Raises SchemaError."""
    for name, spec in value_spec.items():
        if spec.codec not in CODECS:
            raise SchemaError(f"no codec {spec.codec!r}; there are {', '.join(CODECS)}", field=name)
    return Schema(
        {name: FieldSchema(row_aligned=spec.codec != "auto") for name, spec in value_spec.items() if name not in MILES}
    )


def json_object(given: object, source: str) -> dict[str, Any]:
    """Read settings given as a dict, as its JSON, or not at all. Raises ValueError, naming their source."""
    try:
        read = json.loads(given) if isinstance(given, str) and given else given or {}
    except ValueError as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{source} must be a JSON object of settings, not {read!r:.60}")  # noqa: TRY004
    return dict(read)
