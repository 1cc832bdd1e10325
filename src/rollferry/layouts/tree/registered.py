"""Values of registered classes, taken apart into supported ones."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from rollferry.errors import BundleError, UnsupportedValueError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.optional import MODULES, load
from rollferry.layouts.rows import Rows

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["BY_CLASS", "BY_NAME", "Codec", "Registered", "register_builtin"]


class Codec(NamedTuple):
    """How values of one class are taken apart and rebuilt.

    Parameters
    ----------
    name
        Name in bundles.
    encode, decode
        One the inverse of the other.
    parts
        Exact type of what `encode` gives, checked before `decode`; None where it may be any.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    parts: type | None = None


BY_CLASS: dict[type, Codec] = {}
BY_NAME: dict[str, Codec] = {}


class Registered(Spec, frozen=True, tag="registered"):
    """Values of one registered class.

    Parameters
    ----------
    name
        Name under which the class is registered on both sides.
    parts
        Child column of what the values were taken apart into.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "values of a registered class, taken apart"

    name: str
    parts: int

    def children(self) -> Iterable[int]:
        return (self.parts,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Registered":
        """Encode values of one registered class."""
        codec = BY_CLASS[type(values[0])]
        parts = []
        for value in values:
            try:
                parts.append(codec.encode(value))
            except UnsupportedValueError:
                raise
            except Exception as error:
                raise UnsupportedValueError(f"its registered encode failed: {error!r}", value) from error
        return cls.encode_as(codec.name, parts, encoder)

    @classmethod
    def encode_as(cls, name: str, parts: list[Any], encoder: "Encoder") -> "Registered":
        """Encode parts under a name."""
        return cls(rows=len(parts), name=name, parts=encoder.column(parts))

    def select(self, rows: Rows, taken: Taken) -> "Registered":
        taken.column(self.parts, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def is_rebuilt_first(self) -> bool:
        return self.name.startswith(("torch.", "tensordict.", "numpy.zero_width"))

    def decode(self, source: "Decoder") -> list[Any]:
        package = self.name.partition(".")[0]
        if self.name not in BY_NAME and ":" not in self.name and package in MODULES:
            load(package)
        codec = BY_NAME.get(self.name)
        if codec is None:
            raise BundleError(
                f"the bundle has values of {self.name!r}, which is not registered in this process; "
                "import its class and call rollferry.register() before get, with the same name= where the two sides differ in it"
            )
        column = source.column(self.parts)
        # A bundle of somebody else's making may have anything here, such as a range of 2**40 where a list belongs.
        if codec.parts is not None and not all(type(parts) is codec.parts for parts in column):
            raise BundleError(f"values of {self.name!r} are not made of {codec.parts.__name__}")
        return [codec.decode(parts) for parts in column]

    def dtype_name(self) -> str:
        return self.name


def decode_complex(real: float, imag: float) -> complex:
    """Rebuild a complex number from two floats."""
    if type(real) is not float or type(imag) is not float:
        raise BundleError("a complex number is not made of two floats")
    return complex(real, imag)


def register_builtin(
    cls: type, name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any], parts: type
) -> None:
    """Support a class without the user's doing; the name has no colon."""
    BY_CLASS[cls] = BY_NAME[name] = Codec(name, encode, decode, parts)


BY_NAME["int"] = Codec("int", int, lambda data: int.from_bytes(data, "little", signed=True), bytes)
register_builtin(
    complex, "complex", lambda value: (value.real, value.imag), lambda parts: decode_complex(*parts), tuple
)
register_builtin(
    range, "range", lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts), tuple
)
register_builtin(set, "set", list, set, list)
register_builtin(frozenset, "frozenset", list, frozenset, list)
