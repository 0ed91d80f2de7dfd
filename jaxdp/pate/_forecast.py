"""A forecast before a private query is asked: how many answers, at what cost, for a mechanism and a sample of votes.

A forecast looks at the votes of its sample, so it is for public or synthetic votes, or for the eyes of those who hold the data.
"""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Int

from .. import _checks
from ..accounting._reach import delta_left
from ._analysis import convert, event_of, usual_orders
from ._votes import check_votes
from .aggregators import Aggregator, check_aggregator


@dataclass(frozen=True)
class Forecast:
    """The expected answers and cost of so many queries like those of the sample, as private as the sample.

    Attributes:
        asked: how many queries.
        answered: how many of them would be answered, on average.
        epsilon: the data-dependent ε that would come out, the votes of a query charged by its probability of being answered.
        delta: the δ of ε.
    """

    asked: int
    answered: float
    epsilon: float
    delta: float


def forecast(
    votes: Int[Any, "sample classes"], mechanism: Aggregator, *, queries: int, delta: float = 1e-5
) -> Forecast:
    """Expect answers and cost of `queries` queries whose votes are like those of a sample.

    The figures are as private as the votes: give public or synthetic ones, or keep what comes of them, a threshold chosen by them
    as well, to those who hold the data.

    Args:
        votes: counts [sample, classes].
        mechanism: one that asks no student, such as Laplace noise, GNMax or Confident-GNMax.
        queries: how many are to be asked.
        delta: the δ of (ε, δ).

    Returns:
        A `Forecast`.

    Raises:
        UsageError: for votes that aren't counts, Interactive-GNMax, whose student is not known beforehand, and what `analyze`
            would refuse: a threshold that no vote reaches, a delta of one over the teachers or more, noise too small for delta.
    """
    check_aggregator(mechanism)
    counts, asked = check_votes(votes), _checks.count("queries", queries, "give the number of queries to ask")
    teachers = int(counts[0].sum())
    _checks.delta(delta, teachers, of="teachers")
    mechanism.check_teachers(teachers)
    passing, orders = mechanism.answer_probability(counts), usual_orders()
    curves = mechanism.rdp_by_query(counts, orders, charged=passing, student_probs=None, classic=False)
    expected = curves.mean(axis=0) * asked
    answered = float(passing.mean() * asked)
    event = event_of(mechanism, asked=asked, answered=math.ceil(answered))
    left = delta_left(event, delta, "replace_special")
    return Forecast(asked, answered, convert(orders, expected, left).epsilon, delta)
