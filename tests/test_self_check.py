"""The check before the first step: honest losses pass it, and wrong rules are refused by the parameter's name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import _self_check
from jaxdp.clipping import Normalised, PerGroup, Quantile, _rules
from jaxdp.clipping.ghost import _dot, _embedding
from jaxdp.clipping.ghost._jaxpr import DOT_GENERAL, is_clipping
from jaxdp.clipping.ghost._rows import Dense, Factors, OneHot


def first_step(loss: Callable[..., Any], params: Any, data: Any, *shared: Any, **changes: Any) -> Any:
    usual = {"expected_batch_size": 2, "steps": 3, "clip_norm": 1.0, "noise_multiplier": 1.0}
    options = {name: changes.pop(name) for name in ("has_aux", "self_check") if name in changes}
    run = jaxdp.DPSGD(num_examples=len(jax.tree.leaves(data)[0]), **{**usual, **changes})
    step = run.make_step(loss, optax.sgd(0.1), **options)
    metrics = jaxdp.StepMetrics(jnp.zeros(1, jnp.int32), jnp.zeros(1), jnp.zeros(1), None)
    step._compiled = lambda carry, *rest, num_steps: (carry, metrics)  # the check alone
    return step(step.init(params, jax.random.key(0)), data, *shared)


def looked_up(params: Any, ids: Any) -> Any:
    return 1e3 * jnp.sum(params["scale"] * jnp.take(params["table"], ids, axis=0))


def tables(rows: int) -> Any:
    return {"scale": jnp.ones(()), "table": jnp.zeros((rows, 4))}


def index_compared_in_its_own_type(patch: pytest.MonkeyPatch) -> None:
    def factors(eqn: Any, operand: int, how: Any, others: Any, cotangent: Any) -> Any:
        numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        index, size = others[0].reshape(-1), table[0]
        narrow = jnp.asarray(np.array(size).astype(index.dtype))
        inside = jnp.ones(index.shape, bool) if is_clipping(eqn) else (index >= 0) & (index < narrow)
        index = jnp.clip(index, 0, narrow - 1) if is_clipping(eqn) else index
        assert numbers.collapsed_slice_dims == (0,)
        entry = jnp.where(inside, index.astype(jnp.int32), -1)[None]
        return Factors(OneHot(entry, how.left), Dense(cotangent.reshape(1, how.rows, how.right)))

    patch.setattr(_embedding, "factors", factors)
    patch.setattr(_embedding, "covers", lambda eqn, operand: eqn.primitive.name == "gather" and operand == 0)


def products_of_any_type(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_dot, "covers", lambda eqn, operand: eqn.primitive is DOT_GENERAL)


def rows_scaled(patch: pytest.MonkeyPatch) -> None:
    factors = _dot.factors

    def scaled(eqn: Any, operand: int, how: Any, others: Any, cotangent: Any) -> Any:
        left, right = factors(eqn, operand, how, others, cotangent)
        return Factors(Dense(0.5 * left.rows) if how.right > 1 else left, right)

    patch.setattr(_dot, "factors", scaled)


def not_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_rules.Flat, "factors", lambda self, upper, clip_norm: jnp.ones_like(upper))


spectrum = lambda p, x: jnp.sum(jnp.abs(jnp.fft.rfft(x) @ p["mix"].astype(jnp.complex64)) ** 2) + p["b"]
dense = lambda p, x: jnp.vdot(p["v"], jnp.tanh(x.reshape(3, 8) @ p["w"]).sum(0))
weights = {"v": jnp.ones(5), "w": jnp.ones((8, 5)) * 0.1}


@pytest.mark.parametrize(
    ("fault", "loss", "params", "data", "message"),
    [
        (
            index_compared_in_its_own_type,
            looked_up,
            tables(256),
            np.zeros((6, 3), np.uint8),
            r"params\['table'\].*lookup",
        ),
        (
            index_compared_in_its_own_type,
            looked_up,
            tables(128),
            np.zeros((6, 3), np.int8),
            r"params\['table'\].*lookup",
        ),
        (
            products_of_any_type,
            spectrum,
            {"b": jnp.ones(()), "mix": jnp.ones((5, 3))},
            np.ones((6, 8)),
            r"params\['mix'\]",
        ),
        (
            rows_scaled,
            dense,
            weights,
            np.ones((6, 24), np.float32),
            r"gradient of params\['w'\].*contribute.*dot_general",
        ),
        (not_clipped, dense, weights, np.ones((6, 24), np.float32), "contribute"),
    ],
    ids=["uint8", "int8", "complex", "scaled", "not clipped"],
)
@pytest.mark.filterwarnings("ignore:Casting from complex")  # which is what that fault does
def test_a_wrong_rule_is_refused_by_the_parameters_name_and_how_it_is_dealt_with(
    fault: Callable[..., None], loss: Any, params: Any, data: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(jaxdp.UsageError, match=r"(?s)self_check: on random examples.*" + message):
        first_step(loss, params, data)
    first_step(loss, params, data, self_check=False)
