"""What all records have in common: one structure, and each array's shape and dtype as JAX takes it."""

from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _checks
from .._errors import UsageError

_FIX = "give decode=, a function from a record as it is stored to a pytree of arrays and numbers, alike for all records"
_WIDE = tuple(np.dtype(kind) for kind in ("int64", "uint64", "float64", "complex128"))


class RecordKind(NamedTuple):
    """The arrays of one record.

    Attributes:
        structure: of the pytree.
        names: of its leaves, for messages.
        leaves: the shape and dtype of each, as JAX takes them: of 32 bits where it is not told to use 64.
        taken: what each 64-bit dtype is taken as. Threads that read have JAX's defaults, whatever is set where they are begun.
    """

    structure: Any
    names: tuple[str, ...]
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    taken: dict[np.dtype, np.dtype]

    def arrays(self, record: Any, index: int) -> list[np.ndarray]:
        """The leaves of a record, in their order; refuses one that is of another kind."""
        leaves, structure = jax.tree.flatten(record)
        if structure != self.structure:
            raise UsageError(
                f"records[{index}] is a pytree of another structure than records[0]: {structure} and not {self.structure}; {_FIX}"
            )
        return [self._array(leaf, which, index) for which, leaf in enumerate(leaves)]

    def _array(self, leaf: Any, which: int, index: int) -> np.ndarray:
        array, like = np.asarray(leaf), self.leaves[which]
        is_another = array.dtype != like.dtype and self.taken.get(array.dtype) != like.dtype
        if is_another or isinstance(leaf, np.ma.MaskedArray):
            array = np.asarray(
                _checks.array(f"records[{index}]{self.names[which]}", leaf, _FIX)
            )  # in its bytes' own order
        if array.shape != like.shape or self.taken.get(array.dtype, array.dtype) != like.dtype:
            raise UsageError(
                f"records[{index}]{self.names[which]} is of {array.dtype} and shape {array.shape}, and in records[0] of "
                f"{like.dtype} and shape {like.shape}: {_FIX}"
            )
        return array

    def rows(self, size: int, filled: int) -> list[np.ndarray]:
        """For each leaf an array [size, ...], of zeros but for the first rows, which are to be filled."""
        rows = [np.empty((size, *leaf.shape), leaf.dtype) for leaf in self.leaves]
        for array in rows:
            array[filled:] = 0
        return rows

    def put(self, rows: np.ndarray, values: np.ndarray, which: int, indices: list[int]) -> None:
        """Write one leaf's values [m, ...] into `rows`; refuses whole numbers that their dtype doesn't hold."""
        if values.dtype == rows.dtype:
            rows[...] = values
        elif rows.dtype.kind in "iu":
            rows[...] = values
            if (wrong := rows != values).any():
                row, *rest = np.argwhere(wrong)[0]
                name = f"records[{indices[row]}]{self.names[which]}"
                raise _checks.wrapped_around(name, values[(row, *rest)], values.dtype, rows.dtype)
        else:
            with np.errstate(over="ignore"):  # a float beyond float32 is infinite, as JAX has it
                rows[...] = values

    def tree(self, leaves: list[Any]) -> Any:
        """A pytree as a record is one."""
        return jax.tree.unflatten(self.structure, leaves)


def kind_of(record: Any) -> RecordKind:
    """The kind of records of which `record` is the first: values, or shapes and dtypes; refuses what is no tree of numbers."""
    paths, structure = jax.tree_util.tree_flatten_with_path(record)
    if not paths:
        raise UsageError(f"records[0] is {record!r:.100}, which has no arrays: {_FIX}")
    names = tuple(jax.tree_util.keystr(path) for path, _ in paths)
    taken = {dtype: np.dtype(jax.dtypes.canonicalize_dtype(dtype)) for dtype in _WIDE}
    leaves = []
    for name, (_, leaf) in zip(names, paths, strict=True):
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            leaf = np.asarray(_checks.array(f"records[0]{name}", leaf, _FIX))
        elif not _checks.is_array(leaf):
            raise UsageError(f"records{name} is an array of {leaf.dtype} and no array of numbers: {_FIX}")
        leaves.append(jax.ShapeDtypeStruct(leaf.shape, taken.get(leaf.dtype, leaf.dtype)))
    return RecordKind(structure, names, tuple(leaves), taken)
