"""Sums of gradients from factors rounded to what matrix units read: nobody's part is longer than the clip norm.

On a CPU nothing rounds but where it is asked for, so that the numbers which a TPU or GPU adds up are all seen here.
"""

import math
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from models_to_clip import MODELS
from oracle import distance, loop, norm_of
from recorded import violations

import jaxdp
from jaxdp._platform import compiling_for
from jaxdp.clipping import _clipped_grad, _norm
from jaxdp.clipping._arithmetic import BFLOAT16, TENSORFLOAT32, arithmetic_of
from jaxdp.clipping._norm import (
    ONE_SUM,
    UNIT_ROUNDOFF,
    are_added_up_by_products,
    gamma,
    squares_by_products,
    sum_of_squares,
    sum_of_squares_error,
)
from jaxdp.clipping.ghost import _sum as ghost_sum
from jaxdp.clipping.ghost.rules._conv import CONVOLUTION
from jaxdp.jaxprs._jaxpr import CONV, DOT_GENERAL, all_equations

ROUNDOFF = {"bfloat16": 2.0**-8, "tensorfloat32": 2.0**-11}
FEW = {"linen_dense", "linen_dense_over_tokens", "siamese_net", "linen_conv_2d_strided_dilated"}


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    """The models promote dtypes and ranks as users' models do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def rounding(loss: Any, clip_norm: float, precision: str = "bfloat16", **how: Any) -> Any:
    return jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, precision=precision, **how))


@pytest.mark.slow_but("linen_conv_2d_strided_dilated-tensorfloat32_0")
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "bfloat16") for name in sorted(FEW)),
        *((name, "bfloat16") for name in MODELS if name not in FEW),
        ("linen_dense_over_tokens", "tensorfloat32"),
        ("linen_conv_2d_strided_dilated", "tensorfloat32"),
        *((name, "tensorfloat32") for i, name in enumerate(sorted(MODELS)) if i % 3 == 0 or "conv" in name),
    ],
)
def test_any_model_is_clipped_by_the_numbers_that_are_added_up(name: str, precision: str) -> None:
    loss, params, batch = MODELS[name]()
    mask = np.array([True, True, False, True, True, True])
    _, norms = loop(loss, params, batch, mask, math.inf)
    clip_norm = float(np.median(norms))
    expected, _ = loop(loss, params, batch, mask, clip_norm)
    grad_fn = rounding(loss, clip_norm, precision, method="ghost")
    out = grad_fn(params, batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=0.02, atol=1e-12)
    assert distance(out.grads, expected) <= 0.1 * sum(min(n, clip_norm) for n in norms)
    for i in np.flatnonzero(mask):
        alone = grad_fn(params, batch, mask=jnp.arange(len(mask)) == i)
        length = norm_of(alone.grads)
        assert length <= clip_norm * (1 + 1e-6)
        assert length >= 0.9 * min(norms[i], clip_norm)


def two_sided(w: Any, example: Any) -> Any:
    """Rows and their cotangents, as they come."""
    return jnp.sum((example[0] @ w) * example[1])


def batches(seed: int, size: int, rows: int, left: int, right: int, cancel: float, roundoff: float = 2.0**-8) -> Any:
    """Examples whose rows cancel but for a part, and whose entries lie between numbers of the type."""
    rng = np.random.default_rng(seed)
    half = max(rows // 2, 1)
    inputs, cotangents = rng.normal(size=(size, half, left)), rng.normal(size=(size, half, right))
    between = 1 + roundoff * rng.uniform(0.4, 0.6, (2, size, half, 1))
    inputs = np.concatenate([inputs, inputs * between[0]], axis=1)[:, :rows]
    cotangents = np.concatenate([cotangents, -cotangents * between[1] * (1 + cancel)], axis=1)[:, :rows]
    return jnp.asarray(inputs, jnp.float32), jnp.asarray(cotangents, jnp.float32)


def parts(grad_fn: Any, params: Any, batch: Any) -> np.ndarray:
    """The length of what each example adds to the sum."""
    alone = jax.vmap(lambda example: grad_fn(params, jax.tree.map(lambda leaf: leaf[None], example)).grads)
    leaves = [np.float64(leaf) for leaf in jax.tree.leaves(jax.jit(alone)(batch))]
    return np.sqrt(sum(np.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in leaves))


@pytest.mark.slow
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(((1, 5, 7), (2, 3, 3), (4, 16, 8), (6, 2, 2), (12, 3, 2), (20, 2, 1))),
    cancel=st.sampled_from((0.0, 1e-6, 1e-3, 0.3)),
    scale=st.sampled_from((1e-12, 1e-3, 1.0, 1e6)),
    clip_norm=st.sampled_from((1e-2, 1.0)),
    precision=st.sampled_from(tuple(ROUNDOFF)),
)
def test_rows_that_cancel_in_float32_or_in_the_rounded_type_alone_are_clipped(
    seed: int, shape: tuple[int, int, int], cancel: float, scale: float, clip_norm: float, precision: str
) -> None:
    inputs, cotangents = batches(seed, 8, *shape, cancel, ROUNDOFF[precision])
    grad_fn = jaxdp.clipped_grad(two_sided, clip_norm=clip_norm, method="ghost", precision=precision)
    lengths = parts(grad_fn, jnp.zeros(shape[1:]), (inputs, cotangents * np.float32(scale)))
    assert lengths.max() <= clip_norm * (1 + 1e-6)


def over_steps(w: Any, example: Any) -> Any:
    """Weights that a loop takes one after another."""
    inputs, cotangents = example
    step = lambda total, own: (total + two_sided(own[0], own[1:]), None)
    return jax.lax.scan(step, 0.0, (w, inputs.reshape(2, -1, LONG), cotangents.reshape(2, -1, LONG)))[0]


def by_experts(w: Any, example: Any) -> Any:
    """Weights for a batch of matrices."""
    inputs, cotangents = (rows.reshape(2, -1, LONG) for rows in example)
    return jnp.sum(jnp.einsum("etp,epd->etd", inputs, w) * cotangents)


def from_both_sides(w: Any, example: Any) -> Any:
    """Weights that are used twice, once transposed."""
    (first, second), (third, fourth) = (rows.reshape(2, -1, LONG) for rows in example)
    return two_sided(w, (first, third)) + 0.5 * jnp.sum((second @ w.T) * fourth)


LONG = 160  # entries of rows that are too many for sums over all pairs at once


def assert_long_rows_are_clipped(
    loss: Any, rows: int, shape: tuple[int, ...], cancel: float | None, precision: str, how: str, least: float
) -> None:
    """Rows that cancel but for a part, or of random numbers, whose parts are then no shorter than so much."""
    batch = batches(3, 4, rows, LONG, LONG, cancel or 0.0, ROUNDOFF[precision])
    if cancel is None:
        batch = tuple(jax.random.normal(jax.random.key(i), (4, rows, LONG)) for i in range(2))
    params = jnp.zeros(shape)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=0.1, method="ghost", precision=precision)
    (leaf,) = grad_fn.explain(params, batch).leaves
    assert leaf.how == how
    lengths = parts(grad_fn, params, batch)
    assert lengths.max() <= 0.1 * (1 + 1e-6)
    if cancel is None:
        _, norms = loop(loss, params, batch, np.ones(4, bool), math.inf)
        np.testing.assert_allclose(jax.jit(grad_fn)(params, batch).norms, norms, rtol=1e-2)
        assert lengths.min() > least


@pytest.mark.slow
@pytest.mark.parametrize("precision", sorted(ROUNDOFF))
@pytest.mark.parametrize(
    ("loss", "rows", "matrices"),
    [(two_sided, 70, None), (over_steps, 140, 2), (by_experts, 140, 2), (from_both_sides, 66, None)],
)
@pytest.mark.parametrize("cancel", [1e-3, None])
def test_many_rows_are_clipped_by_the_numbers_that_are_added_up(
    loss: Any, rows: int, matrices: int | None, cancel: float | None, precision: str
) -> None:
    shape = (LONG, LONG) if matrices is None else (matrices, LONG, LONG)
    assert_long_rows_are_clipped(loss, rows, shape, cancel, precision, "rows", 0.095)


@pytest.mark.slow
@pytest.mark.parametrize("precision", sorted(ROUNDOFF))
def test_bounds_of_experts_that_have_little_in_common_and_of_skipped_inputs_stay_tight(precision: str) -> None:
    rng = np.random.default_rng(0)
    inputs, cotangents = rng.normal(size=(2, 2, 16, 70, LONG)).astype(np.float32)
    inputs[:, 0] *= 1e3
    cotangents[:, 15] *= 1e3
    mixture = lambda w, x: jnp.sum(jnp.einsum("etp,epd->etd", x[0], w) * x[1])
    strided = lambda w, x: jnp.sum(jnp.sin(jax.lax.conv(x[None], w, (2, 2), "VALID")))
    images = rng.normal(size=(2, 256, 20, 20)).astype(np.float32)
    images[:, :, 1::2] = 1e4
    for loss, params, batch in (
        (mixture, jnp.zeros((16, LONG, LONG)), (inputs, cotangents)),
        *([(strided, jnp.full((256, 256, 1, 1), 1e-3), jnp.asarray(images))] if precision == "bfloat16" else []),
    ):
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=1e-2, method="ghost", precision=precision)
        (leaf,) = grad_fn.explain(params, batch).leaves
        assert leaf.how == "rows"
        lengths = parts(grad_fn, params, batch)
        assert 0.95e-2 <= lengths.min() <= lengths.max() <= 1e-2 * (1 + 1e-6)


def test_more_products_are_taken_for_a_norm_only_where_its_bound_is_no_looser() -> None:
    forms = {}
    for rows, left, right in ((256, 256, 1024), (1024, 2048, 1024)):
        grad_fn = jaxdp.clipped_grad(two_sided, clip_norm=1.0, method="ghost", precision="bfloat16")
        batch = (jnp.zeros((1, rows, left)), jnp.zeros((1, rows, right)))
        (leaf,) = grad_fn.explain(jnp.zeros((left, right)), batch).leaves
        forms[rows] = leaf.how
    assert forms == {256: "rows", 1024: "dropped"}


@pytest.mark.parametrize(("precision", "how"), [("bfloat16", "dropped"), ("tensorfloat32", "formed")])
def test_what_is_formed_is_kept_where_its_rows_cost_more(precision: str, how: str) -> None:
    grad_fn = jaxdp.clipped_grad(two_sided, clip_norm=1.0, method="ghost", precision=precision)
    batch = (jnp.zeros((1, 256, 256)), jnp.zeros((1, 256, 256)))
    (leaf,) = grad_fn.explain(jnp.zeros((256, 256)), batch).leaves
    assert leaf.how == how


def as_rows(cotangents: Any, inputs: Any) -> Any:
    """Rows of eight entries that are all the same."""
    wide = lambda rows: jnp.asarray(np.broadcast_to(rows, (*cotangents.shape[:2], 8)), jnp.float32)
    return wide(inputs), wide(cotangents)


def between_two_numbers() -> Any:
    """Four rows that cancel, halfway between numbers of bfloat16 so that rounding moves them all one way."""
    rng = np.random.default_rng(0)
    signs, size = np.array([1.0, 1.0, -1.0, -1.0])[:, None], (20_000, 1, 1)
    scales = 2 ** rng.uniform(0, 1, size) * (1 - signs * 2.0**-9 * rng.uniform(0, 2, size))
    return as_rows(signs * scales, 1 + 2.0**-8 * (1 - 0.02 * signs))


def sums_that_nearly_cancel() -> Any:
    """Three rows, all bfloat16's own, of which the third undoes most of the others; scaled, each rounds by itself."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(40, 128, (20_000, 2, 1))
    rest = rng.integers(0, 40, (20_000, 1, 1)) - pairs.sum(axis=1, keepdims=True)
    return as_rows(np.concatenate([pairs, rest], axis=1), np.ones((1, 1, 1)))


