"""How long commands take to answer, and what an installation weighs.

    python benchmarks/start.py                # medians of ten, in this environment
    python benchmarks/start.py --install      # also makes an environment of its own and weighs what is in it (a minute)

Times are of whole processes from start to end, beside one that imports jax and optax alone; of training, until its first line
comes through a pipe. Weighed is a new environment after `pip install .`, by package; a dependency is charged with what no other
one of ours brings, and with the seconds that its import takes in a process of its own. Prints tables, and writes start.json to
RESULTS/DEVICE (fewer runs than lie there to start-part.json); `python benchmarks/documents.py` puts them into the documents.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
JAXDP = [sys.executable, "-m", "jaxdp.cli"]
COMMANDS = {
    'python -c "import jax, optax"': [sys.executable, "-c", "import jax, optax"],
    'python -c "import jaxdp; jaxdp.DPSGD"': [sys.executable, "-c", "import jaxdp; jaxdp.DPSGD"],
    "jaxdp --version": [*JAXDP, "--version"],
    "jaxdp --help": [*JAXDP, "--help"],
    "jaxdp trian": [*JAXDP, "trian"],
    "jaxdp train --epocks 3": [*JAXDP, "train", "--epocks", "3"],
    "jaxdp epsilon --noise-multiplier 1.3": [*JAXDP, "epsilon", "--noise-multiplier", "1.3"],
}
TRAIN = "jaxdp train, to its first line"
_IMPORTS = {  # where the module has another name than its distribution
    "dp-accounting": "dp_accounting",
    "orbax-checkpoint": "orbax.checkpoint",
    "tensorflow-datasets": "tensorflow_datasets",
    "array-record": "array_record.python.array_record_module",
    "importlib-resources": "importlib_resources",
    "lazy-loader": "lazy_loader",
    "pillow": "PIL.Image",
    "matplotlib": "matplotlib.pyplot",
}
_WEIGH = """
import importlib.metadata as metadata, json, re, sys
from packaging.requirements import Requirement
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
found = {}
for package in metadata.distributions():
    needs = [Requirement(each) for each in package.requires or ()]
    needs = [plain(each.name) for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    files = [package.locate_file(file) for file in package.files or ()]
    size = sum(file.stat().st_size for file in files if file.is_file())
    found[plain(package.metadata["Name"])] = {"bytes": size, "needs": needs}
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long commands take to answer, and what an installation weighs."""

    runs: int = 10
    """of each command"""
    install: bool = False
    """weigh a new environment as well"""
    results: Path = Path(__file__).parent / "results"
    """folder of the figures"""


def main(options: Options) -> None:
    """Time, weigh, and tell."""
    if options.runs < 1:
        sys.exit(f"--runs is {options.runs}: give at least 1")
    path = options.results / record.device_name() / "start.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    timed: dict[str, Callable[[], float]] = {name: lambda it=it: _of_process(it) for name, it in COMMANDS.items()}
    timed[TRAIN] = _to_first_line
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in track(range(options.runs), "runs"):  # in turn, so that a slow moment is everybody's
        for name, run in timed.items():
            seconds[name].append(run())
    weights = _weighed() if options.install else earlier.get("packages", {})
    content = {"runs": options.runs, "seconds": seconds, "packages": weights}
    record.write_part_or_whole(options.results, "start", content, is_part=options.runs < Options().runs)
    console = Console()
    table = Table("command", "seconds, median", "least", "most")
    for name, found in seconds.items():
        table.add_row(name, *(f"{value:.2f}" for value in (statistics.median(found), min(found), max(found))))
    console.print(table)
    if weights:
        console.print(f"{len(weights)} packages, {sum(each['bytes'] for each in weights.values()) / 1e6:.0f} MB")


def charged(packages: dict[str, dict[str, Any]]) -> dict[str, tuple[float, float, int]]:
    """Of each direct dependency the seconds of its import, the megabytes that it alone brings, and in how many packages."""
    direct = packages["jaxdp-privacy"]["needs"]
    reached = {name: _reached(name, packages) for name in direct}
    found = {}
    for name in direct:
        others = set().union(*(reached[other] for other in direct if other != name and name not in reached[other]))
        own = reached[name] - others
        found[name] = (
            packages[name]["seconds"],
            sum(packages[each]["bytes"] for each in own) / 1e6,
            len(own),
        )
    return found


def _reached(name: str, packages: dict[str, dict[str, Any]]) -> set[str]:
    found, todo = set(), [name]
    while todo:
        each = todo.pop()
        if each in packages and each not in found:
            found.add(each)
            todo += packages[each]["needs"]
    return found


def _of_process(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=False, cwd=ROOT)
    return time.perf_counter() - start


def _to_first_line() -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            [*JAXDP, "train", "--output", f"{folder}/run"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        process.kill()
        process.communicate()
        assert folder.encode() in line, line
    return seconds


def _weighed() -> dict[str, dict[str, Any]]:
    """Each package of a new environment but pip: its bytes, what it needs; of our dependencies the seconds of their import."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True)
        told = subprocess.run([python, "-c", _WEIGH], check=True, capture_output=True, text=True)
        packages = json.loads(told.stdout)
        packages.pop("pip", None)
        bare = min(_of_process([python, "-c", "pass"]) for _ in range(3))
        for name in packages["jaxdp-privacy"]["needs"]:
            command = [python, "-c", f"import {_IMPORTS.get(name, name)}"]
            subprocess.run(command, check=True, capture_output=True)
            packages[name]["seconds"] = max(0.0, min(_of_process(command) for _ in range(3)) - bare)
    return packages


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
