"""Tools for testing code that uses rollferry: strict comparison here, hypothesis strategies in `testing.strategies`."""

from rollferry.testing.equality import assert_same, differences

__all__ = ["assert_same", "differences"]
