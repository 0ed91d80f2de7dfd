"""Ghost clipping against a Python loop over single examples: every kind of model, every rule, every bad example."""

import functools
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
from jax.experimental.ode import odeint
from models_to_clip import MODELS
from oracle import distance, loop, losses_of, norm_of

import jaxdp


def in_dtype(tree: Any, dtype: Any) -> Any:
    cast = lambda leaf: np.asarray(leaf).astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    return jax.tree.map(lambda leaf: jnp.asarray(cast(leaf)), tree)


@functools.cache
def jitted(loss: Callable[..., Any], clip_norm: float, method: str = "ghost") -> Callable[..., Any]:
    """One compiled function for all cases of a loss."""
    return jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, method=method))


@functools.cache
def scaled(name: str, scale: float) -> Callable[..., Any]:
    loss, *_ = MODELS[name]()
    return lambda p, x: loss(p, x) * jnp.float32(scale)


def slow(*values: Any) -> Any:
    """Parameters of a test whose run is left to the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    """The models promote dtypes and ranks as users' models do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@functools.cache
def typical_norm(name: str) -> float:
    """The median length of a model's gradients: at this clip norm some are clipped and some are not."""
    loss, params, batch = MODELS[name]()
    _, norms = loop(loss, params, batch, np.array([True, True, False, True, True, True]), math.inf)
    return float(np.median(norms))


@pytest.mark.slow_but("linen_dense_over_tokens", "linen_conv_2d_strided_dilated", "tied_embedding_language_model")
@pytest.mark.parametrize("name", list(MODELS))
def test_grads_and_norms_are_those_of_a_loop_over_examples(name: str) -> None:
    loss, params, batch = MODELS[name]()
    mask = np.array([True, True, False, True, True, True])
    clip_norm = typical_norm(name)
    expected, norms = loop(loss, params, batch, mask, clip_norm)
    out = jitted(loss, clip_norm)(params, batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5, atol=1e-30)
    assert distance(out.grads, expected) <= 1e-5 * sum(min(n, clip_norm) for n in norms)
    np.testing.assert_allclose(out.losses, np.where(mask, losses_of(loss, params, batch), 0), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["linen_dense_over_tokens", "linen_scanned_transformer", "tied_embedding_language_model"]
)
def test_a_bfloat16_model_agrees_within_its_own_rounding(name: str) -> None:
    loss, params, batch = MODELS[name]()
    params, batch = in_dtype((params, batch), jnp.bfloat16)
    both = [
        jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.1, method=method))(params, batch) for method in ("ghost", "vmap")
    ]
    np.testing.assert_allclose(both[0].norms, both[1].norms, rtol=2e-2)
    assert distance(both[0].grads, both[1].grads) <= 2e-2 * 6 * 0.1
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(both[0].grads))


@pytest.mark.slow_but("linen_dense_over_tokens-nan")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "linen_dense",
        "linen_dense_over_tokens",
        "linen_conv_2d_strided_dilated",
        "linen_conv_of_many_channels_on_few_positions",
        "linen_norm_layers",
        "linen_scanned_transformer",
        "linen_lstm",
        "siamese_net",
        "weight_standardisation",
    ],
)
def test_bad_examples_and_padding_contribute_exactly_zero(name: str, bad: float) -> None:
    loss, params, batch = MODELS[name]()
    grad_fn = jitted(loss, typical_norm(name))
    spoilt, cleaned = (np.array(batch) for _ in range(2))
    spoilt[[1, 4]], cleaned[[1, 4]] = bad, 0
    mask = np.arange(6) != 4
    out = grad_fn(params, jnp.asarray(spoilt), mask=jnp.asarray(mask))
    clean = grad_fn(params, jnp.asarray(cleaned), mask=jnp.asarray(mask & (np.arange(6) != 1)))
    assert not np.isfinite(out.norms[1])
    assert out.norms[4] == 0
    jax.tree.map(np.testing.assert_array_equal, out.grads, clean.grads)


