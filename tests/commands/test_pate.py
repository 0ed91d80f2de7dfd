"""`jaxdp pate`, whole: what it leaves, who may see it, and that a killed run ends as one that was never killed."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command import interrupt_at
from of_several import ended, free_address, started, together

import jaxdp
from jaxdp import cli, pate
from jaxdp.commands.pate import _label, _pipeline, _release, _teach
from jaxdp.commands.pate._keys import erase_keys, read_key, write_keys
from jaxdp.commands.pate._predictions import Kept, load_array, read_labels, read_predictions, save_array
from jaxdp.runs._folder import RunFolder
from jaxdp.runs._key_source import KeySource

pytestmark = pytest.mark.filterwarnings("ignore:.*no record of some class")
FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
PUBLIC = ("labels.csv", "statement.txt", "statement.json")


def options(folder: Path, **changes: Any) -> list[str]:
    """8 teachers of 64 real digits each."""
    chosen = {"data-dir": FIXTURES, "teachers": 8, "queries": 60, "teacher-epochs": 2, "teacher-batch-size": 16}
    chosen |= {
        "student-steps": 12,
        "delta": 1e-3,
        "seed": 3,
        "threshold": 1,
        "sigma-threshold": 8,
        "sigma-max": 6,
        "output": folder,
    } | changes
    return ["pate", *(f"--{name}={value}" for name, value in chosen.items())]


def result(folder: Path) -> tuple[list[bytes], list[bytes], list[Any]]:
    """What must be the same: the labels and the ledger, the student's bits, its metrics."""
    run = jaxdp.load_run(folder)
    return (
        [(folder / name).read_bytes() for name in (*PUBLIC, "private/report.json")],
        [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.params)],
        run.metrics,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pate") / "run"
    cli.main(options(folder))
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_a_run_leaves_its_folder_and_keeps_apart_what_is_private(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {*PUBLIC, "config.json", "summary.json", "model", "private"}
    private = {"keys.json", "predictions.npy", "votes.npy", "votes.png", "epsilon.png", "report.json", "statement.json"}
    private |= {"labels.json"}
    private |= {"run.json", "metrics.jsonl", "summary.json", "student.png", "lock"}
    assert {path.name for path in (finished / "private").iterdir()} == private
    assert (finished / "private").stat().st_mode & 0o077 == 0
    assert "data_dependent" in (finished / "private" / "report.json").read_text()
    for name in ("statement.txt", "statement.json", "summary.json", "labels.csv"):
        assert "data_dependent" not in (finished / name).read_text()
        assert "sanitised" not in (finished / name).read_text()


def test_no_published_file_has_a_hash_of_the_private_records(finished: Path) -> None:
    """With all labels known but one, such a hash would tell that one."""
    import hashlib

    from jaxdp import data

    images = data.load("mnist", FIXTURES)
    clues = []
    for of in (images[1:5], images[1:3], images[2:3]):
        described, plain = hashlib.sha256(), hashlib.sha256()
        for array in of:
            described.update(f"{array.dtype.str}{array.shape}".encode())
            described.update(np.ascontiguousarray(array).data)
            plain.update(np.ascontiguousarray(array).data)
        clues += [described.digest(), plain.digest()]
    for path in finished.rglob("*"):
        if path.is_file() and "private" not in path.relative_to(finished).parts:
            content = path.read_bytes()
            assert not any(clue in content or clue.hex().encode() in content for clue in clues), path
            assert b"train_loss" not in content, path
            assert b"agreement" not in content, path
    assert json.loads((finished / "private" / "run.json").read_text()) == {"seed": 3}
    assert json.loads((finished / "config.json").read_text())["options"]["seed"] is None
    assert not (finished / "private" / "checkpoints").exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (finished / "private").rglob("*"))


