"""Epsilon, noise multipliers, ledger and statement, against dp-accounting's own figures."""

import json
import math
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import jaxdp
from jaxdp import accounting
from jaxdp.accounting import Ledger, _epsilon, poisson_event

RATE = 250 / 60_000


@pytest.mark.parametrize(
    ("steps", "rdp", "pld", "classic", "order"),
    [
        (720, 0.563172649032795, 0.370275, 0.7903529309842828, 18),
        (3600, 0.9422002181626765, 0.853030, 1.1799006739826248, 17),
    ],
)
def test_the_tutorials_runs_cost_what_dp_accounting_says(
    steps: int, rdp: float, pld: float, classic: float, order: int
) -> None:
    event = poisson_event(noise_multiplier=1.3, sample_rate=RATE, steps=steps)
    spent = {name: accounting.event_epsilon(event, delta=1e-5, accountant=name) for name in accounting.ACCOUNTANTS}
    assert spent["rdp"].epsilon == pytest.approx(rdp, abs=1e-12)
    assert spent["classic"].epsilon == pytest.approx(classic, abs=1e-12)
    assert spent["pld"].epsilon == pytest.approx(pld, abs=1e-6)
    assert (spent["rdp"].order, spent["classic"].order, spent["pld"].order) == (order, order, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "sigma", "steps"),
    [(512, 1.23, 4688), (4096, 3.04, 586), (256, 0.6, 100)],
)
def test_epsilon_is_that_of_the_hand_built_event(batch: int, sigma: float, steps: int) -> None:
    rate = batch / 60_000
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps)
    run = jaxdp.DPSGD(
        num_examples=60_000, expected_batch_size=batch, steps=steps, clip_norm=0.3, noise_multiplier=sigma
    )
    for name, accountant in (("rdp", RdpAccountant()), ("pld", PLDAccountant())):
        theirs = accountant.compose(event).get_epsilon(1e-5)
        ours = accounting.epsilon(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=1e-5, accountant=name)
        assert ours == pytest.approx(theirs, abs=1e-12)
        assert run.epsilon(delta=1e-5, accountant=name) == ours
    assert run.event == event


@pytest.mark.parametrize("sigma", [2, np.float32(2.0), np.float64(2.0), np.int64(2)])
def test_a_noise_multiplier_of_any_numeric_type_reaches_dp_accounting_as_a_float(sigma: Any) -> None:
    event: Any = poisson_event(noise_multiplier=sigma, sample_rate=np.float64(RATE), steps=np.int64(10))  # pyright: ignore
    assert type(event.event.event.noise_multiplier) is float
    assert type(event.event.sampling_probability) is float
    assert type(event.count) is int


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accountant", "sigma"),
    [("rdp", 1.25394), ("pld", 1.17534), ("classic", 1.45004)],
)
def test_the_noise_for_a_budget_of_one(accountant: str, sigma: float) -> None:
    budget = {"delta": 1e-5, "sample_rate": RATE, "steps": 3600, "accountant": accountant}
    found = accounting.noise_multiplier(epsilon=1.0, **budget)
    assert found == pytest.approx(sigma, abs=1e-5)
    assert accounting.epsilon(noise_multiplier=found, **budget) <= 1.0
    assert accounting.epsilon(noise_multiplier=found - 1e-5, **budget) > 1.0


def test_any_number_of_steps_of_one_run_costs_what_dp_accounting_says_to_the_bit() -> None:
    """One step's curve is remembered, and multiplied."""
    for steps in (3600, 1, 7, 720):
        event = poisson_event(noise_multiplier=1.3, sample_rate=RATE, steps=steps)
        ours = _epsilon.composed_by("rdp", event, "add_or_remove_one")
        assert ours is not None
        whole = RdpAccountant().compose(event)
        assert ours.get_epsilon_and_optimal_order(1e-5) == whole.get_epsilon_and_optimal_order(1e-5)


