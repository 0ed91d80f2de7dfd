"""Ctrl-C and SIGTERM: heard whatever the process is at, obeyed where nothing is lost, and never an exception in foreign code."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import result

from jaxdp import cli
from jaxdp._interrupts import Interrupted, asked_to_stop, farewell, listening, resumable, stop_here
from jaxdp.runs._folder import RunFolder

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tfds"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
TRAIN = ["train", "--model", "mlp", "--data-dir", str(FIXTURES), "--epochs", "60", "--batch-size", "64"]
TRAIN += ["--delta", "1e-3", "--seed", "7", "--noise-multiplier", "1"]
PATE = ["pate", "--data-dir", str(FIXTURES), "--teachers", "8", "--queries", "60", "--teacher-epochs", "2"]
PATE += ["--teacher-batch-size", "16", "--student-steps", "200", "--delta", "1e-3", "--seed", "3", "--threshold", "1"]
PATE += ["--sigma-threshold", "8", "--sigma-max", "6"]


def interrupted_work(number: signal.Signals) -> None:
    with resumable("jaxdp train --resume here"):
        os.kill(os.getpid(), number)
        while not asked_to_stop():
            pass
        stop_here()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_raises_nothing_until_a_safe_place(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(number)
    with listening():
        stop_here()
        with pytest.raises(Interrupted):
            interrupted_work(number)
        assert farewell() == ("jaxdp: interrupted; this goes on: jaxdp train --resume here", 128 + number)
    assert f"heard {number.name}" in capfd.readouterr().err
    assert signal.getsignal(number) is before


def test_outside_the_command_line_ctrl_c_is_pythons_own() -> None:
    with listening():
        pass
    with resumable("nothing"):
        stop_here()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        stop_here()


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening(), resumable("nothing"):
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert not asked_to_stop()
    finally:
        signal.signal(signal.SIGINT, before)


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jaxdp.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether the command takes signals by now; before, it imports, and ends by them as any program does."""
    caught = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigCgt" in line)
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def interrupted_again_and_again(arguments: list[str], folder: Path, moments: int, longest: float) -> None:
    """Break a run off at several moments, the first while it compiles, and resume it each time; then let it end."""
    command, delays = [*arguments, "--output", str(folder)], random.Random(0)
    for moment in range(moments):
        process, number = started(command), SIGNALS[moment % 2]
        while process.poll() is None and not (listens(process) and (folder / "config.json").exists()):
            time.sleep(0.01)
        time.sleep(delays.uniform(0, longest) if moment else 0.2)
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
        print(f"{number.name}: {process.returncode}, {said.splitlines()[-2:]}")
        assert process.returncode == 128 + number, said
        assert not any(trace in said for trace in ("Traceback", "Exception ignored", "Segmentation"))
        if "heard" in said:
            assert f"--resume {folder}" in said
        else:
            assert moment > 0, said
        command = [arguments[0], "--resume", str(folder)]
    process = started(command)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said


@pytest.mark.slow("minutes")
def test_a_run_that_is_interrupted_at_any_moment_ends_cleanly_and_goes_on_to_the_same_result(tmp_path: Path) -> None:
    interrupted_again_and_again(TRAIN, tmp_path / "run", moments=2, longest=6.0)
    cli.main([*TRAIN, "--output", str(tmp_path / "whole")])
    assert result(tmp_path / "run") == result(tmp_path / "whole")


@pytest.mark.slow("minutes")
@pytest.mark.filterwarnings("ignore:.*no record of some class")
def test_pate_that_is_interrupted_at_any_moment_ends_cleanly_and_goes_on_to_the_same_labels(tmp_path: Path) -> None:
    interrupted_again_and_again(PATE, tmp_path / "run", moments=2, longest=6.0)
    cli.main([*PATE, "--output", str(tmp_path / "whole")])
    for name in ("labels.csv", "statement.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def begun(folder: Path) -> subprocess.Popen[str]:
    """A run under way, whose folder has checkpoints."""
    process = started([*TRAIN, "--model", "cnn", "--output", str(folder)])
    while process.poll() is None and not (folder / "private" / "checkpoints").exists():
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = begun(folder)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    line = process.stderr.readline()
    while line and "heard SIGINT" not in line:
        line = process.stderr.readline()
    assert process.poll() is None, "it was heard, and the process goes on to a safe place"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=600)
    assert process.returncode in (143, 130)  # the latter where it had reached one
    assert f"--resume {folder}" in said


@pytest.mark.slow
def test_one_signal_that_comes_twice_at_once_is_one_request(tmp_path: Path) -> None:
    """As from `timeout`, which signals its command, and then all of its group."""
    process = begun(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "stopping at the next safe place" in said
    assert "again" not in said


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_what_nobody_can_resume_ends_at_once(number: signal.Signals) -> None:
    for delay in (0.2, 1.0, 2.0, 4.0):
        process = started(["noise", "--epsilon", "1", "--adjacency", "replace_one"])
        time.sleep(delay)
        process.send_signal(number)
        _, said = process.communicate(timeout=600)
        assert process.returncode in (128 + number, -number, 0), said  # the second while Python itself starts
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_run_whose_machine_fails_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunFolder, "add_metrics", full)
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, "--output", str(tmp_path / "run")])
    said = capsys.readouterr().err
    assert f"No space left on device: see to that; this goes on: jaxdp train --resume {tmp_path / 'run'}" in said


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_any_more_says_how_it_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxdp.cli", *TRAIN, "--output", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not process.stdout.readline().startswith("epoch 2/"):
            pass
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1
    assert f"this goes on: jaxdp train --resume {tmp_path / 'run'}" in said


def test_help_ends_on_a_terminal_of_a_few_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "3")
    with pytest.raises(SystemExit):
        cli.main(["lookalike", "--help"])
    assert "--rows" in capsys.readouterr().out
