"""One key for several values: no two copies that `jax.vmap` or `jax.shard_map` makes get the same noise."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxdp
from jaxdp import mechanisms

VALUES = jnp.zeros((2, 3))


def privatized(values: Any, key: Any) -> Any:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key)
    return tx.update(values, tx.init(values), sensitivity=1.0)[0]


def followed(values: Any, key: Any) -> Any:
    rule = jaxdp.clipping.Quantile(expected_batch_size=4)
    return rule.update(rule.init(1.0, key), values, jnp.ones(3, jnp.bool_)).clip_norm


def clipped(values: Any, key: Any) -> Any:
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1, key=key)
    params = jnp.zeros(())
    return tx.update(values, tx.init(params), params)[0]


RELEASES: dict[str, Callable[[Any, Any], Any]] = {
    "privatize": privatized,
    "clip_and_privatize": clipped,
    "Quantile": followed,
    "Laplace": lambda values, key: mechanisms.Laplace(epsilon=1.0, sensitivity=1.0)(values, key=key),
    "Gaussian": lambda values, key: mechanisms.Gaussian(noise_multiplier=1.0, sensitivity=1.0)(values, key=key),
    "Exponential": lambda values, key: mechanisms.Exponential(epsilon=1.0, sensitivity=1.0)(values, key=key),
    "ReportNoisyMax": lambda values, key: mechanisms.ReportNoisyMax(epsilon=1.0, sensitivity=1.0)(values, key=key),
    "RandomizedResponse": lambda values, key: mechanisms.RandomizedResponse(epsilon=1.0, categories=2)(
        values.astype(jnp.int32), key=key
    ),
}


@pytest.mark.slow_but("Gaussian", "ReportNoisyMax")
@pytest.mark.parametrize("name", RELEASES)
def test_vmap_over_values_with_one_key_is_refused(name: str) -> None:
    release = lambda values: RELEASES[name](values, jax.random.key(0))
    for fn in (release, jax.jit(release)):
        with pytest.raises(jaxdp.UsageError, match="vmap gives each copy values of its own and all of them one key"):
            jax.eval_shape(jax.vmap(fn), VALUES)


@pytest.mark.slow_but("Quantile")
@pytest.mark.parametrize("name", RELEASES)
def test_vmap_over_keys_as_well_is_not(name: str) -> None:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    jax.eval_shape(jax.vmap(RELEASES[name]), VALUES, keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_vmap_over_values_around_one_over_keys_is_refused(name: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    over_keys, over_both = jax.vmap(RELEASES[name], (None, 0)), jax.vmap(RELEASES[name])
    for fn, values in ((over_keys, VALUES), (jax.jit(over_keys), VALUES), (over_both, jnp.zeros((2, 3, 3)))):
        with pytest.raises(jaxdp.UsageError, match="vmap gives each copy values of its own and all of them one key"):
            jax.eval_shape(jax.vmap(fn, (0, None)), values, keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_vmap_over_keys_and_values_within_one_over_both_is_not(name: str) -> None:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (4, 2)))
    jax.eval_shape(jax.vmap(jax.vmap(RELEASES[name])), jnp.zeros((4, 2, 3)), keys)
    jax.eval_shape(jax.vmap(jax.vmap(RELEASES[name], (None, 0)), (None, 0)), jnp.zeros(3), keys)


@pytest.mark.slow
def test_copies_with_keys_of_their_own_have_the_noise_that_each_has_alone() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    alone = jax.jit(privatized)
    together = jax.jit(jax.vmap(privatized))(VALUES, jax.random.clone(keys))
    for copy, key, values in zip(together, jax.random.clone(keys), VALUES, strict=True):
        np.testing.assert_array_equal(copy, alone(values, key))


def test_vmap_over_init_and_within_loops_and_remat_is_refused() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=jax.random.key(0))
    state = tx.init(VALUES[0])
    update = lambda values, state: tx.update(values, state, sensitivity=1.0)
    in_a_loop = lambda values: jax.lax.scan(lambda carry, _: (update(*carry), None), (values, state), length=2)
    for fn in (tx.init, in_a_loop, lambda values: jax.checkpoint(update)(values, state)):
        with pytest.raises(jaxdp.UsageError, match="vmap"):
            jax.eval_shape(jax.vmap(fn), VALUES)


def test_without_noise_there_is_nothing_to_share() -> None:
    tx = jaxdp.privatize(noise_multiplier=0.0, expected_batch_size=2, key=jax.random.key(0))
    means = jax.vmap(lambda values: tx.update(values, tx.init(values), sensitivity=1.0)[0])(VALUES + 1)
    np.testing.assert_array_equal(means, np.full((2, 3), 0.5))


def test_one_noise_at_several_scales_is_refused() -> None:
    """Of S + Z and S + 3 Z, three times the first less the second is 2 S."""
    sums, scales, key = jnp.array([5.0, -2.0]), jnp.array([1.0, 3.0]), jax.random.key(0)
    tx, noise = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key), jaxdp.noise.Gaussian()
    mesh, own = Mesh(np.array(jax.devices()[:1]), ("parts",)), PartitionSpec("parts")
    for release in (
        lambda scale: tx.update(sums, tx.init(sums), sensitivity=scale)[0],
        lambda scale: noise.update(noise.init(key, sums), sums, scale)[0],
    ):
        with pytest.raises(jaxdp.UsageError, match="vmap gives each copy values of its own"):
            jax.eval_shape(jax.vmap(release), scales)
        each = lambda scales, release=release: jnp.asarray(release(scales[0]))[None]
        with pytest.raises(jaxdp.UsageError, match="shard_map over 'parts'"):
            jax.eval_shape(jax.shard_map(each, mesh=mesh, in_specs=own, out_specs=own), scales)
    own_keys = lambda scale, key: noise.update(noise.init(key, sums), sums, scale)[0]
    jax.eval_shape(jax.vmap(own_keys), scales, jax.eval_shape(lambda: jax.random.split(key, 2)))


def test_shard_map_over_sums_with_one_key_is_refused_and_over_their_total_is_not() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("parts",))
    own, all_of_them = PartitionSpec("parts"), PartitionSpec()
    release = lambda values: privatized(values, jax.random.key(0))
    for fn in (release, jax.jit(release)):
        with pytest.raises(jaxdp.UsageError, match="shard_map over 'parts'"):
            jax.eval_shape(jax.shard_map(fn, mesh=mesh, in_specs=own, out_specs=own), VALUES)
    total = lambda values: release(jax.lax.psum(values, "parts"))
    jax.eval_shape(jax.shard_map(total, mesh=mesh, in_specs=own, out_specs=all_of_them), VALUES)
    of_keys = lambda values, keys: privatized(values, keys[0])
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    jax.eval_shape(jax.shard_map(of_keys, mesh=mesh, in_specs=own, out_specs=own), VALUES, keys)


def test_noise_goes_through_differentiation_as_it_is() -> None:
    total = lambda values: jnp.sum(privatized(values, jax.random.key(0)))
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(VALUES), np.ones((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["privatize", "clip_and_privatize", "Quantile", "Laplace", "Gaussian"])
def test_one_key_for_copies_within_a_branch_that_their_data_take_makes_no_numbers(name: str) -> None:
    """A condition that differs from copy to copy gives each of them the key, and the branch is computed for all."""

    def released(values: Any, key: Any) -> Any:
        nothing = lambda values: jnp.zeros_like(RELEASES[name](values, key))
        return jax.lax.cond(jnp.all(values < 9), lambda values: RELEASES[name](values, key), nothing, values)

    values, keys = jnp.stack([jnp.zeros(3), jnp.ones(3), jnp.ones(3)]), jax.random.split(jax.random.key(0), 3)
    with jax.debug_key_reuse(False):  # which is what this is about
        assert np.isnan(jax.vmap(released, in_axes=(0, None))(values, keys[0])).all()
        assert np.isnan(jax.vmap(released)(values, keys[jnp.array([0, 1, 0])])).all()
        assert np.isfinite(jax.vmap(released)(values, keys)).all()


@pytest.mark.slow
def test_a_release_can_be_differentiated_by_its_sensitivity() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=jax.random.key(0))
    release = lambda sensitivity: tx.update(jnp.zeros(3), tx.init(jnp.zeros(3)), sensitivity=sensitivity)[0]
    np.testing.assert_allclose(jax.jacrev(release)(2.0), release(1.0), rtol=1e-5)
