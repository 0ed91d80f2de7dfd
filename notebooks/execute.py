"""Run notebooks from top to bottom and store their outputs and pictures in them.

    python notebooks/execute.py                 # all of them
    python notebooks/execute.py 01 06           # those whose names begin so

The test suite runs them at a small size, with JAXDP_NOTEBOOKS=small, and stores nothing.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def executed(path: Path, timeout_seconds: int = 600) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a fresh kernel; raises nbclient's error where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=timeout_seconds, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(path.parent))
    return notebook


def main(beginnings: list[str]) -> None:
    """Execute and store."""
    names = sorted(path.name for path in FOLDER.glob("*.ipynb"))
    if unknown := [each for each in beginnings if not any(name.startswith(each) for name in names)]:
        raise SystemExit(f"{__doc__}\nNo notebook's name begins with {unknown[0]!r}: there are {', '.join(names)}")
    for path in (FOLDER / name for name in names):
        if beginnings and not path.name.startswith(tuple(beginnings)):
            continue
        started = time.monotonic()
        notebook = executed(path)
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
