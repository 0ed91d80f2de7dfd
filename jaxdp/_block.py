"""A block of an array, at a place that need not be known before the program runs."""

from typing import Any, NamedTuple

import jax


class Block(NamedTuple):
    """Where a block begins along each axis of an array, and how long it is there."""

    starts: tuple[Any, ...]
    shape: tuple[int, ...]

    def of(self, array: Any) -> Any:
        """What an array has there."""
        return jax.lax.dynamic_slice(array, self.starts, self.shape)

    def put(self, array: Any, values: Any) -> Any:
        """The array with other values there."""
        return jax.lax.dynamic_update_slice(array, values, self.starts)
