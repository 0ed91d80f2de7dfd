"""Choosing a candidate by its score."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from .. import _checks
from ..accounting._events import repeated
from ..noise._copies import refuse_shared_key
from ..noise._keys import Domain, own_key
from ..noise.draws._threefry import draw_bits
from ._grid import ROUNDING, discrete_laplace, finest_step
from ._inputs import checked_epsilon, checked_scores, checked_sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_IN_FLOAT32 = 2e-5  # what rounding of weights and arrivals can add to a privacy loss


@dataclass(frozen=True, kw_only=True)
class Exponential:
    r"""The exponential mechanism: candidate r with probability proportional to \(\exp(\varepsilon s_r / (2\Delta))\).

    Drawn as a race of exponential variables, whose winner has just that probability: nothing is exponentiated, so that scores
    of any size neither over- nor underflow. Each variable has 128 random bits: a candidate that trails by up to 88 units of
    \(\varepsilon s / (2\Delta)\) can win, and all others together would less often than once in 10²⁰ times, even where their
    scores are a record's, and ε the largest there is.

    Args:
        epsilon: ε of one choice.
        sensitivity: Δ, the most by which adding or removing one record can move any score, as the type holds it that scores are
            given in: counts beyond 2^24 are not float32.
        monotonic: whether a record moves all scores the same way, as it does where scores count records. Then the probability is
            proportional to \(\exp(\varepsilon s_r / \Delta)\) at the same cost.

    Raises:
        UsageError: for an epsilon or a sensitivity out of range.

    Examples:
        >>> import jax
        >>> choose = Exponential(epsilon=2.0, sensitivity=1, monotonic=True)
        >>> int(choose([3.0, 40.0, 5.0], key=jax.random.key(0)))
        1

    References:
        McSherry and Talwar, "Mechanism design via differential privacy", 2007, theorem 6. The event is zero-concentrated: the
        mechanism has bounded range, and costs ε²/8 (Cesar and Rogers, arXiv 2004.07223, lemma 3.4), a quarter of what pure ε
        would.
    """

    epsilon: float
    sensitivity: float
    monotonic: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one choice; it has no event of its own for this mechanism."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(float(self.epsilon) ** 2 / 8)

    def event_of(self, scores: Any) -> "DpEvent":
        """The event of choosing by `scores`: one for each index of the axes before the candidates'."""
        return repeated(self.event, math.prod(checked_scores(scores).shape[:-1]))

    def log_probabilities(self, scores: Any) -> Float[Array, "..."]:
        """The logarithm of each candidate's probability, [..., candidates]; as private as the scores are, so not to be shown."""
        return jax.nn.log_softmax(_weights(self, checked_scores(scores)))

    def __call__(self, scores: Any, *, key: Key[Array, ""]) -> Int[Array, "..."]:
        """Choose.

        Args:
            scores: [..., candidates], numbers, the higher the better.
            key: a scalar key, used here and nowhere else.

        Returns:
            int32 [...], the chosen candidates' places.

        Raises:
            UsageError: for no candidates, and for scores that aren't finite.
        """
        _checks.key(key)
        checked = checked_scores(scores)
        return _race(self, refuse_shared_key(key, checked, checked), key)


