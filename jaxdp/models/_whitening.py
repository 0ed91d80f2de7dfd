r"""A change of coordinates in which features vary alike, learned from strokes drawn by chance and from nobody's images.

\[ f \mapsto c\, (\Lambda + \delta)^{-\alpha / 2} V^\top (f - \mu) \]

with the mean \(\mu\) of strokes' features, the largest eigenvalues \(\Lambda\) of their covariance and their eigenvectors \(V\),
and a constant that keeps the features' mean square. Features of images vary a thousand times as much in some directions as in
others, and half of their square is their mean; clipping and noise know of no direction. With \(\alpha = 1\) strokes would be
white; less has the larger directions keep a part of what they are ahead.
Exponent, floor and number of directions were chosen as recipes are, on digits held back from MNIST's training examples.

The map is stored with the package, for eigenvectors can't be computed again to the same signs on another machine:

    python -c "from jaxdp.models import _whitening; _whitening.main()"
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8

from ._scattering import scattering_features
from ._strokes import strokes

SHAPE, SCALES = (28, 28, 1), 2  # of the images, and of their transform
_COUNT, _KEPT = 6000, 1000
_EXPONENT, _FLOOR = 0.6, 0.05
_STORED = Path(__file__).parent / "whitening-28x28.npz"


def whitened(features: Float[Array, " features"]) -> Float[Array, " kept"]:
    """The scattering features of one image of 28 × 28 pixels, at two scales, in the stored coordinates.

    Returns:
        float32 [1000].
    """
    stored = _stored()
    product = jnp.matmul(features - stored["mean"], stored["steps"].astype(jnp.float32), precision="highest")
    return product * stored["unit"]


@functools.cache
def _stored() -> dict[str, np.ndarray]:
    with np.load(_STORED) as file:
        return dict(file)


def computed(
    features: Float[np.ndarray, "n features"], kept: int
) -> tuple[Float[np.ndarray, " features"], Float[np.ndarray, "features kept"]]:
    """The mean and the matrix of the map, from features of images that are nobody's."""
    mean = features.mean(axis=0, dtype=np.float64)
    centred = features - mean
    values, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    matrix = vectors[:, : -kept - 1 : -1] * (values[: -kept - 1 : -1] + _FLOOR) ** (-_EXPONENT / 2)
    lengths = [np.square(each).sum(axis=1).mean() for each in (features, centred @ matrix)]
    return mean, matrix * np.sqrt(lengths[0] / lengths[1])


def in_steps(matrix: Float[np.ndarray, "features kept"]) -> tuple[Int8[np.ndarray, "features kept"], np.ndarray]:
    """A matrix as whole numbers from -127 to 127 and a unit for each column."""
    unit = np.abs(matrix).max(axis=0) / 127
    return np.rint(matrix / unit).astype(np.int8), unit


def features_of_strokes(count: int = _COUNT) -> Float[np.ndarray, "count features"]:
    """What the map is computed from."""
    found = jax.jit(lambda images: jax.lax.map(scattering_features, images, batch_size=32))(strokes(count))
    return np.asarray(found)


def main() -> None:
    """Write the stored map."""
    mean, matrix = computed(features_of_strokes(), _KEPT)
    steps, unit = in_steps(matrix)
    np.savez_compressed(_STORED, mean=mean.astype(np.float32), steps=steps, unit=unit.astype(np.float32))
