"""`privatize`, `clip_and_privatize`, `dp_sgd` and `dp_adam`: what they add, divide by, and refuse."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxdp

FALSE_ALARM = 1e-4
# Of two programs whose bits are compared: what tests compile in haste may round otherwise.
AS_USUAL = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def key() -> jax.Array:
    return jax.random.key(0)


def noise_of(tx: Any, tree: Any, steps: int = 1, sensitivity: float = 2.0) -> list[Any]:
    """What `tx` makes of zeros, step by step."""
    state, out, update = tx.init(tree), [], jax.jit(tx.update)
    for _ in range(steps):
        updates, state = update(tree, state, tree, sensitivity=sensitivity)
        out.append(updates)
    return out


def test_the_noise_has_the_accounted_deviation_and_no_mean() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.5, expected_batch_size=4, key=key())
    (noise,) = noise_of(tx, jnp.zeros(200_000), sensitivity=2.0)
    standard = np.asarray(noise, np.float64) / (1.5 * 2.0 / 4)
    assert scipy.stats.kstest(standard, "norm").pvalue > FALSE_ALARM
    variance = scipy.stats.chi2(len(standard)).cdf(np.square(standard).sum())
    assert FALSE_ALARM / 2 < variance < 1 - FALSE_ALARM / 2


def test_leaves_and_steps_have_independent_noise() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key())
    tree = {"a": jnp.zeros(20_000), "b": jnp.zeros(20_000)}
    draws = [np.asarray(step[leaf]) for step in noise_of(tx, tree, steps=3) for leaf in tree]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert scipy.stats.pearsonr(a, b).pvalue > FALSE_ALARM / 15


class Several(NamedTuple):
    """A noise of the user's own, whose `step` is no count."""

    step: Any

    def init(self, key: Any, params: Any) -> Any:
        del params
        return Several(jax.random.key_data(key))

    def update(self, state: Any, sums: Any, scale: Any) -> Any:
        noise = jaxdp.noise.tree_normal(jax.random.wrap_key_data(state.step), sums)
        return jax.tree.map(lambda s, n: s + scale * n, sums, noise), Several(state.step + 1)

    def event(self, noise_multiplier: float) -> Any:
        return dp_accounting.GaussianDpEvent(noise_multiplier)

    def in_words(self, noise_multiplier: float) -> str:
        return f"noise of {noise_multiplier}"

    label = in_words


@pytest.mark.slow
def test_an_array_of_a_noises_own_is_no_count_of_updates_whatever_its_name() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key(), noise=Several(None), steps=2)
    state = tx.init(jnp.zeros(3))
    for _ in range(2):
        updates, state = tx.update(jnp.zeros(3), state, sensitivity=1.0)
        assert np.isfinite(updates).all()
        assert np.any(np.asarray(updates))


@pytest.mark.slow
def test_another_key_gives_other_noise_and_the_same_key_the_same() -> None:
    one, same, other = (
        noise_of(jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=jax.random.key(k)), jnp.zeros(3))[0]
        for k in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.any(np.asarray(one) == np.asarray(other))


@pytest.mark.slow
def test_sums_stay_where_they_are_on_a_mesh_whose_axes_are_explicit() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    specs = {"a": PartitionSpec("data"), "b": PartitionSpec(None), "c": PartitionSpec("data")}
    sums = dict.fromkeys(specs, jnp.zeros(8))
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=4, key=jax.random.key(0))
    noisy = lambda sums: tx.update(sums, tx.init(sums), sensitivity=jnp.float32(1.0))[0]
    compiled = jax.jit(noisy, compiler_options=AS_USUAL)
    alone = compiled(sums)
    with jax.set_mesh(mesh):
        found = compiled(jax.tree.map(lambda leaf, spec: jax.device_put(leaf, NamedSharding(mesh, spec)), sums, specs))
    for name, spec in specs.items():
        assert found[name].sharding.spec == spec
        np.testing.assert_array_equal(found[name], alone[name])


@pytest.mark.slow
def test_gradients_of_examples_that_lie_on_explicit_axes_are_clipped() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=0.0, expected_batch_size=4, key=jax.random.key(0))
    grads, params = {"w": jax.random.normal(jax.random.key(1), (6, 3, 2))}, {"w": jnp.zeros((3, 2))}
    alone: Any = tx.update(grads, tx.init(params), params)[0]
    on_mesh = lambda tree, *axes: jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))
    with jax.set_mesh(mesh):
        found: Any = tx.update(on_mesh(grads, "data"), tx.init(params), on_mesh(params))[0]
    np.testing.assert_allclose(found["w"], alone["w"], rtol=1e-6)


