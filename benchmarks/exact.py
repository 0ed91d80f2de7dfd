"""The clipped gradient sum as everyone should have it: example by example, in float64, without any library of privacy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from canonical import canonical
from workloads import Workload


class Exact(NamedTuple):
    """What answers are compared with, as canonical arrays by name.

    Attributes:
        clipped: the sum of the examples' gradients, each scaled to the clip norm at most.
        plain: the sum of the gradients.
        plain_float32: the same in float32, as JAX rounds it.
    """

    clipped: dict[str, np.ndarray]
    plain: dict[str, np.ndarray]
    plain_float32: dict[str, np.ndarray]


def exact(workload: Workload, clip_norm: float) -> Exact:
    """The sums for a workload."""
    total = jax.jit(jax.grad(lambda params, batch: jnp.sum(jax.vmap(workload.loss, (None, 0))(params, batch))))
    rounded = total(workload.params, workload.batch)
    with jax.enable_x64(True):
        params, batch = jax.tree.map(_double, (workload.params, workload.batch))
        clipped, plain = _sums(workload.loss, params, batch, clip_norm)
    return Exact(canonical(clipped), canonical(plain), canonical(rounded))


def difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The relative distance of two gradients in the 2-norm, in float64; infinite where they have other leaves."""
    if set(found) != set(expected) or any(found[name].shape != expected[name].shape for name in expected):
        return float("inf")
    square = lambda leaf: float(np.sum(np.square(leaf.astype(np.float64))))
    apart = sum(square(found[name].astype(np.float64) - expected[name]) for name in expected)
    return (apart / sum(square(leaf) for leaf in expected.values())) ** 0.5


def _double(leaf: Any) -> Any:
    return jnp.asarray(leaf, jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.asarray(leaf)


def _sums(loss: Any, params: Any, batch: Any, clip_norm: float) -> tuple[Any, Any]:
    @jax.jit
    def add(sums: Any, params: Any, example: Any) -> Any:
        gradient = jax.grad(loss)(params, example)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
        weights = jnp.minimum(1, clip_norm / norm), jnp.ones(())
        return tuple(
            jax.tree.map(lambda so_far, leaf, w=w: so_far + w * leaf, total, gradient)
            for total, w in zip(sums, weights, strict=True)
        )

    sums = (jax.tree.map(jnp.zeros_like, params),) * 2
    for row in range(jax.tree.leaves(batch)[0].shape[0]):
        sums = add(sums, params, jax.tree.map(lambda leaf, row=row: leaf[row], batch))
    return jax.tree.map(np.asarray, sums)
