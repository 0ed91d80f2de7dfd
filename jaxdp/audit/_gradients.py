"""Canaries in the space of gradients: each with a direction of its own, for an attack that sees every step (white box)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key

from .. import _checks
from .._errors import UsageError
from .._types import Example, LossFn, Params
from ..clipping._inputs import taking_rng_as
from ..dpsgd import DPSGD
from ..noise._keys import Domain, own_key
from ..transforms import check_transform

_PULL = 1e4  # length of a canary's gradient, that any usual clip norm cuts: the most that one example can do


class _Seen(NamedTuple):
    """What the attack has seen of the steps: of each canary the log-likelihood ratio of being in against being out, the sum over
    steps of its coordinate in units of the clip norm, and of its square."""

    inner: Any
    ratios: Float[Array, " canaries"]
    sums: Float[Array, " canaries"]
    squares: Float[Array, " canaries"]


@dataclass(frozen=True)
class GradientCanaries:
    """A training problem with canaries in it: what to give to `run.make_step`, and what to ask of the state at its end.

    The problem's own examples are trained on as before. Each canary is one more example, whose gradient is longer than any clip
    norm and along a parameter that nothing else uses: noise alone hides whether it was drawn. The attack sees the noisy mean of
    every step, as whoever trains does, and looks at each canary's coordinate.

    Attributes:
        loss_fn: of `params` and one example of `data`.
        optimizer: for both: it takes the model's gradients and looks at the canaries'.
        params: {"model": the parameters as given, "canaries": float32 [number] zeros, which stay zeros}.
        data: the examples, and behind them the canaries; the run's `num_examples` is that of both.
        members: bool [number], which of the canaries' coins had them in.
    """

    loss_fn: LossFn
    optimizer: optax.GradientTransformation
    params: Any
    data: Any
    members: Bool[np.ndarray, " canaries"]

    def scores(self, state: Any) -> Float[np.ndarray, " canaries"]:
        """The log-likelihood ratio of being in against being out, float64 [number]: no other score tells more of these steps.

        That of a coordinate x in units of the clip norm, at each step log(1 - q + q exp((2x - 1) / 2σ²)) for the run's sampling
        rate q and noise multiplier σ (Neyman and Pearson's test for a Gaussian on a Poisson sample).

        Args:
            state: the run's, at its end.

        Raises:
            UsageError: for a state of another problem.
        """
        return np.asarray(self._seen(state).ratios, np.float64)

    def spreads(self, state: Any) -> Float[np.ndarray, " canaries"]:
        """How much that differed from step to step, float64 [number].

        What shows where steps share their noise, which falls out of differences. Whoever looks at both scores divides the
        significance between them.

        Args:
            state: the run's, at its end.

        Raises:
            UsageError: for a state of another problem.
        """
        seen = self._seen(state)
        return np.asarray(seen.squares, np.float64) - np.asarray(seen.sums, np.float64) ** 2 / max(int(state.step), 1)

    def _seen(self, state: Any) -> _Seen:
        seen = getattr(state, "opt_state", None)
        if not isinstance(seen, _Seen) or seen.sums.shape != self.members.shape:
            raise UsageError(
                f"state has no sums of {len(self.members)} canaries: give the state of a step that was made with this optimizer"
            )
        return seen


def gradient_canaries(
    run: DPSGD,
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    params: Params,
    data: Any,
    *,
    key: Key[Array, ""],
) -> GradientCanaries:
    """Put canaries into a training problem, each with a gradient of its own direction, half of them in by fair coins.

    Args:
        run: what the steps are claimed to be, of the problem's examples and the canaries together. The scores are made for
            Poisson sampling, one clip norm and Gaussian noise; with others they show less, and bounds from them hold as well
            (not of the rule `Quantile`, whose count a canary that is out moves, too).
        loss_fn: `loss_fn(params, example)` of one example, with `rng=` if it takes one, and auxiliary data if it has them.
        optimizer: any of optax.
        params: a pytree.
        data: a pytree with a leading axis [n].
        key: scalar key of the coins, which the run must not know.

    Returns:
        A `GradientCanaries`.

    Raises:
        UsageError: for a run of users, without noise or without room for canaries; for no examples, and data of several lengths
            or spread over several processes.

    References:
        Nasr et al., "Tight auditing of differentially private machine learning", arXiv 2302.07956, and Steinke, Nasr and
        Jagielski, arXiv 2305.08846, which have such canaries.

    Examples:
        run = jaxdp.DPSGD(num_examples=n + 1000, ...)
        planted = jaxdp.audit.gradient_canaries(run, loss, optax.sgd(0.5), params, data, key=coins_key)
        step = run.make_step(planted.loss_fn, planted.optimizer)
        state = step.init(planted.params, key)
        for _ in range(run.steps):
            state, _ = step(state, planted.data)
        audit.report(planted.scores(state), planted.members, delta=1e-5, claimed_epsilon=run.epsilon(delta=1e-5))
    """
    _checks.function("loss_fn", loss_fn, "give a function of (params, example)")
    _checks.key(key)
    check_transform(optimizer)
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, data))):
        raise UsageError(
            "key or data are traced by jax: canaries are planted on the host, outside of jax.jit and jax.vmap"
        )
    leaves = jax.tree.leaves(data)
    lengths = {len(leaf) if isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim else 0 for leaf in leaves}
    if len(lengths) != 1 or not (rows := lengths.pop()):
        raise UsageError(
            "data have no examples, or leaves of several lengths: give a pytree of arrays with a leading axis [n]"
        )
    _checks.instance("run", run, DPSGD, "give a jaxdp.DPSGD of the examples and the canaries together")
    if run.unit != "example":
        raise UsageError(
            f'unit="{run.unit}" is of rows that hold several records: describe the run with unit="example", each row of data one'
        )
    if not run.noise_multiplier:
        raise UsageError(
            "noise_multiplier=0 claims nothing that an attack could contradict: give the noise of the claim"
        )
    number = run.num_examples - rows
    if number < 1:
        raise UsageError(
            f"num_examples={run.num_examples} leaves no canaries beside {rows} examples: describe the run with both, such as "
            f"{rows + 1000}"
        )
    members = np.asarray(jax.random.uniform(own_key(key, Domain.CANARIES), (number,)) < 0.5)
    index = np.concatenate([np.full(rows, -1, np.int32), np.arange(number, dtype=np.int32)])
    weight = np.concatenate([np.ones(rows, np.float32), members.astype(np.float32)])
    # Beside each canary another example: the gradient of one that isn't finite takes the canary's with it, and no others'.
    with_others = jax.tree.map(lambda leaf: _rows_of(leaf, np.r_[:rows, np.arange(number) % rows]), data)
    ratio = _log_likelihood_ratio(run)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> _Seen:
        return _Seen(inner.init(params["model"]), *(jnp.zeros(number) for _ in range(3)))

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        own = None if params is None else params["model"]
        of_model, opt_state = inner.update(updates["model"], state.inner, own, **more)
        x = updates["canaries"] * np.float32(run.expected_batch_size / run.clip_norm)
        kept = {"model": of_model, "canaries": jnp.zeros_like(x)}
        return kept, _Seen(opt_state, state.ratios + ratio(x), state.sums + x, state.squares + x**2)

    return GradientCanaries(
        loss_fn=_with_canaries(loss_fn),
        optimizer=optax.GradientTransformationExtraArgs(init, update),
        params={"model": params, "canaries": jnp.zeros(number)},
        data=(with_others, index, weight),
        members=members,
    )


def _rows_of(leaf: np.ndarray | jax.Array, rows: np.ndarray) -> np.ndarray | jax.Array:
    """Some rows of an array, which may be laid out over several devices."""
    if isinstance(leaf, np.ndarray) or isinstance(leaf.sharding, jax.sharding.SingleDeviceSharding):
        return leaf[rows]
    if not leaf.is_fully_addressable:
        raise UsageError("data are spread over several processes: give each process all of them, as NumPy arrays")
    return jnp.asarray(np.asarray(leaf)[rows])


def _log_likelihood_ratio(run: DPSGD) -> Callable[[Array], Array]:
    """That of one step, of a coordinate in units of the clip norm."""
    with np.errstate(divide="ignore"):
        out, drawn = np.float32(np.log1p(-run.sampling_rate)), np.float32(np.log(run.sampling_rate))
    return lambda x: jnp.logaddexp(out, drawn + (2 * x - 1) / np.float32(2 * run.noise_multiplier**2))


def _with_canaries(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of one example, of the problem's own or a canary, which has some example of the problem beside it."""

    def loss(params: Params, example: Example, **rng: Any) -> Any:
        of_problem, index, weight = example
        found = loss_fn(params["model"], of_problem, **rng)
        value, aux = found if isinstance(found, tuple) else (found, None)
        own = jnp.take(params["canaries"], jnp.maximum(index, 0)[None], axis=0, mode="clip")[0]  # a lookup, as of words
        pull = weight * _PULL * own
        value = jnp.where(index < 0, value, pull.astype(value.dtype))
        return (value, aux) if isinstance(found, tuple) else value

    return taking_rng_as(loss_fn, loss)