def test_a_bad_cotangent_of_a_lookup_contributes_exactly_zero() -> None:
    loss = lambda table, example: jnp.sum(table[example[0]] * example[1])
    batch = (jnp.array([[0, 1], [1, 2]]), jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[math.nan, 1.0], [1.0, 1.0]]]))
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=100.0, method="ghost"))(jnp.ones((3, 2)), batch)
    np.testing.assert_array_equal(out.grads, [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]])


@pytest.mark.slow
@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(st.data())
def test_dot_general_in_every_arrangement_of_its_axes(data: Any) -> None:
    shared, contracted = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    sizes = lambda n: data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    both, frees = sizes(shared + contracted), (sizes(data.draw(st.integers(0, 2))), sizes(data.draw(st.integers(0, 2))))
    shapes, places = [], []
    for free in frees:
        order = data.draw(st.permutations(range(len(both) + len(free))))
        shapes.append([([*both, *free])[i] for i in order])
        places.append([order.index(i) for i in range(len(both))])
    numbers = (tuple(tuple(p[shared:]) for p in places), tuple(tuple(p[:shared]) for p in places))
    weight_first = data.draw(st.booleans())
    product = lambda a, b: jax.lax.dot_general(a, b, numbers)
    loss = lambda w, x: jnp.sum(jnp.sin(product(w, x) if weight_first else product(x, w)))
    weight, example = shapes if weight_first else shapes[::-1]
    _agrees(loss, jax.random.normal(jax.random.key(1), weight), jax.random.normal(jax.random.key(2), (3, *example)))


@pytest.mark.slow
@hypothesis.settings(max_examples=30, deadline=None, derandomize=True)
@hypothesis.given(
    space=st.integers(1, 3),
    groups=st.sampled_from((1, 2)),
    channels=st.sampled_from((1, 9)),
    out_channels=st.sampled_from((1, 12)),
    images=st.sampled_from((1, 2)),
    data=st.data(),
)
def test_convolutions_of_every_kind(
    space: int, groups: int, channels: int, out_channels: int, images: int, data: Any
) -> None:
    each = lambda low, high: tuple(data.draw(st.lists(st.integers(low, high), min_size=space, max_size=space)))
    window, sides = each(1, 3), each(3, 5)
    padding = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in range(space)]
    options = {"window_strides": each(1, 4), "lhs_dilation": each(1, 2), "rhs_dilation": each(1, 2)}
    hypothesis.assume(
        all(
            (s - 1) * a + 1 + lo + hi >= (w - 1) * b + 1
            for s, w, (lo, hi), a, b in zip(
                sides, window, padding, options["lhs_dilation"], options["rhs_dilation"], strict=True
            )
        )
    )
    letters = "DHW"[:space]
    numbers = data.draw(
        st.sampled_from(
            [(f"N{letters}C", f"{letters}IO", f"N{letters}C"), (f"NC{letters}", f"OI{letters}", f"NC{letters}")]
        )
    )
    kernel = {"I": channels, "O": groups * out_channels} | dict(zip(letters, window, strict=True))
    image = {"N": images, "C": groups * channels} | dict(zip(letters, sides, strict=True))

    def loss(w: Any, x: Any) -> Any:
        out = jax.lax.conv_general_dilated(
            x, w, padding=padding, dimension_numbers=numbers, feature_group_count=groups, **options
        )
        return jnp.sum(jnp.sin(out))

    weight = jax.random.normal(jax.random.key(1), [kernel[c] for c in numbers[1]])
    _agrees(loss, weight, jax.random.normal(jax.random.key(2), (3, *(image[c] for c in numbers[0]))))


def _agrees(loss: Any, params: Any, batch: Any) -> None:
    expected, norms = loop(loss, params, batch, np.ones(3, bool), 1.0)
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost"))(params, batch)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5, atol=1e-6)
    assert distance(out.grads, expected) <= 1e-5 * max(1.0, sum(min(n, 1.0) for n in norms))


