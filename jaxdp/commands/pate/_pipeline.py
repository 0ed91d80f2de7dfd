"""`jaxdp pate`: teachers, labels, student, in a folder; killed at any stage, it goes on to the same end.

What each stage leaves is what the next one needs: private/predictions.npy, whose rows fill up teacher by teacher; labels.csv;
the student's checkpoints, in private/ too; summary.json. The keys lie in private/keys.json until the labels are written; then
those of the teachers and of the noise are erased, nothing but a seed, if one was given, remains with which the noise could be
subtracted, and the statement says so.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from rich.console import Console

from ... import _checks, data as datasets
from ..._errors import UsageError
from ..._interrupts import Interrupted, resumable, stop_here
from ..._meeting import connected, explained
from ..._processes import (
    agree,
    all_well,
    by_itself,
    facts_of_versions,
    from_first,
    is_first,
    on_first,
    other_versions,
    several,
    versions,
)
from ...data._tfds import no_progress
from ...dpsgd._state import TrainState
from ...models import Classifier
from ...pate._budget import within_budget
from ...pate._graph import spread_labels
from ...pate._shards import size_of_shards
from ...pate._teachers import check_batch_size
from ...runs._checkpoint import Checkpoint, CheckpointFolder, save_model
from ...runs._device import in_words, use_device
from ...runs._finished import FinishedRun, load_run
from ...runs._folder import RunFolder, as_written, close_to_others, new_path, still_new
from ...runs._key_source import KeySource
from ...runs._loop import Loop, Totals
from ...runs._report import HELD_BACK, TEST_SET, progress_display, rows_shown, say
from .. import _options
from .._options import that_matter
from ._coordinates import Coordinates, check_graph, erase_coordinates
from ._keys import ALL, SECRET, erase_keys, read_key, write_keys
from ._options import PateOptions
from ._plots import plot_student
from ._recipe import student_model, student_step
from ._release import kept_figures, labels_of, publish, release, stated, write
from ._report import summary_table
from ._teach import rows_of_queries, teach

_EVALUATIONS = 10  # of the student
_PUBLISHED = (
    "dataset",
    "model",
    "evaluated_on",
    "teachers",
    "aggregator",
    "accountant",
    "asked",
    "answered",
    "delta",
    "epsilon",
    "device",
)
_OF_PUBLIC_IMAGES = ("test_accuracy", "test_loss", "label_accuracy")
_OF_RECORDS = "A record is in one shard, so it moves at most one teacher's vote on each query."
_OF_PUBLIC_COORDINATES = (
    "The coordinates in which the teachers learn were made of the public images, unlabelled, which nothing protects."
)
_HELD_BACK = (
    "The training images held back (--holdout) stand for public ones: nothing protects them, neither from the student nor from "
    "its accuracies."
)


def run_pate(options: PateOptions, console: Console | None = None) -> FinishedRun:
    """The whole of PATE as `jaxdp pate` does it.

    Args:
        options: what is asked for; with `options.resume`, the options that the run was started with.
        console: where progress and results are shown; by default standard output.

    Returns:
        The finished run, with the student, as `jaxdp.load_run` gives it.

    Raises:
        UsageError: for anything in the options, the data or the folder that makes the run impossible or its epsilon
            untrue: before anything is compiled, but where no answer can be had. With several processes also for what they
            disagree on.
    """
    return load_run(pate_in_folder(options, console))


def pate_in_folder(options: PateOptions, console: Console | None = None) -> Path:
    """The same, for the folder of the run alone: of several processes, only the first one needs to see it."""
    options.check()
    started = time.perf_counter()
    with connected(options.meeting) if options.of_several else nullcontext(), ExitStack() as held:
        console = (console or Console()) if is_first() else Console(quiet=True)
        agree({**_options.facts_of(options), **facts_of_versions()})
        path = options.resume or options.output or new_path(_name(options))
        said = f"jaxdp: PATE with {options.teachers} teachers on {options.dataset}, in {path}"
        say(console, said)
        device = all_well(lambda: use_device(options.device))
        found = on_first(lambda: _found(options, held))
        if from_first(lambda: b"trained" if found is not None and (found.is_trained or found.is_finished) else b""):
            on_first(lambda: _end(options, RunFolder(path)))  # what is left, which waits for no data
        else:
            data, public = all_well(lambda: _prepared(options, device))
            if several():
                agree({"the data": datasets.fingerprint(*data[1:5], secret=b"of several processes")})
            begun = on_first(lambda: _begun(options, path, found, data, held, console))
            path = Path(from_first(lambda: str(begun).encode()).decode())
            _Job(options, RunFolder(path), data, public, device, console, started).run()
        if is_first():
            _show(RunFolder(path), console)
        return path


def _prepared(options: PateOptions, device: Any) -> tuple[datasets.Dataset, int]:
    """The data, and how many of its test images are public; refuses what can't be done with them, before any teacher learns."""
    progress = rows_shown if is_first() else no_progress
    data = datasets.hold_back(datasets.load(options.dataset, options.data_dir, progress=progress), options.holdout)
    data.labelled().check_test()
    public = _public(options, data)
    if "graph" in (options.teacher_model, options.student):
        check_graph(data, public, device)
    student_model(data.num_classes, data.train_images.shape[1:])  # refuses images that are too small for it
    _checks.delta(options.delta, len(data.train_labels))
    check_batch_size(options.teacher_batch_size, size_of_shards(len(data.train_labels), options.teachers))
    within_budget(
        np.ones(options.queries, bool),
        options.mechanism(options.teachers),
        epsilon=options.target_epsilon,
        delta=options.delta,
        most_answers=options.max_answers,
    )
    return data, public


