"""What training reads: images and labels, split into training and test, and a fingerprint that tells data sets apart."""

import hashlib
import hmac
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from .. import _checks
from .._errors import UsageError


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


def hold_back(data: Dataset, size: int) -> Dataset:
    """The data set whose test split is `size` of its training examples, chosen at random but always the same.

    Args:
        data: a data set.
        size: how many examples to hold back; 0 leaves the data set as it is.

    Returns:
        A `Dataset` that trains on the others and has nothing of the real test split.

    Raises:
        UsageError: where nothing would be left to train on.
    """
    _checks.instance("data", data, Dataset, "give a jaxdp.data.Dataset")
    size = _checks.whole("size", size, "give how many examples to hold back")
    if size == 0:
        return data
    if size >= len(data.train_labels):
        raise UsageError(
            f"--holdout={size} leaves none of the {len(data.train_labels)} training examples: hold back fewer"
        )
    order = np.random.default_rng(0).permutation(len(data.train_labels))
    train, held_back = order[size:], order[:size]
    return data._replace(
        train_images=data.train_images[train],
        train_labels=data.train_labels[train],
        test_images=data.train_images[held_back],
        test_labels=data.train_labels[held_back],
    )


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
