"""The tutorial's forty-nine offices: teachers of 1,200 digits each, a student, and how much noise the ensemble can bear.

    python benchmarks/offices.py
    python benchmarks/offices.py --no-times     # all but the ways of training, whose figures stay as they are

Trains the teachers by `jaxdp.pate.train_teachers` as it comes, with a `vmap` over all of them, one after another in JAX, and as
the tutorial does: a loop over teachers in PyTorch, a data loader for each, in the environment of Opacus (peers/environments.py)
if that can be made. Medians of repeats, alternating, the first of each apart, since it compiles. Then for every noise the
teachers label 9,000 test images, in 15 trials; a student learns the labels of each of the first three, and is measured on the
other 1,000. A hundred teachers of 600 digits each stand beside them. Writes benchmarks/results/DEVICE/offices.json and
offices.png.
"""

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import record
import tyro
from peers.environments import UnavailableError, python_of
from pictures import new_figure, panels, save
from rich.console import Console
from rich.table import Table

import jaxdp
from jaxdp import pate
from jaxdp.models import distorted
from jaxdp.pate._analysis import event_of

TEACHERS, SHARD, BATCH_SIZE = 49, 1200, 32
MANY = 100  # the tutorial's other layout, of 600 digits each
PUBLIC = 9000
DELTA = 1e-5
NOISES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)  # gamma


@dataclass(frozen=True, kw_only=True)
class Options:
    """The tutorial's forty-nine offices."""

    epochs: int = 15
    """passes of each teacher over its shard"""
    repeats: int = 2
    """measurements of each way of training"""
    student_steps: int = 1000
    """steps of a student, for each noise"""
    trials: int = 15
    """draws of each noise"""
    students: int = 3
    """how many of these draws a student learns"""
    times: bool = True
    """measure each way of training; without, the times that were measured before stay, and say of which commit"""
    torch: bool = True
    """measure the tutorial's PyTorch loop, too"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


class Classifier(nn.Module):
    """784 - 256 - 128 - 64 - 10, as in the tutorial."""

    @nn.compact
    def __call__(self, image: Any) -> Any:
        x = image.astype(jnp.float32).reshape(-1)
        x = x / 127.5 - 1 if image.dtype == jnp.uint8 else x
        for width in (256, 128, 64):
            x = jax.nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


def logits(params: Any, image: Any) -> Any:
    """Of one image."""
    return Classifier().apply(params, image)


def init(key: Any) -> Any:
    """Parameters."""
    return Classifier().init(key, jnp.zeros((28, 28, 1), jnp.uint8))


def loss(params: Any, example: Any) -> Any:
    """Cross-entropy of one example."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, example[0]), example[1])


def main(options: Options) -> None:
    """Measure, print and write."""
    data, console = jaxdp.data.load(), Console()
    records = data.train_images[: TEACHERS * SHARD], data.train_labels[: TEACHERS * SHARD]
    train = lambda at_once: trained(records, TEACHERS, options.epochs, at_once)
    times = measured_times(options, train, data, records, console) if options.times else earlier_times(options.results)
    few, many = train(None), trained((data.train_images, data.train_labels), MANY, options.epochs, None)
    content = times | students(few, many, data, options)
    if times["rows"]:
        table = Table(title=f"49 teachers of 1,200 digits, on {record.device_name()}")
        for heading in ("way", "first (s)", "median (s)", "against the first row"):
            table.add_column(heading)
        for row in times["rows"]:
            ratio = row["median_seconds"] / times["rows"][0]["median_seconds"]
            table.add_row(row["way"], f"{row['first_seconds']:.2f}", f"{row['median_seconds']:.2f}", f"{ratio:.2f}")
        console.print(table)
    for number, of_each in ((TEACHERS, content["teacher_accuracy"]), (MANY, content["teacher_accuracy_of_many"])):
        said = f"{min(of_each):.2%}, {statistics.median(of_each):.2%}, {max(of_each):.2%}"
        console.print(f"accuracy of {number} teachers, lowest, median, highest: {said}", highlight=False)
    for line in (*content["by_noise"], content["without_noise"]):
        names = ("labels_by_trial", "labels_of_many", "student_by_trial")
        ranges = (f"{min(line[name]):.2%} to {max(line[name]):.2%}" for name in names)
        said = "labels {}, of a hundred teachers {}, student {}".format(*ranges)
        noise = "no noise, ε = ∞" if line["epsilon"] is None else f"γ = {line['gamma']:g}, ε = {line['epsilon']:.4g}"
        console.print(f"{noise}: {said}", highlight=False, soft_wrap=True)
    folder = record.write(options.results, "offices", content)
    draw(json.loads((folder / "offices.json").read_text()), folder / "offices.png")
    console.print(f"written to {folder}")


