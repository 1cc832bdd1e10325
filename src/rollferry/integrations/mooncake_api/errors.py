"""rollferry's errors that are, at the same time, those which code written for Mooncake catches."""

from collections.abc import Iterator
from contextlib import contextmanager

from rollferry.errors import (
    BundleError,
    BundleNotFoundError,
    EngineError,
    EngineFullError,
    RollferryError,
    SelectionError,
)

__all__ = [
    "BundleGoneError",
    "CorruptBundleError",
    "FieldMissingError",
    "NotOfferedError",
    "StoreFailedError",
    "StoreFullError",
    "WrongSelectionError",
    "as_there",
]


class BundleGoneError(BundleNotFoundError, KeyError):
    """The bundle was removed, or never was in this engine."""

    __str__ = Exception.__str__  # KeyError's would quote the message


class FieldMissingError(SelectionError, KeyError):
    """A field was asked for that the bundle doesn't have."""

    __str__ = Exception.__str__


class WrongSelectionError(SelectionError, IndexError, ValueError):
    """Rows or destinations don't fit the bundle."""


class StoreFailedError(EngineError, RuntimeError):
    """The engine can't do its work."""


class StoreFullError(EngineFullError, RuntimeError):
    """There is no room; nothing was evicted, nothing left behind."""


class CorruptBundleError(BundleError, RuntimeError):
    """The stored bundle is damaged, or can't be read here."""


class NotOfferedError(RollferryError, NotImplementedError):
    """Mooncake's module has this, and this one doesn't."""


@contextmanager
def as_there() -> Iterator[None]:
    """Raise rollferry's errors as the classes of this module."""
    try:
        yield
    except BundleNotFoundError as error:
        raise BundleGoneError(str(error)) from error
    except SelectionError as error:
        raise WrongSelectionError(str(error)) from error
    except EngineFullError as error:
        raise StoreFullError(str(error), error.needed, error.free) from error
    except EngineError as error:
        raise StoreFailedError(str(error)) from error
    except BundleError as error:
        raise CorruptBundleError(str(error)) from error
