"""The errors that rollferry raises.

::

    RollferryError
    ├── UnsupportedValueError (TypeError)     a value that can't be kept exactly; names its path in the batch
    ├── BatchChangedError (RuntimeError)      the batch was changed while it was being put
    ├── SchemaError (ValueError)              data that breaks its schema; names field and row
    ├── SelectionError (LookupError)          fields, rows or buffers that a get or append asks for and can't have
    ├── RefError (ValueError)                 a reference that is foreign, damaged, forged or of another version
    ├── BundleError                           a stored bundle that is corrupt, truncated or hostile
    ├── BundleNotFoundError (LookupError)     a bundle that was removed or never existed here
    └── EngineError                           the engine can't do its work
        ├── EngineFullError                   no room; says how many bytes are needed and free
        └── FerryClosedError                  used after close()
"""

__all__ = [
    "BatchChangedError",
    "BundleError",
    "BundleNotFoundError",
    "EngineError",
    "EngineFullError",
    "FerryClosedError",
    "RefError",
    "RollferryError",
    "RollferryWarning",
    "SchemaError",
    "SelectionError",
    "UnsupportedValueError",
]


class RollferryError(Exception):
    """Base of all errors of rollferry."""


class UnsupportedValueError(RollferryError, TypeError):
    """A value can't be kept exactly, so nothing was put.

    Parameters
    ----------
    reason
        What is wrong and what to do, without the place.
    value
        The refused object; its place is found by identity.
    path
        Where it is in the batch, such as ``metadata[17].tools[0]``.
    """

    def __init__(self, reason: str, value: object = None, path: str | None = None) -> None:
        super().__init__(reason if path is None else f"{path}: {reason}")
        self.reason = reason
        self.value = value
        self.path = path


class BatchChangedError(RollferryError, RuntimeError):
    """Another thread changed the batch while it was being put; nothing was put."""


class SchemaError(RollferryError, ValueError):
    """Data breaks its schema, or a schema is not sensible. Names the field, and the row where there is one."""

    def __init__(self, reason: str, field: object = None, row: int | None = None) -> None:
        place = "" if field is None else f"field {field!r}" + ("" if row is None else f", row {row}") + ": "
        super().__init__(place + reason)
        self.reason = reason
        self.field = field
        self.row = row


class SelectionError(RollferryError, LookupError):
    """Fields, rows or buffers that were asked for don't fit the bundle. Nothing was read or written."""


class RefError(RollferryError, ValueError):
    """A reference is foreign, damaged, forged or of another version."""


class BundleError(RollferryError):
    """A stored bundle is corrupt, truncated, hostile, or of another version."""


class BundleNotFoundError(RollferryError, LookupError):
    """There is no such bundle: it was removed, or it never was in this engine."""


class EngineError(RollferryError):
    """An engine can't do its work; says what to do about it."""


class EngineFullError(EngineError):
    """There is no room for a bundle. Nothing was evicted, nothing was left behind.

    Attributes
    ----------
    needed, free
        Bytes that were asked for and bytes that are free.
    """

    def __init__(self, message: str, needed: int, free: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.free = free

    def __reduce__(self) -> tuple[type["EngineFullError"], tuple[str, int, int]]:
        return type(self), (str(self), self.needed, self.free)


class FerryClosedError(EngineError):
    """The Ferry was closed."""


class RollferryWarning(UserWarning):
    """Something works, but not as well as it could."""
