"""What clipping needs in memory and in compilation, by XLA's own account of the compiled programs."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from models_to_clip import MODELS
from oracle import distance, loop

import jaxdp
from jaxdp._platform import compiling_for
from jaxdp.clipping._reducer import gather_drawn
from jaxdp.jaxprs._jaxpr import SCAN, all_equations
from jaxdp.sampling import Draw

ROWS = 64


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def temporary_bytes(fn: Any, *args: Any) -> int:
    analysis = jax.jit(fn).lower(*args).compile().memory_analysis()
    assert analysis is not None
    return analysis.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "siamese_net",
        "recommender",
        "tied_embedding_language_model",
        "linen_lstm",
        "linen_scanned_transformer",
    ],
)
def test_no_gradient_is_materialised_beyond_what_explain_says(name: str) -> None:
    loss, params, batch = MODELS[name]()
    batch = jax.tree.map(lambda leaf: jnp.concatenate([leaf] * (ROWS // 6 + 1))[:ROWS], batch)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost")
    leaves = grad_fn.explain(params, batch).leaves
    assert all(leaf.how != "materialised" for leaf in leaves)
    # An LSTM's four kernels are one matrix where they are used, and are held as one.
    joined = 4 if name == "linen_lstm" else 1
    largest = joined * max(leaf.size for leaf in jax.tree.leaves(params))
    assert max(leaf.floats for leaf in leaves) <= largest
    plain = temporary_bytes(lambda p, b: jax.grad(lambda p: jnp.sum(jax.vmap(loss, (None, 0))(p, b)))(p), params, batch)
    assert temporary_bytes(grad_fn, params, batch) <= 2 * plain + 4 * ROWS * largest


@pytest.mark.slow
def test_frozen_parameters_are_neither_computed_with_while_compiling_nor_held_twice() -> None:
    frozen = {"w": jnp.ones((2000, 2000)), "out": jnp.ones((2000, 2000))}  # 32 MB
    params = {"a": jnp.ones((2000, 4)), "b": jnp.zeros((4, 2000))}

    def with_argument(params: Any, x: Any, frozen: Any) -> Any:
        hidden = x @ frozen["w"] + x @ params["a"] @ params["b"]
        return jnp.sum(jnp.tanh(jnp.tanh(hidden) @ frozen["out"]))

    closed_over = lambda params, x: with_argument(params, x, frozen)
    x = jnp.ones((4, 2000))
    grad_fn = jaxdp.clipped_grad(closed_over, clip_norm=1.0, method="ghost")
    assert {leaf.how for leaf in grad_fn.explain(params, x).leaves} <= {"rows", "formed"}
    compiled = jax.jit(grad_fn).lower(params, x).compile()
    large = re.findall(r"f32\[2000,2000\]\S* constant\(", compiled.as_text())
    assert len(large) <= len(
        frozen
    )  # no transpose or product of them, which would take long to compute and be held as well
    closed = compiled(params, x)
    handed = jax.jit(jaxdp.clipped_grad(with_argument, clip_norm=1.0, method="ghost"))(params, x, frozen)
    for a, b in zip(jax.tree.leaves(closed.grads), jax.tree.leaves(handed.grads), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(frozen))
    assert temporary_bytes(jaxdp.clipped_grad(with_argument, clip_norm=1.0), params, x, frozen) < size / 10


def test_rows_that_are_drawn_keep_their_type_on_a_tpu_whatever_they_are_read_in() -> None:
    data = {"x": jnp.arange(24.0).reshape(8, 3) / 7, "y": jnp.arange(8)}
    draw = Draw(jnp.asarray([1, 4, 6, 8, 8, 8, 8, 8], jnp.int32), jnp.int32(3))
    take = jax.jit(lambda data, draw: gather_drawn(data, draw, 4, None)[0](jnp.int32(0)))
    traced = take.trace(data, draw)
    there = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert there.count("stablehlo.optimization_barrier") == 1
    assert there.count("stablehlo.bitcast_convert") == 2
    assert "optimization_barrier" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    anywhere = [export.DisabledSafetyCheck.platform()]
    rows, mask = export.export(take, platforms=["tpu"], disabled_checks=anywhere)(data, draw).call(data, draw)
    assert mask.tolist() == [True, True, True, False]
    assert jnp.array_equal(rows["x"], jnp.concatenate([data["x"][jnp.asarray([1, 4, 6])], jnp.zeros((1, 3))]))
    assert rows["y"].tolist() == [1, 4, 6, 0]


def test_of_a_recurrent_step_only_what_is_dear_to_compute_again_is_kept() -> None:
    loss, params, batch = MODELS["linen_lstm"]()

    def kept(fn: Any) -> int:
        """How many arrays of its state's shape the forward pass's loop keeps for each step."""
        first = next(eqn for eqn in all_equations(jax.make_jaxpr(fn)(params, batch)) if eqn.primitive is SCAN)
        return [v.aval.shape for v in first.outvars].count((batch.shape[1], batch.shape[0], 10))

    plain = kept(lambda p, b: jax.grad(lambda p: jnp.sum(jax.vmap(loss, (None, 0))(p, b)))(p))
    with compiling_for("gpu"):
        clipped = kept(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost"))
    assert (plain, clipped) == (13, 8)


@jax.custom_vjp
def _with_its_own_gradient(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


_with_its_own_gradient.defvjp(
    lambda x: (jnp.sin(x), jnp.fft.fft(x)), lambda kept, g: (g * jnp.real(jnp.fft.ifft(kept)),)
)


def _product_of_eight_bits(z: jax.Array) -> jax.Array:
    """Of numbers where a type without infinity has its largest."""
    narrow = z.astype(jnp.float8_e4m3fn)
    return jnp.dot(narrow, narrow, preferred_element_type=jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        lambda z: jnp.real((z + 1j * z**2) * jnp.exp(1j * z)),
        _with_its_own_gradient,
        lambda z: jax.lax.cond(z[0] > 0, jnp.tanh, lambda z: z * jax.nn.sigmoid(z), z),
        lambda z: jax.checkpoint(jnp.tanh)(z) / 3,
        lambda z: z * _product_of_eight_bits(300 + 100 * jnp.tanh(z)) / 1e6,
    ],
)
def test_whatever_a_step_computes_it_is_clipped_as_the_loop_clips(cell: Any) -> None:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        step = lambda h, x: (cell(x @ params["w"] + h @ params["u"]) * h + x, h * 2)
        end, seen = jax.lax.scan(step, jnp.ones(3), x)
        return jnp.sum(end**2) + jnp.sum(seen**2)

    params = {name: jax.random.normal(jax.random.key(i), (3, 3)) / 2 for i, name in enumerate(("w", "u"))}
    batch, clip_norm = jax.random.normal(jax.random.key(2), (5, 4, 3)), 0.3
    expected, norms = loop(loss, params, batch, [True] * 5, clip_norm)
    with compiling_for("gpu"):
        out = jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", precision="float32")(params, batch)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5 * 5 * clip_norm


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linen_lstm", "linen_gru", "linen_scanned_transformer"])
def test_with_less_kept_models_of_loops_are_clipped_as_the_loop_clips(name: str) -> None:
    loss, params, batch = MODELS[name]()
    mask = [True, True, False, True, True, True]
    batch = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), batch)
    expected, norms = loop(loss, params, batch, mask, 0.1)
    with compiling_for("gpu"):
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=0.1, method="ghost", precision="float32")
        out = jax.jit(grad_fn)(params, batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5, atol=1e-30)
    assert distance(out.grads, expected) <= 1e-5 * 6 * 0.1


@pytest.mark.slow
def test_gradients_that_are_formed_without_a_rule_count_as_memory() -> None:
    """Of a weight that is larger than what it is used in: the microbatches that suit a CPU hold few of them."""
    regularised = lambda w, x: jnp.sum(w * w) * x[0]
    compiled = lambda size: temporary_bytes(
        jaxdp.clipped_grad(regularised, clip_norm=1.0), jnp.ones((300, 300)), jnp.ones((size, 2))
    )
    assert compiled(512) < 2 * compiled(128) < 100 * 2**20
