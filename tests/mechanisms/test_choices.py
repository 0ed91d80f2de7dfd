"""Choices, answers and summaries. Statistical tests fix their seeds; with others, one in 10,000 would alarm falsely."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp.accounting import Ledger
from jaxdp.mechanisms import (
    CategoricalTable,
    Exponential,
    Laplace,
    NoisyHistogram,
    NoisyMean,
    RandomizedResponse,
    ReportNoisyMax,
    _selection,
)
from jaxdp.mechanisms._statistics import _sum

FALSE_ALARM = 1e-4
DRAWS = 100_000
SCORES = np.array([3.0, 5.0, 4.5, 2.0], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("monotonic", [False, True])
def test_the_exponential_mechanism_chooses_by_its_weights(monotonic: bool) -> None:
    choose = Exponential(epsilon=1.5, sensitivity=2.0, monotonic=monotonic)
    found = _found(choose(np.tile(SCORES, (DRAWS, 1)), key=jax.random.key(0)), 4)
    weights = np.exp(1.5 * SCORES.astype(np.float64) / (2.0 if monotonic else 4.0))
    assert scipy.stats.chisquare(found, DRAWS * weights / weights.sum()).pvalue > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "values"),
    [
        (Exponential(epsilon=1.0, sensitivity=1.0), SCORES),
        (RandomizedResponse(epsilon=1.0, categories=3), jnp.array([0, 2])),
        (jaxdp.mechanisms.Laplace(epsilon=1.0, sensitivity=1.0), 3.0),
    ],
)
def test_values_that_are_known_may_be_released_under_a_key_that_is_traced(mechanism: Any, values: Any) -> None:
    release = lambda key: mechanism(values, key=key)
    assert jnp.array_equal(jax.jit(release)(jax.random.key(0)), release(jax.random.key(0)))


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(-1, 1)), min_size=1, max_size=6), st.floats(0.05, 5), st.booleans()
)
def test_the_exponential_mechanism_loses_no_more_than_epsilon(
    scores: list[tuple[float, float]], epsilon: float, monotonic: bool
) -> None:
    values, changes = np.array(scores).T
    moved = values + 2.0 * (abs(changes) if monotonic else changes)
    choose = Exponential(epsilon=epsilon, sensitivity=2.0, monotonic=monotonic)
    loss = choose.log_probabilities(values) - choose.log_probabilities(moved)
    assert float(jnp.abs(loss).max()) <= epsilon + 1e-4
    assert float(loss.max() - loss.min()) <= epsilon + 1e-4  # the bounded range that the event charges for


def test_where_64_bits_are_all_zero_64_more_say_how_small_a_variable_is(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [np.uint32([0, 0, 0, 2**31]), np.uint32([0, 0, 1, 0])], [np.uint32([0, 7, 7, 7]), np.uint32([3, 7, 7, 7])]
    draws = iter(words)
    monkeypatch.setattr(_selection, "draw_bits", lambda *_: tuple(map(jnp.asarray, next(draws))))
    found = _selection._log_exponential(jnp.zeros(4, jnp.uint32), (4,))
    below = [np.log(3.5) - 128 * np.log(2), np.log(7 / 2**32 + 7.5 / 2**64) - 64 * np.log(2)]
    np.testing.assert_allclose(found, [*below, np.log(1.5) - 64 * np.log(2), np.log(np.log(2))], rtol=1e-6)


@pytest.mark.slow
def test_scores_of_any_size_neither_overflow_nor_vanish() -> None:
    choose = Exponential(epsilon=1.0, sensitivity=1e6)
    found = _found(choose(np.tile([1e8, 1e8 + 2e6], (DRAWS, 1)), key=jax.random.key(1)), 2)
    assert scipy.stats.binomtest(int(found[1]), DRAWS, 1 / (1 + math.exp(-1))).pvalue > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.float64, np.int64, np.uint32, lambda scores: jnp.asarray(scores, jnp.int32)])
@pytest.mark.parametrize(
    "mechanism", [Exponential(epsilon=1.0, sensitivity=1), ReportNoisyMax(epsilon=1.0, sensitivity=1)]
)
def test_large_scores_are_not_rounded(mechanism: Any, kind: Any) -> None:
    scores = np.tile([0, 1, 3], (1000, 1))
    small, large = (mechanism(kind(scores + more), key=jax.random.key(0)) for more in (0, 2_000_000_000))
    np.testing.assert_array_equal(small, large)


@pytest.mark.slow
@pytest.mark.parametrize("monotonic", [False, True])
def test_report_noisy_max_chooses_as_laplace_noise_does(monotonic: bool) -> None:
    choose = ReportNoisyMax(epsilon=2.0, sensitivity=1.0, monotonic=monotonic)
    found = _found(choose(np.tile(SCORES, (DRAWS, 1)), key=jax.random.key(2)), 4)
    noise = np.random.default_rng(0).laplace(scale=0.5 if monotonic else 1.0, size=(4 * DRAWS, 4))
    expected = np.bincount((SCORES + noise).argmax(axis=1), minlength=4)
    result: Any = scipy.stats.chi2_contingency([found, expected])
    assert result.pvalue > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [Exponential(epsilon=1.0, sensitivity=1.0), ReportNoisyMax(epsilon=1.0, sensitivity=1.0)]
)
def test_on_neighbouring_scores_no_choice_is_likelier_than_epsilon_allows(mechanism: Any) -> None:
    one, other = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0])
    first, second = (
        _found(mechanism(np.tile(scores, (DRAWS, 1)), key=jax.random.key(seed)), 3) / DRAWS
        for seed, scores in enumerate((one, other))
    )
    assert (abs(np.log(first / second)) <= 1.0 + _four_errors(first, second)).all()


def test_on_neighbouring_answers_no_report_is_likelier_than_epsilon_allows() -> None:
    respond = RandomizedResponse(epsilon=1.0, categories=3)
    first, second = (
        _found(respond(np.full(DRAWS, answer), key=jax.random.key(answer)), 3) / DRAWS for answer in (0, 2)
    )
    loss = np.log(first / second)
    assert (abs(loss) <= 1.0 + _four_errors(first, second)).all()
    assert (abs(loss[[0, 2]]) >= 1.0 - _four_errors(first, second)[[0, 2]]).all()


def test_many_choices_are_events_of_their_own() -> None:
    choose = Exponential(epsilon=0.2, sensitivity=1.0)
    one, ten = (Ledger().add(choose.event_of(np.zeros(shape)), "choices") for shape in ((5,), (2, 5, 3)))
    assert ten.epsilon(delta=1e-6).epsilon > 2 * one.epsilon(delta=1e-6).epsilon
    noisy = Ledger().add(ReportNoisyMax(epsilon=0.2, sensitivity=1.0).event_of(np.zeros((2, 5, 3))), "choices")
    assert ten.epsilon(delta=1e-6).epsilon < 0.6 * noisy.epsilon(delta=1e-6).epsilon


@pytest.mark.parametrize("categories", [2, 3, 7])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomized_response_loses_epsilon_exactly(categories: int, epsilon: float) -> None:
    respond = RandomizedResponse(epsilon=epsilon, categories=categories)
    p = respond.noise_parameter
    loss = math.log((1 - p + p / categories) / (p / categories))
    assert epsilon - 1e-5 < loss <= epsilon
    ledger = Ledger(adjacency="replace_one").add(respond.event, "an answer")
    assert epsilon * 0.99 < ledger.epsilon(delta=1e-12, accountant="pld").epsilon <= epsilon * 1.001
    assert epsilon < ledger.epsilon(delta=1e-12, accountant="rdp").epsilon < epsilon + 0.03  # what conversion adds
    with pytest.raises(jaxdp.UsageError, match="can't account"):
        Ledger().add(respond.event, "an answer").epsilon(delta=1e-5)


@pytest.mark.parametrize("categories", [2, 5])
def test_reports_follow_the_probabilities_that_were_claimed(categories: int) -> None:
    respond = RandomizedResponse(epsilon=1.0, categories=categories)
    p = respond.noise_parameter
    for answer in range(2):
        found = _found(respond(np.full(DRAWS, answer), key=jax.random.key(answer)), categories)
        expected = np.full(categories, DRAWS * p / categories)
        expected[answer] += DRAWS * (1 - p)
        assert scipy.stats.chisquare(found, expected).pvalue > FALSE_ALARM


def test_estimated_proportions_are_unbiased_and_as_exact_as_said() -> None:
    respond = RandomizedResponse(epsilon=1.0, categories=3)
    truth = np.repeat([0, 1, 2], [600, 300, 100])
    reports = respond(np.tile(truth, (400, 1)), key=jax.random.key(5))
    estimates = np.array([respond.estimate(each) for each in np.asarray(reports)])
    error = estimates.std(axis=0) / np.sqrt(len(estimates))
    assert (np.abs(estimates.mean(axis=0) - [0.6, 0.3, 0.1]) < 4 * error).all()
    assert (estimates.std(axis=0) < 1.15 * respond.standard_error(1000)).all()
    np.testing.assert_allclose(estimates.sum(axis=1), 1)


@pytest.mark.slow
def test_a_noisy_mean_is_unbiased_and_clamps() -> None:
    mean = NoisyMean(epsilon=1.0, lower=-1.0, upper=3.0, num_records=500)
    records = np.random.default_rng(0).normal(1.0, 2.0, 500)
    found = [float(mean(records, key=jax.random.key(seed))) for seed in range(60)]
    error = math.sqrt(2) * 2 / 500 / math.sqrt(60)
    assert abs(np.mean(found) - records.clip(-1, 3).mean()) < 4 * error


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(width=32), min_size=2, max_size=8), st.integers(0, 7))
def test_one_record_moves_the_sum_by_its_sensitivity_at_most_whatever_it_is(records: list[float], at: int) -> None:
    mean = NoisyMean(epsilon=1.0, lower=-2.0, upper=5.0, num_records=8)
    array = np.full(8, np.nan, np.float32)  # a NaN counts as the middle, which adds nothing
    array[: len(records)] = records
    without = array.copy()
    without[at] = np.nan
    whole, rest, reversed_ = (int(_sum(mean, each.astype(np.float64))) for each in (array, without, array[::-1]))
    assert abs(whole - rest) <= mean.noise.sensitivity
    assert whole == reversed_


@pytest.mark.slow
@pytest.mark.parametrize(("count", "epsilon"), [(1_000_000, 2.0), (100_000, 10.0)])
def test_a_mean_of_many_records_neither_saturates_nor_drifts(count: int, epsilon: float) -> None:
    mean = NoisyMean(epsilon=epsilon, lower=1e9, upper=1e9 + 1, num_records=count)
    assert float(mean(np.full(count, 1e9 + 0.95), key=jax.random.key(0))) - 1e9 == pytest.approx(0.95, abs=1e-4)


@pytest.mark.slow
def test_bins_of_many_records_and_edges_that_float32_could_not_hold() -> None:
    day = 1.7e9
    histogram = NoisyHistogram(epsilon=10.0, edges=(day, day + 60, day + 120))
    records = np.repeat([day + 59, day + 61], [3_000_000, 7])
    np.testing.assert_allclose(histogram(records, key=jax.random.key(0)), [3_000_000, 7], atol=3)


def test_answers_of_many_categories_are_told_as_often_as_epsilon_allows() -> None:
    respond = RandomizedResponse(epsilon=1.0, categories=50_000)
    p = respond.noise_parameter
    told, other = 1 - p + p / 50_000, p / 50_000
    assert 0.999 < math.log(told / other) <= 1.0
    reports = np.asarray(respond(np.zeros(DRAWS, np.int32), key=jax.random.key(0)))
    halves = np.bincount(reports // 25_000, minlength=2)
    assert scipy.stats.binomtest(int(halves[0]), DRAWS, 0.5 * p + 1 - p).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_means_of_vectors_pay_for_each_of_their_numbers() -> None:
    mean = NoisyMean(epsilon=1.0, lower=0.0, upper=1.0, num_records=1000, shape=(4,))
    found = np.asarray([mean(np.full((1000, 4), 0.25), key=jax.random.key(seed)) for seed in range(36)])
    np.testing.assert_allclose(found.mean(axis=0), 0.25, atol=4 * math.sqrt(2) * 2 / 1000 / 6)
    assert mean.noise.sensitivity == 4 * mean.levels


@pytest.mark.slow
def test_a_noisy_histogram_counts_every_record_once() -> None:
    histogram = NoisyHistogram(epsilon=40.0, edges=(0.0, 1.0, 2.5, 4.0))
    records = np.array([-3.0, 0.0, 0.5, 1.0, 2.4999, 2.5, 4.0, 9.0, np.nan])
    np.testing.assert_allclose(histogram(records, key=jax.random.key(0)), [4, 2, 3], atol=0.5)


def test_numbers_of_another_byte_order_are_numbers() -> None:
    choose = Exponential(epsilon=20.0, sensitivity=1.0)
    assert int(choose(np.array([1.0, 90.0, 3.0]).astype(">f4"), key=jax.random.key(0))) == 1


MASKED = np.ma.masked_array([1.0, 2.0, 1e6], mask=[0, 0, 1])
MEAN = NoisyMean(epsilon=10, lower=0, upper=100, num_records=10)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda key: Exponential(epsilon=1.0, sensitivity=1.0)(np.zeros((3, 0)), key=key), "no candidates"),
        (lambda key: Exponential(epsilon=1.0, sensitivity=1.0)(MASKED, key=key), "masked array"),
        (lambda key: Laplace(epsilon=1.0, sensitivity=1.0, shape=(3,))(MASKED, key=key), "masked array"),
        (lambda key: NoisyHistogram(epsilon=1.0, edges=(0, 1))(MASKED, key=key), "masked array"),
        (lambda key: Laplace(epsilon=1.0, sensitivity=1.0, integers=True)(key, key=key), "give real numbers"),
        (lambda key: jax.vmap(lambda k: MEAN(np.arange(9.0), key=k))(jax.random.split(key, 3)), "key is traced"),
        (lambda key: CategoricalTable(sizes=(2,)).sample(np.ones(2), 10**12, key=key), "num_rows=1000000000000"),
        (lambda key: Exponential(epsilon=1.0, sensitivity=1.0)([0.0, -np.inf], key=key), "NaNs or infinities"),
        (lambda key: Exponential(epsilon=-1.0, sensitivity=1.0), "epsilon=-1.0"),
        (lambda key: ReportNoisyMax(epsilon=1.0, sensitivity=0.0), "sensitivity=0.0"),
        (lambda key: Exponential(epsilon=10.0, sensitivity=1.2e-38), "between 1e-20 and 1e20"),
        (lambda key: Exponential(epsilon=1.0, sensitivity=1.0)([1j, 2j], key=key), "complex128"),
        (lambda key: NoisyMean(epsilon=1.0, lower=0.0, upper=1.0, num_records=3)(["a"], key=key), "real numbers"),
        (lambda key: ReportNoisyMax(epsilon=1e-6, sensitivity=1.0), "below 1e-4"),
        (lambda key: RandomizedResponse(epsilon=17.0), "above 16"),
        (lambda key: RandomizedResponse(epsilon=1.0, categories=1), "categories=1"),
        (lambda key: RandomizedResponse(epsilon=1.0)([0, 2], key=key), "from 0 to 1"),
        (lambda key: RandomizedResponse(epsilon=1.0)([0.5], key=key), "float64"),
        (lambda key: RandomizedResponse(epsilon=1.0).estimate([]), "reports are"),
        (lambda key: NoisyMean(epsilon=1.0, lower=1.0, upper=1.0, num_records=5), "not below"),
        (lambda key: NoisyMean(epsilon=1.0, lower=-np.inf, upper=1.0, num_records=5), "must be finite"),
        (lambda key: NoisyMean(epsilon=1e-3, lower=0.0, upper=1.0, num_records=5, shape=(10_000,)), "levels"),
        (lambda key: NoisyHistogram(epsilon=1.0, edges=(0.0, 0.0)), "edges="),
        (lambda key: NoisyHistogram(epsilon=1.0, edges=(1.0,)), "edges="),
    ],
)
def test_bad_input_is_refused_by_name(call: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        call(jax.random.key(0))
    assert said in str(error.value)


def _four_errors(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Four standard errors of the logarithm of a ratio of two frequencies."""
    return 4 * np.sqrt(1 / (DRAWS * first) + 1 / (DRAWS * second))


def _found(chosen: Any, candidates: int) -> np.ndarray:
    return np.bincount(np.asarray(chosen), minlength=candidates)
