"""Examples that are vectorised see nothing of each other: by no batching rule, no rule of differentiation, and no NaN."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from convolved import convolved
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from oracle import distance, loop

import jaxdp
from jaxdp._platform import compiling_for
from jaxdp.clipping._apart import foreign_primitives
from jaxdp.clipping._clipped_grad import METHODS

W = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
X = jnp.asarray(np.random.default_rng(1).normal(size=(4, 5)), jnp.float32)


def loss(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.square(jnp.tanh(x @ w)))


minus_mean = Primitive("minus_mean")  # of one value it is that value, less what those beside it are on average
minus_mean.def_impl(lambda x: x)
minus_mean.def_abstract_eval(lambda aval: aval)
mlir.register_lowering(minus_mean, mlir.lower_fun(lambda x: x, multiple_results=False))
batching.primitive_batchers[minus_mean] = lambda args, axes: (
    args[0] - jnp.mean(args[0], axes[0], keepdims=True),
    axes[0],
)


def by_a_rule(**how: Any) -> Callable[[Any], Any]:
    same = jax.custom_vjp(lambda w: w)
    same.defvjp(lambda w: (w, w), lambda w, g: (jnp.where(w > 0, g, minus_mean.bind(g) * 2),), **how)
    return same


@pytest.mark.slow
def test_values_that_are_iterated_together_let_no_example_see_another() -> None:
    def of_one(w: Any, example: Any) -> Any:
        a, b, x = example
        return -jnp.log(jax.lax.betainc(a, b, jax.nn.sigmoid(w * x)))

    rows = np.tile(np.float32([[57.71957], [3.3175573e-05], [5.6182]]), 9)
    mask = np.arange(9) < 8
    for method in METHODS:
        grad_fn, sums = jaxdp.clipped_grad(of_one, clip_norm=32.0, method=method), []
        for last in ((1.0, 1.0, 0.0), (245.4077, 87.4949, 1.28)):
            rows[:, 8] = last
            sums.append(grad_fn(jnp.float32(1.0), tuple(rows), mask=mask))
        np.testing.assert_array_equal(sums[0].grads, sums[1].grads)
        np.testing.assert_array_equal(sums[0].norms, sums[1].norms)


@pytest.mark.slow
@pytest.mark.parametrize("decomposed", [lambda a: jnp.linalg.eigh(a @ a.T)[0], jnp.linalg.svdvals])
def test_matrices_that_a_tpu_decomposes_together_are_decomposed_one_after_another_there(decomposed: Any) -> None:
    of_one = lambda w, x: jnp.sum(jnp.square(decomposed(w * x)))
    w, xs = jnp.float32(1.0), jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 3)), jnp.float32)
    for method in METHODS:
        traced = lambda method=method: jax.make_jaxpr(jaxdp.clipped_grad(of_one, clip_norm=1.0, method=method))(w, xs)
        loops = lambda traced=traced: "scan[" in str(traced())
        assert not loops()
        with compiling_for("tpu"):
            assert loops()


@pytest.mark.slow
@pytest.mark.parametrize(
    "of_one",
    [
        lambda w, x: loss(w, minus_mean.bind(x)),
        lambda w, x: jax.lax.cond(x[0] > 0, lambda: loss(w, minus_mean.bind(x)), lambda: loss(w, x)),
        lambda w, x: loss(w, equinox.error_if(x, x[0] > 3, "too large", on_error="nan")),
    ],
    ids=["itself", "in a branch", "equinox"],
)
def test_what_a_primitive_of_another_library_makes_of_a_batch_is_computed_for_one_after_another(of_one: Any) -> None:
    params, batch = W, X.at[2, 0].set(4.0)
    expected = [jaxdp.clipped_grad(of_one, clip_norm=0.5)(params, batch[i : i + 1]) for i in range(4)]
    for method in METHODS:
        out = jax.jit(jaxdp.clipped_grad(of_one, clip_norm=0.5, method=method))(params, batch)
        np.testing.assert_allclose(out.norms, [each.norms[0] for each in expected], rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(out.grads, sum(each.grads for each in expected), rtol=1e-4, atol=1e-6)
    each = jaxdp.per_example_grads(of_one)(params, batch)
    np.testing.assert_allclose(
        np.linalg.norm(each.reshape(4, -1), axis=1), [one.norms[0] for one in expected], rtol=1e-5, atol=1e-4
    )
    clipped = jaxdp.clipped_grad(of_one, clip_norm=0.5)
    with pytest.raises(jaxdp.UsageError, match="nothing to explain: the loss runs (minus_mean|unvmap_any)"):
        clipped.explain(params, batch)
    with pytest.raises(jaxdp.UsageError, match="strict=True: the loss runs (minus_mean|unvmap_any)"):
        replace(clipped, strict=True)(params, batch)


@pytest.mark.slow
def test_a_step_of_such_a_loss_checks_itself_and_is_made() -> None:
    run = jaxdp.DPSGD(num_examples=4, expected_batch_size=4, steps=2, clip_norm=0.5, noise_multiplier=1.0)
    step = run.make_step(lambda w, x: loss(w, minus_mean.bind(x)), optax.sgd(0.1))
    plain = run.make_step(loss, optax.sgd(0.1))
    found, expected = (each(each.init(W, jax.random.key(0)), X)[0].params for each in (step, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_one_that_only_a_rule_of_differentiation_has_is_refused_or_computed_for_one_after_another() -> None:
    hidden = lambda w, x: loss(by_a_rule()(w), x)
    for method in ("auto", "ghost"):
        with pytest.raises(jaxdp.UsageError, match='runs minus_mean, which JAX itself.*method="vmap"'):
            jaxdp.clipped_grad(hidden, clip_norm=0.5, method=method)(W, X)
    one_by_one = [jax.grad(hidden)(W, x) for x in X]
    np.testing.assert_allclose(jaxdp.per_example_grads(hidden)(W, X), jnp.stack(one_by_one), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX has no such rules")
def test_a_rule_that_jax_keeps_as_a_class_is_not_vectorised() -> None:
    hidden = lambda w, x: loss(by_a_rule(generic_batching=True)(w), x)
    expected = jnp.stack([jax.grad(hidden)(W, x) for x in X])
    for method in METHODS:
        out = jaxdp.clipped_grad(hidden, clip_norm=1e6, method=method)(W, X)
        np.testing.assert_allclose(out.grads, jnp.sum(expected, axis=0), rtol=1e-4, atol=1e-6)


def _of_kernel(kernel: Any, scratch: Any) -> Any:
    of_one = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((5,), jnp.float32), scratch_shapes=scratch, interpret=True
    )
    return lambda w, x: loss(w, of_one(x))


def _keeps_what_it_saw(x_ref: Any, o_ref: Any, seen: Any) -> None:
    @pl.when(seen[0] < 0)  # as it is at first
    def _() -> None:
        seen[0] = 1

    o_ref[...] = x_ref[...] * jnp.where(seen[0] == 1, 1.0, -1.0)
    seen[0] = jnp.where(x_ref[0] > 5, 2, seen[0])


def _within(x_ref: Any, o_ref: Any) -> None:
    pl.run_scoped(functools.partial(_keeps_what_it_saw, x_ref, o_ref), pltpu.SMEM((1,), jnp.int32))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("kernel", "scratch"), [(_keeps_what_it_saw, (pltpu.SMEM((1,), jnp.int32),)), (_within, ())], ids=["its", "within"]
)
def test_what_a_kernel_keeps_of_an_example_does_not_reach_the_next(kernel: Any, scratch: Any, method: str) -> None:
    of_one, x = _of_kernel(kernel, scratch), X.at[0, 0].set(9)
    sums = jaxdp.clipped_grad(of_one, clip_norm=1.0, method=method)(W, x)
    alone = [jaxdp.clipped_grad(loss, clip_norm=1.0, method="vmap")(W, row[None]).grads for row in x]
    np.testing.assert_allclose(sums.grads, sum(alone), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_kernel_without_memory_of_its_own_is_vectorised(method: str) -> None:
    def twice(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2.0

    of_one = _of_kernel(twice, ())
    assert not foreign_primitives(jax.make_jaxpr(of_one)(W, X[0]))
    found = jaxdp.clipped_grad(of_one, clip_norm=1.0, method=method)(W, X)
    expected = jaxdp.clipped_grad(lambda w, x: loss(w, 2 * x), clip_norm=1.0, method=method)(W, X)
    np.testing.assert_allclose(found.grads, expected.grads, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_jax_itself_does_not_vectorise_is_computed_for_one_after_another(method: str) -> None:
    def mixture(w: Any, x: Any) -> Any:
        tokens = jnp.outer(jnp.arange(1.0, 4.0), x)
        count = jnp.sum(tokens[:, 0] > 0.5).astype(jnp.int32)
        return jnp.sum(jnp.sin(jax.lax.ragged_dot(tokens, w, jnp.stack([count, 3 - count]))))

    rng = np.random.default_rng(0)
    w, batch = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 4, 3), (5, 4)))
    out = jaxdp.clipped_grad(mixture, clip_norm=0.5, method=method)(w, batch)
    one_by_one = [jax.grad(mixture)(w, x) for x in batch]
    expected = sum(g * jnp.minimum(1, 0.5 / jnp.linalg.norm(g)) for g in one_by_one)
    np.testing.assert_allclose(out.grads, expected, rtol=1e-4, atol=1e-5)


def prints(w: Any) -> Any:
    printing = jax.custom_vjp(lambda w: w)

    def backward(_: None, g: Any) -> tuple[Any]:
        jax.debug.print("{}", g)
        return (g,)

    printing.defvjp(lambda w: (w, None), backward)
    return printing(w)


def adds_up(w: Any) -> Any:
    added = jax.custom_vjp(lambda w: w)
    added.defvjp(lambda w: (w, None), lambda _, g: (jax.lax.psum(g, "shards"),))
    return added(w)


def averages(w: Any) -> Any:
    averaged = jax.custom_jvp(lambda w: w)
    averaged.defjvp(lambda primals, tangents: (primals[0], jax.lax.pmean(tangents[0], "shards")))
    return averaged(w)


@pytest.mark.parametrize("rule", [prints, adds_up, averages])
@pytest.mark.parametrize("method", METHODS)
def test_effects_that_only_a_rule_of_differentiation_has_are_refused(rule: Any, method: str) -> None:
    clipped = jaxdp.clipped_grad(lambda w, x: loss(rule(w), x), clip_norm=0.5, method=method)
    with pytest.raises(jaxdp.UsageError, match="the loss has effects"):
        jax.vmap(lambda batch: clipped(W, batch).grads, axis_name="shards")(jnp.stack([X, X]))


def shifted(x: Any, by: int = 1) -> Any:
    return jax.lax.ppermute(x, "shards", [(0, by), (by, 0)])


EXCHANGES = {
    "ppermute": shifted,
    "pshuffle": lambda x: jax.lax.pshuffle(x, "shards", [1, 0]),
    "in a loop": lambda x: jax.lax.scan(lambda carry, _: (shifted(carry), None), x, None, length=1)[0],
    "in a branch": lambda x: jax.lax.cond(jnp.sum(x) > 0, shifted, lambda x: x, x),
    "of a rule": lambda x: with_gradient(x, shifted),
}


def with_gradient(x: Any, of: Any) -> Any:
    made = jax.custom_vjp(lambda x: x)
    made.defvjp(lambda x: (x, None), lambda _, g: (of(g),))
    return made(x)


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("method", METHODS)
def test_what_copies_exchange_is_refused(exchange: str, method: str) -> None:
    """JAX tells of a permutation by no effect: a masked row of another copy reached the sum."""
    mine = EXCHANGES[exchange]
    clipped = jaxdp.clipped_grad(lambda w, x: loss(mine(w), mine(x)), clip_norm=0.5, method=method)
    with pytest.raises(jaxdp.UsageError, match="runs ppermute over 'shards'.*an example gets what others have"):
        jax.vmap(lambda batch: clipped(W, batch).grads, axis_name="shards")(jnp.stack([X, X]))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_what_devices_make_of_one_example_together_is_the_loop_s(method: str) -> None:
    mesh = jax.make_mesh((1,), ("own",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("own")

    def divided(w: Any, x: Any) -> Any:
        product = lambda w, x: jax.lax.psum(x @ w, "own")
        return jnp.sum(
            jnp.tanh(jax.shard_map(product, mesh=mesh, in_specs=(spec, jax.P(None, "own")), out_specs=jax.P())(w, x))
        )

    w, xs = jnp.eye(4), jnp.asarray(np.random.default_rng(0).normal(size=(5, 3, 4)), jnp.float32)
    found = jaxdp.clipped_grad(divided, clip_norm=0.5, method=method)(w, xs)
    each = [np.asarray(jax.grad(divided)(w, x), np.float64) for x in xs]
    total = sum(g * min(1, 0.5 / np.linalg.norm(g)) for g in each)
    np.testing.assert_allclose(found.grads, total, rtol=1e-5, atol=1e-5)


def test_a_convolution_that_devices_make_together_is_refused() -> None:
    mesh = jax.make_mesh((1,), ("own",), axis_types=(jax.sharding.AxisType.Auto,))
    convolved = jax.shard_map(
        lambda w, x: jax.lax.conv_general_dilated(x[None, None], w[None, None], (1, 1), "SAME"),
        mesh=mesh,
        in_specs=(jax.P(), jax.P()),
        out_specs=jax.P(),
    )
    clipped = jaxdp.clipped_grad(lambda w, x: jnp.sum(convolved(w, x)), clip_norm=1.0)
    with pytest.raises(jaxdp.UsageError, match="a convolution within jax.shard_map.*take it out of shard_map"):
        clipped(jnp.ones((3, 3)), jnp.ones((2, 5, 5)))


def slow_but(quick: bool, *values: Any) -> Any:
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("groups", "name", "dtype"),
    [
        slow_but((groups, name, dtype) == (2, "in a branch", "float32"), groups, name, dtype)
        for groups in (1, 2)
        for name in convolved(1)
        for dtype in ("float32", "float64")
    ],
)
def test_an_example_that_is_not_finite_contributes_nothing_and_takes_nothing_away(
    groups: int, name: str, dtype: str
) -> None:
    of_one, rng = convolved(groups)[name], np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        w = jnp.asarray(rng.normal(size=(3, 3, 2 // groups, 4)), dtype)
        batch = jnp.asarray(np.broadcast_to(rng.normal(size=(6, 6, 2)), (8, 6, 6, 2)), dtype)
        seven = jnp.arange(8) < 7
        for method in ("auto", "vmap"):
            clipped = jax.jit(jaxdp.clipped_grad(of_one, clip_norm=1.0, method=method))
            expected = clipped(w, batch, mask=seven).grads
            assert jnp.linalg.norm(jnp.ravel(expected)) > 1
            for wrong in (jnp.nan, jnp.inf, 3e38 * jnp.sign(batch[0])):
                for mask in (seven, jnp.ones(8, bool)):
                    found = clipped(w, batch.at[7].set(wrong), mask=mask).grads
                    moved = jnp.linalg.norm(jnp.ravel(found - expected))
                    assert moved <= (1 + 1e-5 if mask[7] else 1e-5), (method, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "vmap"])
def test_what_a_masked_row_holds_changes_no_bit_of_the_others(method: str) -> None:
    """Norms are compared with the clip norm where examples are counted: a last bit could count all of them otherwise."""
    kernel = jnp.asarray(np.random.RandomState(0).randn(2, 1, 3, 3), jnp.float32)

    def used_twice(k: Any, image: Any) -> Any:
        hidden = jnp.tanh(jax.lax.conv(image[None], k, (1, 1), "SAME"))
        return jnp.sum(jnp.tanh(jax.lax.conv(hidden[:, :1], k, (1, 1), "SAME")))

    clipped = jax.jit(jaxdp.clipped_grad(used_twice, clip_norm=0.01, method=method))
    mask = jnp.arange(64) < 63
    for seed in range(6):  # of which two were rounded otherwise by the branch that all examples took for one of them
        image = np.random.RandomState(seed).randn(1, 1, 5, 5)
        images = jnp.asarray(np.tile(image, (64, 1, 1, 1)), jnp.float32)
        expected = clipped(kernel, images, mask=mask)
        for value in (0.0, 1e-30, jnp.nan, jnp.inf):
            found = clipped(kernel, images.at[63].set(value), mask=mask)
            np.testing.assert_array_equal(found.norms, expected.norms)
            np.testing.assert_array_equal(found.grads, expected.grads)


OF_NUMPY: dict[str, Callable[[Any, Any], Any]] = {  # of parameters [8] and an example [6], as users write them
    "searchsorted": lambda w, x: w[jnp.searchsorted(jnp.linspace(-1.0, 1.0, 7), x)],
    "digitize": lambda w, x: w[jnp.digitize(x, jnp.sort(w)[:4])] * w[0],
    "interp": lambda w, x: jnp.interp(x, jnp.arange(8.0), w),
    "triu_indices": lambda w, x: (x[:3, None] * w[None, :3])[jnp.triu_indices(3)],
    "nonzero": lambda w, x: x[jnp.nonzero(x > 0, size=3)[0]] * w[:3],
    "ldexp": lambda w, x: jnp.ldexp(w[:6] * x, jnp.arange(6)),
    "frexp": lambda w, x: jnp.frexp(w[:6] * x)[0],
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_of_numpy_that_jax_writes_with_hijax_are_its_own(name: str) -> None:
    of_one = lambda w, x: jnp.sum(jnp.sin(OF_NUMPY[name](w, x)))
    assert not foreign_primitives(jax.make_jaxpr(jax.value_and_grad(of_one))(jnp.ones(8), jnp.ones(6)))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_they_are_clipped_as_in_a_loop(method: str) -> None:
    of_one = lambda w, x: sum((jnp.sum(jnp.sin(f(w, x))) for f in OF_NUMPY.values()), jnp.float32(0))
    random = np.random.default_rng(0)
    w, xs = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((8,), (5, 6)))
    mask = np.array([True, True, False, True, True])
    expected, norms = loop(of_one, w, xs, mask, 2.0)
    out = jax.jit(jaxdp.clipped_grad(of_one, clip_norm=2.0, method=method))(w, xs, mask=mask)  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(out.norms[mask], np.asarray(norms)[mask], rtol=1e-5)
    assert distance(out.grads, expected) <= 1e-4


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX has no such classes")
def test_a_class_of_ones_own_is_not_jaxs() -> None:
    from jax._src.numpy.hijax import SearchSorted

    class Mine(SearchSorted):
        """Whatever it does."""

    table, x = jnp.arange(8.0), jnp.ones(6)
    how = {"side": "left", "dimension": 0, "batch_dims": 0, "method": "scan", "out_dtype": np.dtype("int32")}
    mine = Mine(jax.typeof(table), jax.typeof(x), **how)
    assert foreign_primitives(jax.make_jaxpr(mine)(table, x)) == ["Mine"]
