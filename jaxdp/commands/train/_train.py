"""`train`: from options to a finished run in a folder."""

import json
import os
import secrets
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..._errors import UsageError
from ..._interrupts import resumable
from ..._meeting import connected, explained
from ..._processes import agree, all_well, facts_of_versions, from_first, is_first, on_first, other_versions, several
from ..._types import LossFn
from ...accounting import Ledger
from ...data._tfds import no_progress
from ...dpsgd._run import DPSGD
from ...dpsgd._state import TrainState
from ...models import augmented
from ...reading import Source
from ...runs import _canaries as canaries
from ...runs._checkpoint import Checkpoint, CheckpointFolder, here, of_first
from ...runs._device import check_room
from ...runs._devices import Devices, use_devices
from ...runs._finished import FinishedRun, load_run
from ...runs._folder import PRIVATE, RunFolder, as_written, new_path, still_new
from ...runs._key_source import KeySource, nonce_as_words
from ...runs._loop import Loop, Totals
from ...runs._report import ProgressDisplay, progress_display, rows_shown, say
from .. import _options
from .._sampling import cut_nearly_always
from ._canaries import check_canaries, drawn, planted, weighted
from ._config import check_seed, config_of, in_config, keys_of
from ._files import digests_of, keep_files
from ._held_back import forget_others, has_stopped, keep_if_best, scale_after, with_scale
from ._ledger import read_ledger
from ._optimizer import optimizer, params_of
from ._options import TrainOptions
from ._plain_step import PlainStep
from ._plan import Plan, resolve_plan
from ._problem import Problem, problem_of
from ._reading import evaluation_takes, read, steps_take, waits
from ._recipe import overruled
from ._report import advice, status_line, summary_table
from ._results import Results
from ._room import check_microbatch, memory_explained
from ._tables import learned_from, table_problem


def train(options: TrainOptions, console: Console | None = None) -> FinishedRun:
    """Train a model as `jaxdp train` does.

    Args:
        options: what is asked for; with `options.resume`, the options that the run was started with.
        console: where progress and results are shown; by default standard output.

    Returns:
        The finished run, as `jaxdp.load_run` gives it.

    Raises:
        UsageError: for anything in the options, the data or the folder that makes the run impossible or its epsilon
            untrue; before anything is compiled, but for a clipped gradient that isn't what differentiation says. With several
            processes also for what they disagree on.
    """
    return load_run(train_in_folder(options, console))


def train_in_folder(options: TrainOptions, console: Console | None = None) -> Path:
    """The same, for the folder of the run alone: of several processes, only the first one needs to see it."""
    console = console or Console()
    path = train_quietly(options, console)
    if is_first():
        _show(RunFolder(path), console)
    return path


def train_quietly(options: TrainOptions, console: Console, problem: Problem | None = None) -> Path:
    """The same without the results at its end, and what they promise: for one of several runs that are accounted together.

    Given `problem`, the run is of that, and nothing is read again.
    """
    options.check()
    started = time.perf_counter()
    with connected(options.meeting) if options.of_several else nullcontext(), ExitStack() as held:
        console = console if is_first() else Console(quiet=True)
        agree({**_options.facts_of(options), **facts_of_versions()})
        path = options.resume or options.output or new_path(_name(options))
        privacy = "" if options.dp else " without privacy"
        said = f"jaxdp: {options.architecture} on {options.dataset}{privacy}, in {path}"
        say(console, said)
        devices = all_well(lambda: use_devices(options.device, options.devices if options.dp else 1))
        devices.connect()
        entropy = from_first(lambda: os.urandom(32)) if several() else None
        begin = _new if options.resume is None else _resumed
        return begin(options, _Setting(path, devices, console, entropy, started, held, problem))


@dataclass(frozen=True)
class _Setting:
    """Where a run goes on: `path` is its folder's, `held` keeps that locked until its end."""

    path: Path
    devices: Devices
    console: Console
    entropy: bytes | None
    started: float
    held: ExitStack
    problem: Problem | None = None  # what the run is of, where that isn't to be read

    def posed(self, options: TrainOptions, spent_before: Ledger) -> Problem:
        """The problem that the options pose."""
        if self.problem is not None:
            return self.problem
        return problem_for(options, self.devices, self.console, spent_before, self.entropy)


def _new(options: TrainOptions, setting: _Setting) -> Path:
    """The folder of a run from its beginning to its end."""

    files = all_well(lambda: digests_of(options)) if options.fold is not None else None

    def prepared() -> tuple[Problem, Ledger, Ledger, Plan]:
        spent_before = read_ledger(options.ledger)
        problem = setting.posed(options, spent_before)
        _check_room(setting.devices, problem)
        check_canaries(options, problem)
        spent = spent_before.extend(problem.spent)
        return problem, spent_before, spent, resolve_plan(options, problem.examples, spent)

    problem, in_ledger, spent_before, plan = all_well(prepared)
    config = config_of(options, plan, problem, spent_before) | {"in_ledger": len(in_ledger.entries)}
    secret = from_first(lambda: secrets.token_bytes(32))
    _agree_on_data(problem, secret, keys_of(options, config, problem, setting.entropy))

    def begun() -> RunFolder:
        folder = RunFolder.create(still_new(setting.path, options.output, _name(options)))
        setting.held.enter_context(folder.locked())
        folder.refuse_begun()  # nothing is written into what another process has begun and left since
        of_canaries = None
        if options.audit_canaries is not None:
            key = keys_of(options, config, problem, setting.entropy).key("canaries")
            of_canaries = drawn(options, problem, key).to_bytes()
            folder.write_bytes(f"{PRIVATE}/{canaries.FILE}", of_canaries)
        if files is not None:
            keep_files(folder, files)
        folder.begin(config, options.seed, problem.fingerprint, secret, of_canaries)
        return folder

    folder = on_first(begun)
    return _job(options, setting, folder, problem).run()


