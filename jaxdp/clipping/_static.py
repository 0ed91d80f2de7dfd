"""Values that are shared with every example and are no arrays: numbers, strings, functions, settings.

A loss may branch on them, or make shapes of them. So they stay what they are, whichever method computes the gradients: they go
through traces and compiled programs as part of the structure around the arrays, and each new value is a new program. An array,
`jnp.float32(0.1)` for instance, is an input of the program, for what changes from step to step.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import _checks
from .._errors import UsageError


@dataclass(frozen=True, eq=False)
class Static:
    """A leaf that is no array, as a part of a pytree's structure; equal to one of the same type and value."""

    value: Any

    def _identity(self) -> Any:
        # 1 == True == 1.0 and 0.0 == -0.0, for which a loss may differ; and NaN is not equal to itself.
        is_float = isinstance(self.value, float | complex | np.generic)
        return type(self.value), repr(self.value) if is_float else self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and bool(self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash(self._identity())


jax.tree_util.register_static(Static)


def make_static(shared: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shared arguments, with each leaf that is no array made static; a second time changes nothing.

    Raises:
        UsageError: for a leaf that can't be compared with another, so that nobody could tell whether a program is still its own.
    """

    def of(path: Any, leaf: Any) -> Any:
        _checks.taken_as_it_is("shared", leaf, "give arrays of numbers", path)
        if _checks.is_array(leaf) and not isinstance(leaf, np.generic):
            return leaf
        try:
            hash(leaf)
        except TypeError as error:
            raise UsageError(
                f"shared{jax.tree_util.keystr(path)} is a {type(leaf).__name__}, which is no array and can't be hashed: give "
                "arrays of numbers, numbers, strings or functions, or close over it in the loss"
            ) from error
        return Static(leaf)

    return jax.tree_util.tree_map_with_path(of, shared)


def unmake_static(shared: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shared arguments as they were given: the inverse of `make_static`."""
    is_static = lambda node: isinstance(node, Static)
    return jax.tree.map(lambda leaf: leaf.value if is_static(leaf) else leaf, shared, is_leaf=is_static)
