"""The snippets of README and of the pages run as they stand, with fewer steps; their commands, too, on less data."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdp import cli

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "docs" / f"{name}.md" for name in ("command-line", "code", "budgets", "pate", "audit")
]  # in README's order
README = ROOT / "README.md"
FIXTURES = Path(__file__).parent / "fixtures" / "tfds"


def blocks(document: Path, *languages: str) -> list[str]:
    """A document's blocks in these languages, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in languages]


def commands() -> list[list[str]]:
    """The arguments of every `jaxdp` command in a block of its own."""
    every = [block for document in (README, *PAGES) for block in blocks(document, "", "bash")]
    lines = [line for block in every for line in block.splitlines() if line.startswith("jaxdp ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_every_page_is_looked_at() -> None:
    others = {"sharp-edges", "comparison", "benchmarks", "dependencies", "glossary"}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} == {path.stem for path in PAGES} | others
    assert all(not blocks(ROOT / "docs" / f"{name}.md", "python", "bash", "") for name in others)


def test_readme_is_read_in_three_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.slow
def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a page after README's first, from which they have their names."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, *others = blocks(README, "python")
    run_block(first, names)
    assert names["state"].step == 2
    for document, snippets in ((README, others), *((page, blocks(page, "python")) for page in PAGES)):
        of_page = dict(names)
        for block in snippets:
            run_block(block, of_page)
        if document == README:
            assert of_page["trained"].layers
    assert sum(len(blocks(document, "python")) for document in (README, *PAGES)) == 18


def run_block(block: str, names: dict[str, Any]) -> None:
    exec(block.replace("steps=200", "steps=2"), names)


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
    _tables_of_classes_and_of_numbers()
    for arguments in commands():
        cli.main(smaller([there(word) for word in arguments]))
    assert len(Path("labels.csv").read_text().splitlines()) == 4
    assert len(Path("submission.csv").read_text().splitlines()) == 1001
    assert Path("kinds.csv").read_text().startswith("id,kind,setosa,versicolor,virginica\n")
    assert len(Path("prices.csv").read_text().splitlines()) == 151
    assert [len(list(Path("runs").glob(f"mnist-{name}-*"))) for name in ("scattering", "mlp", "cnn")] == [2, 10, 2]
    assert len(list(Path("runs").glob("mnist-pate-*"))) == 3


def _tables_of_classes_and_of_numbers() -> None:
    rng, kinds = np.random.default_rng(0), ("setosa", "versicolor", "virginica")
    flowers, homes = ["id,petal,sepal,kind"], ["id,metres,age,price"]
    for i, (kind, first, second) in enumerate(zip(rng.integers(0, 3, 150), *rng.random((2, 150)), strict=True)):
        flowers.append(f"{i},{1.5 + 2 * kind + first:.1f},{4 + second:.1f},{kinds[kind]}")
        homes.append(f"{i},{40 + 100 * first:.0f},{150 * second:.0f},{100 + 500 * first:.0f}")
    for name, lines in (("flowers.csv", flowers), ("homes.csv", homes)):
        Path(name).write_text("\n".join(lines) + "\n")


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
    if "--resume" in arguments or arguments[0] not in ("train", "tune", "pate"):
        return arguments
    if "csv" in arguments:
        return [*arguments, "--epochs", "2"]
    if arguments[:2] in (["pate", "label"], ["pate", "analyze"]):
        return arguments
    if arguments[0] == "tune":
        sizes = [
            "--model",
            "mlp",
            "--data-dir",
            str(FIXTURES),
            "--delta",
            "1e-3",
            "--epochs",
            "1",
            "--batch-size",
            "64",
        ]
        return [*arguments, *sizes, "--runs", "1", "--distribution", "geometric"]
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
