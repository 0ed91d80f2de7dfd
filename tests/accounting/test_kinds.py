"""Every kind of event, composed by count, in lists and nested, against one by one."""

import itertools
from typing import Any

import dp_accounting as dp
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event

from jaxdp import UsageError
from jaxdp.accounting import (
    ACCOUNTANTS,
    ADJACENCIES,
    Ledger,
    accountants_of,
    event_epsilon,
    event_from_dict,
    event_to_dict,
)
from jaxdp.accounting._epsilon import epsilon_at_interval
from jaxdp.accounting._kinds import MOST_COPIES, as_counted

GAUSSIAN: Any = dp.GaussianDpEvent(3.0)
KINDS: dict[str, Any] = {
    "NoOpDpEvent": dp.NoOpDpEvent(),
    "NonPrivateDpEvent": dp.NonPrivateDpEvent(),
    "UnsupportedDpEvent": dp.UnsupportedDpEvent(),
    "GaussianDpEvent": GAUSSIAN,
    "LaplaceDpEvent": dp.LaplaceDpEvent(3.0),
    "DiscreteLaplaceDpEvent": dp_event.DiscreteLaplaceDpEvent(0.3, 1),
    "RandomizedResponseDpEvent": dp.RandomizedResponseDpEvent(0.5, 4),
    "ZCDpEvent": dp.ZCDpEvent(0.05),
    "PoissonSampledDpEvent": dp.PoissonSampledDpEvent(0.2, GAUSSIAN),
    "PoissonSampledDpEvent of a list": dp.PoissonSampledDpEvent(0.2, dp.ComposedDpEvent([GAUSSIAN, GAUSSIAN])),
    "PoissonSampledDpEvent of a count": dp.PoissonSampledDpEvent(0.2, dp.SelfComposedDpEvent(GAUSSIAN, 2)),
    "PoissonSampledDpEvent of Laplace": dp.PoissonSampledDpEvent(0.2, dp.LaplaceDpEvent(3.0)),
    "SampledWithReplacementDpEvent": dp.SampledWithReplacementDpEvent(100, 20, GAUSSIAN),
    "SampledWithoutReplacementDpEvent": dp.SampledWithoutReplacementDpEvent(100, 20, GAUSSIAN),
    "SingleEpochTreeAggregationDpEvent": dp.SingleEpochTreeAggregationDpEvent(3.0, [7]),
    "RepeatAndSelectDpEvent": dp_event.RepeatAndSelectDpEvent(GAUSSIAN, 4.0, 1.0),
    "RepeatAndSelectDpEvent of a count": dp_event.RepeatAndSelectDpEvent(dp.SelfComposedDpEvent(GAUSSIAN, 3), 4.0, 1.0),
    "MixtureOfGaussiansDpEvent": dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 1.0], [0.8, 0.2]),
    "TruncatedSubsampledGaussianDpEvent": dp.TruncatedSubsampledGaussianDpEvent(100, 0.2, 30, 3.0),
    "SelfComposedDpEvent": dp.SelfComposedDpEvent(GAUSSIAN, 2),
    "ComposedDpEvent": dp.ComposedDpEvent([GAUSSIAN, GAUSSIAN]),
}
_SHORT = 2e-2  # an interval of privacy losses that is quick


def _cost(event: Any, accountant: str, adjacency: str) -> float:
    return epsilon_at_interval(event, 1e-5, accountant, adjacency, _SHORT).epsilon


def test_every_kind_of_event_that_dp_accounting_has_is_in_the_table() -> None:
    kinds = {name for name, kind in vars(dp_event).items() if isinstance(kind, type) and issubclass(kind, dp.DpEvent)}
    assert kinds - {"DpEvent"} == {name.split()[0] for name in KINDS}


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", list(KINDS))
def test_an_event_costs_by_count_in_lists_and_nested_what_it_costs_one_by_one(name: str, adjacency: str) -> None:
    one = KINDS[name]
    one_by_one = dp.ComposedDpEvent([one] * 6)
    told = {
        "by count": dp.SelfComposedDpEvent(one, 6),
        "count of a list": dp.SelfComposedDpEvent(dp.ComposedDpEvent([one, one, one]), 2),
        "list of counts": dp.ComposedDpEvent([dp.SelfComposedDpEvent(one, 5), one]),
        "count of a count": dp.SelfComposedDpEvent(dp.SelfComposedDpEvent(one, 3), 2),
    }
    able = accountants_of(one_by_one, adjacency)
    for how, event in told.items():
        assert accountants_of(event, adjacency) == able, how
        for accountant in able:
            cost, expected = (_cost(each, accountant, adjacency) for each in (event, one_by_one))
            assert cost == pytest.approx(expected, rel=1e-9 if accountant != "pld" else 1e-2, abs=6 * _SHORT), how
    entries = Ledger(adjacency=adjacency)
    for _ in range(6):
        entries = entries.add(one, "one")
    for accountant in able:
        assert _cost(entries.event, accountant, adjacency) == pytest.approx(_cost(one_by_one, accountant, adjacency))
        if np.isfinite(alone := _cost(one, accountant, adjacency)) and alone > 10 * _SHORT:
            assert _cost(told["by count"], accountant, adjacency) > 1.2 * alone


