"""A ghost rule written outside the package: a window of a table that begins where the example says, by `dynamic_slice`.

What CONTRIBUTING says of a new rule is done here: a value of `Rule`, and one entry more in the list in `ghost/rules`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core.primitives import dynamic_slice_p
from oracle import distance, loop

import jaxdp
from jaxdp.clipping.ghost import rules
from jaxdp.clipping.ghost.rules import INDICES, Dense, Layout, OneHot, OuterProducts, Rule


def covers(eqn: Any, operand: int) -> bool:
    """A table's window of whole rows."""
    table = eqn.invars[0].aval.shape
    return eqn.primitive is dynamic_slice_p and operand == 0 and eqn.params["slice_sizes"][1:] == table[1:]


def layout(eqn: Any, operand: int) -> Layout:
    """The first axis is left: each row of the window is a row, whose left vector is 1 at one entry of the table."""
    entries, *rest = eqn.invars[0].aval.shape
    return Layout(
        stack_axes=(),
        left_axes=(0,),
        right_axes=tuple(range(1, 1 + len(rest))),
        stack=1,
        rows=eqn.params["slice_sizes"][0],
        left=entries,
        right=math.prod(rest),
        one_hot=True,
    )


def outer_products(
    eqn: Any, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array
) -> OuterProducts:
    first = jnp.clip(others[0].astype(jnp.int32), 0, how.left - how.rows)  # as the operation itself does
    right = jnp.transpose(cotangent, (0, *how.right_axes)).reshape(1, how.rows, how.right)
    return OuterProducts(OneHot((first + jnp.arange(how.rows, dtype=jnp.int32))[None]), Dense(right))


WINDOW = Rule(name="window", covers=covers, layout=layout, outer_products=outer_products, types=INDICES)


def add(patch: pytest.MonkeyPatch, rule: Rule) -> None:
    patch.setattr(rules, "RULES", (*rules.RULES, rule))


def windows(params: Any, example: Any) -> jax.Array:
    """Two windows of one table, whose rows may overlap, and a weight behind them."""
    first, second, x = example
    of = lambda start: jax.lax.dynamic_slice(params["table"], (start, 0), (3, 8))
    return jnp.sum(jnp.sin(of(first)) * x) + jnp.vdot(jnp.tanh(of(second) @ params["w"]), x @ params["w"])


def one_window(params: Any, example: Any) -> jax.Array:
    return jnp.sum(jnp.sin(jax.lax.dynamic_slice(params["table"], (example[0], 0), (3, 8))) * example[2])


PARAMS = {"table": jax.random.normal(jax.random.key(0), (50, 8)), "w": jax.random.normal(jax.random.key(1), (8, 8))}
BATCH = (jnp.array([0, 3, 20, 49, 5]), jnp.array([1, 30, 21, 47, -4]), jax.random.normal(jax.random.key(2), (5, 3, 8)))


@pytest.mark.slow_but("one_window")
@pytest.mark.parametrize("loss", [one_window, windows])
def test_a_rule_from_outside_covers_its_primitive_and_agrees_with_the_loop(
    loss: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lambda: jaxdp.clipped_grad(loss, clip_norm=1.0).explain(PARAMS, BATCH).leaves[0]
    assert table().how == "materialised"
    assert "no rule for dynamic_slice" in table().why
    add(monkeypatch, WINDOW)
    assert table().how == "rows"
    assert set(table().sites) == {"window"}
    mask = np.array([True, True, True, True, False])
    _, norms = loop(loss, PARAMS, BATCH, mask, math.inf)
    clip_norm = float(np.median(norms[:4]))
    expected, norms = loop(loss, PARAMS, BATCH, mask, clip_norm)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", strict=True)
    out = jax.jit(grad_fn)(PARAMS, BATCH, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-5 * 4 * clip_norm


def half(eqn: Any, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array) -> OuterProducts:
    """Norms of half the gradient."""
    return outer_products(eqn, operand, how, others, 0.5 * cotangent)


def unclamped(eqn: Any, operand: int, how: Layout, others: Sequence[jax.Array], cotangent: jax.Array) -> OuterProducts:
    """Windows beyond the end count as outside the table."""
    left, right = outer_products(eqn, operand, how, others, cotangent)
    inside = (others[0] >= 0) & (others[0] <= how.left - how.rows)
    return OuterProducts(OneHot(jnp.where(inside, left[0], -1)), right)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [half, unclamped])
def test_the_self_check_finds_a_wrong_rule_from_outside_and_passes_a_right_one(
    wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = jaxdp.DPSGD(num_examples=5, expected_batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=1.0)

    def first_step() -> Any:
        step = run.make_step(one_window, optax.sgd(0.1))
        params = {"table": jnp.copy(PARAMS["table"])}
        return step(step.init(params, jax.random.key(0)), BATCH)

    add(monkeypatch, WINDOW)
    state, _ = first_step()
    assert int(state.step) == 1
    monkeypatch.setattr(rules, "RULES", [replace(WINDOW, outer_products=wrong)])
    with pytest.raises(jaxdp.UsageError, match=r"(?s)self_check:.*params\['table'\].*window"):
        first_step()
