"""One key for several values: `jax.vmap` or `jax.shard_map` over what adds noise, with a key that all copies share.

Every copy would get the same noise, and their difference none. What is batched, and what varies over a mesh axis, JAX tells by
names that it doesn't promise to keep; they are read here and nowhere else.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .. import _checks
from .._errors import UsageError

_T = TypeVar("_T")


def refuse_shared_key(randomness: Any, values: Any, carried: _T) -> _T:
    """`carried` as it is, where no two copies of `values` would get one noise.

    A loop over one key and `shard_map` with `check_vma=False` can't be seen. Where a branch that only some of the copies take has
    one key for each of them, which are the same, the floats of `carried` are NaN.

    Args:
        randomness: what tells the noise of one copy from another's: keys, numbers of steps.
        values: what the noise is to hide.
        carried: something that the noise or its sum is computed from, so that the question stays in the program.

    Raises:
        UsageError: where `values` are batched by `jax.vmap`, or vary over an axis of `jax.shard_map`, and `randomness` doesn't.
    """
    randomness = jax.tree.map(_checks.words, randomness)
    values = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]  # no other can be batched
    axes = varying_axes(values) - varying_axes(randomness)
    if axes:
        raise _shared("shard_map over " + ", ".join(map(repr, sorted(map(str, axes)))))
    return _passed(randomness, jax.lax.stop_gradient(values), carried)


def varying_axes(tree: Any) -> frozenset[Any]:
    """The axes of `jax.shard_map`, with `check_vma`, over which any array of a pytree may differ from device to device."""
    kinds = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    manual = [getattr(kind, "manual_axis_type", None) for kind in kinds]
    axes = [getattr(kind, "vma", ()) if of is None else of.varying for kind, of in zip(kinds, manual, strict=True)]
    return frozenset().union(*axes)


@jax.custom_batching.custom_vmap
def _passed(randomness: Any, values: Any, carried: Any) -> Any:
    del randomness, values
    return carried


@_passed.def_vmap
def _under_vmap(axis_size: int, batched: Any, randomness: Any, values: Any, carried: Any) -> tuple[Any, Any]:
    del axis_size
    of_randomness, of_values, of_carried = batched
    if any(jax.tree.leaves(of_values)) and not any(jax.tree.leaves(of_randomness)):
        raise _shared("vmap")
    if any(jax.tree.leaves(of_values)):
        words = [
            leaf for leaf, is_own in zip(*map(jax.tree.leaves, (randomness, of_randomness)), strict=True) if is_own
        ]
        is_shared, is_float = _any_are_alike(words), lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
        carried = jax.tree.map(lambda leaf: jnp.where(is_shared, jnp.nan, leaf) if is_float(leaf) else leaf, carried)
    return _passed(randomness, values, carried), of_carried  # the question stays for a vmap around this one


def _any_are_alike(words: list[jax.Array]) -> jax.Array:
    """Whether any two rows are the same in all arrays."""
    columns = jnp.concatenate([leaf.reshape(leaf.shape[0], -1).astype(jnp.uint32) for leaf in words], axis=1).T
    mesh = jax.typeof(columns).sharding.mesh
    if AxisType.Explicit in mesh.axis_types:  # where what is divided is not sorted
        columns = jax.sharding.reshard(columns, NamedSharding(mesh, PartitionSpec()))
    ordered = columns[:, jnp.lexsort(columns)]
    return jnp.any(jnp.all(ordered[:, 1:] == ordered[:, :-1], axis=0))


def _shared(transformation: str) -> UsageError:
    return UsageError(
        f"key: {transformation} gives each copy values of its own and all of them one key, so the same noise, and their "
        "difference has none: map over keys as well, such as jax.random.split(key, copies), or add noise outside of it"
    )
