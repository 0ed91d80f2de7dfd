r"""Clip each example's gradient to a norm and add them up.

\[ S = \sum_i m_i\, c_i\, g_i, \qquad c_i = \min\Bigl(1, \frac{C}{(1 + \gamma)\,\lVert g_i \rVert_2}\Bigr) \]

with the mask m, the clip norm C and the rounding bound γ, `_norm.relative_error_bound`; other factors under other `rules`.
Removing or adding one example moves S by at most C, but for what rounding does to sums of thousands (`_reducer`).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._alike import Alike
from .._errors import UsageError
from .._types import Params
from ..jaxprs import as_one_value
from ._norm import (
    ONE_SUM,
    SMALLEST,
    UNIT_ROUNDOFF,
    per_example_norms,
    relative_error_bound,
    sum_of_squares,
    sum_of_squares_error,
)
from .rules import ClipRule, Flat, Groups
from .rules._rule import ROUND_DOWN, groups_of

_BLOCK = 64  # examples that are added up one upon another
_SMALL = 4096  # entries of a leaf; copying them costs less than an operation of their own


class Norm(NamedTuple):
    """A norm as computed, and what the true norm can't exceed."""

    value: Float[Array, "..."]
    upper: Float[Array, "..."]


class ClippedSum(NamedTuple):
    """The sum of clipped gradients over some examples, and what there is of each, [B, ...].

    Attributes:
        grads: like params, float32. The sum.
        losses: float [B].
        norms: float32 [B]. Before clipping; 0 where masked.
        aux: pytree [B, ...]. What the loss returned beside its value; None without.
    """

    grads: Any
    losses: Float[Array, " B"]
    norms: Float[Array, " B"]
    aux: Any


@dataclass(frozen=True)
class Clipping:
    """A rule with its clip norm (a plain number or a traced scalar) and the groups of the leaves."""

    rule: ClipRule
    clip_norm: Any
    groups: Groups

    @classmethod
    def of(cls, rule: ClipRule, clip_norm: Any, params: Params) -> "Clipping":
        """The clipping of gradients like `params`."""
        return cls(rule, clip_norm, groups_of(rule, params))

    @property
    def may_lengthen(self) -> bool:
        """Whether a factor may be above 1: of rules that haven't borrowed theirs from `Flat`, as far as is known."""
        return Flat.factors is not getattr(type(self.rule), "factors", None)

    def by_group(self, leaves: Mapping[int, Any]) -> list[dict[int, Any]]:
        """A part of the leaves, by position, divided into their groups."""
        parts: list[dict[int, Any]] = [{} for _ in self.groups.shares]
        for i, leaf in leaves.items():
            parts[self.groups.of_leaf[i]][i] = leaf
        return parts

    def factors(
        self, uppers: Sequence[Float[Array, " B"]], mask: Bool[Array, " B"]
    ) -> tuple[Bool[Array, " B"], list[Float[Array, " B"]]]:
        """Which examples contribute, and by which factor each group.

        Args:
            uppers: for each group what each example's norm can't exceed, rounding included; NaN or inf for a bad example.
            mask: bool [B].

        Returns:
            bool [B], and float32 [B] for each group, 0 where an example doesn't contribute.
        """
        usable = mask
        for upper in uppers:
            usable &= jnp.isfinite(upper)
        if isinstance(self.clip_norm, float) and math.isinf(self.clip_norm):
            return usable, [usable.astype(jnp.float32) for _ in uppers]
        factors = []
        for upper, share in zip(uppers, self.groups.shares, strict=True):
            limit = jnp.float32(self.clip_norm) * jnp.float32(share if share == 1 else share * ROUND_DOWN)
            found = jnp.asarray(self.rule.factors(upper, limit), jnp.float32)
            if self.may_lengthen:  # whatever it says, nothing becomes longer than the limit
                found = jnp.minimum(found, limit * jnp.float32(ROUND_DOWN) / jnp.maximum(upper, SMALLEST))
            factors.append(jnp.where(usable & (found >= SMALLEST), found, 0))  # of a smaller one few bits are left
        return usable, factors


