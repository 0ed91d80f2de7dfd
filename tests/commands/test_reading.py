"""`jaxdp train` from disk: the same run as from memory, which it chooses by itself where the data would take too much of that."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bits import AS_USUAL, assert_same_numbers
from command import interrupt_at_epoch_of, refused, result
from of_several import free_address, together

import jaxdp
from jaxdp import cli
from jaxdp.commands.train import _reading
from jaxdp.runs import RunFolder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
TRAIN = Path("mnist", "3.0.1", "mnist-train.array_record-00000-of-00001")
COMMON = ["train", "--model", "mlp", "--batch-size", "64", "--delta", "1e-3", "--seed", "7", "--noise-multiplier", "2"]
OPTIONS = [*COMMON, "--data-dir", str(FIXTURES), "--epochs", "2", "--holdout", "100"]
FROM_DISK = "read from disk as it is drawn"


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("in-memory") / "run"
    cli.main([*OPTIONS, "--output", str(folder)])
    return result(folder)


def assert_same_run(ours: Any, theirs: Any) -> None:
    """What two folders hold, to the bit."""
    if AS_USUAL:
        assert ours == theirs
    numbers = lambda params: np.concatenate([np.frombuffer(each, np.float32) for each in params])
    assert_same_numbers(numbers(ours[0]), numbers(theirs[0]))
    assert ours[2] == theirs[2]


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start in range(0, len(content), 8192):
        content[start + 4000 : start + 4400] = bytes(400)
    path.write_bytes(content)


@pytest.mark.slow
def test_a_run_from_disk_is_the_run_from_memory_to_the_bit(
    in_memory: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main([*OPTIONS, "--reading", "disk", "--output", str(tmp_path / "run")])
    assert FROM_DISK in capsys.readouterr().out
    assert_same_run(result(tmp_path / "run"), in_memory)
    summary = jaxdp.load_run(tmp_path / "run").summary
    assert summary is not None
    assert summary["seconds_waited"] > 0


@pytest.mark.slow
def test_two_processes_read_their_parts_from_disk_and_make_the_run_of_one(in_memory: Any, tmp_path: Path) -> None:
    meeting = ["--coordinator", free_address(), "--num-processes", "2", "--process-id"]
    command = ["-m", "jaxdp.cli", *OPTIONS, "--reading", "disk", "--output", str(tmp_path / "run"), *meeting]
    first, second = together([[*command, str(i)] for i in range(2)], devices=2)
    assert (first.code, second.code) == (0, 0), (first, second)
    assert FROM_DISK in first.out
    assert second.out == ""
    (ours, *_, cost), (theirs, *_, same_cost) = result(tmp_path / "run"), in_memory
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.frombuffer(one, np.float32), np.frombuffer(other, np.float32), atol=1e-5)
    assert cost == same_cost


@pytest.mark.slow
def test_what_takes_too_much_memory_is_read_from_disk_and_evaluated_from_there(
    in_memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_reading, "_PART_FOR_DATA", 1e-9)
    cli.main([*OPTIONS, "--output", str(tmp_path / "run")])
    assert re.search(rf"mnist is {FROM_DISK}: decoded it takes 0 MiB, more than a third of", capsys.readouterr().out)
    assert_same_run(result(tmp_path / "run"), in_memory)


@pytest.mark.slow
def test_a_run_goes_on_from_disk_where_it_began_in_memory_and_the_other_way_round(
    in_memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for begun, other in (("memory", "disk"), ("disk", "memory")):
        folder = tmp_path / begun
        with monkeypatch.context() as patched:
            interrupt_at_epoch_of([*OPTIONS, "--reading", begun], 2, folder, patched)
        cli.main(["train", "--resume", str(folder), "--reading", other])
        assert_same_run(result(folder), in_memory)


@pytest.mark.slow
def test_a_record_that_is_damaged_while_the_run_goes_on_is_named_and_the_run_goes_on_once_it_is_back(
    in_memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, folder = tmp_path / "tfds", tmp_path / "run"
    shutil.copytree(FIXTURES, files)
    record = RunFolder.add_metrics

    def record_and_damage(self: RunFolder, line: dict[str, Any]) -> None:
        record(self, line)
        damage(files / TRAIN)

    # What is read ahead of the first epoch's end is read: so the second has more steps than are.
    options = [*COMMON, "--data-dir", str(files), "--epochs", "2", "--holdout", "100", "--reading", "disk"]
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "add_metrics", record_and_damage)
        patched.setattr("jaxdp.reading._source._BYTES_AHEAD", 1)
        said = refused([*options, "--output", str(folder)], capsys)
    assert re.search(r"records\[\d+\] can't be read: .*record \d+ of split train", said)
    assert f"jaxdp train --resume {folder}" in said
    assert "can't be read" in refused(["train", "--resume", str(folder)], capsys)
    shutil.copy(FIXTURES / TRAIN, files / TRAIN)
    cli.main(["train", "--resume", str(folder)])
    assert_same_run(result(folder), in_memory)


@pytest.mark.slow
def test_without_privacy_it_is_the_same_run_from_disk_too(tmp_path: Path) -> None:
    options = ["train", "--model", "mlp", "--no-dp", "--data-dir", str(FIXTURES), "--epochs", "2", "--batch-size", "60"]
    for reading in ("memory", "disk"):
        cli.main([*options, "--seed", "1", "--reading", reading, "--output", str(tmp_path / reading)])
    ours, theirs = (jaxdp.load_run(tmp_path / reading) for reading in ("disk", "memory"))
    for our, their in zip(ours.metrics, theirs.metrics, strict=True):
        assert_same_numbers(our["test_loss"], their["test_loss"])


def test_data_without_files_and_tables_are_not_read_from_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--dataset mnist comes in memory" in refused(["train", "--reading", "disk"], capsys)
    table = ["train", "--dataset", "csv", "--features", "a", "--targets", "b", "--bounds", "0", "1"]
    assert "--reading=disk has no effect" in refused([*table, "--reading", "disk"], capsys)


@pytest.mark.slow
def test_a_run_from_disk_that_is_killed_and_resumed_ends_as_one_from_memory(tmp_path: Path) -> None:
    options = [*COMMON, "--data-dir", str(FIXTURES), "--epochs", "16"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": {**os.environ, "JAX_PLATFORMS": "cpu"}}
    run = [sys.executable, "-m", "jaxdp.cli"]
    subprocess.run([*run, *options, "--output", str(tmp_path / "memory")], check=True, **quiet)
    killed = tmp_path / "killed"
    metrics = killed / "private" / "metrics.jsonl"
    process = subprocess.Popen([*run, *options, "--reading", "disk", "--output", str(killed)], **quiet)
    while process.poll() is None and (not metrics.exists() or len(metrics.read_text().splitlines()) < 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "summary.json").exists(), "the run ended before it was killed"
    subprocess.run([*run, "train", "--resume", str(killed)], check=True, **quiet)
    assert_same_run(result(killed), result(tmp_path / "memory"))
