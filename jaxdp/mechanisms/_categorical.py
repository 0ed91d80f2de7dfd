"""Tables of categories: from rows to a histogram over all combinations, to its marginals, and back to rows."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key

_MOST_CELLS = 2**24
_MOST_ENTRIES = 2**27  # of a matrix of queries, which takes a gigabyte in float64


@dataclass(frozen=True, kw_only=True)
class CategoricalTable:
    """Rows of categories, and the domain of all their combinations, which are numbered with the last column fastest.

    Args:
        sizes: how many categories each column has, known without looking at the data.

    Raises:
        UsageError: for no columns, and for more than 2^24 combinations, which nothing here would hold.

    Examples:
        >>> table = CategoricalTable(sizes=(2, 3))
        >>> table.histogram([[0, 1], [1, 2], [0, 1]])
        array([0, 2, 0, 0, 0, 1])
        >>> table.marginals().shape  # 2 + 3 categories, and 2 · 3 pairs of them
        (11, 6)
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        fix = "give how many categories each column has, such as (2, 3)"
        if not isinstance(self.sizes, tuple | list) or not self.sizes:
            raise UsageError(f"sizes={self.sizes!r} is no tuple of numbers, or an empty one: {fix}")
        _checks.set_fields(self, sizes=tuple(_checks.count("sizes", size, fix) for size in self.sizes))
        if self.cells > _MOST_CELLS:
            raise UsageError(
                f"sizes={self.sizes} have {self.cells:,} combinations, more than the {_MOST_CELLS:,} that a histogram can "
                "hold: give fewer columns, or fewer categories"
            )

    @property
    def cells(self) -> int:
        """How many combinations there are: the size of the domain."""
        return math.prod(self.sizes)

    def histogram(self, rows: Any) -> Int[np.ndarray, " cells"]:
        """How many rows have each combination; as private as the rows are.

        Args:
            rows: [n, columns], whole numbers, each from 0 to its column's size - 1.

        Returns:
            int64 [cells].

        Raises:
            UsageError: for another shape or type, and for categories that weren't declared.
        """
        fix = f"give [n, {len(self.sizes)}], whole numbers from 0 to below sizes={self.sizes}"
        given = np.asarray(_checks.array("rows", rows, fix))
        if given.ndim != 2 or given.shape[1] != len(self.sizes) or not np.issubdtype(given.dtype, np.integer):
            raise UsageError(f"rows are {given.dtype} of shape {given.shape}: {fix}")
        for column, size in enumerate(self.sizes):
            outside = int(((given[:, column] < 0) | (given[:, column] >= size)).sum())
            if outside:
                raise UsageError(f"column {column} of rows has {outside} values outside of 0 to {size - 1}: {fix}")
        places = np.ravel_multi_index(tuple(given.T.astype(np.int64)), self.sizes)
        return np.bincount(places, minlength=self.cells)

    def marginals(self) -> Bool[np.ndarray, "queries cells"]:
        """All one-way and two-way marginals as queries: which cells have a category, or a pair of categories of two columns.

        Returns:
            bool [queries, cells]: the categories of the first column, the second and so on, then the pairs of columns 0 and 1,
            0 and 2 and so on, the second one's category fastest.

        Raises:
            UsageError: where they would have more than 2^27 entries.
        """
        pairs = itertools.combinations(self.sizes, 2)
        check_entries(sum(self.sizes) + sum(first * second for first, second in pairs), self.cells)
        places = np.unravel_index(np.arange(self.cells), self.sizes)
        one_way = [place == np.arange(size)[:, None] for place, size in zip(places, self.sizes, strict=True)]
        two_way = [
            (first[:, None] & second).reshape(-1, self.cells) for first, second in itertools.combinations(one_way, 2)
        ]
        return np.concatenate(one_way + two_way)

    def sample(self, histogram: Any, num_rows: int, *, key: Key[Array, ""]) -> Int[np.ndarray, "n columns"]:
        """Rows drawn from a histogram, each on its own; of a private one they cost nothing more.

        Args:
            histogram: [cells], weights of 0 or more, such as `MultiplicativeWeights` gives.
            num_rows: n, how many to draw.
            key: a scalar key.

        Returns:
            int32 [n, columns].

        Raises:
            UsageError: for another shape or type, and for weights that are negative, not finite, or all 0.
        """
        _checks.key_with_value(key)
        number = _checks.count("num_rows", num_rows, "give how many rows to draw")
        if number * len(self.sizes) > _MOST_ENTRIES:
            raise UsageError(
                f"num_rows={num_rows} of {len(self.sizes)} columns are more than the {_MOST_ENTRIES:,} values that are held at "
                "once: draw fewer at a time, with another key each"
            )
        fix = f"give [{self.cells}], weights of 0 or more"
        given = _checks.array("histogram", histogram, fix)
        if given.shape != (self.cells,) or jnp.issubdtype(given.dtype, jnp.complexfloating):
            raise UsageError(f"histogram is {given.dtype} of shape {given.shape}: {fix}")
        weights = np.asarray(given).astype(np.float64)
        if not (weights >= 0).all() or not 0 < weights.sum() < math.inf:
            raise UsageError(f"histogram holds weights that are negative, not finite, or all 0: {fix}")
        return _rows(weights, number, self.sizes, key)


def check_entries(queries: int, cells: int) -> None:
    """Refuse a matrix of queries that is too large to hold."""
    if queries * cells > _MOST_ENTRIES:
        raise UsageError(
            f"{queries:,} queries of {cells:,} cells have {queries * cells:,} values, more than the {_MOST_ENTRIES:,} that are "
            "held at once: give fewer queries, or a smaller domain"
        )


def _rows(weights: Float[np.ndarray, " cells"], number: int, sizes: tuple[int, ...], key: jax.Array) -> np.ndarray:
    words = jax.random.bits(own_key(key, Domain.SYNTHETIC_ROWS), (number, 2), jnp.uint32)
    high, low = np.asarray(words, np.uint64).T
    uniform = ((high << np.uint64(21)) | (low >> np.uint64(11))) * 2.0**-53  # below 1
    until = np.cumsum(weights / weights.max())
    at = np.minimum(uniform * until[-1], np.nextafter(until[-1], 0))
    places = np.searchsorted(until, at, side="right")
    return np.stack(np.unravel_index(places, sizes), axis=1).astype(np.int32)
