"""The ledger: one total for all that touched the data, by one accountant or by adding up."""

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting as dp
import jax
import numpy as np
import optax
import pytest
import scipy.stats
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent, RepeatAndSelectDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import jaxdp
from jaxdp import UsageError, accounting
from jaxdp.accounting import (
    Ledger,
    RandomSearch,
    accountants_of,
    event_epsilon,
    event_from_dict,
    gaussian_event,
    poisson_event,
    truncated_poisson_event,
)
from jaxdp.commands.train._ledger import read_ledger
from jaxdp.mechanisms import Exponential, RandomizedResponse

TRAINING = poisson_event(noise_multiplier=1.1, sample_rate=0.01, steps=100)
TRUNCATED = truncated_poisson_event(
    noise_multiplier=1.1, sample_rate=0.01, num_examples=5000, truncated_batch_size=60, steps=20
)
SEARCH = RandomSearch(mean=4, distribution="geometric").event(
    poisson_event(noise_multiplier=3.0, sample_rate=0.01, steps=50)
)


@pytest.mark.slow
def test_what_one_accountant_composes_is_composed_and_the_tighter_one_counts() -> None:
    ledger = Ledger().add(TRAINING, "training").add(gaussian_event(noise_multiplier=20.0), "a mean")
    total = ledger.total(delta=1e-5)
    composed = PLDAccountant().compose(TRAINING).compose(dp.GaussianDpEvent(20.0)).get_epsilon(1e-5)
    assert total.epsilon == pytest.approx(composed, abs=1e-12)
    assert [(spent.accountant, labels) for spent, labels in total.parts] == [("pld", ("training", "a mean"))]
    assert ledger.total(delta=1e-5, accountant="rdp").epsilon == ledger.epsilon(delta=1e-5).epsilon > total.epsilon


@pytest.mark.slow
def test_what_no_accountant_composes_is_added_up_and_says_so() -> None:
    ledger = Ledger().add(SEARCH, "a search").add(TRUNCATED, "training").add(TRAINING, "more training")
    total = ledger.total(delta=1e-5)
    assert sum(spent.epsilon for spent, _ in total.parts) == pytest.approx(total.epsilon)
    assert sum(spent.delta for spent, _ in total.parts) == pytest.approx(1e-5)
    assert {label for _, labels in total.parts for label in labels} == {"a search", "training", "more training"}
    half = RdpAccountant().compose(SEARCH).get_epsilon(5e-6)
    half += PLDAccountant().compose(TRUNCATED).compose(TRAINING).get_epsilon(5e-6)
    assert total.epsilon <= half
    for part in ("added", "RDP", "PLD", "a search", "training"):
        assert part in total.in_words()


def test_a_search_is_accounted_by_rdp_at_dp_accountings_price() -> None:
    one_run = poisson_event(noise_multiplier=3.0, sample_rate=0.01, steps=50)
    by_hand = RepeatAndSelectDpEvent(one_run, 4.0, 1.0)
    ours = Ledger().add(SEARCH, "a search").epsilon(delta=1e-5).epsilon
    assert ours == pytest.approx(RdpAccountant().compose(by_hand).get_epsilon(1e-5), abs=1e-12)
    with pytest.raises(jaxdp.UsageError, match="give accountant='rdp'"):
        Ledger().add(SEARCH, "a search").epsilon(delta=1e-5, accountant="pld")


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["poisson", "logarithmic", "geometric"])
def test_the_number_of_runs_of_a_search_has_the_accounted_mean_and_distribution(distribution: Any) -> None:
    """Fixed seed; a false-alarm rate of 1e-4 where it is changed."""
    search = RandomSearch(mean=6.0, distribution=distribution)
    rng = np.random.default_rng(0)
    drawn = np.array([search.number_of_runs(rng) for _ in range(4000)])
    gamma = 1 / 6.0
    law: Any = {
        "poisson": scipy.stats.poisson(6.0),
        "geometric": scipy.stats.geom(gamma),
        "logarithmic": scipy.stats.logser(1 - 0.0540254),  # the gamma that gives mean 6
    }[distribution]
    assert law.mean() == pytest.approx(6.0, rel=2e-3)
    edges = [0, 2, 4, 6, 8, 12, 1000]
    observed = np.histogram(drawn, edges)[0]
    expected = np.diff([law.cdf(edge - 1) for edge in edges]) * len(drawn)
    assert scipy.stats.chisquare(observed, expected / expected.sum() * len(drawn)).pvalue > 1e-4