def test_the_noise_is_float32_for_a_bfloat16_sum() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key())
    (noise,) = noise_of(tx, jnp.zeros(1000, jnp.bfloat16))
    assert noise.dtype == jnp.float32
    assert not np.array_equal(noise, noise.astype(jnp.bfloat16).astype(jnp.float32))


def test_without_clipping_and_noise_it_is_exactly_sgd_on_the_sum_over_the_expected_batch() -> None:
    params = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2)}
    loss = lambda p, x: jnp.sum(jnp.square(p["w"] @ x + p["b"]))
    batch = jax.random.normal(key(), (5, 3))
    out = jax.jit(jaxdp.clipped_grad(loss, clip_norm=math.inf))(params, batch)
    private = jaxdp.dp_sgd(0.3, momentum=0.9, noise_multiplier=0.0, expected_batch_size=7, key=key())
    plain = optax.sgd(0.3, momentum=0.9)
    state, plain_state = private.init(params), plain.init(params)
    for _ in range(3):
        updates, state = private.update(out.grads, state, params, sensitivity=out.sensitivity)
        mean = jax.tree.map(lambda leaf: leaf / jnp.float32(7), out.grads)
        expected, plain_state = plain.update(mean, plain_state, params)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)


def test_the_divisor_is_the_expected_batch_whatever_was_drawn() -> None:
    tx = jaxdp.privatize(noise_multiplier=0.0, expected_batch_size=10, key=key())
    loss = lambda w, x: w * x
    grad_fn, update = jax.jit(jaxdp.clipped_grad(loss, clip_norm=1.0)), jax.jit(tx.update)
    for drawn in (1, 4):
        out = grad_fn(jnp.float32(0), jnp.full(4, 0.5), mask=jnp.asarray(np.arange(4) < drawn))
        mean, _ = update(out.grads, tx.init(out.grads), sensitivity=out.sensitivity)
        assert float(mean) == pytest.approx(0.5 * drawn / 10)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, np.bool_, np.complex64])
def test_gradients_in_which_squares_wrap_or_are_no_lengths_are_refused(kind: Any) -> None:
    """int8's 16 squares to 0: such an example passed with 16 clip norms."""
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=0.0, expected_batch_size=1, key=key())
    with pytest.raises(jaxdp.UsageError, match=rf"gradient\['w'\] has dtype {np.dtype(kind)}.*astype\(jnp.float32\)"):
        tx.update({"w": np.array([[16, 1]], kind)}, tx.init({"w": jnp.zeros(2)}), {"w": jnp.zeros(2)})


def test_clip_and_privatize_is_clipping_then_privatize() -> None:
    params = jnp.zeros(3)
    grads = jax.random.normal(jax.random.key(5), (6, 3)) * 3
    mask = jnp.array([True, True, False, True, True, False])
    both = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.1, expected_batch_size=4, key=key())
    updates, _ = jax.jit(both.update)(grads, both.init(params), params, mask=mask)
    out = jax.jit(jaxdp.clipped_grad(lambda w, g: jnp.vdot(w, g), clip_norm=1.0))(params, grads, mask=mask)
    tx = jaxdp.privatize(noise_multiplier=1.1, expected_batch_size=4, key=key())
    expected, _ = jax.jit(tx.update)(out.grads, tx.init(params), sensitivity=out.sensitivity)
    np.testing.assert_allclose(updates, expected, rtol=1e-5)


@pytest.mark.slow
def test_accumulated_sums_get_one_noise_when_multisteps_stands_around_the_chain() -> None:
    tx = jaxdp.dp_sgd(1.0, noise_multiplier=1.0, expected_batch_size=1, key=key())
    around = optax.MultiSteps(tx, every_k_schedule=4, use_grad_mean=False)
    params = jnp.zeros(50_000)
    state = around.init(params)
    updates = params
    with jax.debug_key_reuse(False):  # MultiSteps selects between two states that hold the same key
        update = jax.jit(around.update)
        for _ in range(4):
            updates, state = update(params, state, params, sensitivity=1.0)
    assert float(jnp.std(updates)) == pytest.approx(1.0, rel=0.03)


