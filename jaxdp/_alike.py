"""Small arrays of one shape as one array: an operation costs a device as much as thousands of values within one do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from ._mesh import types_of_long_axes

_SMALL = 2**12  # values


@dataclass(frozen=True)
class Alike:
    """Which arrays go into one stack.

    Attributes:
        groups: the numbers of the arrays of each stack, which are in the order of their first ones.
        matrices: of each stack, whether its arrays have two axes.
    """

    groups: tuple[tuple[int, ...], ...]
    matrices: tuple[bool, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], dimensions: float | None = None, before: int = 0) -> "Alike":
        """Small arrays of one shape and type, which is also where they are, together, others by themselves.

        Args:
            leaves: arrays, or their shapes and types.
            dimensions: of a small one at the most; by default one, and two where no compiler divides arrays over devices, of
                which one below another would have to move. Others a TPU copies one by one, not in one operation.
            before: how many axes come before those that count.
        """
        dimensions = (2 if _nothing_is_divided() else 1) if dimensions is None else dimensions
        alike: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            shape = leaf.shape[before:]
            is_small = len(shape) <= dimensions and math.prod(shape) <= _SMALL
            kind = jax.typeof(leaf) if isinstance(leaf, jax.Array) else (leaf.shape, leaf.dtype)
            alike.setdefault(kind if is_small else i, []).append(i)
        groups = tuple(map(tuple, alike.values()))
        return cls(groups, tuple(len(leaves[group[0]].shape) - before == 2 for group in groups))

    def stack(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrays in stacks: matrices [k n, ...], one below another, others [k, ...]."""
        join = lambda are_matrices: jnp.concatenate if are_matrices else jnp.stack
        together = zip(self.groups, self.matrices, strict=True)
        return [join(are_matrices)([leaves[i] for i in group]) for group, are_matrices in together]

    def apart(self, stacks: Sequence[Any]) -> list[Any]:
        """What is in the stacks, or in what was made of them, in the order of the arrays."""
        found = {}
        for group, are_matrices, stack in zip(self.groups, self.matrices, stacks, strict=True):
            members = jnp.split(stack, len(group)) if are_matrices else [stack[k] for k in range(len(group))]
            found |= zip(group, members, strict=True)
        return [found[i] for i in range(len(found))]


def _nothing_is_divided() -> bool:
    """Whether all axes of a mesh are the program's own, as within `jax.shard_map`."""
    return types_of_long_axes() == {AxisType.Manual}
