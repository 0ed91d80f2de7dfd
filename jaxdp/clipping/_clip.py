r"""Clip each example's gradient to a norm and add them up.

\[ S = \sum_i m_i\, c_i\, g_i, \qquad c_i = \min\Bigl(1, \frac{C}{(1 + \gamma)\,\lVert g_i \rVert_2}\Bigr) \]

with the mask m, the clip norm C and the rounding bound γ of `_norm`. Removing or adding one example moves S by at most C.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ._norm import per_example_norms, relative_error_bound

_SMALL = 4096


class ClippedSum(NamedTuple):
    """The sum of clipped gradients (float32, no batch axis) and the norms before clipping (float32 [B])."""

    grads: Any
    norms: Float[Array, " B"]


def clip_and_sum(grads: Any, mask: Bool[Array, " B"], clip_norm: float) -> ClippedSum:
    """Clip per-example gradients to `clip_norm` and add them up.

    Examples whose gradient has a NaN or infinite entry, and masked ones, contribute exactly zero: their entries are
    replaced by zeros before anything is multiplied or added, since 0 · NaN is NaN.

    Args:
        grads: pytree of arrays [B, ...], of any floating dtype.
        mask: bool [B], False for padding.
        clip_norm: L2 norm to clip to, above zero; inf for no clipping.

    Returns:
        The clipped sum, and the norm of each example's gradient; 0 for masked rows.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """
    rows, unpacked = packed(settled(grads))
    norms = per_example_norms(rows)
    usable, factors = usable_and_factors(norms * jnp.float32(1 + relative_error_bound(rows)), mask, clip_norm)
    total = unpacked([weighted_sum(matrix, usable, factors) for matrix in rows])
    return ClippedSum(total, jnp.where(mask, norms, 0))


def packed(grads: Any) -> tuple[list[Float[Array, "B n"]], Callable[[list[Float[Array, " n"]]], Any]]:
    """Per-example gradients as few matrices, all small leaves side by side in one: fewer, larger operations.

    Args:
        grads: pytree of float32 arrays [B, ...].

    Returns:
        The matrices, and the function that makes a pytree without the batch axis from a vector for each of them.
    """
    leaves, treedef = jax.tree.flatten(grads)
    shapes = [leaf.shape[1:] for leaf in leaves]
    small = [i for i, shape in enumerate(shapes) if math.prod(shape) <= _SMALL]
    groups = [*([small] if small else []), *([i] for i in range(len(leaves)) if i not in small)]
    row = lambda i: leaves[i].reshape(leaves[i].shape[0], -1)
    matrices = [
        jnp.concatenate([row(i) for i in group], axis=1) if len(group) > 1 else row(group[0]) for group in groups
    ]

    def unpacked(vectors: list[Float[Array, " n"]]) -> Any:
        parts: dict[int, Any] = {}
        for group, vector in zip(groups, vectors, strict=True):
            ends = list(accumulate(math.prod(shapes[i]) for i in group))
            parts |= dict(zip(group, jnp.split(vector, ends[:-1]), strict=True))
        return treedef.unflatten([parts[i].reshape(shape) for i, shape in enumerate(shapes)])

    return matrices, unpacked


def settled(values: Any) -> Any:
    """Floating-point leaves in float32, with one value for all who read them.

    XLA keeps float32 for some readers of what a bfloat16 model rounds, and not for others: a norm would then be taken of
    other numbers than those that are added up, 0.1 % apart. Behind the barrier all readers see the same.
    """

    def settle(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == jnp.float32:
            return leaf
        return jax.lax.optimization_barrier(leaf.astype(jnp.float32))

    return jax.tree.map(settle, values)


def usable_and_factors(
    upper: Float[Array, " B"], mask: Bool[Array, " B"], clip_norm: float
) -> tuple[Bool[Array, " B"], Float[Array, " B"]]:
    """Which examples contribute, and by which factor.

    Args:
        upper: float32 [B]. What each example's norm can't exceed, rounding included; NaN or inf for a bad example.
        mask: bool [B].
        clip_norm: L2 norm to clip to, or inf.

    Returns:
        bool [B], and float32 [B] in [0, 1].
    """
    usable = mask & jnp.isfinite(upper)
    if math.isinf(clip_norm):
        return usable, usable.astype(jnp.float32)
    factors = jnp.minimum(jnp.float32(1), jnp.float32(clip_norm) / jnp.maximum(upper, jnp.finfo(jnp.float32).tiny))
    return usable, jnp.where(usable, factors, 0)


def weighted_sum(
    rows: Float[Array, "B n"], usable: Bool[Array, " B"], factors: Float[Array, " B"]
) -> Float[Array, " n"]:
    """The sum of rows, each times its factor; unusable rows are never read."""
    rows = jnp.where(usable[:, None], rows, 0)
    # As a product, not as a sum of scaled rows, which XLA's CPU compiler fuses with the norms and makes 5 times slower;
    # at the highest precision, since TF32 would round the clipped gradients up or down.
    return jnp.matmul(factors, rows, precision=jax.lax.Precision.HIGHEST)
