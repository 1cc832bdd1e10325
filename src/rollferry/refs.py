"""TransferRef: the small handle that a scheduler carries instead of the batch."""

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import xxhash

from rollferry.errors import RefError, StaleRolloutError

__all__ = [
    "ID_PATTERN",
    "MAX_READERS",
    "MAX_STAGES",
    "NAMESPACE_PATTERN",
    "TransferRef",
    "as_ref",
    "check_lag",
    "check_metadata",
    "check_version",
]

TYPE = "rollferry_ref"
VERSION = 1
NAMESPACE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
ENGINE_PATTERN = re.compile(r"[a-z][a-z0-9+]{0,15}")
ID_PATTERN = re.compile(r"[0-9a-f]{32}")
MAX_TEXT = 1 << 24
MAX_STAGES = 1000
MAX_READERS = 1 << 20


class TransferRef(msgspec.Struct, frozen=True, kw_only=True):
    """Reference to one bundle, or to the newest stage of one. Immutable, picklable, and under 1 KB without metadata.

    Parameters
    ----------
    id
        Random id of the bundle, 32 hexadecimal digits; never used twice.
    engine
        URL scheme of the engine that holds it, such as ``shm``.
    namespace
        Namespace it was put into.
    nbytes
        Payload bytes stored; of several stages, those of the newest.
    rows
        Rows of the batch, where all row-aligned fields have the same number; else None.
    digest
        xxh3-128 of the manifest, hexadecimal.
    metadata
        The caller's own JSON-safe values.
    stages
        How many stages the bundle consists of: one, and one more for each time that fields were appended.
    policy_version
        Version of the policy that generated the batch, where the producer said.
    readers
        How many readers it is for, where the producer said: the last one that is done removes it.
    """

    id: str
    engine: str
    namespace: str
    nbytes: int
    rows: int | None
    digest: str
    metadata: dict[str, Any] | None = None
    stages: int = 1
    policy_version: int | None = None
    readers: int | None = None

    def __post_init__(self) -> None:
        check_text(self.id, ID_PATTERN, "id")
        check_text(self.engine, ENGINE_PATTERN, "engine")
        check_text(self.namespace, NAMESPACE_PATTERN, "namespace")
        check_text(self.digest, ID_PATTERN, "digest")
        for name, value in (("nbytes", self.nbytes), ("rows", self.rows), ("policy_version", self.policy_version)):
            if not (type(value) is int and 0 <= value < 1 << 63) and not (name != "nbytes" and value is None):
                refuse(f"its {name} is {value!r:.60}")
        if self.readers is not None and not (type(self.readers) is int and 1 <= self.readers <= MAX_READERS):
            refuse(f"its readers is {self.readers!r:.60}")
        if type(self.stages) is not int or not 1 <= self.stages <= MAX_STAGES:
            refuse(f"its stages is {self.stages!r:.60}")
        if self.metadata is not None:
            check_metadata(self.metadata)

    def __hash__(self) -> int:
        return hash((self.id, self.engine, self.namespace))

    @property
    def key(self) -> str:
        """Name of the bundle within its engine."""
        return f"{self.namespace}.{self.id}"

    def to_dict(self) -> dict[str, Any]:
        """Give a dict of JSON-safe values."""
        handle: dict[str, Any] = {
            "type": TYPE,
            "version": VERSION,
            "engine": self.engine,
            "namespace": self.namespace,
            "id": self.id,
            "nbytes": self.nbytes,
            "rows": self.rows,
            "digest": self.digest,
            "check": self._check(),
        }
        if self.stages > 1:
            handle["stages"] = self.stages
        if self.policy_version is not None:
            handle["policy_version"] = self.policy_version
        if self.readers is not None:
            handle["readers"] = self.readers
        if self.metadata is not None:
            handle["metadata"] = json.loads(json.dumps(self.metadata))
        return handle

    @classmethod
    def from_dict(cls, handle: Mapping[str, Any]) -> "TransferRef":
        """Read what `to_dict` gave. Raises RefError for anything else."""
        if not isinstance(handle, Mapping):
            refuse(f"a mapping is needed, not {type(handle).__name__}")
        if handle.get("type") != TYPE:
            refuse("it was not made by rollferry")
        if type(handle.get("version")) is not int or handle["version"] != VERSION:
            refuse(f"it has version {handle.get('version')!r:.20}, this rollferry reads version {VERSION}")
        missing = {"engine", "namespace", "id", "nbytes", "rows", "digest", "check"} - set(handle)
        if missing:
            refuse(f"it lacks {', '.join(sorted(missing))}")
        ref = cls(
            id=handle["id"],
            engine=handle["engine"],
            namespace=handle["namespace"],
            nbytes=handle["nbytes"],
            rows=handle["rows"],
            digest=handle["digest"],
            metadata=handle.get("metadata"),
            stages=handle.get("stages", 1),
            policy_version=handle.get("policy_version"),
            readers=handle.get("readers"),
        )
        if handle["check"] != ref._check():
            refuse("it was changed on its way")
        return ref

    def to_json(self) -> str:
        """Give one line of JSON."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: object) -> "TransferRef":
        """Read what `to_json` gave. Raises RefError for anything else."""
        if not isinstance(text, str | bytes) or len(text) > MAX_TEXT:
            refuse("JSON text is needed")
        try:
            handle = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RefError(f"bad reference: it is not JSON ({error})") from None
        return cls.from_dict(handle)

    def _check(self) -> str:
        fixed = f"{self.engine}|{self.namespace}|{self.id}|{self.nbytes}|{self.rows}|{self.digest}"
        if self.stages > 1:
            fixed += f"|{self.stages}"
        if self.policy_version is not None:
            fixed += f"|policy {self.policy_version}"
        if self.readers is not None:
            fixed += f"|readers {self.readers}"
        return xxhash.xxh3_64_hexdigest(fixed.encode())


def as_ref(ref: TransferRef | Mapping[str, Any] | str | bytes) -> TransferRef:
    """Accept a reference as itself, as its dict, or as its JSON text."""
    if isinstance(ref, TransferRef):
        return ref
    if isinstance(ref, str | bytes):
        return TransferRef.from_json(ref)
    return TransferRef.from_dict(ref)


def check_metadata(metadata: object) -> dict[str, Any]:
    """Give a copy of a dict that JSON carries unchanged. Raises RefError for anything else."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(metadata, allow_nan=False))
        same = isinstance(metadata, dict) and copy == metadata
    except (TypeError, ValueError, RecursionError) as error:
        raise RefError(f"bad reference: its metadata is not JSON-safe ({error})") from None
    if not same:
        refuse("its metadata must be a dict that JSON carries unchanged (str keys, lists instead of tuples)")
    return copy