def cancelling(seed: int, tokens: int, width: int, tilt: float) -> tuple[Any, Any]:
    """Inputs [1, T, width] and cotangents alike, whose outer products almost cancel, pair by pair."""
    rng = np.random.default_rng(seed)
    inputs, cotangents = rng.normal(size=(2, tokens // 2, width))
    nudge = tilt * rng.normal(size=(tokens // 2, width))
    rows = np.concatenate([inputs, inputs + nudge]), np.concatenate([cotangents, -cotangents])
    left, right = (jnp.asarray(r[None], jnp.float32) for r in rows)
    return left, right


def _one_product(w: Any, example: Any) -> Any:
    return jnp.sum((example[0] @ w) * example[1])


@pytest.mark.slow_but("1e-07-default", "1e-07-bfloat16", "1e-05-tensorfloat32", "0.001-highest")
@pytest.mark.parametrize("precision", ["default", "high", "highest", "bfloat16", "tensorfloat32"])
@pytest.mark.parametrize("tilt", [0.0, 1e-7, 1e-5, 1e-3])
def test_rows_that_cancel_never_pass_the_clip_norm(tilt: float, precision: str) -> None:
    tokens, width, clip_norm = 8, 200, 1.0
    inputs, cotangents = cancelling(3, tokens, width, tilt)
    weight = jnp.zeros((width, width))
    grad_fn = jaxdp.clipped_grad(_one_product, clip_norm=clip_norm, method="ghost")
    assert grad_fn.explain(weight, (inputs, cotangents)).leaves[0].how == "rows"
    with jax.default_matmul_precision(precision):
        out = jitted(_one_product, clip_norm)(weight, (inputs, cotangents))
    exact = np.asarray(inputs[0], np.float64).T @ np.asarray(cotangents[0], np.float64)
    assert out.norms[0] >= norm_of(exact) * (1 - 1e-5)
    # The sum's own float32 rounding is relative to the rows that cancel in it, and is there in any gradient.
    rows = norm_of(np.linalg.norm(inputs[0], axis=1) * np.linalg.norm(cotangents[0], axis=1))
    assert norm_of(out.grads) <= clip_norm * (1 + 1e-5) + 1e-6 * rows * clip_norm / float(out.norms[0])


def test_a_plain_gram_norm_would_have_let_the_cancelling_rows_through() -> None:
    plain = jax.jit(lambda inputs, cotangents: jnp.sum((inputs @ inputs.T) * (cotangents @ cotangents.T)))
    negative = 0
    for seed in range(50):
        inputs, cotangents = cancelling(seed, 8, 200, 1e-7)
        negative += float(plain(np.asarray(inputs)[0], np.asarray(cotangents)[0])) <= 0
    assert negative > 0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
@pytest.mark.parametrize("name", ["linen_dense_over_tokens", "siamese_net", "tied_embedding_language_model"])
def test_norms_neither_overflow_nor_vanish(name: str, scale: float) -> None:
    loss, params, batch = MODELS[name]()
    plain = jitted(loss, 1.0)(params, batch)
    out = jitted(scaled(name, scale), scale)(params, batch)
    np.testing.assert_allclose(np.float64(out.norms) / scale, plain.norms, rtol=1e-5)
    assert distance(jax.tree.map(lambda g: np.float64(g) / scale, out.grads), plain.grads) <= 1e-4


def _two_tokens(w: Any, example: Any) -> Any:
    return jnp.sum((example[0] @ w) * example[1])


def _two_layers(w: Any, example: Any) -> Any:
    """A scan over two weights, each of which meets a row of its own."""
    step = lambda total, xs: (total + jnp.sum((xs[1] @ xs[0]) * xs[2]), None)
    return jax.lax.scan(step, jnp.float32(0), (jnp.stack([w, w]), *example))[0]


def _two_uses(w: Any, example: Any) -> Any:
    return sum(jnp.sum((example[0][i] @ w) * example[1][i]) for i in range(2))


def _normalised_tokens(w: Any, example: Any) -> Any:
    hidden = example[0] @ w
    return jnp.sum(hidden / jnp.max(jnp.abs(hidden), axis=1, keepdims=True) * example[1])


@pytest.mark.slow_but("1e+20-_two_tokens")
@pytest.mark.parametrize("loss", [_two_tokens, _two_layers, _two_uses, _normalised_tokens])
@pytest.mark.parametrize("scale", [1e12, 1e20, 1e30])
def test_rows_of_opposite_scales_are_clipped(loss: Any, scale: float) -> None:
    ones, scales = np.ones((1, 2, 64)), np.array([scale, 1 / scale])[None, :, None]
    rows, cotangents = ones * scales, ones / scales if loss is not _normalised_tokens else ones * [[[1.0], [2.0]]]
    cotangents = cotangents * np.linspace(-1, 1, 64)
    example = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (rows, cotangents))
    weight = jax.random.normal(jax.random.key(0), (64, 64))
    out, plain = (jitted(loss, 0.1, method)(weight, example) for method in ("ghost", "vmap"))
    assert norm_of(out.grads) <= 0.1 * (1 + 1e-5)
    np.testing.assert_allclose(out.norms, plain.norms, rtol=1e-5)


def _rows_and_a_bias(p: Any, example: Any) -> Any:
    rows, scale = example
    return jnp.sum((rows @ p["w"]) * scale[:, None]) + jnp.sum(p["b"])


@pytest.mark.slow
@pytest.mark.parametrize("cotangent", [1.0, 1e30])
@pytest.mark.parametrize("other", [None, 1e-35, 1.0])
def test_a_row_of_zeros_spoils_neither_its_example_nor_the_rows_beside_it(
    other: float | None, cotangent: float
) -> None:
    rows = np.zeros((1, 1 if other is None else 2, 4), np.float32)
    rows[:, 1:] = other or 0.0
    scale = np.array([[cotangent, 1e-3][: rows.shape[1]]], np.float32)
    params = {"b": jnp.ones(4), "w": jnp.ones((4, 8))}
    batch = (jnp.asarray(rows), jnp.asarray(scale))
    out = jitted(_rows_and_a_bias, 100.0)(params, batch)
    expected, norms = loop(_rows_and_a_bias, params, batch, [True], 100.0)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5 * norms[0]


@pytest.mark.slow_but("compiled-int8")
@pytest.mark.parametrize("kind", [jnp.int8, jnp.uint8])
@pytest.mark.parametrize("run", [jax.jit, lambda fn: fn], ids=["compiled", "op by op"])
def test_a_part_that_narrow_numbers_place_overlaps_wherever_xla_reads_it(run: Any, kind: Any) -> None:
    """Outside of a compiled program XLA clamps a place in 300, in eight bits, at 42: another part is there."""
    params, place = jnp.arange(300.0), {jnp.int8: 100, jnp.uint8: 200}[kind]

    def loss(params: Any, x: Any) -> Any:
        part = jax.lax.dynamic_slice(params, (jnp.asarray(place, kind),), (2,))
        return jnp.sum(part * x) + jnp.sum(params[42:44] * x) * 2

    clipped = run(jaxdp.clipped_grad(loss, clip_norm=1e-3, method="ghost"))(params, jnp.ones((1, 2)))
    np.testing.assert_allclose(norm_of(clipped.grads), 1e-3, rtol=1e-4)


def test_a_lookup_by_a_number_beyond_signed_ones_is_clamped_at_the_end() -> None:
    with jax.enable_x64(True):
        params, last = jnp.arange(6, dtype=jnp.float32), jnp.full((1, 1), 2**64 - 1, jnp.uint64)
        numbers = jax.lax.GatherDimensionNumbers((), (0,), (0,))

        def loss(params: Any, x: Any) -> Any:
            found = jax.lax.gather(params, last, numbers, (1,), mode="clip")
            return jnp.sum(found * x) + jnp.sum(params[5:] * x) * 2 + jnp.sum(params[:1] * x)

        clipped = jaxdp.clipped_grad(loss, clip_norm=1e-3, method="ghost")(params, jnp.ones((1, 1), jnp.float32))
    np.testing.assert_allclose(norm_of(clipped.grads), 1e-3, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("channels", [3, slow(9)])
def test_a_convolution_without_outputs_adds_nothing(channels: int) -> None:
    kernel, x = jnp.ones((9, 2, channels, 4)), jnp.ones((1, 1, 5, 5, channels))
    convolve = lambda x, kernel: jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    loss = lambda kernel, x: jnp.sum(convolve(x, kernel[:1])) + jnp.sum(convolve(x, kernel))
    clipped = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost")(kernel, x)
    np.testing.assert_allclose(norm_of(clipped.grads), 1, rtol=1e-4)
    assert not np.any(clipped.grads[1:])


def test_a_convolution_whose_padding_takes_away_has_no_rule() -> None:
    """On a CPU XLA's own reads beyond its input: norm and sum would be of other numbers."""
    kernel, x = jnp.ones((3, 2, 16, 6)), jnp.ones((1, 1, 4, 4, 16))

    def loss(kernel: Any, x: Any) -> Any:
        pads = ((-1, 1), (0, 0))
        return jnp.sum(
            jax.lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )

    (leaf,) = jaxdp.clipped_grad(loss, clip_norm=1.0).explain(kernel, x).leaves
    assert leaf.how in ("direct", "materialised"), leaf


@pytest.mark.slow
def test_lookups_outside_a_table_by_two_axes_do_not_count_as_others() -> None:
    loss = lambda table, example: jnp.sum(table[example[0], example[1]] * example[2])
    example = jnp.array([[1, 0]]), jnp.array([[2, 7]]), jnp.array([[[100.0] * 6, [-100.0] * 6]])
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.1, method="ghost"))(jnp.zeros((4, 5, 6)), example)
    np.testing.assert_allclose(out.norms, 100 * math.sqrt(6), rtol=1e-5)
    assert norm_of(out.grads) <= 0.1 * (1 + 1e-5)


def test_a_lookup_outside_the_table_leaves_the_others_their_scale() -> None:
    loss = lambda table, example: jnp.sum(table.at[example[0]].get(mode="fill", fill_value=0) * example[1])
    example = jnp.array([[9, 1]]), jnp.array([[[1e25] * 8, [1.0] * 8]], jnp.float32)
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.1, method="ghost"))(jnp.zeros((4, 8)), example)
    np.testing.assert_allclose(out.norms, math.sqrt(8), rtol=1e-5)
    assert norm_of(out.grads) <= 0.1 * (1 + 1e-5)


