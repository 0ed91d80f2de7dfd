"""The Gaussian noise. Each statistical test has a fixed seed and a false-alarm rate below 1e-4 where the seed is changed."""

import dataclasses
import math
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxdp import UsageError
from jaxdp._block import Block
from jaxdp._platform import CPU
from jaxdp.noise import Gaussian, key_from_entropy, standard_normal, tree_normal
from jaxdp.noise._keys import Domain, own_key
from jaxdp.noise.draws import _normal, _threefry
from jaxdp.noise.draws._normal import LARGEST_NORMAL, _cosine, _radius
from jaxdp.noise.draws._threefry import draw_bits, threefry

FALSE_ALARM = 1e-4
draw = jax.jit(standard_normal, static_argnums=1)


def test_the_draws_follow_the_normal_distribution() -> None:
    draws = np.asarray(draw(jax.random.key(0), (1_000_000,)), np.float64)
    assert scipy.stats.kstest(draws, "norm").pvalue > FALSE_ALARM


def test_the_tail_has_the_mass_of_a_normal_tail() -> None:
    draws = np.abs(np.asarray(draw(jax.random.key(1), (4_000_000,))))
    for cut in (3.0, 4.0, 4.5):
        expected = len(draws) * 2 * scipy.stats.norm.sf(cut)
        assert FALSE_ALARM < scipy.stats.poisson.cdf(int((draws > cut).sum()), expected) < 1 - FALSE_ALARM


def test_neighbours_along_every_axis_are_independent() -> None:
    draws = np.asarray(draw(jax.random.key(2), (1_000, 1_000)), np.float64)
    for first, second in ((draws[:-1], draws[1:]), (draws[:, :-1], draws[:, 1:])):
        _independent(first.ravel(), second.ravel())


def _independent(first: np.ndarray, second: np.ndarray) -> None:
    for a, b in ((first, second), (first**2, second**2), (np.abs(first), second)):
        assert scipy.stats.pearsonr(a, b).pvalue > FALSE_ALARM


