"""Laplace and Gaussian noise on a grid. Statistical tests fix their seeds; with others, one in 10,000 would alarm falsely."""

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import _checks
from jaxdp.accounting._reach import end_of_gaussian
from jaxdp.mechanisms import Gaussian, Laplace
from jaxdp.mechanisms._grid import ROUNDING, digit_thresholds, discrete_laplace, steps_of, sum_on_grid
from jaxdp.mechanisms._inputs import checked_values

FALSE_ALARM = 1e-4
DRAWS = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("integers", [False, True])
@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.5, 1.0), (2.0, 3.0)])
def test_laplace_noise_follows_the_laplace_distribution(epsilon: float, sensitivity: float, integers: bool) -> None:
    laplace = Laplace(epsilon=epsilon, sensitivity=sensitivity, integers=integers)
    noise = np.asarray(laplace(jnp.full(DRAWS, 7), key=jax.random.key(0))) - 7
    assert scipy.stats.kstest(noise, scipy.stats.laplace(scale=sensitivity / epsilon).cdf).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_gaussian_noise_follows_the_normal_distribution() -> None:
    gaussian = Gaussian(noise_multiplier=1.5, sensitivity=2.0)
    noise = np.asarray(gaussian(jnp.full(DRAWS, 0.3), key=jax.random.key(0))) - 0.3
    assert scipy.stats.kstest(noise, scipy.stats.norm(scale=3.0).cdf).pvalue > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_whole_noise_is_the_floor_of_laplace_noise(rate: float) -> None:
    draws = np.asarray(discrete_laplace(jax.random.key(1), (DRAWS,), rate))
    inner = np.arange(-12, 12)
    found = [*(draws == step for step in inner), draws < inner[0], draws > inner[-1]]
    cdf = scipy.stats.laplace(scale=1 / rate).cdf
    expected = [*(cdf(inner + 1) - cdf(inner)), cdf(inner[0]), 1 - cdf(inner[-1] + 1)]
    assert scipy.stats.chisquare([f.sum() for f in found], np.array(expected) * DRAWS).pvalue > FALSE_ALARM


@settings(deadline=None)
@given(st.floats(2**-17, 1), st.data())
def test_no_step_of_the_noise_is_likelier_against_its_neighbours_than_epsilon_allows(
    rate: float, data: st.DataObject
) -> None:
    probabilities = [Fraction(threshold, 2**64) for threshold in digit_thresholds(rate)]
    longest = min(2 ** len(probabilities) - 1, int(20 / rate))
    first, second = (data.draw(st.integers(0, longest)) for _ in range(2))
    log = lambda z: sum(math.log(p if z >> i & 1 else 1 - p) for i, p in enumerate(probabilities))
    assert abs(log(first) - log(second) - rate * (second - first)) <= ROUNDING


def test_the_noise_reaches_forty_four_scales() -> None:
    for rate in (1.0, 2**-10, 0.7 * 2**-17):
        assert (2 ** len(digit_thresholds(rate)) - 1) * rate > 44


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=10), st.floats(0.01, 10), st.floats(0.01, 100))
def test_every_release_lies_on_the_grid_whatever_the_value(
    values: list[float], epsilon: float, sensitivity: float
) -> None:
    laplace = Laplace(epsilon=epsilon, sensitivity=sensitivity)  # each compiles once
    gaussian = Gaussian(noise_multiplier=epsilon, sensitivity=sensitivity)
    for value in map(np.float32, values):
        steps = np.float64(laplace(value, key=jax.random.key(3))) / laplace.step
        assert steps % 0.5 == 0
        assert abs(steps) >= 2**23 or steps % 1 == 0.5
        assert np.float64(gaussian(value, key=jax.random.key(3))) / gaussian.step % 1 == 0


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 10), st.floats(1e-3, 1e3), st.integers(1, 10_000))
def test_the_noise_covers_the_rounding_of_every_value(epsilon: float, sensitivity: float, size: int) -> None:
    laplace = Laplace(epsilon=epsilon, sensitivity=sensitivity, shape=(size,))
    assert (sensitivity + size * laplace.step) / laplace.scale + ROUNDING <= epsilon * (1 + 1e-12)
    gaussian = Gaussian(noise_multiplier=1 / epsilon, sensitivity=sensitivity, shape=(size,))
    assert gaussian.scale / (sensitivity + math.sqrt(size) * gaussian.step) >= 1 / epsilon * (1 - 1e-12)


def test_rounding_costs_little_noise() -> None:
    assert Laplace(epsilon=1.0, sensitivity=2.0).scale < 2.01
    assert Laplace(epsilon=1.0, sensitivity=2.0, shape=(100,)).scale < 2.02
    assert Laplace(epsilon=1.0, sensitivity=2.0, shape=(100,), integers=True).scale < 2.001
    assert Gaussian(noise_multiplier=1.0, sensitivity=2.0, shape=(1000,)).scale < 2.01


