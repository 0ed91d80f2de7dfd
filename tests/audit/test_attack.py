"""What is said of an attack, of counts and of a planted secret is what scikit-learn, SciPy and closed forms say."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

import jaxdp
from jaxdp import audit


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.01, 0.1, 0.5, 1.0)))
@settings(deadline=None, max_examples=50)
def test_the_roc_is_scikit_learns(seed: int, fpr: float) -> None:
    metrics: Any = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(seed)
    members = np.append(rng.random(50) < 0.4, [True, True, False, False])
    scores = np.round(rng.normal(size=54) + members, 1)
    assert audit.attack_auroc(scores, members) == pytest.approx(metrics.roc_auc_score(members, scores))
    false, true, _ = metrics.roc_curve(members, scores, drop_intermediate=False)
    assert audit.tpr_at_fpr(scores, members, fpr) == pytest.approx(np.max(true[false <= fpr]))


@given(st.integers(1, 300), st.data())
@settings(deadline=None, max_examples=50)
def test_counts_are_bounded_as_scipy_bounds_them(runs: int, data: st.DataObject) -> None:
    tp, fp = data.draw(st.integers(0, runs)), data.draw(st.integers(0, runs))
    at_most = lambda count: scipy.stats.binomtest(count, runs, alternative="less").proportion_ci(0.975, "exact").high
    fnr, fpr = at_most(runs - tp), at_most(fp)
    for delta in (0.0, 1e-3):
        expected = max([0.0, *(math.log((1 - a - delta) / b) for a, b in ((fnr, fpr), (fpr, fnr)) if 1 - a > delta)])
        counts = {"true_positives": tp, "positives": runs, "false_positives": fp, "negatives": runs}
        assert audit.epsilon_clopper_pearson(**counts, delta=delta) == pytest.approx(expected, abs=1e-9)


def test_of_randomised_response_counts_seldom_show_more_than_its_epsilon() -> None:
    """Fixed seed; at a significance of 0.05 a bound may be too high in 5 %: of 1,000 in 79 with a false-alarm rate of 1e-4."""
    rng, epsilon = np.random.default_rng(0), 1.0
    truth = 1 / (1 + math.exp(-epsilon))
    tp, fp = rng.binomial(500, truth, 1000), rng.binomial(500, 1 - truth, 1000)
    found = [
        audit.epsilon_clopper_pearson(
            true_positives=int(t), positives=500, false_positives=int(f), negatives=500, delta=0
        )
        for t, f in zip(tp, fp, strict=True)
    ]
    assert np.sum(np.array(found) > epsilon) <= 79
    assert np.median(found) > 0.6


def test_a_rank_is_counted_and_ties_count_against_the_secret() -> None:
    assert audit.exposure_by_rank(0.0, np.arange(1, 1024)) == 10
    assert audit.exposure_by_rank(0.0, np.zeros(1023)) == 0
    assert audit.exposure_by_rank(2000.0, np.arange(1023)) == 0


def test_beyond_the_candidates_exposure_is_the_normal_tail() -> None:
    losses = 20 + 3 * scipy.stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    for deviations in (1.0, 3.0, 6.0):
        expected = -scipy.stats.norm.logcdf(-deviations) / math.log(2)
        found = audit.exposure_by_extrapolation(20 - 3 * deviations, losses)
        assert found == pytest.approx(expected, rel=0.05)


def test_the_unit_of_losses_does_not_count() -> None:
    losses = np.random.default_rng(0).normal(size=200) + 9
    usual = audit.exposure_by_extrapolation(5.0, losses)
    for unit in (1e-300, 1e300):
        assert audit.exposure_by_extrapolation(5.0 * unit, losses * unit) == pytest.approx(usual, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: audit.tpr_at_fpr([1.0, 2, 3, 4], [True, False, True, False], fpr=1.5), r"fpr=1\.5 is no share"),
        (lambda: audit.exposure_by_rank(0.0, []), "give one loss a candidate"),
        (lambda: audit.exposure_by_rank(0.0, [math.nan]), "1 of 1 candidates' losses are NaN"),
        (lambda: audit.exposure_by_rank(math.nan, [1.0]), "loss is NaN"),
        (lambda: audit.exposure_by_extrapolation(0.0, np.ones(100)), "fit no distribution"),
        (lambda: audit.exposure_by_extrapolation(0.0, [math.inf] * 100), "a loss is infinite"),
        (
            lambda: audit.epsilon_clopper_pearson(
                true_positives=3, positives=2, false_positives=0, negatives=2, delta=0
            ),
            "true_positives=3 of positives=2",
        ),
        (
            lambda: audit.epsilon_clopper_pearson(
                true_positives=0, positives=0, false_positives=0, negatives=2, delta=0
            ),
            "positives=0",
        ),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call()
