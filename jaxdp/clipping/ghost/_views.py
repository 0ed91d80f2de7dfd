"""How a value that depends on parameters alone relates to the leaves it comes from.

What matters is whether each of its entries is an entry of a leaf, and no two are the same: then a gradient with respect to it
is as long as with respect to the leaves. Such values are leaves rearranged, and parts of them: sliced, indexed, split, gathered
by constants, joined. Parts that have nothing in common are orthogonal, so that their squared norms add up. And where a value is
one leaf's part, transposed, several uses of it can be brought to the same axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from ...jaxprs._jaxpr import (
    BROADCAST,
    CAST,
    CONCATENATE,
    DYNAMIC_SLICE,
    GATHER,
    RESHAPE,
    REVERSE,
    SAME,
    SLICE,
    SPLIT,
    SQUEEZE,
    STACK,
    TRANSPOSE,
    UNSTACK,
    Eqn,
    Var,
    clamps_indices,
)
from .rules import REAL

Constant = Callable[[Any], np.ndarray | None]  # from an operand to its value, if that is known


@dataclass(frozen=True)
class Region:
    """Entries of a leaf that is reshaped to `base`: along each of its axes those that a range has."""

    leaf: int
    base: tuple[int, ...]
    ranges: tuple[range, ...]

    def is_apart_from(self, other: "Region") -> bool:
        """Whether they certainly have no entry in common."""
        if self.leaf != other.leaf:
            return True
        for mine, theirs, own, its in zip(self.base, other.base, self.ranges, other.ranges, strict=False):
            if mine != theirs:  # from here on the bases number entries otherwise
                return False
            if _share_nothing(own, its):
                return True
        return False


@dataclass(frozen=True)
class View:
    """A region transposed: axis i of the view is axis `axes[i]` of the region's base. Those that are missing have one entry."""

    region: Region
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Origin:
    """Where a parameter-only value comes from.

    Attributes:
        leaves: the parameter leaves it depends on.
        regions: entries of theirs, all that it depends on among them.
        isometric: whether it holds entries of the leaves (in any type), each once at most, and nothing else.
        view: set where it is a region, transposed.
        anchors: the isometric values that it is computed from; where it is isometric, itself.
        ancestors: itself, and what it was before it was rearranged, if it is isometric.
    """

    leaves: frozenset[int]
    regions: tuple[Region, ...]
    isometric: bool
    view: View | None
    anchors: tuple[Var, ...]
    ancestors: tuple[Var, ...]


def origin_of_leaf(index: int, var: Var) -> Origin:
    """The origin of a leaf itself."""
    view = _whole(index, tuple(var.aval.shape))
    return Origin(frozenset({index}), (view.region,), True, view, (var,), (var,))


def origins_of_outputs(eqn: Eqn, inputs: Sequence[Origin | None], constant: Constant) -> list[Origin]:
    """The origins of what an equation on parameters gives.

    Args:
        eqn: the equation.
        inputs: the origins of its operands; None stands for one that depends on no parameter.
        constant: knows the values of such operands.

    Returns:
        One for each output.
    """
    sources = [origin for origin in inputs if origin is not None]
    leaves = frozenset[int]().union(*(origin.leaves for origin in sources))
    regions = tuple(dict.fromkeys(region for origin in sources for region in origin.regions))
    mixed = Origin(leaves, regions, False, None, _each_once(*(origin.anchors for origin in sources)), ())
    isometric = all(origin.isometric for origin in sources)
    if eqn.primitive in (CONCATENATE, STACK):
        if not isometric or len(sources) < len(inputs) or not are_apart(sources):
            return [mixed]
        return [replace(mixed, isometric=True, anchors=(v,), ancestors=(v,)) for v in eqn.outvars]
    if len(sources) > 1 or not isometric or inputs[0] is None:
        return [mixed] * len(eqn.outvars)
    (source,) = sources
    views = _views_of_outputs(eqn, source.view, constant)
    if views is None:
        return [mixed] * len(eqn.outvars)
    return [
        replace(
            source,
            regions=source.regions if view is None else (view.region,),
            view=view,
            anchors=(v,),
            ancestors=(v, *source.ancestors),
        )
        for v, view in zip(eqn.outvars, views, strict=True)
    ]


def are_apart(origins: Sequence[Origin]) -> bool:
    """Whether no two of some values certainly depend on any entry of a leaf in common."""
    return all(a.is_apart_from(b) for one, two in combinations(origins, 2) for a in one.regions for b in two.regions)


def _views_of_outputs(eqn: Eqn, view: View | None, constant: Constant) -> list[View | None] | None:
    """Of what an equation makes of an isometric value, whose view may be unknown; None if that holds more than its entries."""
    kind, params, shape = eqn.primitive, eqn.params, tuple(eqn.outvars[0].aval.shape)
    operand = eqn.invars[0].aval
    if (kind in SAME and len(eqn.invars) == 1) or (kind is CAST and params["new_dtype"] in REAL):
        return [view]
    if kind is REVERSE:
        return [None]
    if kind is TRANSPOSE:
        return [view and replace(view, axes=tuple(view.axes[i] for i in params["permutation"]))]
    if kind is SQUEEZE:
        return [view and (_reshaped(view, shape) or _without(view, params["dimensions"]))]
    if kind is RESHAPE and params.get("dimensions") is None:
        return [view and _reshaped(view, shape)]
    if kind is BROADCAST and len(eqn.invars) == 1 and operand.size == eqn.outvars[0].aval.size:
        return [view and _reshaped(view, shape)]
    if kind is SLICE:
        steps = params["strides"] or (1,) * operand.ndim
        taken = map(slice, params["start_indices"], params["limit_indices"], steps)
        return [view and _sliced(view, [range(n)[part] for n, part in zip(operand.shape, taken, strict=True)])]
    if kind is DYNAMIC_SLICE:
        return _dynamically_sliced(eqn, view, constant)
    if kind is SPLIT:
        ends = np.cumsum(params["sizes"]).tolist()
        starts = [0, *ends[:-1]]
        return [
            view and _sliced_on(view, params["axis"], range(*ends_of)) for ends_of in zip(starts, ends, strict=True)
        ]
    if kind is UNSTACK:
        axis = params["axis"]
        parts = [view and _sliced_on(view, axis, range(i, i + 1)) for i in range(operand.shape[axis])]
        return [part and _without(part, [axis]) for part in parts]
    if kind is GATHER:
        return _gathered(eqn, view, constant)
    return None