def _resumed(options: TrainOptions, setting: _Setting) -> Path:
    """The folder of a run that is gone on with, if anything is left to do."""
    assert options.resume is not None
    resume = options.resume

    def opened() -> RunFolder:
        folder = RunFolder.existing(resume)
        with as_written(folder.path / "config.json"):
            _options.check_resumed(folder.path, folder.options(), options)
        if not folder.is_finished:
            setting.held.enter_context(folder.locked())
            if not folder.is_trained:
                folder.check_config()
        return folder

    folder = on_first(opened)
    if from_first(lambda: b"finished" if folder is not None and folder.is_finished else b""):
        say(setting.console, "this run is finished: nothing is left to do")
        return resume

    def prepared() -> Problem:
        problem = setting.posed(options, Ledger())
        _check_room(setting.devices, problem)
        check_canaries(options, problem)
        return problem

    problem = all_well(prepared)
    job = _job(options, setting, folder, problem)
    if not job.is_trained:  # of which the fingerprint may be erased already
        secret = from_first(lambda: job.folder.secret)
        keys = keys_of(options, job.config, problem, setting.entropy)
        _agree_on_data(problem, secret, keys)

        def checked() -> None:
            job.folder.check_data(problem.fingerprint, in_config(problem))
            check_seed(resume, keys, job.config["nonce"], "run")

        on_first(checked)
        if told := other_versions(job.config["versions"]):
            say(setting.console, told)
    return job.run()


def _job(options: TrainOptions, setting: _Setting, folder: RunFolder | None, problem: Problem) -> "_Job":
    """The run, of which the others hear from the first process what its folder says."""

    def told() -> bytes:
        assert folder is not None
        return json.dumps([str(folder.path), folder.read_json("config.json"), folder.is_trained]).encode()

    path, config, is_trained = json.loads(from_first(told))
    return _Job(options, setting, RunFolder(Path(path)), problem, config, is_trained)


def _agree_on_data(problem: Problem, secret: bytes, keys: KeySource) -> None:
    """Refuse where processes have other data; where data are read for their fingerprint, they are for all of them at once."""
    for each in keys.secrets:
        problem.fingerprint.expect(each)
    if several():
        agree({"the data": all_well(lambda: problem.fingerprint(secret))})


def _check_room(devices: Devices, problem: Problem) -> None:
    fix = "give a model that keeps less, such as --model cnn, more --scales, or a data set of fewer or smaller inputs"
    check_room(devices.own, problem.model, *problem.kept, fix=fix, copies=devices.copies)


@dataclass
class _Job:
    """A run under way: what does not change while it goes on, and the pieces of its course.

    Every process of it goes the same way. The first one alone touches the folder, evaluates and shows.
    """

    options: TrainOptions
    setting: _Setting
    folder: RunFolder
    problem: Problem
    config: dict[str, Any]  # the run as the folder describes it, the same when it is gone on with
    is_trained: bool
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

    def run(self) -> Path:
        """Start or go on, train, evaluate after each epoch, keep the model, erase the keys, and then state it."""
        nonce = self.config["nonce"]
        results = Results(self.options, self.folder, self.problem, self.plan, self.spent_before, nonce)
        with resumable(self._to_go_on), explained():
            if not self.is_trained:
                if self.options.audit_canaries is not None:
                    self._plant_canaries()
                self._tell_of_the_plan()
                with ExitStack() as opened:
                    open_ = lambda: CheckpointFolder(self.folder.checkpoints, self.folder.mark)
                    loop, state = self._train(on_first(lambda: opened.enter_context(open_())))
                on_first(lambda: results.keep(loop, state, self.setting.devices, self._started))
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
        self.problem = planted(self.problem, found)

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
        keys = keys_of(self.options, self.config, self.problem, self.setting.entropy)
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


def _show(folder: RunFolder, console: Console) -> None:
    summary = folder.summary()
    console.print(summary_table(summary))
    if (line := advice(summary)) is not None:
        say(console, line)
    statement_file = folder.path / "statement.txt"
    if statement_file.exists():
        say(console, statement_file.read_text("utf-8"))


def _name(options: TrainOptions) -> str:
    return f"{options.dataset.replace('/', '-')}-{options.architecture}"


def problem_for(
    options: TrainOptions, devices: Devices, console: Console, spent_before: Ledger, entropy: bytes | None = None
) -> Problem:
    """The problem that the options pose."""
    if options.is_table:
        table = table_problem(options, spent_before, entropy)
        say(console, learned_from(table))
        return table
    progress = rows_shown if is_first() else no_progress
    data, said = read(options, devices, progress)
    if said is not None:
        say(console, said)
    return problem_of(data, options, progress=progress)
