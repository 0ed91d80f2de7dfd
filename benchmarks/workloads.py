"""The models that the benchmarks run: each a loss for one example, parameters and a batch, made from a fixed seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxdp.models import CNN, MLP


@dataclass(frozen=True)
class Workload:
    """A model with a batch: `loss(params, example)` for one example, `batch_loss(params, batch)` for all, [B]."""

    name: str
    batch_size: int
    loss: Callable[[Any, Any], Any]
    batch_loss: Callable[[Any, Any], Any]
    params: Any
    batch: Any

    def replaced(self, like: Callable[..., Any], weights: Any, inputs: Any, labels: Any) -> "Workload":
        """The same model with weights in canonical arrays (`like` reads them, see canonical.py) and a batch."""
        params = jax.tree.map(jnp.asarray, like(self.params, weights))
        return replace(self, params=params, batch=(jnp.asarray(inputs), jnp.asarray(labels)))


def _classifier(
    name: str, size: int, model: Any, inputs: jax.Array, classes: int, batched: Callable[..., Any] | None = None
) -> Workload:
    labels = jax.random.randint(jax.random.key(1), (size,), 0, classes)
    params = jax.jit(model.init)(jax.random.key(2), inputs[0])
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    loss = lambda p, example: cross_entropy(model.apply(p, example[0]), example[1])
    apply = batched or jax.vmap(model.apply, (None, 0))
    batch_loss = lambda p, batch: cross_entropy(apply(p, batch[0]), batch[1])
    return Workload(name, size, loss, batch_loss, params, (inputs, labels))


def _normal(size: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (size, *shape))


class _TutorialCNN(nn.Module):
    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        return CNN(num_classes=10)(image, train=True)


def cnn(size: int = 256) -> Workload:
    """The tutorials' CNN on 28 × 28 images, 26,010 parameters."""
    return _classifier("cnn", size, _TutorialCNN(), _normal(size, 28, 28, 1), 10)


