"""What labelling costs, against the papers' and dp-accounting's values."""

import math
from typing import Any

import jax
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st
from scipy.special import erfc

import jaxdp
from jaxdp import accounting, pate
from jaxdp.commands.pate import _release
from jaxdp.pate import _bounds, _sanitise

ORDERS = np.array([1.5, 2, 5, 8, 14, 32, 64, 200])
PEAKED = np.array([[4, 7, 6, 8, 4, 2, 0, 214, 4, 1]])


def predictions(unanimous: int) -> np.ndarray:
    """100 teachers on 100 examples of 10 classes: so many unanimous, the others with ten votes for each class."""
    votes = np.tile(np.repeat(np.arange(10), 10)[:, None], (1, 100))
    votes[:, :unanimous] = 3
    return votes


@pytest.mark.parametrize(
    ("unanimous", "classic", "tight"),
    [
        (0, 11.756462732485, 6.8516),
        (5, 11.440676356766, None),
        (50, 7.867987172745, 4.5668),
        (100, 1.526552132899, 0.6815),
    ],
)
def test_the_moments_of_the_2017_paper(unanimous: int, classic: float, tight: float | None) -> None:
    dependent, independent = pate.perform_analysis(predictions(unanimous), noise_eps=0.1, num_classes=10)
    assert independent == pytest.approx(11.756462732485115, abs=1e-12)
    assert independent == pytest.approx(6 + math.log(1e5) / 2, abs=1e-12)
    assert dependent == pytest.approx(classic, abs=1e-12)
    if tight is not None:
        votes = np.asarray(pate.vote_counts(predictions(unanimous), 10))
        report = pate.analyze(votes, pate.LaplaceNoisyMax(gamma=0.1), delta=1e-5)
        assert report.data_dependent.epsilon == pytest.approx(tight, abs=5e-5)
        old = pate.analyze(votes, pate.LaplaceNoisyMax(gamma=0.1), orders=np.arange(2, 10), conversion="classic")
        assert old.data_dependent.epsilon == pytest.approx(classic, abs=1e-9)


def test_gnmax_by_the_votes() -> None:
    log_q = _bounds.gaussian_log_q(PEAKED, 40.0)
    assert log_q[0] == pytest.approx(-6.971876871189835, abs=1e-12)
    known = [2.60321e-4, 2.64717e-4, 2.95681e-4, 3.36472e-4, 4.62956e-4, 1.89278e-3, 2.55519e-2, 0.125]
    np.testing.assert_allclose(_bounds.gaussian_rdp_given_votes(log_q, 40.0, ORDERS)[0], known, rtol=2e-6)
    unanimous = np.eye(10, dtype=int)[:1] * 250
    assert _bounds.gaussian_log_q(unanimous, 40.0)[0] == pytest.approx(-10.019228294289038, abs=1e-12)


@pytest.mark.parametrize(
    ("mechanism", "asked", "answered", "rdp", "pld"),
    [
        (pate.GaussianNoisyMax(sigma=40.0), 286, 286, 2.642, 2.435),
        (pate.ConfidentNoisyMax(threshold=200, sigma_threshold=150.0, sigma_max=40.0), 640, 286, 2.76, 2.54),
    ],
)
def test_data_independent_costs_are_dp_accountings(
    mechanism: Any, asked: int, answered: int, rdp: float, pld: float
) -> None:
    event = pate.event_of(mechanism, asked=asked, answered=answered)
    digits = 3 if answered == asked else 2
    assert round(accounting.event_epsilon(event, delta=1e-5).epsilon, digits) == rdp
    assert round(accounting.event_epsilon(event, delta=1e-5, accountant="pld").epsilon, digits) == pld


def test_the_laplace_bound_is_that_of_two_laplace_mechanisms_and_below_the_papers() -> None:
    import dp_accounting as dp

    for gamma in (0.01, 0.1, 0.5, 2.0):
        two = RdpAccountant(list(ORDERS)).compose(dp.LaplaceDpEvent(1 / gamma), 2).rdp
        np.testing.assert_allclose(_bounds.laplace_rdp(gamma, ORDERS), two, rtol=1e-12)
        assert (two <= _bounds.laplace_rdp(gamma, ORDERS, classic=True) * (1 + 1e-12)).all()


