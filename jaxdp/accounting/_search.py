"""The price of choosing the best of several private runs.

Picking the best run by looking at private data costs more than the best run itself. Where the number of runs is drawn from
one of a few distributions, and only the best of them is published, the price is known, and hardly depends on that number.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._events import with_float_noise

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SHAPES = {"poisson": math.inf, "geometric": 1.0, "logarithmic": 0.0}


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    r"""A search over hyper-parameters: draw a number of runs, make them with hyper-parameters drawn at random, keep the best.

    The number and the hyper-parameters are drawn without looking at the data, each run is private on its own, and nothing of
    the runs that were not chosen is published. A fixed number of runs, or one that somebody decides on while looking at the
    results, has no such bound. The score by which runs are compared may use the private data only where the run's event covers
    it.

    Args:
        mean: the mean number of runs; at least 1.
        distribution: of the number of runs: "poisson" (cheapest; may draw no run at all), "geometric" or "logarithmic".

    Raises:
        UsageError: for values out of range.

    Examples:
        >>> from jaxdp.accounting import event_epsilon, poisson_event
        >>> one_run = poisson_event(noise_multiplier=2.0, sample_rate=0.01, steps=1000)
        >>> search = RandomSearch(mean=10, distribution="poisson")
        >>> costs = [event_epsilon(event, delta=1e-5).epsilon for event in (one_run, search.event(one_run))]
        >>> print(f"{costs[0]:.3f} {costs[1]:.3f}")
        0.686 1.580

    References:
        Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", arXiv 2110.03620, theorems 2 and 6.
    """

    mean: float
    distribution: str = "poisson"

    def __post_init__(self) -> None:
        _checks.one_of("distribution", self.distribution, _SHAPES)
        if not 1 <= _checks.positive("mean", self.mean, "give the mean number of runs, such as 10") <= 1e6:
            raise UsageError(
                f"mean={self.mean} must lie between 1 and a million: give the mean number of runs, such as 10"
            )

    def in_words(self) -> str:
        """The law of the number of runs."""
        law = "Poisson" if math.isinf(_SHAPES[self.distribution]) else self.distribution
        return f"a {law} distribution of mean {self.mean:g}"

    def event(self, run: "DpEvent") -> "DpEvent":
        """The event of the whole search, of which the RDP accountant can tell the price.

        Args:
            run: the event of one run, as `run.event`; of the costliest, where they differ.

        Returns:
            A dp-accounting `RepeatAndSelectDpEvent`.
        """
        from dp_accounting.dp_event import RepeatAndSelectDpEvent

        run = with_float_noise(run)
        return RepeatAndSelectDpEvent(run, float(self.mean), _SHAPES[self.distribution])

    def number_of_runs(self, rng: np.random.Generator | None = None) -> int:
        """A number of runs, drawn as accounted.

        Args:
            rng: by default fresh entropy of the operating system: a generator whose seed one chose until the number pleased would
                void the bound.

        Returns:
            How many runs to make. With "poisson" it may be 0: then nothing but that may be published.
        """
        if rng is not None:
            _checks.generator("rng", rng)
        generator = np.random.default_rng() if rng is None else rng
        if self.distribution == "poisson":
            return int(generator.poisson(self.mean))
        if self.distribution == "geometric":
            return int(generator.geometric(1 / self.mean))
        if self.mean < 1 + 1e-8:  # which costs more than one run does
            return 1
        return int(generator.logseries(1 - _logarithmic_gamma(self.mean)))


def _logarithmic_gamma(mean: float) -> float:
    r"""γ with \((1/\gamma - 1) / \log(1/\gamma) = \) mean."""
    from scipy.optimize import brentq

    excess = lambda log_inverse: math.expm1(log_inverse) / log_inverse - mean
    return math.exp(-brentq(excess, 1e-9, 700.0))  # pyright: ignore[reportOperatorIssue]