@dataclass(frozen=True, kw_only=True)
class ReportNoisyMax:
    r"""Report-noisy-max: the candidate whose score is highest under Laplace noise of scale \(2\Delta/\varepsilon\).

    The noise is drawn on a grid (see `jaxdp.mechanisms._grid`), where two scores can tie; the first of them wins, whatever the
    data.

    Args:
        epsilon: ε of one choice.
        sensitivity: Δ, the most by which adding or removing one record can move any score, as the type holds it that scores are
            given in: counts beyond 2^24 are not float32.
        monotonic: whether a record moves all scores the same way, as it does where scores count records. Half the noise is
            enough then.

    Raises:
        UsageError: for an epsilon or a sensitivity out of range.

    References:
        Dwork and Roth, "The algorithmic foundations of differential privacy", 2014, claim 3.9. A pure ε costs ε²/2 of
        zero-concentrated privacy (Bun and Steinke, arXiv 1605.02065, proposition 1.4).
    """

    epsilon: float
    sensitivity: float
    monotonic: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one choice."""
        from dp_accounting import ZCDpEvent

        return ZCDpEvent(float(self.epsilon) ** 2 / 2)

    def event_of(self, scores: Any) -> "DpEvent":
        """The event of choosing by `scores`: one for each index of the axes before the candidates'."""
        return repeated(self.event, math.prod(checked_scores(scores).shape[:-1]))

    def __call__(self, scores: Any, *, key: Key[Array, ""]) -> Int[Array, "..."]:
        """Choose; arguments, result and errors as `Exponential` has them."""
        _checks.key(key)
        checked = checked_scores(scores)
        return _noisy_max(self, refuse_shared_key(key, checked, checked), key)


def _check(mechanism: Exponential | ReportNoisyMax) -> None:
    epsilon, sensitivity = checked_epsilon(mechanism.epsilon), checked_sensitivity(mechanism.sensitivity)
    _checks.set_fields(
        mechanism, epsilon=epsilon, sensitivity=sensitivity, monotonic=_checks.flag("monotonic", mechanism.monotonic)
    )


def _weights(mechanism: Exponential, scores: jax.Array) -> jax.Array:
    """The logarithms of the candidates' weights; the best one's is 0."""
    factor = (mechanism.epsilon - _IN_FLOAT32) / mechanism.sensitivity / (1 if mechanism.monotonic else 2)
    return scores * jnp.float32(factor)


@partial(jax.jit, static_argnums=0)
def _race(mechanism: Exponential, scores: jax.Array, key: jax.Array) -> jax.Array:
    """The candidate whose exponential variable, divided by its weight, is smallest."""
    arrivals = _log_exponential(jax.random.bits(own_key(key, Domain.EXPONENTIAL), (4,), jnp.uint32), scores.shape)
    return jnp.argmin(arrivals - _weights(mechanism, scores), axis=-1).astype(jnp.int32)


def _log_exponential(keys: UInt32[Array, " 4"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Logarithms of exponential variables, which are as exact where these are small: down to -89."""
    high, low = draw_bits(keys[:2], shape)
    u = jnp.minimum(_uniform(high, low), jnp.float32(1 - 2**-24))
    smaller = lambda: jnp.log(_uniform(*draw_bits(keys[2:], shape))) - jnp.float32(64 * math.log(2))
    ends = (high | low) == 0  # of 64 bits: there, 64 more say where below 2^-64 it is
    return jnp.where(ends, jax.lax.cond(jnp.any(ends), smaller, lambda: u), jnp.log(-jnp.log1p(-u)))


def _uniform(high: UInt32[Array, "..."], low: UInt32[Array, "..."]) -> Float[Array, "..."]:
    """Between 0 and 1, of 64 bits."""
    return high.astype(jnp.float32) * jnp.float32(2**-32) + (low.astype(jnp.float32) + 0.5) * jnp.float32(2**-64)


@partial(jax.jit, static_argnums=0)
def _noisy_max(mechanism: ReportNoisyMax, scores: jax.Array, key: jax.Array) -> jax.Array:
    moved = mechanism.sensitivity * (1 if mechanism.monotonic else 2)  # what a record changes between two scores
    step = finest_step(moved / mechanism.epsilon, moved / 3, 2**20)
    covered = moved + 3 * step  # a difference that is rounded is off by a step at most, in both data sets
    scale = covered / (mechanism.epsilon - ROUNDING - _IN_FLOAT32)
    noise = discrete_laplace(own_key(key, Domain.REPORT_NOISY_MAX), scores.shape, step / scale)
    behind = jnp.maximum(scores * jnp.float32(1 / step), -(2.0**29))  # further than any noise reaches: it ends at 2^27
    return jnp.argmax(jnp.round(behind).astype(jnp.int32) + noise, axis=-1).astype(jnp.int32)
