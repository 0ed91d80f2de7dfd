"""Images and labels, split into training and test, and a fingerprint that tells data sets apart."""

import hashlib
import hmac
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int32, UInt8

from .. import _checks
from .._errors import UsageError
from ._labelled import Labelled
from ._tasks import Classes


class Dataset(NamedTuple):
    """A labelled image data set in memory.

    Attributes:
        name: what it is called.
        train_images: uint8 [n, height, width, channels].
        train_labels: int32 [n], in 0 .. num_classes - 1.
        test_images: uint8 [m, height, width, channels].
        test_labels: int32 [m].
        num_classes: how many classes the data set declares (not how many labels occur).
    """

    name: str
    train_images: UInt8[np.ndarray, "n height width channels"]
    train_labels: Int32[np.ndarray, " n"]
    test_images: UInt8[np.ndarray, "m height width channels"]
    test_labels: Int32[np.ndarray, " m"]
    num_classes: int

    def labelled(self) -> Labelled:
        """The data set as training sees it: one class an image; its own test split is public."""
        return Labelled(
            name=self.name,
            train=(self.train_images, self.train_labels),
            test=(self.test_images, self.test_labels),
            task=Classes(self.num_classes),
            public_test=True,
            described={"num_classes": self.num_classes, "image_shape": self.train_images.shape[1:]},
        )

    def held_back(self, train: np.ndarray, test: np.ndarray) -> "Dataset":
        """The data set that trains on some rows of its training split and is evaluated on others."""
        return self._replace(
            train_images=self.train_images[train],
            train_labels=self.train_labels[train],
            test_images=self.train_images[test],
            test_labels=self.train_labels[test],
        )


AnyData = TypeVar("AnyData", Dataset, Labelled)


def hold_back(data: AnyData, size: int) -> AnyData:
    """The data set whose test split is `size` of its training examples, chosen at random but always the same.

    Args:
        data: a `Dataset` of images, or a `Labelled` one of any records.
        size: how many examples to hold back; 0 leaves the data set as it is.

    Returns:
        A data set of the same type that trains on the others and has nothing of the real test split.

    Raises:
        UsageError: where nothing would be left to train on.
    """
    _checks.instance("data", data, Dataset | Labelled, "give a jaxdp.data.Dataset, or a jaxdp.data.Labelled")
    size = _checks.whole("size", size, "give how many examples to hold back")
    if size == 0:
        return data
    examples = len(data.train_labels if isinstance(data, Dataset) else data.train[1])
    if size >= examples:
        raise UsageError(f"--holdout={size} leaves none of the {examples} training examples: hold back fewer")
    order = np.random.default_rng(0).permutation(examples)
    return data.held_back(order[size:], order[:size])


def fingerprint(*arrays: np.ndarray, secret: bytes) -> str:
    """HMAC-SHA256 of the arrays' dtypes, shapes and contents under a secret key, as 64 hexadecimal digits.

    Without a secret, whoever knows all records but one finds that one by trying: never keep a plain hash of private records.
    """
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    for given in arrays:
        array = np.asarray(_checks.array("an array", given, "give arrays of numbers"))
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
