r"""One value for all who read it.

A compiler computes again, for each reader, what is cheap, and may round it otherwise there: \(ab - cd\) once less where a
processor multiplies and adds at once. Where the products cancel, it is zero for one reader, and for the other the rounding error
of a product, which nothing bounds: a norm of zero, and a gradient that is added up. A TPU's compiler has no such instruction for
v5e and 7x (it writes vmul.f32, vmul.f32, vsub.f32): there a float32 number is the same however often it is computed.
"""

from typing import Any

import jax
import jax.numpy as jnp

_CPU_KEEPS_BARRIERS = jax.__version_info__ >= (0, 12)  # 0.10 drops them before it fuses; 0.11 has not been looked at


def as_one_value(values: Any, *, rounded_alike: bool = False) -> Any:
    """The same arrays, each computed once, whoever reads it.

    Args:
        values: pytree of arrays.
        rounded_alike: whether they are computed in float32 alone, and so need nothing on a TPU, where it costs a pass over them.
    """
    of_cpus = {} if _CPU_KEEPS_BARRIERS else {"cpu": _through_branches}
    of_tpus = {"tpu": lambda values: values} if rounded_alike else {}
    return jax.lax.platform_dependent(values, **of_cpus, **of_tpus, default=jax.lax.optimization_barrier)


def _through_branches(values: Any) -> Any:
    """Through a branch each, into which nothing is fused, and that is taken whatever the values are: no square is 2 modulo 4."""
    return jax.tree.map(lambda leaf: _through_a_branch(leaf) if leaf.size else leaf, values)


@jax.custom_jvp
def _through_a_branch(leaf: jax.Array) -> jax.Array:
    return _hidden(leaf)


_through_a_branch.defjvp(lambda primals, tangents: (_through_a_branch(*primals), *tangents))


@jax.custom_batching.custom_vmap
def _hidden(leaf: jax.Array) -> jax.Array:
    first = leaf[(0,) * leaf.ndim].astype(jnp.float32).view(jnp.uint32)
    return jax.lax.cond(first * first % 4 == 2, jnp.zeros_like, lambda leaf: leaf, jax.lax.optimization_barrier(leaf))


@_hidden.def_vmap
def _(size: int, batched: list[bool], leaf: jax.Array) -> tuple[jax.Array, bool]:
    del size  # one branch for all: a predicate for each would become a selection, and fuse
    return _hidden(leaf), batched[0]