def longest_part(batch: Any, clip_norm: float = 1e-3) -> float:
    grad_fn = jaxdp.clipped_grad(two_sided, clip_norm=clip_norm, method="ghost", precision="bfloat16")
    return float(parts(grad_fn, jnp.zeros((batch[0].shape[2], batch[1].shape[2])), batch).max()) / clip_norm


def norms_of_what_is_not_rounded(patch: pytest.MonkeyPatch) -> None:
    exactly = lambda array: jax.lax.reduce_precision(array.astype(jnp.float32), 8, 7)
    add_up = ghost_sum.sum_gradients
    patch.setattr(ghost_sum, "rounded", lambda factor, arithmetic, placed: factor)
    patch.setattr(ghost_sum, "sum_gradients", lambda site, o, g: add_up(site, list(map(exactly, o)), exactly(g)))


def half_of_the_roundoff(patch: pytest.MonkeyPatch) -> None:
    halved = replace(BFLOAT16, factor_roundoff=BFLOAT16.factor_roundoff / 2)
    patch.setattr(_clipped_grad, "arithmetic_of", lambda precision: halved)


def no_roundoff_of_what_is_scaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_clipped_grad, "arithmetic_of", lambda precision: replace(BFLOAT16, factor_roundoff=0.0))


FAULTS = {
    norms_of_what_is_not_rounded: between_two_numbers,
    half_of_the_roundoff: sums_that_nearly_cancel,
    no_roundoff_of_what_is_scaled: sums_that_nearly_cancel,
}


