"""Interactive-GNMax: an answer where the teachers disagree with a student enough."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Key

from ... import _checks
from ..._errors import UsageError
from .._bounds import Curves, Orders
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

Probabilities = Float[np.ndarray, "queries classes"]


@dataclass(frozen=True, kw_only=True)
class InteractiveNoisyMax:
    r"""Interactive-GNMax: ask the teachers where they disagree with the student; else let a confident student teach itself.

    The threshold is on \(\max_j (n_j - M p_j)\), with M teachers and the student's probabilities p.

    Args:
        threshold: T, in votes.
        sigma_threshold: σ₁, of the noise on the disagreement, in votes.
        sigma_max: σ₂, of the noise on all counts of a query that the teachers answer, in votes.
        student_confidence: from which probability on the student's own label is used where the teachers aren't asked.

    References:
        Papernot et al., arXiv 1802.08908, algorithm 2.
    """

    threshold: float
    sigma_threshold: float
    sigma_max: float
    student_confidence: float

    answers_all: ClassVar[bool] = False
    asks_student: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_checked(self)
        fix = "give a probability, such as 0.9"
        if not 0 < _checks.positive("student_confidence", self.student_confidence, fix) <= 1:
            raise UsageError(f"student_confidence={self.student_confidence} must lie between 0 and 1: {fix}")

    @property
    def plurality_needed(self) -> None:
        """None."""

    def check_teachers(self, teachers: int) -> None:
        """Refuse a threshold above the number of teachers."""
        check_threshold_against(self.threshold, teachers)

    def aggregate(self, votes: np.ndarray, *, key: Key[Array, ""], student_probs: Probabilities | None) -> Labels:
        """The noisy winner where the noisy disagreement reaches the threshold; else the student's label where it is sure."""
        assert student_probs is not None
        top = jnp.asarray(_disagreement(votes, student_probs), jnp.float32)
        winner, answered = winners_behind_check(
            votes,
            top,
            key,
            threshold=self.threshold,
            sigma_threshold=self.sigma_threshold,
            sigma_max=self.sigma_max,
        )
        sure = student_probs.max(axis=1) >= self.student_confidence
        none = jnp.full(winner.shape, -1, jnp.int32)
        own = jnp.where(sure, student_probs.argmax(axis=1).astype(jnp.int32), none)
        return Labels(jnp.where(answered, winner, own), answered)

    def event(self, *, asked: int, answered: int) -> "DpEvent":
        """A Gaussian mechanism of sensitivity 1 for each check, one of sensitivity √2 for each answer of the teachers."""
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
        student_probs: Probabilities | None,
        classic: bool = False,
    ) -> Curves:
        """The check on the disagreement with the student, and the votes as far as they are charged."""
        assert student_probs is not None
        return rdp_with_checks(
            votes,
            _disagreement(votes, student_probs),
            charged,
            orders,
            threshold=self.threshold,
            sigma_threshold=self.sigma_threshold,
            sigma_max=self.sigma_max,
        )

    def answer_probability(self, votes: np.ndarray) -> Float64[np.ndarray, " queries"]:
        """Refused: it depends on the student."""
        raise UsageError(
            "what Interactive-GNMax answers depends on a student that is not there yet: forecast ConfidentNoisyMax"
        )

    def cost_at_order(self, votes: np.ndarray, answered: np.ndarray, order: float) -> None:
        """None: no smooth sensitivity is known."""

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        """For a statement."""
        return (
            f"{queries_put(teachers=teachers, asked=asked)}; where the largest excess of votes over a student's probabilities "
            f"times {teachers:,} (while there was no student, the largest count) reached {self.threshold:g} under Gaussian noise "
            f"of {self.sigma_threshold:g}, the winner of the votes under Gaussian noise of {self.sigma_max:g} was released: "
            f"{answered:,} answers (Interactive-GNMax). Elsewhere a student's own label was used, where one was sure."
        )


def _disagreement(votes: np.ndarray, student_probs: Probabilities) -> Float64[np.ndarray, " queries"]:
    r"""\(\max_j (n_j - M p_j)\), with \(M p_j\) rounded so that all such differences are float32 numbers.

    Rounded after the subtraction, one vote could move the largest by more than one.
    """
    counts = np.asarray(votes, np.int64)
    teachers = counts.sum(axis=1, keepdims=True)
    unit = min(1.0, 2.0 ** (math.frexp(teachers.max())[1] - 24))  # 24 bits of float32 hold M in such units
    expected = np.round(teachers * np.asarray(student_probs, np.float64) / unit) * unit
    return (counts - expected).max(axis=1)
