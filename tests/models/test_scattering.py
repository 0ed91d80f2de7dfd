"""Wavelet scattering against the values of another library, its symmetries, and features that are each image's own."""

import functools
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.models import scattering, scattering_channels, scattering_features

STORED = sorted((Path(__file__).parents[1] / "fixtures" / "scattering").glob("*.npz"))


@functools.cache
def compiled(function: Callable[..., jax.Array], scales: int) -> Callable[..., jax.Array]:
    return jax.jit(lambda images: function(images, scales))


@pytest.mark.slow
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_coefficients_are_those_of_kymatio(path: Path) -> None:
    stored, scales = np.load(path), int(path.stem[-1])
    found = compiled(scattering, scales)(jnp.asarray(stored["image"]))
    assert found.shape == stored["expected"].shape
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, stored["expected"], rtol=0, atol=1e-5)


def test_an_image_turned_by_a_quarter_has_its_orientations_moved_by_four() -> None:
    """Away from the border, which is wider on one side than on the other."""
    image = np.zeros((33, 33), np.float32)
    image[12:21, 12:21] = np.random.default_rng(0).random((9, 9))
    upright, turned = (
        np.asarray(compiled(scattering, 1)(jnp.asarray(each))) for each in (image, np.rot90(image).copy())
    )
    assert upright.shape == (scattering_channels(1), 16, 16)
    of_angles = lambda s: s[1:].mean(axis=(-1, -2))
    np.testing.assert_allclose(np.roll(of_angles(upright), 4), of_angles(turned), rtol=2e-2)


@pytest.mark.slow
def test_features_are_of_one_image_and_normalised_by_threes() -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 16, 12, 3)).astype(np.uint8)
    features_of = compiled(scattering_features, 2)
    features = features_of(jnp.asarray(images))
    coefficients = np.asarray(
        compiled(scattering, 2)(jnp.moveaxis(jnp.asarray(images), -1, 1) / 255.0)
    )  # [3, 3, 81, 4, 3]
    groups = coefficients.reshape(3, 81, -1)
    deviation = np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    normalised = (groups - groups.mean(-1, keepdims=True)) / deviation
    np.testing.assert_allclose(features, normalised.reshape(3, -1), atol=1e-3)
    alone = features_of(jnp.asarray(images[1]))
    np.testing.assert_allclose(features[1], alone, atol=2e-4)
    changed = images.copy()
    changed[2] = 0
    after = np.asarray(features_of(jnp.asarray(changed)))
    np.testing.assert_array_equal(after[:2], features[:2])
    assert np.all(after[2] == 0), "a black image"


@pytest.mark.slow
def test_floats_from_0_to_1_have_the_features_of_their_pixels() -> None:
    image = np.random.default_rng(2).integers(0, 256, (20, 20, 1)).astype(np.uint8)
    pixels, floats = (
        compiled(scattering_features, 1)(jnp.asarray(each)) for each in (image, image.astype(np.float32) / 255)
    )
    np.testing.assert_allclose(pixels, floats, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "scales", "said"),
    [
        ((28, 3), 2, r"scales=2 averages over 2\^2 pixels, and images have 28 x 3: give fewer"),
        ((8, 8), 10**9, r"averages over 2\^1000000000 pixels"),
        ((8, 8), 0, "scales=0"),
    ],
)
def test_images_too_small_are_refused(shape: tuple[int, int], scales: int, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        scattering(jnp.zeros(shape), scales)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [jnp.zeros(28), jnp.zeros((28, 28, 1), jnp.complex64)])
def test_what_is_no_image_is_refused(wrong: jax.Array) -> None:
    for function in (scattering, scattering_features):
        with pytest.raises(jaxdp.UsageError, match="give real numbers"):
            function(wrong)


@pytest.mark.slow
def test_no_images_have_no_features() -> None:
    assert scattering_features(jnp.zeros((0, 28, 28, 1), jnp.uint8)).shape == (0, 3969)
