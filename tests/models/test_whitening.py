"""Coordinates of features that strokes drawn by chance have taught: what they are, and what the stored ones do."""

import jax
import numpy as np
import pytest

from jaxdp.models import ScatteringNet, scattering_features
from jaxdp.models._strokes import strokes
from jaxdp.models._whitening import computed, in_steps, whitened


def test_strokes_are_the_same_for_everybody_and_of_any_size() -> None:
    np.testing.assert_array_equal(strokes(4), strokes(9)[:4])
    assert (strokes(4) != strokes(4, seed=2)).any()
    large = strokes(30, size=56)
    assert large.shape == (30, 56, 56, 1)
    ink = [images.mean(axis=(1, 2, 3)) for images in (strokes(30), large)]
    np.testing.assert_allclose(ink[0], ink[1], rtol=0.1, err_msg="the same drawings, twice as large")
    assert (large.max(axis=(1, 2, 3)) == 255).all()


@pytest.mark.slow
def test_other_strokes_have_the_mean_and_vary_as_the_map_has_learned() -> None:
    features = np.asarray(jax.jit(jax.vmap(scattering_features))(strokes(300, seed=2)))
    found = np.asarray(jax.jit(jax.vmap(whitened))(features))
    assert found.shape == (300, 1000)
    assert found.dtype == np.float32
    lengths = [np.sqrt(np.square(each).sum(axis=1).mean()) for each in (features, found)]
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)
    assert np.linalg.norm(found.mean(axis=0)) < 0.15 * lengths[1]
    ahead = lambda each: each.var(axis=0).max() / np.median(each.var(axis=0))
    directions = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)[2][:200]
    assert ahead(features @ directions.T) > 10 * ahead(found[:, :200])


def test_a_matrix_in_steps_is_the_matrix() -> None:
    matrix = np.random.default_rng(0).standard_normal((50, 7)) * np.logspace(-3, 3, 7)
    steps, unit = in_steps(matrix)
    assert steps.dtype == np.int8
    np.testing.assert_array_less(np.abs(steps * unit - matrix), 0.5001 * unit + np.zeros_like(matrix))


def test_a_map_of_all_directions_makes_features_as_white_as_it_says() -> None:
    features = np.random.default_rng(0).standard_normal((4000, 6)) * np.array([30, 10, 5, 2, 1, 0.5]) + 3
    mean, matrix = computed(features, 6)
    found = (features - mean) @ matrix
    covariance = found.T @ found / len(found)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-6 * covariance.max())
    values = np.linalg.eigvalsh(np.cov(features.T, bias=True))[::-1]
    expected = values / (values + 0.05) ** 0.6
    np.testing.assert_allclose(np.diag(covariance) / covariance[0, 0], expected / expected[0], rtol=1e-6)


def test_the_model_takes_them_where_they_fit_and_plain_features_elsewhere() -> None:
    rng = np.random.default_rng(0)
    for shape, scales, size in (((28, 28, 1), 2, 1000), ((28, 28, 1), 1, 9 * 14 * 14), ((28, 28, 3), 2, 3 * 3969)):
        image = rng.integers(0, 256, shape).astype(np.uint8)
        prepared = jax.eval_shape(ScatteringNet(num_classes=10, scales=scales).prepare, image)
        assert (prepared.shape, prepared.dtype) == ((size,), np.float32)
