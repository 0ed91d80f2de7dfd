"""The tutorial's forty-nine offices: teachers of 1,200 digits each, a student, and how much noise the ensemble can bear.

    python benchmarks/offices.py

Trains the teachers by `jaxdp.pate.train_teachers` as it comes, with a `vmap` over all of them, one after another in JAX, and as
the tutorial does: a loop over teachers in PyTorch, a data loader for each, in the environment of Opacus (peers/environments.py)
if that can be made. Medians of repeats, alternating, the first of each apart, since it compiles. Then for every noise the
teachers label 9,000 test images, a student learns them, and is measured on the other 1,000. Writes
benchmarks/results/DEVICE/offices.json and offices.png.
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
    rows = measured(ways, options.repeats)
    teachers = train(None)
    accuracies = teachers.accuracy(logits, data.test_images, data.test_labels)
    by_noise = students(teachers, data, options.student_steps)
    table = Table(title=f"49 teachers of 1,200 digits, {options.epochs} epochs, on {record.device_name()}")
    for heading in ("way", "first (s)", "median (s)", "against the first row"):
        table.add_column(heading)
    for row in rows:
        ratio = row["median_seconds"] / rows[0]["median_seconds"]
        table.add_row(row["way"], f"{row['first_seconds']:.2f}", f"{row['median_seconds']:.2f}", f"{ratio:.2f}")
    console.print(table)
    console.print(
        f"teachers' accuracy: {accuracies.mean():.2%} on average ({accuracies.min():.2%} to {accuracies.max():.2%})"
    )
    for line in by_noise:
        console.print(
            f"γ = {line['gamma']:g}: labels {line['labels']:.2%}, student {line['student']:.2%}", highlight=False
        )
    content = {"rows": rows, "teacher_accuracy": accuracies.tolist(), "by_noise": by_noise}
    folder = record.write(options.results, "offices", content)
    draw(json.loads((folder / "offices.json").read_text()), folder / "offices.png")
    console.print(f"written to {folder}")


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


def students(teachers: pate.Teachers, data: jaxdp.data.Dataset, steps: int) -> list[dict[str, Any]]:
    """For every noise: the accuracy of the labels, and of a student that learned them, on images it never saw."""
    public, labels = data.test_images[:PUBLIC], data.test_labels[:PUBLIC]
    votes = pate.vote_counts(teachers.predict(logits, public), 10)
    lines = []
    for gamma in NOISES:
        answers = np.asarray(pate.laplace_noisy_max(votes, gamma=gamma, key=jax.random.key(1)))
        params = pate.train_student(
            logits,
            init,
            public,
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
        right = float(np.mean(predicted == data.test_labels[PUBLIC:]))
        lines.append({"gamma": gamma, "labels": float(np.mean(answers == labels)), "student": right})
    return lines


def draw(found: dict[str, Any], path: Path) -> None:
    """Accuracy of labels and student against the noise, and against what the labels cost whatever the votes."""
    by_noise, teacher = found["by_noise"], float(np.mean(found["teacher_accuracy"]))
    figure = new_figure(10)
    against = panels(figure, 1, 2, sharey=True)
    spent = [epsilon_of(line["gamma"]) for line in by_noise]
    for axis, places in zip(against, ([1 / line["gamma"] for line in by_noise], spent), strict=True):
        for name, label in (("student", "student, on held-back images"), ("labels", "noisy labels")):
            axis.plot(places, [100 * line[name] for line in by_noise], label=label)
        axis.axhline(100 * teacher, linestyle="--", linewidth=1, color="gray", label="a teacher, on average")
        axis.set_xscale("log")
        axis.grid(alpha=0.3)
    against[0].set(xlabel="scale of the Laplace noise on every count, 1/γ (votes)", ylabel="accuracy (%)")
    against[1].set(xlabel=f"ε of {PUBLIC:,} labels whatever the votes, at δ = {DELTA:g} (RDP)")
    against[0].legend(frameon=False, loc="lower left")
    figure.suptitle("How much noise can 49 teachers bear, and what does it cost?")
    save(figure, path, found)


def epsilon_of(gamma: float) -> float:
    """What all the labels cost, whatever the votes."""
    event = event_of(pate.LaplaceNoisyMax(gamma=gamma), asked=PUBLIC, answered=PUBLIC)
    return jaxdp.accounting.event_epsilon(event, delta=DELTA).epsilon


if __name__ == "__main__":
    main(tyro.cli(Options))
