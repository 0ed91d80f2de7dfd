"""Discrete Gaussian noise, exactly: what its tables of integers give, without drawing; and that draws follow them."""

import math

import jax
import numpy as np
import pytest
import scipy.stats

from jaxdp.mechanisms._discrete_gaussian import _from_table, alias_table, discrete_gaussian, terms, weights


@pytest.mark.parametrize("sigma", [1024.0, 1777.7, 4095.0])
def test_a_sum_of_terms_is_a_discrete_gaussian(sigma: float) -> None:
    count, base, tau = terms(sigma)
    of_term = np.array([*weights(tau).values()], np.float64) * 2.0**-64
    found = of_term
    for _ in range(count - 1):
        spread = np.zeros((len(found) - 1) * base + 1)
        spread[::base] = found
        found = np.convolve(spread, of_term)
    steps = np.arange(len(found)) - len(found) // 2
    near = abs(steps) < 6 * sigma
    exact = np.exp(-(steps[near].astype(np.float64) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    assert abs(np.log(found[near] / exact)).max() < 3e-8
    assert len(found) // 2 > 9 * sigma


@pytest.mark.parametrize("power", [10, 11.99, 12.01, 15.3, 17.99, 18.01, 21.7, 26])
def test_the_terms_of_any_noise_have_tables_that_fit_and_smooth_one_another(power: float) -> None:
    count, base, tau = terms(2.0**power)
    assert tau >= 1.3 * base
    assert len(weights(tau)) <= 2048
    assert sum(math.ceil(9.3 * tau) * base**i for i in range(count)) < 2**30
    assert math.sqrt(sum((tau * base**i) ** 2 for i in range(count))) == pytest.approx(2.0**power)


@pytest.mark.parametrize("tau", [16.0, 63.9])
def test_the_table_has_just_these_weights(tau: float) -> None:
    upper, lower = (table.astype(object) for table in alias_table(tau))
    found = [0] * 2048
    for cell, (first, second) in enumerate(zip(upper, lower, strict=True)):
        own = ((first >> 11) << 32) + second
        found[cell] += own
        found[first & 2047] += 2**53 - own
    wanted = [*weights(tau).values()]
    assert found == wanted + [0] * (2048 - len(wanted))
    assert sum(wanted) == 2**64


@pytest.mark.slow
def test_draws_follow_the_table() -> None:
    draws = np.asarray(_from_table(jax.random.bits(jax.random.key(0), (2,)), (200_000,), 3.0))
    found = np.array([(draws == step).sum() for step in range(-8, 9)])
    expected = np.array([weights(3.0)[step] for step in range(-8, 9)], np.float64) * 2.0**-64 * len(draws)
    expected *= found.sum() / expected.sum()
    assert scipy.stats.chisquare(found, expected).pvalue > 1e-4


@pytest.mark.slow
def test_no_parity_is_likelier() -> None:
    even = (np.asarray(discrete_gaussian(jax.random.key(1), (1_000_000,), 2.0**20)) & 1 == 0).mean()
    assert abs(even - 0.5) < 4 * 0.0005
