"""LiRA on the tutorial's CNN: shadow models side by side and one after another, and what TF Privacy finds in the same scores.

    python benchmarks/shadows.py              # 64 shadow models on halves of 5,000 digits: four minutes on two cores
    python benchmarks/shadows.py --quick

One after another is the same training, jitted, called in a loop. The first model is attacked by the others (but for that with the
opposite half); the scores go to TF Privacy's threshold attack, too, and the confidences to its LiRA, in an environment
(peers/environments.py) if that can be made: of 0.8.12, the newest release whose attacks can be imported. Areas under the ROC that
differ by more than 1e-6 end it with exit code 1.

Prints a table, and writes shadows.json to RESULTS/DEVICE.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import record
import tyro
from peers.environments import ATTACKS, UnavailableError, python_of
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from jaxdp import audit, data
from jaxdp.models import classifier
from jaxdp.pate._teachers import Course

WAYS: dict[str, dict[str, bool]] = {
    "lira": {},
    "lira, one variance": {"fix_variance": True},
    "lira offline": {"offline": True},
    "lira offline, one variance": {"offline": True, "fix_variance": True},
}
_NOT_ASKED: dict[str, Any] = {"problem": "not asked for"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Shadow models and LiRA."""

    shadows: int = 64
    """how many models"""
    examples: int = 5000
    """digits, of which each model has half"""
    epochs: int = 10
    """passes over its half"""
    batch_size: int = 50
    """examples a step"""
    quick: bool = False
    """few models and digits, to see that it runs"""
    tf_privacy: bool = True
    """compare with TF Privacy"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Train, attack, compare, tell."""
    number, examples, epochs = (8, 200, 2) if options.quick else (options.shadows, options.examples, options.epochs)
    mnist = data.load("mnist").labelled()
    inputs, labels = mnist.train[0][:examples], mnist.train[1][:examples]
    model = classifier("cnn", mnist.task, input_shape=inputs.shape[1:], input_dtype=inputs.dtype)
    loss = lambda params, example: model.loss(params, example)[0]
    shared: dict[str, Any] = {"optimizer": optax.sgd(0.1, momentum=0.9), "epochs": epochs}
    shared["batch_size"] = options.batch_size
    with Progress() as progress:
        task = progress.add_task("side by side", total=number)
        start = time.perf_counter()
        shadows = audit.train_shadows(
            loss,
            model.init,
            (inputs, labels),
            num_shadows=number,
            key=jax.random.key(0),
            on_progress=lambda done: progress.update(task, completed=done),
            **shared,
        )
        seconds = {"side by side": time.perf_counter() - start}
        course = jax.jit(Course(loss, model.init, size=examples // 2, **shared))
        start = time.perf_counter()
        for chosen in progress.track(shadows.members, description="one after another"):
            jax.block_until_ready(course(jax.random.key(1), (inputs[chosen], labels[chosen])))
        seconds["one after another"] = time.perf_counter() - start
    logits = shadows.logits(lambda params, image: model.logits(params, image), inputs)
    confident = audit.confidence(logits, labels)
    target, truth, others, members = confident[0], shadows.members[0], confident[2:], shadows.members[2:]
    found: dict[str, dict[str, float]] = {}
    scores = {"loss": audit.loss_scores(logits[0], labels)}
    for name, how in WAYS.items():
        start = time.perf_counter()
        scores[name] = audit.lira_scores(target, others, members, **how)
        found[name] = {"seconds": time.perf_counter() - start}
    for name, of_one in scores.items():
        start = time.perf_counter()
        area = audit.attack_auroc(of_one, truth)
        took = {"area": area, "seconds of the area": time.perf_counter() - start}
        found[name] = found.get(name, {}) | took | {"at 0.1 %": audit.tpr_at_fpr(of_one, truth, 0.001)}
    given = {"target": target, "shadows": others, "members": members, "truth": truth, **scores}
    theirs = _of_tf_privacy(given) if options.tf_privacy else _NOT_ASKED
    accuracy = float(np.mean(np.argmax(logits[0][~truth], axis=1) == labels[~truth]))
    figures = {"shadows": number, "examples": examples, "epochs": epochs, "batch_size": options.batch_size}
    figures |= {"seconds": seconds, "accuracy_out": accuracy, "attacks": found, "tf_privacy": theirs}
    _print(figures)
    record.write(options.results, "shadows-quick" if options.quick else "shadows", figures)
    areas = [*theirs.get("areas", {}).items(), *theirs.get("own_areas", {}).items()]
    sys.exit(any(abs(area - found[name]["area"]) > 1e-6 for name, area in areas))


def _of_tf_privacy(given: dict[str, np.ndarray]) -> dict[str, Any]:
    """Its areas and seconds for the same scores, and for LiRA of its own on the same confidences, or why there are none."""
    try:
        python = python_of(ATTACKS)
    except UnavailableError as error:
        return {"problem": str(error)}
    script = Path(__file__).parent / "peers" / "attacks_tf_privacy.py"
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "scores.npz"
        np.savez(path, allow_pickle=False, **given)  # pyright: ignore[reportArgumentType]
        done = subprocess.run([python, script, path], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"problem": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def _print(figures: dict[str, Any]) -> None:
    seconds, theirs = figures["seconds"], figures["tf_privacy"]
    gain = seconds["one after another"] / seconds["side by side"]
    table = Table(
        "attack",
        "area",
        "true positives at 0.1 % false",
        "TF Privacy's area",
        title=f"{figures['shadows']} shadow models: {seconds['side by side']:.0f} s side by side, {gain:.2f} times as long one "
        f"after another",
    )
    areas = theirs.get("areas", {})
    for name, each in figures["attacks"].items():
        table.add_row(
            name, f"{each['area']:.6f}", f"{each['at 0.1 %']:.2%}", f"{areas[name]:.6f}" if name in areas else ""
        )
    Console().print(table)
    if "problem" in theirs:
        print(f"TF Privacy: {theirs['problem']}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
