"""How a value that depends on parameters alone relates to the leaves it comes from.

What matters is whether it holds the leaves' entries, each once, in some order: then a gradient with respect to it has the
same norm as with respect to the leaves. And where it is one leaf, reshaped and transposed: then several uses of the leaf
can be brought to the same axes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...jaxprs._jaxpr import (
    BROADCAST,
    CAST,
    CONCATENATE,
    COPY,
    RESHAPE,
    REVERSE,
    SQUEEZE,
    TRANSPOSE,
    Eqn,
)
from .rules import REAL


@dataclass(frozen=True)
class View:
    """One leaf, reshaped to `base` and then transposed: axis i of the view is axis `axes[i]` of the base."""

    leaf: int
    base: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Origin:
    """Where a parameter-only value comes from.

    Attributes:
        leaves: the parameter leaves it depends on.
        isometric: whether it holds each of their entries exactly once (any dtype), and nothing else.
        view: set where it is a reshaped and transposed leaf.
    """

    leaves: frozenset[int]
    isometric: bool
    view: View | None


def origin_of_leaf(index: int, shape: tuple[int, ...]) -> Origin:
    """The origin of a leaf itself."""
    return Origin(frozenset({index}), True, View(index, shape, tuple(range(len(shape)))))


def origin_of_output(eqn: Eqn, inputs: Sequence[Origin | None]) -> Origin:
    """The origin of what an equation on parameters gives; None stands for an input that depends on no parameter."""
    sources = [origin for origin in inputs if origin is not None]
    leaves = frozenset[int]().union(*(origin.leaves for origin in sources))
    if eqn.primitive is CONCATENATE:
        disjoint = sum(len(origin.leaves) for origin in sources) == len(leaves)
        return Origin(leaves, disjoint and all(o is not None and o.isometric for o in inputs), None)
    if len(inputs) != 1 or not sources[0].isometric:
        return Origin(leaves, False, None)
    return _of_rearranged(eqn, sources[0])


def is_rearrangement(eqn: Eqn) -> bool:
    """Whether an equation only moves entries about or changes their type among those that rules take."""
    params: dict[str, Any] = eqn.params
    if eqn.primitive is CAST:
        return params["new_dtype"] in REAL
    if eqn.primitive is BROADCAST:
        return len(eqn.invars) == 1 and eqn.invars[0].aval.size == eqn.outvars[0].aval.size
    if eqn.primitive is RESHAPE:
        return params.get("dimensions") is None
    return eqn.primitive in (TRANSPOSE, SQUEEZE, COPY, REVERSE)


def _of_rearranged(eqn: Eqn, source: Origin) -> Origin:
    if not is_rearrangement(eqn):
        return Origin(source.leaves, False, None)
    view, shape = source.view, tuple(eqn.outvars[0].aval.shape)
    if view is None or eqn.primitive is REVERSE:
        return Origin(source.leaves, True, None)
    if eqn.primitive is TRANSPOSE:
        axes = tuple(view.axes[i] for i in eqn.params["permutation"])
        return Origin(source.leaves, True, View(view.leaf, view.base, axes))
    if eqn.primitive in (CAST, COPY):
        return source
    straight = view.axes == tuple(range(len(view.axes)))
    return Origin(source.leaves, True, View(view.leaf, shape, tuple(range(len(shape)))) if straight else None)
