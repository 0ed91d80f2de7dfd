"""Programs arranged for XLA's CPU compiler: convolutions that it has fast code for, products that it computes right.

Differentiation gives convolutions whose axes are permuted. Outside loops the compiler puts them in order; inside the body
of a loop, such as that over microbatches, it doesn't, and they run 10 to 40 times slower (JAX 0.10 and 0.12). Here the
order is explicit, by transpositions. The values are the same.

A product with a matrix whose entries are all one number (of zeros, of ones, a mean over positions written as a product) that is
then added up reads beyond that number: JAX 0.10 to 0.12 fuse the two into one call of YNNPACK, and what comes out is made of
whatever is in memory. Such a matrix is made of numbers here of which the compiler can't see that they are all one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._platform import default_platform
from ._convolutions import in_order
from ._evaluate import evaluate
from ._jaxpr import (
    CONV,
    DOT_GENERAL,
    IOTA,
    SCAN,
    SELECT,
    WHILE,
    Eqn,
    Jaxpr,
    JaxprParts,
    Literal,
    Var,
    bind,
    parts_of,
    replace_subjaxprs,
    scan_parts,
    subjaxprs,
    trace,
)


def for_cpus(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, arranged for a CPU where it will run on one."""
    if not default_platform().ordered_convolutions:
        return fn(*args)
    jaxpr, out = trace(fn, *args)
    values = jax.tree.leaves(args)
    uniform = [v for v, value in zip(parts_of(jaxpr).invars, values, strict=True) if _is_one_number(value)]
    return jax.tree.unflatten(jax.tree.structure(out), _run(jaxpr, values, uniform))


def _run(jaxpr: Jaxpr, args: Sequence[Any], uniform: Iterable[Var]) -> list[Any]:
    parts = parts_of(jaxpr)
    found = _uniform(parts, uniform)

    def arranged(eqn: Eqn, values: list[Any]) -> list[Any]:
        if eqn.primitive is CONV:
            return [in_order(eqn, *values)]
        are_uniform = [_among(found, v) for v in eqn.invars]
        if eqn.primitive is DOT_GENERAL:
            return bind(eqn, [_made(v) if one else v for v, one in zip(values, are_uniform, strict=True)])
        return bind(_with_arranged_bodies(eqn, are_uniform), values)

    return evaluate(parts, args, arranged)


def _with_arranged_bodies(eqn: Eqn, are_uniform: Sequence[bool]) -> Eqn:
    bodies = subjaxprs(eqn)
    if not any(_needs(body, _uniform_inside(eqn, body, are_uniform)) for body in bodies):
        return eqn
    return replace_subjaxprs(eqn, lambda body, *args: _run(body, args, _uniform_inside(eqn, body, are_uniform)))


def _needs(jaxpr: Jaxpr, uniform: Iterable[Var]) -> bool:
    """Whether it has a convolution, or a product with a matrix that may be one number, or within it there is one."""
    parts = parts_of(jaxpr)
    found = _uniform(parts, uniform)
    for eqn in parts.eqns:
        are_uniform = [_among(found, v) for v in eqn.invars]
        if eqn.primitive is CONV or (eqn.primitive is DOT_GENERAL and any(are_uniform)):
            return True
        if any(_needs(body, _uniform_inside(eqn, body, are_uniform)) for body in subjaxprs(eqn)):
            return True
    return False


def _uniform_inside(eqn: Eqn, body: Jaxpr, are_uniform: Sequence[bool]) -> list[Var]:
    """The inputs of an equation's body that are one number; what a loop carries is others after its first step."""
    inside = parts_of(body).invars
    given = (
        [*[False] * len(inside), *are_uniform][-len(inside) :] if inside else []
    )  # a body takes an equation's last operands
    if eqn.primitive is SCAN:
        parts = scan_parts(eqn)
        carried = range(parts.num_consts, parts.num_consts + parts.num_carry)
    else:
        carried = range(len(inside)) if eqn.primitive is WHILE else range(0)
    return [v for i, (v, one) in enumerate(zip(inside, given, strict=True)) if one and i not in carried]


def _uniform(jaxpr: JaxprParts, given: Iterable[Var]) -> set[Var]:
    """The variables that are one number, broadcast, as far as shapes and constants tell: too many rather than too few."""
    found = set(given)
    found.update(v for v, value in zip(jaxpr.constvars, jaxpr.consts, strict=True) if _is_one_number(value))
    for eqn in jaxpr.eqns:
        read = eqn.invars[1:] if eqn.primitive is SELECT else eqn.invars  # of one number twice, whatever chooses
        if read and all(_among(found, v) for v in read) and eqn.primitive is not IOTA:
            found.update(eqn.outvars)
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
    if matrix.size <= 1:
        return matrix
    axis = int(np.argmax(matrix.shape))
    place = jax.lax.broadcasted_iota(jnp.int32, matrix.shape, axis)
    return jnp.where(place & 2**30 == 0, matrix, 0)