def clip_and_sum(grads: Any, mask: Bool[Array, " B"], clipping: Clipping) -> tuple[Any, Float[Array, " B"]]:
    """Scale per-example gradients as `clipping` says and add them up.

    Examples whose gradient has a NaN or infinite entry, and masked ones, contribute exactly zero: their entries are
    replaced by zeros before anything is multiplied or added, since 0 · NaN is NaN.

    Args:
        grads: pytree of arrays [B, ...], of any floating dtype.
        mask: bool [B], False for padding.
        clipping: the rule, with its clip norm and groups of leaves.

    Returns:
        The clipped sum, and float32 [B], the norm of each example's gradient; 0 where masked.

    Raises:
        UsageError: for a leaf that isn't floating, of which squares would wrap or be no lengths.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", arXiv 1607.00133, algorithm 1.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise UsageError(
                f"gradient{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, in which no norm can be taken: give per-example "
                "gradients in floating-point numbers, such as gradients.astype(jnp.float32)"
            )
    leaves, treedef = jax.tree.flatten(cast_behind_barrier(grads))
    parts = [pack_into_matrices(group) for group in clipping.by_group(dict(enumerate(leaves)))]
    norms = [norm_of_matrices(matrices) for matrices, _ in parts]
    usable, factors = clipping.factors([norm.upper for norm in norms], mask)
    total: dict[int, Any] = {}
    for (matrices, unpack), factor in zip(parts, factors, strict=True):
        total |= unpack([sum_weighted(matrix, usable, factor) for matrix in matrices])
    grads = treedef.unflatten([total[i] for i in range(len(leaves))])
    return grads, jnp.where(mask, join_norms(norms, mask.shape[0]).value, 0)


def pack_into_matrices(grads: Any) -> tuple[list[Float[Array, "B _"]], Callable[[list[Float[Array, " _"]]], Any]]:
    """Per-example gradients as few matrices, all small leaves side by side in one: fewer, larger operations.

    Args:
        grads: pytree of float32 arrays [B, ...].

    Returns:
        The matrices, and the function that makes a pytree without the batch axis from a vector for each of them.
    """
    leaves, treedef = jax.tree.flatten(grads)
    shapes = [leaf.shape[1:] for leaf in leaves]
    small = [i for i, shape in enumerate(shapes) if math.prod(shape) <= _SMALL]
    groups = [*([small] if small else []), *([i] for i in range(len(leaves)) if i not in small)]
    row = lambda i: leaves[i].reshape(leaves[i].shape[0], -1)
    matrices = [
        jnp.concatenate([row(i) for i in group], axis=1) if len(group) > 1 else row(group[0]) for group in groups
    ]

    def unpack(vectors: list[Float[Array, " _"]]) -> Any:
        parts: dict[int, Any] = {}
        for group, vector in zip(groups, vectors, strict=True):
            ends = list(accumulate(math.prod(shapes[i]) for i in group))
            parts |= dict(zip(group, jnp.split(vector, ends[:-1]), strict=True))
        return treedef.unflatten([parts[i].reshape(shape) for i, shape in enumerate(shapes)])

    return matrices, unpack


def cast_behind_barrier(values: Any) -> Any:
    """Floating-point leaves in float32, with one value for all who read them: a norm must be that of what is added up.

    XLA computes again for each reader what is cheap (`_one_value`), and keeps float32 for some readers of what a bfloat16 model
    rounds, and not for others: the norm of other numbers, 0.1 % apart.
    """

    def cast(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return as_one_value(leaf.astype(jnp.float32), rounded_alike=leaf.dtype == jnp.float32)

    return jax.tree.map(cast, values)


def norm_of_matrices(matrices: list[Float[Array, "B _"]]) -> Norm:
    """The norm of each example's gradient over all matrices together, [B]."""
    exact = per_example_norms(matrices)
    return Norm(exact, exact * jnp.float32(1 + relative_error_bound(matrices)))


def join_norms(norms: Sequence[Norm], size: int) -> Norm:
    """The norm over all parts from the norm of each, [B], scaled so that no square over- or underflows."""
    if not norms:
        return Norm(jnp.zeros(size, jnp.float32), jnp.zeros(size, jnp.float32))
    if len(norms) == 1:
        return norms[0]

    def join(parts: list[Float[Array, " B"]]) -> Float[Array, " B"]:
        stack = jnp.stack(parts)
        largest = jnp.max(stack, axis=0)
        scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
        return scale * jnp.sqrt(jnp.sum(jnp.square(stack / scale[None]), axis=0))

    slack = jnp.float32(1 + (len(norms) + 6) * UNIT_ROUNDOFF)
    return Norm(join([n.value for n in norms]), join([n.upper for n in norms]) * slack)


