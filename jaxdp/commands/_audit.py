"""`jaxdp audit`: how much a model tells of the canaries that it was trained with, beside what was claimed."""

import csv
import itertools
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import tyro
from rich.console import Console

from .. import _checks, audit as attacks, runs
from .._errors import UsageError
from ..audit._names import Attack
from ..runs._folder import RunFolder, close_to_others
from ..runs._report import say, two_columns
from ._effects import Effect

_COLUMNS = ("score", "member")
_TURNED = "; far below it: are higher scores those of canaries that seem to have been in?"
_COINS = {"1": True, "true": True, "in": True, "0": False, "false": False, "out": False}
_LONGEST = 10_000_000  # lines of a file
_LEAST_PROBABILITY = 1e-30
_LOOKS_AT: dict[Attack, str] = {
    "loss": "knows each canary's label and looks at the final model's loss on it",
    "entropy": "looks at how sure the final model is of each canary, whatever of",
    "modified-entropy": "knows each canary's label and looks at how sure the final model is of it, and of the others",
}
_NOT_TRIED = (
    "It sees no gradients and no models before, and trains none of its own to compare with, as stronger attacks do."
)
_OF_FILES = Effect(
    ("delta", "claimed_epsilon"),
    lambda job: not job.audited.is_dir(),
    lambda _: "on a run, which has its own",
)
_OF_RUNS = Effect(
    ("attack",),
    lambda job: job.audited.is_dir(),
    lambda _: "on a file, whose scores are an attack's already",
)


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Find a lower bound on epsilon from canaries: of a run with --audit-canaries, or from an attack's scores."""

    audited: tyro.conf.Positional[Path]
    """the folder of a run that was trained with --audit-canaries; or a .csv file with the columns score, higher where an attack
    says that a canary was in, and member, 1 if it was and 0 if a fair coin kept it out"""
    attack: Attack = "loss"
    """of a run: what of the final model's predictions is looked at. Choose before the first look: the best of several attacks has
    a bound that is too good"""
    delta: float = 1e-5
    """of a file: the delta at which epsilon is told"""
    claimed_epsilon: float | None = None
    """of a file: the epsilon that was claimed, for adding or removing one example"""
    significance: float = 0.05
    """the probability with which a lower bound may be too high; 0.05 is a confidence of 95 percent"""
    output: Path | None = None
    """folder for audit.json, audit.txt and audit.png; private/audit in the run's folder, or NAME-audit beside a file, if not
    given"""
    overwrite: bool = False
    """replace what an earlier audit left there"""
    json: bool = False
    """print JSON"""
    effects: ClassVar[tuple[Effect, ...]] = (_OF_FILES, _OF_RUNS)


class Attacked(NamedTuple):
    """What an attack has to say: scores, coins, the claim, what was attacked, and a sentence on the attack if it is known."""

    scores: np.ndarray
    members: np.ndarray
    delta: float
    claimed_epsilon: float | None
    name: str
    said: tuple[str, ...] = ()


_FILES = ("audit.png", "audit.txt", "audit.json")


def audit(options: AuditOptions) -> None:
    """Attack, and show and write what that finds.

    Raises:
        UsageError: for what is neither a run with canaries nor a file of scores, and numbers out of range.
        SystemExit: with code 1 where the claim is contradicted.
    """
    folder = options.output or _beside(options.audited)
    _check_folder(folder, overwrite=options.overwrite)
    attacked = attacked_run(options.audited, options.attack) if options.audited.is_dir() else _of_file(options)
    found = attacks.report(
        attacked.scores,
        attacked.members,
        delta=attacked.delta,
        claimed_epsilon=attacked.claimed_epsilon,
        significance=options.significance,
    )
    _write(folder, found, attacked)
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        console = Console()
        console.print(two_columns(f"jaxdp: audit of {attacked.name}", [*_rows(found), ("folder", str(folder))]))
        say(console, found.in_words(*attacked.said))
    if found.contradicts:
        raise SystemExit(1)


def attacked_run(path: Path, attack: Attack = "loss") -> Attacked:
    """The canaries of a finished run, by the final model's predictions; raises `UsageError` for another folder."""
    from ..runs import _canaries as canaries

    folder = RunFolder.existing(path)
    config = folder.read_json("config.json")
    if not folder.is_finished:
        command = f"jaxdp {config.get('command', 'train')}"
        raise UsageError(f"{path} is under way: end it by {command} --resume {shlex.quote(str(path))}, then audit it")
    if config.get("command", "train") != "train":
        raise UsageError(
            f"{path} is no run of jaxdp train: canaries are of training; give such a run, or a file of scores"
        )
    if config.get("options", {}).get("audit_canaries") is None:  # a start that was broken off may have left some there
        raise UsageError(
            f"{path} has no canaries: train with them from the start, by jaxdp train --audit-canaries 1000"
        )
    content = canaries.read(folder.private)
    planted = canaries.from_bytes(content, folder.private / canaries.FILE)
    folder.check_canaries(content)
    run = runs.load_run(path)
    assert run.summary is not None
    logs = lambda inputs: np.log(np.maximum(run.predict(inputs).astype(np.float64), _LEAST_PROBABILITY))
    try:
        scores = attacks.scores_of(logs, planted.inputs, planted.labels, attack=attack, rows=len(planted.inputs))
    except UsageError as error:
        raise UsageError(
            f"{folder.private / canaries.FILE} is not of this model: the run's folder is damaged ({error})"
        ) from error
    spent, said = run.summary["epsilon"], f"The attack {_LOOKS_AT[attack]}. {_NOT_TRIED}"
    if spent is not None and run.summary["adjacency"] == "replace_one":
        said += (
            " The run's ε is for exchanging one example for another, and a canary that is kept out is none of these: the bound "
            "is not held against it."
        )
        spent = None
    return Attacked(
        scores=scores,
        members=planted.members,
        delta=run.summary.get("delta") or run.options["delta"],
        claimed_epsilon=None if spent is None else min(spent.values()),
        name=f"{run.summary['model']} on {run.summary['dataset']}",
        said=(said,),
    )


