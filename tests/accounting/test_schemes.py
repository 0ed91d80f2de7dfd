"""Each sampling scheme under each adjacency costs what dp-accounting says of the event that one would build by hand."""

import functools
import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import jaxdp
from jaxdp import accounting
from jaxdp.accounting import _epsilon
from jaxdp.accounting._reach import delta_left

N = 60_000
ADD, SPECIAL, ONE = "add_or_remove_one", "replace_special", "replace_one"


def poisson(batch: int, sigma: float, steps: int) -> tuple[dict[str, Any], dp.DpEvent]:
    run = {"expected_batch_size": batch, "noise_multiplier": sigma, "steps": steps}
    return run, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(batch / N, dp.GaussianDpEvent(sigma)), steps)


def truncated(batch: int, most: int, sigma: float, steps: int) -> tuple[dict[str, Any], dp.DpEvent]:
    run = {"expected_batch_size": batch, "noise_multiplier": sigma, "steps": steps, "sampling": "truncated_poisson"}
    event = dp.TruncatedSubsampledGaussianDpEvent(N, batch / N, most, sigma)
    return {**run, "truncated_batch_size": most}, dp.SelfComposedDpEvent(event, steps)


def shuffled(batch: int, sigma: float, steps: int, epochs: int) -> tuple[dict[str, Any], dp.DpEvent]:
    run = {"expected_batch_size": batch, "noise_multiplier": sigma, "steps": steps, "sampling": "shuffle"}
    return run, dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma), epochs)


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# (a run and the event by hand, adjacency, accountant, epsilon at delta 1e-5 where it is published or known)
TABLE = [
    (poisson(250, 1.3, 720), ADD, "rdp", 0.563172649032795),
    slow(poisson(250, 1.3, 720), ADD, "pld", 0.370275),
    slow(poisson(250, 1.3, 3600), ADD, "rdp", 0.9422002181626765),
    slow(poisson(250, 1.3, 3600), ADD, "pld", 0.853030),
    slow(poisson(250, 1.3, 3600), SPECIAL, "rdp", 0.9422002181626765),
    (poisson(250, 1.3, 3600), SPECIAL, "pld", 0.853030),
    (poisson(250, 1.3, 3600), ONE, "pld", 1.535),
    slow(poisson(250, 1.25394, 3600), ADD, "rdp", 1.0),
    (poisson(512, 1.23, 4688), ADD, "rdp", 2.58),
    slow(poisson(512, 1.23, 4688), ADD, "pld", 2.36),
    slow(poisson(4096, 3.04, 586), ADD, "rdp", 2.52),
    slow(poisson(4096, 3.04, 586), ADD, "pld", 2.31),
    slow(poisson(256, 1.3, 3516), ADD, "rdp", 0.95),
    slow(poisson(256, 1.3, 3516), ADD, "pld", 0.86),
    (poisson(256, 0.6, 100), ADD, "rdp", None),
    slow(poisson(256, 0.6, 100), ONE, "pld", None),
    (poisson(60_000, 10.0, 100), ADD, "rdp", 4.73),
    slow(poisson(60_000, 10.0, 100), ADD, "pld", None),
    (truncated(250, 280, 3.0, 100), ADD, "pld", None),
    (truncated(250, 300, 3.0, 100), SPECIAL, "pld", None),
    (truncated(250, 280, 3.0, 100), ONE, "pld", None),
    slow(truncated(250, 60_000, 1.3, 720), ADD, "pld", 0.370275),  # never truncated: as Poisson
    (shuffled(512, 1.23, 40 * 118, 40), SPECIAL, "rdp", 36.4),
    slow(shuffled(512, 1.23, 40 * 118, 40), SPECIAL, "pld", 34.4),
    slow(shuffled(512, 1.23, 40 * 118, 40), ONE, "pld", 95.9),
    slow(shuffled(512, 1.23, 39 * 118 + 1, 40), SPECIAL, "rdp", 36.4),  # an epoch begun is an epoch
    slow(shuffled(512, 1.23, 39 * 118 + 1, 40), SPECIAL, "pld", 34.4),
    (shuffled(60_000, 10.0, 100, 100), ONE, "pld", 10.00),
    (shuffled(60_000, 10.0, 100, 100), ONE, "rdp", None),
]


@functools.cache
def by_pld(event: dp.DpEvent, adjacency: str) -> float:
    accountant = PLDAccountant(Relation[adjacency.upper()]).compose(event)
    return accountant.get_epsilon(delta_left(event, 1e-5, adjacency))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "adjacency", "accountant", "known"), TABLE)
