"""The noise of a gradient sum as an optax transform: clipped sum to noisy mean."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Key

from .. import _checks
from .._errors import UsageError
from .._types import Params
from ..clipping import ClippedGrads
from ..noise import Gaussian, GaussianState, Noise, check_noise
from ..noise._gaussian import check_state

_LEAST = float(np.finfo(np.float32).tiny)  # below it devices round to zero
_GAUSSIAN = Gaussian()
PrivatizeState = GaussianState  # under Gaussian noise, and without any


@_checks.names_explained
def privatize(
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    key: Key[Array, ""],
    noise: Noise = _GAUSSIAN,
    steps: int | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Gaussian mechanism as an optax transform: clipped SUM in, noisy mean out.

    \[ \tilde g = \frac{1}{B}\bigl(S + \sigma\,\Delta\,Z\bigr), \qquad Z \sim \mathcal N(0, I) \]

    with the noise multiplier σ, the sensitivity Δ that travels with the sum S, and the expected batch size B: a constant.
    Dividing by the number of examples drawn, or by anything else computed from the data, would leak.

    Noise is float32, no two values of it from the same bits: each update has its own key, each value its index. With
    `noise_multiplier=0` nothing is drawn and nothing is private.

    A chain in which another transform mixes, scales or keeps gradients before this one publishes what it kept: `privatize`
    comes first, and sees all sums. Within `optax.masked` and `optax.multi_transform`, which would let other leaves through
    without noise, or draw the same for each group, it is refused: put them behind it. In place of `optax.MultiSteps`, which
    averages, add up the sums of slices of one draw and let `privatize` see their total once.

    The noise of an update follows from the key and the number of updates before it, and hides one sum only. A second `init`
    from the same key, or a state that was copied and updated with two sums, draws the same noise again, and whoever sees both
    outputs has their difference without any: give each run a key of its own, and go on from a state once. That can't be seen
    here (a template or a resumed run begins with `init`, too); `jax.vmap` over sums with one key is refused, and
    `jax.shard_map` with `check_vma`.

    Args:
        noise_multiplier: σ, standard deviation of the noise in units of the sensitivity; 0 or above.
        expected_batch_size: B, sampling rate times number of examples; a plain number.
        key: scalar key, used for the noise and nothing else. There is no default.
        noise: what is added, of σΔ as its scale; `jaxdp.noise.Gaussian()`, whose state is a `PrivatizeState`. Of another noise
            read its own description.
        steps: how many updates are accounted, if that is known: a further one is refused, or under `jax.jit` NaN throughout.

    Returns:
        A transform whose `update(sums, state, params=None, *, sensitivity)` gives float32 noisy means. `sensitivity` is
        `out.sensitivity` of `jaxdp.clipped_grad`: a scalar. Where it is traced by `jax.jit`, its value can't be seen: if it
        then is not above 0 and finite, the update is NaN throughout, and says nothing of the sums.

    Raises:
        UsageError: here for a noise multiplier or batch size that is traced, an array, or out of range; in the update for a
            sensitivity that is missing or not above 0 and finite, with noise for a loss or gradients beside the sums (`value=`,
            `grad=`, `value_fn=`, `obj_fn=`), for a part of the sums, for an update after the last of
            `steps`, for sums in which NaN or infinity can be seen, and under `jax.vmap` or `jax.shard_map` with one key for
            several sums.

    Examples:
        >>> import jax, jax.numpy as jnp, jaxdp
        >>> tx = jaxdp.privatize(noise_multiplier=0.0, expected_batch_size=4, key=jax.random.key(0))
        >>> sums = {"w": jnp.array([2.0, 4.0])}
        >>> tx.update(sums, tx.init(sums), sensitivity=1.0)[0]
        {'w': Array([0.5, 1. ], dtype=float32)}

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """
    sigma = _checks.non_negative(
        "noise_multiplier", noise_multiplier, "give the noise in units of the clip norm, as 1.1"
    )
    divisor = _checks.positive(
        "expected_batch_size", expected_batch_size, "give sampling rate times number of examples"
    )
    _checks.key(key)
    check_noise(noise)
    most = None if steps is None else _checks.count("steps", steps, "give the number of updates that are accounted")

    def init(params: Params) -> Any:
        _refuse_part(params)
        state = noise.init(key, params) if sigma > 0 else GaussianState(key, jnp.zeros((), jnp.int32))
        return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)  # which may be donated, and the key not

    def update(updates: Any, state: Any, params: Params = None, *, sensitivity: Any = None, **extra: Any) -> Any:
        del params
        if sigma > 0:
            _refuse_looks(extra)
        if isinstance(updates, ClippedGrads):
            raise UsageError(
                "privatize: updates are all that jaxdp.clipped_grad returned, of which losses and norms are of no known "
                "sensitivity: pass tx.update(out.grads, state, params, sensitivity=out.sensitivity)"
            )
        _refuse_part(updates)
        scale = noise_scale(sigma, sensitivity)
        _checks.numbers_alone("privatize: updates", updates, "pass out.grads of jaxdp.clipped_grad", real=True)
        sums = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), updates)
        if any(_checks.has_nan(leaf, or_infinity=True) for leaf in jax.tree.leaves(sums)):
            raise UsageError(
                "privatize: updates hold NaN or infinity, which no noise hides: pass out.grads of jaxdp.clipped_grad, in which "
                "examples of such gradients count as zero"
            )
        if scale is None:
            check_state(state)
            state = state._replace(step=state.step + 1)
        else:
            sums, state = noise.update(state, sums, scale if most is None else _while_accounted(most, state, scale))
        return jax.tree.map(lambda total: total / jnp.float32(divisor), sums), state

    return optax.GradientTransformationExtraArgs(init, update)


