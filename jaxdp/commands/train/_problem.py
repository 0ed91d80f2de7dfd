"""A data set with a model for it: what the data's type and labels are decides how, never a name."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accounting import Ledger
from ...data import Fingerprints, Labelled, OnDisk, Records
from ...data._on_disk import columns
from ...data._tfds import Progress, no_progress
from ...models import Classifier, classifier, options_of
from ...reading import Source
from ._options import TrainOptions
from ._recipe import check_shape


@dataclass(frozen=True)
class Problem:
    """A data set with a model for it.

    Attributes:
        name: of the data set.
        train: inputs [n, ...] and labels [n, ...] to train on, or a source of (input, label) where they stay on disk.
        test: the same to evaluate on.
        model: the classifier.
        described: what is published of the data, in JSON.
        fingerprint: `fingerprint(secret)`, of all that is read of the data, tells them from others.
        public_test: whether `test` is nobody's secret: the data set's own test split, not people held back.
        spent: what preparing the data has cost.
        weights: float32 [n], by which each example's loss counts; None where all count alike.
    """

    name: str
    train: Records | Source
    test: Records | Source
    model: Classifier
    described: dict[str, Any]
    fingerprint: Fingerprints
    public_test: bool
    spent: Ledger
    weights: np.ndarray | None = None

    @property
    def examples(self) -> int:
        """How many there are to train on."""
        return len(self.train) if isinstance(self.train, Source) else len(self.train[0])

    @property
    def kept(self) -> tuple[Any, ...]:
        """The inputs of which something is kept in memory: of those on disk, what a model prepares of them."""
        parts = [part for part in (self.train, self.test) if self.model.prepares or not isinstance(part, Source)]
        return tuple(columns(part)[0] for part in parts)


def problem_of(
    data: Labelled | OnDisk,
    options: TrainOptions,
    *,
    read: tuple[np.ndarray, ...] | None = None,
    spent: Ledger | None = None,
    progress: Progress = no_progress,
) -> Problem:
    """The problem that a data set poses to the model that the options name.

    Args:
        data: the data set.
        options: with the model and what it takes.
        read: all that was read of the data; by default the part to train on, and people held back, whose losses may decide how
            training goes on.
        spent: what preparing the data has cost; by default nothing.
        progress: shows how far the fingerprint of data on disk is.

    Raises:
        UsageError: for test labels that the task doesn't know, a model that doesn't take such data, or can't be trained on single
            examples, and a recipe for others.
    """
    if isinstance(data, Labelled):  # what is read from a disk is checked there
        data.check_test()
    inputs, _ = columns(data.train)
    check_shape(options, inputs.shape[1:])
    fingerprint = Fingerprints(data.train if read is None else read, progress)
    if read is None and not data.public_test:
        fingerprint = fingerprint.also(*((data.test,) if isinstance(data.test, Source) else data.test))
    return Problem(
        name=data.name,
        train=data.train,
        test=data.test,
        model=classifier(
            options.architecture,
            data.task,
            input_shape=inputs.shape[1:],
            input_dtype=inputs.dtype,
            **_taken(options),
        ),
        described=data.described,
        fingerprint=fingerprint,
        public_test=data.public_test,
        spent=Ledger() if spent is None else spent,
    )


def _taken(options: TrainOptions) -> dict[str, Any]:
    """Those of the options that are the model's own, as far as it takes them."""
    given = {"activation": options.activation, "scales": options.scales}
    if options.hidden is not None:
        given["hidden"] = tuple(options.hidden)
    if options.is_table:
        given["dtype"] = "bfloat16" if options.precision == "bf16" else "float32"
    return {name: value for name, value in given.items() if name in options_of(options.architecture)}
