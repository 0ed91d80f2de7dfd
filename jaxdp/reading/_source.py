"""Records that are read when they are drawn."""

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import Integer

from .. import _checks
from .._errors import UsageError
from ._record import RecordKind, kind_of

_RECORDS = (
    "give arrays [n, ...] (memory-mapped ones, or a tuple or dict of them), or anything with __len__ and __getitem__ of an "
    "index: a TFDS data source, a data set of Grain or Hugging Face, a list of paths with decode="
)


_BYTES_AHEAD = 2**28


class Stopped(Exception):
    """Reading was stopped half-way, as it was asked to."""


@dataclass(frozen=True, eq=False)
class Source:
    """Records in memory-mapped arrays, in files, or wherever else a record can be read by its index.

        images = np.load("images.npy", mmap_mode="r")
        source = Source((images, labels))                                   # rows of arrays
        source = Source(paths, decode=lambda path: (read(path), label(path)))   # a file each

    Several threads read at once: `records` and `decode` must allow that, as all of the sources named here do.

    Args:
        records: a NumPy array [n, ...], memory-mapped or not, or a pytree of such arrays; or else anything with `__len__` and
            `__getitem__` of an index, a list among it, of which `__getitems__` of a list of indices is used where there is one.
        decode: from what `records[i]` gives to a pytree of arrays and numbers, alike for all records. None where it is one.
        threads: that read at a time, each a block.
        ahead: blocks read before they are asked for, at most; by default as many as take 256 MiB, from 2 to 32. They are what
            reading takes of memory, and one block more.

    Raises:
        UsageError: for what has no length or no items, no records, arrays of several lengths, or no numbers where there is no
            `decode`.
    """

    records: Any
    decode: Callable[[Any], Any] | None = None
    threads: int = 16
    ahead: int | None = None

    def __post_init__(self) -> None:
        threads = _checks.count("threads", self.threads, "give the number of threads that read, such as 16")
        _checks.set_fields(self, threads=threads)
        if self.ahead is not None:
            ahead = _checks.count("ahead", self.ahead, "give the number of blocks to read ahead, such as 32")
            _checks.set_fields(self, ahead=ahead)
        if self.decode is not None:
            _checks.function("decode", self.decode, "give a function of one record as it is stored, or leave it out")
        if len(self) == 0:
            raise UsageError(f"records is empty: {_RECORDS}")
        self._check_length()

    def __len__(self) -> int:
        """The number of records, as it was at first."""
        return self._length

    @property
    def like(self) -> Any:
        """A pytree of `jax.ShapeDtypeStruct`: the arrays of one record, as JAX takes them. Record 0 is read for it, once."""
        return self._kind.tree(list(self._kind.leaves))

    def blocks_ahead(self, rows: int) -> int:
        """How many blocks of so many rows are read ahead."""
        if self.ahead is not None:
            return self.ahead
        return min(32, max(2, _BYTES_AHEAD // (rows * self.record_bytes)))

    @property
    def record_bytes(self) -> int:
        """Bytes of the arrays of one record, at least 1. Record 0 is read for it, once."""
        return max(1, sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like)))

    def read(self, indices: Integer[np.ndarray, " m"]) -> Any:
        """A pytree of arrays [m, ...]: the records at `indices`, in that order.

        Raises:
            UsageError: for an index that is no record's, and a record that can't be read or is of another kind than record 0.
                It names the index.
        """
        return self.read_padded(self.check(indices), len(indices))

    def check(self, indices: Any, name: str = "indices") -> Integer[np.ndarray, " m"]:
        """Indices as an array; refuses those that are no record's. `name` is what a message calls them."""
        fix = "give whole numbers [m], the indices of records"
        given = np.asarray(_checks.array(name, indices, fix))
        if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
            raise UsageError(f"{name} is of {given.dtype} and shape {given.shape}: {fix}")
        wrong = given[(given < 0) | (given >= len(self))]
        if wrong.size:
            raise UsageError(f"{name} has {wrong[0]} in it, and there are {len(self)} records, counted from 0")
        return given.astype(np.int64)

    def read_padded(
        self, indices: Integer[np.ndarray, " m"], size: int, stopped: Callable[[], bool] = lambda: False
    ) -> Any:
        """A pytree of arrays [size, ...]: the records at `indices`, which were checked, and zeros behind them.

        Raises:
            Stopped: as soon as `stopped()` says so.
        """
        self._check_length()
        kind, rows = self._kind, self._kind.rows(size, len(indices))
        if self._columns is not None and self.decode is None:
            for which, column in enumerate(self._columns):
                _take(kind, which, column, indices, rows[which][: len(indices)])
            return kind.tree(rows)
        for place, (index, record) in enumerate(self._records_at(indices)):
            if stopped():
                raise Stopped
            for which, array in enumerate(kind.arrays(record, index)):
                kind.put(rows[which][place : place + 1], array[None], which, [index])
        return kind.tree(rows)

    @cached_property
    def _columns(self) -> list[np.ndarray] | None:
        """The arrays whose rows are records; None where `records` is no pytree of arrays."""
        records = self.records
        if isinstance(records, list) or jax.tree_util.all_leaves([records]):
            return [_on_host(records)] if isinstance(records, np.ndarray | jax.Array) else None
        leaves = jax.tree_util.tree_leaves_with_path(records)
        arrays = [isinstance(leaf, np.ndarray | jax.Array) for _, leaf in leaves]
        if isinstance(records, tuple) and not any(arrays):
            return None  # a sequence, as a list is one
        if not all(arrays):
            path, leaf = next(leaf for leaf, is_array in zip(leaves, arrays, strict=True) if not is_array)
            raise UsageError(f"records{jax.tree_util.keystr(path)} is a {type(leaf).__name__} and no array: {_RECORDS}")
        return [_on_host(leaf) for _, leaf in leaves]

    @cached_property
    def _length(self) -> int:
        return self._length_now()

    def _length_now(self) -> int:
        """The number of records as it is now."""
        if self._columns is None:
            if isinstance(self.records, str | bytes) or not all(
                hasattr(self.records, name) for name in ("__len__", "__getitem__")
            ):
                raise UsageError(f"records={self.records!r:.200} is a {type(self.records).__name__}: {_RECORDS}")
            return len(self.records)
        lengths = {column.shape[:1] for column in self._columns}
        if lengths and () in lengths:
            raise UsageError(f"records has an array without rows, of shape (): {_RECORDS}")
        if len(lengths) > 1:
            listing = ", ".join(str(length) for (length,) in sorted(lengths))
            raise UsageError(f"the arrays of records have several lengths ({listing}): give each one row a record")
        return next(iter(lengths), (0,))[0]

    def _check_length(self) -> None:
        now = self._length_now()
        if now != len(self):
            raise UsageError(
                f"records had {len(self)} records and has {now} now: the draws are among the former, so leave them as they are "
                "while they are read, or begin a new run with a new Source"
            )
        for path, size in self._sizes.items():
            with suppress(OSError):  # a file without a name any more can still be read
                if (now := os.stat(path).st_size) != size:
                    raise UsageError(
                        f"the file {path} of records had {size} bytes and has {now} now: leave it as it is while it is read"
                    )

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """The files of memory-mapped arrays and their sizes: to read where a file has become shorter would kill the process."""
        mapped = [leaf for leaf in jax.tree.leaves(self.records) if self._columns and isinstance(leaf, np.memmap)]
        paths = [os.fspath(array.filename) for array in mapped if array.filename]
        return {path: os.stat(path).st_size for path in paths if os.path.exists(path)}

    @cached_property
    def _kind(self) -> RecordKind:
        if self._columns is None or self.decode is not None:
            return kind_of(next(self._records_at(np.zeros(1, np.int64)))[1])
        native = lambda dtype: dtype.newbyteorder("=")
        shapes = [jax.ShapeDtypeStruct(column.shape[1:], native(column.dtype)) for column in self._columns]
        return kind_of(jax.tree.unflatten(jax.tree.structure(self.records), shapes))

    def _records_at(self, indices: Integer[np.ndarray, " m"]) -> Iterator[tuple[int, Any]]:
        """Each index and its record, decoded."""
        wanted = indices.tolist()
        together = self._columns is None and hasattr(self.records, "__getitems__")
        stored = self._together(wanted) if together else map(self._alone, wanted)
        for index, record in zip(wanted, stored, strict=True):
            if self.decode is None:
                yield index, record
                continue
            try:
                decoded = self.decode(record)
            except Exception as error:
                raise UsageError(f"decode fails for records[{index}]: {_said(error)}") from error
            yield index, decoded

    def _alone(self, index: int) -> Any:
        try:
            if self._columns is None:
                return self.records[index]
            return jax.tree.map(lambda column: column[index].copy(), self.records)  # `decode` may work in it
        except Exception as error:
            self._check_length()
            raise UsageError(f"records[{index}] can't be read: {_said(error)}") from error

    def _together(self, indices: list[int]) -> Iterable[Any]:
        """The records at several indices, read by `__getitems__`."""
        try:
            found = list(self.records.__getitems__(indices)) if indices else []
        except Exception as error:
            self._check_length()
            for index in indices:  # which of them it is
                self._alone(index)
            raise UsageError(f"records.__getitems__({indices}) fails: {_said(error)}") from error
        if len(found) != len(indices):
            raise UsageError(f"records.__getitems__({indices}) gave {len(found)} records for {len(indices)} indices")
        if len(set(map(_place_of, found))) < len(set(indices)):  # they may be one array, filled with one after another
            return map(self._alone, indices)
        return found


def _place_of(record: Any) -> int:
    """Where in memory the largest array of a record is that could be written over, or without one the record itself."""
    leaves = [leaf for leaf in jax.tree.leaves(record) if hasattr(leaf, "__array__")]
    arrays = [np.asarray(leaf) for leaf in leaves if not isinstance(leaf, jax.Array | np.generic)]
    arrays = [array for array in arrays if array.flags.writeable and array.nbytes]
    largest = max(arrays, key=lambda array: array.nbytes, default=None)
    return id(record) if largest is None else largest.__array_interface__["data"][0]


def _on_host(array: np.ndarray | jax.Array) -> np.ndarray:
    _checks.unmasked("records", array, _RECORDS)
    return np.asarray(_checks.array("records", array, _RECORDS) if isinstance(array, jax.Array) else array)


def _take(kind: RecordKind, which: int, column: np.ndarray, indices: np.ndarray, rows: np.ndarray) -> None:
    """Write the rows of one array at `indices`, in that order."""
    if column.dtype == rows.dtype:
        np.take(column, indices, axis=0, out=rows, mode="clip")  # the one mode in which it writes there directly
    else:
        kind.put(rows, np.take(column, indices, axis=0), which, indices.tolist())


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