@pytest.mark.parametrize(
    "arguments", [{"mean": 0.5}, {"mean": -1}, {"mean": 1e30}, {"mean": 3, "distribution": "uniform"}]
)
def test_a_search_that_cannot_be_accounted_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(jaxdp.UsageError):
        RandomSearch(**arguments)


def test_an_entry_that_cannot_be_accounted_says_where_it_can() -> None:
    response = jaxdp.mechanisms.RandomizedResponse(epsilon=1.0, categories=3).event
    with pytest.raises(
        jaxdp.UsageError, match="'a survey' under add_or_remove_one; it can under replace_special or replace_one"
    ):
        Ledger().add(response, "a survey").total(delta=1e-6)


def test_a_ledger_under_another_adjacency_survives_json_and_takes_no_other_entries() -> None:
    ledger = Ledger(adjacency="replace_special").add(TRAINING, "training").add(SEARCH, "a search")
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    assert again == ledger
    assert hash(again) == hash(ledger)
    with pytest.raises(jaxdp.UsageError, match="replace_special"):
        ledger.extend(Ledger().add(TRAINING, "training"))
    assert ledger.extend(Ledger()) == Ledger().extend(ledger) == ledger


def test_randomized_response_counts_under_replace_relations_alone() -> None:
    event = dp.RandomizedResponseDpEvent(0.5, 4)
    assert Ledger(adjacency="replace_special").add(event, "a survey").total(delta=1e-5).epsilon > 0
    with pytest.raises(jaxdp.UsageError, match="no accountant of dp-accounting"):
        Ledger().add(event, "a survey").total(delta=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_response_costs_under_replace_special_what_it_tells_of_any_other_answer(accountant: str) -> None:
    """dp-accounting takes a blanked record to respond at random: 0.69 for 1.10."""
    response, noise = RandomizedResponse(epsilon=math.log(3)).event, gaussian_event(noise_multiplier=5.0)
    special, one = Ledger(adjacency="replace_special"), Ledger(adjacency="replace_one")
    spent = lambda ledger: ledger.epsilon(delta=1e-6, accountant=accountant).epsilon
    assert spent(special.add(response, "an answer")) == spent(one.add(response, "an answer")) > 1.09
    eight = dp.SelfComposedDpEvent(response, 8)
    assert spent(special.add(eight, "answers")) == spent(one.add(eight, "answers"))
    with_noise = spent(special.add(response, "an answer").add(noise, "a mean"))
    assert spent(special.add(noise, "a mean")) + 0.9 < with_noise < spent(special.add(noise, "a mean")) + math.log(3)
    nearly_random = dp.RandomizedResponseDpEvent(1 - 1e-12, 2)
    assert spent(special.add(nearly_random, "nothing").add(noise, "a mean")) == pytest.approx(
        spent(special.add(noise, "a mean")), abs=1e-4
    )
    sampled = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
    both = special.add(response, "an answer").add(sampled, "a step")
    with pytest.raises(jaxdp.UsageError, match="can't account"):
        spent(both)
    step = special.add(sampled, "a step")
    assert both.total(delta=1e-6).epsilon > 1.09 + step.total(delta=1e-6).epsilon
    assert both.total(delta=1e-6).epsilon < math.log(3) + step.total(delta=1e-7).epsilon + 0.01


def test_what_holds_a_ledger_is_none_and_is_told_so() -> None:
    with pytest.raises(jaxdp.UsageError, match='not a ledger, but it holds one: give its "ledger"'):
        Ledger.from_dict({"statement": "This training satisfies", "ledger": Ledger().to_dict()})


def test_a_ledger_whose_entries_are_no_list_is_none() -> None:
    with pytest.raises(jaxdp.UsageError, match="not a ledger"):
        Ledger.from_dict({"adjacency": "add_or_remove_one", "unit": "example", "entries": {}})


def test_a_sample_of_nothing_costs_nothing() -> None:
    nothing = dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 0)
    assert event_epsilon(dp.PoissonSampledDpEvent(0.1, nothing), delta=1e-5).epsilon == 0


