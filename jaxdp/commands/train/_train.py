"""`train`: from options to a finished run in a folder."""

import json
import os
import secrets
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path

from rich.console import Console

from ..._meeting import connected
from ..._processes import agree, all_well, facts_of_versions, from_first, is_first, on_first, other_versions, several
from ...accounting import Ledger
from ...data._tfds import no_progress
from ...runs import _canaries as canaries
from ...runs._device import check_room
from ...runs._devices import Devices, use_devices
from ...runs._finished import FinishedRun, load_run
from ...runs._folder import PRIVATE, RunFolder, as_written, new_path, still_new
from ...runs._key_source import KeySource
from ...runs._report import rows_shown, say
from .. import _options
from ._canaries import check_canaries, drawn
from ._config import check_seed, config_of, in_config, keys_of
from ._files import digests_of, keep_files
from ._job import Job, Setting
from ._ledger import read_ledger
from ._options import TrainOptions
from ._plan import Plan, resolve_plan
from ._problem import Problem, problem_of
from ._reading import read
from ._report import advice, summary_table
from ._tables import learned_from, table_problem


def train(options: TrainOptions, console: Console | None = None) -> FinishedRun:
    """Train a model as `jaxdp train` does.

    Args:
        options: what is asked for; with `options.resume`, the options that the run was started with.
        console: where progress and results are shown; by default standard output.

    Returns:
        The finished run, as `jaxdp.load_run` gives it: of several processes each has to see its folder (where only the first one
        does, call `train_in_folder`).

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


def train_quietly(
    options: TrainOptions, console: Console, problem: Problem | None = None, secret: bytes | None = None
) -> Path:
    """The same without the results at its end, and what they promise: for one of several runs that are accounted together.

    Given `problem`, the run is of that, and nothing is read again. Given `secret`, 32 bytes, its keys follow from that if it has
    no seed: it is the same run wherever it is made.
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
        return begin(options, Setting(path, devices, console, entropy, started, held, problem, secret))


def _new(options: TrainOptions, setting: Setting) -> Path:
    """The folder of a run from its beginning to its end."""

    files = all_well(lambda: digests_of(options)) if options.fold is not None else None

    def prepared() -> tuple[Problem, Ledger, Ledger, Plan]:
        spent_before = read_ledger(options.ledger)
        problem = _posed(options, setting, spent_before)
        _check_room(setting.devices, problem)
        check_canaries(options, problem)
        spent = spent_before.extend(problem.spent)
        return problem, spent_before, spent, resolve_plan(options, problem.examples, spent)

    problem, in_ledger, spent_before, plan = all_well(prepared)
    secret = from_first(lambda: setting.secret or secrets.token_bytes(32))
    config = config_of(options, plan, problem, spent_before, secret) | {"in_ledger": len(in_ledger.entries)}
    keys = keys_of(options, config, problem, secret)
    _agree_on_data(problem, secret, keys)

    def begun() -> RunFolder:
        folder = RunFolder.create(still_new(setting.path, options.output, _name(options)))
        setting.held.enter_context(folder.locked())
        folder.refuse_begun()  # nothing is written into what another process has begun and left since
        of_canaries = None
        if options.audit_canaries is not None:
            of_canaries = drawn(options, problem, keys.key("canaries")).to_bytes()
            folder.write_bytes(f"{PRIVATE}/{canaries.FILE}", of_canaries)
        if files is not None:
            keep_files(folder, files)
        folder.begin(config, options.seed, problem.fingerprint, secret, of_canaries)
        return folder

    folder = on_first(begun)
    job = _job_of(options, setting, folder)
    job.posed = problem
    return job.run()


def _resumed(options: TrainOptions, setting: Setting) -> Path:
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
    job = _job_of(options, setting, folder)
    if job.is_trained:  # what is left is to erase and to state, which wait for no data
        return job.run()

    def prepared() -> Problem:
        problem = _posed(options, setting, Ledger())
        _check_room(setting.devices, problem)
        check_canaries(options, problem)
        return problem

    job.posed = problem = all_well(prepared)
    secret = from_first(lambda: job.folder.secret)
    keys = keys_of(options, job.config, problem, secret)
    _agree_on_data(problem, secret, keys)

    def checked() -> None:
        job.folder.check_data(problem.fingerprint, in_config(problem))
        check_seed(resume, keys, job.config["nonce"], "run")

    on_first(checked)
    if told := other_versions(job.config["versions"]):
        say(setting.console, told)
    return job.run()


def _job_of(options: TrainOptions, setting: Setting, folder: RunFolder | None) -> Job:
    """The run, of which the others hear from the first process what its folder says."""

    def told() -> bytes:
        assert folder is not None
        return json.dumps([str(folder.path), folder.read_json("config.json"), folder.is_trained]).encode()

    path, config, is_trained = json.loads(from_first(told))
    return Job(options, setting, RunFolder(Path(path)), config, is_trained)


def _posed(options: TrainOptions, setting: Setting, spent_before: Ledger) -> Problem:
    """The problem that the options pose, where none was handed over."""
    if setting.problem is not None:
        return setting.problem
    return problem_for(options, setting.devices, setting.console, spent_before, setting.entropy)


def _agree_on_data(problem: Problem, secret: bytes, keys: KeySource) -> None:
    """Refuse where processes have other data; where data are read for their fingerprint, they are for all of them at once."""
    for each in keys.secrets:
        problem.fingerprint.expect(each)
    if several():
        agree({"the data": all_well(lambda: problem.fingerprint(secret))})


def _check_room(devices: Devices, problem: Problem) -> None:
    fix = "give a model that keeps less, such as --model cnn, more --scales, or a data set of fewer or smaller inputs"
    check_room(devices.own, problem.model, *problem.kept, fix=fix, copies=devices.copies)


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