@st.composite
def vote_sets(draw: Any) -> np.ndarray:
    teachers, classes = draw(st.sampled_from([2, 10, 250, 5000])), draw(st.sampled_from([2, 3, 10, 150]))
    agreement = draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    share = np.full(classes, (1 - agreement) / classes)
    share[0] += agreement
    return np.random.default_rng(draw(st.integers(0, 999))).multinomial(teachers, share, size=8)


@settings(max_examples=60, deadline=None)
@given(votes=vote_sets(), scale=st.sampled_from([0.5, 2.0, 10.0, 40.0, 200.0]))
def test_costs_by_the_votes_are_between_nothing_and_those_without_them(votes: np.ndarray, scale: float) -> None:
    for curve, most in (
        (_bounds.gaussian_rdp_given_votes(_bounds.gaussian_log_q(votes, scale), scale, ORDERS), ORDERS / scale**2),
        (
            _bounds.laplace_rdp_given_votes(_bounds.laplace_log_q(votes, 1 / scale), 1 / scale, ORDERS),
            _bounds.laplace_rdp(1 / scale, ORDERS),
        ),
    ):
        assert np.isfinite(curve).all()
        assert (curve >= 0).all()
        assert (curve <= most).all()


@settings(max_examples=40, deadline=None)
@given(scale=st.sampled_from([0.5, 2.0, 10.0, 40.0, 200.0]))
def test_costs_by_the_votes_fall_as_the_teachers_agree_more(scale: float) -> None:
    log_q = -np.geomspace(1e-3, 1e5, 400)
    gaussian = _bounds.gaussian_rdp_given_votes(log_q, scale, ORDERS)
    laplace = _bounds.laplace_rdp_given_votes(log_q, 1 / scale, ORDERS)
    for curve in (gaussian, laplace):
        assert (np.diff(curve, axis=0) <= 1e-12 * curve[:-1] + 1e-15).all()
    certain = _bounds.gaussian_rdp_given_votes(np.array([-np.inf]), scale, ORDERS)
    np.testing.assert_array_equal(certain, 0)


@pytest.mark.slow
def test_more_laplace_noise_than_pld_counts_is_accounted_by_rdp_alone() -> None:
    votes = np.tile([[9000, 1000]], (262_145, 1))
    report = pate.analyze(votes, pate.LaplaceNoisyMax(gamma=2e-3))
    assert report.data_independent_pld is None
    assert "Data-independent: ε = 7.2780 (RDP). Safe to publish." in report.in_words()
    assert _release.public_figures(report)["epsilon"] == {"rdp": report.data_independent.epsilon}
    assert "by the RDP accountant of Google's dp-accounting, whatever the votes were." in _release.statement(
        report, 10**5
    )


def test_the_laplace_bound_holds_only_below_its_own_limit() -> None:
    """The trap of the 2017 code: with q < 1/2 for a condition, the bound turns negative for γ of 0.5 and above."""
    gamma, q = 1.0, 0.4
    assert q > 1 / (math.exp(2 * gamma) + 1)
    at_limit = _bounds.laplace_rdp_given_votes(np.log([q]), gamma, ORDERS)[0]
    np.testing.assert_allclose(at_limit, _bounds.laplace_rdp(gamma, ORDERS))


def test_orders_of_which_no_epsilon_can_be_made_are_refused() -> None:
    votes = np.array([[9, 1], [5, 5]])
    with pytest.raises(jaxdp.UsageError, match=r"converts no order up to 1\.01"):
        pate.analyze(votes, pate.GaussianNoisyMax(sigma=30.0), orders=[1.005])
    assert pate.analyze(votes, pate.GaussianNoisyMax(sigma=30.0), orders=[1.005, 8.0]).data_independent.epsilon < 9
    pate.analyze(votes, pate.GaussianNoisyMax(sigma=30.0), orders=[1.005], conversion="classic")
    with pytest.raises(jaxdp.UsageError, match="by more than a hundredth"):
        pate.Sanitiser(order=1.01)


