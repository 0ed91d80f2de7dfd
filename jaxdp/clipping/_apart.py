"""Whether a vectorised program keeps its examples apart: none may see what another one has.

`jax.vmap` runs each primitive by its batching rule. JAX's own rules keep examples apart, but for one that iterates until the last
value of an array has converged, and those that hand a whole batch to somebody else: to Python, to a foreign function, to a rule
that the user has written, to a kernel of Pallas's with memory of its own. Of another library's primitives, and of those of
`jax.experimental.hijax`, nothing is known: Equinox's `unvmap_any` is the "any" of all examples together, and by it a check that
one of them fails fails for all.
"""

import functools
import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
from jax.extend.core import Primitive

from .._errors import UsageError
from .._platform import TPU, default_platform
from ..jaxprs._jaxpr import Eqn, Jaxpr, all_equations, parts_of, subjaxprs
from ._draws import refuse_draws_of_examples

_ONE_AT_A_TIME = ("sequential", "sequential_unrolled")
# JAX's own that goes on with every value of an array until the slowest has converged, which moves the others (JAX 0.10).
_TOGETHER = ("regularized_incomplete_beta",) if jax.__version_info__ < (0, 12) else ()
# A TPU's compiler hands all matrices of an array to one kernel (EighTpu, within svd, too). Whether that goes on with each of them
# until the slowest has converged can't be seen, and a rounding may turn a matrix's vectors, and so its gradient.
_TOGETHER_ON_TPUS = ("eigh", "svd")
# Of JAX's own those that it can't vectorise, or not over examples.
_NOT_VECTORISED = ("ragged_dot_general", "ragged_dot", "linear_call")
# Classes by which JAX computes `jax.numpy.searchsorted` and `nonzero`, and with them `interp`, `digitize` or `triu_indices`.
_OF_NUMPY = {"SearchSorted": "hijax", "Nonzero": "hijax", "Einsum": "hijax", "Ldexp": "ufuncs", "Frexp": "ufuncs"}
# Of the primitives with named axes, those by which no value gets from one copy to another.
_NAMES_AXES_ALONE = ("pvary",)
_OF_EQUINOX = (
    '; of Equinox\'s own checks (eqx.error_if, as Diffrax has them) take those that make NaN (on_error="nan", or the environment '
    "variable EQX_ON_ERROR=nan before Python starts)"
)


def refuse_what_sees_others(jaxpr: Jaxpr, of_example: Sequence[bool], in_turn: str | None) -> None:
    """Refuse a program that, vectorised, may let an example see others.

    Args:
        jaxpr: of the loss of one example, or its gradient, or of all that one copy computes.
        of_example: of each input, whether it is of the example.
        in_turn: what to do for examples to be computed one after another, where nothing is known of a primitive; None where
            they are.

    Raises:
        UsageError: naming what may.
    """
    for eqn in all_equations(jaxpr):
        _refuse_what_is_given_several(eqn)
    _refuse_what_is_exchanged(jaxpr, frozenset())
    others = foreign_primitives(jaxpr)
    if in_turn is not None and others:
        raise UsageError(
            f"the loss runs {', '.join(others)}, which JAX itself doesn't have, can't vectorise or computes for a whole array "
            f"at once, so that examples could see each other: compute it with jax.numpy, or {in_turn}"
        )
    refuse_draws_of_examples(jaxpr, of_example)


def foreign_primitives(jaxpr: Jaxpr) -> list[str]:
    """The names of those that a program runs and that aren't JAX's own, or don't keep examples apart, and of classes of
    `jax.experimental.hijax` that a user has written.
    """
    together = (*_TOGETHER, *_NOT_VECTORISED, *(_TOGETHER_ON_TPUS if default_platform() is TPU else ()))
    is_foreign = lambda eqn: (
        _is_hijax(eqn)
        or eqn.primitive.name in together
        or not _is_jaxs_own(eqn.primitive)
        or (eqn.primitive.name == "pallas_call" and _has_scratch(eqn))
    )
    name_of = lambda eqn: type(eqn.params["_prim"]).__name__ if _is_hijax(eqn) else eqn.primitive.name
    return sorted({name_of(eqn) for eqn in all_equations(jaxpr) if is_foreign(eqn)})


def _is_hijax(eqn: Eqn) -> bool:
    """Whether an equation runs a class of `jax.experimental.hijax`, of which no jaxpr says what it does, but for JAX's own."""
    return "_prim" in eqn.params and type(eqn.params["_prim"]) not in _written_with_hijax()


@functools.cache
def _written_with_hijax() -> frozenset[type]:
    """The classes behind functions of `jax.numpy`, as JAX 0.12 has them; they work on each example by itself."""
    named = [(sys.modules.get(f"jax._src.numpy.{module}"), name) for name, module in _OF_NUMPY.items()]
    return frozenset(found for module, name in named if (found := getattr(module, name, None)) is not None)


def _has_scratch(kernel: Eqn) -> bool:
    """Whether a Pallas kernel has memory of its own, in which it may keep for an example what it saw of the one before.

    Vectorised, it runs over all of them in one go. That it clears its memory for each can't be seen.
    """
    within = any(eqn.primitive.name == "run_scoped" for body in subjaxprs(kernel) for eqn in all_equations(body))
    return within or getattr(kernel.params.get("grid_mapping"), "num_scratch_operands", 1) > 0


@functools.cache
def _is_jaxs_own(primitive: Primitive) -> bool:
    """Whether one of JAX's modules has it by name."""
    modules = [module for name, module in list(sys.modules.items()) if name.split(".", 1)[0] == "jax"]
    return any(value is primitive for module in modules for value in list(vars(module).values()))


def _refuse_what_is_exchanged(jaxpr: Jaxpr, own_axes: frozenset[Any]) -> None:
    """Refuse collectives over axes that aren't the loss's own: JAX tells of some by an effect, and of `ppermute` by nothing."""
    for eqn in parts_of(jaxpr).eqns:
        given = (eqn.params.get("axis_name", ()), eqn.params.get("axes", ()))
        names = {name for each in given for name in (each if isinstance(each, tuple | list) else (each,))}
        outer = {name for name in names if not isinstance(name, Integral)} - own_axes
        if outer and eqn.primitive.name not in _NAMES_AXES_ALONE:
            raise UsageError(
                f"the loss runs {eqn.primitive.name} over {', '.join(sorted(map(repr, outer)))}, an axis of copies or devices "
                "around it, by which an example gets what others have: compute it from one example alone"
            )
        within = frozenset(eqn.params.get("newly_manual_axes", ()))
        for inner in subjaxprs(eqn):
            _refuse_what_is_exchanged(inner, own_axes | within)


def _refuse_what_is_given_several(eqn: Eqn) -> None:
    name = eqn.primitive.name
    if ("callback" in name or name == "ffi_call") and eqn.params.get("vmap_method") not in _ONE_AT_A_TIME:
        calls = "calls a foreign function" if name == "ffi_call" else "calls back into Python"
        raise UsageError(
            f"the loss {calls} with several examples at once, and what it makes of them there can't be seen: compute it with "
            "jax.numpy, or before, as a part of the data; jax.pure_callback or jax.ffi.ffi_call with "
            f"vmap_method='sequential' gets one example at a time{_OF_EQUINOX if 'equinox' in sys.modules else ''}"
        )
    if name == "custom_vmap_call":
        raise UsageError(
            "the loss has a function with a batching rule of its own (jax.custom_batching.custom_vmap), by which examples "
            "could see each other: call the function without it, which jaxdp vectorises"
        )
