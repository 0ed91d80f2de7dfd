"""Synthetic records. Statistical tests fix their seeds; with others, one in 10,000 would alarm falsely."""

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
from jaxdp.mechanisms import CategoricalTable, Exponential, Laplace, MultiplicativeWeights
from jaxdp.mechanisms._multiplicative_weights import _checked_queries, _distances, _fitted

FALSE_ALARM = 1e-4
DRAWS = 300
TABLE = CategoricalTable(sizes=(2, 3, 2))
ROWS = np.random.default_rng(0).integers(0, (2, 3, 2), (400, 3))


def test_an_update_moves_the_weight_that_the_paper_says() -> None:
    once = MultiplicativeWeights(epsilon=1.0, rounds=1, num_records=10, passes=1)
    half, matrix = np.array([5.0, 5.0]), np.array([[1.0, 0.0]])
    first = 10 / (1 + math.exp(-(8 - 5) / 20))
    np.testing.assert_allclose(_fitted(once, half, matrix, [(0, 8.0)]), [first, 10 - first], rtol=1e-12)
    odds = first / (10 - first) * math.exp((8 - first) / 20)
    twice = _fitted(MultiplicativeWeights(epsilon=1.0, rounds=1, num_records=10, passes=2), half, matrix, [(0, 8.0)])
    np.testing.assert_allclose(twice, [10 * odds / (1 + odds), 10 / (1 + odds)], rtol=1e-12)


@pytest.mark.slow
def test_one_round_with_little_noise_is_one_update() -> None:
    synthesise = MultiplicativeWeights(epsilon=80.0, rounds=1, num_records=10, passes=1)
    histogram = synthesise([8, 2], [[1.0, 0.0]], key=jax.random.key(0))
    expected = 10 / (1 + math.exp(-3 / 20))
    np.testing.assert_allclose(histogram, [expected, 10 - expected], atol=0.03)  # ten scales of the noise


@pytest.mark.slow
def test_the_first_query_is_chosen_as_the_exponential_mechanism_does() -> None:
    synthesise = MultiplicativeWeights(epsilon=0.8, rounds=1, num_records=60, passes=1)
    chosen = np.zeros(3)
    for key in jax.random.split(jax.random.key(0), DRAWS):
        histogram = synthesise([30, 12, 18], np.eye(3), key=key)  # the other two stay alike
        chosen[np.argmax(np.abs(histogram - np.median(histogram)))] += 1
    weights = np.exp(0.4 * np.array([10.0, 8.0, 2.0]) / 2)
    assert scipy.stats.chisquare(chosen, DRAWS * weights / weights.sum()).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_with_hardly_any_noise_all_marginals_are_matched() -> None:
    queries, counts = TABLE.marginals(), TABLE.histogram(ROWS)
    synthesise = MultiplicativeWeights(epsilon=2400.0, rounds=30, num_records=400, passes=200)
    histogram = synthesise(counts, queries, key=jax.random.key(0))
    assert np.abs(queries @ (histogram - counts)).max() < 2  # of 400 records


@pytest.mark.slow_but("0.5-2", "4.0-8")
@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 30])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_a_ledger_is_charged_no_more_than_the_sum_of_all_rounds(epsilon: float, rounds: int) -> None:
    synthesise = MultiplicativeWeights(epsilon=epsilon, rounds=rounds, num_records=100)
    assert synthesise.choice.epsilon == synthesise.measurement.epsilon == epsilon / (2 * rounds)
    step = 2 * rounds * 1e-4  # by which the PLD accountant rounds losses up
    assert Ledger().add(synthesise.event, "a histogram").total(delta=1e-9).epsilon < epsilon + step
    replaced = MultiplicativeWeights(epsilon=epsilon, rounds=rounds, num_records=100, adjacency="replace_one")
    ledger = Ledger(adjacency="replace_one").add(replaced.event, "a histogram")
    assert ledger.total(delta=1e-9).epsilon < epsilon + step
    with pytest.raises(jaxdp.UsageError, match="can't account"):
        Ledger().add(replaced.event, "a histogram").epsilon(delta=1e-6)
    with pytest.raises(jaxdp.UsageError, match="can't account"):
        Ledger(adjacency="replace_one").add(synthesise.event, "a histogram").epsilon(delta=1e-6)


