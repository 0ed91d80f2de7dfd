"""The optimizer that a run asks for: its learning rate over time, and an average of the parameters along the way."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..._types import Params
from ._plan import Plan


class AverageState(NamedTuple):
    """The state of averaging: the optimizer's own state, the average, and over how many updates."""

    inner: Any
    average: Any
    updates: jax.Array


class PlateauState(NamedTuple):
    """The factor of the learning rate, which is set from outside between two epochs."""

    plateau_scale: jax.Array


def optimizer(plan: Plan) -> optax.GradientTransformation:
    """Sgd with momentum, or adam, under the schedule and with the average that a plan has."""
    rate = _schedule(plan)
    made = optax.adam(rate) if plan.optimizer == "adam" else optax.sgd(rate, momentum=plan.momentum or None)
    if plan.schedule == "plateau":
        made = optax.chain(made, _scaled())
    return _averaged(made, plan.ema) if plan.ema else made


def params_of(state: Any) -> Any:
    """The parameters to evaluate and predict with: the average where there is one."""
    average = optax.tree_utils.tree_get(state.opt_state, "average")
    return state.params if average is None else average


def _schedule(plan: Plan) -> Any:
    """The learning rate over the plan's steps."""
    lr, warmup = plan.lr, plan.warmup
    if plan.schedule in ("constant", "plateau") and not warmup:
        return lr
    after = max(1, plan.steps - warmup)
    ways = {
        **dict.fromkeys(("constant", "plateau"), optax.constant_schedule(lr)),
        "cosine": optax.cosine_decay_schedule(lr, after),
        "linear": optax.linear_schedule(lr, 0.0, after),
    }
    warm = optax.linear_schedule(lr / (warmup + 1), lr, warmup) if warmup else None
    return optax.join_schedules([warm, ways[plan.schedule]], [warmup]) if warm else ways[plan.schedule]


def _scaled() -> optax.GradientTransformation:
    """Updates times the factor that the state has."""

    def update(updates: Any, state: Any, params: Params = None) -> tuple[Any, Any]:
        del params
        return jax.tree.map(lambda leaf: leaf * state.plateau_scale, updates), state

    def init(params: Params) -> PlateauState:
        del params
        return PlateauState(jnp.ones((), jnp.float32))

    return optax.GradientTransformation(init, update)


def _averaged(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformationExtraArgs:
    r"""The same optimizer, which keeps an exponential moving average of the parameters.

    The decay of the n-th update is the smaller of `decay` and \((1 + n) / (10 + n)\), so that the first parameters are forgotten.
    An average of what is private costs nothing.

    References:
        De, Berrada, Hayes, Smith and Balle, "Unlocking high-accuracy differentially private image classification through scale",
        arXiv 2204.13650, section 3.1 and appendix C.
    """

    def init(params: Params) -> AverageState:
        copied = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
        return AverageState(optimizer.init(params), copied, jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Params = None, **_: Any) -> tuple[Any, Any]:
        updates, inner = optimizer.update(updates, state.inner, params)
        count = state.updates.astype(jnp.float32)
        keep = jnp.minimum(decay, (1 + count) / (10 + count))
        moved = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, state.average, moved)
        return updates, AverageState(inner, average, state.updates + 1)

    return optax.GradientTransformationExtraArgs(init, update)
