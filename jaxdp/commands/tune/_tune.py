"""`tune`: from options to the best model of a search, in a folder that is a run's as any other's.

Runs are made one after the other in private/trials/, each as `jaxdp train` makes it, resumable at any moment. Of all of them the
folder keeps the best model at its end, with a statement of what the whole search cost; the others are erased.
"""

import json
import secrets
import shlex
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ... import _checks
from ..._errors import UsageError
from ..._interrupts import resumable, stop_here
from ..._processes import other_versions
from ...accounting import Ledger, Spent, event_epsilon, event_from_dict, event_to_dict, rounded_up
from ...dpsgd._run import DPSGD
from ...mechanisms import Gaussian
from ...runs._checkpoint import save_model
from ...runs._devices import Devices, use_devices
from ...runs._finished import load_run
from ...runs._folder import TRIALS, RunFolder, as_written, close_to_others, first_free
from ...runs._key_source import KeySource
from ...runs._report import say
from .. import _options
from ..train._config import check_seed, in_config, of_problem
from ..train._ledger import read_ledger
from ..train._plan import resolve_plan
from ..train._problem import Problem
from ..train._report import summary_table
from ..train._results import is_public, published
from ..train._train import problem_for, train_quietly
from ._options import TuneOptions
from ._picture import plot_trials
from ._price import Price, event_of_run, price
from ._score import check_task, records_scored, rightness, scored_on
from ._statement import statement_of
from ._trials import Trial, drawn, keep_trials, kept_trials


def tune(options: TuneOptions, console: Console | None = None) -> Path:
    """Search as `jaxdp tune` does.

    Args:
        options: what is asked for; with `options.resume`, the options that the search was started with.
        console: where progress and results are shown; by default standard output.

    Returns:
        The folder, of which `jaxdp.load_run` gives the best model, unless no run was drawn.

    Raises:
        UsageError: for anything in the options, the data or the folder that makes the search impossible or its epsilon untrue;
            before anything is compiled.
    """
    options.check()
    console = console or Console()
    path = options.resume or options.output or _new_path(options)
    say(
        console,
        f"jaxdp: {options.architecture} on {options.dataset}, a search of {options.runs:g} runs or so, in {path}",
    )
    say(console, "what is printed while it goes on isn't covered by ε: don't publish it")
    if options.resume is not None and RunFolder.existing(path).is_finished:
        _check_options(RunFolder(path), options)
    else:
        devices = use_devices(options.device, options.devices)
        with ExitStack() as held:
            begin = _new if options.resume is None else _resumed
            search = begin(options, path, devices, console, held)
            with resumable(f"jaxdp tune --resume {shlex.quote(str(path))}"):
                search.run()
    _show(RunFolder(path), console)
    return path


def _new_path(options: TuneOptions) -> Path:
    """A folder that tells no time: how long a search took says how many runs it had."""
    return first_free(Path("runs") / f"{options.dataset.replace('/', '-')}-{options.architecture}-tune")


def _show(folder: RunFolder, console: Console) -> None:
    """The results, and what they promise."""
    summary = folder.summary()
    if "model" in summary:
        console.print(summary_table(summary))
    else:
        say(console, "no run was drawn, as may happen: there is no model, and what the statement says is spent")
    say(console, (folder.path / "statement.txt").read_text("utf-8"))


@dataclass(frozen=True)
class _Ending:
    """What is left to do once a best model is kept: to erase all else, and to state what the search cost. It takes no data."""

    options: TuneOptions
    folder: RunFolder
    price: Price
    config: dict[str, Any]

    def run(self) -> None:
        """Do it; doing it again does no harm."""
        if (trials := self.folder.private / TRIALS).exists():
            shutil.rmtree(trials)
        self.folder.erase()
        summary, spent, ledger = self.folder.results(), self.spent(), self.ledger()
        none_drawn = "model" not in summary
        with as_written(self.folder.path / "config.json"):
            task = self.config["network"]["task"]
        told = {name: summary[name] for name in ("records_scored", "public_test")}
        text = statement_of(self.options, task, self.price, spent, ledger, none_drawn=none_drawn, **told)
        self.folder.write_text("statement.txt", text + "\n")
        fields = {name: summary[name] for name in ("epsilon", "delta", "order", "total_epsilon")}
        self.folder.write_json("statement.json", {**fields, "ledger": ledger.to_dict(), "statement": text})
        shown = published(summary, with_test=summary["public_test"])
        self.folder.write_json("summary.json", shown if none_drawn else {**shown, "lr": summary["lr"]})

    def spent(self) -> Spent:
        """On the search with its runs."""
        return event_epsilon(
            self.price.event, delta=self.options.delta, accountant="rdp", adjacency=self.options.relation
        )

    def ledger(self) -> Ledger:
        """All that was spent, the search with it."""
        with as_written(self.folder.path / "config.json"):
            before = Ledger.from_dict(self.config["spent_before"])
            own = Ledger(adjacency=self.options.relation).add(
                self.price.event, "a search with its runs", nonce=self.config["nonce"]
            )
        return before.extend(own)


