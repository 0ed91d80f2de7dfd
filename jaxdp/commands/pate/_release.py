"""From predictions to labels: votes, noise, the budget's end, and what all of it cost; and the files that hold it.

What may be seen by others lies in the folder itself: labels.csv, statement.txt, statement.json (with the ledger). What tells
more of the private data than was paid for lies in private/: the votes, the data-dependent epsilon, the predictions where
`jaxdp pate` trained the teachers; and the sanitised one, since the ledger pays for the labels alone: whoever publishes it
claims it for labels and figure together.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, Key

from ... import accounting
from ..._errors import UsageError
from ...accounting._epsilon import no_smaller
from ...noise._keys import Domain, own_key
from ...pate._aggregation import aggregate
from ...pate._analysis import Report, analyze
from ...pate._budget import within_budget
from ...pate._sanitise import Sanitiser
from ...pate._votes import vote_counts
from ...pate.aggregators import Aggregator
from ...runs._folder import PRIVATE, RunFolder, close_to_others
from ._plots import plot_agreement, plot_epsilon
from ._predictions import UNPLACED, place_labels, read_labels, write_labels

_SEAL = f"{PRIVATE}/labels.json"  # by which the labels are known again
_FIGURES = f"{PRIVATE}/report.json"  # what it cost, by the votes, too
_TO_STATE = f"{PRIVATE}/statement.json"  # the statement before it says anything of keys
_ELSEWHERE = (
    "All of this holds where no record was seen by more than one teacher, so that it moves at most one teacher's vote on each "
    "query: whoever trained them has to see to that."
)


@dataclass(frozen=True)
class Released:
    """Labels, and what they cost.

    Attributes:
        rows: int32 [asked], the examples that were asked, in order.
        labels: int32 [asked], -1 where there is no answer.
        answered: bool [asked].
        votes: int32 [asked, classes]. Private.
        report: what it cost. Its data-dependent part is private.
        before_student: how many were asked before a student was; None where none was.
    """

    rows: Int32[np.ndarray, " asked"]
    labels: Int32[np.ndarray, " asked"]
    answered: Bool[np.ndarray, " asked"]
    votes: Int[np.ndarray, "asked classes"]
    report: Report
    before_student: int | None = None


def release(
    predictions: Int[np.ndarray, "teachers queries"],
    rows: Int[np.ndarray, " queries"],
    mechanism: Aggregator,
    *,
    num_classes: int,
    delta: float,
    key: Key[Array, ""],
    target_epsilon: float | None = None,
    most_answers: int | None = None,
    first_student: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Released:
    """Label the queries as far as the budget goes; what would come after is thrown away unseen.

    `first_student`, for an aggregator that asks a student, maps the examples of the first half and their labels to probabilities
    for those of the second half, [queries, classes]. Where the budget ends with the first half, or that has no answers to learn
    from, the asking ends there too.
    """
    votes = np.asarray(vote_counts(predictions, num_classes))
    of_noise, of_report = jax.random.split(own_key(key, Domain.RELEASE))
    paid = partial(within_budget, mechanism=mechanism, epsilon=target_epsilon, delta=delta, most_answers=most_answers)
    student_probs = None
    if mechanism.asks_student and first_student is not None:
        labels, answered, student_probs = _in_two_halves(votes, rows, mechanism, of_noise, first_student, paid)
    else:
        labels, answered = map(np.asarray, aggregate(votes, mechanism, key=of_noise))
    asked, half = paid(answered), len(votes) // 2
    kept = slice(None, asked)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(of_report)).tolist())  # the same if it is done again
    of_student = None if student_probs is None else student_probs[kept]
    report = analysis(votes[kept], mechanism, answered[kept], delta, rng, of_student)
    before_student = None if student_probs is None or asked <= half else half
    return Released(rows[kept].astype(np.int32), labels[kept], answered[kept], votes[kept], report, before_student)


def _in_two_halves(
    votes: np.ndarray,
    rows: np.ndarray,
    mechanism: Aggregator,
    key: Key[Array, ""],
    first_student: Callable[[np.ndarray, np.ndarray], np.ndarray],
    paid: Callable[[np.ndarray], int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(labels, answered, the student's probabilities, 0 where there was none yet), by an aggregator that asks a student."""
    half, (of_first, of_second) = len(votes) // 2, jax.random.split(key)
    nobody = np.zeros((half, votes.shape[1]), np.float32)
    first = aggregate(votes[:half], mechanism, key=of_first, student_probs=nobody)
    was_answered = np.asarray(first.answered)
    if not was_answered.any() or paid(np.append(was_answered, True)) <= half:
        return np.asarray(first.labels), was_answered, nobody
    student = first_student(rows[:half], np.asarray(first.labels))[rows[half:]]
    second = aggregate(votes[half:], mechanism, key=of_second, student_probs=student)
    together = lambda *parts: np.concatenate([np.asarray(part) for part in parts])
    return (
        together(first.labels, second.labels),
        together(first.answered, second.answered),
        together(nobody, student),
    )


