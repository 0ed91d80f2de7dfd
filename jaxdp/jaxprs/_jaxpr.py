"""Reading and re-running JAX's intermediate language. The one module that touches JAX's private or unstable names.

A jaxpr is a list of equations, each one primitive applied to variables. Primitives are compared by identity, never by
name: names change between releases ("pjit" became "jit") and a user's own primitive may carry any.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax._src import source_info_util
from jax._src.lax import lax
from jax.extend import core
from jax.extend.core import primitives as p

Jaxpr = Any  # open or closed, as the two differ between releases of JAX; `parts_of` gives the parts
Eqn = Any  # a JaxprEqn; JAX declares less of it than it has
Var = Any  # a jaxpr's variable, likewise
Literal = core.Literal

INLINED = frozenset({p.jit_p, p.closed_call_p, p.call_p})
SCAN, REMAT, WHILE = p.scan_p, p.remat_p, p.while_p
DOT_GENERAL, CONV, GATHER = p.dot_general_p, p.conv_general_dilated_p, p.gather_p
STOP_GRADIENT = p.stop_gradient_p
MUL, DIV, SUB, NEG, SELECT, SUM = p.mul_p, p.div_p, p.sub_p, p.neg_p, p.select_n_p, p.reduce_sum_p
ADDITIONS = frozenset({p.add_p, p.sub_p, p.add_jaxvals_p})
ARITHMETIC = frozenset({p.add_p, p.sub_p, p.mul_p, p.div_p})
PRODUCTS = frozenset(
    {p.mul_p, getattr(lax, "one_minus_square_p", p.mul_p)}
)  # the latter of a tangent, in the newer releases
CAST, BROADCAST, RESHAPE, TRANSPOSE = p.convert_element_type_p, p.broadcast_in_dim_p, p.reshape_p, p.transpose_p
SQUEEZE, REVERSE, CONCATENATE = p.squeeze_p, p.rev_p, p.concatenate_p
SAME = frozenset(
    {p.copy_p, p.name_p, p.sharding_constraint_p, lax.optimization_barrier_p}
)  # of one operand: its values
SLICE, DYNAMIC_SLICE, SPLIT = p.slice_p, p.dynamic_slice_p, lax.split_p
STACK, UNSTACK = getattr(lax, "stack_p", None), getattr(lax, "unstack_p", None)  # of the newer releases


class JaxprParts(NamedTuple):
    """A jaxpr's equations and variables, with the values of its constants."""

    eqns: Sequence[Eqn]
    constvars: Sequence[Var]
    invars: Sequence[Var]
    outvars: Sequence[Any]
    consts: Sequence[Any]


class ScanParts(NamedTuple):
    """How the operands of a scan divide, and what its body is."""

    body: JaxprParts
    num_consts: int
    num_carry: int


def parts_of(jaxpr: Jaxpr) -> JaxprParts:
    """The parts of an open or closed jaxpr."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return JaxprParts(inner.eqns, inner.constvars, inner.invars, inner.outvars, getattr(jaxpr, "consts", ()))


def trace(fn: Callable[..., Any], *args: Any) -> tuple[Jaxpr, Any]:
    """The jaxpr of `fn` at arguments or their shapes, and its outputs' shapes and types."""
    jaxpr, out = jax.make_jaxpr(fn, return_shape=True)(*args)
    return jaxpr, out


def inner_jaxpr(eqn: Eqn) -> Jaxpr:
    """The jaxpr that a call-like equation (jit, remat) runs."""
    return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]


def scan_parts(eqn: Eqn) -> ScanParts:
    """The body of a scan equation and how its operands divide into constants, carry and scanned inputs."""
    if "num_consts" in eqn.params:
        consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    else:  # since JAX 0.12
        consts, carry, _ = (len(part) for part in eqn.params["ft_in"].unpack())
    return ScanParts(parts_of(eqn.params["jaxpr"]), consts, carry)


def rebuild_scan(eqn: Eqn, body: Callable[..., Any], init: Any, xs: Any) -> Any:
    """`jax.lax.scan` over `body` with the settings of a scan equation."""
    keep = {
        name: eqn.params[name] for name in ("length", "reverse", "unroll", "_split_transpose") if name in eqn.params
    }
    return jax.lax.scan(body, init, xs, **keep)


