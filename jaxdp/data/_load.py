"""One data set by name."""

from pathlib import Path

from .. import _checks
from .._errors import UsageError
from ._dataset import Dataset
from ._mnist import load_mnist
from ._tfds import load_tfds


def load(name: str = "mnist", data_dir: Path | None = None) -> Dataset:
    """The embedded MNIST, or a TFDS data set of images and labels prepared under `data_dir`.

    Args:
        name: "mnist", or the name of a TFDS data set; with `data_dir`, "mnist" too is read from there.
        data_dir: the folder in which TFDS prepared the data set; its own default where None.

    Returns:
        A `Dataset`.

    Raises:
        UsageError: for a data set that is damaged, unknown, not prepared, or not of images and labels.
    """
    _checks.text("name", name)
    if name == "mnist" and data_dir is None:
        return load_mnist()
    if not name:
        raise UsageError("dataset is empty: give mnist, or the name of a TFDS data set with --data-dir")
    return load_tfds(name, data_dir)
