"""The run and its compiled step: the parts agree, nothing is lost, nothing is overdrawn."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp.clipping import Quantile
from jaxdp.transforms import PrivatizeState


def loss(params: Any, example: Any) -> jax.Array:
    x, y = example
    return jnp.square(params["w"] @ x + params["b"] - y)


def problem(size: int = 60) -> tuple[Any, Any]:
    x = np.random.default_rng(10).normal(size=(size, 4)).astype(np.float32)
    return {"w": jnp.ones(4), "b": jnp.zeros(())}, (jnp.asarray(x), jnp.asarray(x.sum(1) * 2))


def a_run(**changes: Any) -> jaxdp.DPSGD:
    usual = {
        "num_examples": 60,
        "expected_batch_size": 12,
        "steps": 30,
        "clip_norm": 1.0,
        "noise_multiplier": 1.1,
        "microbatch_size": 5,
    }
    return jaxdp.DPSGD(**{**usual, **changes})


@pytest.mark.slow
def test_a_step_is_sampler_then_clipped_grad_then_privatize_then_optimizer() -> None:
    params, data = problem()
    run, optimizer = a_run(), optax.adam(0.1)
    step = run.make_step(loss, optimizer)
    state = step.init(params, jax.random.key(0))

    sampler, grad_fn, noise = run.sampler(state.keys.sampling), run.clipped_grad(loss), run.privatize(state.keys.noise)
    noise_state, opt_state = noise.init(params), optimizer.init(params)
    grad_fn, add_noise, optimize = jax.jit(grad_fn), jax.jit(noise.update), jax.jit(optimizer.update)
    for batch, mask in itertools.islice(sampler.take(data), 6):
        state, metrics = step(state, data)
        out = grad_fn(params, batch, mask=mask)
        means, noise_state = add_noise(out.grads, noise_state, params, sensitivity=out.sensitivity)
        updates, opt_state = optimize(means, opt_state, params)
        params = optax.apply_updates(params, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, params)
        assert int(metrics.examples) == int(mask.sum())
        drawn = np.asarray(mask)
        np.testing.assert_allclose(metrics.loss, np.asarray(out.losses)[drawn].mean(), rtol=1e-5)
        np.testing.assert_allclose(metrics.clipped, (np.asarray(out.norms)[drawn] > 1.0).mean())


@pytest.mark.slow
def test_the_step_compiles_once_over_many_draws() -> None:
    params, data = problem()
    step = a_run().make_step(loss, optax.sgd(0.1, momentum=0.9), self_check=False)
    state, sizes = step.init(params, jax.random.key(0)), set()
    for _ in range(30):
        state, metrics = step(state, data)
        sizes.add(int(metrics.examples))
    assert len(sizes) > 3
    assert step._compiled._cache_size() == 1


@pytest.mark.slow
def test_several_steps_in_one_program_are_the_steps_one_by_one() -> None:
    params, data = problem()
    step = a_run().make_step(loss, optax.sgd(0.1, momentum=0.9), self_check=False)
    one_by_one = step.init(params, jax.random.key(3))
    for _ in range(6):
        one_by_one, _ = step(one_by_one, data)
    together, metrics = step.many(step.init(params, jax.random.key(3)), data, num_steps=6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one_by_one.params, together.params
    )
    assert metrics.loss.shape == (6,)


@pytest.mark.slow_but("1")
@pytest.mark.parametrize("microbatch_size", [1, 7, 60, 1000])
def test_no_drawn_example_is_lost_whatever_the_microbatches(microbatch_size: int) -> None:
    # Each example's gradient is its own unit vector: the update shows who was used, and how often.
    run = a_run(noise_multiplier=0.0, clip_norm=math.inf, microbatch_size=microbatch_size, expected_batch_size=30)
    step = run.make_step(lambda w, i: w[i], optax.sgd(30.0), self_check=False)
    state = step.init(jnp.zeros(60), jax.random.key(5))
    sampler = run.sampler(state.keys.sampling)
    for indices, mask in list(sampler)[:5]:
        before = np.asarray(state.params)
        state, _ = step(state, jnp.arange(60))
        used = before - np.asarray(state.params)
        expected = np.zeros(60)
        expected[np.asarray(indices)[np.asarray(mask)]] = 1
        np.testing.assert_allclose(used, expected, atol=1e-5)


@pytest.mark.slow
def test_the_work_of_a_step_follows_the_number_drawn_rounded_up_to_a_microbatch_with_nobody_in_the_padding() -> None:
    calls = []

    def counting_loss(w: Any, x: Any) -> Any:
        def count(x: Any) -> Any:
            calls.append(float(x))
            return np.asarray(x)

        return w * jax.pure_callback(count, x, x, vmap_method="sequential")

    run = a_run(microbatch_size=4)
    step = run.make_step(counting_loss, optax.sgd(0.1), self_check=False)
    state = step.init(jnp.float32(0), jax.random.key(0))
    for _ in range(5):
        calls.clear()
        state, metrics = step(state, jnp.ones(60))
        jax.effects_barrier()
        assert len(calls) == 4 * math.ceil(int(metrics.examples) / 4)
        assert sum(calls) == int(metrics.examples)  # of ones; zeros beside them


def test_an_empty_draw_is_a_step_with_noise() -> None:
    run = a_run(num_examples=60, expected_batch_size=1e-6)
    step = run.make_step(lambda w, x: jnp.vdot(w, x), optax.sgd(1e-6), self_check=False)
    state = step.init(jnp.zeros(1000), jax.random.key(0))
    state, metrics = step(state, jnp.ones((60, 1000)))
    assert int(metrics.examples) == 0
    assert math.isnan(float(metrics.loss))
    assert float(jnp.std(state.params)) == pytest.approx(1.1, rel=0.1)
    assert state.step == 1


@pytest.mark.slow
def test_without_clipping_noise_and_sampling_it_is_full_batch_gradient_descent() -> None:
    params, data = problem()
    run = a_run(expected_batch_size=60, clip_norm=math.inf, noise_multiplier=0.0, steps=5)
    step, optimizer = run.make_step(loss, optax.sgd(0.05), self_check=False), optax.sgd(0.05)
    state, opt_state = step.init(params, jax.random.key(0)), optimizer.init(params)
    gradient = jax.jit(jax.grad(lambda p: jnp.mean(jax.vmap(loss, (None, 0))(p, data))))
    for _ in range(5):
        state, _ = step(state, data)
        updates, opt_state = optimizer.update(gradient(params), opt_state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), state.params, params)


@pytest.mark.slow
def test_the_users_parameters_survive_the_donation_of_the_states() -> None:
    params, data = problem()
    step = a_run().make_step(loss, optax.sgd(0.1), self_check=False)
    state = step.init(params, jax.random.key(0))
    for _ in range(2):
        state, _ = step(state, data)
    np.testing.assert_array_equal(params["w"], np.ones(4))


@pytest.mark.slow
def test_a_loss_that_takes_rng_gets_a_new_key_for_every_example_and_step() -> None:
    run = a_run(expected_batch_size=60, clip_norm=math.inf, noise_multiplier=0.0)
    step = run.make_step(lambda w, i, rng: w[i] * jax.random.uniform(rng), optax.sgd(60.0), self_check=False)
    state, drawn = step.init(jnp.zeros(60), jax.random.key(0)), []
    for _ in range(2):
        before = np.asarray(state.params)
        state, _ = step(state, jnp.arange(60))
        drawn.append(np.asarray(state.params) - before)
    assert len(np.unique(np.concatenate(drawn))) > 115


@pytest.mark.slow
def test_bfloat16_parameters_stay_bfloat16_and_compile_once() -> None:
    params, data = problem()
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    step = a_run().make_step(loss, optax.adam(0.1), self_check=False)
    state = step.init(params, jax.random.key(0))
    for _ in range(3):
        state, _ = step(state, data)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.bfloat16)}
    assert step._compiled._cache_size() == 1


def test_the_noise_of_a_step_is_that_of_privatize_at_its_count() -> None:
    run = a_run(expected_batch_size=1e-6)
    step = run.make_step(lambda w, x: jnp.vdot(w, x), optax.sgd(1.0), self_check=False)
    state = step.init(jnp.zeros(3), jax.random.key(1))
    noise_key = state.keys.noise
    update = jax.jit(run.privatize(noise_key).update)
    for count in range(3):
        before = np.asarray(state.params)
        state, _ = step(state, jnp.ones((60, 3)))
        noise, _ = update(jnp.zeros(3), PrivatizeState(noise_key, jnp.int32(count)), sensitivity=jnp.float32(1.0))
        np.testing.assert_allclose(before - np.asarray(state.params), noise, rtol=1e-3, atol=1.0)


@pytest.mark.slow
def test_a_state_goes_on_under_another_microbatch_size() -> None:
    params, data = problem()
    few, many = (a_run(microbatch_size=size).make_step(loss, optax.sgd(0.1), self_check=False) for size in (3, 50))
    state, _ = few(few.init(params, jax.random.key(0)), data)
    state, _ = many(state, data)
    whole, _ = few.many(few.init(params, jax.random.key(0)), data, num_steps=2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, whole.params)
    assert state.ledger == whole.ledger
    with pytest.raises(jaxdp.UsageError, match=r"of another run than this step's: steps: 30, 31\. Its epsilon"):
        a_run(microbatch_size=9, steps=31).make_step(loss, optax.sgd(0.1), self_check=False)(state, data)


def test_more_steps_than_the_run_has_are_refused() -> None:
    params, data = problem()
    step = a_run(steps=2).make_step(loss, optax.sgd(0.1), self_check=False)
    state = step.init(params, jax.random.key(0))
    state, _ = step.many(state, data, num_steps=2)
    with pytest.raises(jaxdp.UsageError, match="exceeds the run's steps=2"):
        step(state, data)


@pytest.mark.parametrize("num_steps", [-1, 0, True])
def test_a_run_cannot_be_wound_back(num_steps: Any) -> None:
    params, data = problem()
    step = a_run().make_step(loss, optax.sgd(0.1), self_check=False)
    with pytest.raises(jaxdp.UsageError, match="num_steps"):
        step.many(step.init(params, jax.random.key(0)), data, num_steps=num_steps)


def test_data_of_another_size_than_the_runs_are_refused() -> None:
    params, data = problem(61)
    step = a_run().make_step(loss, optax.sgd(0.1), self_check=False)
    with pytest.raises(jaxdp.UsageError, match="num_examples=60"):
        step(step.init(params, jax.random.key(0)), data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_examples": 0}, "num_examples=0"),
        ({"expected_batch_size": -1}, "expected_batch_size=-1"),
        ({"expected_batch_size": 61}, "expected_batch_size=61 exceeds num_examples=60"),
        ({"steps": 0}, "steps=0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_norm": math.inf}, "clip_norm=inf leaves the sensitivity unbounded"),
        ({"noise_multiplier": -0.5}, "noise_multiplier=-0.5"),
        ({"sampling": "alphabetical"}, "sampling='alphabetical' is not known.*poisson"),
        ({"adjacency": "replace_two"}, "adjacency='replace_two' is not known.*add_or_remove_one"),
        ({"sampling": "shuffle"}, "can't be accounted under adjacency='add_or_remove_one'.*replace_special.*poisson"),
        (
            {"sampling": "shuffle", "adjacency": "replace_special", "expected_batch_size": 7.5},
            "expected_batch_size=7.5 must be a whole number",
        ),
        ({"sampling": "truncated_poisson"}, "truncated_batch_size=None"),
        ({"truncated_batch_size": 20}, "sampling='poisson' with truncated_batch_size=20"),
        ({"unit": "household"}, "unit='household' is not known.*user"),
        ({"unit": "user"}, "unit='user' with records_per_user=None"),
        ({"records_per_user": 3}, "unit='example' with records_per_user=3"),
        ({"microbatch_size": 0}, "microbatch_size=0"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        a_run(**changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: a_run(noise_multiplier=0.0).epsilon(delta=1e-5), "epsilon is infinite"),
        (lambda: a_run().epsilon(delta=0.5), "not below 1/60"),
        (lambda: a_run().epsilon(delta=1e-5, steps=31), "exceeds the run's steps=30"),
        (lambda: a_run(sampling="shuffle", adjacency="replace_special").epsilon(delta=1e-5, steps=-5), "steps=-5"),
        (lambda: a_run().epsilon(delta=1e-5, accountant="moments"), "accountant='moments' is not known"),
    ],
)
def test_an_epsilon_that_would_be_untrue_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call()


def test_two_runs_of_one_key_share_no_ledger_and_two_of_two_keys_do() -> None:
    params, _ = problem()
    step = a_run().make_step(loss, optax.sgd(0.1))
    first, again, other = (step.init(params, jax.random.key(seed))._replace(step=1) for seed in (0, 0, 1))
    assert first.ledger.entries[0].nonce == again.ledger.entries[0].nonce != other.ledger.entries[0].nonce
    assert len(first.ledger.extend(other.ledger).entries) == 2
    with pytest.raises(jaxdp.UsageError, match="their difference has none"):
        first.ledger.extend(again.ledger)
    more = a_run(noise_multiplier=2.0).make_step(loss, optax.sgd(0.1))  # another run, the same key: the same noise
    with pytest.raises(jaxdp.UsageError, match="two entries of one nonce"):
        first.ledger.extend(more.init(params, jax.random.key(0))._replace(step=1).ledger)
    followed = more.continue_from(first, jax.random.key(0))._replace(step=1)  # which makes a key of its own
    assert len({entry.nonce for entry in followed.ledger.entries}) == 2


def test_a_nonce_outlives_its_keys_and_is_the_same_inside_a_compiled_program() -> None:
    params, _ = problem()
    step = a_run().make_step(loss, optax.sgd(0.1))
    state = step.init(params, jax.random.key(0))._replace(step=1)
    erased = state._replace(keys=jax.tree.map(lambda _: jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), state.keys))
    assert erased.ledger == state.ledger
    compiled = jax.jit(step.init)(params, jax.random.key(0))
    np.testing.assert_array_equal(compiled.nonce, state.nonce)
    words = np.concatenate([np.ravel(jax.random.key_data(key)) for key in state.keys])
    assert not set(words.tolist()) & set(np.asarray(state.nonce).tolist())


def test_values_and_their_short_names_describe_the_same_run() -> None:
    numbers: Any = {
        "num_examples": 6000,
        "expected_batch_size": 256,
        "steps": 3,
        "clip_norm": 1.0,
        "noise_multiplier": 1.1,
    }
    by_name = jaxdp.DPSGD(**numbers, sampling="truncated_poisson", truncated_batch_size=512, rule=Quantile(0.5))
    by_value = jaxdp.DPSGD(
        **numbers,
        sampling=jaxdp.sampling.TruncatedPoisson(512),
        rule=Quantile(quantile=0.5),
        noise=jaxdp.noise.Gaussian(),
    )
    assert by_name == by_value
    assert by_name.to_dict() == by_value.to_dict()


@pytest.mark.usefixtures("unchecked")
def test_a_runs_sampler_of_no_key_is_refused_where_it_is_made() -> None:
    run = jaxdp.DPSGD(num_examples=6, expected_batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(jaxdp.UsageError, match=r"key=0 is not a scalar JAX key.*jax\.random\.key\(seed\)"):
        run.sampler(0)  # pyright: ignore