class _FlaxCNN(nn.Module):
    """The same network as most would write it, in flax's own layers."""

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        pool = lambda x: nn.max_pool(x, (2, 2), (1, 1))
        x = pool(jnp.tanh(nn.Conv(16, (8, 8), 2, padding=[(3, 3), (3, 3)])(image)))
        x = pool(jnp.tanh(nn.Conv(32, (4, 4), 2, padding="VALID")(x)))
        x = jnp.tanh(nn.Dense(32)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(10)(x)


def flax_cnn(size: int = 256) -> Workload:
    """The tutorials' CNN in flax's own convolution and pooling."""
    model = _FlaxCNN()
    return _classifier("cnn", size, model, _normal(size, 28, 28, 1), 10, model.apply)


class _TutorialMLP(nn.Module):
    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        return MLP(num_classes=10, dropout=0.0)(image, train=True)


def tutorial_mlp(size: int = 256) -> Workload:
    """784 – 256 – 64 – 10 without dropout, whose masks no two libraries share."""
    return _classifier("tutorial-mlp", size, _TutorialMLP(), _normal(size, 28, 28, 1), 10)


def mlp(size: int = 256, width: int = 1024) -> Workload:
    """784 – width – width – 10; 1.9 million parameters as it comes."""
    model = nn.Sequential([nn.Dense(width), nn.relu, nn.Dense(width), nn.relu, nn.Dense(10)])
    return _classifier("mlp", size, model, _normal(size, 784), 10, model.apply)


class _Transformer(nn.Module):
    """Pre-norm blocks of width 256 with four heads, mean pooling."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(256)(x) + self.param("positions", nn.initializers.normal(0.02), (x.shape[-2], 256))
        for _ in range(4):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(4)(y, y)
            x = x + nn.Dense(256)(nn.gelu(nn.Dense(1024)(nn.LayerNorm()(x))))
        return nn.Dense(10)(jnp.mean(nn.LayerNorm()(x), axis=-2))


def transformer(size: int, tokens: int) -> Workload:
    """Four blocks of width 256 on sequences of 28 numbers a token."""
    model = _Transformer()
    return _classifier(f"transformer-{tokens}", size, model, _normal(size, tokens, 28), 10, model.apply)


class _LSTM(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(10)(jnp.asarray(nn.RNN(nn.OptimizedLSTMCell(128, param_dtype=x.dtype))(x))[..., -1, :])


def lstm(size: int = 256) -> Workload:
    """An LSTM of 128 units over 64 steps of 28 numbers."""
    model = _LSTM()
    return _classifier("lstm", size, model, _normal(size, 64, 28), 10, model.apply)


class _Text(nn.Module):
    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = jnp.mean(nn.Embed(32_000, 64)(tokens), axis=-2)
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


def text(size: int = 256) -> Workload:
    """The mean of 64 tokens' embeddings, vocabulary 32,000, and two dense layers."""
    model = _Text()
    tokens = jax.random.randint(jax.random.key(0), (size, 64), 0, 32_000)
    return _classifier("text", size, model, tokens, 10, model.apply)


class _Conv(nn.Module):
    """A 3 × 3 convolution, its kernel standardised over each output channel if asked."""

    features: int
    stride: int
    standardised: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (3, 3, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.he_normal(), shape)
        if self.standardised:
            mean = jnp.mean(kernel, axis=(0, 1, 2), keepdims=True)
            kernel = (kernel - mean) / jnp.sqrt(
                jnp.var(kernel, axis=(0, 1, 2), keepdims=True) * kernel[..., 0].size + 1e-4
            )
        batched = x.reshape(-1, *x.shape[-3:])
        y = jax.lax.conv_general_dilated(
            batched, kernel, (self.stride, self.stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return y.reshape(*x.shape[:-3], *y.shape[1:])


class _WRN(nn.Module):
    """Wide ResNet 16-4 with group normalisation after the activation."""

    standardised: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        conv = partial(_Conv, standardised=self.standardised)
        norm = lambda x: nn.GroupNorm(16, reduction_axes=(-3, -2, -1))(nn.relu(x))
        x = conv(16, 1)(x)
        for width, stride in ((64, 1), (128, 2), (256, 2)):
            for block in range(2):
                by = stride if block == 0 else 1
                y = norm(x)
                skip = nn.Dense(width)(y[..., ::by, ::by, :]) if block == 0 else x
                y = norm(conv(width, by)(y))
                x = skip + conv(width, 1)(y)
        return nn.Dense(10)(jnp.mean(norm(x), axis=(-3, -2)))


def wrn(size: int = 64, *, standardised: bool = False) -> Workload:
    """WRN-16-4 on 32 × 32 colour images."""
    model = _WRN(standardised)
    name = "wrn-standardised" if standardised else "wrn"
    return _classifier(name, size, model, _normal(size, 32, 32, 3), 10, model.apply)


def gated_mlp(size: int = 256, width: int = 768, hidden: int = 1536, blocks: int = 3) -> Workload:
    """Gated blocks without a framework, as many write them: one array for the weights of all blocks, indexed by block."""

    def apply(p: Any, x: jax.Array) -> jax.Array:
        for block in range(blocks):
            x = x + (jax.nn.silu(x @ p["gate"][block]) * (x @ p["up"][block])) @ p["down"][block]
        return x @ p["head"]

    shapes = {
        "gate": (blocks, width, hidden),
        "up": (blocks, width, hidden),
        "down": (blocks, hidden, width),
        "head": (width, 10),
    }
    keys = jax.random.split(jax.random.key(2), len(shapes))
    draw = lambda key, shape: jax.random.normal(key, shape) / jnp.sqrt(shape[-2])
    params = {name: draw(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    labels = jax.random.randint(jax.random.key(1), (size,), 0, 10)
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    loss = lambda p, batch: cross_entropy(apply(p, batch[0]), batch[1])
    return Workload("gated-mlp", size, loss, loss, params, (_normal(size, width), labels))


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": mlp,
    "cnn": cnn,
    "tutorial-mlp": tutorial_mlp,
    "transformer-28": lambda size=64: transformer(size, 28),
    "transformer-256": lambda size=16: transformer(size, 256),
    "lstm": lstm,
    "text": text,
    "gated-mlp": gated_mlp,
    "wrn": wrn,
    "wrn-standardised": lambda size=64: wrn(size, standardised=True),
}
