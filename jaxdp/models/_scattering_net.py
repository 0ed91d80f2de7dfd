"""A linear model, or a small network, on the scattering features of an image."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from ._scattering import scattering_features
from ._whitening import SCALES, SHAPE, whitened


class ScatteringNet(nn.Module):
    """Dense layers on the scattering features of an image; none hidden by default, and then all starts at zero.

    The features are no part of what is trained: `prepare` makes them, and they are computed once.

    Attributes:
        num_classes: how many logits to return.
        activation: between layers.
        hidden: widths of the hidden layers.
        scales: J of the transform.

    References:
        Tramèr and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", arXiv 2011.11660.
    """

    takes: ClassVar[str] = "images"

    num_classes: int
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    hidden: tuple[int, ...] = ()
    scales: int = 2

    def prepare(self, image: Num[Array, "height width channels"]) -> Float[Array, " features"]:
        """The features of one image; of 28 × 28 pixels, at two scales, in coordinates in which those of strokes vary alike."""
        features = scattering_features(image, self.scales)
        return whitened(features) if (image.shape, self.scales) == (SHAPE, SCALES) else features

    @nn.compact
    def __call__(self, features: Float[Array, " features"], *, train: bool) -> Float[Array, " num_classes"]:
        """Logits of one image's features; `train` changes nothing."""
        del train
        x = features
        for width in self.hidden:
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros)(x)
