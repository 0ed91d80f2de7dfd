"""Augmentation multiplicity: the mean over distortions, clipped as the one example that it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp.models import augmented, distorted
from jaxdp.noise._keys import Domain, own_key


def loss(params: jax.Array, example: tuple[jax.Array, jax.Array]) -> jax.Array:
    image, label = example
    logits = jnp.tanh(image.reshape(-1)[:50]) @ params
    return jnp.sum((logits - jax.nn.one_hot(label, 3)) ** 2)


@pytest.mark.slow
def test_it_is_the_mean_over_distortions_each_with_keys_of_its_own() -> None:
    rng = np.random.default_rng(0)
    params, image, key = (
        jnp.asarray(rng.normal(size=(50, 3)), jnp.float32),
        jnp.asarray(rng.uniform(-1, 1, (9, 9, 1))),
        jax.random.key(3),
    )
    seen = []

    def with_rng(params: jax.Array, example: tuple[jax.Array, jax.Array], *, rng: jax.Array) -> jax.Array:
        return loss(params, example) + jax.random.uniform(rng)

    for one in jax.random.split(own_key(jax.random.key(3), Domain.AUGMENTED), 4):
        of_motion, of_loss = jax.random.split(one)
        moved = distorted(of_motion, image, turn=0.1, scale=0.08, shift=1.0)
        seen.append(with_rng(params, (moved, jnp.int32(2)), rng=of_loss))
    found = augmented(with_rng, 4)(params, (image, jnp.int32(2)), rng=key)
    assert float(found) == pytest.approx(float(np.mean(seen)), rel=1e-6)
    assert len({float(each) for each in seen}) == 4


@pytest.mark.slow
def test_its_gradient_is_clipped_as_one_examples() -> None:
    rng = np.random.default_rng(1)
    params = jnp.asarray(rng.normal(size=(50, 3)), jnp.float32)
    batch = (jnp.asarray(rng.uniform(-1, 1, (6, 9, 9, 1)), jnp.float32), jnp.asarray(rng.integers(0, 3, 6), jnp.int32))
    made, key = augmented(loss, 3), jax.random.key(5)
    found = jaxdp.clipped_grad(made, clip_norm=0.5, strict=True)(params, batch, rng=key)
    expected = jaxdp.clipped_grad(made, clip_norm=0.5, method="vmap")(params, batch, rng=key)
    np.testing.assert_allclose(found.grads, expected.grads, rtol=1e-4, atol=1e-6)
    assert float(jnp.linalg.norm(found.grads)) <= 6 * 0.5 * (1 + 1e-5)


def test_a_multiplicity_below_one_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="multiplicity=0"):
        augmented(loss, 0)


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"turn": float("nan")}, "turn is NaN"), ({"scale": -1.0}, "scale=-1.0"), ({"shift": float("inf")}, "shift=inf")],
)
def test_limits_of_a_distortion_that_are_none_are_refused(limits: Any, said: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=said):
        augmented(lambda params, example: params, 2, **limits)
    with pytest.raises(jaxdp.UsageError, match=said):
        distorted(jax.random.key(0), jnp.zeros((4, 4, 1)), **limits)
