"""Parameters that are standardised or normalised before they are used: clipped without a gradient of each pulled back.

Where what a transformation pulls back works on each column of a gradient by itself, its norm follows from sums along columns,
and the clipped sum is pulled back once.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import distance, loop, norm_of

import jaxdp
from jaxdp._platform import compiling_for
from jaxdp.clipping import _clipped_grad
from jaxdp.clipping._arithmetic import BFLOAT16, arithmetic_of
from jaxdp.clipping.ghost import _plan, _pull_back, trace_loss
from jaxdp.clipping.ghost._pull_back import OtherForm, pull_back_of, pulled_back
from jaxdp.clipping.ghost._sum import _to_leaves

AXES = (0, 1, 2)


@pytest.fixture(autouse=True)
def _as_users_run() -> Any:
    """The models promote dtypes and ranks as users' models do."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def standardised(p: Any, axes: Any = AXES) -> Any:
    mean, variance = (of(p["w"], axis=axes, keepdims=True) for of in (jnp.mean, jnp.var))
    return (p["w"] - mean) / jnp.sqrt(variance + 1e-4)


@jax.custom_vjp
def cut_off(w: Any) -> Any:
    return w


cut_off.defvjp(lambda w: (w, None), lambda _, g: (jnp.where(jnp.arange(g.shape[-1]) > 0, g, 1.0),))

BY_COLUMNS = {
    "standardised": standardised,
    "standardised, of a bfloat16 model": lambda p: standardised(p).astype(jnp.bfloat16),
    "standardised, with a gain": lambda p: standardised(p) * p["gain"],
    "normalised": lambda p: p["gain"] * p["w"] / jnp.sqrt(jnp.sum(p["w"] ** 2, axis=AXES)),
    "normalised, its length held": lambda p: (
        p["w"] / jax.lax.stop_gradient(jnp.linalg.norm(p["w"].reshape(-1, 6), axis=0))
    ),
    "centred": lambda p: p["w"] - jnp.mean(p["w"], axis=AXES, keepdims=True),
    "scaled": lambda p: p["w"] * (1.0 + p["gain"]),
    "squashed": lambda p: jnp.tanh(p["w"]),
    "masked": lambda p: jnp.where(jnp.arange(4)[:, None] > 1, p["w"], 0.0),
    "of two": lambda p: standardised(p) + p["more"] * p["gain"],
    "shifted by a gain": lambda p: standardised(p) - p["gain"],
    "centred twice": lambda p: standardised({"w": standardised(p)}),
}
OTHERS = {
    "by rows": lambda p: standardised(p, axes=(3,)),
    "by input channels": lambda p: standardised(p, axes=(0, 1, 3)),
    "by positions": lambda p: standardised(p, axes=(0, 1)),
    "all together": lambda p: standardised(p, axes=(0, 1, 2, 3)),
    "sorted": lambda p: jnp.sort(p["w"], axis=2) * p["gain"],
    "mixed": lambda p: jnp.einsum("hwio,op->hwip", p["w"], p["mix"]),
    "transposed": lambda p: jnp.swapaxes(standardised({"w": jnp.swapaxes(p["w"], 2, 3)}, axes=(0, 1, 3)), 2, 3),
    "added up one after another": lambda p: jnp.cumsum(p["w"], axis=2),
    "with a gradient of its own": lambda p: cut_off(p["w"] * p["gain"]),
    "of bfloat16 parameters": lambda p: standardised({"w": p["w"].astype(jnp.bfloat16)}),
    "multiplied by itself moved": lambda p: p["w"] * jnp.roll(p["w"], 1, axis=3),
}


def problem(form: Any, size: int = 6, seed: int = 0) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    params = {"w": normal(3, 3, 4, 6), "gain": normal(6), "more": normal(3, 3, 4, 6), "mix": normal(6, 6)}

    def loss(p: Any, example: Any) -> Any:
        x, weights = example
        w = form(p)
        y = jax.lax.conv_general_dilated(
            x[None].astype(w.dtype), w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(y[0].astype(jnp.float32) * weights)

    return loss, params, (normal(size, 4, 4, 4), normal(size, 2, 2, 6))


def how_of(loss: Any, params: Any, batch: Any, precision: str = "bfloat16") -> set[str]:
    leaves = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision=precision).explain(params, batch).leaves
    return {leaf.how for leaf in leaves} - {"unused"}


