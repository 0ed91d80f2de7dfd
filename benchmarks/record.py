"""What stands beside every figure: the command, the device, the versions and the commit."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def device_name() -> str:
    """The device as a folder's name: its kind, or the number of a CPU's cores."""
    if jax.default_backend() == "cpu":
        return f"cpu-{os.cpu_count()}-cores"
    return jax.devices()[0].device_kind.replace(" ", "-").lower()


def write(results: Path, name: str, content: dict[str, Any]) -> Path:
    """Write figures with what they were taken on to RESULTS/DEVICE/NAME.json; returns the folder."""
    folder = results / device_name()
    folder.mkdir(parents=True, exist_ok=True)
    script = Path(sys.argv[0]).name
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    record = {
        "command": ["python", f"benchmarks/{script}", *sys.argv[1:]],
        "device": device_name(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
        "commit": commit,
    }
    (folder / f"{name}.json").write_text(json.dumps(record | content, indent=1) + "\n")
    return folder
