"""Training on tables: the whole way from CSV files to a submission, and an epsilon that covers all of it."""

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import cli, data
from jaxdp.accounting import Ledger, gaussian_event
from jaxdp.commands.train import TrainOptions, train_folds
from jaxdp.commands.train._tables import table_problem

BOUNDS = ("--bounds", "-10", "10")


FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small competition."""
    folder = tmp_path_factory.mktemp("tables")
    cli.main(["lookalike", str(folder), "--rows", "700", "--features", "24", "--targets", "5", "--test-rows", "40"])
    return folder


def options(tables: Path, *more: str, scaling: tuple[str, ...] = BOUNDS, epochs: int = 3) -> list[str]:
    files = ["--features", str(tables / "train_features.csv"), "--targets", str(tables / "train_targets_scored.csv")]
    sizes = ["--hidden", "8", "--epochs", str(epochs), "--batch-size", "128", "--delta", "1e-3", "--opt", "adam"]
    return ["train", "--dataset", "csv", *files, *scaling, *sizes, "--seed", "3", *more]


@pytest.mark.slow
def test_a_table_is_learned_and_predicted_in_the_form_of_a_submission(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "columns.txt").write_text("cp_type\ncp_dose\n3\n4\ng-2\n")
    more = ("--columns", str(tmp_path / "columns.txt"), "--ema", "0.9", "--schedule", "cosine", "--warmup", "4")
    cli.main([*options(tables, "--target-epsilon", "8", *more), "--output", str(tmp_path / "run")])
    cli.main(
        [
            "predict",
            str(tmp_path / "run"),
            "--data",
            str(tables / "test_features.csv"),
            "--output",
            str(tmp_path / "s.csv"),
        ]
    )
    assert "counts as known without looking at the data" in (tmp_path / "run" / "statement.txt").read_text()
    with (tmp_path / "s.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["sig_id", *(f"target_{i}" for i in range(5))]
    assert len(rows) == 41
    assert all(0 <= float(cell) <= 1 for row in rows[1:] for cell in row[1:])
    run = jaxdp.load_run(tmp_path / "run")
    assert run.encoding is not None
    assert run.encoding.columns == ("cp_type", "cp_dose", "g-0", "g-1", "g-2")
    ids, features = run.encoding.read(tables / "test_features.csv")
    np.testing.assert_allclose(run.predict(features)[0], [float(cell) for cell in rows[1][1:]], atol=1e-6)
    assert ids[0] == rows[1][0]
    assert run.summary is not None
    assert run.summary["epsilon"]["rdp"] <= 8


@pytest.mark.slow
def test_what_is_evaluated_and_predicts_is_the_average(tables: Path, tmp_path: Path) -> None:
    import optax

    from jaxdp.commands.train._optimizer import optimizer
    from jaxdp.commands.train._plan import resolve_plan

    chosen = TrainOptions(dataset="csv", ema=0.5, lr=0.1, dp=False)
    params, made = {"w": np.float32(1.0)}, optimizer(resolve_plan(chosen, 1000, Ledger()))
    state = made.init(params)
    average, value = 1.0, 1.0
    for n in range(5):
        updates, state = made.update({"w": np.float32(2.0)}, state, params)
        params = optax.apply_updates(params, updates)
        value -= 0.2
        keep = min(0.5, (1 + n) / (10 + n))
        average = keep * average + (1 - keep) * value
    found = optax.tree_utils.tree_get(state, "average")["w"]
    assert float(found) == pytest.approx(average, rel=1e-5)


@pytest.mark.slow
def test_estimated_bounds_are_paid_for_within_the_budget(tables: Path, tmp_path: Path) -> None:
    scaling = ("--bounds-noise", "0.8", "--target-epsilon", "30")
    cli.main([*options(tables, scaling=scaling), "--output", str(tmp_path / "run")])
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    labels = [entry["label"] for entry in stored["ledger"]["entries"]]
    assert labels[0] == "the bounds of 24 columns"
    assert stored["epsilon"]["pld"] < stored["total_epsilon"] <= 30
    ledger = Ledger.from_dict(stored["ledger"])
    assert ledger.total(delta=1e-3).epsilon == pytest.approx(stored["total_epsilon"])


@pytest.mark.slow
def test_a_run_on_a_table_that_is_broken_off_goes_on_to_the_same_result(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaling = ("--bounds-noise", "0.8", "--noise-multiplier", "1", "--ema", "0.9")
    whole = options(tables, scaling=scaling)
    cli.main([*whole, "--output", str(tmp_path / "whole")])
    interrupt_at_epoch_of(whole, 2, tmp_path / "broken", monkeypatch)
    cli.main(["train", "--resume", str(tmp_path / "broken")])
    assert result(tmp_path / "broken") == result(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_bounds_and_config_alone(
    tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds, run = tmp_path / "bounds.csv", tmp_path / "run"
    names = (tables / "train_features.csv").read_text().splitlines()[0].split(",")
    names = [name for name in names if name.startswith(("g-", "c-")) or name == "cp_time"]
    write = lambda low: bounds.write_text("name,lower,upper\n" + "".join(f"{name},{low},100\n" for name in names))
    write(-10)
    command = options(tables, "--noise-multiplier", "2", scaling=("--bounds-file", str(bounds)))
    interrupt_at_epoch_of(command, 1, run, monkeypatch)
    assert "interrupted" in capsys.readouterr().err
    write(-3)
    assert "bounds by which they are encoded, are not those" in refused(["train", "--resume", str(run)], capsys)
    write(-10)
    shutil.rmtree(run / "private" / "checkpoints")  # as where it was killed before the first
    written = (run / "config.json").read_text()
    (run / "config.json").write_text(written.replace('"noise_multiplier": 2.0', '"noise_multiplier": 8.0'))
    assert "config.json is not as it was written" in refused(["train", "--resume", str(run)], capsys)
    (run / "config.json").write_text(written)
    cli.main(["train", "--resume", str(run)])


@pytest.mark.slow
def test_folds_of_other_files_are_not_put_together(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, path = tmp_path / "tables", tmp_path / "all"
    shutil.copytree(tables, own)
    of_two = [*options(own, "--folds", "2", "--noise-multiplier", "2", epochs=1)]
    cli.main([*of_two, "--fold", "1", "--output", str(path / "fold-1")])
    features = (own / "train_features.csv").read_text()
    (own / "train_features.csv").write_text(features.replace("id_", "id_again_"))
    said = refused([*of_two, "--output", str(path)], capsys)
    assert "--features: not the file that" in said
    assert "could be in all of them" in said
    (own / "train_features.csv").write_text(features)
    kept = (path / "fold-1" / "private" / "files.json").rename(tmp_path / "kept.json")
    assert "can't be told" in refused([*of_two, "--output", str(path)], capsys)
    kept.rename(path / "fold-1" / "private" / "files.json")
    train_folds(cli._parse([*of_two, "--output", str(path)]))
    assert not list(path.glob("fold-*/private/files.json"))
    shutil.rmtree(path / "fold-2")
    assert "can't be told" in refused([*of_two, "--output", str(path)], capsys)


@pytest.mark.slow
def test_a_run_that_stops_early_says_so_and_pays_for_all_its_steps(tables: Path, tmp_path: Path) -> None:
    more = ("--lr", "10", "--patience", "1", "--noise-multiplier", "1", "--dp")
    cli.main([*options(tables, *more, epochs=9), "--output", str(tmp_path / "run")])
    run = jaxdp.load_run(tmp_path / "run")
    assert run.summary is not None
    assert run.statement is not None
    assert len(run.metrics) < 9
    assert run.summary["steps"] == run.metrics[-1]["step"]
    assert f"{run.step} of these {9 * 4} steps were made" in run.statement
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    described = jaxdp.DPSGD(**stored["run"])
    assert described.steps > run.summary["steps"]
    assert run.summary["epsilon"]["rdp"] == described.epsilon(delta=1e-3)


@pytest.mark.slow
def test_folds_evaluate_every_record_and_cost_what_their_models_cost_together(tables: Path, tmp_path: Path) -> None:
    chosen = cli._parse(
        [*options(tables, "--folds", "3", "--noise-multiplier", "2", epochs=1), "--output", str(tmp_path / "all")]
    )
    folds = train_folds(chosen)
    events = [run.summary["steps"] for run in folds.runs if run.summary]
    assert len(events) == 3
    assert folds.epsilon is not None
    alone = max(run.summary["epsilon"]["rdp"] for run in folds.runs if run.summary)
    assert alone < folds.epsilon
    ledger = Ledger()
    for run in folds.runs[1:]:
        ledger = ledger.extend(Ledger.from_dict(json.loads((run.path / "statement.json").read_text())["ledger"]))
    assert folds.epsilon >= ledger.total(delta=1e-3).epsilon
    assert json.loads((tmp_path / "all" / "folds.json").read_text())["epsilon"] == folds.epsilon
    assert "used by 2 of them" in str(folds.statement)
    assert "Each of these runs was seeded (--seed)" in str(folds.statement)
    again = train_folds(
        cli._parse(
            [*options(tables, "--folds", "3", "--noise-multiplier", "2", epochs=1), "--output", str(tmp_path / "all")]
        )
    )
    assert again.test_loss == folds.test_loss
    for fold in (1, 2):  # what a fold cost follows from what is sealed
        stated = tmp_path / "all" / f"fold-{fold}" / "statement.json"
        stated.write_text(stated.read_text().replace('"noise_multiplier": 2.0', '"noise_multiplier": 9.0'))
    assert train_folds(chosen).epsilon == folds.epsilon
    plain = [*options(tables, "--folds", "2", "--no-dp", epochs=1), "--output", str(tmp_path / "plain")]
    at = plain.index("--delta")
    assert train_folds(cli._parse([*plain[:at], *plain[at + 2 :]])).epsilon is None


@pytest.mark.slow
def test_folds_that_began_with_a_shorter_ledger_are_added_to_the_longer_one(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, shorter = tmp_path / "ledger.json", Ledger().add(gaussian_event(noise_multiplier=50.0), "a mean")
    longer = shorter.add(gaussian_event(noise_multiplier=1.0), "another mean")
    of_two = [*options(tables, "--folds", "2", "--noise-multiplier", "2", epochs=1), "--ledger", str(path)]
    path.write_text(json.dumps(shorter.to_dict()))
    cli.main([*of_two, "--fold", "1", "--output", str(tmp_path / "all" / "fold-1")])
    path.write_text(json.dumps(longer.to_dict()))
    folds = train_folds(cli._parse([*of_two, "--output", str(tmp_path / "all")]))
    own = [json.loads((run.path / "statement.json").read_text())["ledger"]["entries"][-1:] for run in folds.runs]
    totals = [
        Ledger.from_dict({**longer.to_dict(), "entries": longer.to_dict()["entries"] + entries})
        .total(delta=1e-3)
        .epsilon
        for entries in own
    ]
    assert folds.epsilon == max(totals)
    path.write_text(json.dumps(Ledger().to_dict()))
    assert "began after other expenses" in refused([*of_two, "--output", str(tmp_path / "all")], capsys)


def test_where_a_record_goes_depends_on_no_other() -> None:
    from jaxdp.commands.train._tables import _divided

    chosen = TrainOptions(dataset="csv", folds=4, fold=2)
    ids = tuple(f"id-{i}" for i in range(500))
    train, test = _divided(ids, chosen)
    without = ids[:100] + ids[101:]
    fewer, _ = _divided(without, chosen)
    assert {ids[at] for at in train} - {without[at] for at in fewer} <= {ids[100]}
    assert {without[at] for at in fewer} <= {ids[at] for at in train}
    parts = [set(_divided(ids, TrainOptions(dataset="csv", folds=4, fold=fold))[1].tolist()) for fold in range(1, 5)]
    assert set().union(*parts) == set(range(500))
    assert sum(map(len, parts)) == 500
    assert 90 < len(test) < 160


@pytest.mark.slow
def test_planted_signal_is_learned_at_epsilon_eight(tmp_path: Path) -> None:
    data.write_lookalike(tmp_path, rows=12_000, features=100, targets=20, test_rows=2000)
    files = [
        "--features",
        str(tmp_path / "train_features.csv"),
        "--targets",
        str(tmp_path / "train_targets_scored.csv"),
    ]
    common = ["train", "--dataset", "csv", *files, *BOUNDS, "--hidden", "128", "--opt", "adam", "--seed", "0"]
    private = ["--target-epsilon", "8", "--epochs", "20", "--batch-size", "1024", "--lr", "0.003"]
    cli.main([*common, *private, "--output", str(tmp_path / "private")])
    cli.main([*common, "--no-dp", "--epochs", "4", "--output", str(tmp_path / "plain")])
    ids, _ = jaxdp.load_run(tmp_path / "private").encoding.read(tmp_path / "test_features.csv")  # pyright: ignore[reportOptionalMemberAccess]
    targets, _ = data.read_targets(tmp_path / "test_targets_scored.csv", ids)
    rates = targets.mean(axis=0).clip(1e-6, None)
    base = -float((targets * np.log(rates) + (1 - targets) * np.log1p(-rates)).mean())
    losses = {}
    for name in ("private", "plain"):
        run = jaxdp.load_run(tmp_path / name)
        assert run.encoding is not None
        p = run.predict(run.encoding.read(tmp_path / "test_features.csv")[1]).astype(np.float64).clip(1e-15, 1 - 1e-15)
        losses[name] = -float((targets * np.log(p) + (1 - targets) * np.log1p(-p)).mean())
    print(f"log loss: base rates {base:.5f}, ε = 8 {losses['private']:.5f}, without privacy {losses['plain']:.5f}")
    assert losses["plain"] < losses["private"] < 0.8 * base


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "needs --features FILE, and --targets FILE"),
        (("--features", "f.csv", "--targets", "t.csv"), "needs one way to scale numbers"),
        (("--features", "f.csv", "--targets", "t.csv", *BOUNDS), "f.csv can't be read"),
        (("--features", "f.csv", "--targets", "t.csv", *BOUNDS, "--model", "cnn"), "--model=cnn takes images"),
        (("--features", "f.csv", "--targets", "t.csv", *BOUNDS, "--holdout", "5"), "give --folds"),
        (("--features", "f.csv", "--targets", "t.csv", *BOUNDS, "--folds", "1"), "2 or more"),
        (("--features", "f.csv", "--targets", "t.csv", *BOUNDS, "--fold", "1"), "one of --folds"),
        (("--features", "f.csv", "--targets", "t.csv", "--bounds-noise", "1", "--no-dp"), "has no ledger to charge"),
    ],
)
def test_what_a_table_needs_is_asked_for(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["train", "--dataset", "csv", *arguments], capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--features", "f.csv"), "--features=f.csv has no effect on --dataset mnist"),
        (
            ("--model", "dense"),
            "--model=dense takes features, and an input of these data has shape (28, 28, 1): give cnn",
        ),
        (("--model", "cnm"), "--model=cnm is not known: give one of cnn, dense, mlp, scattering, strided"),
        (("--patience", "2"), "give --holdout"),
        (("--ema", "1"), "--ema=1.0"),
        (("--warmup", "-1"), "--warmup=-1"),
    ],
)
def test_what_goes_with_tables_alone_is_refused_elsewhere(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(["train", *arguments], capsys)


@pytest.mark.slow("minutes")
def test_breast_cancer_is_recognised_at_epsilon_three(tmp_path: Path) -> None:
    """Three folds; the bounds are those that the data set's own description publishes."""
    accuracies = _breast_cancer(tmp_path, seeds=1)
    print(f"{np.mean(accuracies):.4f} ({min(accuracies):.4f} to {max(accuracies):.4f})")
    assert np.mean(accuracies) >= 0.94


