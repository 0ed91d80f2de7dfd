"""How close attacks come to the claimed ε on MNIST: wrong labels against the final model, gradient canaries against every step.

    python benchmarks/audit.py                 # ε = 1 and 8 and none, five seeds: a quarter of an hour on two cores
    python benchmarks/audit.py --quick         # each attack once, on a few steps

Writes audit.json and audit.png to RESULTS/DEVICE, or audit-part.json and .png for less than lies there. A lower bound above a
claim ends it with exit code 1.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import record
from pictures import new_figure, panels, save
from rich.console import Console
from rich.progress import track

import jaxdp
from jaxdp import audit, data
from jaxdp.commands._audit import attacked_run
from jaxdp.commands.train import TrainOptions, train
from jaxdp.models import classifier

DELTA = 1e-5
EPSILONS = (1.0, 8.0)
Figures = dict[str, Any]
_BOUNDS = ("epsilon", "#0072B2", "o"), ("epsilon_f_dp", "#E69F00", "^"), ("epsilon_gaussian", "#009E73", "s")


def main() -> None:
    """Attack, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--quick", action="store_true", help="each attack once, with few steps and canaries: to see that it runs"
    )
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}: give at least 1")
    found = []
    for seed in track(range(1 if options.quick else options.seeds), "seeds"):
        for epsilon in EPSILONS[-1:] if options.quick else EPSILONS:
            found.append(white_box(epsilon, seed, quick=options.quick))
            print(found[-1], flush=True)
        for epsilon in (*(() if options.quick else EPSILONS), None):
            found.append(by_loss(epsilon, seed, quick=options.quick))
            print(found[-1], flush=True)
    is_part = options.quick or options.seeds < parser.get_default("seeds")
    path = record.write_part_or_whole(options.results, "audit", {"figures": found}, is_part=is_part)
    draw(json.loads(path.read_text()), path.with_suffix(".png"))
    sys.exit(any(one["contradicts"] for one in found))


def white_box(epsilon: float, seed: int, *, quick: bool) -> Figures:
    """The tutorials' MLP with large batches and gradient canaries, whose coordinates are seen at every step."""
    mnist = data.load("mnist").labelled()
    number, batch, steps = (500, 1000, 3) if quick else (10_000, 12_000, 60)
    examples = jax.tree.map(lambda leaf: leaf[: 60_000 - number], mnist.train)
    model = classifier("mlp", mnist.task, input_shape=(28, 28, 1), input_dtype=np.uint8)
    run = jaxdp.DPSGD(
        num_examples=60_000, expected_batch_size=batch, steps=steps, clip_norm=1.0, noise_multiplier=1.0
    ).with_noise_for(epsilon=epsilon, delta=DELTA, accountant="pld")
    planted = audit.gradient_canaries(
        run,
        lambda params, example, *, rng: model.loss(params, example, rng=rng)[0],
        optax.sgd(1.0),
        model.init(jax.random.key(seed)),
        examples,
        key=jax.random.key(1000 + seed),
    )
    started = time.perf_counter()
    step = run.make_step(planted.loss_fn, planted.optimizer)
    state = step.init(planted.params, jax.random.key(seed))
    for _ in range(steps):
        state, _ = step(state, planted.data)
    claim = run.epsilon(delta=DELTA, accountant="pld")
    found = audit.report(planted.scores(state), planted.members, delta=DELTA, claimed_epsilon=claim)
    return {"attack": "gradient canaries", "seed": seed, "seconds": time.perf_counter() - started} | found.to_dict()


def by_loss(epsilon: float | None, seed: int, *, quick: bool) -> Figures:
    """`jaxdp train --audit-canaries` of the tutorials' MLP, and what the losses of its canaries tell."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as room:
        options = TrainOptions(
            model="mlp",
            dp=epsilon is not None,
            epochs=1 if quick else 5 if epsilon else 30,
            target_epsilon=epsilon,
            accountant=None if epsilon is None else "pld",
            audit_canaries=100 if quick else 5000,
            seed=seed,
            output=Path(room) / "run",
        )
        attacked = attacked_run(train(options, Console(quiet=True)).path)
    found = audit.report(
        attacked.scores, attacked.members, delta=attacked.delta, claimed_epsilon=attacked.claimed_epsilon
    )
    return {"attack": "loss", "seed": seed, "seconds": time.perf_counter() - started} | found.to_dict()


def draw(record: dict[str, Any], path: Path) -> None:
    """The lower bounds of each attack beside the claims, a dot a seed."""
    found: list[Figures] = record["figures"]
    figure = new_figure(9)
    axis = panels(figure)
    rows = [
        (attack, claim)
        for attack in ("gradient canaries", "loss")
        for claim in (*EPSILONS, None)
        if any(_is(one, attack, claim) for one in found)
    ]
    for i, (attack, claim) in enumerate(rows):
        for j, (name, color, marker) in enumerate(_BOUNDS):
            values = [one[name] for one in found if _is(one, attack, claim) and one[name] is not None]
            axis.plot(values, [i + 0.2 * (j - 1)] * len(values), marker, color=color, alpha=0.7)
        if claim is not None:
            axis.plot([claim, claim], [i - 0.35, i + 0.35], color="black", marker="", linewidth=2)
    names = [f"{attack},\n{f'claimed ε = {claim:g}' if claim else 'without privacy'}" for attack, claim in rows]
    axis.set_yticks(range(len(rows)), names)
    axis.invert_yaxis()
    axis.set_xlabel(
        f"ε at δ = {DELTA:g}, confidence 0.95. Dots: lower bound; triangles: if the mechanism is Gaussian;\n"
        "squares: if the scores are; bar: claim"
    )
    axis.set_xlim(left=-0.1)
    axis.grid(alpha=0.3, axis="x")
    axis.set_title("What attacks find of an MLP on MNIST")
    save(figure, path, record)


def _is(one: Figures, attack: str, claim: float | None) -> bool:
    claimed = one["claimed_epsilon"]
    same = claimed is None if claim is None else claimed is not None and abs(claimed - claim) < 0.1 * claim
    return one["attack"] == attack and same


if __name__ == "__main__":
    main()