def _refuse_looks(extra: dict[str, Any]) -> None:
    """Refuse what an optimizer behind the noise would ask of the data once more."""
    for name in ("value", "grad", "value_fn", "obj_fn"):
        if extra.get(name) is not None:
            raise UsageError(
                f"privatize: {name}= goes to the optimizer behind the noise, too, and of the batch it is one more look at its "
                "records, without noise, that no accountant counts: leave it out; where it is of public data, put that optimizer "
                "into an update of its own, behind this one's"
            )


def of_sensitivity_from(
    clip_norm: float, transform: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """The transform for sums that were clipped to a norm that is known: a smaller sensitivity is an error, or traced NaN."""
    least = np.float32(clip_norm)

    def update(updates: Any, state: Any, params: Params = None, *, sensitivity: Any = None, **extra: Any) -> Any:
        is_scalar = (
            _checks.is_real(sensitivity) and jnp.shape(sensitivity) == ()
        )  # what else there is `noise_scale` refuses
        if is_scalar and isinstance(sensitivity, Tracer):
            sensitivity = jnp.where(sensitivity >= least, sensitivity, jnp.nan)
        elif is_scalar and np.float32(sensitivity) < least:
            raise UsageError(
                f"privatize: sensitivity={float(sensitivity):g} is below the run's clip_norm={clip_norm:g}, and so would be the "
                "noise: pass sensitivity=out.sensitivity, of run.clipped_grad, as it is. It is the sum's; privatize divides by "
                "the batch size itself"
            )
        return transform.update(updates, state, params, sensitivity=sensitivity, **extra)

    return optax.GradientTransformationExtraArgs(transform.init, update)


def _refuse_part(tree: Any) -> None:
    """Refuse what `optax.masked` and `optax.multi_transform` leave of a tree for one of several transforms."""
    is_left_out = lambda node: isinstance(node, optax.MaskedNode)
    if any(map(is_left_out, jax.tree.leaves(tree, is_leaf=is_left_out))):
        raise UsageError(
            "privatize: a part of the tree is masked, as within optax.masked and optax.multi_transform: other parts would go "
            "without noise, or get the same noise from the same key. Put it before them: optax.chain(privatize, "
            "optax.multi_transform(...))"
        )


def _while_accounted(steps: int, state: Any, scale: Any) -> Any:
    """The scale of the noise, where the update is one of those that are accounted; of a noise that counts none, as it is."""
    made = getattr(state, "step", None)
    if made is None or jnp.shape(made) != ():
        return scale
    if isinstance(made, Tracer):
        return jnp.where(made < steps, scale, jnp.nan)
    if int(made) >= steps:
        raise UsageError(
            f"privatize: update {int(made) + 1} is after the last of the run's steps={steps}, of which alone epsilon is: "
            "describe a run of more steps"
        )
    return scale


def noise_scale(sigma: float, sensitivity: Any) -> Any:
    """σΔ as a float32 scalar; None where there is no noise to add."""
    if sensitivity is None:
        raise UsageError(
            "privatize: the update came without its sensitivity; pass tx.update(out.grads, state, params, "
            "sensitivity=out.sensitivity) with the out of jaxdp.clipped_grad"
        )
    if not _checks.is_real(sensitivity) or jnp.shape(sensitivity) != ():
        raise UsageError(
            f"privatize: sensitivity={sensitivity!r} must be a scalar: pass sensitivity=out.sensitivity, of jaxdp.clipped_grad"
        )
    if sigma == 0:
        return None
    if isinstance(sensitivity, Tracer):
        scale = jnp.float32(sigma) * jnp.asarray(sensitivity, jnp.float32)
        return jnp.where((scale >= _LEAST) & (scale < jnp.inf), scale, jnp.nan)
    known = float(np.asarray(sensitivity))
    with np.errstate(over="ignore", under="ignore"):
        scale = np.float32(sigma) * np.float32(known)
    if not _LEAST <= scale < math.inf:
        raise UsageError(
            f"privatize: sensitivity={known} with noise_multiplier={sigma} can't be hidden by noise in float32; clip the "
            "gradients to a finite norm (clip_norm=1.0, say), or set noise_multiplier=0 for training without privacy"
        )
    return jnp.float32(scale)
