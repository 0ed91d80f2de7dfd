"""Convolution as gathered patches and one matrix product.

XLA's convolutions are slow on a CPU for few channels, and slower still inside a loop. A strided convolution is the same as
a stride-1 one after moving each stride × stride block of pixels into the channels; its patches are then a few shifted
slices side by side, and one matrix product does the rest.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .. import _checks
from .._errors import UsageError


class PatchConv(nn.Module):
    """A 2-D convolution without padding, of a square window that is a multiple of the stride.

    Attributes:
        features: output channels.
        window: side of the window in pixels.
        stride: step of the window in pixels.
    """

    features: int
    window: int
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "height width channels"]) -> Float[Array, "rows columns features"]:
        """Convolve one image."""
        gathered = patches(x, self.window, self.stride)
        kernel = self.param("kernel", self._init_kernel, x.shape[-1])
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return gathered @ kernel + bias

    def _init_kernel(self, key: Key[Array, ""], channels: int) -> Float[Array, "entries features"]:
        """Glorot's initialisation (as in the tutorials) for the convolution that this is, as a matrix."""
        kernel = nn.initializers.glorot_normal()(key, (self.window, self.window, channels, self.features))
        return kernel.reshape(-1, self.features)


def patches(x: Float[Array, "height width channels"], window: int, stride: int) -> Float[Array, "rows columns entries"]:
    """All windows of an image, each flattened to window · window · channels entries (in the order of strided blocks).

    Args:
        x: one image.
        window: side of a window, a multiple of `stride`.
        stride: step between windows.

    Returns:
        Array of floor((height - window) / stride) + 1 rows, likewise columns, of flattened windows.

    Raises:
        UsageError: for an image that no window fits into, and a window that is no multiple of the stride.
    """
    window, stride = (
        _checks.count(name, value, "give a number of pixels")
        for name, value in (("window", window), ("stride", stride))
    )
    if window % stride:
        raise UsageError(
            f"window={window} is no multiple of stride={stride}: give one, such as {window // stride * stride or stride}"
        )
    rows, columns = ((side - window) // stride + 1 for side in x.shape[:2])
    if min(rows, columns) < 1:
        height, width = x.shape[:2]
        raise UsageError(
            f"a layer of this model looks at windows of {window} x {window}, and is given {height} x {width}: give larger "
            "images, or another --model"
        )
    blocks = window // stride
    height, width = (rows + blocks - 1) * stride, (columns + blocks - 1) * stride
    x = x[:height, :width].reshape(height // stride, stride, width // stride, stride, -1)
    x = x.transpose(0, 2, 1, 3, 4).reshape(height // stride, width // stride, -1)
    shifted = [x[i : i + rows, j : j + columns] for i in range(blocks) for j in range(blocks)]
    return jnp.concatenate(shifted, axis=-1)
