"""Losses of which some convolution has a kernel of each example's own: vectorised, it becomes one of many groups."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def convolved(groups: int) -> dict[str, Callable[[Any, Any], Any]]:
    """By name, of weights [3, 3, 2 / groups, 4] and examples [6, 6, 2]."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def convolution(w: Any, x: Any, padding: Any = "SAME") -> Any:
        out = jax.lax.conv_general_dilated(
            x[None], w, (1, 1), padding, feature_group_count=groups, dimension_numbers=numbers
        )
        return jnp.sum(jnp.tanh(out))

    return {
        "itself": convolution,
        "in a branch": lambda w, x: jax.lax.cond(
            jnp.sum(x[:1]) > 0, lambda: convolution(w, x), lambda: convolution(w, -x)
        ),
        "with a kernel by the example": lambda w, x: convolution(w * jnp.mean(x), x),
        "with padding that takes away": lambda w, x: convolution(w, x, [(-1, 1), (0, 0)]),
        "after a step of its own": lambda w, x: convolution(w - 0.1 * jax.grad(convolution)(w, x), x),
    }