def test_epsilon_is_dp_accountings_own_for_the_hand_built_event(
    case: tuple[dict[str, Any], dp.DpEvent], adjacency: str, accountant: str, known: float | None
) -> None:
    described, event = case
    run = jaxdp.DPSGD(num_examples=N, clip_norm=1.0, adjacency=adjacency, **described)
    relation = Relation[adjacency.upper()]
    if accountant == "pld":
        theirs = by_pld(event, adjacency)
    else:
        by_hand = event
        if adjacency == ONE:  # dp-accounting's RDP accountant leaves the factor of two to its user
            by_hand = dp.SelfComposedDpEvent(dp.GaussianDpEvent(run.noise_multiplier / 2), event.count)
        theirs = RdpAccountant(neighboring_relation=relation).compose(by_hand).get_epsilon(1e-5)
    ours = run.epsilon(delta=1e-5, accountant=accountant)
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert run.event == event
    assert run.ledger().epsilon(delta=1e-5, accountant=accountant).epsilon == ours
    if known is not None:
        digits = len(f"{known}".partition(".")[2])
        assert ours == pytest.approx(known, abs=max(1e-12, 0.51 * 10.0**-digits))


@pytest.mark.parametrize(
    ("case", "adjacency", "asked", "able"),
    [
        (poisson(250, 1.3, 10), ONE, "rdp", "pld"),
        (poisson(250, 1.3, 10), ONE, "classic", "pld"),
        (truncated(250, 280, 3.0, 10), ADD, "rdp", "pld"),
        (truncated(250, 280, 3.0, 10), ONE, "rdp", "pld"),
    ],
)
def test_what_an_accountant_cannot_account_is_an_error_that_names_the_one_that_can(
    case: tuple[dict[str, Any], dp.DpEvent], adjacency: str, asked: str, able: str
) -> None:
    run = jaxdp.DPSGD(num_examples=N, clip_norm=1.0, adjacency=adjacency, **case[0])
    assert run.accountants == (able,)
    with pytest.raises(jaxdp.UsageError, match=f"{asked}.*under adjacency='{adjacency}': give accountant='{able}'"):
        run.epsilon(delta=1e-5, accountant=asked)
    assert "by the PLD accountant" in run.statement(delta=1e-5)


def test_replace_one_under_rdp_doubles_the_sensitivity_that_dp_accounting_leaves_alone() -> None:
    releases = dp.SelfComposedDpEvent(dp.GaussianDpEvent(10.0), 100)
    left_alone = RdpAccountant(neighboring_relation=Relation.REPLACE_ONE).compose(releases).get_epsilon(1e-5)
    assert left_alone == pytest.approx(4.73, abs=0.01)  # the trap: as if sensitivity were one clip norm
    pld, rdp = (
        accounting.event_epsilon(releases, delta=1e-5, accountant=name, adjacency=ONE).epsilon
        for name in ("pld", "rdp")
    )
    assert pld == pytest.approx(10.00, abs=0.01)
    assert pld < rdp < 1.1 * pld


@pytest.mark.parametrize(
    "event",
    [
        dp.LaplaceDpEvent(2.0),
        dp.ZCDpEvent(0.1),
        RepeatAndSelectDpEvent(dp.GaussianDpEvent(2.0), 10.0, 1.0),
        dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.0)),
    ],
)
def test_rdp_under_replace_one_is_refused_where_its_sensitivity_is_not_known(event: dp.DpEvent) -> None:
    with pytest.raises(jaxdp.UsageError, match="under adjacency='replace_one'"):
        accounting.event_epsilon(event, delta=1e-5, adjacency=ONE)


@pytest.mark.parametrize("sigma", [1, np.float32(1.0), np.int64(1)])
def test_noise_of_any_numeric_type_within_a_sampled_composition_is_counted_whole(sigma: Any) -> None:
    """The trap: with an int inside, dp-accounting drops the composition around it."""

    def epsilon(noise: Any) -> float:
        inner = dp.ComposedDpEvent([dp.GaussianDpEvent(noise), dp.GaussianDpEvent(noise)])
        event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, inner), 1000)
        return accounting.event_epsilon(event, delta=1e-5).epsilon

    one_of_two = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
    assert epsilon(sigma) == epsilon(1.0) > 1.5 * accounting.event_epsilon(one_of_two, delta=1e-5).epsilon


def test_adaptive_clipping_costs_what_the_sampled_composition_of_sum_and_count_costs() -> None:
    run = jaxdp.DPSGD(
        num_examples=N,
        expected_batch_size=512,
        steps=300,
        clip_norm=1.0,
        noise_multiplier=1.1,
        rule=jaxdp.clipping.Quantile(count_noise=20.0),
    )
    both = dp.ComposedDpEvent([dp.GaussianDpEvent(run.noise_multiplier_of_sum), dp.GaussianDpEvent(2 * 20.0)])
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(512 / N, both), 300)
    assert run.epsilon(delta=1e-5) == pytest.approx(RdpAccountant().compose(event).get_epsilon(1e-5), rel=1e-9)


