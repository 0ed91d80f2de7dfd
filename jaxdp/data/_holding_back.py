"""Examples held back from training, to evaluate on."""

from typing import TypeVar

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._dataset import Dataset
from ._labelled import Labelled
from ._on_disk import OnDisk

AnyData = TypeVar("AnyData", Dataset, Labelled, OnDisk)


def hold_back(data: AnyData, size: int) -> AnyData:
    """The data set whose test split is `size` of its training examples, chosen at random but always the same.

    Args:
        data: a `Dataset` of images, a `Labelled` one of any records, or one that is `OnDisk`.
        size: how many examples to hold back; 0 leaves the data set as it is.

    Returns:
        A data set of the same type that trains on the others and has nothing of the real test split.

    Raises:
        UsageError: where nothing would be left to train on.
    """
    fix = "give a jaxdp.data.Dataset, or a jaxdp.data.Labelled"
    _checks.instance("data", data, Dataset | Labelled | OnDisk, fix)
    size = _checks.whole("size", size, "give how many examples to hold back")
    if size == 0:
        return data
    examples = _examples(data)
    if size >= examples:
        raise UsageError(f"--holdout={size} leaves none of the {examples} training examples: hold back fewer")
    order = np.random.default_rng(0).permutation(examples)
    return data.held_back(order[size:], order[:size])


def _examples(data: Dataset | Labelled | OnDisk) -> int:
    if isinstance(data, Dataset):
        return len(data.train_labels)
    return len(data.train) if isinstance(data, OnDisk) else len(data.train[1])
