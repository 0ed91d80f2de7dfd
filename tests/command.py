"""The command line in tests: what it refuses, a run that is broken off, and what two runs must have in common."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp import cli
from jaxdp.runs._folder import RunFolder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line in which the command refuses."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert captured.err.startswith("jaxdp: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def result(folder: Path) -> tuple[list[bytes], list[dict[str, Any]], dict[str, Any]]:
    """What must be the same: the parameters' bits, the metrics but for times, the ledger and the epsilon."""
    run = jaxdp.load_run(folder)
    params = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.params)]
    metrics = [{k: v for k, v in line.items() if k not in ("seconds", "steps_per_second")} for line in run.metrics]
    return params, metrics, json.loads((folder / "statement.json").read_text())


def interrupt_at(owner: Any, name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a command and break it off when it is about to call a function."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit):
            cli.main(arguments)


def interrupt_at_epoch_of(arguments: list[str], epoch: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a run of these arguments and break it off when it is about to record an epoch."""
    record = RunFolder.add_metrics

    def record_or_break_off(self: RunFolder, line: dict[str, Any]) -> None:
        if line["epoch"] == epoch:
            raise KeyboardInterrupt
        record(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", record_or_break_off)
        with pytest.raises(SystemExit) as exit_:
            cli.main([*arguments, "--output", str(folder)])
    assert exit_.value.code == 130
