"""The tutorials' convolutional network, arranged to be fast on a CPU."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from ._patches import PatchConv
from ._pixels import scaled_pixels


class CNN(nn.Module):
    """conv16 8×8 s2 same - pool 2 s1 - conv32 4×4 s2 valid - pool 2 s1 - dense32 - dense: 26,010 parameters on MNIST.

    Pixels are scaled to -1 to 1, and layers initialised as flax does.

    Attributes:
        num_classes: how many logits to return.
        activation: between layers; a bounded one such as tanh suits clipped gradients (Papernot et al., "Tempered Sigmoid
            Activations for Deep Learning with Differential Privacy", arXiv 2007.14191).
    """

    takes: ClassVar[str] = "images"

    num_classes: int
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh

    @nn.compact
    def __call__(self, image: Num[Array, "height width channels"], *, train: bool) -> Float[Array, " num_classes"]:
        """Logits of one image; `train` changes nothing."""
        del train
        x = jnp.pad(scaled_pixels(image), ((3, 3), (3, 3), (0, 0)))
        x = max_pool(self.activation(PatchConv(16, window=8, stride=2)(x)))
        x = max_pool(self.activation(PatchConv(32, window=4, stride=2)(x)))
        x = self.activation(nn.Dense(32)(x.reshape(-1)))
        return nn.Dense(self.num_classes)(x)


def max_pool(x: Float[Array, "height width channels"]) -> Float[Array, "height-1 width-1 channels"]:
    """Maxima over 2×2 windows at stride 1, as maxima of shifted slices: their gradient is far cheaper on a CPU."""
    x = jnp.maximum(x[1:], x[:-1])
    return jnp.maximum(x[:, 1:], x[:, :-1])
