"""A state that orbax has kept has the run and the ledger of the state that it is read into: its own, or it is refused."""

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
from jaxdp.dpsgd._state import as_accounted

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
