"""`jaxdp train` as several processes: one run, one folder, and ends that say why."""

import shutil
import signal
import time
from pathlib import Path

import pytest
from command import refused
from of_several import ended, free_address, killed_under_way, same_run, started, together

from jaxdp import cli


def commands(arguments: list[str], number: int = 2, own: tuple[list[str], ...] = ()) -> list[list[str]]:
    """One command for each process; `own` adds to those of the first ones."""
    meeting = ["--coordinator", free_address(), "--num-processes", str(number), "--process-id"]
    more = [*own, *[[]] * (number - len(own))]
    return [["-m", "jaxdp.cli", *arguments, *more[i], *meeting, str(i)] for i in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_two_processes_make_the_run_of_one(options: list[str], on_one: Path, tmp_path: Path, devices: int) -> None:
    first, second = together(commands([*options, "--output", str(tmp_path / "run")]), devices=devices)
    assert (first.code, second.code) == (0, 0), (first, second)
    assert f"{2 * devices} × cpu, 2 processes" in first.out
    assert second.out == ""
    same_run(tmp_path / "run", on_one)


@pytest.mark.slow
def test_processes_with_other_options_or_another_seed_are_refused_before_anything_is_written(
    options: list[str], tmp_path: Path
) -> None:
    arguments = [*options, "--output", str(tmp_path / "run")]
    for end in together(commands(arguments, own=([], ["--lr", "0.5", "--seed", "8"]))):
        assert end.code == 2, end
        (line,) = [line for line in end.err.splitlines() if "jaxdp" in line]
        assert "disagree on --lr (process 1 against process 0), --seed (process 1 against process 0)" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_other_data_are_refused(options: list[str], tmp_path: Path) -> None:
    file = Path(options[options.index("--features") + 1])
    changed = tmp_path / file.name
    lines = file.read_text().splitlines()
    *before, number = lines[1].split(",")
    changed.write_text("\n".join([lines[0], ",".join([*before, str(float(number) + 1)]), *lines[2:]]) + "\n")
    for end in together(
        commands([*options, "--output", str(tmp_path / "run")], own=([], ["--features", str(changed)]))
    ):
        assert end.code == 2, end
        assert "disagree on the data (process 1 against process 0)" in end.err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_one_process_is_refused_for_ends_the_others_with_the_same_line(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("dear")
    first, second = together(commands([*options, "--output", str(tmp_path / "run")]))
    assert (first.code, second.code) == (2, 2)
    assert "holds letter.txt, which is no run's" in first.err
    assert "process 0: --output" in second.err


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_where_a_process_is_killed_the_other_says_so_and_the_run_goes_on_as_if_nothing_had_been(
    options: list[str], on_one: Path, tmp_path: Path, victim: int
) -> None:
    run = tmp_path / "run"
    both = killed_under_way(commands([*options, "--output", str(run)]), run, victim)
    end = ended(both)[1 - victim]
    assert end.code not in (0, -9), end
    assert f"process {victim} has died" in end.err
    assert f"this goes on: jaxdp train --resume {run}" in end.err
    shutil.copytree(run, tmp_path / "copied")
    for each in together(commands(["train", "--resume", str(run)])):
        assert each.code == 0, each
    cli.main(["train", "--resume", str(tmp_path / "copied")])
    for folder in (run, tmp_path / "copied"):
        same_run(folder, on_one)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 1])
def test_a_signal_to_one_process_stops_all_at_the_same_step(
    options: list[str], on_one: Path, tmp_path: Path, asked: int
) -> None:
    run, metrics = tmp_path / "run", tmp_path / "run" / "private" / "metrics.jsonl"
    both = started(commands([*options, "--output", str(run)]))
    while not metrics.exists():
        assert both[0].poll() is None
        time.sleep(0.01)
    both[asked].send_signal(signal.SIGTERM)
    ends = ended(both)
    assert [end.code for end in ends] == [143 if i == asked else 130 for i in range(2)], ends
    for end in ends:
        assert "jaxdp: interrupted; this goes on" in end.err
    cli.main(["train", "--resume", str(run)])
    same_run(run, on_one)


@pytest.mark.slow
def test_processes_without_a_seed_have_the_first_ones_entropy(options: list[str], tmp_path: Path) -> None:
    arguments = [option for option in options if option not in ("--seed", "7")]
    at = arguments.index("--bounds")
    arguments[at : at + 3] = ["--bounds-noise", "1"]
    ends = together(commands([*arguments, "--output", str(tmp_path / "run")]))
    assert [end.code for end in ends] == [0, 0], ends


@pytest.mark.slow("minutes")
def test_a_coordinator_that_is_not_there_and_others_that_do_not_come_are_told_of_within_a_minute() -> None:
    alone = [commands(["train"])[own] for own in (0, 1)]  # of two runs, whose others don't come
    for end, said in zip(
        together(alone), ("the others were not at", "process 0 or another one was not at"), strict=True
    ):
        assert end.code == 2, end
        assert end.err.startswith("jaxdp: error: ")
        assert end.err.count("\n") == 1
        assert said in end.err


def test_what_is_typed_of_processes_is_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--num-processes", "2", "--process-id", "1"]
    for arguments, message in (
        (given, "give all three"),
        (["--coordinator", "localhost:1", "--num-processes", "2"], "give all three"),
        (["--coordinator", "localhost", *given], "must be HOST:PORT"),
        (["--coordinator", "localhost:99999", *given], "must be HOST:PORT"),
        (["--coordinator", "localhost:1", "--num-processes", "2", "--process-id", "2"], "counted from 0"),
        (["--no-dp", "--coordinator", "localhost:1", *given], "no effect with --no-dp"),
    ):
        assert message in refused(["train", *arguments], capsys)
