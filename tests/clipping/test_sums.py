"""Sums of many clipped gradients, which rounding must not move by more than an example may."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp


def numbers_that_double_a_gap(doublings: int) -> tuple[np.ndarray, int]:
    """Numbers in [0, 1], and the place of one without which their running sum in float32 moves by 2 ** doublings.

    Just above a power of two a small number is rounded to twice what it is rounded to just below it, and so a sum that has got
    beyond it by one number moves away from the sum that hasn't (Casacuberta et al., arXiv 2207.10635, "repeated rounding").
    """
    numbers: list[float] = []
    place, total, gap = -1, np.float32(0), 1.0
    for power in range(12, 12 + doublings):
        ones = int(2.0**power - gap - float(total))  # then the sum without the number lacks the gap to the power of two
        numbers += [1.0] * ones
        total = np.float32(float(total) + ones)
        if place < 0:
            place = len(numbers)
            numbers.append(1.0)
        step = 2.0 ** (power - 24)  # from one float32 to the next below the power of two
        numbers += [step * (1 + 2.0**-10)] * int(gap / step)
        total, gap = np.float32(2.0**power), 2 * gap
    return np.array(numbers, np.float32), place


def test_the_numbers_double_a_gap() -> None:
    numbers, place = numbers_that_double_a_gap(3)
    found = [float(np.add.accumulate(each)[-1]) for each in (numbers, np.delete(numbers, place))]
    assert found[0] - found[1] == 8


@pytest.mark.slow_but("1-None-ghost")
@pytest.mark.parametrize("method", ["auto", "ghost", "vmap"])
@pytest.mark.parametrize("microbatch_size", [None, 1, 16, 100])
@pytest.mark.parametrize("entries", [1, 8])
def test_a_sum_moves_by_no_more_than_an_example_may(method: str, microbatch_size: int | None, entries: int) -> None:
    numbers, place = numbers_that_double_a_gap(1)
    batch = jnp.zeros((len(numbers), entries)).at[:, 0].set(numbers)
    grad_fn = jaxdp.clipped_grad(jnp.vdot, clip_norm=1.0, method=method, microbatch_size=microbatch_size)
    of = jax.jit(lambda mask: grad_fn(jnp.zeros(entries), batch, mask=mask).grads)
    everyone = jnp.ones(len(numbers), jnp.bool_)
    assert abs(float(jnp.linalg.norm(of(everyone) - of(everyone.at[place].set(False)))) - 1) < 0.002


@pytest.mark.slow
@pytest.mark.parametrize("microbatch_size", [None, 1, 64])
@pytest.mark.parametrize("adjacency", ["add_or_remove_one", "replace_special"])
def test_a_step_moves_by_no_more_than_an_example_may(adjacency: str, microbatch_size: int | None) -> None:
    numbers, place = numbers_that_double_a_gap(3)
    data = np.zeros((len(numbers), 8), np.float32)
    data[:, 0] = numbers
    run = jaxdp.DPSGD(
        num_examples=len(numbers),
        expected_batch_size=len(numbers),
        steps=1,
        clip_norm=1.0,
        noise_multiplier=8.0,
        adjacency=adjacency,
        microbatch_size=microbatch_size,
    )
    step = run.make_step(jnp.vdot, optax.sgd(1.0))
    blanked = data.copy()
    blanked[place] = 0
    found = [step(step.init(jnp.zeros(8), jax.random.key(0)), jnp.asarray(each))[0].params for each in (data, blanked)]
    assert abs(float(jnp.linalg.norm(found[0] - found[1])) * len(numbers) - 1) < 0.005
