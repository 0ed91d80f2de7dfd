"""What tells data sets apart, without telling anything of them to those who don't know a secret."""

import hashlib
import hmac
from collections.abc import Iterable
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
    for given in arrays:
        array = np.asarray(_checks.array("an array", given, "give arrays of numbers"))
        digest.update(_kind(array.dtype, array.shape))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Fingerprints:
    """The fingerprints of one data set under several secrets.

        fingerprints = Fingerprints(source)
        fingerprints.expect(one_secret)
        fingerprints(another)       # reads all records once, for both

    Those of records on disk are those of the arrays that they would be in memory.

    Args:
        read: what is read of the data: arrays, or a source of (input, label).
        progress: shows how far it is, where records are read.
    """

    def __init__(self, read: tuple[np.ndarray, ...] | Source, progress: Progress = no_progress) -> None:
        self._read, self._progress = read, progress
        self._expected: list[bytes] = []
        self._known: dict[bytes, str] = {}

    def also(self, *arrays: np.ndarray) -> "Fingerprints":
        """Those of the same data, held in memory, and of further arrays."""
        assert not isinstance(self._read, Source)
        return Fingerprints((*self._read, *arrays), self._progress)

    def expect(self, secret: bytes) -> None:
        """Say before the first is asked for that the one under this secret will be, too."""
        self._expected.append(secret)

    def __call__(self, secret: bytes) -> str:
        """The fingerprint under a secret."""
        if secret not in self._known:
            secrets = [each for each in dict.fromkeys((secret, *self._expected)) if each not in self._known]
            self._known.update(zip(secrets, self._under(secrets), strict=True))
        return self._known[secret]

    def _under(self, secrets: list[bytes]) -> list[str]:
        if isinstance(self._read, Source):
            return _of_source(self._read, secrets, self._progress)
        return [fingerprint(*self._read, secret=secret) for secret in secrets]


def _of_source(source: Source, secrets: Iterable[bytes], progress: Progress) -> list[str]:
    """`fingerprint(inputs, labels)` under each secret, of the records of a source as arrays; they are read once."""
    digests = [hmac.new(secret, digestmod=hashlib.sha256) for secret in secrets]

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
    return [digest.hexdigest() for digest in digests]


def _kind(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    return f"{dtype.str}{shape}".encode()
