"""The Gaussian noise. Each statistical test has a fixed seed and a false-alarm rate below 1e-4 where the seed is changed."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import scipy.stats

from jaxdp.noise import key_from_entropy, standard_normal, tree_normal
from jaxdp.noise._gaussian import LARGEST_NORMAL, _cosine, _radius
from jaxdp.noise._threefry import index_bits, threefry

FALSE_ALARM = 1e-4


def test_the_draws_follow_the_normal_distribution() -> None:
    draws = np.asarray(standard_normal(jax.random.key(0), (1_000_000,)), np.float64)
    assert scipy.stats.kstest(draws, "norm").pvalue > FALSE_ALARM


def test_the_tail_has_the_mass_of_a_normal_tail() -> None:
    draws = np.abs(np.asarray(standard_normal(jax.random.key(1), (4_000_000,))))
    for cut in (3.0, 4.0, 4.5):
        expected = len(draws) * 2 * scipy.stats.norm.sf(cut)
        assert FALSE_ALARM < scipy.stats.poisson.cdf(int((draws > cut).sum()), expected) < 1 - FALSE_ALARM


def test_neighbours_along_every_axis_are_independent() -> None:
    draws = np.asarray(standard_normal(jax.random.key(2), (1_000, 1_000)), np.float64)
    for first, second in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        _independent(first.ravel(), second.ravel())


def _independent(first: np.ndarray, second: np.ndarray) -> None:
    for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert scipy.stats.pearsonr(a, b).pvalue > FALSE_ALARM


def test_the_tails_reach_far_beyond_those_of_a_float32_uniform() -> None:
    deepest = _radius(jnp.zeros(1, jnp.uint32), jnp.zeros(1, jnp.uint32))
    assert float(deepest[0]) > LARGEST_NORMAL - 1e-5 > 7.5


def test_the_bits_become_the_box_muller_transform_of_them() -> None:
    rng = np.random.default_rng(0)
    high, low = rng.integers(0, 2**32, 10_000, np.uint32), rng.integers(0, 256, 10_000, np.uint32)
    angle = rng.integers(0, 2**24, 10_000, np.uint32)
    cosine = _cosine(jnp.asarray(angle))
    # The quadrant is cut from -π/4, a rotation by which the angle's distribution doesn't change.
    theta = 2 * np.pi * (angle + 0.5) / 2**24 - np.pi / 4
    np.testing.assert_allclose(cosine, np.cos(theta), atol=3e-7)
    u = (high.astype(np.float64) * 256 + low + 0.5) / 2**40
    radius = np.asarray(_radius(jnp.asarray(high), jnp.asarray(low)), np.float64)
    np.testing.assert_allclose(np.square(radius), -2 * np.log(u), rtol=1e-6, atol=3e-7)


def test_the_generator_is_that_of_jax_keys() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (4, 1000), np.uint32)
    ours = jax.vmap(lambda k0, k1, x, y: jnp.stack(threefry(jnp.stack([k0, k1]), x, y)), out_axes=1)(*words)
    theirs = jax.extend.random.threefry2x32_p.bind(*(jnp.asarray(row) for row in words))
    np.testing.assert_array_equal(ours, np.stack(theirs))


def test_no_two_elements_share_their_bits() -> None:
    for shape in ((), (1000,), (7, 11), (3, 1, 5, 2), (4, 0)):
        first, second = index_bits(jnp.array([1, 2], jnp.uint32), shape)
        assert first.shape == second.shape == shape
        assert len(np.unique(np.stack([np.ravel(first), np.ravel(second)]), axis=1).T) == first.size


def test_leaves_of_the_same_shape_get_independent_noise() -> None:
    noise = tree_normal(jax.random.key(3), {"a": jnp.zeros(100_000), "b": jnp.zeros(100_000)})
    assert scipy.stats.pearsonr(np.asarray(noise["a"]), np.asarray(noise["b"])).pvalue > FALSE_ALARM


def test_odd_shapes_scalars_and_empty_leaves_are_drawn() -> None:
    for shape in ((), (0,), (1,), (3, 5)):
        assert standard_normal(jax.random.key(0), shape).shape == shape


def test_a_key_from_entropy_fills_all_its_bits() -> None:
    words = np.stack([np.asarray(jax.random.key_data(key_from_entropy())) for _ in range(64)])
    assert len(np.unique(words[:, 0])) == len(np.unique(words[:, 1])) == 64
