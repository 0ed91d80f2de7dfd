"""MNIST, embedded in the package: four gzipped IDX files, verified against the checksums of the originals.

Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits"; CC BY-SA 3.0.
"""

import gzip
import hashlib
import zlib
from pathlib import Path

import numpy as np

from .. import _checks
from .._errors import UsageError
from ._dataset import Dataset

_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def load_mnist(directory: Path | None = None) -> Dataset:
    """The 60,000 training and 10,000 test digits, 28 × 28 pixels.

    Args:
        directory: a folder with the four files, named as the originals with `.gz`; by default the package's own.

    Returns:
        A `Dataset`.

    Raises:
        UsageError: for a file that is missing or damaged, saying which one and what was expected.
    """
    folder = Path(__file__).parent / "mnist" if directory is None else _checks.path("directory", directory)
    train_images, train_labels, test_images, test_labels = (_read_idx(folder / f"{name}.gz") for name in _SHA256)
    return Dataset(
        "mnist",
        train_images[..., None],
        train_labels.astype(np.int32),
        test_images[..., None],
        test_labels.astype(np.int32),
        10,
    )


def _read_idx(path: Path) -> np.ndarray:
    """The array in a gzipped IDX file: two zero bytes, the type, the rank, then big-endian sizes and the entries."""
    fix = "install jaxdp again, or put the original file in its place"
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"{path} is missing: {fix}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged, it can't be unzipped ({error}): {fix}") from error
    expected, found = _SHA256[path.stem], hashlib.sha256(content).hexdigest()
    if found != expected:
        raise UsageError(f"{path} is damaged: SHA-256 of its content is {found}, expected {expected}: {fix}")
    rank = content[3]
    shape = np.frombuffer(content, ">u4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
