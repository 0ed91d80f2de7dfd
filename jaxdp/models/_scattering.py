r"""Wavelet scattering: a fixed function of an image from which linear models learn well.

\[ S_0 = x \star \phi_J, \qquad S_1 = |x \star \psi_{j_1 \theta_1}| \star \phi_J, \qquad
   S_2 = \bigl||x \star \psi_{j_1 \theta_1}| \star \psi_{j_2 \theta_2}\bigr| \star \phi_J, \quad j_1 < j_2 < J \]

with Morlet wavelets of J scales and eight orientations and a Gaussian. Nothing in it is learned: what it makes of an example
depends on that example alone, and costs no privacy.

A convolution with a wavelet is a product of spectra. Images are small, and the discrete Fourier transform of each axis is a
product with a dense matrix, which processors and accelerators do faster than many small fast transforms; an array is transformed
along its last axis, swapped, and transformed again, so that all products are of one kind. The Gaussian is separable: to
convolve, subsample and cut off the border is one product with a matrix on either side. A wavelet at a coarser resolution is its
spectrum's low frequencies.

References:
    Bruna and Mallat, "Invariant Scattering Convolution Networks", arXiv 1203.1513, sections 2 and 3.
    Andreux et al., "Kymatio: Scattering Transforms in Python", arXiv 1812.11214, whose filters, borders and order these are.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from .. import _checks
from .._errors import UsageError

ORIENTATIONS = 8
_SLANT = 4 / ORIENTATIONS
_WRAPS = range(-2, 3)  # a filter's copies that reach into the period
_TOGETHER = 3  # coefficients that are normalised together
_ABOUT_PI = 3.1415  # in the filters' lengths, as kymatio has it: its features are 3e-5 larger than with all digits

_Pair = tuple[Float[Array, "*stack m n"], Float[Array, "*stack m n"]]  # real and imaginary parts
_Swapped = tuple[Float[Array, "*stack n m"], Float[Array, "*stack n m"]]


_OCTAVES = "give the number of octaves, such as 2"


def scattering_channels(scales: int) -> int:
    """1 + 8 J + 32 J (J - 1): coefficients of an image at each place; raises `UsageError` for J that is no number of octaves."""
    scales = _checks.count("scales", scales, _OCTAVES)
    return 1 + scales * ORIENTATIONS + scales * (scales - 1) // 2 * ORIENTATIONS**2


def scattering(
    images: Float[Array, "*batch height width"], scales: int = 2
) -> Float[Array, "*batch channels rows columns"]:
    """The scattering coefficients of images, of order 0, 1 and 2.

    Args:
        images: of one channel, on any scale.
        scales: J. Coefficients are averages over about 2^J pixels, and stand that far apart.

    Returns:
        float32 [..., `scattering_channels(J)`, height // 2^J, width // 2^J]: S0, then S1 by scale and orientation, then S2 by the
        scale and orientation of its first wavelet and then of its second.

    Raises:
        UsageError: for complex numbers, images smaller than 2^J, or `scales` that is not above 0.

    Examples:
        >>> import jax
        >>> jax.eval_shape(scattering, jnp.zeros((5, 28, 28))).shape
        (5, 81, 7, 7)
    """
    scales = _checks.count("scales", scales, _OCTAVES)
    _check_images(images, ("height", "width"))
    shape = images.shape[-2:]
    if min(shape) >> scales == 0:
        raise UsageError(
            f"scales={scales} averages over 2^{scales} pixels, and images have {shape[0]} x {shape[1]}: give fewer scales"
        )
    padded = [_padded(size, scales) for size in shape]
    banks = [np.swapaxes(bank, -1, -2) for bank in _wavelets(padded[0], padded[1], scales)]
    before = [(whole - size) // 2 for size, whole in zip(shape, padded, strict=True)]
    border = [(at, whole - size - at) for size, whole, at in zip(shape, padded, before, strict=True)]
    around: Any = [*[(0, 0)] * (images.ndim - 2), *border]
    x = jnp.pad(images.astype(jnp.float32), around, mode="reflect")

    def averaged(u: Array, level: int) -> Array:
        """Smoothed, on the grid of the coefficients; the axes before the last two are one path each."""
        down, across = (jnp.asarray(_smoothing(whole, level, scales), jnp.float32) for whole in padded)
        half = jnp.swapaxes(_product(u, across.T), -1, -2)
        return jnp.swapaxes(_product(half, down.T), -1, -2)

    lead = images.shape[:-2]
    flat = lambda s: s.reshape(*lead, math.prod(s.shape[len(lead) : -2]), *s.shape[-2:])
    spectrum = _spectrum(x)
    first, second = [], []
    for j in range(scales):
        u = _modulus(spectrum, banks[j], 2**j)
        first.append(flat(averaged(u, j)))
        if coarser := range(j + 1, scales):
            of_u = _spectrum(u)
            paths = [averaged(_modulus(of_u, _low(banks[k], j), 2 ** (k - j)), k) for k in coarser]
            second.append(flat(jnp.stack(paths, axis=-4)))  # [..., θ1, j2, θ2, rows, columns]
    return jnp.concatenate([flat(averaged(x, 0)), *first, *second], axis=-3)


def scattering_features(
    images: Num[Array, "*batch height width image_channels"], scales: int = 2
) -> Float[Array, "*batch features"]:
    """The scattering coefficients of images, each image's normalised by themselves, in one row.

    Of three coefficients that follow one another (one, where their number isn't a multiple of three) the values at all places are
    brought to mean 0 and variance 1, as group normalisation does it (1e-5 is added to the variance: what hardly varies stays
    small): with nothing learned, and of each image alone.

    Args:
        images: uint8 pixels, or floats from 0 to 1. Each channel is transformed on its own.
        scales: as in `scattering`.

    Returns:
        float32 [..., image_channels * channels * rows * columns].

    Raises:
        UsageError: as in `scattering`.

    References:
        Tramèr and Boneh, "Differentially Private Learning Needs Better Features (or Much More Data)", arXiv 2011.11660.

    Examples:
        >>> import jax
        >>> jax.eval_shape(scattering_features, jnp.zeros((5, 28, 28, 1), jnp.uint8)).shape
        (5, 3969)
    """
    _check_images(images, ("height", "width", "image_channels"))
    pixels = jnp.moveaxis(images.astype(jnp.float32), -1, -3)
    if not jnp.issubdtype(images.dtype, jnp.floating):
        pixels = pixels / 255
    found = scattering(pixels, scales)
    lead, together = images.shape[:-3], math.gcd(found.shape[-4] * found.shape[-3], _TOGETHER)
    features = math.prod(found.shape[len(lead) :])
    size = together * found.shape[-2] * found.shape[-1]
    groups = found.reshape(*lead, features // size, size)
    centred = groups - groups.mean(axis=-1, keepdims=True)
    normal = centred / jnp.sqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
    return normal.reshape(*lead, features)


def _check_images(images: Array, last: tuple[str, ...]) -> None:
    """Refuse what isn't images of real numbers, whose last axes are these."""
    if not _checks.is_array(images):
        raise UsageError(f"images are {type(images).__name__} and no array: give real numbers [..., {', '.join(last)}]")
    if images.ndim < len(last) or jnp.issubdtype(images.dtype, jnp.complexfloating):
        raise UsageError(
            f"images have shape {images.shape} and dtype {images.dtype}: give real numbers [..., {', '.join(last)}]"
        )


def _product(x: Array, matrix: Array) -> Array:
    return jnp.matmul(x, matrix, precision="highest")


def _transformed(re: Array, im: Array | None, sign: int) -> _Pair:
    """The discrete Fourier transform of the last axis."""
    size = re.shape[-1]
    angles = 2 * np.pi * (np.outer(np.arange(size), np.arange(size)) % size) / size
    cos, sin = np.cos(angles), sign * np.sin(angles)
    if im is None:
        out = _product(re, jnp.asarray(np.concatenate([cos, sin], axis=1), jnp.float32))
    else:
        whole = jnp.asarray(np.block([[cos, sin], [-sin, cos]]), jnp.float32)
        out = _product(jnp.concatenate([re, im], axis=-1), whole)
    return out[..., :size], out[..., size:]


def _swapped(pair: _Pair) -> _Swapped:
    return jnp.swapaxes(pair[0], -1, -2), jnp.swapaxes(pair[1], -1, -2)


def _spectrum(x: Float[Array, "*stack m n"]) -> _Swapped:
    """Of both axes."""
    return _transformed(*_swapped(_transformed(x, None, -1)), -1)


def _modulus(spectrum: _Pair, bank: np.ndarray, factor: int) -> Float[Array, "*stack theta rows columns"]:
    """|x * ψ| for each wavelet of a bank of swapped spectra, at every `factor`th place of either axis."""

    def at(part: Array) -> Array:
        product = part[..., None, :, :] * jnp.asarray(bank, jnp.float32)
        n, m = product.shape[-2:]
        return product.reshape(*product.shape[:-2], factor, n // factor, factor, m // factor).mean((-4, -2))

    re, im = at(spectrum[0]), at(spectrum[1])
    places = re.shape[-1] * re.shape[-2]
    re, im = _transformed(*_swapped(_transformed(re, im, 1)), 1)
    return jnp.sqrt(jnp.square(re) + jnp.square(im)) / places


def _padded(size: int, scales: int) -> int:
    """The length of an axis with its border: a multiple of 2^J with a coefficient to spare on either side."""
    return (size // 2**scales + 2) * 2**scales


def _smoothing(whole: int, level: int, scales: int) -> np.ndarray:
    """[coefficients, whole / 2^level]: the Gaussian, at every place that keeps a coefficient."""
    x, sigma = np.arange(whole), 0.8 * 2 ** (scales - 1)
    gaussian = np.sum([np.exp(-((x + k * whole) ** 2) / (2 * sigma**2)) for k in _WRAPS], axis=0)
    gaussian /= math.sqrt(2 * _ABOUT_PI) * sigma
    kernel = np.real(np.fft.ifft(_low(np.fft.fft(gaussian), level, axes=(-1,))))
    return np.stack([np.roll(kernel, at) for at in range(0, len(kernel), 2 ** (scales - level))])[1:-1]


def _low(spectrum: np.ndarray, level: int, axes: tuple[int, ...] = (-2, -1)) -> np.ndarray:
    """A filter's spectrum at a resolution that is 2^level times coarser."""
    for axis in axes:
        size = spectrum.shape[axis] // 2**level
        spectrum = np.take(
            spectrum, np.r_[: size // 2, spectrum.shape[axis] - (size - size // 2) : spectrum.shape[axis]], axis
        )
    return spectrum


def _wavelets(m: int, n: int, scales: int) -> list[np.ndarray]:
    """For each scale, the spectra [θ, m, n] of its wavelets, which are real."""
    angles = [(ORIENTATIONS // 2 - 1 - t) * np.pi / ORIENTATIONS for t in range(ORIENTATIONS)]
    return [np.stack([np.real(np.fft.fft2(_morlet(m, n, j, theta))) for theta in angles]) for j in range(scales)]


def _morlet(m: int, n: int, j: int, theta: float) -> np.ndarray:
    """A wave of frequency 3π/4 · 2^-j under a slanted Gaussian, less what makes its mean zero."""
    sigma, frequency = 0.8 * 2**j, 0.75 * np.pi / 2**j
    wave, envelope = np.zeros((m, n), complex), np.zeros((m, n))
    for a in _WRAPS:
        for b in _WRAPS:
            x, y = np.mgrid[a * m : (a + 1) * m, b * n : (b + 1) * n]
            along, across = np.cos(theta) * x + np.sin(theta) * y, np.cos(theta) * y - np.sin(theta) * x
            bell = np.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * sigma**2))
            wave += bell * np.exp(1j * frequency * along)
            envelope += bell
    return (wave - wave.sum() / envelope.sum() * envelope) * _SLANT / (2 * _ABOUT_PI * sigma**2)
