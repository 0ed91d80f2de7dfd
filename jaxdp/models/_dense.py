"""The tabular tutorial's dense network, with a normalisation that a single record can have on its own."""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class WeightNormDense(nn.Module):
    r"""A dense layer whose kernel's columns have a learnt length: \(y = g \odot (x V) / \lVert V \rVert + b\).

    The length divides the product and not the kernel, which is the same, and leaves \(x V\) a matrix product that ghost clipping
    has a rule for. It counts as constant in each gradient: what the gradient then has along a column changes that column's stored
    length alone, and not the function.

    Attributes:
        features: width of the output.
        dtype: in which to compute; parameters and lengths are float32.

    References:
        Salimans and Kingma, "Weight normalization", arXiv 1602.07868, equation 2.
    """

    features: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " features"]:
        """The layer's output for one record."""
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
        scale = self.param("scale", nn.initializers.ones, (self.features,))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        length = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(jnp.square(kernel), axis=0) + 1e-12))
        product = (x.astype(self.dtype) @ kernel.astype(self.dtype)).astype(jnp.float32)
        return (product * (scale / length) + bias).astype(self.dtype)


class Dense(nn.Module):
    """Dense layers with dropout, as the drug-response tutorial has them: 2048 - 1048 - targets.

    In batch normalisation's place, which mixes records, each record is normalised on its own (`LayerNorm`), after each hidden
    layer. Without hidden layers it is logistic regression, or for numbers a linear one.

    Attributes:
        num_classes: how many logits to return, one a target, or a class.
        activation: between layers.
        hidden: widths of the hidden layers.
        dropout: the probability with which a hidden unit is dropped in training.
        weight_norm: whether kernels' columns have learnt lengths.
        dtype: in which to compute; parameters, normalisation and logits are float32.
    """

    takes: ClassVar[str] = "features"

    num_classes: int
    activation: Callable[[jax.Array], jax.Array] = jax.nn.relu
    hidden: tuple[int, ...] = (2048, 1048)
    dropout: float = 0.2
    weight_norm: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, features: Float[Array, " features"], *, train: bool) -> Float[Array, " num_classes"]:
        """Logits of one record; with `train`, units are dropped by the rng named "dropout"."""
        layer = WeightNormDense if self.weight_norm else nn.Dense
        x = features
        for width in self.hidden:
            x = nn.LayerNorm()(layer(width, dtype=self.dtype)(x).astype(jnp.float32))
            x = nn.Dropout(self.dropout, deterministic=not train)(self.activation(x))
        return nn.Dense(self.num_classes, dtype=self.dtype)(x).astype(jnp.float32)