def plan_of(loss: Any, params: Any, batch: Any) -> tuple[_plan.Plan, Any]:
    with compiling_for("tpu"):
        return trace_loss(loss, False, params, batch, (), None, [0] * len(params), BFLOAT16).plan, jax.tree.leaves(
            params
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_COLUMNS)
def test_what_is_read_of_a_pull_back_is_what_jax_pulls_back(name: str) -> None:
    loss, params, batch = problem(BY_COLUMNS[name])
    plan, leaves = plan_of(loss, params, batch)
    (component,) = plan.components
    assert component.is_transformed
    (site,) = component.sites
    total = jnp.asarray(np.random.default_rng(1).normal(size=site.source.aval.shape), jnp.float32)
    static = [*leaves, None, None]
    by = pull_back_of(plan.jaxpr, static, site, component.anchors)
    found = pulled_back(by, site, component.anchors, total)
    value, pull = jax.vjp(lambda p: jax.tree.map(lambda x: x.astype(jnp.float32), BY_COLUMNS[name](p)), params)
    expected = jax.tree.leaves(pull(total.astype(value.dtype))[0])
    tolerance = 1e-2 if "bfloat16" in name else 1e-5
    for own, theirs in zip(
        _to_leaves(plan, static, dict(zip(component.anchors, found, strict=True))), expected, strict=True
    ):
        np.testing.assert_allclose(own, theirs, rtol=tolerance, atol=tolerance * float(jnp.max(jnp.abs(theirs))))


@pytest.mark.slow_but("by input channels", "transposed", "with a gradient of its own")
@pytest.mark.parametrize("name", OTHERS)
def test_what_does_anything_else_is_formed_for_each_example(name: str) -> None:
    loss, params, batch = problem(OTHERS[name])
    assert how_of(loss, params, batch) <= {"formed", "materialised", "direct"}


def test_what_is_written_before_it_is_added_up_is_kept() -> None:
    loss, params, batch = problem(standardised)
    assert how_of(loss, params, batch, "tensorfloat32") == how_of(loss, params, batch, "float32") == {"formed"}
    with compiling_for("gpu"):
        assert how_of(loss, params, batch) == {"formed"}


def test_an_equation_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, params, batch = problem(standardised)
    plan, leaves = plan_of(loss, params, batch)
    (component,) = plan.components
    monkeypatch.delitem(_pull_back._LINEAR, _pull_back.NEG)
    with pytest.raises(OtherForm):
        pull_back_of(plan.jaxpr, [*leaves, None, None], component.sites[0], component.anchors)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_COLUMNS)
def test_transformed_parameters_are_clipped_as_in_a_loop(name: str) -> None:
    loss, params, batch = problem(BY_COLUMNS[name])
    assert "dropped" in how_of(loss, params, batch)
    mask = np.array([True, True, False, True, True, True])
    _, norms = loop(loss, params, batch, mask, math.inf)
    clip_norm = float(np.median(norms))
    expected, _ = loop(loss, params, batch, mask, clip_norm)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", precision="bfloat16"))
    out = grad_fn(params, batch, mask=jnp.asarray(mask))
    np.testing.assert_allclose(out.norms, norms, rtol=0.02)
    assert distance(out.grads, expected) <= 0.02 * sum(min(n, clip_norm) for n in norms)
    for i in np.flatnonzero(mask):
        length = norm_of(grad_fn(params, batch, mask=jnp.arange(len(mask)) == i).grads)
        assert length <= clip_norm * (1 + 1e-6)
        if norms[i] > clip_norm:
            assert length >= clip_norm * 0.95