@pytest.mark.parametrize("accountant", ["rdp", "pld", "classic"])
def test_a_sample_of_probability_zero_costs_nothing(accountant: str) -> None:
    event = dp.PoissonSampledDpEvent(0.0, dp.GaussianDpEvent(2.0))
    assert event_epsilon(event, delta=1e-5, accountant=accountant).epsilon == 0


def test_an_answer_that_is_always_drawn_anew_costs_nothing() -> None:
    ledger = Ledger(adjacency="replace_one").add(dp.RandomizedResponseDpEvent(1.0, 3), "an answer")
    assert ledger.total(delta=1e-5).epsilon == 0


def test_a_mixture_with_a_negative_shift_is_accounted_by_none() -> None:
    assert not accountants_of(MixtureOfGaussiansDpEvent(1.0, [-1.0, 1.0], [0.5, 0.5]))


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_laplace_noise_of_zero_is_no_privacy(accountant: str) -> None:
    assert event_epsilon(dp.LaplaceDpEvent(0.0), delta=1e-5, accountant=accountant).epsilon == math.inf


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"type": "ComposedDpEvent", "events": {"type": "NoOpDpEvent"}}, "events=.*give a list"),
        ({"type": "GaussianDpEvent", "noise_multiplier": {"type": "NoOpDpEvent"}}, "noise_multiplier="),
        ({"type": "SelfComposedDpEvent", "event": 3, "count": 2}, "event=3 is a int"),
        (
            {"type": "SelfComposedDpEvent", "event": {"type": "NoOpDpEvent"}, "count": {"type": "NoOpDpEvent"}},
            "count=",
        ),
        (
            {"type": "MixtureOfGaussiansDpEvent", "standard_deviation": 1, "sensitivities": 1, "sampling_probs": [1]},
            "sensitivities=1 is a int",
        ),
        (
            {"type": "MixtureOfGaussiansDpEvent", "standard_deviation": 1, "sensitivities": [1], "sampling_probs": []},
            "a probability for each sensitivity",
        ),
        ({"type": "DiscreteLaplaceDpEvent", "noise_parameter": 1.0, "sensitivity": 0}, "sensitivity of 1 or above"),
        ({"type": "RandomizedResponseDpEvent", "noise_parameter": 2.0, "num_buckets": 4}, "noise_parameter of 1"),
        ({"type": "RandomizedResponseDpEvent", "noise_parameter": 0.5, "num_buckets": 0}, "num_buckets of 1"),
        ({"type": "SingleEpochTreeAggregationDpEvent", "noise_multiplier": 1.0, "step_counts": []}, "step_counts of 1"),
        (
            {"type": "RepeatAndSelectDpEvent", "event": {"type": "NoOpDpEvent"}, "mean": 0.5, "shape": 1.0},
            "a mean of 1 or above",
        ),
    ],
)
def test_an_event_whose_fields_are_of_the_wrong_kind_is_refused(event: dict[str, Any], said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        event_from_dict(event)


def test_a_file_of_nothing_but_brackets_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(jaxdp.UsageError, match="can't be read"):
        read_ledger(tmp_path / "ledger.json")


def test_what_is_not_an_event_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="not an event of dp-accounting"):
        Ledger().add(1.1, "noise")  # pyright: ignore