def test_what_is_on_no_list_is_refused_by_every_accountant() -> None:
    class OfMyOwnDpEvent(dp.GaussianDpEvent):
        """Another mechanism, which an accountant would take for Gaussian."""

    refused = (OfMyOwnDpEvent(3.0), KINDS["SampledWithReplacementDpEvent"], KINDS["UnsupportedDpEvent"])
    for event, adjacency in itertools.product(refused, ADJACENCIES):
        for told in (event, dp.ComposedDpEvent([GAUSSIAN, event]), dp.SelfComposedDpEvent(event, 3)):
            assert accountants_of(told, adjacency) == ()


@pytest.mark.slow
def test_many_randomized_responses_are_counted_or_left_to_the_accountant_that_counts_them() -> None:
    response = KINDS["RandomizedResponseDpEvent"]
    many = dp.SelfComposedDpEvent(response, MOST_COPIES + 1)
    assert accountants_of(many, "replace_one") == ("rdp", "classic")
    with pytest.raises(UsageError, match="give accountant='rdp'"):
        event_epsilon(many, delta=1e-5, accountant="pld", adjacency="replace_one")
    apart = dp.ComposedDpEvent([dp.SelfComposedDpEvent(response, 40), dp.SelfComposedDpEvent(response, 40)])
    assert as_counted(apart, "pld") is None
    tight, loose = (Ledger(adjacency="replace_one").add(event, "a survey").total(delta=1e-5) for event in (
        dp.SelfComposedDpEvent(response, 30), many))  # fmt: skip
    assert 10 < tight.epsilon < loose.epsilon
    both = (
        Ledger(adjacency="replace_one")
        .add(many, "a survey")
        .add(KINDS["TruncatedSubsampledGaussianDpEvent"], "training")
    )
    assert [spent.accountant for spent, _ in both.total(delta=1e-5).parts] == ["rdp", "pld"]


def test_what_is_made_no_times_costs_nothing() -> None:
    for one in (GAUSSIAN, KINDS["PoissonSampledDpEvent"], KINDS["LaplaceDpEvent"]):
        for accountant in ACCOUNTANTS:
            assert event_epsilon(dp.SelfComposedDpEvent(one, 0), delta=1e-5, accountant=accountant).epsilon == 0


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_no_numeric_type_changes_what_an_event_costs(kind: Any) -> None:
    def retyped(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: retyped(each) for key, each in value.items()}
        return kind(value) if isinstance(value, float) else value

    for name in ("GaussianDpEvent", "LaplaceDpEvent", "DiscreteLaplaceDpEvent", "ZCDpEvent", "RepeatAndSelectDpEvent"):
        given = event_from_dict(retyped(event_to_dict(KINDS[name])))
        for accountant in accountants_of(KINDS[name]):
            costs = [_cost(event, accountant, "add_or_remove_one") for event in (given, KINDS[name])]
            assert costs[0] == pytest.approx(costs[1], rel=1e-2, abs=2 * _SHORT), name
    nested = dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(kind(1.0)), np.int32(8)))
    plain = dp.PoissonSampledDpEvent(0.1, dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 8))
    assert event_epsilon(nested, delta=1e-5) == event_epsilon(plain, delta=1e-5)


@pytest.mark.parametrize(
    "around", [lambda e: dp.PoissonSampledDpEvent(0.1, e), lambda e: dp_event.RepeatAndSelectDpEvent(e, 4.0, 1.0)]
)
def test_what_was_made_no_time_costs_nothing_beside_others(around: Any) -> None:
    beside = around(dp.ComposedDpEvent([GAUSSIAN, dp.SelfComposedDpEvent(GAUSSIAN, 0)]))
    alone = around(GAUSSIAN)
    for accountant in accountants_of(alone):
        costs = [_cost(event, accountant, "add_or_remove_one") for event in (beside, alone)]
        assert costs[0] == pytest.approx(costs[1]), accountant


def test_numbers_that_are_none_are_refused_by_name() -> None:
    for event, name in (
        (dp.PoissonSampledDpEvent(1.5, GAUSSIAN), "sampling_probability"),
        (dp.ZCDpEvent(-1.0), "rho"),
        (dp.GaussianDpEvent(jnp.ones(2)), "noise_multiplier"),
        (dp.SelfComposedDpEvent(GAUSSIAN, 2.5), "count"),
    ):
        with pytest.raises(UsageError, match=name):
            event_epsilon(event, delta=1e-5)