@pytest.mark.slow
def test_shuffling_says_why_its_epsilon_is_so_much_larger() -> None:
    run = jaxdp.DPSGD(num_examples=N, clip_norm=1.0, adjacency=SPECIAL, **shuffled(512, 1.23, 4720, 40)[0])
    text = run.statement(delta=1e-5)
    assert "(36.4491, 1e-05)" in text
    assert "no amplification by sampling" in text
    assert "With Poisson sampling" in text
    assert "(2.5906, 1e-05)" in text
    assert "blanked in its place" in text


@pytest.mark.slow
def test_the_statement_of_a_users_run_names_the_user() -> None:
    run = jaxdp.DPSGD(
        num_examples=5000,
        expected_batch_size=100,
        steps=10,
        clip_norm=1.0,
        noise_multiplier=1.0,
        unit="user",
        records_per_user=8,
    )
    text = run.statement(delta=1e-5)
    assert "one user, with at most 8 records" in text
    assert "one user added or removed" in text
    assert "number of users, 5,000" in text


def test_a_run_is_composed_once_by_each_accountant_whatever_is_asked_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = jaxdp.DPSGD(num_examples=N, clip_norm=1.0, **poisson(250, 1.37, 3600)[0])
    composed, compose = [], _epsilon.composed_by
    monkeypatch.setattr(_epsilon, "composed_by", lambda *asked: composed.append(asked[0]) or compose(*asked))
    for _ in range(3):
        run.epsilon(delta=1e-5, accountant="pld")
        run.spent(delta=1e-5)
        run.statement(delta=1e-5)
    assert sorted(composed) == ["pld", "rdp"]


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_the_steps_and_the_batch_for_a_budget_are_the_largest_that_stay_within_it(accountant: str) -> None:
    budget = {"epsilon": 0.8, "delta": 1e-5, "noise_multiplier": 2.0, "accountant": accountant}
    steps = accounting.steps(sample_rate=0.02, **budget)
    batch = accounting.batch_size(num_examples=2000, steps=30, **budget)
    spent = lambda rate, number: accounting.epsilon(
        noise_multiplier=2.0, sample_rate=rate, steps=number, delta=1e-5, accountant=accountant
    )
    assert spent(0.02, steps) <= 0.8 < spent(0.02, steps + 1)
    assert spent(batch / 2000, 30) <= 0.8 < spent((batch + 1) / 2000, 30)


def test_a_budget_that_allows_nothing_gives_no_steps_and_one_that_allows_all_has_no_end() -> None:
    tiny = {"epsilon": 1e-4, "delta": 1e-9, "noise_multiplier": 0.5}
    assert accounting.steps(sample_rate=1.0, **tiny) == 0
    assert accounting.batch_size(num_examples=10, steps=5, **tiny) == 0
    assert accounting.steps(epsilon=50.0, delta=1e-5, noise_multiplier=1e6, sample_rate=1e-6) == 2**24
    assert accounting.batch_size(epsilon=50.0, delta=1e-5, noise_multiplier=50.0, num_examples=10, steps=5) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"adjacency": ONE},
        {"sampling": "truncated_poisson", "truncated_batch_size": 130},
        {"sampling": "shuffle", "adjacency": SPECIAL},
        {"sampling": "shuffle", "adjacency": ONE},
    ],
)
def test_a_run_calibrated_to_a_budget_spends_it_and_no_more_whatever_its_sampling(changes: dict[str, Any]) -> None:
    usual = {"num_examples": 4000, "expected_batch_size": 100, "steps": 40, "clip_norm": 1.0, "noise_multiplier": 1.0}
    run = jaxdp.DPSGD(**{**usual, **changes})
    name = run.accountants[0]
    found = run.with_noise_for(epsilon=0.5, delta=1e-5, accountant=name)
    assert 0.499 < found.epsilon(delta=1e-5, accountant=name) <= 0.5
    longer = jaxdp.DPSGD(**{**usual, **changes, "steps": 4000, "noise_multiplier": found.noise_multiplier})
    cut = longer.within(epsilon=0.5, delta=1e-5, accountant=name)
    assert cut.epsilon(delta=1e-5, accountant=name) <= 0.5
    assert longer.epsilon(delta=1e-5, accountant=name, steps=cut.steps + 1) > 0.5


def test_a_budget_that_does_not_allow_one_step_is_refused() -> None:
    run = jaxdp.DPSGD(num_examples=100, expected_batch_size=100, steps=5, clip_norm=1.0, noise_multiplier=0.3)
    with pytest.raises(jaxdp.UsageError, match="doesn't allow one step"):
        run.within(epsilon=0.1, delta=1e-5)


def test_infinite_fields_of_events_survive_json() -> None:
    event = accounting.RandomSearch(mean=5, distribution="poisson").event(dp.GaussianDpEvent(3.0))
    assert event.shape == math.inf
    assert accounting.event_from_dict(accounting.event_to_dict(event)) == event
