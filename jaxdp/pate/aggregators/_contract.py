"""The contract of an aggregator: what `jaxdp.pate` asks of the value that makes labels of votes."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, Int32, Key

from ..._errors import UsageError
from .._bounds import Curves, Orders
from .._sanitise import CostAtOrder

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Labels(NamedTuple):
    """The labels of some queries, and which of them the teachers' votes answered.

    Attributes:
        labels: int32 [examples]. The class, or -1 where there is none.
        answered: bool [examples]. Whether the teachers' votes were released: what the analysis charges in full.
    """

    labels: Int32[Array, " examples"]
    answered: Bool[Array, " examples"]


@runtime_checkable
class Aggregator(Protocol):
    r"""How votes become labels, and what that costs: a frozen value, whose fields are public and chosen without the votes.

    Its methods are called by `jaxdp.pate`'s functions after they have checked what they were given: votes are counts
    int [queries, classes] with the same sum, the number of teachers, in each row; keys are this call's own; `student_probs`
    are float32 [queries, classes], or None where the aggregator asks no student. Neighbouring data sets move one teacher: one
    vote on each query.

    The guarantee is the aggregator's own: `event` has to describe the noise that `aggregate` draws, and every curve, whatever the
    votes are, has to bound the Rényi divergence of what `aggregate` releases.

    Attributes:
        answers_all: whether every query is answered; if not, what is charged depends on which ones were, which is released.
        asks_student: whether `aggregate` looks at a student's probabilities, so that queries are asked in two halves.
    """

    answers_all: ClassVar[bool]
    asks_student: ClassVar[bool]

    @property
    def plurality_needed(self) -> float | None:
        """The threshold that the plurality's noisy count is held against, in votes; None where there is no such thing."""
        ...

    def check_teachers(self, teachers: int) -> None:
        """Raise `UsageError` where so many teachers can't be asked, such as where no vote can reach a threshold."""
        ...

    def aggregate(
        self,
        votes: Int[np.ndarray, "queries classes"],
        *,
        key: Key[Array, ""],
        student_probs: Float[np.ndarray, "queries classes"] | None,
    ) -> Labels:
        """Labels of the queries, by noise drawn from `key` and nothing else."""
        ...

    def event(self, *, asked: int, answered: int) -> "DpEvent":
        """dp-accounting's event of so many queries asked, of which so many were answered: whatever the votes were.

        Under dp-accounting's adjacency "replace_special", by which a record is exchanged or blanked in its place. What a query
        asked costs, and what an answer costs more, must not depend on the others.
        """
        ...

    def classic_rdp(self, orders: Orders, *, asked: int) -> Orders | None:
        """A paper's own data-independent RDP of so many queries, [orders], for `conversion="classic"`; None for `event`'s."""
        ...

    def rdp_by_query(
        self,
        votes: Int[np.ndarray, "queries classes"],
        orders: Orders,
        *,
        charged: Float64[np.ndarray, " queries"] | Bool[np.ndarray, " queries"],
        student_probs: Float[np.ndarray, "queries classes"] | None,
        classic: bool,
    ) -> Curves:
        """The data-dependent RDP of each query, [queries, orders]; the data-independent one where nothing better is known.

        `charged` says how far an answer counts: whether it was given, or with which probability it would be. With `classic`,
        at most `classic_rdp`.
        """
        ...

    def answer_probability(self, votes: Int[np.ndarray, "queries classes"]) -> Float64[np.ndarray, " queries"]:
        """With which probability each query is answered; raises `UsageError` where that can't be known beforehand."""
        ...

    def cost_at_order(
        self, votes: Int[np.ndarray, "queries classes"], answered: Bool[np.ndarray, " queries"], order: float
    ) -> CostAtOrder | None:
        """The data-dependent cost with its local sensitivities, from which it is sanitised; None where no such are proved.

        Raises `UsageError` where the conditions of the proof fail for these parameters.
        """
        ...

    def in_words(self, *, teachers: int, asked: int, answered: int) -> str:
        """One or two sentences of a statement: what was released, under which noise, for how many queries."""
        ...


def check_aggregator(mechanism: Any) -> None:
    """Refuse what is no aggregator, and the class of one."""
    if isinstance(mechanism, type) or not isinstance(mechanism, Aggregator):
        raise UsageError(
            f"mechanism={mechanism!r:.200} is a {type(mechanism).__name__}: give jaxdp.pate.GaussianNoisyMax(sigma=40.0), or "
            "another aggregator (a value with the methods of jaxdp.pate.Aggregator)"
        )


def all_answered(labels: Int32[Array, " queries"]) -> Labels:
    """The labels of an aggregator that answers every query."""
    return Labels(labels, jax.numpy.asarray(np.ones(labels.shape, np.bool_)))


def queries_put(*, teachers: int, asked: int) -> str:
    """The words with which the built-in aggregators begin."""
    return f"{asked:,} queries were put to {teachers:,} teachers"
