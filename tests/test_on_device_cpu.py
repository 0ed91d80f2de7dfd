"""On a GPU or TPU, where one is at hand: what it computes keeps what was shown on CPUs. Elsewhere all of it is skipped.

JAX_PLATFORMS=cuda,cpu XLA_FLAGS= XLA_PYTHON_CLIENT_PREALLOCATE=false pytest tests/test_on_device.py -n 8 --dist load
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from convolved import convolved
from models_to_clip import MODELS
from oracle import distance, loop, norm_of
from recorded import a_run, problem, violations

import jaxdp
from jaxdp import pate
from jaxdp.noise import standard_normal

if False:
    pytest.skip("there is no GPU or TPU", allow_module_level=True)

MASK = np.array([True, True, False, True, True, True])


def on_cpu(tree: Any) -> Any:
    return jax.device_put(tree, jax.devices("cpu")[0])


def expected_of(loss: Any, params: Any, batch: Any, clip_norm: float) -> tuple[Any, list[float]]:
    """By the loop over examples, on the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return loop(loss, on_cpu(params), on_cpu(batch), MASK, clip_norm)


FEW = sorted(MODELS)[::4]


@pytest.mark.parametrize(("precision", "products", "near"), [("auto", None, 0.03), ("float32", "highest", 2e-3)])
@pytest.mark.parametrize(
    ("name", "method"), [*((name, "ghost") for name in sorted(MODELS)), *((name, "vmap") for name in FEW)]
)
def test_any_model_is_clipped_by_the_numbers_that_the_device_adds_up(
    name: str, method: str, precision: str, products: str | None, near: float
) -> None:
    loss, params, batch = MODELS[name]()
    _, norms = expected_of(loss, params, batch, math.inf)
    clip_norm = float(np.median(norms))
    expected, _ = expected_of(loss, params, batch, clip_norm)
    with jax.default_matmul_precision(products):
        grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, precision=precision, method=method))
        out = grad_fn(params, batch, mask=jnp.asarray(MASK))
        alone = [norm_of(grad_fn(params, batch, mask=jnp.arange(len(MASK)) == i).grads) for i in np.flatnonzero(MASK)]
    np.testing.assert_allclose(out.norms, norms, rtol=near, atol=1e-6 * max(norms))
    assert distance(out.grads, expected) <= near * sum(min(norm, clip_norm) for norm in norms)
    assert max(alone) <= clip_norm * (1 + 1e-6)
    for length, norm in zip(alone, np.asarray(norms)[MASK], strict=True):
        assert length >= (1 - 2 * near) * min(norm, clip_norm)


def assert_nothing_is_taken_from_others(loss: Any, method: str, params: Any, batch: Any, *, precision: str) -> None:
    """Where the third example isn't finite: masked it contributes nothing, and drawn no more than the clip norm."""
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method=method, precision=precision))
    size = jax.tree.leaves(batch)[0].shape[0]
    others = np.arange(size) != 2
    expected = grad_fn(params, batch, mask=others).grads
    for value in (np.nan, np.inf, -3e38):
        spoilt = lambda leaf, value=value: leaf.at[2].set(value) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
        wrong = jax.tree.map(spoilt, jax.tree.map(jnp.asarray, batch))
        assert distance(grad_fn(params, wrong, mask=others).grads, expected) <= 1e-4, value
        assert distance(grad_fn(params, wrong, mask=np.ones(size, bool)).grads, expected) <= 1 + 1e-4, value


@pytest.mark.parametrize("precision", ["auto", "float32"])
@pytest.mark.parametrize(
    ("name", "method"), [*((name, "ghost") for name in sorted(MODELS)), *((name, "vmap") for name in FEW)]
)
def test_an_example_that_is_not_finite_takes_nothing_from_others(name: str, method: str, precision: str) -> None:
    loss, params, batch = MODELS[name]()
    assert_nothing_is_taken_from_others(loss, method, params, batch, precision=precision)


@pytest.mark.parametrize("method", ["auto", "vmap"])
@pytest.mark.parametrize(("groups", "name"), [(groups, name) for groups in (1, 2) for name in convolved(1)])
def test_nor_does_one_whose_kernel_is_its_own(groups: int, name: str, method: str) -> None:
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(3, 3, 2 // groups, 4)), jnp.float32)
    batch = jnp.asarray(rng.normal(size=(8, 6, 6, 2)), jnp.float32)
    assert_nothing_is_taken_from_others(convolved(groups)[name], method, w, batch, precision="auto")


@pytest.mark.parametrize("scheme", [{}, {"adjacency": "replace_one"}, {"rule": jaxdp.clipping.PerGroup()}])
def test_what_a_run_releases_is_what_was_accounted(scheme: dict[str, Any]) -> None:
    loss, params, records = problem()
    assert violations(a_run(**scheme), loss, params, records, steps=60) == set()


@pytest.mark.parametrize("name", FEW)
def test_what_any_model_releases_is_what_was_accounted(name: str) -> None:
    loss, params, batch = MODELS[name]()
    of_scalar = lambda p, x: loss(p, x).astype(jnp.float32)
    run = a_run(num_examples=6, expected_batch_size=3, steps=12, clip_norm=0.05, microbatch_size=2)
    assert violations(run, of_scalar, params, batch, steps=12, learning_rate=1e-3) == set()


def test_noise_is_that_of_a_cpu_but_for_rounding() -> None:
    draw = jax.jit(standard_normal, static_argnums=1)
    drawn = np.asarray(draw(jax.random.key(7), (1_000_003,)))
    np.testing.assert_allclose(drawn, draw(on_cpu(jax.random.key(7)), (1_000_003,)), rtol=1e-5, atol=1e-5)
    assert scipy.stats.kstest(drawn[:100_000].astype(np.float64), "norm").pvalue > 1e-4


def test_a_vote_is_that_of_a_cpu() -> None:
    votes = np.random.default_rng(0).multinomial(250, [0.4, 0.3, 0.3], 2000).astype(np.int32)
    aggregator = pate.ConfidentNoisyMax(threshold=60.0, sigma_threshold=30.0, sigma_max=10.0)
    here = pate.aggregate(votes, aggregator, key=jax.random.key(1))
    with jax.default_device(jax.devices("cpu")[0]):
        there = pate.aggregate(votes, aggregator, key=on_cpu(jax.random.key(1)))
    np.testing.assert_array_equal(here.answered, there.answered)
    np.testing.assert_array_equal(here.labels, there.labels)
