"""A synthetic histogram that answers many queries: multiplicative weights with the exponential mechanism (MWEM)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .. import _checks
from .._errors import UsageError
from ..accounting._adjacency import ADJACENCIES
from ..accounting._events import repeated
from ..noise._keys import Domain, own_key
from ._additive import Laplace
from ._categorical import check_entries
from ._selection import Exponential

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_MOST_LOOPS = 10_000
_MANY_ROUNDS = 8  # with which concentrated privacy composes to less than the sum, at δ = 1e-9
_LEVELS = 2.0**20  # into which the values of queries are divided,
_MOST_RECORDS = 2**32  # so that sums over so many records are exact in float64, in any order


@dataclass(frozen=True, kw_only=True)
class MultiplicativeWeights:
    r"""A histogram of records that nobody has, on which linear queries have about the answers that they have on the real ones.

    It begins with all cells alike. Each of T rounds chooses, by `Exponential`, a query on which it is far from the truth,
    measures that query by `Laplace`, and moves the weight of each cell x towards the answer m, by
    \(A(x) \leftarrow A(x) \, e^{q(x) (m - q(A)) / (2n)}\), scaled to n records. Choices and measurements have ε/(2T) each: all
    of it together is ε-differentially private, but for what lies beyond the 44 scales at which their draws end, and so is
    whatever is computed from the histogram alone.

    A query's values lie in [0, 1], so that a record added, removed or exchanged for another moves its answer by at most 1, and
    its distance from the histogram's answer, which is the score, too; n is public, and no sensitivity depends on it. Scores can
    rise and fall at once: the choice isn't monotonic. Values are rounded to multiples of 2^-20, with which answers are exact.

    What is released is the last histogram, fitted to all measurements, `passes` times after each, which costs nothing more.
    Theorem 2.2 bounds the error of the rounds' average, with one update a round; the last one is nearer to the truth wherever
    measurements say more than their noise, of scale 2T/ε. Where they don't, fewer rounds are better than an average.

    Args:
        epsilon: ε of the histogram, as a sum over all rounds; from 2T · 1e-4 to 2T · 40.
        rounds: T: more of them correct more queries, each with more noise; so few that 2T/ε is far below n.
        num_records: n, how many records there are, as it may be told.
        passes: how often all measurements so far are gone through after each of them.
        adjacency: the relation of the ledger that `event` is for: the same ε holds under each.

    Raises:
        UsageError: for numbers out of range.

    Examples:
        >>> import jax, numpy as np
        >>> from jaxdp.mechanisms import CategoricalTable
        >>> table = CategoricalTable(sizes=(2, 3))
        >>> rows = np.array([[0, 1]] * 60 + [[1, 2]] * 40)
        >>> synthesise = MultiplicativeWeights(epsilon=2.0, rounds=5, num_records=100)
        >>> histogram = synthesise(table.histogram(rows), table.marginals(), key=jax.random.key(0))
        >>> histogram.reshape(2, 3).round()
        array([[ 4., 51.,  1.],
               [ 4.,  2., 37.]])
        >>> table.sample(histogram, 3, key=jax.random.key(1)).tolist()
        [[0, 1], [0, 1], [1, 2]]

    References:
        Hardt, Ligett and McSherry, "A simple and practical algorithm for differentially private data release", arXiv 1012.4763,
        algorithm 1, theorems 2.1 (privacy) and 2.2 (error).
    """

    epsilon: float
    rounds: int
    num_records: int
    passes: int = 10
    adjacency: str = "add_or_remove_one"

    def __post_init__(self) -> None:
        epsilon = _checks.positive("epsilon", self.epsilon, "give the ε of the whole histogram, such as 1.0")
        rounds = _checks.count("rounds", self.rounds, "give the number of queries to measure, such as 10")
        num_records = _checks.count("num_records", self.num_records, "give the number of records")
        passes = _checks.count("passes", self.passes, "give how often measurements are gone through, such as 10")
        _checks.one_of("adjacency", self.adjacency, ADJACENCIES)
        for name, number in (("rounds", rounds), ("passes", passes)):
            if number > _MOST_LOOPS:
                raise UsageError(f"{name}={number} is above {_MOST_LOOPS}, which would take hours: give fewer")
        if num_records > _MOST_RECORDS:
            raise UsageError(f"num_records={num_records} is above 2^32, beyond which sums of queries aren't exact")
        if not 1e-4 <= epsilon / (2 * rounds) <= 40:
            raise UsageError(
                f"epsilon={epsilon} over rounds={rounds} leaves {epsilon / (2 * rounds):.3g} for each choice and each "
                "measurement, which must lie between 1e-4 and 40: give another epsilon, or another number of rounds"
            )
        _checks.set_fields(self, epsilon=epsilon, rounds=rounds, num_records=num_records, passes=passes)

    @property
    def choice(self) -> Exponential:
        """The mechanism by which each round chooses a query."""
        return Exponential(epsilon=self.epsilon / (2 * self.rounds), sensitivity=1)

    @property
    def measurement(self) -> Laplace:
        """The mechanism by which each round measures it."""
        return Laplace(epsilon=self.epsilon / (2 * self.rounds), sensitivity=1)

    @property
    def event(self) -> "DpEvent":
        r"""dp-accounting's event of one histogram: of T choices and T measurements.

        At a δ, many rounds cost a ledger far less than `epsilon`. Fewer than 8 would cost more, since dp-accounting has no event
        of a choice but a concentrated one; there, each choice counts as Laplace noise of its ε, with which the ledger's total by
        PLD is not above `epsilon`, but for the steps that it counts losses in. It may: the loss of a choice lies in a range of
        length ε, so that at any x it exceeds
        \(e^x\) by at most \((1 - e^{-(\varepsilon - x)/2})^2 / (1 - e^{-\varepsilon})\), and Laplace noise does by
        \(1 - e^{-(\varepsilon - x)/2}\), which is more. Under "replace_one", where dp-accounting has no event of either, each
        counts as a randomized response of its ε: no mechanism of pure ε costs more.

        References:
            Dong, Durfee and Rogers, "Optimal differential privacy composition for exponential mechanisms", arXiv 1909.13830;
            Zhu, Dong and Wang, arXiv 2106.08567 (what dominates each of several mechanisms, dominates all together); Kairouz, Oh
            and Viswanath, "The composition theorem for differential privacy", arXiv 1311.0776 (randomized response).
        """
        from dp_accounting import ComposedDpEvent, RandomizedResponseDpEvent

        if self.adjacency == "replace_one":
            anew = 2 / (1 + math.exp(self.choice.epsilon)) * (1 - 1e-12)  # a chance whose rounding can't lower ε
            return repeated(RandomizedResponseDpEvent(anew, 2), 2 * self.rounds)
        if self.rounds < _MANY_ROUNDS:
            return repeated(self.measurement.event, 2 * self.rounds)
        return ComposedDpEvent([repeated(part.event, self.rounds) for part in (self.choice, self.measurement)])

    def __call__(self, counts: Any, queries: Any, *, key: Key[Array, ""]) -> Float[np.ndarray, " cells"]:
        """The synthetic histogram; computed on the host.

        Args:
            counts: [cells], whole numbers, how many records lie in each cell of the domain; their sum may differ from
                `num_records`.
            queries: [queries, cells], from 0 to 1, what a record in a cell adds to each answer; chosen without looking at the
                records.
            key: a scalar key, used here and nowhere else.

        Returns:
            float64 [cells], none below 0, with a sum of `num_records`.

        Raises:
            UsageError: for another shape or type, for values out of range, and for more than 2^27 values of queries.
        """
        _checks.key_with_value(key)
        matrix = _checked_queries(queries)
        exact = matrix @ _checked_counts(counts, matrix.shape[1])
        histogram = np.full(matrix.shape[1], self.num_records / matrix.shape[1])
        measured: list[tuple[int, float]] = []
        for to_choose, to_measure in jax.random.split(own_key(key, Domain.MULTIPLICATIVE_WEIGHTS), (self.rounds, 2)):
            query = int(self.choice(_distances(exact, matrix, histogram), key=to_choose))
            answer = float(self.measurement(exact[query], key=to_measure))
            measured.append((query, min(max(answer, 0.0), float(self.num_records))))
            histogram = _fitted(self, histogram, matrix, measured)
        return histogram


def _distances(
    exact: Float[np.ndarray, " queries"],
    matrix: Float[np.ndarray, "queries cells"],
    histogram: Float[np.ndarray, " cells"],
) -> Float[np.ndarray, " queries"]:
    """The score of each query. All are multiples of 2^-20: no rounding brings those of neighbours apart by more than 1."""
    return np.abs(exact - _on_grid(matrix @ histogram))


def _fitted(
    mechanism: MultiplicativeWeights,
    histogram: Float[np.ndarray, " cells"],
    matrix: Float[np.ndarray, "queries cells"],
    measured: list[tuple[int, float]],
) -> Float[np.ndarray, " cells"]:
    """The histogram after updates towards all that was measured; it sees nothing else of the records."""
    total = float(mechanism.num_records)
    for _ in range(mechanism.passes):
        for query, answer in measured:
            row = matrix[query]
            moved = histogram * np.exp(row * ((answer - row @ histogram) / (2 * total)))
            histogram = moved * (total / moved.sum())
    return histogram


def _on_grid(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.rint(values * _LEVELS) / _LEVELS


def _checked_queries(queries: Any) -> Float[np.ndarray, "queries cells"]:
    fix = "give [queries, cells], numbers from 0 to 1"
    given = _checks.array("queries", queries, fix)
    if given.ndim != 2 or 0 in given.shape:
        raise UsageError(f"queries have shape {given.shape}: {fix}, one of each or more")
    check_entries(*given.shape)
    if jnp.issubdtype(given.dtype, jnp.complexfloating):
        raise UsageError(f"queries are {given.dtype}: {fix}")
    matrix = np.asarray(given).astype(np.float64)
    if not ((matrix >= 0) & (matrix <= 1)).all():  # NaNs are neither
        raise UsageError(f"queries lie from {matrix.min()} to {matrix.max()}, and a record must add 0 to 1: {fix}")
    return _on_grid(matrix)


def _checked_counts(counts: Any, cells: int) -> Int[np.ndarray, " cells"] | Float[np.ndarray, " cells"]:
    fix = "give how many records lie in each cell, such as CategoricalTable(...).histogram(rows)"
    given = np.asarray(_checks.array("counts", counts, fix))
    if not np.issubdtype(given.dtype, np.integer):
        raise UsageError(f"counts are {given.dtype}, and whole numbers are needed: {fix}")
    if given.shape != (cells,):
        raise UsageError(f"counts have shape {given.shape}, and queries are of {cells} cells: {fix}")
    floats = given.astype(np.float64)
    if floats.min() < 0 or floats.sum() > _MOST_RECORDS:
        raise UsageError(f"counts lie from {given.min()} to {given.max()}, outside of 0 to 2^32 records: {fix}")
    return floats