@pytest.mark.slow_but("no_roundoff_of_what_is_scaled-sums_that_nearly_cancel")
@pytest.mark.parametrize(("fault", "batches"), FAULTS.items())
def test_a_planted_fault_of_rounding_is_found(fault: Any, batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batches()
    assert longest_part(batch) <= 1 + 1e-6
    fault(monkeypatch)
    assert longest_part(batch) > 1.001


def test_what_is_beyond_the_range_of_squares_contributes_nothing_and_zeros_spoil_nothing() -> None:
    loss = lambda p, x: two_sided(p["w"], x) + jnp.sum(p["b"] * x[1][0])
    inputs, cotangents = np.ones((4, 3, 5), np.float32), np.ones((4, 3, 2), np.float32)
    inputs[0], inputs[1], cotangents[2], inputs[3] = 1e25, np.nan, 0.0, 1e-30
    params = {"w": jnp.zeros((5, 2)), "b": jnp.zeros(2)}
    out = rounding(loss, 1.0)(params, (jnp.asarray(inputs), jnp.asarray(cotangents)))
    assert np.isfinite(np.asarray(out.norms)).tolist() == [False, False, True, True]
    assert float(out.norms[2]) < 1e-9
    assert float(out.norms[3]) == pytest.approx(math.sqrt(2), rel=1e-3)
    assert norm_of(out.grads) == pytest.approx(1, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "apart"),
    [
        ((), ()),
        ((0,), ()),
        ((7,), ()),
        ((20_001,), ()),
        ((3, 20_001), (0,)),
        ((2, 5, 300, 64), (0, 1)),
        ((40, 20, 30, 1), ()),
        ((2, 200, 1, 20_001), (0,)),
        ((130, 129), ()),
    ],
)
def test_sums_of_squares_are_never_below_the_true_ones(shape: tuple[int, ...], apart: tuple[int, ...]) -> None:
    for scale in (1e-25, 1e-10, 1.0, 1e12):
        x = np.float32(scale * np.random.default_rng(0).normal(size=shape))
        found = np.float64(sum_of_squares(jnp.asarray(x), apart))
        true = np.sum(np.float64(x) ** 2, axis=tuple(i for i in range(x.ndim) if i not in apart))
        assert (found * (1 + sum_of_squares_error(shape[len(apart) :])) >= true).all()
        np.testing.assert_allclose(found, true, rtol=1e-4, atol=1e-30)