@pytest.mark.slow
def test_moments_stay_float32_and_the_update_compiles_once_for_a_bfloat16_model() -> None:
    params = {"w": jnp.ones(4, jnp.bfloat16)}
    for tx in (
        jaxdp.dp_adam(0.1, noise_multiplier=1.0, expected_batch_size=1, key=key()),
        jaxdp.dp_sgd(0.1, momentum=0.9, noise_multiplier=1.0, expected_batch_size=1, key=jax.random.key(1)),
    ):
        update = jax.jit(lambda g, s, p, tx=tx: tx.update(g, s, p, sensitivity=1.0))
        state = tx.init(params)
        for _ in range(3):
            updates, state = update({"w": jnp.ones(4)}, state, params)
            params = optax.apply_updates(params, updates)
        assert params["w"].dtype == jnp.bfloat16  # pyright: ignore
        assert update._cache_size() == 1


def test_dp_adam_is_the_chain_it_says() -> None:
    params, sums = jnp.zeros(5), jnp.arange(5.0)
    ours = jaxdp.dp_adam(0.1, noise_multiplier=1.0, expected_batch_size=2, key=key())
    chain = optax.chain(jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=2, key=key()), optax.adam(0.1))
    a, _ = jax.jit(ours.update)(sums, ours.init(params), params, sensitivity=1.0)
    b, _ = jax.jit(chain.update)(sums, chain.init(params), params, sensitivity=1.0)
    np.testing.assert_array_equal(a, b)


def _update(**keywords: Any) -> Any:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key())
    return tx.update(jnp.zeros(2), tx.init(jnp.zeros(2)), **keywords)


def _clip_and_update(grads: Any, params: Any, **keywords: Any) -> Any:
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=1, key=key())
    return tx.update(grads, tx.init(params), params, **keywords)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_update, "without its sensitivity"),
        (lambda: _update(sensitivity=math.inf), "clip the gradients to a finite norm"),
        (lambda: _update(sensitivity=jnp.ones(2)), "must be a scalar"),
        (lambda: _update(sensitivity=0.0), "sensitivity=0.0"),
        (lambda: jaxdp.privatize(noise_multiplier=-1.0, expected_batch_size=1, key=key()), "noise_multiplier=-1.0"),
        (lambda: jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=0, key=key()), "expected_batch_size=0"),
        (
            lambda: jaxdp.clip_and_privatize(
                clip_norm=math.inf, noise_multiplier=1.0, expected_batch_size=1, key=key()
            ),
            "clip_norm=inf",
        ),
        (lambda: _clip_and_update(jnp.zeros(3), jnp.zeros(3)), "pass per-example gradients"),
        (lambda: _clip_and_update(jnp.zeros((2, 3)), None), "pass params"),
        (lambda: _clip_and_update({"a": jnp.zeros((2, 3))}, jnp.zeros(3)), "different tree structures"),
        (lambda: _clip_and_update([jnp.zeros((2, 3)), jnp.zeros((4, 3))], [jnp.zeros(3)] * 2), "disagree on the batch"),
        (lambda: _clip_and_update(jnp.zeros((2, 3)), jnp.zeros(3), mask=jnp.ones(3, bool)), "must be bool of shape"),
    ],
)
def test_unsafe_use_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call()


def test_there_is_no_default_key() -> None:
    with pytest.raises(TypeError, match="key"):
        jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1)  # pyright: ignore


def test_a_traced_sensitivity_that_no_noise_can_hide_makes_the_update_nan() -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key())
    sums = {"w": jnp.ones(2), "b": jnp.ones(())}
    update = jax.jit(lambda sensitivity: tx.update(sums, tx.init(sums), sensitivity=sensitivity)[0])
    for sensitivity in (0.0, -1.0, math.nan, math.inf, 1e-44):
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(update(jnp.float32(sensitivity))))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(update(jnp.float32(1.0))))


@pytest.mark.slow_but("1.4999")
@pytest.mark.parametrize("sensitivity", [1.5 / 40, 1.4999, 1e-6])
def test_a_sensitivity_below_the_runs_clip_norm_is_an_error_or_nan(sensitivity: float) -> None:
    run = jaxdp.DPSGD(num_examples=400, expected_batch_size=40, steps=3, clip_norm=1.5, noise_multiplier=1.0)
    tx, sums = run.privatize(key()), jnp.ones(2)
    update = jax.jit(lambda sensitivity: tx.update(sums, tx.init(sums), sensitivity=sensitivity)[0])
    for given in (sensitivity, np.float32(sensitivity), jnp.float32(sensitivity)):
        with pytest.raises(jaxdp.UsageError, match="is below the run's clip_norm=1.5"):
            tx.update(sums, tx.init(sums), sensitivity=given)
        assert np.isnan(update(given)).all()
    for given in (1.5, 2.0):
        assert np.isfinite(update(given)).all()
    for given in (True, 2j, jnp.full(1, 2.0)):
        with pytest.raises(jaxdp.UsageError, match="must be a scalar"):
            update(given)


