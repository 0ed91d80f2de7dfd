"""The contract of a rule for a primitive, which each file of this folder satisfies.

A rule factorises the gradient with respect to one operand of an operation that is linear in it. The gradient of one example is
a stack of E matrices, each a sum over T rows of outer products of a left vector of p entries (from the forward pass) and a
right vector of d entries (the output's cotangent):

    gradient[e, :, :] = Σ_t left[e, t, :] ⊗ right[e, t, :]

`Layout` says so in shapes, `OuterProducts` in numbers. From the latter the norm follows without forming the gradient. The
weighted sum over a batch needs no rule: it is the operation transposed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ....jaxprs._jaxpr import Eqn, JaxprParts
from ..._norm import gamma

REAL = frozenset(map(jnp.dtype, ("bfloat16", "float16", "float32", "float64")))
INDICES = frozenset(jnp.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))


@dataclass(frozen=True)
class Layout:
    """Which axes of the parameter operand are stacked, left and right, in order, and how large each part is.

    Attributes:
        stack_axes, left_axes, right_axes: axes of the operand; their product is the operand's size.
        stack, rows, left, right: E, T, p and d.
        fixed: set where the entries don't follow the axes' order alone (a convolution's groups); such uses agree only
            where this and all axes do.
        one_hot: whether a left vector has a single entry, so that its products cost nothing.
    """

    stack_axes: tuple[int, ...]
    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    stack: int
    rows: int
    left: int
    right: int
    fixed: tuple[int, ...] | None = None
    one_hot: bool = False

    @property
    def floats(self) -> int:
        """Values in a pair of left and right vectors."""
        return (1 if self.one_hot else self.left) + self.right

    @property
    def products(self) -> int:
        """Multiplications that forming the gradient takes."""
        return self.stack * self.rows * (1 if self.one_hot else self.left) * self.right

    def sorted_by(self, axes: tuple[int, ...]) -> "Layout":
        """The same with each part's axes in the order in which the base of a view has them."""
        if self.fixed is not None:
            return self
        order = lambda part: tuple(sorted(part, key=lambda axis: axes[axis]))
        return replace(
            self,
            stack_axes=order(self.stack_axes),
            left_axes=order(self.left_axes),
            right_axes=order(self.right_axes),
        )

    def on_base(self, axes: tuple[int, ...]) -> tuple[object, ...]:
        """The axes that two uses must have in common to be rows of the same matrices: (stacked, left and right axes, order)."""
        on = lambda part: tuple(axes[i] for i in part)
        return on(self.stack_axes), on(self.left_axes), on(self.right_axes), self.fixed


class Dense(NamedTuple):
    """Vectors as rows of any floating dtype.

    Attributes:
        rows: [E, T, p], where p may stand for several axes.
        parts: the arrays, if any, that one upon another on the last axis are the rows.
    """

    rows: Float[Array, "E T *p"]
    parts: tuple[Float[Array, "E T _"], ...] = ()

    @property
    def row_count(self) -> int:
        """T."""
        return self.rows.shape[1]

    def lengths(self) -> Float[Array, "E T"]:
        """At least the length of each row."""
        return jnp.sqrt(jnp.sum(jnp.square(self.rows), axis=2)) * jnp.float32(1 + gamma(self.rows.shape[2] + 4))


class OneHot(NamedTuple):
    """Vectors [E, T, p] whose element at `entry` is 1 and all others 0; an entry of -1 is a row of zeros."""

    entry: Int[Array, "E T"]

    @property
    def row_count(self) -> int:
        """T."""
        return self.entry.shape[1]

    def lengths(self) -> Float[Array, "E T"]:
        """The length of each row."""
        return (self.entry >= 0).astype(jnp.float32)


class OuterProducts(NamedTuple):
    """One use of a parameter: gradient[e] = Σ_t left[e, t] ⊗ right[e, t]; a single row on one side goes with all others."""

    left: Dense | OneHot
    right: Dense | OneHot


class Lookups(NamedTuple):
    """Of outer products with one-hot left vectors, the entries and the right rows, of which each entry has one at most.

    Attributes:
        entry: [E, T]; -1 for a row that counts for nothing.
        rows: of float32.
    """

    entry: Int[Array, "E T"]
    rows: Float[Array, "E T d"]


Pieces = Sequence[jax.Array]
Merge = Callable[[Sequence[OuterProducts]], Lookups]
SquaredCounts = Callable[[Int[Array, "E T"]], Float[Array, " E"]]


def widen_index(index: jax.Array) -> jax.Array:
    """The same indices in 32 bits or more, in which they can be compared with a table's size."""
    return index.astype(jnp.int32) if index.dtype.itemsize < 4 else index


def knows_settings(eqn: Eqn, known: frozenset[str]) -> bool:
    """Whether an equation has no setting but these: one that a later JAX adds may change what the operation is."""
    return known.issuperset(eqn.params)


def no_heads(eqn: Eqn, operand: int) -> tuple[bool, bool]:
    """Factors whose rows have one axis of entries, or others before them."""
    return False, False


def no_equal_cotangents(eqn: Eqn, body: JaxprParts) -> tuple[int, ...]:
    """A use of which nothing is known."""
    return ()


def the_only_piece(eqn: Eqn, operand: int, how: Layout, pieces: Pieces) -> jax.Array:
    """A gradient that isn't in pieces."""
    (whole,) = pieces
    return whole


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule for one primitive. `covers`, `layout`, `outer_products`, `gradient` and `assemble` get an equation and the
    position of the parameter among its operands.

    Where the functions speak of an example's values, those are `others`, the operands that aren't the parameter, in order,
    and `cotangent`, that of the output; in the types that the loss has, or in float32.

    Attributes:
        name: what `explain` calls it.
        covers: (eqn, operand). Whether the rule covers this use of a parameter. It must be sure: the primitive compared by
            identity, every setting that it doesn't know refused (`knows_settings`), and the operation linear in the operand.
        layout: (eqn, operand). How the gradient factorises, from shapes alone. The axes named left have the left vectors'
            entries in that order, and so on; all axes of the operand are named once.
        outer_products: (eqn, operand, layout, others, cotangent). The vectors of one example. The layout is the rule's own, but
            for the order of axes within its stacked, left and right ones, which is to be followed unless it has `fixed`.
        types: of the other operands, that the rule is right for: `REAL`, or `INDICES`. A complex operand would lose its imaginary
            part, and an 8-bit one rounds cotangents to a few values. The parameter's and the outputs' must always be real.
        gradient: (eqn, operand, layout, others, cotangent, precision). One example's gradient, float32, where it is to be formed,
            by products of that precision: in pieces of any shapes that hold each of its entries once, as they come out of the
            products; None to have the operation transposed.
        assemble: (eqn, operand, layout, pieces). The gradient, of the operand's shape, from its pieces, or from sums of them.
        merge: (uses). What several uses of one-hot left vectors add to each entry, added up once: the norm is taken of that, and
            the clipped sum is made of it; asked where all uses of a parameter have the same. In time and memory in proportion to
            the vectors. None for the products of all pairs of rows.
        squared_counts: (entry). Where there is `merge`: how many times the squared norm of one right vector that of all is, if
            they are all the same, from the entries of the left ones, [E, T]. float32, off by T additions at most.
        equal_cotangents: (eqn, body). Axes of the output along which all right vectors are sure to be the same, by how the
            equations of the body that it stands in use it. Only the first is then kept.
        repeats: (eqn, operand). For an operation that multiplies its two operands and adds up: how often, at most, an entry of
            the other operand is an entry of left vectors. Where a matrix unit does it, factors may be rounded; None where not.
        divide: (eqn, operand, layout, whole, count). `assemble` undone: so many pieces, [E, left entries, d] each, of an array of
            the operand's shape. None for a gradient that isn't in pieces.
        summed: as `gradient`, but the sum of gradients of others [B, ...] and cotangents [B, ...], by products of rows; for an
            operation that a device may compute by products of other numbers.
    """

    name: str
    covers: Callable[[Eqn, int], bool]
    layout: Callable[[Eqn, int], Layout]
    outer_products: Callable[[Eqn, int, Layout, Sequence[jax.Array], jax.Array], OuterProducts]
    types: frozenset[jnp.dtype] = REAL
    gradient: Callable[[Eqn, int, Layout, Sequence[jax.Array], jax.Array, jax.lax.Precision], Pieces] | None = None
    assemble: Callable[[Eqn, int, Layout, Pieces], jax.Array] = the_only_piece
    divide: Callable[[Eqn, int, Layout, jax.Array, int], Pieces] | None = None
    merge: Merge | None = None
    squared_counts: SquaredCounts | None = None
    equal_cotangents: Callable[[Eqn, JaxprParts], tuple[int, ...]] = no_equal_cotangents
    repeats: Callable[[Eqn, int], int] | None = None
    summed: Callable[[Eqn, int, Layout, Sequence[jax.Array], jax.Array, jax.lax.Precision], Pieces] | None = None
    heads: Callable[[Eqn, int], tuple[bool, bool]] = no_heads

    def takes(self, eqn: Eqn, operand: int) -> bool:
        """Whether the parameter and the outputs of a use are real, and its other operands of the rule's types."""
        types = [v.aval.dtype for v in eqn.invars]
        parameter = types.pop(operand)
        outputs = [v.aval.dtype for v in eqn.outvars]
        return parameter in REAL and all(t in REAL for t in outputs) and all(t in self.types for t in types)
