"""All kinds of columns that a manifest may hold. A new kind is one line here."""

from rollferry.layouts.arrays import Dense, Ragged
from rollferry.layouts.media import Media
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.pickled import Pickled
from rollferry.layouts.text import Text
from rollferry.layouts.tree.jagged import Jagged
from rollferry.layouts.tree.null import Null
from rollferry.layouts.tree.objects import Objects
from rollferry.layouts.tree.record import Map, Record
from rollferry.layouts.tree.registered import Registered
from rollferry.layouts.tree.scalars import Scalars
from rollferry.layouts.tree.sequence import Sequence
from rollferry.layouts.tree.shared import Shared
from rollferry.layouts.tree.union import Union

__all__ = ["AnySpec"]

AnySpec = (
    Dense
    | Ragged
    | Numbers
    | Text
    | Media
    | Pickled
    | Null
    | Sequence
    | Record
    | Map
    | Union
    | Shared
    | Objects
    | Scalars
    | Registered
    | Jagged
)
