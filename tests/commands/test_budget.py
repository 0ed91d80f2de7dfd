"""Budgets, samplings and ledgers on the command line: what is printed is what was spent."""

import json
from pathlib import Path
from typing import Any

import pytest

import jaxdp
from jaxdp import cli
from jaxdp.runs._folder import RunFolder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"


def options(folder: Path, *more: str) -> list[str]:
    """A small run on 512 real digits, 8 steps an epoch."""
    chosen = ["train", "--data-dir", str(FIXTURES), "--epochs", "2", "--batch-size", "64", "--delta", "1e-3"]
    return [*chosen, "--seed", "1", "--output", str(folder), *more]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def ledger_of(folder: Path) -> jaxdp.accounting.Ledger:
    return jaxdp.accounting.Ledger.from_dict(json.loads((folder / "statement.json").read_text())["ledger"])


@pytest.mark.slow
def test_a_run_for_a_budget_ends_just_within_it_and_stopped_five_times_spends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = options(tmp_path / "run", "--target-epsilon", "2", "--epochs", "7")
    record = RunFolder.add_metrics
    resumed = ["train", "--resume", str(tmp_path / "run")]
    for stop in range(2, 7):

        def break_off(self: RunFolder, line: dict[str, Any], stop: int = stop) -> None:
            if line["epoch"] == stop:
                raise KeyboardInterrupt
            record(self, line)

        monkeypatch.setattr(RunFolder, "add_metrics", break_off)
        with pytest.raises(SystemExit):
            cli.main(arguments if stop == 2 else resumed)
    monkeypatch.setattr(RunFolder, "add_metrics", record)
    cli.main(resumed)
    ended = summary(tmp_path / "run")
    assert 1.99 < ended["epsilon"]["rdp"] <= 2.0
    ledger = ledger_of(tmp_path / "run")
    assert len(ledger.entries) == 1
    assert ledger.epsilon(delta=1e-3).epsilon == ended["epsilon"]["rdp"]
    run = jaxdp.DPSGD(**json.loads((tmp_path / "run" / "statement.json").read_text())["run"])
    assert ledger.event == run.event
    assert run.steps == ended["steps"] == 56


