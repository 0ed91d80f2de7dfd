"""The tutorials' multilayer perceptron."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
from jaxtyping import Array, Float, Num

from ._pixels import scaled_pixels


class MLP(nn.Module):
    """784 - 256 - 64 - 10 on MNIST, with dropout after each hidden layer.

    Attributes:
        num_classes: how many logits to return.
        activation: between layers.
        hidden: widths of the hidden layers.
        dropout: the probability with which a hidden unit is dropped in training.
    """

    takes: ClassVar[str] = "images"

    num_classes: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    hidden: tuple[int, ...] = (256, 64)
    dropout: float = 0.2

    @nn.compact
    def __call__(self, image: Num[Array, "height width channels"], *, train: bool) -> Float[Array, " num_classes"]:
        """Logits of one image; with `train`, units are dropped by the rng named "dropout"."""
        x = scaled_pixels(image).reshape(-1)
        for width in self.hidden:
            x = self.activation(nn.Dense(width)(x))
            x = nn.Dropout(self.dropout, deterministic=not train)(x)
        return nn.Dense(self.num_classes)(x)
