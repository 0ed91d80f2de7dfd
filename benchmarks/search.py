"""What it costs to choose hyper-parameters on the private data and to pay for it: MNIST at epsilon = 1, search included.

    python benchmarks/search.py

A number of runs is drawn, each run draws its learning rate and its clip norm, and the best is kept (`RandomSearch`): the one that
is right on most training examples, by a count under Gaussian noise, which is a part of each run's event. The noise multiplier is
the least with which all of that together costs epsilon = 1 at delta = 1e-5, by RDP, the only accountant of such a choice. Batch
size, epochs and features are those of `jaxdp train`, and what choosing them cost isn't covered. Seeds make it repeatable; a
search that is to protect somebody has none. Searches that were finished are kept; writes benchmarks/results/DEVICE/search.json,
or search-part.json for another budget or other runs than lie there.
"""

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import record
import tyro
from dp_accounting import ComposedDpEvent
from rich.console import Console

import jaxdp
from jaxdp import accounting, models

_COUNT_NOISE = 50.0  # of a count to which one example adds one
_RATES, _CLIP_NORMS = (0.1, 4.0), (0.03, 1.0)
_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an honest search costs."""

    runs: float = 5.0
    """how many on average; their number is drawn, from a Poisson distribution"""
    epsilon: float = 1.0
    """the budget of the whole search"""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """of the searches"""
    epochs: int = 40
    """passes of each run"""
    batch_size: int = 4096
    """the expected batch size of each run"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Search, print and write."""
    data, search = jaxdp.data.load(), accounting.RandomSearch(mean=options.runs)
    one_run = _described(options, len(data.train_labels))
    budget = accounting.Budget(epsilon=options.epsilon, delta=_DELTA)
    sigma = accounting.least_noise(budget, lambda sigma: search.event(_event(one_run, sigma)))
    one_run = replace(one_run, noise_multiplier=sigma)
    spent = accounting.event_epsilon(search.event(_event(one_run, sigma)), delta=_DELTA).epsilon
    alone = one_run.epsilon(delta=_DELTA)
    console = Console()
    console.print(
        f"noise multiplier {sigma:.4f}: epsilon {spent:.4f} for the search, {alone:.4f} for one run alone (RDP)"
    )
    setting = {"runs": options.runs, "epsilon": spent, "epsilon_of_one_run": alone, "run": one_run.to_dict()}
    setting = json.loads(json.dumps(setting))  # as a file has it
    usual = replace(Options(), seeds=options.seeds, results=options.results)
    is_part = options != usual
    name = record.name_for(options.results, "search", is_part=is_part)
    path = options.results / record.device_name() / f"{name}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    found = before["searches"] if before.get("setting") == setting else []
    if left := [seed for seed in options.seeds if seed not in (each["seed"] for each in found)]:
        model = models.classifier(
            "scattering", jaxdp.data.Classes(10), input_shape=data.train_images.shape[1:], input_dtype=np.uint8
        )
        with console.status("features"):
            train, test = (
                jax.block_until_ready(model.prepare(images)) for images in (data.train_images, data.test_images)
            )
        for seed in left:
            made = _searched(seed, search, one_run, model, (train, data.train_labels), console)
            best = max(made, key=lambda trial: trial["score"], default=None)
            accuracy = None
            if best is not None:
                _, accuracy = model.evaluate(model.probabilities(best.pop("params"), test), data.test_labels)
            trials = [{name: value for name, value in trial.items() if name != "params"} for trial in made]
            found.append({"seed": seed, "test_accuracy": accuracy, "trials": trials})
            console.print(f"search {seed}: {len(made)} runs, the best with {best}: {accuracy}")
            content = {"setting": setting, "searches": found}
            record.write_part_or_whole(options.results, "search", content, is_part=is_part)
    accuracies = [each["test_accuracy"] for each in found if each["test_accuracy"] is not None]
    if accuracies:
        console.print(
            f"test accuracy {np.mean(accuracies):.2%} ({min(accuracies):.2%} to {max(accuracies):.2%}) in {len(accuracies)} of "
            f"{len(found)} searches; the others drew no run"
        )


def _described(options: Options, num_examples: int) -> jaxdp.DPSGD:
    """One run, but for its noise and what it draws."""
    steps = options.epochs * round(num_examples / options.batch_size)
    return jaxdp.DPSGD(
        num_examples=num_examples,
        expected_batch_size=options.batch_size,
        steps=steps,
        clip_norm=1.0,
        noise_multiplier=1.0,
    )


def _event(run: jaxdp.DPSGD, sigma: float) -> Any:
    """A run and its score."""
    score = accounting.gaussian_event(noise_multiplier=_COUNT_NOISE)
    return ComposedDpEvent([replace(run, noise_multiplier=sigma).event, score])


def _searched(
    seed: int,
    search: accounting.RandomSearch,
    one_run: jaxdp.DPSGD,
    model: models.Classifier,
    train: tuple[Any, np.ndarray],
    console: Console,
) -> list[dict[str, Any]]:
    """The trials of a search: what was drawn, the score, the parameters."""
    rng, made = np.random.default_rng(seed), []
    arrays = jax.device_put(train)
    for number in range(search.number_of_runs(rng)):
        draw = lambda ends: float(np.exp(rng.uniform(*np.log(ends))))
        rate, run = draw(_RATES), replace(one_run, clip_norm=draw(_CLIP_NORMS))
        step = run.make_step(model.loss, optax.sgd(rate, momentum=0.9), has_aux=True)
        key = partial(jax.random.fold_in, jax.random.key(int(rng.integers(2**31))))
        state = step.init(model.init(key(0)), key(1))
        state, _ = step.many(state, arrays, num_steps=run.steps)
        right = model.probabilities(state.params, train[0]).argmax(axis=1) == train[1]
        score = float(right.sum() + rng.normal(0, _COUNT_NOISE))
        made.append({"lr": rate, "clip_norm": run.clip_norm, "score": score, "params": state.params})
        console.print(
            f"search {seed}, run {number}: learning rate {rate:.3f}, clip norm {run.clip_norm:.3f}, score {score:.0f}"
        )
    return made


if __name__ == "__main__":
    try:
        main(tyro.cli(Options))
    except jaxdp.UsageError as error:
        sys.exit(str(error))
