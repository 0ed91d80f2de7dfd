"""The one evaluator of jaxprs: it runs equations in order, each by a hook that may do something else than the equation says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._jaxpr import Eqn, JaxprParts, Literal, Var, bind

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
        known: the values of variables that no equation needs to compute.

    Returns:
        The values of `wanted`.
    """
    env = dict(zip(jaxpr.constvars, jaxpr.consts, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))
    env.update(known or {})
    eqns = jaxpr.eqns if eqns is None else eqns
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]
    for eqn in eqns if wanted is None else _needed(eqns, wanted):
        env.update(zip(eqn.outvars, hook(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in (jaxpr.outvars if wanted is None else wanted)]


def _needed(eqns: Sequence[Eqn], wanted: Sequence[Any]) -> list[Eqn]:
    """Those of `eqns` on which `wanted` depend, in order."""
    needed = {v for v in wanted if not isinstance(v, Literal)}
    kept: list[Eqn] = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return kept[::-1]
