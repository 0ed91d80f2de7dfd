"""What follows the batch: shared where it is said or can't be mistaken, refused where it may be the batch's labels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from oracle import distance

import jaxdp


def whole_batch_loss(w: Any, xs: Any, ys: Any) -> jax.Array:
    """As for libraries whose loss sees a batch; of one example, it reads all labels."""
    return jnp.mean((xs @ w - ys) ** 2)


def a_problem(size: int = 8) -> tuple[Any, Any, Any]:
    x = jax.random.normal(jax.random.key(0), (size, 5))
    return jnp.zeros(5), x, jnp.ones(size)


ignores_it = lambda w, x, *shared: w * jnp.sum(x)


def test_labels_after_the_batch_are_refused_and_would_have_moved_the_sum_by_more_than_its_sensitivity() -> None:
    w, x, y = a_problem()
    grad_fn = jaxdp.clipped_grad(whole_batch_loss, clip_norm=1.0)
    with pytest.raises(jaxdp.UsageError, match=r"has shape \(8,\), and 8 is the batch's size.*\(X, Y\).*Shared"):
        grad_fn(w, x, y)
    # Were they shared, one label's change would reach all eight examples:
    shared = jax.jit(lambda labels: grad_fn(w, x, jaxdp.Shared(labels)))
    before, after = shared(y), shared(y.at[0].set(-1e4))
    assert distance(before.grads, after.grads) > 2.5 * float(before.sensitivity)


@pytest.mark.parametrize(
    "call",
    [
        lambda w, x, y: jaxdp.clipped_grad(ignores_it, clip_norm=1.0).explain(w, x, y),
        lambda w, x, y: jax.jit(jaxdp.clipped_grad(ignores_it, clip_norm=1.0))(w, x, y),
        lambda w, x, y: jaxdp.clipped_grad(ignores_it, clip_norm=1.0, method="vmap")(w, x, 1.0, {"y": (2, y)}),
        lambda w, x, y: jaxdp.per_example_grads(ignores_it)(w, x, y),
        lambda w, x, y: a_step().many(a_step().init(w, jax.random.key(0)), x, y, num_steps=2),
        lambda w, x, y: a_run().clipped_grad(ignores_it)(w, x[:3], y),  # those of all the data, beside a batch
    ],
    ids=["explain", "jit", "vmap", "per_example_grads", "step", "the data's labels beside a batch"],
)
def test_every_way_in_refuses_labels_after_the_batch(call: Callable[..., Any]) -> None:
    with pytest.raises(jaxdp.UsageError, match=r"8 is the (batch's size|run's num_examples).*\(X, Y\)"):
        call(jnp.float32(1), jnp.ones((8, 2)), np.arange(8))


SEEN = np.arange(8, dtype=np.float32)


@jax.custom_vjp
def by_a_rule(w: Any, x: Any) -> Any:
    return w * jnp.sum(x)


by_a_rule.defvjp(
    lambda w, x: (by_a_rule(w, x), x), lambda x, g: (g * (jnp.sum(x) + jnp.sum(jnp.asarray(SEEN))), jnp.zeros_like(x))
)


@pytest.mark.slow_but("in a loop-ghost")
@pytest.mark.parametrize("method", ["auto", "ghost", "vmap"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: w * jnp.sum(x) * jnp.sum(jnp.asarray(SEEN)),
        lambda w, x: w * jnp.sum(SEEN * x[0]),
        jax.jit(lambda w, x: w * jnp.sum(x) * jnp.max(jnp.asarray(SEEN))),
        lambda w, x: jax.lax.fori_loop(0, 2, lambda i, total: total + jnp.asarray(SEEN)[i] * w * jnp.sum(x), 0.0),
        lambda w, x: jax.lax.cond(x[0] > 0, lambda: w * jnp.asarray(SEEN)[1], lambda: w),
        by_a_rule,
    ],
    ids=["itself", "in NumPy", "in a jit", "in a loop", "in a branch", "in a gradient's rule"],
)
def test_an_array_with_a_row_for_each_record_that_a_runs_loss_closes_over_is_refused(loss: Any, method: str) -> None:
    w, x = jnp.float32(1), jnp.ones((8, 2))
    clipped = replace(a_run().clipped_grad(loss), method=method)
    with pytest.raises(
        jaxdp.UsageError, match=r"closes over an array of shape \(8,.*8 is the run's num_examples.*Shared"
    ):
        clipped(w, x[:3], mask=np.ones(3, bool))
    jaxdp.clipped_grad(loss, clip_norm=1.0, method=method)(w, x)  # of no run: as many rows by chance


@pytest.mark.parametrize("of_a_run", [True, False])
def test_a_batch_that_the_loss_closes_over_is_refused(of_a_run: bool) -> None:
    def gradient(w: Any, batch: Any, closed_over: Any) -> Any:
        loss = lambda w, x: w * jnp.sum(x) * jnp.sum(closed_over)
        if of_a_run:
            return a_run().clipped_grad(loss)(w, batch, mask=jnp.ones(3, bool)).grads
        return jaxdp.clipped_grad(loss, clip_norm=1.0)(w, batch).grads

    w, x = jnp.float32(1), jnp.ones((3, 2))
    of_itself = lambda w, x: gradient(w, x, x)
    for call in (of_itself, jax.jit(of_itself)):
        with pytest.raises(jaxdp.UsageError, match=r"closes over an array of shape \(3, 2\), as the batch has"):
            call(w, x)
    gradient(w, x, x[:2])
    if of_a_run:
        with pytest.raises(jaxdp.UsageError, match=r"closes over an array of shape \(3, 2\), as the batch has"):
            gradient(w, x, x - jnp.mean(x, axis=0, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("container", [list, tuple, lambda rows: dict(enumerate(rows))])
def test_rows_that_are_closed_over_one_by_one_are_refused(container: Callable[[Any], Any]) -> None:
    rows = container([jnp.full(2, i) for i in range(8)])
    loss = lambda w, x: w * jnp.sum(x + sum(jax.tree.leaves(rows)))
    with pytest.raises(jaxdp.UsageError, match=r"closes over as many arrays of shape \(2,\), and 8 is"):
        a_run().clipped_grad(loss)(jnp.float32(1), jnp.ones((3, 2)), mask=np.ones(3, bool))
    fewer = lambda w, x: w * jnp.sum(x + rows[0] + rows[1])
    a_run().clipped_grad(fewer)(jnp.float32(1), jnp.ones((3, 2)), mask=np.ones(3, bool))


@pytest.mark.slow
def test_a_step_refuses_it_and_takes_it_as_shared() -> None:
    w, x = jnp.float32(1), jnp.ones((8, 2))
    seen = jnp.asarray(SEEN)
    closing = lambda self_check: a_run().make_step(
        lambda w, x: w * jnp.sum(x) * jnp.sum(seen), optax.sgd(0.1), self_check=self_check
    )
    for step in map(closing, (True, False)):
        with pytest.raises(jaxdp.UsageError, match="the loss closes over an array"):
            step(step.init(w, jax.random.key(0)), x)
    step = a_run().make_step(lambda w, x, seen: w * jnp.sum(x) * jnp.sum(seen), optax.sgd(0.1))
    step(step.init(w, jax.random.key(0)), x, jaxdp.Shared(seen))


def a_run() -> jaxdp.DPSGD:
    return jaxdp.DPSGD(num_examples=8, expected_batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=1.0)


def a_step() -> jaxdp.PrivateStep:
    return a_run().make_step(ignores_it, optax.sgd(0.1))


CONTAINERS: tuple[Callable[[Any], Any], ...] = (lambda y: y, lambda y: {"labels": y}, lambda y: (0.5, [y]))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(2, 5),
    shape=st.lists(st.integers(0, 6), max_size=4),
    contain=st.sampled_from(CONTAINERS),
    as_sequence=st.booleans(),
)
def test_an_axis_of_the_batchs_size_anywhere_is_refused_and_any_other_shape_is_shared(
    size: int, shape: list[int], contain: Callable[[Any], Any], as_sequence: bool
) -> None:
    value = np.zeros(shape, np.float32)
    shared = contain(value.tolist() if as_sequence else value)
    call = lambda value: jaxdp.clipped_grad(ignores_it, clip_norm=1.0).explain(jnp.float32(1), jnp.ones(size), value)
    seen = shape if not as_sequence or 0 not in shape else shape[: shape.index(0) + 1]  # no list is inside an empty one
    if size in seen or (contain is CONTAINERS[2] and size == 2):
        with pytest.raises(jaxdp.UsageError, match="jaxdp.Shared"):
            call(shared)
    else:
        call(shared)
    call(jaxdp.Shared(shared))


@pytest.mark.slow
def test_a_shared_value_reaches_the_loss_as_it_is_wherever_it_is_wrapped() -> None:
    loss = lambda w, x, weights, more: w * jnp.sum(weights["m"] @ x) * more[1]
    x, m = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(4, 3)  # neither axis of m is the batch's
    rest = (None, jnp.float32(2), 0.0)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1e6, method="vmap"))
    expected = 2.0 * float(jnp.sum(m @ x.T))
    for weights in (jaxdp.Shared({"m": m}), {"m": jaxdp.Shared(jaxdp.Shared(m))}, {"m": m}):
        assert float(grad_fn(jnp.float32(1), x, weights, rest).grads) == pytest.approx(expected)
    grad_fn(jnp.float32(1), x[:1], {"m": m[:1]}, rest)  # of one example, nothing can be another's
