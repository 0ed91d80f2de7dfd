"""`jaxdp pate label` and `jaxdp pate analyze`, for teachers who live elsewhere and share only predictions."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from rich.console import Console

from ... import _checks
from ..._errors import NOT_ARRAYS, UsageError
from ..._outputs import check_output
from ...data import Fingerprints
from ...pate._budget import within_budget
from ...pate._votes import check_predictions, vote_counts
from ...runs._folder import PRIVATE, RunFolder
from ...runs._key_source import KeySource
from ...runs._report import say
from .. import _options
from .._options import check_given, check_seed, seeded, that_matter
from ._options import AnalyzeOptions, LabelOptions
from ._plots import plot_epsilon
from ._predictions import read_labels, read_predictions
from ._release import all_figures, analysis, publish, release, were_in_place, write
from ._report import epsilon_table

_OPTIONS = f"{PRIVATE}/options.json"  # of labels that are being made, until they have their statement
_AGAIN = "give the same command again"
_STATED = "Mechanism: "  # how the part of a statement begins that says it


def label(options: LabelOptions, console: Console | None = None) -> None:
    """Labels from a file of predictions, in a folder with what they cost.

    Raises:
        UsageError: for options or a file that make it impossible or its epsilon untrue.
    """
    console = console or Console()
    options.check_without_student()
    check_given(options, _checks.positive, {"target_epsilon": "give a privacy budget such as 2.0"})
    check_given(options, _checks.count, {"max_answers": "give a cap on the answers"})
    check_seed(options.seed)
    _checks.delta(options.delta, _checks.count("--records", options.records, "give the number of private records"))
    predictions = read_predictions(options.predictions)
    _check_way_round(options, predictions)
    if options.records < len(predictions):
        raise UsageError(
            f"--records={options.records} is fewer than the {len(predictions)} teachers of {options.predictions}, and no two "
            "have a record in common: give the number of all private records, and predictions with a row for each teacher"
        )
    mechanism = options.mechanism(len(predictions))
    folder = RunFolder(options.output)
    if (folder.path / "labels.csv").exists():
        if not (folder.path / "statement.json").exists() and (folder.private / "statement.json").exists():
            _state_what_was_broken_off(options, folder, console)
            return
        _refuse_labels(folder)
    _forget_broken_off(options, folder)
    folder = RunFolder.create(options.output)
    asked, budget = np.ones(predictions.shape[1], bool), {"epsilon": options.target_epsilon, "delta": options.delta}
    within_budget(asked, mechanism, **budget, most_answers=options.max_answers)  # else refused once labels are drawn
    keys = KeySource(options.seed, ["pate label", that_matter(options)], Fingerprints((predictions.astype(np.int64),)))
    with folder.locked(_AGAIN):
        _refuse_labels(folder)  # of another process, since the folder was looked at
        folder.write_json(_OPTIONS, _plain(options))
        released = release(
            predictions,
            np.arange(predictions.shape[1]),
            mechanism,
            num_classes=options.num_classes,
            delta=options.delta,
            key=keys.key("noise"),
            target_epsilon=options.target_epsilon,
            most_answers=options.max_answers,
        )
        notes = () if options.seed is None else (seeded("The noise"),)
        write(released, folder, options.records, keys.nonce("noise"), notes=notes)
        _end(folder)
    say(console, check_predictions(predictions))
    console.print(epsilon_table(all_figures(released.report)))
    say(console, f"labels and statement: {folder.path}; not to be shared: {folder.path / PRIVATE}")


def _refuse_labels(folder: RunFolder) -> None:
    if (folder.path / "labels.csv").exists():
        raise UsageError(
            f"--output={folder.path} holds labels already: labelling again costs again; give another folder"
        )


def _forget_broken_off(options: LabelOptions, folder: RunFolder) -> None:
    """Leave nothing of this same command that a kill has ended before any label was there: it begins anew."""
    folder.refuse_begun()
    if (folder.path / "statement.json").exists() and (folder.private / "votes.npy").exists():
        raise UsageError(
            f"--output={folder.path} states what labels have cost, which are gone from it: put its labels.csv back, or give "
            "another folder; labelling again costs again"
        )
    is_ours = os.access(folder.path / _OPTIONS, os.R_OK) and not any(folder.path.glob("statement.*"))
    if is_ours and _was_begun_by(options, folder):
        with folder.locked(_AGAIN):
            _refuse_labels(folder)
            if were_in_place(folder):
                raise UsageError(
                    f"--output={folder.path} held labels, which are gone from it and are paid for: put its labels.csv back, and "
                    "this command states what they cost, or give another folder; labelling again costs again"
                )
            (folder.private / "votes.npy").unlink(missing_ok=True)


def _was_begun_by(options: LabelOptions, folder: RunFolder) -> bool:
    return folder.read_json(_OPTIONS) == json.loads(json.dumps(_plain(options)))


def _end(folder: RunFolder) -> None:
    """State what the labels cost; from then on no command goes on with them."""
    publish(folder)
    (folder.path / _OPTIONS).unlink()


def _plain(options: LabelOptions) -> dict[str, Any]:
    return {name: value for name, value in _options.to_dict(options).items() if name != "output"}


def _state_what_was_broken_off(options: LabelOptions, folder: RunFolder, console: Console) -> None:
    """Labels are there, and a kill has come before their statement."""
    if not (folder.path / _OPTIONS).exists():
        raise UsageError(
            f"--output={folder.path} holds labels whose statement.json is gone: put it back, or give another folder; labelling "
            "again costs again"
        )
    with folder.locked(_AGAIN):
        if not _was_begun_by(options, folder):
            raise UsageError(
                f"--output={folder.path} holds labels of a command that was broken off, and this isn't the same one: give that "
                "one again, and they get their statement, or give another folder"
            )
        _end(folder)
    say(
        console,
        f"{folder.path} has labels of a command that was broken off, and their statement now: nothing was labelled anew",
    )


def _check_way_round(options: LabelOptions, predictions: Int[np.ndarray, "teachers examples"]) -> None:
    """Refuse predictions of another number of teachers than is said, and more teachers than examples unless it is said."""
    understood, (found, examples) = check_predictions(predictions), predictions.shape
    if options.teachers is None:
        if found > examples:
            raise UsageError(
                f"{options.predictions} ({understood}) has more teachers than examples, and epsilon is false if they are the "
                f"other way round: give --teachers={found} if a row is a teacher, or else the predictions transposed"
            )
        return
    if _checks.count("--teachers", options.teachers, "give the number of teachers") != found:
        fix = "give the predictions transposed" if options.teachers == examples else "give a row for each teacher"
        raise UsageError(f"--teachers={options.teachers} and {options.predictions} ({understood}) disagree: {fix}")


def analyze_file(options: AnalyzeOptions, console: Console | None = None) -> None:
    """Tell what labels cost that were made of a file of predictions.

    Raises:
        UsageError: for options or files that don't fit each other.
    """
    options.check_without_student()
    if options.plot is not None:
        check_output("--plot", options.plot, overwrite=options.overwrite, suffixes=(".png",))
    predictions = read_predictions(options.predictions)
    mechanism = options.mechanism(len(predictions))
    asked, answered = np.arange(predictions.shape[1]), np.ones(predictions.shape[1], bool)
    if options.labels is not None:
        asked, labels, answered = read_labels(options.labels)
        if (
            len(asked) == 0
            or asked.min() < 0
            or asked.max() >= predictions.shape[1]
            or len(np.unique(asked)) < len(asked)
        ):
            raise UsageError(
                f"--labels={options.labels} names examples that {options.predictions} doesn't have, or one twice: give the "
                "labels that were made of these predictions"
            )
        if labels.max() >= options.num_classes:
            raise UsageError(
                f"--num-classes={options.num_classes}, and {options.labels} has class {labels.max()}: give the number of classes "
                "that the teachers vote on"
            )
        if not answered.all() and mechanism.answers_all:
            raise UsageError(
                f"--labels={options.labels} leaves {int((~answered).sum())} queries without an answer, and --aggregator "
                f"{options.aggregator} answers all: give the aggregator that made them, such as confident"
            )
    elif not mechanism.answers_all:
        raise UsageError(
            f"--labels is missing: --aggregator {options.aggregator} charges each query by whether it was answered; give the "
            "labels.csv of `jaxdp pate label`"
        )
    votes = np.asarray(vote_counts(predictions[:, asked], options.num_classes))
    report = analysis(votes, mechanism, answered, options.delta)
    in_words = report.mechanism.in_words(teachers=report.teachers, asked=report.asked, answered=report.answered)
    if options.labels is not None:
        _check_stated(options.labels, in_words)
        _check_votes(options.labels, votes)
    figures = all_figures(report)
    if options.plot is not None:
        plot_epsilon(report, answered, options.plot)
    if options.json:
        json.dump(figures, sys.stdout, indent=2)
        print()
        return
    console = console or Console()
    say(console, f"if labelled so: {in_words}")
    console.print(epsilon_table(figures))
    if report.sanitised is not None:
        say(
            console,
            "the sanitised ε is drawn anew at each call: publish one, chosen before you look; not the least, nor several",
        )


def _check_votes(labels: Path, votes: Int[np.ndarray, "queries classes"]) -> None:
    """Refuse votes that aren't those kept beside the labels: of other predictions, classes or queries."""
    path = labels.with_name(PRIVATE) / "votes.npy"
    if not path.exists():
        return
    try:
        kept = np.load(path)
    except (OSError, *NOT_ARRAYS) as error:
        raise UsageError(f"{path} can't be read ({error}): bring back the file that was made with {labels}") from error
    if not np.array_equal(kept, votes):
        raise UsageError(
            f"--labels={labels} were made of other votes than these predictions have for {votes.shape[1]} classes, which are in "
            f"{path}: give the predictions and --num-classes of `jaxdp pate label`, a column for each number in labels.csv. What "
            f"labels of `jaxdp pate` itself cost is in {path.with_name('report.json')}"
        )


def _check_stated(labels: Path, in_words: str) -> None:
    """Refuse options that aren't what the statement beside the labels says of them."""
    path = labels.with_name("statement.json")
    if not path.exists():
        return
    stated = next(
        (part for part in json.loads(path.read_text())["statement"].split("\n\n") if part.startswith(_STATED)), ""
    )
    if stated != _STATED + in_words:
        raise UsageError(
            f"--labels={labels} were made otherwise than these options and predictions say, and would cost otherwise. They say: "
            f"{in_words} And {path.name} beside it: {stated.removeprefix(_STATED)} Give the predictions and the options of "
            "`jaxdp pate label`"
        )
