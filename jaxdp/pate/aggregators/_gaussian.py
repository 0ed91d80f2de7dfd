"""Gaussian noise on every count (GNMax)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Array, Float64, Key

from ... import _checks, accounting
from .._bounds import Curves, Orders, gaussian_log_q, gaussian_rdp_given_votes
from .._sanitise import CostAtOrder, cost_of_votes
from ._contract import Labels, all_answered, queries_put
from ._noisy_max import gaussian_winner, in_range

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class GaussianNoisyMax:
    r"""GNMax: the winner of \(n_j + \mathcal N(0, \sigma^2)\).

    Args:
        sigma: σ, in votes.

    References:
        Papernot et al., arXiv 1802.08908, section 4.1.
    """

    sigma: float

    answers_all: ClassVar[bool] = True
    asks_student: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fix = "give the standard deviation of the noise in votes, such as 40"
        _checks.set_fields(self, sigma=in_range("sigma", self.sigma, fix))

    @property
    def plurality_needed(self) -> None:
        """None."""

    def check_teachers(self, teachers: int) -> None:
        """Any number will do."""

    def aggregate(self, votes: np.ndarray, *, key: Key[Array, ""], student_probs: Any = None) -> Labels:
        """The noisy winner of every query."""
        return all_answered(gaussian_winner(votes, key, self.sigma))

    def event(self, *, asked: int, answered: int) -> "DpEvent":
        """One Gaussian mechanism of sensitivity √2 a query: a vote that moves changes two counts by one each."""
        return gaussian_votes_event(self.sigma, asked)

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
        """By the paper's theorem 6."""
        return gaussian_rdp_given_votes(gaussian_log_q(votes, self.sigma), self.sigma, orders)

    def answer_probability(self, votes: np.ndarray) -> Float64[np.ndarray, " queries"]:
        """1."""
        return np.ones(len(votes))

    def cost_at_order(self, votes: np.ndarray, answered: np.ndarray, order: float) -> CostAtOrder:
        """That of all votes."""
        return cost_of_votes(votes[answered], self.sigma, order)

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        """For a statement."""
        return (
            f"{queries_put(teachers=teachers, asked=asked)}; the winner of the votes under Gaussian noise of {self.sigma:g} was "
            "released for each (GNMax)."
        )


def gaussian_votes_event(sigma: float, times: int) -> "DpEvent":
    """The event of so many winners under Gaussian noise of this standard deviation, in votes."""
    return accounting.gaussian_event(noise_multiplier=sigma / math.sqrt(2), times=times)
