"""The command line: `jaxdp train`, `jaxdp predict`, `jaxdp epsilon`, `jaxdp noise`.

What a user got wrong is told in one line and ends with exit code 2; anything else is a bug and shows its traceback.
"""

import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from . import accounting
from ._errors import UsageError
from ._run import DPSGD
from .train import TrainOptions, load_run, train
from .train._folder import RunFolder
from .train._recipe import steps_per_epoch


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict with a model that `jaxdp train` trained."""

    run: tyro.conf.Positional[Path]
    """the run's folder"""
    data: str = "test"
    """images: a .npy file, uint8 [n, height, width] or [n, height, width, channels]; or test, the run's own test set"""
    output: Path | None = None
    """where to write: .csv with a line an image (index, label, probability), or .npy with all probabilities [n, classes];
    the .csv lines to standard output if not given"""


@dataclass(frozen=True, kw_only=True)
class EpsilonOptions:
    """The privacy of a DP-SGD run: epsilon by RDP, by PLD and by the tutorials' classic conversion."""

    noise_multiplier: Annotated[float, tyro.conf.arg(aliases=["--noise-mult"])]
    """standard deviation of the noise in units of the clip norm"""
    examples: int = 60_000
    """number of training examples"""
    batch_size: int = 256
    """expected number of examples a step (Poisson sampling)"""
    epochs: int = 15
    """passes over the data, of round(examples / batch size) steps each"""
    steps: int | None = None
    """number of steps, instead of epochs"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / examples"""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped; named in the statement, without influence on epsilon"""
    json: bool = False
    """print JSON"""


@dataclass(frozen=True, kw_only=True)
class NoiseOptions:
    """The noise multiplier that a privacy budget asks for, by RDP, by PLD and by the tutorials' classic conversion."""

    epsilon: float
    """the budget"""
    examples: int = 60_000
    """number of training examples"""
    batch_size: int = 250
    """expected number of examples a step (Poisson sampling)"""
    epochs: int = 15
    """passes over the data, of round(examples / batch size) steps each"""
    steps: int | None = None
    """number of steps, instead of epochs"""
    delta: float = 1e-5
    """the delta of (epsilon, delta), below 1 / examples"""
    clip_norm: float = 1.0
    """L2 norm to which each example's gradient is clipped; named in the statement, without influence on epsilon"""
    json: bool = False
    """print JSON"""


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the command `jaxdp`."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        options = _parse(given)
        if isinstance(options, TrainOptions):
            train(options)
        elif isinstance(options, PredictOptions):
            predict(options)
        elif isinstance(options, EpsilonOptions):
            show_epsilon(options)
        else:
            show_noise(options)
    except UsageError as error:
        print(f"jaxdp: error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except KeyboardInterrupt:
        print("jaxdp: interrupted; `jaxdp train --resume FOLDER` goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)


def _parse(given: list[str]) -> TrainOptions | PredictOptions | EpsilonOptions | NoiseOptions:
    given = _with_resumed_folder(given)
    resumed = _resumed_options(given)
    train_type = Annotated[
        TrainOptions,
        tyro.conf.subcommand("train", description="Train a model on private data.", default=resumed or TrainOptions()),
    ]
    commands = (
        train_type
        | Annotated[PredictOptions, tyro.conf.subcommand("predict")]
        | Annotated[EpsilonOptions, tyro.conf.subcommand("epsilon")]
        | Annotated[NoiseOptions, tyro.conf.subcommand("noise")]
    )
    return tyro.cli(
        commands,  # pyright: ignore[reportArgumentType]  # a union of annotated types, which tyro reads
        prog="jaxdp",
        description="Differentially private deep learning in JAX.",
        args=given,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _with_resumed_folder(given: list[str]) -> list[str]:
    """`--resume` alone, beside `--output FOLDER`, means `--resume FOLDER`."""
    if "--resume" not in given:
        return given
    at = given.index("--resume") + 1
    if at < len(given) and not given[at].startswith("--"):
        return given
    output = _value_of("--output", given)
    if output is None:
        raise UsageError("--resume needs the folder of the run to go on with: --resume runs/NAME")
    return [*given[:at], output, *given[at:]]


def _resumed_options(given: list[str]) -> TrainOptions | None:
    """The options of the run to resume, so that those not given again are as they were."""
    folder = _value_of("--resume", given)
    if not given or given[0] != "train" or folder is None:
        return None
    config = RunFolder.existing(Path(folder)).read_json("config.json")
    return TrainOptions.from_dict({**config["options"], "resume": folder})


def _value_of(flag: str, given: list[str]) -> str | None:
    for i, argument in enumerate(given):
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
        if argument == flag and i + 1 < len(given):
            return given[i + 1]
    return None


def predict(options: PredictOptions) -> None:
    """Write predictions for images."""
    run = load_run(options.run)
    if options.data == "test":
        from . import data

        data_dir = run.options["data_dir"]
        images = data.load(run.options["dataset"], Path(data_dir) if data_dir else None).test_images
    else:
        try:
            images = np.load(options.data)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"--data={options.data} can't be read as a .npy file ({error}): save it with numpy.save"
            ) from error
    probabilities = run.predict(images)
    if options.output is not None and options.output.suffix == ".npy":
        np.save(options.output, probabilities)
        return
    file = sys.stdout if options.output is None else options.output.open("w", newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("index", "label", "probability"))
    for i, row in enumerate(probabilities):
        writer.writerow((i, int(row.argmax()), f"{row.max():.6f}"))
    if options.output is not None:
        file.close()


def show_epsilon(options: EpsilonOptions) -> None:
    """Print what a run costs."""
    run = _run(options, options.noise_multiplier)
    spent = [run.spent(delta=options.delta, accountant=name) for name in accounting.ACCOUNTANTS]
    _print(options, run, "epsilon", {each.accountant: (each.epsilon, each.order) for each in spent})


def show_noise(options: NoiseOptions) -> None:
    """Print the noise that a budget asks for."""
    probe = _run(options, 1.0)
    found: dict[str, tuple[float, float | None]] = {}
    for name in accounting.ACCOUNTANTS:
        sigma = accounting.noise_multiplier(
            epsilon=options.epsilon,
            delta=options.delta,
            sample_rate=probe.sampling_rate,
            steps=probe.steps,
            accountant=name,
        )
        order = _run(options, sigma).spent(delta=options.delta, accountant=name).order
        found[name] = (sigma, order)
    _print(options, _run(options, found["rdp"][0]), "noise_multiplier", found)


def _run(options: EpsilonOptions | NoiseOptions, noise_multiplier: float) -> DPSGD:
    """The run that the options describe."""
    from . import _checks

    examples = _checks.count("--examples", options.examples, "give the number of training examples")
    batch_size = _checks.count("--batch-size", options.batch_size, "give the expected number of examples a step")
    epochs = _checks.count("--epochs", options.epochs, "give the number of passes over the data")
    steps = options.steps if options.steps is not None else epochs * steps_per_epoch(examples, batch_size)
    return DPSGD(
        num_examples=examples,
        expected_batch_size=batch_size,
        steps=_checks.count("--steps", steps, "give the number of steps"),
        clip_norm=options.clip_norm,
        noise_multiplier=noise_multiplier,
    )


def _print(
    options: EpsilonOptions | NoiseOptions, run: DPSGD, quantity: str, found: dict[str, tuple[float, float | None]]
) -> None:
    statement = run.statement(delta=options.delta)
    if options.json:
        described: dict[str, Any] = {
            quantity: {name: value for name, (value, _) in found.items()},
            "order": {name: order for name, (_, order) in found.items()},
            "delta": options.delta,
            "steps": run.steps,
            "sampling_rate": run.sampling_rate,
            "event": accounting.event_to_dict(run.event),
            "statement": statement,
        }
        print(json.dumps(described, indent=2))
        return
    console = Console()
    table = Table(title=f"{run.steps:,} steps, sampling rate {run.sampling_rate:.6g}, δ = {options.delta:g}")
    for heading in ("accountant", quantity.replace("_", " "), "optimal order"):
        table.add_column(heading)
    names = {"rdp": "RDP (dp-accounting)", "pld": "PLD (dp-accounting, tighter)", "classic": "RDP, classic conversion"}
    for name, (value, order) in found.items():
        table.add_row(names[name], f"{value:.5f}", "" if order is None else f"{order:g}")
    console.print(table)
    console.print("For a run that is executed exactly so:\n")
    console.print(statement, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
