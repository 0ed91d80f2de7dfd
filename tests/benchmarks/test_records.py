"""Records: what is measured is kept while it is what it says, runs go on, and the table and the picture have both sides."""

import json
from pathlib import Path

import adult
import choose
import pytest
import records_report
import trained
import tyro
from records_rows import described, measured

from jaxdp.commands.train import TrainOptions

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"


def figures(accuracy: float, seed: int = 0) -> trained.Figures:
    """Of a run that wasn't made."""
    return {"seed": seed, "test_accuracy": accuracy, "epsilon": {"rdp": 1.1, "pld": 1.0}}


@pytest.mark.slow
def test_figures_of_other_options_or_another_recipe_are_not_taken_for_these(tmp_path: Path) -> None:
    path, found = tmp_path / "records.json", {"mnist-1": [figures(0.98)], "default": [figures(0.97)]}
    rows = described(found)
    assert set(rows) == set(found)
    path.write_text(json.dumps({"rows": rows}))
    assert measured(path) == found
    rows["mnist-1"]["recipe"]["epochs"] += 1
    rows["default"]["words"] += ["--epochs", "3"]
    path.write_text(json.dumps({"rows": rows | {"gone": rows["default"]}}))
    assert measured(path) == {}
    assert measured(tmp_path / "nothing.json") == {}


def test_the_table_has_both_sides_by_epsilon_and_the_picture_has_curves(tmp_path: Path) -> None:
    found = {"mnist-1": [figures(0.98), figures(0.99, 1)], "mnist-3": [figures(0.985)], "adult-1": [figures(0.84)]}
    rows = records_report.rows(found)
    assert len(rows) == 3 + len(records_report.MNIST) + len(records_report.ADULT)
    assert all(len(row) == len(records_report.HEADINGS) for row in rows)
    ours = next(row for row in rows if row[-1] == "jaxdp, 2 seeds")
    assert ours[:4] == ("MNIST", "1.000", "1.100", "**98.50%** (98.00% to 99.00%)")
    searches = [{"test_accuracy": 0.97}, {"test_accuracy": None}, {"test_accuracy": 0.98}]
    search = {"setting": {"epsilon": 1.0, "runs": 5.0}, "searches": searches}
    (paid,) = set(records_report.rows(found, search)) - set(rows)
    assert paid[2:4] == ("1.000", "**97.50%** (97.00% to 98.00%)")
    assert paid[-1] == "jaxdp, 2 searches"
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    records_report.draw(found, tmp_path / "records.png")
    assert (tmp_path / "records.png").stat().st_size > 10_000


def test_a_number_is_the_greatest_cut_that_it_reaches_and_is_among_the_categories() -> None:
    assert adult._cell("age", 17) == "from-0"
    assert adult._cell("age", "20") == "from-20"
    assert adult._cell("capital-gain", 99_999) == "from-20000"
    assert adult._cell("workclass", " Private ") == "Private"
    assert adult._cell("educational-num", 9) == 9
    for name, cuts in adult._CUTS.items():
        assert all(adult._cell(name, cut) in adult._CATEGORIES[name].split(",") for cut in cuts)


def test_a_file_of_another_length_is_not_taken_for_adult(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("some.csv").write_text("age,income\n17,<=50K\n")
    with pytest.raises(SystemExit, match="some.csv has 1 people, and Adult 48842: give another --source"):
        adult.prepare(Path("some.csv"))


def test_what_is_tried_to_choose_is_a_command() -> None:
    options = choose.Options(recipe="cnn", ema=(0.9, 0.98), augmentations=(2,))
    for (_, ema, *_), (command, *words) in choose.tried(options):
        made = tyro.cli(TrainOptions, args=words)
        assert (command, made.recipe, made.ema, made.augmentations) == ("train", "cnn", float(ema), 2)
    for _, words in choose.tried(choose.Options(data="adult", lr=(1.0,))):
        assert trained.recipe_of(words)["model"] == "dense"


@pytest.mark.slow("minutes")
def test_a_run_goes_on_where_it_was_and_is_not_made_twice(tmp_path: Path) -> None:
    options = (
        "train",
        "--model",
        "mlp",
        "--data-dir",
        str(FIXTURES),
        "--epochs",
        "2",
        "--batch-size",
        "64",
        "--delta",
        "1e-3",
    )
    first = trained.figures_of(options, 0, tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "summary.json").unlink()  # as if it had been killed before it was published
    assert trained.figures_of(options, 0, tmp_path) == first
    assert trained.figures_of(options, 0, tmp_path, again=True)["test_accuracy"] == first["test_accuracy"]
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]
    assert trained.figures_of((*options, "--lr", "0.5"), 0, tmp_path)["test_accuracy"] != first["test_accuracy"]
    assert len(list(tmp_path.iterdir())) == 2