def _scanned(table: Any, ids: Any, weights: Any) -> Any:
    step = lambda total, each: (total + jnp.sum(table[each[0][None]] * each[1]), None)
    return jax.lax.scan(step, jnp.float32(0), (ids, weights))[0]


LOOKUPS = {
    "rows": lambda table, ids, weights: sum(jnp.vdot(table[i], w) for i, w in zip(ids, weights, strict=True)),
    "gathers": lambda table, ids, weights: (
        jnp.sum(table[ids[:2]] * weights[:2]) + jnp.sum(table[ids[2:]] * weights[2:])
    ),
    "a row and a gather": lambda table, ids, weights: (
        jnp.vdot(table[ids[0]], weights[0]) + jnp.sum(table[ids[1:]] * weights[1:])
    ),
    "sums": lambda table, ids, weights: (
        jnp.vdot(table[ids[:2]].sum(axis=0), weights[0]) + jnp.vdot(table[ids[1:]].sum(axis=0), weights[2])
    ),
    "one gather": lambda table, ids, weights: jnp.sum(table[ids] * weights),
    "a loop": _scanned,
    "casts": lambda table, ids, weights: sum(
        jnp.sum(table.astype(jnp.float16)[i[None]].astype(jnp.float32) * w) for i, w in zip(ids, weights, strict=True)
    ),
    "a column and rows": lambda table, ids, weights: (
        jnp.vdot(table.T[:, ids[:1]].T, weights[:1]) + jnp.sum(table[ids[1:]] * weights[1:])
    ),
    "columns": lambda table, ids, weights: (
        jnp.sum(table.T[:, ids[:2]] * weights[:2].T) + jnp.sum(table.T[:, ids[2:]] * weights[2:].T)
    ),
}


