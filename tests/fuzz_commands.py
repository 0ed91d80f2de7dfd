"""Random command lines: each gets a right answer or one of our errors, and nothing that exists is overwritten unasked.

Options and values are drawn from a seed, good ones and hostile ones, over files that are right, damaged, missing or of another
kind. Training is planned and not done: what is checked is the plan, its budget, and that its options come back from config.json.

    python tests/fuzz_commands.py --commands 1000 --seed 0
"""

import argparse
import collections
import contextlib
import dataclasses
import io
import json
import math
import os
import random
import shlex
import shutil
import sys
import tempfile
import time
import traceback
import typing
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any
from unittest import mock

import numpy as np

import jaxdp
from jaxdp import cli
from jaxdp.commands import _accounting
from jaxdp.commands._options import from_dict, to_dict
from jaxdp.commands.pate import AnalyzeOptions, LabelOptions, PateOptions, _pipeline
from jaxdp.commands.train import TrainOptions, _job
from jaxdp.commands.tune import TuneOptions, _tune

FIXTURES = Path(__file__).parent / "fixtures" / "tfds"
COMMANDS: dict[tuple[str, ...], tuple[type, int]] = {  # with how often each is drawn
    ("train",): (TrainOptions, 8),
    ("tune",): (TuneOptions, 2),
    ("pate",): (PateOptions, 4),
    ("pate", "label"): (LabelOptions, 3),
    ("pate", "analyze"): (AnalyzeOptions, 3),
    ("predict",): (cli.PredictOptions, 4),
    ("audit",): (cli.AuditOptions, 3),
    ("compare",): (cli.CompareOptions, 3),
    ("lookalike",): (cli.LookalikeOptions, 2),
    ("epsilon",): (_accounting.EpsilonOptions, 2),
    ("noise",): (_accounting.NoiseOptions, 1),
    ("steps",): (_accounting.StepsOptions, 1),
    ("batch-size",): (_accounting.BatchSizeOptions, 1),
}
HOSTILE = (
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-300",
    "0.5",
    "99999999999999999999",
    "½",
    "x",
    "--",
    "None",
    "1,2",
)
PATHS = shlex.split(
    "run run/config.json table table/train_features.csv nowhere no/such/file /proc/x /dev/null . empty ünïcode "
    "bad-config no-config old-config damaged bad-summary mine.txt ledger.json junk.json new new.csv new.npy new.png "
    "p.npy p.csv scores.csv labels.csv text.csv latin.csv nul.csv void.csv objects.npy several.npy half.npy"
)
GOOD: dict[str, tuple[str, ...]] = {  # by an option's name, where its type alone doesn't lead far
    "dataset": ("mnist", "mnist", "csv", "csv", "nosuch", "../mnist", "/"),
    "model": ("cnn", "mlp", "dense", "nosuch"),
    "data_dir": (str(FIXTURES),),
    "features": ("table/train_features.csv",),
    "targets": ("table/train_targets_scored.csv",),
    "data": ("table/test_features.csv", "test", "p.npy", "images.npy"),
    "run": ("run",),
    "audited": ("run", "scores.csv"),
    "audit_canaries": ("100", "40"),
    "canaries": ("noise", "wrong-labels", "run.npz"),
    "claimed_epsilon": ("1", "0"),
    "folders": ("run", "."),
    "predictions": ("p.npy", "p.csv"),
    "labels": ("labels.csv",),
    "ledger": ("ledger.json",),
    "output": ("new", "new.csv", "new.npy", "new.png"),
    "plot": ("new.png",),
    "folder": ("new",),
    "resume": ("run", "begun"),
    "bounds": ("-10 10", "0 1", "1 0", "nan 1"),
    "target_bounds": ("-10 10", "0 1", "1 0", "nan 1"),
    "classes": ("0,1", "a,b", "a"),
    "bounds_file": ("bounds.csv",),
    "categories": ("cp_type=trt_cp,ctl_vehicle cp_time=24,48,72 cp_dose=D1,D2", "a=b", "nosuch=1,2"),
    "columns": ("columns.txt",),
    "hidden": ("8", "16 8", ""),
    "delta": ("1e-3", "1e-4", "1e-5", "1e-9"),
    "epsilon": ("0.01", "0.3", "1", "3", "8", "1000"),
    "target_epsilon": ("0.3", "1", "3", "8", "1000"),
    "noise_multiplier": ("0.4", "0.7", "1", "1.3", "4", "20", "1000"),
    "examples": ("60000", "1000"),
    "batch_size": ("64", "256", "1"),
    "truncated_batch_size": ("64", "2", "300"),
    "steps": ("1", "20", "720", "1000000"),
    "epochs": ("1", "3"),
    "clip_norm": ("1", "0.1"),
    "lr": ("0.1", "1"),
    "lrs": ("0.1 1", "1 0.1"),
    "clip_norms": ("0.1 1", "1 1"),
    "batch_sizes": ("16 64", "16"),
    "runs": ("2", "1.5"),
    "score_noise": ("20", "0.5"),
    "teachers": ("8", "3"),
    "queries": ("20", "60"),
    "teacher_batch_size": ("16",),
    "threshold": ("1", "3"),
    "sigma_max": ("6", "2"),
    "sigma_threshold": ("8", "3"),
    "gamma": ("0.05", "1"),
    "num_classes": ("10", "2"),
    "records": ("512", "5000"),
    "rows": ("20", "5"),
    "test_rows": ("3",),
    "warmup": ("2", "0", "100000"),
    "patience": ("1", "50"),
    "folds": ("2", "3"),
    "fold": ("1", "4"),
    "device": ("auto", "cpu", "gpu"),
}
OFTEN = {  # what a command can hardly do without
    ("train",): ("epochs", "batch_size", "delta", "data_dir"),
    ("tune",): ("epochs", "batch_size", "delta", "data_dir", "runs"),
    ("pate",): ("teachers", "queries", "teacher_batch_size", "delta", "data_dir", "threshold"),
    ("pate", "label"): ("predictions", "num_classes", "records", "output", "delta", "threshold"),
    ("pate", "analyze"): ("predictions", "num_classes", "threshold", "labels"),
    ("predict",): ("run", "data"),
    ("audit",): ("audited",),
    ("compare",): ("folders", "output"),
    ("lookalike",): ("folder", "rows", "features", "targets", "test_rows"),
    ("epsilon",): ("noise_multiplier", "json"),
    ("noise",): ("epsilon", "json"),
    ("steps",): ("epsilon", "noise_multiplier", "json"),
    ("batch-size",): ("epsilon", "noise_multiplier", "steps", "json"),
}
OF_TABLES = ("dataset", "features", "targets", "bounds", "epochs", "batch_size", "delta")
OF_NOISE = ("noise_multiplier", "sigma_max", "sigma_threshold", "gamma", "epsilon", "target_epsilon", "bounds_noise")
POSITIONAL = ("run", "audited", "folders", "folder", "predictions")