@pytest.mark.slow
def test_sums_of_squares_of_many_small_arrays_are_never_below_the_true_ones() -> None:
    for scale in (1e-25, 1e-10, 1.0, 1e12):
        arrays = np.float32(scale * np.random.default_rng(0).normal(size=(500, 3, 40, 2)))
        one, *others = map(jnp.asarray, arrays)
        found = np.float64(sum_of_squares(one, (0,), ONE_SUM, *others))
        true = np.sum(np.float64(arrays) ** 2, axis=(0, 2, 3))
        assert (found * (1 + sum_of_squares_error((40, 2), ONE_SUM, len(others))) >= true).all()
        np.testing.assert_allclose(found, true, rtol=1e-4, atol=1e-30)


def test_sums_too_long_for_a_bound_are_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="16,777,216 numbers in float32 has no bound"):
        gamma(2**24)


@pytest.mark.slow
def test_a_convolution_with_one_output_position_has_its_own_norm() -> None:
    loss = lambda k, x: jnp.sum(jnp.sin(jax.lax.conv(x[None], k, (1, 1), "VALID")))
    kernel, images = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(((6, 3, 5, 5), (4, 3, 5, 5)))
    )
    _, norms = loop(loss, kernel, images, np.ones(4, bool), 1.0)
    out = rounding(loss, 1.0, method="ghost")(kernel, images)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_an_entry_is_in_as_many_patches_as_is_said_at_most(stride: int, dilation: int) -> None:
    patches = lambda x: jax.lax.conv_general_dilated_patches(x, (5,), (stride,), "SAME", rhs_dilation=(dilation,))
    conv = lambda x, k: jax.lax.conv_general_dilated(x, k, (stride,), "SAME", rhs_dilation=(dilation,))
    x = jnp.zeros((1, 1, 31))
    (eqn,) = jax.make_jaxpr(conv)(x, jnp.zeros((1, 1, 5))).eqns
    counts = jax.vjp(patches, x)[1](jnp.ones_like(patches(x)))[0]
    assert CONVOLUTION.repeats is not None
    assert CONVOLUTION.repeats(eqn, 1) == int(counts.max())


