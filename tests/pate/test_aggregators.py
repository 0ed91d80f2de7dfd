"""Aggregators as values: the contract that they keep, and ones that the package knows nothing of."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxdp
from jaxdp import accounting, pate
from jaxdp.commands.pate import _release
from jaxdp.noise import standard_normal
from jaxdp.runs._folder import RunFolder

BUILT_IN = {
    "Laplace": pate.LaplaceNoisyMax(gamma=0.05),
    "Gaussian": pate.GaussianNoisyMax(sigma=12.0),
    "Confident": pate.ConfidentNoisyMax(threshold=60.0, sigma_threshold=30.0, sigma_max=10.0),
    "Interactive": pate.InteractiveNoisyMax(
        threshold=40.0, sigma_threshold=30.0, sigma_max=10.0, student_confidence=0.9
    ),
}


@dataclass(frozen=True)
class DoubleGaussian:
    """A user's own: Gaussian noise of twice a standard deviation, with nothing of the package's aggregators in it."""

    half_sigma: float

    answers_all: ClassVar[bool] = True
    asks_student: ClassVar[bool] = False
    plurality_needed: ClassVar[None] = None

    @property
    def sigma(self) -> float:
        return 2 * self.half_sigma

    def check_teachers(self, teachers: int) -> None:
        if teachers < 3:
            raise jaxdp.UsageError(f"teachers={teachers} are too few: give 3 or more")

    def aggregate(self, votes: Any, *, key: Any, student_probs: Any) -> pate.Labels:
        assert student_probs is None
        noisy = jnp.asarray(votes, jnp.float32) + jnp.float32(self.sigma) * standard_normal(key, votes.shape)
        return pate.Labels(jnp.argmax(noisy, axis=1).astype(jnp.int32), jnp.ones(len(votes), bool))

    def event(self, *, asked: int, answered: int) -> Any:
        return accounting.gaussian_event(noise_multiplier=self.sigma / math.sqrt(2), times=asked)

    def classic_rdp(self, orders: Any, *, asked: int) -> None:
        return None

    def rdp_by_query(self, votes: Any, orders: Any, *, charged: Any, student_probs: Any, classic: bool) -> Any:
        return np.tile(orders / self.sigma**2, (len(votes), 1))

    def answer_probability(self, votes: Any) -> Any:
        return np.ones(len(votes))

    def cost_at_order(self, votes: Any, answered: Any, order: float) -> None:
        return None

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        return f"{asked} queries to {teachers} teachers were answered under noise of twice {self.half_sigma:g}."


@dataclass(frozen=True)
class EveryOther(DoubleGaussian):
    """Another one, which leaves every second query unanswered, whatever the votes."""

    answers_all: ClassVar[bool] = False

    def aggregate(self, votes: Any, *, key: Any, student_probs: Any) -> pate.Labels:
        labels, _ = super().aggregate(votes, key=key, student_probs=student_probs)
        answered = jnp.arange(len(votes)) % 2 == 0
        return pate.Labels(jnp.where(answered, labels, -1), answered)

    def event(self, *, asked: int, answered: int) -> Any:
        return accounting.gaussian_event(noise_multiplier=self.sigma / math.sqrt(2), times=answered)

    def rdp_by_query(self, votes: Any, orders: Any, *, charged: Any, student_probs: Any, classic: bool) -> Any:
        return charged[:, None] * orders / self.sigma**2

    def answer_probability(self, votes: Any) -> Any:
        return np.full(len(votes), 0.5)


def predictions(queries: int = 60) -> np.ndarray:
    """100 teachers, of whom some 80 agree."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, queries)
    return np.where(rng.random((100, queries)) < 0.75, truth, rng.integers(0, 5, (100, queries))).astype(np.int32)


