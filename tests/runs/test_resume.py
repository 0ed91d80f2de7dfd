"""A run that dies loses nothing: killed, damaged or interrupted, it resumes to the result of one that never stopped."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import interrupt_at_epoch_of, result

import jaxdp
from jaxdp import cli
from jaxdp.runs import _loop

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
EPOCHS = 4
LESS_LIKELY = ("empty files", "an empty folder")
COMMON = ["--batch-size", "64", "--delta", "1e-3", "--seed", "7", "--opt", "adam", "--noise-multiplier", "2"]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A private run of 8 steps an epoch, of a small network with dropout, so that every kind of key matters."""
    tables = tmp_path_factory.mktemp("tables")
    cli.main(["lookalike", str(tables), "--rows", "640", "--features", "6", "--targets", "3", "--test-rows", "20"])
    files = ["--features", str(tables / "train_features.csv"), "--targets", str(tables / "train_targets_scored.csv")]
    sizes = ["--bounds", "-10", "10", "--hidden", "8", "--epochs", str(EPOCHS)]
    return ["train", "--dataset", "csv", *files, *sizes, *COMMON]


@pytest.fixture(scope="module")
def undisturbed(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    cli.main([*options, "--output", str(folder)])
    return result(folder)


def damage(checkpoint: Path, how: str = "a flipped byte") -> None:
    """Damage a checkpoint: its largest file, or all of it."""
    if how == "an empty folder":
        shutil.rmtree(checkpoint)
        checkpoint.mkdir()
        return
    if how == "empty files":
        for path in checkpoint.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
        return
    victim = max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 0xFF
    victim.write_bytes(content)


def test_an_interrupted_run_resumes_to_the_same_result(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 3, tmp_path / "run", monkeypatch)
    assert jaxdp.load_run(tmp_path / "run").summary is None
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_resume_stands_for_the_output_folder_where_it_has_no_value(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    cli.main([*options, "--output", str(tmp_path / "run"), "--resume"])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_checkpoints_within_an_epoch_resume_to_the_same_result(
    options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch
) -> None:
    monkeypatch.setattr(_loop, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    interrupt_at_epoch_of(options, 3, tmp_path / "run", monkeypatch)
    newest = max(int(path.name) for path in (tmp_path / "run" / "private" / "checkpoints").iterdir())
    assert newest == 23  # the last step but one of epoch 3
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert result(tmp_path / "run") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a flipped byte", *(pytest.param(how, marks=pytest.mark.slow) for how in LESS_LIKELY)])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    how: str, options: list[str], tmp_path: Path, undisturbed: Any, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 4, tmp_path / "run", monkeypatch)
    damage(tmp_path / "run" / "private" / "checkpoints" / "24", how)
    cli.main(["train", "--resume", str(tmp_path / "run")])
    assert "is damaged" in capsys.readouterr().out
    assert result(tmp_path / "run") == undisturbed


def test_a_checkpoint_of_another_run_is_refused_even_where_the_configuration_was_made_to_fit(
    options: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 2, tmp_path / "run", monkeypatch)
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"delta": 0.001', '"delta": 0.0015'))
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "--resume", str(tmp_path / "run")])
    assert exit_.value.code == 2
    assert "other data would let anyone subtract the noise" in capsys.readouterr().err


def test_where_every_checkpoint_is_damaged_the_run_is_refused_and_left_as_it_is(
    options: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_at_epoch_of(options, 4, tmp_path / "run", monkeypatch)
    for step in ("16", "24"):
        damage(tmp_path / "run" / "private" / "checkpoints" / step)
    before = (tmp_path / "run" / "private" / "metrics.jsonl").read_bytes()
    with pytest.raises(SystemExit) as exit_:
        cli.main(["train", "--resume", str(tmp_path / "run")])
    assert exit_.value.code == 2
    assert "none can be read" in capsys.readouterr().err
    assert (tmp_path / "run" / "private" / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_a_run_killed_at_random_moments_and_resumed_ends_bit_for_bit_as_one_never_killed(tmp_path: Path) -> None:
    options = ["train", "--model", "mlp", "--data-dir", str(FIXTURES), "--epochs", "16", *COMMON]  # with dropout, too
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "JAX_PLATFORMS": "cpu"}}
    whole = subprocess.Popen(
        [sys.executable, "-m", "jaxdp.cli", *options, "--output", str(tmp_path / "whole")], **quiet
    )
    killed, metrics = tmp_path / "killed", tmp_path / "killed" / "private" / "metrics.jsonl"
    command = [*options, "--output", str(killed)]
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-m", "jaxdp.cli", *command], **quiet)
        lines_before = len(metrics.read_text().splitlines()) if metrics.exists() else 0
        while process.poll() is None and (
            not metrics.exists() or len(metrics.read_text().splitlines()) <= lines_before
        ):
            time.sleep(0.01)
        delay = random.SystemRandom().uniform(0, 1.0)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(
            f"attempt {attempt}: killed {delay:.3f} s after an epoch, {len(metrics.read_text().splitlines())} epochs made"
        )
        command = ["train", "--resume", str(killed)]
    assert not (killed / "summary.json").exists(), "the run ended before it was killed three times"
    subprocess.run([sys.executable, "-m", "jaxdp.cli", *command], check=True, **quiet)
    assert whole.wait() == 0
    assert result(killed) == result(tmp_path / "whole")
