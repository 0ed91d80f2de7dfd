"""Keys that a loss makes of its example: by some generators, all examples of a batch would draw by the first one's.

Under `jax.vmap`, JAX's "rbg" and "unsafe_rbg" draw for all rows from the key of the first. Where keys follow from positions (the
losses' own `rng`) that is nothing to do with data; where they follow from an example, all others' gradients depend on it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from .. import _checks
from .._errors import UsageError
from ..jaxprs._jaxpr import SCAN, Eqn, Jaxpr, Literal, all_equations, parts_of, scan_parts, subjaxprs

_NO_DRAWS = ("random_seed", "random_wrap", "random_unwrap")  # of key and numbers into each other


def refuse_draws_of_examples(jaxpr: Jaxpr, of_example: Sequence[bool]) -> None:
    """Refuse a program that draws by a key of another generator than Threefry, if that follows from the example.

    Args:
        jaxpr: of the loss of one example, or its gradient.
        of_example: of each input, whether it is of the example.

    Raises:
        UsageError: where it does, as far as calls, loops and branches tell.
    """
    _followed(jaxpr, of_example)


def draw_by_the_first_key(eqns: Sequence[Eqn]) -> bool:
    """Whether any of these equations, vectorised, would draw for all rows from the first one's key."""
    inner = (each for eqn in eqns for body in subjaxprs(eqn) for each in all_equations(body))
    return any(_draws(eqn, [v for v in eqn.invars if _is_key(v)]) for eqn in (*eqns, *inner))


def _followed(jaxpr: Jaxpr, given: Sequence[bool]) -> list[bool]:
    """Whether each output follows from the inputs that are `given` as of the example."""
    parts = parts_of(jaxpr)
    found = {v for v, is_given in zip(parts.invars, given, strict=True) if is_given}
    among = lambda atom: not isinstance(atom, Literal) and atom in found
    for eqn in parts.eqns:
        inputs = [among(v) for v in eqn.invars]
        if any(inputs):
            _check(eqn, inputs)
            found.update(v for v, is_found in zip(eqn.outvars, _outputs(eqn, inputs), strict=True) if is_found)
    return [among(v) for v in parts.outvars]


def _check(eqn: Eqn, inputs: Sequence[bool]) -> None:
    keys = [v for v, is_found in zip(eqn.invars, inputs, strict=True) if is_found and _is_key(v)]
    if _draws(eqn, keys):
        raise UsageError(
            f"the loss draws by a key{f' of {keys[0].aval.dtype}' if keys else ''} that follows from the example: vectorised, "
            "all examples would draw by the first one's, and depend on it. Make it by jax.random.key(..., "
            f"impl={_checks.THREEFRY!r}), or take the loss's rng="
        )


def _draws(eqn: Eqn, keys: Sequence[Any]) -> bool:
    """Whether an equation draws by any of its keys by another generator than Threefry, or by bits of its own."""
    name = eqn.primitive.name
    others = any(key.aval.dtype != _of_threefry() for key in keys)
    return name == "rng_bit_generator" or (name.startswith("random_") and name not in _NO_DRAWS and others)


@functools.cache
def _of_threefry() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=_checks.THREEFRY)).dtype


def _is_key(atom: object) -> bool:
    return _checks.is_key(getattr(atom, "aval", None))


def _outputs(eqn: Eqn, inputs: Sequence[bool]) -> list[bool]:
    """Whether each output of an equation follows from its inputs that do, some of which do."""
    everything = [True] * len(eqn.outvars)
    bodies = subjaxprs(eqn)
    if eqn.primitive.name == "cond":
        outs = [_followed(body, inputs[1:]) for body in bodies]
        return everything if inputs[0] else [any(each) for each in zip(*outs, strict=True)]
    if len(bodies) != 1 or len(parts_of(bodies[0]).invars) != len(inputs):
        for body in bodies:
            _followed(body, [True] * len(parts_of(body).invars))
        return everything
    if eqn.primitive is not SCAN:
        outs = _followed(bodies[0], inputs)
        return outs if len(outs) == len(everything) else everything
    parts = scan_parts(eqn)
    carries, inside = slice(parts.num_consts, parts.num_consts + parts.num_carry), list(inputs)
    while True:
        outs = _followed(bodies[0], inside)
        carried = [a or b for a, b in zip(inside[carries], outs[: parts.num_carry], strict=True)]
        if carried == inside[carries]:
            return outs
        inside[carries] = carried
