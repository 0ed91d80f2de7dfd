"""What tells data sets apart, without telling anything of them to those who don't know a secret."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _checks
from ..reading import Source, in_order
from ._tfds import Progress, no_progress


def fingerprint(*arrays: np.ndarray, secret: bytes) -> str:
    """HMAC-SHA256 of the arrays' dtypes, shapes and contents under a secret key, as 64 hexadecimal digits.

    Without a secret, whoever knows all records but one finds that one by trying: never keep a plain hash of private records.
    """
    digest = hmac.new(secret, digestmod=hashlib.sha256)
    _add_arrays(arrays, [digest])
    return digest.hexdigest()


class Fingerprints:
    """The fingerprints of one data set under several secrets.

        fingerprints = Fingerprints(source)
        fingerprints.expect(one_secret)
        fingerprints(another)       # reads all records once, for both

    Those of records on disk are those of the arrays that they would be in memory.

    Args:
        read: what is read of the data: arrays and sources of (input, label), or a source alone.
        progress: shows how far it is, where records are read.
    """

    def __init__(self, read: tuple[np.ndarray | Source, ...] | Source, progress: Progress = no_progress) -> None:
        self._read, self._progress = (read,) if isinstance(read, Source) else read, progress
        self._expected: list[bytes] = []
        self._known: dict[bytes, str] = {}

    def also(self, *parts: np.ndarray | Source) -> "Fingerprints":
        """Those of the same data, and of further arrays and sources."""
        return Fingerprints((*self._read, *parts), self._progress)

    def expect(self, secret: bytes) -> None:
        """Say before the first is asked for that the one under this secret will be, too."""
        self._expected.append(secret)

    def __call__(self, secret: bytes) -> str:
        """The fingerprint under a secret."""
        if secret not in self._known:
            secrets = [each for each in dict.fromkeys((secret, *self._expected)) if each not in self._known]
            digests = [hmac.new(each, digestmod=hashlib.sha256) for each in secrets]
            for part in self._read:
                if isinstance(part, Source):
                    _add_source(part, digests, self._progress)
                else:
                    _add_arrays([part], digests)
            self._known.update(zip(secrets, (digest.hexdigest() for digest in digests), strict=True))
        return self._known[secret]


def _add_arrays(arrays: Iterable[np.ndarray], digests: Sequence[hmac.HMAC]) -> None:
    for given in arrays:
        array = np.asarray(_checks.array("an array", given, "give arrays of numbers"))
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # not its tobytes, which would be a copy
        for digest in digests:
            digest.update(_kind(array.dtype, array.shape))
            digest.update(content)


def _add_source(source: Source, digests: Sequence[hmac.HMAC], progress: Progress) -> None:
    """As of the inputs and the labels of all records as arrays; they are read once."""

    def update(content: bytes) -> None:
        for digest in digests:
            digest.update(content)

    one_input, one_label = jax.tree.leaves(source.like)
    update(_kind(np.dtype(one_input.dtype), (len(source), *one_input.shape)))
    labels: list[np.ndarray] = []
    done: Any = iter(progress(range(len(source)), "reading all records once, to know them again"))
    for some_inputs, some_labels in in_order(source):
        update(np.ascontiguousarray(some_inputs).tobytes())
        labels.append(some_labels)
        for _ in some_labels:
            next(done)
    next(done, None)  # which ends the bar
    update(_kind(np.dtype(one_label.dtype), (len(source), *one_label.shape)))
    update(np.concatenate(labels).tobytes())


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape}".encode()
