"""A small private run, and its end on one device, that runs on several are held against."""

from pathlib import Path

import pytest

from jaxdp import cli

EPOCHS = 8


@pytest.fixture(scope="session")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A private run of 8 steps an epoch, of a model without hidden layers, which is soon compiled."""
    tables = tmp_path_factory.mktemp("tables")
    cli.main(["lookalike", str(tables), "--rows", "640", "--features", "6", "--targets", "3", "--test-rows", "20"])
    files = ["--features", str(tables / "train_features.csv"), "--targets", str(tables / "train_targets_scored.csv")]
    sizes = ["--bounds", "-10", "10", "--hidden", "--epochs", str(EPOCHS), "--batch-size", "64", "--delta", "1e-3"]
    return ["train", "--dataset", "csv", *files, *sizes, "--seed", "7", "--opt", "adam", "--noise-multiplier", "2"]


@pytest.fixture(scope="session")
def on_one(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    cli.main([*options, "--output", str(folder)])
    return folder
