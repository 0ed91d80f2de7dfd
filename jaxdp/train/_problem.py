"""A data set and a model as a loss for one example and an accuracy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, UInt8

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
_EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Classifier:
    """A flax model for images of one shape, with the functions that training and prediction need.

    Attributes:
        init: `init(key) -> params`.
        logits: `logits(params, image) -> [classes]`, for one image, no unit dropped.
        loss: `loss(params, (image, label)) -> (loss, accuracy)` for one example; takes `rng=` if the model drops units.
        probabilities: `probabilities(params, images uint8 [n, ...]) -> float32 [n, classes]`, in batches, on the host.
    """

    init: Callable[[Key[Array, ""]], Any]
    logits: Callable[[Any, Any], Float[Array, " classes"]]
    loss: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    probabilities: Callable[[Any, UInt8[np.ndarray, "n ..."]], Float[np.ndarray, "n classes"]]


def classifier(model: str, activation: str, num_classes: int, image_shape: tuple[int, ...]) -> Classifier:
    """The classifier named `model` for images of `image_shape`."""
    from ..models import MODELS

    network: Any = MODELS[model](num_classes=num_classes, activation=_ACTIVATIONS[activation])

    @jax.jit
    def init(key: Key[Array, ""]) -> Any:
        return network.init(key, jnp.zeros(image_shape, jnp.uint8), train=False)["params"]

    def logits(params: Any, image: Any) -> Float[Array, " classes"]:
        return network.apply({"params": params}, image, train=False)

    def loss_of(logits: Float[Array, " classes"], label: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
        return loss, (jnp.argmax(logits) == label).astype(jnp.float32)

    def loss(params: Any, example: Any) -> Any:
        return loss_of(network.apply({"params": params}, example[0], train=True), example[1])

    def loss_with_dropout(params: Any, example: Any, rng: Key[Array, ""]) -> Any:
        logits = network.apply({"params": params}, example[0], train=True, rngs={"dropout": rng})
        return loss_of(logits, example[1])

    @jax.jit
    def batch_probabilities(params: Any, images: Any) -> Float[Array, "n classes"]:
        return jax.vmap(lambda image: jax.nn.softmax(logits(params, image)))(images)

    def probabilities(params: Any, images: UInt8[np.ndarray, "n ..."]) -> Float[np.ndarray, "n classes"]:
        rows = min(_EVALUATION_BATCH, len(images))
        parts = []
        for start in range(0, len(images), rows):
            part = images[start : start + rows]
            padding = [(0, rows - len(part)), *[(0, 0)] * (images.ndim - 1)]
            parts.append(np.asarray(batch_probabilities(params, np.pad(part, padding)))[: len(part)])
        return np.concatenate(parts)

    drops_units = getattr(network, "dropout", 0) > 0
    return Classifier(init, logits, loss_with_dropout if drops_units else loss, probabilities)


def optimizer(name: str, lr: float, momentum: float) -> optax.GradientTransformation:
    """The optimizer by name: sgd with momentum, or adam."""
    if name == "adam":
        return optax.adam(lr)
    return optax.sgd(lr, momentum=momentum or None)


def evaluate(probabilities: Float[np.ndarray, "n classes"], labels: np.ndarray) -> tuple[float, float]:
    """(mean cross-entropy, accuracy) of predicted probabilities."""
    of_label = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    loss = float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
    return loss, float((probabilities.argmax(axis=1) == labels).mean())
