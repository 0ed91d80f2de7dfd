"""A run over records that are read as they are drawn is the run over the same records in memory, to the bit."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from bits import assert_same_numbers

import jaxdp
from jaxdp.dpsgd import _from_source
from jaxdp.reading import Source

N = 60
STEPS = 6
USUAL = {"num_examples": N, "expected_batch_size": 15, "steps": STEPS, "clip_norm": 0.3, "noise_multiplier": 1.0}
RUNS = {
    "poisson": {"microbatch_size": 4},
    "whole draws at once": {},
    "few are drawn": {"expected_batch_size": 0.5},
    "shuffled": {"sampling": "shuffle", "adjacency": "replace_special", "microbatch_size": 6},
    "truncated": {"sampling": "truncated_poisson", "truncated_batch_size": 12},
    "quantile": {"rule": jaxdp.clipping.Quantile(0.5), "microbatch_size": 4},
}
PARAMS = {"w": jnp.ones((5, 3)), "b": jnp.zeros(3)}


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 5)).astype(np.float32), rng.integers(0, 3, N).astype(np.int32)


def loss(params: Any, example: Any, rng: Any) -> Any:
    x, y = example
    logits = (x * jax.random.bernoulli(rng, 0.8, (5,))) @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y), jnp.argmax(logits) == y


def step_of(run: jaxdp.DPSGD) -> Any:
    return run.make_step(loss, optax.adam(0.05), has_aux=True, self_check=False)


def trained(run: jaxdp.DPSGD, records: Any, *, steps: int = STEPS, state: Any = None) -> tuple[Any, list[Any]]:
    step, metrics = step_of(run), []
    state = step.init(PARAMS, jax.random.key(3)) if state is None else state
    for _ in range(state.step, steps):
        state, of_step = step(state, records)
        metrics.append(jax.device_get(of_step))
    step.close()
    return state, metrics


def assert_same(one: Any, other: Any) -> None:
    words = lambda leaf: jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    same = lambda a, b: assert_same_numbers(words(a), words(b))
    jax.tree.map(same, one.params, other.params)
    jax.tree.map(
        same, (one.opt_state, one.rule_state, one.noise_state), (other.opt_state, other.rule_state, other.noise_state)
    )


@pytest.fixture(autouse=True)
def _no_thread_reads_on() -> Iterator[None]:
    before = threading.active_count()
    yield
    end = time.monotonic() + 30  # a thread that is told to end does so when it next looks
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.slow
@pytest.mark.parametrize("name", list(RUNS))
def test_a_run_over_a_source_is_the_run_over_arrays(name: str) -> None:
    run = jaxdp.DPSGD(**{**USUAL, **RUNS[name]})
    in_memory, expected = trained(run, jax.tree.map(jnp.asarray, data()))
    read, metrics = trained(run, Source(data()))
    assert_same(read, in_memory)
    jax.tree.map(assert_same_numbers, metrics, expected)
    assert read.ledger == in_memory.ledger


@pytest.mark.slow
def test_a_draw_of_several_blocks_of_several_microbatches_is_added_up_in_the_order_of_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = jaxdp.DPSGD(**{**USUAL, "microbatch_size": 4})
    in_memory, expected = trained(run, jax.tree.map(jnp.asarray, data()))
    two_microbatches = 8 * Source(data()).record_bytes
    monkeypatch.setattr(_from_source, "_BLOCK_BYTES", two_microbatches)
    read, metrics = trained(run, Source(data()))
    assert_same(read, in_memory)
    jax.tree.map(assert_same_numbers, metrics, expected)


@pytest.mark.slow
def test_several_steps_in_one_call_are_the_same_steps() -> None:
    run = jaxdp.DPSGD(**USUAL)
    expected, _ = trained(run, Source(data()))
    step = step_of(run)
    state, metrics = step.many(step.init(PARAMS, jax.random.key(3)), Source(data()), num_steps=STEPS)
    assert_same(state, expected)
    assert metrics.loss.shape == (STEPS,)


@pytest.mark.slow
def test_a_run_goes_on_from_its_state_alone_whatever_was_read_ahead() -> None:
    run = jaxdp.DPSGD(**USUAL)
    expected, _ = trained(run, Source(data()))
    half, _ = trained(run, Source(data()), steps=3)
    assert_same(trained(run, Source(data()), state=half)[0], expected)


@pytest.mark.slow
def test_a_step_is_made_again_from_a_copy_of_its_state() -> None:
    step, source = step_of(jaxdp.DPSGD(**USUAL)), Source(data())
    state, _ = step(step.init(PARAMS, jax.random.key(3)), source)
    copy = jax.tree.map(jnp.copy, state)
    once, _ = step(state, source)
    again, _ = step(copy, source)
    assert_same(again, once)
    step.close()


@pytest.mark.slow
def test_a_record_that_cannot_be_read_is_named_and_the_state_can_be_gone_on_from(tmp_path: Path) -> None:
    run, (inputs, labels) = jaxdp.DPSGD(**{**USUAL, "microbatch_size": 4}), data()
    expected, _ = trained(run, Source((inputs, labels)))
    paths = [tmp_path / f"{i}.npy" for i in range(N)]
    for path, row in zip(paths, inputs, strict=True):
        np.save(path, row)
    source = Source(paths, lambda path: (np.load(path), labels[int(path.stem)]))
    step = step_of(run)
    state = step.init(PARAMS, jax.random.key(3))
    lost = paths[int(run.sampler(state.keys.sampling).batch(2).indices[7])]
    lost.rename(tmp_path / "elsewhere")
    for _ in range(2):
        state, _ = step(state, source)
    with pytest.raises(jaxdp.UsageError, match=rf"records\[{int(lost.stem)}\].*FileNotFoundError"):
        step(state, source)
    (tmp_path / "elsewhere").rename(lost)
    for _ in range(state.step, STEPS):
        state, _ = step(state, source)
    assert_same(state, expected)


def test_a_source_of_another_length_than_the_run_is_refused() -> None:
    step = step_of(jaxdp.DPSGD(**USUAL))
    with pytest.raises(jaxdp.UsageError, match="data has 30 examples and the run was described with num_examples=60"):
        step(step.init(PARAMS, jax.random.key(3)), Source(tuple(column[:30] for column in data())))


def test_what_is_no_array_and_no_source_is_refused_with_the_name_of_what_reads_it() -> None:
    step = step_of(jaxdp.DPSGD(**USUAL))
    with pytest.raises(jaxdp.UsageError, match=r"jaxdp.reading.Source"):
        step(step.init(PARAMS, jax.random.key(3)), [Path(f"{i}.npy") for i in range(N)])


@pytest.mark.slow
def test_what_is_shared_reaches_the_loss_as_it_does_over_arrays() -> None:
    def scaled(params: Any, example: Any, weights: Any, power: int, rng: Any) -> Any:
        value, _ = loss(params, example, rng)
        return value * weights.mean() ** power, weights

    states = []
    for records in (jax.tree.map(jnp.asarray, data()), Source(data())):
        step = jaxdp.DPSGD(**USUAL).make_step(scaled, optax.sgd(0.1), has_aux=True, self_check=False)
        state = step.init(PARAMS, jax.random.key(3))
        for length in (2, 3):  # of another shape at each step
            state, metrics = step(state, records, jnp.full(length, 1.5), 2)
            assert metrics.aux.shape == (length,)
        step.close()
        states.append(state)
    assert_same(*states)


@pytest.mark.slow
def test_an_error_in_the_optimizer_leaves_a_state_to_go_on_from() -> None:
    failing: list[bool] = []

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        if failing:
            raise ZeroDivisionError(failing.pop())
        return updates, state

    optimizer = optax.GradientTransformation(lambda params: (), update)
    step = jaxdp.DPSGD(**USUAL).make_step(loss, optimizer, has_aux=True, self_check=False)
    state, source = step.init(PARAMS, jax.random.key(3)), Source(data())
    failing.append(True)
    with pytest.raises(ZeroDivisionError):
        step(state, source)
    step(state, source)
    step.close()


@pytest.mark.slow
def test_the_self_check_knows_the_kind_of_records() -> None:
    step = jaxdp.DPSGD(**USUAL).make_step(lambda params, example, rng: loss(params, example, rng)[0], optax.sgd(0.1))
    step(step.init(PARAMS, jax.random.key(3)), Source(data()))
    step.close()


@pytest.mark.slow
def test_programs_are_compiled_once() -> None:
    step, source = step_of(jaxdp.DPSGD(**{**USUAL, "microbatch_size": 4})), Source(data())
    state = step.init(PARAMS, jax.random.key(3))
    for _ in range(STEPS):
        state, _ = step(state, source)
    assert step._from_source._add._cache_size() == step._from_source._make._cache_size() == 1
