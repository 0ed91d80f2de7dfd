"""The command line: what it prints, what it writes, what it refuses."""

import csv
import importlib.metadata
import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused

import jaxdp
from jaxdp import cli, data
from jaxdp.commands import _predict
from jaxdp.commands.train._recipe import RECIPES


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A finished private run on 512 real digits, and the options that made it."""
    fixtures = Path(__file__).parents[1] / "fixtures" / "tfds"
    folder = tmp_path_factory.mktemp("runs") / "small"
    options = ["train", "--dataset", "mnist", "--data-dir", str(fixtures), "--epochs", "3", "--batch-size", "64"]
    options += ["--delta", "1e-3", "--target-epsilon", "3", "--seed", "1"]
    cli.main([*options, "--output", str(folder)])
    return folder, options


def test_a_run_leaves_its_folder(small: tuple[Path, list[str]]) -> None:
    folder, _ = small
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "statement.txt",
        "statement.json",
        "summary.json",
        "epsilon.png",
        "model",
        "private",
    }
    private = {path.name for path in (folder / "private").iterdir()}
    assert private == {"run.json", "metrics.jsonl", "metrics.png", "summary.json", "lock"}
    for plot in ("private/metrics.png", "epsilon.png"):
        assert (folder / plot).read_bytes().startswith(b"\x89PNG")
    lines = [json.loads(line) for line in (folder / "private" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in lines] == [8, 16, 24]
    assert lines[0]["epsilon"] < lines[1]["epsilon"] < lines[2]["epsilon"] <= 3.0


def test_the_printed_epsilon_is_that_of_the_run_that_happened(small: tuple[Path, list[str]]) -> None:
    folder, _ = small
    summary = json.loads((folder / "summary.json").read_text())
    stored = json.loads((folder / "statement.json").read_text())
    run = jaxdp.DPSGD(**stored["run"])
    assert run.steps == summary["steps"] == 24
    assert run.num_examples == 512
    assert summary["epsilon"]["rdp"] == run.epsilon(delta=1e-3) <= 3.0
    ledger = jaxdp.accounting.Ledger.from_dict(stored["ledger"])
    assert ledger.epsilon(delta=1e-3).epsilon == summary["epsilon"]["rdp"]
    assert f"{math.ceil(summary['epsilon']['rdp'] * 1e4) / 1e4:.4f}" in (folder / "statement.txt").read_text()
    assert "was seeded (--seed)" in (folder / "statement.txt").read_text()


def test_what_is_published_is_compared_without_the_rest(
    small: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small[0], tmp_path / "published", ignore=shutil.ignore_patterns("private"))
    cli.main(["compare", str(tmp_path), "--json", "--output", str(tmp_path / "compared.png")])
    (compared,) = json.loads(capsys.readouterr().out)
    assert compared["name"] == "published"
    assert compared["seconds"] is None
    cli.main(["compare", str(tmp_path), "--output", str(tmp_path / "again.png")])
    assert "published" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_are_compared_again_without_a_name_for_the_picture(
    small: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("compare.png", "compare-2.png", "compare-3.png"):
        cli.main(["compare", str(small[0])])
        assert name in capsys.readouterr().out
    cli.main(["compare", str(small[0]), "--overwrite"])
    assert {path.name for path in tmp_path.iterdir()} == {"compare.png", "compare-2.png", "compare-3.png"}


@pytest.mark.slow
def test_a_finished_model_comes_back(small: tuple[Path, list[str]], tfds_dir: Path) -> None:
    run = jaxdp.load_run(small[0])
    test = data.load("mnist", tfds_dir)
    probabilities = run.predict(test.test_images)
    assert probabilities.shape == (128, 10)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert run.summary is not None
    assert (probabilities.argmax(1) == test.test_labels).mean() == pytest.approx(run.summary["test_accuracy"])
    np.testing.assert_allclose(run.predict(test.test_images[:3, ..., 0]), probabilities[:3], rtol=1e-3, atol=1e-7)
    with pytest.raises(jaxdp.UsageError, match=r"the model takes uint8 \[n, 28, 28, 1\]"):
        run.predict(np.zeros((2, 14, 14, 1), np.uint8))


@pytest.mark.slow
def test_predict_writes_csv_and_npy(small: tuple[Path, list[str]], tmp_path: Path, tfds_dir: Path) -> None:
    images = data.load("mnist", tfds_dir).test_images[:5]
    np.save(tmp_path / "images.npy", images)
    arguments = ["predict", str(small[0]), "--data", str(tmp_path / "images.npy"), "--output"]
    cli.main([*arguments, str(tmp_path / "out.csv")])
    cli.main([*arguments, str(tmp_path / "out.npy")])
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    probabilities = np.load(tmp_path / "out.npy")
    assert [int(row["label"]) for row in rows] == probabilities.argmax(1).tolist()


def test_predict_on_the_runs_own_test_set_prints_a_line_an_image(
    small: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["predict", str(small[0])])
    assert len(capsys.readouterr().out.splitlines()) == 129


@pytest.mark.slow_but("arguments2-expected2")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--epochs", "15"], {"rdp": 0.94220, "pld": 0.85303, "classic": 1.17990}),
        (["--epochs", "3"], {"rdp": 0.56317, "pld": 0.37027, "classic": 0.79035}),
        (["--steps", "720"], {"rdp": 0.56317, "pld": 0.37027, "classic": 0.79035}),
    ],
)
def test_epsilon_of_the_tutorials_runs(
    arguments: list[str], expected: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["epsilon", "--examples", "60000", "--batch-size", "250", "--noise-multiplier", "1.3", "--delta", "1e-5"]
    cli.main([*command, *arguments, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert {name: round(value, 5) for name, value in printed["epsilon"].items()} == expected
    event: Any = jaxdp.accounting.event_from_dict(printed["event"])
    assert event.count == printed["steps"]
    cli.main([*command, *arguments])
    table = capsys.readouterr().out
    assert all(f"{value:.5f}" in table for value in expected.values())
    assert "add" in table


def test_pld_is_told_to_be_tighter_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    of_many_small = ["--examples", "50000", "--batch-size", "5", "--noise-multiplier", "10"]
    for steps, said in (("100000", "PLD (dp-accounting) "), ("100", "PLD (dp-accounting, tighter)")):
        cli.main(["epsilon", *of_many_small, "--steps", steps])
        assert said in capsys.readouterr().out


def test_a_delta_too_small_for_pld_is_told_and_the_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["epsilon", "--examples", "1000000", "--batch-size", "1", "--noise-multiplier", "100", "--steps", "10"]
    cli.main([*command, "--delta", "1e-17"])
    shown = capsys.readouterr().out
    assert "none at so small a delta" in shown
    assert "infinite" not in shown
    cli.main([*command, "--delta", "1e-17", "--json"])
    refuse = lambda constant: pytest.fail(f"{constant} is no JSON")
    printed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert set(printed["epsilon"]) == {"rdp", "classic"}
    assert "no finite epsilon" in printed["refused"]["pld"]


@pytest.mark.slow
def test_noise_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["noise", "--epsilon", "1", "--batch-size", "250", "--json"])
    assert json.loads(capsys.readouterr().out)["noise_multiplier"]["rdp"] == pytest.approx(1.25394, abs=1e-5)


@pytest.mark.parametrize("command", ["train", "predict", "epsilon", "noise"])
def test_help_answers_with_defaults(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--help"])
    assert exit_.value.code == 0
    assert "default" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "--batch-size=0"),
        (["--epochs", "-1"], "--epochs=-1"),
        (["--lr", "0"], "--lr=0"),
        (["--clip-norm", "0"], "--clip-norm=0"),
        (["--noise-multiplier", "-1"], "--noise-multiplier=-1"),
        (["--noise-mult", "0"], "epsilon would be infinite.*--no-dp"),
        pytest.param(
            ["--noise-mult", "0.3", "--target-epsilon", "1", "--batch-size", "64"],
            "doesn't allow one step",
            marks=pytest.mark.slow,
        ),
        (["--sampling", "shuffle", "--adjacency", "add_or_remove_one"], "adjacency='replace_special'"),
        (["--sampling", "truncated_poisson", "--accountant", "rdp"], "give accountant='pld'"),
        (["--truncated-batch-size", "70"], "--sampling truncated_poisson"),
        (["--ledger", "/nowhere.json"], "--ledger=/nowhere.json can't be read"),
        (["--ledger", "x.json", "--no-dp"], "--ledger=x.json have no effect with --no-dp"),
        (["--target-epsilon", "0"], "--target-epsilon=0"),
        (["--delta", "0"], "delta=0"),
        (["--delta", "1"], "delta=1"),
        (["--delta", "0.01"], "not below 1/512"),
        (["--momentum", "1"], "--momentum=1"),
        (["--seed", "-1"], "--seed=-1"),
        (["--batch-size", "513"], "--batch-size=513 exceeds the 512"),
        (["--microbatch-size", "0"], "--microbatch-size=0"),
        (["--holdout", "512"], "--holdout=512 leaves none"),
        (["--holdout", "-1"], "--holdout=-1"),
        (["--dataset", "nosuchthing"], "not prepared.*prepared there: mnist"),
        (["--device", "tpu"], "finds no such device"),
        (["--output", "/proc/nowhere", "--noise-mult", "2"], "can't be written"),
        (["--resume", "/nowhere"], "holds no run"),
        (["--resume"], "needs the folder"),
    ],
)
def test_bad_input_is_one_line_with_the_fix_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tfds_dir: Path, tmp_path: Path, monkeypatch
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    line = refused(["train", "--data-dir", str(tfds_dir), "--delta", "1e-3", *arguments], capsys)
    assert re.search(message, line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["epsilon", "--noise-multiplier", "0"], "epsilon is infinite"),
        (["epsilon", "--noise-multiplier", "1", "--batch-size", "70000"], "exceeds num_examples"),
        (["epsilon", "--noise-multiplier", "1", "--delta", "0.1"], "not below 1/60000"),
        (["noise", "--epsilon", "-1"], "epsilon=-1"),
        (["noise", "--epsilon", "1", "--epochs", "0"], "--epochs=0"),
        (["predict", "/nowhere"], "holds no run"),
    ],
)
def test_the_other_commands_refuse_likewise(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["train", "--learning-rate", "0.1"], "--lr"),
        (["train", "--max-grad-norm=1"], "--clip-norm"),
        (["train", "--noise", "1"], "--noise-multiplier"),
        (["train", "--epsilon", "1"], "--target-epsilon"),
        (["noise", "--target-epsilon", "1"], "--epsilon"),
        (["pate", "--num-teachers", "250"], "--teachers"),
    ],
)
def test_the_name_of_another_library_is_answered_with_the_one_here(
    arguments: list[str], right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = arguments[1].partition("=")[0]
    assert f"{typed} is {right} here" in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--epochs", "x"], "'x' is not a whole number"),
        (["train", "--epochs", "3.5"], "'3.5' is not a whole number"),
        (["epsilon", "--noise-multiplier", "much"], "'much' is not a number"),
        (["train", "--epocks", "3"], "jaxdp train --help"),
    ],
)
def test_a_value_of_another_type_is_told_in_words_with_the_help_of_its_command(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert "None" not in told


def test_help_shows_what_the_recipe_has_and_the_samplings_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    recipe = RECIPES["scattering"]
    for name, value in recipe.options("sgd").items():
        if value is not None:
            assert (
                f"(default: {value:g}, by the recipe" in told if isinstance(value, float) else f"{value}, by" in told
            ), name
    assert "{" + ",".join(jaxdp.sampling.NAMES) + "}" in told


def test_a_command_that_is_mistyped_is_answered_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(["trian"], capsys).strip().endswith("did you mean train?")
    assert refused(["xyzzy"], capsys).strip().endswith("batch-size")


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code in (0, None)
    said = f"jaxdp {importlib.metadata.version('jaxdp-privacy')}\n"
    assert capsys.readouterr().out == said
    as_module = subprocess.run([sys.executable, "-m", "jaxdp", "--version"], capture_output=True, text=True, check=True)
    assert as_module.stdout == said


def test_an_unknown_model_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "--model", "transformer"])
    assert exit_.value.code == 2
    assert "cnn" in "".join(capsys.readouterr())


def test_a_folder_with_a_run_is_not_written_over(
    small: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = small
    before = (folder / "private" / "metrics.jsonl").read_bytes()
    assert "holds a run already" in refused([*options, "--output", str(folder)], capsys)
    assert (folder / "private" / "metrics.jsonl").read_bytes() == before


def test_resuming_a_finished_run_shows_it_again(
    small: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = small
    before = (folder / "summary.json").read_bytes()
    cli.main(["train", "--resume", str(folder)])
    assert "test accuracy" in capsys.readouterr().out
    assert (folder / "summary.json").read_bytes() == before


def test_resuming_with_other_options_says_what_differs(
    small: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["train", "--resume", str(small[0]), "--epochs", "5", "--lr", "0.3"], capsys)
    assert "--epochs: 3, 5" in line
    assert "--lr: None, 0.3" in line


@pytest.mark.slow
def test_resuming_on_other_data_is_refused(tfds_dir: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    from jaxdp.data._tfds import Prepared

    interrupt_at_epoch_of(["train", "--no-dp", "--data-dir", str(tfds_dir)], 1, tmp_path / "run", monkeypatch)
    capsys.readouterr()
    decoded = Prepared.decoded
    changed = lambda *arguments: decoded(*arguments)._replace(train_labels=np.zeros(512, np.int32))
    monkeypatch.setattr(Prepared, "decoded", changed)
    assert "let anyone subtract the noise" in refused(["train", "--resume", str(tmp_path / "run")], capsys)
    monkeypatch.setattr(Prepared, "decoded", decoded)
    cli.main(["predict", str(tmp_path / "run")])
    assert "this run is unfinished" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("arguments", [["--no-dp"], ["--opt", "adam", "--noise-multiplier", "2"]])
@pytest.mark.slow
def test_every_model_trains_with_and_without_privacy(
    model: str, arguments: list[str], tfds_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "--model", model, "--data-dir", str(tfds_dir), "--epochs", "2", "--batch-size", "64"]
    private = "--no-dp" not in arguments
    cli.main([*command, *(["--delta", "1e-3"] if private else []), "--output", str(tmp_path / "run"), *arguments])
    run = jaxdp.load_run(tmp_path / "run")
    assert run.summary is not None
    assert (run.statement is not None) == private
    assert (run.summary["epsilon"] is not None) == private
    assert ("ε (RDP)" in capsys.readouterr().out) == private


def network(**changes: Any) -> str:
    """The config.json of a run, as far as the model is rebuilt from it, with something else in a place."""
    whole = {
        "model": "cnn",
        "architecture": {"activation": "tanh"},
        "task": {"kind": "classes", "count": 10},
        "input_shape": [28, 28, 1],
        "input_dtype": "uint8",
    }
    return json.dumps({"network": whole | changes})


CONFIGS = {
    "[1, 2]": "is not as a run writes it",
    "3": "is not as a run writes it",
    "{": "can't be read",
    "\udcff": "can't be read",
    "{}": "is not as a run writes it (KeyError",
    '{"network": 3}': "is not as a run writes it",
    network(input_shape=3): "is not as a run writes it",
    network(task={"kind": "classes", "count": "x"}): "is not as a run writes it",
    network(task={"kind": "os", "count": 10}): "the task 'os' is none of classes, targets",
    network(model="os"): "--model=os is not known: give one of cnn, dense, mlp, scattering, strided",
    network(model="dense"): "--model=dense takes features",
    network(architecture={"activation": "tanh", "x": 1}): "TypeError",
    network(architecture={"activation": "os"}): "KeyError: 'os'",
}


@pytest.mark.parametrize("content", CONFIGS)
def test_a_configuration_of_another_shape_is_told_of_its_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8", errors="surrogateescape")
    said = refused(["predict", str(tmp_path)], capsys)
    assert CONFIGS[content] in said
    assert refused(["train", "--resume", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("[1]", "is not as a run writes it"),
        ('{"epochs": "many"}', "epochs='many'"),
        ('{"forgotten": 1}', "forgotten=1"),
    ],
)
def test_options_of_another_shape_are_told_when_a_run_is_to_go_on(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(f'{{"options": {options}}}')
    assert said in refused(["train", "--resume", str(tmp_path)], capsys)


def test_what_the_ledger_held_before_is_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = {"dataset": "mnist", "test_accuracy": 0.9, "epsilon": {"rdp": 2.1}, "accountant": "rdp", "delta": 1e-5}
    for name, total in (("second", 3.0), ("tighter", 1.9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "summary.json").write_text(json.dumps(summary | {"total_epsilon": total}))
        cli.main(["compare", str(tmp_path / name), "--output", str(tmp_path / f"{name}.png")])
    said = capsys.readouterr().out
    assert "3.0000 with the ledger" in said
    assert "1.9" not in said  # by a tighter accountant than what is shown of the run alone
    cli.main(["compare", str(tmp_path), "--json", "--output", str(tmp_path / "both.png")])
    assert [(run["epsilon"], run["total_epsilon"]) for run in json.loads(capsys.readouterr().out)] == [
        (2.1, 3.0),
        (2.1, 2.1),
    ]


@pytest.mark.parametrize("content", ["[]", "{}", '{"epsilon": 3, "accountant": "rdp"}', '{"test_accuracy": "x"}', "{"])
def test_a_summary_of_another_shape_is_told_of_its_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "summary.json").write_text(content)
    said = refused(["compare", str(tmp_path), "--output", str(tmp_path / "c.png")], capsys)
    assert "summary.json" in said
    assert not (tmp_path / "c.png").exists()


@pytest.mark.parametrize("how", ["half of every file", "no manifests", "another description"])
def test_a_damaged_checkpoint_is_one_line_and_nothing_else(
    how: str, small: tuple[Path, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(small[0], tmp_path / "run")
    for file in [path for path in (tmp_path / "run" / "model").rglob("*") if path.is_file()]:
        if how == "half of every file":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        elif how == "no manifests" and "manifest" in file.name:
            file.unlink()
        elif how == "another description" and file.name == "_CHECKPOINT_METADATA":
            file.write_text("[1, 2]")
    assert "the model in" in refused(["predict", str(tmp_path / "run")], capfd)


@pytest.mark.parametrize("content", [b"", b"1,\x002\n", b"x\n", b"\xff\xfe", b"9" * 40, b"1,2\n3\n"])
def test_predictions_and_tables_that_cannot_be_read_are_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("p.csv", "p.npy"):
        (tmp_path / name).write_bytes(content)
        analyze = ["pate", "analyze", str(tmp_path / name), "--num-classes", "2", "--aggregator", "gnmax"]
        assert refused(analyze, capsys)
    csv_file = str(tmp_path / "p.csv")
    table = ["train", "--dataset", "csv", "--features", csv_file, "--targets", csv_file, "--bounds", "0", "1"]
    assert refused(table, capsys)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_lacks_greek_letters_gets_them_spelled_out(encoding: str, monkeypatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    cli.main(["epsilon", "--noise-multiplier", "4", "--steps", "3"])
    stream.flush()
    shown = stream.buffer.getvalue().decode(encoding)  # pyright: ignore[reportAttributeAccessIssue]
    assert ("δ = 1e-05" in shown) == (encoding == "utf-8")
    assert ("delta = 1e-05" in shown) == (encoding != "utf-8")
    assert stream.errors == "strict"


def test_names_that_standard_output_would_change_are_not_printed(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(jaxdp.UsageError, match="give --output FILE"):
        _predict._check_encodable(("id", "größe"), [("1", "0.5")])


def test_help_breaks_lines_where_the_terminal_ends_alone(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "any other name is a TFDS data set prepared under --data-dir" in capsys.readouterr().out
