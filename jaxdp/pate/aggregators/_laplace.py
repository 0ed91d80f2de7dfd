"""Laplace noise on every count, as the paper of 2017 has it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Array, Float64, Key

from ... import _checks
from .._bounds import Curves, Orders, laplace_log_q, laplace_rdp, laplace_rdp_given_votes
from ._contract import Labels, all_answered, queries_put
from ._noisy_max import in_range, laplace_winner

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class LaplaceNoisyMax:
    r"""The winner of \(n_j + \mathrm{Lap}(1/\gamma)\).

    Args:
        gamma: γ, one over the scale of the noise; each query is (2γ)-differentially private.

    References:
        Papernot et al., arXiv 1610.05755.
    """

    gamma: float

    answers_all: ClassVar[bool] = True
    asks_student: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fix = "give one over the scale of the Laplace noise, such as 0.05"
        _checks.set_fields(self, gamma=in_range("gamma", self.gamma, fix))

    @property
    def plurality_needed(self) -> None:
        """None."""

    def check_teachers(self, teachers: int) -> None:
        """Any number will do."""

    def aggregate(self, votes: np.ndarray, *, key: Key[Array, ""], student_probs: Any = None) -> Labels:
        """The noisy winner of every query."""
        return all_answered(laplace_winner(votes, key, 1 / self.gamma))

    def event(self, *, asked: int, answered: int) -> "DpEvent":
        """Twice a Laplace mechanism of scale 1/γ a query: a vote that moves changes two counts by one each."""
        import dp_accounting as dp

        return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / self.gamma), 2 * asked) if asked else dp.NoOpDpEvent()

    def classic_rdp(self, orders: Orders, *, asked: int) -> Orders:
        """The paper's, of a (2γ)-differentially private query."""
        return asked * laplace_rdp(self.gamma, orders, classic=True)

    def rdp_by_query(
        self,
        votes: np.ndarray,
        orders: Orders,
        *,
        charged: np.ndarray,
        student_probs: Any = None,
        classic: bool = False,
    ) -> Curves:
        """By the paper's theorem 3, capped by the data-independent curve: with `classic` by the paper's own."""
        return laplace_rdp_given_votes(laplace_log_q(votes, self.gamma), self.gamma, orders, classic=classic)

    def answer_probability(self, votes: np.ndarray) -> Float64[np.ndarray, " queries"]:
        """1."""
        return np.ones(len(votes))

    def cost_at_order(self, votes: np.ndarray, answered: np.ndarray, order: float) -> None:
        """None: no smooth sensitivity is known."""

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        """For a statement."""
        return (
            f"{queries_put(teachers=teachers, asked=asked)}; the winner of the votes under Laplace noise of scale "
            f"{1 / self.gamma:.6g} was released for each."
        )
