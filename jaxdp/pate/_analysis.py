"""What labelling cost: three numbers, each under its own name.

- data-independent: from the mechanism alone, by dp-accounting's events. Safe to publish.
- data-dependent: from the votes, far less where the teachers agreed. It says how much they agreed, so it must stay private.
- sanitised: the data-dependent one, hidden by noise scaled to its smooth sensitivity. Safe to publish.

Threshold checks are charged for every query asked, votes for every query answered. Neighbouring data sets differ in one
record, so in one teacher, so in one vote.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from .. import _checks, accounting
from .._errors import UsageError
from ..accounting._reach import delta_left
from ._aggregation import check_student
from ._bounds import (
    Curves,
    Orders,
    gaussian_log_q,
    gaussian_rdp,
    gaussian_rdp_given_votes,
    laplace_log_q,
    laplace_rdp,
    laplace_rdp_given_votes,
)
from ._mechanisms import (
    ConfidentNoisyMax,
    GaussianNoisyMax,
    InteractiveNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    check_mechanism,
    check_threshold_against,
)
from ._sanitise import (
    Sanitiser,
    cost_at_order,
    local_sensitivity_of_threshold,
    local_sensitivity_of_votes,
    smooth_sensitivity,
    threshold_rdp_given_votes,
)
from ._votes import check_votes

if TYPE_CHECKING:
    from dp_accounting import DpEvent

CONVERSIONS = ("tight", "classic")


@dataclass(frozen=True)
class Report:
    """What `analyze` found.

    Attributes:
        mechanism: what was analysed.
        teachers: how many vote.
        asked: how many queries.
        answered: how many of them the teachers' votes answered.
        delta: the δ of all figures.
        data_independent: ε from the mechanism alone, by RDP. Safe to publish.
        data_dependent: ε from the votes. Private: publishing it tells how much the teachers agreed.
        sanitised: ε from the votes with noise; safe to publish, δ included. None where none was asked for.
        orders: the Rényi orders, float64 [orders].
        rdp: the data-dependent RDP of each query, float64 [queries, orders]. Private.
        event: the dp-accounting event behind the data-independent figure.
    """

    mechanism: Mechanism
    teachers: int
    asked: int
    answered: int
    delta: float
    data_independent: accounting.Spent
    data_dependent: accounting.Spent
    sanitised: accounting.Spent | None
    orders: Float64[np.ndarray, " orders"]
    rdp: Float64[np.ndarray, "queries orders"]
    event: "DpEvent"
    conversion: str = "tight"

    @cached_property
    def data_independent_pld(self) -> accounting.Spent:
        """The data-independent ε by privacy loss distributions, which is tighter. Safe to publish."""
        return accounting.event_epsilon(self.event, delta=self.delta, accountant="pld")

    @property
    def epsilon_by_query(self) -> Float64[np.ndarray, " queries"]:
        """The data-dependent ε after each query, [queries]. Private."""
        totals = np.cumsum(self.rdp, axis=0)
        left = delta_left(self.event, self.delta, "replace_special")
        return np.array([convert(self.orders, total, left, self.conversion).epsilon for total in totals])

    @property
    def cost_by_query(self) -> Float64[np.ndarray, " queries"]:
        """Each query's data-dependent RDP at the order that is best for the total, [queries]. Private."""
        return self.rdp[:, int(np.argmin(np.abs(self.orders - (self.data_dependent.order or 0))))]

    def ledger(self, *, nonce: str | None = None) -> accounting.Ledger:
        """The data-independent cost as a ledger: every query asked, every answer given.

        It holds where a record is exchanged, or blanked in its place: that moves one teacher's vote on each query.
        `nonce`, if given, names the noise: no ledger takes one twice.
        """
        label = f"PATE, {self.answered:,} answers to {self.asked:,} queries"
        return accounting.Ledger(adjacency="replace_special").add(self.event, label, nonce=nonce)

    def in_words(self) -> str:
        """The three figures, and which of them may be published."""
        lines = [
            f"{self.answered:,} of {self.asked:,} queries answered, δ = {self.delta:g}.",
            f"Data-independent: ε = {accounting.rounded_up(self.data_independent.epsilon)} (RDP), "
            f"{accounting.rounded_up(self.data_independent_pld.epsilon)} (PLD). Safe to publish.",
            f"Data-dependent: ε = {accounting.rounded_up(self.data_dependent.epsilon)}. Private: it tells how much the teachers "
            "agreed.",
        ]
        if self.sanitised is not None:
            lines.append(
                f"Sanitised: ε = {accounting.rounded_up(self.sanitised.epsilon)}. Safe to publish: it covers labels and itself, "
                "where the data-independent ones cover labels alone."
            )
        return "\n".join(lines)


