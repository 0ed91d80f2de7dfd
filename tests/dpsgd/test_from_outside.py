"""A sampling and a noise of a user's own, defined here, go everywhere that jaxdp's own go."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from recorded import violations

import jaxdp
from jaxdp.noise import Gaussian
from jaxdp.runs import Checkpoint, CheckpointFolder
from jaxdp.sampling import SampledRun, gaussian_event_of

SIZE = 40


@dataclass(frozen=True)
class Sparser:
    """Poisson sampling at a part of the run's rate."""

    parts: int = 2

    name: ClassVar[str] = "sparser"
    label: ClassVar[str] = "sparser Poisson sampling"
    title: ClassVar[str] = "sparser Poisson"
    of_batch_size: ClassVar[str] = "expected of all parts"
    adjacencies: ClassVar[tuple[str, ...]] = ("add_or_remove_one", "replace_special")
    amplified: ClassVar[bool] = True

    def check(self, run: SampledRun) -> None:
        if run.expected_batch_size < self.parts:
            raise jaxdp.UsageError(
                f"expected_batch_size={run.expected_batch_size} has no {self.parts} parts: give more"
            )

    def sampler(self, run: SampledRun, key: Any, *, capacity: int) -> jaxdp.PoissonSampler:
        rate = run.sampling_rate / self.parts
        every = {"num_examples": run.num_examples, "steps": run.steps, "capacity": capacity}
        return jaxdp.PoissonSampler(key=key, sampling_rate=rate, **every)

    def event(self, run: SampledRun, steps: int) -> dp.DpEvent:
        one = dp.PoissonSampledDpEvent(run.sampling_rate / self.parts, gaussian_event_of(run, self))
        return dp.SelfComposedDpEvent(one, steps)

    def in_words(self, run: SampledRun) -> str:
        return f"Each {run.unit} was drawn at one part in {self.parts} of the usual rate"

    def steps_per_epoch(self, num_examples: int, batch_size: float) -> int:
        return max(1, round(self.parts * num_examples / batch_size))

    def paid_at(self, run: SampledRun) -> Sequence[int] | None:
        del run
        return None


@dataclass(frozen=True)
class Louder:
    """Gaussian noise of several times the standard deviation that was asked for, and a mean of all of it as its state."""

    times: float = 2.0

    def init(self, key: Any, params: Any) -> Any:
        return {"drawn": Gaussian().init(key, params), "mean": jax.tree.map(jnp.zeros_like, params)}

    def update(self, state: Any, sums: Any, scale: Any) -> Any:
        noisy, drawn = Gaussian().update(state["drawn"], sums, scale * self.times)
        mean = jax.tree.map(lambda mean, a, b: (mean + a - b) / 2, state["mean"], noisy, sums)
        return noisy, {"drawn": drawn, "mean": mean}

    def event(self, noise_multiplier: float) -> dp.DpEvent:
        return Gaussian().event(noise_multiplier * self.times)

    def in_words(self, noise_multiplier: float) -> str:
        return f"louder noise of {noise_multiplier * self.times:g} times that norm"

    def label(self, noise_multiplier: float) -> str:
        return f"louder noise of {noise_multiplier * self.times:g}"


@dataclass(frozen=True)
class LaplaceOnly(Louder):
    """A noise that no sampling here knows."""

    def event(self, noise_multiplier: float) -> dp.DpEvent:
        return dp.LaplaceDpEvent(noise_multiplier)


def a_run(**changes: Any) -> jaxdp.DPSGD:
    usual = {"num_examples": SIZE, "expected_batch_size": 20, "steps": 60, "clip_norm": 0.7, "noise_multiplier": 0.8}
    return jaxdp.DPSGD(**{**usual, "sampling": Sparser(), "noise": Louder(1.5), **changes})


def problem() -> tuple[Any, Any, Any]:
    loss = lambda params, x: jnp.sum(params["a"] @ x) + jnp.sum(params["b"] * x[0])
    params = {"a": jnp.ones((12, 12)), "b": jnp.zeros(120)}
    return loss, params, jax.random.normal(jax.random.key(3), (SIZE, 12))


@dataclass(frozen=True)
class OfGaussian(Louder):
    """The same noise, its state only that of the Gaussian in it, whose key the recorder exchanges."""

    def init(self, key: Any, params: Any) -> Any:
        return Gaussian().init(key, params)

    def update(self, state: Any, sums: Any, scale: Any) -> Any:
        return Gaussian().update(state, sums, scale * self.times)


@pytest.mark.slow
def test_what_a_run_of_them_releases_is_what_was_accounted() -> None:
    loss, params, records = problem()
    assert violations(a_run(noise=OfGaussian(1.5)), loss, params, records, steps=60) == set()
    assert "noise" in violations(a_run(noise=Untrue(1.5)), loss, params, records, steps=12)