def test_whole_numbers_for_orders_are_taken_as_floats() -> None:
    """The trap of the reference code: integer orders gave -9.2e18."""
    votes = np.tile(PEAKED, (5, 1))
    whole = pate.analyze(votes, pate.GaussianNoisyMax(sigma=40.0), orders=np.array([2, 5, 8, 14, 32]))
    floating = pate.analyze(votes, pate.GaussianNoisyMax(sigma=40.0), orders=[2.0, 5.0, 8.0, 14.0, 32.0])
    assert whole.data_dependent == floating.data_dependent


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (np.array([0, 1, 1, 2]), "look like labels"),
        (np.array([0, 100]), "hold 100.*rows 0 to 99"),
        (np.array([-1]), "hold -1"),
        (np.array([0.5]), "float64"),
    ],
)
def test_indices_are_row_numbers(indices: np.ndarray, message: str) -> None:
    """The trap of PySyft's users: labels passed for row numbers, so that rows 0 to 9 alone were analysed."""
    with pytest.raises(jaxdp.UsageError, match=message):
        pate.perform_analysis(predictions(50), indices, num_classes=10)
    every = pate.perform_analysis(predictions(50), num_classes=10)
    assert every == pate.perform_analysis(predictions(50), np.arange(100)[::-1], num_classes=10)
    assert every != pate.perform_analysis(predictions(50), np.arange(10), num_classes=10)


def test_all_teachers_on_class_zero_are_no_reason_to_crash() -> None:
    dependent, _ = pate.perform_analysis(np.zeros((100, 100), int), num_classes=10)
    assert dependent == pytest.approx(1.526552132899, abs=1e-12)


def test_the_number_of_classes_is_never_guessed_from_the_votes() -> None:
    unanimous = np.zeros((100, 100), int)
    with pytest.raises(jaxdp.UsageError, match="num_classes is missing.*whether or not it got a vote"):
        pate.perform_analysis(unanimous)
    two, ten = (pate.perform_analysis(unanimous, num_classes=m)[0] for m in (2, 10))
    assert two < ten == pytest.approx(1.526552132899, abs=1e-12)