@pytest.mark.slow_but("60.0")
@pytest.mark.parametrize("epsilon", [0.05, 3.0, 60.0, 0.5, 20.0])
def test_the_noise_for_a_budget_never_overspends_it(epsilon: float) -> None:
    found = accounting.noise_multiplier(epsilon=epsilon, delta=1e-6, sample_rate=0.02, steps=200)
    spent = accounting.epsilon(noise_multiplier=found, delta=1e-6, sample_rate=0.02, steps=200)
    assert epsilon * 0.99 < spent <= epsilon


@pytest.mark.slow
def test_what_a_search_by_pld_allows_plds_own_epsilon_allows() -> None:
    """Of many steps of small losses, RDP's is the smaller: 0.0087 against 0.024."""
    run = jaxdp.DPSGD(num_examples=50_000, expected_batch_size=5, steps=100_000, clip_norm=1.0, noise_multiplier=10.0)
    within = run.within(epsilon=0.0175, delta=1e-5, accountant="pld")
    assert 0.017 < within.epsilon(delta=1e-5, accountant="pld") <= 0.0175
    asked = {"delta": 1e-5, "sample_rate": 250 / 60_000, "steps": 240, "accountant": "pld"}
    sigma = accounting.noise_multiplier(epsilon=1e-5, **asked)
    assert accounting.epsilon(noise_multiplier=sigma, **asked) <= 1e-5


def test_a_step_not_made_is_not_charged() -> None:
    run = jaxdp.DPSGD(num_examples=1000, expected_batch_size=100, steps=50, clip_norm=1.0, noise_multiplier=1.0)
    assert run.epsilon(delta=1e-5, steps=0) == 0
    assert run.epsilon(delta=1e-5, steps=10) < run.epsilon(delta=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": -1.0},
        {"sample_rate": 0.0},
        {"sample_rate": 1.1},
        {"steps": -1},
        {"delta": 0.0},
        {"delta": 1.0},
        {"accountant": "moments"},
    ],
)
def test_epsilon_refuses_what_is_out_of_range(arguments: dict[str, Any]) -> None:
    usual = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(jaxdp.UsageError):
        accounting.epsilon(**{**usual, **arguments})


def test_a_ledger_composes_its_entries_and_survives_json() -> None:
    training = poisson_event(noise_multiplier=1.1, sample_rate=0.01, steps=100)
    ledger = Ledger().add(training, "training").add(dp.GaussianDpEvent(5.0), "a mean")
    assert Ledger().epsilon(delta=1e-5).epsilon == 0
    both = RdpAccountant().compose(training).compose(dp.GaussianDpEvent(5.0)).get_epsilon(1e-5)
    assert ledger.epsilon(delta=1e-5).epsilon == pytest.approx(both, abs=1e-12)
    assert Ledger.from_dict(json.loads(json.dumps(ledger.to_dict()))) == ledger


@pytest.mark.parametrize(
    "description", [{}, {"entries": [{"label": "x"}]}, {"entries": [{"label": "x", "event": {"type": "os"}}]}]
)
def test_what_is_not_a_ledger_is_refused(description: dict[str, Any]) -> None:
    with pytest.raises(jaxdp.UsageError):
        Ledger.from_dict(description)


def test_the_statement_names_what_a_reader_needs() -> None:
    run = jaxdp.DPSGD(num_examples=60_000, expected_batch_size=250, steps=3600, clip_norm=1.5, noise_multiplier=1.3)
    text = run.statement(delta=1e-5)
    for part in (
        "(0.9423, 1e-05)",  # rounded up, never down
        "(0.8531, 1e-05)",
        "order 17",
        "added or removed",
        "60,000, is treated as public",
        "Poisson sampling",
        "L2 norm 1.5",
        "3,600 steps",
        "the parameters after every step",
        "the checkpoints of a run under way",
        "Not protected",
        "random keys",
    ):
        assert part in text


