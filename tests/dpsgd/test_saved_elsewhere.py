"""A state that orbax has kept has the run and the ledger of the state that it is read into: its own, or it is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from of_several import together
from orbax import checkpoint as ocp

import jaxdp
from jaxdp.accounting import Ledger
from jaxdp.clipping import PerGroup, Quantile
from jaxdp.dpsgd._state import as_accounted
from jaxdp.noise import Gaussian

RUN = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=1.0)
QUIETER = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=2.0)
DATA = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)), jnp.float32)


def step_of(run: jaxdp.DPSGD) -> Any:
    return run.make_step(lambda w, x: jnp.sum((x - w) ** 2), optax.adam(0.1), self_check=False)


def init(run: jaxdp.DPSGD, **how: Any) -> Any:
    return step_of(run).init(jnp.zeros(3), jax.random.key(5), **how)


def kept(state: Any, folder: Path, like: Any) -> Any:
    """The state as orbax gives it back, read into another."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "state", state)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder / "state", like)


@pytest.mark.slow
def test_steps_of_another_run_are_not_accounted_as_this_ones(tmp_path: Path) -> None:
    state, _ = step_of(RUN).many(init(RUN), DATA, num_steps=4)
    true = state.ledger.epsilon(delta=1e-3)
    read = kept(state, tmp_path, init(QUIETER))
    for use in (
        lambda: step_of(QUIETER)(read, DATA),
        lambda: step_of(QUIETER).continue_from(read, jax.random.key(6)),
        lambda: read.ledger,
    ):
        with pytest.raises(
            jaxdp.UsageError, match=r"saved by a run described otherwise .* noise_multiplier=2.0.*continue_from"
        ):
            use()
    again = kept(state, tmp_path / "again", init(RUN))
    assert again.ledger.epsilon(delta=1e-3) == true
    step_of(RUN)(again, DATA)


@pytest.mark.slow
def test_what_was_spent_before_is_not_forgotten(tmp_path: Path) -> None:
    state, _ = step_of(RUN).many(init(RUN), DATA, num_steps=4)
    followed = step_of(QUIETER).continue_from(state, jax.random.key(6))
    followed, _ = step_of(QUIETER)(followed, DATA)
    forgetful = kept(followed, tmp_path, init(QUIETER))
    for use in (lambda: step_of(QUIETER)(forgetful, DATA), lambda: forgetful.ledger):
        with pytest.raises(jaxdp.UsageError, match=r"isn't the ledger .*keep state.spent_before.to_dict\(\)"):
            use()
    ledger = Ledger.from_dict(followed.spent_before.to_dict())
    read = kept(followed, tmp_path / "again", init(QUIETER, spent_before=ledger))
    assert read.ledger == followed.ledger
    step_of(QUIETER)(read, DATA)


@pytest.mark.usefixtures("unchecked")
def test_a_run_begins_after_what_was_spent() -> None:
    ledger = RUN.ledger(nonce="0" * 32)
    state, _ = step_of(QUIETER)(init(QUIETER, spent_before=ledger), DATA)
    assert state.ledger.entries[0] == ledger.entries[0]
    assert len(state.ledger.entries) == 2
    with pytest.raises(jaxdp.UsageError, match="give a jaxdp.accounting.Ledger"):
        init(QUIETER, spent_before=1.0)


def test_a_state_that_does_not_say_what_it_is_accounted_as_is_refused() -> None:
    with pytest.raises(jaxdp.UsageError, match="doesn't say what it is accounted as"):
        step_of(RUN)(init(RUN)._replace(accounted=None), DATA)
    with pytest.raises(jaxdp.UsageError, match="doesn't say what it is accounted as"):
        step_of(RUN)(init(RUN)._replace(accounted=jnp.zeros(3, jnp.uint32)), DATA)