def test_smooth_sensitivity_by_the_papers_values() -> None:
    for (beta, noise, order), known in {
        (0.0329, 6.23, 14): 0.5183929399476159,
        (0.0533, 4.88, 7.5): 0.5354731829145675,
    }.items():
        assert _sanitise.smooth_sensitivity_rdp(beta, noise, order) == pytest.approx(known, abs=1e-14)
    assert _sanitise.log_q0_of(40.0, 14.0) == pytest.approx(-3.4029724173980505, abs=1e-11)
    assert _sanitise.log_q0_of(250.0, 10.0) == pytest.approx(-5.5058677654520105, abs=1e-11)
    assert _sanitise.conditions(20.0, 10, 25.0) == (True, False)
    assert _sanitise.conditions(30.0, 10, 25.0) == (True, True)
    # Where q1 lies below the smallest probability that the grid began with: brute force finds the step to grow there.
    assert _sanitise.conditions(0.5881041012153547, 2, 14.68380715568743) == (True, False)
    assert not all(_sanitise.conditions(33.0, 2, 1000.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sanitise, "conditions", lambda *_: (True, True))
        by_distance = _sanitise.local_sensitivity_of_votes(np.array([[10, 0, 0]]), 0.5, 1.5)
    np.testing.assert_allclose(by_distance, [3.13503646e-17, 1.60178280e-08, 5.90681786e-03, 5.99981308], rtol=1e-8)


@pytest.mark.parametrize(
    ("beta", "noise", "order"),
    [(0.05, 6.0, 8.0), (0.03, 6.0, 14.0), (0.03, 6.0, 8.0), (0.0125, 2.0, 32.0), (0.2, 6.0, 2.0)],
)
def test_publishing_is_charged_what_any_two_neighbours_are_apart(beta: float, noise: float, order: float) -> None:
    """Both ways, for all sizes that smooth sensitivities of neighbours can have, by integration: theorem 23 may be exceeded."""
    sanitiser = pate.Sanitiser(beta=beta, noise=noise, order=order)
    of_total = sanitiser.rdp - order / (2 * sanitiser.noise_of_sensitivity**2)
    apart = []
    for ratio in np.exp(np.linspace(-beta, beta, 9)):
        x, step = np.linspace(-80 * noise, 80 * noise, 400_001, retstep=True)
        own = -0.5 * (x / noise) ** 2 - np.log(noise)
        other = -0.5 * ((x - min(1, ratio)) / (noise * ratio)) ** 2 - np.log(noise * ratio)
        log_density = order * own + (1 - order) * other - 0.5 * np.log(2 * np.pi)
        apart.append((np.log(np.exp(log_density - log_density.max()).sum() * step) + log_density.max()) / (order - 1))
    assert max(apart) == apart[0] == pytest.approx(_sanitise.furthest_neighbours_rdp(beta, noise, order), rel=1e-6)
    assert of_total >= apart[0] * (1 - 1e-6)
    assert _sanitise.furthest_neighbours_rdp(0.05, 6.0, 8.0) > 1.1 * _sanitise.smooth_sensitivity_rdp(0.05, 6.0, 8.0)


def test_real_neighbours_are_no_further_apart_than_their_publication_costs() -> None:
    """Votes of 250 teachers, of which one moved: theorem 23 alone would charge 0.862, and they are 0.907 apart."""
    for sanitiser, top in ((pate.Sanitiser(), 184), (pate.Sanitiser(order=14.0, beta=0.03), 178)):
        order, found = sanitiser.order, []
        for count in (top, top + 1):
            cost = _sanitise.cost_of_votes(np.array([[count, 250 - count]]), 40.0, order)
            found.append((cost.total, _sanitise.smooth_sensitivity(cost.local_sensitivities, sanitiser.beta)))
        (total, size), (other_total, other_size) = found
        variance = order * other_size**2 + (1 - order) * size**2
        apart = np.log(other_size / size) + np.log(other_size**2 / variance) / 2 / (order - 1)
        apart += order * ((total - other_total) / sanitiser.noise) ** 2 / 2 / variance
        apart += order * (np.log(size / other_size) / sanitiser.beta / sanitiser.noise_of_sensitivity) ** 2 / 2
        assert sanitiser.rdp >= apart


def a_vote_set(teachers: int = 250, queries: int = 60) -> np.ndarray:
    return np.random.default_rng(0).multinomial(teachers, [0.82, *[0.02] * 9], size=queries)


@pytest.mark.slow
def test_local_sensitivity_bounds_every_change_of_one_teacher() -> None:
    """Real votes, and all that one teacher could have voted instead."""
    order = 14.0
    costs = lambda votes: _bounds.gaussian_rdp_given_votes(
        _bounds.gaussian_log_q(votes, 40.0), 40.0, np.array([order])
    )[:, 0]
    for votes in np.vstack([a_vote_set(250, 6), PEAKED, [[80, 70, 100, 0, 0, 0, 0, 0, 0, 0]]]):
        bound = _sanitise.local_sensitivity_of_votes(votes[None], 40.0, order)[0]
        for left in np.flatnonzero(votes):
            for taken in range(10):
                moved = votes.copy()
                moved[left] -= 1
                moved[taken] += 1
                assert abs(costs(moved[None])[0] - costs(votes[None])[0]) <= bound * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("teachers", "classes", "sigma", "order"), [(14, 4, 1.0, 1.5), (12, 3, 0.5, 1.5), (16, 3, 2.0, 2.0)]
)
def test_smooth_sensitivity_is_smooth_and_an_upper_bound_on_all_votes(
    teachers: int, classes: int, sigma: float, order: float
) -> None:
    """Every vote that so few teachers can cast, and every neighbour of it."""
    if _sanitise.conditions(sigma, classes, order) != (True, True):
        pytest.skip("refused")
    beta = 0.05
    every = [v for v in np.ndindex(*[teachers + 1] * classes) if sum(v) == teachers]
    cost = lambda v: _sanitise.cost_at_order(_bounds.gaussian_log_q(np.array([v]), sigma), sigma, order)[0]
    costs = {v: cost(v) for v in every}
    smooth = {
        v: _sanitise.smooth_sensitivity(_sanitise.local_sensitivity_of_votes(np.array([v]), sigma, order), beta)
        for v in {tuple(sorted(v)) for v in every}
    }
    for v in smooth:
        for left in range(classes):
            for taken in range(classes):
                moved = tuple(n - (i == left) + (i == taken) for i, n in enumerate(v))
                if min(moved) < 0:
                    continue
                assert abs(costs[moved] - costs[v]) <= smooth[v] * (1 + 1e-9)
                assert smooth[tuple(sorted(moved))] <= smooth[v] * math.exp(beta) * (1 + 1e-9)