def none_counts_for_more(loss: Any, params: Any, batch: Any, clip_norm: float, precision: str) -> None:
    """Than the clip norm, of the first three: alone, and beside the others."""
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", precision=precision))
    whole = grad_fn(params, batch).grads
    for i in range(3):
        mask = jnp.arange(len(batch[0])) == i
        assert norm_of(grad_fn(params, batch, mask=mask).grads) <= clip_norm * (1 + 1e-6)
        assert distance(whole, grad_fn(params, batch, mask=~mask).grads) <= clip_norm * (1 + 1e-4)


@pytest.mark.slow
@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(sorted(set(BY_COLUMNS) - {"masked", "squashed"})),
    cancel=st.sampled_from((0.0, 1e-5, 1e-3, 1e-1)),
    scale=st.sampled_from((1e-15, 1e-6, 1.0, 1e6, 1e15)),
    spread=st.sampled_from((1e-6, 1e-3, 1.0, 1e3)),
    clip_norm=st.sampled_from((1e-2, 1.0)),
)
def test_gradients_that_a_transformation_takes_away_but_for_a_part_are_clipped(
    seed: int, name: str, cancel: float, scale: float, spread: float, clip_norm: float
) -> None:
    loss, params, (x, weights) = problem(BY_COLUMNS[name], seed=seed)
    params = jax.tree.map(lambda leaf: leaf * spread, params)
    x = jnp.ones_like(x) + cancel * x  # a gradient that is nearly the same at each entry of a column
    weights = weights * jnp.asarray([scale, 1, scale, 1, 1, 1], jnp.float32)[:, None, None, None]
    none_counts_for_more(loss, params, (x, weights), clip_norm, "bfloat16")


@pytest.mark.slow
def test_what_is_not_finite_contributes_nothing() -> None:
    loss, params, (x, weights) = problem(standardised)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16"))
    bad = x.at[1, 0, 0, 0].set(jnp.nan), weights.at[2, 0, 0, 0].set(jnp.inf).at[3].multiply(1e25)
    few = grad_fn(params, (x, weights), mask=jnp.arange(6) % 4 == 0)
    found = grad_fn(params, bad, mask=jnp.arange(6) < 5)
    for name in params:
        np.testing.assert_allclose(found.grads[name], few.grads[name], rtol=1e-5, atol=1e-7)


def test_where_a_transformation_divides_by_zero_nobody_contributes() -> None:
    loss, params, batch = problem(lambda p: p["w"] / jnp.sqrt(jnp.sum(p["w"] ** 2, axis=AXES)))
    params["w"] = params["w"].at[..., 2].set(0.0)
    found = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16"))(params, batch)
    assert norm_of(found.grads) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-7, 1e-8, 1e-6, 1e-3, 1e3, 1e6])
def test_a_short_or_long_column_spoils_nothing(scale: float) -> None:
    loss, params, batch = problem(
        lambda p: p["w"] * jax.lax.rsqrt(jnp.sum(p["w"] ** 2, axis=AXES) + 1e-12) + 0 * p["gain"]
    )
    params["w"] = params["w"].at[..., 2].multiply(scale)
    _, norms = loop(loss, params, batch, np.ones(6, bool), math.inf)
    expected, _ = loop(loss, params, batch, np.ones(6, bool), float(np.median(norms)))
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=float(np.median(norms)), method="ghost", precision="bfloat16"))(
        params, batch
    )
    np.testing.assert_allclose(out.norms, norms, rtol=0.03)
    assert distance(out.grads, expected) <= 0.02 * norm_of(expected)


def batch_that_goes_away(size: int) -> tuple[Any, Any]:
    """Examples whose rows cancel behind others, but for four ordinary ones."""
    random = np.random.default_rng(0)
    x = 1 + random.integers(0, 100, (size, 3, 10, 8)) / 128 * 0.3
    x = np.concatenate([x, x], axis=2)
    half = 1 + 0.1 * random.random((size, 1, 8, 8))
    g = np.concatenate([half, np.zeros((size, 1, 2, 8)), -half], axis=2) * 1e6
    x[:4], g[:4] = random.normal(size=x[:4].shape), 10 * random.normal(size=g[:4].shape)
    return jnp.asarray(x, jnp.float32), jnp.asarray(g, jnp.float32)


