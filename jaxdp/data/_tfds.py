"""A TFDS data set of images and labels, prepared on disk, read without TensorFlow.

`tfds` reads the array_record format in pure Python; downloading and preparing a data set needs TensorFlow and happens
elsewhere. Nothing here touches the network. Decoding takes seconds for tens of thousands of records, so the arrays are
kept in a cache folder, under a name made from the prepared files' names, sizes and times. What doesn't fit in memory is left
where it is (`_on_disk`).
"""

import contextlib
import hashlib
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import _checks
from .._errors import NOT_ARRAYS, UsageError
from ._dataset import Dataset

_VERSION = re.compile(r"\d+\.\d+\.\d+")
Progress = Callable[[range, str], Iterable[int]]


def no_progress(rows: range, said: str) -> Iterable[int]:
    """The rows, and nothing shown."""
    return rows


def load_tfds(name: str, data_dir: Path | None = None, *, progress: Progress = no_progress) -> Dataset:
    """The "train" and "test" splits of a prepared TFDS data set.

    Args:
        name: as in TFDS: "mnist", "cifar10", "name/config", "name:1.2.3".
        data_dir: the folder in which it was prepared; `~/tensorflow_datasets` by default, as in TFDS.
        progress: `progress(rows, said)` gives the same rows one by one, and may show how far they are.

    Returns:
        A `Dataset`; without a "test" split, "validation" stands in.

    Raises:
        UsageError: where the data set isn't prepared there, isn't in the array_record format, or isn't one of uint8
            images of one size with integer labels. The message says which command prepares it.
    """
    _checks.function("progress", progress, "give a function of rows and what to say of them, or leave it out")
    return open_tfds(name, data_dir).decoded(progress)


@dataclass(frozen=True)
class Prepared:
    """A data set of images with labels as TFDS prepared it, of which nothing is read yet.

    Attributes:
        name: what it is called.
        folder: where it lies.
        builder: TFDS's.
        image: the name of the image in a record.
        label: the name of the label.
        splits: to train and to evaluate on.
    """

    name: str
    folder: Path
    builder: Any
    image: str
    label: str
    splits: tuple[str, str]

    @property
    def num_classes(self) -> int:
        """How many classes the data set declares."""
        return self.builder.info.features[self.label].num_classes

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one image: height, width, channels."""
        return tuple(self.builder.info.features[self.image].shape)

    @property
    def size_of_one(self) -> int:
        """Bytes of a record once it is decoded."""
        return math.prod(self.image_shape) + np.dtype(np.int32).itemsize

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of both splits once they are decoded."""
        train, test = (self.size_of_one * self.builder.info.splits[split].num_examples for split in self.splits)
        return train, test

    def data_source(self, split: str) -> Any:
        """TFDS's of a split."""
        with _named(self.name, self.folder):
            return self.builder.as_data_source(split)

    def test_images(self, progress: Progress = no_progress) -> np.ndarray:
        """Those to evaluate on, and nothing else of it."""
        images, _ = _decode(self, self.splits[1], progress)
        return images

    def decoded(self, progress: Progress = no_progress) -> Dataset:
        """All of it in memory."""
        cached = _cache_path(self.folder)
        arrays = _read_cache(cached)
        if arrays is None:
            arrays = [array for split in self.splits for array in _decode(self, split, progress)]
            _write_cache(cached, arrays)
        train_images, train_labels, test_images, test_labels = arrays
        return Dataset(self.name, train_images, train_labels, test_images, test_labels, self.num_classes)

    def image_and_label(self, record: Any) -> tuple[np.ndarray, np.int32]:
        """The image, uint8 [height, width, channels], and the label of a record, as `decoded` has them."""
        label = np.int32(record[self.label])
        if not 0 <= label < self.num_classes:
            raise ValueError(f"its label {label} is none of 0 to {self.num_classes - 1}")
        return np.asarray(record[self.image]).astype(np.uint8, copy=False), label


def open_tfds(name: str, data_dir: Path | None = None) -> Prepared:
    """A data set as `load_tfds` takes it, of which nothing is read yet."""
    _checks.text("name", name)
    root = Path("~/tensorflow_datasets").expanduser() if data_dir is None else _checks.path("data_dir", data_dir)
    folder = _prepared_folder(name, root)
    builder = _builder(name, folder, root)
    image, label = _image_and_label(name, builder.info)
    return Prepared(name, folder, builder, image, label, _split_names(name, builder.info.splits))