@pytest.mark.slow_but("bfloat16")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_no_rows_at_all_are_a_gradient_of_zero(precision: str) -> None:
    for loss, shape in (
        (lambda w, x: jnp.sum(x[:0] @ w) + jnp.sum(w), (5,)),
        (lambda w, x: jnp.sum(x[:0] @ w), (5, 3)),
        (lambda w, x: jnp.sum(jnp.einsum("tp,pdh->tdh", x[:0], w)), (5, 3, 2)),
    ):
        grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision=precision))
        assert norm_of(grad_fn(jnp.ones(shape), jnp.ones((2, 4, 5))).grads) <= 2


def test_long_sequences_and_large_leaves_have_bounds_that_say_something() -> None:
    for loss, params, batch in (
        (lambda w, x: jnp.sum(jnp.tanh(x @ w)), (4096, 4096), (2, 2048, 4096)),
        (
            lambda w, x: jnp.sum(jnp.tanh(jax.lax.conv(x[None], w, (1, 1), "VALID"))),
            (512, 128, 1, 1),
            (64, 128, 28, 28),
        ),
        (lambda w, x: jnp.sum(jnp.sin(w) * x), (5_000_001,), (64, 5_000_001)),
    ):
        shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (params, batch)]
        jax.eval_shape(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16"), *shapes)
    assert sum_of_squares_error((4096, 4096)) < 3e-3
    assert sum_of_squares_error((5_000_001,)) < 3e-3


@pytest.mark.slow
def test_a_weight_used_from_both_sides_is_clipped() -> None:
    loss = lambda w, x: two_sided(w, x) + jnp.sum((x[2] @ w.T) * x[3])
    there, back = batches(5, 8, 3, 16, 12, 1e-3), batches(6, 8, 2, 12, 16, 0.3)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=0.01, method="ghost", precision="bfloat16")
    (leaf,) = grad_fn.explain(jnp.zeros((16, 12)), (*there, *back)).leaves
    assert leaf.how == "rows"
    lengths = parts(grad_fn, jnp.zeros((16, 12)), (*there, *back))
    assert 0.009 <= lengths.min() <= lengths.max() <= 0.01 * (1 + 1e-6)