def test_a_statement_begins_with_the_accountant_that_is_asked_for() -> None:
    run = jaxdp.DPSGD(num_examples=6000, expected_batch_size=60, steps=100, clip_norm=1.0, noise_multiplier=1.1)
    by_rdp, by_pld = (run.statement(delta=1e-5, accountant=name) for name in ("rdp", "pld"))
    assert by_rdp == run.statement(delta=1e-5)
    first = jaxdp.accounting.rounded_up(run.epsilon(delta=1e-5, accountant="pld"))
    assert by_pld.startswith(f"This training satisfies ({first}, 1e-05)-differential privacy by the PLD accountant")
    assert jaxdp.accounting.rounded_up(run.epsilon(delta=1e-5)) in by_pld
    with pytest.raises(jaxdp.UsageError, match="accountant"):
        run.statement(delta=1e-5, accountant="prv")


def test_whole_batches_are_stated_to_the_last_digit() -> None:
    numbers = {"num_examples": 20_000_000, "expected_batch_size": 1_234_567, "steps": 10, "clip_norm": 1.0}
    run = jaxdp.DPSGD(**numbers, noise_multiplier=12.0)
    text = run.statement(delta=1e-9)
    assert "was added to the sum, which was then divided by 1234567, a constant" in text
    assert "with probability 1234567/20000000 = 0.0617284 " in text


def test_a_delta_at_which_pld_has_no_figure_is_stated_by_rdp_alone() -> None:
    run = jaxdp.DPSGD(num_examples=10**6, expected_batch_size=1, steps=10, clip_norm=1.0, noise_multiplier=100.0)
    assert run.epsilon(delta=1e-17, accountant="pld") == math.inf
    for search in (run.with_noise_for, run.within):
        with pytest.raises(accounting.NoFigureError, match="take the RDP accountant, or a larger delta"):
            search(epsilon=1.0, delta=1e-17, accountant="pld")
    text = run.statement(delta=1e-17, accountant="pld")
    assert "Its PLD accountant has none at so small a delta." in text
    assert "infinite" not in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_examples": 2**31}, "num_examples=2147483648 must be below 2\\^31"),
        ({"num_examples": 10**8, "expected_batch_size": 0.01}, "32 random bits can't tell a smaller one from 0"),
    ],
)
@pytest.mark.parametrize("sampling", ["poisson", "truncated_poisson"])
def test_a_run_that_no_sampler_draws_is_not_described(changes: dict[str, Any], why: str, sampling: str) -> None:
    numbers = {"num_examples": 1000, "expected_batch_size": 10, "steps": 3, "clip_norm": 1.0, "noise_multiplier": 1.0}
    most = 50 if sampling == "truncated_poisson" else None
    with pytest.raises(jaxdp.UsageError, match=why):
        jaxdp.DPSGD(**{**numbers, **changes}, sampling=sampling, truncated_batch_size=most)


@pytest.mark.parametrize(
    ("delta", "shown"),
    [(1e-5, "1e-05"), (1.2345649e-4, "0.000123457"), (1 / 60_000, "1.66667e-05"), (1e-300, "1e-300")],
)
def test_no_smaller_delta_is_shown(delta: float, shown: str) -> None:
    assert _epsilon.no_smaller(delta) == shown
    assert float(shown) >= delta


def test_a_bound_is_rounded_to_the_side_on_which_it_holds() -> None:
    assert _epsilon.rounded_up(3.58559) == "3.5856"
    assert _epsilon.rounded_down(3.58569) == "3.5856"
    assert _epsilon.rounded_up(0.9422002, 6) == "0.942201"
    assert _epsilon.rounded_up(math.inf) == _epsilon.rounded_down(math.inf) == "infinite"


def test_a_statement_of_fewer_steps_than_described_says_when_it_holds() -> None:
    run = jaxdp.DPSGD(num_examples=5000, expected_batch_size=50, steps=40, clip_norm=1.0, noise_multiplier=1.0)
    assert "settled beforehand that no more of 40 steps would be made" in run.statement(delta=1e-5, steps=30)
    assert "settled beforehand" not in run.statement(delta=1e-5)
