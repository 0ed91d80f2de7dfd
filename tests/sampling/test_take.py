"""Batches of the user's own arrays: all rows that were drawn, of all the data, and zeros where nobody was."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.sampling import PoissonSampler, Sampler, ShuffledSampler, TruncatedPoissonSampler, rows_at
from jaxdp.sampling._batches import drawn_indices

usual = {"num_examples": 11, "steps": 4}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "poisson": lambda: PoissonSampler(key=jax.random.key(0), **usual, sampling_rate=0.3),
    "tight": lambda: PoissonSampler(key=jax.random.key(0), **usual, sampling_rate=0.5, capacity=4),
    "truncated": lambda: TruncatedPoissonSampler(
        key=jax.random.key(0), **usual, sampling_rate=0.3, truncated_batch_size=4
    ),
    "shuffled": lambda: ShuffledSampler(key=jax.random.key(0), **usual, batch_size=4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_holds_the_rows_drawn_and_zeros_whoever_holds_the_arrays(name: str) -> None:
    x = np.arange(1, 23, dtype=np.float32).reshape(11, 2)
    arrays = {"host": x, "device": (jnp.asarray(x), jnp.arange(1, 12, dtype=jnp.uint8))}
    padded = 0
    for (batch, mask), (indices, same) in zip(SAMPLERS[name]().take(arrays), SAMPLERS[name](), strict=True):
        np.testing.assert_array_equal(mask, same)
        drawn = np.asarray(indices)[np.asarray(mask)]
        for leaf, whole in zip(jax.tree.leaves(batch), jax.tree.leaves(arrays), strict=True):
            assert (leaf.dtype, leaf.shape) == (whole.dtype, (len(mask), *whole.shape[1:]))
            np.testing.assert_array_equal(np.asarray(leaf)[np.asarray(mask)], np.asarray(whole)[drawn])
            assert not np.asarray(leaf)[~np.asarray(mask)].any()
        padded += int((~np.asarray(mask)).sum())
    assert padded > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_index_of_padding_is_no_examples(name: str) -> None:
    for step in range(4):
        draw, (indices, mask) = SAMPLERS[name]().draw(step), SAMPLERS[name]().batch(step)
        assert (np.asarray(indices)[~np.asarray(mask)] == 11).all()
        assert (np.asarray(draw.indices)[int(draw.size) :] == 11).all()
        assert (np.asarray(draw.indices)[: int(draw.size)] < 11).all()


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (np.zeros((10, 3)), "arrays has 10 rows and the sampler draws from num_examples=11"),
        (jnp.zeros(12), "has 12 rows"),
        ((np.zeros(11), {"y": np.zeros((1, 11))}), r"arrays\[1\]\['y'\] has 1 rows"),
        ((np.zeros(11), 3.0), "has no rows"),
        (jaxdp.reading.Source(np.zeros((11, 3))), "is a Source and no array.*step of run.make_step"),
        ((), "no leaves"),
    ],
)
def test_data_of_another_size_are_refused_before_the_first_batch(name: str, arrays: Any, message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        SAMPLERS[name]().take(arrays)


@pytest.mark.slow
def test_rows_of_padding_are_zeros_for_every_type_of_array() -> None:
    indices = jnp.array([2, 0, 3, 3], jnp.int32)
    for dtype in ("bool", "int4", "uint8", "int32", "float8_e4m3fn", "bfloat16", "float32", "complex64"):
        ones = jnp.ones(3, dtype)
        for leaf, read in ((ones, jax.jit(rows_at)), (np.asarray(ones), rows_at)):
            rows = np.asarray(read(leaf, indices))
            assert rows.dtype == dtype
            np.testing.assert_array_equal(rows.astype(np.complex64), [1, 1, 0, 0])
    np.testing.assert_array_equal(jax.random.key_data(rows_at(jax.random.split(jax.random.key(0), 3), indices))[2:], 0)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_batches_of_a_run_are_not_taken_twice(name: str) -> None:
    """A loop over epochs around the loop over batches: the same draws once more, for which there is no noise."""
    sampler, rows = SAMPLERS[name](), np.zeros((11, 2), np.float32)
    next(iter(sampler.take(rows)))  # to look at one is no walk
    assert len(list(sampler.take(rows))) == len(list(sampler))
    with pytest.raises(
        jaxdp.UsageError, match="all 4 batches of the run.*the whole run, all of its epochs.*a key of its own"
    ):
        sampler.take(rows)
    assert len(list(SAMPLERS[name]().take(rows))) == 4


def test_rows_that_lie_apart_on_axes_of_the_users_own_are_refused() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    place = lambda *axes: jax.device_put(np.zeros((11, 2), np.float32), jax.NamedSharding(mesh, jax.P(*axes)))
    with pytest.raises(
        jaxdp.UsageError, match=r"arrays\['x'\] is divided over.*np.asarray\(array\), or.*run.make_step"
    ):
        SAMPLERS["poisson"]().take({"x": place("data")})
    assert len(list(SAMPLERS["poisson"]().take(place()))) == 4


def test_masks_of_numpys_masked_arrays_are_not_dropped() -> None:
    run = jaxdp.DPSGD(num_examples=8, expected_batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(jaxdp.UsageError, match=r"arrays\[1\] is a masked array, and its mask would be lost"):
        run.sampler(jax.random.key(0)).take((np.ones((8, 2)), np.ma.ones(8)))


class OfOnesOwn(PoissonSampler):
    """A sampler of a class that JAX doesn't know as a pytree."""


def test_a_sampler_of_ones_own_class_gives_its_draws() -> None:
    known = PoissonSampler(key=jax.random.key(0), **usual, sampling_rate=0.3)
    own = OfOnesOwn(key=jax.random.key(0), **usual, sampling_rate=0.3)
    for (rows, mask), (expected, same) in zip(own.take(np.arange(11)), known.take(np.arange(11)), strict=True):
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(mask, same)
    np.testing.assert_array_equal(drawn_indices(own, 2), drawn_indices(known, 2))