@pytest.mark.slow_but("one gather")
@pytest.mark.parametrize("name", LOOKUPS)
def test_lookups_whose_cotangents_cancel_take_nothing_from_the_others(name: str) -> None:
    """Of +1e6 and -1e6 in one entry nothing is left; scaled by what is left, they must not stand in the sum of others."""
    size, at = 500, 250
    ids = jnp.zeros((size, 3), jnp.int32)
    weights = jnp.full((size, 3, 16), 0.0371).at[at].set(jnp.asarray([1e6, 0, -1e6])[:, None] * jnp.linspace(1, 2, 16))
    loss = lambda table, example: LOOKUPS[name](table, *example)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost"))
    whole = grad_fn(jnp.zeros((3000, 16)), (ids, weights))
    without = grad_fn(jnp.zeros((3000, 16)), (ids, weights), mask=jnp.arange(size) != at)
    assert distance(whole.grads, without.grads) <= 1e-4  # its own gradient is zero


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(2, 64), (64, 64)])
def test_uses_of_a_matrix_that_cancel_move_the_others_by_less_than_a_hundredth(rows: int, columns: int) -> None:
    size = 1000
    left = jnp.ones((size, rows))
    right = jnp.full((size, columns), 0.04 * 8 / math.sqrt(rows * columns))
    first, second = (right.at[0].set(sign * 1e6) for sign in (1, -1))
    loss = lambda w, example: jnp.vdot(example[0] @ w, example[1]) + jnp.vdot(example[0] @ w, example[2])
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost"))
    whole = grad_fn(jnp.zeros((rows, columns)), (left, first, second))
    without = grad_fn(jnp.zeros((rows, columns)), (left, first, second), mask=jnp.arange(size) > 0)
    assert distance(whole.grads, without.grads) <= 0.01  # its own gradient is zero


