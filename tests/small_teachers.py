"""A small ensemble of teachers, for several tests and for processes of their own."""

import warnings
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp import pate

OPTIMIZER = optax.adam(1e-2)


class Small(nn.Module):
    """A convolution and a dense layer: the convolution must be as right within the loop as outside."""

    @nn.compact
    def __call__(self, image: Any) -> Any:
        return nn.Dense(3)(jax.nn.relu(nn.Conv(4, (3, 3))(image)).reshape(-1))


def init(key: Any) -> Any:
    return Small().init(key, jnp.zeros((5, 5, 1)))


def logits(params: Any, image: Any) -> Any:
    return Small().apply(params, image)


def loss(params: Any, example: Any, rng: Any) -> Any:
    image, label = example
    noisy = image + 0.1 * jax.random.normal(rng, image.shape)
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, noisy), label)


def records(size: int = 23) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(size, dtype=np.int32) % 3
    return (rng.normal(size=(size, 5, 5, 1)) + labels[:, None, None, None]).astype(np.float32), labels


def trained(data: Any = None, **changes: Any) -> pate.Teachers:
    given = {"num_teachers": 4, "optimizer": OPTIMIZER, "epochs": 2, "batch_size": 4, "key": jax.random.key(1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes that such small shards miss
        return pate.train_teachers(loss, init, records() if data is None else data, **(given | changes))
