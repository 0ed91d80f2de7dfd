"""The number by which models are compared: how right their predictions are, added up over records, under noise.

A record adds one less its Brier score, which is 1 for a prediction that is right and sure, and 0 for one that is wrong and sure:
so one record more or less moves the sum by at most 1. The records are those that were held back, or where the test set is
public, which no choice may be made by, those that were trained on.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from ..._errors import UsageError
from ..._types import Params
from ...data import Classes, Targets
from ...data._on_disk import columns
from ..train._problem import Problem

Rightness = Callable[[Float[np.ndarray, "n outputs"], np.ndarray], Float[np.ndarray, " n"]]


def _of_classes(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    there = np.arange(probabilities.shape[1]) == labels[:, None]
    return 1 - np.square(probabilities - there).sum(axis=1) / 2


def _of_targets(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return 1 - np.square(probabilities - labels).mean(axis=1)


_BY_TASK: dict[str, Rightness] = {Classes.kind: _of_classes, Targets.kind: _of_targets}


def rightness(problem: Problem, params: Params) -> float:
    """The sum over records, each between 0 and 1, of how right a model is; raises `UsageError` for a task without such a rule."""
    kind = problem.model.described["task"]["kind"]
    if kind not in _BY_TASK:
        raise UsageError(f"models for {kind} can't be compared by jaxdp tune, which knows {', '.join(_BY_TASK)}")
    inputs, labels = columns(_scored(problem))
    probabilities = problem.model.predict(params, inputs).astype(np.float64)
    of_each = np.nan_to_num(_BY_TASK[kind](probabilities, labels[:]))
    return float(of_each.clip(0, 1).sum())


def records_scored(problem: Problem) -> int:
    """Over how many records a score adds up."""
    return len(columns(_scored(problem))[1])


def _scored(problem: Problem) -> Any:
    return problem.train if problem.public_test else problem.test


def scored_on(problem: Problem) -> str:
    """The records, in words."""
    return "the training examples" if problem.public_test else "the records held back"