def rebuild_remat(eqn: Eqn, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.checkpoint` of `fn` with the settings of a remat equation."""
    return jax.checkpoint(fn, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"])


def bind(eqn: Eqn, args: Sequence[Any]) -> list[Any]:
    """The outputs of an equation for other values of its operands."""
    with in_context_of(eqn):
        out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def bind_in_float32(eqn: Eqn, args: Sequence[Any], precision: jax.lax.Precision = jax.lax.Precision.HIGHEST) -> Any:
    """The output of an equation linear in a parameter for float32 operands, at the highest precision or another."""
    params = dict(eqn.params)
    if "precision" in params:
        params["precision"] = (precision,) * 2
    if "preferred_element_type" in params:
        params["preferred_element_type"] = jnp.dtype("float32")
    return eqn.primitive.bind(*args, **params)


def subjaxprs(eqn: Eqn) -> list[Jaxpr]:
    """The jaxprs that an equation runs: of calls, loops and branches."""
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if _is_jaxpr(value)]


def is_divided(eqn: Eqn) -> bool:
    """Whether an equation's jaxpr is what each device of a mesh computes, which without the mesh can't be traced (shard_map)."""
    return "mesh" in eqn.params


def all_equations(jaxpr: Jaxpr) -> Iterator[Eqn]:
    """Those of a jaxpr, and of all that it runs."""
    for eqn in parts_of(jaxpr).eqns:
        yield eqn
        for inner in subjaxprs(eqn):
            yield from all_equations(inner)


def replace_subjaxprs(eqn: Eqn, run: Callable[..., Sequence[Any]]) -> Eqn:
    """The equation with each of its jaxprs replaced by the trace of `run(jaxpr, *args)`, of the same inputs and outputs."""

    def traced(jaxpr: Jaxpr) -> Jaxpr:
        new, _ = trace(lambda *args: list(run(jaxpr, *args)), *(_shape(v) for v in parts_of(jaxpr).invars))
        return new if hasattr(jaxpr, "jaxpr") else new.jaxpr

    def replaced(value: Any) -> Any:
        if isinstance(value, tuple) and any(_is_jaxpr(v) for v in value):
            parts = [replaced(v) for v in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return traced(value) if _is_jaxpr(value) else value

    return eqn.replace(params={name: replaced(value) for name, value in eqn.params.items()})


def in_context_of(eqn: Eqn) -> AbstractContextManager[Any]:
    """A context in which new equations carry the user's source line, and the compute settings, of an old one."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    return _Both(source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager)


def known_operands(jaxpr: Jaxpr) -> Iterator[tuple[Any, Any]]:
    """Each operand that is known before anything runs, with its equation's primitive, bodies of calls and loops included."""
    parts = parts_of(jaxpr)
    known = dict(zip(parts.constvars, parts.consts, strict=False))
    for eqn in parts.eqns:
        for atom in eqn.invars:
            if isinstance(atom, Literal):
                yield eqn.primitive, atom.val
            elif atom in known:
                yield eqn.primitive, known[atom]
        for body in subjaxprs(eqn):
            yield from known_operands(body)


def has_its_own_gradient(eqn: Eqn) -> bool:
    """Whether an equation, or one that it runs, has a gradient of its own (`jax.custom_vjp`), of which jaxprs say nothing."""
    inside = (inner for body in subjaxprs(eqn) for inner in all_equations(body))
    return any(each.primitive.name.startswith("custom_vjp") for each in (eqn, *inside))


def is_cast(eqn: Eqn) -> bool:
    """Whether an equation changes the type of its operand and nothing else."""
    return eqn.primitive is CAST


def is_sum(eqn: Eqn, axes: tuple[int, ...]) -> bool:
    """Whether an equation adds up its operand over `axes`."""
    return eqn.primitive is p.reduce_sum_p and tuple(sorted(eqn.params["axes"])) == axes


def clamps_indices(gather: Eqn) -> bool:
    """Whether a gather moves indices that are out of bounds to the nearest bound."""
    return gather.params["mode"] == jax.lax.GatherScatterMode.CLIP


def source_line(eqn: Eqn) -> str:
    """Where in the user's source an equation was written: "file:line (function)"."""
    return source_info_util.summarize(eqn.source_info)


def _is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr, open or closed."""
    return isinstance(getattr(value, "jaxpr", value), core.Jaxpr)


def _shape(var: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=getattr(var.aval, "weak_type", False))


class _Both(AbstractContextManager[None]):
    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
