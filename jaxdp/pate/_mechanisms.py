"""The ways in which votes become labels, as descriptions: what an aggregator runs with, and what the analysis charges for."""

from dataclasses import dataclass

from .. import _checks
from .._errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LaplaceNoisyMax:
    r"""The winner of \(n_j + \mathrm{Lap}(1/\gamma)\).

    Args:
        gamma: γ, one over the scale of the noise; each query is (2γ)-differentially private.

    References:
        Papernot et al., arXiv 1610.05755.
    """

    gamma: float

    def __post_init__(self) -> None:
        _positive(self, "gamma", "give one over the scale of the Laplace noise, such as 0.05")


@dataclass(frozen=True, kw_only=True)
class GaussianNoisyMax:
    r"""GNMax: the winner of \(n_j + \mathcal N(0, \sigma^2)\).

    Args:
        sigma: σ, in votes.

    References:
        Papernot et al., arXiv 1802.08908, section 4.1.
    """

    sigma: float

    def __post_init__(self) -> None:
        _positive(self, "sigma", "give the standard deviation of the noise in votes, such as 40")


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

    def __post_init__(self) -> None:
        _check_threshold(self)


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

    def __post_init__(self) -> None:
        _check_threshold(self)
        fix = "give a probability, such as 0.9"
        if not 0 < _checks.positive("student_confidence", self.student_confidence, fix) <= 1:
            raise UsageError(f"student_confidence={self.student_confidence} must lie between 0 and 1: {fix}")


Mechanism = LaplaceNoisyMax | GaussianNoisyMax | ConfidentNoisyMax | InteractiveNoisyMax


def check_mechanism(mechanism: Mechanism) -> None:
    """Refuse what is none of the mechanisms."""
    _checks.instance(
        "mechanism", mechanism, Mechanism, "give jaxdp.pate.GaussianNoisyMax(sigma=40.0), or another one of them"
    )


def check_threshold_against(mechanism: Mechanism, teachers: int) -> None:
    """Refuse what is no mechanism, and a threshold that no vote can reach without noise."""
    check_mechanism(mechanism)
    if isinstance(mechanism, ConfidentNoisyMax | InteractiveNoisyMax) and mechanism.threshold > teachers:
        raise UsageError(
            f"threshold={mechanism.threshold:g} exceeds the {teachers} teachers, so that noise alone would decide: give at most "
            f"{teachers}"
        )


def _positive(mechanism: Mechanism, name: str, fix: str) -> None:
    object.__setattr__(mechanism, name, _checks.positive(name, getattr(mechanism, name), fix))


def _check_threshold(mechanism: ConfidentNoisyMax | InteractiveNoisyMax) -> None:
    _positive(mechanism, "threshold", "give the votes that an answer needs, such as 200")
    _positive(
        mechanism, "sigma_threshold", "give the standard deviation of the noise on the threshold in votes, such as 150"
    )
    _positive(mechanism, "sigma_max", "give the standard deviation of the noise on the votes, such as 40")