class Wrong(Exception):
    """A command line that got neither a right answer nor one of our errors."""


class Planned(Exception):
    """A job that would begin to train now."""


def draw(rng: random.Random) -> list[str]:
    """One command line."""
    command = rng.choices(list(COMMANDS), [weight for _, weight in COMMANDS.values()])[0]
    hints = typing.get_type_hints(COMMANDS[command][0])
    names = [field.name for field in dataclasses.fields(COMMANDS[command][0])]
    often = OF_TABLES if command == ("train",) and rng.random() < 0.4 else OFTEN[command]
    chosen = [name for name in often if name in names and rng.random() < 0.95]
    chosen += [
        name for name in rng.sample(names, min(len(names), rng.choice((0, 0, 1, 1, 2, 4)))) if name not in chosen
    ]
    arguments = list(command)
    hostile = rng.random() < 0.45
    for name in chosen:
        words = _words(rng, name, hints[name], hostile and rng.random() < 0.4)
        if often is OF_TABLES and name == "dataset" and not hostile:
            words = ["csv"]
        if name in POSITIONAL:
            arguments += words
        elif hints[name] is bool:
            arguments.append(f"--{rng.choice(('', 'no-'))}{name.replace('_', '-')}")
        else:
            flag = f"--{name if rng.random() < 0.1 else name.replace('_', '-')}"
            arguments += [f"{flag}={words[0]}"] if len(words) == 1 and rng.random() < 0.3 else [flag, *words]
    if rng.random() < 0.02:
        arguments.insert(rng.randrange(len(arguments) + 1), rng.choice((*HOSTILE, "--nosuch", "--help")))
    return arguments


