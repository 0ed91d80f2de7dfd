"""White-box canaries: what they find of honest runs, and of the faults that are planted in the library."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from recorded import violations

import jaxdp
from jaxdp import audit
from jaxdp.clipping import Flat
from jaxdp.noise import Gaussian
from jaxdp.transforms import _privatize

N, CANARIES, DELTA = 500, 1500, 1e-5
RNG = np.random.default_rng(0)
DATA = (RNG.normal(size=(N, 8)).astype(np.float32), RNG.integers(0, 3, N))
PARAMS = {"w": jnp.zeros((8, 3))}
RUN = jaxdp.DPSGD(num_examples=N + CANARIES, expected_batch_size=100, steps=60, clip_norm=0.5, noise_multiplier=1.9)


def loss(params: Any, example: Any) -> Any:
    return -jax.nn.log_softmax(example[0] @ params["w"])[example[1]]


def problem(run: jaxdp.DPSGD = RUN, seed: int = 0, optimizer: Any = None) -> audit.GradientCanaries:
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    return audit.gradient_canaries(run, loss, optimizer, PARAMS, DATA, key=jax.random.key(1000 + seed))


def trained(planted: audit.GradientCanaries, run: jaxdp.DPSGD = RUN, seed: int = 0) -> Any:
    step = run.make_step(planted.loss_fn, planted.optimizer, self_check=False)
    state = step.init(planted.params, jax.random.key(seed))
    for _ in range(run.steps):
        state, _ = step(state, planted.data)
    return state


def found(run: jaxdp.DPSGD = RUN, seed: int = 0, claimed: jaxdp.DPSGD = RUN) -> tuple[audit.Report, audit.Report]:
    """By the likelihood ratio and by differences of steps, at half of the significance each."""
    planted = problem(claimed, seed)
    state = trained(planted, run, seed)
    claim: dict[str, Any] = {
        "delta": DELTA,
        "claimed_epsilon": claimed.epsilon(delta=DELTA, accountant="pld"),
        "significance": 0.025,
    }
    scores = planted.scores(state), planted.spreads(state)
    by_ratio, by_spread = (audit.report(each, planted.members, **claim) for each in scores)
    return by_ratio, by_spread


@pytest.mark.slow
def test_the_model_is_trained_as_without_canaries_and_each_canary_has_its_own_direction() -> None:
    run = dataclasses.replace(RUN, num_examples=N + 40, expected_batch_size=N + 40.0, steps=2, noise_multiplier=1e-6)
    planted = problem(run, optimizer=optax.sgd(0.1))
    state = trained(planted, run)
    np.testing.assert_array_equal(state.params["canaries"], 0)
    alone = dataclasses.replace(run, num_examples=N, expected_batch_size=float(N))
    step = alone.make_step(loss, optax.sgd(0.1 * N / (N + 40)), self_check=False)
    expected = step.init(PARAMS, jax.random.key(5))
    for _ in range(2):
        expected, _ = step(expected, DATA)
    np.testing.assert_allclose(state.params["model"]["w"], expected.params["w"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.opt_state.sums, 2.0 * planted.members, atol=1e-3)
    assert audit.attack_auroc(planted.scores(state), planted.members) == 1


@pytest.mark.slow
def test_an_example_that_is_not_finite_takes_its_share_of_canaries_with_it_alone() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, 3)).astype(np.float32)
    targets = inputs.sum(axis=1)
    inputs[0, 0] = np.nan
    run = jaxdp.DPSGD(num_examples=240, expected_batch_size=120, steps=10, clip_norm=1.0, noise_multiplier=0.5)
    loss = lambda params, example: jnp.square(params @ example[0] - example[1])
    planted = audit.gradient_canaries(
        run, loss, optax.sgd(0.01), jnp.zeros(3), (inputs, targets), key=jax.random.key(7)
    )
    step = run.make_step(planted.loss_fn, planted.optimizer)
    state, _ = step.many(step.init(planted.params, jax.random.key(1)), planted.data, num_steps=10)
    assert audit.attack_auroc(planted.scores(state), planted.members) > 0.9


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="num_examples=500 leaves no canaries beside 500 examples"):
        problem(dataclasses.replace(RUN, num_examples=N))
    with pytest.raises(jaxdp.UsageError, match="leaves of several lengths"):
        audit.gradient_canaries(RUN, loss, optax.sgd(0.1), PARAMS, (DATA[0], DATA[1][:-1]), key=jax.random.key(0))
    with pytest.raises(jaxdp.UsageError, match="claims nothing"):
        problem(dataclasses.replace(RUN, noise_multiplier=0.0))
    with pytest.raises(jaxdp.UsageError, match="has no sums of 1500 canaries"):
        problem().scores(None)


@pytest.mark.slow
def test_a_recorded_run_sees_canaries_clipped_like_any_example() -> None:
    run = dataclasses.replace(RUN, num_examples=N + 60, steps=40, noise_multiplier=0.5)
    planted = problem(run)
    with_one_weight = lambda params, example: planted.loss_fn(params, example)
    assert violations(run, with_one_weight, planted.params, planted.data, steps=20) == set()


@pytest.mark.slow
def test_no_bound_of_twenty_honest_runs_is_above_the_claim() -> None:
    reports = [each for seed in range(20) for each in found(seed=seed)]
    assert not any(each.contradicts for each in reports)
    assert max(each.epsilon_f_dp or 0 for each in reports) < RUN.epsilon(delta=DELTA, accountant="pld")


def noise_ten_times_too_small(patch: pytest.MonkeyPatch) -> jaxdp.DPSGD:
    scale = _privatize.noise_scale
    patch.setattr(_privatize, "noise_scale", lambda sigma, sensitivity: scale(sigma, sensitivity) / 10)
    return RUN


def clipping_left_out(patch: pytest.MonkeyPatch) -> jaxdp.DPSGD:
    patch.setattr(Flat, "factors", lambda self, upper, clip_norm: jnp.ones_like(upper))
    return RUN


def one_key_for_all_steps(patch: pytest.MonkeyPatch) -> jaxdp.DPSGD:
    update = Gaussian.update
    patch.setattr(Gaussian, "update", lambda self, state, *given: (update(self, state, *given)[0], state))
    return RUN


def sampling_rate_eight_times_what_is_accounted(patch: pytest.MonkeyPatch) -> jaxdp.DPSGD:
    del patch
    return dataclasses.replace(RUN, expected_batch_size=8 * RUN.expected_batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [noise_ten_times_too_small, clipping_left_out, one_key_for_all_steps, sampling_rate_eight_times_what_is_accounted],
    ids=lambda fault: fault.__name__,
)
def test_a_planted_fault_is_contradicted(fault: Callable[[pytest.MonkeyPatch], jaxdp.DPSGD]) -> None:
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch, jax.debug_key_reuse(False):
        reports = found(fault(patch))
    jax.clear_caches()
    print([(each.epsilon, each.claimed_epsilon) for each in reports])
    assert any(each.contradicts for each in reports)


def test_data_on_a_mesh_have_canaries_beside_them() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    on_mesh = jax.device_put(DATA, jax.NamedSharding(mesh, jax.P("data")))
    planted = audit.gradient_canaries(RUN, loss, optax.sgd(0.1), PARAMS, on_mesh, key=jax.random.key(0))
    expected = audit.gradient_canaries(RUN, loss, optax.sgd(0.1), PARAMS, DATA, key=jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, planted.data, expected.data)


def test_a_run_of_users_is_refused() -> None:
    of_users = dataclasses.replace(RUN, unit="user", records_per_user=2)
    with pytest.raises(jaxdp.UsageError, match=r'unit="user" is of rows that hold several records: .* unit="example"'):
        problem(of_users)
