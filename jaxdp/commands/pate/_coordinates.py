"""Coordinates of images in a graph that the public ones make of scattering features: what teachers and student of "graph" see."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ... import data as datasets
from ..._errors import UsageError
from ...data import Classes
from ...models import Classifier, classifier
from ...pate._graph import graph_coordinates
from ...runs._device import check_room
from ...runs._folder import RunFolder
from ...runs._report import rows_shown
from ._predictions import Kept, load_array, save_array

_NEIGHBOURS, _DIMENSIONS, _LEAST_PUBLIC = 10, 20, 2


@dataclass(frozen=True)
class Coordinates:
    """Of the first `public` test images and of the training images, kept in the folder: a resumed run has the same."""

    folder: RunFolder
    data: datasets.Dataset
    public: int

    @cached_property
    def both(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the public images and of the private ones, in the graph of the public ones."""
        paths = _paths(self.folder)
        if not all(path.exists() for path in paths):
            public, private = (
                _scattering(self.data).prepare(images, progress=rows_shown)
                for images in (self.data.test_images[: self.public], self.data.train_images)
            )
            neighbours, dimensions = min(_NEIGHBOURS, self.public - 1), min(_DIMENSIONS, self.public - 1)
            found = graph_coordinates(public, private, neighbours=neighbours, dimensions=dimensions)
            for path, array in zip(paths, found, strict=True):
                save_array(Kept(path, self.folder.mark), array)
        public, private = (load_array(Kept(path, self.folder.mark)) for path in paths)
        return public, private


def erase_coordinates(folder: RunFolder) -> None:
    """Take the files away; doing it again does no harm."""
    for path in _paths(folder):
        path.unlink(missing_ok=True)


def _paths(folder: RunFolder) -> tuple[Path, Path]:
    return folder.private / "public-coordinates.npy", folder.private / "private-coordinates.npy"


def check_graph(data: datasets.Dataset, public: int, device: Any) -> None:
    """Refuse images of which no graph can be made."""
    instead = "or --teacher-model strided --student fixmatch, which need none"
    if public < _LEAST_PUBLIC:
        raise UsageError(f"--public={public} makes no graph: give at least {_LEAST_PUBLIC}, {instead}")
    try:
        model = _scattering(data)
    except UsageError as error:
        raise UsageError(f"no graph of these images: {error}, {instead}") from error
    check_room(device, model, data.train_images, data.test_images[:public], fix=f"give smaller images, {instead}")


def _scattering(data: datasets.Dataset) -> Classifier:
    """Which makes the features that the graph joins images by."""
    return classifier(
        "scattering", Classes(data.num_classes), input_shape=data.train_images.shape[1:], input_dtype=np.uint8
    )