def none_moves_others(form: Any, precision: str) -> None:
    """docs/sharp-edges.md: by less than a hundredth more, of a thousand; rows that cancel leave what others are rounded to."""

    def loss(p: Any, example: Any) -> Any:
        x, g = example
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(
            jax.lax.conv_general_dilated(x[None], form(p), (1, 1), "VALID", dimension_numbers=numbers)[0] * g
        )

    batch = batch_that_goes_away(1000)
    params = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3, 8, 8)), jnp.float32)
    grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision=precision))
    whole = grad_fn(params, batch).grads
    for i in (0, 1, 10, 500):
        mask = jnp.arange(1000) == i
        alone = norm_of(grad_fn(params, batch, mask=mask).grads)
        assert distance(whole, grad_fn(params, batch, mask=~mask).grads) <= alone + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [lambda w: w * 2.0, lambda w: standardised({"w": w})],
    ids=["scaled", "standardised"],
)
def test_nobody_moves_others_sums_by_more_than_is_said(form: Any) -> None:
    none_moves_others(form, "bfloat16")


@pytest.mark.slow_but("20--44")
@pytest.mark.parametrize(("power", "clip"), [(0, -70), (20, -44), (20, -50), (30, -44)])
def test_what_is_below_the_range_of_a_clipped_cotangent_lengthens_nothing(power: int, clip: int) -> None:
    random = np.random.default_rng(0)
    rows = np.repeat(1 + random.random((1, 1, 16)), 8, axis=1) * 2.0**58
    g = random.normal(size=(1, 8, 16)) * 2.0**-40
    g[:, -1] = -g[:, :-1].sum(axis=1)
    loss = lambda w, example: jnp.sum((example[0] @ (w * 2.0**power)) * example[1])
    batch = jnp.asarray(rows, jnp.float32), jnp.asarray(g, jnp.float32)
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=2.0**clip, method="ghost", precision="bfloat16")
    assert norm_of(jax.jit(grad_fn)(jnp.ones((16, 16)), batch).grads) <= 2.0**clip * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("channels", [2, 16])
