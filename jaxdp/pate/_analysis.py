"""The cost of labelling: three numbers, each under its own name.

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
from ..accounting._epsilon import no_smaller
from ..accounting._reach import delta_left
from ._aggregation import check_student
from ._bounds import LEAST_CONVERTED, Orders
from ._sanitise import CostAtOrder, Sanitiser, smooth_sensitivity
from ._votes import check_votes
from .aggregators import Aggregator, check_aggregator

if TYPE_CHECKING:
    from dp_accounting import DpEvent

CONVERSIONS = ("tight", "classic")
_LEAST_ABOVE = 1e-6  # of an order above 1: what is divided by less is rounding, or has become zero


@dataclass(frozen=True)
class Report:
    """The costs that `analyze` found.

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

    mechanism: Aggregator
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
    def data_independent_pld(self) -> accounting.Spent | None:
        """The data-independent ε by privacy loss distributions, which is tighter; None where that takes more than seconds, as for
        262,145 answers under Laplace noise. Safe to publish.
        """
        try:
            return accounting.event_epsilon(self.event, delta=self.delta, accountant="pld")
        except accounting.TooLargeError:
            return None

    @property
    def epsilon_by_query(self) -> Float64[np.ndarray, " queries"]:
        """The data-dependent ε after each query, [queries]. Private."""
        return epsilon_after(self, np.arange(1, self.asked + 1))

    @property
    def cost_by_query(self) -> Float64[np.ndarray, " queries"]:
        """Each query's data-dependent RDP at the order that is best for the total, [queries]. Private."""
        return self.rdp[:, int(np.argmin(np.abs(self.orders - (self.data_dependent.order or 0))))]

    def ledger(self, *, nonce: str | None = None) -> accounting.Ledger:
        """The data-independent cost as a ledger: every query asked, every answer given.

        It holds where a record is exchanged, or blanked in its place: that moves one teacher's vote on each query. It pays for
        the labels alone: who publishes the sanitised ε as well has spent that, and no ledger can hold it.
        `nonce`, if given, names the noise: no ledger takes one twice.
        """
        label = f"PATE, {self.answered:,} answers to {self.asked:,} queries"
        return accounting.Ledger(adjacency="replace_special").add(self.event, label, nonce=nonce)

    def in_words(self) -> str:
        """The three figures, and which of them may be published."""
        counted = ""
        if self.answered < self.asked:
            counted = (
                " It counts the answers that there were, a number that came out of the votes: what might have come out, a budget "
                "set before bounds (jaxdp.pate.within_budget)."
            )
        pld = self.data_independent_pld
        lines = [
            f"{self.answered:,} of {self.asked:,} queries answered, δ = {no_smaller(self.delta)}.",
            f"Data-independent: ε = {accounting.rounded_up(self.data_independent.epsilon)} (RDP)"
            f"{'' if pld is None else f', {accounting.rounded_up(pld.epsilon)} (PLD)'}. Safe to publish.{counted}",
            f"Data-dependent: ε = {accounting.rounded_up(self.data_dependent.epsilon)}. Private: it tells how much the teachers "
            "agreed.",
            f"All of it holds where one record decides no more than one of the {self.teachers:,} teachers' votes on each query.",
        ]
        if self.sanitised is not None:
            lines.append(
                f"Sanitised: ε = {accounting.rounded_up(self.sanitised.epsilon)}. Safe to publish: it covers labels and itself, "
                "where the data-independent ones, and the ledger, cover labels alone: once it is published, they don't hold."
            )
        return "\n".join(lines)