def _of_bits(first: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The normals that are made of these words."""
    return np.asarray(jax.jit(_normal._normal)(jnp.asarray(first), jnp.asarray(others)), np.float64)


def test_the_tails_reach_far_beyond_those_of_a_float32_uniform() -> None:
    deepest = jax.jit(_radius)(jnp.zeros(17, jnp.uint32), jnp.arange(17, dtype=jnp.uint32))
    assert float(deepest[0]) == pytest.approx(math.sqrt(2 * 73 * math.log(2)), rel=1e-6)
    assert int(np.sum(np.asarray(deepest) > LARGEST_NORMAL)) == 16
    assert LARGEST_NORMAL > 9.1


def test_the_deepest_values_are_a_normal_tail() -> None:
    """Where 32 bits are zero, the other 32 make radius and angle: on a grid of them, the tail's mass is a normal tail's."""
    others = (np.arange(2**20, dtype=np.uint64) * 2**12 + 2**11).astype(np.uint32)
    draws = np.abs(_of_bits(np.zeros(2**20, np.uint32), others))
    for cut in (6.7, 7.0, 7.5, 8.0):
        assert np.mean(draws > cut) * 2.0**-32 == pytest.approx(2 * scipy.stats.norm.sf(cut), rel=3e-2)
    for smallest, cut in ((2**12, 8.5), (2**6, 9.0)):  # of the last 2^20 and 2^14 points of 2^64, each in its turn
        others = np.arange(256 * smallest, dtype=np.uint32)
        draws = np.abs(_of_bits(np.zeros(others.shape, np.uint32), others))
        assert np.sum(draws > cut) * 2.0**-64 == pytest.approx(2 * scipy.stats.norm.sf(cut), rel=6e-2)


def test_the_bits_become_the_box_muller_transform_of_them() -> None:
    rng = np.random.default_rng(0)
    high, others = rng.integers(1, 2**32, 10_000, np.uint32), rng.integers(0, 2**32, 10_000, np.uint32)
    high[::2] = 0
    angle = rng.integers(0, 2**24, 10_000, np.uint32)
    cosine = jax.jit(_cosine)(jnp.asarray(angle))
    # The quadrant is cut from -π/4, a rotation by which the angle's distribution doesn't change.
    theta = 2 * np.pi * (angle + 0.5) / 2**24 - np.pi / 4
    np.testing.assert_allclose(cosine, np.cos(theta), atol=3e-7)
    low = others % 256 + 0.5
    u = np.where(high > 0, (high * 256.0 + low) / 2**40, (others * 256.0 + low) / 2**72)
    radius = np.asarray(jax.jit(_radius)(jnp.asarray(high), jnp.asarray(others)), np.float64)
    np.testing.assert_allclose(np.square(radius), -2 * np.log(u), rtol=1e-6, atol=3e-7)


def test_the_generator_is_that_of_jax_keys() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (4, 1000), np.uint32)
    one = lambda k0, k1, x, y: jnp.stack(threefry(jnp.stack([k0, k1]), x, y))
    ours = jax.jit(jax.vmap(one, out_axes=1))(*words)
    theirs = jax.extend.random.threefry2x32_p.bind(*(jnp.asarray(row) for row in words))
    np.testing.assert_array_equal(ours, np.stack(theirs))


@pytest.mark.slow
def test_no_two_elements_share_their_bits() -> None:
    for shape in ((), (1000,), (7, 11), (3, 1, 5, 2), (4, 0)):
        first, second = jax.jit(draw_bits, static_argnums=1)(jnp.array([1, 2], jnp.uint32), shape)
        assert first.shape == second.shape == shape
        assert len(np.unique(np.stack([np.ravel(first), np.ravel(second)]), axis=1).T) == first.size


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "small", "large"), [("cpu", 1, 1), ("cuda", 2, 1), ("tpu", 0, 0)])
def test_a_sum_is_made_before_noise_where_that_pays(platform: str, small: int, large: int) -> None:
    def barriers(size: int) -> int:
        noise, sums = Gaussian(), jax.ShapeDtypeStruct((size,), jnp.float32)
        update = lambda sums: noise.update(noise.init(jax.random.key(0), sums), sums, jnp.float32(1))[0]
        lowered = jax.jit(update).trace(sums).lower(lowering_platforms=(platform,))
        return lowered.as_text().count("optimization_barrier")

    assert (barriers(1000), barriers(2**20)) == (small, large)


@pytest.mark.parametrize("leaf", [jnp.zeros(2, jnp.complex64), 1j, jnp.zeros(2, bool), "sum"])
def test_sums_that_are_not_real_are_refused(leaf: Any) -> None:
    noise = Gaussian()
    with pytest.raises(UsageError, match=r"sums\['w'\] is .* no array of real numbers"):
        noise.update(noise.init(jax.random.key(0), {"w": 0.0}), {"w": leaf}, jnp.float32(1))


@pytest.mark.slow
@pytest.mark.parametrize("leaf", [1.0, 3, np.zeros(2), jnp.zeros(2, jnp.bfloat16)])
def test_other_real_sums_are_made_float32(leaf: Any) -> None:
    noise = Gaussian()
    noisy, _ = noise.update(noise.init(jax.random.key(0), leaf), leaf, jnp.float32(1))
    assert noisy.dtype == jnp.float32
    assert jnp.shape(noisy) == jnp.shape(leaf)


def test_leaves_of_the_same_shape_get_independent_noise() -> None:
    noise = jax.jit(tree_normal)(jax.random.key(3), {"a": jnp.zeros(100_000), "b": jnp.zeros(100_000)})
    assert scipy.stats.pearsonr(np.asarray(noise["a"]), np.asarray(noise["b"])).pvalue > FALSE_ALARM


@pytest.mark.slow
def test_leaves_drawn_apart_are_rows_of_one_array() -> None:
    shape, key = (256, 300), jax.random.key(3)
    drawn = jax.jit(tree_normal)(key, [jnp.zeros(shape)] * 3)
    words = jax.random.bits(own_key(key, Domain.TREE_NORMAL), (1, 2), jnp.uint32)[0]
    together = jax.jit(lambda words: _normal._normal(*draw_bits(words, (3, *shape))))(words)
    np.testing.assert_allclose(np.stack(drawn), together, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_no_two_values_of_a_tree_share_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    counters: list[np.ndarray] = []

    def recorded(key: Any, first: Any, second: Any) -> Any:
        counters.append(np.stack([np.ravel(each) for each in np.broadcast_arrays(first, second)]))
        return threefry(key, first, second)

    monkeypatch.setattr(_threefry, "threefry", recorded)
    monkeypatch.setattr(_normal, "_LARGE", 300)
    shapes = [(7,), (), (3, 5), (7,), (301,), (5, 3), (301,), (1, 7), (0,)]
    noise = tree_normal(jax.random.key(0), [jnp.zeros(shape) for shape in shapes])
    assert [leaf.shape for leaf in noise] == shapes
    drawn = np.concatenate(counters, axis=1)
    assert drawn.shape[1] == len(np.unique(drawn.T, axis=0)) == sum(map(math.prod, shapes))


@pytest.mark.slow
def test_the_smallest_leaves_are_drawn_as_one_array_and_get_what_they_get_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = [jnp.zeros(shape) for shape in [(7,), (), (3, 5), (7,), (301,), (5, 3), (0,), (2, 3, 4), (400,)]]
    drawn = lambda: jax.jit(lambda key: tree_normal(key, tree))(jax.random.key(1))
    monkeypatch.setattr(_normal, "default_platform", lambda: dataclasses.replace(CPU, draws_together=0))
    alone = drawn()
    for most in (30, 400, 10_000):
        monkeypatch.setattr(
            _normal, "default_platform", lambda most=most: dataclasses.replace(CPU, draws_together=most)
        )
        for one, other in zip(drawn(), alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "block"),
    [((8, 130), Block((3, 5), (2, 125))), ((300,), Block((37,), (1,))), ((2, 3, 8), Block((1, 0, 4), (1, 3, 4)))],
)
def test_a_block_of_a_leaf_is_that_part_of_the_whole(shape: tuple[int, ...], block: Block) -> None:
    tree = [jnp.zeros(shape)] * 3
    whole = jax.jit(tree_normal)(jax.random.key(1), tree)
    found = jax.jit(lambda key: tree_normal(key, tree, {1: block}))(jax.random.key(1))
    for i, leaf in enumerate(found):
        np.testing.assert_allclose(leaf, block.of(whole[i]) if i == 1 else whole[i], rtol=1e-6, atol=1e-6)


def test_a_barrier_keeps_a_noisy_sum_one_value_but_on_a_tpu_which_draws_once_by_itself() -> None:
    sums = {"w": jnp.zeros((64, 8)), "b": jnp.zeros(3)}
    state = Gaussian().init(jax.random.key(0), sums)
    update = jax.jit(lambda state, sums: Gaussian().update(state, sums, jnp.float32(1.1))[0])
    traced = update.trace(state, sums)
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "optimization_barrier" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "optimization_barrier" not in traced.lower(lowering_platforms=("tpu",)).as_text()


@pytest.mark.slow
def test_odd_shapes_scalars_and_empty_leaves_are_drawn() -> None:
    for shape in ((), (0,), (1,), (3, 5)):
        assert draw(jax.random.key(0), shape).shape == shape


def test_a_key_from_entropy_is_refused_where_a_program_would_keep_it() -> None:
    drawn = lambda x: x + jax.random.uniform(key_from_entropy())
    in_a_loop = lambda x: jax.lax.map(drawn, jnp.full(2, x))
    of_copies = lambda x: jax.vmap(lambda _: key_from_entropy())(jnp.full(2, x))
    for fn in (jax.jit(drawn), in_a_loop, jax.checkpoint(drawn), jax.jit(jax.grad(drawn)), of_copies):
        with pytest.raises(UsageError, match="every call and every step would get the same noise"):
            fn(1.0)
    assert drawn(1.0) != drawn(1.0)


def test_a_key_from_entropy_fills_all_its_bits() -> None:
    words = np.stack([np.asarray(jax.random.key_data(key_from_entropy())) for _ in range(64)])
    assert len(np.unique(words[:, 0])) == len(np.unique(words[:, 1])) == 64
