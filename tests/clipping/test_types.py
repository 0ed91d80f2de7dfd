"""Whatever types a loss works in, each example moves the sum by no more than the sensitivity, and by what the loop says."""

import math
from typing import Any

import fuzz_models
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import distance, loop, norm_of, widened

import jaxdp
from jaxdp.clipping.ghost import rules
from jaxdp.jaxprs._jaxpr import parts_of, subjaxprs

slow = pytest.mark.slow
RULES = {
    "flat": jaxdp.clipping.Flat(),
    "per group": jaxdp.clipping.PerGroup(),
    "normalised": jaxdp.clipping.Normalised(),
}


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    """The losses promote dtypes and ranks as users' losses do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def holds(loss: Any, params: Any, batch: Any, *, rule: str = "flat", rounding: float = 1e-4) -> None:
    """Each example of a batch, alone, contributes at most the sensitivity; under the flat rule, what the loop says."""
    size = jax.tree.leaves(batch)[0].shape[0]
    _, norms = loop(loss, params, widened(batch), [True] * size, math.inf)
    clip_norm = 0.5 * min(n for n in norms if n > 0)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, rule=RULES[rule], method="ghost"))
    for i in range(size):
        mask = np.arange(size) == i
        out = grad_fn(params, batch, mask=jnp.asarray(mask))
        assert norm_of(out.grads) <= float(out.sensitivity) * (1 + 1e-5)
        np.testing.assert_allclose(out.norms[i], norms[i], rtol=rounding)
        if rule == "flat":
            expected, _ = loop(loss, params, widened(batch), mask, clip_norm)
            assert distance(out.grads, expected) <= rounding * clip_norm


def lookups(kind: str, entries: int, mode: str) -> tuple[Any, Any, Any]:
    """A loss that looks ids up, spread over all that the table and the type have."""
    highest = min(entries - 1, int(np.iinfo(kind).max))
    ids = np.array([[1, 2, highest], [highest, highest - 1, highest]]).astype(kind)
    return (
        lambda p, i: 1e3 * jnp.sum(jnp.sin(jnp.take(p, i, axis=0, mode=mode, fill_value=0))),
        jnp.zeros((entries, 2)),
        jnp.asarray(ids),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "entries", "mode"), [("uint8", 256, "fill"), ("int8", 200, "clip"), ("int16", 40_000, "fill")]
)
def test_ids_in_a_type_that_cannot_hold_the_tables_length_are_clipped(kind: str, entries: int, mode: str) -> None:
    holds(*lookups(kind, entries, mode))


ENTRIES = {"8": (100, 256, 300), "16": (300, 40_000, 70_000), "32": (300,), "64": (300,)}


@slow
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize("kind", fuzz_models.INTEGERS)
def test_ids_of_every_integer_type_are_clipped(kind: str, mode: str, x64: bool) -> None:
    with fuzz_models.x64(x64):
        for number, entries in enumerate(ENTRIES[kind.split("int")[1]]):
            holds(*lookups(kind, entries, mode), rule=list(RULES)[number])


@pytest.mark.slow
def test_an_embedding_layer_on_bytes_is_clipped() -> None:
    import flax.linen as nn

    layer = nn.Embed(256, 3)
    params = layer.init(jax.random.key(0), jnp.zeros(2, jnp.uint8))
    text = jnp.asarray(np.frombuffer("größer als".encode(), np.uint8)[:8].reshape(2, 4))
    holds(lambda p, ids: jnp.sum(jnp.square(layer.apply(p, ids))), params, text)


def spectrum(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.abs(jnp.fft.rfft(x) @ p["a"]) ** 2)


def complex_weight(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.abs(x @ (p["a"] + 1j * p["b"])) ** 2)


def complex_table(p: Any, x: Any) -> Any:
    return jnp.sum(jnp.abs(jnp.take((p["a"] + 1j * p["b"]), jnp.argsort(x)[:2], axis=0)) ** 2)


def complex_kernel(p: Any, x: Any) -> Any:
    kernel = (p["a"] + 1j * p["b"])[:, None, :]
    out = jax.lax.conv_general_dilated(
        x[None, :, None].astype(kernel.dtype), kernel, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
    )
    return jnp.sum(jnp.abs(out) ** 2)


@pytest.mark.slow_but("complex_kernel")
@pytest.mark.parametrize("loss", [spectrum, complex_weight, complex_table, complex_kernel])
def test_complex_numbers_have_no_rule_and_are_clipped(loss: Any) -> None:
    rows = 5 if loss is spectrum else 8
    params = {name: jax.random.normal(jax.random.key(i), (rows, 3)) for i, name in enumerate("ab")}
    batch = jax.random.normal(jax.random.key(2), (2, 8))
    if loss is spectrum:
        del params["b"]
    holds(loss, params, batch)
    assert {leaf.how for leaf in jaxdp.clipped_grad(loss, clip_norm=1.0).explain(params, batch).leaves} <= {
        "direct",
        "materialised",
    }


FLOATS = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
ROUNDING = {"bfloat16": 0.03, "float16": 5e-3, "float8_e4m3fn": 0.1, "float8_e5m2": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_weight", "of_data", "x64"),
    [
        pytest.param(w, x, x64, marks=() if (w, x) == ("float8_e5m2", "float32") and not x64 else slow)
        for x64 in (False, True)
        for w in FLOATS
        for x in dict.fromkeys(("float32", w, "bfloat16", "uint8", "bool"))
        if x64 or "float64" not in (w, x)
    ],
)
def test_weights_and_data_of_every_type_are_clipped(of_weight: str, of_data: str, x64: bool) -> None:
    with fuzz_models.x64(x64):
        rng = np.random.default_rng(0)
        params = {
            "product": jnp.asarray(rng.normal(size=(4, 3)), of_weight),
            "table": jnp.asarray(rng.normal(size=(5, 3)), of_weight),
            "kernel": jnp.asarray(rng.normal(size=(2, 1, 3)), of_weight),
        }
        batch = jnp.asarray(rng.integers(0, 2, size=(3, 4)), of_data)

        def loss(p: Any, x: Any) -> Any:
            work = jnp.float32 if "float8" in of_weight else of_weight
            p, ids = jax.tree.map(lambda leaf: leaf.astype(work), p), jnp.asarray(x, jnp.uint8)
            x = x.astype(work)
            out = jax.lax.conv_general_dilated(
                x[None, :, None], p["kernel"], (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
            )
            return jnp.sum(jnp.sin(x @ p["product"] + p["table"][ids] + out[0]))

        holds(loss, params, batch, rounding=ROUNDING.get(of_weight, 1e-4))


@pytest.mark.slow("minutes")
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs_are_clipped_as_the_loop_clips(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            fuzz_models.check(fuzz_models.drawn(seed))
        except fuzz_models.NoLossError:
            continue
    jax.clear_caches()


USES = {
    "dot_general": (lambda w: w @ jnp.ones((3, 2)), jnp.ones((4, 3))),
    "conv_general_dilated": (lambda w: jax.lax.conv(jnp.ones((1, 2, 5, 5)), w, (1, 1), "SAME"), jnp.ones((3, 2, 3, 3))),
    "gather": (lambda w: w.at[jnp.array([1, 2])].get(), jnp.ones((4, 3))),
}


@pytest.mark.parametrize("primitive", USES)
def test_an_operation_with_a_setting_that_no_rule_knows_is_not_covered(primitive: str) -> None:
    use, weight = USES[primitive]
    eqns = [eqn for eqn in jax.make_jaxpr(use)(weight).eqns if eqn.primitive.name == primitive]
    (eqn,) = eqns or [eqn for eqn in _inner_eqns(jax.make_jaxpr(use)(weight)) if eqn.primitive.name == primitive]
    covered = lambda one: [rule.name for rule in rules.RULES for i in range(2) if rule.covers(one, i)]
    assert covered(eqn)
    assert not covered(eqn.replace(params={**eqn.params, "unheard_of": True}))


def _inner_eqns(jaxpr: Any) -> list[Any]:
    inner = [body for eqn in jaxpr.eqns for body in subjaxprs(eqn)]
    return [eqn for body in inner for eqn in (*parts_of(body).eqns, *_inner_eqns(parts_of(body)))]
