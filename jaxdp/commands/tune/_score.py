"""The number by which models are compared: how right their predictions are, added up over records, under noise.

A record adds one less its Brier score, which is 1 for a prediction that is right and sure, and 0 for one that is wrong and sure;
of numbers, one less their squared error, which is 0 from one bound to the other. So one record more or less moves the sum by at
most 1. The records are those that were held back, or where the test set is public, by which no choice may be made, those that
were trained on.
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


def rightness(problem: Problem, params: Params) -> float:
    """The sum over records, each between 0 and 1, of how right a model is; raises `UsageError` for a task without such a rule."""
    task = problem.model.described["task"]
    if task["kind"] not in _BY_TASK:
        raise UsageError(
            f"models for {task['kind']} can't be compared by jaxdp tune, which knows {', '.join(_BY_TASK)}"
        )
    inputs, labels = columns(_scored(problem))
    predicted = problem.model.predict(params, inputs).astype(np.float64)
    of_each = np.nan_to_num(_BY_TASK[task["kind"]](task, predicted, labels[:]))
    return float(of_each.clip(0, 1).sum())


def records_scored(problem: Problem) -> int:
    """Over how many records a score adds up."""
    return len(columns(_scored(problem))[1])


def _scored(problem: Problem) -> Any:
    return problem.train if problem.public_test else problem.test


def scored_on(problem: Problem) -> str:
    """The records, in words."""
    return "the training examples" if problem.public_test else "the records held back"
