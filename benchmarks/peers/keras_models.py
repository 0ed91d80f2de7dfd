"""The workloads of benchmarks/workloads.py in Keras, with their weights in the canonical layout (benchmarks/canonical.py).

A layer is named as flax names it, so that its variables' names are the canonical ones.
"""

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

layers = tf.keras.layers

_FLAX = {"gamma": "scale", "beta": "bias", "embeddings": "embedding"}  # flax's names of what Keras calls otherwise
_GATES = "ifgo"  # the order in which Keras keeps a cell's gates side by side


class Positions(layers.Layer):
    """A learned vector for each position, for every example.

    `_seq_axis` is what tensorflow-privacy's registry function for such a layer reads.
    """

    _seq_axis = 1

    def build(self, shape: Any) -> None:
        self.table = self.add_weight("positions", shape[1:])

    def call(self, x: Any) -> Any:
        return tf.broadcast_to(self.table, tf.shape(x))


def network(workload: str, inputs: np.ndarray, *, unroll: bool) -> tuple[Any, Any]:
    """Symbolic inputs and logits of a workload's model.

    Args:
        workload: its name.
        inputs: a batch.
        unroll: the LSTM, for `vectorized_map`, which is slow or fails on a loop; it compiles for longer.
    """
    make = {
        "cnn": _cnn,
        "tutorial-mlp": _tutorial_mlp,
        "mlp": _mlp,
        "transformer-28": _transformer,
        "lstm": partial(_lstm, unroll=unroll),
        "text": _text,
        "wrn": _wrn,
    }[workload]
    entry = tf.keras.Input(inputs.shape[1:], dtype=inputs.dtype)
    return entry, make(entry)


def load(model: Any, weights: dict[str, np.ndarray]) -> None:
    """Give a model canonical weights."""
    weights = {name.lstrip("_"): array for name, array in weights.items()}
    for variable in model.trainable_variables:
        name = _name(variable)
        variable.assign(_gates_joined(weights, name) if name.startswith("OptimizedLSTMCell") else weights[name])


def canonical(model: Any, gradients: list[Any], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients of a model's variables under the names that `weights` has."""
    found = {}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        name, array = _name(variable), tf.convert_to_tensor(gradient).numpy()
        found |= _gates_apart(array, name) if name.startswith("OptimizedLSTMCell") else {name: array}
    return {name: found[name.lstrip("_")] for name in weights}


def _name(variable: Any) -> str:
    layer, _, kind = variable.name.removesuffix(":0").rpartition("/")
    return kind if kind == "positions" else f"{layer}/{_FLAX.get(kind, kind)}"


def _gate(name: str, gate: str) -> str:
    cell, part = name.split("/")[0], name.split("/")[-1]
    return f"{cell}/i{gate}/kernel" if part == "kernel" else f"{cell}/h{gate}/{part.removeprefix('recurrent_')}"


def _gates_joined(weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return np.concatenate([weights[_gate(name, gate)] for gate in _GATES], -1)


def _gates_apart(array: np.ndarray, name: str) -> dict[str, np.ndarray]:
    return {_gate(name, gate): part for gate, part in zip(_GATES, np.split(array, 4, -1), strict=True)}


def _cnn(x: Any) -> Any:
    pool = layers.MaxPooling2D(2, 1)
    x = pool(layers.Conv2D(16, 8, 2, activation="tanh", name="Conv_0")(layers.ZeroPadding2D(3)(x)))
    x = pool(layers.Conv2D(32, 4, 2, activation="tanh", name="Conv_1")(x))
    x = layers.Dense(32, "tanh", name="Dense_0")(layers.Flatten()(x))
    return layers.Dense(10, name="Dense_1")(x)


def _tutorial_mlp(x: Any) -> Any:
    x = layers.Dense(256, "relu", name="Dense_0")(layers.Flatten()(x))
    x = layers.Dense(64, "relu", name="Dense_1")(x)
    return layers.Dense(10, name="Dense_2")(x)


def _mlp(x: Any) -> Any:
    x = layers.Dense(1024, "relu", name="layers_0")(x)
    x = layers.Dense(1024, "relu", name="layers_2")(x)
    return layers.Dense(10, name="layers_4")(x)


def _transformer(x: Any) -> Any:
    norm = lambda x, index: layers.LayerNormalization(epsilon=1e-6, name=f"LayerNorm_{index}")(x)
    x = layers.Dense(256, name="Dense_0")(x)
    x = x + Positions(name="learned")(x)
    for block in range(4):
        x = x + _attention(norm(x, 2 * block), f"MultiHeadDotProductAttention_{block}")
        hidden = layers.Dense(1024, name=f"Dense_{2 * block + 2}")(norm(x, 2 * block + 1))
        x = x + layers.Dense(256, name=f"Dense_{2 * block + 1}")(tf.nn.gelu(hidden, approximate=True))
    return layers.Dense(10, name="Dense_9")(tf.reduce_mean(norm(x, 8), 1))


def _attention(x: Any, name: str) -> Any:
    """Four heads of 64, of `Dense` layers: the only ones whose gradients' norms tensorflow-privacy finds by itself."""
    heads = lambda part: layers.Reshape((-1, 4, 64))(layers.Dense(256, name=f"{name}/{part}")(x))
    scores = tf.einsum("bqhd,bkhd->bhqk", heads("query"), heads("key")) / 8.0
    mixed = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), heads("value"))
    return layers.Dense(256, name=f"{name}/out")(layers.Reshape((-1, 256))(mixed))


def _lstm(x: Any, *, unroll: bool) -> Any:
    """A cell in `RNN`: `LSTM`, which can choose a GPU's kernel, gives the same and a far slower step under XLA on a CPU."""
    x = layers.RNN(layers.LSTMCell(128), unroll=unroll, name="OptimizedLSTMCell_0")(x)
    return layers.Dense(10, name="Dense_0")(x)


def _text(tokens: Any) -> Any:
    x = tf.reduce_mean(layers.Embedding(32_000, 64, name="Embed_0")(tokens), 1)
    x = layers.Dense(64, "relu", name="Dense_1")(x)
    return layers.Dense(10, name="Dense_0")(x)


def _wrn(x: Any) -> Any:
    counts = {"Conv": 0, "GroupNorm": 0, "Dense": 0}

    def named(kind: str) -> str:
        counts[kind] += 1
        return f"{kind}_{counts[kind] - 1}"

    conv = lambda x, width, by: layers.Conv2D(width, 3, by, "same", use_bias=False, name=named("Conv"))(x)
    norm = lambda x: layers.GroupNormalization(16, epsilon=1e-6, name=named("GroupNorm"))(tf.nn.relu(x))
    x = conv(x, 16, 1)
    for width, stride in ((64, 1), (128, 2), (256, 2)):
        for block in range(2):
            by = stride if block == 0 else 1
            y = norm(x)
            skip = layers.Dense(width, name=named("Dense"))(y[:, ::by, ::by]) if block == 0 else x
            x = skip + conv(norm(conv(y, width, by)), width, 1)
    return layers.Dense(10, name=named("Dense"))(tf.reduce_mean(norm(x), (1, 2)))
