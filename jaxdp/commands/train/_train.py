"""`train`: from options to a finished run in a folder."""

import importlib.metadata
import json
import shlex
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ... import data as datasets
from ..._errors import UsageError
from ..._interrupts import resumable
from ...accounting import Ledger, accountants_of, statement
from ...dpsgd._run import DPSGD
from ...dpsgd._step import TrainState
from ...models import augmented
from ...runs._checkpoint import Checkpoint, CheckpointFolder, save_model
from ...runs._device import check_room, in_words, use_device
from ...runs._finished import FinishedRun, load_run
from ...runs._folder import PRIVATE, RunFolder, as_written, close_to_others, new_path
from ...runs._key_source import KeySource, nonce_as_words
from ...runs._loop import Loop, Totals
from ...runs._plots import plot_epsilon, plot_metrics
from ...runs._report import ProgressDisplay, progress_display, rows_shown
from .. import _options
from .._options import from_dict, plan_that_matters, that_matter
from .._sampling import cut_nearly_always
from ._optimizer import optimizer, params_of
from ._options import TrainOptions
from ._plain_step import PlainStep
from ._plan import Plan, resolve_plan
from ._problem import Problem, problem_of
from ._recipe import overruled
from ._report import status_line, summary_table
from ._tables import table_problem

def train(options: TrainOptions, console: Console | None = None) -> FinishedRun:
    """Train a model as `jaxdp train` does.

    Args:
        options: what is asked for; with `options.resume`, the options that the run was started with.
        console: where progress and results are shown; by default standard output.

    Returns:
        The finished run, as `jaxdp.load_run` gives it.

    Raises:
        UsageError: for anything in the options, the data or the folder that makes the run impossible or its epsilon
            untrue; before anything is compiled, but for a clipped gradient that isn't what differentiation says.
    """
    options.check()
    console = console or Console()
    started = time.perf_counter()
    device = use_device(options.device)
    if options.resume is None:
        spent_before = read_ledger(options.ledger)
        problem = _problem(options, spent_before)
        _check_room(device, problem)
        spent_before = spent_before.extend(problem.spent)
        plan = resolve_plan(options, len(problem.train[0]), spent_before)
        folder = RunFolder.create(_path_for(options))
        with folder.locked():
            folder.begin(_config(options, plan, problem, spent_before), options.seed, problem.fingerprint)
            _Job(options, folder, problem, device, console, started).run()
    else:
        folder = RunFolder.existing(options.resume)
        with as_written(folder.path / "config.json"):
            _options.check_resumed(folder.path, folder.options(), options)
        with nullcontext() if folder.is_finished else folder.locked():
            if not folder.is_finished:
                problem = _problem(options, Ledger())
                _check_room(device, problem)
                if not folder.is_trained:  # of which the fingerprint may be erased already
                    folder.check_data(problem.fingerprint)
                _Job(options, folder, problem, device, console, started).run()
    _show(folder, console)
    return load_run(folder.path)


def _check_room(device: Any, problem: Problem) -> None:
    fix = "give a model that keeps less, such as --model cnn, more --scales, or a data set of fewer or smaller inputs"
    check_room(device, problem.model, problem.train[0], problem.test[0], fix=fix)


