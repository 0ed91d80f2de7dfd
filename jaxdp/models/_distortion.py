"""Random distortions of an image: turned, sheared, scaled and shifted a little, by two passes of linear interpolation.

An affine map of the plane is a map of the columns within each row followed by one of the rows within each column.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num

from .. import _checks
from .._errors import UsageError
from ..noise._keys import Domain, own_key
from ._pixels import scaled_pixels

_MOTIONS = ("turn", "scale", "shift")


def distorted(
    key: Key[Array, ""],
    image: Num[Array, "height width channels"],
    *,
    turn: float = 0.2,
    scale: float = 0.15,
    shift: float = 2.0,
) -> Float[Array, "height width channels"]:
    """An image moved at random; what comes in from beyond its border is black.

    Args:
        key: scalar key, used for this and nothing else.
        image: uint8, or float from -1 (black) to 1.
        turn: the most by which rows and columns are slanted, as a tangent; both slants together are a turn or a shear.
        scale: the most by which height and width grow or shrink, each on its own, as a fraction.
        shift: the most by which the image moves up or down, left or right, in pixels.

    Returns:
        float32 [height, width, channels], from -1 to 1.

    Raises:
        UsageError: for what is no key or no image, and limits that aren't finite and 0 or above.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> distorted(jax.random.key(0), jnp.zeros((28, 28, 1), jnp.uint8)).shape
        (28, 28, 1)
    """
    _checks.key(key)
    turn, scale, shift = check_motion(turn, scale, shift).values()
    _check_image(image)
    numbers = jax.random.uniform(own_key(key, Domain.DISTORTED), (6,), jnp.float32, -1.0, 1.0)
    ink = scaled_pixels(image) + 1
    ink = _moved_in_rows(ink, 1 + scale * numbers[0], turn * numbers[1], shift * numbers[2])
    slant = turn * (-numbers[1] + 0.5 * numbers[4])
    columns = _moved_in_rows(jnp.swapaxes(ink, 0, 1), 1 + scale * numbers[3], slant, shift * numbers[5])
    return jnp.swapaxes(columns, 0, 1) - 1


def _check_image(image: Any) -> None:
    if not _checks.is_array(image) or image.ndim != 3:
        kind = f"has shape {image.shape}" if _checks.is_array(image) else f"is a {type(image).__name__}"
        raise UsageError(f"image {kind}: give one image, an array [height, width, channels]")


def check_motion(turn: Any, scale: Any, shift: Any) -> dict[str, float]:
    """The limits of a distortion as numbers, by their names; refuses what is negative or not finite."""
    fix = "give the most by which an image moves, such as 0.1"
    return {
        name: _checks.non_negative(name, value, fix) for name, value in zip(_MOTIONS, (turn, scale, shift), strict=True)
    }


def _moved_in_rows(ink: Float[Array, "rows columns channels"], scale: Array, slant: Array, shift: Array) -> Array:
    """Each row resampled at scale · column + slant · row + shift, measured from the centre."""
    rows, columns = ink.shape[:2]
    row = jnp.arange(rows, dtype=jnp.float32)[:, None] - (rows - 1) / 2
    column = jnp.arange(columns, dtype=jnp.float32)[None] - (columns - 1) / 2
    bordered = jnp.pad(ink, ((0, 0), (1, 1), (0, 0)))
    source = jnp.clip(scale * column + slant * row + shift + (columns + 1) / 2, 0, columns + 1)
    left = jnp.minimum(jnp.floor(source), columns).astype(jnp.int32)
    part = (source - left)[..., None]
    pick = lambda at: jnp.take_along_axis(bordered, at[..., None], axis=1)
    return pick(left) * (1 - part) + pick(left + 1) * part


def erased(key: Key[Array, ""], image: Float[Array, "height width channels"], side: float = 10) -> Array:
    """An image with a black square somewhere, partly beyond its border perhaps.

    Args:
        key: scalar key, used for this and nothing else.
        image: float, from -1 (black) to 1.
        side: of the square, in pixels.

    Returns:
        An array like `image`.

    Raises:
        UsageError: for what is no key or no image of floats, and a side that isn't finite and 0 or above.

    References:
        DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", arXiv 1708.04552.
    """
    _checks.key(key)
    _check_image(image)
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise UsageError(f"image is {image.dtype}: give floats from -1 (black) to 1, such as image / 127.5 - 1")
    side = _checks.non_negative("side", side, "give the side of the square in pixels, such as 10")
    at = jax.random.uniform(own_key(key, Domain.ERASED), (2,), jnp.float32)
    inside = [
        jnp.abs(jnp.arange(length, dtype=jnp.float32) - place * length) < side / 2
        for length, place in zip(image.shape[:2], at, strict=True)
    ]
    return jnp.where((inside[0][:, None] & inside[1])[..., None], -1.0, image)
