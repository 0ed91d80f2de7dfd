"""Programs arranged for XLA's CPU compiler: convolutions that it has fast code for, products that it computes right.

Differentiation gives convolutions whose axes are permuted. Outside loops the compiler puts them in order; inside the body
of a loop, such as that over microbatches, it doesn't, and they run 10 to 40 times slower (JAX 0.10 and 0.12). Here the
order is explicit, by transpositions. The values are the same.

A product, or a convolution, by a matrix that is broadcast from fewer numbers (of zeros, of ones, a mean over positions written
as a product) reads beyond these where it is then added up: JAX 0.10 to 0.12 fuse the two into one call of YNNPACK, and what comes
out is made of whatever is in memory. What is such a matrix, the compiler finds out by simplifying: a comparison that is true
throughout, what a slice leaves of a concatenation, the first and only step of a loop. So every factor of every product stands
behind a barrier that it doesn't look through, which costs no model of benchmarks/clipping.py more than a twentieth.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .._platform import default_platform
from ._convolutions import in_order
from ._evaluate import evaluate
from ._jaxpr import CONV, DOT_GENERAL, Eqn, Jaxpr, bind, parts_of, replace_subjaxprs, subjaxprs, trace


def for_cpus(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, arranged for a CPU where it will run on one."""
    if not default_platform().arranged:
        return fn(*args)
    jaxpr, out = trace(fn, *args)
    return jax.tree.unflatten(jax.tree.structure(out), _run(jaxpr, jax.tree.leaves(args)))


def _run(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    return evaluate(parts_of(jaxpr), args, _arranged)


def _arranged(eqn: Eqn, values: list[Any]) -> list[Any]:
    if eqn.primitive not in (CONV, DOT_GENERAL):
        has_products = any(map(_has_products, subjaxprs(eqn)))
        return bind(replace_subjaxprs(eqn, _body) if has_products else eqn, values)
    values = [value if np.size(value) <= 1 else jax.lax.optimization_barrier(value) for value in values]
    return [in_order(eqn, *values)] if eqn.primitive is CONV else bind(eqn, values)


def _body(jaxpr: Jaxpr, *args: Any) -> list[Any]:
    return _run(jaxpr, args)


def _has_products(jaxpr: Jaxpr) -> bool:
    return any(
        eqn.primitive in (CONV, DOT_GENERAL) or any(map(_has_products, subjaxprs(eqn))) for eqn in parts_of(jaxpr).eqns
    )