@dataclass
class _Job:
    """A run under way: what does not change while it goes on, and the pieces of its course."""

    options: TrainOptions
    folder: RunFolder
    problem: Problem
    device: Any
    console: Console
    started: float

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run as the folder describes it, the same when it is gone on with."""
        return self.folder.read_json("config.json")

    @cached_property
    def plan(self) -> Plan:
        """The plan that the run was started with; how many examples are held in memory at once may be another number."""
        with as_written(self.folder.path / "config.json"):
            described = self.config["plan"]["run"]
            run = DPSGD.from_dict(described) if described else None
            if run is not None:
                run = replace(run, microbatch_size=self.options.microbatch_size)
            return Plan(**{**self.config["plan"], "run": run})

    @cached_property
    def spent_before(self) -> Ledger:
        """The ledger of all that had been spent before it."""
        with as_written(self.folder.path / "config.json"):
            return Ledger.from_dict(self.config["spent_before"])

    def run(self) -> None:
        """Start or go on, train, evaluate after each epoch, keep the model, erase the keys, and then state it."""
        with resumable(f"jaxdp train --resume {shlex.quote(str(self.folder.path))}"):
            if not self.folder.is_trained:
                self._tell_of_the_plan()
                with CheckpointFolder(self.folder.checkpoints, self.folder.mark) as checkpoints:
                    loop, state = self._train(checkpoints)
                self._keep(loop, state)
            self.folder.erase()
            self._publish()

    def _tell_of_the_plan(self) -> None:
        if lines := overruled(self.options):
            self.console.print(
                f"recipe {self.options.recipe}, with {', '.join(lines)}", highlight=False, soft_wrap=True
            )
        if self.plan.steps < self.plan.asked:
            line = (
                f"stopping after {self.plan.steps} of {self.plan.asked} steps, before --target-epsilon "
                f"{self.options.target_epsilon} is overshot"
            )
            self.console.print(line, highlight=False, soft_wrap=True)
        if self.plan.run is not None and (warning := cut_nearly_always(self.plan.run)):
            self.console.print(warning, highlight=False, soft_wrap=True)

    def _begun(self, step: Any, checkpoints: CheckpointFolder) -> Checkpoint:
        """From where to go on: the newest checkpoint, or the state before the first step."""
        keys = KeySource(self.options.seed, _described(self.config), lambda: self.problem.read)
        fresh = step.init(self.problem.model.init(keys.key("parameters")), keys.key("run"))
        nonce = None if self.plan.run is None else nonce_as_words(self.config["nonce"])
        fresh = fresh._replace(spent_before=self.spent_before, nonce=nonce)
        start, damaged = checkpoints.load(_checkpoint(fresh, Totals()))
        for line in damaged:
            self.console.print(f"{line}: going on from the one before", highlight=False, soft_wrap=True)
        if start is None:
            if self.folder.metrics():
                raise UsageError(
                    f"{self.folder.checkpoints} has no checkpoint, though epochs were made: start the run anew"
                )
            start = _checkpoint(fresh, Totals())
            checkpoints.save(start)
        self.folder.keep_metrics(self.folder.metrics(up_to_step=start.state.step))
        return start

    def _step(self) -> Any:
        loss, optimize = self.problem.model.loss, optimizer(self.plan)
        if self.plan.augmentations:
            loss = augmented(loss, self.plan.augmentations)
        if self.plan.run is None:
            return PlainStep(loss, optimize, batch_size=self.plan.batch_size, steps_per_epoch=self.plan.steps_per_epoch)
        return self.plan.run.make_step(loss, optimize, has_aux=True)

    def _train(self, checkpoints: CheckpointFolder) -> tuple[Loop, TrainState]:
        step, model = self._step(), self.problem.model
        start = self._begun(step, checkpoints)
        state = start.state
        (inputs, labels), (test_inputs, test_labels) = self.problem.train, self.problem.test
        on_device = jax.device_put((self._prepared(inputs), labels))
        test_inputs = self._prepared(test_inputs)
        with progress_display(self.console, self.plan.steps, start.state.step) as display:
            loop = Loop(
                step=step,
                data=on_device,
                steps_per_epoch=self.plan.steps_per_epoch,
                steps=self.plan.steps,
                on_steps=lambda made, totals: self._show_progress(display, loop, made, totals),
                save=lambda state, totals: checkpoints.save(_checkpoint(state, totals)),
            )
            epochs = () if self._has_stopped() else loop.epochs(start.state, Totals(**start.totals))
            for epoch, state, totals in epochs:
                record = self._record(loop, epoch, state.step, totals)
                predicted = model.probabilities(params_of(state), test_inputs)
                record["test_loss"], record["test_accuracy"] = model.evaluate(predicted, test_labels)
                self.folder.add_metrics(record)
                checkpoints.save(_checkpoint(state, Totals()))
                display.end_of_epoch(status_line(record, self.plan.epochs))
                if self._has_stopped():
                    break
        return loop, state

    def _prepared(self, inputs: np.ndarray) -> Any:
        """Inputs as the model takes them."""
        return jax.block_until_ready(self.problem.model.prepare(inputs, progress=rows_shown))

    def _has_stopped(self) -> bool:
        """Whether the loss on examples held back has been no better for --patience epochs."""
        if self.options.patience is None:
            return False
        losses = [record["test_loss"] for record in self.folder.metrics()]
        return bool(losses) and len(losses) - 1 - int(np.argmin(losses)) >= self.options.patience

    def _show_progress(self, display: ProgressDisplay, loop: Loop, made: int, totals: Totals) -> None:
        if not display.due():
            return
        epoch = (made - 1) // self.plan.steps_per_epoch + 1
        display.update(made, status_line(self._record(loop, epoch, made, totals), self.plan.epochs))

    def _record(self, loop: Loop, epoch: int, made: int, totals: Totals) -> dict[str, Any]:
        run = self.plan.run
        return {
            "epoch": epoch,
            "step": made,
            "train_loss": totals.mean("loss") / self.problem.model.targets,
            "train_accuracy": totals.mean("correct"),
            "clipped": totals.mean("clipped") if run else None,
            "epsilon": self._epsilon(made),
            "accountant": self.plan.accountant,
            "delta": self.options.delta if run else None,
            "steps_per_second": loop.steps_per_second,
            "seconds": time.perf_counter() - self.started,
        }

    def _epsilon(self, made: int) -> float | None:
        """The epsilon of the run so far."""
        if self.plan.run is None or self.plan.accountant is None:
            return None
        return self.plan.run.epsilon(delta=self.options.delta, accountant=self.plan.accountant, steps=made)


def _checkpoint(state: TrainState, totals: Totals) -> Checkpoint:
    """The part of a state and of the epoch under way that is kept."""
    model = params_of(state)
    return Checkpoint(state, asdict(totals), None if model is state.params else model)


def _show(folder: RunFolder, console: Console) -> None:
    console.print(summary_table(folder.summary()))
    statement_file = folder.path / "statement.txt"
    if statement_file.exists():
        console.print(statement_file.read_text("utf-8"), highlight=False, soft_wrap=True)


def _path_for(options: TrainOptions) -> Path:
    return options.output or new_path(f"{options.dataset.replace('/', '-')}-{options.architecture}")


def read_ledger(path: Path | None) -> Ledger:
    """The ledger in a JSON file, or in the statement.json of a run; an empty one for None.

    Raises:
        UsageError: where the file can't be read, or holds no ledger.
    """
    if path is None:
        return Ledger()
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--ledger={path} can't be read ({error}): give the statement.json of a run, or a ledger's to_dict() as JSON"
        ) from error
    return Ledger.from_dict(content.get("ledger", content) if isinstance(content, dict) else content)


def _problem(options: TrainOptions, spent_before: Ledger) -> Problem:
    """The problem that the options pose."""
    if options.is_table:
        return table_problem(options, spent_before)
    data = datasets.load_labelled(options.dataset, options.data_dir, progress=rows_shown)
    return problem_of(datasets.hold_back(data, options.holdout), options)


def _config(options: TrainOptions, plan: Plan, problem: Problem, spent_before: Ledger) -> dict[str, Any]:
    """The part of a run that is published before it begins: neither its seed nor anything that the data tell for nothing."""
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "dp-accounting")}
    config = {
        "options": _options.to_dict(replace(options, seed=None)),
        "plan": {**vars(plan), "run": plan.run.to_dict() if plan.run else None},
        "spent_before": spent_before.to_dict(),
        "model": problem.described,
        "network": problem.model.described,
        "versions": versions,
    }
    described = _described(json.loads(json.dumps(config)))
    return {**config, "nonce": KeySource(options.seed, described, lambda: problem.read).nonce("run")}


def _described(config: dict[str, Any]) -> Any:
    """The description that a run's draws depend on, beside its seed and its data, from its config as it was read."""
    options = that_matter(from_dict(TrainOptions, config["options"]))
    return [options, plan_that_matters(config["plan"]), config["spent_before"], config["model"]]
