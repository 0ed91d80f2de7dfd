"""The number by which models are compared: how right their predictions are, added up over records, under noise.

A record adds one less its Brier score, which is 1 for a prediction that is right and sure, and 0 for one that is wrong and sure;
of numbers, one less their squared error, which is 0 from one bound to the other. So one record more or less moves the sum by at
most 1. The records are a table's that are held back, each by its own id, or else those that are trained on: no choice may be made
by a test set, and which images are held back depends on how many there are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from ..._errors import UsageError
from ..._types import Params
from ...data import Classes, Numbers, Targets
from ...data._on_disk import columns
from ..train._problem import Problem

Rightness = Callable[[dict[str, Any], Float[np.ndarray, "n outputs"], np.ndarray], Float[np.ndarray, " n"]]


def of_classes(_: dict[str, Any], probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One less half the squared distance from all probabilities to the label's certainty."""
    there = np.arange(probabilities.shape[1]) == labels[:, None]
    return 1 - np.square(probabilities - there).sum(axis=1) / 2


def of_targets(_: dict[str, Any], probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One less the mean squared distance from a target's probability to the target."""
    return 1 - np.square(probabilities - labels).mean(axis=1)


def of_numbers(task: dict[str, Any], estimates: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One less the mean squared error, in units of the bounds' distance."""
    low, high = task["lower"], task["upper"]
    return 1 - np.square((estimates - labels.clip(low, high)) / (high - low)).mean(axis=1)


_BY_TASK: dict[str, Rightness] = {Classes.kind: of_classes, Targets.kind: of_targets, Numbers.kind: of_numbers}


def check_task(problem: Problem) -> None:
    """Refuse a task without such a rule."""
    kind = problem.model.described["task"]["kind"]
    if kind not in _BY_TASK:
        raise UsageError(f"models for {kind} can't be compared by jaxdp tune, which knows {', '.join(_BY_TASK)}")


def rightness(problem: Problem, params: Params, *, of_table: bool) -> float:
    """The sum over records, each between 0 and 1, of how right a model is."""
    task = problem.model.described["task"]
    inputs, labels = columns(problem.test if of_table else problem.train)
    predicted = problem.model.predict(params, inputs).astype(np.float64)
    of_each = np.nan_to_num(_BY_TASK[task["kind"]](task, predicted, labels[:]))
    return float(of_each.clip(0, 1).sum())


def in_words(task: dict[str, Any]) -> str:
    """What a record adds, of a task as it is described."""
    of_numbers = task["kind"] == Numbers.kind
    return "one less its squared error in units of the bounds' distance" if of_numbers else "one less its Brier score"


def records_scored(problem: Problem, *, of_table: bool) -> int:
    """Over how many records a score adds up."""
    return len(columns(problem.test if of_table else problem.train)[1])


def scored_on(*, of_table: bool) -> str:
    """The records, in words."""
    return "the records held back" if of_table else "the training examples"