@pytest.mark.slow
def test_a_product_that_the_user_wants_in_full_is_not_rounded() -> None:
    exactly = lambda w, x: jnp.sum(jnp.matmul(x[0], w, precision="highest") * x[1])
    batch = batches(0, 4, 6, 8, 4, 0.3)
    full, own, rounded = (
        jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.1, method="ghost", precision=precision))(jnp.zeros((8, 4)), batch)
        for loss, precision in ((two_sided, "float32"), (exactly, "bfloat16"), (two_sided, "bfloat16"))
    )
    np.testing.assert_allclose(full.grads, own.grads, rtol=1e-4)
    assert distance(full.grads, rounded.grads) > 1e-4 * norm_of(full.grads)
    with jax.default_matmul_precision("highest"):
        inside = jax.jit(jaxdp.clipped_grad(two_sided, clip_norm=0.1, precision="bfloat16"))(jnp.zeros((8, 4)), batch)
    np.testing.assert_allclose(full.grads, inside.grads, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("arithmetic", [BFLOAT16, TENSORFLOAT32], ids=["bfloat16", "tensorfloat32"])
@pytest.mark.parametrize(
    "name", ["linen_dense", "linen_dense_over_tokens", "tied_embedding_language_model", "siamese_net"]
)
def test_what_a_rounding_step_releases_is_what_was_accounted(
    name: str, arithmetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_clipped_grad, "arithmetic_of", lambda precision: arithmetic)
    loss, params, batch = MODELS[name]()
    run = jaxdp.DPSGD(
        num_examples=6, expected_batch_size=3, steps=12, clip_norm=0.05, noise_multiplier=1.2, microbatch_size=2
    )
    assert violations(run, loss, params, batch, steps=12, learning_rate=1e-3) == set()


@pytest.mark.slow
def test_the_step_takes_the_precision_and_refuses_others() -> None:
    run = jaxdp.DPSGD(num_examples=6, expected_batch_size=3, steps=2, clip_norm=0.5, noise_multiplier=1.0)
    inputs, cotangents = batches(1, 6, 4, 3, 2, 0.3)
    states = []
    for precision in ("float32", "bfloat16"):
        step = run.make_step(two_sided, optax.sgd(0.1), precision=precision)
        state, _ = step(step.init(jnp.zeros((3, 2)), jax.random.key(0)), (inputs, cotangents))
        states.append(np.asarray(state.params))
    assert 0 < np.abs(states[0] - states[1]).max() < 0.01
    assert not arithmetic_of("auto").rounds  # on a CPU
    with pytest.raises(
        jaxdp.UsageError, match="precision='tf32' is not known; choose one of these: auto, bfloat16, float32"
    ):
        run.make_step(two_sided, optax.sgd(0.1), precision="tf32")


def test_a_gpu_adds_up_alike_whatever_it_reads() -> None:
    with compiling_for("gpu"):
        read = arithmetic_of("bfloat16")
    assert read.factor_roundoff == BFLOAT16.factor_roundoff
    assert read.unit_roundoff == TENSORFLOAT32.unit_roundoff > BFLOAT16.unit_roundoff


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
@pytest.mark.parametrize(("size", "how"), [(4, "rows"), (32, "formed")])
def test_a_gpu_sums_convolutions_by_products_of_their_patches(size: int, how: str, precision: str) -> None:
    """Which its library may compute by transforms, whose products are of other numbers than those that norms are taken of."""

    def loss(kernels: Any, x: Any) -> Any:
        for kernel in kernels:
            x = jnp.tanh(
                jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return jnp.sum(x)

    kernels, images = [jnp.ones((3, 3, 32, 32))] * 2, jnp.ones((5, 1, size, size, 32))
    with compiling_for("gpu"):
        grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision=precision)
        jaxpr, explained = jax.make_jaxpr(grad_fn)(kernels, images), grad_fn.explain(kernels, images)
    products = [eqn for eqn in all_equations(jaxpr) if eqn.primitive in (CONV, DOT_GENERAL)]
    assert sum(eqn.primitive is CONV for eqn in products) == 3  # two forward, one back; none for a kernel's gradient
    assert not any(eqn.params["precision"] == (jax.lax.Precision.HIGHEST,) * 2 for eqn in products)
    assert {leaf.how for leaf in explained.leaves} == {how}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "apart"),
    [
        ((64, 2), ()),
        ((3, 40, 128), (0,)),
        ((2, 5, 300, 64), (0, 1)),
        ((2, 1, 20_001, 3), (0,)),
        ((2, 7, 1, 9, 11), (0, 2)),
    ],
)
@pytest.mark.parametrize("number", [1, 9])
def test_squares_that_a_product_adds_up_are_never_below_the_true_ones(
    shape: tuple[int, ...], apart: tuple[int, ...], number: int
) -> None:
    rng, own = np.random.default_rng(0), [size for axis, size in enumerate(shape) if axis not in apart]
    worst = 1 + BFLOAT16.square_roundoff * 1.02 + sum_of_squares_error(own) + number * UNIT_ROUNDOFF
    axes = (0, *(i + 1 for i in range(len(shape)) if i not in apart))

    def found_and_true(x: np.ndarray) -> tuple[Any, Any]:
        arrays = x.astype(np.float32)
        found = np.float64(jax.jit(squares_by_products, static_argnums=(1, 2))([*arrays], apart, ONE_SUM))
        true = np.sum(np.square(np.float64(arrays)), axis=axes)
        assert found.shape == true.shape
        assert (found * worst >= true).all()
        np.testing.assert_allclose(found, true, rtol=2.0**-7, atol=1e-30)
        return found, true

    for scale in (1e-25, 1e-10, 1e12):
        found_and_true(scale * rng.normal(size=(number, *shape)))
    found, true = found_and_true(np.sqrt(1 + 2.0**-8 * rng.uniform(0.9, 0.999, (number, *shape))))
    if number == 1:  # each square is rounded down, by its most
        assert (found < true * (1 - 0.8 * BFLOAT16.square_roundoff)).all(), "nothing was rounded"
    for spoilt in (np.nan, np.inf, 1e25):
        arrays = np.ones((number, *shape), np.float32)
        arrays[0, ..., -1] = spoilt
        assert not np.isfinite(squares_by_products([*map(jnp.asarray, arrays)], apart, ONE_SUM)).any()


