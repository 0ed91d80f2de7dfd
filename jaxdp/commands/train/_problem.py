"""A data set with a model for it: what the data's type and labels are decides how, never a name."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accounting import Ledger
from ...data import Labelled, fingerprint
from ...models import Classifier, classifier, options_of
from ._options import TrainOptions
from ._recipe import check_shape


@dataclass(frozen=True)
class Problem:
    """A data set with a model for it.

    Attributes:
        name: of the data set.
        train: inputs [n, ...] and labels [n, ...] to train on.
        test: the same to evaluate on.
        model: the classifier.
        described: what is published of the data, in JSON.
        read: all that was read of the data, to tell them from others; `fingerprint(secret)` does it.
        public_test: whether `test` is nobody's secret: the data set's own test split, not people held back.
        spent: what preparing the data has cost.
    """

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    model: Classifier
    described: dict[str, Any]
    read: tuple[np.ndarray, ...]
    public_test: bool
    spent: Ledger

    def fingerprint(self, secret: bytes) -> str:
        """Of the data, under a secret."""
        return fingerprint(*self.read, secret=secret)


def problem_of(
    data: Labelled, options: TrainOptions, *, read: tuple[np.ndarray, ...] | None = None, spent: Ledger | None = None
) -> Problem:
    """The problem that a data set poses to the model that the options name.

    Args:
        data: the data set.
        options: with the model and what it takes.
        read: all that was read of the data; by default the part to train on.
        spent: what preparing the data has cost; by default nothing.

    Raises:
        UsageError: for a model that doesn't take such data, or can't be trained on single examples, and a recipe for others.
    """
    inputs, _ = data.train
    check_shape(options, inputs.shape[1:])
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
        read=data.train if read is None else read,
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
