"""Blocks of an array, into which it is cut; which one it is need not be known before the program runs."""

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import jax

_ROW = 128  # values in a row of a TPU's memory


class Block(NamedTuple):
    """Where a block begins along each axis of an array, and how long it is there."""

    starts: tuple[Any, ...]
    shape: tuple[int, ...]

    @classmethod
    def numbered(cls, number: Any, shape: tuple[int, ...], cuts: tuple[int, ...]) -> "Block":
        """A block of an array that is cut into so many along each axis; the last axis is counted first."""
        lengths = tuple(length // among for length, among in zip(shape, cuts, strict=True))
        starts: list[Any] = []
        for among, length in reversed([*zip(cuts, lengths, strict=True)]):
            starts.append(number % among * length if among > 1 else 0)
            number = number // among if among > 1 else number
        return cls(tuple(reversed(starts)), lengths)

    def of(self, array: Any) -> Any:
        """What an array has there."""
        return jax.lax.dynamic_slice(array, self.starts, self.shape)

    def put(self, array: Any, values: Any) -> Any:
        """The array with other values there."""
        return jax.lax.dynamic_update_slice(array, values, self.starts)


def cuts(shape: tuple[int, ...], number: int, axes: Collection[int]) -> tuple[int, ...] | None:
    """Into how many blocks along each of some axes an array is cut for so many in all; None if it doesn't divide.

    First along axes that don't fill rows of a TPU's memory, which lie across them, then along others, the last one into whole
    rows.
    """
    found = [1] * len(shape)
    for axis in sorted(axes, key=lambda axis: (shape[axis] % _ROW == 0, axis)):
        in_rows = axis == len(shape) - 1 and shape[axis] % _ROW == 0
        found[axis] = math.gcd(number, shape[axis] // _ROW if in_rows else shape[axis])
        number //= found[axis]
    return tuple(found) if number == 1 else None