def _breast_cancer(folder: Path, seeds: int) -> list[float]:
    sklearn_datasets: Any = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_breast_cancer()
    names = [each.replace(" ", "_") for each in bunch.feature_names]
    with (folder / "features.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", *names], *([i, *row] for i, row in enumerate(bunch.data))])
    with (folder / "targets.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "benign"], *([i, label] for i, label in enumerate(bunch.target))])
    files = {
        "features": folder / "features.csv",
        "targets": folder / "targets.csv",
        "bounds_file": FIXTURES / "breast_cancer_bounds.csv",
    }
    found = []
    for seed in range(seeds):
        chosen = TrainOptions(
            dataset="csv",
            **files,
            hidden=(),
            epochs=20,
            batch_size=128,
            lr=1.0,
            seed=seed,
            folds=3,
            target_epsilon=3.0,
            delta=1e-3,
            output=folder / str(seed),
        )
        found.append(train_folds(chosen).test_accuracy)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("separator", [";", "\t"])
def test_one_file_with_the_targets_named_is_the_run_of_two(separator: str, tables: Path, tmp_path: Path) -> None:
    """To the bit of its data: whatever divides the columns, and wherever the targets stand."""
    read = lambda name: list(csv.reader((tables / name).read_text().splitlines()))
    features, targets = read("train_features.csv"), read("train_targets_scored.csv")
    of_id = {row[0]: row[1:] for row in targets}
    together = [[*row, *of_id[row[0] if number else targets[0][0]]] for number, row in enumerate(features)]
    with (tmp_path / "both.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(together)
    one = TrainOptions(
        dataset="csv", features=tmp_path / "both.csv", target_columns=tuple(targets[0][1:]), bounds=(-10.0, 10.0)
    )
    two = TrainOptions(
        dataset="csv",
        features=tables / "train_features.csv",
        targets=tables / "train_targets_scored.csv",
        bounds=(-10.0, 10.0),
    )
    for options in (one, two):
        options.check()
    found, expected = (table_problem(options, Ledger()) for options in (one, two))
    for mine, theirs in ((found.train, expected.train), (found.test, expected.test)):
        jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    assert found.described["encoding"] == expected.described["encoding"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--target-columns", "target_0"), "--targets FILE or, where one file has both"),
        ((), "--targets FILE or, where one file has both"),
    ],
)
def test_targets_are_named_in_one_way(
    more: tuple[str, ...], said: str, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(tables, *more)
    if not more:
        at = given.index("--targets")
        given = [*given[:at], *given[at + 2 :]]
    assert said in refused(given, capsys)


@pytest.mark.parametrize(
    ("columns", "more", "said"),
    [
        (("a", "a"), (), "names a twice"),
        (("a", "b", "c"), (), "names all columns"),
        (("c",), ("--categories", "c=0,1"), "no such column of features"),
    ],
)
def test_targets_leave_features_and_are_none_themselves(
    columns: tuple[str, ...], more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("id,a,b,c\n" + "".join(f"{i},{i % 2},{i},{i % 2}\n" for i in range(40)))
    files = ["--features", str(tmp_path / "t.csv"), "--target-columns", *columns]
    command = ["train", "--dataset", "csv", *files, "--bounds", "0", "40", "--delta", "1e-3", *more]
    assert said in refused([*command, "--output", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


def test_a_target_that_is_misspelt_is_named_before_any_cell_is_read(tmp_path: Path, capsys) -> None:
    (tmp_path / "f.csv").write_text("id,age,segment\n1,3,high\n2,4,low\n")
    line = refused(
        ["train", "--dataset", "csv", "--features", str(tmp_path / "f.csv"), "--target-columns", "segmnet", *BOUNDS],
        capsys,
    )
    assert "--target-columns=segmnet" in line
    assert "did you mean segment?" in line


def test_a_file_of_bounds_is_divided_as_a_spreadsheet_does(tmp_path: Path) -> None:
    for divider in ",;\t":
        (tmp_path / "b.csv").write_text(f"name,lower,upper\nage,0,{99}\n".replace(",", divider))
        bounds = data.read_bounds(tmp_path / "b.csv", ("age",))
        assert (bounds.lower.tolist(), bounds.upper.tolist()) == ([0.0], [99.0])


def test_blanks_after_commas_are_no_part_of_a_class_or_a_category() -> None:
    assert data.declared_classes("low, mid, high") == ("low", "mid", "high")
    assert data.declared_categories(["region=north, south"], ["region"]) == {"region": ("north", "south")}


@pytest.mark.parametrize("name", ["--features", "--targets"])
def test_a_pipe_is_refused_because_tables_are_read_several_times(
    name: str, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = options(tables)
    command[command.index(name) + 1] = str(tmp_path / "pipe")
    assert f"{name}={tmp_path / 'pipe'} is a pipe or a device, and is read several times" in refused(command, capsys)


def test_bounds_of_no_numbers_are_not_estimated(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "columns.txt").write_text("cp_type\n")
    command = options(tables, "--columns", str(tmp_path / "columns.txt"), scaling=("--bounds-noise", "5"))
    assert "--bounds-noise=5: no column is of numbers to estimate bounds of: give --bounds 0 1" in refused(
        [*command, "--output", str(tmp_path / "run")], capsys
    )
