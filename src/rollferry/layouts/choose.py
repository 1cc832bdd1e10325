"""Which layout a column gets: one entry for each exact type of value.

A new type of value is one file with its encoding, and one line here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollferry.errors import UnsupportedValueError
from rollferry.layouts import ndarrays, numbers, pickled, text
from rollferry.layouts.base import Spec
from rollferry.layouts.lazy import LazyList, LazyRows
from rollferry.layouts.optional import load_if_imported
from rollferry.layouts.tree import null, record, registered, scalars, sequence

if TYPE_CHECKING:
    from rollferry.layouts.encoder import Encoder

__all__ = ["Handler", "handler_for"]


class Handler(NamedTuple):
    """How the values of one type are encoded.

    Parameters
    ----------
    encode
        Turns a column of values of that exact type into a spec.
    shares
        Whether an object that occurs several times is stored once.
    nests
        Whether the values contain other values.
    """

    encode: "Callable[[list[Any], Encoder], Spec]"
    shares: bool = False
    nests: bool = False


HANDLERS: dict[type, Handler] = {
    type(None): Handler(null.Null.encode),
    bool: Handler(numbers.Numbers.encode),
    int: Handler(numbers.encode_ints),
    float: Handler(numbers.Numbers.encode),
    str: Handler(text.Text.encode, shares=True),
    bytes: Handler(text.Text.encode, shares=True),
    bytearray: Handler(text.Text.encode, shares=True),
    list: Handler(sequence.Sequence.encode, nests=True),
    tuple: Handler(sequence.Sequence.encode, nests=True),
    dict: Handler(record.encode_dicts, nests=True),
    np.ndarray: Handler(ndarrays.encode_ndarrays, shares=True),
}
OBJECT_ARRAYS = Handler(ndarrays.encode_ndarrays, shares=True, nests=True)
SCALARS = Handler(scalars.Scalars.encode)
REGISTERED = Handler(registered.Registered.encode, nests=True)
PICKLED = Handler(pickled.Pickled.encode)


def handler_for(cls: type, values: list[Any], allow_pickle: bool) -> Handler:
    """Give the handler of a column whose values all have the exact type `cls`.

    Raises UnsupportedValueError, which names the first value, where there is none.
    """
    handler = HANDLERS.get(cls)
    if handler is not None:
        # Behind a first array of another dtype, object arrays are found when dtypes turn out to differ.
        return OBJECT_ARRAYS if cls is np.ndarray and values[0].dtype.hasobject else handler
    if cls in registered.BY_CLASS:
        return REGISTERED
    if issubclass(cls, np.generic) and (cls is np.record or np.dtype(cls).type is cls):
        return SCALARS
    for base in cls.__mro__:
        module = load_if_imported(base.__module__.partition(".")[0])
        if module is not None and hasattr(module, "handler"):
            found: Handler | None = module.handler(cls)
            if found is not None:
                return found
        if cls in registered.BY_CLASS:
            return handler_for(cls, values, allow_pickle)
    if issubclass(cls, LazyList | LazyRows):
        raise UnsupportedValueError(f"{describe(cls)} is not put as it is; make a list of it: list(value)", values[0])
    if allow_pickle:
        return PICKLED
    raise UnsupportedValueError(
        f"{describe(cls)} can't be kept exactly. Convert it, register its class with rollferry.register(), "
        "or let both sides connect with allow_pickle=True",
        values[0],
    )


def describe(cls: type) -> str:
    """Name a class that is not supported, and why if it nearly is."""
    name = (
        f"a value of {cls.__module__}.{cls.__qualname__}"
        if cls.__module__ != "builtins"
        else f"{article(cls.__qualname__)} {cls.__qualname__}"
    )
    for base in cls.__mro__[1:-1]:
        if base in HANDLERS:
            return f"{name}, a subclass of {base.__name__},"
    return name


def article(word: str) -> str:
    """Give the indefinite article of a word."""
    return "an" if word[0] in "aeio" else "a"
