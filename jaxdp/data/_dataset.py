"""What training reads: images and labels, split into training and test, and a fingerprint that tells data sets apart."""

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8


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


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' dtypes, shapes and contents, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