def analyze(
    votes: Int[Any, "queries classes"],
    mechanism: Mechanism,
    *,
    delta: float = 1e-5,
    answered: Bool[Any, " queries"] | None = None,
    student_probs: Any = None,
    orders: Any = None,
    conversion: str = "tight",
    sanitiser: Sanitiser | None = None,
    rng: np.random.Generator | None = None,
) -> Report:
    """What labelling these queries cost.

    Args:
        votes: counts [queries, classes] of all queries that were asked.
        mechanism: what they were aggregated by.
        delta: the δ of (ε, δ), in (0, 1).
        answered: bool [queries], which the teachers' votes answered: `Labels.answered`. For mechanisms with a threshold.
        student_probs: the student's probabilities [queries, classes], for Interactive-GNMax.
        orders: Rényi orders above 1; by default dp-accounting's.
        conversion: from RDP to (ε, δ): "tight", dp-accounting's; or "classic", the papers', with the papers' Laplace bound.
        sanitiser: how to make the data-dependent cost fit for publication; for mechanisms with Gaussian noise.
        rng: the sanitiser's randomness; by default the operating system's entropy.

    Returns:
        A `Report`.

    Raises:
        UsageError: for votes that aren't counts, a missing or superfluous `answered`, orders of 1 or below, a threshold above the
            number of teachers, or a sanitiser whose conditions fail.

    Example:
        >>> import numpy as np, jaxdp
        >>> votes = np.array([[96, 4], [55, 45]] * 20)
        >>> report = jaxdp.pate.analyze(votes, jaxdp.pate.GaussianNoisyMax(sigma=20.0), delta=1e-5)
        >>> f"{report.data_independent.epsilon:.2f} {report.data_dependent.epsilon:.2f}"
        '1.91 1.34'

    References:
        Papernot et al., arXiv 1610.05755 and arXiv 1802.08908.
    """
    _checks.delta(delta)
    _checks.one_of("conversion", conversion, CONVERSIONS)
    counts = check_votes(votes)
    teachers = int(counts[0].sum())
    check_threshold_against(mechanism, teachers)
    alphas = _check_orders(orders)
    was_answered = _check_answered(answered, mechanism, len(counts))
    top = _thresholded(counts, mechanism, student_probs)
    curves = rdp_by_query(counts, top, was_answered, mechanism, alphas, classic=conversion == "classic")
    event = event_of(mechanism, asked=len(counts), answered=int(was_answered.sum()))
    left = delta_left(event, delta, "replace_special")  # of a delta from which the noise's end takes a part
    independent = _independent(mechanism, event, len(counts), alphas, left, conversion)
    sanitised = None
    if rng is not None:
        _checks.generator("rng", rng)
    if sanitiser is not None:
        _checks.instance("sanitiser", sanitiser, Sanitiser, "give a jaxdp.pate.Sanitiser")
        generator = np.random.default_rng() if rng is None else rng
        sanitised = _sanitised(counts, top, was_answered, mechanism, sanitiser, left, conversion, generator)
    return Report(
        mechanism=mechanism,
        teachers=teachers,
        asked=len(counts),
        answered=int(was_answered.sum()),
        delta=delta,
        data_independent=replace(independent, delta=delta),
        data_dependent=replace(convert(alphas, curves.sum(axis=0), left, conversion), delta=delta),
        sanitised=sanitised and replace(sanitised, delta=delta),
        orders=alphas,
        rdp=curves,
        event=event,
        conversion=conversion,
    )


