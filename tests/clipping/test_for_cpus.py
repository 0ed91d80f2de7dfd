"""Losses with matrices that are broadcast from fewer numbers, which XLA's CPU compiler gets wrong if it sees that they are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp.clipping import _clipped_grad
from jaxdp.jaxprs import for_cpus

SHAPES = [(64, 64, 8), (16, 256, 128)]  # positions, inputs, outputs


def mixed(w: Any, x: Any) -> Any:
    """By a constant matrix before the weights: in the gradient's product it is the right one."""
    return jnp.sum((x @ jnp.full((x.shape[1], len(w)), 0.01)) @ w)


def scaled(scale: Any, x: Any) -> Any:
    """Scales before a constant matrix, which is the right one on the way back, too."""
    return jnp.sum(((x * scale[None]) @ jnp.full((len(scale), 8), 0.01)) ** 2)


def in_a_loop(scale: Any, x: Any) -> Any:
    """The same in a loop whose body is given the matrix."""
    matrix = jnp.full((len(scale), len(scale)), 0.01)
    step = lambda rows, _: (jnp.tanh((rows * scale[None]) @ matrix), jnp.sum((rows * scale[None]) @ matrix))
    return jnp.sum(jax.lax.scan(step, x, None, length=2)[1])


def in_another_loop(scale: Any, x: Any) -> Any:
    """The same where nothing is differentiated: an example's weight."""
    matrix = jnp.full((len(scale), 64), 0.01)
    weight = jax.lax.fori_loop(0, x.shape[0] // 8, lambda i, total: total + jnp.sum((x + i) @ matrix), 0.0)
    return jnp.sum(scale) * jax.lax.stop_gradient(1 + weight)


def in_a_branch(scale: Any, x: Any) -> Any:
    matrix = jnp.full((len(scale), len(scale)), 0.01)
    return jax.lax.cond(x[0, 0] > 9, lambda s: jnp.sum(s), lambda s: jnp.sum(((x * s[None]) @ matrix) ** 2), scale)


def in_a_branch_that_is_always_taken(scale: Any, x: Any) -> Any:
    """The matrix is made in the branch, and leaves it for the gradient's."""
    matrix = lambda: jnp.full((len(scale), 8), 0.01)
    taken = lambda s, x: jnp.sum(((x * s[None]) @ matrix()) ** 2)
    return jax.lax.cond(jnp.array(True), taken, lambda s, x: jnp.sum(s) * x[0, 0], scale, x)


def of_each_example(w: Any, x: Any) -> Any:
    """A matrix of one number of the example's own."""
    return jnp.sum((x @ jnp.broadcast_to(x[0, 0], (x.shape[1], len(w)))) @ w)


def of_columns(w: Any, x: Any) -> Any:
    """A matrix of equal columns of the example's own."""
    return jnp.sum((x @ jnp.broadcast_to(x[0][:, None], (x.shape[1], len(w)))) @ w)


def convolved(scale: Any, x: Any) -> Any:
    """A convolution of one position, which is a product."""
    image = (x * scale[None]).reshape(1, -1, 1, x.shape[1])
    kernel = jnp.full((1, 1, x.shape[1], 64), 0.01)
    out = jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.sum(out**2)


def of_examples(w: Any, x: Any) -> Any:
    """The parameters as constants, as where a function is compiled that closes over them."""
    return jnp.mean(x @ w)


def weights(loss: Callable[..., Any], inputs: int, outputs: int) -> Any:
    return (
        jnp.ones(inputs)
        if loss
        in (scaled, in_a_loop, in_another_loop, in_a_branch, in_a_branch_that_is_always_taken, convolved, *HIDDEN)
        else jnp.zeros((inputs, outputs))
    )


def gradients(loss: Callable[..., Any], params: Any, rows: np.ndarray) -> list[np.ndarray]:
    """One operation at a time, none of them fused."""
    with jax.disable_jit():
        return [np.asarray(jax.grad(loss)(params, jnp.asarray(x)), np.float64) for x in rows]


def by(matrix: Callable[[int, int], Any]) -> Callable[..., Any]:
    """Scales before a matrix of which the compiler finds out by simplifying that it is broadcast."""

    def loss(scale: Any, x: Any) -> Any:
        return jnp.sum(((x * scale[None]) @ matrix(len(scale), 8)) ** 2)

    loss.__name__ = matrix.__name__
    return loss


def distances(k: int, o: int) -> Any:
    return jnp.asarray(np.abs(np.arange(k)[:, None] - np.arange(o)[None]), jnp.float32)


def full(k: int, o: int) -> Any:
    return jnp.full((k, o), 0.01)


def window(k: int, o: int) -> Any:
    return (distances(k, o) < 512).astype(jnp.float32)


def clipped(k: int, o: int) -> Any:
    return jnp.clip(distances(k, o), -2, -1)


def counted(k: int, o: int) -> Any:
    return (jax.lax.broadcasted_iota(jnp.int32, (k, o), 0) >= 0).astype(jnp.float32)


def gathered(k: int, o: int) -> Any:
    return distances(k, o)[jnp.ones((k, o), jnp.int32), jnp.zeros((k, o), jnp.int32)]


def part_of_joined(k: int, o: int) -> Any:
    return jnp.concatenate([full(k, o), distances(k, o)])[:k]


def part_of_padded(k: int, o: int) -> Any:
    return jnp.pad(distances(k, o), ((k, 0), (0, 0)), constant_values=0.01)[:k]


def chosen(k: int, o: int) -> Any:
    return jnp.where(jax.lax.broadcasted_iota(jnp.int32, (k, o), 0) >= 0, 0.01, distances(k, o))


def carried(scale: Any, x: Any) -> Any:
    """What a loop that is unrolled carries."""
    rows = x * scale[None]
    step = lambda carry, _: ((carry[0] * 1.5, carry[1] + jnp.sum((rows @ carry[0]) ** 2)), None)
    return jax.lax.scan(step, (full(len(scale), 8), 0.0), None, length=2, unroll=True)[0][1]


def rematerialised(scale: Any, x: Any) -> Any:
    """What a body gives beside what depends on the example."""
    y, matrix = jax.checkpoint(lambda x: (jnp.sin(x), full(len(scale), 8)))(x)
    return jnp.sum(((y * scale[None]) @ matrix) ** 2)


HIDDEN = [
    *map(by, (window, clipped, counted, gathered, part_of_joined, part_of_padded, chosen)),
    carried,
    rematerialised,
]

LOSSES = (
    mixed,
    scaled,
    in_a_loop,
    in_another_loop,
    in_a_branch,
    in_a_branch_that_is_always_taken,
    of_each_example,
    of_columns,
    convolved,
    of_examples,
)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("loss", "closed_over"), [*((loss, False) for loss in LOSSES), (mixed, True), (of_examples, True)]
)
def test_a_matrix_is_multiplied_by_whatever_it_is_broadcast_from(
    loss: Callable[..., Any], shape: tuple[int, int, int], method: str, closed_over: bool
) -> None:
    positions, inputs, outputs = shape
    rows = np.random.default_rng(0).standard_normal((4, positions, inputs)).astype(np.float32)
    params = weights(loss, inputs, outputs)
    expected = gradients(loss, params, rows)
    norms = [np.linalg.norm(g) for g in expected]
    limit = float(np.median(norms))
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=limit, method=method)
    compiled = jax.jit((lambda _, rows: grad_fn(params, rows)) if closed_over else grad_fn)
    out = compiled(params, rows)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-3)
    total = np.sum([g * min(1.0, limit / norm) for g, norm in zip(expected, norms, strict=True)], axis=0)
    np.testing.assert_allclose(out.grads, total, rtol=1e-3, atol=1e-3 * limit)
    assert np.isfinite(out.losses).all()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ghost", "vmap"])