def analysis(
    votes: np.ndarray,
    mechanism: Aggregator,
    answered: np.ndarray,
    delta: float,
    rng: np.random.Generator | None = None,
    student_probs: np.ndarray | None = None,
) -> Report:
    """The cost of labelling; sanitised too where the mechanism and its proof allow it."""
    given: dict[str, Any] = {"delta": delta, "answered": None if mechanism.answers_all else answered}
    given["student_probs"] = student_probs
    sanitiser = Sanitiser(failure=min(1e-6, delta / 10))
    try:
        return analyze(votes, mechanism, sanitiser=sanitiser, rng=rng, **given)
    except UsageError:  # no proof is known, or its conditions fail for this noise: nothing sanitised can be published
        return analyze(votes, mechanism, **given)


def write(
    released: Released,
    folder: RunFolder,
    records: int,
    nonce: str,
    *,
    of_records: str = _ELSEWHERE,
    notes: tuple[str, ...] = (),
) -> None:
    """Write the private files, and the labels; those last, so that they stand for all of it.

    Args:
        released: what to write.
        folder: where to.
        records: how many private records there are.
        nonce: a name for the noise.
        of_records: a sentence on how many teachers saw one of them.
        notes: of the statement, as those of `publish`, that are true already.
    """
    report, private = released.report, folder.private
    folder.make_private()
    np.save(private / "votes.npy", released.votes)
    plot_agreement(released.votes, report, private / "votes.png")
    plot_epsilon(report, released.answered, private / "epsilon.png")
    for name in ("votes.npy", "votes.png", "epsilon.png"):
        close_to_others(private / name)
    folder.write_sealed_json(_FIGURES, all_figures(report))
    text = statement(report, records, of_records, released.before_student) + _noted(notes)
    told = {"ledger": report.ledger(nonce=nonce).to_dict(), "statement": text}
    folder.write_sealed_json(_TO_STATE, {**public_figures(report), **told}, beside=_FIGURES)
    write_labels(folder.path, released.labels, released.answered, released.rows)
    digest = _digest(released.rows, released.labels, released.answered)
    folder.write_sealed_json(_SEAL, {"labels": digest}, beside=_TO_STATE)
    place_labels(folder.path)


def were_in_place(folder: RunFolder) -> bool:
    """Whether its labels were where others may see them, wherever they are now: once sealed, they are moved there at once."""
    return (folder.path / _SEAL).exists() and not (folder.path / UNPLACED).exists()


def labels_of(
    folder: RunFolder,
) -> tuple[Int[np.ndarray, " asked"], Int[np.ndarray, " asked"], Bool[np.ndarray, " asked"]]:
    """What `read_labels` finds in a run's folder; raises `UsageError` where it isn't what was written."""
    path = folder.path / "labels.csv"
    said = f"{path} is not as it was written: bring back the run's own file"
    try:
        found = read_labels(path)
    except UsageError as error:
        raise UsageError(said) from error
    if _sealed(folder)["labels"] != _digest(*found):
        raise UsageError(said)
    return found


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.asarray(array, np.int64).tobytes())
    return digest.hexdigest()


