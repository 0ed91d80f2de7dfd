"""The bound from Gaussian scores: seldom above what two Gaussians have, near it where they are many, and refused elsewhere."""

import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.special import ndtr

import jaxdp
from jaxdp import audit
from jaxdp.audit._canaries import canaries

DELTA = 1e-5


def gaussians(
    canaries: int, shift: float, scale: float = 1.0, *, seed: int, offset: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    members = rng.random(canaries) < 0.5
    return offset + scale * (rng.normal(size=canaries) + shift * members), members


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("number", [100, 2000])
def test_at_95_percent_it_is_above_the_true_epsilon_at_most_one_time_in_twenty(number: int, shift: float) -> None:
    """Seeds are fixed: of 200 bounds at most 17 are above, which 5 % exceed with a probability of 1 in 50."""
    true = get_epsilon_gaussian(1 / shift, DELTA) if shift else 0.0
    found = [audit.epsilon_one_run_gaussian(*gaussians(number, shift, seed=seed), delta=DELTA) for seed in range(200)]
    assert np.sum(np.array(found) > true) <= 17


def test_with_many_canaries_it_comes_near_the_true_epsilon_where_guesses_cant() -> None:
    scores, members = gaussians(20_000, 4.0, seed=0)
    true, found = get_epsilon_gaussian(0.25, DELTA), audit.epsilon_one_run_gaussian(scores, members, delta=DELTA)
    assert 0.9 * true < found < true
    assert audit.epsilon_one_run_f_dp(scores, members, delta=DELTA) < 0.5 * true


def test_it_depends_on_no_unit_and_sees_a_difference_of_variance() -> None:
    scores, members = gaussians(2000, 1.0, seed=1)
    bound = audit.epsilon_one_run_gaussian(scores, members, delta=DELTA)
    assert audit.epsilon_one_run_gaussian(7 * scores - 100, members, delta=DELTA) == pytest.approx(bound, rel=1e-9)
    for unit in (1e-200, 1e300):
        assert audit.epsilon_one_run_gaussian(unit * scores, members, delta=DELTA) == pytest.approx(bound, rel=1e-9)
    wider = np.where(members, 2 * scores, scores)
    assert audit.epsilon_one_run_gaussian(wider, members, delta=DELTA) > bound


def test_the_bound_contradicts_the_claim_it_says_it_does() -> None:
    """By hand: at the bound, some threshold's probabilities, at the estimates' worst, are those that (ε, δ) forbids."""
    scores, members = gaussians(5000, 2.0, seed=2)
    bound = audit.epsilon_one_run_gaussian(scores, members, delta=DELTA)
    inside, outside = canaries(scores, members).of_members, canaries(scores, members).of_others
    best = -math.inf
    for place in np.linspace(-10, 12, 4000):
        more = ndtr((np.mean(inside) - place) / np.std(inside)) - DELTA
        less = ndtr((np.mean(outside) - place) / np.std(outside))
        best = max(best, math.log(more / less)) if more > 0 and less > 0 else best
    assert 0.7 * best < bound < best


@pytest.mark.parametrize("delta", [0.0, 1e-9, 0.1])
def test_it_falls_where_delta_rises(delta: float) -> None:
    scores, members = gaussians(500, 1.0, seed=3)
    assert audit.epsilon_one_run_gaussian(scores, members, delta=delta) >= audit.epsilon_one_run_gaussian(
        scores, members, delta=min(0.99, 2 * delta + 1e-3)
    )


def test_scores_that_are_clearly_not_gaussian_are_refused() -> None:
    rng = np.random.default_rng(0)
    members = rng.random(400) < 0.5
    for scores in (rng.exponential(size=400), rng.standard_t(2, size=400), np.ones(400), rng.random(400) < 0.5):
        with pytest.raises(jaxdp.UsageError, match="not Gaussian"):
            audit.epsilon_one_run_gaussian(scores, members, delta=DELTA)
        assert audit.report(scores, members, delta=DELTA).epsilon_gaussian is None
    infinite = np.where(np.arange(400) == 7, -np.inf, rng.normal(size=400))
    with pytest.raises(jaxdp.UsageError, match="not Gaussian"):
        audit.epsilon_one_run_gaussian(infinite, members, delta=DELTA)
    with pytest.raises(jaxdp.UsageError, match="give 20 or more"):
        audit.epsilon_one_run_gaussian(rng.normal(size=30), np.arange(30) < 15, delta=DELTA)