@pytest.mark.parametrize("shape", [SHAPES[0], (4, 256, 128)])
@pytest.mark.parametrize("loss", HIDDEN)
def test_and_so_it_is_by_what_the_compiler_finds_to_be_one(
    loss: Callable[..., Any], shape: tuple[int, int, int], method: str
) -> None:
    test_a_matrix_is_multiplied_by_whatever_it_is_broadcast_from(loss, shape, method, closed_over=False)


def test_and_by_what_is_made_where_the_user_compiles() -> None:
    rows = np.random.default_rng(0).standard_normal((4, 64, 64)).astype(np.float32)
    scale = jnp.ones(64)
    loss = lambda scale, x, matrix: jnp.sum(((x * scale[None]) @ matrix) ** 2)
    norms = [np.linalg.norm(g) for g in gradients(lambda s, x: loss(s, x, full(64, 8)), scale, rows)]
    grad_fn = jaxdp.clipped_grad(loss, clip_norm=1.0)
    out = jax.jit(lambda scale, rows: grad_fn(scale, rows, full(64, 8)))(scale, rows)
    np.testing.assert_allclose(out.norms, norms, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "bfloat16", "complex64"])
def test_products_of_any_type_keep_it(dtype: str) -> None:
    rows = jnp.asarray(np.random.default_rng(0).integers(0, 2, (70, 160)), dtype)
    fn = lambda rows: jnp.sum(rows @ jnp.ones((160, 64), dtype), axis=0, dtype=dtype)
    with jax.disable_jit():
        expected = fn(rows)
    found = jax.jit(lambda rows: for_cpus(fn, rows))(rows)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(complex), expected.astype(complex), rtol=1e-2)


