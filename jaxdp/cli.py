"""The command line: from what was typed to the options of a command, and to the command.

What a user got wrong, or a disk refused, is told in one line and ends with exit code 2, a signal with 128 and its number;
anything else is a bug and shows its traceback.
"""

import dataclasses
import difflib
import functools
import importlib.metadata
import operator
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import tyro

from ._errors import UsageError
from ._interrupts import farewell, how_to_go_on, leave, listening
from .commands import pate, train, tune
from .commands._accounting import BatchSizeOptions, EpsilonOptions, NoiseOptions, StepsOptions, answer
from .commands._audit import AuditOptions, audit
from .commands._compare import CompareOptions, compare
from .commands._effects import check_effects
from .commands._lookalike import LookalikeOptions, lookalike
from .commands._options import Options, from_dict
from .commands._predict import PredictOptions, predict
from .commands._terminal import every_terminal
from .commands._words import IN_WORDS, check_names, join_lines
from .runs._folder import RunFolder, as_written


class Command(NamedTuple):
    """A command: its options, and the function that does with them what it is for."""

    options: type[Any]
    run: Callable[[Any], object]
    description: str | None = None  # by default the first line of the options' docstring


COMMANDS = {
    "train": Command(train.TrainOptions, lambda job: train.train_or_folds(job), "Train a model on private data."),
    "tune": Command(tune.TuneOptions, lambda job: tune.tune(job)),
    "pate": Command(pate.PateOptions, lambda job: pate.pate_in_folder(job)),
    "pate-label": Command(pate.LabelOptions, lambda job: pate.label(job)),
    "pate-analyze": Command(pate.AnalyzeOptions, lambda job: pate.analyze_file(job)),
    "predict": Command(PredictOptions, predict),
    "audit": Command(AuditOptions, audit),
    "compare": Command(CompareOptions, compare),
    "lookalike": Command(LookalikeOptions, lookalike),
    "epsilon": Command(EpsilonOptions, answer),
    "noise": Command(NoiseOptions, answer),
    "steps": Command(StepsOptions, answer),
    "batch-size": Command(BatchSizeOptions, answer),
}
_NARROWEST = 20
_RESUMED = ("train", "tune", "pate")


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
    except SystemExit:
        if goes_on := how_to_go_on():  # within such work, only rich ends: as above
            print(f"jaxdp: nobody reads the output any more{goes_on}", file=sys.stderr)
        raise
    except ConnectionError as error:  # of several processes
        print(f"jaxdp: error: {error}{how_to_go_on()}", file=sys.stderr)
        leave(1)
    except OSError as error:  # a full disk, a folder taken away: the machine's fault, and no bug of ours
        where = f"{error.filename}: " if error.filename else ""
        again = how_to_go_on() or ", and run the command again"
        print(f"jaxdp: error: {where}{error.strerror or error}: see to that{again}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        said, code = farewell()
        print(said, file=sys.stderr)
        leave(code)


def _parse(given: list[str]) -> Any:
    _check_no_empty(given)
    _check_one_ledger(given)
    given = _with_resumed_folder(_with_joined_names(given))
    if given[:1] == ["--version"]:
        print(f"jaxdp {importlib.metadata.version('jaxdp-privacy')}")
        sys.exit()
    named = given[0] if given else ""
    options = _parse_options(named, given[1:]) if named in COMMANDS else _refuse_or_help(given)
    typed = _typed(given, type(options))
    check_effects(options, typed)
    if "output" in typed and getattr(options, "resume", None) and options.output.resolve() != options.resume.resolve():
        raise UsageError(
            f"--output={options.output} has no effect beside --resume {options.resume}: a run goes on in its own folder; leave "
            "one of them out"
        )
    return options


def _parse_options(name: str, given: list[str]) -> Any:
    """The options of one command; what is wrong with them is told beside that command's help alone."""
    command = COMMANDS[name]
    join_lines(command.options)
    if shutil.get_terminal_size().columns < _NARROWEST:  # in which help would find no end
        os.environ["COLUMNS"] = str(_NARROWEST)
    check_names(given, {field.name for field in dataclasses.fields(command.options)} | set(_aliases(command.options)))
    default = _resumed_options(given, name, command.options) if name in _RESUMED else None
    return tyro.cli(
        command.options,
        prog=f"jaxdp {_as_typed(name)}",
        description=command.description,
        args=given,
        default=default,
        config=(tyro.conf.OmitArgPrefixes,),
        registry=IN_WORDS,
    )


def _as_typed(name: str) -> str:
    """A command's name as two words, where it has two."""
    return name.replace("pate-", "pate ")


def _refuse_or_help(given: list[str]) -> Any:
    """What is told where no command is named: the commands, and which of them may have been meant."""
    if given and not given[0].startswith("-"):
        meant = "".join(
            f"; did you mean {_as_typed(name)}?" for name in difflib.get_close_matches(given[0], COMMANDS, n=1)
        )
        raise UsageError(f"{given[0]} is no command of {', '.join(map(_as_typed, COMMANDS))}{meant}")
    commands = [
        Annotated[command.options, tyro.conf.subcommand(name, description=command.description)]
        for name, command in COMMANDS.items()
    ]
    union: Any = functools.reduce(operator.or_, commands)
    return tyro.cli(
        union,
        prog="jaxdp",
        description="Differentially private deep learning in JAX. `jaxdp COMMAND --help` has a command's options, and "
        "`jaxdp --version` says the version.",
        args=given,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _check_no_empty(given: list[str]) -> None:
    """Refuse an empty value: of a path it would be the folder one is in."""
    for before, argument in zip(["", *given], given, strict=False):
        if not argument or (argument.startswith("--") and argument.endswith("=")):
            name = argument.rstrip("=") or (before if before.startswith("--") else "an argument")
            raise UsageError(f"{name} is empty: give a value, or leave it out")


def _check_one_ledger(given: list[str]) -> None:
    """Refuse several ledgers, of which the last would count, as of every option: the others' cost would be missing."""
    if sum(argument.partition("=")[0] == "--ledger" for argument in given) > 1:
        raise UsageError(
            "--ledger is given more than once, and one ledger counts: give one that holds all expenses. A run's statement.json "
            "holds those of its own --ledger, too; jaxdp.accounting.Ledger.extend joins two"
        )


def _typed(given: list[str], kind: type) -> set[str]:
    """The names of the options that were typed."""
    aliases = _aliases(kind)
    names = {field.name for field in dataclasses.fields(kind)}
    typed = {argument[2:].partition("=")[0].replace("-", "_") for argument in given if argument.startswith("--")}
    plain = {aliases.get(name, name) for name in typed}
    return {name if name in names else name.removeprefix("no_") for name in plain} & names


def _aliases(kind: type) -> dict[str, str]:
    """The options' other names, each with the option's own."""
    return {
        alias.lstrip("-").replace("-", "_"): name
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for known in getattr(hint, "__metadata__", ())
        for alias in getattr(known, "aliases", None) or ()
    }


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
    if folder is None:
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
