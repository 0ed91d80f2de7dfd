"""A mesh with axes of both types, Explicit and Auto: a process of its own, since devices are counted where JAX starts."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import jaxdp

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
RUN = jaxdp.DPSGD(num_examples=64, expected_batch_size=8, steps=2, clip_norm=1.0, noise_multiplier=1.0)
KINDS = (AxisType.Explicit, AxisType.Auto)


def trained(w: Any) -> Any:
    step = RUN.make_step(lambda w, x: w[:4] @ x, optax.sgd(1.0), self_check=False)
    state = step.init(w, jax.random.key(5))
    for _ in range(RUN.steps):
        state, _ = step(state, X)
    return state.params


if __name__ == "__main__":
    alone = np.asarray(trained(jnp.zeros(64)))
    for kinds, spec in product((KINDS, KINDS[::-1]), (P("data"), P("model"), P(("data", "model")))):
        mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=kinds)
        found = trained(jax.device_put(jnp.zeros(64), NamedSharding(mesh, spec)))
        np.testing.assert_allclose(np.asarray(found), alone, atol=1e-5, err_msg=f"{kinds} {spec}")
    print("the same on every mesh")