def test_any_convolution_and_dense_layer_is(groups: int, channels: int) -> None:
    def loss(p: Any, x: Any) -> Any:
        numbers = ("HWNC", "OHWI", "NCHW")
        of_outputs = lambda w, axes: (
            w / jnp.sqrt(1e-3 + jnp.sum((w - w.mean(axes, keepdims=True)) ** 2, axes, keepdims=True))
        )
        y = jax.lax.conv_general_dilated(
            x, of_outputs(p["w"], (1, 2, 3)), (2, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )
        rows = jnp.tanh(jnp.moveaxis(y, 1, 3)).reshape(-1, 8)
        return jnp.sum((rows @ of_outputs(p["v"], 0) + jnp.einsum("tk,dk->td", rows, of_outputs(p["u"], 1))) ** 2)

    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    params = {"w": normal(8, 3, 2, channels // groups), "v": normal(8, 9), "u": normal(9, 8)}
    batch = normal(4, 3, 2, 1, channels)
    leaves = jaxdp.clipped_grad(loss, clip_norm=1.0, method="ghost", precision="bfloat16").explain(params, batch).leaves
    assert [leaf.how for leaf in leaves if "w" in leaf.name] == ["dropped"]
    mask = np.ones(4, bool)
    _, norms = loop(loss, params, batch, mask, math.inf)
    expected, _ = loop(loss, params, batch, mask, float(np.median(norms)))
    for target in ("cpu", "tpu"):
        with compiling_for(target):
            clip = jaxdp.clipped_grad(loss, clip_norm=float(np.median(norms)), method="ghost", precision="bfloat16")
            out = jax.jit(clip)(params, batch)
        np.testing.assert_allclose(out.norms, norms, rtol=0.03)
        assert distance(out.grads, expected) <= 0.03 * sum(norms)


@contextmanager
def as_on_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As for a GPU, where large gradients alone are dropped: here, all."""
    all_of_them = lambda precision: replace(arithmetic_of(precision), least_transformed=0)
    with compiling_for("gpu"), monkeypatch.context() as patches:
        patches.setattr(_clipped_grad, "arithmetic_of", all_of_them)
        yield


@pytest.mark.parametrize("precision", ["tensorfloat32", "bfloat16"])
def test_on_a_gpu_large_ones_are_dropped(precision: str) -> None:
    loss = lambda p, x: jnp.sum(jnp.tanh(x @ standardised(p, axes=(0,))))
    for width, how in ((127, "formed"), (128, "dropped")):
        with compiling_for("gpu"):
            assert how_of(loss, {"w": jnp.ones((128, width))}, jnp.ones((2, 3, 128)), precision) == {how}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tensorfloat32", "bfloat16"])
@pytest.mark.parametrize("name", BY_COLUMNS)
def test_transformed_parameters_are_clipped_on_gpus_as_in_a_loop(
    name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, params, batch = problem(BY_COLUMNS[name])
    rounding = 0.004 if precision == "tensorfloat32" and "bfloat16" not in name else 0.02
    mask = np.array([True, True, False, True, True, True])
    _, norms = loop(loss, params, batch, mask, math.inf)
    clip_norm = float(np.median(norms))
    expected, _ = loop(loss, params, batch, mask, clip_norm)
    with as_on_gpus(monkeypatch):
        assert "dropped" in how_of(loss, params, batch, precision)
        grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=clip_norm, method="ghost", precision=precision))
        out = grad_fn(params, batch, mask=jnp.asarray(mask))
        alone = [grad_fn(params, batch, mask=jnp.arange(len(mask)) == i).grads for i in range(len(mask))]
    np.testing.assert_allclose(out.norms, norms, rtol=rounding)
    assert distance(out.grads, expected) <= max(rounding, 0.015) * sum(min(n, clip_norm) for n in norms)
    for length, norm in zip(map(norm_of, alone), norms, strict=True):
        assert length <= clip_norm * (1 + 1e-6)
        if norm > clip_norm:
            assert length >= clip_norm * 0.95


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_what_a_transformation_takes_away_is_clipped_on_gpus(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    loss, params, (x, weights) = problem(
        BY_COLUMNS[str(random.choice(sorted(set(BY_COLUMNS) - {"masked", "squashed"})))], seed=seed
    )
    params = jax.tree.map(lambda leaf: leaf * float(random.choice((1e-6, 1e-3, 1.0, 1e3))), params)
    x = jnp.ones_like(x) + float(random.choice((0.0, 1e-5, 1e-3, 1e-1))) * x
    scale = float(random.choice((1e-15, 1e-6, 1.0, 1e6, 1e15)))
    weights = weights * jnp.asarray([scale, 1, scale, 1, 1, 1], jnp.float32)[:, None, None, None]
    clip_norm, precision = float(random.choice((1e-2, 1.0))), str(random.choice(("tensorfloat32", "bfloat16")))
    with as_on_gpus(monkeypatch):
        none_counts_for_more(loss, params, (x, weights), clip_norm, precision)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_any_convolution_and_dense_layer_is_on_gpus(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(p: Any, x: Any) -> Any:
        numbers = ("HWNC", "OHWI", "NCHW")
        y = jax.lax.conv_general_dilated(
            x,
            standardised({"w": p["w"]}, axes=(1, 2, 3)),
            (2, 1),
            "SAME",
            dimension_numbers=numbers,
            feature_group_count=groups,
        )
        rows = jnp.tanh(jnp.moveaxis(y, 1, 3)).reshape(-1, 4, 2)
        in_heads = jnp.einsum("tab,abcd->tcd", rows, standardised({"w": p["v"]}, axes=(0, 1)))
        return jnp.sum(jnp.einsum("tcd,ecd->te", in_heads, standardised({"w": p["u"]}, axes=(1, 2))) ** 2)

    random = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
    params = {"w": normal(8, 3, 2, 16 // groups), "v": normal(4, 2, 3, 5), "u": normal(7, 3, 5)}
    batch = normal(4, 3, 2, 1, 16)
    mask = np.ones(4, bool)
    _, norms = loop(loss, params, batch, mask, math.inf)
    expected, _ = loop(loss, params, batch, mask, float(np.median(norms)))
    with as_on_gpus(monkeypatch):
        clip = jaxdp.clipped_grad(loss, clip_norm=float(np.median(norms)), method="ghost", precision="tensorfloat32")
        assert {leaf.how for leaf in clip.explain(params, batch).leaves} == {"dropped"}
        out = jax.jit(clip)(params, batch)
    np.testing.assert_allclose(out.norms, norms, rtol=0.004)
    assert distance(out.grads, expected) <= 0.004 * sum(norms)


ORDERS = {  # of a matrix's axes: batch axes, right ones, left ones
    "tib,oib->tbo": (8, 6, 3),
    "tib,bio->tbo": (3, 6, 8),
    "tib,iob->tob": (6, 8, 3),
    "tibc,cobi->tbco": (2, 8, 3, 6),
    "tibc,iocb->tcbo": (6, 8, 2, 3),
    "oib,tib->obt": (8, 6, 3),
    "obic,tibc->tocb": (8, 3, 6, 2),
    "tij,opji->tpo": (4, 2, 3, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 2.0])
@pytest.mark.parametrize("form", ["standardised", "normalised"])
@pytest.mark.parametrize("spelled", ORDERS)
def test_columns_in_any_order_are_clipped_on_gpus(
    spelled: str, form: str, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of different lengths, so that one taken for another shows; the cotangent on one of them alone, too."""
    operands, out = spelled.split("->")
    first, second = operands.split(",")
    weight, other = (first, second) if "t" in second else (second, first)
    axes = tuple(i for i, axis in enumerate(weight) if axis not in out)  # the left ones
    random = np.random.default_rng(0)
    shape = dict(zip(weight, ORDERS[spelled], strict=True)) | {"t": 3}
    normal = lambda axes: jnp.asarray(random.normal(size=[shape[axis] for axis in axes]), jnp.float32)
    columns = jnp.exp(spread * normal([axis for axis in weight if axis in out]))
    w = normal(weight) * jnp.expand_dims(columns, axes)

    def loss(p: Any, example: Any) -> Any:
        norm = jax.lax.rsqrt(jnp.sum(p["w"] ** 2, axis=axes, keepdims=True) + 1e-12)
        used = standardised(p, axes) if form == "standardised" else p["w"] * norm
        x, g = example
        return jnp.sum(jnp.einsum(spelled, *((used, x) if weight == first else (x, used))) * g)

    x, g = (jnp.stack([normal(axes) for _ in range(6)]) for axes in (other, out))
    g = g.at[3:].multiply(jnp.asarray(random.random(g[3:].shape) < 0.05, jnp.float32))
    _, norms = loop(loss, {"w": w}, (x, g), np.ones(6, bool), math.inf)
    with as_on_gpus(monkeypatch):
        assert how_of(loss, {"w": w}, (x, g), "tensorfloat32") == {"dropped"}
        grad_fn = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1e-3, method="ghost", precision="tensorfloat32"))
        for i, norm in enumerate(norms):
            found = grad_fn({"w": w}, (x, g), mask=jnp.arange(6) == i)
            assert float(found.norms[i]) == pytest.approx(norm, rel=0.004, abs=1e-6)
            assert norm_of(found.grads) <= 1e-3 * (1 + 1e-6)


@pytest.mark.slow
def test_nobody_moves_others_sums_by_more_than_is_said_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    with as_on_gpus(monkeypatch):
        none_moves_others(lambda w: standardised({"w": w}), "tensorfloat32")
