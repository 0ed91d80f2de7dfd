"""Poisson sampling. Statistical tests have fixed seeds and a false-alarm rate of 1e-4 each where the seed is changed."""

import dataclasses

import jax
import numpy as np
import pytest
import scipy.stats

import jaxdp
from jaxdp.sampling import PoissonSampler

FALSE_ALARM = 1e-4


def draws(sampler: PoissonSampler) -> np.ndarray:
    """bool [steps, num_examples]: who was in which batch."""
    member = np.zeros((sampler.steps, sampler.num_examples), bool)
    for step, (indices, mask) in enumerate(sampler):
        member[step, np.asarray(indices)[np.asarray(mask)]] = True
    return member


@pytest.fixture(scope="module")
def member() -> np.ndarray:
    return draws(PoissonSampler(key=jax.random.key(0), num_examples=50, sampling_rate=0.2, steps=2000))


@pytest.mark.slow
def test_each_example_is_included_with_the_sampling_rate(member: np.ndarray) -> None:
    counts = member.sum(0)
    p_values = [scipy.stats.binomtest(int(count), len(member), 0.2).pvalue for count in counts]
    assert min(p_values) > FALSE_ALARM / len(counts)


def test_examples_are_included_independently_of_each_other(member: np.ndarray) -> None:
    pairs = (member.T.astype(float) @ member)[np.triu_indices(50, 1)]
    z = (pairs - 2000 * 0.04) / np.sqrt(2000 * 0.04 * 0.96)
    assert np.abs(z).max() < scipy.stats.norm.isf(FALSE_ALARM / 2 / len(pairs)) * 1.05


def test_the_batch_size_is_binomial(member: np.ndarray) -> None:
    sizes = np.bincount(member.sum(1), minlength=51)
    expected = scipy.stats.binom.pmf(np.arange(51), 50, 0.2) * 2000
    low, high = 4, 16
    observed = [sizes[:low].sum(), *sizes[low:high], sizes[high:].sum()]
    wanted = [expected[:low].sum(), *expected[low:high], expected[high:].sum()]
    assert scipy.stats.chisquare(observed, wanted).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_no_drawn_example_is_lost_where_the_capacity_is_too_small() -> None:
    roomy = PoissonSampler(key=jax.random.key(1), num_examples=40, sampling_rate=0.5, steps=20)
    tight = PoissonSampler(key=jax.random.key(1), num_examples=40, sampling_rate=0.5, steps=20, capacity=3)
    np.testing.assert_array_equal(draws(roomy), draws(tight))
    assert any(batch.mask.shape[0] > 3 for batch in tight)
    assert all(batch.mask.shape[0] % 3 == 0 for batch in tight)


@pytest.mark.parametrize("rate", [0.001, 0.03, 0.2])
def test_a_hosts_devices_divide_the_rows_of_a_batch_unless_the_data_are_fewer(rate: float) -> None:
    sampler = PoissonSampler(key=jax.random.key(1), num_examples=1002, sampling_rate=rate, steps=1)
    assert sampler.capacity % 8 == 0
    assert dataclasses.replace(sampler, num_examples=3, capacity=0).capacity == 3


def test_the_draw_of_a_step_depends_on_the_key_and_the_step_alone() -> None:
    long = PoissonSampler(key=jax.random.key(2), num_examples=30, sampling_rate=0.3, steps=9)
    indices, mask = list(long)[5]
    again = long.batch(5)
    np.testing.assert_array_equal(indices, again.indices)
    np.testing.assert_array_equal(mask, again.mask)
    assert not np.array_equal(draws(long)[0], draws(long)[1])


def test_a_rate_of_one_draws_everyone_and_a_tiny_rate_draws_nobody() -> None:
    assert draws(PoissonSampler(key=jax.random.key(3), num_examples=7, sampling_rate=1.0, steps=2)).all()
    assert not draws(PoissonSampler(key=jax.random.key(3), num_examples=7, sampling_rate=1e-9, steps=2)).any()


@pytest.mark.slow
def test_the_draw_compiles_once() -> None:
    sampler = PoissonSampler(key=jax.random.key(4), num_examples=100, sampling_rate=0.1, steps=20)
    shapes = {batch.mask.shape for batch in sampler}
    assert len(shapes) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_examples": 0}, "num_examples=0"),
        ({"sampling_rate": 0.0}, "sampling_rate=0.0"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5"),
        ({"steps": 0}, "steps=0"),
        ({"capacity": -1}, "capacity=-1"),
    ],
)
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    usual = {"key": jax.random.key(0), "num_examples": 10, "sampling_rate": 0.1, "steps": 1}
    with pytest.raises(jaxdp.UsageError, match=message):
        PoissonSampler(**{**usual, **arguments})
