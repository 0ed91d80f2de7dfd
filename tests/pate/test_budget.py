"""Where asking stops: before the query that might overrun, by what is released and by data-independent costs alone."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import accounting, pate

MECHANISMS = (
    pate.LaplaceNoisyMax(gamma=0.05),
    pate.GaussianNoisyMax(sigma=40.0),
    pate.ConfidentNoisyMax(threshold=200.0, sigma_threshold=150.0, sigma_max=40.0),
)


def spent(mechanism: Any, asked: int, answered: int) -> float:
    event = pate.event_of(mechanism, asked=asked, answered=answered)
    return accounting.event_epsilon(event, delta=1e-5).epsilon


@settings(max_examples=6, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    epsilon=st.sampled_from([0.5, 1.0, 3.0]),
    part=st.sampled_from([0.0, 0.6, 1.0]),
)
@pytest.mark.slow
def test_the_budget_is_kept_and_nearly_used_up(mechanism: Any, epsilon: float, part: float) -> None:
    answered = np.random.default_rng(0).random(4000) < (part if isinstance(mechanism, pate.ConfidentNoisyMax) else 1.0)
    asked = pate.within_budget(answered, mechanism, epsilon=epsilon)
    assert spent(mechanism, asked, int(answered[:asked].sum())) <= epsilon
    if asked < len(answered):
        assert spent(mechanism, asked + 3, int(answered[: asked + 3].sum()) + 8) > epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta", "queries"), [(20.385, 1e-8, 1), (546.375, 1e-6, 100)])
def test_what_the_noises_end_takes_of_delta_is_no_part_of_the_budget(
    epsilon: float, delta: float, queries: int
) -> None:
    mechanism = pate.GaussianNoisyMax(sigma=0.5)
    asked = pate.within_budget(np.ones(queries, bool), mechanism, epsilon=epsilon, delta=delta)
    votes = np.tile([[6, 4]], (asked, 1))
    report = pate.analyze(votes, mechanism, delta=delta)
    assert 0 < report.data_independent.epsilon <= epsilon
    assert report.epsilon_by_query[-1] == pytest.approx(report.data_dependent.epsilon)


@pytest.mark.slow
def test_where_asking_stops_does_not_depend_on_what_comes_after() -> None:
    answered = np.random.default_rng(1).random(2000) < 0.6
    asked = pate.within_budget(answered, MECHANISMS[2], epsilon=1.0)
    later = answered.copy()
    later[asked:] = ~later[asked:]
    assert pate.within_budget(later, MECHANISMS[2], epsilon=1.0) == asked


def test_a_cap_on_answers_stops_at_the_cap() -> None:
    answered = np.array([True, False, True, False, False, True, True])
    assert pate.within_budget(answered, MECHANISMS[2], most_answers=2) == 3
    assert pate.within_budget(answered, MECHANISMS[2], most_answers=9) == 7
    assert pate.within_budget(answered, MECHANISMS[2]) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epsilon": 0.01}, "doesn't pay for one answer"),
        ({"epsilon": -1.0}, "epsilon=-1.0 must be above 0"),
        ({"most_answers": 0}, "most_answers=0 must be above 0"),
    ],
)
def test_a_budget_that_allows_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        pate.within_budget(np.ones(5, bool), MECHANISMS[1], **given)


@pytest.mark.parametrize("given", [{}, {"epsilon": 9.0}, {"most_answers": 5}])
def test_noise_too_small_for_delta_is_refused_with_a_budget_or_without(given: dict[str, Any]) -> None:
    with pytest.raises(jaxdp.UsageError, match=r"delta=1e-05 can't be kept.*of PATE, a larger sigma or gamma"):
        pate.within_budget(np.ones(9, bool), pate.GaussianNoisyMax(sigma=0.2), **given)
