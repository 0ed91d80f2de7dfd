"""The oracle of clipping: a Python loop over single examples, added up in float64."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@functools.cache
def jitted_value_and_grad(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(loss_fn))


def example_of(batch: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf)[i]), batch)


def losses_of(loss_fn: Callable[..., Any], params: Any, batch: Any) -> np.ndarray:
    """The loss of each example, by the program with which `loop` makes their gradients."""
    size = len(jax.tree.leaves(batch)[0])
    return np.array([jitted_value_and_grad(loss_fn)(params, example_of(batch, i))[0] for i in range(size)])


def loop(
    loss_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    mask: Any,
    clip_norm: float,
    factors: Callable[[Any], list[float]] | None = None,
) -> tuple[Any, list[float]]:
    """The oracle: one gradient at a time, scaled and added up in float64.

    `factors` gives a factor for each leaf of a gradient; by default all are clipped together to `clip_norm`.
    """
    value_and_grad = jitted_value_and_grad(loss_fn)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), params)
    norms = []
    for i in range(len(mask)):
        _, grad = value_and_grad(params, example_of(batch, i))
        grad = jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf).astype(np.float32), np.float64), grad)
        norm = math.sqrt(sum(float(np.square(leaf).sum()) for leaf in jax.tree.leaves(grad)))
        norms.append(norm if mask[i] else 0.0)
        if mask[i] and math.isfinite(norm):
            flat = [min(1.0, clip_norm / norm) if norm else 1.0] * len(jax.tree.leaves(grad))
            scales = jax.tree.unflatten(jax.tree.structure(grad), flat if factors is None else factors(grad))
            total = jax.tree.map(lambda a, g, c: a + c * g, total, grad, scales)
    return total, norms


def norm_of(tree: Any) -> float:
    return math.sqrt(sum(float(np.square(np.asarray(leaf, np.float64)).sum()) for leaf in jax.tree.leaves(tree)))


def distance(a: Any, b: Any) -> float:
    return norm_of(jax.tree.map(lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64), a, b))


def widened(batch: Any) -> Any:
    """The same ids in 32 bits: of rows that a narrow type can't number, XLA drops the gradient in some programs."""
    is_narrow = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype.itemsize < 4
    return jax.tree.map(lambda leaf: leaf.astype(jnp.int32) if is_narrow(leaf) else leaf, batch)