@pytest.mark.slow
def test_the_sensitivity_of_a_rule_with_a_state_is_the_states() -> None:
    rule = jaxdp.clipping.Quantile(count_noise=3.0)
    run = jaxdp.DPSGD(num_examples=400, expected_batch_size=40, steps=3, clip_norm=1.5, noise_multiplier=1.0, rule=rule)
    tx, sums = run.privatize(key()), jnp.ones(2)
    mean: Any = tx.update(sums, tx.init(sums), sensitivity=0.5)[0]
    assert np.isfinite(mean).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _update(sensitivity=0.0), "sensitivity=0.0"),
        (lambda: _update(sensitivity=1e-44), "sensitivity=1e-44 with noise_multiplier=1.0"),
        (lambda: _update(sensitivity="1"), "must be a scalar"),
        (lambda: _update(sensitivity=True), "must be a scalar"),
        (lambda: _update(sensitivity=1j), "must be a scalar"),
        (lambda: _sums_and_state({"a": "text"}, None), r"updates\['a'\] is a str"),
        (lambda: _sums_and_state(jnp.ones(2) * 1j, None), "updates is an array of complex64"),
        (lambda: _sums_and_state(jnp.ones(2), {}), "state is a dict"),
        (lambda: _sums_and_state(_clipped(), None), "updates are all that jaxdp.clipped_grad returned.*out.grads"),
        (lambda: _dp_sgd(math.nan), "learning_rate=nan must be finite"),
        (lambda: _dp_sgd("0.1"), "learning_rate='0.1' is not a number"),
        (lambda: _dp_sgd(0.1, momentum=math.inf), "momentum=inf must be finite"),
        (lambda: _dp_sgd(0.1, nesterovv=True), "optax refuses the optimizer's arguments.*nesterovv"),
        (lambda: jaxdp.in_float32(optax.sgd), "optimizer=sgd makes optimizers and is none"),  # pyright: ignore
        (lambda: jaxdp.in_float32(None), "optimizer=None is a NoneType"),  # pyright: ignore
    ],
)
def test_what_is_no_number_no_sum_and_no_optimizer_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(jaxdp.UsageError, match=message):
        call()


def _clipped() -> Any:
    return jaxdp.clipped_grad(lambda params, x: params * x, clip_norm=1.0)(jnp.float32(1), jnp.ones(2))


def _sums_and_state(sums: Any, state: Any) -> Any:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=1, key=key())
    return tx.update(sums, tx.init(sums) if state is None else state, sensitivity=1.0)


def _dp_sgd(*args: Any, **keywords: Any) -> Any:
    return jaxdp.dp_sgd(*args, noise_multiplier=1.0, expected_batch_size=1, key=key(), **keywords)


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf, -jnp.inf])
def test_sums_that_no_noise_hides_are_refused_where_they_can_be_seen(value: float) -> None:
    tx = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=4, key=key())
    sums = {"w": jnp.ones(3), "b": jnp.array([0.0, value])}
    with pytest.raises(jaxdp.UsageError, match="updates hold NaN or infinity"):
        tx.update(sums, tx.init(sums), sensitivity=1.0)


def test_no_update_is_made_after_the_last_that_is_accounted() -> None:
    run = jaxdp.DPSGD(num_examples=8, expected_batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    tx = run.privatize(jax.random.key(0))
    sums = {"w": jnp.ones(3)}
    state = tx.init(sums)
    compiled = jax.jit(lambda state: tx.update(sums, state, sensitivity=1.0))
    for _ in range(2):
        eager, state = tx.update(sums, state, sensitivity=1.0)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(eager))
    with pytest.raises(jaxdp.UsageError, match="after the last of the run's steps=2"):
        tx.update(sums, state, sensitivity=1.0)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(compiled(state)[0]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(compiled(tx.init(sums))[0]))