def analyze(
    votes: Int[Any, "queries classes"],
    mechanism: Aggregator,
    *,
    delta: float = 1e-5,
    answered: Bool[Any, " queries"] | None = None,
    student_probs: Any = None,
    orders: Any = None,
    conversion: str = "tight",
    sanitiser: Sanitiser | None = None,
    rng: np.random.Generator | None = None,
) -> Report:
    """Analyse what labelling these queries cost.

    Args:
        votes: counts [queries, classes] of all queries that were asked.
        mechanism: what they were aggregated by.
        delta: the δ of (ε, δ), below 1 over the number of teachers, and to mean anything well below that of records.
        answered: bool [queries], which the teachers' votes answered: `Labels.answered`. For those that leave some unanswered.
        student_probs: the student's probabilities [queries, classes], for an aggregator that asks one.
        orders: Rényi orders above 1, by 1e-6 or more; by default dp-accounting's.
        conversion: from RDP to (ε, δ): "tight", dp-accounting's; or "classic", the papers', with the papers' Laplace bound.
        sanitiser: how to make the data-dependent cost fit for publication; for mechanisms with Gaussian noise.
        rng: the sanitiser's randomness; by default the operating system's entropy.

    Returns:
        A `Report`.

    Raises:
        UsageError: for votes that aren't counts, a missing or superfluous `answered`, orders that aren't above 1, a threshold
            above the number of teachers, a delta not below 1 over it, or a sanitiser whose conditions fail.

    Examples:
        >>> import numpy as np, jaxdp
        >>> votes = np.array([[96, 4], [55, 45]] * 20)
        >>> report = jaxdp.pate.analyze(votes, jaxdp.pate.GaussianNoisyMax(sigma=20.0), delta=1e-5)
        >>> f"{report.data_independent.epsilon:.2f} {report.data_dependent.epsilon:.2f}"
        '1.91 1.34'

    References:
        Papernot et al., arXiv 1610.05755 and arXiv 1802.08908.
    """
    _checks.one_of("conversion", conversion, CONVERSIONS)
    counts = check_votes(votes)
    teachers = int(counts[0].sum())
    _checks.delta(delta, teachers, of="teachers")
    check_aggregator(mechanism)
    mechanism.check_teachers(teachers)
    alphas = _check_orders(orders, conversion)
    was_answered = _check_answered(answered, mechanism, len(counts))
    student = check_student(student_probs, counts) if mechanism.asks_student else None
    number = {"asked": len(counts), "answered": int(was_answered.sum())}
    classic = conversion == "classic"
    curves = mechanism.rdp_by_query(counts, alphas, charged=was_answered, student_probs=student, classic=classic)
    event = event_of(mechanism, **number)
    left = delta_left(event, delta, "replace_special")  # of a delta from which the noise's end takes a part
    own = mechanism.classic_rdp(alphas, asked=len(counts)) if classic else None
    independent = convert(alphas, rdp_of(event, alphas) if own is None else own, left, conversion)
    sanitised = None
    if rng is not None:
        _checks.generator("rng", rng)
    if sanitiser is not None:
        _checks.instance("sanitiser", sanitiser, Sanitiser, "give a jaxdp.pate.Sanitiser")
        generator = np.random.default_rng() if rng is None else rng
        _check_failure(sanitiser, left)
        cost = mechanism.cost_at_order(counts, was_answered, sanitiser.order)
        if cost is None:
            raise UsageError(
                f"no smooth sensitivity is known for {type(mechanism).__name__}: publish its data-independent epsilon, or use "
                "GaussianNoisyMax or ConfidentNoisyMax"
            )
        sanitised = _sanitised(cost, sanitiser, left, conversion, generator)
    return Report(
        mechanism=mechanism,
        teachers=teachers,
        **number,
        delta=delta,
        data_independent=replace(independent, delta=delta),
        data_dependent=replace(convert(alphas, curves.sum(axis=0), left, conversion), delta=delta),
        sanitised=sanitised and replace(sanitised, delta=delta),
        orders=alphas,
        rdp=curves,
        event=event,
        conversion=conversion,
    )


