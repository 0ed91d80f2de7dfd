"""Shuffled epochs: everyone once an epoch, in another order each time."""

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp.sampling import Shuffled, ShuffledSampler


@pytest.mark.slow
@pytest.mark.parametrize(("size", "batch"), [(20, 5), (23, 5), (7, 7), (3, 1)])
def test_every_example_stands_in_one_batch_of_each_epoch(size: int, batch: int) -> None:
    per_epoch = Shuffled.steps_per_epoch(size, batch)
    sampler = ShuffledSampler(key=jax.random.key(0), num_examples=size, batch_size=batch, steps=3 * per_epoch)
    batches = [np.asarray(indices)[np.asarray(mask)] for indices, mask in sampler]
    orders = []
    for epoch in range(3):
        orders.append(np.concatenate(batches[epoch * per_epoch : (epoch + 1) * per_epoch]))
        np.testing.assert_array_equal(np.sort(orders[-1]), np.arange(size))
    if size > 7:
        assert not np.array_equal(orders[0], orders[1])


def test_a_draw_at_full_shape_holds_what_the_batch_holds() -> None:
    sampler = ShuffledSampler(key=jax.random.key(1), num_examples=11, batch_size=4, steps=6)
    for step in range(6):
        draw, (indices, mask) = sampler.draw(step), sampler.batch(step)
        assert draw.indices.shape == (11,)
        assert int(draw.size) == int(mask.sum()) == (3 if step % 3 == 2 else 4)
        np.testing.assert_array_equal(draw.indices[: int(draw.size)], indices[: int(draw.size)])


@pytest.mark.parametrize(
    ("arguments", "message"), [({"batch_size": 11}, "batch_size=11 exceeds"), ({"batch_size": 0}, "batch_size=0")]
)
def test_bad_input_is_refused(arguments: dict, message: str) -> None:
    usual = {"key": jax.random.key(0), "num_examples": 10, "batch_size": 2, "steps": 1}
    with pytest.raises(jaxdp.UsageError, match=message):
        ShuffledSampler(**{**usual, **arguments})
