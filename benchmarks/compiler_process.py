"""Programs that are compiled in a process of a compiler's own environment, which prints a line of figures for each."""

import importlib.metadata
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from targets import Target

LINE = "figures: "


def compiler_of(target: Target) -> str:
    """Which compiler the process itself has for a target, with JAX's version."""
    package = "libtpu" if target.device == "tpu" else "jax-cuda12-pjrt"
    return f"{package} {importlib.metadata.version(package)}, JAX {importlib.metadata.version('jax')}"


def compiled_by(
    python: Path, script: Path, asked: dict[str, Any], console: Console, title: str
) -> tuple[list[dict[str, Any]], bool]:
    """The figures of each program that could be compiled, and whether the process ended well.

    Args:
        python: of the compiler's environment.
        script: what it runs: one that prints figures after `LINE`.
        asked: what the script is told, as JSON.
        console: where problems are told.
        title: of what is compiled.
    """
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        console.status(title) as status,
        subprocess.Popen(
            [str(python), str(script), json.dumps(asked)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            if not line.startswith(LINE):
                continue
            figures = json.loads(line.removeprefix(LINE))
            status.update(f"{title}: after {figures['program']}")
            if "problem" in figures:
                console.print(f"{title}, {figures['program']}: {figures['problem']}", markup=False)
            else:
                found.append(figures)
        if process.wait():
            errors.seek(0)
            last = [line.strip() for line in errors if line.strip()][-1:]
            said = " ".join(last) or f"it ended with {process.returncode}"
            console.print(f"{title}: {said}", markup=False)
    return found, process.returncode == 0