def _prepared_folder(name: str, root: Path) -> Path:
    """The folder of the newest prepared version."""
    base = root / name.replace(":", "/")
    if "\0" in name or any(not part.strip(".") for part in re.split("[/:]", name)):  # a path, which leads elsewhere
        raise UsageError(f"dataset {name!r} is not a name in TFDS: give one such as mnist, name/config or name:1.2.3")
    found = sorted(
        (path for path in base.glob("**/dataset_info.json") if _VERSION.fullmatch(path.parent.name)),
        key=lambda path: _version(path.parent.name),
    )
    if not found:
        ready = sorted({path.relative_to(root).parts[0] for path in root.glob("*/**/dataset_info.json")}) or ["none"]
        raise UsageError(
            f"dataset {name!r} is not prepared under {root} (prepared there: {', '.join(ready)}). {_how_to_prepare(name, root)}"
        )
    if len(kinds := sorted({str(path.parent.parent.relative_to(root)) for path in found})) > 1:
        raise UsageError(
            f"dataset {name!r} is prepared in several configurations under {root}: name one of {', '.join(kinds)}"
        )
    return found[-1].parent


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _how_to_prepare(name: str, root: Path) -> str:
    return (
        "To prepare it, on a machine with a network: in a clone of jaxdp pip install '.[prepare]' && python -c \"import "
        f"tensorflow_datasets as tfds; tfds.builder('{name}', data_dir='{root}', file_format='array_record')"
        '.download_and_prepare()"'
    )


def _builder(name: str, folder: Path, root: Path) -> Any:
    import tensorflow_datasets as tfds

    with _named(name, folder):
        builder = tfds.builder_from_directory(folder)
    found = builder.info.file_format
    if found != tfds.core.FileFormat.ARRAY_RECORD:
        raise UsageError(
            f"dataset {name!r} in {folder} is stored as {found and found.value}, which only TensorFlow reads; jaxdp reads "
            f"array_record. {_how_to_prepare(name, root)}"
        )
    return builder


@contextlib.contextmanager
def _named(name: str, folder: Path) -> Iterator[None]:
    """What TFDS and its reader raise, with the data set: they name a file at best, and have many kinds of errors for damage."""
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"dataset {name!r} in {folder} can't be read ({why.strip()}): where its files may be read, it is damaged; prepare it "
            "anew"
        ) from error


def _image_and_label(name: str, info: Any) -> tuple[str, str]:
    """The names of the one image feature and the one label feature."""
    import tensorflow_datasets as tfds

    features = dict(info.features.items())
    images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    labels = [key for key, feature in features.items() if isinstance(feature, tfds.features.ClassLabel)]
    if info.supervised_keys and set(info.supervised_keys) <= {*images, *labels}:
        images, labels = ([key for key in info.supervised_keys if key in kind] for kind in (images, labels))
    if len(images) != 1 or len(labels) != 1:
        raise UsageError(
            f"dataset {name!r} has the features {sorted(features)}; jaxdp train needs exactly one image and one class label"
        )
    shape = features[images[0]].shape
    if None in shape:
        raise UsageError(
            f"dataset {name!r} has images of shape {shape}, of varying size: resize them to one size first"
        )
    if (dtype := np.dtype(features[images[0]].np_dtype)) != np.uint8:
        raise UsageError(
            f"dataset {name!r} has images of {dtype}, and jaxdp train reads those of uint8, 0 to 255: in Python, register a "
            "jaxdp.data.Labelled with what you make of them"
        )
    return images[0], labels[0]


def _split_names(name: str, splits: Any) -> tuple[str, str]:
    test = "test" if "test" in splits else "validation"
    if "train" not in splits or test not in splits:
        raise UsageError(f"dataset {name!r} has the splits {sorted(splits)}; a train and a test split are needed")
    return "train", test


def _decode(prepared: Prepared, split: str, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    source = prepared.data_source(split)
    records = []
    for i in progress(range(len(source)), f"decoding {prepared.builder.name} {split}"):
        with _named(prepared.name, prepared.folder):
            records.append(source[i])
    images = np.stack([record[prepared.image] for record in records]).astype(np.uint8)
    return images, np.array([record[prepared.label] for record in records], np.int32)


def _cache_path(folder: Path) -> Path:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    state = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(repr((str(folder.resolve()), state)).encode()).hexdigest()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "jaxdp" / f"{digest[:32]}.npz"


def _read_cache(path: Path) -> list[np.ndarray] | None:
    """The four arrays, or None where there is no cache or a damaged one."""
    try:
        with np.load(path) as stored:
            return [stored[key] for key in stored.files]
    except (OSError, *NOT_ARRAYS):
        return None


def _write_cache(path: Path, arrays: list[np.ndarray]) -> None:
    """Store the arrays under `path`, all or nothing; where the cache can't be written, the next run decodes again."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as left:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
            left.callback(Path(file.name).unlink, missing_ok=True)
            np.savez(file, *arrays)
        Path(file.name).replace(path)