def join_packed(norms: Sequence[Norm], matrices: list[Float[Array, "B _"]], size: int) -> Norm:
    """The norm over all parts, [B], of which some are norms already and some are matrices of `pack_into_matrices`."""
    return join_norms([*norms, norm_of_matrices(matrices)] if matrices else norms, size)


def leave_apart(grads: Any) -> tuple[list[Float[Array, "B ..."]], Callable[[list[Float[Array, "..."]]], Any]]:
    """As `pack_into_matrices`, where copying costs more than further operations: each leaf as it is."""
    leaves, treedef = jax.tree.flatten(grads)
    return leaves, treedef.unflatten


def join_apart(norms: Sequence[Norm], leaves: Sequence[Float[Array, "B ..."]], size: int) -> Norm:
    """The norm over all parts, [B], of which some are norms already and some are leaves: one root for all of them.

    It is inf from 1e19 on.
    """
    alike = [[leaves[i] for i in group] for group in Alike.of(leaves, math.inf, before=1).groups]
    squares = sum((sum_of_squares(one, (0,), ONE_SUM, *others) for one, *others in alike), jnp.zeros(size, jnp.float32))
    value, upper = (
        sum((jnp.square(part) for part in parts), squares)
        for parts in (zip(*norms, strict=True) if norms else ((), ()))
    )
    worst = max((sum_of_squares_error(one.shape[1:], ONE_SUM, len(others)) for one, *others in alike), default=0.0)
    slack = jnp.float32(1 + worst + (len(norms) + len(alike) + 64) * UNIT_ROUNDOFF)
    return Norm(jnp.sqrt(value), jnp.sqrt(upper + 2.0**-100) * slack)


def sum_weighted_apart(
    leaf: Float[Array, "B ..."], usable: Bool[Array, " B"], factors: Float[Array, " B"]
) -> Float[Array, "..."]:
    """As `sum_weighted`, of a leaf as it is."""
    column = (-1, *[1] * (leaf.ndim - 1))
    weighted = jnp.where(usable.reshape(column), leaf * factors.reshape(column), 0)
    return _sum_in_blocks(lambda rows: jnp.sum(rows, axis=-leaf.ndim), 4 * _BLOCK, weighted)


def sum_weighted(
    matrix: Float[Array, "B n"], usable: Bool[Array, " B"], factors: Float[Array, " B"]
) -> Float[Array, " n"]:
    """The sum of each example's row times its factor; the rows of unusable examples are never read."""
    matrix = jnp.where(usable[:, None], matrix, 0)
    # As a product, not as a sum of scaled rows, which XLA's CPU compiler fuses with the norms and makes 5 times slower;
    # at the highest precision, since TF32 would round the clipped gradients up or down.
    product = functools.partial(jnp.einsum, "...b,...bn->...n", precision=jax.lax.Precision.HIGHEST)
    return _sum_in_blocks(product, _BLOCK, factors, matrix)


def _sum_in_blocks(
    add_up: Callable[..., Float[Array, "*k_and_entry"]], block: int, *of_examples: Float[Array, "B ..."]
) -> Float[Array, "..."]:
    """`add_up` of blocks of examples, [k, block, ...], whose sums [k, ...] are added up in pairs, and of those left over.

    Fewer additions one upon another: how far rounding takes a sum of many examples off grows with their number (`_reducer`).
    """
    size = of_examples[0].shape[0]
    if size <= block:
        return add_up(*of_examples)
    whole = size // block * block
    parts = add_up(*(x[:whole].reshape(-1, block, *x.shape[1:]) for x in of_examples))
    while len(parts) > 1:
        pairs = parts[: len(parts) // 2] + parts[len(parts) // 2 : len(parts) // 2 * 2]
        parts = jnp.concatenate([pairs, parts[-1:]]) if len(parts) % 2 else pairs
    return parts[0] + add_up(*(x[whole:] for x in of_examples)) if size > whole else parts[0]