@pytest.mark.slow
def test_counts_are_released_exactly_but_for_the_noise() -> None:
    for epsilon, largest in ((1.0, 2**20), (1e-4, 2**30)):
        laplace = Laplace(epsilon=epsilon, sensitivity=1, integers=True)
        same = [np.float64(laplace(value, key=jax.random.key(4))) - value for value in (0, 12_345, largest - 1)]
        np.testing.assert_allclose(same, same[0], rtol=0, atol=largest * 2.0**-24)


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint32])
@pytest.mark.parametrize("step", [2.0**-10, 1.0, 2.0**10])
def test_values_that_float32_would_round_move_by_what_they_differ(kind: type, step: float) -> None:
    laplace = Laplace(epsilon=1.0, sensitivity=step * 1024)
    assert laplace.step == step
    steps = []
    for value in (1_000_000_000, 1_000_000_000 + int(1024 * step)):
        checked = checked_values(kind(value), (), integers=False)
        high, low = (int(part) for part in steps_of(checked, step))
        steps.append(high * 2**20 + low)
    assert steps[1] - steps[0] == 1024


@settings(deadline=None, max_examples=30)
@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(-40, 40), st.integers(-(2**30), 2**30))
def test_a_release_is_the_float_nearest_to_the_exact_sum(value: float, power: int, noise: int) -> None:
    step = 2.0**power
    steps = steps_of(jnp.float32(value), step)
    on_host = steps_of(np.asarray(value, np.float64), step)
    exact = int(on_host[0]) * 2**20 + int(on_host[1])
    assert abs(exact - min(max(Fraction(value) / Fraction(step), -(2**50)), 2**50)) <= 0.5
    assert (int(steps[0]), int(steps[1])) == (int(on_host[0]), int(on_host[1]))
    found = sum_on_grid(steps, jnp.int32(noise), step, 0.0)
    assert abs(exact + noise) >= 2**44 or np.float32(found) == np.float32(np.float32(exact + noise) * np.float32(step))


def test_calibrated_gaussian_noise_has_the_epsilon_that_was_asked_for() -> None:
    gaussian = Gaussian.calibrated(epsilon=0.7, delta=1e-6, sensitivity=5.0)
    assert 0.6999 < get_epsilon_gaussian(gaussian.noise_multiplier, 1e-6) <= 0.7


@pytest.mark.parametrize(("epsilon", "delta"), [(20.0, 1e-12), (1.0, 1e-15), (0.01, 1e-17)])
def test_calibrated_gaussian_noise_keeps_its_delta_where_its_end_takes_a_part_of_it(
    epsilon: float, delta: float
) -> None:
    gaussian = Gaussian.calibrated(epsilon=epsilon, delta=delta, sensitivity=1.0)
    left = delta - end_of_gaussian(gaussian.noise_multiplier, delta, 1)
    assert left > 0
    assert get_epsilon_gaussian(gaussian.noise_multiplier, left) <= epsilon
    if delta == 1e-12:  # and would not at the noise of which one has the epsilon if it never ended
        assert gaussian.noise_multiplier > 1.05 * get_sigma_gaussian(epsilon, delta)


def test_a_delta_that_no_drawn_noise_keeps_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="delta=1e-30 can't be kept"):
        Gaussian.calibrated(epsilon=1.0, delta=1e-30, sensitivity=1.0)


def test_leading_axes_are_releases_that_the_ledger_counts() -> None:
    laplace = Laplace(epsilon=0.1, sensitivity=1.0, shape=(3,))
    assert laplace.event_of(np.zeros((2, 5, 3))) == laplace.event_of(np.zeros((10, 3)))
    ledger = jaxdp.accounting.Ledger().add(laplace.event_of(np.zeros((10, 3))), "ten releases")
    assert ledger.epsilon(delta=1e-9, accountant="pld").epsilon == pytest.approx(1.0, rel=0.01)


