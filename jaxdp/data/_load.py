"""One data set by name, and the one place where a data set of one's own is plugged in."""

import difflib
from collections.abc import Callable
from pathlib import Path

from .. import _checks
from .._errors import UsageError
from ._dataset import Dataset
from ._labelled import Labelled
from ._mnist import load_mnist
from ._tfds import Prepared, Progress, no_progress, open_tfds

DATASETS: dict[str, Callable[[], Dataset | Labelled]] = {"mnist": load_mnist}
"""Data sets by name: functions that give a `Dataset` of images or a `Labelled` one of other records.

Any other name, and with a folder of prepared data sets every name, is one of TFDS. A data set of your own is a line of your
program, before it trains or loads a run by that name:

    jaxdp.data.DATASETS["spirals"] = lambda: jaxdp.data.Labelled(
        name="spirals", train=(points, classes), test=(others, theirs), task=jaxdp.data.Classes(3))
"""


def load(name: str = "mnist", data_dir: Path | None = None, *, progress: Progress = no_progress) -> Dataset:
    """A data set of images: the embedded MNIST, another one of `DATASETS`, or a TFDS data set prepared under `data_dir`.

    Args:
        name: "mnist", another name in `DATASETS`, or that of a TFDS data set; with `data_dir`, "mnist" too is read from there.
        data_dir: the folder in which TFDS prepared the data set; its own default where None.
        progress: as `load_tfds` takes it.

    Returns:
        A `Dataset`.

    Raises:
        UsageError: for a data set that is damaged, unknown, not prepared, or not of images and labels.
    """
    found = _found(name, data_dir, progress)
    if not isinstance(found, Dataset):
        raise UsageError(
            f"dataset {name!r} is not of images: read it by jaxdp.data.load_labelled, or give one of images"
        )
    return found


def load_labelled(name: str = "mnist", data_dir: Path | None = None, *, progress: Progress = no_progress) -> Labelled:
    """A data set of any records, as training sees it.

    Args:
        name: as `load` takes it.
        data_dir: likewise.
        progress: likewise.

    Returns:
        A `Labelled`.

    Raises:
        UsageError: for a data set that is damaged, unknown or not prepared.
    """
    found = _found(name, data_dir, progress)
    return found.labelled() if isinstance(found, Dataset) else found


def prepared(name: str = "mnist", data_dir: Path | None = None) -> Prepared | None:
    """The TFDS data set that `load` would read, of which nothing is read yet; None where the name is in `DATASETS`.

    Raises:
        UsageError: for a data set that is unknown, not prepared, or not of images and labels.
    """
    _checks.text("name", name)
    if not name:
        raise UsageError("dataset is empty: give mnist, or the name of a TFDS data set with --data-dir")
    if name.lower().endswith(".csv"):
        raise UsageError(f"dataset {name!r} is a file: to train on a table, give --dataset csv --features {name}")
    if data_dir is None and name in DATASETS:
        return None
    try:
        return open_tfds(name, data_dir)
    except UsageError as error:
        near = difflib.get_close_matches(name.lower(), DATASETS, n=1)
        if data_dir is None and near:
            raise UsageError(f"did you mean {near[0]}? {error}") from error
        raise


def _found(name: str, data_dir: Path | None, progress: Progress) -> Dataset | Labelled:
    _checks.function("progress", progress, "give a function of rows and what to say of them, or leave it out")
    if (stored := prepared(name, data_dir)) is not None:
        return stored.decoded(progress)
    found = DATASETS[name]()
    if not isinstance(found, Dataset | Labelled):  # of which nothing is shown: it may be private
        raise UsageError(
            f"DATASETS[{name!r}] gave a {type(found).__name__}: return a jaxdp.data.Dataset of images, or a jaxdp.data.Labelled"
        )
    return found
