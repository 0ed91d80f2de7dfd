"""A data set with a model for it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accounting import Ledger
from ...data import fingerprint
from ...models import Classifier


@dataclass(frozen=True)
class Problem:
    """A data set with a model for it.

    Attributes:
        name: of the data set.
        train: inputs [n, ...] and labels [n, ...] to train on.
        test: the same to evaluate on.
        model: the classifier.
        described: what the model is rebuilt from, in JSON.
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
