"""Randomized response: privacy that needs no one's trust, since each answer is noised where it is given."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._errors import UsageError
from ..noise._copies import refuse_shared_key
from ..noise._keys import Domain, own_key
from ..noise.draws._threefry import draw_bits
from ._inputs import checked_epsilon, whole_numbers

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class RandomizedResponse:
    r"""k-ary randomized response: with probability p an answer is drawn anew, uniformly from all k; else it is told as it is.

    With \(p = k / (e^\varepsilon + k - 1)\), no report is more than \(e^\varepsilon\) times as likely under one answer as under
    another.

    Args:
        epsilon: ε of one answer, from 1e-4 to 16.
        categories: k, 2 for yes and no.

    Raises:
        UsageError: for an epsilon out of range, and for fewer than 2 or more than 65,536 categories.

    Examples:
        >>> import jax, numpy as np
        >>> respond = RandomizedResponse(epsilon=math.log(3))
        >>> respond.noise_parameter  # half of all answers are coin tosses
        0.5
        >>> truth = np.arange(100_000) % 10 < 3
        >>> reports = respond(truth, key=jax.random.key(0))
        >>> print(f"yes: {respond.estimate(reports)[1]:.2f}, with a standard error of {respond.standard_error(100_000):.3f}")
        yes: 0.31, with a standard error of 0.003

    References:
        Warner, "Randomized response: a survey technique for eliminating evasive answer bias", 1965; Kairouz, Bonawitz and Ramage,
        "Discrete distribution estimation under local privacy", arXiv 1602.07387, for k answers.
    """

    epsilon: float
    categories: int = 2

    def __post_init__(self) -> None:
        categories = _checks.count("categories", self.categories, "give the number of possible answers")
        if not 2 <= categories <= 2**16:
            raise UsageError(f"categories={self.categories} must lie between 2 and 65,536")
        _checks.set_fields(self, epsilon=checked_epsilon(self.epsilon, largest=16), categories=categories)

    @property
    def noise_parameter(self) -> float:
        """p, the probability with which an answer is drawn anew: a multiple of 2^-32, rounded up.

        Rounded so far that remainders of 64 bits, which favour some categories by k·2^-64, are covered, too.
        """
        wanted = self.categories / (math.exp(self.epsilon) + self.categories - 1)
        if self.categories & (self.categories - 1):
            wanted *= 1 + self.categories * 2.0**-50
        return min(2**32 - 1, math.ceil(wanted * 2**32)) / 2**32

    @property
    def event(self) -> "DpEvent":
        """dp-accounting's event of one record's answer. It holds where a record is replaced: adjacency "replace_one"."""
        from dp_accounting import RandomizedResponseDpEvent

        return RandomizedResponseDpEvent(self.noise_parameter, int(self.categories))

    def __call__(self, answers: Any, *, key: Key[Array, ""]) -> Int[Array, "..."]:
        """Report answers.

        Args:
            answers: [...], whole numbers from 0 to k - 1, or booleans where k is 2; each is a record's own.
            key: a scalar key, used here and nowhere else.

        Returns:
            int32 [...], the reports.

        Raises:
            UsageError: for answers of another type or out of range.
        """
        _checks.key(key)
        checked = whole_numbers(answers, "answers", self.categories)
        return _respond(self, refuse_shared_key(key, checked, checked), key)

    def estimate(self, reports: Any) -> Float[np.ndarray, " categories"]:
        r"""The proportion of each answer, without bias: \((f_j - p/k) / (1 - p)\) for reports of frequency \(f_j\).

        Args:
            reports: as from a call, one or more.

        Returns:
            float64 [k]; sums to 1, and single proportions can be below 0 or above 1.
        """
        given = _checks.array("reports", reports, f"give whole numbers from 0 to {self.categories - 1}")
        checked = np.asarray(whole_numbers(given, "reports", self.categories)).ravel()
        if not checked.size:
            raise UsageError("reports are empty: there is nothing to estimate proportions from")
        found = np.bincount(checked, minlength=self.categories) / checked.size
        return (found - self.noise_parameter / self.categories) / (1 - self.noise_parameter)

    def standard_error(self, reports: int) -> float:
        """The largest standard deviation that an estimated proportion of so many reports can have."""
        return 1 / (2 * (1 - self.noise_parameter) * math.sqrt(_checks.count("reports", reports, "give their number")))


@partial(jax.jit, static_argnums=0)
def _respond(mechanism: RandomizedResponse, answers: jax.Array, key: jax.Array) -> jax.Array:
    of_coins, of_answers = jax.random.bits(own_key(key, Domain.RANDOMIZED_RESPONSE), (2, 2), jnp.uint32)
    coin, low = draw_bits(of_coins, answers.shape)
    anew = coin < jnp.uint32(round(mechanism.noise_parameter * 2**32))
    k = jnp.uint32(mechanism.categories)
    drawn = low % k
    if mechanism.categories & (mechanism.categories - 1):  # high · 2^32 + low, modulo k: no product exceeds 32 bits
        high, _ = draw_bits(of_answers, answers.shape)
        drawn = ((high % k) * jnp.uint32(2**32 % mechanism.categories) % k + drawn) % k
    return jnp.where(anew, drawn.astype(jnp.int32), jnp.clip(answers, 0, mechanism.categories - 1))
