"""A mesh with axes of type Explicit, of both types, and one whose axes divide different things: a process of its own, since
devices are counted where JAX starts."""

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


def clipped(w: Any, x: Any, *, microbatch_size: int | None, jitted: bool) -> Any:
    """What a loop of one's own takes."""
    loss = lambda w, x: jnp.sum(jnp.tanh(x @ w))
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=0.3, microbatch_size=microbatch_size)
    return (jax.jit(grad_fn) if jitted else grad_fn)(w, x)


def trained_on_long_rows(w: Any, x: Any) -> Any:
    """Of gradients that are formed; some rows are padding, so that some devices have norms out of float32's range."""
    run = jaxdp.DPSGD(num_examples=64, expected_batch_size=32, steps=1, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(lambda w, x: jnp.sum(jnp.tanh(x[:, None] * w) ** 2), optax.sgd(1.0), self_check=False)
    return step(step.init(w, jax.random.key(3)), x)[0].params


if __name__ == "__main__":
    both = (AxisType.Explicit, AxisType.Explicit)
    w, x = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32), X[:16]
    whole = clipped(w, x, microbatch_size=None, jitted=False)
    for kinds, of_w, of_x, size in product((both, KINDS), (P(), P(None, "model")), (P(), P("data")), (None, 3)):
        mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=kinds)
        on = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in ((w, of_w), (x, of_x))]
        found = clipped(*on, microbatch_size=size, jitted=of_w == of_x)
        np.testing.assert_allclose(
            np.asarray(found.grads), np.asarray(whole.grads), atol=1e-5, err_msg=f"{of_w} {of_x}"
        )
        np.testing.assert_allclose(np.asarray(found.norms), np.asarray(whole.norms), rtol=1e-5)
        assert found.grads.sharding.is_equivalent_to(on[0].sharding, 2), (found.grads.sharding, of_w)
    alone = np.asarray(trained(jnp.zeros(64)))
    for kinds, spec in product((KINDS, KINDS[::-1]), (P("data"), P("model"), P(("data", "model")))):
        mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=kinds)
        found = trained(jax.device_put(jnp.zeros(64), NamedSharding(mesh, spec)))
        np.testing.assert_allclose(np.asarray(found), alone, atol=1e-5, err_msg=f"{kinds} {spec}")
    w, x = jnp.full((300, 257), 0.01), np.random.default_rng(0).normal(size=(64, 300)).astype(np.float32)
    alone = np.asarray(trained_on_long_rows(w, x))
    mesh = jax.make_mesh((2, 2), ("model", "data"), axis_types=(AxisType.Auto, AxisType.Auto))
    on = [jax.device_put(each, NamedSharding(mesh, P(name))) for each, name in ((w, "model"), (x, "data"))]
    np.testing.assert_allclose(np.asarray(trained_on_long_rows(*on)), alone, atol=1e-5)
    print("the same on every mesh")