@pytest.mark.slow
@pytest.mark.parametrize("within", ["masked", "multi_transform"])
def test_a_part_of_the_parameters_gets_no_noise_of_its_own(within: str) -> None:
    noise = jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=4, key=jax.random.key(0))
    sums = {"a": jnp.ones(3), "b": jnp.ones(3)}
    apart = {
        "masked": optax.masked(noise, {"a": True, "b": False}),
        "multi_transform": optax.multi_transform({"one": noise, "two": noise}, {"a": "one", "b": "two"}),
    }[within]
    with pytest.raises(jaxdp.UsageError, match=r"a part of the tree is masked.*optax.chain\(privatize, "):
        apart.init(sums)
    by_group = optax.multi_transform({"one": optax.sgd(0.1), "two": optax.sgd(0.01)}, {"a": "one", "b": "two"})
    chain = optax.chain(noise, by_group)
    updates: Any = chain.update(sums, chain.init(sums), sums, sensitivity=1.0)[0]
    assert float(jnp.max(jnp.abs(updates["a"] - 10 * updates["b"]))) > 1e-3


def test_a_state_that_is_donated_does_not_take_the_users_key_with_it() -> None:
    key = jax.random.key(5)
    run = jaxdp.DPSGD(num_examples=8, expected_batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    for tx in (run.privatize(key), jaxdp.privatize(noise_multiplier=0.0, expected_batch_size=4, key=key)):
        state = tx.init(jnp.ones(3))
        jax.jit(lambda state: jax.tree.map(jnp.copy, state), donate_argnums=0)(state)
        assert not key.is_deleted()
        assert np.isfinite(tx.update(jnp.ones(3), tx.init(jnp.ones(3)), sensitivity=1.0)[0]).all()


@pytest.mark.parametrize(
    ("grads", "how", "said"),
    [
        (jnp.zeros((0, 2)), {}, "0 rows: for an empty draw give rows of zeros with mask=False"),
        (
            jnp.zeros((3, 2)),
            {"masks": [True, False, False]},
            "masks is no argument of the update: give padding as mask=",
        ),
    ],
)
def test_batches_of_gradients_that_are_none_are_refused(grads: Any, how: dict[str, Any], said: str) -> None:
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=2, key=jax.random.key(0))
    params = jnp.zeros(grads.shape[1:])
    with pytest.raises(jaxdp.UsageError, match=said):
        tx.update(grads, tx.init(params), params, **how)


def test_a_tree_without_leaves_is_no_batch_of_gradients() -> None:
    tx = jaxdp.clip_and_privatize(clip_norm=1.0, noise_multiplier=1.0, expected_batch_size=2, key=jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="the gradients have no leaves"):
        tx.update({}, tx.init({}), {})


@pytest.mark.parametrize("behind", [optax.polyak_sgd(1.0), optax.contrib.reduce_on_plateau()])
def test_a_batchs_loss_for_an_optimizer_behind_the_noise_is_refused(behind: Any) -> None:
    tx = optax.chain(jaxdp.privatize(noise_multiplier=1.0, expected_batch_size=4, key=jax.random.key(0)), behind)
    sums = {"w": jnp.ones(3)}
    with pytest.raises(jaxdp.UsageError, match="value= goes to the optimizer behind the noise"):
        tx.update(sums, tx.init(sums), sums, sensitivity=1.0, value=jnp.float32(2.0))
    how = {"clip_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4, "key": jax.random.key(0)}
    tx = optax.chain(jaxdp.clip_and_privatize(**how), behind)
    with pytest.raises(jaxdp.UsageError, match="value= goes to the optimizer behind the noise"):
        tx.update({"w": jnp.ones((4, 3))}, tx.init(sums), sums, value=jnp.float32(2.0))


def test_the_sensitivity_of_gradients_of_ones_own_is_the_clip_norms_whatever_is_said() -> None:
    how = {"clip_norm": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 4, "key": jax.random.key(0)}
    tx, params = jaxdp.clip_and_privatize(**how), {"w": jnp.ones(3)}
    means: Any = lambda **said: tx.update({"w": jnp.ones((4, 3))}, tx.init(params), params, **said)[0]
    np.testing.assert_array_equal(means()["w"], means(sensitivity=jnp.float32(1e-3))["w"])


def test_without_noise_an_optimizer_may_take_a_batchs_loss() -> None:
    tx = jaxdp.privatize(noise_multiplier=0.0, expected_batch_size=4, key=jax.random.key(0))
    tx = optax.chain(tx, optax.contrib.reduce_on_plateau())
    sums = {"w": jnp.ones(3)}
    updates: Any = tx.update(sums, tx.init(sums), sums, sensitivity=1.0, value=jnp.float32(2.0))[0]
    assert updates["w"].tolist() == [0.25] * 3
