"""The defaults of `jaxdp train`, on the whole of MNIST: minutes of training, so marked slow."""

import json
from pathlib import Path

import pytest

import jaxdp
from jaxdp import cli

pytestmark = pytest.mark.slow("minutes")


def test_the_default_run_is_private_and_accurate(tmp_path: Path) -> None:
    cli.main(["train", "--seed", "0", "--output", str(tmp_path / "run")])
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["epsilon"]["rdp"] <= 1.0
    assert summary["test_accuracy"] >= 0.98


def test_without_privacy_five_epochs_reach_98_5_percent(tmp_path: Path) -> None:
    cli.main(["train", "--model", "cnn", "--no-dp", "--epochs", "5", "--seed", "0", "--output", str(tmp_path / "run")])
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["epsilon"] is None
    assert summary["test_accuracy"] >= 0.985


def test_the_tutorials_run_costs_what_jaxdp_epsilon_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tutorial = ["--batch-size", "250", "--noise-multiplier", "1.3", "--epochs", "3"]
    model = ["--model", "cnn", "--lr", "0.25", "--clip-norm", "1.5", "--seed", "0", "--output", str(tmp_path / "run")]
    cli.main(["train", *tutorial, *model])
    assert "0.56317" in capsys.readouterr().out
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["test_accuracy"] >= 0.93
    cli.main(["epsilon", "--examples", "60000", *tutorial, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["epsilon"]["rdp"] == summary["epsilon"]["rdp"] == pytest.approx(0.563172649032795, abs=1e-12)
