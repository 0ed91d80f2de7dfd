"""Strokes drawn by chance: images like handwriting in which there is nobody's hand.

What is learned of them is public. `_whitening` learns from them which directions of an image's features vary together.
"""

from math import comb

import numpy as np
from jaxtyping import Float, Num, UInt8

_DEGREE = 3
_POINTS = 40  # of a curve
_MOST = 2  # curves of an image
_MARGIN = 4.0  # around the points that a curve is drawn towards, in pixels of 28
_WIDTHS = 0.8, 1.8  # in pixels of 28


def strokes(count: int, *, size: int = 28, seed: int = 1) -> UInt8[np.ndarray, "count size size 1"]:
    """Images of one or two Bézier curves each, whose control points are uniform, of random width, and moved to the middle.

    Args:
        count: how many.
        size: height and width.
        seed: of the draws.

    Examples:
        >>> strokes(3).shape
        (3, 28, 28, 1)
    """
    rng, unit = np.random.default_rng(seed), size / 28
    t = np.linspace(0, 1, _POINTS)[:, None]
    k = np.arange(_DEGREE + 1)
    bernstein = np.array([comb(_DEGREE, i) for i in k]) * t**k * (1 - t) ** (_DEGREE - k)
    pixels = np.indices((size, size)).reshape(2, -1).T[:, None]
    images = np.empty((count, size, size, 1), np.uint8)
    for image in images:
        curves = rng.integers(1, _MOST + 1)
        towards = rng.uniform(_MARGIN * unit, size - _MARGIN * unit, (curves, _DEGREE + 1, 2))
        ink = (bernstein @ towards).reshape(-1, 2)
        ink += (size - 1) / 2 - ink.mean(axis=0)
        distance = np.sqrt(_nearest(pixels, ink)).reshape(size, size, 1)
        width = rng.uniform(*_WIDTHS) * unit
        image[:] = np.rint(255 * np.clip(1.25 - 0.75 * distance / width, 0, 1))
    return images


def _nearest(pixels: Num[np.ndarray, "n 1 2"], ink: Float[np.ndarray, "m 2"]) -> Float[np.ndarray, " n"]:
    """The square of each pixel's distance from the ink."""
    return np.square(pixels - ink).sum(axis=-1).min(axis=-1)
