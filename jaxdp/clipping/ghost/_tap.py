"""Run the loss with a zero added to each site's output, and keep what the site's other operands were.

The gradient with respect to these zeros is the cotangent of each site's output: with the other operands it is all that a
rule needs. In a scan, each step has a zero of its own, and what it computes for its way back is kept for all steps at once: that
is what a recurrent model's memory and time go into on a GPU or TPU, where what is cheap to compute again isn't kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..._platform import default_platform
from ...jaxprs import evaluate
from ...jaxprs._jaxpr import (
    ARITHMETIC,
    PRODUCTS,
    SCAN,
    Eqn,
    JaxprParts,
    Var,
    all_equations,
    bind,
    has_its_own_gradient,
    in_context_of,
    inner_jaxpr,
    parts_of,
    rebuild_remat,
    rebuild_scan,
    scan_parts,
)
from ._uses import Path, Site
from .rules._rule import REAL

Taps = dict[Path, Any]


def make_taps(sites: dict[Path, Site]) -> Taps:
    """The zero that is added to each site's output, one for each step of the loops around it."""
    return {
        path: jnp.zeros((*site.lengths, *site.eqn.outvars[0].aval.shape), site.eqn.outvars[0].aval.dtype)
        for path, site in sites.items()
    }


def run_tapped(
    jaxpr: JaxprParts, args: Sequence[Any], taps: Taps, known: Mapping[Var, Any]
) -> tuple[list[Any], dict[Path, tuple[Any, ...]]]:
    """Run a jaxpr with taps.

    Args:
        jaxpr: the loss of one example, hoisted.
        args: its inputs.
        taps: as `make_taps` makes them, for the sites to tap.
        known: the values of variables of the jaxpr, whatever its equations make of them.

    Returns:
        The outputs, and for each site all its operands, with a leading axis for each loop.
    """
    return _run(jaxpr, args, taps, (), known)


def _run(
    jaxpr: JaxprParts, args: Sequence[Any], taps: Taps, at: Path, known: Mapping[Var, Any] | None = None
) -> tuple[list[Any], dict[Path, tuple[Any, ...]]]:
    path_of = {id(eqn): (*at, number) for number, eqn in enumerate(jaxpr.eqns)}
    seen: dict[Path, tuple[Any, ...]] = {}

    def tap(eqn: Eqn, values: list[Any]) -> list[Any]:
        path = path_of[id(eqn)]
        if path in taps:
            seen[path] = tuple(values)
            return [out + taps[path] for out in bind(eqn, values)]
        inside = {p: tap for p, tap in taps.items() if p[: len(path)] == path}
        if not inside:
            return bind(eqn, values)
        run = _scan if eqn.primitive is SCAN else _remat
        outs, inner = run(eqn, values, inside, path)
        seen.update(inner)
        return outs

    return evaluate(jaxpr, args, tap, known=known), seen


def _remat(eqn: Eqn, args: Sequence[Any], taps: Taps, path: Path) -> tuple[list[Any], Any]:
    body = parts_of(inner_jaxpr(eqn))
    keys = list(taps)

    def run(args: Sequence[Any], taps: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs, seen = _run(body, args, dict(zip(keys, taps, strict=True)), path)
        return outs, [seen[key] for key in keys]

    with in_context_of(eqn):
        outs, seen = rebuild_remat(eqn, run)(list(args), list(taps.values()))
    return outs, dict(zip(keys, seen, strict=True))


def _scan(eqn: Eqn, args: Sequence[Any], taps: Taps, path: Path) -> tuple[list[Any], Any]:
    parts = scan_parts(eqn)
    consts, first = list(args[: parts.num_consts]), parts.num_consts + parts.num_carry
    keys = list(taps)

    def step(carry: Sequence[Any], xs: tuple[Sequence[Any], Sequence[Any]]) -> tuple[Any, Any]:
        slices, taps = xs
        outs, seen = _run(parts.body, [*consts, *carry, *slices], dict(zip(keys, taps, strict=True)), path)
        return outs[: parts.num_carry], (outs[parts.num_carry :], [seen[key] for key in keys])

    if default_platform().computes_again and _may_be_computed_again(eqn):
        step = jax.checkpoint(step, prevent_cse=False, policy=_is_kept)
    with in_context_of(eqn):
        scanned = (list(args[first:]), list(taps.values()))
        ends, (stacks, seen) = rebuild_scan(eqn, step, list(args[parts.num_consts : first]), scanned)
    return [*ends, *stacks], dict(zip(keys, seen, strict=True))


def _may_be_computed_again(scan: Eqn) -> bool:
    """Whether JAX can: its `checkpoint` rounds what is kept to its own type, which is right for floats as IEEE has them alone."""
    variables = (v for eqn in all_equations(scan.params["jaxpr"]) for v in (*eqn.invars, *eqn.outvars))
    return all(map(_stays_as_it_is, variables)) and not has_its_own_gradient(scan)


def _stays_as_it_is(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and (dtype in REAL or not jnp.issubdtype(dtype, jnp.inexact))


def _is_kept(primitive: Any, *operands: Any, **_: Any) -> bool:
    """Whether a step's result is kept for its way back, if that reads it.

    A product isn't, whose own way back reads its factors; a sum of an array and a number isn't, either. Of a gate by a sigmoid or
    a hyperbolic tangent one array is kept, then, and not two.
    """
    return primitive not in PRODUCTS and not (
        primitive in ARITHMETIC and any(operand.ndim == 0 for operand in operands)
    )