@pytest.mark.slow
def test_a_mechanism_is_compiled_once_for_equal_descriptions() -> None:
    from jaxdp.mechanisms._additive import _on_grid

    before = _on_grid._cache_size()  # pyright: ignore[reportFunctionMemberAccess]
    for seed in range(3):
        Laplace(epsilon=0.123, sensitivity=1.0)(np.zeros(4), key=jax.random.key(seed))
    assert _on_grid._cache_size() == before + 1  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Laplace(epsilon=0.0, sensitivity=1), "epsilon=0.0"),
        (lambda: Laplace(epsilon=1e-5, sensitivity=1), "below 1e-4"),
        (lambda: Laplace(epsilon=math.inf, sensitivity=1), "epsilon=inf"),
        (lambda: Laplace(epsilon=50.0, sensitivity=1), "above 40"),
        (lambda: Laplace(epsilon=1e-4, sensitivity=1, shape=(10**6,)), "rounds so many values"),
        (lambda: Laplace(epsilon=1.0, sensitivity=1, shape=(0,)), "shape=0"),
        (lambda: Gaussian(noise_multiplier=1e10, sensitivity=1), "between 1e-3 and 1e6"),
        (lambda: Laplace(epsilon=1.0, sensitivity=-1), "sensitivity=-1"),
        (lambda: Laplace(epsilon=1.0, sensitivity=math.nan), "sensitivity is NaN"),
        (lambda: Laplace(epsilon=1e-4, sensitivity=1e6, integers=True), "2^24"),
        (lambda: Gaussian(noise_multiplier=0.0, sensitivity=1), "noise_multiplier=0.0"),
        (lambda: Gaussian(noise_multiplier=1.0, sensitivity=0.0), "sensitivity=0.0"),
        (lambda: Gaussian.calibrated(epsilon=1.0, delta=0.0, sensitivity=1), "delta=0.0"),
    ],
)
def test_what_would_not_be_private_is_refused(make: object, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        make()  # pyright: ignore[reportCallIssue]
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([1.0, np.nan, np.inf]), "2 NaNs or infinities"),
        (np.zeros((2, 4)), "shape (2, 4)"),
    ],
)
def test_values_that_would_show_are_refused(values: np.ndarray, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        Laplace(epsilon=1.0, sensitivity=1.0, shape=(3,))(values, key=jax.random.key(0))
    assert said in str(error.value)


def test_spans_of_time_are_no_numbers_and_counts_that_would_be_cut_are_refused_under_jit() -> None:
    laplace = Laplace(epsilon=1.0, sensitivity=1, integers=True)
    with pytest.raises(jaxdp.UsageError, match="spans of time: give numbers of a unit"):
        laplace(np.array(3, "timedelta64[s]"), key=jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="uint32, traced by jax: give int32"):
        jax.jit(lambda value: laplace(value, key=jax.random.key(0)))(jnp.uint32(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (np.uint64, 2**63),
        (jnp.uint32, 2**31 + 2**30),
        (np.int64, 2**31),
        (np.uint32, 2**31),
        (np.int64, -(2**31)),
    ],
)
def test_whole_numbers_of_any_type_move_by_what_they_differ(kind: type, value: int) -> None:
    for epsilon in (1e-3, 40.0):
        laplace = Laplace(epsilon=epsilon, sensitivity=1, integers=True)
        one, other = (float(laplace(kind(each), key=jax.random.key(0))) for each in (value - 1, value))
        assert 0 <= other - one <= max(1, abs(value) * 2.0**-22)


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.int64])
def test_parameters_become_plain_numbers(kind: type) -> None:
    def made(mechanism: type, **fields: Any) -> Any:  # past the annotations that tests check, as users come
        new = object.__new__(mechanism)
        _checks.set_fields(new, **fields, shape=[], integers=False)
        new.__post_init__()
        return new

    assert made(Laplace, epsilon=kind(3), sensitivity=kind(100)) == Laplace(epsilon=3.0, sensitivity=100.0)
    gaussian = made(Gaussian, noise_multiplier=kind(3), sensitivity=kind(100))
    assert [type(each) for each in vars(gaussian).values()] == [float, float, tuple, bool]


@pytest.mark.parametrize(("epsilon", "size"), [(1e-4, 1), (1e-3, 100), (1.0, 1000), (0.1, 1000), (40.0, 1)])
def test_covering_the_rounding_costs_little_whatever_the_noise(epsilon: float, size: int) -> None:
    assert Laplace(epsilon=epsilon, sensitivity=1.0, shape=(size,)).scale < 1.05 / epsilon
    gaussian = Gaussian(noise_multiplier=min(1 / epsilon, 1000), sensitivity=1.0, shape=(size,))
    assert gaussian.scale < 1.05 * min(1 / epsilon, 1000)


def test_values_that_float32_would_round_are_refused_where_they_cannot_be_seen() -> None:
    with pytest.raises(jaxdp.UsageError, match="values are int32"):
        jax.jit(lambda values: Laplace(epsilon=1.0, sensitivity=1.0)(values, key=jax.random.key(0)))(jnp.arange(3))


def test_integers_must_be_whole_numbers_by_type() -> None:
    with pytest.raises(jaxdp.UsageError, match="whole numbers"):
        Laplace(epsilon=1.0, sensitivity=1.0, integers=True)(1.0, key=jax.random.key(0))


def test_the_least_number_of_32_bits_is_one_above_the_next() -> None:
    steps = [steps_of(checked_values(value, (), integers=True), 1.0) for value in (-(2**31) - 1, -(2**31))]
    assert [int(high) * 2**20 + int(low) for high, low in steps] == [-(2**31) - 1, -(2**31)]