def _name(options: PateOptions) -> str:
    return f"{options.dataset.replace('/', '-')}-pate"


def _found(options: PateOptions, held: ExitStack) -> RunFolder | None:
    """The folder of a run that is gone on with, locked where there is something left to do; None for a new run."""
    if options.resume is None:
        return None
    folder = RunFolder.existing(options.resume)
    with as_written(folder.path / "config.json"):
        _options.check_resumed(folder.path, folder.options(), options)
    if not folder.is_finished:
        held.enter_context(folder.locked())
    return folder


def _begun(
    options: PateOptions,
    path: Path,
    found: RunFolder | None,
    data: datasets.Dataset,
    held: ExitStack,
    console: Console,
) -> Path:
    """The folder of the run, new, or the one that was found if it is of these data."""
    fingerprint = lambda secret: datasets.fingerprint(*data[1:5], secret=secret)
    if found is None:
        folder = RunFolder.create(still_new(path, options.output, _name(options)))
        held.enter_context(folder.locked())
        _start(folder, options, data, fingerprint)
        return folder.path
    found.check_config()
    found.check_data(fingerprint, {"network": _network(data)})
    if told := other_versions(found.read_json("config.json")["versions"]):
        say(console, told)
    return found.path


def _network(data: datasets.Dataset) -> dict[str, Any]:
    return student_model(data.num_classes, data.train_images.shape[1:]).described


