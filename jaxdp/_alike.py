"""Small arrays of one shape as one array: an operation costs a device as much as thousands of values within one do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

_SMALL = 2**12  # values


@dataclass(frozen=True)
class Alike:
    """Which arrays go into one stack.

    Attributes:
        groups: the numbers of the arrays of each stack, which are in the order of their first ones.
    """

    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], dimensions: float = 1, before: int = 0) -> "Alike":
        """Small arrays of one shape and type, which is also where they are, together, others by themselves.

        Args:
            leaves: arrays, or their shapes and types.
            dimensions: of a small one at the most. Vectors a TPU puts side by side in one operation, others it copies one by one.
            before: how many axes come before those that count.
        """
        alike: dict[Any, list[int]] = {}
        for i, leaf in enumerate(leaves):
            shape = leaf.shape[before:]
            is_small = len(shape) <= dimensions and math.prod(shape) <= _SMALL
            kind = jax.typeof(leaf) if isinstance(leaf, jax.Array) else (leaf.shape, leaf.dtype)
            alike.setdefault(kind if is_small else i, []).append(i)
        return cls(tuple(map(tuple, alike.values())))

    def stack(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrays in stacks, [k, ...] each. What is divided over devices stays so: along other axes nothing moves."""
        return [jnp.stack([leaves[i] for i in group]) for group in self.groups]

    def apart(self, stacks: Sequence[Any]) -> list[Any]:
        """What is in the stacks, or in what was made of them, in the order of the arrays."""
        found = {i: stack[k] for group, stack in zip(self.groups, stacks, strict=True) for k, i in enumerate(group)}
        return [found[i] for i in range(len(found))]
