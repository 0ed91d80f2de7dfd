"""The loss of one example as a hoisted jaxpr, and the plan for its parameters."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from ..._types import Batch, Example, LossFn, Params
from ...jaxprs._jaxpr import parts_of, trace
from .._arithmetic import Arithmetic
from .._inputs import loss_of_example, shapes_of_row
from ._hoist import hoist
from ._kinds import EXAMPLE, NEITHER, PARAMS
from ._plan import Plan, make_plan


class Traced(NamedTuple):
    """A traced loss.

    Attributes:
        plan: how each leaf is dealt with.
        aux: the structure of the loss's auxiliary output.
    """

    plan: Plan
    aux: Any


def trace_loss(
    loss_fn: LossFn,
    has_aux: bool,
    params: Params,
    batch: Batch,
    shared: tuple[Any, ...],
    keys: Any,
    groups: Sequence[int],
    arithmetic: Arithmetic,
) -> Traced:
    """Trace the loss of one example and plan its clipping.

    Args:
        loss_fn, has_aux: as `clipped_grad` takes them.
        params: pytree of floating-point arrays.
        batch: pytree of arrays [B, ...].
        shared: further arguments of the loss.
        keys: one key an example, or None.
        groups: of each leaf, with which others it is clipped.
        arithmetic: of norms and sums.

    Returns:
        A `Traced`.
    """

    def one(params: Params, example: Example, key: Any, shared: Any) -> tuple[Any, Any]:
        out = loss_of_example(loss_fn, params, example, key, shared)
        return out if has_aux else (out, None)

    example, key = shapes_of_row((batch, keys))
    jaxpr, (_, aux) = trace(one, params, example, key, shared)
    counts = [len(jax.tree.leaves(part)) for part in (params, (example, key), shared)]
    kinds = [PARAMS] * counts[0] + [EXAMPLE] * counts[1] + [NEITHER] * counts[2]
    return Traced(make_plan(parts_of(hoist(jaxpr, kinds)), kinds, groups, arithmetic), jax.tree.structure(aux))
