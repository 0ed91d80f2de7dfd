"""What the end of drawn noise costs: taken from delta, or refused."""

import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
import scipy.stats

import jaxdp
from jaxdp import UsageError, pate
from jaxdp.accounting import Ledger, event_epsilon, gaussian_event, noise_multiplier, poisson_event
from jaxdp.accounting._reach import delta_left, missing_mass
from jaxdp.noise.draws._normal import LARGEST_NORMAL

ADDED = "add_or_remove_one"
RUNS = [  # examples, expected batch size, noise multiplier, steps, delta: what a delta below 1/n leads to
    (10**6, 256, 0.5, 39_062, 1e-7),
    (10**7, 1000, 0.55, 50_000, 1e-8),
    (10**8, 512, 0.6, 500_000, 1e-9),
    (10**9, 4096, 0.7, 732_422, 1e-10),
]


def _run(n: int, batch: int, sigma: float, steps: int) -> jaxdp.DPSGD:
    return jaxdp.DPSGD(num_examples=n, expected_batch_size=batch, steps=steps, clip_norm=1.0, noise_multiplier=sigma)


@pytest.mark.parametrize(("n", "batch", "sigma", "steps", "delta"), RUNS)
def test_outputs_of_one_neighbour_alone_are_within_the_delta_that_is_told(
    n: int, batch: int, sigma: float, steps: int, delta: float
) -> None:
    run = _run(n, batch, sigma, steps)
    one_coordinate = steps * run.sampling_rate * float(scipy.stats.norm.sf(LARGEST_NORMAL - 1 / sigma))
    missing = missing_mass(run.event, ADDED)
    assert one_coordinate < missing < 0.1 * delta
    left = delta_left(run.event, delta, ADDED)
    assert left + missing <= delta * (1 + 1e-9)
    told = run.epsilon(delta=delta)
    assert told == pytest.approx(dp.rdp.RdpAccountant().compose(run.event).get_epsilon(left), rel=1e-12)
    assert told > dp.rdp.RdpAccountant().compose(run.event).get_epsilon(delta)


def test_the_bound_holds_for_a_move_of_one_coordinate_and_of_many() -> None:
    """Against the exact probability that a pair of normals within R leaves it when moved (a noncentral chi-squared variable)."""
    reach, sigma = 4.0, 1.0

    def crossing(t: float) -> float:
        x, weights = np.polynomial.legendre.leggauss(400)
        r, weight = reach * (x + 1) / 2, weights * reach / 2
        outside = (reach**2 - r**2 - t**2) / (2 * r * t)  # the cosine of the angle from which on a point is outside
        return float(np.sum(weight * r * np.exp(-(r**2) / 2) * np.arccos(np.clip(outside, -1, 1)) / np.pi))

    assert crossing(0.8) + math.exp(-(reach**2) / 2) > scipy.stats.ncx2.sf(reach**2, 2, 0.8**2)
    for many in (1, 4, 100, 10_000):
        t = 1 / sigma / math.sqrt(many)
        bound = math.exp(-((reach - 1 / sigma) ** 2) / 2) + math.sqrt(many) * reach * math.exp(-(reach**2) / 2) / sigma
        assert many * crossing(t) < bound


@pytest.mark.parametrize("sigma", [0.001, 0.01, 0.1, 0.2])
def test_noise_whose_end_shows_is_refused_by_every_accountant(sigma: float) -> None:
    event = poisson_event(noise_multiplier=sigma, sample_rate=256 / 60_000, steps=3510)
    for accountant in jaxdp.accounting.ACCOUNTANTS:
        with pytest.raises(UsageError, match="give a larger noise_multiplier"):
            event_epsilon(event, delta=1e-5, accountant=accountant)


def test_replacing_moves_twice_as_far_and_sampling_shows_as_often_as_it_draws() -> None:
    event = gaussian_event(noise_multiplier=0.5)
    assert missing_mass(event, "replace_one") == pytest.approx(
        missing_mass(gaussian_event(noise_multiplier=0.25), ADDED)
    )
    sampled = poisson_event(noise_multiplier=0.5, sample_rate=0.01, steps=300)
    assert missing_mass(sampled, ADDED) == pytest.approx(300 * 0.01 / 0.99 * missing_mass(event, ADDED))


def test_laplace_noise_has_an_end_too() -> None:
    assert event_epsilon(dp.LaplaceDpEvent(1 / 10), delta=1e-5).epsilon > 0
    with pytest.raises(UsageError, match="Laplace noise to 41.6 scales"):
        event_epsilon(dp.LaplaceDpEvent(1 / 40), delta=1e-5)


@pytest.mark.slow
def test_what_is_left_of_delta_is_shared_where_a_ledger_is_added_up() -> None:
    response: Any = dp.ZCDpEvent(0.1)
    before = Ledger().add(dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1), "a count").add(response, "a choice")
    event = gaussian_event(noise_multiplier=0.31)
    total = before.add(event, "a sum").total(delta=1e-5)
    missing = missing_mass(event, ADDED)
    assert missing > 1e-9
    (spent,) = [spent for spent, labels in total.parts if "a sum" in labels]
    assert spent.delta < 1e-5


@pytest.mark.slow
def test_a_budget_is_met_with_noise_whose_end_it_covers() -> None:
    sigma = noise_multiplier(epsilon=1e6, delta=1e-5, sample_rate=0.01, steps=1000)
    assert delta_left(poisson_event(noise_multiplier=sigma, sample_rate=0.01, steps=1000), 1e-5, ADDED) > 5e-6
    with pytest.raises(UsageError):
        delta_left(poisson_event(noise_multiplier=sigma - 1e-4, sample_rate=0.01, steps=1000), 1e-5, ADDED)


def test_votes_under_noise_whose_end_shows_are_refused() -> None:
    votes = np.array([[90, 10], [20, 80]])
    with pytest.raises(UsageError, match="give a larger noise_multiplier"):
        pate.analyze(votes, pate.GaussianNoisyMax(sigma=0.2))
    with pytest.raises(UsageError, match="Laplace noise to 41.6 scales"):
        pate.perform_analysis(np.zeros((100, 5), int), noise_eps=40.0, num_classes=10)