@dataclass
class _Job:
    """A run under way. Several processes train the teachers; what follows is done by the first one alone."""

    options: PateOptions
    folder: RunFolder
    data: datasets.Dataset
    public: int
    device: Any
    console: Console
    started: float

    def run(self) -> None:
        """Do what is not done yet."""
        model = student_model(self.data.num_classes, self.data.train_images.shape[1:])
        go_on = ("jaxdp pate --resume", shlex.quote(str(self.folder.path)), *self.options.of_several_typed)
        with resumable(" ".join(go_on)), explained():
            labelled = from_first(lambda: b"labelled" if (self.folder.path / "labels.csv").exists() else b"")
            predictions = None
            if not labelled:
                predictions = teach(self.options, self.data, model, self._coordinates, self.console)
            if from_first(lambda: self._finished(model, predictions)):
                raise Interrupted

    def _finished(self, model: Classifier, predictions: Int[np.ndarray, "teachers queries"] | None) -> bytes:
        """Nothing once all is done, and else what has broken it off, as all processes are to hear."""
        try:
            with by_itself():
                self._finish(model, predictions)
        except Interrupted:
            return b"interrupted"
        return b""

    def _finish(self, model: Classifier, predictions: Int[np.ndarray, "teachers queries"] | None) -> None:
        """Do what is not done yet once the teachers have predicted; without predictions there are labels."""
        if predictions is not None:
            self._label(model, predictions)
        kept_figures(self.folder)  # which are shown at the end: what is damaged is told before a student learns
        erase_keys(self.folder, *SECRET)
        publish(self.folder, self._notes())
        self._check_answers()
        if not self.folder.is_trained:
            self._learn(model)
        _end(self.options, self.folder)

    @cached_property
    def _coordinates(self) -> Coordinates:
        return Coordinates(self.folder, self.data, self.public)

    def _notes(self) -> tuple[str, ...]:
        """The statement's notes beside what follows from the labels."""
        erased = "The keys of the teachers and of the noise were erased when the labels were made."
        notes = (erased,) if self.options.seed is None else (_options.seeded("This run"),)
        if self.options.teacher_model == "graph":
            notes = (*notes, _OF_PUBLIC_COORDINATES)
        return notes if self.options.holdout == 0 else (*notes, _HELD_BACK)

    def _label(self, model: Classifier, predictions: Int[np.ndarray, "teachers queries"]) -> None:
        """Let the teachers vote, and write what is released."""
        options = self.options
        released = release(
            predictions,
            rows_of_queries(self.folder, options, self.public),
            options.mechanism(options.teachers),
            num_classes=self.data.num_classes,
            delta=options.delta,
            key=read_key(self.folder, "noise"),
            target_epsilon=options.target_epsilon,
            most_answers=options.max_answers,
            first_student=partial(self._first_student, model),
        )
        if released.report.mechanism.asks_student and released.before_student is None:
            say(
                self.console,
                f"the asking ended after {len(released.rows)} queries, before there was a student to ask: --aggregator confident "
                "costs the same, and fewer --queries leave some for the student",
            )
        nonce = self.folder.read_json("config.json")["nonce"]
        write(released, self.folder, len(self.data.train_labels), nonce, of_records=_OF_RECORDS)

    def _check_answers(self) -> None:
        """Refuse to teach a student nothing, once what the checks of the votes cost is stated."""
        asked, _, answered = labels_of(self.folder)
        if not answered.any():
            raise UsageError(
                f"the teachers answered none of {len(asked)} queries, which cost epsilon all the same "
                f"({self.folder.path / 'statement.json'} has it): `jaxdp pate label` asks the same teachers again, by "
                f"{self.folder.private / 'predictions.npy'} and a lower --threshold, and both costs add up; or train fewer "
                "teachers on more records each"
            )

    def _first_student(
        self, model: Classifier, rows: Int[np.ndarray, " asked"], answers: Int[np.ndarray, " asked"]
    ) -> Float[np.ndarray, "public classes"]:
        """The probabilities of a student that learned the answers so far, for all public images."""
        steps = -(-self.options.student_steps // 2)
        step = student_step(model, self.options, self._filled_up(rows, answers), steps)
        of_init, of_steps = jax.random.split(read_key(self.folder, "first_student"))
        state = step.init(model.init(of_init), of_steps)
        images = self.data.test_images[: self.public]
        on_device = jnp.asarray(images)
        with progress_display(self.console, steps, 0) as display:
            for made in range(steps):
                stop_here()
                state, _ = step.many(state, on_device, num_steps=1)
                if display.due():
                    jax.block_until_ready(state.params)
                    display.update(made + 1, "first student")
        return model.probabilities(state.params[1], images)

    def _filled_up(
        self, rows: Int[np.ndarray, " asked"], answers: Int[np.ndarray, " asked"]
    ) -> Int[np.ndarray, " public"]:
        """The answers as labels of all public images, or what the graph makes of them; -1 where there is none."""
        labels = np.full(self.public, -1, np.int32)
        labels[rows] = answers
        return spread_labels(self._coordinates.both[0], labels) if self.options.student == "graph" else labels

    def _learn(self, model: Classifier) -> None:
        """Train the student, and write what came out."""
        options, held_back = self.options, slice(self.public, None)
        asked, answers, _ = labels_of(self.folder)
        step = student_step(model, options, self._filled_up(asked, answers), options.student_steps)
        of_init, of_steps = jax.random.split(read_key(self.folder, "student"))
        fresh = step.init(model.init(of_init), of_steps)
        per_epoch = -(-options.student_steps // _EVALUATIONS)
        with CheckpointFolder(self.folder.checkpoints, self.folder.mark) as checkpoints:
            start, damaged = checkpoints.load(_checkpoint(fresh, Totals()))
            for line in damaged:
                say(self.console, f"{line}: going on from the one before")
            start = start or _checkpoint(fresh, Totals())
            state = start.state
            self.folder.keep_metrics(start.metrics)
            with progress_display(self.console, options.student_steps, start.state.step) as display:

                def on_steps(made: int, totals: Totals) -> None:
                    if display.due():
                        display.update(made, f"student  agrees with {totals.mean('correct'):.2%} of its labels")

                loop = Loop(
                    step=step,
                    data=jnp.asarray(self.data.test_images[: self.public]),
                    steps_per_epoch=per_epoch,
                    steps=options.student_steps,
                    on_steps=on_steps,
                    save=lambda state, totals: checkpoints.save(_checkpoint(state, totals, self.folder.metrics())),
                )
                for _, state, totals in loop.epochs(start.state, Totals(**start.totals)):
                    loss, accuracy = model.evaluate(
                        model.probabilities(state.params[1], self.data.test_images[held_back]),
                        self.data.test_labels[held_back],
                    )
                    record = {
                        "step": state.step,
                        "train_loss": totals.mean("loss"),
                        "agreement": totals.mean("correct"),
                    }
                    record |= {"test_loss": loss, "test_accuracy": accuracy}
                    self.folder.add_metrics(record)
                    checkpoints.save(_checkpoint(state, Totals(), self.folder.metrics()))
                    display.end_of_epoch(
                        f"student, step {state.step}/{options.student_steps}: agrees with {record['agreement']:.2%} of its "
                        f"labels, {accuracy:.2%} on the held-back images"
                    )
        self._keep(state)

    def _keep(self, state: TrainState) -> None:
        """Write the student, the picture, and then what came out, which stays private."""
        records = self.folder.metrics()
        asked, answers, answered = labels_of(self.folder)
        right = answers[answered] == self.data.test_labels[asked[answered]]
        statement = stated(self.folder)
        summary = {
            "dataset": self.data.name,
            "model": "pate",
            "evaluated_on": HELD_BACK
            if self.options.holdout
            else f"{len(self.data.test_labels[self.public :]):,} images of {TEST_SET}",
            "test_accuracy": records[-1]["test_accuracy"],
            "test_loss": records[-1]["test_loss"],
            "label_accuracy": float(right.mean()),
            "teachers": self.options.teachers,
            "aggregator": self.options.aggregator,
            "accountant": "rdp",
            **{name: statement[name] for name in ("asked", "answered", "delta", "epsilon")},
            "device": in_words(self.device),
            "seconds": time.perf_counter() - self.started,
            "folder": str(self.folder.path),
        }
        plot_student(records, self.folder.private / "student.png")
        close_to_others(self.folder.private / "student.png")
        save_model(self.folder.model(private=False), state.params[1], state.step)
        self.folder.keep_results(summary)


def _end(options: PateOptions, folder: RunFolder) -> None:
    """Erase what a trained run has no use for, and write what may be seen of the results; with it the run is finished."""
    if folder.is_finished:
        return
    erase_coordinates(folder)
    erase_keys(folder, *ALL)
    folder.erase()
    summary = folder.results()
    shown = (*_PUBLISHED, *(_OF_PUBLIC_IMAGES if options.holdout == 0 else ()))
    folder.write_json("summary.json", {name: summary[name] for name in shown if name in summary})


def _checkpoint(state: TrainState, totals: Totals, metrics: Sequence[dict[str, Any]] = ()) -> Checkpoint:
    """The student as it is kept, whose averaged parameters are those that predict."""
    return Checkpoint(state, asdict(totals), state.params[1], metrics)


def _show(folder: RunFolder, console: Console) -> None:
    """Show what came out, to whoever started the run."""
    console.print(summary_table(folder.summary(), kept_figures(folder)))
    say(console, (folder.path / "statement.txt").read_text("utf-8"))


def _public(options: PateOptions, data: datasets.Dataset) -> int:
    """How many of the test images the student may see."""
    size = len(data.test_labels)
    public = size * 9 // 10 if options.public is None else options.public
    if not 0 < public < size:
        raise UsageError(f"--public={public} leaves none of the {size} test images to measure on: give fewer")
    if options.queries > public:
        raise UsageError(f"--queries={options.queries} exceeds the {public} public images: ask fewer")
    return public


def _start(
    folder: RunFolder, options: PateOptions, data: datasets.Dataset, fingerprint: Callable[[bytes], str]
) -> None:
    folder.refuse_begun()  # before its keys are written over
    source = KeySource(options.seed, ["pate", that_matter(options)], datasets.Fingerprints(data[1:5]))
    nonce = source.nonce("noise")
    write_keys(folder, source, nonce)
    config = {
        "command": "pate",
        "options": _options.to_dict(replace(_options.alone(options), seed=None)),
        "network": _network(data),
        "nonce": nonce,
        "versions": versions(),
    }
    folder.begin(config, options.seed, fingerprint)
