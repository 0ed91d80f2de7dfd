"""Per-example gradients to noisy mean, for those who compute them on their own."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Key

from .. import _checks
from .._errors import UsageError
from .._mesh import by_the_compiler
from .._types import Params
from ..clipping import Clipping, Flat, check_mask, clip_and_sum
from ._privatize import privatize


@_checks.names_explained
def clip_and_privatize(
    *, clip_norm: float, noise_multiplier: float, expected_batch_size: float, key: Key[Array, ""]
) -> optax.GradientTransformationExtraArgs:
    """Clip per-example gradients [B, ...] to `clip_norm`, add them up, add noise, divide by `expected_batch_size`.

    Args:
        clip_norm: the L2 norm to which each example's gradient is clipped.
        noise_multiplier: as in `jaxdp.privatize`.
        expected_batch_size: as in `jaxdp.privatize`.
        key: as in `jaxdp.privatize`.

    Returns:
        A transform whose `update(grads, state, params, *, mask=None)` takes a pytree like `params` with a leading axis
        [B] on every leaf, and `mask` bool [B], False for padding. Its state is a `PrivatizeState`.

    Raises:
        UsageError: for values out of range; for `clip_norm=inf` with noise; in the update where `params` is missing or
            a leaf isn't shaped [B, *parameter's shape], so that an ordinary gradient can't pass for a batch of them.

    Examples:
        >>> import jax, jax.numpy as jnp, jaxdp
        >>> tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=0.0, expected_batch_size=2,
        ...                               key=jax.random.key(0))
        >>> params = jnp.zeros(2)
        >>> per_example = jnp.array([[0.0, 0.5], [3.0, 4.0]])
        >>> updates, state = tx.update(per_example, tx.init(params), params)
        >>> print(f"{updates[0]:.3f} {updates[1]:.3f}")
        0.300 0.650
    """
    limit, rule = _checks.clip_norm(clip_norm), Flat()
    inner = privatize(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, key=key)
    if math.isinf(limit) and noise_multiplier > 0:
        raise UsageError(
            "clip_norm=inf leaves the sensitivity unbounded, which no noise can hide: give a finite clip norm"
        )

    def update(
        updates: Any, state: Any, params: Params = None, *, mask: Bool[Array, " B"] | None = None, **extra: Any
    ) -> tuple[Any, Any]:
        if near := [name for name in extra if "mask" in name]:
            raise UsageError(f"clip_and_privatize: {near[0]} is no argument of the update: give padding as mask=")
        size = _check_batch_of_gradients(updates, params)
        present = jnp.ones(size, jnp.bool_) if mask is None else check_mask(mask, size)
        summed = lambda updates, present: clip_and_sum(updates, present, Clipping.of(rule, limit, params))[0]
        grads = by_the_compiler(summed, (updates, present), params)
        return inner.update(grads, state, params, **extra | {"sensitivity": jnp.float32(limit)})

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _check_batch_of_gradients(updates: Any, params: Params) -> int:
    if params is None:
        raise UsageError("clip_and_privatize: pass params to update(grads, state, params); they tell B from the shapes")
    if jax.tree.structure(updates) != jax.tree.structure(params):
        raise UsageError("clip_and_privatize: the gradients and params have different tree structures")
    _checks.numbers_alone("clip_and_privatize: gradients", updates, "give arrays [B, *parameter's shape]")
    sizes = set()
    for (path, grad), param in zip(jax.tree_util.tree_leaves_with_path(updates), jax.tree.leaves(params), strict=True):
        shape, expected = jnp.shape(grad), jnp.shape(param)
        if len(shape) != len(expected) + 1 or shape[1:] != expected:
            raise UsageError(
                f"clip_and_privatize: gradient{jax.tree_util.keystr(path)} has shape {shape} where [B, *{expected}] is "
                "needed: pass per-example gradients, as jaxdp.per_example_grads gives, not their mean"
            )
        sizes.add(shape[0])
    if len(sizes) != 1:
        what = f"disagree on the batch size B: {sorted(sizes)}" if sizes else "have no leaves"
        raise UsageError(f"clip_and_privatize: the gradients {what}")
    if sizes == {0}:
        raise UsageError(
            "clip_and_privatize: the gradients have 0 rows: for an empty draw give rows of zeros with mask=False, which leaves "
            "the noise"
        )
    return sizes.pop()