@pytest.mark.slow
def test_numbers_that_are_equal_are_the_same_run_and_so_is_the_same_run_in_another_process() -> None:
    labels = lambda params: params
    run = lambda clip_norm: jaxdp.DPSGD(
        num_examples=40,
        expected_batch_size=8,
        steps=6,
        clip_norm=clip_norm,
        noise_multiplier=1.0,
        rule=jaxdp.clipping.PerGroup(labels=labels),
    )
    ledger = RUN.ledger()
    here = as_accounted(run(1), ledger)
    np.testing.assert_array_equal(here, as_accounted(run(1.0), ledger))
    assert not (here == as_accounted(run(1.5), ledger)).all(axis=1)[0]
    code = (
        "import jaxdp; from jaxdp.dpsgd._state import as_accounted\n"
        "run = jaxdp.DPSGD(num_examples=40, expected_batch_size=8, steps=6, clip_norm=1.0, noise_multiplier=1.0)\n"
        "print(as_accounted(run, run.ledger()).tolist())"
    )
    (end,) = together([["-c", code]])
    assert end.out.splitlines()[-1:] == [str(as_accounted(RUN, ledger).tolist())], end.err


@pytest.mark.slow
def test_steps_that_were_made_are_not_made_again_by_a_checkpoint_of_arrays_alone() -> None:
    state, _ = step_of(RUN).many(init(RUN), DATA, num_steps=6)
    arrays = [leaf if isinstance(leaf, jax.Array) else None for leaf in jax.tree.leaves(state)]
    like = init(RUN)  # where what is no array comes from: the number of steps
    leaves = [old if kept is None else kept for kept, old in zip(arrays, jax.tree.leaves(like), strict=True)]
    read = jax.tree.structure(like).unflatten(leaves)
    for use in (lambda: step_of(RUN)(read, DATA), lambda: read.ledger):
        with pytest.raises(jaxdp.UsageError, match=r"state.step=0, and the state's noise was drawn for 6 steps"):
            use()
    assert read._replace(step=6).ledger == state.ledger


@pytest.mark.slow
def test_steps_that_were_made_are_not_made_again_by_a_checkpoint_of_numpys_arrays() -> None:
    """As numpy.load and pickle give them back: the ledger would have forgotten six steps."""
    state, _ = step_of(RUN).many(init(RUN), DATA, num_steps=6)
    is_plain = lambda leaf: isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    read = jax.tree.map(lambda leaf: np.asarray(leaf) if is_plain(leaf) else leaf, state)._replace(step=0)
    for use in (
        lambda: step_of(RUN)(read, DATA),
        lambda: step_of(QUIETER).continue_from(read, jax.random.key(6)),
        lambda: read.ledger,
    ):
        with pytest.raises(jaxdp.UsageError, match=r"state.step=0, and the state's noise was drawn for 6 steps"):
            use()
    again = read._replace(step=4, noise_state=read.noise_state._replace(step=np.int32(0)))
    with pytest.raises(jaxdp.UsageError, match="state.step=4, and its noise_state has drawn for 0 steps"):
        step_of(RUN)(again, DATA)
    assert read._replace(step=6).ledger == state.ledger


@pytest.mark.slow
def test_a_run_after_another_does_not_begin_with_its_key() -> None:
    state, _ = step_of(RUN).many(init(RUN), DATA, num_steps=2)
    with pytest.raises(jaxdp.UsageError, match="two entries of one nonce"):
        step_of(RUN)(init(RUN, spent_before=state.ledger), DATA)
    step_of(RUN)(step_of(RUN).init(jnp.zeros(3), jax.random.key(6), spent_before=state.ledger), DATA)


@pytest.mark.slow
def test_a_step_refuses_its_own_state_with_fewer_steps() -> None:
    step = step_of(RUN)
    state, _ = step.many(init(RUN), DATA, num_steps=3)
    with pytest.raises(jaxdp.UsageError, match="drawn for 3 steps"):
        step(state._replace(step=1), DATA)
    step(state, DATA)