@pytest.mark.slow
def test_a_run_that_would_overshoot_its_budget_stops_before_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(options(tmp_path / "run", "--noise-multiplier", "1.5", "--target-epsilon", "1.3"))
    assert "of 16 steps, before --target-epsilon 1.3 is overshot" in capsys.readouterr().out
    ended = summary(tmp_path / "run")
    run = jaxdp.DPSGD(**json.loads((tmp_path / "run" / "statement.json").read_text())["run"])
    assert ended["steps"] == run.steps < 16
    assert ended["epsilon"]["rdp"] <= 1.3
    one_more = jaxdp.accounting.epsilon(noise_multiplier=1.5, sample_rate=64 / 512, steps=run.steps + 1, delta=1e-3)
    assert one_more > 1.3
    metrics = [json.loads(line) for line in (tmp_path / "run" / "private" / "metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["step"] == run.steps
    assert jaxdp.load_run(tmp_path / "run").step == run.steps


@pytest.mark.slow
def test_shuffled_epochs_print_the_unamplified_epsilon_and_why_it_is_so_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(options(tmp_path / "run", "--sampling", "shuffle"))
    said = " ".join(capsys.readouterr().out.split())
    ended = summary(tmp_path / "run")
    by_hand = jaxdp.accounting.event_epsilon(
        jaxdp.accounting.gaussian_event(noise_multiplier=ended["noise_multiplier"], times=2),
        delta=1e-3,
        adjacency="replace_special",
    )
    assert ended["epsilon"]["rdp"] == by_hand.epsilon > 2
    assert "Shuffling has no amplification by sampling" in said
    assert "With Poisson sampling, the same batch size, noise and steps would cost (1.0000, 0.001)" in said
    assert "blanked in its place" in said


@pytest.mark.slow
def test_truncated_batches_are_accounted_by_pld_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--sampling", "truncated_poisson", "--truncated-batch-size", "70", "--target-epsilon", "1"]
    cli.main(options(tmp_path / "run", *arguments, "--epochs", "1"))
    ended = summary(tmp_path / "run")
    assert set(ended["epsilon"]) == {"pld"}
    assert 0.999 < ended["epsilon"]["pld"] <= 1.0
    assert "random subset of that size" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_second_run_on_the_same_data_counts_the_first(tmp_path: Path) -> None:
    cli.main(options(tmp_path / "first", "--target-epsilon", "1", "--epochs", "1"))
    first = tmp_path / "first" / "statement.json"
    cli.main(options(tmp_path / "second", "--target-epsilon", "2", "--ledger", str(first), "--epochs", "1"))
    ledger, ended = ledger_of(tmp_path / "second"), summary(tmp_path / "second")
    assert len(ledger.entries) == 2
    assert 1.99 < ledger.epsilon(delta=1e-3).epsilon <= 2.0
    assert ended["epsilon"]["rdp"] < 2.0
    assert ended["total_epsilon"] == ledger.total(delta=1e-3).epsilon
    stated = (tmp_path / "second" / "statement.txt").read_text()
    assert "The same data was used before" in stated
    assert "either may be quoted of this training, not of all" in stated
    assert "either may be quoted." in (tmp_path / "first" / "statement.txt").read_text()
    assert jaxdp.load_run(tmp_path / "second").step == 8

    cli.main(["compare", str(tmp_path), "--output", str(tmp_path / "compare.png")])
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_compare_shows_runs_by_accuracy_and_refuses_a_folder_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(options(tmp_path / "private", "--epochs", "1"))
    plain = ["train", "--data-dir", str(FIXTURES), "--epochs", "1", "--batch-size", "64", "--no-dp"]
    cli.main([*plain, "--output", str(tmp_path / "plain")])
    capsys.readouterr()
    cli.main(["compare", str(tmp_path / "private"), str(tmp_path), "--output", str(tmp_path / "c.png"), "--json"])
    runs = json.loads(capsys.readouterr().out)
    assert [run["test_accuracy"] for run in runs] == sorted((run["test_accuracy"] for run in runs), reverse=True)
    assert {run["name"]: run["epsilon"] is None for run in runs} == {"private": False, "plain": True}
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as exit_:
        cli.main(["compare", str(tmp_path / "empty")])
    assert exit_.value.code == 2
    assert "holds no finished run" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "quantity", "expected"),
    [
        (["steps", "--epsilon", "1", "--noise-multiplier", "1.3", "--batch-size", "250"], "steps", {"rdp": 4052}),
        (
            ["batch-size", "--epsilon", "1", "--noise-multiplier", "1.3", "--steps", "3600"],
            "batch_size",
            {"rdp": 264},
        ),
        (
            ["epsilon", "--noise-mult", "1.23", "--batch-size", "512", "--epochs", "40", "--sampling", "shuffle"],
            "epsilon",
            {"rdp": 36.44907836303141, "pld": 34.42347656313327},
        ),
        (
            ["epsilon", "--noise-mult", "1.3", "--batch-size", "250", "--adjacency", "replace_one"],
            "epsilon",
            {"pld": 1.5351324010624465},
        ),
    ],
)
def test_the_accountants_answers(
    command: list[str], quantity: str, expected: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*command, "--json"])
    answer = json.loads(capsys.readouterr().out)
    for name, value in expected.items():
        # PLD's Fourier transforms round otherwise on other processors and releases: 3,600 steps of it differ by 2e-9.
        assert answer[quantity][name] == pytest.approx(value, rel=1e-8 if name == "pld" else 1e-9)
    if "replace_one" in command:
        assert set(answer[quantity]) == {"pld"}
        cli.main(command)
        assert "not for this run" in capsys.readouterr().out


@pytest.mark.slow
def test_an_accountant_that_allows_no_step_leaves_the_answer_to_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["steps", "--epsilon", "1", "--noise-multiplier", "1"]
    cli.main([*asked, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert 0 < answer["steps"]["rdp"] < answer["steps"]["pld"]
    assert "doesn't allow one step" in answer["refused"]["classic"]
    cli.main(asked)
    assert "none within the budget" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "predict", "compare", "epsilon", "noise", "steps", "batch-size"])
def test_every_command_answers_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--help"])
    assert exit_.value.code == 0
    assert "--help" in capsys.readouterr().out
