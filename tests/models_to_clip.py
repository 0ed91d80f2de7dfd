"""One table of models in which parameters are used in every way that the clipping rules name.

Each entry makes `(loss, params, batch)`: a loss for one example, float32 parameters, and a batch of six. It makes them once:
tests that ask for the same model share its loss, and so what JAX has compiled of it. Numbers are drawn by NumPy, without a
program for each shape.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

Problem = tuple[Callable[..., Any], Any, Any]
MODELS: dict[str, Callable[[], Problem]] = {}


def model(make: Callable[[], Problem]) -> Callable[[], Problem]:
    """Enter a maker into the table."""
    MODELS[make.__name__] = functools.cache(make)
    return make


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def integers(low: int, high: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(low, high, shape).astype(np.int32))


def initialised(shapes: Any) -> Any:
    """Parameters of these shapes: kernels by their fan-in, scales about one and biases about zero."""
    rng = np.random.default_rng(7)

    def draw(path: Any, leaf: Any) -> jax.Array:
        spread = 0.1 if leaf.ndim < 2 else math.sqrt(leaf.shape[-1] / leaf.size)
        values = ("scale" in jax.tree_util.keystr(path)) + spread * rng.normal(size=leaf.shape)
        return jnp.asarray(np.asarray(values).astype(leaf.dtype))

    return jax.tree_util.tree_map_with_path(draw, shapes)


def of_linen(module: nn.Module, batch: Any) -> Problem:
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    params = initialised(jax.eval_shape(module.init, jax.random.key(7), example))
    return (lambda p, x: jnp.mean(jnp.square(module.apply(p, x)))), params, batch


def of_weights(loss: Callable[..., Any], batch: Any, **shapes: tuple[int, ...]) -> Problem:
    return loss, {name: normal(i, *shape) for i, (name, shape) in enumerate(shapes.items())}, batch


def square(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x))


@model
def linen_dense() -> Problem:
    return of_linen(nn.Sequential([nn.Dense(12), nn.relu, nn.Dense(3)]), normal(0, 6, 9))


@model
def linen_dense_over_tokens() -> Problem:
    return of_linen(nn.Sequential([nn.Dense(24), nn.tanh, nn.Dense(20)]), normal(0, 6, 3, 16))


@model
def linen_dense_general_over_two_axes() -> Problem:
    return of_linen(nn.DenseGeneral((3, 4), axis=(-2, -1)), normal(0, 6, 5, 2, 6))


@model
def linen_einsum() -> Problem:
    return of_linen(nn.Einsum((4, 3, 5), "tk,kde->tde"), normal(0, 6, 7, 4))


@model
def linen_conv_1d() -> Problem:
    return of_linen(nn.Conv(5, (3,)), normal(0, 6, 9, 4))


@model
def linen_conv_2d_strided_dilated() -> Problem:
    return of_linen(
        nn.Sequential([nn.Conv(4, (3, 2), 2), nn.tanh, nn.Conv(3, (2, 2), kernel_dilation=2)]), normal(0, 6, 8, 7, 2)
    )


@model
def linen_conv_3d() -> Problem:
    return of_linen(nn.Conv(3, (2, 2, 2)), normal(0, 6, 4, 4, 3, 2))


@model
def linen_conv_grouped_and_depthwise() -> Problem:
    return of_linen(
        nn.Sequential([nn.Conv(8, (3, 3), feature_group_count=2), nn.Conv(8, (3, 3), feature_group_count=8)]),
        normal(0, 6, 5, 5, 4),
    )


@model
def linen_conv_transposed() -> Problem:
    return of_linen(nn.ConvTranspose(3, (3, 3), (2, 2)), normal(0, 6, 4, 4, 2))


@model
def linen_conv_of_many_channels_on_few_positions() -> Problem:
    return of_linen(nn.Conv(40, (3, 3)), normal(0, 6, 2, 2, 24))


@model
def linen_norm_layers() -> Problem:
    layers = [nn.Conv(8, (3, 3)), nn.GroupNorm(2), nn.relu, nn.LayerNorm(), nn.RMSNorm(), jnp.ravel, nn.Dense(3)]
    return of_linen(nn.Sequential(layers), normal(0, 6, 4, 4, 2))


@model
def linen_embedding() -> Problem:
    return of_linen(nn.Sequential([nn.Embed(30, 8), nn.Dense(5)]), integers(0, 30, 6, 7))


@model
def recommender() -> Problem:
    """Matrix factorisation: a row of each table at one index, which is no gather."""
    params = {"users": normal(0, 40, 6), "items": normal(1, 30, 6), "bias": normal(2, 30)}

    def loss(params: Any, example: Any) -> Any:
        user, item, rating = example
        return (jnp.dot(params["users"][user], params["items"][item]) + params["bias"][item] - rating) ** 2

    return loss, params, (integers(0, 40, 6), integers(0, 30, 6), normal(3, 6))


@model
def linen_attention() -> Problem:
    return of_linen(nn.MultiHeadDotProductAttention(2, qkv_features=8), normal(0, 6, 5, 8))


@model
def linen_lstm() -> Problem:
    return of_linen(nn.RNN(nn.OptimizedLSTMCell(10)), normal(0, 6, 5, 4))


@model
def linen_gru() -> Problem:
    return of_linen(nn.RNN(nn.GRUCell(6)), normal(0, 6, 4, 3))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(2)(y, y)
        return x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))), None


class Stack(nn.Module):
    remat: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        block = nn.remat(Block) if self.remat else Block
        return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()(x, None)[0]


@model
def linen_scanned_transformer() -> Problem:
    return of_linen(Stack(), normal(0, 6, 4, 8))


@model
def linen_scanned_and_rematerialised_transformer() -> Problem:
    return of_linen(Stack(remat=True), normal(0, 6, 4, 8))


@model
def linen_weight_norm() -> Problem:
    return of_linen(nn.WeightNorm(nn.Dense(6)), normal(0, 6, 3, 5))


def of_nnx(make: Callable[[], Any]) -> tuple[Any, Any]:
    graph, shapes = nnx.split(nnx.eval_shape(make))
    return graph, initialised(shapes)


@model
def nnx_mlp() -> Problem:
    graph, params = of_nnx(
        lambda: nnx.Sequential(nnx.Linear(6, 9, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(9, 2, rngs=nnx.Rngs(1)))
    )
    return (lambda p, x: square(nnx.merge(graph, p)(x))), params, normal(0, 6, 6)


@model
def nnx_conv_with_layer_norm() -> Problem:
    graph, params = of_nnx(
        lambda: nnx.Sequential(nnx.Conv(2, 4, (3, 3), rngs=nnx.Rngs(0)), nnx.LayerNorm(4, rngs=nnx.Rngs(1)))
    )
    return (lambda p, x: square(nnx.merge(graph, p)(x[None]) ** 2)), params, normal(0, 6, 5, 5, 2)


@model
def nnx_embedding_and_einsum() -> Problem:
    graph, params = of_nnx(
        lambda: (nnx.Embed(11, 4, rngs=nnx.Rngs(0)), nnx.Einsum("td,de->te", (4, 6), rngs=nnx.Rngs(1)))
    )

    def loss(p: Any, tokens: Any) -> Any:
        embed, mix = nnx.merge(graph, p)
        return square(mix(embed(tokens)))

    return loss, params, integers(0, 11, 6, 5)


def of_equinox(
    make: Callable[[jax.Array], Any], batch: Any, apply: Callable[..., Any] = lambda net, x: net(x)
) -> Problem:
    is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    shapes, static = eqx.partition(eqx.filter_eval_shape(make, jax.random.key(0)), is_shape)
    params = initialised(shapes)
    return (lambda p, x: square(apply(eqx.combine(p, static), x))), params, batch


@model
def equinox_mlp() -> Problem:
    return of_equinox(lambda key: eqx.nn.MLP(5, 3, 8, 2, key=key), normal(0, 6, 5))


@model
def equinox_conv() -> Problem:
    return of_equinox(lambda key: eqx.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, key=key), normal(0, 6, 4, 7, 7))


@model
def equinox_gru_in_a_scan() -> Problem:
    def apply(cell: Any, xs: Any) -> Any:
        return jax.lax.scan(lambda h, x: (cell(x, h), h), jnp.zeros(6), xs)[0]

    return of_equinox(lambda key: eqx.nn.GRUCell(4, 6, key=key), normal(0, 6, 5, 4), apply)


@model
def equinox_attention() -> Problem:
    make = lambda key: eqx.nn.MultiheadAttention(2, 8, key=key)
    return of_equinox(make, normal(0, 6, 4, 8), lambda net, x: net(x, x, x))


@model
def tied_embedding_language_model() -> Problem:
    def loss(p: Any, tokens: Any) -> Any:
        hidden = jnp.tanh(p["table"][tokens] @ p["w"])
        return -jnp.mean(jax.nn.log_softmax(hidden @ p["table"].T)[jnp.arange(6), tokens])

    tokens = integers(0, 40, 6, 6)
    return of_weights(loss, tokens, table=(40, 12), w=(12, 12))


@model
def lookup_out_of_bounds() -> Problem:
    def loss(p: Any, i: Any) -> Any:
        taken = jnp.take(p["table"], i, axis=0, mode="fill", fill_value=0.5)
        return square(taken + jnp.take(p["other"], i, axis=0, mode="clip"))

    return of_weights(loss, integers(-3, 9, 6, 4), table=(6, 3), other=(6, 3))


@model
def bag_of_words() -> Problem:
    def loss(p: Any, words: Any) -> Any:
        return square(jnp.mean(jnp.take(p["table"], words, axis=0, mode="fill", fill_value=0.5), axis=0) @ p["w"])

    return of_weights(loss, integers(0, 6, 6, 9), table=(4, 5), w=(5, 3))


@model
def bag_of_words_and_a_lookup_in_the_same_table() -> Problem:
    def loss(p: Any, words: Any) -> Any:
        return square(jnp.sum(p["table"][words], axis=0) * p["table"][words[::2]])

    return of_weights(loss, integers(0, 5, 6, 9), table=(5, 6))


@model
def lookups_in_a_long_text() -> Problem:
    def loss(p: Any, words: Any) -> Any:
        return square(jnp.tanh(p["table"][words])) + square(jnp.sum(p["other"][words], axis=0))

    return of_weights(loss, integers(0, 700, 6, 300), table=(700, 3), other=(700, 2))


@model
def lookup_on_two_axes() -> Problem:
    return of_weights(
        lambda p, i: square(p["table"][i[:, 0], i[:, 1]]),
        integers(0, 4, 6, 4, 2),
        table=(4, 5, 3),
    )


@model
def siamese_net() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        embed = lambda x: jnp.tanh(x @ p["w"]) @ p["v"]
        return square(embed(x[0]) - embed(x[1]))

    return of_weights(loss, normal(9, 6, 2, 8), w=(8, 7), v=(7, 3))


@model
def siamese_convolution() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        embed = lambda x: jnp.tanh(jax.lax.conv(x[None], p["k"], (1, 1), "SAME"))
        return square(embed(x[0]) - embed(x[1]))

    return of_weights(loss, normal(9, 6, 2, 20, 2, 2), k=(24, 20, 3, 3))


@model
def one_weight_and_its_transpose() -> Problem:
    return of_weights(lambda p, x: square(jnp.tanh(x @ p["w"]) @ p["w"].T), normal(9, 6, 3, 16), w=(16, 14))


@model
def one_weight_in_two_shapes() -> Problem:
    return of_weights(
        lambda p, x: square(x @ p["w"]) + square(x[:, :3] @ p["w"].reshape(3, 8)), normal(9, 6, 2, 4), w=(4, 6)
    )


@model
def weights_for_each_head() -> Problem:
    return of_weights(lambda p, x: square(jnp.einsum("thp,hpd->thd", x, p["w"])), normal(9, 6, 2, 3, 8), w=(3, 8, 7))


@model
def weight_standardisation() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        w = p["w"]
        w = (w - jnp.mean(w, axis=0, keepdims=True)) / (jnp.std(w, axis=0, keepdims=True) + 1e-3)
        return square(jnp.tanh(x @ w))

    return of_weights(loss, normal(9, 6, 3, 8), w=(8, 5))


@model
def spectral_scaling() -> Problem:
    loss = lambda p, x: square(jnp.tanh(x @ (p["w"] / jnp.linalg.norm(p["w"]))))
    return of_weights(loss, normal(9, 6, 3, 8), w=(8, 5))


@model
def weights_whose_lengths_are_held_fixed() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        length = jax.lax.stop_gradient(jnp.linalg.norm(p["w"], axis=0))
        return square(jnp.tanh(x @ p["w"] * (p["scale"] / length)))

    return of_weights(loss, normal(9, 6, 3, 8), w=(8, 5), scale=(5,))


@model
def one_weight_with_and_without_its_gradient() -> Problem:
    def loss(p: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            return jnp.tanh(x @ p["w"] + h @ jax.lax.stop_gradient(p["w"].T @ p["w"] / 8)), None

        return square(jax.lax.scan(step, jnp.zeros((3, 5)), xs)[0] @ jax.lax.stop_gradient(2 * p["v"])) + square(p["v"])

    return of_weights(loss, normal(9, 6, 4, 3, 8), w=(8, 5), v=(5, 2))


@model
def low_rank_update_of_a_frozen_weight() -> Problem:
    frozen = normal(20, 8, 7)
    return of_weights(lambda p, x: square(x @ (frozen + p["a"] @ p["b"])), normal(9, 6, 3, 8), a=(8, 2), b=(2, 7))


@model
def fused_and_split_weights() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        q, k = jnp.split(p["qk"], 2, axis=1)
        return square(x @ q) + square(x @ jnp.concatenate([k, p["v"]], axis=1))

    return of_weights(loss, normal(9, 6, 3, 8), qk=(8, 10), v=(8, 3))


@model
def weights_stacked_and_indexed() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        for i in range(3):
            x = x + (jnp.tanh(x @ p["gate"][i]) * (x @ p["up"][i])) @ p["down"][i] + p["bias"][i]
        return square(x)

    return of_weights(loss, normal(9, 6, 4, 5), gate=(3, 5, 7), up=(3, 5, 7), down=(3, 7, 5), bias=(3, 5))


@model
def weights_in_one_vector() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        w, b, v = jnp.split(p["flat"], [40, 48])
        w = w.reshape(5, 8)
        return square(jnp.tanh(x @ w + b) @ v.reshape(8, 6)) + square(jnp.tanh(x @ w) @ w.T)

    return of_weights(loss, normal(9, 6, 4, 5), flat=(96,))


@model
def parts_of_a_weight_that_overlap() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        y = jnp.tanh(x @ p["w"][:, :4]) @ p["w"][1:5, 2:] + square(x @ p["w"][:, ::2])
        return square(y) + square(x @ p["v"][1]) + square(jnp.sin(x) @ p["v"][1]) + square(x[0] @ p["v"][0, :, 1:3])

    return of_weights(loss, normal(9, 6, 3, 6), w=(6, 6), v=(2, 6, 4))


@model
def parts_of_parts_that_overlap() -> Problem:
    """Two parts that share entries are cut out of one part, which others are cut out of, too."""

    def loss(p: Any, x: Any) -> Any:
        part = p["w"][0:9]
        y = square(part[0:2] * x[:2]) + square(jnp.sin(part[1:3] * x[2:]))
        return y + square(part[5:7] * x[:2]) + square(jnp.sin(p["w"][6:8] * x[1:3])) + square(p["w"][5:7] * x[0])

    return of_weights(loss, normal(9, 6, 4), w=(12,))


@model
def pairs_of_parts_that_overlap_pair_by_pair() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        w, v = p["w"], p["v"]
        first = jnp.sum(jnp.sin(w[0:2] * x[:2]) + jnp.sin(w[1:3] * x[2:]))
        second = jnp.sum(jnp.sin(w[5:7] * x[:2]) + jnp.sin(w[6:8] * x[1:3]))
        joined = square(jnp.sin(jnp.concatenate([v[0:2], p["a"]]) * x)) + square(v[0:2] * x[:2])
        return (
            first + second + joined + square(jnp.sin(jnp.concatenate([v[2:4], p["b"]]) * x)) + square(v[2:4] * x[1:3])
        )

    return of_weights(loss, normal(9, 6, 4), w=(8,), v=(4,), a=(2,), b=(2,))


@model
def parts_at_numbers_that_are_cast() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        places = (jnp.arange(3.0) * 1.5).astype(jnp.int32)
        at = jnp.float32(257.0).astype(jnp.bfloat16).astype(jnp.int32) - 255
        w = jax.lax.dynamic_slice(p["w"].astype(jnp.float32), (at, jnp.int32(0)), (2, 4))
        return square(jnp.sin(p["w"][places] @ x)) + square(jnp.tanh(w @ x))

    return of_weights(loss, normal(9, 6, 4), w=(8, 4))


@model
def carries_that_take_parameters_up() -> Problem:
    """Of loops that the example enters: they begin without parameters, and are made of nothing else from a step on."""

    def loss(p: Any, x: Any) -> Any:
        none = jnp.zeros_like(p["a"])
        steps = jax.lax.scan(lambda c, row: (c + p["a"], jnp.sum(jnp.sin((c + p["a"]) * row))), none, x)[1]
        late = jax.lax.scan(lambda c, row: (p["a"], jnp.sum(jnp.cos(c * row))), none, x)[1]
        layer = lambda c, w: ((jnp.tanh(w @ c[0]), c[1] + square(w)), None)
        (hidden, penalty), _ = jax.lax.scan(layer, (x[0], square(none)), p["w"])
        start = jax.lax.stop_gradient(p["a"])
        mean = jax.lax.scan(lambda c, row: (0.9 * c + 0.1 * p["a"], jnp.sum(jnp.sin(c * row))), start, x)[1]
        return jnp.sum(steps) + jnp.sum(late) + square(hidden) + 0.1 * penalty + jnp.sum(mean)

    return of_weights(loss, normal(9, 6, 3, 4), a=(4,), w=(2, 4, 4))


@model
def more_than_rows_out_of_loops_and_rematerialised_layers() -> Problem:
    """Layers and loops that read the example also return what isn't computed from it: a penalty, positions, a weight, a mask."""

    def loss(p: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), square(w)))
        hidden, penalties = jax.lax.scan(layer, x[0], p["w"])
        rows, places = jax.checkpoint(lambda x: (jnp.tanh(x), jnp.arange(4)))(x)
        total, ones = jax.lax.scan(lambda c, row: (c + row, jnp.ones(4)), jnp.zeros(4), x)

        def scanned(c: Any, row: Any) -> Any:
            halved = jax.lax.scan(lambda d, v: (d + v, p["a"] / 2), row, x)[1]
            kept, mask = jax.checkpoint(lambda c: (jnp.sin(c), jnp.arange(4) % 2))(c)
            return kept + halved[0] + row * (p["a"] * mask), None

        last = jax.lax.scan(scanned, x[0], x)[0]
        return (
            square(hidden)
            + 0.01 * jnp.sum(penalties)
            + square(rows @ p["w"][0][places])
            + square(total @ p["b"] * ones)
            + square(last)
        )

    return of_weights(loss, normal(9, 6, 3, 4), w=(2, 4, 4), a=(4,), b=(4, 4))


