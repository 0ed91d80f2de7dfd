r"""Drawn noise has an end, which takes a part of delta, where the law that the accountants know has none.

A step releases \(y = s + \sigma Z\), in units of the sensitivity; a neighbour's record moves s by v, \(\lVert v \rVert_2 \le
1\). Each coordinate of Z is one of a pair of normals, drawn as a point of the plane that follows its law within R of the origin
(`LARGEST_NORMAL`), and counts here as if it ended there. Publishing both of a pair would only tell more. The drawn laws are the
true ones on the outputs within R of both s and s + v, but for a constant: what lies beyond R is shared out, which raises δ by a
factor of \(1 + d T 2^{-60}\) for d coordinates and T steps. What remains are outputs that one neighbour alone can produce: of
points less than R from the origin that lie further when moved by \(t_i = |v_i| / \sigma\). A pair's norm is a Rayleigh
variable: their probability is at most

\[ \sum_i F(t_i), \qquad F(t) = \Pr[R - t < \lVert (Z, Z') \rVert \le R] = e^{-(R - t)^2 / 2} - e^{-R^2 / 2}. \]

How many coordinates can show it? The third derivative of F is positive where \(R - t > \sqrt 3\), so \(F(t) - F'(0)\, t\) grows
faster than \(t^2\): its sum is at most what one coordinate with all of v has; and \(\sum_i t_i \le \sqrt d / \sigma\). So

\[ \sum_i F(t_i) \;\le\; b = e^{-(R - 1/\sigma)^2 / 2} + \sqrt d\, R\, e^{-R^2/2} / \sigma. \]

Over T steps in which the record takes part with probability q, the outputs that only the data with the record can produce have a
probability of at most T q b, whatever each step chooses after seeing the ones before. In the other direction, an output that the
record can't produce is \(1/(1-q)\) times as likely without it, where the accountant takes it for \(1/(1 - q + q r)\), r the ratio
of the two normal densities. Where \(\Pr \ge e^\varepsilon \Pr'\), what is missing of the right side is then at most
\(\Pr \cdot q r / (1 - q)\), whose mean is \(q b / (1 - q)\); and never more than such outputs have, b. So

\[ \delta_{\text{drawn}} \le \delta \, (1 + d T 2^{-60}) + T \min\bigl(1, \tfrac{q}{1-q}\bigr)\, b. \]

The discrete Gaussian of `jaxdp.mechanisms` has terms of one dimension that reach 8.8 standard deviations at least, which loses
less: \(\bar\Phi(8.8 - t) < e^{-(9.12 - t)^2/2}\). Laplace noise follows its law up to R' of its scales (`LARGEST_LAPLACE`); its
\(F(t) = \tfrac12 (e^{-(R' - t)} - e^{-R'})\) is convex, so one coordinate with all of the L1 sensitivity shows most, whatever
d. That normals are of 64 bits, and float32, is another matter (see `jaxdp.noise.draws._normal`).
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._errors import UsageError
from ..noise.draws._laplace import LARGEST_LAPLACE
from ..noise.draws._normal import LARGEST_NORMAL, MOST_VALUES

if TYPE_CHECKING:
    from dp_accounting import DpEvent

NEGLIGIBLE = 1e-3  # of delta, above which it is taken from it


class BeyondReachError(UsageError):
    """Noise so small that its end shows more than δ allows."""


def delta_left(event: "DpEvent", delta: float, adjacency: str) -> float:
    """δ without what the noise's end takes of it: what an accountant of endless noise may be asked for.

    Raises:
        BeyondReachError: where less than half of δ is left.
    """
    missing = missing_of(event, delta, adjacency)
    if missing > delta / 2:
        raise BeyondReachError(
            f"delta={delta:g} can't be kept: noise follows its law to {LARGEST_NORMAL:.2f} standard deviations (Laplace noise to "
            f"{LARGEST_LAPLACE:.1f} scales), and outputs beyond, which one neighbour alone can produce, may have a probability "
            f"of {min(missing, 1):.2g} over the run: give a larger noise_multiplier (0.5 is enough for most), fewer steps, or a "
            "larger delta; of PATE, a larger sigma or gamma's inverse, or fewer queries"
        )
    return delta - missing if missing > NEGLIGIBLE * delta else delta


def missing_of(event: "DpEvent", delta: float, adjacency: str) -> float:
    """What the noise's end takes of δ in all."""
    return missing_mass(event, adjacency) + delta * _over_run(event, lambda _: MOST_VALUES * 2.0**-60, lambda _: 1.0)


