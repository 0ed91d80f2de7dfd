"""Where passes over memory are what counts, lookups' norms are taken in one: nobody's part is longer than the clip norm."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import distance, loop, norm_of

import jaxdp

Loss = Callable[[Any, Any], jax.Array]


def pooled(p: Any, example: Any) -> jax.Array:
    """A bag of words, all of whose cotangents are the same."""
    words, weights = example
    return jnp.sum(jnp.mean(jnp.take(p["table"], words, axis=0, mode="fill", fill_value=0), axis=0) * weights[0])


def apart(p: Any, example: Any) -> jax.Array:
    """Each word has a cotangent of its own, and those of the same word meet."""
    words, weights = example
    return jnp.sum(jnp.take(p["table"], words, axis=0, mode="fill", fill_value=0) * weights)


def single(p: Any, example: Any) -> jax.Array:
    """One word."""
    words, weights = example
    return jnp.sum(jnp.take(p["table"], words[0], axis=0, mode="fill", fill_value=0) * weights[0])


def a_row(p: Any, example: Any) -> jax.Array:
    """One, by its place."""
    words, weights = example
    return jnp.sum(p["table"][jnp.clip(words[0], 0, ENTRIES - 1)] * weights[0])


def of_each_layer(p: Any, example: Any) -> jax.Array:
    """The same words in a table of each step of a loop."""
    words, weights = example
    step = lambda total, table: (
        total + jnp.sum(jnp.sum(jnp.take(table, words, axis=0, mode="fill", fill_value=0), axis=0) * weights[0]),
        None,
    )
    return jax.lax.scan(step, jnp.float32(0), p["tables"])[0]


ENTRIES = 1000  # more than there are lookups: gradients aren't formed
LOSSES = [pooled, apart, single, a_row, of_each_layer]


def tables(loss: Loss, width: int = 2) -> Any:
    return {"tables": jnp.ones((2, ENTRIES, width))} if loss is of_each_layer else {"table": jnp.ones((ENTRIES, width))}


def summed(loss: Loss, clip_norm: float, precision: str) -> Any:
    return jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", precision=precision))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_none_is_formed(loss: Loss) -> None:
    batch = jnp.zeros((2, 5), jnp.int32), jnp.ones((2, 5, 2))
    explained = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16").explain(
        tables(loss), batch
    )
    assert " rows " in str(explained)
    assert "formed" not in str(explained)


@pytest.mark.slow_but("pooled-tensorfloat32-5-1.0", "apart-bfloat16-300-1.0")
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("lookups", [1, 5, 300])
@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_each_is_clipped_as_the_loop_clips(loss: Loss, precision: str, lookups: int, scale: float) -> None:
    rng = np.random.default_rng(0)
    words = jnp.asarray(rng.integers(ENTRIES - 6, ENTRIES + 2, (6, lookups)), jnp.int32)  # some are outside the table
    batch = words, jnp.asarray(rng.normal(size=(6, lookups, 7)) * scale, jnp.float32)
    mask = np.arange(6) < 5
    _, norms = loop(loss, tables(loss, 7), batch, mask, math.inf)
    clip_norm = float(np.median(norms[:5]))
    expected, _ = loop(loss, tables(loss, 7), batch, mask, clip_norm)
    grad_fn = summed(loss, clip_norm, precision)
    out = grad_fn(tables(loss, 7), batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-4, atol=1e-15)
    assert distance(out.grads, expected) <= 1e-3 * clip_norm * len(mask)
    for i in range(5):
        alone = norm_of(grad_fn(tables(loss, 7), batch, mask=jnp.arange(6) == i).grads)
        assert min(norms[i], clip_norm) * (1 - 1e-3) <= alone <= clip_norm * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [apart, of_each_layer], ids=lambda loss: loss.__name__)
def test_where_a_product_adds_up_the_squares_nobodys_part_is_longer(loss: Loss) -> None:
    """As on a TPU, which reads them in bfloat16: of squares that it rounds down by as much as it can."""
    words = jnp.asarray(np.arange(3 * 100).reshape(3, 100), jnp.int32)
    weight = math.sqrt(2**-6 * (1 + 2**-8 - 2**-20))
    batch = words, jnp.full((3, 100, 64), weight, jnp.float32)
    grad_fn = summed(loss, 1.0, "bfloat16")
    alone = norm_of(grad_fn(tables(loss, 64), batch, mask=jnp.arange(3) == 1).grads)
    assert 0.99 <= alone <= 1 + 1e-6


@pytest.mark.parametrize("precision", ["bfloat16", "tensorfloat32"])
@pytest.mark.parametrize("loss", [pooled, apart], ids=lambda loss: loss.__name__)
def test_what_is_out_of_range_contributes_nothing_and_spoils_nothing(loss: Loss, precision: str) -> None:
    words = jnp.asarray([[0, 1, 1], [0, 1, 1], [ENTRIES] * 3, [2, 2, 2], [3, 3, 3]], jnp.int32)
    weights = np.ones((5, 3, 2), np.float32)
    weights[0], weights[1], weights[2], weights[3] = 1e25, np.nan, np.nan, 1e-30
    out = summed(loss, 1.0, precision)(tables(loss), (words, jnp.asarray(weights)))
    assert not np.isfinite(np.asarray(out.norms)[:2]).any()
    assert float(out.norms[3]) < 1e-15
    assert np.isfinite(np.asarray(out.grads["table"])).all()
    assert norm_of(out.grads) == pytest.approx(1, rel=1e-4)
    assert not np.asarray(out.grads["table"])[:2].any()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_was_read_outside_the_table_has_no_gradient_whatever_its_cotangent(precision: str) -> None:
    words, weights = jnp.asarray([[ENTRIES], [1]], jnp.int32), jnp.asarray([[[1e25] * 2], [[1.0] * 2]], jnp.float32)
    out = summed(single, 1.0, precision)(tables(single), (words, weights))
    assert float(out.norms[0]) < 1e-15
    assert float(out.norms[1]) == pytest.approx(math.sqrt(2), rel=1e-4)
    assert norm_of(out.grads) == pytest.approx(1, rel=1e-4)
