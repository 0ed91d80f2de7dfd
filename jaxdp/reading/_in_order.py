"""All records of a source from the first to the last, where something has to be seen of each: a fingerprint, an evaluation."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from .. import _checks
from ._reader import Reader
from ._source import Source

_ROWS = 64


def in_order(source: Source, start: int = 0, end: int | None = None) -> Iterator[Any]:
    """The records of a source in their order, some rows at a time, read ahead as steps' draws are.

    Args:
        source: what is read.
        start: the first record.
        end: the one after the last; by default there is none.

    Returns:
        An iterator over pytrees of arrays [rows, ...].

    Raises:
        UsageError: for arguments of another kind, and a record that can't be read, as `Reader.blocks`.
    """
    _checks.instance("source", source, Source, "give jaxdp.reading.Source(records)")
    first = _checks.step("start", start)
    last = len(source) if end is None else min(_checks.step("end", end), len(source))
    return _blocks(source, first, last)


def _blocks(source: Source, start: int, end: int) -> Iterator[Any]:
    steps = -(-(end - start) // _ROWS)
    if steps <= 0:
        return

    def rows(step: int) -> np.ndarray:
        first = start + step * _ROWS
        return np.arange(first, min(first + _ROWS, end))

    with Reader(source, rows, block=_ROWS, most=_ROWS, first=0, steps=steps) as reader:
        for step in range(steps):
            size = len(rows(step))
            for block in reader.blocks(step):
                yield jax.tree.map(lambda leaf, size=size: leaf[:size], block.rows)