def event_of(mechanism: Mechanism, *, asked: int, answered: int) -> "DpEvent":
    """The dp-accounting event of so many queries: what the data-independent figure, and a ledger, are made of.

    A vote that moves changes two counts by one each: Laplace noise is twice a Laplace mechanism of scale 1/γ, Gaussian noise one
    Gaussian mechanism of sensitivity √2. It changes the plurality's count by at most one.
    """
    import dp_accounting as dp

    check_mechanism(mechanism)
    asked = _checks.whole("asked", asked, "give how many queries were asked")
    answered = _checks.whole("answered", answered, "give how many of them were answered")
    if isinstance(mechanism, LaplaceNoisyMax):
        return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / mechanism.gamma), 2 * asked) if asked else dp.NoOpDpEvent()
    if isinstance(mechanism, GaussianNoisyMax):
        return accounting.gaussian_event(noise_multiplier=mechanism.sigma / math.sqrt(2), times=asked)
    votes = accounting.gaussian_event(noise_multiplier=mechanism.sigma_max / math.sqrt(2), times=answered)
    return dp.ComposedDpEvent(
        [accounting.gaussian_event(noise_multiplier=mechanism.sigma_threshold, times=asked), votes]
    )


def convert(orders: Orders, rdp: Orders, delta: float, conversion: str = "tight") -> accounting.Spent:
    """(ε, δ) of an RDP curve: by dp-accounting, or as the papers did, ε = ρ(α) + ln(1/δ)/(α - 1)."""
    if conversion == "classic":
        epsilons = rdp + math.log(1 / delta) / (orders - 1)
        best = int(np.argmin(epsilons))
        return accounting.Spent(float(epsilons[best]), delta, "classic", float(orders[best]))
    from dp_accounting.rdp import compute_epsilon

    epsilon, order = compute_epsilon(orders.tolist(), rdp.tolist(), delta)
    return accounting.Spent(float(epsilon), delta, "rdp", float(order))


def usual_orders() -> Orders:
    """dp-accounting's orders, as float64."""
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return np.array(DEFAULT_RDP_ORDERS, np.float64)


def _check_orders(orders: Any) -> Orders:
    if orders is None:
        return usual_orders()
    given = _checks.array("orders", orders, "give Rényi orders such as [2, 4, 8, 16]")
    if not _checks.is_real(given):
        raise UsageError(f"orders are {given.dtype}: give Rényi orders such as [2, 4, 8, 16]")
    alphas = np.atleast_1d(np.asarray(given, np.float64))
    if alphas.ndim != 1 or alphas.size == 0 or not np.all(np.isfinite(alphas)) or np.any(alphas <= 1):
        raise UsageError(f"orders={orders!r} must be finite and above 1: give Rényi orders such as [2, 4, 8, 16]")
    return alphas


def _check_answered(answered: Any, mechanism: Mechanism, queries: int) -> Bool[np.ndarray, " queries"]:
    has_threshold = isinstance(mechanism, ConfidentNoisyMax | InteractiveNoisyMax)
    if not has_threshold:
        if answered is not None:
            raise UsageError(f"answered is given, and {type(mechanism).__name__} answers every query: leave it out")
        return np.ones(queries, bool)
    if answered is None:
        raise UsageError(
            f"answered is missing: {type(mechanism).__name__} charges the votes of every query that was answered; give "
            "labels.answered, or ask jaxdp.pate.forecast what to expect"
        )
    mask = np.asarray(_checks.array("answered", answered, f"give bool [{queries}]"))
    if mask.shape != (queries,) or mask.dtype != np.bool_:
        raise UsageError(f"answered has shape {mask.shape} and dtype {mask.dtype}: give bool [{queries}]")
    return mask


def _thresholded(votes: np.ndarray, mechanism: Mechanism, student_probs: Any) -> Float64[np.ndarray, " queries"]:
    """The count that is held against the threshold."""
    if not isinstance(mechanism, InteractiveNoisyMax):
        return votes.max(axis=1).astype(np.float64)
    student = check_student(student_probs, votes).astype(np.float64)
    return (votes - votes.sum(axis=1, keepdims=True) * student).max(axis=1)