@dataclass
class _Search:
    """A search under way."""

    ending: _Ending
    problem: Problem
    keys: KeySource
    console: Console
    started: float

    @property
    def options(self) -> TuneOptions:
        """Of the search."""
        return self.ending.options

    @property
    def folder(self) -> RunFolder:
        """In which it goes on."""
        return self.ending.folder

    def run(self) -> None:
        """Make the runs that are left, keep the best, erase all else, and state what it cost."""
        made = kept_trials(self.folder)
        for i in range(len(made)):
            if made[i].score is None:
                stop_here()
                made[i] = replace(made[i], score=self._made(i, made))
                keep_trials(self.folder, made)
        self._keep(made)
        self.ending.run()

    def _made(self, i: int, trials: list[Trial]) -> float:
        """Train one model, and how it did."""
        trial = trials[i]
        number = f"run {i + 1} of {len(trials)}"
        said = f"learning rate {trial.lr:.4g}, clip norm {trial.clip_norm:.4g}, batch size {trial.batch_size}"
        say(self.console, f"{number}: {said} (ε below is of this run alone)")
        path = self.folder.private / TRIALS / str(i + 1)
        begun = (path / "config.json").exists()
        if path.exists() and not begun:  # but for half a file
            shutil.rmtree(path)
        of_run = self.options.of_a_run(
            **_drawn(trial),
            noise_multiplier=self.ending.price.noise[trial.batch_size],
            output=path,
            resume=path if begun else None,
        )
        train_quietly(of_run, self.console, self.problem, self.keys.secret_for(f"run {i}"))
        made = DPSGD.from_dict(RunFolder(path).read_json("config.json")["plan"]["run"])
        if made.event != event_of_run(self.options, self.ending.price, trial.batch_size):
            raise UsageError(f"{path} is not the run that was accounted: start the search anew, and report this")
        noise = Gaussian(noise_multiplier=self.ending.price.score_noise, sensitivity=1.0)
        of_table = self.options.is_table
        right = rightness(self.problem, load_run(path).params, of_table=of_table)
        score = float(noise(right, key=self.keys.key(f"score {i}")))
        shown = score / records_scored(self.problem, of_table=of_table)
        say(
            self.console,
            f"{number}: a score of {shown:.4f}, under noise (1: all right), on {scored_on(of_table=of_table)}",
        )
        return score

    def _keep(self, trials: list[Trial]) -> None:
        """Copy what is left of the best run, and what came out, which stays private."""
        folder, spent = self.folder, self.ending.spent()
        privacy = {
            "epsilon": {"rdp": spent.epsilon},
            "accountant": "rdp",
            "delta": self.options.delta,
            "order": spent.order,
            "total_epsilon": self.ending.ledger().total(delta=self.options.delta).epsilon,
        }
        summary: dict[str, Any] = {"dataset": self.problem.name, **privacy}
        scored = records_scored(self.problem, of_table=self.options.is_table)
        if trials:
            best = max(range(len(trials)), key=lambda i: trials[i].score or 0.0)
            source = RunFolder(folder.private / TRIALS / str(best + 1))
            if not source.path.is_dir():
                raise UsageError(
                    f"{source.path} is gone, the best run of this search: bring it back and --resume, or search anew, which "
                    "costs again"
                )
            best_run = load_run(source.path)
            save_model(folder.path / "model", best_run.params, best_run.step)  # anew, so that its time says nothing
            folder.keep_metrics(source.metrics())
            shutil.copyfile(source.plot, folder.plot)
            title = f"{self.options.architecture} on {self.problem.name}, ε = {rounded_up(spent.epsilon, 3)} with the search"
            plot_trials(trials, best, scored, title, folder.private / "trials.png")
            for picture in (folder.plot, folder.private / "trials.png"):
                close_to_others(picture)
            folder.rewrite_config(self.ending.config | {"plan": source.read_json("config.json")["plan"]})
            summary = {**source.summary(), **privacy, "lr": trials[best].lr, "folder": str(folder.path)}
            summary["seconds"] = time.perf_counter() - self.started
        public_test = is_public(summary) if trials else self.problem.public_test
        folder.keep_results({**summary, "records_scored": scored, "public_test": public_test})


