"""Names of types that a signature can't say in arrays alone: pytrees, and functions of them."""

from collections.abc import Callable
from typing import Any, TypeAlias

Params: TypeAlias = Any
"""A pytree of floating-point arrays."""

Batch: TypeAlias = Any
"""A pytree of arrays [B, ...], inputs and labels together."""

Example: TypeAlias = Any
"""A row of a batch: the same pytree without the leading axis."""

LossFn: TypeAlias = Callable[..., Any]
"""The loss of one example, `(params, example, *shared) -> scalar`, or `(scalar, aux)`; with a key of its own as `rng=`."""