def rdp_by_query(
    votes: np.ndarray, top: Any, charged: np.ndarray, mechanism: Mechanism, orders: Orders, *, classic: bool = False
) -> Curves:
    """The data-dependent RDP of each query, [queries, orders].

    Behind a threshold, the votes of a query are charged as far as `charged` says, [queries]: whether they were released, or
    with which probability they would be.
    """
    if isinstance(mechanism, LaplaceNoisyMax):
        return laplace_rdp_given_votes(laplace_log_q(votes, mechanism.gamma), mechanism.gamma, orders, classic=classic)
    if isinstance(mechanism, GaussianNoisyMax):
        return gaussian_rdp_given_votes(gaussian_log_q(votes, mechanism.sigma), mechanism.sigma, orders)
    checks = threshold_rdp_given_votes(top, mechanism.threshold, mechanism.sigma_threshold, orders)
    winners = gaussian_rdp_given_votes(gaussian_log_q(votes, mechanism.sigma_max), mechanism.sigma_max, orders)
    return checks + charged[:, None] * winners


def _independent(
    mechanism: Mechanism, event: "DpEvent", asked: int, orders: Orders, delta: float, conversion: str
) -> accounting.Spent:
    from dp_accounting.rdp import RdpAccountant

    if conversion == "classic" and isinstance(mechanism, LaplaceNoisyMax):
        return convert(orders, asked * laplace_rdp(mechanism.gamma, orders, classic=True), delta, conversion)
    return convert(orders, RdpAccountant(orders.tolist()).compose(event).rdp, delta, conversion)


def _sanitised(
    votes: np.ndarray,
    top: Any,
    answered: np.ndarray,
    mechanism: Mechanism,
    sanitiser: Sanitiser,
    delta: float,
    conversion: str,
    rng: np.random.Generator,
) -> accounting.Spent:
    if isinstance(mechanism, LaplaceNoisyMax | InteractiveNoisyMax):
        raise UsageError(
            f"no smooth sensitivity is known for {type(mechanism).__name__}: publish its data-independent epsilon, or use "
            "GaussianNoisyMax or ConfidentNoisyMax"
        )
    if sanitiser.failure >= delta:
        raise UsageError(
            f"the sanitiser's failure={sanitiser.failure:g} must be below delta={delta:g}, from which it is taken"
        )
    order = np.array([sanitiser.order])
    sigma = mechanism.sigma if isinstance(mechanism, GaussianNoisyMax) else mechanism.sigma_max
    total, parts = 0.0, []
    if answered.any():
        total += float(cost_at_order(gaussian_log_q(votes[answered], sigma), sigma, sanitiser.order).sum())
        parts.append(local_sensitivity_of_votes(votes[answered], sigma, sanitiser.order))
    if isinstance(mechanism, ConfidentNoisyMax):
        checks = threshold_rdp_given_votes(top, mechanism.threshold, mechanism.sigma_threshold, order)
        total += float(checks.sum())
        teachers = int(votes[0].sum())
        plurality = votes.max(axis=1)
        of_checks = local_sensitivity_of_threshold(
            plurality, teachers, mechanism.threshold, mechanism.sigma_threshold, sanitiser.order
        )
        parts.append(of_checks)
    longest = max(len(part) for part in parts)
    by_distance = np.sum([np.pad(part, (0, longest - len(part)), mode="edge") for part in parts], axis=0)
    published = sanitiser.publish(total, smooth_sensitivity(by_distance, sanitiser.beta), rng)
    most = float(gaussian_rdp(sigma, order)[0]) * int(answered.sum())
    if isinstance(mechanism, ConfidentNoisyMax):
        most += len(votes) * sanitiser.order / (2 * mechanism.sigma_threshold**2)
    return convert(order, np.array([min(published, most) + sanitiser.rdp]), delta - sanitiser.failure, conversion)