def event_of(mechanism: Aggregator, *, asked: int, answered: int) -> "DpEvent":
    """The dp-accounting event of so many queries: what the data-independent figure, and a ledger, are made of.

    Args:
        mechanism: what they are aggregated by.
        asked: how many queries were put to the teachers.
        answered: how many of them the teachers' votes answered; more than that only cost more.

    Returns:
        The event, under dp-accounting's adjacency "replace_special": one record moves one teacher's vote on each query.

    Raises:
        UsageError: for what is no aggregator, and numbers that aren't whole or below 0.
    """
    check_aggregator(mechanism)
    asked = _checks.whole("asked", asked, "give how many queries were asked")
    answered = _checks.whole("answered", answered, "give how many of them were answered")
    return mechanism.event(asked=asked, answered=answered)


def rdp_of(event: "DpEvent", orders: Orders) -> Orders:
    """dp-accounting's RDP of an event, [orders]."""
    from dp_accounting.rdp import RdpAccountant

    return np.asarray(RdpAccountant(orders.tolist()).compose(event).rdp)


def convert(orders: Orders, rdp: Orders, delta: float, conversion: str = "tight") -> accounting.Spent:
    """(ε, δ) of an RDP curve: by dp-accounting, or as the papers did, ε = ρ(α) + ln(1/δ)/(α - 1)."""
    if conversion == "classic":
        epsilons = rdp + math.log(1 / delta) / (orders - 1)
        best = int(np.argmin(epsilons))
        return accounting.Spent(float(epsilons[best]), delta, "classic", float(orders[best]))
    from dp_accounting.rdp import compute_epsilon

    epsilon, order = compute_epsilon(orders.tolist(), rdp.tolist(), delta)
    return accounting.Spent(float(epsilon), delta, "rdp", float(order))


def epsilon_after(report: Report, queries: Int[np.ndarray, " points"]) -> Float64[np.ndarray, " points"]:
    """The data-dependent ε after so many of a report's queries, 1 to all of them, each."""
    totals = np.cumsum(report.rdp, axis=0)
    left = delta_left(report.event, report.delta, "replace_special")
    return np.array([convert(report.orders, totals[k - 1], left, report.conversion).epsilon for k in queries])


def usual_orders() -> Orders:
    """dp-accounting's orders, as float64."""
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return np.array(DEFAULT_RDP_ORDERS, np.float64)


def _check_orders(orders: Any, conversion: str) -> Orders:
    if orders is None:
        return usual_orders()
    given = _checks.array("orders", orders, "give Rényi orders such as [2, 4, 8, 16]")
    if not _checks.is_real(given):
        raise UsageError(f"orders are {given.dtype}: give Rényi orders such as [2, 4, 8, 16]")
    alphas = np.atleast_1d(np.asarray(given, np.float64))
    if alphas.ndim != 1 or alphas.size == 0 or not np.all(np.isfinite(alphas)) or np.any(alphas < 1 + _LEAST_ABOVE):
        raise UsageError(
            f"orders={orders!r} must be finite and above 1, by {_LEAST_ABOVE:g} or more: give Rényi orders such as [2, 4, 8, 16]"
        )
    if conversion == "tight" and alphas.max() <= LEAST_CONVERTED:
        raise UsageError(
            f"orders={orders!r}: dp-accounting converts no order up to {LEAST_CONVERTED} to an epsilon; give a larger one beside"
        )
    return alphas


def _check_answered(answered: Any, mechanism: Aggregator, queries: int) -> Bool[np.ndarray, " queries"]:
    if mechanism.answers_all:
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


def _check_failure(sanitiser: Sanitiser, delta: float) -> None:
    if sanitiser.failure >= delta:
        raise UsageError(
            f"the sanitiser's failure={sanitiser.failure:g} must be below delta={delta:g}, from which it is taken"
        )


def _sanitised(
    cost: CostAtOrder, sanitiser: Sanitiser, delta: float, conversion: str, rng: np.random.Generator
) -> accounting.Spent:
    published = sanitiser.publish(cost.total, smooth_sensitivity(cost.local_sensitivities, sanitiser.beta), rng)
    rdp = np.array([min(published, cost.most) + sanitiser.rdp])
    return convert(np.array([sanitiser.order]), rdp, delta - sanitiser.failure, conversion)
