"""All records of a source from the first to the last, where something has to be seen of each: a fingerprint, an evaluation."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from ._reader import Reader
from ._source import Source

_ROWS = 64


def in_order(source: Source, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """The records of a source in their order, some rows at a time, read ahead as steps' draws are.

    Args:
        source: what is read.
        start: the first record.
        end: the one after the last; by default there is none.

    Yields:
        Pytrees of arrays [rows, ...].

    Raises:
        UsageError: for a record that can't be read, as `Reader.blocks`.
    """
    start, end, _ = slice(start, end).indices(len(source))
    if start >= end:
        return

    def rows(step: int) -> np.ndarray:
        first = start + step * _ROWS
        return np.arange(first, min(first + _ROWS, end))

    steps = -(-(end - start) // _ROWS)
    with Reader(source, rows, block=_ROWS, most=_ROWS, first=0, steps=steps) as reader:
        for step in range(steps):
            size = len(rows(step))
            for block in reader.blocks(step):
                yield jax.tree.map(lambda leaf, size=size: leaf[:size], block.rows)
