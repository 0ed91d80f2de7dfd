"""A run's folder: what others may see tells nothing that epsilon doesn't cover, noise is never shared, nobody else is in it."""

import csv
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from command import interrupt_at, refused

import jaxdp
from jaxdp import cli
from jaxdp.commands._options import to_dict
from jaxdp.commands.pate import PateOptions
from jaxdp.commands.train import TrainOptions
from jaxdp.commands.train._results import Results
from jaxdp.commands.train._tables import table_problem
from jaxdp.runs._folder import RunFolder, new_path, still_new

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
NOISE, LR, BATCH = 20.0, 300.0, 60


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small competition."""
    folder = tmp_path_factory.mktemp("tables")
    cli.main(["lookalike", str(folder), "--rows", "300", "--features", "6", "--targets", "20", "--test-rows", "20"])
    return folder


def options(tables: Path, output: Path, *more: str, seed: int | None = 1) -> list[str]:
    """A logistic regression of 4 steps, whose noise is far larger than all else."""
    files = ["--features", str(tables / "train_features.csv"), "--targets", str(tables / "train_targets_scored.csv")]
    sizes = ["--bounds", "-10", "10", "--hidden", "--epochs", "1", "--batch-size", str(BATCH), "--delta", "1e-3"]
    noise = ["--noise-multiplier", str(NOISE), "--lr", str(LR), "--output", str(output)]
    return [
        "train",
        "--dataset",
        "csv",
        *files,
        *sizes,
        *noise,
        *([] if seed is None else ["--seed", str(seed)]),
        *more,
    ]


def with_one_label_changed(tables: Path, folder: Path) -> Path:
    """The same tables, but for one target of one record that is trained on."""
    shutil.copytree(tables, folder)
    path = folder / "train_targets_scored.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    trained_on = lambda name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 5 != 0
    row = next(row for row in rows[1:] if trained_on(row[0]))
    row[1] = str(1 - int(row[1]))
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return folder


@pytest.fixture(scope="module")
def ours(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("runs") / "ours"
    cli.main(options(tables, folder))
    return folder


def published(folder: Path) -> list[Path]:
    """Every file outside private/."""
    return [path for path in folder.rglob("*") if path.is_file() and "private" not in path.relative_to(folder).parts]


def parameters(folder: Path) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jaxdp.load_run(folder).params)])


@pytest.mark.slow
def test_what_is_published_is_the_same_on_neighbouring_data_but_for_the_model_and_that_has_noise_of_its_own(
    ours: Path, tables: Path, tmp_path: Path
) -> None:
    theirs, neighbour = tmp_path / "theirs", with_one_label_changed(tables, tmp_path / "neighbour")
    cli.main(options(neighbour, theirs))
    names = {str(path.relative_to(ours)) for path in published(ours)}
    assert names >= {"config.json", "statement.txt", "statement.json", "summary.json", "epsilon.png"}
    for name in names:
        if not name.startswith("model"):
            said = (theirs / name).read_bytes()
            for theirs_is, ours_is in ((theirs, ours), (neighbour, tables)):
                said = said.replace(str(theirs_is).encode(), str(ours_is).encode())
            assert said == (ours / name).read_bytes(), name
    difference = parameters(ours) - parameters(theirs)
    assert 0.8 < difference.std() / (np.sqrt(2 * 4) * LR * NOISE / BATCH) < 1.2


@pytest.mark.slow
def test_with_all_labels_known_but_one_no_published_file_tells_it(ours: Path, tables: Path, tmp_path: Path) -> None:
    """The attack: hash what the records would be with either label, and look for that in every file."""
    arrays = []
    for data in (tables, with_one_label_changed(tables, tmp_path / "neighbour")):
        chosen = cli._parse(options(data, tmp_path / "none"))
        arrays.append(table_problem(chosen, jaxdp.accounting.Ledger()).fingerprint._read)
    clues = set()
    for read in arrays:
        for parts in itertools.chain.from_iterable(itertools.permutations(read, r) for r in (1, 2, 3)):
            described, plain = hashlib.sha256(), hashlib.sha256()
            for array in parts:
                described.update(f"{array.dtype.str}{array.shape}".encode())
                described.update(np.ascontiguousarray(array).data)
                plain.update(np.ascontiguousarray(array).data)
            clues |= {described.digest(), plain.digest()}
    assert len(clues) > 20
    for path in published(ours):
        content = path.read_bytes()
        for clue in clues:
            assert clue not in content, path
            assert clue.hex().encode() not in content.lower(), path
    run = json.loads((ours / "private" / "run.json").read_text())
    assert set(run) == {"seed"}  # and the fingerprint that was there is gone
    assert 'seed": null' in (ours / "config.json").read_text()


@pytest.mark.slow
def test_losses_on_people_are_in_private_which_nobody_else_can_read(ours: Path) -> None:
    for path in published(ours):
        content = path.read_bytes()
        assert not any(name in content for name in (b"test_loss", b"test_accuracy", b"train_loss")), path
    private = ours / "private"
    assert private.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in private.rglob("*"))
    assert jaxdp.load_run(ours).summary["test_loss"] > 0  # pyright: ignore[reportOptionalSubscript]
    assert "records held back to evaluate on are not protected" in (ours / "statement.txt").read_text()


@pytest.mark.slow
def test_what_is_published_predicts_without_the_rest(
    ours: Path, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(ours, copied, ignore=shutil.ignore_patterns("private"))
    test = ["--data", str(tables / "test_features.csv"), "--output"]
    cli.main(["predict", str(copied), *test, str(tmp_path / "copied.csv")])
    cli.main(["predict", str(ours), *test, str(tmp_path / "whole.csv")])
    assert (tmp_path / "copied.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    run = jaxdp.load_run(copied)
    assert run.metrics == []
    assert run.summary is not None
    assert "test_loss" not in run.summary
    assert "stayed in the folder private/" in refused(["compare", str(copied)], capsys)
    cli.main(["compare", str(ours), "--output", str(tmp_path / "compared.png")])  # of people held back
    assert "not to be shared" in capsys.readouterr().out
    assert (tmp_path / "compared.png").stat().st_mode & 0o077 == 0
    cli.main(["train", "--resume", str(copied)])
    assert "differential privacy" in " ".join(capsys.readouterr().out.split()).replace("-", " ")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["before the erasure", "after the erasure"])
def test_a_run_killed_about_the_erasure_of_its_keys_states_it_only_once_they_are_gone(
    stage: str, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, erase = tmp_path / "run", RunFolder.erase

    def killed(self: RunFolder) -> None:
        if stage == "after the erasure":
            erase(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "erase", killed)
        with pytest.raises(SystemExit):
            cli.main(options(tables, folder, seed=None))
    assert (folder / "private" / "checkpoints").exists() == (stage == "before the erasure")
    assert not (folder / "statement.txt").exists()
    assert not (folder / "summary.json").exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder / "private").rglob("*"))
    cli.main(["train", "--resume", str(folder)])
    assert not (folder / "private" / "checkpoints").exists()
    assert set(json.loads((folder / "private" / "run.json").read_text())) == {"seed"}
    assert "were erased when it finished" in (folder / "statement.txt").read_text()
    assert jaxdp.load_run(folder).summary is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "private/summary.json"])
def test_nothing_is_stated_of_a_trained_run_where_a_digit_that_it_is_stated_by_is_another(
    name: str, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(self: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Results, "publish", killed)
        with pytest.raises(SystemExit):
            cli.main(options(tables, tmp_path / "run"))
    capsys.readouterr()
    whole = (tmp_path / "run" / name).read_text()
    at = whole.index('"noise_multiplier": ') + len('"noise_multiplier": ')
    assert whole[at] != "9"
    (tmp_path / "run" / name).write_text(f"{whole[:at]}9{whole[at + 1 :]}")
    assert "not as it was written" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run" / "statement.txt").exists()
    (tmp_path / "run" / name).write_text(whole)
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert (tmp_path / "run" / "statement.txt").exists()


@pytest.mark.slow
def test_a_run_of_which_only_its_statement_is_left_asks_for_no_data(
    tables: Path, ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are erased where the data are taken away after it was broken off."""
    own, run = shutil.copytree(tables, tmp_path / "tables"), tmp_path / "run"
    interrupt_at(RunFolder, "erase", options(own, run), monkeypatch)
    shutil.rmtree(own)
    assert (run / "private" / "checkpoints").exists()
    cli.main(["train", "--resume", str(run)])
    assert not (run / "private" / "checkpoints").exists()
    for name in ("statement.txt", "epsilon.png"):
        assert (run / name).read_bytes() == (ours / name).read_bytes()


