"""Votes and their noisy aggregation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import pate
from jaxdp.noise import standard_laplace
from jaxdp.pate import _votes

FALSE_ALARM = 1e-4


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    teachers=st.integers(2, 40),
    examples=st.sampled_from([1, 7, 30, 100]),
    classes=st.sampled_from([2, 10]),
    dtype=st.sampled_from(["int8", "uint8", "int32"]),
    seed=st.integers(0, 99),
)
def test_votes_are_counted_for_every_example(teachers: int, examples: int, classes: int, dtype: str, seed: int) -> None:
    predictions = np.random.default_rng(seed).integers(0, classes, (teachers, examples)).astype(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_votes, "_CHUNK", 30)  # so that the last chunk overlaps the one before
        _votes._count.clear_cache()
        counts = pate.vote_counts(predictions, classes)
    expected = np.stack([np.bincount(column, minlength=classes) for column in predictions.T])
    np.testing.assert_array_equal(counts, expected)
    assert counts.dtype == jnp.int32


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        (np.array([[0, 1], [3, 0]]), "hold 3.*from 0 to 2"),
        (np.array([[0, -1], [1, 0]]), "hold -1"),
        (np.array([[0, 2**32], [1, 0]]), "hold 2147483647"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), "2 teachers x 2 examples.*whole number"),
        (np.array([[0, 1, 2]]), "one teacher: transpose"),
        (np.zeros((0, 4), int), "give \\[teachers, examples\\]"),
    ],
)
def test_predictions_that_are_no_votes_are_refused(predictions: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        pate.vote_counts(predictions, 3)


def test_votes_are_counted_where_no_type_is_promoted() -> None:
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(pate.vote_counts(np.array([[0, 1], [0, 0]]), 2), [[2, 0], [1, 1]])


@pytest.mark.parametrize("num_classes", [10**20, 2**31])
def test_more_classes_than_can_be_counted_are_refused(num_classes: int) -> None:
    with pytest.raises(jaxdp.UsageError, match="are more counts than"):
        pate.vote_counts(np.zeros((2, 3), int), num_classes)


CONFIDENT = {"threshold": 60.0, "sigma_threshold": 20.0, "sigma_max": 10.0}


def many(votes: list[int], times: int = 4000) -> np.ndarray:
    return np.tile(votes, (times, 1))


def test_a_laplace_noisy_vote_errs_as_often_as_it_should() -> None:
    labels = pate.laplace_noisy_max(many([53, 47]), gamma=0.1, key=jax.random.key(0))
    gap = 0.1 * 6
    wrong = (2 + gap) / (4 * np.exp(gap))  # exact for two classes
    assert scipy.stats.binomtest(int((labels == 1).sum()), 4000, wrong).pvalue > FALSE_ALARM


def test_a_gaussian_noisy_vote_errs_as_often_as_it_should() -> None:
    labels = pate.gaussian_noisy_max(many([53, 47]), sigma=10.0, key=jax.random.key(1))
    wrong = scipy.stats.norm.sf(6 / (10 * np.sqrt(2)))
    assert scipy.stats.binomtest(int((labels == 1).sum()), 4000, wrong).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_a_confident_vote_answers_as_often_as_it_should_and_labels_nothing_else() -> None:
    labels, answered = pate.confident_noisy_max(many([70, 30]), **CONFIDENT, key=jax.random.key(2))
    passing = scipy.stats.norm.sf((60 - 70) / 20)
    assert scipy.stats.binomtest(int(answered.sum()), 4000, passing).pvalue > FALSE_ALARM
    np.testing.assert_array_equal(np.asarray(labels) >= 0, answered)
    assert (np.asarray(labels)[np.asarray(answered)] == 0).mean() > 0.99


@pytest.mark.slow
def test_an_interactive_vote_asks_where_the_teachers_disagree_with_the_student() -> None:
    votes = np.tile([[90, 10], [90, 10], [10, 90]], (500, 1))
    student = np.tile([[0.95, 0.05], [0.55, 0.45], [0.95, 0.05]], (500, 1))
    quiet = {"threshold": 50.0, "sigma_threshold": 1.0, "sigma_max": 1.0, "student_confidence": 0.9}
    labels, answered = pate.interactive_noisy_max(votes, student, **quiet, key=jax.random.key(3))
    kinds = np.asarray(labels).reshape(500, 3), np.asarray(answered).reshape(500, 3)
    np.testing.assert_array_equal(kinds[0], np.tile([0, -1, 1], (500, 1)))
    np.testing.assert_array_equal(kinds[1], np.tile([False, False, True], (500, 1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v, k: pate.laplace_noisy_max(v, gamma=0.0, key=k), "gamma=0.0"),
        (lambda v, k: pate.gaussian_noisy_max(v, sigma=-1.0, key=k), "sigma=-1.0"),
        (lambda v, k: pate.gaussian_noisy_max(v, sigma=1e300, key=k), "sigma=1e.300 must lie between 1e-09 and 1e.09"),
        (lambda v, k: pate.laplace_noisy_max(v, gamma=1e-30, key=k), "gamma=1e-30 must lie between"),
        (
            lambda v, k: pate.confident_noisy_max(v, **{**CONFIDENT, "sigma_threshold": 1e39}, key=k),
            "sigma_threshold=1e.39 must lie between",
        ),
        (
            lambda v, k: pate.confident_noisy_max(v, **{**CONFIDENT, "threshold": 101.0}, key=k),
            "exceeds the 100 teachers",
        ),
        (lambda v, k: pate.gaussian_noisy_max(v - 60, sigma=1.0, key=k), "can't be negative"),
        (
            lambda v, k: pate.gaussian_noisy_max(v + np.eye(2, dtype=int) * [[1], [0]], sigma=1.0, key=k),
            "every teacher votes once",
        ),
        (lambda v, k: pate.interactive_noisy_max(v, v / 10, **CONFIDENT, student_confidence=0.9, key=k), "add up to 1"),
        (lambda v, k: pate.interactive_noisy_max(v, v[:1] / 100, **CONFIDENT, student_confidence=0.9, key=k), "shape"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call(np.array([[70, 30], [55, 45]]), jax.random.key(0))


@pytest.mark.slow
def test_laplace_noise_has_the_distribution_of_laplace_noise() -> None:
    drawn = np.asarray(standard_laplace(jax.random.key(4), (20_000,)), np.float64)
    assert scipy.stats.kstest(drawn, scipy.stats.laplace.cdf).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03


def test_laplace_noise_reaches_far_into_its_tail() -> None:
    from jaxdp.noise.draws import _laplace

    with pytest.MonkeyPatch.context() as patch:
        smallest = (jnp.zeros(2, jnp.uint32), jnp.array([0, 1], jnp.uint32))
        patch.setattr(_laplace, "draw_bits", lambda key, shape: smallest)
        np.testing.assert_allclose(standard_laplace(jax.random.key(0), (2,)), [44.36, -44.36], rtol=1e-3)


def test_more_teachers_than_float32_counts_are_refused() -> None:
    pate.gaussian_noisy_max(np.array([[2**23, 2**23]]), sigma=3.0, key=jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="counts no further than 16,777,216"):
        pate.gaussian_noisy_max(np.array([[2**26, 2**26]]), sigma=3.0, key=jax.random.key(0))