def test_the_epsilon_is_that_of_the_votes_that_were_cast(finished: Path) -> None:
    predictions = np.load(finished / "private" / "predictions.npy")
    votes = np.load(finished / "private" / "votes.npy")
    np.testing.assert_array_equal(votes, pate.vote_counts(predictions, 10))
    with (finished / "labels.csv").open() as file:
        lines = list(csv.DictReader(file))
    answered = np.array([line["answered"] == "1" for line in lines])
    mechanism = pate.ConfidentNoisyMax(threshold=1, sigma_threshold=8, sigma_max=6)
    report = pate.analyze(votes, mechanism, answered=answered, delta=1e-3)
    stored = json.loads((finished / "private" / "report.json").read_text())
    assert stored["asked"] == len(lines) == 60
    assert stored["answered"] == answered.sum() > 0
    assert stored["epsilon"]["rdp"] == report.data_independent.epsilon
    assert stored["data_dependent_epsilon"] == report.data_dependent.epsilon
    ledger = jaxdp.accounting.Ledger.from_dict(json.loads((finished / "statement.json").read_text())["ledger"])
    assert ledger.epsilon(delta=1e-3).epsilon == pytest.approx(report.data_independent.epsilon)
    assert [line["label"] == "" for line in lines] == [line["answered"] == "0" for line in lines]


def test_the_keys_with_which_noise_could_be_subtracted_are_erased(finished: Path) -> None:
    keys = json.loads((finished / "private" / "keys.json").read_text())
    assert len(keys.pop("sha256")) == 64
    assert set(keys.values()) == {None}


def test_the_student_can_be_loaded_and_predicts(finished: Path, tmp_path: Path) -> None:
    cli.main(["predict", str(finished), "--output", str(tmp_path / "labels.csv")])
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert len(lines) == 129
    cli.main(["compare", str(finished), "--output", str(tmp_path / "compare.png")])


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["teachers", "labels", "student"])
def test_a_run_broken_off_at_any_stage_ends_as_one_that_was_not(
    stage: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    save, erase, record = _teach.save_array, _pipeline.erase_keys, RunFolder.add_metrics

    def in_teachers(path: Path, array: np.ndarray) -> None:
        save(path, array)
        if (array[:, 0] >= 0).sum() >= 3:
            raise KeyboardInterrupt

    def after_labels(*_: Any) -> None:
        raise KeyboardInterrupt

    def in_student(self: RunFolder, line: dict[str, Any]) -> None:
        record(self, line)
        if line["step"] >= 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_teach, "_SECONDS_BETWEEN_SAVES", -1.0)
        if stage == "teachers":
            patch.setattr(_teach, "save_array", in_teachers)
        elif stage == "labels":
            patch.setattr(_pipeline, "erase_keys", after_labels)
        else:
            patch.setattr(RunFolder, "add_metrics", in_student)
        with pytest.raises(SystemExit) as exit_:
            cli.main(options(folder))
    assert exit_.value.code == 130
    assert not (folder / "summary.json").exists()
    assert (folder / "statement.txt").exists() == (stage == "student")  # which says that keys are erased
    assert _pipeline.erase_keys is erase
    cli.main(["pate", "--resume", str(folder)])
    assert result(folder) == result(finished)
    assert json.loads((folder / "private" / "keys.json").read_text())["noise"] is None


