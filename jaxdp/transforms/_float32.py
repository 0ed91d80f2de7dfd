"""Optimizer states in float32, whatever the parameters' dtype."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from .._errors import UsageError
from .._types import Params
from ._suitable import check_transform


def in_float32(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The same optimizer, shown float32 parameters: its moments stay float32 for a bfloat16 model, whose parameters don't.

    Noisy means are float32. An optimizer initialised on bfloat16 parameters would keep bfloat16 moments first and float32
    ones after an update, which loses precision and compiles twice.

    Args:
        optimizer: any optax transform.

    Returns:
        A transform whose `update` takes and gives float32; `optax.apply_updates` then casts to the parameters' dtype.

    Raises:
        UsageError: for what is no optax transform, and for `optax.MultiSteps`, which averages noisy means, or noises averages.
    """
    check_transform(optimizer)
    inner = optax.with_extra_args_support(optimizer)

    def cast(params: Params) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)

    def init(params: Params) -> Any:
        return inner.init(cast(params))

    def update(updates: Any, state: Any, params: Params = None, **extra: Any) -> tuple[Any, Any]:
        if params is not None and jax.tree.structure(updates) != jax.tree.structure(params):
            raise UsageError(
                "the updates and params have different tree structures: pass the parameters that the gradients are of"
            )
        return inner.update(updates, state, None if params is None else cast(params), **extra)

    return optax.GradientTransformationExtraArgs(init, update)
