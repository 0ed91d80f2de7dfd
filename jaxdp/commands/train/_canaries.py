"""`--audit-canaries`: examples with wrong labels, of noise or the user's own, each trained on or not by a fair coin, which the
audit keeps apart.

They take the places of examples of the training data, so that the run's description is that of any run. One that its coin keeps
out stays in the draws and weighs nothing: its loss, and so its gradient, is zero, which is what adding or removing an example
means where sums are divided by the expected batch size.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from ..._errors import NOT_ARRAYS, UsageError
from ..._types import Example, Params
from ...clipping._inputs import taking_rng_as
from ...reading import Source
from ...runs._canaries import Canaries
from ._options import NOISE, WRONG_LABELS, TrainOptions
from ._problem import Problem


def drawn(options: TrainOptions, problem: Problem, key: Key[Array, ""]) -> Canaries:
    """As many as are asked for: rows, what they become, and coins from a key that serves nothing else."""
    number, classes = options.audit_canaries, problem.model.described["task"]["count"]
    assert number is not None
    assert not isinstance(problem.train, Source)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist())
    rows = np.sort(rng.choice(problem.examples, number, replace=False))
    inputs, labels = problem.train
    away = rng.integers(1, classes, number)
    members = rng.random(number) < 0.5
    if options.canaries == WRONG_LABELS:
        wrong = ((labels[rows] + away) % classes).astype(labels.dtype)
        return Canaries(rows, inputs[rows], wrong, members)
    if options.canaries == NOISE:
        noise = _noise(rng, (number, *inputs.shape[1:]), inputs.dtype)
        return Canaries(rows, noise, rng.integers(0, classes, number).astype(labels.dtype), members)
    own, of_own = _of_file(Path(options.canaries), problem.train, number, classes)
    return Canaries(rows, own, of_own, members)


def planted(problem: Problem, canaries: Canaries) -> Problem:
    """The problem with canaries in the places of the examples that they were made of; raises `UsageError` for other rows."""
    assert not isinstance(problem.train, Source)
    inputs, labels = problem.train
    if not np.all((canaries.rows >= 0) & (canaries.rows < len(labels))):
        raise UsageError("the run's canaries are of rows that its data don't have: the run's folder is damaged")
    if (canaries.inputs.shape[1:], canaries.inputs.dtype) != (inputs.shape[1:], inputs.dtype):
        raise UsageError("the run's canaries are of another shape than its data: the run's folder is damaged")
    if not np.array_equal(inputs[canaries.rows], canaries.inputs):
        inputs = inputs.copy()
        inputs[canaries.rows] = canaries.inputs
    labels, weights = labels.copy(), np.ones(len(labels), np.float32)
    labels[canaries.rows] = canaries.labels
    weights[canaries.rows] = canaries.members
    fingerprint = problem.fingerprint.also(canaries.rows, canaries.inputs, canaries.labels, canaries.members)
    return replace(problem, train=(inputs, labels), weights=weights, fingerprint=fingerprint)


def weighted(loss_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of (input, label, weight): what `loss_fn` returns of the first two, times the third."""

    def loss(params: Params, example: Example, **rng: Any) -> Any:
        *labelled, weight = example
        return jax.tree.map(lambda value: weight * value, loss_fn(params, tuple(labelled), **rng))

    return taking_rng_as(loss_fn, loss)


def check_canaries(options: TrainOptions, problem: Problem) -> None:
    """Refuse canaries that can't be planted.

    Raises:
        UsageError: for more canaries than examples, data that stay on disk, labels that aren't classes, and a file of canaries
            that are not as the data.
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
    if options.resume is None and options.canaries not in (
        WRONG_LABELS,
        NOISE,
    ):  # one gone on with has them in its folder
        _of_file(Path(options.canaries), problem.train, number, problem.model.described["task"]["count"])


def _noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Inputs like no other: every value of a type of whole numbers as likely, standard normals of another."""
    if np.issubdtype(dtype, np.integer):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return rng.normal(size=shape).astype(dtype)


def _of_file(
    path: Path, train: tuple[np.ndarray, np.ndarray], number: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The user's own, as the training data are; raises `UsageError` for a file of anything else."""
    inputs, labels = train
    shape = ", ".join(map(str, ("n", *inputs.shape[1:])))
    fix = f"give a .npz file with inputs, {inputs.dtype} [{shape}], and labels, whole numbers [n]"
    try:
        with np.load(path, allow_pickle=False) as stored:
            own, of_own = (np.asarray(stored[name]) for name in ("inputs", "labels"))
    except (OSError, *NOT_ARRAYS) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--canaries={path} can't be read ({said}): {fix}") from error
    if own.shape[1:] != inputs.shape[1:] or own.dtype != inputs.dtype or of_own.shape != own.shape[:1]:
        raise UsageError(
            f"--canaries={path} has inputs {own.dtype}{list(own.shape)} and labels {of_own.dtype}{list(of_own.shape)}: {fix}"
        )
    if not np.issubdtype(of_own.dtype, np.integer) or len(of_own) < number:
        raise UsageError(
            f"--canaries={path} has {len(of_own)} labels of {of_own.dtype}, and --audit-canaries={number}: {fix}, as many or more"
        )
    if not 0 <= of_own.min() <= of_own.max() < classes:
        raise UsageError(
            f"--canaries={path} has labels from {of_own.min()} to {of_own.max()}, and the data {classes} classes from 0: {fix}"
        )
    return own[:number], of_own[:number].astype(labels.dtype)
