"""The README's snippets run as they stand, with fewer steps; its commands are understood, and those on tables run."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from jaxdp import cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(*languages: str) -> list[str]:
    """The README's blocks in these languages, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def commands() -> list[list[str]]:
    """The arguments of every `jaxdp` command in a block of its own."""
    lines = [line for block in blocks("", "bash") for line in block.splitlines() if line.startswith("jaxdp ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_the_snippets_run() -> None:
    assert len(blocks("python")) == 8
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block.replace("steps=200", "steps=2"), names)
    assert names["state"].step == 2
    assert names["out"].grads.keys() == names["params"].keys()


def test_the_commands_are_understood() -> None:
    assert len(commands()) >= 24
    for arguments in commands():
        if "--resume" not in arguments:  # which reads the folder
            cli._parse(arguments)


@pytest.mark.slow
def test_the_commands_on_tables_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_tables = [arguments for arguments in commands() if any("tables" in word for word in arguments)]
    assert [arguments[0] for arguments in of_tables] == ["lookalike", "train", "predict"]
    for arguments in of_tables:
        cli.main(arguments)
    assert len((tmp_path / "submission.csv").read_text().splitlines()) == 1001
