"""What a transformation of parameters pulls back, where it works on each column of a gradient by itself.

The pull-back of a value that is made of parameters alone is linear. Read from the jaxpr that JAX makes of it, it is known here
to scale the gradient's entries and to add multiples of sums along its left axes, as weight standardisation's and weight
normalisation's do; anything else that it does is refused. What is found is also what is applied, so that a norm of it
(`_transformed`) is that of what is added up.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...jaxprs import as_one_value, evaluate
from ...jaxprs._jaxpr import (
    ADDITIONS,
    BROADCAST,
    CAST,
    DIV,
    INLINED,
    MUL,
    NEG,
    RESHAPE,
    SELECT,
    SQUEEZE,
    SUB,
    SUM,
    Eqn,
    JaxprParts,
    Var,
    bind,
    has_its_own_gradient,
    inner_jaxpr,
    parts_of,
    trace,
)
from ._uses import Site

_MOST_SUMS = 4  # of a column: two for weight standardisation
_MOST_ARRAYS = 2  # whose entries those of the gradient go to: a kernel, and what is added to it
ITSELF = 0  # the gradient's number among the unknowns of a linear value


class OtherForm(Exception):
    """A pull-back that isn't known to work on each column by itself."""


class PullBack(NamedTuple):
    """From the gradient with respect to a transformed value to those with respect to what it is made of.

    Attributes:
        sums: w, each of the value's shape, or of its rank with an entry for each column: what is added up along its left axes.
        of_anchors: for each anchor the coefficients by number: 0 of the gradient itself, b of the sum by w_b. Those of anchors of
            the value's shape are d and u, of shapes as w; the others, of the anchor's shape, c.
    """

    sums: list[Array]
    of_anchors: list[dict[int, Array]]

    @property
    def of_wholes(self) -> list[dict[int, Array]]:
        """The coefficients of anchors of the value's shape."""
        return [of for of in self.of_anchors if ITSELF in of]

    @property
    def of_columns(self) -> list[dict[int, Array]]:
        """The coefficients of those with an entry for each column."""
        return [of for of in self.of_anchors if ITSELF not in of]


class _Linear(NamedTuple):
    """A value that is linear in the gradient: the coefficients of the gradient and of sums along its columns.

    Of its shape, or of its rank with a single entry along axes on which they are the same.
    """

    of: dict[int, Array]


def pull_back_of(jaxpr: JaxprParts, static: Sequence[Any], site: Site, anchors: Sequence[Var]) -> PullBack:
    """The pull-back from what a site uses to what that is computed from.

    Args:
        jaxpr: of one example's loss, hoisted.
        static: its inputs; only those that the transformation reads count.
        site: the only use, outside of loops.
        anchors: what it is computed from.

    Raises:
        OtherForm: where it does anything that isn't listed here as linear and on each column by itself.
    """
    if any(v.aval.dtype != jnp.float32 for v in anchors) or site.lengths or site.own.left == 1:
        raise OtherForm
    values = evaluate(jaxpr, static, wanted=anchors)

    def transformed(values: Sequence[Any]) -> Any:
        known = dict(zip(anchors, values, strict=True))
        return evaluate(jaxpr, static, _with_a_gradient_of_jax, wanted=[site.source], known=known)[0]

    pull = lambda cotangent: jax.vjp(transformed, values)[1](cotangent)[0]
    shape = tuple(site.source.aval.shape)
    traced = parts_of(trace(pull, jax.ShapeDtypeStruct(shape, site.source.aval.dtype))[0])
    reader = _Reader(shape, site.own.left_axes)
    found = evaluate(traced, [_Linear({ITSELF: jnp.ones((1,) * len(shape), jnp.float32)})], reader.run)
    of_anchors: list[dict[int, Array]] = []
    for value, anchor in zip(found, anchors, strict=True):
        of = dict(value.of) if isinstance(value, _Linear) else {}
        if of and tuple(anchor.aval.shape) == shape:
            of = {b: reader.laid_out(c) for b, c in ({ITSELF: jnp.zeros((), jnp.float32)} | of).items()}
        else:
            of = {b: jnp.broadcast_to(c, anchor.aval.shape) for b, c in of.items()}
        of_anchors.append(of)
    by = PullBack(list(map(reader.laid_out, reader.sums)), of_anchors)
    if not 1 <= len(by.of_wholes) <= _MOST_ARRAYS or len(by.sums) > _MOST_SUMS:
        raise OtherForm
    return as_one_value(by, rounded_alike=True)


def is_of_columns(coefficient: Array, site: Site) -> bool:
    """Whether it is the same along each column."""
    return coefficient.shape != site.source.aval.shape


def pulled_back(
    by: PullBack, site: Site, anchors: Sequence[Var], total: Float[Array, "..."]
) -> list[Float[Array, "..."]]:
    """The gradients with respect to the anchors, in float32, from that with respect to what the site uses.

    Where a coefficient isn't finite, no norm is, nobody contributes, and zeros are pulled back to zeros.
    """
    by = jax.tree.map(lambda c: jnp.where(jnp.isfinite(c), c, 0), by)
    sums = []
    for w in by.sums:
        found = w * total
        for axis in site.own.left_axes:  # one at a time: fewer additions one upon another
            found = as_one_value(jnp.sum(found, axis=axis, keepdims=True))
        sums.append(found)

    def of(shape: tuple[int, ...], coefficients: dict[int, Array]) -> Array:
        unknown = lambda number: total if number == ITSELF else sums[number - 1]
        placed = lambda x: x if ITSELF in coefficients else x.reshape(shape)
        return sum((c * placed(unknown(b)) for b, c in coefficients.items()), jnp.zeros(shape, jnp.float32))

    return [of(tuple(v.aval.shape), c) for v, c in zip(anchors, by.of_anchors, strict=True)]


