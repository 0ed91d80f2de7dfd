"""Labelled records, whatever they are: what training asks of a data set."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._tasks import Task

Records = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A data set as training sees it: inputs with labels, in two parts, and what the labels say.

    Images become one by `Dataset.labelled`, tables by `Table.labelled`; records of any other kind are given as one (see
    `DATASETS`).

    Args:
        name: what it is called.
        train: inputs [n, ...] and labels [n, ...] to train on: what privacy protects.
        test: the same to evaluate on.
        task: what labels say, such as `Classes(10)`.
        public_test: whether `test` is nobody's secret: not people held back, whose losses and accuracies would tell of them.
            What is not public is kept out of what a run publishes.
        described: what is published of the data in a run's config.json, as plain values.

    Raises:
        UsageError: for parts that aren't arrays of numbers with a row a record, differ in what a record is, or hold labels that
            the task doesn't know.
    """

    name: str
    train: Records
    test: Records
    task: Task
    public_test: bool = False
    described: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.text("name", self.name)
        _checks.instance("task", self.task, Task, "give a task such as jaxdp.data.Classes(10)")
        for part in ("train", "test"):
            _check_records(part, getattr(self, part))
        for what, ours, theirs in zip(("inputs", "labels"), self.train, self.test, strict=True):
            if (ours.shape[1:], ours.dtype) != (theirs.shape[1:], theirs.dtype):
                raise UsageError(
                    f"{what} are {ours.dtype} {list(ours.shape[1:])} a record in train and {theirs.dtype} "
                    f"{list(theirs.shape[1:])} in test: give both parts in the same form"
                )
        self.task.check_labels(self.train[1])
        try:
            json.dumps(self.described)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"described can't be written as JSON ({error}): give plain numbers, strings, lists and dicts"
            ) from error

    def check_test(self) -> None:
        """Refuse a test part whose labels the task doesn't know; there may be none where it isn't evaluated on."""
        try:
            self.task.check_labels(self.test[1])
        except UsageError as error:
            raise UsageError(
                f"test: {error}; or hold some training examples back to evaluate on, by --holdout"
            ) from error

    def held_back(self, train: np.ndarray, test: np.ndarray) -> "Labelled":
        """The data set that trains on some rows of its training part and is evaluated on others, which are not public."""
        pick = lambda rows: (self.train[0][rows], self.train[1][rows])
        return replace(self, train=pick(train), test=pick(test), public_test=False)


def _check_records(part: str, records: Any) -> None:
    fix = "give (inputs, labels), NumPy arrays with one record a row"
    if not (isinstance(records, tuple) and len(records) == 2):
        raise UsageError(f"{part} is {type(records).__name__}: {fix}")
    for array in records:
        if not isinstance(array, np.ndarray) or array.ndim == 0 or not _checks.is_real(array):
            raise UsageError(f"{part} holds a {type(array).__name__} that is no array of numbers: {fix}")
        _checks.held(part, array)
    sizes = [len(array) for array in records]
    if len(set(sizes)) > 1 or 0 in sizes:
        raise UsageError(f"{part} has {sizes[0]} inputs and {sizes[1]} labels: {fix}, and one record at least")
