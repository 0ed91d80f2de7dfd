"""Labelled records that stay on disk, because they don't fit in memory: they are decoded when they are wanted."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Integer

from ..reading import Source, in_order
from ._labelled import Records
from ._tasks import Classes, Task
from ._tfds import Prepared


@dataclass(frozen=True, eq=False)
class RecordsOf:
    """Some records of a split that TFDS prepared, in an order of their own.

    Attributes:
        stored: TFDS's data source of the split.
        split: its name, for messages.
        rows: which of its records, in order.
    """

    stored: Any
    split: str
    rows: Integer[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = int(self.rows[index])
        try:
            return self.stored[row]
        except Exception as error:  # which names no record
            raise ValueError(f"record {row} of split {self.split}: {error}") from error

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return self.stored.__getitems__(self.rows[list(indices)].tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class OnDisk:
    """A data set as training sees it, like `Labelled`, whose records are read from disk.

    Attributes:
        name: what it is called.
        train: of (input, label), to train on: what privacy protects.
        test: the same to evaluate on, or the arrays where they are in memory.
        task: what labels say.
        public_test: whether `test` is nobody's secret.
        described: what is published of the data, as plain values.
    """

    name: str
    train: Source
    test: Source | Records
    task: Task
    public_test: bool = False
    described: dict[str, Any] = field(default_factory=dict)

    def held_back(self, train: np.ndarray, test: np.ndarray) -> "OnDisk":
        """The data set that trains on some rows of its training part and is evaluated on others, which are not public."""
        return replace(self, train=_picked(self.train, train), test=_picked(self.train, test), public_test=False)

    def with_test_in_memory(self) -> "OnDisk":
        """The same with the records to evaluate on in memory."""
        return replace(self, test=read_all(self.test)) if isinstance(self.test, Source) else self


def on_disk(prepared: Prepared) -> OnDisk:
    """A data set that TFDS prepared, read when it is wanted: what `prepared.decoded().labelled()` is in memory."""
    train, test = (_source(prepared, split) for split in prepared.splits)
    return OnDisk(
        name=prepared.name,
        train=train,
        test=test,
        task=Classes(prepared.num_classes),
        public_test=True,
        described={"num_classes": prepared.num_classes, "image_shape": prepared.image_shape},
    )


class Column:
    """The inputs of a source, or its labels, as an array is read that has them in its rows: by slices, without being one."""

    def __init__(self, source: Source, which: int) -> None:
        self._source, self._which = source, which
        one = jax.tree.leaves(source.like)[which]
        self.shape: tuple[int, ...] = (len(source), *one.shape)
        self.dtype: np.dtype = np.dtype(one.dtype)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, end, _ = rows.indices(len(self))
        found = np.empty((max(0, end - start), *self.shape[1:]), self.dtype)
        at = 0
        for block in in_order(self._source, start, end):
            part = jax.tree.leaves(block)[self._which]
            found[at : at + len(part)] = part
            at += len(part)
        return found


def columns(part: Source | Records) -> tuple[Any, Any]:
    """Inputs and labels: arrays, or what is read by slices as arrays are."""
    return (Column(part, 0), Column(part, 1)) if isinstance(part, Source) else part


def read_all(source: Source) -> Records:
    """All inputs and labels of a source, in memory."""
    kinds = jax.tree.leaves(source.like)
    inputs, labels = (np.empty((len(source), *kind.shape), kind.dtype) for kind in kinds)
    at = 0
    for some_inputs, some_labels in in_order(source):
        size = len(some_labels)
        inputs[at : at + size], labels[at : at + size] = some_inputs, some_labels
        at += size
    return inputs, labels


def _source(prepared: Prepared, split: str) -> Source:
    stored = prepared.data_source(split)
    return Source(RecordsOf(stored, split, np.arange(len(stored))), decode=prepared.image_and_label)


def _picked(source: Source, rows: np.ndarray) -> Source:
    return replace(source, records=replace(source.records, rows=source.records.rows[rows]))
