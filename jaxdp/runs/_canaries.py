"""A run's canaries as its folder keeps them: examples like no others, and of each whether a fair coin had it trained on."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Num

from .._errors import NOT_ARRAYS, UsageError

FILE = "canaries.npz"  # in the folder's private/


class Canaries(NamedTuple):
    """Which rows of the training data they take the places of, their inputs and labels, and the coins."""

    rows: Int64[np.ndarray, " canaries"]
    inputs: Num[np.ndarray, "canaries ..."]
    labels: Num[np.ndarray, " canaries"]
    members: Bool[np.ndarray, " canaries"]

    def to_bytes(self) -> bytes:
        """As they are written."""
        file = io.BytesIO()
        np.savez(file, **self._asdict())
        return file.getvalue()


def from_bytes(content: bytes, path: Path) -> Canaries:
    """The inverse; raises `UsageError`, naming the path, for what isn't as it was written."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            found = Canaries(*(stored[name] for name in Canaries._fields))
            kinds = (found.rows.dtype, np.int64), (found.labels.dtype, np.integer), (found.members.dtype, np.bool_)
            vectors = all(each.ndim == 1 for each in (found.rows, found.labels, found.members))
            alike = len({len(each) for each in found}) == 1
            if not (vectors and alike and all(np.issubdtype(dtype, kind) for dtype, kind in kinds)):
                raise ValueError("its arrays don't go together")
    except (OSError, *NOT_ARRAYS) as error:
        raise UsageError(f"{path} can't be read ({error}): the run's folder is damaged") from error
    return found


def read(private: Path) -> bytes:
    """What a run's private/ has of its canaries; raises `UsageError` where that is nothing."""
    try:
        return (private / FILE).read_bytes()
    except FileNotFoundError as error:
        raise UsageError(
            f"{private / FILE} isn't here: the coins stay with the run's owner, in its own folder. Give that"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{private / FILE} can't be read ({error.strerror}): it is for the run's owner alone"
        ) from error
