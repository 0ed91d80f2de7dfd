"""Images and labels, split into training and test."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

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
