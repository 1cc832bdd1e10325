"""Registration of the user's own classes."""

import dataclasses
import enum
from collections.abc import Callable, Collection, Iterable
from typing import Any

from rollferry.errors import BundleError, UnsupportedValueError
from rollferry.layouts.choose import HANDLERS
from rollferry.layouts.tree.registered import BY_CLASS, BY_NAME, Codec

__all__ = ["register"]

HEAP_TYPE = 1 << 9  # flag of classes made by a class statement


def register(
    cls: Any,
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> Any:
    """Let batches hold values of a class; both sides have to register it. Usable as a class decorator.

    Parameters
    ----------
    cls
        A namedtuple, dataclass or Enum, or any class with `encode` and `decode`. Subclasses are not included.
    name
        Name under which bundles hold it; by default its module and qualified name.
    encode
        Takes a value apart into something that batches support, such as a tuple or dict.
    decode
        Rebuilds an equal value from what `encode` gave.

    Returns
    -------
    type
        `cls`.

    Raises
    ------
    ValueError
        The class is supported by itself, or the name is taken by another class.
    TypeError
        The class has no default form, and `encode` or `decode` is missing.
    """
    if not isinstance(cls, type):
        raise TypeError(f"a class is needed, not an instance of {type(cls).__name__}")
    # In a process that multiprocessing spawned, what was __main__ to its parent has another name.
    module = "__main__" if cls.__module__ == "__mp_main__" else cls.__module__
    name = f"{module}:{cls.__qualname__}" if name is None else name
    if cls in HANDLERS or (cls in BY_CLASS and ":" not in BY_CLASS[cls].name):
        raise ValueError(f"{cls.__qualname__} is supported without registration")
    if (encode is None) != (decode is None):
        raise TypeError("encode and decode go together")
    if ":" not in name:
        name = f"{name}:"  # names without a colon are the library's own
    taken = next((other for other, codec in BY_CLASS.items() if codec.name == name and other is not cls), None)
    if taken is not None and f"{taken.__module__}:{taken.__qualname__}" != f"{cls.__module__}:{cls.__qualname__}":
        raise ValueError(f"the name {name!r} is taken by {taken.__qualname__}")
    codec = Codec(name, encode, decode) if encode and decode else default_codec(cls, name)
    BY_CLASS[cls] = BY_NAME[name] = codec
    return cls


def default_codec(cls: type, name: str) -> Codec:
    """Give the codec of a namedtuple, dataclass or Enum."""
    if issubclass(cls, enum.Enum):
        return Codec(name, encode_enum, lambda part: cls[part] if isinstance(part, str) else cls(part))
    if issubclass(cls, tuple) and hasattr(cls, "_make") and hasattr(cls, "_fields"):
        return Codec(name, encode_namedtuple, lambda parts: tuple.__new__(cls, parts), tuple)
    if dataclasses.is_dataclass(cls) and all(base.__flags__ & HEAP_TYPE for base in cls.__mro__[:-1]):
        return Codec(name, encode_dataclass, lambda parts: decode_dataclass(cls, parts), dict)
    raise TypeError(f"{cls.__qualname__} is no plain namedtuple, dataclass or Enum: give encode and decode")


def encode_enum(value: Any) -> Any:
    """Give the member's name; what is no named member, such as a combination of flags, has a value."""
    return value._name_ if type(value).__members__.get(value._name_) is value else value._value_


def encode_namedtuple(value: Any) -> tuple[Any, ...]:
    """Give the items of a namedtuple."""
    check_extra(value, ())
    return tuple(tuple.__iter__(value))


def encode_dataclass(value: Any) -> dict[str, Any]:
    """Give the fields of a dataclass instance."""
    names = [field.name for field in dataclasses.fields(value)]
    check_extra(value, names)
    return {name: getattr(value, name) for name in names}


def check_extra(value: Any, names: Collection[str]) -> None:
    """Raise UnsupportedValueError where an object has attributes besides the named ones."""
    slots = [slot for base in type(value).__mro__ for slot in (slots_of(base))]
    found = {*getattr(value, "__dict__", ()), *(slot for slot in slots if hasattr(value, slot))}
    extra = found - {*names, "__dict__", "__weakref__"}
    if extra:
        raise UnsupportedValueError(f"has attributes that are not fields: {', '.join(sorted(extra))}", value)


def slots_of(cls: type) -> Iterable[str]:
    """Give the slots that a class declares itself."""
    slots = vars(cls).get("__slots__") or ()
    return (slots,) if isinstance(slots, str) else slots


def decode_dataclass(cls: type, parts: dict[str, Any]) -> Any:
    """Rebuild a dataclass instance without running its __init__, which may compute, check or refuse."""
    if {field.name for field in dataclasses.fields(cls)} != set(parts):
        raise BundleError(f"the fields of {cls.__qualname__} differ between the two sides")
    value: Any = object.__new__(cls)
    for name, part in parts.items():
        object.__setattr__(value, name, part)
    return value