@pytest.mark.slow
def test_a_run_of_which_only_erasing_is_left_asks_for_no_data(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, run = shutil.copytree(FIXTURES, tmp_path / "data"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(_pipeline, "erase_coordinates", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            cli.main(options(run, **{"data-dir": own}))
    shutil.rmtree(own)
    for _ in range(2):  # and nothing once it is finished
        cli.main(["pate", "--resume", str(run)])
        assert json.loads((run / "private" / "keys.json").read_text())["student"] is None
        assert result(run) == result(finished)


@pytest.mark.slow
def test_files_that_a_run_goes_on_from_are_refused_where_a_bit_of_them_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"

    def break_off(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def refused_where_damaged(name: str) -> None:
        whole = (folder / name).read_bytes()
        for at in (len(whole) // 2, len(whole) - 2):
            (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert str(folder / name) in refused(["pate", "--resume", str(folder)], capsys)
        (folder / name).write_bytes(whole[: len(whole) // 2])
        assert str(folder / name) in refused(["pate", "--resume", str(folder)], capsys)
        (folder / name).write_bytes(whole)

    for place, names in (
        ("write", ("private/predictions.npy", "private/keys.json")),
        ("erase_keys", ("labels.csv", "private/labels.json", "private/statement.json", "private/report.json")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(_pipeline, place, break_off)
            with pytest.raises(SystemExit):
                cli.main(options(folder) if place == "write" else ["pate", "--resume", str(folder)])
        capsys.readouterr()
        for name in names:
            refused_where_damaged(name)
    with monkeypatch.context() as patch:
        patch.setattr(_pipeline, "publish", break_off)
        with pytest.raises(SystemExit):
            cli.main(["pate", "--resume", str(folder)])
    (folder / "labels.csv").unlink()
    capsys.readouterr()
    assert "labels.csv is gone: bring it back, its labels are paid for" in refused(
        ["pate", "--resume", str(folder)], capsys
    )


@pytest.mark.slow
def test_a_run_killed_in_every_stage_ends_with_the_same_labels_and_ledger(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stages = (
        lambda: (folder / "private" / "predictions.npy").exists(),
        lambda: (folder / "statement.json").exists(),
        lambda: (
            (folder / "private" / "metrics.jsonl").exists()
            and (folder / "private" / "metrics.jsonl").read_text().count("\n") >= 3
        ),
    )
    command = options(folder)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "JAX_PLATFORMS": "cpu"}}
    for reached in stages:
        process = subprocess.Popen([sys.executable, "-m", "jaxdp.cli", *command], **quiet)
        while process.poll() is None and not reached():
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        command = ["pate", "--resume", str(folder)]
    assert not (folder / "summary.json").exists(), "the run ended before it was killed three times"
    subprocess.run([sys.executable, "-m", "jaxdp.cli", *command], check=True, **quiet)
    assert result(folder) == result(finished)


def as_several(arguments: list[str], number: int = 2) -> list[list[str]]:
    """The command of each process."""
    meeting = [f"--coordinator={free_address()}", f"--num-processes={number}"]
    return [["-m", "jaxdp.cli", *arguments, *meeting, f"--process-id={i}"] for i in range(number)]


@pytest.mark.slow
def test_two_processes_end_with_the_labels_of_one(finished: Path, tmp_path: Path) -> None:
    first, second = together(as_several(options(tmp_path / "run")))
    assert (first.code, second.code) == (0, 0), (first, second)
    assert second.out == ""
    assert result(tmp_path / "run") == result(finished)


@pytest.mark.slow
def test_two_processes_of_two_devices_end_with_the_labels_of_one_and_can_be_asked_again(
    finished: Path, tmp_path: Path
) -> None:
    for arguments in (options(tmp_path / "run"), ["pate", f"--resume={tmp_path / 'run'}"]):
        first, second = together(as_several(arguments), devices=2)
        assert (first.code, second.code) == (0, 0), (first, second)
        assert "differential privacy" in first.out
        assert second.out == ""
    assert result(tmp_path / "run") == result(finished)


LONGER = {"teachers": 64, "teacher-batch-size": 8, "teacher-epochs": 90_000, "threshold": 8}
"""Some ten seconds of teaching: predictions are kept, and signals heard of, a second apart."""


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "run"
    cli.main(options(folder, **LONGER))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_costs_no_teacher_that_has_predicted(
    victim: int, long_run: Path, tmp_path: Path
) -> None:
    run, predictions = tmp_path / "run", tmp_path / "run" / "private" / "predictions.npy"
    both = started(as_several(options(run, **LONGER)))
    while not predictions.exists():
        assert both[0].poll() is None, "the teachers were trained before a process could be killed"
        time.sleep(0.005)
    both[victim].kill()
    end = ended(both)[1 - victim]
    assert end.code not in (0, -signal.SIGKILL), end
    assert f"process {victim} has died" in end.err
    assert f"this goes on: jaxdp pate --resume {run}" in end.err
    kept = np.load(predictions)
    done = kept[:, 0] >= 0
    assert 0 < done.sum() < 64
    cli.main(["pate", "--resume", str(run)])
    np.testing.assert_array_equal(np.load(predictions)[done], kept[done])
    assert result(run) == result(long_run)


@pytest.mark.slow
def test_a_signal_to_one_process_stops_both_and_any_number_goes_on(long_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    both = started(as_several(options(run, **LONGER)))
    while not (run / "private" / "predictions.npy").exists():
        assert both[0].poll() is None, "the teachers were trained before a signal could be sent"
        time.sleep(0.005)
    both[1].send_signal(signal.SIGTERM)
    ends = ended(both)
    assert [end.code for end in ends] == [130, 143], ends
    for end in ends:
        assert "jaxdp: interrupted; this goes on: jaxdp pate --resume" in end.err
    assert 0 < (np.load(run / "private" / "predictions.npy")[:, 0] >= 0).sum() < 64
    for each in together(as_several(["pate", f"--resume={run}"], 3)):
        assert each.code == 0, each
    assert result(run) == result(long_run)


@pytest.mark.slow
def test_processes_that_disagree_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    first, second = as_several(options(tmp_path / "run"))
    for end in together([first, [*second, "--teacher-lr=0.5", "--seed=4"]]):
        assert end.code == 2, end
        assert "disagree on --teacher-lr (process 1 against process 0), --seed (process 1" in end.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_interactive_votes_are_charged_where_the_teachers_answered(tmp_path: Path) -> None:
    changes = {"aggregator": "interactive", "threshold": 3, "student-confidence": 0.105, "seed": 5}
    cli.main(options(tmp_path / "run", **changes))
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    with (tmp_path / "run" / "labels.csv").open() as file:
        lines = list(csv.DictReader(file))
    own = [line for line in lines if line["answered"] == "0" and line["label"]]
    assert own, "the first student was sure of none"
    assert lines.index(own[0]) >= 30, "a label of its own before there was a student"
    assert stored["answered"] == sum(line["answered"] == "1" for line in lines)
    mechanism = pate.InteractiveNoisyMax(threshold=3, sigma_threshold=8, sigma_max=6, student_confidence=0.105)
    event = pate.event_of(mechanism, asked=60, answered=stored["answered"])
    assert stored["epsilon"]["rdp"] == pytest.approx(jaxdp.accounting.event_epsilon(event, delta=1e-3).epsilon)
    assert "Interactive-GNMax" in (tmp_path / "run" / "statement.txt").read_text()
    assert "learned the answers to the first 30 of them" in stored["statement"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "budget", [{"target-epsilon": 3}, {"max-answers": 30, "threshold": 1e-3, "sigma-threshold": 0.8}]
)
def test_a_student_that_nobody_asked_is_not_trained_and_in_no_statement(
    budget: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_pipeline._Job, "_first_student", lambda *_: pytest.fail("a student learned"))
    changes = {"aggregator": "interactive", "threshold": 3, "student-confidence": 0.105} | budget
    cli.main(options(tmp_path / "run", **changes))
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert 0 < stored["asked"] <= 30
    assert "There was no student yet." in stored["statement"]
    assert "before there was a student to ask" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", ["confident", "interactive"])
def test_checks_that_let_nothing_pass_are_stated_and_the_teachers_can_be_asked_again(
    aggregator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    changes = {"queries": 6, "threshold": 8, "sigma-threshold": 0.8, "teacher-epochs": 1, "teacher-batch-size": 64}
    changes |= {"teacher-lr": 1e-6, "seed": 4, "aggregator": aggregator}
    changes |= {"student-confidence": 0.105} if aggregator == "interactive" else {}
    said = refused(options(folder, **changes), capsys)
    stored = json.loads((folder / "statement.json").read_text())
    assert f"answered none of {stored['asked']} queries, which cost epsilon" in " ".join(said.split())
    assert stored["answered"] == 0
    assert stored["ledger"]["entries"]
    assert "answered none" in " ".join(refused(["pate", "--resume", str(folder)], capsys).split())
    kept = str(folder / "private" / "predictions.npy")
    again = [
        "--num-classes",
        "10",
        "--records",
        "512",
        "--delta",
        "1e-3",
        "--threshold",
        "1",
        "--sigma",
        "6",
        "--teachers",
        "8",
    ]
    cli.main(["pate", "label", kept, *again, "--output", str(tmp_path / "again")])
    assert "no record was seen by more than one teacher" in (tmp_path / "again" / "statement.txt").read_text()


@pytest.mark.slow
def test_runs_measured_on_other_images_are_not_ranked_together(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(options(tmp_path / "held-back", holdout=200, student="supervised"))
    capsys.readouterr()
    cli.main(["compare", str(tmp_path), str(finished), "--output", str(tmp_path / "c.png")])
    said = " ".join(capsys.readouterr().out.split())
    assert "by accuracy on examples held back" in said
    assert "images of the test set" in said


@pytest.mark.slow
def test_a_budget_and_a_cap_end_the_asking(tmp_path: Path, finished: Path) -> None:
    predictions = tmp_path / "predictions.npy"
    np.save(predictions, np.load(finished / "private" / "predictions.npy"))
    common = [
        "pate",
        "label",
        str(predictions),
        "--num-classes",
        "10",
        "--records",
        "512",
        "--delta",
        "1e-3",
        "--seed",
        "1",
    ]
    common += ["--threshold", "1", "--sigma-threshold", "8", "--sigma-max", "6"]
    cli.main([*common, "--max-answers", "5", "--output", str(tmp_path / "capped")])
    assert json.loads((tmp_path / "capped" / "statement.json").read_text())["answered"] == 5
    cli.main([*common, "--target-epsilon", "4", "--output", str(tmp_path / "budget")])
    stored = json.loads((tmp_path / "budget" / "statement.json").read_text())
    assert 0 < stored["asked"] < 60
    assert stored["epsilon"]["rdp"] <= 4


@pytest.mark.slow
def test_predictions_of_others_are_labelled_and_analysed_from_npy_and_csv_alike(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions = np.load(finished / "private" / "predictions.npy")
    np.save(tmp_path / "p.npy", predictions)
    np.savetxt(tmp_path / "p.csv", predictions, fmt="%d", delimiter=",")
    found = []
    for name in ("p.npy", "p.csv"):
        folder = tmp_path / f"out-{name[2:]}"
        arguments = [str(tmp_path / name), "--num-classes", "10", "--delta", "1e-3", "--threshold", "1", "--sigma", "6"]
        cli.main(["pate", "label", *arguments, "--records", "512", "--seed", "4", "--output", str(folder)])
        capsys.readouterr()
        plot = tmp_path / f"{name}.png"
        labels = str(folder / "labels.csv")
        cli.main(["pate", "analyze", *arguments, "--labels", labels, "--plot", str(plot), "--json"])
        figures = json.loads(capsys.readouterr().out)
        assert figures["epsilon"] == json.loads((folder / "statement.json").read_text())["epsilon"]
        assert plot.exists()
        found.append((folder / "labels.csv").read_bytes())
    assert found[0] == found[1]
    of_all = [str(tmp_path / "p.npy"), "--num-classes", "10", "--aggregator", "gnmax", "--labels", labels]
    assert "answers all" in refused(["pate", "analyze", *of_all], capsys)
    others = [*arguments, "--labels", labels, "--sigma", "60"]
    said = refused(["pate", "analyze", *others], capsys)
    assert said.index("noise of 60 ") < said.index("noise of 6 ") < said.index("pate label")
    fewer = [str(tmp_path / "fewer.npy"), *arguments[1:], "--labels", labels]
    np.save(tmp_path / "fewer.npy", predictions[:-1])
    assert "would cost otherwise" in refused(["pate", "analyze", *fewer], capsys)
    classes = [arguments[0], "--num-classes", "2", *arguments[3:], "--labels", labels]
    assert "--num-classes=2, and" in refused(["pate", "analyze", *classes], capsys)
    swapped = [str(tmp_path / "swapped.npy"), *arguments[1:], "--labels", labels]
    np.save(tmp_path / "swapped.npy", predictions[:, ::-1])
    assert "were made of other votes" in refused(["pate", "analyze", *swapped], capsys)
    more = [arguments[0], "--num-classes", "11", *arguments[3:], "--labels", labels]
    assert "have for 11 classes" in refused(["pate", "analyze", *more], capsys)
    (tmp_path / "out-csv" / "private" / "votes.npy").write_bytes(b"no votes")
    assert "votes.npy can't be read" in refused(["pate", "analyze", *arguments, "--labels", labels], capsys)
    weak = [
        *arguments,
        "--records",
        "512",
        "--sigma",
        "0.2",
        "--sigma-threshold",
        "0.2",
        "--output",
        str(tmp_path / "weak"),
    ]
    assert "of PATE, a larger sigma or gamma" in refused(["pate", "label", *weak], capsys)
    assert list((tmp_path / "weak").iterdir()) == []


@pytest.mark.slow
def test_labels_that_another_process_made_meanwhile_are_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "p.npy", np.random.default_rng(0).integers(0, 2, (30, 40)))
    command = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "3000", "--output"]
    create = RunFolder.create

    def before_another(path: Path) -> RunFolder:
        monkeypatch.setattr(RunFolder, "create", create)
        folder = create(path)
        cli.main([*command, str(path)])
        return folder

    monkeypatch.setattr(RunFolder, "create", before_another)
    assert "holds labels already" in refused([*command, str(tmp_path / "labels")], capsys)


@pytest.mark.slow
def test_labelling_that_a_kill_ended_before_a_label_was_there_begins_anew_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "p.npy", np.random.default_rng(0).integers(0, 2, (30, 40)))
    output = tmp_path / "labels"
    command = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "3000", "--seed", "4"]
    replace, killed = Path.replace, []

    def before_the_labels(self: Path, target: Path) -> Path:
        if target.name == "labels.csv" and not killed:
            killed.append(sorted(each.name for each in output.iterdir()))
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", before_the_labels)
    with pytest.raises(SystemExit):
        cli.main([*command, "--output", str(output)])
    assert killed == [["private"]]
    assert (output / "private" / "votes.npy").exists()
    assert "holds private/votes.npy" in refused([*command, "--delta", "1e-4", "--output", str(output)], capsys)
    cli.main([*command, "--output", str(output)])
    elsewhere = tmp_path / "shared"
    elsewhere.mkdir()
    for name in PUBLIC:
        (output / name).rename(elsewhere / name)
    assert "holds private/votes.npy" in refused([*command, "--output", str(output)], capsys)
    assert (output / "private" / "votes.npy").exists()


@pytest.mark.slow
def test_labels_that_a_kill_ended_before_they_were_known_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "p.npy", np.random.default_rng(0).integers(0, 2, (30, 40)))
    command = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "3000"]
    for i, name in enumerate(("write_labels", "place_labels")):
        folder = ["--output", str(tmp_path / f"{i}")]
        interrupt_at(_release, name, [*command, *folder], monkeypatch)
        assert not (tmp_path / f"{i}" / "labels.csv").exists()
        with RunFolder(tmp_path / f"{i}").locked():
            assert "and give the same command again" in refused([*command, *folder], capsys)
        cli.main([*command, *folder])
        assert (tmp_path / f"{i}" / "statement.json").exists()


@pytest.mark.slow
def test_labels_get_no_statement_but_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "p.npy", np.random.default_rng(0).integers(0, 2, (30, 40)))
    command = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "3000"]
    cheap, dear = tmp_path / "cheap", tmp_path / "dear"
    cli.main([*command, "--sigma", "40", "--output", str(cheap)])
    again = [*command, "--sigma", "2", "--output", str(dear)]
    interrupt_at(_label, "publish", again, monkeypatch)
    others = ("statement.json", "report.json", "labels.json")
    own = {name: (dear / "private" / name).read_bytes() for name in others}
    capsys.readouterr()
    for swapped in (others[:1], others[:2], others):
        for name in swapped:
            (dear / "private" / name).write_bytes((cheap / "private" / name).read_bytes())
        assert "is not as it was written" in refused(again, capsys)
        assert not (dear / "statement.json").exists()
    for name, content in own.items():
        (dear / "private" / name).write_bytes(content)
    cli.main(again)
    (dear / "statement.json").unlink()
    assert "labels whose statement.json is gone" in refused(again, capsys)


def test_an_array_of_another_run_is_not_this_ones(tmp_path: Path) -> None:
    save_array(Kept(tmp_path / "predictions.npy", "one"), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(np.load(tmp_path / "predictions.npy"), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(load_array(Kept(tmp_path / "predictions.npy", "one")), [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(jaxdp.UsageError, match="is not as it was written"):
        load_array(Kept(tmp_path / "predictions.npy", "another"))


def test_keys_of_another_run_are_not_this_ones(tmp_path: Path) -> None:
    for nonce in ("one", "other"):
        folder = RunFolder.create(tmp_path / nonce)
        write_keys(folder, KeySource(None, [], str), nonce)
        folder.write_json("config.json", {"nonce": nonce})
    one, others = RunFolder(tmp_path / "one"), (tmp_path / "other" / "private" / "keys.json").read_bytes()
    key = jax.random.key_data(read_key(one, "noise"))
    erase_keys(one, "teachers")
    np.testing.assert_array_equal(jax.random.key_data(read_key(one, "noise")), key)
    (tmp_path / "one" / "private" / "keys.json").write_bytes(others)
    for use in (read_key, erase_keys):
        with pytest.raises(jaxdp.UsageError, match="isn't of this run"):
            use(one, "noise")


@pytest.mark.parametrize("cell", ["1_0", "\N{ARABIC-INDIC DIGIT ONE}", "1.0", "0x1"])
def test_a_class_is_a_plain_whole_number(cell: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"0, +1\n{cell},0\n", encoding="utf-8")
    with pytest.raises(jaxdp.UsageError, match=r"line 2, column 1: .* is not a whole number"):
        read_predictions(tmp_path / "p.csv")
    (tmp_path / "l.csv").write_text(f"example,label,answered\n0,{cell},1\n", encoding="utf-8")
    with pytest.raises(jaxdp.UsageError, match="is not a whole number"):
        read_labels(tmp_path / "l.csv")


@pytest.mark.slow
def test_labels_that_a_kill_left_without_their_statement_get_it_and_are_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "p.npy", np.random.default_rng(0).integers(0, 2, (30, 40)))
    command = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "3000", "--seed", "4"]
    cli.main([*command, "--output", str(tmp_path / "whole")])
    interrupt_at(_label, "publish", [*command, "--output", str(tmp_path / "broken")], monkeypatch)
    assert not (tmp_path / "broken" / "statement.json").exists()
    capsys.readouterr()
    labels = tmp_path / "broken" / "labels.csv"
    labels.rename(tmp_path / "taken.csv")
    assert "held labels, which are gone from it and are paid for" in refused(
        [*command, "--output", str(labels.parent)], capsys
    )
    (tmp_path / "taken.csv").rename(labels)
    others = [*command, "--delta", "1e-4", "--output", str(tmp_path / "broken")]
    assert "this isn't the same one" in refused(others, capsys)
    cli.main([*command, "--output", str(tmp_path / "broken")])
    assert "nothing was labelled anew" in " ".join(capsys.readouterr().out.split())
    for name in ("labels.csv", "statement.json", "statement.txt"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "holds labels already" in refused([*command, "--output", str(tmp_path / "broken")], capsys)


@pytest.mark.slow
def test_what_a_user_got_wrong_is_told(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    for changes, message in (
        ({"threshold": 9}, "threshold=9 exceeds the 8 teachers"),
        ({"dataset": "csv"}, "--dataset=csv: the teachers of jaxdp pate learn from images"),
        ({"dataset": "my/table.csv"}, "label by what they predict: jaxdp pate label"),
        ({"teachers": 1}, "one teacher's vote can't hide"),
        ({"teachers": 600}, "exceeds the 512 records"),
        ({"teacher-batch-size": 65}, "batch_size=65 exceeds the 64 records of a teacher"),
        ({"queries": 116}, "--queries=116 exceeds the 115 public images"),
        ({"public": 128}, "leaves none of the 128 test images"),
        ({"gamma": 0.1}, "--gamma=0.1 has no effect with --aggregator confident"),
        ({"sigma-max": -1}, "--sigma-max=-1.0 must be above 0"),
        ({"delta": 0.01}, "delta=0.01 is not below 1/512"),
        ({"target-epsilon": 0.001}, "doesn't pay for one answer"),
    ):
        assert message in refused(options(new, **changes), capsys)
        assert not new.exists()
    interactive = ["pate", "label", "p.npy", "--num-classes", "2", "--records", "9", "--output", "x"]
    assert "asks a student" in refused([*interactive, "--aggregator", "interactive"], capsys)
    too_few = ["pate", "--aggregator", "interactive", "--queries", "1", "--output", str(new)]
    assert "--queries=1 is too few for --aggregator interactive" in refused(too_few, capsys)
    assert "options differ" in refused(["pate", "--resume", str(finished), "--teachers", "9"], capsys)
    assert "is a run of `jaxdp pate`" in refused(["train", "--resume", str(finished)], capsys)


@pytest.mark.slow
def test_predictions_the_other_way_round_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "p.npy", np.zeros((5, 3), np.int64))
    common = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "9", "--delta", "0.01"]
    common += ["--aggregator", "gnmax", "--output", str(tmp_path / "new")]
    said = refused(common, capsys)
    assert "understood as 5 teachers x 3 examples) has more teachers than examples" in said
    assert "--teachers=5" in said
    assert "disagree: give the predictions transposed" in refused([*common, "--teachers", "3"], capsys)
    assert "disagree: give a row for each teacher" in refused([*common, "--teachers", "4"], capsys)
    assert "--teachers=0 must be" in refused([*common, "--teachers", "0"], capsys)
    assert not (tmp_path / "new").exists()
    cli.main([*common, "--teachers", "5"])
    assert json.loads((tmp_path / "new" / "statement.json").read_text())["asked"] == 3


@pytest.mark.slow
def test_files_that_hold_no_predictions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    common = [str(bad), "--num-classes", "10"]
    for content, message in (
        ("1,2\n3,x\n", "line 2, column 2: 'x' is not a whole number"),
        ("1,2\n3\n", "line 2 has 1 columns and line 1 has 2"),
        ("1,2,3\n", "are of one teacher: transpose them"),
        ("1,2\n3,10\n", "hold 10, and with num_classes=10"),
    ):
        bad.write_text(content)
        assert message in refused(["pate", "analyze", *common, "--aggregator", "gnmax"], capsys)
    bad.write_text("1,2\n3,4\n")
    assert "--labels is missing" in refused(["pate", "analyze", *common], capsys)
    assert "neither .npy nor .csv" in refused(["pate", "analyze", "x.txt", "--num-classes", "2"], capsys)
    cli.main(["pate", "label", *common, "--records", "10", "--delta", "0.01", "--output", str(tmp_path / "once")])
    again = ["pate", "label", *common, "--records", "10", "--delta", "0.01", "--output", str(tmp_path / "once")]
    assert "labelling again costs again" in refused(again, capsys)
    (tmp_path / "once" / "labels.csv").unlink()
    assert "states what labels have cost, which are gone from it" in refused(again, capsys)
    few = ["pate", "label", *common, "--records", "1", "--delta", "0.01", "--output", str(tmp_path / "few")]
    assert "--records=1 is fewer than the 2 teachers" in refused(few, capsys)