def test_one_round_costs_a_ledger_of_replaced_records_the_whole_of_epsilon() -> None:
    synthesise = MultiplicativeWeights(epsilon=1.5, rounds=1, num_records=100, adjacency="replace_one")
    spent = Ledger(adjacency="replace_one").add(synthesise.event, "a histogram").epsilon(delta=1e-12, accountant="pld")
    assert 1.5 <= spent.epsilon < 1.501


@pytest.mark.slow_but("1.0")
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 6.0])
def test_a_choice_exceeds_no_loss_more_often_than_laplace_noise_of_its_epsilon(epsilon: float) -> None:
    losses = np.linspace(-epsilon, epsilon, 101)
    ledger = Ledger().add(Laplace(epsilon=epsilon, sensitivity=1).event, "one")
    for delta in (0.01, 0.03):  # what is said of Laplace noise is what dp-accounting says
        spent = ledger.epsilon(delta=delta, accountant="pld").epsilon
        assert 1 - math.exp((spent - epsilon) / 2) == pytest.approx(delta, abs=2e-4)
    choose, rng = Exponential(epsilon=epsilon, sensitivity=1), np.random.default_rng(0)
    for scale in (0.1, 1.0, 10.0):
        for _ in range(10):
            scores = rng.normal(size=4) * scale
            moved = scores + rng.choice([-1.0, 1.0], size=4)
            p, q = (np.exp(np.asarray(choose.log_probabilities(each), np.float64)) for each in (scores, moved))
            exceeded = np.maximum(p - np.exp(losses)[:, None] * q, 0).sum(axis=1)
            assert (exceeded <= 1 - np.exp((losses - epsilon) / 2) + 1e-5).all()


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.integers(1, 6), st.booleans())
def test_one_record_moves_no_score_by_more_than_one(seed: int, cells: int, queries: int, exchanged: bool) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 2**28, cells).astype(np.float64)  # many records, whose sums floats would round
    neighbour = counts.copy()
    neighbour[rng.integers(cells)] -= 1
    neighbour[rng.integers(cells)] += exchanged
    matrix = _checked_queries(rng.random((queries, cells)) ** rng.integers(0, 9))
    histogram = rng.random(cells) * counts.sum()
    first, second = matrix @ counts, matrix @ neighbour
    assert np.abs(first - second).max() <= 1
    assert np.abs(_distances(first, matrix, histogram) - _distances(second, matrix, histogram)).max() <= 1
    np.testing.assert_array_equal(first, matrix[:, ::-1] @ counts[::-1])


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from([(1,), (3,), (2, 4), (2, 1, 3)]),
    st.sampled_from([0.05, 60.0]),  # few, since each is compiled
    st.integers(1, 100),
    st.integers(0, 2**32 - 1),
)
def test_a_synthetic_histogram_has_n_records_and_none_below_zero(
    sizes: tuple[int, ...], epsilon: float, records: int, seed: int
) -> None:
    table = CategoricalTable(sizes=sizes)
    rows = np.random.default_rng(seed).integers(0, sizes, (records, len(sizes)))
    synthesise = MultiplicativeWeights(epsilon=epsilon, rounds=3, num_records=50, passes=30)
    histogram = synthesise(table.histogram(rows), table.marginals(), key=jax.random.key(seed))
    assert histogram.shape == (table.cells,)
    assert np.isfinite(histogram).all()
    assert (histogram >= 0).all()
    assert histogram.sum() == pytest.approx(50, rel=1e-9)


