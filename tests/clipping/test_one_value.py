"""A norm is that of the very numbers that are added up, also where a processor that multiplies and adds at once rounds otherwise.

Of products that cancel, a gradient is zero where each is rounded, and the rounding error of one where it isn't. A compiler that
computes a gradient again for each of its readers may take either for the norm, and the other for the sum.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp.clipping._norm import sums_of_squares
from jaxdp.clipping.rules import Normalised, PerGroup
from jaxdp.jaxprs import as_one_value

FIRST, SECOND = np.float32(1234567.1), np.float32(7654321.3)
EXAMPLES, WIDTH = 8, 8


def of_products(example: Any) -> jax.Array:
    """Zero, or the rounding error of a product."""
    _, first, second = example
    return first * second - (first * second)[::-1]


def elementwise(weights: Any, example: Any) -> jax.Array:
    return jnp.sum(weights * (example[0][:, None] * of_products(example)[None, :]))


def product(weights: Any, example: Any) -> jax.Array:
    hidden = weights @ example[0]
    return jnp.sum((hidden - hidden[::-1]) * (example[1] * example[2]))


def row(weights: Any, example: Any) -> jax.Array:
    hidden = weights[example[0]]
    return jnp.sum((hidden - hidden[::-1]) * (example[1] * example[2]))


def data(first: Any) -> Any:
    both = (np.full((EXAMPLES, WIDTH), FIRST), np.full((EXAMPLES, WIDTH), SECOND))
    return (np.repeat(np.asarray(first)[None], EXAMPLES, axis=0), *both)


USES = {
    "elementwise": (elementwise, np.zeros((16, WIDTH), np.float32), data(np.ones(16, np.float32))),
    "product": (product, np.zeros((WIDTH, 3), np.float32), data(np.ones(3, np.float32))),
    "row": (row, np.zeros((4, WIDTH), np.float32), data(np.int32(0))),
}
ONE = np.arange(EXAMPLES) == 0
SETTINGS: list[dict[str, Any]] = [
    {},
    {"microbatch_size": 1},
    {"precision": "bfloat16"},
    {"rule": Normalised()},
    {"rule": PerGroup()},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("method", ["vmap", "auto"])
@pytest.mark.parametrize("use", USES)
def test_products_that_cancel_reach_no_sum_unclipped(use: str, method: Any, settings: dict[str, Any]) -> None:
    loss, weights, batch = USES[use]
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0, method=method, **settings)
    out = jax.jit(lambda *args: grad_fn(*args[:2], mask=args[2]))(weights, batch, ONE)
    assert np.linalg.norm(np.float64(out.grads)) <= 1 + 1e-5


@pytest.mark.slow
def test_neither_do_they_in_what_users_differentiate_themselves() -> None:
    loss, weights, batch = USES["elementwise"]
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1, key=jax.random.key(0))

    @jax.jit
    def update(batch: Any, mask: Any) -> Any:
        grads = jax.vmap(jax.grad(loss), (None, 0))(weights, batch)
        return tx.update(grads, tx.init(weights), weights, mask=mask)[0]

    moved = np.float64(update(batch, ONE)) - np.float64(update(batch, np.zeros(EXAMPLES, np.bool_)))
    assert np.linalg.norm(moved) <= 1 + 1e-5


@pytest.mark.slow
def test_neither_do_they_in_a_step() -> None:
    loss, weights, batch = USES["product"]
    run = jaxdp.DPSGD(
        num_examples=EXAMPLES, expected_batch_size=EXAMPLES - 1e-3, steps=1, clip_norm=1.0, noise_multiplier=1.0
    )

    def moved(batch: Any) -> Any:
        step = run.make_step(loss, optax.sgd(1.0))
        state, _ = step(step.init(jnp.asarray(weights), jax.random.key(0)), batch)
        return np.float64(state.params)

    others = jax.tree.map(np.zeros_like, batch)
    one = jax.tree.map(
        lambda leaf: np.where(ONE.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0).astype(leaf.dtype), batch
    )
    assert np.linalg.norm(moved(one) - moved(others)) * (EXAMPLES - 1e-3) <= 1 + 1e-4


@pytest.mark.parametrize("vectorised", [False, True])
def test_one_value_is_computed_once(*, vectorised: bool) -> None:
    def read_twice(a: Any, b: Any) -> Any:
        difference = as_one_value(a * b - a)
        return jnp.sum(jnp.square(difference), axis=-1), jnp.ones(8) @ (difference * 2)

    fn = jax.vmap(read_twice) if vectorised else read_twice
    array = np.ones((3, 8, 16) if vectorised else (8, 16), np.float32)
    compiled = jax.jit(fn).lower(array, array).compile().as_text()
    assert compiled is not None
    assert compiled.count(" subtract(") == 1


@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", ()), ("float32", (2, 0)), ("bfloat16", (2, 3)), ("bool", (2, 3)), ("int8", (3,))]
)
def test_one_value_is_what_it_was_and_has_its_gradient(shape: tuple[int, ...], dtype: str) -> None:
    values = [jnp.asarray(np.random.default_rng(0).normal(size=shape) * 100, dtype)]
    np.testing.assert_array_equal(jax.jit(as_one_value)(values)[0], values[0])
    np.testing.assert_array_equal(jax.vmap(as_one_value)([values[0][None]])[0][0], values[0])
    if jnp.issubdtype(dtype, jnp.floating):
        doubled = jax.jit(jax.grad(lambda x: jnp.sum(2 * as_one_value(x)).astype(jnp.float32)))(values[0])
        np.testing.assert_array_equal(doubled, jnp.full(shape, 2, dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "bad"),
    [
        ((), np.nan),
        ((), -np.inf),
        ((), 3e38),
        ((), 2e30),
        ((3,), np.nan),
        ((3,), 2e30),
        ((70,), np.nan),
        ((70,), np.inf),
    ],
)
@pytest.mark.parametrize("used", [0.0, 1.0])
def test_what_is_too_large_to_round_contributes_nothing(rows: tuple[int, ...], bad: float, used: float) -> None:
    weights = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    inputs = np.random.default_rng(1).normal(size=(EXAMPLES, *rows, 5)).astype(np.float32)
    loss = lambda weights, example: jnp.sum(jnp.where(example[1] > 0, jnp.tanh(example[0] @ weights), 0))
    batch = (inputs.copy(), np.ones(EXAMPLES, np.float32))
    batch[0][(3, *[0] * len(rows), 2)], batch[1][3] = bad, used
    others = np.arange(EXAMPLES) != 3
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16")
    without = jax.jit(grad_fn)(weights, tuple(part[others] for part in batch))
    np.testing.assert_allclose(jax.jit(grad_fn)(weights, batch).grads, without.grads, rtol=1e-6, atol=1e-6)


def test_lengths_of_several_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = list(jnp.asarray(np.random.default_rng(0).normal(size=(3, EXAMPLES, 5, 7)), np.float32))
    each = sums_of_squares(arrays, (0, 1), 2**14)
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *arrays, cuda, **_: cuda(*arrays))
    for together, alone in zip(sums_of_squares(arrays, (0, 1), 2**14), each, strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-6)
