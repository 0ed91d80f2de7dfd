"""Per-example gradients by `vmap`: the plain way, and the oracle for every other."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Key

from .. import _checks
from .._types import Batch, Example, LossFn, Params
from ..jaxprs import vectorised
from ._apart import foreign_primitives
from ._clip import ClippedSum, Clipping, clip_and_sum
from ._inputs import (
    check_batch,
    check_loss,
    check_params,
    example_keys,
    loss_of_example,
    refuse_gradients_of_devices,
    shapes_of_row,
)
from ._reducer import Examples
from ._shared import unwrap_shared
from ._static import make_static


def per_example_grads(loss_fn: LossFn, *, has_aux: bool = False) -> Callable[..., Any]:
    """The function that returns the gradient of every example, unclipped and unsummed.

    Meant for research and as an oracle: it needs memory for B copies of the parameters.

    Args:
        loss_fn: `loss_fn(params, example, *shared) -> scalar`, the loss of one example; with `has_aux`, `(scalar, aux)`.
        has_aux: whether the loss returns auxiliary data.

    Returns:
        `f(params, batch, *shared, rng=None)`, which gives a pytree like `params` with a leading axis [B], in the
        parameters' dtype; with `has_aux`, the pair of that and of `aux` with a leading axis [B].

    Raises:
        UsageError: for parameters that aren't floating point, a loss that isn't a scalar, a ragged batch, and what is shared with
            an axis of the batch's size, unless it is a `jaxdp.Shared`.

    Examples:
        >>> import jax.numpy as jnp
        >>> loss = lambda w, x: w * x**2
        >>> per_example_grads(loss)(jnp.float32(2.0), jnp.array([1.0, 3.0]))
        Array([1., 9.], dtype=float32)
    """

    _checks.function("loss_fn", loss_fn, "give a function of (params, example)")
    has_aux = _checks.flag("has_aux", has_aux)

    def grad_fn(params: Params, batch: Batch, *shared: Any, rng: Key[Array, ""] | None = None) -> Any:
        check_params(params)
        size = check_batch(batch)
        shared = make_static(unwrap_shared(shared, {"the batch's size": size}, "f(params, (X, Y))"))
        refuse_gradients_of_devices(params, (batch, shared, rng))
        check_loss(loss_fn, has_aux, params, batch, shared, rng)
        keys = None if rng is None else example_keys(rng, size)
        losses_and_aux, grads = per_example_values_and_grads(loss_fn, has_aux, params, batch, shared, keys)
        refuse_gradients_of_devices(params, losses_and_aux)
        return (grads, losses_and_aux[1]) if has_aux else grads

    return grad_fn


def per_example_values_and_grads(
    loss_fn: LossFn,
    has_aux: bool,
    params: Params,
    batch: Batch,
    shared: tuple[Any, ...],
    keys: Any,
    *,
    one_by_one: bool = False,
) -> tuple[Any, Any]:
    """(losses [B] or (losses, aux), gradients [B, ...]) of a checked batch; `keys` is None or one key an example.

    One example after another, too, where the loss has primitives of which nobody knows that they keep examples apart.
    """

    def one_example(example: Example, key: Any) -> tuple[Any, Any]:
        loss = lambda params: loss_of_example(loss_fn, params, example, key, shared)
        return jax.value_and_grad(loss, has_aux=has_aux)(params)

    row = shapes_of_row((batch, keys))
    if one_by_one or foreign_primitives(jax.make_jaxpr(one_example)(*row)):
        return jax.lax.map(lambda row: one_example(*row), (batch, keys))
    return vectorised(one_example, batch, keys)


def sum_by_vmap(
    loss_fn: LossFn,
    has_aux: bool,
    clipping: Clipping,
    params: Params,
    examples: Examples,
    shared: tuple[Any, ...],
) -> ClippedSum:
    """The clipped sum of checked examples, by materialising their gradients; losses and aux of masked ones are not zeroed."""
    batch, mask, keys = examples
    values, grads = per_example_values_and_grads(loss_fn, has_aux, params, batch, shared, keys)
    losses, aux = values if has_aux else (values, None)
    total, norms = clip_and_sum(grads, mask, clipping)
    return ClippedSum(total, losses, norms, aux)