def test_a_table_of_two_columns_has_these_marginals() -> None:
    table = CategoricalTable(sizes=(2, 2))
    one_way = [[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    np.testing.assert_array_equal(table.marginals(), np.array([*one_way, *np.eye(4)], bool))
    np.testing.assert_array_equal(table.histogram([[0, 1], [1, 0], [0, 1]]), [0, 2, 1, 0])


def test_marginals_count_rows_by_one_and_by_two_columns() -> None:
    found = list(TABLE.marginals() @ TABLE.histogram(ROWS))
    expected = [(ROWS[:, column] == value).sum() for column, size in enumerate((2, 3, 2)) for value in range(size)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for one in range(TABLE.sizes[first]):
            expected += [
                ((ROWS[:, (first, second)] == (one, two)).all(axis=1)).sum() for two in range(TABLE.sizes[second])
            ]
    assert found == expected


def test_rows_are_drawn_by_their_weights_and_none_of_weight_zero() -> None:
    weights = np.array([0.0, 3.0, 1.0, 0.0, 2.0, 0.0])
    rows = CategoricalTable(sizes=(2, 3)).sample(weights, 20_000, key=jax.random.key(0))
    found = CategoricalTable(sizes=(2, 3)).histogram(rows)
    assert found[weights == 0].sum() == 0
    assert scipy.stats.chisquare(found[weights > 0], 20_000 * weights[weights > 0] / 6).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_the_same_key_gives_the_same_histogram() -> None:
    synthesise = MultiplicativeWeights(epsilon=2.0, rounds=3, num_records=400)
    first, again, other = (
        synthesise(TABLE.histogram(ROWS), TABLE.marginals(), key=jax.random.key(seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def _of(**changes: Any) -> MultiplicativeWeights:
    return MultiplicativeWeights(**{"epsilon": 2.0, "rounds": 2, "num_records": 9, **changes})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda key: _of(epsilon=0.0), "epsilon=0.0 must be above 0"),
        (lambda key: _of(epsilon=math.inf), "epsilon=inf must be above 0 and finite"),
        (lambda key: _of(epsilon=1e-4, rounds=10), "leaves 5e-06 for each choice"),
        (lambda key: _of(epsilon=200.0), "leaves 50 for each choice"),
        (lambda key: _of(rounds=0), "rounds=0"),
        (lambda key: _of(epsilon=8000.0, rounds=20_000), "rounds=20000 is above 10000"),
        (lambda key: _of(num_records=2**33), "above 2^32"),
        (lambda key: _of(passes=0), "passes=0"),
        (lambda key: _of(adjacency="exchange"), "adjacency='exchange'"),
        (lambda key: _of()([4, 5], np.eye(2), key=None), "key=None is not a scalar JAX key"),
        (lambda key: jax.jit(lambda k: _of()([4, 5], np.eye(2), key=k))(key), "key is traced"),
        (lambda key: jax.jit(lambda c: _of()(c, np.eye(2), key=key))(jnp.ones(2, int)), "counts is traced"),
        (lambda key: _of()([4, 5], np.eye(3), key=key), "queries are of 3 cells"),
        (lambda key: _of()([4, 5], [[0.0, 1.5]], key=key), "lie from 0.0 to 1.5"),
        (lambda key: _of()([4, 5], [[0.0, -0.1]], key=key), "lie from -0.1 to 0.0"),
        (lambda key: _of()([4, 5], [[0.0, np.nan]], key=key), "lie from nan to nan"),
        (lambda key: _of()([4, 5], [[0.0, 1j]], key=key), "complex128"),
        (lambda key: _of()([4, 5], [0.0, 1.0], key=key), "shape (2,)"),
        (lambda key: _of()([4, 5], np.zeros((0, 2)), key=key), "shape (0, 2)"),
        (lambda key: _of()([4, 5], np.zeros((2, 0)), key=key), "shape (2, 0)"),
        (lambda key: _of()([4, 5], np.broadcast_to(0.0, (2**27, 2)), key=key), "134,217,728 queries of 2 cells"),
        (lambda key: _of()([4, -5], np.eye(2), key=key), "lie from -5 to 4"),
        (lambda key: _of()([4.0, np.nan], np.eye(2), key=key), "counts are float64"),
        (lambda key: CategoricalTable(sizes=()), "sizes=()"),
        (lambda key: CategoricalTable(sizes=(2, 0)), "sizes=0"),
        (lambda key: CategoricalTable(sizes=(1000,) * 9), "1,000,000,000,000,000,000,000,000,000 combinations"),
        (lambda key: CategoricalTable(sizes=(8,) * 7).marginals(), "1,400 queries of 2,097,152 cells"),
        (lambda key: TABLE.histogram([[0, 3, 0]]), "column 1 of rows has 1 values outside of 0 to 2"),
        (lambda key: TABLE.histogram([[0, -1, 0]]), "column 1 of rows has 1 values outside of 0 to 2"),
        (lambda key: TABLE.histogram([[0, 1]]), "shape (1, 2)"),
        (lambda key: TABLE.histogram([[0.0, np.nan, 0.0]]), "rows are float64"),
        (lambda key: TABLE.sample(np.zeros(12), 3, key=key), "all 0"),
        (lambda key: TABLE.sample(np.full(12, np.nan), 3, key=key), "not finite"),
        (lambda key: TABLE.sample(np.ones(11), 3, key=key), "shape (11,)"),
        (lambda key: TABLE.sample(np.ones(12), 0, key=key), "num_rows=0"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_by_name(call: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError) as error:
        call(jax.random.key(0))
    assert said in str(error.value)
