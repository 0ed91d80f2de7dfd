"""The one evaluator of jaxprs: it runs equations in order, each by a hook that may do something else than the equation says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ._jaxpr import Eqn, JaxprParts, Literal, Var, bind, parts_of, subjaxprs

Hook = Callable[[Eqn, list[Any]], Sequence[Any]]


def evaluate(
    jaxpr: JaxprParts,
    args: Sequence[Any],
    hook: Hook = bind,
    *,
    eqns: Sequence[Eqn] | None = None,
    wanted: Sequence[Any] | None = None,
    known: Mapping[Var, Any] | None = None,
) -> list[Any]:
    """Run a jaxpr.

    Args:
        jaxpr: the parts of one.
        args: the values of its inputs.
        hook: from an equation and the values of its operands to the values of its outputs; `bind` does what the equation says.
        eqns: those that may be run; all by default.
        wanted: the variables whose values to return, in whose place the jaxpr's outputs stand by default. Of the equations,
            only those that they need, and those with effects, are then run.
        known: the values of variables, whatever an equation would make of them.

    Returns:
        The values of `wanted`.
    """
    env = dict(zip(jaxpr.constvars, map(_as_array, jaxpr.consts), strict=True))
    env |= dict(zip(jaxpr.invars, args, strict=True))
    known = known or {}
    env.update(known)
    eqns = jaxpr.eqns if eqns is None else eqns
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]
    for eqn in eqns if wanted is None else _needed(eqns, wanted, known):
        outs = hook(eqn, [read(v) for v in eqn.invars])
        env.update({v: out for v, out in zip(eqn.outvars, outs, strict=True) if v not in known})
    return [read(v) for v in (jaxpr.outvars if wanted is None else wanted)]


def _as_array(constant: Any) -> Any:
    """JAX's own array of what it keeps of a constant: on their way back, rules of the user's own (`jax.custom_vjp`) index it."""
    return constant if isinstance(constant, jax.Array) or not hasattr(constant, "__array__") else jnp.asarray(constant)


def constant_value(jaxpr: JaxprParts, atom: Any) -> np.ndarray | None:
    """What an operand is whatever the jaxpr's inputs are; None where it depends on them, or on a value that is being traced.

    Also None where it is computed from numbers with a fraction: another program may round them otherwise.
    """
    if isinstance(atom, Literal):
        return np.asarray(atom.val)
    eqns = _needed(jaxpr.eqns, [atom])
    if any(map(_rounds, eqns)):
        return None
    read = {atom, *(v for eqn in eqns for v in eqn.invars if not isinstance(v, Literal))}
    read -= {v for eqn in eqns for v in eqn.outvars}
    consts = dict(zip(jaxpr.constvars, jaxpr.consts, strict=True))
    if any(v not in consts or isinstance(consts[v], Tracer) for v in read):
        return None
    with jax.ensure_compile_time_eval():
        (value,) = jax.jit(lambda: evaluate(jaxpr, [None] * len(jaxpr.invars), wanted=[atom]))()
        return np.asarray(value)


def reads_any(jaxpr: JaxprParts, first: int) -> bool:
    """Whether the first output is computed from any of the first inputs, so many of them, as far as whole equations tell."""
    out = jaxpr.outvars[0]
    read = {v for eqn in _needed(jaxpr.eqns, [out]) for v in eqn.invars if not isinstance(v, Literal)}
    return any(v is out or v in read for v in jaxpr.invars[:first])


def _rounds(eqn: Eqn) -> bool:
    """Whether it reads, computes or has within it numbers with a fraction."""
    types = [getattr(v.aval, "dtype", None) for v in (*eqn.invars, *eqn.outvars)]
    inside = (inner for body in subjaxprs(eqn) for inner in parts_of(body).eqns)
    return any(t is not None and jnp.issubdtype(t, jnp.inexact) for t in types) or any(map(_rounds, inside))


def _needed(eqns: Sequence[Eqn], wanted: Sequence[Any], known: Mapping[Var, Any] | None = None) -> list[Eqn]:
    """Those of `eqns` on which `wanted` depend beside what is known, in order."""
    needed = {v for v in wanted if not isinstance(v, Literal)} - (known or {}).keys()
    kept: list[Eqn] = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal) and v not in (known or {}))
    return kept[::-1]