@model
def parts_of_a_weight_gathered_by_constants() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        y = jnp.tanh(x + p["positions"][jnp.arange(4)])
        y = y @ p["w"][jnp.array([4, 2, 0])].reshape(-1, 7)[:5]
        return square(y) + square(jnp.tanh(x @ jnp.take(p["w"], jnp.array([1, 3, 1]), axis=0)))

    return of_weights(loss, normal(9, 6, 4, 5), positions=(9, 5), w=(5, 5, 7))


@model
def recurrence_with_weights_in_the_carry() -> Problem:
    def loss(p: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            w, h = carry
            return (w, jnp.tanh(h @ (2 * w) + x)), None

        return square(jax.lax.scan(step, (p["w"], p["h"]), xs)[0][1])

    return of_weights(loss, normal(9, 6, 4, 5), w=(5, 5), h=(5,))


@model
def scan_in_a_scan() -> Problem:
    def loss(p: Any, xs: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            step = lambda h, x: (jnp.tanh(h @ w["rec"] + x @ p["shared"]),) * 2
            return jax.lax.scan(step, jnp.zeros(5, x.dtype), x)[1], None

        return square(jax.lax.scan(layer, xs, {"rec": p["rec"]})[0])

    return of_weights(loss, normal(9, 6, 4, 5), rec=(3, 5, 5), shared=(5, 5))


@model
def branch_and_regulariser() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        y = jax.lax.cond(x[0] > 0, lambda: x @ p["w"], lambda: -2 * (x @ p["w"]))
        return square(y @ p["v"]) + 0.1 * jnp.sum(jnp.square(p["v"]))

    return of_weights(loss, normal(9, 6, 6), w=(6, 4), v=(4, 3))


@model
def custom_gradients() -> Problem:
    @jax.custom_vjp
    def scaled(w: Any, x: Any) -> Any:
        return x @ w

    scaled.defvjp(lambda w, x: (x @ w, (w, x)), lambda kept, g: (3 * jnp.outer(kept[1], g), g @ kept[0].T))
    clipped = jax.custom_jvp(lambda x: jnp.clip(x, -1, 1))
    clipped.defjvp(lambda primals, tangents: (clipped(*primals), 0.5 * tangents[0]))
    return of_weights(lambda p, x: square(clipped(scaled(p["w"], x)) @ p["v"]), normal(9, 6, 6), w=(6, 4), v=(4, 3))


@model
def while_loop_on_the_example() -> Problem:
    def loss(p: Any, x: Any) -> Any:
        halved = jax.lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 1, lambda y: y / 2, x)
        return square(halved @ p["w"])

    return of_weights(loss, normal(9, 6, 6), w=(6, 4))


@model
def weights_that_are_named_and_placed() -> Problem:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])

    def loss(p: Any, x: Any) -> Any:
        w = jax.lax.with_sharding_constraint(p["w"], jax.NamedSharding(mesh, jax.P()))
        return square(jnp.tanh(x @ w) @ checkpoint_name(jax.lax.optimization_barrier(p["v"]), "v"))

    return of_weights(loss, normal(9, 6, 7, 6), w=(6, 4), v=(4, 3))


@model
def an_unused_parameter() -> Problem:
    return of_weights(lambda p, x: square(x @ p["w"]), normal(9, 6, 6), w=(6, 4), unused=(3,))
