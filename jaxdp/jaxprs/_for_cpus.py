"""Programs arranged for XLA's CPU compiler: convolutions that it has fast code for, products that it computes right.

Differentiation gives convolutions whose axes are permuted. Outside loops the compiler puts them in order; inside the body
of a loop, such as that over microbatches, it doesn't, and they run 10 to 40 times slower (JAX 0.10 and 0.12). Here the
order is explicit, by transpositions. The values are the same.

A product, or a convolution, by a matrix that is broadcast from fewer numbers (of zeros, of ones, a mean over positions written
as a product) reads beyond these where it is then added up: JAX 0.10 to 0.12 fuse the two into one call of YNNPACK, and what comes
out is made of whatever is in memory. What is such a matrix, the compiler finds out by simplifying: a comparison that is true
throughout, what a slice leaves of a concatenation, the first and only step of a loop. So every factor of every product stands
behind a barrier that it doesn't look through, which costs no model of benchmarks/clipping.py more than a twentieth. JAX 0.10
takes barriers in branches, and around what a program closes over, away too early: what can be told to be broadcast is made
anew besides.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._platform import default_platform
from ._convolutions import in_order, with_less_before
from ._evaluate import evaluate
from ._jaxpr import (
    BROADCAST,
    CONV,
    DOT_GENERAL,
    SCAN,
    SELECT,
    WHILE,
    Eqn,
    Jaxpr,
    JaxprParts,
    Literal,
    Var,
    all_equations,
    bind,
    in_context_of,
    is_divided,
    parts_of,
    rebuild_scan,
    replace_subjaxprs,
    scan_parts,
    subjaxprs,
    trace,
)
from ._turned import turned_before, with_turned


def for_cpus(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, arranged for a CPU where it will run on one."""
    if not default_platform().arranged:
        return fn(*args)
    jaxpr, out = trace(fn, *args)
    values = jax.tree.leaves(args)
    spread = [v for v, value in zip(parts_of(jaxpr).invars, values, strict=True) if _is_one_number(value)]
    return jax.tree.unflatten(jax.tree.structure(out), _run(jaxpr, values, spread, {}))


def _run(jaxpr: Jaxpr, args: Sequence[Any], spread: Iterable[Var], turned: Mapping[Var, jax.Array]) -> list[Any]:
    parts = parts_of(jaxpr)
    found = _spread(parts, spread)

    def arranged(eqn: Eqn, values: list[Any]) -> list[Any]:
        are_spread = [_among(found, v) for v in eqn.invars]
        if eqn.primitive not in (CONV, DOT_GENERAL):
            return _with_arranged_bodies(eqn, values, are_spread)
        eqn, values = with_turned(eqn, values, turned)
        values = [_hidden(_made(v) if one else v) for v, one in zip(values, are_spread, strict=True)]
        if eqn.primitive is not CONV:
            return bind(eqn, values)
        eqn, values[0] = with_less_before(eqn, values[0])
        return [in_order(eqn, *values)]

    return evaluate(parts, args, arranged)


def _with_arranged_bodies(eqn: Eqn, values: list[Any], are_spread: Sequence[bool]) -> list[Any]:
    if is_divided(eqn) or not any(map(_needs, subjaxprs(eqn))):
        return bind(eqn, values)
    within = lambda body: _spread_inside(eqn, body, are_spread)
    if turned := turned_before(eqn, values):
        return _looped(eqn, values, within(eqn.params["jaxpr"]), turned)
    return bind(replace_subjaxprs(eqn, lambda body, *args: _run(body, args, within(body), {})), values)


def _looped(eqn: Eqn, values: list[Any], spread: Iterable[Var], turned: Mapping[Var, jax.Array]) -> list[Any]:
    """A scan whose body reads what was transposed before it."""
    _, consts, carried = scan_parts(eqn)
    given, init, xs = values[:consts], values[consts : consts + carried], values[consts + carried :]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = _run(eqn.params["jaxpr"], [*given, *carry, *x], spread, turned)
        return outs[:carried], outs[carried:]

    with in_context_of(eqn):
        carry, ys = rebuild_scan(eqn, body, init, xs)
    return [*carry, *ys]


def _needs(jaxpr: Jaxpr) -> bool:
    """Whether it has a convolution or a product, or within it there is one."""
    return any(eqn.primitive in (CONV, DOT_GENERAL) for eqn in all_equations(jaxpr))


def _spread_inside(eqn: Eqn, body: Jaxpr, are_spread: Sequence[bool]) -> list[Var]:
    """The inputs of an equation's body that are broadcast; what a loop carries is so in its first step alone."""
    inside = parts_of(body).invars
    last = [*[False] * len(inside), *are_spread]  # of the equation's operands, which a body takes
    given = last[len(last) - len(inside) :]
    if eqn.primitive is SCAN:
        parts = scan_parts(eqn)
        carried = range(parts.num_consts, parts.num_consts + parts.num_carry)
    else:
        carried = range(eqn.params["body_nconsts"], len(inside)) if eqn.primitive is WHILE else range(0)
    return [v for i, (v, one) in enumerate(zip(inside, given, strict=True)) if one and i not in carried]


def _spread(jaxpr: JaxprParts, given: Iterable[Var]) -> set[Var]:
    """The variables that are broadcast from fewer numbers, or from one, as far as can be told: too many rather than too few."""
    found = set(given)
    known = zip(jaxpr.constvars, jaxpr.consts, strict=False)  # a kernel has its own where it runs
    found.update(v for v, value in known if _is_one_number(value))
    for eqn in jaxpr.eqns:
        read = eqn.invars[1:] if eqn.primitive is SELECT else eqn.invars  # of one number twice, whatever chooses
        larger = eqn.primitive is BROADCAST and eqn.outvars[0].aval.size > eqn.invars[0].aval.size
        if larger or (read and all(_among(found, v) for v in read)):
            found.update(eqn.outvars)
        for body in subjaxprs(eqn):
            inside, outs = parts_of(body), parts_of(body).outvars
            within = _spread(inside, _spread_inside(eqn, body, [_among(found, v) for v in eqn.invars]))
            if len(outs) == len(eqn.outvars):
                both = zip(eqn.outvars, outs, strict=True)
                found.update(out for out, v in both if isinstance(v, Literal) or v in within)
    return found


def _among(found: set[Var], atom: Any) -> bool:
    return isinstance(atom, Literal) or getattr(atom.aval, "size", 0) == 1 or atom in found


def _is_one_number(value: Any) -> bool:
    """Whether a constant is; what is traced may be anything."""
    if isinstance(value, Tracer) or not hasattr(value, "dtype") or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    if not getattr(value, "is_fully_addressable", True):
        return False
    numbers = np.asarray(value).ravel()
    return numbers.size > 0 and bool((numbers == numbers[0]).all())


def _made(matrix: jax.Array) -> jax.Array:
    """The same numbers, each by a comparison of where it stands with what is never reached."""
    if np.size(matrix) <= 1:
        return matrix
    axis = int(np.argmax(matrix.shape))
    place = jax.lax.broadcasted_iota(jnp.int32, matrix.shape, axis)
    return jnp.where(place & 2**30 == 0, matrix, matrix.dtype.type(0))


def _hidden(factor: jax.Array) -> jax.Array:
    return factor if np.size(factor) <= 1 else jax.lax.optimization_barrier(factor)