def _dynamically_sliced(eqn: Eqn, view: View | None, constant: Constant) -> list[View | None] | None:
    starts = [constant(atom) for atom in eqn.invars[1:]]
    if any(start is None or not _reaches(start, n) for start, n in zip(starts, eqn.invars[0].aval.shape, strict=True)):
        return [None]  # whichever they are, no entry is taken twice
    sizes = zip(eqn.invars[0].aval.shape, eqn.params["slice_sizes"], starts, strict=True)
    first = [(min(max(int(start), 0), n - size), size) for n, size, start in sizes if start is not None]
    return [view and _sliced(view, [range(at, at + size) for at, size in first])]


def _reaches(index: np.ndarray, length: int) -> bool:
    """Whether an index has a type that numbers all of an axis: of others, XLA clamps some at a wrong end."""
    return length - 1 <= np.iinfo(index.dtype).max


def _gathered(eqn: Eqn, view: View | None, constant: Constant) -> list[View | None] | None:
    """Of entries along one axis, by numbers that are known and all different."""
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    looked_up = tuple(numbers.collapsed_slice_dims)
    if len(looked_up) != 1 or tuple(numbers.start_index_map) != looked_up or numbers.operand_batching_dims:
        return None
    (axis,) = looked_up
    if any(size != n for i, (size, n) in enumerate(zip(eqn.params["slice_sizes"], shape, strict=True)) if i != axis):
        return None
    index = constant(eqn.invars[1])
    if index is None or not _reaches(index, shape[axis]):
        return None
    index = index[..., 0]
    taken = (np.clip(index, 0, shape[axis] - 1) if clamps_indices(eqn) else index).ravel()  # in their own type
    if len(set(taken.tolist())) < taken.size or np.any((taken < 0) | (taken >= shape[axis])):
        return None
    taken = taken.astype(np.int64)
    step = int(taken[1] - taken[0]) if taken.size > 1 else 1
    if view is None or index.ndim != 1 or np.any(np.diff(taken) != step):
        return [None]
    first = int(taken[0]) if taken.size else 0
    part = _sliced_on(view, axis, range(first, first + step * taken.size, step))
    kept = iter([part.axes[i] for i in range(len(shape)) if i != axis])
    places = range(eqn.outvars[0].aval.ndim)
    return [replace(part, axes=tuple(next(kept) if i in numbers.offset_dims else part.axes[axis] for i in places))]


def _whole(leaf: int, shape: tuple[int, ...]) -> View:
    return View(Region(leaf, shape, tuple(map(range, shape))), tuple(range(len(shape))))


def _sliced_on(view: View, axis: int, taken: range) -> View:
    return _sliced(view, [taken if i == axis else None for i in range(len(view.axes))])


def _sliced(view: View, taken: Sequence[range | None]) -> View:
    """A part of a view: along each of its axes, the places that a range has."""
    ranges = list(view.region.ranges)
    for axis, places in zip(view.axes, taken, strict=True):
        if places is not None and places != range(len(ranges[axis])):
            ranges[axis] = _at(ranges[axis], places)
    return replace(view, region=replace(view.region, ranges=tuple(ranges)))


def _without(view: View, axes: Sequence[int]) -> View:
    """A view without some axes, which have one entry."""
    return replace(view, axes=tuple(axis for i, axis in enumerate(view.axes) if i not in axes))


def _at(entries: range, places: range) -> range:
    start, step = entries.start + entries.step * places.start, entries.step * places.step
    return range(start, start + step * len(places), step)


def _reshaped(view: View, shape: tuple[int, ...]) -> View | None:
    """A view whose entries follow one another in the leaf, in another shape: only leading axes of the base are then cut."""
    base, ranges = view.region.base, view.region.ranges
    cut = max((i + 1 for i, (n, part) in enumerate(zip(base, ranges, strict=True)) if part != range(n)), default=0)
    rest = [axis for axis in view.axes if axis >= cut]
    if any(len(part) != 1 for part in ranges[:cut]) or rest != sorted(rest):
        return None
    base, ranges = (*base[:cut], *shape), (*ranges[:cut], *map(range, shape))
    return View(Region(view.region.leaf, base, ranges), tuple(range(cut, len(base))))


def _share_nothing(a: range, b: range) -> bool:
    if not a or not b or max(a[0], a[-1]) < min(b[0], b[-1]) or max(b[0], b[-1]) < min(a[0], a[-1]):
        return True
    return a.step == b.step and (a.start - b.start) % a.step != 0


def _each_once(*parts: tuple[Var, ...]) -> tuple[Var, ...]:
    return tuple(dict.fromkeys(var for part in parts for var in part))
