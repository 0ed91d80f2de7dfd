"""The README's snippets run as they stand, with fewer steps; its commands, too, on less data."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdp import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
FIXTURES = Path(__file__).parent / "fixtures" / "tfds"


def blocks(*languages: str) -> list[str]:
    """The README's blocks in these languages, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def commands() -> list[list[str]]:
    """The arguments of every `jaxdp` command in a block of its own."""
    lines = [line for block in blocks("", "bash") for line in block.splitlines() if line.startswith("jaxdp ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.slow
def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(blocks("python")) == 13
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block.replace("steps=200", "steps=2"), names)  # which writes images.npy, and reads it
    assert names["state"].step == 2
    assert names["out"].grads.keys() == names["params"].keys()


def test_the_commands_are_understood() -> None:
    assert len(commands()) >= 24
    for arguments in commands():
        if "--resume" not in arguments:  # which reads the folder
            cli._parse(arguments)


@pytest.mark.slow("minutes")
@pytest.mark.filterwarnings("ignore:.*no record of some class")
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but for 512 digits instead of 60,000, and fewer epochs, teachers and queries."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", np.zeros((3, 28, 28, 1), np.uint8))
    votes = np.random.default_rng(0).integers(0, 2, (250, 60))  # of 250 teachers, on 60 examples
    np.savetxt("predictions.csv", votes, fmt="%d", delimiter=",")
    coins = np.stack([np.arange(40) % 7, np.arange(40) % 2], axis=1)
    np.savetxt("scores.csv", coins, fmt="%d", delimiter=",", header="score,member", comments="")
    for arguments in commands():
        cli.main(smaller([there(word) for word in arguments]))
    assert len(Path("labels.csv").read_text().splitlines()) == 4
    assert len(Path("submission.csv").read_text().splitlines()) == 1001
    assert [len(list(Path("runs").glob(f"mnist-{name}-*"))) for name in ("scattering", "mlp", "cnn")] == [1, 10, 2]
    assert len(list(Path("runs").glob("mnist-pate-*"))) == 3


def there(word: str) -> str:
    """A word of a command, with what it stands for: the first run of its kind, the data set that the tests have."""
    if word == "runs/mnist-mlp-TIME":  # of many, the one that the command above it has just made
        return str(max(Path("runs").glob("mnist-mlp-*"), key=lambda path: path.stat().st_mtime_ns))
    if kind := re.fullmatch(r"runs/(FIRST|mnist-scattering-TIME|mnist-pate-TIME)(.*)", word):
        name = {"FIRST": "mnist-scattering"}.get(kind[1], kind[1].removesuffix("-TIME"))
        return str(min(Path("runs").glob(f"{name}-*"))) + kind[2]
    return {"fashion_mnist": "mnist", "~/tensorflow_datasets": str(FIXTURES)}.get(word, word)


def smaller(arguments: list[str]) -> list[str]:
    """The same command for less data: of an option given twice the last one counts."""
    if "--resume" in arguments or "csv" in arguments or arguments[0] not in ("train", "pate"):
        return arguments
    if arguments[:2] in (["pate", "label"], ["pate", "analyze"]):
        return arguments
    options = {"--data-dir": str(FIXTURES)} | ({} if "--no-dp" in arguments else {"--delta": "1e-3"})
    if arguments[0] == "train":
        options |= {"--devices": "1"} if "--devices" in arguments else {}  # a test's process has no more
        options |= {"--audit-canaries": "100"} if "--audit-canaries" in arguments else {}
        options |= {"--epochs": "1", "--batch-size": "64"}
        if len(arguments) > 1 and not {"--model", "--recipe"}.intersection(arguments):
            options |= {"--model": "mlp"}  # which compiles in a second; the first command trains what is the default
    else:
        options |= {"--teachers": "8", "--queries": "60", "--teacher-epochs": "1", "--student-steps": "4"}
        options |= {} if "--aggregator" in arguments else {"--sigma-threshold": "40", "--sigma-max": "20"}
    return [*arguments, *(word for pair in options.items() for word in pair)]