def _of_file(options: AuditOptions) -> Attacked:
    scores, members = _read(options.audited)
    delta = _checks.real("--delta", options.delta, "give the delta of the claim, such as 1e-5")
    return Attacked(scores, members, delta, options.claimed_epsilon, options.audited.name)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins of a CSV file."""
    fix = f"give the folder of a run, or a .csv file with the columns {' and '.join(_COLUMNS)}"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip().lower() for name in next(reader, [])]
            if sorted(names) != sorted(_COLUMNS):
                raise UsageError(f"{path} has the columns {', '.join(names)[:200] or 'of an empty file'}: {fix}")
            lines = (_canary(names, row, f"{path}, line {reader.line_num}") for row in reader if row)
            found = list(itertools.islice(lines, _LONGEST + 1))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{path} can't be read ({said}): {fix}") from error
    if len(found) > _LONGEST:
        raise UsageError(f"{path} has more than {_LONGEST:,} lines: give fewer canaries")
    scores, members = zip(*found, strict=True) if found else ((), ())
    return np.array(scores, np.float64), np.array(members, bool)


def _canary(names: list[str], row: list[str], where: str) -> tuple[float, bool]:
    """A line's score and coin."""
    if len(row) != len(names):
        raise UsageError(f"{where} has {len(row)} values: give {' and '.join(_COLUMNS)}")
    score, member = (row[names.index(name)] for name in _COLUMNS)
    coin = _COINS.get(member.strip().lower())
    try:
        number = float(score)
    except ValueError as error:
        raise UsageError(
            f"{where}: score is {score[:40]!r}: give a number, higher for what seems to have been in"
        ) from error
    if coin is None:
        raise UsageError(f"{where}: member is {member[:40]!r}: give 1 for a canary that was in, or 0")
    return number, coin


def _beside(audited: Path) -> Path:
    return RunFolder(audited).private / "audit" if audited.is_dir() else audited.with_name(f"{audited.stem}-audit")


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    try:
        there = sorted(name for name in _FILES if (folder / name).exists())
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--output={folder} is no folder: give the name of one")
    except OSError as error:
        raise UsageError(f"--output={folder} can't be written ({error.strerror}): give a folder that can") from error
    if there and not overwrite:
        raise UsageError(
            f"{folder} holds {there[0]} of an audit: give --overwrite to replace it, or --output elsewhere"
        )


def _write(folder: Path, found: "attacks.Report", attacked: Attacked) -> None:
    """The results, for their owner alone: they are computed on canaries without noise."""
    from ..runs._plot_of_audit import plot_audit

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # one that is there keeps its rights
        written = RunFolder(folder)
        written.write_text("audit.txt", found.in_words(*attacked.said) + "\n")
        written.write_json("audit.json", found.to_dict())
        plot_audit(found, f"audit of {attacked.name}", folder / "audit.png")
        for name in _FILES:
            close_to_others(folder / name)
    except OSError as error:
        raise UsageError(f"--output={folder} can't be written ({error.strerror}): give a folder that can") from error


def _rows(found: "attacks.Report") -> list[tuple[str, str]]:
    from ..accounting._epsilon import no_larger, rounded_down, rounded_up

    confidence = no_larger(1 - found.significance, 4)
    rows = [
        ("canaries", f"{len(found.members)}, {int(np.sum(found.members))} of them trained on"),
        ("area under the ROC", f"{found.auroc:.4f} (guessing: 0.5)" + _TURNED * (found.auroc < 0.3)),
        *((f"true positives at {rate:.1%} false", f"{share:.2%}") for rate, share in found.true_positives.items()),
        ("ε, lower bound", f"{rounded_down(found.epsilon)} at δ = {no_larger(found.delta)}, confidence {confidence}"),
    ]
    if found.epsilon_f_dp is not None:
        rows.append(("ε, if the mechanism is Gaussian", rounded_down(found.epsilon_f_dp)))
    if found.epsilon_gaussian is not None:
        rows.append(("ε, if the scores are", rounded_down(found.epsilon_gaussian)))
    if found.claimed_epsilon is not None:
        rows.append(
            (
                "ε, claimed",
                f"{rounded_up(found.claimed_epsilon)}, {'CONTRADICTED' if found.contradicts else 'not contradicted'}",
            )
        )
    return rows
