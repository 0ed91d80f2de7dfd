"""Hyper-parameters of private runs, tried on training examples held back, never on the test set.

    python benchmarks/choose.py --epsilon 3 --lr 1 1.5 2 --seeds 0 1
    python benchmarks/choose.py --epsilon 1 --recipe cnn --batch-size 1024 2048 --ema 0.9 0.98
    python benchmarks/choose.py --epsilon 1 --data adult --clip-norm 0.3 1

Each trial is a whole `jaxdp train` for the budget (PLD), evaluated on 10,000 training images of MNIST that it isn't trained on;
on Adult, on another fold than the one that benchmarks/records.py evaluates on. Trials that were made are kept, and one that was
interrupted goes on. What trials cost is in no epsilon. Prints and writes benchmarks/results/DEVICE/choose.json, by accuracy.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import adult
import record
import tyro
from rich.console import Console
from rich.table import Table
from trained import between, figures_of, mean

_BASE = {
    "mnist": ("--holdout", "10000"),
    "adult": (*adult.WORDS, "--folds", "5", "--fold", "2"),
}
_VARIED = ("lr", "epochs", "batch_size", "clip_norm", "momentum", "ema", "augmentations")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hyper-parameters of private runs, tried on examples held back. Of those given, every combination is."""

    epsilon: float = 1.0
    """the budget"""
    data: Literal["mnist", "adult"] = "mnist"
    """to train on"""
    recipe: str = "scattering"
    """of MNIST, to depart from"""
    lr: tuple[float, ...] = ()
    """learning rates"""
    epochs: tuple[int, ...] = ()
    """passes over the data"""
    batch_size: tuple[int, ...] = ()
    """expected batch sizes"""
    clip_norm: tuple[float, ...] = ()
    """clip norms"""
    momentum: tuple[float, ...] = ()
    """decays of momentum"""
    ema: tuple[float, ...] = ()
    """decays of the average of parameters"""
    augmentations: tuple[int, ...] = ()
    """distortions of an example"""
    seeds: tuple[int, ...] = (0, 1)
    """of each"""
    room: Path = Path("runs/chosen")
    """where the runs lie"""
    results: Path = Path(__file__).parent / "results"
    """where to write"""


def main(options: Options) -> None:
    """Try, print and write."""
    if options.data == "adult":
        adult.prepare()
    trials = []
    for chosen, words in tried(options):
        figures = [figures_of(words, seed, options.room) for seed in options.seeds]
        trials.append({"words": list(words), "chosen": " ".join(chosen) or "as it is", "figures": figures})
    path = options.results / record.device_name() / "choose.json"
    before = json.loads(path.read_text())["trials"] if path.exists() else []
    kept = [one for one in before if one["words"] not in [trial["words"] for trial in trials]]
    record.write(options.results, "choose", {"trials": [*kept, *trials]})
    Console().print(_table(options, trials))


def tried(options: Options) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Of each combination what is chosen, and all words of its command."""
    base = _BASE[options.data] + (("--recipe", options.recipe) if options.data == "mnist" else ())
    varied = {f"--{name.replace('_', '-')}": getattr(options, name) for name in _VARIED}
    varied = {flag: values for flag, values in varied.items() if values}
    for values in itertools.product(*varied.values()):
        chosen = tuple(word for flag, value in zip(varied, values, strict=True) for word in (flag, f"{value:g}"))
        yield chosen, ("train", *base, "--target-epsilon", f"{options.epsilon:g}", "--accountant", "pld", *chosen)


def _table(options: Options, trials: list[dict[str, Any]]) -> Table:
    table = Table(
        "options", "accuracy held back", "range", title=f"{options.data}, epsilon = {options.epsilon:g} (PLD)"
    )
    for trial in sorted(trials, key=lambda trial: -mean(trial["figures"])):
        low, high = between(trial["figures"])
        table.add_row(trial["chosen"], f"{mean(trial['figures']):.2%}", f"{low:.2%} to {high:.2%}")
    return table


if __name__ == "__main__":
    main(tyro.cli(Options))
