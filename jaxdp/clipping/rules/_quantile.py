"""Flat clipping at a clip norm that follows a quantile of the gradients' norms, by a count that is noised."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32, Key

from ... import _checks
from ..._errors import UsageError
from ...noise import standard_normal
from ...noise._copies import refuse_shared_key
from ...noise._keys import Domain, own_key
from ._flat import Flat
from ._rule import refuse_no_clipping


class QuantileState(NamedTuple):
    """The clip norm of the next step (float32 scalar), the key of the counts' noise, and the steps made (int32 scalar)."""

    clip_norm: Float[Array, ""]
    key: Key[Array, ""]
    step: Int32[Array, ""]


@dataclass(frozen=True)
class Quantile:
    r"""Flat clipping whose C follows a quantile of the gradients' norms. The sensitivity of a step is its C.

    \[ C_{t+1} = C_t \exp\bigl(-\eta (\tilde b - \gamma)\bigr), \qquad
       \tilde b = \tfrac12 + \frac1B \Bigl(\sum_i \bigl(\mathbb 1[\lVert g_i\rVert \le C_t] - \tfrac12\bigr) + \sigma_b Z\Bigr) \]

    The count is a second look at the data. Its sensitivity is 1/2; with noise multipliers z for the sum and 2σ_b for the
    count, the step is one Gaussian mechanism of noise multiplier \((z^{-2} + (2\sigma_b)^{-2})^{-1/2}\). `jaxdp.DPSGD` takes
    its `noise_multiplier` as that total, and adds the noise to the sum that is left by `noise_multiplier_of_sum`.

    Args:
        quantile: γ, the fraction of gradients to leave unclipped.
        learning_rate: η, of log C.
        count_noise: σ_b, standard deviation of the count's noise in examples; a twentieth of the batch by default.
        expected_batch_size: B; `jaxdp.DPSGD` fills in its own.

    Raises:
        UsageError: for values out of range.

    References:
        Andrew et al., "Differentially Private Learning with Adaptive Clipping", arXiv 1905.03871, theorem 1 and algorithm 1.
    """

    quantile: float = 0.5
    _: KW_ONLY
    learning_rate: float = 0.2
    count_noise: float | None = None
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        fix = "give the fraction of gradients to leave unclipped, such as 0.5"
        if not 0 < _checks.positive("quantile", self.quantile, fix) < 1:
            raise UsageError(f"quantile={self.quantile} must lie between 0 and 1, both excluded: {fix}")
        _checks.positive("learning_rate", self.learning_rate, "give the step of the clip norm's logarithm, such as 0.2")
        if self.count_noise is not None:
            _checks.positive("count_noise", self.count_noise, "give the standard deviation in examples, such as 10")
        if self.expected_batch_size is not None:
            _checks.positive("expected_batch_size", self.expected_batch_size, "give the mean number of examples a step")

    def check(self, clip_norm: float) -> None:
        """Refuse a clip norm of infinity, and a rule that knows no batch size."""
        refuse_no_clipping(self, clip_norm)
        self.batch_size()

    def in_run(self, expected_batch_size: float) -> "Quantile":
        """The rule with the run's batch size; refuses one that has another."""
        if self.expected_batch_size not in (None, expected_batch_size):
            raise UsageError(
                f"the rule's expected_batch_size={self.expected_batch_size} is not the run's {expected_batch_size}: "
                "leave it out of Quantile"
            )
        return replace(self, expected_batch_size=float(expected_batch_size))

    groups = Flat.groups
    factors = Flat.factors

    def in_words(self, clip_norm: float) -> str:
        """How gradients were scaled, for a statement."""
        return (
            f"clipped to an L2 norm that began at {clip_norm:g} and followed the {self.quantile:g} quantile of the gradients' "
            f"norms, by a count in which noise of standard deviation {self._count_noise():g} hid each example's 1/2 (the "
            "accountants cover the count)"
        )

    def init(self, clip_norm: float, key: Key[Array, ""]) -> QuantileState:
        """The state before the first step.

        Args:
            clip_norm: to begin with; finite.
            key: scalar key. The counts' noise is independent of all that `jaxdp.privatize` draws, even from the same key.

        Returns:
            A `QuantileState`.

        Raises:
            UsageError: for a clip norm out of range, or what is not a scalar key.
        """
        start = _checks.clip_norm(clip_norm)
        self.check(start)
        _checks.key(key)
        return QuantileState(jnp.float32(start), own_key(key, Domain.QUANTILE), jnp.int32(0))

    def update(self, state: QuantileState, norms: Float[Array, " B"], mask: Bool[Array, " B"]) -> QuantileState:
        """The next step's state, from the norms that `clipped_grad` saw."""
        if not isinstance(state, QuantileState):
            raise UsageError(f"state is a {type(state).__name__}: begin with state = rule.init(clip_norm, key)")
        if not (_checks.is_real(norms) and _checks.is_array(mask) and jnp.shape(norms) == jnp.shape(mask)):
            raise UsageError(
                "norms and mask are not of one shape [B]: give out.norms of jaxdp.clipped_grad, and its mask"
            )
        return self.advance(state, self.observe(norms, mask, state.clip_norm))

    def clip_norm_now(self, state: Any, clip_norm: float) -> Float[Array, ""]:
        """The state's clip norm."""
        if not isinstance(state, QuantileState):
            raise UsageError(
                "Quantile needs its state: begin with state = rule.init(clip_norm, key), pass rule_state=state, and go on "
                "with out.rule_state"
            )
        return state.clip_norm

    def observe(
        self, norms: Float[Array, " B"], mask: Bool[Array, " B"], clip_norm: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Half the number of examples within the clip norm, less half of those beyond; adding one moves it by 1/2."""
        return jnp.sum(jnp.where(mask, jnp.where(norms <= clip_norm, 0.5, -0.5), 0.0).astype(jnp.float32))

    def advance(self, state: QuantileState, observed: Float[Array, ""]) -> QuantileState:
        """The next step's state, by the count that `observe` makes and noise."""
        step, one = refuse_shared_key((state.key, state.step), observed, (state.step, jnp.ones((), jnp.float32)))
        noise = standard_normal(jax.random.fold_in(state.key, step), ()) * (one * jnp.float32(self._count_noise()))
        fraction = jnp.clip((observed + noise) / jnp.float32(self.batch_size()) + 0.5, 0, 1)
        change = jnp.exp(-jnp.float32(self.learning_rate) * (fraction - jnp.float32(self.quantile)))
        return QuantileState(jnp.clip(state.clip_norm * change, 1e-30, 1e30), state.key, state.step + 1)

    def noise_multiplier_of_sum(self, total: float) -> float:
        """z, the noise multiplier for the sum of gradients that makes `total` with the count's noise."""
        count = 2 * self._count_noise()
        if total >= count:
            raise UsageError(
                f"count_noise={count / 2:g} makes the count alone cost more than noise_multiplier={total:g} allows: give "
                f"more than {total / 2:g} examples of noise"
            )
        return 1 / math.sqrt(total**-2 - count**-2) if total > 0 else 0.0

    def _count_noise(self) -> float:
        return float(self.count_noise if self.count_noise is not None else self.batch_size() / 20)

    def batch_size(self) -> float:
        """B; refuses a rule that has none."""
        if self.expected_batch_size is None:
            raise UsageError("Quantile: expected_batch_size is missing: give the mean number of examples a step")
        return float(self.expected_batch_size)
