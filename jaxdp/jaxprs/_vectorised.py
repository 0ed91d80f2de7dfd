"""`jax.vmap` whose convolutions keep examples apart, whatever numbers these have.

Where both operands of a convolution are an example's own, as in every gradient of a kernel, `jax.vmap` makes one convolution of
as many groups as there are examples. XLA's CPU compiler has none for many of those, as where the kernel had groups itself, or
of float64: it makes one large kernel, which holds zeros where an example meets another one's input. Zero times NaN, or infinity,
is NaN: one example that isn't finite, masked or not, would make all others' gradients NaN (JAX 0.10 and 0.12). There, such a
convolution is computed for one example after another. On other devices that is done where the kernel has groups itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._errors import UsageError
from .._platform import CPU, default_platform
from ._evaluate import evaluate
from ._jaxpr import CONV, Eqn, Jaxpr, all_equations, bind, is_divided, parts_of, replace_subjaxprs, subjaxprs, trace


def vectorised(fn: Callable[..., Any], *args: Any) -> Any:
    """`jax.vmap(fn)(*args)`, over the first axis of each leaf; `fn` is differentiated no more."""

    def of_one(*own: Any) -> Any:
        jaxpr, out = trace(fn, *own)
        return jax.tree.unflatten(jax.tree.structure(out), _run(jaxpr, jax.tree.leaves(own)))

    return jax.vmap(of_one)(*args)


def _run(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    def apart(eqn: Eqn, values: list[Any]) -> list[Any]:
        if _is_to_map(eqn):
            return [_convolution(eqn)(*values)]
        if any(_is_to_map(inner) for body in subjaxprs(eqn) for inner in all_equations(body)):
            if is_divided(eqn):
                raise UsageError(
                    "the loss has a convolution within jax.shard_map, where it can't be computed for one example after another, "
                    "as it has to be for numbers that aren't finite to stay apart: take it out of shard_map; under jax.jit "
                    "devices divide it as its arrays are divided"
                )
            return bind(replace_subjaxprs(eqn, lambda body, *args: _run(body, args)), values)
        return bind(eqn, values)

    return evaluate(parts_of(jaxpr), args, apart)


def _convolution(eqn: Eqn) -> Callable[[jax.Array, jax.Array], jax.Array]:
    convolution = jax.custom_batching.custom_vmap(lambda inputs, kernel: bind(eqn, [inputs, kernel])[0])

    @convolution.def_vmap
    def _(size: int, batched: Sequence[bool], inputs: jax.Array, kernel: jax.Array) -> tuple[jax.Array, bool]:
        if all(batched):
            return jax.lax.map(lambda both: convolution(*both), (inputs, kernel)), True
        axes = tuple(0 if one else None for one in batched)
        return jax.vmap(lambda *both: bind(eqn, list(both))[0], in_axes=axes)(inputs, kernel), True

    return convolution


def _is_to_map(eqn: Eqn) -> bool:
    """Whether it is a convolution whose groups, once it is vectorised, a compiler may not have."""
    if eqn.primitive is not CONV:
        return False
    return default_platform() is CPU or eqn.params["feature_group_count"] > 1 or eqn.params["batch_group_count"] > 1