def test_the_threshold_sensitivity_bounds_every_change_of_a_count_within_its_distance() -> None:
    costs = _sanitise.threshold_rdp_given_votes(np.arange(-1, 102, dtype=float), 60.0, 20.0, np.array([8.0]))[:, 0]
    by_distance = _sanitise.local_sensitivity_of_threshold(np.array([50]), 100, 60.0, 20.0, 8.0)
    for d in range(40):
        near = costs[1 + 50 - d - 1 : 1 + 50 + d + 2]
        assert by_distance[d] == pytest.approx(np.abs(np.diff(near)).max(), rel=1e-12)


def test_the_threshold_sensitivity_of_many_queries_is_that_of_each_and_soon_found() -> None:
    sensitivity = lambda top, teachers: _sanitise.local_sensitivity_of_threshold(top, teachers, 60.0, 20.0, 8.0)
    top = np.array([0, 50, 100, 50, 73])
    alone = [sensitivity(top[i : i + 1], 100) for i in range(len(top))]
    np.testing.assert_allclose(sensitivity(top, 100), np.sum(alone, axis=0), rtol=1e-12)
    np.testing.assert_allclose(sensitivity(top, 100)[:20], sensitivity(top, 1_000_000)[:20], rtol=1e-12)


@pytest.mark.slow
def test_a_sanitised_cost_is_above_the_one_it_hides_and_costs_what_it_says() -> None:
    votes = a_vote_set()
    mechanism = pate.GaussianNoisyMax(sigma=40.0)
    for seed in range(20):
        report = pate.analyze(votes, mechanism, sanitiser=pate.Sanitiser(), rng=np.random.default_rng(seed))
        assert report.sanitised is not None
        assert report.sanitised.epsilon > report.data_dependent.epsilon
        assert report.sanitised.delta == report.delta
        for part in ("Safe to publish", "Private", "Sanitised"):
            assert part in report.in_words()