@pytest.mark.slow_but("3-casts")
@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("entries", [3, 300])
def test_lookups_that_meet_are_clipped_as_the_loop_clips(name: str, entries: int) -> None:
    random = np.random.default_rng(entries)
    example = (
        random.integers(-1, 4, (40, 3)).astype(np.int32) % entries,
        random.normal(size=(40, 3, 4)).astype(np.float32),
    )
    table = jnp.asarray(random.normal(size=(entries, 4)), jnp.float32)
    loss = lambda table, example: jnp.tanh(LOOKUPS[name](table, *example) / 4)
    expected, norms = loop(loss, table, example, [True] * 40, 0.2)
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.2, method="ghost"))(table, example)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5 * sum(min(n, 0.2) for n in norms)


@pytest.mark.slow
def test_parameters_that_a_loop_in_a_remat_makes_are_no_use_of_the_first_at_each_step() -> None:
    copy = jax.custom_vjp(lambda w: w)
    copy.defvjp(lambda w: (w, None), lambda _, g: (g,))

    def loss(params: Any, x: Any) -> Any:
        def run(x: Any) -> Any:
            step = lambda power, _: (power @ copy(params["by"]), None)
            return jnp.tanh(x @ jax.lax.scan(step, params["first"], None, length=3)[0])

        return jnp.sum(jax.checkpoint(run)(x))

    random = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(random.normal(size=shape) / 2, jnp.float32)
    params, batch = {"first": draw(4, 4), "by": draw(4, 4)}, draw(3, 4)
    expected, norms = loop(loss, params, batch, [True] * 3, 0.2)
    out = jaxdp.clipped_grad(loss, clip_norm=0.2, method="ghost")(params, batch)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("ghost", jnp.float32),  # as in test_rules.py, of lengths over thirty orders of magnitude
        ("ghost", jnp.bfloat16),
        ("ghost", jnp.float16),
        ("vmap", jnp.float32),
        ("vmap", jnp.bfloat16),
        ("vmap", jnp.float16),
    ],
)
@pytest.mark.parametrize(
    "name", ["linen_dense_over_tokens", "linen_lstm", "siamese_net", "tied_embedding_language_model"]
)
def test_removing_an_example_moves_the_sum_by_at_most_the_clip_norm(name: str, dtype: Any, method: str) -> None:
    loss, params, batch = MODELS[name]()
    params, batch = in_dtype((params, batch), dtype)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.01, method=method))
    whole = grad_fn(params, batch)
    assert np.max(whole.norms) > 0.01
    for i in range(6):
        without = grad_fn(params, batch, mask=jnp.asarray(np.arange(6) != i))
        assert distance(whole.grads, without.grads) <= 0.01 * (1 + 1e-5)


