"""Convolutions put in order compute what they computed before, wherever they stand, and so do those arranged for a TPU."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdp
from jaxdp.clipping.ghost.rules._conv import _seen
from jaxdp.jaxprs import for_cpus
from jaxdp.jaxprs._jaxpr import CONV, parts_of, subjaxprs

X = jax.random.normal(jax.random.key(0), (4, 6, 7, 8))
KERNEL = jax.random.normal(jax.random.key(1), (3, 2, 4, 6))

ANYWHERE = [export.DisabledSafetyCheck.platform(), export.DisabledSafetyCheck.custom_call("LayoutConstraint")]


def convolve(x: Any, kernel: Any, numbers: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC"), **settings: Any) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        (2, 1),
        [(1, 0), (2, 1)],
        rhs_dilation=(1, 2),
        dimension_numbers=numbers,
        feature_group_count=2,
        **settings,
    )


def kernel_gradient(x: Any, kernel: Any) -> Any:
    return jax.grad(lambda kernel: jnp.sum(jnp.sin(convolve(x, kernel))))(kernel)


def permuted(x: Any, kernel: Any) -> Any:
    return convolve(jnp.transpose(x, (3, 1, 0, 2)), jnp.transpose(kernel, (2, 0, 3, 1)), ("CHNW", "IHOW", "WCNH"))


def in_a_loop(x: Any, kernel: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, k: k + 0.1 * jnp.tanh(kernel_gradient(x, k)), kernel)


def in_a_scan(x: Any, kernel: Any) -> Any:
    return jax.lax.scan(lambda k, row: (k, kernel_gradient(row[None], k)), kernel, x)[1]


def in_a_branch(x: Any, kernel: Any) -> Any:
    return jax.lax.cond(x[0, 0, 0, 0] > 10, lambda: kernel, lambda: kernel_gradient(x, kernel))


def rematerialised(x: Any, kernel: Any) -> Any:
    return jax.grad(lambda k: jnp.sum(jnp.sin(jax.checkpoint(convolve)(x, k))))(kernel)


def of_each_example(x: Any, kernel: Any) -> Any:
    return jax.vmap(lambda row: kernel_gradient(row[None], kernel))(x)


def called(x: Any, kernel: Any) -> Any:
    return jax.jit(kernel_gradient)(x, kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn",
    [convolve, kernel_gradient, permuted, in_a_loop, in_a_scan, in_a_branch, rematerialised, of_each_example, called],
)
def test_ordered_convolutions_give_the_same_values_and_are_all_in_order(fn: Any) -> None:
    ordered = lambda x, kernel: for_cpus(fn, x, kernel)
    np.testing.assert_allclose(jax.jit(ordered)(X, KERNEL), fn(X, KERNEL), rtol=1e-4, atol=1e-5)
    found = list(convolutions(jax.make_jaxpr(ordered)(X, KERNEL)))
    assert found
    for eqn in found:
        numbers = eqn.params["dimension_numbers"]
        assert numbers.lhs_spec == numbers.out_spec == (0, 3, 1, 2)
        assert numbers.rhs_spec == (3, 2, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("channels", [3, 9])
def test_what_is_compiled_for_a_tpu_gives_the_same_clipped_sum(channels: int, precision: str) -> None:
    """Its program, run here: few channels, or examples laid out one after another."""
    x, kernel = jax.random.normal(jax.random.key(0), (5, 9, 8, channels)), jnp.zeros((3, 2, channels, 9)) + 0.3
    same = lambda params, x: jax.lax.conv_general_dilated(
        x[None], params, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    clipped = jaxdp.clipped_grad(
        lambda params, x: jnp.sum(jnp.sin(same(params, x))), clip_norm=1.0, precision=precision
    )
    here = jax.jit(lambda params, x: clipped(params, x).grads)
    there = export.export(here, platforms=["tpu"], disabled_checks=ANYWHERE)(kernel, x)
    assert ("LayoutConstraint" in there.mlir_module()) == (channels == 9)
    np.testing.assert_allclose(there.call(kernel, x), here(kernel, x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("uses", [1, 2])
def test_parts_of_patches_are_multiplied_apart_in_what_is_compiled_for_a_tpu(uses: int) -> None:
    x, kernel = jax.random.normal(jax.random.key(0), (5, 4, 4, 64)), jnp.full((3, 3, 64, 80), 0.01)
    same = lambda kernel, x: jax.lax.conv_general_dilated(
        x[None], kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    loss = lambda kernel, x: sum(jnp.sum(jnp.sin(same(kernel, x[i:]))) for i in range(uses))
    clipped = jaxdp.clipped_grad(loss, clip_norm=1.0, precision="bfloat16", method="ghost")
    here = jax.jit(lambda params, x: clipped(params, x))
    there = export.export(here, platforms=["tpu"], disabled_checks=ANYWHERE)(kernel, x)
    products = [text.count("stablehlo.dot_general") for text in (there.mlir_module(), here.lower(kernel, x).as_text())]
    assert products[0] - products[1] == 8 * uses * (uses + 1) / 2
    for found, expected in zip(jax.tree.leaves(there.call(kernel, x)), jax.tree.leaves(here(kernel, x)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "order"), [(6, "0, 2, 1, 3"), (256, "0, 2, 3, 1")])
def test_heads_lie_as_attention_has_them_in_what_is_compiled_for_a_tpu_and_sums_are_the_same(
    tokens: int, order: str
) -> None:
    there_and_back = {
        "in": jax.random.normal(jax.random.key(0), (160, 4, 64)) / 16,
        "out": jnp.ones((4, 64, 160)) / 16,
    }

    def loss(params: Any, x: Any) -> Any:
        heads = jnp.tanh(jnp.einsum("tp,phd->thd", x, params["in"]))
        return jnp.sum(jnp.sin(jnp.einsum("thd,hdp->tp", heads, params["out"])))

    x = jax.random.normal(jax.random.key(1), (5, tokens, 160))
    clipped = jaxdp.clipped_grad(loss, clip_norm=1.0, precision="bfloat16", method="ghost")
    here = jax.jit(lambda params, x: clipped(params, x).grads)
    there = export.export(here, platforms=["tpu"], disabled_checks=ANYWHERE)(there_and_back, x)
    text = there.mlir_module()
    assert text.count("@LayoutConstraint") == 2
    inverted = {"0, 2, 1, 3": "3, 1, 2, 0", "0, 2, 3, 1": "1, 3, 2, 0"}[order]
    assert text.count(f"dense<[{inverted}]>") >= 2
    assert "LayoutConstraint" not in here.lower(there_and_back, x).as_text()
    many = jax.ShapeDtypeStruct((128, tokens, 160), jnp.float32)
    in_lanes = here.trace(there_and_back, many).lower(lowering_platforms=("tpu",)).as_text()
    assert ("LayoutConstraint" in in_lanes) == (tokens == 256)
    found, expected = there.call(there_and_back, x), here(there_and_back, x)
    for name, leaf in expected.items():
        # Lengths are of factors before they are rounded there: in the fifth digit of a clip factor, by which a few rows of a
        # cotangent are then rounded the other way.
        np.testing.assert_allclose(found[name], leaf, rtol=1e-4, atol=3e-5)


def convolutions(jaxpr: Any) -> Any:
    for eqn in parts_of(jaxpr).eqns:
        if eqn.primitive is CONV:
            yield eqn
        for body in subjaxprs(eqn):
            yield from convolutions(body)


def test_a_window_that_steps_on_sees_what_it_sees_of_an_axis_that_is_padded() -> None:
    for start, stride, size, out in itertools.product(range(-9, 10), range(1, 5), range(7), range(7)):
        within, (before, after, _) = _seen(start, stride, size, out)
        seen = [None] * before + list(range(size))[within] + [None] * after
        assert seen == [at if 0 <= at < size else None for at in range(start, start + out * stride, stride)]
