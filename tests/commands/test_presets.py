"""Recipes by name: what they fill in, what wins over them, and where they don't fit."""

from pathlib import Path
from typing import Any

import pytest
from command import refused

import jaxdp
from jaxdp import cli
from jaxdp.accounting import Ledger
from jaxdp.commands.train import TrainOptions
from jaxdp.commands.train._plan import resolve_plan
from jaxdp.commands.train._recipe import RECIPES, overruled


@pytest.mark.slow_but("scattering-plain")
@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_makes_a_plan_of_its_own_numbers(name: str) -> None:
    recipe = RECIPES[name]
    options = TrainOptions(recipe=name, dp=recipe.dp)
    plan = resolve_plan(options, 60_000, Ledger())
    assert options.architecture == recipe.model
    assert overruled(options) == []
    assert (plan.lr, plan.momentum, plan.epochs) == (recipe.sgd_lr, recipe.momentum, recipe.epochs)
    assert (plan.run is None) == (not recipe.dp)
    if plan.run is not None:
        assert plan.run.clip_norm == recipe.clip_norm
        assert plan.budget == (None if recipe.noise_multiplier else recipe.target_epsilon or 1.0)
        assert plan.accountant == (recipe.accountant or "rdp")


@pytest.mark.slow
def test_help_lists_them_and_what_is_typed_wins(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(f"{name}, {recipe.about}" in said for name, recipe in RECIPES.items())
    options = TrainOptions(recipe="tutorial", model="mlp", lr=0.5, target_epsilon=2.0)
    assert overruled(options) == ["--model mlp in place of cnn", "--lr 0.5 in place of 0.25"]
    plan = resolve_plan(options, 60_000, Ledger())
    assert (plan.lr, plan.budget, plan.batch_size) == (0.5, 2.0, 250)


def test_a_recipe_without_privacy_does_not_make_a_run_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    plain = [name for name, recipe in RECIPES.items() if not recipe.dp]
    for name in plain:
        assert f"--recipe={name} is without privacy" in refused(["train", "--recipe", name], capsys)
        TrainOptions(recipe=name, dp=False, **_table(RECIPES[name].model)).check()


def test_numbers_are_learned_at_a_rate_of_their_own() -> None:
    of_numbers = {**_table("dense"), "target_bounds": (0.0, 9.0)}
    assert TrainOptions(**of_numbers, model="dense").recipe_in_use is RECIPES["dense-numbers"]
    assert TrainOptions(**of_numbers, recipe="dense").recipe_in_use is RECIPES["dense"]
    assert TrainOptions(**_table("dense")).recipe_in_use is RECIPES["dense"]


def _table(model: str) -> dict[str, Any]:
    """The options without which a model of tables has nothing to train on."""
    if model != "dense":
        return {}
    return {"dataset": "csv", "features": Path("f.csv"), "targets": Path("t.csv"), "bounds": (0.0, 1.0)}


def test_an_unknown_recipe_and_one_of_other_data_are_refused(
    tfds_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"--recipe=best is not known: give one of {', '.join(RECIPES)}" in refused(
        ["train", "--recipe", "best"], capsys
    )
    from jaxdp import data

    digits = data.load("mnist", tfds_dir)
    small = digits._replace(train_images=digits.train_images[:, :3, :3], test_images=digits.test_images[:, :3, :3])
    monkeypatch.setitem(data.DATASETS, "small", lambda: small._replace(name="small"))
    said = refused(["train", "--dataset", "small", "--recipe", "scattering"], capsys)
    assert "--recipe=scattering was chosen on inputs of shape (28, 28, 1), and one of small has (3, 3, 1)" in said
    assert "scales=2 averages over 2^2 pixels, and images have 3 x 3" in refused(
        ["train", "--dataset", "small"], capsys
    )


@pytest.mark.slow
def test_an_image_distorted_in_its_own_loss_is_still_one_example(tfds_dir: Path, tmp_path: Path) -> None:
    small = ["train", "--model", "mlp", "--data-dir", str(tfds_dir), "--epochs", "1", "--batch-size", "64"]
    small += ["--delta", "1e-3", "--noise-multiplier", "1", "--seed", "0"]
    for name, more in (("plain", []), ("distorted", ["--augmentations", "3"])):
        cli.main([*small, *more, "--output", str(tmp_path / name)])
    plain, distorted = (jaxdp.load_run(tmp_path / name) for name in ("plain", "distorted"))
    assert plain.summary is not None
    assert distorted.summary is not None
    assert plain.summary["epsilon"] == distorted.summary["epsilon"]
    assert plain.metrics[-1]["train_loss"] != distorted.metrics[-1]["train_loss"]