@pytest.mark.slow_but("linen_dense")
@pytest.mark.parametrize("name", list(MODELS))
def test_any_model_is_clipped_where_products_add_up_squares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few they are, and whatever a gradient costs that is formed and dropped."""
    monkeypatch.setattr(_norm, "_MANY", 1)
    formed = replace(BFLOAT16, formed_costs=0.0, kept_costs=1e9)
    monkeypatch.setattr(_clipped_grad, "arithmetic_of", lambda precision: formed)
    test_any_model_is_clipped_by_the_numbers_that_are_added_up(name, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("cancel", [1e-3, None])
def test_formed_gradients_whose_squares_a_product_adds_up_are_clipped(cancel: float | None) -> None:
    assert_long_rows_are_clipped(two_sided, 200, (LONG, LONG), cancel, "bfloat16", "dropped", 0.09)


@pytest.mark.parametrize(
    ("shape", "apart", "by_products"),
    [
        ((2, 64, 64), (0,), True),
        ((2, 64, 1, 64, 1), (0,), True),
        ((2, 2**18, 1), (0,), False),
        ((2, 2**18), (0,), False),
        ((2, 8192, 4, 1), (0, 2), False),
        ((2, 2**15, 2**15), (0,), False),
        ((2, 8, 8), (0,), False),
        ((), (), False),
        ((1, 1), (), False),
    ],
)
def test_products_add_up_squares_of_several_axes_none_of_which_is_too_long(
    shape: tuple[int, ...], apart: tuple[int, ...], by_products: bool
) -> None:
    assert are_added_up_by_products(shape, apart) == by_products


def test_a_column_of_a_million_weights_is_clipped() -> None:
    """Its squares, one of 1 and the others below what float32 adds to 1, aren't added up in one product."""
    number = 2**20
    x = np.full((1, 2, number), 2.0**-12, np.float32)
    x[0, 0, 0], x[0, 1] = 1, 0
    loss = lambda w, example: jnp.sum(example @ w * jnp.array([[1.0], [2.0**-30]]))
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=0.5, precision="bfloat16", method="ghost")
    out = jax.jit(lambda w, x: grad_fn(w, x).grads)(jnp.zeros((number, 1)), jnp.asarray(x))
    assert norm_of(out) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("precision", ["F16_F16_F16", None])
def test_squares_are_added_up_in_float32_whatever_jax_multiplies_by_default(precision: str | None) -> None:
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(2, 96, 64)), jnp.float32), jnp.asarray(rng.normal(size=(64, 64)), jnp.float32)
    product = lambda example, w: jnp.dot(example, w, precision=jax.lax.Precision.DEFAULT)
    loss = lambda w, example: jnp.sum(jnp.tanh(product(example, w)) * 1e-5)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1e-4, precision="bfloat16", method="ghost")
    (leaf,) = grad_fn.explain(w, x).leaves
    assert leaf.how == "dropped"
    with jax.default_matmul_precision(precision):
        assert parts(grad_fn, w, x).max() <= 1e-4 * (1 + 1e-6)