def check_version(version: object, name: str) -> None:
    """Raise ValueError unless something is a version, or None."""
    if version is not None and not (type(version) is int and 0 <= version < 1 << 63):
        raise ValueError(f"{name} must be an int of 0 at least, not {version!r:.60}")


def check_lag(ref: TransferRef, max_lag: int | None, current_version: int | None) -> None:
    """Raise StaleRolloutError where the policy of a batch is too old."""
    check_version(max_lag, "max_lag")
    check_version(current_version, "current_version")
    if max_lag is None or current_version is None:
        raise ValueError("max_lag and current_version go together")
    if ref.policy_version is None:
        raise RefError(f"bad reference: that of {ref.key} has no policy version; put with policy_version=")
    lag = current_version - ref.policy_version
    if lag > max_lag:
        raise StaleRolloutError(
            f"bundle {ref.key} is of policy version {ref.policy_version}, {lag} behind {current_version}; "
            f"{max_lag} is allowed",
            lag,
            max_lag,
        )


def check_text(value: object, pattern: re.Pattern[str], name: str) -> None:
    """Raise RefError unless `value` is text of the given form."""
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        refuse(f"its {name} is {value!r:.60}")


def refuse(reason: str) -> NoReturn:
    """Raise RefError."""
    raise RefError(f"bad reference: {reason}")