def measured_times(
    options: Options,
    train: Callable[[int | None], Any],
    data: jaxdp.data.Dataset,
    records: tuple[np.ndarray, np.ndarray],
    console: Console,
) -> dict[str, Any]:
    """Seconds of each way of training."""
    ways: dict[str, Callable[[], Any]] = {
        "as it comes": lambda: train(None),
        "vmap over all": lambda: train(TEACHERS),
        "one after another": lambda: one_after_another(records, options.epochs),
    }
    if options.torch:
        try:
            python = python_of("opacus")
            ways["the tutorial's PyTorch loop"] = lambda: by_torch(python, options.epochs, data, records)
        except UnavailableError as error:
            console.print(f"without the tutorial's PyTorch loop: {error}", markup=False)
    return {"rows": measured(ways, options.repeats)}


def earlier_times(results: Path) -> dict[str, Any]:
    """The times that are there, with what they were taken on: `record.write` says that of the other figures."""
    path = results / record.device_name() / "offices.json"
    if not path.exists():
        return {"rows": []}
    found = json.loads(path.read_text())
    taken_on = {name: found[name] for name in ("machine", "python", "versions", "commit")}
    return {"rows": found["rows"], "rows_taken_on": found.get("rows_taken_on", taken_on)}


def trained(records: tuple[np.ndarray, np.ndarray], teachers: int, epochs: int, at_once: int | None) -> pate.Teachers:
    """Teachers of the tutorial's network, as `jaxdp.pate` trains them."""
    return pate.train_teachers(
        loss,
        init,
        records,
        num_teachers=teachers,
        optimizer=optax.adam(1e-3),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        key=jax.random.key(0),
        at_once=at_once,
    )


def one_after_another(records: tuple[np.ndarray, np.ndarray], epochs: int) -> None:
    """Teacher by teacher: a compiled step in a Python loop."""
    optimizer = optax.adam(1e-3)
    rng = np.random.default_rng(0)

    @jax.jit
    def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
        mean_loss = lambda params: jax.vmap(loss, (None, 0))(params, (images, labels)).mean()
        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for teacher in range(TEACHERS):
        params = init(jax.random.key(teacher))
        state = optimizer.init(params)
        for _ in range(epochs):
            order = teacher * SHARD + rng.permutation(SHARD)
            for start in range(0, SHARD - BATCH_SIZE + 1, BATCH_SIZE):
                rows = order[start : start + BATCH_SIZE]
                params, state = step(params, state, records[0][rows], records[1][rows])
        jax.block_until_ready(params)


