"""What examples held back decide: the end of a run, its learning rate, and which model is kept; at no cost to the others."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from command import interrupt_at_epoch_of, refused, result

import jaxdp
from jaxdp import cli
from jaxdp.commands.train import TrainOptions
from jaxdp.commands.train._held_back import best_of, has_stopped, scale_after
from jaxdp.commands.train._problem import problem_of
from jaxdp.commands.train._tables import table_problem
from jaxdp.data import Classes, Labelled
from jaxdp.data._on_disk import columns

MADE = ["lookalike", "--rows", "500", "--features", "8", "--targets", "3", "--test-rows", "9"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tables")
    cli.main([MADE[0], str(folder), *MADE[1:]])
    files = ["--features", str(folder / "train_features.csv"), "--targets", str(folder / "train_targets_scored.csv")]
    sizes = ["--hidden", "8", "--batch-size", "128", "--delta", "1e-3", "--opt", "adam", "--epochs", "6", "--seed", "3"]
    return ["train", "--dataset", "csv", *files, "--bounds", "-10", "10", *sizes, "--noise-multiplier", "1"]


def test_the_best_loss_is_the_least_and_the_first_of_several() -> None:
    assert best_of([3.0, 1.0, 2.0, 1.0]) == 1
    assert best_of([math.nan, 2.0, math.inf]) == 1
    assert best_of([math.nan, math.nan]) == 0
    assert has_stopped([1.0, 2.0, 3.0], 2)
    assert not has_stopped([1.0, 2.0, 3.0], 3)
    assert not has_stopped([math.nan, 3.0, 2.0], 2)
    assert not has_stopped([], 1)


def test_other_people_held_back_are_other_data(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 4, 4, 1), np.uint8)
    given, other = ((images, (np.arange(40) + i) % 2) for i in (0, 1))
    options = TrainOptions(dataset="a set", output=tmp_path)

    def of(test: tuple[np.ndarray, ...], public: bool) -> str:
        labelled = Labelled(name="a set", train=given, test=test, task=Classes(2), public_test=public)
        return problem_of(labelled, options).fingerprint(b"a secret")

    assert of(given, public=True) == of(other, public=True) != of(given, public=False) != of(other, public=False)


def test_the_learning_rate_falls_after_epochs_without_a_better_loss() -> None:
    options = TrainOptions(schedule="plateau", plateau_factor=0.5, plateau_patience=2, holdout=9)
    scales = [scale_after([1.0, 0.9, 0.95, 0.96, 0.97, 0.98, 0.5][:made], options) for made in range(8)]
    assert scales == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.slow
def test_parameters_move_by_the_learning_rate_that_a_plateau_leaves(base: list[str], tmp_path: Path) -> None:
    """At a millionth of it they stay; the loss is worse from the second epoch on, at such a learning rate."""
    falls = ["--lr", "10", "--schedule", "plateau", "--plateau-factor", "1e-6", "--plateau-patience", "1"]
    cli.main([*base, *falls, "--output", str(tmp_path / "run")])
    run = jaxdp.load_run(tmp_path / "run")
    losses = [record["test_loss"] for record in run.metrics]
    options = TrainOptions(
        schedule="plateau", plateau_factor=1e-6, plateau_patience=1, features=Path("f"), dataset="csv"
    )
    fell = next(made for made in range(len(losses)) if scale_after(losses[: made + 1], options) < 1)
    assert fell < len(losses) - 1
    np.testing.assert_allclose(losses[fell + 1 :], losses[fell], rtol=1e-3)
    assert abs(losses[fell] - losses[fell - 1]) > 1e-2 * losses[fell]
    assert "The learning rate was multiplied by 1e-06" in (run.statement or "")


@pytest.mark.slow
def test_the_model_of_the_best_epoch_is_kept_and_all_steps_are_paid_for(base: list[str], tmp_path: Path) -> None:
    command = [*base, "--lr", "0.2", "--keep", "best", "--schedule", "plateau", "--plateau-patience", "1"]
    cli.main([*command, "--output", str(tmp_path / "run")])
    run = jaxdp.load_run(tmp_path / "run")
    losses = [record["test_loss"] for record in run.metrics]
    best = int(np.argmin(losses))
    assert best < len(losses) - 1, "the last epoch was the best, which tells nothing"
    assert run.summary is not None
    assert (run.summary["kept_epoch"], run.summary["test_loss"]) == (best + 1, losses[best])
    assert run.step == run.metrics[best]["step"] < run.summary["steps"]
    problem = table_problem(cli._parse(command), jaxdp.accounting.Ledger())
    inputs, labels = map(np.asarray, columns(problem.test))
    assert problem.model.evaluate(run.predict(inputs), labels)[0] == pytest.approx(losses[best])
    stored = json.loads((tmp_path / "run" / "statement.json").read_text())
    assert run.summary["epsilon"]["rdp"] == jaxdp.DPSGD.from_dict(stored["run"]).epsilon(delta=1e-3)
    assert stored["run"]["steps"] == run.summary["steps"]
    assert f"that of epoch {best + 1}, after which" in stored["statement"]
    assert not (tmp_path / "run" / "private" / "best").exists()


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [2, 5])
def test_what_is_broken_off_goes_on_to_the_same_choices(
    base: list[str], epoch: int, tmp_path: Path, monkeypatch
) -> None:
    command = [*base, "--lr", "0.2", "--keep", "best", "--schedule", "plateau", "--plateau-patience", "1"]
    cli.main([*command, "--output", str(tmp_path / "whole")])
    interrupt_at_epoch_of(command, epoch, tmp_path / "broken", monkeypatch)
    cli.main(["train", "--resume", str(tmp_path / "broken")])
    assert result(tmp_path / "broken") == result(tmp_path / "whole")


@pytest.mark.parametrize("arguments", [["--keep", "best"], ["--schedule", "plateau"], ["--patience", "3"]])
def test_nothing_is_decided_by_a_test_set(arguments: list[str], capsys) -> None:
    assert f"{arguments[0]}={arguments[1]} goes by the loss on examples held back" in refused(
        ["train", *arguments], capsys
    )


def test_a_factor_that_does_not_lower_the_learning_rate_is_refused(capsys) -> None:
    falls = ["--schedule", "plateau", "--plateau-factor", "1"]
    assert "--plateau-factor=1.0" in refused(["train", "--holdout", "99", *falls], capsys)