def _with_a_gradient_of_jax(eqn: Eqn, operands: list[Any]) -> Sequence[Any]:
    if has_its_own_gradient(eqn):  # which needn't be linear
        raise OtherForm
    return bind(eqn, operands)


class _Reader:
    """Runs a pull-back on coefficients in place of values; linear values have the whole shape, or an entry for each column.

    Attributes:
        sums: w of each sum along columns that was met.
    """

    def __init__(self, shape: tuple[int, ...], left_axes: Sequence[int]) -> None:
        self.sums: list[Array] = []
        self._shape = shape
        self._left = frozenset(axis for axis in left_axes if shape[axis] != 1)
        self._columns = tuple(axis for axis, n in enumerate(shape) if n != 1 and axis not in self._left)
        self._of_columns = tuple(n if axis in self._columns else 1 for axis, n in enumerate(shape))

    def run(self, eqn: Eqn, values: list[Any]) -> Sequence[Any]:
        """The outputs of an equation; linear ones as `_Linear`."""
        linear = [isinstance(value, _Linear) for value in values]
        if not any(linear):
            return bind(eqn, values)
        if eqn.primitive in INLINED:
            return evaluate(parts_of(inner_jaxpr(eqn)), values, self.run)
        if eqn.primitive is CAST:
            self._check(jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating))
            return values  # in float32 whatever it is cast to
        floating = (v.aval.dtype for v in (*eqn.invars, *eqn.outvars) if jnp.issubdtype(v.aval.dtype, jnp.inexact))
        self._check(all(dtype == jnp.float32 for dtype in floating))
        if eqn.primitive is SUM:
            return [self._summed(eqn, values[0])]
        if eqn.primitive in (BROADCAST, RESHAPE, SQUEEZE):
            self._check(eqn.params.get("dimensions") is None or eqn.primitive is SQUEEZE)
            self._check(all(linear[:1]) and not any(linear[1:]))
        else:
            self._check(eqn.primitive in _LINEAR and _LINEAR[eqn.primitive](linear))
        for atom, is_linear in zip(eqn.invars, linear, strict=True):
            self._check(not is_linear or self._is_placed(eqn, tuple(atom.aval.shape)))
        numbers = dict.fromkeys(number for value in values if isinstance(value, _Linear) for number in value.of)
        return [_Linear({number: self._coefficient(eqn, values, number) for number in numbers})]

    def _coefficient(self, eqn: Eqn, values: list[Any], number: int) -> Array:
        """Of an unknown in an equation's output. What stands beside linear values, and isn't multiplied, is zero."""
        of: list[Any] = [value.of.get(number) if isinstance(value, _Linear) else value for value in values]
        out = tuple(eqn.outvars[0].aval.shape)
        if eqn.primitive in (MUL, DIV, NEG):
            return bind(eqn, of)[0]
        if eqn.primitive is SELECT:
            cases = [
                jnp.broadcast_to(c if isinstance(value, _Linear) and c is not None else jnp.float32(0), out)
                for c, value in zip(of[1:], values[1:], strict=True)
            ]
            return bind(eqn, [of[0], *cases])[0]
        if eqn.primitive in ADDITIONS:
            first, second = (jnp.float32(0) if c is None else c for c in of)
            return first - second if eqn.primitive is SUB else first + second
        (c,) = of[:1]
        shape = tuple(eqn.invars[0].aval.shape)
        if shape == self._shape:
            return c
        return jnp.broadcast_to(c, shape).reshape(self._of_columns if out == self._shape else out)

    def _summed(self, eqn: Eqn, value: _Linear) -> _Linear:
        shape, out, axes = tuple(eqn.invars[0].aval.shape), eqn.outvars[0].aval.shape, eqn.params["axes"]
        along = frozenset(axis for axis in axes if shape[axis] != 1)
        self._check(along == (self._left if shape == self._shape else frozenset()))
        found: dict[int, Array] = {}
        for number, c in value.of.items():
            if number == ITSELF:
                self.sums.append(c)
                found[len(self.sums)] = jnp.ones(out, jnp.float32)
            else:
                found[number] = jnp.sum(jnp.broadcast_to(c, shape), axis=axes)
        return _Linear(found)

    def laid_out(self, c: Array) -> Array:
        """A coefficient of a value of the whole shape, in that shape, or with an entry for each column."""
        is_of_columns = c.ndim == 0 or all(c.shape[axis] == 1 for axis in self._left)
        return jnp.broadcast_to(c, self._of_columns if is_of_columns else self._shape)

    def _is_placed(self, eqn: Eqn, shape: tuple[int, ...]) -> bool:
        """Whether entries of an operand of this shape are in the columns of the output that they were in."""
        out, of_columns = tuple(eqn.outvars[0].aval.shape), tuple(self._shape[axis] for axis in self._columns)
        if shape == self._shape or out != self._shape:
            return shape == out == self._shape or _squeezed(out) == _squeezed(shape) == of_columns
        dims = eqn.params["broadcast_dimensions"] if eqn.primitive is BROADCAST else range(len(shape))
        is_along = eqn.primitive is BROADCAST or len(shape) in (0, len(out))
        return is_along and tuple(int(dim) for dim, n in zip(dims, shape, strict=True) if n != 1) == self._columns

    @staticmethod
    def _check(is_known: bool) -> None:
        if not is_known:
            raise OtherForm


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


# Which operands, of those that are linear, an operation on each entry may have.
_LINEAR: dict[Any, Callable[[list[bool]], bool]] = {
    MUL: lambda linear: sum(linear) == 1,
    DIV: lambda linear: linear == [True, False],
    NEG: all,
    SELECT: lambda linear: not linear[0],
    **dict.fromkeys(ADDITIONS, all),
}
