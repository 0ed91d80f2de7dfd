"""Tables whose target is one of several classes, or numbers: learned, told in their own terms, predicted, and refused by name."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import cli
from jaxdp.accounting import Ledger
from jaxdp.commands._options import from_dict
from jaxdp.commands.train import TrainOptions, _report, train_folds
from jaxdp.commands.train._tables import table_problem

KINDS = ("setosa", "versicolor", "virginica")
# What is known of people without these ones: plausible ages, body mass indices, blood pressures and blood values.
PEOPLE = """name,lower,upper
age,0,100
sex,1,2
bmi,15,45
bp,60,140
s1,90,310
s2,40,250
s3,20,100
s4,2,10
s5,3,6.2
s6,50,130
"""


def written(path: Path, names: list[str], rows: Any) -> str:
    """A CSV file of these rows, numbered from 0."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["id", *names], *([number, *row] for number, row in enumerate(rows))])
    return str(path)


@pytest.fixture(scope="module")
def iris(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A private run that learns to tell 150 flowers."""
    sklearn_datasets: Any = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_iris()
    rows = [[*row, KINDS[label]] for row, label in zip(bunch.data, bunch.target, strict=True)]
    path = written(tmp_path_factory.mktemp("iris") / "iris.csv", ["a", "b", "c", "d", "kind"], rows)
    named = ["--features", path, "--target-columns", "kind", "--classes", ",".join(KINDS), "--bounds", "0", "8"]
    return [*of_size(25, 40), *named, "--lr", "1", "--noise-multiplier", "1.8"]


@pytest.fixture(scope="module")
def diabetes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A private run that learns how the illness of 442 people went on, a number from 25 to 346."""
    sklearn_datasets: Any = pytest.importorskip("sklearn.datasets")
    bunch = sklearn_datasets.load_diabetes(scaled=False)
    folder = tmp_path_factory.mktemp("diabetes")
    (folder / "bounds.csv").write_text(PEOPLE)
    features = written(folder / "people.csv", list(bunch.feature_names), bunch.data)
    targets = written(folder / "course.csv", ["course"], bunch.target[:, None])
    named = ["--features", features, "--targets", targets, "--target-bounds", "0", "350"]
    return [
        *of_size(20, 64),
        *named,
        "--bounds-file",
        str(folder / "bounds.csv"),
        "--lr",
        "0.05",
        "--noise-multiplier",
        "1.4",
    ]


def of_size(epochs: int, batch_size: int) -> list[str]:
    sizes = ["--hidden", "--epochs", str(epochs), "--batch-size", str(batch_size), "--delta", "1e-3", "--seed", "0"]
    return ["train", "--dataset", "csv", *sizes]


def held_back(run: "jaxdp.runs.FinishedRun") -> tuple[Any, Any]:
    """The labels to train on, and (features, labels) to evaluate on."""
    problem = table_problem(from_dict(TrainOptions, run.options), Ledger())
    assert isinstance(problem.train, tuple)
    return problem.train[1], problem.test


def read(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


@pytest.mark.slow
def test_flowers_are_told_apart_and_predicted_by_name(iris: list[str], tmp_path: Path) -> None:
    cli.main([*iris, "--output", str(tmp_path / "run")])
    run = jaxdp.load_run(tmp_path / "run")
    assert run.summary is not None
    known, (features, labels) = held_back(run)
    rates = np.bincount(known, minlength=3) / len(known)
    assert run.summary["base_rate_loss"] == pytest.approx(-np.log(rates[labels]).mean())
    assert run.summary["base_rate_accuracy"] == np.mean(labels == rates.argmax())
    assert run.summary["epsilon"]["rdp"] < 8
    assert run.summary["test_loss"] < 0.5 * run.summary["base_rate_loss"]
    assert run.summary["test_accuracy"] > 0.8 > run.summary["base_rate_accuracy"]
    assert run.summary["test_accuracy"] == np.mean(run.predict(features).argmax(axis=1) == labels)
    assert not any("test_" in name or "base" in name for name in json.loads((run.path / "summary.json").read_text()))

    table = read(Path(run.options["features"]))
    (tmp_path / "new.csv").write_text("\n".join(",".join(row[:-1]) for row in table))  # of which nobody knows the kind
    predict = ["predict", str(run.path), "--data", str(tmp_path / "new.csv"), "--output"]
    cli.main([*predict, str(tmp_path / "p.csv")])
    cli.main([*predict, str(tmp_path / "p.npy")])
    header, *rows = read(tmp_path / "p.csv")
    assert header == ["id", "kind", *KINDS]
    probabilities = np.array([row[2:] for row in rows], float)
    np.testing.assert_allclose(probabilities, np.load(tmp_path / "p.npy"), atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=3e-6)
    assert [row[1] for row in rows] == [KINDS[place] for place in np.load(tmp_path / "p.npy").argmax(axis=1)]
    assert np.mean([row[1] == given[-1] for row, given in zip(rows, table[1:], strict=True)]) > 0.8


@pytest.mark.slow
def test_numbers_are_learned_and_predicted_in_their_own_unit(
    diabetes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*diabetes, "--output", str(tmp_path / "run")])
    said = capsys.readouterr().out
    run = jaxdp.load_run(tmp_path / "run")
    assert run.summary is not None
    known, (features, labels) = held_back(run)
    errors, of_mean = run.predict(features) - labels, known.mean() - labels
    assert run.summary["test_rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)
    assert run.summary["test_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert run.summary["base_rate_rmse"] == pytest.approx(np.sqrt((of_mean**2).mean()), rel=1e-5)
    assert run.summary["base_rate_mae"] == pytest.approx(np.abs(of_mean).mean(), rel=1e-5)
    assert run.summary["epsilon"]["rdp"] < 8
    assert run.summary["test_rmse"] < 0.85 * run.summary["base_rate_rmse"]
    figures = f"{run.summary['test_rmse']:.5g}, {run.summary['base_rate_rmse']:.5g} by the mean alone"
    assert f"held-back root mean squared error │ {figures}" in said
    assert f"RMSE {run.metrics[-1]['train_rmse']:.5g}  test {run.summary['test_rmse']:.5g}" in said
    assert "accuracy" not in said.split("This training")[0]
    assert "ids: id (the first column); learned from: " in said
    assert not any("test_" in name or "base" in name for name in json.loads((run.path / "summary.json").read_text()))

    cli.main(["predict", str(run.path), "--data", run.options["features"]])
    header, *rows = csv.reader(capsys.readouterr().out.splitlines())
    assert header == ["id", "course"]
    assert run.encoding is not None
    expected = run.predict(run.encoding.read(Path(run.options["features"]))[1])
    np.testing.assert_allclose([float(row[1]) for row in rows], expected[:, 0], rtol=1e-6)
    assert expected.min() >= 0
    assert expected.max() <= 350
    cli.main(["compare", str(run.path), "--output", str(tmp_path / "compared.png")])
    compared = " ".join(capsys.readouterr().out.split())
    assert "finished runs on people, by root mean squared error on examples held back" in compared
    assert f"{run.summary['test_rmse']:.5g}" in compared


@pytest.mark.slow
def test_a_run_on_numbers_that_is_broken_off_goes_on_to_the_same_result(
    diabetes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [*diabetes, "--epochs", "3", "--ema", "0.9"]
    cli.main([*whole, "--output", str(tmp_path / "whole")])
    interrupt_at_epoch_of(whole, 2, tmp_path / "broken", monkeypatch)
    cli.main(["train", "--resume", str(tmp_path / "broken")])
    assert result(tmp_path / "broken") == result(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iris", "diabetes"])
def test_folds_and_early_stopping_know_classes_and_numbers(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    asked = [*request.getfixturevalue(kind), "--lr", "20", "--epochs", "6", "--patience", "1", "--folds", "2"]
    folds = train_folds(cli._parse([*asked, "--output", str(tmp_path / "folds")]))
    second = {"iris": "accuracy", "diabetes": "rmse"}[kind]
    summaries = [run.summary for run in folds.runs if run.summary]
    mean = np.mean([summary[f"test_{second}"] for summary in summaries])
    assert json.loads((tmp_path / "folds" / "private" / "folds.json").read_text())[f"test_{second}"] == mean
    assert np.isnan(folds.test_accuracy) == (kind == "diabetes")
    for run in folds.runs:
        losses = [record["test_loss"] for record in run.metrics]
        assert losses[-1] >= losses[-2] == min(losses)
    assert folds.epsilon is not None
    assert max(summary["epsilon"]["pld"] for summary in summaries) <= folds.epsilon


ROWS = [["red", 0.5, 12.0, i % 2, i] for i in range(40)]
ROWS[7][0] = "green"


@pytest.mark.parametrize(
    ("targets", "given", "said"),
    [
        ("colour", "--classes red,green --target-bounds 0 1", "targets are classes or numbers"),
        ("colour", "--classes red", "--classes=red is not of the form value,value"),
        ("colour", "--classes red,,green", "name each class once, two or more"),
        ("colour", "--classes red,red", "name each class once, two or more"),
        ("colour binary", "--classes red,green", "--classes are of one target, and 2 are named (colour, binary)"),
        (
            "colour",
            "--classes red,blue",
            "line 9, column colour: 'green' is not among those declared (red, blue): give all",
        ),
        ("colour", "", "'red' is not a finite number: a binary target is 0 or 1; for classes give --classes a,b,c"),
        (
            "number",
            "",
            "0.5 is not a binary target: give 0 or 1, or --target-bounds LOW HIGH for numbers, --classes a,b,c",
        ),
        ("colour", "--target-bounds 0 1", "for classes give --classes a,b,c instead"),
        ("number", "--target-bounds 0 inf", "must be finite, the lower one first"),
        ("number", "--target-bounds 1 0", "--target-bounds=1.0 0.0 must be finite, the lower one first"),
        ("number", "--target-bounds nan 1", "--target-bounds is NaN: give the least"),
        ("number", "--target-bounds 1000000 1000001", "are too close together"),
        ("number", "--target-bounds 0 1e38", "too large or small, for float32"),
        ("number large", "--target-bounds 0 9", "none of the 40 numbers of large lies between them"),
        ("number", "--target-bounds 0 9 --audit-canaries 32", "canaries have a wrong class"),
    ],
)
def test_what_targets_are_is_said_in_one_way_that_the_file_bears_out(
    targets: str, given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "t.csv", ["colour", "number", "large", "binary", "x"], ROWS)
    (tmp_path / "columns.txt").write_text("x")
    files = ["--features", path, "--columns", str(tmp_path / "columns.txt"), "--target-columns", *targets.split()]
    command = ["train", "--dataset", "csv", *files, "--bounds", "0", "40", "--delta", "1e-3", *given.split()]
    assert said in refused([*command, "--output", str(tmp_path / "run")], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("id,a,b\n0,1,2\n", "--classes 1,2", "--classes are of one target, and 2 are named (a, b)"),
        (
            "id,a\n0,1\n1,\n",
            "--target-bounds 0 9",
            "1 targets that are missing or too large for float32, the first at id 1",
        ),
        ("id,a\n0,1\n2,3\n", "--target-bounds 0 9", "1 ids of the features are missing there (1)"),
        ("id,a\n0,1\n1,\n", "--classes 1,2", "line 3, column a: '' is not among those declared (1, 2)"),
    ],
)
def test_a_file_of_targets_that_does_not_fit_is_refused_by_place(
    text: str, given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = written(tmp_path / "f.csv", ["x"], [[1], [2]])
    (tmp_path / "t.csv").write_text(text)
    files = ["--features", features, "--targets", str(tmp_path / "t.csv"), "--bounds", "0", "9"]
    assert said in refused(["train", "--dataset", "csv", *files, *given.split()], capsys)


def test_bounds_of_the_target_are_among_what_a_model_of_numbers_may_lack() -> None:
    of_classes = {"test_loss": 2.0, "base_rate_loss": 1.0}
    assert "--target-bounds" not in str(_report.advice(of_classes))
    assert "--target-bounds" in str(_report.advice({**of_classes, "test_rmse": 3.0}))
    assert _report.advice({**of_classes, "test_loss": 0.5}) is None
