"""The number of a step: counted from 0, below the sampler's steps, by every sampler."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp

pytestmark = pytest.mark.usefixtures("unchecked")

KEY = {"num_examples": 5, "steps": 4}
SAMPLERS = [
    lambda **how: jaxdp.PoissonSampler(sampling_rate=0.5, **{**KEY, **how}),
    lambda **how: jaxdp.TruncatedPoissonSampler(sampling_rate=0.5, truncated_batch_size=3, **{**KEY, **how}),
    lambda **how: jaxdp.ShuffledSampler(batch_size=2, **{**KEY, **how}),
]


@pytest.mark.slow_but("<lambda>0")
@pytest.mark.parametrize("make", SAMPLERS)
def test_a_step_outside_of_the_run_is_refused(make: Any) -> None:
    sampler = make(key=jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="step=4 is not below the sampler's steps=4"):
        sampler.batch(4)
    for step in (-1, 2**31, 0.5, float("nan"), True, None, "1", jnp.arange(2), np.int8(-1)):
        with pytest.raises(jaxdp.UsageError, match="step(=| is NaN)"):
            sampler.batch(step)
    for step in (-1, 2**31, float("nan"), "1"):
        with pytest.raises(jaxdp.UsageError, match="step(=| is NaN)"):
            sampler.draw(step)
    with pytest.raises(jaxdp.UsageError, match="step.*traced|step is traced|step=.*not a plain"):
        jax.jit(sampler.batch)(1)
    np.testing.assert_array_equal(sampler.batch(np.int8(3)).mask, sampler.batch(jnp.int32(3)).mask)


@pytest.mark.parametrize("make", SAMPLERS)
def test_a_sampler_without_a_key_draws_nothing(make: Any) -> None:
    for key in (None, 3, jnp.zeros(2, jnp.uint32), "key"):
        with pytest.raises(jaxdp.UsageError, match="is not a scalar JAX key"):
            make(key=key).batch(0)


@pytest.mark.slow_but("<lambda>2")
@pytest.mark.parametrize("make", SAMPLERS)
def test_narrow_integers_count_as_what_they_say(make: Any) -> None:
    sampler = make(key=jax.random.key(0), num_examples=np.int8(100), steps=np.uint8(200))
    assert (type(sampler.num_examples), type(sampler.steps)) == (int, int)
    batch = sampler.batch(199)
    assert batch.indices[batch.mask].max() < 100
    with pytest.raises(jaxdp.UsageError, match=r"num_examples=.*below 2\^31"):
        make(key=jax.random.key(0), num_examples=2**31)