def test_a_sanitised_bound_fails_no_more_often_than_it_says() -> None:
    sanitiser = pate.Sanitiser(failure=0.1)
    rng = np.random.default_rng(0)
    below = sum(sanitiser.publish(1.0, 0.5, rng) < 1.0 for _ in range(2000))
    assert below <= 200


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), answered=np.ones(60, bool)),
            "answers every query",
        ),
        (
            lambda v: pate.analyze(v, pate.ConfidentNoisyMax(threshold=200, sigma_threshold=150, sigma_max=40)),
            "answered is missing.*forecast",
        ),
        (lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), orders=[1.0, 2.0]), "above 1"),
        (lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), orders=[]), "above 1"),
        (
            lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), orders=[np.nextafter(1, 2), 2]),
            "above 1, by 1e-06",
        ),
        (lambda v: pate.perform_analysis(np.zeros((5, 5), int), num_classes=1), "num_classes=1"),
        (
            lambda v: pate.perform_analysis(np.zeros((5, 5), int), num_classes=2, delta=0.5),
            "delta=0.5 is not below 1/5",
        ),
        (
            lambda v: pate.analyze(v, pate.LaplaceNoisyMax(gamma=0.1), sanitiser=pate.Sanitiser()),
            "no smooth sensitivity",
        ),
        (
            lambda v: pate.analyze(
                v, pate.GaussianNoisyMax(sigma=20.0), sanitiser=pate.Sanitiser(order=25.0, beta=0.01)
            ),
            "C5: True, C6: False",
        ),
        (lambda v: pate.Sanitiser(order=14, beta=0.1), "beta=0.1"),
        (lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), delta=0.01), "delta=0.01 is not below 1/"),
        (
            lambda v: pate.analyze(v, pate.GaussianNoisyMax(sigma=40.0), delta=1e-6, sanitiser=pate.Sanitiser()),
            "failure=1e-06 must be below",
        ),
    ],
)
def test_an_analysis_that_would_be_untrue_is_refused(call: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call(a_vote_set())


@pytest.mark.slow
def test_a_threshold_is_charged_for_every_query_and_votes_for_those_answered() -> None:
    votes = a_vote_set()
    mechanism = pate.ConfidentNoisyMax(threshold=200, sigma_threshold=150.0, sigma_max=40.0)
    labels = pate.aggregate(votes, mechanism, key=jax.random.key(0))
    report = pate.analyze(votes, mechanism, answered=np.asarray(labels.answered))
    assert report.asked == 60
    assert 0 < report.answered < 60
    nothing = pate.analyze(votes, mechanism, answered=np.zeros(60, bool))
    assert 0 < nothing.data_dependent.epsilon < report.data_dependent.epsilon
    assert report.epsilon_by_query[-1] == pytest.approx(report.data_dependent.epsilon)
    assert (np.diff(report.epsilon_by_query) >= 0).all()
    expected = pate.forecast(votes, mechanism, queries=60)
    assert expected.answered == pytest.approx(report.answered, abs=15)
    assert expected.epsilon == pytest.approx(report.data_dependent.epsilon, rel=0.3)


@pytest.mark.parametrize(
    ("mechanism", "delta", "said"),
    [
        (pate.GaussianNoisyMax(sigma=0.2), 1e-5, "delta=1e-05 can't be kept"),
        (pate.ConfidentNoisyMax(threshold=500.0, sigma_threshold=10.0, sigma_max=10.0), 1e-5, "threshold=500"),
        (pate.GaussianNoisyMax(sigma=10.0), 0.01, "one over the number of teachers"),
    ],
)
def test_a_forecast_refuses_what_an_analysis_would(mechanism: pate.Aggregator, delta: float, said: str) -> None:
    votes = np.tile([[90, 10]], (1000, 1))
    answered = None if mechanism.answers_all else np.zeros(1000, bool)
    for asked in (
        lambda: pate.forecast(votes[:5], mechanism, queries=1000, delta=delta),
        lambda: pate.analyze(votes, mechanism, answered=answered, delta=delta),
    ):
        with pytest.raises(jaxdp.UsageError, match=said):
            asked()


def test_the_interactive_threshold_is_on_the_disagreement() -> None:
    votes = a_vote_set()
    mechanism = pate.InteractiveNoisyMax(threshold=150, sigma_threshold=20.0, sigma_max=40.0, student_confidence=0.9)
    agreeing = votes / votes.sum(1, keepdims=True)
    none = np.zeros(60, bool)
    agreed = pate.analyze(votes, mechanism, answered=none, student_probs=agreeing)
    unsure = pate.analyze(votes, mechanism, answered=none, student_probs=np.full((60, 10), 0.1))
    assert agreed.data_dependent.epsilon < unsure.data_dependent.epsilon


def test_q_is_the_papers_sum_of_tails() -> None:
    gaps = 214 - np.delete(PEAKED[0], 7)
    assert math.exp(_bounds.gaussian_log_q(PEAKED, 40.0)[0]) == pytest.approx(0.5 * erfc(gaps / 80).sum(), rel=1e-12)
    lead = 0.05 * gaps
    by_hand = ((2 + lead) / (4 * np.exp(lead))).sum()
    assert math.exp(_bounds.laplace_log_q(PEAKED, 0.05)[0]) == pytest.approx(by_hand, rel=1e-12)
