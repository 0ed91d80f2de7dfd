"""What goes to the loss beside the batch: numbers, strings and functions stay what they are under every method."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp.clipping._static import Static, make_static, unmake_static

PARAMS, BATCH = {"w": jnp.arange(3.0)}, np.ones((4, 3), np.float32)
SHARED = (3, True, "scaled", jnp.tanh, {"scale": 2.0, "offset": None}, np.full(2, 0.5, np.float32))


def loss(params: Any, x: Any, width: Any, flag: Any, name: Any, activation: Any, settings: Any, weights: Any) -> Any:
    y = activation(x * params["w"]) + jnp.zeros(width)
    if flag and name == "scaled" and settings["scale"] > 1:
        y = y * jnp.asarray(settings["scale"], jnp.float32)
    return jnp.sum(y) * jnp.sum(weights)


@pytest.mark.slow
def test_numbers_strings_and_functions_are_shared_alike_by_every_method() -> None:
    expected = jaxdp.per_example_grads(loss)(PARAMS, BATCH, *SHARED)["w"]
    for method in ("auto", "ghost", "vmap"):
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=1e6, method=method)
        out = jax.jit(lambda params, batch, grad_fn=grad_fn: grad_fn(params, batch, *SHARED))(PARAMS, BATCH)
        np.testing.assert_allclose(out.grads["w"], expected.sum(0), rtol=1e-6)
        assert grad_fn.explain(PARAMS, BATCH, *SHARED).leaves


@pytest.mark.slow
def test_a_step_shares_them_too_and_compiles_once_for_each_value() -> None:
    run = jaxdp.DPSGD(num_examples=4, expected_batch_size=4, steps=9, clip_norm=1.0, noise_multiplier=1.0)
    step = run.make_step(loss, optax.sgd(0.1))
    state = step.init(PARAMS, jax.random.key(0))
    for flag, programs in ((True, 1), (True, 1), (False, 2), (True, 2)):
        state, _ = step(state, BATCH, 3, flag, *SHARED[2:])
        assert step._compiled._cache_size() == programs


def test_static_leaves_are_equal_where_type_and_value_are() -> None:
    values = [0, False, 0.0, -0.0, "0", 1, True, 1.0, np.float32(1), 1j, float("nan"), jnp.tanh, len]
    for i, one in enumerate(values):
        assert [Static(one) == Static(other) for other in values] == [i == j for j in range(len(values))]
        assert hash(Static(one)) == hash(Static(one))


def test_what_is_closed_twice_is_opened_at_once_and_arrays_stay() -> None:
    twice = make_static(make_static(SHARED))
    assert [type(leaf) for leaf in jax.tree.leaves(twice)] == [np.ndarray]
    assert jax.tree.structure(unmake_static(twice)) == jax.tree.structure(SHARED)
    assert unmake_static(twice)[:4] == SHARED[:4]


def test_what_can_not_be_told_from_another_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match=r"shared\[0\] is a set, which is no array and can't be hashed"):
        jaxdp.clipped_grad(lambda params, x, names: params["w"] @ x, clip_norm=1.0)(PARAMS, BATCH, {"a"})
