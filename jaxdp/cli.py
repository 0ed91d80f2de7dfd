"""The command line: from what was typed to the options of a command, and to the command.

What a user got wrong, or a disk refused, is told in one line and ends with exit code 2, a signal with 128 and its number;
anything else is a bug and shows its traceback.
"""

import dataclasses
import functools
import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import tyro

from ._errors import UsageError
from ._interrupts import farewell, how_to_go_on, leave, listening
from .commands._accounting import BatchSizeOptions, EpsilonOptions, NoiseOptions, StepsOptions, answer
from .commands._audit import AuditOptions, audit
from .commands._compare import CompareOptions, compare
from .commands._effects import check_effects
from .commands._lookalike import LookalikeOptions, lookalike
from .commands._options import Options, from_dict
from .commands._predict import PredictOptions, predict
from .commands._terminal import every_terminal
from .commands.pate import AnalyzeOptions, LabelOptions, PateOptions, analyze_file, label, pate_in_folder
from .commands.train import TrainOptions, train_or_folds
from .runs import RunFolder, as_written


class Command(NamedTuple):
    """A command: its options, and the function that does with them what it is for."""

    options: type[Any]
    run: Callable[[Any], object]
    description: str | None = None  # by default the first line of the options' docstring


COMMANDS = {
    "train": Command(TrainOptions, train_or_folds, "Train a model on private data."),
    "pate": Command(PateOptions, pate_in_folder),
    "pate-label": Command(LabelOptions, label),
    "pate-analyze": Command(AnalyzeOptions, analyze_file),
    "predict": Command(PredictOptions, predict),
    "audit": Command(AuditOptions, audit),
    "compare": Command(CompareOptions, compare),
    "lookalike": Command(LookalikeOptions, lookalike),
    "epsilon": Command(EpsilonOptions, answer),
    "noise": Command(NoiseOptions, answer),
    "steps": Command(StepsOptions, answer),
    "batch-size": Command(BatchSizeOptions, answer),
}
_RESUMED = ("train", "pate")


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the command `jaxdp`."""
    with listening(), every_terminal():
        _main(sys.argv[1:] if arguments is None else arguments)


def _main(given: list[str]) -> None:
    try:
        options = _parse(given)
        next(command for command in COMMANDS.values() if command.options is type(options)).run(options)
    except UsageError as error:
        print(f"jaxdp: error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader has gone, and with it what is left in the buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ConnectionError as error:  # of several processes
        print(f"jaxdp: error: {error}{how_to_go_on()}", file=sys.stderr)
        leave(1)
    except OSError as error:  # a full disk, a folder taken away: the machine's fault, and no bug of ours
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"jaxdp: error: {where}{error.strerror or error}: see to that, and run the command again", file=sys.stderr
        )
        sys.exit(2)
    except KeyboardInterrupt:
        said, code = farewell()
        print(said, file=sys.stderr)
        leave(code)


def _parse(given: list[str]) -> Any:
    _check_no_empty(given)
    given = _with_resumed_folder(_with_joined_names(given))
    resumed = {name: _resumed_options(given, name, COMMANDS[name].options) for name in _RESUMED}
    commands = [
        Annotated[
            command.options,
            tyro.conf.subcommand(
                name,
                description=command.description,
                **({"default": resumed[name] or command.options()} if name in resumed else {}),
            ),
        ]
        for name, command in COMMANDS.items()
    ]
    union: Any = functools.reduce(operator.or_, commands)
    options = tyro.cli(
        union,
        prog="jaxdp",
        description="Differentially private deep learning in JAX.",
        args=given,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    typed = _typed(given, type(options))
    check_effects(options, typed)
    if "output" in typed and getattr(options, "resume", None) and options.output.resolve() != options.resume.resolve():
        raise UsageError(
            f"--output={options.output} has no effect beside --resume {options.resume}: a run goes on in its own folder; leave "
            "one of them out"
        )
    return options


def _check_no_empty(given: list[str]) -> None:
    """Refuse an empty value: of a path it would be the folder one is in."""
    for before, argument in zip(["", *given], given, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument.rstrip("=") or (before if before.startswith("--") else "an argument")
            raise UsageError(f"{name} is empty: give a value, or leave it out")


def _typed(given: list[str], kind: type) -> set[str]:
    """The names of the options that were typed."""
    aliases = {
        alias.lstrip("-"): name
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for known in getattr(hint, "__metadata__", ())
        for alias in getattr(known, "aliases", None) or ()
    }
    names = {field.name for field in dataclasses.fields(kind)}
    typed = {argument[2:].partition("=")[0] for argument in given if argument.startswith("--")}
    plain = {aliases.get(name, name).replace("-", "_") for name in typed}
    return {name if name in names else name.removeprefix("no_") for name in plain} & names


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


def _with_joined_names(given: list[str]) -> list[str]:
    """`pate label` and `pate analyze` are commands of their own beside `pate`."""
    if given[:1] == ["pate"] and given[1:2] in (["label"], ["analyze"]):
        return [f"pate-{given[1]}", *given[2:]]
    return given


def _resumed_options(given: list[str], command: str, kind: type[Options]) -> Options | None:
    """The options of the run to resume, so that those not given again are as they were."""
    folder = _value_of("--resume", given)
    if given[:1] != [command] or folder is None:
        return None
    run_folder = RunFolder.existing(Path(folder))
    config = run_folder.read_json("config.json")
    with as_written(Path(folder) / "config.json"):
        made_by = config.get("command", "train")
        if made_by != command:
            raise UsageError(f"--resume {folder} is a run of `jaxdp {made_by}`: go on with it by that command")
        return from_dict(kind, {**run_folder.options(), "resume": folder})


def _value_of(flag: str, given: list[str]) -> str | None:
    found = None
    for i, argument in enumerate(given):  # of several the last counts, as everywhere
        if argument.startswith(f"{flag}="):
            found = argument.partition("=")[2]
        if argument == flag and i + 1 < len(given):
            found = given[i + 1]
    return found


if __name__ == "__main__":
    main()
