"""A flax model as what training and prediction need: a loss for one example, probabilities, an accuracy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, Num

from ..dpsgd import validate

_ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}
_EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Classifier:
    """A flax model for inputs of one shape, with the functions that training and prediction need.

    Attributes:
        init: `init(key) -> params`.
        logits: `logits(params, input) -> [classes]`, for one input, no unit dropped.
        loss: `loss(params, (input, label)) -> (loss, accuracy)` for one example; takes `rng=` if the model drops units. Of
            several targets the losses are added up and the accuracies averaged.
        probabilities: `probabilities(params, inputs [n, ...]) -> float32 [n, classes]`, in batches, on the host.
        evaluate: `evaluate(probabilities, labels) -> (mean loss of a target, accuracy)`.
        described: what `classifier_of` makes it again from, in JSON.
        targets: over how many targets an example's loss is added up.
    """

    init: Callable[[Key[Array, ""]], Any]
    logits: Callable[[Any, Any], Float[Array, " classes"]]
    loss: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
    probabilities: Callable[[Any, Num[np.ndarray, "n ..."]], Float[np.ndarray, "n classes"]]
    evaluate: Callable[[Float[np.ndarray, "n classes"], np.ndarray], tuple[float, float]]
    described: dict[str, Any]
    targets: int = 1


def classifier(
    name: str, *, activation: str, num_classes: int, input_shape: tuple[int, ...], **architecture: Any
) -> Classifier:
    """The classifier of that name: of images of that shape, or for "dense" of so many features with binary targets.

    Raises:
        UsageError: for a model that can't be trained on single examples.
    """
    from . import MODELS

    network: Any = MODELS[name](num_classes=num_classes, activation=_ACTIVATIONS[activation], **architecture)
    binary = name == "dense"
    example = jax.ShapeDtypeStruct(input_shape, jnp.float32 if binary else jnp.uint8)
    validate(network, example, train=False).check()
    squashed = jax.nn.sigmoid if binary else jax.nn.softmax
    loss_of = _binary_loss if binary else _class_loss

    @jax.jit
    def init(key: Key[Array, ""]) -> Any:
        return network.init(key, jnp.zeros(example.shape, example.dtype), train=False)["params"]

    def logits(params: Any, input: Any) -> Float[Array, " classes"]:
        return network.apply({"params": params}, input, train=False)

    def loss(params: Any, example: Any) -> Any:
        return loss_of(network.apply({"params": params}, example[0], train=True), example[1])

    def loss_with_dropout(params: Any, example: Any, rng: Key[Array, ""]) -> Any:
        logits = network.apply({"params": params}, example[0], train=True, rngs={"dropout": rng})
        return loss_of(logits, example[1])

    @jax.jit
    def batch_probabilities(params: Any, inputs: Any) -> Float[Array, "n classes"]:
        return jax.vmap(lambda input: squashed(logits(params, input)))(inputs)

    def probabilities(params: Any, inputs: Num[np.ndarray, "n ..."]) -> Float[np.ndarray, "n classes"]:
        rows = min(_EVALUATION_BATCH, len(inputs))
        parts = []
        for start in range(0, len(inputs), rows):
            part = inputs[start : start + rows]
            padding: Any = [(0, rows - len(part)), *[(0, 0)] * (inputs.ndim - 1)]
            parts.append(np.asarray(batch_probabilities(params, np.pad(part, padding)))[: len(part)])
        return np.concatenate(parts)

    drops_units = getattr(network, "dropout", 0) > 0
    return Classifier(
        init,
        logits,
        loss_with_dropout if drops_units else loss,
        probabilities,
        evaluate_targets if binary else evaluate,
        {
            "name": name,
            "activation": activation,
            "num_classes": num_classes,
            "input_shape": input_shape,
            **architecture,
        },
        num_classes if binary else 1,
    )


def classifier_of(described: dict[str, Any]) -> Classifier:
    """The classifier that `described` describes, as read from JSON."""
    plain: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in described.items()
    }
    return classifier(plain.pop("name"), **plain)


def _class_loss(logits: Float[Array, " classes"], label: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, label)
    return loss, (jnp.argmax(logits) == label).astype(jnp.float32)


def _binary_loss(logits: Float[Array, " targets"], labels: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Added up over the targets: of their mean, a gradient would be too small for a usual clip norm to clip."""
    loss = optax.sigmoid_binary_cross_entropy(logits, labels.astype(jnp.float32)).sum()
    return loss, ((logits > 0) == (labels > 0)).mean(dtype=jnp.float32)


def evaluate(probabilities: Float[np.ndarray, "n classes"], labels: np.ndarray) -> tuple[float, float]:
    """(mean cross-entropy, accuracy) of predicted probabilities."""
    of_label = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    loss = float(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)).mean())
    return loss, float((probabilities.argmax(axis=1) == labels).mean())


def evaluate_targets(probabilities: Float[np.ndarray, "n targets"], labels: np.ndarray) -> tuple[float, float]:
    """(mean column-wise log loss, accuracy at 1/2) of binary targets' predicted probabilities.

    As the drug-response competition does, probabilities are kept 1e-15 away from 0 and 1.
    """
    p = probabilities.astype(np.float64).clip(1e-15, 1 - 1e-15)
    loss = -(labels * np.log(p) + (1 - labels) * np.log1p(-p))
    return float(loss.mean()), float(((p > 0.5) == (labels > 0)).mean())
