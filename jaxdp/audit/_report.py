"""What an attack showed, in figures and in words, beside what was claimed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from .. import _checks
from ..accounting._epsilon import no_larger, rounded_down, rounded_up
from ._attack import attack_auroc, tpr_at_fpr
from ._canaries import tossed
from ._f_dp import epsilon_one_run_f_dp
from ._gaussian import bound_if_gaussian
from ._one_run import checked_delta, checked_significance, epsilon_one_run

_FALSE_ALARMS = (0.001, 0.01)  # shares at which the true positive rate is told
_NOT_KNOWN = "The attack's scores were given; how it got them isn't known here."


@dataclass(frozen=True)
class Report:
    """How well an attack told canaries that were in from those that were out, and what that says of a claim.

    Attributes:
        scores: float64 [canaries].
        members: bool [canaries].
        delta: δ of the claim, and of the bounds.
        significance: the probability with which a bound may be above the true ε.
        claimed_epsilon: ε of the claim; None where there is none.
        auroc: the area under the attack's ROC.
        true_positives: the share of the members that it finds, by the share of false alarms.
        epsilon: the lower bound by `epsilon_one_run`.
        epsilon_f_dp: that by `epsilon_one_run_f_dp`, which holds for mechanisms with a Gaussian trade-off; None for δ = 0.
        epsilon_gaussian: that by `epsilon_one_run_gaussian`, where scores are Gaussian; None where they clearly are not.
    """

    scores: Float[np.ndarray, " canaries"]
    members: Bool[np.ndarray, " canaries"]
    delta: float
    significance: float
    claimed_epsilon: float | None
    auroc: float
    true_positives: dict[float, float]
    epsilon: float
    epsilon_f_dp: float | None
    epsilon_gaussian: float | None

    @property
    def contradicts(self) -> bool:
        """Whether the lower bound is above what was claimed."""
        return self.claimed_epsilon is not None and self.epsilon > self.claimed_epsilon

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values, without scores and coins."""
        return {
            "canaries": len(self.members),
            "members": int(np.sum(self.members)),
            "delta": self.delta,
            "significance": self.significance,
            "claimed_epsilon": self.claimed_epsilon,
            "contradicts": self.contradicts,
            "auroc": self.auroc,
            "true_positives": {f"{rate:g}": share for rate, share in self.true_positives.items()},
            "epsilon": self.epsilon,
            "epsilon_f_dp": self.epsilon_f_dp,
            "epsilon_gaussian": self.epsilon_gaussian,
        }

    def in_words(self, attack: str = _NOT_KNOWN) -> str:
        """A paragraph for whoever answers for the data: what was tried, what came out, and what that doesn't show.

        Args:
            attack: a sentence on what was tried.
        """
        at = f"at δ = {no_larger(self.delta)} and a confidence of {no_larger(1 - self.significance, 4)}"
        found = ", ".join(f"{share:.2%} at {rate:.1%}" for rate, share in self.true_positives.items())
        said = [
            f"Of {len(self.members)} canaries fair coins put {int(np.sum(self.members))} into the training data and kept the "
            f"others out. {attack}",
            f"The area under its ROC is {self.auroc:.4f}, where guessing has 0.5; of the canaries that were in it finds {found} "
            "of false alarms.",
            f"So ε is at least {rounded_down(self.epsilon)} {at} (one run, arXiv 2305.08846).",
        ]
        if self.epsilon_f_dp is not None:
            said.append(
                f"If the mechanism's trade-off is a Gaussian one, as that of many steps of DP-SGD nearly is, it is at least "
                f"{rounded_down(self.epsilon_f_dp)} (arXiv 2410.22235)."
            )
        if self.epsilon_gaussian is not None:
            said.append(
                "If these scores are Gaussian, into tails where there are none of them, it is at least "
                f"{rounded_down(self.epsilon_gaussian)} (arXiv 2606.12733)."
            )
        if self.claimed_epsilon is None:
            said.append("No ε was claimed to hold that against.")
        elif self.contradicts:
            said.append(
                f"THAT CONTRADICTS the claim of ε = {rounded_up(self.claimed_epsilon)}: the noise, the clipping, the sampling or "
                "the accounting is not what it was said to be, or the canaries' coins weren't fair or were seen."
            )
        else:
            said.append(
                f"That doesn't contradict the claim of ε = {rounded_up(self.claimed_epsilon)}. It doesn't prove it either: a "
                "small lower bound shows that this attack found little, and another may find more. What proves the claim is the "
                "accounting of the run that was made."
            )
        return " ".join(said)


def report(
    scores: Any, members: Any, *, delta: float, claimed_epsilon: float | None = None, significance: float = 0.05
) -> Report:
    """All that an attack's scores of canaries show.

    Args:
        scores: float [canaries], higher where the attack says that a canary was in.
        members: bool [canaries], whether it was, by a fair coin of its own.
        delta: δ of the claim, from 0 up to and without 1.
        claimed_epsilon: ε of the claim, for adding or removing one example, if there is one.
        significance: the probability with which each bound may be above the true ε.

    Returns:
        A `Report`.

    Raises:
        UsageError: for what `epsilon_one_run` refuses, and a claim below 0.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> members = rng.random(1000) < 0.5
        >>> found = report(rng.normal(size=1000) + 3 * members, members, delta=1e-5, claimed_epsilon=2.0)
        >>> found.contradicts, round(found.auroc, 3)
        (True, 0.983)
    """
    given, delta, level = tossed(scores, members), checked_delta(delta), checked_significance(significance)
    if claimed_epsilon is not None:
        claimed_epsilon = _checks.non_negative("claimed_epsilon", claimed_epsilon, "give the ε that was claimed")
    asked: dict[str, Any] = {"delta": delta, "significance": level}
    return Report(
        scores=given.scores,
        members=given.members,
        delta=delta,
        significance=level,
        claimed_epsilon=claimed_epsilon,
        auroc=attack_auroc(*given),
        true_positives={rate: tpr_at_fpr(*given, fpr=rate) for rate in _FALSE_ALARMS},
        epsilon=epsilon_one_run(*given, **asked),
        epsilon_f_dp=epsilon_one_run_f_dp(*given, **asked) if delta else None,
        epsilon_gaussian=bound_if_gaussian(given, delta, level),
    )
