"""The course of a run: from its first step, or the checkpoint that it is gone on with, to its results."""

import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..._errors import UsageError
from ..._interrupts import resumable
from ..._meeting import explained
from ..._processes import all_well, from_first, on_first
from ..._types import LossFn
from ...accounting import Ledger
from ...dpsgd._run import DPSGD
from ...dpsgd._state import TrainState
from ...models import augmented
from ...reading import Source
from ...runs import _canaries as canaries
from ...runs._checkpoint import Checkpoint, CheckpointFolder, here, of_first
from ...runs._devices import Devices
from ...runs._folder import RunFolder, as_written
from ...runs._key_source import nonce_as_words
from ...runs._loop import Loop, Totals
from ...runs._report import ProgressDisplay, progress_display, say
from .._sampling import cut_nearly_always
from ._canaries import planted, weighted
from ._config import keys_of
from ._held_back import forget_others, has_stopped, keep_if_best, scale_after, with_scale
from ._optimizer import optimizer, params_of
from ._options import TrainOptions
from ._plain_step import PlainStep
from ._plan import Plan
from ._problem import Problem
from ._reading import evaluation_takes, steps_take, waits
from ._recipe import overruled
from ._report import status_line
from ._results import Results
from ._room import check_microbatch, memory_explained


@dataclass(frozen=True)
class Setting:
    """Where a run goes on: `path` is its folder's, `held` keeps that locked until its end."""

    path: Path
    devices: Devices
    console: Console
    entropy: bytes | None
    started: float
    held: ExitStack
    problem: Problem | None = None  # what the run is of, where that isn't to be read
    secret: bytes | None = None  # of one of several runs that are accounted together: drawn for all of them