def test_every_factor_stands_behind_a_barrier_and_nothing_else_is_changed() -> None:
    def step(h: Any, x: Any) -> tuple[Any, Any]:
        return jnp.tanh(h @ jnp.eye(5) + x @ jnp.arange(20.0).reshape(4, 5)), None

    fn = lambda h, xs: jax.lax.scan(step, h, xs)[0]
    arrays = jnp.ones((3, 5)), jnp.ones((7, 3, 4))
    arranged, plain = (str(jax.make_jaxpr(f)(*arrays)) for f in (lambda *args: for_cpus(fn, *args), fn))
    assert (arranged.count("optimization_barrier"), plain.count("optimization_barrier")) == (4, 0)
    for name in ("dot_general", "scan", "tanh"):
        assert arranged.count(name) == plain.count(name)


@pytest.mark.slow
def test_the_self_check_finds_what_the_compiler_gets_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((6, 64, 64)).astype(np.float32)
    params = weights(scaled, 64, 8)
    (expected,) = gradients(scaled, params, rows[:1])
    together = jax.jit(jax.vmap(jax.grad(scaled), (None, 0)))(params, rows)
    if np.allclose(together[0], expected, rtol=1e-2):
        pytest.skip("this version of XLA gets it right")
    run = jaxdp.DPSGD(num_examples=6, expected_batch_size=2, steps=3, clip_norm=1.0, noise_multiplier=1.0)
    first = lambda step: step(step.init(params, jax.random.key(0)), rows)
    first(run.make_step(scaled, optax.sgd(0.1)))
    monkeypatch.setattr(_clipped_grad, "for_cpus", lambda fn, *args: fn(*args))
    with pytest.raises(jaxdp.UsageError, match="away from the gradient of plain differentiation"):
        first(run.make_step(scaled, optax.sgd(0.1)))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_what_a_loop_or_a_branch_returns_may_be_a_number_of_the_program(method: str) -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        looped = jax.lax.fori_loop(0, 2, lambda _, carry: (carry[0] * jnp.vdot(w, x), 1.0), (1.0, 2.0))
        _, scanned = jax.lax.scan(lambda carry, _: (carry, 3.0), 0.0, length=2)
        chosen = jax.lax.switch((w[0] > 0).astype(jnp.int32), [lambda: 2.0, lambda: 3.0])
        return looped[0] * looped[1] * scanned.sum() * chosen

    x = jnp.array([[0.1, 0.2], [0.3, -0.1]])
    out = jaxdp.clipped_grad(loss, clip_norm=100.0, method=method)(jnp.array([1.0, 2.0]), x)
    exact = jax.grad(lambda w: 18 * jnp.square(x @ w).sum())(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(out.grads, exact, rtol=1e-5)


def across(matrix: Any, rows: Any, reverse: bool) -> Any:
    """A loop that reads a matrix across its rows, as the left and as the right factor, and along its columns."""

    def step(carry: Any, x: Any) -> tuple[Any, Any]:
        right = jax.lax.dot_general(x + carry, matrix, (((1,), (1,)), ((), ())))
        left = jax.lax.dot_general(matrix, x, (((1,), (1,)), ((), ())))
        return jnp.tanh(right @ matrix), (right, left)

    return jax.lax.scan(step, jnp.zeros_like(rows[0]), rows, reverse=reverse)


@pytest.mark.slow_but("True-1-1")
@pytest.mark.parametrize(("rows", "transposed"), [(1, 1), (16, 1), (127, 1), (128, 0), (200, 0)])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_a_loop_reads_across_with_few_rows_is_transposed_once_before_it(
    rows: int, transposed: int, reverse: bool
) -> None:
    keys = jax.random.split(jax.random.key(0))
    args = jax.random.normal(keys[0], (6, 5)), jax.random.normal(keys[1], (4, rows, 5))
    arranged = lambda *args: for_cpus(lambda *args: across(*args, reverse), *args)
    for found, expected in zip(*map(jax.tree.leaves, (arranged(*args), across(*args, reverse))), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    jaxpr = jax.make_jaxpr(arranged)(*args)
    (loop,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    count = lambda eqns: sum(eqn.primitive.name == "transpose" for eqn in eqns)
    assert (count(jaxpr.eqns), count(loop.params["jaxpr"].jaxpr.eqns)) == (transposed, 0)
    products = [
        eqn.params["dimension_numbers"][0] for eqn in loop.params["jaxpr"].jaxpr.eqns if "dot" in str(eqn.primitive)
    ]
    assert sorted(products) == sorted(
        [((1,), (0,)), *([((1,), (0,)), ((0,), (1,))] if transposed else 2 * [((1,), (1,))])]
    )
