"""The rule of `dot_general`: a weight gradient is a sum of outer products, input row by output cotangent row."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ....jaxprs._jaxpr import DOT_GENERAL, Eqn
from ._rule import Dense, Layout, OuterProducts, Rule, knows_settings

_SETTINGS = frozenset({"dimension_numbers", "out_sharding", "precision", "preferred_element_type"})
_TWO = 2  # axes: heads, and a head's entries


def covers(eqn: Eqn, operand: int) -> bool:
    """Whether the rule covers this use of a parameter."""
    return eqn.primitive is DOT_GENERAL and knows_settings(eqn, _SETTINGS)


def layout(eqn: Eqn, operand: int) -> Layout:
    """Contracted axes are left (the input's entries), free ones right (the output's), batch dimensions stacked."""
    axes = _Axes(eqn, operand)
    weight, other = eqn.invars[operand].aval.shape, eqn.invars[1 - operand].aval.shape
    size = lambda shape, part: math.prod(shape[i] for i in part)
    return Layout(
        stack_axes=axes.batch,
        left_axes=axes.contract,
        right_axes=axes.free,
        stack=size(weight, axes.batch),
        rows=size(other, axes.other_free),
        left=size(weight, axes.contract),
        right=size(weight, axes.free),
    )


def outer_products(
    eqn: Eqn, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array
) -> OuterProducts:
    """The other operand, and the output's cotangent, as rows."""
    axes = _Axes(eqn, operand)
    (other,) = others
    stack = [axes.batch.index(i) for i in how.stack_axes]
    contract = [axes.other_contract[axes.contract.index(i)] for i in how.left_axes]
    left = jnp.transpose(other, (*(axes.other_batch[i] for i in stack), *axes.other_free, *contract))
    # The output has the batch axes first, then what is free on the left-hand side, then on the right-hand side.
    n, mine, theirs = len(axes.batch), len(axes.free), len(axes.other_free)
    first, second = (n, n + theirs) if operand == 1 else (n + mine, n)
    free = [second + axes.free.index(i) for i in how.right_axes]
    right = jnp.transpose(cotangent, (*stack, *range(first, first + theirs), *free))
    before = len(stack) + len(axes.other_free)
    rows = lambda side: Dense(side.reshape(how.stack, how.rows, *side.shape[before:]))
    return OuterProducts(rows(left), rows(right))


class _Axes:
    """The axes of the parameter operand and of the other one, by their part in the product."""

    def __init__(self, eqn: Eqn, operand: int) -> None:
        contracts, batches = eqn.params["dimension_numbers"]
        self.contract, self.batch = tuple(contracts[operand]), tuple(batches[operand])
        self.other_contract, self.other_batch = tuple(contracts[1 - operand]), tuple(batches[1 - operand])
        taken, other_taken = self.contract + self.batch, self.other_contract + self.other_batch
        self.free = tuple(i for i in range(eqn.invars[operand].aval.ndim) if i not in taken)
        self.other_free = tuple(i for i in range(eqn.invars[1 - operand].aval.ndim) if i not in other_taken)


def repeats(eqn: Eqn, operand: int) -> int:
    """Once: rows are those of the other operand."""
    return 1


def heads(eqn: Eqn, operand: int) -> tuple[bool, bool]:
    """Whether rows of two axes each are last: what is contracted, of the other operand; what is free, of the output."""
    axes, last = _Axes(eqn, operand), eqn.invars[1 - operand].aval.ndim - 1
    other = bool(axes.other_free) and sorted(axes.other_contract) == [last - 1, last]
    output = bool(axes.other_free) and operand == 1 and len(axes.free) == _TWO
    return other, output


DOT = Rule(
    name="dot_general", covers=covers, layout=layout, outer_products=outer_products, repeats=repeats, heads=heads
)