def _words(rng: random.Random, name: str, hint: Any, hostile: bool) -> list[str]:
    """A value for an option."""
    kinds = {kind for kind in (typing.get_args(hint) or (hint,)) if kind is not NoneType}
    if hostile:
        if name in OF_NOISE:
            return [rng.choice(("0", "-1", "nan", "inf", "x", "0.5", "0.1", "0.01", "1e-3", "1e-300", "1e6", "1e300"))]
        return [rng.choice(PATHS if Path in kinds and rng.random() < 0.8 else HOSTILE)]
    if name == "features" and hint is int:
        return [rng.choice(("3", "9"))]
    if name == "targets" and hint is int:
        return [rng.choice(("2", "1"))]
    if name in GOOD:
        return rng.choice(GOOD[name]).split()
    if typing.get_origin(hint) is typing.Literal or any(isinstance(kind, str) for kind in kinds):
        return [rng.choice(sorted(map(str, kinds)))]
    literals = [one for kind in kinds for one in typing.get_args(kind) if isinstance(one, str)]
    if literals:
        return [rng.choice(literals)]
    if Path in kinds:
        return [rng.choice(PATHS)]
    return [rng.choice(("0.9", "0.1") if float in kinds else ("1", "2", "10"))]


@contextlib.contextmanager
def room() -> Iterator[Path]:
    """A folder to be in, with files that commands can take, and files that they can't."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _furnish(Path(folder))
        yield Path(folder)
    assert Path.cwd() == before


def _furnish(here: Path) -> None:
    quietly(["lookalike", "table", "--rows", "60", "--features", "4", "--targets", "2", "--test-rows", "5"])
    table = shlex.split("--features table/train_features.csv --targets table/train_targets_scored.csv --bounds -9 9")
    sizes = shlex.split("--hidden --epochs 2 --batch-size 16 --delta 1e-3 --noise-multiplier 1 --seed 1")
    quietly(["train", "--dataset", "csv", *table, *sizes, "--output", "run"])
    with planning():
        quietly(["train", "--dataset", "csv", *table, *sizes, "--output", "begun"])
    for name in ("bad-config", "no-config", "old-config", "damaged", "bad-summary"):
        shutil.copytree("run", name)
    Path("no-config/config.json").unlink()
    Path("bad-config/config.json").write_text("[1, 2]")
    config = json.loads(Path("run/config.json").read_text())
    Path("old-config/config.json").write_text(json.dumps(config | {"options": config["options"] | {"forgotten": 1}}))
    Path("bad-summary/summary.json").write_text('{"epsilon": 3}')
    for file in [path for path in Path("damaged/model").rglob("*") if path.is_file()]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    votes = np.random.default_rng(0).integers(0, 2, (8, 30))
    np.save("p.npy", votes)
    np.savetxt("p.csv", votes, fmt="%d", delimiter=",")
    np.save("images.npy", np.zeros((3, 28, 28), np.uint8))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    np.savez("several.npz", a=votes, b=votes)
    Path("several.npz").rename("several.npy")
    Path("half.npy").write_bytes(Path("p.npy").read_bytes()[:200])
    asked = shlex.split("--num-classes 2 --records 512 --delta 1e-3 --threshold 1 --output votes")
    quietly(["pate", "label", "p.npy", *asked])
    shutil.copy("votes/labels.csv", "labels.csv")
    shutil.copy("run/statement.json", "ledger.json")
    Path("junk.json").write_text('{"entries": [3]}')
    Path("bounds.csv").write_text("name,lower,upper\n" + "".join(f"{n},-9,9\n" for n in ("g-0", "g-1", "g-2", "g-3")))
    Path("columns.txt").write_text("g-0\n3\ncp_time\n")
    Path("scores.csv").write_text("score,member\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(40)))
    Path("mine.txt").write_text("mine")
    Path("text.csv").write_text("a,b\nc\n")
    Path("latin.csv").write_bytes("id,größe\n1,2\n".encode("latin-1"))
    Path("nul.csv").write_bytes(b"1,\x002\n")
    Path("void.csv").write_bytes(b"")
    Path("empty").mkdir()
    Path("ünïcode").mkdir()


def quietly(arguments: list[str]) -> None:
    """Run a command that prepares."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Planned):
        cli.main(arguments)