@pytest.mark.slow_but("mechanism0", "mechanism2", "mechanism3")
@pytest.mark.parametrize("mechanism", [*BUILT_IN.values(), DoubleGaussian(5.0), EveryOther(5.0)])
def test_every_aggregator_keeps_the_contract(mechanism: Any) -> None:
    votes, orders = np.asarray(pate.vote_counts(predictions(), 5)), np.array([1.5, 4.0, 32.0])
    student = np.full(votes.shape, 0.2, np.float32) if mechanism.asks_student else None
    assert isinstance(mechanism, pate.Aggregator)
    labels, answered = map(np.asarray, pate.aggregate(votes, mechanism, key=jax.random.key(0), student_probs=student))
    assert (labels.dtype, answered.dtype) == (np.int32, np.bool_)
    assert (labels[answered] >= 0).all()
    assert answered.all() == mechanism.answers_all
    number = {"asked": len(votes), "answered": int(answered.sum())}
    from dp_accounting.rdp import RdpAccountant

    of_event = RdpAccountant(orders.tolist()).compose(mechanism.event(**number)).rdp
    for classic in (False, True):
        by_query = mechanism.rdp_by_query(votes, orders, charged=answered, student_probs=student, classic=classic)
        assert by_query.shape == (len(votes), len(orders))
        most = mechanism.classic_rdp(orders, asked=len(votes)) if classic else None
        assert (by_query.sum(axis=0) <= (of_event if most is None else most) * (1 + 1e-9)).all()
    said = mechanism.in_words(teachers=100, **number)
    assert "100 teachers" in said
    assert said.endswith(".")


@pytest.mark.slow
def test_an_aggregator_of_ones_own_gives_labels_an_analysis_a_forecast_and_a_budget() -> None:
    mechanism, known = DoubleGaussian(half_sigma=20.0), pate.GaussianNoisyMax(sigma=40.0)
    votes = np.asarray(pate.vote_counts(predictions(), 5))
    labels = pate.aggregate(votes, mechanism, key=jax.random.key(1)).labels
    np.testing.assert_array_equal(labels, pate.gaussian_noisy_max(votes, sigma=40.0, key=jax.random.key(1)))
    report, expected = pate.analyze(votes, mechanism), pate.analyze(votes, known)
    assert report.data_independent.epsilon == pytest.approx(expected.data_independent.epsilon, rel=1e-9)
    assert report.data_dependent.epsilon == pytest.approx(report.data_independent.epsilon, rel=1e-9)
    assert report.data_independent_pld == expected.data_independent_pld
    assert report.ledger().epsilon(delta=1e-5) == expected.ledger().epsilon(delta=1e-5)
    assert pate.event_of(mechanism, asked=3, answered=3) == pate.event_of(known, asked=3, answered=3)
    assert pate.forecast(votes, mechanism, queries=60).epsilon == pytest.approx(report.data_dependent.epsilon)
    every = np.ones(1000, bool)
    assert pate.within_budget(every, mechanism, epsilon=2.0) == pate.within_budget(every, known, epsilon=2.0) == 173
    assert "Data-independent" in report.in_words()
    with pytest.raises(jaxdp.UsageError, match="no smooth sensitivity is known for DoubleGaussian"):
        pate.analyze(votes, mechanism, sanitiser=pate.Sanitiser())
    with pytest.raises(jaxdp.UsageError, match="teachers=2 are too few"):
        pate.aggregate(np.array([[1, 1]]), mechanism, key=jax.random.key(0))


@pytest.mark.slow
def test_an_aggregator_that_leaves_queries_out_is_charged_for_its_answers() -> None:
    mechanism, votes = EveryOther(half_sigma=20.0), np.asarray(pate.vote_counts(predictions(), 5))
    answered = np.asarray(pate.aggregate(votes, mechanism, key=jax.random.key(1)).answered)
    report = pate.analyze(votes, mechanism, answered=answered)
    half = pate.analyze(votes[:30], DoubleGaussian(half_sigma=20.0))
    assert (report.asked, report.answered) == (60, 30)
    assert report.data_independent.epsilon == pytest.approx(half.data_independent.epsilon, rel=1e-9)
    assert pate.forecast(votes, mechanism, queries=60).answered == 30
    with pytest.raises(jaxdp.UsageError, match="answered is missing: EveryOther"):
        pate.analyze(votes, mechanism)
    asked = pate.within_budget(np.arange(1000) % 2 == 0, mechanism, epsilon=2.0)
    assert (asked + 1) // 2 == pate.within_budget(np.ones(1000, bool), DoubleGaussian(20.0), epsilon=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [DoubleGaussian(8.0), pytest.param(EveryOther(8.0), marks=pytest.mark.slow)])