@pytest.mark.slow
def test_a_state_put_together_of_parameters_and_a_step_would_draw_the_same_noise_again() -> None:
    step = step_of(RUN)
    state, _ = step.many(init(RUN), DATA, num_steps=3)
    put_together = init(RUN)._replace(params=state.params, opt_state=state.opt_state, step=3)
    again = step.init(jnp.zeros(3), jax.random.key(5))._replace(step=3)  # in the same process
    adaptive = dataclasses.replace(RUN, rule=of_quantile(0.5, 0.2))
    of_rule = (
        step_of(adaptive).many(init(adaptive), DATA, num_steps=3)[0]._replace(rule_state=init(adaptive).rule_state)
    )
    for begun, wrong, name in (
        (step_of(RUN), put_together, "noise_state"),
        (step, again, "noise_state"),
        (step_of(adaptive), of_rule, "rule_state"),
    ):
        with pytest.raises(jaxdp.UsageError, match=f"state.step=3, and its {name} has drawn for 0 steps"):
            begun(wrong, DATA)
    step_of(RUN)(state, DATA)


@pytest.mark.slow
def test_a_state_put_together_of_what_was_there_before_training_would_draw_the_same_noise_again() -> None:
    for run in (RUN, dataclasses.replace(RUN, rule=of_quantile(0.5, 0.2))):
        step = step_of(run)
        template, state = (step.init(jnp.zeros(3), jax.random.key(5)) for _ in range(2))
        kept = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), (state.rule_state, state.noise_state))
        state, _ = step.many(state, DATA, num_steps=3)
        wrong = [template._replace(params=state.params, step=3), state._replace(noise_state=kept[1])]
        if run.rule != RUN.rule:
            wrong.append(state._replace(rule_state=kept[0]))
        for each in wrong:
            with pytest.raises(
                jaxdp.UsageError, match="state.step=3, and its (noise|rule)_state has drawn for 0 steps"
            ):
                step(each, DATA)
        step(state, DATA)


of_quantile = lambda quantile, rate: Quantile(quantile=quantile, learning_rate=rate, count_noise=3.0)


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        (of_quantile(0.5, 0.2), of_quantile(np.float64(0.5), 0.2), of_quantile(0.6, 0.2)),
        (of_quantile(0.5, 1), of_quantile(0.5, 1.0), of_quantile(0.5, 0.5)),
        (
            PerGroup(weights={"a": 1, "b": 2}),
            PerGroup(weights={"b": 2.0, "a": 1.0}),
            PerGroup(weights={"a": 1, "b": 3}),
        ),
    ],
)
def test_numbers_within_a_rule_are_compared_as_numbers(one: Any, equal: Any, other: Any) -> None:
    words = [as_accounted(dataclasses.replace(RUN, rule=rule), Ledger())[0].tolist() for rule in (one, equal, other)]
    assert words[0] == words[1] != words[2]


@dataclasses.dataclass(frozen=True)
class Times(Gaussian):
    """Gaussian noise by a factor that its repr doesn't tell."""

    factor: float = dataclasses.field(default=1.0, repr=False)

    def event(self, noise_multiplier: Any) -> Any:
        return Gaussian().event(float(noise_multiplier) * self.factor)


def test_runs_that_cost_otherwise_are_told_apart_whatever_their_parts_show() -> None:
    weak, strong = (dataclasses.replace(RUN, noise=Times(factor=factor)) for factor in (0.5, 2.0))
    assert as_accounted(weak, Ledger())[0].tolist() != as_accounted(strong, Ledger())[0].tolist()


def test_a_state_of_another_optimizer_is_refused_by_name() -> None:
    schedule = RUN.make_step(lambda w, x: jnp.sum((x - w) ** 2), optax.sgd(optax.cosine_decay_schedule(0.5, 6)))
    with pytest.raises(jaxdp.UsageError, match=r"the state is of another optimizer: .*from the start"):
        schedule(init(RUN), DATA)
