"""`--audit-canaries`: examples with wrong labels, each trained on or not by a fair coin, which the audit keeps apart.

They take the places of examples of the training data, so that the run's description is that of any run. One that its coin keeps
out stays in the draws and weighs nothing: its loss, and so its gradient, is zero, which is what adding or removing an example
means where sums are divided by the expected batch size.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from ..._errors import UsageError
from ..._types import Example, Params
from ...clipping._inputs import taking_rng_as
from ...reading import Source
from ...runs._canaries import Canaries
from ._options import TrainOptions
from ._problem import Problem


def drawn(options: TrainOptions, problem: Problem, key: Key[Array, ""]) -> Canaries:
    """As many as are asked for: rows, wrong labels and coins from a key that serves nothing else."""
    number, classes = options.audit_canaries, problem.model.described["task"]["count"]
    assert number is not None
    assert not isinstance(problem.train, Source)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    rows = np.sort(rng.choice(problem.examples, number, replace=False))
    inputs, labels = problem.train
    away = rng.integers(1, classes, number)
    wrong = ((labels[rows] + away) % classes).astype(labels.dtype)
    return Canaries(rows, inputs[rows], wrong, rng.random(number) < 0.5)


def planted(problem: Problem, canaries: Canaries) -> Problem:
    """The problem with canaries in the places of the examples that they were made of; raises `UsageError` for other rows."""
    assert not isinstance(problem.train, Source)
    inputs, labels = problem.train
    if not np.all((canaries.rows >= 0) & (canaries.rows < len(labels))):
        raise UsageError("the run's canaries are of rows that its data don't have: the run's folder is damaged")
    labels, weights = labels.copy(), np.ones(len(labels), np.float32)
    labels[canaries.rows] = canaries.labels
    weights[canaries.rows] = canaries.members
    return replace(problem, train=(inputs, labels), weights=weights)


def weighted(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of (input, label, weight): what `loss_fn` returns of the first two, times the third."""

    def loss(params: Params, example: Example, **rng: Any) -> Any:
        *labelled, weight = example
        return jax.tree.map(lambda value: weight * value, loss_fn(params, tuple(labelled), **rng))

    return taking_rng_as(loss_fn, loss)


def check_canaries(options: TrainOptions, problem: Problem) -> None:
    """Refuse canaries that can't be planted.

    Raises:
        UsageError: for more canaries than examples, data that stay on disk, and labels that aren't classes.
    """
    number = options.audit_canaries
    if number is None:
        return
    if isinstance(problem.train, Source):
        raise UsageError(
            f"--audit-canaries={number} of data that stay on disk: canaries are planted into arrays; give --reading memory"
        )
    if (kind := problem.model.described["task"]["kind"]) != "classes":
        raise UsageError(
            f"--audit-canaries={number} of labels that are {kind}: canaries have a wrong class; put your own into the data, and "
            "give jaxdp audit their scores"
        )
    if number > problem.examples:
        raise UsageError(
            f"--audit-canaries={number} exceeds the {problem.examples} training examples: give fewer, such as "
            f"{problem.examples // 10}"
        )