def missing_mass(event: "DpEvent", adjacency: str) -> float:
    r"""The part of δ that the noise's end takes over an event, \(\sum T \min(1, q/(1-q))\, b\), of up to `MOST_VALUES` values."""
    from dp_accounting import dp_event as dp

    moved = 2.0 if adjacency == "replace_one" else 1.0

    def leaf(part: Any) -> float:
        if isinstance(part, dp.GaussianDpEvent | dp.SingleEpochTreeAggregationDpEvent):
            return _beyond_normal(moved, part.noise_multiplier)
        if isinstance(part, dp.MixtureOfGaussiansDpEvent):
            return max((_beyond_normal(abs(s), part.standard_deviation) for s in part.sensitivities), default=0.0)
        if isinstance(part, dp.TruncatedSubsampledGaussianDpEvent):
            return _odds(part.sampling_probability) * _beyond_truncated(part, moved)
        return _beyond_laplace(part.noise_multiplier) if isinstance(part, dp.LaplaceDpEvent) else 0.0

    return _over_run(event, leaf, _odds)


def _over_run(event: Any, leaf: Callable[[Any], float], odds: Callable[[float], float]) -> float:
    """The sum of what `leaf` says of each release, as often as it is made."""
    from dp_accounting import dp_event as dp

    over = lambda part: _over_run(part, leaf, odds)
    if isinstance(event, dp.PoissonSampledDpEvent):
        return odds(event.sampling_probability) * over(event.event)
    if isinstance(event, dp.SelfComposedDpEvent):
        return event.count * over(event.event)
    if isinstance(event, dp.ComposedDpEvent):
        return math.fsum(map(over, event.events))
    if isinstance(event, dp.RepeatAndSelectDpEvent):
        return event.mean * over(event.event)
    if isinstance(event, dp.SingleEpochTreeAggregationDpEvent):  # a record is in one path of nodes of each tree
        counts = event.step_counts if isinstance(event.step_counts, list | tuple) else [event.step_counts]
        return leaf(event) * sum(math.log2(max(count, 1)) + 2 for count in counts)
    if isinstance(event, dp.SampledWithReplacementDpEvent | dp.SampledWithoutReplacementDpEvent):
        return over(event.event)  # as if the record took part in each
    return leaf(event)


def _odds(rate: float) -> float:
    return 1.0 if rate >= 0.5 else rate / (1 - rate)


def end_of_gaussian(sigma: float, delta: float, values: int) -> float:
    """What the noise's end takes of δ in one release of so many values, of sensitivity 1 under noise of σ."""
    return _beyond_normal(1.0, sigma, values) + delta * values * 2.0**-60


def _beyond_normal(moved: float, sigma: float, values: int = MOST_VALUES) -> float:
    """b, for a record that moves a sum by `moved`, under noise of standard deviation `sigma`; 1 where there is no bound."""
    if moved == 0 or sigma == 0:  # nothing to show; no privacy, as the accountants say
        return 0.0
    left = LARGEST_NORMAL - moved / sigma
    if left <= math.sqrt(3):
        return 1.0
    spread = math.sqrt(values) * LARGEST_NORMAL * math.exp(-(LARGEST_NORMAL**2) / 2) * moved / sigma
    return min(1.0, math.exp(-(left**2) / 2) + spread)


def _beyond_truncated(part: Any, moved: float) -> float:
    """A record that enters a full batch displaces another one, and then moves the sum twice as far."""
    from scipy.stats import binom

    full = float(binom.sf(part.truncated_batch_size - 1, part.dataset_size, part.sampling_probability))
    return _beyond_normal(moved, part.noise_multiplier) + full * _beyond_normal(2 * moved, part.noise_multiplier)


def _beyond_laplace(scale: float) -> float:
    return math.exp(min(0.0, 1 / scale - LARGEST_LAPLACE)) / 2 if scale else 0.0