@dataclass(frozen=True)
class Untrue(OfGaussian):
    """Accounted as three times what is drawn."""

    def event(self, noise_multiplier: float) -> dp.DpEvent:
        return Gaussian().event(3 * noise_multiplier * self.times)


@pytest.mark.slow
def test_ledger_and_statement_say_what_they_are() -> None:
    run = a_run()
    one = dp.PoissonSampledDpEvent(0.25, dp.GaussianDpEvent(0.8 * 1.5))
    assert run.event == dp.SelfComposedDpEvent(one, 60)
    assert run.epsilon(delta=1e-3) == jaxdp.accounting.event_epsilon(run.event, delta=1e-3).epsilon
    assert run.ledger(3).entries[0].label == "3 steps of DP-SGD (sparser Poisson sampling, louder noise of 1.2)"
    text = run.statement(delta=1e-3)
    assert "60 steps of DP-SGD. Each example was drawn at one part in 2 of the usual rate. The gradient" in text
    assert "; louder noise of 1.2 times that norm was added to the sum, which was then divided by 20" in text


def test_a_description_brings_them_back_where_their_classes_are_known_and_nowhere_else() -> None:
    run = a_run()
    written = json.dumps(run.to_dict())
    assert jaxdp.DPSGD.from_dict(json.loads(written), known=(Sparser, Louder)) == run
    assert json.loads(written)["sampling"] == {"type": "Sparser", "parts": 2}
    with pytest.raises(
        jaxdp.UsageError, match=r"noise is of type 'Louder', which is not known here.*known=\(Louder,\)"
    ):
        jaxdp.DPSGD.from_dict(json.loads(written), known=(Sparser,))


@pytest.mark.slow
def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    loss, params, records = problem()
    step = a_run().make_step(loss, optax.adam(0.1), self_check=False)
    whole, _ = step.many(step.init(params, jax.random.key(1)), records, num_steps=6)
    half, _ = step.many(step.init(params, jax.random.key(1)), records, num_steps=3)
    with CheckpointFolder(tmp_path / "checkpoints", "a mark") as folder:
        folder.save(Checkpoint(half, {}))
        loaded, _ = folder.load(Checkpoint(step.init(params, jax.random.key(2))._replace(nonce=half.nonce), {}))
    assert loaded is not None
    resumed, _ = step.many(loaded.state, records, num_steps=3)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(resumed.params), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(*(jax.tree.leaves(each.noise_state["mean"]) for each in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_go_together_is_refused_naming_both() -> None:
    for sampling in (Sparser(), "poisson", jaxdp.sampling.TruncatedPoisson(9), jaxdp.sampling.Shuffled()):
        run = a_run(sampling=sampling, noise=LaplaceOnly(), adjacency="replace_special")
        with pytest.raises(
            jaxdp.UsageError, match=rf"sampling='{run.sampling.name}' with noise=LaplaceOnly\(times=2\.0\)"
        ):
            _ = run.event
    quantile = jaxdp.clipping.Quantile(count_noise=5.0)
    with pytest.raises(jaxdp.UsageError, match=r"rule=Quantile.* with noise=Louder\(times=1\.5\): the rule's count"):
        a_run(rule=quantile).epsilon(delta=1e-3)
    assert a_run(rule=quantile, noise=Louder(1.0)).event == a_run(noise=Gaussian()).event
    with pytest.raises(jaxdp.UsageError, match="has no 30 parts"):
        a_run(sampling=Sparser(30))
    with pytest.raises(jaxdp.UsageError, match="sampling='sparser' can't be accounted under adjacency='replace_one'"):
        a_run(adjacency="replace_one")
    for wrong in ({"sampling": Sparser([2])}, {"noise": Louder([2.0])}):  # pyright: ignore[reportArgumentType]
        with pytest.raises(jaxdp.UsageError, match="can't be hashed.* tuples in the place of lists"):
            a_run(**wrong)
    for wrong in ({"sampling": Sparser}, {"sampling": object()}, {"noise": Louder}, {"noise": None}):
        with pytest.raises(jaxdp.UsageError, match="give .* a frozen dataclass"):
            a_run(**wrong)


@pytest.mark.slow
def test_privatize_takes_a_noise_too() -> None:
    how = {"noise_multiplier": 1.0, "expected_batch_size": 4, "key": jax.random.key(5)}
    sums = {"w": jnp.zeros(50)}
    plain, louder = jaxdp.privatize(**how), jaxdp.privatize(**how, noise=Louder(3.0))
    update: Any = lambda tx: tx.update(sums, tx.init(sums), sensitivity=0.5)
    (a, _), (b, state) = map(update, (plain, louder))
    np.testing.assert_allclose(3 * a["w"], b["w"], rtol=1e-6)
    np.testing.assert_allclose(state["mean"]["w"] * 2 / 4, b["w"], rtol=1e-6)