def _new(options: TuneOptions, path: Path, devices: Devices, console: Console, held: ExitStack) -> _Search:
    """A search from its beginning: what it costs and what its runs are is settled before the first."""
    started = time.perf_counter()
    spent_before = read_ledger(options.ledger)
    problem = problem_for(options, devices, console, Ledger())
    check_task(problem)
    if options.recipe_in_use.noise_multiplier is not None:
        say(console, f"the noise multiplier of the recipe {options.recipe} isn't used: the budget sets it")
    say(console, "finding the least noise for the budget")
    if options.is_table:  # those held back are protected, too
        _checks.delta(options.delta, problem.examples + records_scored(problem, of_table=True))
    found = price(options, problem.examples, spent_before)
    _check_runs(options, found)
    config = {
        "command": "tune",
        **of_problem(options, problem, spent_before),
        "search": {
            "num_examples": found.num_examples,
            "noise": [[size, sigma] for size, sigma in found.noise.items()],
            "score_noise": found.score_noise,
            "event": event_to_dict(found.event),
        },
    }
    secret = secrets.token_bytes(32)
    keys = _keys(options, config, problem, secret)
    config |= {"nonce": keys.nonce("search")}
    folder = RunFolder.create(path)
    held.enter_context(folder.locked())
    folder.refuse_begun()  # nothing is written into what another process has begun and left since
    keep_trials(folder, drawn(options, options.sizes(problem.examples), keys))
    folder.begin(config, options.seed, problem.fingerprint, secret)
    ending = _Ending(options, folder, found, json.loads(json.dumps(config)))
    return _Search(ending, problem, keys, console, started)


def _resumed(
    options: TuneOptions, path: Path, devices: Devices, console: Console, held: ExitStack
) -> _Search | _Ending:
    """A search that is gone on with, if anything is left to do."""
    folder = RunFolder.existing(path)
    held.enter_context(folder.locked())
    if not folder.is_trained:
        folder.check_config()
    config = folder.read_json("config.json")
    _check_options(folder, options)
    with as_written(folder.path / "config.json"):
        found = config["search"]
        noise = {int(size): float(sigma) for size, sigma in found["noise"]}
        paid = Price(int(found["num_examples"]), noise, float(found["score_noise"]), event_from_dict(found["event"]))
    ending = _Ending(options, folder, paid, config)
    if folder.is_trained:
        return ending
    problem = problem_for(options, devices, console, Ledger())
    keys = _keys(options, config, problem, folder.secret)
    folder.check_data(problem.fingerprint, in_config(problem))
    check_seed(folder.path, keys, config["nonce"], "search")
    if told := other_versions(config["versions"]):
        say(console, told)
    return _Search(ending, problem, keys, console, time.perf_counter())


def _check_options(folder: RunFolder, options: TuneOptions) -> None:
    with as_written(folder.path / "config.json"):
        _options.check_resumed(folder.path, folder.options(), options)


def _check_runs(options: TuneOptions, price: Price) -> None:
    """Refuse now what would make a run impossible that may be drawn later."""
    low, high = ({name: ends[end] for name, ends in options.ranges.items()} for end in (0, 1))
    for size, sigma in price.noise.items():
        for ends in (low, high):
            of_run = options.of_a_run(**ends, batch_size=size, noise_multiplier=sigma)
            of_run.check()
            resolve_plan(of_run, price.num_examples, Ledger())


def _drawn(trial: Trial) -> dict[str, Any]:
    """What a run drew, by the names of its options."""
    return {name: getattr(trial, name) for name in ("lr", "clip_norm", "batch_size", "seed")}


def _keys(options: TuneOptions, config: dict[str, Any], problem: Problem, secret: bytes | None) -> KeySource:
    """Where the keys of a search come from, by its config and, without a seed, its secret, as they are or will be written."""
    matters = [
        _options.that_matter(options),
        config["search"],
        config["spent_before"],
        config["model"],
        config["network"],
    ]
    return KeySource(options.seed, ["tune", *json.loads(json.dumps(matters))], problem.fingerprint, secret)
