"""Truncated Poisson sampling. Statistical tests have fixed seeds; where one is changed, a false-alarm rate of 1e-4 each."""

import jax
import numpy as np
import pytest
import scipy.stats

import jaxdp
from jaxdp.noise._keys import Domain, own_key
from jaxdp.sampling import TruncatedPoissonSampler
from jaxdp.sampling._poisson import included

FALSE_ALARM = 1e-4
SIZE, RATE, MOST, STEPS = 40, 0.25, 10, 3000


@pytest.fixture(scope="module")
def member() -> np.ndarray:
    """bool [steps, num_examples]: who was in which batch."""
    sampler = TruncatedPoissonSampler(
        key=jax.random.key(0), num_examples=SIZE, sampling_rate=RATE, truncated_batch_size=MOST, steps=STEPS
    )
    found = np.zeros((STEPS, SIZE), bool)
    for step, (indices, mask) in enumerate(sampler):
        drawn = np.asarray(indices)[np.asarray(mask)]
        assert mask.shape == (MOST,)
        assert len(np.unique(drawn)) == len(drawn)
        found[step, drawn] = True
    return found


def moments() -> tuple[float, float]:
    """The probabilities that an example, and that a pair, is in a batch."""
    sizes = np.arange(SIZE + 1)
    probability = scipy.stats.binom.pmf(sizes, SIZE, RATE)
    used = np.minimum(sizes, MOST)
    return (
        float(probability @ used) / SIZE,
        float(probability @ (used * (used - 1))) / (SIZE * (SIZE - 1)),
    )


@pytest.mark.slow
def test_the_batch_size_is_binomial_up_to_the_most(member: np.ndarray) -> None:
    law = scipy.stats.binom(SIZE, RATE)
    observed = np.bincount(member.sum(1), minlength=MOST + 1)
    low = 4
    expected = np.array([law.cdf(low), *law.pmf(np.arange(low + 1, MOST)), law.sf(MOST - 1)]) * STEPS
    assert scipy.stats.chisquare([observed[: low + 1].sum(), *observed[low + 1 :]], expected).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_no_example_is_favoured_where_a_draw_is_cut(member: np.ndarray) -> None:
    full = member[member.sum(1) == MOST]
    for counts, total, probability in (
        (member.sum(0), STEPS, moments()[0]),
        (full.sum(0), len(full), MOST / SIZE),
    ):
        p_values = [scipy.stats.binomtest(int(count), total, probability).pvalue for count in counts]
        assert min(p_values) > FALSE_ALARM / len(p_values)


@pytest.mark.slow
def test_every_pair_is_as_likely_as_any_other(member: np.ndarray) -> None:
    pairs = (member.T.astype(float) @ member)[np.triu_indices(SIZE, 1)]
    p = moments()[1]
    z = (pairs - STEPS * p) / np.sqrt(STEPS * p * (1 - p))
    assert np.abs(z).max() < scipy.stats.norm.isf(FALSE_ALARM / 2 / len(pairs)) * 1.05


@pytest.mark.slow
def test_what_is_used_is_a_part_of_a_poisson_draw_or_all_of_it() -> None:
    shared = {"num_examples": 30, "sampling_rate": 0.3, "steps": 20}
    cut = TruncatedPoissonSampler(key=jax.random.key(3), **shared, truncated_batch_size=12)
    for step in range(20):
        own = own_key(jax.random.key(3), Domain.TRUNCATED_POISSON_SAMPLER)
        of_draw, _ = jax.random.split(jax.random.fold_in(own, step))
        drawn = np.flatnonzero(np.asarray(included(of_draw, 30, 0.3)))
        indices, mask = cut.batch(step)
        used = np.asarray(indices)[np.asarray(mask)]
        assert set(used) <= set(drawn)
        assert len(used) == min(len(drawn), 12)


@pytest.mark.slow
def test_the_draw_of_a_step_depends_on_the_key_and_the_step_alone() -> None:
    sampler = TruncatedPoissonSampler(
        key=jax.random.key(1), num_examples=50, sampling_rate=0.5, truncated_batch_size=20, steps=6
    )
    np.testing.assert_array_equal(list(sampler)[4].indices, sampler.batch(4).indices)
    assert not np.array_equal(sampler.batch(3).indices, sampler.batch(4).indices)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"truncated_batch_size": 0}, "truncated_batch_size=0"), ({"sampling_rate": 1.5}, "sampling_rate=1.5")],
)
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    usual = {
        "key": jax.random.key(0),
        "num_examples": 10,
        "sampling_rate": 0.1,
        "truncated_batch_size": 3,
        "steps": 1,
    }
    with pytest.raises(jaxdp.UsageError, match=message):
        TruncatedPoissonSampler(**{**usual, **arguments})