@contextlib.contextmanager
def planning() -> Iterator[list[Any]]:
    """Jobs raise `Planned` where they would begin to train, and are kept in the list."""
    jobs: list[Any] = []

    def begin(job: Any, *_: Any) -> None:
        jobs.append(job)
        raise Planned

    with (
        mock.patch.object(_job.Job, "run", begin),
        mock.patch.object(_job, "CheckpointFolder"),
        mock.patch.object(_tune._Search, "run", begin),
        mock.patch.object(_pipeline._Job, "run", begin),
    ):
        yield jobs


def run(arguments: list[str], encoding: str) -> tuple[int | str, str, str, list[Any]]:
    """Exit code (or "planned"), what was printed, what was said of errors, and the jobs that would have begun."""
    streams = [
        io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors) for errors in ("strict", "backslashreplace")
    ]
    code: int | str = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), planning() as jobs:
        try:
            cli.main(arguments)
        except Planned:
            code = "planned"
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # pyright: ignore[reportAttributeAccessIssue]
    return code, out, err, jobs


def judge(arguments: list[str], encoding: str = "utf-8") -> str:
    """What became of a command line: "answer", "planned", "refused" or "help".

    Raises:
        Wrong: for anything else, and where a file that was there is not what it was.
    """
    before = _files()
    try:
        code, out, err, jobs = run(arguments, encoding)
        outcome = _outcome(arguments, code, out, err, jobs)
    except Wrong:
        raise
    except BaseException as error:
        raise Wrong(f"{arguments}: {traceback.format_exc()}") from error
    after = _files()
    changed = [name for name, state in before.items() if after.get(name) != state]
    if changed and "--overwrite" not in arguments:
        raise Wrong(f"{arguments}: {changed} changed")
    for name in sorted(set(after) - set(before), reverse=True):
        Path(name).rmdir() if Path(name).is_dir() else Path(name).unlink()
    return outcome


def _files() -> dict[str, Any]:
    """Every file below, and what tells a changed one."""
    found = {}
    for path in Path().rglob("*"):
        state = path.stat()
        found[str(path)] = None if path.is_dir() else (state.st_size, state.st_mtime_ns, state.st_ino)
    return found


def _outcome(arguments: list[str], code: int | str, out: str, err: str, jobs: list[Any]) -> str:
    if code == 2:
        ours = err.startswith("jaxdp: error: ") and err.count("\n") == 1 and len(err) < 1500
        of_parser = any(said in out + err for said in ("full helptext", "Unrecognized", "Required"))
        if not (ours or of_parser):
            raise Wrong(f"{arguments}: exit code 2 without one line of ours: {err[-600:]!r}")
        return "refused"
    if "--help" in arguments or "-h" in arguments:
        return "help"
    if code == "planned":
        _check_plan(jobs[0])
        return "planned"
    if code != 0 or "Traceback" in err:
        raise Wrong(f"{arguments}: exit code {code}, {err[-600:]!r}")
    check = ANSWERS.get(arguments[0])
    if check is not None:
        check(cli._parse(arguments), out)
    return "answer"


def _check_plan(job: Any) -> None:
    """Options come back from the folder; with a budget, the plan is within it; without privacy, nothing private was asked."""
    options = job.options
    if options.resume is None:
        assert from_dict(type(options), job.folder.options()) == options, "the options don't come back"
    assert to_dict(options) == to_dict(from_dict(type(options), to_dict(options)))
    if isinstance(options, PateOptions):
        return
    if isinstance(options, TuneOptions):
        spent = job._ledger().total(delta=options.delta)
        assert spent.epsilon <= (options.target_epsilon or 1.0) * (1 + 1e-9), "over its budget"
        return
    plan = job.plan
    assert (plan.run is None) == (not options.dp)
    assert 1 <= plan.steps <= plan.asked
    assert plan.warmup < plan.steps
    if plan.run is None:
        assert options.target_epsilon is None
        return
    assert plan.run.steps == plan.steps
    assert plan.run.noise_multiplier > 0
    spent = job.spent_before.extend(plan.run.ledger()).epsilon(delta=options.delta, accountant=plan.accountant)
    assert math.isfinite(spent.epsilon)
    if options.target_epsilon is not None:
        assert spent.epsilon <= options.target_epsilon * (1 + 1e-9), "over its budget"


