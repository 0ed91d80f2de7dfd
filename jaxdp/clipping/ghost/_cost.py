"""The cost of a gradient's norm by its rows or by forming it, counted in bytes moved.

Per example and T rows of p and d entries in E matrices, in float32:

- *rows*: the Gram matrices take 2 E T² (p + d) operations and 8 E T² bytes, and the sum afterwards another pass over the
  rows, with 2 E T p d operations (an ordinary weight gradient); under a rule with a norm of its own, only the rows;
- *formed*: 2 E T p d operations, and 12 bytes for each entry, to write it, to take its norm and to add it up.

A device does several operations in the time that it moves a byte: how many, its `_platform` says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..._platform import default_platform
from ...jaxprs._jaxpr import SCAN, Eqn, JaxprParts, parts_of, subjaxprs
from .._arithmetic import Arithmetic
from ._kinds import EXAMPLE, Kind, kinds_of
from .rules import Layout


@dataclass(frozen=True)
class Choice:
    """How the norm is computed, what that costs per example, and why it was chosen.

    Attributes:
        form: "rows" for norms from the rows of the outer products, "formed" for the gradient of each example by a rule, "dropped"
            where that isn't kept for the sum; without a rule, "direct" where the gradient is no larger than what the parameter
            is used in, else "materialised".
        operations: floating-point operations per example.
        kept: float32 entries that are kept per example until the clip factors are known, beside the rows.
        why: the reason in words.
    """

    form: Literal["rows", "formed", "dropped", "direct", "materialised"]
    operations: int
    kept: int
    why: str


def choose(layouts: Sequence[Layout], entries: int, *, aligned: bool, together: bool, own_norm: bool) -> Choice:
    """The cheaper form for one component.

    Args:
        layouts: of its uses.
        entries: of its leaves together.
        aligned: whether the uses are on the same axes, so that they are rows of the same matrices.
        together: whether the leaves are clipped together; their joint norm is of no use otherwise.
        own_norm: whether the uses share a rule that has its own way to the norm, in proportion to the rows.

    Returns:
        The choice.
    """
    per_byte = default_platform().operations_per_byte
    gradient = sum(2 * use.products for use in layouts)
    rows_entries = sum(use.stack * use.rows * use.floats for use in layouts)
    pairs = [(a, b) for i, a in enumerate(layouts) for b in layouts[i:]]
    if len(layouts) == 1 and layouts[0].rows == 1:
        gram, matrices = rows_entries, 0
    elif own_norm:
        gram, matrices = rows_entries, rows_entries
    else:
        gram = sum(2 * a.stack * a.rows * b.rows * max(a.floats, b.floats) for a, b in pairs)
        matrices = sum(a.stack * a.rows * b.rows for a, b in pairs)
    by_rows = (gram + gradient) / per_byte + 12 * rows_entries + 8 * matrices
    formed = gradient / per_byte + 12 * entries + 4 * rows_entries
    if not together:
        return Choice("formed", gradient, entries, "its leaves are joined where they are used, and clipped apart")
    if not aligned:
        return Choice(
            "formed",
            gradient,
            entries,
            "its uses don't share their axes" if len(layouts) > 1 else "it is transformed before it is used",
        )
    if by_rows <= formed:
        return Choice("rows", gram + gradient, matrices, "fewer bytes and operations than forming it")
    return Choice("formed", gradient, entries, "cheaper than the products of all pairs of rows")


def choose_for_matrix_unit(
    layouts: Sequence[Layout],
    entries: int,
    arithmetic: Arithmetic,
    *,
    aligned: bool,
    together: bool,
    one_value: bool,
) -> Choice:
    """The cheaper form where a matrix unit multiplies, and what reads a product needn't wait for it to be written.

    Args:
        layouts: of its uses, all of them products.
        entries: of its leaves together.
        arithmetic: of the sums.
        aligned, together: as for `choose`.
        one_value: whether all uses are of one value that holds the leaves' entries and nothing else.

    Returns:
        The choice. Gram matrices of more operations than the gradient are taken only where their bound is no looser. A gradient
        that is formed is kept where that costs less than its rows, of which the sum is made else.
    """
    if not (aligned and together):
        return choose(layouts, entries, aligned=aligned, together=together, own_norm=False)
    gradient = sum(2 * use.products for use in layouts)
    rows = sum(use.stack * use.rows * use.floats for use in layouts)
    single = len(layouts) == 1 and layouts[0].rows == 1
    gram = 0 if single else sum(2 * a.stack * a.rows * b.rows * a.floats for a in layouts for b in layouts)
    widest, all_rows = max(max(use.left, use.right) for use in layouts), sum(use.rows for use in layouts)
    is_tight = arithmetic.gamma(widest) * math.sqrt(all_rows) <= arithmetic.factor_roundoff
    if gram <= gradient * (arithmetic.formed_costs if is_tight else 1):
        return Choice("rows", gram + gradient, 0, "cheaper than forming it")
    why = "cheaper than the products of all pairs of rows"
    if one_value and arithmetic.kept_costs * entries > rows:
        return Choice("dropped", 2 * gradient, 0, why)
    return Choice("formed", gradient, entries, why)


def choose_for_transformed(use: Layout, formed: Choice, arithmetic: Arithmetic) -> Choice:
    """What is formed of a value that pulls back once it is added up is dropped where keeping it costs more than its rows."""
    rows = use.stack * use.rows * use.floats
    if formed.kept < arithmetic.least_transformed or arithmetic.transformed_costs * formed.kept <= rows:
        return formed
    return Choice("dropped", 2 * formed.operations, 0, "its pull-back works on columns, and once on their sum")


def activations(jaxpr: JaxprParts, kinds: Sequence[Kind]) -> int:
    """Bytes that a forward and a backward pass need for one example, about: half of what the loss computes, in float32.

    The compiler fuses the rest away. The temporary memory of the benchmarks' models is 0.7 to 3 times this.

    Args:
        jaxpr: of the loss, hoisted.
        kinds: of its inputs.

    Returns:
        The number of bytes.
    """
    known = kinds_of(jaxpr, kinds)
    return 2 * sum(_computed(eqn) for eqn in jaxpr.eqns if any(known.of(v) & EXAMPLE for v in eqn.outvars))


def _computed(eqn: Eqn) -> int:
    """Array elements that an equation computes, with those of all steps of a loop."""
    steps = eqn.params["length"] if eqn.primitive is SCAN else 1
    inside = sum(_computed(inner) for body in subjaxprs(eqn) for inner in parts_of(body).eqns)
    return sum(v.aval.size for v in eqn.outvars) + steps * inside