@dataclass
class Job:
    """A run under way: what does not change while it goes on, and the pieces of its course.

    Every process of it goes the same way. The first one alone touches the folder, evaluates and shows.
    """

    options: TrainOptions
    setting: Setting
    folder: RunFolder
    config: dict[str, Any]  # the run as the folder describes it, the same when it is gone on with
    is_trained: bool
    posed: Problem | None = None  # which nobody needs once it is trained
    told_of_waiting: bool = False
    before: float = 0.0  # the seconds that it took in processes before, until the epoch that it is gone on with

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

    @property
    def problem(self) -> Problem:
        """What it is trained on."""
        assert self.posed is not None
        return self.posed

    def run(self) -> Path:
        """Start or go on, train, evaluate after each epoch, keep the model, erase the keys, and then state it."""
        nonce = self.config["nonce"]
        results = Results(self.options, self.folder, self.plan, self.spent_before, nonce)
        with resumable(self._to_go_on), explained():
            if not self.is_trained:
                if self.options.audit_canaries is not None:
                    self._plant_canaries()
                self._tell_of_the_plan()
                with ExitStack() as opened:
                    open_ = lambda: CheckpointFolder(self.folder.checkpoints, self.folder.mark)
                    loop, state = self._train(on_first(lambda: opened.enter_context(open_())))
                on_first(lambda: results.keep(self.problem, loop, state, self.setting.devices, self._started))
            on_first(self.folder.erase)
            on_first(results.publish)
        return self.folder.path

    @property
    def _started(self) -> float:
        """When it would have been started, had one process made all of it."""
        return self.setting.started - self.before

    @property
    def _to_go_on(self) -> str:
        """The command that goes on with the run."""
        return " ".join(("jaxdp train --resume", shlex.quote(str(self.folder.path)), *self.options.of_several_typed))

    def _plant_canaries(self) -> None:
        """The canaries that the run has, as the first process has them."""

        def read() -> bytes:
            content = canaries.read(self.folder.private)
            self.folder.check_canaries(content)
            return content

        content = from_first(read)
        found = canaries.from_bytes(content, self.folder.private / canaries.FILE)
        self.posed = planted(self.problem, found)

    def _tell_of_the_plan(self) -> None:
        if lines := overruled(self.options):
            say(self.setting.console, f"recipe {self.options.recipe}, with {', '.join(lines)}")
        if self.plan.steps < self.plan.asked:
            line = (
                f"stopping after {self.plan.steps} of {self.plan.asked} steps, before --target-epsilon "
                f"{self.options.target_epsilon} is overshot"
            )
            say(self.setting.console, line)
        if self.plan.run is not None and (warning := cut_nearly_always(self.plan.run)):
            say(self.setting.console, warning)

    def _begun(self, step: Any, checkpoints: CheckpointFolder | None) -> tuple[Checkpoint, bool]:
        """From where to go on: the newest checkpoint, or the state before the first step; and whether it has stopped there."""
        secret = from_first(lambda: self.folder.secret)
        keys = keys_of(self.options, self.config, self.problem, secret)
        params, key = self.problem.model.init(keys.key("parameters")), keys.key("run")
        if self.plan.run is None:
            fresh = step.init(params, key)._replace(spent_before=self.spent_before)
        else:
            state = step.init(params, key, spent_before=self.spent_before)
            fresh = state._replace(nonce=nonce_as_words(self.config["nonce"]))
        fresh = _checkpoint(fresh, Totals())
        found = on_first(lambda: self._found(fresh, checkpoints)) or fresh
        stopped = bool(from_first(lambda: b"stopped" if self._has_stopped() else b""))
        return of_first(found), stopped

    def _found(self, fresh: Checkpoint, checkpoints: CheckpointFolder | None) -> Checkpoint:
        """The newest checkpoint of the folder, where the fresh state goes if there is none."""
        assert checkpoints is not None
        start, damaged = checkpoints.load(fresh)
        for line in damaged:
            say(self.setting.console, f"{line}: going on from the one before")
        if start is None:
            if self.folder.metrics():
                raise UsageError(
                    f"{self.folder.checkpoints} has no checkpoint, though epochs were made: start the run anew"
                )
            start = fresh
            checkpoints.save(start)
        self.folder.keep_metrics(start.metrics)
        self.before = start.metrics[-1]["seconds"] if start.metrics else 0.0
        if start.state.step:
            say(self.setting.console, f"going on after step {start.state.step} of {self.plan.steps}")
        return start

    @cached_property
    def _loss(self) -> LossFn:
        loss = self.problem.model.loss
        if self.plan.augmentations:
            loss = augmented(loss, self.plan.augmentations)
        return loss if self.problem.weights is None else weighted(loss)

    def _step(self) -> Any:
        loss, optimize = self._loss, optimizer(self.plan)
        if self.plan.run is None:
            sizes = {"batch_size": self.plan.batch_size, "steps_per_epoch": self.plan.steps_per_epoch}
            return PlainStep(loss, optimize, **sizes, steps=self.plan.steps)
        return self.plan.run.make_step(loss, optimize, has_aux=True)

    def _train(self, checkpoints: CheckpointFolder | None) -> tuple[Loop, TrainState]:
        step, devices = self._step(), self.setting.devices
        start, stopped = self._begun(step, checkpoints)
        state = devices.holding(start.state)
        data = steps_take(self.problem, devices)
        test = on_first(lambda: evaluation_takes(self.problem))
        given, expected = self.options.microbatch_size, self.plan.batch_size
        step_of = (self._loss, start.state.params, data)
        if self.plan.run is not None:
            all_well(lambda: check_microbatch(*step_of, given and min(given, expected), devices, self._to_go_on))
        with ExitStack() as opened, progress_display(self.setting.console, self.plan.steps, state.step) as display:

            def save(state: TrainState, totals: Totals) -> None:
                assert checkpoints is not None
                checkpoints.save(_checkpoint(state, totals, self.folder.metrics()))

            def end_of_epoch(epoch: int, state: TrainState, totals: Totals) -> bytes:
                self._tell_of_waiting(loop)
                record = self._record(loop, epoch, state.step, totals) | self._evaluated(state, test)
                self.folder.add_metrics(record)
                if self.options.keep == "best":
                    keep_if_best(self.folder, here(params_of(state)))
                save(state, Totals())
                if self.options.keep == "best":
                    forget_others(self.folder)
                display.end_of_epoch(status_line(record, self.plan.epochs))
                return b"stop" if self._has_stopped() else b""

            loop = Loop(
                step=step,
                data=data,
                steps_per_epoch=self.plan.steps_per_epoch,
                steps=self.plan.steps,
                on_steps=lambda made, totals: self._show_progress(display, loop, made, totals),
                save=lambda state, totals: on_first(lambda: save(state, totals)),
                before_epoch=self._at_its_rate,
            )
            opened.callback(step.close)
            epochs = () if stopped else loop.epochs(state, Totals(**start.totals))
            try:
                private = self.plan.run is not None
                with memory_explained(
                    *step_of, min(given or expected, expected), devices, self._to_go_on, private=private
                ):
                    for epoch, state, totals in epochs:
                        if from_first(partial(end_of_epoch, epoch, state, totals)):
                            break
            except UsageError as error:
                if not isinstance(data, Source):
                    raise
                raise UsageError(f"{error}; once it can be read, go on by {self._to_go_on}") from error
        return loop, state

    def _evaluated(self, state: TrainState, test: tuple[Any, np.ndarray] | None) -> dict[str, float]:
        """The model on the examples that it is not trained on."""
        assert test is not None
        model, (inputs, labels) = self.problem.model, test
        found = model.evaluate(model.probabilities(here(params_of(state)), inputs), labels)
        return {f"test_{name}": value for name, value in model.figures(*found).items()}

    def _tell_of_waiting(self, loop: Loop) -> None:
        """A line, once, where records come too slowly."""
        if not self.told_of_waiting and (line := waits(loop)):
            say(self.setting.console, line)
            self.told_of_waiting = True

    def _has_stopped(self) -> bool:
        """Whether the loss on examples held back has been no better for --patience epochs."""
        return has_stopped(self._losses, self.options.patience)

    def _at_its_rate(self, state: TrainState) -> TrainState:
        """The state whose learning rate is that of --schedule plateau after the epochs so far."""
        if self.options.schedule != "plateau":
            return state
        return with_scale(state, float(from_first(lambda: str(scale_after(self._losses, self.options)).encode())))

    @property
    def _losses(self) -> list[float]:
        """On examples held back, after each epoch."""
        return [record["test_loss"] for record in self.folder.metrics()]

    def _show_progress(self, display: ProgressDisplay, loop: Loop, made: int, totals: Totals) -> None:
        if not display.due():
            return
        epoch = (made - 1) // self.plan.steps_per_epoch + 1
        record = self._record(loop, epoch, made, totals)
        display.update(made, status_line(record, self.plan.epochs, narrow=display.narrow))

    def _record(self, loop: Loop, epoch: int, made: int, totals: Totals) -> dict[str, Any]:
        run, model = self.plan.run, self.problem.model
        figures = model.figures(totals.mean("loss") / model.targets, totals.mean("correct"))
        return {
            "epoch": epoch,
            "step": made,
            **{f"train_{name}": value for name, value in figures.items()},
            "clipped": totals.mean("clipped") if run else None,
            "epsilon": self._epsilon(made),
            "accountant": self.plan.accountant,
            "delta": self.options.delta if run else None,
            "steps_per_second": loop.steps_per_second,
            "seconds": time.perf_counter() - self._started,
        }

    def _epsilon(self, made: int) -> float | None:
        """The epsilon of the run so far."""
        if self.plan.run is None or self.plan.accountant is None:
            return None
        return self.plan.run.epsilon(delta=self.options.delta, accountant=self.plan.accountant, steps=made)


def _checkpoint(state: TrainState, totals: Totals, metrics: Sequence[dict[str, Any]] = ()) -> Checkpoint:
    """The part of a state and of the epoch under way that is kept."""
    model = params_of(state)
    return Checkpoint(state, asdict(totals), None if model is state.params else model, metrics)
