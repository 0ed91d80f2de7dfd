"""A convolutional network without pooling, small and fast, which learns well from few labels."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from ._patches import PatchConv
from ._pixels import scaled_pixels


class StridedCNN(nn.Module):
    """conv 6×6 - conv 4×4 - conv 4×4, each of stride 2 and twice as wide as the one before - dense128 - dense.

    Attributes:
        num_classes: how many logits to return.
        activation: between layers.
        width: channels of the first convolution.
    """

    takes: ClassVar[str] = "images"

    num_classes: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    width: int = 16

    @nn.compact
    def __call__(self, image: Num[Array, "height width channels"], *, train: bool) -> Float[Array, " num_classes"]:
        """Logits of one image; `train` changes nothing."""
        del train
        x = jnp.pad(scaled_pixels(image), ((2, 2), (2, 2), (0, 0)), constant_values=-1.0)
        for width, window in ((self.width, 6), (2 * self.width, 4), (4 * self.width, 4)):
            x = self.activation(PatchConv(width, window=window, stride=2)(x))
        x = self.activation(nn.Dense(128)(x.reshape(-1)))
        return nn.Dense(self.num_classes)(x)
