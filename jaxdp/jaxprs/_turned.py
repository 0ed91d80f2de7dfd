"""Matrices that products in a loop read across their rows, transposed once, before the loop.

A product that adds up over the last axis of a matrix, as those on the way back through a layer do, is made by XLA on a CPU from a
transposed copy, and in a loop from another one at each step. With few rows on the other side the copies are most of its time:
with 4 rows it takes 1.6 to 3.4 times as long, with 16 rows 1.1 to 1.7, with 64 up to 1.2, and from 256 on no longer (JAX 0.10 and
0.12, matrices of 64 to 2,048 rows and columns; up to six times within the steps of an LSTM).
"""

from collections.abc import Mapping
from typing import Any

import jax

from ._jaxpr import DOT_GENERAL, SCAN, Eqn, Literal, Var, scan_parts

_FEW_ROWS = 128


def turned_before(eqn: Eqn, values: list[Any]) -> dict[Var, jax.Array]:
    """Transposes of the matrices that a loop is given and has products of few rows read across, by its body's variables."""
    if eqn.primitive is not SCAN:
        return {}
    parts = scan_parts(eqn)
    given = dict(zip(parts.body.invars[: parts.num_consts], values, strict=False))
    read = {v for inner in parts.body.eqns for side, v in enumerate(inner.invars) if _is_worth_turning(inner, side)}
    return {v: jax.lax.transpose(value, (1, 0)) for v, value in given.items() if v in read}


def with_turned(eqn: Eqn, values: list[Any], turned: Mapping[Var, jax.Array]) -> tuple[Eqn, list[Any]]:
    """A product, or another equation as it is, that reads transposes in place of what they are transposes of."""
    sides = [side for side, v in enumerate(eqn.invars) if _is_worth_turning(eqn, side) and v in turned]
    if not sides:
        return eqn, values
    contracted, batched = eqn.params["dimension_numbers"]
    contracted = tuple((0,) if side in sides else axes for side, axes in enumerate(contracted))
    values = [
        turned[v] if side in sides else value for side, (v, value) in enumerate(zip(eqn.invars, values, strict=True))
    ]
    return eqn.replace(params={**eqn.params, "dimension_numbers": (contracted, batched)}), values


def _is_worth_turning(eqn: Eqn, side: int) -> bool:
    """Whether an operand is a matrix that a product adds up over the last axis of, with few rows on the other side."""
    if eqn.primitive is not DOT_GENERAL or isinstance(v := eqn.invars[side], Literal) or v.aval.ndim != 2:
        return False
    contracted, batched = eqn.params["dimension_numbers"]
    rows = eqn.outvars[0].aval.size // max(v.aval.shape[0], 1)
    return tuple(contracted[side]) == (1,) and not batched[side] and rows < _FEW_ROWS