def test_what_a_search_left_of_a_budget_is_none() -> None:
    run = jaxdp.DPSGD(num_examples=4000, expected_batch_size=200, steps=40, clip_norm=1.0, noise_multiplier=1.0)
    ledger = run.with_noise_for(epsilon=2.0, delta=1e-5).ledger()
    with pytest.raises(
        jaxdp.UsageError, match=r"spent already: .* cost (2\.0000|1\.9999); a budget is of all runs together"
    ):
        run.with_noise_for(epsilon=2.0, delta=1e-5, ledger=ledger)


@pytest.mark.slow
def test_a_budget_counts_what_was_spent_before() -> None:
    run = jaxdp.DPSGD(num_examples=4000, expected_batch_size=200, steps=40, clip_norm=1.0, noise_multiplier=1.0)
    before = Ledger().add(gaussian_event(noise_multiplier=5.0), "a mean")
    found = run.with_noise_for(epsilon=2.0, delta=1e-5, ledger=before)
    both = before.extend(found.ledger()).epsilon(delta=1e-5).epsilon
    assert 1.999 < both <= 2.0
    assert found.noise_multiplier > run.with_noise_for(epsilon=2.0, delta=1e-5).noise_multiplier
    with pytest.raises(jaxdp.UsageError, match="has been spent already"):
        run.with_noise_for(epsilon=0.1, delta=1e-5, ledger=before)
    text = found.statement(delta=1e-5, spent_before=before)
    assert "used before, by: a mean" in text
    with pytest.raises(jaxdp.UsageError, match="under one adjacency"):
        run.with_noise_for(epsilon=2.0, delta=1e-5, ledger=Ledger(before.entries, "replace_one"))
    with pytest.raises(jaxdp.UsageError, match="under one adjacency"):
        run.statement(delta=1e-5, steps=0, spent_before=Ledger(before.entries, "replace_one"))


def test_what_protects_examples_is_not_added_to_what_protects_users() -> None:
    usual = {"num_examples": 4000, "expected_batch_size": 200, "steps": 4, "clip_norm": 1.0, "noise_multiplier": 1.0}
    examples, users = jaxdp.DPSGD(**usual), jaxdp.DPSGD(**usual, unit="user", records_per_user=20)
    for call in (
        lambda: users.statement(delta=1e-5, spent_before=examples.ledger()),
        lambda: users.with_noise_for(epsilon=3.0, delta=1e-5, ledger=examples.ledger()),
        lambda: users.ledger().extend(examples.ledger()),
        lambda: users.statement(delta=1e-5, steps=0, spent_before=examples.ledger()),  # before the first step, too
    ):
        with pytest.raises(jaxdp.UsageError, match="account both under one unit"):
            call()
    assert Ledger.from_dict(users.ledger().to_dict()) == users.ledger()


@pytest.mark.parametrize("count", [-3, 1.5])
def test_an_event_that_gives_back_is_refused(count: Any) -> None:
    event = dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), count)
    with pytest.raises(jaxdp.UsageError, match="count"):
        Ledger().add(event, "a gift")
    stored = Ledger().add(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), np.int64(3)), "three").to_dict()
    stored["entries"][0]["event"]["count"] = count
    with pytest.raises(jaxdp.UsageError, match="count"):
        Ledger.from_dict(stored)


@pytest.mark.slow
def test_a_budget_by_pld_nearly_spent_still_allows_what_it_allows() -> None:
    spent = Ledger().add(gaussian_event(noise_multiplier=3.0), "a mean")
    cost = spent.epsilon(delta=1e-5, accountant="pld").epsilon
    run = jaxdp.DPSGD(num_examples=4000, expected_batch_size=4, steps=50, clip_norm=1.0, noise_multiplier=20.0)
    within = run.within(epsilon=cost * 1.0005, delta=1e-5, accountant="pld", ledger=spent)
    both = spent.extend(within.ledger()).epsilon(delta=1e-5, accountant="pld").epsilon
    assert cost <= both <= cost * 1.0005