@pytest.mark.slow_but("siamese_net")
@pytest.mark.parametrize(
    "name",
    [
        slow("tied_embedding_language_model"),
        "siamese_net",
        slow("linen_scanned_transformer"),
        "linen_dense_over_tokens",
    ],
)
def test_these_models_are_clipped_without_materialising(name: str) -> None:
    loss, params, batch = MODELS[name]()
    report = jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch)
    assert {leaf.how for leaf in report.leaves} <= {"rows", "direct"}
    jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, strict=True))(params, batch)


def test_the_explanation_names_every_parameter_and_the_place_that_has_no_rule() -> None:
    loss, params, batch = MODELS["branch_and_regulariser"]()
    report = jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch)
    assert [leaf.name for leaf in report.leaves] == ["['v']", "['w']"]
    assert {leaf.how for leaf in report.leaves} == {"materialised"}
    assert "models_to_clip.py" in str(report.leaves[1].why)
    with pytest.raises(jaxdp.UsageError, match=r"strict=True: params\['v'\].*models_to_clip"):
        jaxdp.clipped_grad(loss, clip_norm=1.0, strict=True)(params, batch)


def test_the_explanation_says_which_parameter_is_unused() -> None:
    loss, params, batch = MODELS["an_unused_parameter"]()
    assert "unused" in str(jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch))


def test_shapes_are_explained_as_the_arrays_are() -> None:
    loss, params, batch = MODELS["siamese_net"]()
    explain = jaxdp.clipped_grad(loss, clip_norm=1.0).explain
    assert str(explain(*jax.eval_shape(lambda: (params, batch)))) == str(explain(params, batch))


def test_strict_materialisation_is_a_contradiction() -> None:
    with pytest.raises(jaxdp.UsageError, match="strict=True refuses"):
        jaxdp.clipped_grad(lambda w, x: w * x, clip_norm=1.0, method="vmap", strict=True)


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_a_loss_with_effects_is_refused(method: str) -> None:
    def loss(w: Any, x: Any) -> Any:
        jax.debug.print("{}", x)
        return w * x

    with pytest.raises(jaxdp.UsageError, match="the loss has effects"):
        jaxdp.clipped_grad(loss, clip_norm=1.0, method=method)(jnp.float32(1), jnp.ones(3))


