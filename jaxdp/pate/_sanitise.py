r"""A data-dependent cost that may be published.

The data-dependent RDP says how much the teachers agreed, so it is private itself. Noise scaled to its smooth sensitivity
hides that (Nissim, Raskhodnikova and Smith, 2007): with the local sensitivity \(LS_d\) at distance d, the most that the total
can change where the votes are up to d changes away,

\[ SS = \max_d e^{-\beta d} \sum_{\text{queries}} LS_d \]

changes by no more than a factor \(e^\beta\) between neighbours. Publishing the total plus \(\mathcal N(0, (s\,SS)^2)\) is said to
cost \(\rho_{SS}(\alpha) = \alpha e^{2\beta}/s^2 + (-\tfrac12 \ln(1 - 2\alpha\beta) + \alpha\beta)/(\alpha - 1)\) more, but where
\(\alpha\beta\) is above a quarter or so, neighbours may be further apart than that: what is charged is never below the divergence
of the two furthest Gaussians that there can be, `furthest_neighbours_rdp`.

That noisy value lies below the truth half of the time. To make it an upper bound, a margin is added; since SS is private as well,
the margin is made of a noisy SS: \(\ln SS\) has sensitivity β, so \(\ln SS + \mathcal N(0, (\beta\tau)^2)\) costs
\(\alpha/(2\tau^2)\). Both noises stay below their margins but for a probability that is charged to δ.

References:
    Papernot et al., "Scalable Private Learning with PATE", arXiv 1802.08908, section 4.3 and appendix B.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float64, Int
from scipy.special import log_ndtr, ndtri, ndtri_exp

from .. import _checks
from .._errors import UsageError
from ._bounds import (
    LEAST_CONVERTED,
    gaussian_bound,
    gaussian_log_q,
    gaussian_rdp,
    gaussian_rdp_given_votes,
    threshold_log_q,
)

_GRID, _GRID_FROM = 4000, 600.0  # points at which conditions are checked, from ln q = -600

PerQuery = Float64[np.ndarray, " queries"]
ByDistance = Float64[np.ndarray, " distances"]


@dataclass(frozen=True)
class CostAtOrder:
    """A data-dependent cost at one Rényi order, with what has to be known of it to be sanitised; costs add up.

    Attributes:
        total: the RDP of all queries together. Private.
        local_sensitivities: float64 [distances], the most by which one teacher can change the total where votes are so many
            changes away. The last one holds from there on. Private.
        most: the data-independent RDP.
    """

    total: float
    local_sensitivities: ByDistance
    most: float

    def __add__(self, other: "CostAtOrder") -> "CostAtOrder":
        """The cost of both, released together."""
        parts = (self.local_sensitivities, other.local_sensitivities)
        longest = max(map(len, parts))
        padded = [np.pad(part, (0, longest - len(part)), mode="edge") for part in parts]
        return CostAtOrder(self.total + other.total, np.sum(padded, axis=0), self.most + other.most)


@dataclass(frozen=True, kw_only=True)
class Sanitiser:
    r"""How a data-dependent cost is made fit for publication; all of it to be chosen without looking at the votes.

    The defaults were chosen on synthetic votes of 250 teachers. With a few hundred answers the noise and its margin cost about
    as much as agreement saves.

    Args:
        order: α, the one order at which the total is published; above 1.
        beta: β, how fast distance is discounted; above 0 and below 1/(2α).
        noise: s, standard deviation of the noise in units of the smooth sensitivity.
        noise_of_sensitivity: τ, standard deviation of the noise on the smooth sensitivity's logarithm, in units of β.
        failure: the probability with which the published value may be too low; taken from δ.

    Raises:
        UsageError: for values out of range.
    """

    order: float = 8.0
    beta: float = 0.05
    noise: float = 6.0
    noise_of_sensitivity: float = 3.0
    failure: float = 1e-6

    def __post_init__(self) -> None:
        if _checks.positive("order", self.order, "give an order above 1, such as 14") <= LEAST_CONVERTED:
            raise UsageError(
                f"order={self.order} must be above 1, by more than a hundredth, or dp-accounting makes no epsilon of it: give an "
                "order such as 14"
            )
        if not _checks.positive("beta", self.beta, "give a discount such as 0.03") < 1 / (2 * self.order):
            raise UsageError(f"beta={self.beta} must be below 1/(2 order) = {1 / (2 * self.order):.4g}: give less")
        _checks.positive("noise", self.noise, "give it in units of the smooth sensitivity, such as 6")
        _checks.positive("noise_of_sensitivity", self.noise_of_sensitivity, "give it in units of beta, such as 10")
        _checks.delta(self.failure)

    @property
    def rdp(self) -> float:
        """The RDP of publication itself, at the order."""
        proved = furthest_neighbours_rdp(self.beta, self.noise, self.order)
        of_total = max(smooth_sensitivity_rdp(self.beta, self.noise, self.order), proved)
        return of_total + self.order / (2 * self.noise_of_sensitivity**2)

    def publish(self, total: float, smooth_sensitivity: float, rng: np.random.Generator) -> float:
        """An upper bound of `total`, but for the probability `failure`, that may be published at the price of `rdp`."""
        z = -float(ndtri(self.failure / 2))
        hidden = smooth_sensitivity * math.exp(self.beta * self.noise_of_sensitivity * (rng.standard_normal() + z))
        return total + self.noise * (smooth_sensitivity * rng.standard_normal() + z * hidden)


def smooth_sensitivity_rdp(beta: float, noise: float, order: float) -> float:
    r"""\(\rho_{SS}(\alpha)\): what publishing a value with noise of `noise` times its β-smooth sensitivity is said to cost.

    Too little for large αβ: 0.418 at Sanitiser's defaults, where neighbours can be 0.466 apart.

    References:
        Papernot et al., arXiv 1802.08908, theorem 23.
    """
    spread = -0.5 * math.log(1 - 2 * order * beta) + order * beta
    return order * math.exp(2 * beta) / noise**2 + spread / (order - 1)


def furthest_neighbours_rdp(beta: float, noise: float, order: float) -> float:
    r"""The Rényi divergence of a value with noise of `noise` times its β-smooth sensitivity from a neighbour's, at the most.

    With a neighbour's sensitivity r times as large, \(e^{-\beta} \le r \le e^\beta\), and values at most the smaller of the two
    sensitivities apart, it is

    \[ \frac{\alpha \ln r - \tfrac12 \ln v}{\alpha - 1} + \frac{\alpha \min(1, r^2)}{2 s^2 v}, \quad v = 1 + \alpha (r^2 - 1) \]

    (Gil, Alajaji and Linder, 2013). Below 1 both terms grow as r falls; above 1 neither is as large as it is at 1/r. So it is
    largest at \(r = e^{-\beta}\), where v is above 0 for \(\beta < 1/(2\alpha)\).
    """
    of_neighbour = 1 + order * math.expm1(-2 * beta)
    spread = (-order * beta - 0.5 * math.log(of_neighbour)) / (order - 1)
    return spread + order * math.exp(-2 * beta) / (2 * noise**2 * of_neighbour)


def smooth_sensitivity(by_distance: ByDistance, beta: float) -> float:
    """The largest discounted local sensitivity."""
    return float(np.max(np.exp(-beta * np.arange(len(by_distance))) * by_distance))


def cost_of_votes(votes: Int[np.ndarray, "answered classes"], sigma: float, order: float) -> CostAtOrder:
    """The cost of so many answers by GNMax.

    Raises:
        UsageError: where the conditions of the proof fail for this σ, number of classes and order.
    """
    if not len(votes):
        return CostAtOrder(0.0, np.zeros(1), 0.0)
    total = float(cost_at_order(gaussian_log_q(votes, sigma), sigma, order).sum())
    most = float(gaussian_rdp(sigma, np.array([order]))[0]) * len(votes)
    return CostAtOrder(total, local_sensitivity_of_votes(votes, sigma, order), most)


def cost_of_checks(
    votes: Int[np.ndarray, "queries classes"], threshold: float, sigma: float, order: float
) -> CostAtOrder:
    """The cost of holding the plurality of so many queries against a threshold."""
    plurality, teachers = votes.max(axis=1), int(votes[0].sum())
    total = threshold_rdp_given_votes(plurality.astype(np.float64), threshold, sigma, np.array([order])).sum()
    by_distance = local_sensitivity_of_threshold(plurality, teachers, threshold, sigma, order)
    return CostAtOrder(float(total), by_distance, len(votes) * order / (2 * sigma**2))


def local_sensitivity_of_votes(votes: Int[np.ndarray, "queries classes"], sigma: float, order: float) -> ByDistance:
    """The sum over queries of GNMax's local sensitivity, by distance from 0 until it no longer changes.

    Args:
        votes: counts [queries, classes].
        sigma: σ of GNMax, in votes.
        order: α.

    Returns:
        float64 [distances].

    Raises:
        UsageError: where the conditions of the proof fail for this σ, number of classes and order.

    References:
        Papernot et al., arXiv 1802.08908, appendix B.
    """
    classes = votes.shape[1]
    condition_5, condition_6 = conditions(sigma, classes, order)
    if not (condition_5 and condition_6):
        raise UsageError(
            f"the smooth sensitivity of GNMax is not proved for sigma={sigma:g}, {classes} classes and order {order:g} (C5: "
            f"{condition_5}, C6: {condition_6}): give more noise or another order, or publish the data-independent epsilon"
        )
    log_q0, log_q1 = region(sigma, classes, order)
    at_q1 = np.array([log_q1])
    here = cost_at_order(at_q1, sigma, order)[0]
    nearer = cost_at_order(_one_vote_nearer(at_q1, sigma, classes), sigma, order)[0]
    flat = max(order / sigma**2 - here, here - nearer)  # one vote beyond q1 is q0, where the cost is all of it
    counts = -np.sort(-votes.astype(np.int64), axis=1)
    log_q = gaussian_log_q(counts, sigma)
    rising, totals = log_q < log_q1, []
    outside = rising | (log_q > log_q0)
    while True:
        totals.append(float(np.where(outside, _local(log_q, sigma, classes, order), flat).sum()))
        if not outside.any():
            return np.array(totals)
        step = np.where(rising, -1, 1) * outside
        counts[:, 0] += step
        counts[:, 1] -= step
        possible = counts[:, 1] >= 0  # else no vote is left to move
        counts[:, 1:] = -np.sort(-counts[:, 1:], axis=1)
        log_q = gaussian_log_q(counts, sigma)
        outside &= possible & np.where(rising, log_q < log_q1, log_q > log_q0)


def local_sensitivity_of_threshold(
    top: Int[np.ndarray, " queries"], teachers: int, threshold: float, sigma: float, order: float
) -> ByDistance:
    """The sum over queries of the threshold's local sensitivity, by distance: the largest change between neighbouring counts.

    Args:
        top: the plurality's count [queries].
        teachers: how many vote.
        threshold: T, in votes.
        sigma: σ₁, in votes.
        order: α.

    Returns:
        float64 [teachers + 1].
    """
    values = np.arange(-1, teachers + 2, dtype=np.float64)
    costs = threshold_rdp_given_votes(values, threshold, sigma, np.array([order]))[:, 0]
    changes = np.abs(np.diff(costs))
    at = np.maximum(changes[:-1], changes[1:])  # by count from 0 to `teachers`

    def largest(side: Float64[np.ndarray, " counts"]) -> Float64[np.ndarray, " distances"]:
        """Up to each distance from where a side begins; beyond its end there are no further counts."""
        return np.pad(np.maximum.accumulate(side), (0, teachers + 1 - len(side)), mode="edge")

    totals = np.zeros(teachers + 1)
    for count, queries in zip(*np.unique(top, return_counts=True), strict=True):
        totals += queries * np.maximum(largest(at[count::-1]), largest(at[count:]))
    return totals


def threshold_rdp_given_votes(
    top: PerQuery, threshold: float, sigma: float, orders: Float64[np.ndarray, " orders"]
) -> Float64[np.ndarray, "queries orders"]:
    """RDP of each threshold check, [queries, orders]: a noisy vote between yes and no, of one count of sensitivity 1."""
    return gaussian_rdp_given_votes(threshold_log_q(top, threshold, sigma), math.sqrt(2) * sigma, orders)


def region(sigma: float, classes: int, order: float) -> tuple[float, float]:
    r"""\(\ln q_0\), where the data-dependent bound stops being useful, and \(\ln q_1\), one vote before it."""
    log_q0 = log_q0_of(sigma, order)
    return log_q0, float(_one_vote_nearer(np.array([log_q0]), sigma, classes)[0])


@cache
def log_q0_of(sigma: float, order: float) -> float:
    r"""\(\ln q_0 = \min(\ln q^*, -\max((1 + 1/\sigma)^2, ((\alpha - 0.99)/\sigma)^2, 1/\sigma^2))\); the bound is α/σ² at q*."""
    from scipy.optimize import brentq

    above = lambda log_q: float(_bound(np.array([log_q]), sigma, order)[0]) - order / sigma**2
    limit = -max((1 + 1 / sigma) ** 2, ((order - 0.99) / sigma) ** 2, 1 / sigma**2)
    if above(limit) <= 0:
        return limit
    low = 2 * limit
    while above(low) > 0:
        low *= 2
    return float(brentq(above, low, limit, xtol=1e-14, rtol=1e-15))  # pyright: ignore[reportArgumentType]


@cache
def conditions(sigma: float, classes: int, order: float) -> tuple[bool, bool]:
    """C5 and C6 of the proof, on a grid: the bound grows with q up to q₀, and its step to one vote further grows up to q₁.

    References:
        Papernot et al., arXiv 1802.08908, appendix B.4.2.
    """
    log_q0, log_q1 = region(sigma, classes, order)

    def grows(function: Callable[[PerQuery], PerQuery], end: float) -> bool:
        values = function(-np.geomspace(max(_GRID_FROM, -2 * end), -end, _GRID))
        return bool(np.all(np.diff(values) >= -1e-12 * np.abs(values[1:])))

    bound = lambda log_q: _bound(log_q, sigma, order)
    step = lambda log_q: bound(_one_vote_further(log_q, sigma, classes)) - bound(log_q)
    first = grows(bound, log_q0)
    return first, first and grows(step, log_q1)


def _local(log_q: PerQuery, sigma: float, classes: int, order: float) -> PerQuery:
    """The most that the cost of a query changes by one vote."""
    here = cost_at_order(log_q, sigma, order)
    further = cost_at_order(_one_vote_further(log_q, sigma, classes), sigma, order)
    return np.maximum(further - here, here - cost_at_order(_one_vote_nearer(log_q, sigma, classes), sigma, order))


def cost_at_order(log_q: PerQuery, sigma: float, order: float) -> PerQuery:
    """The cost whose sensitivity is known, at one order: the bound below q₀, the data-independent α/σ² from there on."""
    log_q0 = log_q0_of(sigma, order)
    most = order / sigma**2
    return np.where(log_q < log_q0, np.minimum(_bound(np.minimum(log_q, log_q0), sigma, order), most), most)


def _one_vote_further(log_q: PerQuery, sigma: float, classes: int) -> PerQuery:
    r"""\(\ln B_U\): what q can become where one vote moves away from the winner."""
    return np.minimum(_moved(log_q, classes, -1 / sigma), 0)


def _one_vote_nearer(log_q: PerQuery, sigma: float, classes: int) -> PerQuery:
    r"""\(\ln B_L\): what q can become where one vote moves to the winner."""
    return _moved(log_q, classes, 1 / sigma)


def _moved(log_q: PerQuery, classes: int, by: float) -> PerQuery:
    r"""\(\ln \tfrac{m-1}{2} \mathrm{erfc}(\mathrm{erfcinv}(2q/(m-1)) + \text{by})\), by the logarithms of normal tails."""
    others = math.log(classes - 1)
    place = ndtri_exp(np.minimum(log_q - others, 0))
    return others + log_ndtr(place - math.sqrt(2) * by)


def _bound(log_q: PerQuery, sigma: float, order: float) -> PerQuery:
    """The data-dependent bound itself at one order."""
    return gaussian_bound(log_q, sigma, np.array([order]))[:, 0]
