r"""Bounds by which columns are scaled: given by the user as public knowledge, or estimated under noise that is accounted.

A column's values are clamped to its bounds and mapped to [-1, 1]. Bounds read off the data would depend on single records: the
largest value is somebody's.
"""

import csv
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array, Float, Key

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._csv import number
from ._tasks import too_close

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_POWERS = np.arange(-10, 21)  # magnitudes that bounds are looked for among: 2^-10 to 2^20
_TOO_CLOSE = "these are too close together for float32, which has seven digits: give the column less a constant"
_SHARE = 0.01  # of the records, from which a magnitude counts


@dataclass(frozen=True)
class Bounds:
    """The least and the largest that each column's values can be.

    Attributes:
        lower: float64 [columns].
        upper: float64 [columns].
    """

    lower: Float[np.ndarray, " columns"]
    upper: Float[np.ndarray, " columns"]

    def __post_init__(self) -> None:
        for name, ends in (("lower", self.lower), ("upper", self.upper)):
            is_row = isinstance(ends, np.ndarray) and ends.ndim == 1 and _checks.is_real(ends)
            if not (is_row and ends.shape == np.shape(self.upper)):
                raise UsageError(
                    f"{name}={ends!r:.200} is no row of numbers: give NumPy's arrays [columns], one for each end"
                )

    def scaled(self, values: Float[np.ndarray, "rows columns"]) -> Float[np.ndarray, "rows columns"]:
        """Values clamped and mapped to [-1, 1], in float32; NaN stays NaN."""
        values = np.asarray(_checks.array("values", values, "give numbers [rows, columns]"))
        if not _checks.is_real(values) or values.shape[-1:] != self.lower.shape:
            raise UsageError(
                f"values are {values.dtype} of shape {values.shape}: give real numbers [rows, {len(self.lower)}]"
            )
        middle, half = (self.upper + self.lower) / 2, (self.upper - self.lower) / 2
        return ((values - middle) / half).clip(-1, 1).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, for JSON."""
        return {"lower": self.lower.tolist(), "upper": self.upper.tolist()}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Bounds":
        """The inverse of `to_dict`."""
        return cls(np.array(stored["lower"], np.float64), np.array(stored["upper"], np.float64))


def same_bounds(lower: float, upper: float, columns: int) -> Bounds:
    """The same bounds for every column.

    Raises:
        UsageError: for bounds that aren't finite and in order.
    """
    fix = "give numbers such as -10 10"
    lower, upper = _checks.real("lower", lower, fix), _checks.real("upper", upper, fix)
    columns = _checks.whole("columns", columns, "give the number of columns")
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise UsageError(f"--bounds={lower} {upper} must be finite, the lower one first: such as -10 10")
    if too_close(lower, upper):
        raise UsageError(f"--bounds={lower} {upper}: {_TOO_CLOSE}")
    return Bounds(np.full(columns, lower, np.float64), np.full(columns, upper, np.float64))


def read_bounds(path: Path, names: tuple[str, ...]) -> Bounds:
    """Bounds from a CSV file with the columns name, lower, upper.

    Raises:
        UsageError: for a file that can't be read, a column without bounds, or bounds that aren't finite and in order.
    """
    path = _checks.path("path", path)
    _checks.texts("names", names)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            divider = next((each for each in ";\t" if first.count(each) == 2), ",")
            lines = csv.DictReader(file, delimiter=divider, strict=True)
            header = lines.fieldnames or ()
            given = list(lines)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UsageError(
            f"--bounds-file={path} can't be read ({type(error).__name__}): give a CSV file with the columns name, lower, upper"
        ) from error
    if absent := [column for column in ("name", "lower", "upper") if column not in header]:
        raise UsageError(
            f"--bounds-file={path} begins with {','.join(header)!r:.100}, without {', '.join(absent)}: its first line must be "
            "name,lower,upper"
        )
    if longer := [row["name"] for row in given if None in row]:
        raise UsageError(
            f"--bounds-file={path}: the line of {longer[0]} has more cells than the first line: write decimals with a point, or "
            "divide the columns by semicolons"
        )
    if twice := [name for name, count in Counter(row["name"] for row in given).items() if count > 1]:
        raise UsageError(f"--bounds-file={path} names {twice[0]} twice: give one line for each column")
    try:
        rows = {row["name"]: (number(row["lower"]), number(row["upper"])) for row in given}
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"--bounds-file={path} has a line without two numbers ({error}): give name,lower,upper in each"
        ) from error
    if missing := [name for name in names if name not in rows]:
        raise UsageError(
            f"--bounds-file={path} has no bounds for {', '.join(missing[:5])}: give a line for each column"
        )
    lower, upper = np.array([rows[name] for name in names], np.float64).reshape(-1, 2).T
    wrong = np.flatnonzero(~(np.isfinite(lower) & np.isfinite(upper) & (lower < upper)))
    if len(wrong):
        name = names[wrong[0]]
        raise UsageError(
            f"--bounds-file={path}: {name} lies from {lower[wrong[0]]} to {upper[wrong[0]]}: give finite bounds in order"
        )
    if len(close := np.flatnonzero(too_close(lower, upper))):
        name = names[close[0]]
        raise UsageError(f"--bounds-file={path}: {name} lies from {lower[close[0]]} to {upper[close[0]]}: {_TOO_CLOSE}")
    return Bounds(lower, upper)


def estimated_bounds(
    values: Float[np.ndarray, "rows columns"], noise_multiplier: float, key: Key[Array, ""]
) -> tuple[Bounds, "DpEvent"]:
    r"""Bounds ±2^k for each column, the largest magnitude that 1 % of its values or more have, from noisy counts.

    Each record adds 1 to one count of each column, so that the L2 sensitivity of all d columns' counts is \(\sqrt d\).

    Args:
        values: float [rows, columns]; NaNs count as 0.
        noise_multiplier: of the Gaussian mechanism that releases all counts together.
        key: a scalar key, used here and nowhere else.

    Returns:
        The bounds, and the event of estimating them.

    Raises:
        UsageError: where there are too few rows for so many columns under that noise.
    """
    from ..mechanisms import Gaussian

    _checks.key_with_value(key)
    values = np.asarray(_checks.array("values", values, "give [rows, columns]"))
    if values.ndim != 2 or 0 in values.shape or not _checks.is_real(values):
        raise UsageError(f"values are {values.dtype} of shape {values.shape}: give real numbers [rows, columns]")
    rows, columns = values.shape
    counted = (columns, len(_POWERS))
    noise = Gaussian(noise_multiplier=noise_multiplier, sensitivity=math.sqrt(columns), shape=counted, integers=True)
    if 40 * noise.scale > rows:
        raise UsageError(
            f"--bounds-noise={noise_multiplier} on {columns} columns is noise of {noise.scale:.0f} on counts of {rows} records, "
            "too much to tell magnitudes: give --bounds, or fewer --columns"
        )
    magnitudes = np.ceil(np.log2(np.maximum(np.abs(np.nan_to_num(values)), 2.0 ** _POWERS[0]))).astype(np.int64)
    places = (magnitudes - _POWERS[0]).clip(0, len(_POWERS) - 1)
    counts = np.stack([np.bincount(places[:, column], minlength=len(_POWERS)) for column in range(columns)])
    noisy = np.asarray(noise(counts, key=own_key(key, Domain.TABLE_BOUNDS)), np.float64)
    significant = np.where(noisy > max(_SHARE * rows, 4 * noise.scale), noisy, 0)  # of the others, noise is most
    last = len(_POWERS) - 1 - (significant[:, ::-1] > 0).argmax(axis=1)
    largest = np.where(significant.any(axis=1), last, 0)
    upper = 2.0 ** _POWERS[largest]
    return Bounds(-upper, upper), noise.event
