"""DP-SGD and DP-Adam as single optax transforms."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Key

from .. import _checks
from .._errors import UsageError
from ._float32 import in_float32
from ._privatize import privatize


@_checks.names_explained
def dp_sgd(
    learning_rate: optax.ScalarOrSchedule,
    momentum: float | None = None,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    key: Key[Array, ""],
    **sgd: Any,
) -> optax.GradientTransformationExtraArgs:
    """`optax.chain(jaxdp.privatize(...), optax.sgd(learning_rate, momentum, **sgd))`.

    Args:
        learning_rate: step size, or an optax schedule.
        momentum: decay of the momentum; None for none.
        noise_multiplier: as in `jaxdp.privatize`.
        expected_batch_size: as in `jaxdp.privatize`.
        key: as in `jaxdp.privatize`.
        **sgd: further arguments of `optax.sgd`, such as `nesterov=True`.

    Returns:
        A transform whose `update(out.grads, state, params, sensitivity=out.sensitivity)` takes what
        `jaxdp.clipped_grad` returns.

    Raises:
        UsageError: as `jaxdp.privatize`, and for a learning rate that isn't finite.

    Examples:
        >>> import jax, jax.numpy as jnp, jaxdp
        >>> tx = jaxdp.dp_sgd(0.5, momentum=0.9, noise_multiplier=1.1, expected_batch_size=2, key=jax.random.key(0))
        >>> params = jnp.zeros(3)
        >>> out = jaxdp.clipped_grad(lambda w, x: w @ x, clip_norm=1.0)(params, jnp.eye(3))
        >>> updates, state = tx.update(out.grads, tx.init(params), params, sensitivity=out.sensitivity)
        >>> updates.shape
        (3,)

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133.
    """
    _check_numbers(learning_rate=learning_rate, **({} if momentum is None else {"momentum": momentum}))
    noise = privatize(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, key=key)
    return _chain(noise, lambda: optax.sgd(learning_rate, momentum, **sgd))


@_checks.names_explained
def dp_adam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    key: Key[Array, ""],
    **adam: Any,
) -> optax.GradientTransformationExtraArgs:
    """`optax.chain(jaxdp.privatize(...), optax.adam(learning_rate, **adam))`.

    Args:
        learning_rate: step size, or an optax schedule.
        noise_multiplier: as in `jaxdp.privatize`.
        expected_batch_size: as in `jaxdp.privatize`.
        key: as in `jaxdp.privatize`.
        **adam: further arguments of `optax.adam`, such as `b2=0.99`.

    Returns:
        A transform as `jaxdp.dp_sgd` gives.

    Raises:
        UsageError: as `jaxdp.privatize`, and for a learning rate that isn't finite.
    """
    _check_numbers(learning_rate=learning_rate)
    noise = privatize(noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, key=key)
    return _chain(noise, lambda: optax.adam(learning_rate, **adam))


def _check_numbers(**numbers: Any) -> None:
    """Refuse what is neither a schedule nor a scalar, if need be a traced one, that is finite where it can be seen."""
    fix = "give a number such as 0.1, or an optax schedule"
    for name, value in numbers.items():
        if callable(value):
            continue
        if not _checks.is_real(value) or jnp.shape(value) != ():
            raise UsageError(f"{name}={value!r} is not a number: {fix}")
        if not isinstance(value, Tracer) and not math.isfinite(float(value)):
            raise UsageError(f"{name}={value} must be finite: {fix}")


def _chain(
    noise: optax.GradientTransformationExtraArgs, make: Callable[[], optax.GradientTransformation]
) -> optax.GradientTransformationExtraArgs:
    try:
        optimizer = make()
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"optax refuses the optimizer's arguments: {error}") from error
    return optax.with_extra_args_support(optax.chain(noise, in_float32(optimizer)))