def by_torch(
    python: Path, epochs: int, data: jaxdp.data.Dataset, records: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
    """The tutorial's loop, in a process of its own; its own clock counts the training alone."""
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "records.npz"
        np.savez(
            path,
            images=records[0][..., 0],
            labels=records[1],
            test_images=data.test_images[..., 0],
            test_labels=data.test_labels,
        )
        script = Path(__file__).parent / "peers" / "pate_torch.py"
        command = [python, script, path, TEACHERS, epochs, BATCH_SIZE]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{python} can't run {script}:\n{done.stderr}")
    return json.loads(done.stdout)


def measured(ways: dict[str, Callable[[], Any]], repeats: int) -> list[dict[str, Any]]:
    """Seconds of each way, the ways alternating."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    told: dict[str, Any] = {}
    for _ in range(repeats + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            out = run()
            told[way] = out if isinstance(out, dict) else {}
            seconds[way].append(told[way].get("seconds", time.perf_counter() - start))
    return [
        {"way": way, "first_seconds": each[0], "median_seconds": statistics.median(each[1:]), "seconds": each[1:]}
        | told[way]
        for way, each in seconds.items()
    ]


def students(few: pate.Teachers, many: pate.Teachers, data: jaxdp.data.Dataset, options: Options) -> dict[str, Any]:
    """Accuracies: of each teacher; for every noise, of the labels of each trial, and of the first trials' students."""
    public, labels = data.test_images[:PUBLIC], data.test_labels[:PUBLIC]
    votes, of_many = (np.asarray(pate.vote_counts(each.predict(logits, public), 10)) for each in (few, many))
    right = lambda answers: float(np.mean(answers == labels))
    keys = jax.random.split(jax.random.key(1), options.trials)
    draws = lambda of_all, gamma: [np.asarray(pate.laplace_noisy_max(of_all, gamma=gamma, key=key)) for key in keys]

    def line(gamma: float | None) -> dict[str, Any]:
        drawn, drawn_of_many = (
            [of_all.argmax(axis=1)] if gamma is None else draws(of_all, gamma) for of_all in (votes, of_many)
        )
        of_labels = [right(answers) for answers in drawn]
        of_students = [student(answers, data, options.student_steps) for answers in drawn[: options.students]]
        return {
            "gamma": gamma,
            "epsilon": None if gamma is None else epsilon_of(gamma),
            "labels": statistics.median(of_labels),
            "labels_by_trial": of_labels,
            "labels_of_many": [right(answers) for answers in drawn_of_many],
            "student": statistics.median(of_students),
            "student_by_trial": of_students,
        }

    return {
        "teacher_accuracy": few.accuracy(logits, data.test_images, data.test_labels).tolist(),
        "teacher_accuracy_of_many": many.accuracy(logits, data.test_images, data.test_labels).tolist(),
        "by_noise": [line(gamma) for gamma in NOISES],
        "without_noise": line(None),
    }


def student(answers: np.ndarray, data: jaxdp.data.Dataset, steps: int) -> float:
    """The accuracy of one that learned these labels, on images it never saw."""
    params = pate.train_student(
        logits,
        init,
        data.test_images[:PUBLIC],
        answers,
        optimizer=optax.adam(optax.cosine_decay_schedule(2e-3, steps)),
        steps=steps,
        key=jax.random.key(2),
        method="supervised",
        batch_size=128,
        mildly=lambda key, image: distorted(key, image, turn=0.1, scale=0.08, shift=1.0),
        strongly=lambda key, image: image,
    )
    predicted = np.argmax(jax.vmap(logits, (None, 0))(params, data.test_images[PUBLIC:]), axis=1)
    return float(np.mean(predicted == data.test_labels[PUBLIC:]))


def draw(found: dict[str, Any], path: Path) -> None:
    """Accuracy of labels and student against the noise, and against what the labels cost; and of each teacher."""
    by_noise, without = found["by_noise"], found["without_noise"]
    figure = new_figure(15)
    axes = panels(figure, 1, 3)
    axes[1].sharey(axes[0])
    series = {
        f"student of {TEACHERS} teachers, on held-back images": [line["student_by_trial"] for line in by_noise],
        f"labels of {TEACHERS} teachers": [line["labels_by_trial"] for line in by_noise],
        f"labels of {MANY} teachers": [line["labels_of_many"] for line in by_noise],
    }
    places = [1 / line["gamma"] for line in by_noise], [line["epsilon"] for line in by_noise]
    for axis, at in zip(axes[:2], places, strict=True):
        for name, trials in series.items():
            middle = [100 * statistics.median(each) for each in trials]
            ends = [[100 * end(each) for each in trials] for end in (min, max)]
            ranges = np.abs(np.subtract(ends, middle))
            label = f"{name} ({len(trials[0])} draws)"
            axis.errorbar(at, middle, yerr=ranges, linewidth=1, markersize=3, capsize=4, label=label)
        axis.axhline(
            100 * without["labels"],
            linestyle="--",
            linewidth=1,
            color="black",
            label=f"labels of {TEACHERS}, no noise, ε = ∞",
        )
        axis.set_xscale("log")
        axis.grid(alpha=0.3)
    axes[0].set(
        xlabel="scale of the Laplace noise on every count, 1/γ (votes)",
        ylabel="accuracy (%): median, lowest to highest",
    )
    axes[1].set(xlabel=f"ε of {PUBLIC:,} labels whatever the votes, at δ = {DELTA:g} (RDP)")
    axes[0].legend(frameon=False, loc="lower left", fontsize=8)
    axes[2].plot([], [])  # the student's colour is no teacher's
    for number, of_each in ((TEACHERS, found["teacher_accuracy"]), (MANY, found["teacher_accuracy_of_many"])):
        at = np.arange(1, number + 1)
        axes[2].plot(at, 100 * np.array(of_each), linestyle="none", markersize=4, label=f"each of {number} teachers")
    axes[2].set(xlabel="teacher", ylabel="accuracy (%)")
    axes[2].margins(y=0.15)
    axes[2].grid(alpha=0.3)
    axes[2].legend(frameon=False, loc="upper right", fontsize=8)
    figure.suptitle("How much noise can the teachers bear, and what does it cost?")
    save(figure, path, found)


def epsilon_of(gamma: float) -> float:
    """What all the labels cost, whatever the votes."""
    event = event_of(pate.LaplaceNoisyMax(gamma=gamma), asked=PUBLIC, answered=PUBLIC)
    return jaxdp.accounting.event_epsilon(event, delta=DELTA).epsilon


if __name__ == "__main__":
    main(tyro.cli(Options))
