"""`jaxdp train` on several devices is the run that it is on one: draws, noise and epsilon the same, parameters to rounding."""

import json
import shutil
from pathlib import Path

import pytest
from command import refused
from of_several import ended, killed_under_way, same_run, together

from jaxdp import cli


@pytest.mark.slow
def test_a_run_begun_on_eight_devices_and_killed_goes_on_on_two_and_on_one_to_the_same_end(
    options: list[str], on_one: Path, tmp_path: Path
) -> None:
    run, copied = tmp_path / "run", tmp_path / "copied"
    command = ["-m", "jaxdp.cli", *options, "--output", str(run)]
    (end,) = ended(killed_under_way([command], run, devices=8))
    assert end.code == -9, end
    shutil.copytree(run, copied)
    (end,) = together([["-m", "jaxdp.cli", "train", "--resume", str(run), "--devices", "2"]], devices=8)
    assert end.code == 0, end
    assert "2 × cpu" in end.out
    cli.main(["train", "--resume", str(copied)])
    for folder in (run, copied):
        same_run(folder, on_one)


@pytest.mark.slow("minutes")
def test_a_run_with_dropout_on_several_devices_is_that_of_one(options: list[str], tmp_path: Path) -> None:
    command = [*options, "--hidden", "8", "--output"]
    cli.main([*command, str(tmp_path / "1")])
    for devices in (2, 8):
        (end,) = together([["-m", "jaxdp.cli", *command, str(tmp_path / str(devices))]], devices=devices)
        assert end.code == 0, end
        summary = json.loads((tmp_path / str(devices) / "summary.json").read_text())
        assert summary["device"] == f"{devices} × cpu"
        same_run(tmp_path / str(devices), tmp_path / "1")


def test_devices_that_are_not_there_or_not_used_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--devices=2 is more than JAX finds here (1, cpu)" in refused(["train", "--devices", "2"], capsys)
    assert "--devices=0" in refused(["train", "--devices", "0"], capsys)
    assert "--devices=1 has no effect with --no-dp" in refused(["train", "--no-dp", "--devices", "1"], capsys)
