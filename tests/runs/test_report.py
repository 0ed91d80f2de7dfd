"""What a run shows on a terminal of any width, and in a file."""

import io
from pathlib import Path
from typing import Any

import pytest
from command import refused
from rich.console import Console

from jaxdp.commands._compare import comparison_tables, epsilons_apart
from jaxdp.commands.train._report import advice, status_line, summary_table
from jaxdp.runs._pictures import new_figure, panels, save_figure
from jaxdp.runs._report import progress_display, say, two_columns

EPOCH = {
    "epoch": 12,
    "steps_per_second": 13.5,
    "train_loss": 0.939,
    "epsilon": 0.734,
}
SUMMARY = {
    "model": "dense",
    "dataset": "csv",
    "test_accuracy": 0.9,
    "test_loss": 0.5,
    "epsilon": None,
    "batch_size": 64,
    "steps": 10,
    "epochs": 2,
    "device": "cpu",
}


def terminal(width: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, force_terminal=True, color_system=None), out


@pytest.mark.parametrize(
    ("figures", "shown"),
    [({"train_accuracy": 0.8528}, ("85.28%",)), ({"train_rmse": 123.456, "test_rmse": 1e6}, ("123.46", "1e+06"))],
)
@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_bar_keeps_its_numbers_at_every_width(
    width: int, figures: dict[str, float], shown: tuple[str, ...]
) -> None:
    console, out = terminal(width)
    with progress_display(console, 600, 0) as display:
        display.update(123, status_line({**EPOCH, **figures}, 40, narrow=display.narrow))
        display._progress.refresh()
    said = next(line for line in out.getvalue().replace("\r", "\n").splitlines() if "123/600" in line)
    assert all(number in said for number in ("12/40", "0.939", "0.734"))
    assert all((figure in said) == (width >= 90) for figure in shown)
    assert "…" not in said


@pytest.mark.parametrize("width", [60, 80])
def test_a_statement_is_broken_at_words_on_a_terminal_and_nowhere_in_a_file(width: int) -> None:
    said = "This training satisfies (1.0000, 1e-05)-differential privacy by the RDP accountant, [/b] as it says. " * 3
    console, out = terminal(width)
    say(console, said)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == said.strip()
    file = io.StringIO()
    say(Console(file=file, width=width), said)
    assert file.getvalue() == said + "\n"


def test_brackets_are_no_markup_in_a_table() -> None:
    console, out = terminal(80)
    console.print(two_columns("run [red]a[/red]", [("folder", "runs/[bold]x")]))
    assert "run [red]a[/red]" in out.getvalue()
    assert "runs/[bold]x" in out.getvalue()


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ({}, "test accuracy"),
        ({"evaluated_on": "the test set"}, "test accuracy"),
        ({"evaluated_on": "examples held back"}, "held-back accuracy"),
        ({"evaluated_on": "examples held back", "base_rate_loss": 0.7}, "0.50000, 0.70000 by base rates alone"),
    ],
)
def test_accuracy_is_called_by_what_it_is_of(also: dict[str, Any], said: str) -> None:
    console, out = terminal(80)
    console.print(summary_table({**SUMMARY, **also}))
    assert said in out.getvalue()


def test_a_comparison_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "needs folders of finished runs" in refused(["compare", "--output", str(tmp_path / "c.png")], capsys)


def test_runs_on_other_data_are_compared_in_tables_of_their_own_within_80_columns() -> None:
    run = dict.fromkeys(("delta", "noise_multiplier", "clip_norm", "batch_size", "epochs", "seconds", "epsilon"))
    runs = [
        {
            **run,
            "name": "mnist-scattering-20261126-000000",
            "dataset": "mnist",
            "evaluated_on": None,
            "test_accuracy": 0.98,
        },
        {**run, "name": "csv-dense", "dataset": "csv", "evaluated_on": "examples held back", "test_accuracy": 0.97},
        {
            **run,
            "name": "prices",
            "dataset": "csv",
            "evaluated_on": "examples held back",
            "test_accuracy": None,
            "test_rmse": 59.5,
        },
        {**run, "name": "other", "dataset": "mnist", "evaluated_on": "the test set", "test_accuracy": 0.96},
    ]
    console, out = terminal(80)
    tables = comparison_tables(runs, wide=False)
    for table in tables:
        console.print(table)
    assert len(tables) == 3
    assert "finished runs on csv, by root mean squared error on examples held back" in " ".join(out.getvalue().split())
    assert "59.5" in out.getvalue()
    assert "finished runs on csv, by accuracy on examples held back" in " ".join(out.getvalue().split())
    assert "mnist-scattering-20261126-000000" in out.getvalue()


def test_epsilons_that_say_different_things_are_told_apart() -> None:
    on_mnist = {"dataset": "mnist", "evaluated_on": None, "test_accuracy": 0.9}
    run = {**on_mnist, "delta": 1e-5, "adjacency": "add_or_remove_one", "epsilon": 1.0}
    plain = {**on_mnist, "name": "plain", "delta": None, "adjacency": None, "epsilon": None}
    assert epsilons_apart([{**run, "name": "a"}, plain, {**run, "name": "b"}]) == []
    assert epsilons_apart([{**run, "name": "a"}, {**run, "name": "b", "dataset": "adult", "delta": 1e-4}]) == []
    others = [{**run, "name": "c", "delta": 1e-3}, {**run, "name": "d", "adjacency": "replace_one"}]
    by_delta, by_adjacency = epsilons_apart([{**run, "name": "a"}, plain, *others])
    assert by_delta.endswith("δ = 1e-05 of a, d; δ = 0.001 of c")
    assert by_adjacency.endswith("adjacency add_or_remove_one of a, c; adjacency replace_one of d")


def test_a_model_that_tells_less_than_base_rates_is_said_to() -> None:
    assert advice(SUMMARY) is None
    assert advice({**SUMMARY, "base_rate_loss": 0.6}) is None
    assert "less than base rates" in str(advice({**SUMMARY, "base_rate_loss": 0.4}))


def test_pictures_show_names_as_they_are(tmp_path: Path) -> None:
    figure = new_figure(3)
    panels(figure).set_title("prices_$10_to_$20.csv")
    save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