def test_an_aggregator_of_ones_own_is_released_with_a_statement_and_a_ledger(mechanism: Any, tmp_path: Path) -> None:
    released = _release.release(
        predictions(), np.arange(60), mechanism, num_classes=5, delta=1e-5, key=jax.random.key(2), target_epsilon=6.0
    )
    folder = RunFolder.create(tmp_path / "labels")
    with folder.locked():
        _release.write(released, folder, records=5000, nonce="0" * 32)
        _release.publish(folder)
    statement = (folder.path / "statement.txt").read_text("utf-8")
    assert "were answered under noise of twice 8." in statement
    stored = json.loads((folder.path / "statement.json").read_text("utf-8"))
    ledger = accounting.Ledger.from_dict(stored["ledger"])
    assert 0 < stored["answered"] <= stored["asked"]
    assert ledger.epsilon(delta=1e-5).epsilon == pytest.approx(released.report.data_independent.epsilon)
    assert ledger.epsilon(delta=1e-5).epsilon <= 6.0
    assert json.loads((folder.private / "report.json").read_text("utf-8"))["sanitised_epsilon"] is None


def test_a_value_without_the_contracts_methods_and_a_class_are_refused(unchecked: None) -> None:
    votes = np.array([[6, 4]])
    for bad in (None, "gnmax", 40.0, pate.GaussianNoisyMax, object()):
        for call in (
            lambda bad=bad: pate.aggregate(votes, bad, key=jax.random.key(0)),
            lambda bad=bad: pate.analyze(votes, bad),
            lambda bad=bad: pate.forecast(votes, bad, queries=3),
            lambda bad=bad: pate.within_budget(np.ones(3, bool), bad),
            lambda bad=bad: pate.event_of(bad, asked=1, answered=1),
        ):
            with pytest.raises(jaxdp.UsageError, match=r"give jaxdp\.pate\.GaussianNoisyMax"):
                call()


@pytest.mark.slow
def test_an_aggregators_own_noise_has_the_size_that_it_says() -> None:
    """How often the winner of two classes is the wrong one, in closed form."""
    votes, mechanism = np.tile([53, 47], (4000, 1)), DoubleGaussian(half_sigma=5.0)
    labels = np.asarray(pate.aggregate(votes, mechanism, key=jax.random.key(1)).labels)
    wrong = scipy.stats.norm.sf(6 / (10 * np.sqrt(2)))
    assert scipy.stats.binomtest(int((labels == 1).sum()), 4000, wrong).pvalue > 1e-4


@pytest.mark.parametrize("teachers", [3, 250, 2**20 + 1, 12_000_000, 2**24])
def test_one_vote_moves_what_is_held_against_the_threshold_by_one_at_most(teachers: int) -> None:
    from jaxdp.pate.aggregators._interactive import _disagreement

    rng = np.random.default_rng(teachers)
    probs = rng.dirichlet(np.ones(3), size=200).astype(np.float32)
    half = rng.integers(1, teachers // 2 + 1, size=(200, 1))
    votes = np.concatenate([half, teachers - half - 1, np.ones_like(half)], axis=1)
    for other in (votes + np.array([1, -1, 0]), votes + np.array([1, 0, -1]), votes + np.array([-1, 1, 0])):
        found, moved = _disagreement(votes, probs), _disagreement(other, probs)
        assert (np.float32(found) == found).all()
        assert (np.abs(found - moved) <= 1).all()
    exact = (votes - teachers * probs.astype(np.float64)).max(axis=1)
    np.testing.assert_allclose(
        _disagreement(votes, probs), exact, atol=0.5 if teachers >= 2**23 else teachers * 2.0**-23
    )