def kept_figures(folder: RunFolder) -> dict[str, Any]:
    """What the labels cost, by the votes, too: private."""
    return folder.read_sealed_json(_FIGURES)


def stated(folder: RunFolder) -> dict[str, Any]:
    """What the labels cost, and its statement, before that says anything of keys: known together with the cost by the votes."""
    kept_figures(folder)
    return folder.read_sealed_json(_TO_STATE, beside=_FIGURES)


def _sealed(folder: RunFolder) -> dict[str, Any]:
    """By what the labels are known, together with what is stated of them."""
    stated(folder)
    return folder.read_sealed_json(_SEAL, beside=_TO_STATE)


def publish(folder: RunFolder, notes: tuple[str, ...] = ()) -> None:
    """Write the statement on the labels; notes, such as that keys are erased, have to be true by now."""
    labels_of(folder)  # of which alone it is true
    content = stated(folder)
    content["statement"] += _noted(notes)
    folder.write_text("statement.txt", content["statement"] + "\n")
    folder.write_json("statement.json", content)


def _noted(notes: tuple[str, ...]) -> str:
    return "".join(f" {note}" for note in notes)


def public_figures(report: Report) -> dict[str, Any]:
    """The cost of labelling, whatever the votes were."""
    spent = {"rdp": report.data_independent, "pld": report.data_independent_pld}
    return {
        "asked": report.asked,
        "answered": report.answered,
        "delta": report.delta,
        "epsilon": {name: each.epsilon for name, each in spent.items() if each is not None},
    }


def all_figures(report: Report) -> dict[str, Any]:
    """That, and what it cost by the votes. Private."""
    sanitised = None if report.sanitised is None else report.sanitised.epsilon
    by_the_votes = {"data_dependent_epsilon": report.data_dependent.epsilon, "sanitised_epsilon": sanitised}
    return public_figures(report) | by_the_votes


def statement(report: Report, records: int, of_records: str = _ELSEWHERE, before_student: int | None = None) -> str:
    """The promise in words: to whom, and under which assumptions; fit for publication."""
    independent, pld = report.data_independent, report.data_independent_pld
    released = report.mechanism.in_words(teachers=report.teachers, asked=report.asked, answered=report.answered)
    if report.mechanism.asks_student:
        released += (
            " There was no student yet."
            if before_student is None
            else f" The student had learned the answers to the first {before_student:,} of them before the others were put."
        )
    pair = lambda spent: f"({accounting.rounded_up(spent.epsilon)}, {no_smaller(report.delta)})"
    counted = (
        ""
        if report.mechanism.answers_all
        else " It counts the answers that there were, as its entry in a ledger does, a number that came out of the run: without "
        "a budget set before (--target-epsilon), it is a bound on what came out, and not on what might have; with one, the "
        "budget bounds that, by the RDP accountant."
    )
    return "\n\n".join(
        [
            f"These labels satisfy {pair(independent)}-differential privacy by the RDP accountant of Google's dp-accounting"
            f"{'' if pld is None else f', and {pair(pld)} by its PLD accountant. Both hold'}, whatever the votes were.{counted}",
            "Unit and adjacency: record; two private data sets are neighbours if one is the other with one record exchanged or "
            f"blanked in its place. The number of records, {records:,}, and their places are treated as public. {of_records}",
            f"Mechanism: {released}",
            "Protected: the labels, which queries were answered, a student that learns them, and whatever else is computed from "
            "them and from public data.",
            "Not protected: the teachers, their predictions, the votes, epsilons by the votes (what is kept of them is in "
            f"the folder {PRIVATE}/); accuracies of teachers; choices of hyper-parameters made by looking at the private data, "
            "and among several such runs, by whatever they were compared, unless all are accounted; the random keys. JAX's "
            "random generators are not cryptographic, and floating-point noise is discrete.",
        ]
    )