def test_a_ledger_holds_no_nonce_twice() -> None:
    event = gaussian_event(noise_multiplier=20.0)
    ledger = Ledger().add(event, "one run", nonce="a1").add(event, "another", nonce="b2").add(event, "no key")
    assert Ledger.from_dict(ledger.to_dict()) == ledger
    for again in (lambda: ledger.add(event, "the same noise", nonce="a1"), lambda: ledger.extend(ledger)):
        with pytest.raises(UsageError, match="two entries of one nonce"):
            again()


@pytest.mark.slow
def test_a_total_below_the_figure_of_one_of_its_parts_says_why() -> None:
    run = jaxdp.DPSGD(num_examples=4000, expected_batch_size=200, steps=40, clip_norm=1.0, noise_multiplier=1.0)
    little = Ledger().add(gaussian_event(noise_multiplier=100.0), "a mean")
    alone, together = run.epsilon(delta=1e-5), little.extend(run.ledger()).total(delta=1e-5).epsilon
    assert together < alone
    told = run.statement(delta=1e-5, spent_before=little)
    assert (
        f"It is less than the {accounting.rounded_up(alone)} for this training alone because it is by another" in told
    )
    much = Ledger().add(gaussian_event(noise_multiplier=1.0), "a mean")
    assert "for this training alone" not in run.statement(delta=1e-5, spent_before=much)


def test_a_list_for_a_number_is_refused() -> None:
    entry = {"label": "a run", "event": {"type": "GaussianDpEvent", "noise_multiplier": [1.0]}}
    with pytest.raises(jaxdp.UsageError, match="noise_multiplier"):
        Ledger.from_dict({"adjacency": "add_or_remove_one", "unit": "example", "entries": [entry]})


def test_an_empty_ledger_holds_what_it_was_made_for() -> None:
    training = Ledger().add(TRAINING, "training")
    for declared in (Ledger(adjacency="replace_one"), Ledger(unit="user")):
        with pytest.raises(jaxdp.UsageError, match="can't take entries with"):
            declared.extend(training)
        with pytest.raises(jaxdp.UsageError, match="can't take entries with"):
            training.extend(declared)
        assert Ledger().extend(declared) == declared.extend(Ledger()) == declared
    run = jaxdp.DPSGD(num_examples=9, expected_batch_size=3, steps=1, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(jaxdp.UsageError, match="can't take entries with unit='user'"):  # and not behind the last step
        run.make_step(lambda w, x: w * x, optax.sgd(0.1)).init(1.0, jax.random.key(0), spent_before=Ledger(unit="user"))


@pytest.mark.slow
def test_a_share_of_delta_that_the_noise_ends_within_is_left_out() -> None:
    little = truncated_poisson_event(
        noise_multiplier=0.53, sample_rate=0.01, num_examples=100_000, truncated_batch_size=1000, steps=1000
    )
    ledger = Ledger().add(little, "training").add(Exponential(epsilon=0.1, sensitivity=1.0).event, "a choice")
    assert accountants_of(ledger.event) == ()
    assert ledger.total(delta=9e-6).epsilon < ledger.total(delta=8.9e-6).epsilon
    with pytest.raises(
        jaxdp.UsageError, match="delta=7e-06 is divided between RDP and PLD here, and no part is enough"
    ):
        ledger.total(delta=7e-6)


@pytest.mark.parametrize("where", ["entry", "ledger"])
def test_a_field_that_nobody_reads_is_refused(where: str) -> None:
    stored = Ledger().add(gaussian_event(noise_multiplier=20.0), "a mean").to_dict()
    (stored["entries"][0] if where == "entry" else stored)["times"] = 100
    with pytest.raises(jaxdp.UsageError, match="'times' is unknown"):
        Ledger.from_dict(stored)