@pytest.mark.slow
def test_a_microbatched_sum_is_the_same() -> None:
    loss, params, batch = MODELS["linen_dense_over_tokens"]()
    whole, parts = [
        jax.jit(jaxdp.clipped_grad(loss, clip_norm=0.1, microbatch_size=size))(params, batch) for size in (None, 4)
    ]
    np.testing.assert_allclose(whole.norms, parts.norms, rtol=1e-6)
    assert distance(whole.grads, parts.grads) <= 1e-6


def assert_ghost_is_vmap(loss: Any) -> None:
    """Of weights [6, 6] and three examples [4, 6]."""
    w, x = jnp.eye(6), jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 6)), jnp.float32)
    expected = jaxdp.clipped_grad(loss, clip_norm=1.0, method="vmap")(w, x)
    found = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost")(w, x)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5)
    np.testing.assert_allclose(found.grads, expected.grads, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_work_on_weights_that_has_a_constant_beside_it_is_taken_out_of_a_loop_whole() -> None:
    def loss(w: Any, x: Any) -> Any:
        def cell(h: Any, row: Any) -> tuple[Any, None]:
            a, b = jax.checkpoint(lambda w: (jnp.sin(w), jnp.arange(6.0)))(w)
            return jnp.tanh(h @ a + row * b), None

        return jnp.sum(jax.lax.scan(cell, jnp.zeros(6), x)[0])

    assert_ghost_is_vmap(loss)


@pytest.mark.slow
def test_a_gradient_of_its_own_on_weights_in_a_loop_is_taken_of_each_step() -> None:
    limited = jax.custom_vjp(lambda w: w)
    limited.defvjp(lambda w: (w, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))

    def loss(w: Any, x: Any) -> Any:
        cell = lambda h, row: (jnp.tanh(limited(w) @ h + row), None)
        return jnp.sum(jax.lax.scan(cell, jnp.zeros(6), x)[0])

    assert_ghost_is_vmap(loss)


@pytest.mark.slow
def test_times_of_a_differential_equation_are_arrays_on_the_way_back() -> None:
    def loss(w: Any, x: Any) -> Any:
        flow = lambda h, t: jnp.tanh(w @ h)
        return jnp.sum(jnp.square(odeint(flow, x[0], np.asarray([0.0, 0.5, 1.0], np.float32))))

    assert_ghost_is_vmap(loss)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_draws_for_the_steps_of_a_loop_are_those_that_the_loss_makes(impl: str) -> None:
    """Weights under noise of each step's own key, which depend on no example: moved out of the loop, but not vectorised."""
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)

    def noisy(w: Any, x: Any) -> Any:
        step = lambda carry, key: (jnp.tanh(carry @ (w * (1 + 0.5 * jax.random.normal(key, w.shape)))), None)
        return jnp.sum(jnp.square(jax.lax.scan(step, x, jax.random.clone(keys))[0]))

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(6, 6)).astype(np.float32), rng.normal(size=(3, 6)).astype(np.float32)
    with jax.debug_key_reuse(False):
        found, expected = (jaxdp.clipped_grad(noisy, clip_norm=0.5, method=method)(w, x) for method in ("auto", "vmap"))
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.grads, expected.grads, rtol=1e-4, atol=1e-5)


def test_weights_that_are_named_and_placed_are_not_formed_for_that() -> None:
    loss, params, batch = MODELS["weights_that_are_named_and_placed"]()
    report = jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch)
    assert not any("transformed" in leaf.why for leaf in report.leaves)


def test_a_penalty_in_the_loss_is_told_where_it_belongs() -> None:
    params, batch = {"w": jnp.ones((5, 3)), "b": jnp.ones(3)}, jnp.ones((2, 5))
    loss = lambda p, x: jnp.sum(jnp.square(x @ p["w"] + p["b"])) + 0.1 * optax.tree.norm(p, squared=True)
    first, *_ = jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch).leaves
    assert "optax.add_decayed_weights" in first.why
