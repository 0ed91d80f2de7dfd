"""Confident-GNMax: an answer where the teachers agree enough."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float64, Key
from scipy.special import log_ndtr

from .._bounds import Curves, Orders
from .._sanitise import CostAtOrder, cost_of_checks, cost_of_votes
from ._contract import Labels, queries_put
from ._threshold import (
    check_threshold_against,
    event_with_checks,
    rdp_with_checks,
    set_checked,
    winners_behind_check,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class ConfidentNoisyMax:
    r"""Confident-GNMax: answer by GNMax where the plurality, under noise of its own, reaches a threshold.

    Args:
        threshold: T, in votes.
        sigma_threshold: σ₁, of the noise on the plurality's count, in votes.
        sigma_max: σ₂, of the noise on all counts of a query that is answered, in votes.

    References:
        Papernot et al., arXiv 1802.08908, algorithm 1.
    """

    threshold: float
    sigma_threshold: float
    sigma_max: float

    answers_all: ClassVar[bool] = False
    asks_student: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_checked(self)

    @property
    def plurality_needed(self) -> float:
        """T."""
        return self.threshold

    def check_teachers(self, teachers: int) -> None:
        """Refuse a threshold above the number of teachers."""
        check_threshold_against(self.threshold, teachers)

    def aggregate(self, votes: np.ndarray, *, key: Key[Array, ""], student_probs: Any = None) -> Labels:
        """The noisy winner where the noisy plurality reaches the threshold, -1 elsewhere."""
        top = jnp.max(jnp.asarray(votes, jnp.int32), axis=1)
        winner, answered = winners_behind_check(votes, top, key, **vars(self))
        return Labels(jnp.where(answered, winner, jnp.full(winner.shape, -1, jnp.int32)), answered)

    def event(self, *, asked: int, answered: int) -> "DpEvent":
        """A Gaussian mechanism of sensitivity 1 for each check, one of sensitivity √2 for each answer."""
        return event_with_checks(
            sigma_threshold=self.sigma_threshold, sigma_max=self.sigma_max, asked=asked, answered=answered
        )

    def classic_rdp(self, orders: Orders, *, asked: int) -> None:
        """None: the paper's is that of the event."""

    def rdp_by_query(
        self,
        votes: np.ndarray,
        orders: Orders,
        *,
        charged: np.ndarray,
        student_probs: Any = None,
        classic: bool = False,
    ) -> Curves:
        """The check on the plurality, and the votes as far as they are charged."""
        return rdp_with_checks(votes, _plurality(votes), charged, orders, **vars(self))

    def answer_probability(self, votes: np.ndarray) -> Float64[np.ndarray, " queries"]:
        r"""\(\Phi((n^* - T)/\sigma_1)\)."""
        return np.exp(log_ndtr((_plurality(votes) - self.threshold) / self.sigma_threshold))

    def cost_at_order(self, votes: np.ndarray, answered: np.ndarray, order: float) -> CostAtOrder:
        """That of the votes of answers, and of all checks."""
        of_votes = cost_of_votes(votes[answered], self.sigma_max, order)
        return of_votes + cost_of_checks(votes, self.threshold, self.sigma_threshold, order)

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        """For a statement."""
        return (
            f"{queries_put(teachers=teachers, asked=asked)}; where the largest count under Gaussian noise of "
            f"{self.sigma_threshold:g} reached {self.threshold:g}, the winner of the votes under Gaussian noise of "
            f"{self.sigma_max:g} was released (Confident-GNMax): {answered:,} answers."
        )


def _plurality(votes: np.ndarray) -> Float64[np.ndarray, " queries"]:
    return votes.max(axis=1).astype(np.float64)
