"""Stopping in time: how many queries a budget and a preset cap allow.

A rule that stops on the data-dependent cost leaks, by when it stops, how much the teachers agreed. Here the rule looks only at
what is released anyway, which queries were answered, and at data-independent costs, at one Rényi order that is fixed
beforehand: a Rényi filter (Feldman and Zrnic, arXiv 2008.11193), whose total holds though the queries adapt to the answers.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool

from .. import _checks
from .._errors import UsageError
from ..accounting._reach import delta_left
from ._analysis import convert, event_of, rdp_of, usual_orders
from .aggregators import Aggregator, check_aggregator


def within_budget(
    answered: Bool[Any, " queries"],
    mechanism: Aggregator,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    most_answers: int | None = None,
) -> int:
    """How many of the queries, in their order, may be asked: the next might overrun the budget or the cap.

    Args:
        answered: bool [queries], which would be answered: `Labels.answered`.
        mechanism: what they are aggregated by.
        epsilon: the budget, for the data-independent ε; none by default.
        delta: the δ of the budget.
        most_answers: a cap on answers, set beforehand; none by default.

    Returns:
        From 0 to the number of queries; what comes after must be thrown away unseen.

    Raises:
        UsageError: for a budget that doesn't pay for one answer, noise too small for delta, with a budget or without, and numbers
            out of range.

    Examples:
        >>> import numpy as np, jaxdp
        >>> mechanism = jaxdp.pate.GaussianNoisyMax(sigma=40.0)
        >>> within_budget(np.ones(1000, bool), mechanism, epsilon=2.0)
        173

    References:
        Feldman and Zrnic, arXiv 2008.11193: Rényi filters.
    """
    check_aggregator(mechanism)
    flags = np.asarray(_checks.array("answered", answered, "give bool [queries]"))
    if flags.ndim != 1 or flags.dtype != np.bool_:
        raise UsageError(
            f"answered has shape {flags.shape} and dtype {flags.dtype}: give bool [queries], as Labels.answered"
        )
    before = np.concatenate([[0], np.cumsum(flags)])[: len(flags)]  # answers when a query is about to be asked
    allowed, most = np.ones(len(flags), bool), len(flags)
    if most_answers is not None:
        cap = _checks.count("most_answers", most_answers, "give a cap on the answers")
        allowed &= before < cap
        most = min(cap, most)
    _checks.delta(delta)
    asked_at_most = most if mechanism.answers_all else len(flags)
    left = delta_left(event_of(mechanism, asked=asked_at_most, answered=most), delta, "replace_special")
    if epsilon is not None:
        _checks.positive("epsilon", epsilon, "give a privacy budget such as 2.0")
        room, of_query, of_answer = _at_best_order(mechanism, epsilon, left)
        asked = np.arange(len(flags)) + 1
        allowed &= asked * of_query + (before + 1) * of_answer <= room
        if not allowed[:1].all():
            raise UsageError(
                f"epsilon={epsilon:g} at delta={delta:g} doesn't pay for one answer: give a larger budget, or more noise"
            )
    return int(np.argmin(allowed)) if not allowed.all() else len(flags)


def _at_best_order(mechanism: Aggregator, epsilon: float, delta: float) -> tuple[float, float, float]:
    """(the RDP that the budget is worth, RDP of a query, RDP that an answer adds), at the order that allows most answers."""
    orders = usual_orders()
    of_query = rdp_of(event_of(mechanism, asked=1, answered=0), orders)
    of_answer = rdp_of(event_of(mechanism, asked=1, answered=1), orders) - of_query
    room = np.array([_room(order, epsilon, delta) for order in orders])
    best = int(np.argmax(room / (of_query + of_answer)))
    return float(room[best]), float(of_query[best]), float(of_answer[best])


def _room(order: float, epsilon: float, delta: float) -> float:
    """The largest RDP at this order that converts to at most ε; below 0 where none does."""
    spent = lambda rdp: convert(np.array([order]), np.array([rdp]), delta).epsilon
    low, high = 0.0, epsilon + 1.0
    if spent(low) > epsilon:
        return -1.0
    while spent(high) <= epsilon:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) <= epsilon else (low, middle)
    return low