def _described(options: Any, noise: float, batch: float, steps: int) -> jaxdp.DPSGD:
    return jaxdp.DPSGD(
        num_examples=options.examples,
        expected_batch_size=batch,
        steps=steps,
        clip_norm=options.clip_norm,
        noise_multiplier=noise,
        sampling=options.sampling,
        truncated_batch_size=options.truncated_batch_size,
        adjacency=options.adjacency or ("replace_special" if options.sampling == "shuffle" else "add_or_remove_one"),
    )


def _check_question(options: Any, out: str) -> None:
    """What is found keeps the budget by RDP, where that can account it."""
    if not options.json:
        assert "satisfies" in out
        return
    found = json.loads(out)
    quantity = next(
        name for name in ("epsilon", "noise_multiplier", "batch_size", "steps") if isinstance(found.get(name), dict)
    )
    assert all(0 <= value < math.inf for value in found[quantity].values())
    assert quantity == "epsilon" or all(found[quantity].values())  # where delta alone pays, epsilon is 0
    if quantity == "epsilon" or "rdp" not in found[quantity]:
        return
    asked = {
        "noise_multiplier": getattr(options, "noise_multiplier", None),
        "batch_size": getattr(options, "batch_size", None),
        "steps": found["steps"],
    } | {quantity: found[quantity]["rdp"]}
    spent = _described(options, asked["noise_multiplier"], asked["batch_size"], asked["steps"]).epsilon(
        delta=options.delta
    )
    assert spent <= options.epsilon * (1 + 1e-9), "over its budget"


def _check_predictions(options: Any, out: str) -> None:
    lines = out.splitlines() if options.output is None else []
    if options.output is not None and options.output.suffix == ".csv":
        lines = options.output.read_text("utf-8").splitlines()
    for line in lines[1:]:
        assert all(0 <= float(cell) <= 1 for cell in line.split(",")[1:]), line


def _check_lookalike(options: Any, _: str) -> None:
    for split, rows in (("train", options.rows), ("test", options.test_rows)):
        for kind in ("features", "targets_scored"):
            assert len((options.folder / f"{split}_{kind}.csv").read_text().splitlines()) == rows + 1


def _check_pictured(options: Any, out: str) -> None:
    if options.json:
        assert json.loads(out)
    if options.output.is_file():
        assert options.output.read_bytes().startswith(b"\x89PNG")


ANSWERS: dict[str, Callable[[Any, str], None]] = {
    **dict.fromkeys(("epsilon", "noise", "steps", "batch-size"), _check_question),
    "predict": _check_predictions,
    "lookalike": _check_lookalike,
    "compare": _check_pictured,
}


def fuzz(commands: int, seed: int, *, show: bool = False) -> collections.Counter[str]:
    """How often each outcome came out of so many command lines; raises `Wrong` with all that came out wrong."""
    outcomes: collections.Counter[str] = collections.Counter()
    wrong = []
    with room():
        for number in range(commands):
            rng = random.Random(f"{seed}:{number}")
            arguments, encoding = draw(rng), rng.choice(("utf-8", "utf-8", "ascii", "latin-1"))
            started = time.perf_counter()
            try:
                outcome = judge(arguments, encoding)
            except Wrong as error:
                outcome = "wrong"
                wrong.append(f"{number}: {error}")
            outcomes[f"{arguments[0] if arguments else ''}: {outcome}"] += 1
            seconds = time.perf_counter() - started
            if show and (outcome == "wrong" or seconds > 10):
                print(
                    f"{number}: {outcome} after {seconds:.1f} s: {arguments}",
                    wrong[-1] if outcome == "wrong" else "",
                    flush=True,
                )
    if wrong:
        raise Wrong(f"{len(wrong)} of {commands}:\n" + "\n".join(wrong))
    return outcomes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    warnings.simplefilter("error", RuntimeWarning)
    start = time.process_time()
    try:
        for what, often in sorted(fuzz(given.commands, given.seed, show=True).items()):
            print(f"{often:5d}  {what}")
    except Wrong as error:
        sys.exit(str(error).splitlines()[0])
    print(f"{given.commands} command lines, none wrong, {time.process_time() - start:.0f} s of CPU")