def test_what_is_to_be_erased_does_not_lie_behind_a_link(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    for each in (folder.checkpoints, folder.best, folder.private / "trials"):
        folder.make_private()
        each.symlink_to(tmp_path)
        with pytest.raises(jaxdp.UsageError, match=f"{each} is a link"), folder.locked():
            pass
        each.unlink()


@pytest.mark.slow
def test_models_of_one_seed_differ_by_what_their_noise_says(tables: Path, ours: Path, tmp_path: Path) -> None:
    """Of folds, of a run that counts another in its ledger, and of one with another option; false alarms: 1 in 10,000."""
    cli.main(options(tables, tmp_path / "folds", "--folds", "3"))
    cli.main(options(tables, tmp_path / "second", "--ledger", str(ours / "statement.json")))
    cli.main(options(tables, tmp_path / "option", "--schedule", "linear", "--warmup", "1"))
    folders = {f"fold {i}": tmp_path / "folds" / f"fold-{i}" for i in (1, 2, 3)}
    folders |= {"first": ours} | {name: tmp_path / name for name in ("second", "option")}
    for (one, first), (other, second) in itertools.combinations(folders.items(), 2):
        a, b = parameters(first), parameters(second)
        correlation = np.corrcoef(a, b)[0, 1]
        ratio = (2 * a - b).std() / (LR * NOISE / BATCH)
        print(f"{one}, {other}: correlation {correlation:.3f}, 2a - b has {ratio:.2f} times a step's noise")
        assert abs(correlation) < 4.5 / np.sqrt(len(a)), (one, other)
        if other != "option":  # whose learning rate is not the same at every step
            of_a, of_b = jaxdp.load_run(first).step, jaxdp.load_run(second).step
            assert 0.8 < (a - b).std() / (np.sqrt(of_a + of_b) * LR * NOISE / BATCH) < 1.2, (one, other)
            assert 0.8 < ratio / np.sqrt(4 * of_a + of_b) < 1.2, (one, other)
    ledgers = [
        json.loads((tmp_path / "folds" / f"fold-{i}" / "statement.json").read_text())["ledger"] for i in (1, 2, 3)
    ]
    assert len({ledger["entries"][0]["nonce"] for ledger in ledgers}) == 3
    told = (tmp_path / "folds" / "folds.json").read_text()
    assert 'loss"' not in told
    assert "each has noise of its own" in told


@pytest.mark.slow
def test_the_same_command_gives_the_same_bits(tables: Path, ours: Path, tmp_path: Path) -> None:
    cli.main(options(tables, tmp_path / "again", "--device", "cpu"))
    assert parameters(tmp_path / "again").tobytes() == parameters(ours).tobytes()
    same = lambda folder: (folder / "statement.json").read_bytes()
    assert same(tmp_path / "again") == same(ours)


HOLD = """
import sys
from pathlib import Path
from jaxdp.runs._folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A folder in which a second process is at work."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_process_in_a_folder_is_refused_until_the_first_is_dead(
    held: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, process = held
    monkeypatch.chdir(tmp_path)
    common = ["--data-dir", str(FIXTURES), "--delta", "1e-3"]
    pate = ["pate", *common, "--teachers", "8", "--queries", "9", "--teacher-batch-size", "16"]
    np.save(tmp_path / "p.npy", np.zeros((3, 4), np.int64))
    label = ["pate", "label", str(tmp_path / "p.npy"), "--num-classes", "2", "--records", "9", "--aggregator", "gnmax"]
    for command in (["train", *common], pate, [*label, "--delta", "0.01"]):
        said = refused([*command, "--output", str(folder)], capsys)
        assert f"is in use by process {process.pid} on" in said
        assert "give another folder" in said
    for kind, command in (
        (TrainOptions(), "train"),
        (PateOptions(teachers=8, queries=9, teacher_batch_size=16), "pate"),
    ):
        chosen = to_dict(kind) | {"data_dir": str(FIXTURES), "delta": 1e-3}
        config = {"options": chosen} | ({"command": "pate"} if command == "pate" else {})
        (folder / "config.json").write_text(json.dumps(config))
        assert f"is in use by process {process.pid} on" in refused([command, "--resume", str(folder)], capsys)
    process.kill()
    process.communicate()
    with RunFolder(folder).locked():
        assert str(os.getpid()) in (folder / "private" / "lock").read_text()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        new_path("mnist").mkdir(parents=True)
    assert len(list(Path("runs").iterdir())) == 3


def test_two_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = new_path("mnist")
    assert still_new(said, None, "mnist") == said
    said.mkdir(parents=True)
    other = still_new(said, None, "mnist")
    assert not other.exists()
    assert still_new(said, said, "mnist") == said  # which is refused where there is a run, as it was asked for


@pytest.mark.parametrize("left", ["metrics.jsonl", "predictions.npy", "votes.npy", "summary.json"])
def test_what_another_run_left_in_private_is_not_taken_for_a_new_ones(left: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).make_private()
    (tmp_path / "private" / "lock").touch()  # as a start leaves it that was broken off
    RunFolder.create(tmp_path)
    (tmp_path / "private" / left).touch()
    with pytest.raises(jaxdp.UsageError, match=f"holds private/{left} of another run.*give a new folder"):
        RunFolder.create(tmp_path)


def test_what_a_kill_left_before_a_run_was_described_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.tmp").write_text("{")
    folder = RunFolder.create(tmp_path / "run")
    folder.write_text("config.json", "{}")
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]
    with pytest.raises(TypeError):
        folder.write_bytes("statement.txt", cast(Any, "text"))
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


def test_a_folder_of_folds_says_how_they_are_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "fold-1").mkdir()
    (tmp_path / "fold-1" / "config.json").write_text("{}")
    with pytest.raises(jaxdp.UsageError, match="those of --folds, which the same command as before goes on with"):
        RunFolder.existing(tmp_path)
