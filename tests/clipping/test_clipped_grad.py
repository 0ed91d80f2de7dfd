"""`clipped_grad` against a Python loop over single examples, in float64 where the loop adds up."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from oracle import distance, example_of, loop, norm_of

import jaxdp
from jaxdp.clipping._clipped_grad import METHODS

TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 2e-2, jnp.float16: 2e-3}
PROGRAMS = tuple(itertools.product((1, 5), (1, 40), (1, 3), TOLERANCE, (None, 1, 3), (0.01, 100.0, math.inf)))
EVERY_PAIR = (  # of two settings is in one of these programs
    (1, 1, 1, jnp.float32, 1, math.inf),
    (1, 40, 1, jnp.float32, 3, 0.01),
    (5, 40, 3, jnp.float32, None, 100.0),
    (1, 1, 3, jnp.bfloat16, 1, 100.0),
    (5, 40, 3, jnp.bfloat16, 3, math.inf),
    (1, 1, 1, jnp.bfloat16, None, 0.01),
    (5, 40, 3, jnp.float16, 1, 0.01),
    (1, 1, 1, jnp.float16, 3, 100.0),
    (5, 1, 1, jnp.float16, None, math.inf),
)


def loss(params: Any, example: Any) -> jax.Array:
    """A small model with a matrix, a vector and a scalar parameter."""
    x, y = example
    hidden = jnp.tanh(params["w"] @ x + params["b"])
    return jnp.sum(jnp.square(hidden - y)) * params["s"]


def problem(seed: int, size: int, inputs: int, outputs: int, dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(np.asarray(rng.normal(size=shape)).astype(dtype))
    params = {"w": draw(outputs, inputs), "b": draw(outputs), "s": draw()}
    return params, (draw(size, inputs), draw(size, outputs))


@functools.cache
def jitted_clipped_grad(**options: Any) -> Callable[..., Any]:
    return jax.jit(jaxdp.clipped_grad(loss, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "programs"),
    [
        ("auto", EVERY_PAIR),
        ("auto", PROGRAMS),
        ("vmap", PROGRAMS),
    ],
    ids=["auto", "auto_all", "vmap_all"],
)
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    index=st.integers(0, len(PROGRAMS) - 1),
    masking=st.sampled_from(("all", "none", "one", "some")),
    bad=st.sampled_from((None, math.nan, math.inf, 1e4)),
)
def test_the_sum_and_the_norms_are_those_of_a_loop_over_examples(
    method: str, programs: tuple[Any, ...], seed: int, index: int, masking: str, bad: float | None
) -> None:
    size, inputs, outputs, dtype, microbatch_size, clip_norm = programs[index % len(programs)]
    params, batch = problem(seed, size, inputs, outputs, dtype)
    if bad is not None:
        targets = np.array(batch[1])
        targets[0, 0] = bad
        batch = (batch[0], jnp.asarray(targets))
    some = np.random.default_rng(seed).random(size) < 0.5
    mask = {"all": np.ones(size, bool), "none": np.zeros(size, bool), "one": np.arange(size) == size - 1, "some": some}[
        masking
    ]
    grad_fn = jitted_clipped_grad(clip_norm=clip_norm, method=method, microbatch_size=microbatch_size)
    out = grad_fn(params, batch, mask=jnp.asarray(mask))
    expected, norms = loop(loss, params, batch, mask, clip_norm)

    tolerance = TOLERANCE[dtype]
    scale = sum(min(n, clip_norm) for n in norms if math.isfinite(n))
    assert distance(out.grads, expected) <= tolerance * scale + 1e-30
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(out.grads))
    np.testing.assert_allclose(np.asarray(out.norms, np.float64), norms, rtol=tolerance)
    assert float(out.sensitivity) == pytest.approx(clip_norm)
    assert out.losses.shape == (size,)
    assert not np.any(np.asarray(out.losses)[~mask])


@pytest.mark.slow
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from((1, 33, 1024, 40_000)),
    scale=st.sampled_from((1e-30, 1e-19, 1e-3, 1.0, 1e19, 1e30)),
    clip_norm=st.sampled_from((1e-3, 1.0, 7.3, 1e20)),
)
def test_one_clipped_gradient_as_stored_is_never_longer_than_the_clip_norm(
    seed: int, size: int, scale: float, clip_norm: float
) -> None:
    rng = np.random.default_rng(seed)
    example = jnp.asarray(scale * rng.normal(size=(1, size)) * 10.0 ** rng.uniform(-3, 0, (1, size)), jnp.float32)
    grad_fn = jaxdp.clipped_grad(lambda w, x: jnp.vdot(w, x), clip_norm=clip_norm)
    out = grad_fn(jnp.zeros(size), example)
    stored, true = norm_of(out.grads), norm_of(example)
    assert stored <= float(np.float32(clip_norm))
    assert stored >= min(true, clip_norm) * (1 - 1e-5)
    assert float(out.norms[0]) == pytest.approx(true, rel=1e-5)


@pytest.mark.slow
def test_a_float16_example_with_tiny_gradients_is_clipped_by_its_true_norm() -> None:
    # Each entry's square, 1e-8 or less, underflows in float16: a float16 norm is 0 and nothing would be clipped.
    example = jnp.full((1, 400), 1e-4, jnp.float16)
    grad_fn = jaxdp.clipped_grad(lambda w, x: jnp.sum(w * x), clip_norm=1e-3)
    out = jax.jit(grad_fn)(jnp.zeros(400, jnp.float16), example)
    assert float(out.norms[0]) == pytest.approx(2e-3, rel=1e-3)
    assert norm_of(out.grads) == pytest.approx(1e-3, rel=1e-5)


@functools.cache
def jitted_product(clip_norm: float) -> Callable[..., Any]:
    return jax.jit(jaxdp.clipped_grad(lambda w, x: jnp.vdot(w, x), clip_norm=clip_norm))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_example_contributes_exactly_zero_and_shows_in_the_norms(bad: float) -> None:
    batch = jnp.array([[1.0, 2.0], [bad, 0.0], [3.0, 4.0]])
    out = jitted_product(100.0)(jnp.zeros(2), batch)
    np.testing.assert_array_equal(out.grads, [4.0, 6.0])
    assert not np.isfinite(out.norms[1])


def test_padding_with_nan_contributes_exactly_zero() -> None:
    batch = jnp.array([[1.0, 2.0], [math.nan, math.nan]])
    out = jitted_product(100.0)(jnp.zeros(2), batch, mask=jnp.array([True, False]))
    np.testing.assert_array_equal(out.grads, [1.0, 2.0])
    np.testing.assert_array_equal(out.losses, [0.0, 0.0])


@pytest.mark.slow
def test_a_batch_of_padding_alone_is_a_zero_sum_of_the_same_sensitivity() -> None:
    for microbatch_size in (None, 2):
        grad_fn = jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=3.0, microbatch_size=microbatch_size)
        out = jax.jit(grad_fn)(jnp.float32(1), jnp.ones(5), mask=jnp.zeros(5, bool))
        assert (float(out.grads), float(out.sensitivity)) == (0.0, 3.0)


@pytest.mark.slow
def test_nothing_of_what_is_in_memory_where_sums_begin_gets_into_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "empty", lambda shape, dtype: jnp.full(shape, jnp.nan, dtype))
    grad_fn = jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=3.0, microbatch_size=2)
    batch = jnp.array([1.0, 2.0, 4.0, 1.0, 1.0])
    assert float(grad_fn(jnp.float32(1.0), batch).grads) == pytest.approx(8.0, rel=1e-5)
    nobody = jnp.zeros(5, jnp.bool_)
    assert float(grad_fn(jnp.float32(1.0), batch, mask=nobody).grads) == 0.0
    run = jaxdp.DPSGD(num_examples=5, expected_batch_size=1e-6, steps=1, clip_norm=3.0, noise_multiplier=0.0)
    step = run.make_step(lambda w, x: w * x, optax.sgd(1.0), self_check=False)
    state, metrics = step(step.init(jnp.float32(1.0), jax.random.key(0)), batch)
    assert (int(metrics.examples), float(state.params)) == (0, 1.0)


@pytest.mark.slow
def test_each_example_gets_its_own_key_whatever_the_microbatches_and_the_padding() -> None:
    def noisy_loss(w: Any, x: Any, *, rng: Any) -> Any:
        return w * x * jax.random.uniform(rng)

    key = jax.random.key(0)
    whole, padded = (
        jax.jit(jaxdp.clipped_grad(noisy_loss, clip_norm=10.0, microbatch_size=size)) for size in (None, 3)
    )
    whole = whole(jnp.float32(1), jnp.ones(7), rng=key)
    padded = padded(jnp.float32(1), jnp.ones(10), mask=jnp.arange(10) < 7, rng=key)
    np.testing.assert_array_equal(whole.losses, padded.losses[:7])
    assert len(np.unique(whole.losses)) == 7


def test_shared_arguments_reach_every_example_and_aux_comes_back_for_each() -> None:
    def loss_with_aux(w: Any, x: Any, factor: Any) -> tuple[Any, Any]:
        return factor * w * x, {"twice": 2 * x}

    for microbatch_size in (None, 2):
        grad_fn = jaxdp.clipped_grad(loss_with_aux, clip_norm=100.0, has_aux=True, microbatch_size=microbatch_size)
        out = jax.jit(grad_fn)(jnp.float32(1), jnp.array([1.0, 2.0, 3.0]), jnp.float32(5))
        assert float(out.grads) == 30.0
        np.testing.assert_array_equal(out.aux["twice"], [2.0, 4.0, 6.0])


def test_a_weight_used_twice_has_the_norm_of_its_whole_gradient() -> None:
    # The two uses' gradients point the same way: adding their squared norms would give 1.41 and pass a sum of norm 2.
    out = jaxdp.clipped_grad(lambda w, x: jnp.vdot(w, x) + jnp.vdot(w, x), clip_norm=1.0)(
        jnp.zeros(2), jnp.array([[1.0, 0.0]])
    )
    assert float(out.norms[0]) == pytest.approx(2.0)
    assert norm_of(out.grads) == pytest.approx(1.0, rel=1e-5)


def test_augmentations_averaged_in_the_loss_count_as_one_example() -> None:
    views = jnp.array([[3.0, -1.0], [10.0, 10.0]])  # two examples, two views each
    out = jax.jit(jaxdp.clipped_grad(lambda w, x: jnp.mean(w * x), clip_norm=4.0))(jnp.float32(1), views)
    np.testing.assert_allclose(out.norms, [1.0, 10.0])
    assert float(out.grads) == pytest.approx(5.0, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_parameter_may_be_a_plain_number_or_have_no_entries(method: str) -> None:
    xs = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5, 3)), jnp.float32)
    plain = jaxdp.clipped_grad(lambda p, x: jnp.sum((x * p) ** 2), clip_norm=1.0, method=method)(0.5, xs)
    np.testing.assert_allclose(plain.grads, 4.0, rtol=1e-5)
    both = {"w": jnp.ones((3, 2)), "none": jnp.zeros((0, 2))}
    fn = lambda p, x: jnp.sum(jnp.tanh(x[:, :0] @ p["none"] + x @ p["w"]))
    found = jaxdp.clipped_grad(fn, clip_norm=1.0, method=method)(both, xs)
    alone = jaxdp.clipped_grad(lambda w, x: jnp.sum(jnp.tanh(x @ w)), clip_norm=1.0, method="vmap")(both["w"], xs)
    np.testing.assert_allclose(found.grads["w"], alone.grads, rtol=1e-5, atol=1e-6)
    assert found.grads["none"].shape == (0, 2)


def test_per_example_grads_are_the_unclipped_gradients() -> None:
    params, batch = problem(0, 3, 4, 2, jnp.float32)
    grads, one_gradient = jaxdp.per_example_grads(loss)(params, batch), jax.jit(jax.grad(loss))
    for i in range(3):
        alone = one_gradient(params, example_of(batch, i))
        jax.tree.map(lambda a, g, i=i: np.testing.assert_allclose(g[i], a, rtol=1e-5, atol=1e-6), alone, grads)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jaxdp.clipped_grad(loss, clip_norm=0.0), "clip_norm=0.0 must lie between"),
        (lambda: jaxdp.clipped_grad(loss, clip_norm=-1.0), "clip_norm=-1.0"),
        (lambda: jaxdp.clipped_grad(loss, clip_norm=math.nan), "clip_norm is NaN"),
        (
            lambda: jaxdp.clipped_grad(loss, clip_norm=1.0, method="magic"),
            "method='magic' is not known.*auto, ghost, vmap",
        ),
        (lambda: jaxdp.clipped_grad(loss, clip_norm=1.0, microbatch_size=0), "microbatch_size=0"),
        (lambda: jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=1.0)(jnp.int32(1), jnp.ones(2)), "int32"),
        (lambda: jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=1.0)({}, jnp.ones(2)), "no leaves"),
        (lambda: jaxdp.clipped_grad(lambda w, x: x * w, clip_norm=1.0)(jnp.ones(2), jnp.ones((3, 2))), r"shape \(2,\)"),
        (
            lambda: jaxdp.clipped_grad(lambda w, x: w, clip_norm=1.0)(jnp.float32(1), (jnp.ones(2), jnp.ones(3))),
            "disagree on the leading axis",
        ),
        (lambda: jaxdp.clipped_grad(lambda w, x: w, clip_norm=1.0)(jnp.float32(1), jnp.float32(1)), "is a scalar"),
        (lambda: jaxdp.clipped_grad(lambda w, x: w, clip_norm=1.0)(jnp.float32(1), jnp.ones((0, 2))), "0 rows"),
        (
            lambda: jaxdp.clipped_grad(lambda w, x: w, clip_norm=1.0)(
                jnp.float32(1), jnp.ones(2), mask=jnp.ones(3, bool)
            ),
            "must be bool",
        ),
        (
            lambda: jaxdp.clipped_grad(lambda w, x: (w, x), clip_norm=1.0)(jnp.float32(1), jnp.ones(2)),
            "pass has_aux=True",
        ),
        (
            lambda: jaxdp.clipped_grad(lambda w, x: w, clip_norm=1.0, has_aux=True)(jnp.float32(1), jnp.ones(2)),
            r"must return \(loss, aux\)",
        ),
    ],
)
def test_bad_input_is_refused_with_the_fix(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call()


def test_an_error_in_a_loss_says_what_it_was_given() -> None:
    grad_fn = jaxdp.clipped_grad(lambda w, x: jnp.sum(x[0].reshape(3, -1) @ w), clip_norm=1.0)
    with pytest.raises(TypeError) as error:
        grad_fn(jnp.ones(2), (jnp.ones((3, 2)), jnp.ones(3, jnp.int32)))
    assert "one example at a time" in error.value.__notes__[0]
    assert "example[0] float32[2], example[1] int32[]" in error.value.__notes__[0]
    with pytest.raises(jaxdp.UsageError, match=r"a list is a tree of its items: give numpy\.asarray"):
        grad_fn(jnp.ones(2), ([[1.0, 2.0]], [1]))
