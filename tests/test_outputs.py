"""Where the command line writes: nothing that exists is lost unasked, and what can't be written is refused before the work."""

import os
from pathlib import Path

import pytest
from command import refused

import jaxdp
from jaxdp import cli
from jaxdp._outputs import check_output, written
from jaxdp.commands.train import TrainOptions, train_folds

SMALL = ["--rows", "20", "--features", "3", "--targets", "2", "--test-rows", "5"]
EXISTING = {
    "predict": ["predict", "nowhere", "--output"],
    "compare": ["compare", "nowhere", "--output"],
    "analyze": ["pate", "analyze", "nowhere.npy", "--num-classes", "2", "--plot"],
}


@pytest.mark.parametrize("command", EXISTING)
def test_a_file_that_exists_is_not_overwritten_unless_asked_and_that_is_said_before_the_work(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    for arguments, said in (
        ([str(mine)], "exists already: give another name, or --overwrite"),
        ([str(mine), "--overwrite"], "nowhere"),  # goes on to what is wrong besides
        ([str(tmp_path)], "is a folder: give a file's name in it"),
        ([str(tmp_path / "no" / "such" / "a.png")], "can't be written (No such file or directory)"),
        ([str(mine / "a.png")], "can't be written (Not a directory)"),
        (["/proc/a.png"], "can't be written"),
        ([""], "is empty"),
    ):
        assert said in refused([*EXISTING[command], *arguments], capsys)
    assert mine.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def test_a_picture_is_refused_under_another_kinds_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("compare", "analyze"):
        assert "ends in .png" in refused([*EXISTING[command], str(tmp_path / "a.svg")], capsys)


def test_a_file_is_written_all_or_nothing_through_links_and_straight_to_devices(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)

    def broken_off() -> None:
        with written(link) as file:
            file.write_text("half")
            raise InterruptedError

    with pytest.raises(jaxdp.UsageError, match="can't be written"):
        broken_off()
    assert target.read_text() == "old"
    with written(link) as file:
        file.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"target", "link"}
    check_output("--output", Path(os.devnull), overwrite=False)
    with written(Path(os.devnull)) as file:
        assert file == Path(os.devnull)


def test_lookalike_leaves_files_of_its_names_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["lookalike", str(tmp_path), *SMALL])
    first = (tmp_path / "train_features.csv").read_bytes()
    again = ["lookalike", str(tmp_path), *SMALL, "--seed", "1"]
    assert "train_features.csv exists already" in refused(again, capsys)
    assert (tmp_path / "train_features.csv").read_bytes() == first
    cli.main([*again, "--overwrite"])
    assert (tmp_path / "train_features.csv").read_bytes() != first
    (tmp_path / "train_features.csv").unlink()
    assert "train_targets_scored.csv exists already" in refused(again, capsys)
    assert not (tmp_path / "train_features.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/proc/x"], "can't be made"),
        ([f"{__file__}/x"], "can't be made"),
        (["x", "--rows", "1000000000"], "more than 268435456 numbers"),
        (["x", "--seed", "-1"], "seed=-1"),
        (["x", "--rows", "0"], "1 or more each"),
        ([""], "is empty"),
    ],
)
def test_lookalike_refuses_what_it_cannot_write(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(["lookalike", *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["notes.txt", ".hidden"])
def test_a_runs_folder_holds_nothing_else(
    name: str, tmp_path: Path, tfds_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("mine")
    np_file = tmp_path / "p.csv"
    np_file.write_text("1,0\n1,1\n")
    small = ["--data-dir", str(tfds_dir), "--delta", "1e-3", "--output", str(folder)]
    for command in (
        ["train", *small, "--noise-multiplier", "1"],
        ["pate", *small, "--teachers", "8", "--queries", "9"],
        ["pate", "label", str(np_file), "--num-classes", "2", "--records", "9", "--output", str(folder)],
    ):
        assert f"holds {name}, which is no run's" in refused(command, capsys)
    files = {"features": np_file, "targets": np_file, "bounds": (0.0, 1.0)}
    with pytest.raises(jaxdp.UsageError, match="which is no run's"):
        train_folds(TrainOptions(dataset="csv", **files, folds=2, output=folder))
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize("option", ["--output", "--data-dir", "--ledger", "--resume", "--dataset"])
def test_an_empty_value_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{option} is empty" in refused(["train", option, ""], capsys)
    assert f"{option} is empty" in refused(["train", f"{option}="], capsys)
