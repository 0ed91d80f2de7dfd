"""`train`: from options to a finished run in a folder."""

import hashlib
import importlib.metadata
import json
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from .. import _options, data as datasets
from .._device import in_words, use_device
from .._errors import UsageError
from .._interrupts import resumable
from .._run import DPSGD
from .._step import TrainState
from ..accounting import Ledger, statement
from ..noise import key_from_entropy
from ._checkpoint import Checkpoint, CheckpointFolder
from ._finished import FinishedRun, load_run
from ._folder import RunFolder, as_written, new_path
from ._loop import Loop, Totals
from ._optimizer import optimizer, params_of
from ._options import TrainOptions
from ._plain_step import PlainStep
from ._plots import plot_epsilon, plot_metrics
from ._problem import Classifier, Problem, classifier
from ._recipe import Plan, cut_nearly_always, settle
from ._report import ProgressDisplay, progress_display, status_line, summary_table
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
            untrue, before anything is compiled.
    """
    options.check()
    console = console or Console()
    started = time.perf_counter()
    device = use_device(options.device)
    problem = table_problem(options) if options.dataset == "csv" else _image_problem(options)
    if options.resume is None:
        spent_before = read_ledger(options.ledger).extend(problem.spent)
        plan = settle(options, len(problem.train[0]), spent_before)
        folder = RunFolder.create(_path_for(options))
        folder.write_json("config.json", _config(options, plan, problem, spent_before))
    else:
        folder = RunFolder.existing(options.resume)
        plan, spent_before = _stored_plan(folder, options, problem.fingerprint)
    if plan.steps < plan.asked:
        line = f"stopping after {plan.steps} of {plan.asked} steps, before --target-epsilon {options.target_epsilon} is overshot"
        console.print(line, highlight=False, soft_wrap=True)
    if plan.run is not None and (warning := cut_nearly_always(plan.run)):
        console.print(warning, highlight=False, soft_wrap=True)
    job = _Job(options, plan, spent_before, folder, problem, device, console, started)
    run_fingerprint = hashlib.sha256(json.dumps(folder.read_json("config.json")).encode()).hexdigest()
    go_on = resumable(f"jaxdp train --resume {shlex.quote(str(folder.path))}")
    with go_on, CheckpointFolder(folder.checkpoints, run_fingerprint) as checkpoints:
        job.run(checkpoints)
    return load_run(folder.path)


@dataclass
class _Job:
    """A run under way: what does not change while it goes on, and the pieces of its course."""

    options: TrainOptions
    plan: Plan
    spent_before: Ledger
    folder: RunFolder
    problem: Problem
    device: Any
    console: Console
    started: float

    def run(self, checkpoints: CheckpointFolder) -> None:
        """Start or go on, train, evaluate after each epoch, finish."""
        model = self.problem.model
        step = self._step(model)
        key = key_from_entropy() if self.options.seed is None else jax.random.key(self.options.seed)
        init_key, run_key = jax.random.split(key)
        fresh = step.init(model.init(init_key), run_key)._replace(spent_before=self.spent_before)
        start, damaged = checkpoints.load(fresh)
        for line in damaged:
            self.console.print(f"{line}: going on from the one before", highlight=False, soft_wrap=True)
        if start is None:
            if self.folder.metrics():
                raise UsageError(
                    f"{self.folder.checkpoints} has no checkpoint, though epochs were made: start the run anew"
                )
            start = Checkpoint(fresh, asdict(Totals()))
            checkpoints.save(start)
        if start.keys_are_erased:
            self._show()
            return
        self.folder.keep_metrics(self.folder.metrics(up_to_step=start.state.step))
        loop, state = self._train(model, step, start, checkpoints)
        self._finish(loop, state.step)
        checkpoints.save_without_keys(Checkpoint(state, asdict(Totals())))
        self._show()

    def _step(self, model: Classifier) -> Any:
        optimize = optimizer(self.options, self.plan.lr, self.plan.steps)
        if self.plan.run is None:
            return PlainStep(
                model.loss, optimize, batch_size=self.plan.batch_size, steps_per_epoch=self.plan.steps_per_epoch
            )
        return self.plan.run.make_step(model.loss, optimize, has_aux=True)

    def _train(
        self, model: Classifier, step: Any, start: Checkpoint, checkpoints: CheckpointFolder
    ) -> tuple[Loop, TrainState]:
        state = start.state
        on_device = jax.device_put(self.problem.train)
        with progress_display(self.console, self.plan.steps, start.state.step) as display:
            loop = Loop(
                step=step,
                data=on_device,
                steps_per_epoch=self.plan.steps_per_epoch,
                steps=self.plan.steps,
                on_steps=lambda made, totals: self._show_progress(display, loop, made, totals),
                save=lambda state, totals: checkpoints.save(Checkpoint(state, asdict(totals))),
            )
            epochs = () if self._has_stopped() else loop.epochs(start.state, Totals(**start.totals))
            for epoch, state, totals in epochs:
                record = self._record(loop, epoch, state.step, totals)
                inputs, labels = self.problem.test
                predicted = model.probabilities(params_of(state), inputs)
                record["test_loss"], record["test_accuracy"] = model.evaluate(predicted, labels)
                self.folder.add_metrics(record)
                checkpoints.save(Checkpoint(state, asdict(Totals())))
                display.end_of_epoch(status_line(record, self.plan.epochs))
                if self._has_stopped():
                    break
        return loop, state

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
        """What the run has cost so far."""
        if self.plan.run is None or self.plan.accountant is None:
            return None
        return self.plan.run.epsilon(delta=self.options.delta, accountant=self.plan.accountant, steps=made)

    def _finish(self, loop: Loop, made: int) -> None:
        """Write the statement, the summary and the plot of a run that ended after so many steps."""
        records = self.folder.metrics()
        last, run, options = records[-1], self.plan.run, self.options
        summary = {
            "dataset": self.problem.name,
            "model": options.architecture,
            "test_accuracy": last["test_accuracy"],
            "test_loss": last["test_loss"],
            "epsilon": None,
            "batch_size": self.plan.batch_size,
            "steps": made,
            "epochs": last["epoch"],
            "device": in_words(self.device),
            "first_step_seconds": loop.first_step_seconds,
            "milliseconds_per_step": loop.milliseconds_per_step,
            "seconds": time.perf_counter() - self.started,
            "folder": str(self.folder.path),
        }
        title = f"{options.architecture} on {self.problem.name}, without privacy"
        if run is not None:
            summary |= self._privacy(run)
            self._write_statement(run, summary, made)
            plot_epsilon(run, options.delta, self.folder.epsilon_plot)
            shown = summary["epsilon"][self.plan.accountant]
            title = f"{options.architecture} on {self.problem.name}, ε = {shown:.3f} at δ = {options.delta:g}"
        plot_metrics(records, title, self.folder.plot)
        self.folder.write_json("summary.json", summary)

    def _privacy(self, run: DPSGD) -> dict[str, Any]:
        """What the summary says of privacy."""
        delta = self.options.delta
        spent = {name: run.spent(delta=delta, accountant=name) for name in ("rdp", "pld") if name in run.accountants}
        shared = ("noise_multiplier", "clip_norm", "sampling", "adjacency")
        return {
            "epsilon": {name: each.epsilon for name, each in spent.items()},
            "accountant": self.plan.accountant,
            "delta": delta,
            "order": spent["rdp"].order if "rdp" in spent else None,
            "total_epsilon": self._total_epsilon(run, [each.epsilon for each in spent.values()]),
            **{name: getattr(run, name) for name in shared},
        }

    def _total_epsilon(self, run: DPSGD, alone: list[float]) -> float:
        """What the run and all that was spent before cost together."""
        if not self.spent_before.entries:
            return min(alone)
        return self.spent_before.extend(run.ledger()).total(delta=self.options.delta).epsilon

    def _write_statement(self, run: DPSGD, summary: dict[str, Any], made: int) -> None:
        notes = ["The keys of this run were erased when it finished."]
        if self.options.seed is not None:
            notes = [_options.seeded("This run", self.options.seed)]
        if self.options.patience is not None:
            notes.append(_early_stopping(self.options.patience, made, run.steps))
        text = statement(run, delta=self.options.delta, spent_before=self.spent_before, notes=tuple(notes))
        self.folder.write_text("statement.txt", text + "\n")
        fields = {name: summary[name] for name in ("epsilon", "delta", "order", "total_epsilon")}
        ledger = self.spent_before.extend(run.ledger())
        described = {"run": _fields(run), "ledger": ledger.to_dict(), "statement": text}
        self.folder.write_json("statement.json", fields | described)

    def _show(self) -> None:
        self.console.print(summary_table(self.folder.read_json("summary.json")))
        if self.plan.run is not None:
            self.console.print((self.folder.path / "statement.txt").read_text("utf-8"), highlight=False, soft_wrap=True)


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


def _image_problem(options: TrainOptions) -> Problem:
    """The problem of an image data set."""
    data = datasets.hold_back(datasets.load(options.dataset, options.data_dir), options.holdout)
    shape = data.train_images.shape[1:]
    return Problem(
        name=data.name,
        train=(data.train_images, data.train_labels),
        test=(data.test_images, data.test_labels),
        model=classifier(options.architecture, options.activation, data.num_classes, shape),
        described={"num_classes": data.num_classes, "image_shape": shape},
        fingerprint=datasets.fingerprint(data.train_images, data.train_labels),
        spent=Ledger(),
    )


def _early_stopping(patience: int, made: int, asked: int) -> str:
    """What a statement says of it."""
    return (
        f"The run ended after {made} of {asked} steps, or would have ended, when the loss on examples held back had not improved "
        f"for {patience} epochs. Epsilon is that of all {asked} steps, since when it ended depended on what was seen. The "
        "examples held back are not among those it protects: they chose the end."
    )


def _config(options: TrainOptions, plan: Plan, problem: Problem, spent_before: Ledger) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "dp-accounting")}
    return {
        "options": _options.to_dict(options),
        "plan": {**asdict(plan), "run": _fields(plan.run) if plan.run else None},
        "spent_before": spent_before.to_dict(),
        "model": problem.described,
        "data_fingerprint": problem.fingerprint,
        "versions": versions,
    }


def _stored_plan(folder: RunFolder, options: TrainOptions, fingerprint: str) -> tuple[Plan, Ledger]:
    """The plan that the run was started with, and what had been spent before; refuses other options and other data."""
    config = folder.read_json("config.json")
    with as_written(folder.path / "config.json"):
        _options.check_resumed(folder.path, config, options, fingerprint)
        stored = config["plan"]
        run = DPSGD(**stored["run"]) if stored["run"] else None
        return Plan(**{**stored, "run": run}), Ledger.from_dict(config["spent_before"])


def _fields(run: DPSGD) -> dict[str, Any]:
    """What describes a run in JSON: all but its rule, which is flat for all that the command line trains."""
    return {name: value for name, value in asdict(run).items() if name != "rule"}
